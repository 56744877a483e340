"""Arrays in the other byte order are read right; a result in the other byte order is refused with an error that names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import bitsparse as bs

RNG = np.random.default_rng(0)
A = sparse.random_array((6, 6), density=0.5, rng=RNG, format="csr", dtype=np.float32)
X = RNG.normal(size=(6, 4)).astype(np.float32)
Q = bs.BitTensor([[1, 2, 3]], 2)
SIGNS = bs.pack_bits(X.T, encoding="bipolar", axis=-2)


def swapped(array: Any) -> Any:
    """The same numbers in the other byte order; in a sparse array, all components are swapped."""
    if sparse.issparse(array):
        made = array.copy()
        made.data, made.indices, made.indptr = map(swapped, (array.data, array.indices, array.indptr))
        return made
    return array.astype(array.dtype.newbyteorder("S"))


ASKING: dict[str, Any] = {
    "toarray": Q.toarray,
    "unpack_bits": lambda dtype: bs.unpack_bits(Q, dtype),
    "astype": Q.astype,
    "dequantize": Q.dequantize,
    "bs.dequantize": lambda dtype: bs.dequantize(Q, dtype),
    "TCTiledCSR.toarray": bs.TCTiledCSR(A).toarray,
    "TCTiledCSR.astype": bs.TCTiledCSR(A).astype,
    "FRDC.toarray": bs.FRDC(A, pattern=True).toarray,
    "index_dtype": lambda dtype: bs.TCTiledCSR(A, index_dtype=dtype),
    "plan_spmm": lambda dtype: bs.plan_spmm(A, 4, dtype=dtype),
    "plan_sampled_spmm": lambda dtype: bs.plan_sampled_spmm(A, 4, 2, dtype=dtype),
    "plan_bspmm": lambda dtype: bs.plan_bspmm(A.astype(bool), 4, "FBF", dtype=dtype),
    "plan_bmm": lambda dtype: bs.plan_bmm(SIGNS, 6, dtype=dtype),
    "plan_quantized_matmul": lambda dtype: bs.plan_quantized_matmul(X.T.copy(), 6, dtype=dtype),
}


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize("dtype", ["i4", "i8", "f4", "f8"])
def test_the_other_byte_order_is_refused(name: str, dtype: str) -> None:
    foreign = np.dtype(dtype).newbyteorder("S")
    with pytest.raises(
        bs.DTypeError, match=rf"dtype is {foreign}, in the byte order of another machine.*pass '{np.dtype(dtype).name}'"
    ):
        ASKING[name](foreign)


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize(
    "dtype",
    [
        "nonsense",
        pytest.param(object(), id="an object"),
        "complex64",
        "V3",
        pytest.param(object, id="object"),
        "datetime64[s]",
    ],
)
def test_what_is_no_dtype_of_numbers_is_refused_by_name(name: str, dtype: Any) -> None:
    with pytest.raises(bs.DTypeError, match=r"\w+: (index_)?dtype "):
        ASKING[name](dtype)


READING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "spmm": (bs.spmm, (A, X)),
    "spmm with values": (lambda a, x, v: bs.spmm(a, x, values=v), (A, X, A.data)),
    "plan_spmm": (lambda x: bs.plan_spmm(A, 4)(x), (X,)),
    "sampled_spmm": (lambda a, x: bs.sampled_spmm(a, x, 3), (A, X)),
    "sddmm": (bs.sddmm, (A, X, X[::-1].copy())),
    "edge_softmax": (bs.edge_softmax, (A, A.data)),
    "bspmm": (bs.bspmm, (A.astype(bool), X)),
    "bmm": (lambda x: bs.bmm(x, SIGNS), (X,)),
    "attention": (bs.attention, (A, X, X[:, 0].copy(), X[:, 1].copy())),
    "cosine_attention": (bs.cosine_attention, (A, X)),
    "aggregate_edges": (bs.aggregate_edges, (A, A.data[:, None])),
    "TCTiledCSR": (lambda a: bs.TCTiledCSR(a).toarray(), (A,)),
    "TCTiledCSR of arrays": (
        lambda d, i, p: bs.TCTiledCSR((d, i, p), shape=A.shape).toarray(),
        (A.data, A.indices, A.indptr),
    ),
    "with_values": (lambda d: bs.TCTiledCSR(A).with_values(d).toarray(), (A.data,)),
    "with_scales": (lambda s: bs.TCTiledCSR(A).with_scales(s, s).toarray(), (X[:, 0].copy(),)),
    "FRDC": (lambda a: bs.FRDC(a, pattern=True).toarray(), (A,)),
    "BitTensor of sparse": (lambda a: bs.BitTensor(a, 8).toarray(), ((A * 100).astype(np.int32),)),
    "BitTensor": (lambda x: bs.BitTensor(x).toarray(), (np.arange(6, dtype=np.int32).reshape(2, 3),)),
    "from_words": (lambda w: bs.BitTensor.from_words(w, (6, 4), 4).toarray(), (bs.quantize(X, 4).words,)),
    "scale": (lambda s: Q.with_affine(s).dequantize(), (np.array([[2.5]]),)),
    "arithmetic": (lambda x: Q + x, (np.array([300, -5, 1], np.int32),)),
    "quantize": (lambda x: bs.quantize(x, 4).dequantize(), (X,)),
    "range": (
        lambda low, high: bs.quantize(X, 4, range=(low, high), granularity="row").dequantize(),
        (X.min(1)[:, None], X.max(1)[:, None]),
    ),
    "quantized_matmul": (bs.quantized_matmul, (X, X.T.copy())),
    "stochastic_round": (lambda x: bs.stochastic_round(x, seed=1), (X,)),
    "add": (bs.add, (X, X)),
    "concat": (lambda x: bs.concat([x, x]), (X,)),
    "Epilogue": (lambda bias, acc: bs.Epilogue(bias=bias)(acc), (X[0], np.ones((3, 4), np.int32))),
    "quantization_error": (lambda x: np.asarray(bs.quantization_error(x, bs.quantize(X, 4))), (X,)),
}


@pytest.mark.parametrize("name", READING)
def test_the_other_byte_order_is_read_right(name: str) -> None:
    function, arguments = READING[name]
    wanted, found = function(*arguments), function(*map(swapped, arguments))
    assert found.dtype == wanted.dtype
    assert found.dtype.isnative
    assert np.array_equal(found, wanted)


@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20),
    st.sampled_from(["<", ">"]),
    st.sampled_from("iu"),
)
def test_any_integers_in_any_order_pack(values: list[int], order: str, kind: str) -> None:
    x = np.array([values], np.int64).astype(f"{order}{kind}8" if kind == "i" else f"{order}u4")
    q = bs.BitTensor(x, 32, encoding="signed" if kind == "i" else "unsigned")
    assert q.toarray().tolist() == x.tolist()


def test_nothing_is_changed_in_the_callers_matrix() -> None:
    coo = (A * 100).astype(np.int32).tocoo()
    coo.data = swapped(coo.data)
    data = coo.data
    bs.BitTensor(coo, 8)
    assert coo.data is data


def test_results_are_not_written_in_the_other_byte_order() -> None:
    with pytest.raises(bs.DTypeError, match="native byte order"):
        bs.spmm(A, X, out=swapped(np.empty((6, 4), np.float32)))

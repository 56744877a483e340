"""Encoded features on the GPU give the CPU's answers in corner cases: signs, scales, single columns and no edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs

pytestmark = pytest.mark.gpu


def cp() -> Any:
    import cupy

    return cupy


A = sp.csr_array(np.array([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]], bool))
RNG = np.random.default_rng(3)


def near(got: Any, want: np.ndarray) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.get(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("encoding", ["signed", "bipolar"])
def test_one_bit_keeps_its_sign_before_an_epilogue(encoding: str, reduce: str) -> None:
    codes = RNG.integers(0, 2, (4, 5)) * (2 if encoding == "bipolar" else 1) - 1
    x, there = bs.BitTensor(codes, 1, encoding=encoding), bs.TCTiledCSR(A).to_device("cuda")
    epilogue = bs.Epilogue(bias=0.5)
    near(
        bs.spmm(there, x.to_device("cuda"), reduce=reduce, epilogue=epilogue),
        bs.spmm(A, x, reduce=reduce, epilogue=epilogue),
    )


@pytest.mark.parametrize("scale", [2.0, np.array([[1.0], [2.0], [0.5], [3.0]]), np.array([[0.5, 2.0, 4.0]])])
@pytest.mark.parametrize("add", ["float32", "int32", "bits", "scaled bits"])
def test_scales_stand_before_an_addend(scale: object, add: str) -> None:
    x = bs.pack_bits(RNG.standard_normal((4, 3)), encoding="bipolar").with_affine(scale)
    own: Any = bs.pack_bits(RNG.standard_normal((3, 3)), encoding="bipolar")
    own = own.with_affine(0.25) if add == "scaled bits" else own if add == "bits" else own.toarray().astype(add)
    there = own.to_device("cuda") if isinstance(own, bs.BitTensor) else cp().asarray(own)
    near(bs.bspmm(bs.TCTiledCSR(A).to_device("cuda"), x.to_device("cuda"), add=there), bs.bspmm(A, x, add=own))


def test_add_applies_scales_before_an_epilogue() -> None:
    a, b = (
        bs.pack_bits(RNG.standard_normal((4, 3)), encoding="bipolar").with_affine(s, o)
        for s, o in ((2.0, 0.5), (0.25, None))
    )
    there = a.to_device("cuda"), b.to_device("cuda")
    near(bs.add(*there, epilogue=bs.Epilogue()), bs.add(a, b, epilogue=bs.Epilogue()))
    assert np.array_equal(bs.add(*there, "BBB").toarray().get(), bs.add(a, b, "BBB").toarray())
    near(bs.add(*there), bs.add(a, b))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "float16", "float32"])
def test_no_edges_give_zeros(dtype: str) -> None:
    empty, x = sp.csr_array((3, 4), dtype=bool), np.ones((4, 5), dtype)
    for container in (bs.TCTiledCSR, bs.FRDC):
        there, given = container(empty).to_device("cuda"), cp().asarray(x)
        out = cp().full((3, 5), 9, bs.spmm(empty, x).dtype)
        assert bs.spmm(there, given, out=out) is out
        for got in (out, bs.spmm(there, given, reduce="max"), bs.plan_spmm(there, 5, dtype=dtype)(given)):
            near(got, bs.spmm(empty, x))
        near(bs.spmm(there, given, reduce="mean"), bs.spmm(empty, x, reduce="mean"))
        near(bs.aggregate_edges(there, given[:0]), bs.aggregate_edges(empty, x[:0]))
        near(bs.spmm(there, given, epilogue=bs.Epilogue(bias=0.5)), bs.spmm(empty, x, epilogue=bs.Epilogue(bias=0.5)))


@pytest.mark.parametrize("bits", [1, 4, 17, 32])
def test_no_edges_of_codes_give_zeros(bits: int) -> None:
    empty, x = sp.csr_array((3, 4), dtype=bool), bs.BitTensor(np.ones((4, 5), int), bits)
    there = bs.TCTiledCSR(empty).to_device("cuda")
    near(bs.spmm(there, x.to_device("cuda")), bs.spmm(empty, x))
    near(bs.plan_spmm(there, 5, bits=bits)(x.to_device("cuda")), bs.spmm(empty, x))


@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
@pytest.mark.parametrize("bits", [1, 2, 8])
def test_one_column_of_quantised_features(bits: int, granularity: str) -> None:
    x = bs.quantize(RNG.standard_normal((4, 1)).astype(np.float32), bits, granularity=granularity)
    near(bs.spmm(bs.TCTiledCSR(A).to_device("cuda"), x.to_device("cuda")), bs.spmm(A, x))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_values_of_heads(reduce: str) -> None:
    values, x = RNG.standard_normal((A.nnz, 3)).astype(np.float32), RNG.standard_normal((4, 3, 8)).astype(np.float32)
    there, given = bs.TCTiledCSR(A).with_values(values).to_device("cuda"), cp().asarray(x)
    want = bs.spmm(A, x, values=values, reduce=reduce)
    plan = bs.plan_spmm(there, 8, heads=3, reduce=reduce)
    for got in (bs.spmm(there, given, reduce=reduce), bs.spmm(there, given, reduce=reduce), plan(given), plan(given)):
        near(got, want)
    with pytest.raises(bs.ShapeError, match="one per edge and head"):
        bs.spmm(there, given[:, 0], reduce=reduce)


def test_explicit_zeros_and_damaged_columns() -> None:
    zeros = A.astype(np.float32)
    zeros.data[::2] = 0
    assert bs.FRDC(bs.TCTiledCSR(zeros).to_device("cuda"), pattern=True).nnz == np.count_nonzero(zeros.data)
    indices = cp().asarray(np.array([0, 1, 9, 1, 2], np.int32))
    with pytest.raises(ValueError, match=r"^TCTiledCSR: .*row 0 holds the column 9, but there are 4 columns"):
        bs.TCTiledCSR((None, indices, cp().asarray(A.indptr)), shape=A.shape)

"""Forms in which a matrix may arrive: room behind its last entry, explicit zeros, several values per edge, lists of edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import bitsparse as bs
from bitsparse.errors import ShapeError

TYPES: dict[str, Callable] = {"tiled": bs.TCTiledCSR, "frdc": bs.FRDC, "bits": lambda a: bs.BitTensor(a, 1)}


# ---- room behind the last entry, which SciPy allows
def with_room(matrix: sp.csr_array, room: int) -> sp.csr_array:
    """Return the matrix with arrays that end with `room` entries of rubbish."""
    made = matrix.copy()
    made.indices = np.append(made.indices, np.full(room, 99, made.indices.dtype))
    made.data = np.append(made.data, np.full(room, 1, made.data.dtype))
    return made


@st.composite
def matrices(draw: st.DrawFn, values: int = 2) -> sp.csr_array:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.integers(0, 9)), draw(st.integers(1, 40))
    return sp.csr_array(rng.integers(0, values, shape) * (rng.random(shape) < 0.5), dtype=np.int32)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("form", ["csr", "csc"])
@given(matrix=matrices(), room=st.integers(0, 5))
def test_room_behind_the_last_entry_is_no_part_of_a_matrix(
    kind: str, form: str, matrix: sp.csr_array, room: int
) -> None:
    spare = with_room(matrix, room) if form == "csr" else with_room(matrix.T.tocsr(), room).T
    assert spare.format == form
    assert np.array_equal(TYPES[kind](spare).toarray(), matrix.toarray())
    x = np.arange(3 * matrix.shape[1]).reshape(matrix.shape[1], 3)
    assert np.array_equal(bs.spmm(spare, x), matrix @ x)
    assert np.array_equal(bs.sddmm(spare, matrix @ x, x, op="add"), bs.sddmm(matrix, matrix @ x, x, op="add"))


# ---- explicit zeros
@given(matrix=matrices(3), zeros=st.integers(0, 2**32))
def test_bits_of_a_pattern_leave_explicit_zeros_out_whatever_holds_them(matrix: sp.csr_array, zeros: int) -> None:
    matrix.data = matrix.data * np.random.default_rng(zeros).integers(0, 2, matrix.nnz).astype(matrix.dtype)
    want = matrix.toarray() != 0
    for form in (
        matrix,
        matrix.tocoo(),
        matrix.tocsc(),
        bs.TCTiledCSR(matrix),
        bs.TCTiledCSR(matrix).astype(np.float16),
    ):
        made = bs.FRDC(form, pattern=True)
        assert made.nnz == want.sum()
        assert np.array_equal(made.toarray(), want)
    # A tiled array keeps every stored entry.
    assert bs.TCTiledCSR(bs.TCTiledCSR(matrix), pattern=True).nnz == matrix.nnz


# ---- repeated entries
@pytest.mark.parametrize("parts", [[2048.0, 1.0, 1.0], [1.0, 1.0, 2048.0]])
@pytest.mark.parametrize(("dtype", "unit"), [("float16", 1.0), (ml_dtypes.bfloat16, 0.125)])
def test_repeated_16_bit_entries_are_summed_in_32_bits_and_rounded_once(
    dtype: object, unit: float, parts: list
) -> None:
    data = (np.array([*parts, 5.0]) * unit).astype(dtype)
    data[np.argmax(parts)] = 2048 if unit == 1 else 256 * unit
    want = np.array([data.astype(np.float64)[:3].sum(), 5 * unit]).astype(dtype)
    at = np.array([0, 0, 0, 1]), np.array([2, 2, 2, 0])
    for made in (
        bs.TCTiledCSR((data, at), shape=(2, 3)),
        bs.TCTiledCSR((data, at[1], np.array([0, 3, 4])), shape=(2, 3)),
        bs.TCTiledCSR.from_edges(*at, (2, 3), values=data),
    ):
        assert made.had_duplicates
        assert made.csr_arrays()[2].dtype == data.dtype
        assert np.array_equal(made.csr_arrays()[2], want)


# ---- several values per edge
def headed(heads: int, dtype: str = "float32") -> tuple[sp.csr_array, np.ndarray, bs.TCTiledCSR]:
    rng = np.random.default_rng(heads)
    matrix = sp.csr_array(rng.random((7, 9)) < 0.4)
    values = rng.integers(-4, 5, (matrix.nnz, heads)).astype(dtype)
    return matrix, values, bs.TCTiledCSR(matrix).with_values(values)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_values_of_heads_multiply_as_if_they_were_passed(dtype: str, heads: int, reduce: str) -> None:
    matrix, values, A = headed(heads, dtype)
    x = np.arange(9 * heads * 5).reshape(9, heads, 5).astype(dtype)
    want = bs.spmm(matrix, x, values=values, reduce=reduce)
    for got in (bs.spmm(A, x, reduce=reduce), bs.plan_spmm(A, 5, heads=heads, dtype=dtype, reduce=reduce)(x)):
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)
    for head in range(heads if reduce == "sum" else 0):
        one = sp.csr_array((values[:, head].astype(float), matrix.indices, matrix.indptr), shape=matrix.shape)
        assert np.allclose(want[:, head].astype(float), one @ x[:, head].astype(float), rtol=1e-2)
    assert np.array_equal((A @ x), bs.spmm(A, x))


def test_values_of_heads_multiply_packed_features() -> None:
    matrix, values, A = headed(3)
    x = bs.BitTensor(np.arange(9 * 3 * 4).reshape(9, 3, 4) % 16, 4, layout="rows")
    assert np.array_equal(bs.spmm(A, x), bs.spmm(matrix, x.toarray(), values=values))
    assert np.array_equal(bs.plan_spmm(A, 4, heads=3, bits=4)(x), bs.spmm(A, x))


def test_other_values_may_replace_those_of_heads() -> None:
    matrix, _, A = headed(3)
    x, own = np.ones((9, 2), np.float32), np.arange(matrix.nnz, dtype=np.float32)
    assert np.array_equal(bs.plan_spmm(A, 2)(x, own), bs.spmm(matrix, x, values=own))


def test_only_the_pattern_counts_where_functions_say_so() -> None:
    matrix, values, A = headed(3)
    x, y = np.ones((7, 2), np.float32), np.ones((9, 2), np.float32)
    assert np.array_equal(bs.sddmm(A, x, y), bs.sddmm(matrix, x, y))
    assert np.array_equal(bs.edge_softmax(A, values), bs.edge_softmax(matrix, values))
    assert np.array_equal(bs.edge_sample(A, 2).edges, bs.edge_sample(matrix, 2).edges)


@pytest.mark.parametrize(
    "call",
    [
        lambda A: bs.spmm(A, np.ones((9, 2), np.float32)),
        lambda A: bs.spmm(A, np.ones((9, 2, 2), np.float32)),
        lambda A: bs.plan_spmm(A, 2)(np.ones((9, 2), np.float32)),
        lambda A: bs.bspmm(A, np.ones((9, 2), np.float32)),
        lambda A: bs.plan_bspmm(A, 2),
        lambda A: bs.sampled_spmm(A, np.ones((9, 2), np.float32), 2),
        lambda A: bs.plan_sampled_spmm(A, 2, 2),
        lambda A: bs.edge_sample(A, 2).tocsr(),
    ],
)
def test_values_of_heads_are_refused_by_name_where_they_do_not_fit(call: Callable) -> None:
    with pytest.raises(ShapeError, match=r"A has (values of shape \(\d+, 3\)|3 values to an edge)"):
        call(headed(3)[2])


@pytest.mark.parametrize("dtype", ["float16", "float32", "bool", "int8", ml_dtypes.bfloat16])
@pytest.mark.parametrize("cls", [bs.TCTiledCSR, bs.FRDC])
def test_a_dense_array_in_an_order_and_in_memory_that_is_there(cls: Any, dtype: Any) -> None:
    A = cls(np.array([[0, 1, 0], [1, 0, 1]], bool)).with_scales(row_scale=[1.0, 0.0])
    want = A.toarray().astype(dtype)
    for order in ("C", "F"):
        made = A.toarray(dtype, order=order)
        assert made.dtype == want.dtype and (made == want).all() and made.flags[f"{order}_CONTIGUOUS"]
    assert A.todense("F").flags.f_contiguous
    room = np.ones((4, 9), dtype)
    for out in (np.full((2, 3), 7, dtype), np.full((3, 2), 7, dtype).T, room[::2, ::-3]):
        assert A.toarray(dtype, out=out) is out and (out == want).all()
    assert (room[1::2] == 1).all() and (room[::2, 7] == 1).all()


def test_what_a_dense_array_cannot_be_written_into_is_refused() -> None:
    A = bs.TCTiledCSR(np.eye(2, dtype=np.float32))
    fixed = np.zeros((2, 2), np.float32)
    fixed.flags.writeable = False
    for error, words, options in (
        (bs.ShapeError, r"out has shape \(2, 3\), but", {"out": np.zeros((2, 3), np.float32)}),
        (bs.DTypeError, "out has dtype float64, but the result is float32", {"out": np.zeros((2, 2))}),
        (ValueError, "out is read-only", {"out": fixed}),
        (bs.DTypeError, "no memory that NumPy can write to", {"out": [[0, 0], [0, 0]]}),
        (ValueError, "order='F' .* leave one out", {"order": "F", "out": np.zeros((2, 2), np.float32)}),
        (ValueError, "order must be one of 'C', 'F', got 'A'", {"order": "A"}),
    ):
        with pytest.raises(error, match=f"^toarray: .*({words})"):
            A.toarray(**options)

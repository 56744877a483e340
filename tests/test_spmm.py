"""spmm, plan_spmm and aggregate_edges as users call them, with SciPy and float64 as oracles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sparse_inputs import SEGMENT, dtype_of, features, graphs, same

import bitsparse as bs

GRAPHS = graphs()


@dataclass
class Container:
    """A container with CSR arrays, as the sparse types offer them."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray | None
    shape: tuple[int, int]
    row_scale: np.ndarray | None = None
    col_scale: np.ndarray | None = None

    def csr_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        return self.indptr, self.indices, self.values


def weighted(graph: sp.csr_array, seed: int = 0, dtype: type = np.float32) -> sp.csr_array:
    made = graph.astype(dtype)
    made.data = np.random.default_rng(seed).standard_normal(graph.nnz).astype(dtype)
    return made


def maximum(A: sp.csr_array, x: np.ndarray) -> np.ndarray:
    rows = [A.data[a:b, None] * x[A.indices[a:b]] for a, b in zip(A.indptr[:-1], A.indptr[1:], strict=True)]
    most = [row.max(axis=0) if len(row) else np.zeros(x.shape[1], x.dtype) for row in rows]
    return np.array(most, np.result_type(A.dtype, x.dtype)).reshape(-1, x.shape[1])


def error_bound(A: sp.csr_array, x: np.ndarray, unit: float) -> np.ndarray:
    """Return the docstring's error bound for every element."""
    lengths = np.diff(A.indptr)[:, None]
    return (
        (np.minimum(lengths, SEGMENT) + -(-lengths // SEGMENT) + 3)
        * unit
        * (abs(A).astype(np.float64) @ abs(x).astype(np.float64))
    )


# ---- values
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2.0**-24), ("float64", 2.0**-53)])
def test_sums_stay_within_the_stated_bound(name: str, dtype: str, unit: float) -> None:
    A = weighted(GRAPHS[name], dtype=np.dtype(dtype).type)
    x = np.random.default_rng(1).standard_normal((A.shape[1], 19)).astype(dtype)
    got = bs.spmm(A, x)
    exact = A.astype(np.longdouble) @ x.astype(np.longdouble)
    assert got.dtype == dtype
    assert got.shape == (A.shape[0], 19)
    assert (abs(got - exact) <= error_bound(A, x, unit)).all()


@pytest.mark.parametrize(("dtype", "half"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_sixteen_bit_features_are_rounded_once(dtype: str, half: float) -> None:
    A = GRAPHS["hubs"]
    x = np.random.default_rng(2).random((A.shape[1], 19)).astype(dtype_of(dtype))
    got = bs.spmm(sp.csr_array(A, dtype=bool), x)
    assert got.dtype == x.dtype
    exact = A.astype(np.float64) @ x.astype(np.float64)
    bound = error_bound(A, x.astype(np.float64), 2.0**-24) * (1 + half) + half * abs(exact)
    assert (abs(got.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("name", GRAPHS)
def test_mean_maximum_and_minimum(name: str) -> None:
    A = weighted(GRAPHS[name])
    x = np.random.default_rng(3).standard_normal((A.shape[1], 9)).astype(np.float32)
    same(bs.spmm(A, x, reduce="max"), maximum(A, x))
    same(bs.spmm(A, x, reduce="min"), 0 - maximum(A, -x))
    count = np.maximum(np.diff(A.indptr), 1).astype(np.float32)[:, None]
    same(bs.spmm(A, x, reduce="mean"), bs.spmm(A, x) / count)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("values", [None, np.int8, np.int64])
def test_integers_are_exact(dtype: str, values: type | None) -> None:
    rng = np.random.default_rng(4)
    A = sp.csr_array(GRAPHS["hubs"], dtype=bool)
    if values is not None:
        A = A.astype(values)
        A.data = rng.integers(-100, 100, A.nnz).astype(values)
    x = features(rng, (A.shape[1], 11), np.dtype(dtype))
    got = bs.spmm(A, x)
    same(got, (A.astype(np.int64) @ x.astype(np.int64)).astype(got.dtype))
    wide = values is np.int64 or np.dtype(dtype).itemsize >= 4 or (values is np.int8 and "16" in dtype)
    assert got.dtype == (np.int64 if wide else np.int32)
    mean = bs.spmm(A, x, reduce="mean")
    same(mean, got.astype(np.float32) / np.maximum(np.diff(A.indptr), 1).astype(np.float32)[:, None])
    same(
        bs.spmm(A, x, reduce="max"),
        maximum(A.astype(np.int64), x.astype(np.int64)).astype(bs.spmm(A, x, reduce="max").dtype),
    )
    least = bs.spmm(A, x, reduce="min")
    same(least, (-maximum(A.astype(np.int64), -x.astype(np.int64))).astype(least.dtype))


def test_accumulator_boundaries() -> None:
    row = sp.csr_array((np.ones(65536, bool), np.arange(65536), [0, 65536]), shape=(1, 65536))
    assert bs.spmm(row[:, :65535], np.full((65535, 1), -(2**15), np.int16)).item() == -65535 * 2**15
    assert bs.spmm(row[:, :65535], np.zeros((65535, 1), np.int16)).dtype == np.int32
    assert bs.spmm(row, np.full((65536, 1), -(2**15), np.int16)).dtype == np.int64
    big = np.full((2, 1), 2**62 - 1, np.int64)
    pair = row[:, :2]
    assert bs.spmm(pair, big).item() == 2**63 - 2
    with pytest.raises(ValueError, match="beyond int64"):
        bs.spmm(pair, big + 1)
    with pytest.raises(ValueError, match="beyond int64"):
        bs.spmm(pair[:, :1], np.full((1, 1), 2**63, np.uint64))


def test_promotion() -> None:
    A = GRAPHS["square"]
    x = np.ones((A.shape[1], 2))
    for a, b, want in (
        ("float32", "float64", "float64"),
        ("float64", "float32", "float64"),
        ("float32", "float16", "float32"),
        ("float16", "float16", "float16"),
        ("float32", "int8", "float32"),
        ("float16", "uint8", "float32"),
        ("float32", "int32", "float64"),
        ("int8", "float16", "float16"),
        ("int64", "float32", "float64"),
        ("bool", "float16", "float16"),
    ):
        made = bs.spmm(A.astype(np.float32), x.astype(b), values=np.ones(A.nnz, a))
        assert made.dtype == want, (a, b)
        np.testing.assert_array_equal(made.astype(np.float64), A @ x)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity(value: float) -> None:
    A = GRAPHS["square"]
    x = np.ones((A.shape[1], 3), np.float32)
    x[5, 1] = value
    with np.errstate(invalid="ignore"):
        want = A @ x
    np.testing.assert_array_equal(bs.spmm(A, x), want)
    hit = (A[:, [5]].toarray() > 0)[:, 0]
    for reduce, signed in (("mean", x), ("max", x), ("min", -x)):
        got = bs.spmm(A, signed, reduce=reduce)
        assert (np.isnan(got[hit, 1]) if np.isnan(value) else np.isinf(got[hit, 1])).all()
        assert np.isfinite(got[:, [0, 2]]).all()


# ---- sparse operands
def test_every_scipy_format_and_container() -> None:
    A = weighted(GRAPHS["square"])
    x = np.random.default_rng(5).standard_normal((A.shape[1], 8)).astype(np.float32)
    want = bs.spmm(A, x)
    for form in ("csr", "csc", "coo", "bsr", "lil", "dok"):
        same(bs.spmm(A.asformat(form), x), want)
        same(bs.spmm(sp.csr_matrix(A).asformat(form), x), want)
    diagonal = sp.diags_array([np.arange(80.0), np.ones(81)], offsets=[1, 0])
    np.testing.assert_array_equal(bs.spmm(diagonal, x), diagonal @ x)
    same(bs.spmm(Container(A.indptr, A.indices, A.data, A.shape), x), want)
    wide = Container(A.indptr.astype(np.int64), A.indices.astype(np.int64), A.data, A.shape)
    same(bs.spmm(wide, x), want)
    same(bs.spmm(Container(A.indptr, A.indices.astype(np.int64), A.data.astype(">f4"), A.shape), x), want)


def test_bit_tensor_as_adjacency() -> None:
    A = sp.csr_array(GRAPHS["square"], dtype=bool)
    x = np.random.default_rng(6).standard_normal((A.shape[1], 8)).astype(np.float32)
    for axis in (-1, -2):
        same(bs.spmm(bs.BitTensor(A, 1, axis=axis), x), bs.spmm(A, x))
    counts = bs.BitTensor(np.array([[0, 3], [2, 1]]), 2)
    np.testing.assert_array_equal(bs.spmm(counts, np.array([[1], [10]], np.int8)), [[30], [12]])
    with pytest.raises(ValueError, match="with_affine"):
        bs.spmm(bs.BitTensor(A, 1, scale=2.0), x)
    with pytest.raises(ValueError, match="bipolar"):
        bs.spmm(bs.BitTensor(np.ones((2, 8)), 1, encoding="bipolar"), x[:8])


def test_scales_are_factors_of_the_values() -> None:
    rng = np.random.default_rng(7)
    A = weighted(GRAPHS["hubs"])
    row, col = (rng.standard_normal(n).astype(np.float32) for n in A.shape)
    x = rng.standard_normal((A.shape[1], 5)).astype(np.float32)
    made = Container(A.indptr, A.indices, A.data, A.shape, row, col)
    scaled = sp.diags_array(row.astype(np.float64)) @ A.astype(np.float64) @ sp.diags_array(col.astype(np.float64))
    assert (abs(bs.spmm(made, x) - scaled @ x) <= error_bound(scaled.tocsr(), x, 2.0**-24)).all()
    np.testing.assert_allclose(
        bs.spmm(made, x, reduce="max"), maximum(scaled.tocsr(), x.astype(np.float64)), rtol=1e-6, atol=1e-30
    )
    bits = x > 0
    np.testing.assert_allclose(bs.spmm(made, bits), scaled @ bits, rtol=1e-4, atol=1e-3)
    assert bs.spmm(made, bits).dtype == np.float32


def test_unsorted_indices_keep_the_callers_edge_order() -> None:
    rng = np.random.default_rng(8)
    A = weighted(GRAPHS["square"])
    order = np.concatenate([rng.permutation(np.arange(a, b)) for a, b in zip(A.indptr[:-1], A.indptr[1:], strict=True)])
    mixed = sp.csr_array((A.data[order], A.indices[order], A.indptr), shape=A.shape)
    assert not mixed.has_sorted_indices
    x = rng.standard_normal((A.shape[1], 8)).astype(np.float32)
    values = rng.standard_normal(A.nnz).astype(np.float32)
    same(bs.spmm(mixed, x), bs.spmm(A, x))
    same(bs.spmm(mixed, x, values=values[order]), bs.spmm(A, x, values=values))
    for side in ("rows", "cols"):
        same(bs.aggregate_edges(mixed, values[order], side=side), bs.aggregate_edges(A, values, side=side))
    np.testing.assert_array_equal(mixed.indices, A.indices[order])  # the caller's arrays are left alone


def test_duplicates_are_summed_and_have_no_edge_values() -> None:
    A = sp.csr_array((np.array([1.0, 2.0, 4.0]), np.array([1, 0, 1]), np.array([0, 3])), shape=(1, 2))
    x = np.array([[1.0], [10.0]])
    np.testing.assert_array_equal(bs.spmm(A, x), [[52.0]])
    np.testing.assert_array_equal(bs.spmm(A, x, reduce="mean"), [[26.0]])
    assert A.nnz == 3
    with pytest.raises(ValueError, match=r"spmm: A holds duplicate entries.*sum_duplicates"):
        bs.spmm(A, x, values=np.ones(3))


def test_csr_with_spare_room_and_explicit_zeros() -> None:
    A = sp.csr_array((np.array([0.0, 2.0, 9.0]), np.array([0, 1, 7]), np.array([0, 2])), shape=(1, 2))
    np.testing.assert_array_equal(bs.spmm(A, np.array([[1.0], [3.0]]), reduce="mean"), [[3.0]])
    stored = sp.csr_array((np.array([True, False]), np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
    np.testing.assert_array_equal(bs.spmm(stored, np.array([[1], [1]], np.int8)), [[1]])


# ---- features
def test_features_of_one_dimension_and_heads() -> None:
    rng = np.random.default_rng(9)
    A = weighted(GRAPHS["hubs"])
    x = rng.standard_normal((A.shape[1], 3, 10)).astype(np.float32)
    same(bs.spmm(A, x[:, 0, 0]), bs.spmm(A, x[:, 0, :1])[:, 0])
    same(bs.spmm(A, x), bs.spmm(A, x.reshape(-1, 30)).reshape(-1, 3, 10))
    values = rng.standard_normal((A.nnz, 3)).astype(np.float32)
    for reduce in ("sum", "mean", "max"):
        got = bs.spmm(A, x, values=values, reduce=reduce)
        for h in range(3):
            same(np.ascontiguousarray(got[:, h]), bs.spmm(A, x[:, h], values=values[:, h], reduce=reduce))
    same(bs.spmm(A, x, values=values[:, 0]), bs.spmm(A, x, values=np.repeat(values[:, :1], 3, axis=1)))


@pytest.mark.parametrize("memory", ["F", "strided", "reversed", "big-endian", "read-only"])
def test_any_memory_layout(memory: str) -> None:
    A = GRAPHS["square"]
    x = np.random.default_rng(10).standard_normal((A.shape[1], 6)).astype(np.float32)
    given = {
        "F": np.asfortranarray(x),
        "strided": np.repeat(x, 2, axis=1)[:, ::2],
        "reversed": x[::-1].copy()[::-1],
        "big-endian": x.astype(">f4"),
        "read-only": x.copy(),
    }[memory]
    given.flags.writeable = memory != "read-only"
    same(bs.spmm(A, given), bs.spmm(A, x))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8, 12, 16])
@pytest.mark.parametrize("encoding", ["unsigned", "signed"])
def test_packed_features_are_their_integers_or_their_values(bits: int, encoding: str) -> None:
    rng = np.random.default_rng(bits)
    A = GRAPHS["hubs"]
    low = -(1 << (bits - 1)) if encoding == "signed" else 0
    x = rng.integers(low, low + (1 << bits), (A.shape[1], 37))
    pattern, values = sp.csr_array(A, dtype=bool), weighted(A)
    for axis, layout in ((-1, "rows"), (-1, "planes"), (-2, "planes")):
        if layout == "rows" and bits not in (1, 2, 4, 8, 16):
            continue
        q = bs.BitTensor(x, bits, encoding=encoding, axis=axis, layout=layout)
        np.testing.assert_array_equal(bs.spmm(pattern, q), A.astype(np.int64) @ x)
        assert bs.spmm(pattern, q).dtype in (np.int32, np.int64)
        same(bs.spmm(values, q), bs.spmm(values, x.astype(np.float32)))
        for scale, offset in (
            (0.1, None),
            (None, 3.0),
            (rng.random((A.shape[1], 1)), rng.random((A.shape[1], 1))),
            (rng.random((1, 37)), 0.5),
            (0.25, rng.random((1, 37))),
            (rng.random((A.shape[1], 1)), rng.random((1, 37))),
        ):
            real = q.with_affine(scale, offset)
            same(bs.spmm(pattern, real), bs.spmm(pattern, real.dequantize()))
            same(bs.spmm(A.astype(np.float64), real), bs.spmm(A.astype(np.float64), real.dequantize()))


def test_packed_heads() -> None:
    rng = np.random.default_rng(11)
    A = GRAPHS["square"]
    x = rng.integers(0, 16, (A.shape[1], 3, 20))
    q = bs.BitTensor(x, 4, layout="rows")
    values = rng.standard_normal((A.nnz, 3)).astype(np.float32)
    same(bs.spmm(A, q, values=values), bs.spmm(A, x.astype(np.float32), values=values))
    same(
        bs.spmm(A, q.with_affine(0.5), values=values), bs.spmm(A, x.astype(np.float32) * np.float32(0.5), values=values)
    )
    np.testing.assert_array_equal(
        bs.spmm(sp.csr_array(A, dtype=bool), q), bs.spmm(sp.csr_array(A, dtype=bool), x.astype(np.int8))
    )


# ---- incidence, plans, out
@pytest.mark.parametrize("name", GRAPHS)
def test_edges_are_aggregated_at_either_end(name: str) -> None:
    A = GRAPHS[name]
    edges = np.random.default_rng(12).standard_normal((A.nnz, 2, 3))
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    for side, ends, size in (("rows", rows, A.shape[0]), ("cols", A.indices, A.shape[1])):
        incidence = sp.csr_array((np.ones(A.nnz), (ends, np.arange(A.nnz))), shape=(size, A.nnz))
        want = (incidence @ edges.reshape(A.nnz, 6)).reshape(size, 2, 3)
        np.testing.assert_allclose(bs.aggregate_edges(A, edges, side=side), want, rtol=1e-12, atol=1e-12)
        most = maximum(incidence.tocsr(), edges.reshape(A.nnz, 6)).reshape(size, 2, 3)
        np.testing.assert_array_equal(bs.aggregate_edges(A, edges, side=side, reduce="max"), most)
    small = (edges[:, 0] * 10).astype(np.int8)
    got = bs.aggregate_edges(A, bs.BitTensor(small, 8, encoding="signed", layout="rows")) if A.nnz else None
    if got is not None:
        np.testing.assert_array_equal(got, bs.aggregate_edges(A, small))


def test_a_plan_repeats_and_explains() -> None:
    A = weighted(GRAPHS["hubs"])
    plan = bs.plan_spmm(A, 4, heads=2, reduce="mean")
    x = np.random.default_rng(13).standard_normal((A.shape[1], 2, 4)).astype(np.float32)
    out = np.empty((A.shape[0], 2, 4), np.float32)
    assert plan.shape == out.shape
    assert plan(x, out=out) is out
    same(out, bs.spmm(A, x, reduce="mean"))
    same(plan(x, A.data), out)
    assert "longest row 2500" in plan.explain()
    assert "2 longer rows are shared out" in plan.explain()
    assert repr(plan) == f"<SpmmPlan shape=(8, 2, 4) reduce=mean edges={A.nnz}>"
    with pytest.raises(bs.ShapeError, match="the plan is for"):
        plan(x[:, 0])


def test_plans_of_packed_features_say_how_they_are_summed() -> None:
    A, relu = GRAPHS["square"], bs.Epilogue(activation="relu")
    pattern = bs.TCTiledCSR(A != 0, row_scale=np.ones(A.shape[0], np.float32))
    more: dict[str, Any]
    for bits, more, wanted in (
        (8, {}, "8 unsigned bits: gathered packed, summed in float32"),
        (1, {"epilogue": relu}, "1 unsigned bits: vertical counters, the epilogue behind them"),
        (3, {}, "3 unsigned bits: unpacked to uint8 first"),
    ):
        plan = bs.plan_spmm(pattern, 4, bits=bits, **more)
        assert wanted in plan.explain()
    assert "bits" not in bs.plan_spmm(pattern, 4).explain()


def test_out_is_checked_before_it_is_written() -> None:
    A = GRAPHS["square"]
    x = np.ones((A.shape[1], 4), np.float32)
    out = np.full((A.shape[0], 4), 7, np.float32)
    for wrong, error in (
        (out[:-1], bs.ShapeError),
        (out.astype(np.float64), bs.DTypeError),
        (np.asfortranarray(out), ValueError),
        (np.empty(out.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(out.shape), ValueError),
        ([[1.0]], bs.DTypeError),
    ):
        with pytest.raises(error, match="spmm: out"):
            bs.spmm(A, x, out=wrong)
    square = np.ones((81, 4), np.float32)
    with pytest.raises(ValueError, match="shares memory"):
        bs.spmm(A, square, out=square)
    with pytest.raises(bs.ShapeError):
        bs.spmm(A, x[:-1], out=out)
    assert (out == 7).all()
    assert bs.spmm(A, x, out=out) is out
    same(out, A @ x)
    mean = np.empty((A.shape[0], 4), np.float32)
    same(bs.spmm(sp.csr_array(A, dtype=bool), x.astype(np.int8), reduce="mean", out=mean), bs.spmm(A, x, reduce="mean"))


# ---- refusals
def test_refusals_name_both_values_and_a_remedy() -> None:
    A = GRAPHS["square"]
    x = np.ones((A.shape[1], 4), np.float32)
    with pytest.raises(bs.ShapeError, match=r"spmm: A has 81 columns but x has 80 rows .*transpose"):
        bs.spmm(A, x[:-1])
    with pytest.raises(bs.ShapeError, match="features are"):
        bs.spmm(A, np.ones((A.shape[1], 1, 1, 1)))
    with pytest.raises(bs.ShapeError, match=f"A has {A.nnz} edges"):
        bs.spmm(A, x, values=np.ones(A.nnz + 1, np.float32))
    with pytest.raises(bs.ShapeError, match="values have shape"):
        bs.spmm(A, x, values=np.ones((A.nnz, 4), np.float32))
    with pytest.raises(bs.DTypeError, match=r"must be sparse .*TCTiledCSR"):
        bs.spmm(A.toarray(), x)
    with pytest.raises(bs.DTypeError, match="complex64"):
        bs.spmm(A.astype(np.complex64), x)
    with pytest.raises(bs.DTypeError, match="complex64"):
        bs.spmm(A, x + 1j)
    with pytest.raises(bs.DTypeError, match=r"longdouble|float128"):
        bs.spmm(A, x.astype(np.longdouble))
    with pytest.raises(ValueError, match="reduce must be one of 'sum', 'mean', 'max', 'min'"):
        bs.spmm(A, x, reduce="median")
    with pytest.raises(ValueError, match="side must be one of"):
        bs.aggregate_edges(A, np.ones(A.nnz), side="left")
    with pytest.raises(bs.ShapeError, match="pass one per edge"):
        bs.aggregate_edges(A, np.ones(A.nnz - 1))


def test_damaged_containers_are_refused() -> None:
    A = GRAPHS["square"]
    x = np.ones((A.shape[1], 4), np.float32)
    falling, outside = A.indptr.copy(), A.indices.copy()
    falling[3] = 2**30
    outside[7] = 81
    for indptr, indices in (
        (falling, A.indices),
        (A.indptr, outside),
        (A.indptr, -outside),
        (A.indptr[:-1], A.indices),
        (A.indptr, A.indices[:-1]),
        (A.indptr.astype(float), A.indices),
    ):
        with pytest.raises((ValueError, TypeError), match=r"rebuild|integers"):
            bs.spmm(Container(indptr, indices, None, A.shape), x)
    made = A.copy()
    made.indices[7] = 10**6
    for call in (lambda: bs.spmm(made, x), lambda: bs.aggregate_edges(made, made.data, side="cols")):
        with pytest.raises(ValueError, match="rebuild"):
            call()


# ---- properties and other libraries
@given(
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 5),
    st.integers(0, 2**32),
    st.sampled_from(["sum", "mean", "max"]),
)
def test_linear_and_permutable(rows: int, cols: int, width: int, seed: int, reduce: str) -> None:
    """With integers, permuting the rows of A must permute the result, and permuting its columns with the rows of x change nothing."""
    rng = np.random.default_rng(seed)
    A = sp.csr_array(rng.integers(-1, 2, (rows, cols)).astype(np.int8))
    x = rng.integers(-9, 9, (cols, width)).astype(np.int8)
    got = bs.spmm(A, x, reduce=reduce)
    if reduce == "sum":
        same(got, (A.astype(np.int32) @ x.astype(np.int32)).astype(np.int32))
    p, q = rng.permutation(rows), rng.permutation(cols)
    same(bs.spmm(A[p][:, q], x[q], reduce=reduce), got[p])


@pytest.mark.torch
def test_torch_in_torch_out() -> None:
    import torch

    A = GRAPHS["square"]
    x = torch.ones((A.shape[1], 4))
    got = bs.spmm(A, x)
    assert isinstance(got, torch.Tensor)
    np.testing.assert_array_equal(got.numpy(), A @ x.numpy())
    out = torch.empty_like(got)
    assert bs.spmm(A, x, out=out) is out
    assert torch.equal(out, got)
    assert isinstance(bs.sddmm(A, torch.ones((80 + 1, 4))), torch.Tensor)


@pytest.mark.jax
def test_jax_in_jax_out() -> None:
    import jax

    A = GRAPHS["square"]
    got = bs.spmm(A, jax.numpy.ones((A.shape[1], 4)))
    assert isinstance(got, jax.Array)
    np.testing.assert_array_equal(np.asarray(got), A @ np.ones((A.shape[1], 4), np.float32))

"""sddmm, edge_softmax and attention as users call them, with dense NumPy and float64 as oracles."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import dtype_of, features, graphs, same

import bitsparse as bs

GRAPHS = graphs()


def ends(A: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)), A.indices


def softmax(A: sp.csr_array, scores: np.ndarray) -> np.ndarray:
    """Return the softmax over each row's edges in float64."""
    made = np.empty(scores.shape, np.float64)
    for a, b in zip(A.indptr[:-1], A.indptr[1:], strict=True):
        if a < b:
            part = scores[a:b].astype(np.float64)
            power = np.exp(part - part.max(axis=0))
            made[a:b] = power / power.sum(axis=0)
    return made


def shuffled(A: sp.csr_array, seed: int) -> tuple[sp.csr_array, np.ndarray]:
    """Return the matrix with the columns of each row in another order, and that order."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(np.arange(a, b)) for a, b in zip(A.indptr[:-1], A.indptr[1:], strict=True)])
    return sp.csr_array((A.data[order], A.indices[order], A.indptr), shape=A.shape), order


# ---- sddmm
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("dtype", "unit", "ways"), [("float32", 2.0**-24, 16), ("float64", 2.0**-53, 8)])
def test_dot_products_stay_within_the_stated_bound(name: str, dtype: str, unit: float, ways: int) -> None:
    A = GRAPHS[name]
    rows, cols = ends(A)
    rng = np.random.default_rng(1)
    for width in (0, 1, 3, 16, 50, 200):
        x, y = (rng.standard_normal((n, width)).astype(dtype) for n in A.shape)
        terms = x.astype(np.longdouble)[rows] * y.astype(np.longdouble)[cols]
        got = bs.sddmm(A, x, y)
        assert got.dtype == dtype
        assert got.shape == (A.nnz,)
        bound = (-(-width // ways) + 5) * unit * abs(terms).sum(axis=1)
        assert (abs(got - terms.sum(axis=1)) <= bound).all()


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "bool", "int8", "uint16", "int32", "uint64"]
)
def test_every_dtype_and_operation(dtype: str) -> None:
    A = GRAPHS["hubs"]
    rows, cols = ends(A)
    rng = np.random.default_rng(2)
    x, y = (features(rng, (n, 2, 5), dtype_of(dtype)) for n in A.shape)
    if dtype not in ("bool", "int8", "uint16") and x.dtype.kind in "iu":
        x, y = x % 1000, y % 1000
    exact = np.float64 if x.dtype.kind == "f" or dtype == "bfloat16" else np.int64
    left, right = x.astype(exact)[rows], y.astype(exact)[cols]
    wants = {"add": left + right, "sub": left - right, "mul": left * right, "dot": (left * right).sum(axis=-1)}
    if exact is np.float64:
        with np.errstate(all="ignore"):
            wants["div"] = left / right
    for op, want in wants.items():
        got = bs.sddmm(A, x, y, op=op)
        assert got.shape == want.shape
        if exact is np.int64:
            sums = op in ("add", "sub")
            assert got.dtype == (np.int64 if x.dtype.itemsize >= 4 or (not sums and dtype == "uint16") else np.int32)
            np.testing.assert_array_equal(got, want)
        elif op == "dot":
            eps = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-5)
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=eps, atol=eps)
        else:
            same(got, want.astype(x.dtype))


def test_operands_default_and_broadcast_nowhere() -> None:
    A = GRAPHS["square"]
    x = np.random.default_rng(3).standard_normal((81, 6))
    same(bs.sddmm(A, x), bs.sddmm(A, x, x))
    same(bs.sddmm(A, x[:, 0], x[:, 1], op="add"), bs.sddmm(A, x[:, :1], x[:, 1:2], op="add")[:, 0])
    mixed = bs.sddmm(A, x.astype(np.float32), x)
    assert mixed.dtype == np.float64
    with pytest.raises(bs.ShapeError, match="sddmm: A has 81 columns but y has 80 rows"):
        bs.sddmm(A, x, x[:-1])
    with pytest.raises(bs.ShapeError, match="A has 81 rows but x has 80 rows"):
        bs.sddmm(A, x[:-1], x)
    with pytest.raises(bs.ShapeError, match=r"A has 900 columns but x \(as y\) has 4 rows"):
        bs.sddmm(GRAPHS["wide"], x[:4])
    with pytest.raises(bs.ShapeError, match="all but the first"):
        bs.sddmm(A, x, x[:, :5])
    with pytest.raises(ValueError, match="op must be one of 'dot', 'add', 'sub', 'mul', 'div'"):
        bs.sddmm(A, x, op="max")
    with pytest.raises(bs.DTypeError, match="sddmm: x is int8 and y is int8, but op='div' divides floats"):
        bs.sddmm(A, np.ones((81, 2), np.int8), op="div")
    same(
        bs.sddmm(A, np.ones((81, 2), np.int8), np.full((81, 2), 4, np.float32), op="div"),
        np.full((A.nnz, 2), np.float32(0.25)),
    )
    with pytest.raises(ValueError, match="beyond int64"):
        bs.sddmm(A, np.full((81, 2), 2**40), np.full((81, 2), 2**40))


def test_packed_features_are_dequantised_only_if_they_have_a_scale() -> None:
    A = GRAPHS["square"]
    x = np.random.default_rng(4).integers(0, 16, (81, 9))
    q = bs.BitTensor(x, 4, layout="rows")
    np.testing.assert_array_equal(bs.sddmm(A, q), bs.sddmm(A, x.astype(np.uint8)))
    same(bs.sddmm(A, q.with_affine(0.5, 1.0)), bs.sddmm(A, (x * 0.5 + 1).astype(np.float32)))


def test_edges_come_back_in_the_callers_order() -> None:
    A = GRAPHS["hubs"]
    mixed, order = shuffled(A, 5)
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal((n, 2, 3)).astype(np.float32) for n in A.shape)
    for op in ("dot", "add", "sub", "mul", "div"):
        want = bs.sddmm(A, x, y, op=op)[order]
        same(bs.sddmm(mixed, x, y, op=op), want)
        out = np.empty_like(want)
        assert bs.sddmm(mixed, x, y, op=op, out=out) is out
        same(out, want)
    scores = rng.standard_normal((A.nnz, 2)).astype(np.float32)
    want = bs.edge_softmax(A, scores)[order]
    same(bs.edge_softmax(mixed, scores[order]), want)
    out = np.empty_like(want)
    bs.edge_softmax(mixed, scores[order], out=out)
    same(out, want)
    twice = sp.csr_array((np.ones(2), np.zeros(2, int), [0, 2]), shape=(1, 1))
    with pytest.raises(ValueError, match="duplicate entries"):
        bs.sddmm(twice, np.ones((1, 1)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_out(dtype: str) -> None:
    A = GRAPHS["square"]
    x = np.random.default_rng(6).integers(-5, 5, (81, 6)).astype(dtype)
    want = bs.sddmm(A, x)
    out = np.empty_like(want)
    assert bs.sddmm(A, x, out=out) is out
    same(out, want)
    with pytest.raises(bs.ShapeError, match="out has shape"):
        bs.sddmm(A, x, out=out[:-1])
    with pytest.raises(bs.DTypeError, match="out has dtype"):
        bs.sddmm(A, x, out=out.astype(np.float64))


# ---- softmax
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_softmax_stays_within_the_stated_bound(name: str, dtype: str) -> None:
    A = GRAPHS[name]
    scores = (np.random.default_rng(7).standard_normal((A.nnz, 3)) * 10).astype(dtype_of(dtype))
    got = bs.edge_softmax(A, scores)
    assert got.dtype == scores.dtype
    want = softmax(A, scores)
    unit, ways = (2.0**-53, 8) if dtype == "float64" else (2.0**-24, 16)
    lengths = np.repeat(np.diff(A.indptr), np.diff(A.indptr))[:, None]
    largest = np.repeat(
        [
            scores[a:b].astype(float).max(axis=0, initial=-np.inf)
            for a, b in zip(A.indptr[:-1], A.indptr[1:], strict=True)
        ],
        np.diff(A.indptr),
        axis=0,
    ).reshape(scores.shape)
    steps = abs(scores.astype(float) - largest) + np.ceil(lengths / ways) + 16
    rounding = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype, 0.0)
    tiny = 2.0**-24 if dtype == "float16" else 2.0**-126
    assert (abs(got.astype(float) - want) <= want * (steps * unit + rounding) * (1 + 1e-3) + tiny).all()


def test_softmax_of_extreme_scores() -> None:
    A = sp.csr_array((np.ones(8), np.arange(8) % 4, [0, 4, 8]), shape=(2, 4))
    for dtype in (np.float32, np.float64):
        scores = np.array([1e30, -1e30, 0, 1e30, 5, 5, 5, -np.inf], dtype)
        same(bs.edge_softmax(A, scores), np.array([0.5, 0, 0, 0.5, *(np.ones(3, dtype) / dtype(3)), 0], dtype))
        for bad in (np.nan, np.inf):
            scores[5] = bad
            got = bs.edge_softmax(A, scores)
            assert np.isfinite(got[:4]).all()
            assert np.isnan(got[4:] if np.isnan(bad) else got[5:6]).all()
        assert np.isnan(bs.edge_softmax(A, np.full(8, -np.inf, dtype))).all()
    small = np.zeros(8, np.float32)
    small[1:4] = (-100, -95, -103.9)
    np.testing.assert_allclose(bs.edge_softmax(A, small)[:4], softmax(A, small)[:4], atol=2e-45, rtol=1e-6)


def test_softmax_in_place_and_refusals() -> None:
    A = GRAPHS["square"]
    scores = np.random.default_rng(8).standard_normal(A.nnz).astype(np.float32)
    want = bs.edge_softmax(A, scores)
    assert bs.edge_softmax(A, scores, out=scores) is scores
    same(scores, want)
    with pytest.raises(bs.DTypeError, match="edge_softmax: scores has dtype int64"):
        bs.edge_softmax(A, np.zeros(A.nnz, int))
    with pytest.raises(bs.ShapeError, match="pass one entry per edge"):
        bs.edge_softmax(A, scores[:-1])
    with pytest.raises(bs.ShapeError, match="edges take"):
        bs.edge_softmax(A, scores[:, None, None])


# ---- attention
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_attention_is_its_parts_one_after_another(name: str, dtype: str) -> None:
    A = GRAPHS[name]
    rng = np.random.default_rng(9)
    compute = np.float64 if dtype == "float64" else np.float32
    x = rng.standard_normal((A.shape[1], 3, 11)).astype(dtype)
    source, target = ((rng.standard_normal((n, 3)) * 4).astype(compute) for n in A.shape[::-1])
    scores = bs.sddmm(A, target, source, op="add")
    weights = bs.edge_softmax(A, np.where(scores >= 0, scores, scores * compute(0.3)))
    got = bs.attention(A, x, source, target, negative_slope=0.3)
    want = bs.spmm(sp.csr_array(A, dtype=bool), x.astype(compute), values=weights)
    same(got, want.astype(dtype))
    flat = bs.attention(A, x[:, 0], source[:, 0], target[:, 0], negative_slope=0.3)
    same(flat, np.ascontiguousarray(got[:, 0]))
    assert (got[np.diff(A.indptr) == 0] == 0).all()


def test_attention_against_dense_float64() -> None:
    A = GRAPHS["square"]
    rng = np.random.default_rng(10)
    x, source, target = (rng.standard_normal(shape).astype(np.float32) for shape in ((81, 7), 81, 81))
    scores = target[:, None].astype(np.float64) + source[None, :]
    scores = np.where(A.toarray() > 0, np.where(scores >= 0, scores, 0.2 * scores), -np.inf)
    power = np.exp(scores - np.maximum(scores.max(axis=1, keepdims=True), -1e300))
    weights = power / np.maximum(power.sum(axis=1, keepdims=True), 1e-300)
    np.testing.assert_allclose(bs.attention(A, x, source, target), weights @ x, rtol=2e-5, atol=1e-6)


def test_attention_out_features_and_refusals() -> None:
    A = GRAPHS["square"]
    x, s = np.ones((81, 4), np.float32), np.zeros(81, np.float32)
    out = np.empty((81, 4), np.float32)
    assert bs.attention(A, x, s, s, out=out) is out
    same(out, bs.attention(A, x, s, s))
    q = bs.BitTensor(np.ones((81, 4), int), 2, layout="rows")
    same(bs.attention(A, q, s, s), out)
    for arguments, error, words in (
        ((A, x[:-1], s, s), bs.ShapeError, "81 columns but x has 80 rows"),
        ((A, x, s[:-1], s), bs.ShapeError, "attention: source has shape"),
        ((A, x, s, s[:, None]), bs.ShapeError, "attention: target has shape"),
        ((A, x[:, 0], s, s), bs.ShapeError, r"x\[:, None\]"),
        ((A, x, s.astype(int), s), bs.DTypeError, "source has dtype int64"),
        ((A, x, s.astype(np.float64), s), bs.DTypeError, "source is float64 but x is float32"),
    ):
        with pytest.raises(error, match=words):
            bs.attention(*arguments)
    with pytest.raises(ValueError, match="negative_slope must be a finite number"):
        bs.attention(A, x, s, s, negative_slope=np.nan)


def test_logarithms_of_sums_recover_the_weights() -> None:
    A = GRAPHS["hubs"]
    rng = np.random.default_rng(20)
    x = rng.standard_normal((2600, 2, 3))
    source, target = rng.standard_normal((2600, 2)), rng.standard_normal((8, 2))
    y, lse = bs.attention(A, x, source, target, return_lse=True)
    same(y, bs.attention(A, x, source, target))
    assert lse.shape == (8, 2)
    scores = bs.sddmm(A, target, source, op="add")
    scores = np.where(scores >= 0, scores, scores * 0.2)
    rows = ends(A)[0]
    np.testing.assert_allclose(np.exp(scores - lse[rows]), bs.edge_softmax(A, scores), rtol=1e-12)
    assert np.isneginf(lse[np.diff(A.indptr) == 0]).all()
    empty, of_nothing = bs.attention(A, x[:, :, :0], source, target, return_lse=True)
    assert empty.shape == (8, 2, 0)
    same(of_nothing, lse)


# ---- attention by cosines
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_cosine_attention_is_its_parts(dtype: str) -> None:
    A = GRAPHS["square"]
    A = sp.csr_array((A.data, A.indices, A.indptr), shape=(81, 81))
    x = np.random.default_rng(21).standard_normal((81, 20)).astype(dtype_of(dtype))
    x[3] = 0
    wide = x.astype(np.float64)
    norms = np.sqrt((wide**2).sum(axis=1, keepdims=True))
    rows, cols = ends(A)
    unit = wide / np.where(norms == 0, 1, norms)
    scores = -2.5 * (unit[rows] * unit[cols]).sum(axis=1)
    want = sp.csr_array((softmax(A, scores), A.indices, A.indptr), A.shape) @ wide
    got, lse = bs.cosine_attention(A, x, beta=-2.5, return_lse=True)
    assert got.dtype == x.dtype
    eps = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-13}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=eps, atol=eps)
    sums = np.bincount(rows, np.exp(scores), 81)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(lse, np.log(sums), rtol=1e-5 if dtype != "float64" else 1e-12)
    out = np.empty_like(x)
    assert bs.cosine_attention(A, x, beta=-2.5, out=out) is out
    same(out, got)


def test_cosine_attention_of_odd_operands_and_refusals() -> None:
    A = sp.csr_array(np.array([[1, 1], [0, 0]]))
    same(bs.cosine_attention(A, np.array([[1], [3]])), np.array([[2.0], [0.0]], np.float32))
    y, lse = bs.cosine_attention(A, np.empty((2, 0)), return_lse=True)
    assert y.shape == (2, 0)
    np.testing.assert_allclose(lse, [np.log(2), -np.inf])
    q = bs.BitTensor(np.array([[1, 2], [3, 0]]), 2)
    same(bs.cosine_attention(A, q), bs.cosine_attention(A, np.array([[1, 2], [3, 0]], np.float32)))
    x = np.ones((2, 3))
    for arguments, error, message in (
        ((GRAPHS["wide"], x), bs.ShapeError, "square"),
        ((A, x[:1]), bs.ShapeError, "A has 2 columns but x has 1 rows"),
        ((A, x[0]), bs.ShapeError, "features are"),
        ((A, x[None]), bs.ShapeError, "features are"),
    ):
        with pytest.raises(error, match=message):
            bs.cosine_attention(*arguments)
    with pytest.raises(ValueError, match="beta must be a finite number"):
        bs.cosine_attention(A, x, beta=np.inf)

"""Sparse functions of features in any encoding agree with NumPy on the decoded values; hypothesis looks for counterexamples."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st

import bitsparse as bs

#: Numbers of nodes: none, a few, and just above a word and a group of words.
NODES = st.one_of(st.integers(0, 5), st.sampled_from([33, 130]))
COLUMNS = st.one_of(st.integers(0, 3), st.sampled_from([5, 31, 32, 33, 129]))
WIDTHS = st.one_of(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 32))


@st.composite
def graphs(draw: st.DrawFn, square: bool = False) -> sp.csr_array:
    """A graph of any size and density, as a pattern or with small values as integers or floats."""
    rows = draw(NODES)
    cols = rows if square else draw(NODES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    stored = rng.random((rows, cols)) < draw(st.sampled_from([0.0, 0.1, 0.6, 1.0]))
    kind = draw(st.sampled_from(["bool", "int8", "float32"]))
    values = rng.integers(-3, 4, (rows, cols)) * stored if kind != "bool" else stored
    return sp.csr_array(values.astype(kind))


def rows_of(A: sp.csr_array) -> np.ndarray:
    return np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))


def affine_parts(rng: np.random.Generator, shape: tuple[int, int], kind: str, signed: bool) -> np.ndarray | None:
    """A scale or offset in multiples of 1/8, so that sums of a few terms are exact in float32."""
    sizes = {"none": None, "scalar": (), "row": (shape[0], 1), "col": (1, shape[1])}[kind]
    if sizes is None:
        return None
    part = rng.integers(1, 9, sizes) / 8
    return np.asarray(np.where(rng.random(sizes) < 0.5, -part, part) if signed else part, np.float32)


@st.composite
def packed_features(
    draw: st.DrawFn, rows: int, widths: st.SearchStrategy[int] = WIDTHS, sizes: st.SearchStrategy[int] = COLUMNS
) -> bs.BitTensor:
    """Packed integers in any encoding, width, layout and packed axis, with any form of scale and offset."""
    bits, columns = draw(widths), draw(sizes)
    encoding = draw(st.sampled_from(["unsigned", "signed", *(["bipolar"] if bits == 1 else [])]))
    layout = draw(st.sampled_from(["planes", *(["rows"] if bits in (1, 2, 4, 8, 16) else [])]))
    scale, offset = (draw(st.sampled_from(["none", "none", "scalar", "row", "col"])) for _ in range(2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if encoding == "bipolar":
        codes = rng.choice([-1, 1], (rows, columns))
    else:
        low = -(1 << (bits - 1)) if encoding == "signed" else 0
        codes = rng.integers(low, low + (1 << bits), (rows, columns))
    return bs.BitTensor(
        codes, bits, encoding=encoding, layout=layout, axis=draw(st.sampled_from([-1, -2])),
        scale=affine_parts(rng, codes.shape, scale, False), offset=affine_parts(rng, codes.shape, offset, True),
    )  # fmt: skip


@st.composite
def products(
    draw: st.DrawFn, square: bool = False, **options: st.SearchStrategy[int]
) -> tuple[sp.csr_array, bs.BitTensor]:
    A = draw(graphs(square=square))
    return A, draw(packed_features(A.shape[1], **options))


def real(x: bs.BitTensor) -> np.ndarray:
    """The decoded features in float64, in which integers of 32 bits are exact."""
    codes = np.asarray(x.toarray(), np.float64)
    return codes * (1.0 if x.scale is None else x.scale) + (0.0 if x.offset is None else x.offset)


def reduced(A: sp.csr_array, x: np.ndarray, reduce: str) -> tuple[np.ndarray, np.ndarray]:
    """The reduction over the edges of each row, and the sum (or mean) of the terms' magnitudes, which bounds its error."""
    dense, stored = A.toarray().astype(np.float64), np.zeros(A.shape, bool)
    stored[rows_of(A), A.indices] = True
    terms = dense[:, :, None] * x[None]
    size = np.abs(terms).sum(axis=1)
    counts = np.maximum(stored.sum(axis=1), 1)[:, None]
    if reduce in ("max", "min"):
        sign = 1 if reduce == "max" else -1
        found = sign * np.where(stored[:, :, None], sign * terms, -np.inf).max(axis=1, initial=-np.inf)
        return np.where(stored.any(axis=1)[:, None], found, 0.0), size
    return (terms.sum(axis=1), size) if reduce == "sum" else (terms.sum(axis=1) / counts, size / counts)


def near(got: np.ndarray, want: np.ndarray, size: np.ndarray | float) -> None:
    assert got.shape == want.shape
    assert (np.abs(np.asarray(got, np.float64) - want) <= 1e-5 * (size + np.abs(want) + 1e-6)).all(), (got, want)


REDUCES = st.sampled_from(["sum", "mean", "max", "min"])


@given(products(), REDUCES, st.booleans())
@example(
    (sp.csr_array(np.ones((1, 2), bool)), bs.BitTensor(np.array([[-1], [-1]]), 1, encoding="signed")), "sum", False
)
def test_spmm_is_the_product_of_what_the_features_stand_for(made: tuple, reduce: str, planned: bool) -> None:
    A, x = made
    want, size = reduced(A, real(x), reduce)
    got = bs.plan_spmm(A, x.shape[1], reduce=reduce)(x) if planned else bs.spmm(A, x, reduce=reduce)
    if x.scale is None and x.offset is None and A.dtype.kind in "bi" and reduce != "mean":
        assert got.dtype.kind == "i"
        assert np.array_equal(got, want)
    else:
        near(got, want, size)


EPILOGUES = (
    {},
    {"activation": "relu", "bias": 0.5},
    {"row_scale": 0.25, "col_scale": 2.0, "activation": "leaky_relu"},
)


@given(products(), REDUCES, st.sampled_from(EPILOGUES))
@example((sp.csr_array(np.ones((1, 2), bool)), bs.BitTensor(np.array([[-1], [-1]]), 1, encoding="signed")), "sum", {})
def test_an_epilogue_follows_the_product_of_what_the_features_stand_for(
    made: tuple, reduce: str, options: dict
) -> None:
    A, x = made
    sums, size = reduced(A, real(x), reduce)
    got = bs.spmm(A, x, reduce=reduce, epilogue=bs.Epilogue(offset_correction=True, **options))
    factor = options.get("row_scale", 1.0) * options.get("col_scale", 1.0)
    want = sums * factor + options.get("bias", 0.0)
    want = np.maximum(want, {"relu": 0.0, "leaky_relu": 0.01}.get(options.get("activation"), 1.0) * want)
    # Codes and offset are summed separately, and each of the two sums may be larger than their total.
    codes = np.abs(np.asarray(x.toarray(), np.float64)) * (1.0 if x.scale is None else x.scale) + 2.0
    near(got, want, factor * (size + reduced(abs(A.astype(np.float64)), codes, "sum")[1]))


@given(products(), st.sampled_from(["dot", "add", "mul"]), st.integers(0, 2**32))
def test_sddmm_combines_what_the_features_stand_for(made: tuple, op: str, seed: int) -> None:
    A, y = made
    rng = np.random.default_rng(seed)
    x = bs.BitTensor(rng.integers(-8, 8, (A.shape[0], y.shape[1])), 4, encoding="signed", scale=0.25)
    left, right = (real(side)[at] for side, at in ((x, rows_of(A)), (y, A.indices)))
    want = {"dot": (left * right).sum(axis=1), "add": left + right, "mul": left * right}[op]
    size = {"dot": np.abs(left * right).sum(axis=1), "add": abs(left) + abs(right), "mul": 0.0}[op]
    near(bs.sddmm(A, x, y, op=op), want, size)


@given(products(widths=st.sampled_from([1, 2, 4, 8])), st.integers(1, 4), st.booleans())
def test_sampled_sums_are_of_what_the_features_stand_for(made: tuple, width: int, planned: bool) -> None:
    A, x = made
    sample = sp.csr_array(bs.edge_sample(A, width).tocsr())
    terms = sample.toarray().astype(np.float64)[:, :, None] * real(x)[None]
    got = bs.plan_sampled_spmm(A, x.shape[1], width)(x) if planned else bs.sampled_spmm(A, x, width)
    near(got, terms.sum(axis=1), np.abs(terms).sum(axis=1) + 2.0)


@given(products(square=True))
def test_attention_weighs_what_the_features_stand_for(made: tuple) -> None:
    A, x = made
    want, size = reduced(sp.csr_array((np.ones(A.nnz), A.indices, A.indptr), shape=A.shape), real(x), "mean")
    near(bs.attention(A, x, *np.zeros((2, A.shape[0]), np.float32)), want, size)
    if A.nnz and x.shape[1]:
        near(bs.cosine_attention(A, x, beta=0.0), want, size)


INTEGERS = [f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)]


@given(graphs(), st.sampled_from([*INTEGERS, "bool", "float16", "float32"]), COLUMNS, REDUCES)
def test_plain_features_are_reduced_as_numpy_would(A: sp.csr_array, dtype: str, columns: int, reduce: str) -> None:
    x = (np.arange(A.shape[1] * columns).reshape(A.shape[1], columns) % 7).astype(dtype)
    want, size = reduced(A, x.astype(np.float64), reduce)
    near(bs.spmm(A, x, reduce=reduce), want, 100 * size)
    pattern = sp.csr_array((np.ones(A.nnz, bool), np.arange(A.nnz), A.indptr), shape=(A.shape[0], A.nnz))
    edges = (np.arange(A.nnz * columns).reshape(A.nnz, columns) % 5).astype(dtype)
    want, size = reduced(pattern, edges.astype(np.float64), reduce)
    near(bs.aggregate_edges(A, edges, reduce=reduce), want, 100 * size)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("shape", [(3, 2), (0, 2), (3, 0), (0, 0)])
def test_integers_over_no_edges_give_zeros_of_the_documented_dtype(dtype: str, shape: tuple[int, int]) -> None:
    A, x = sp.csr_array(shape, dtype=bool), np.ones((shape[1], 4), dtype)
    wanted = np.int64 if dtype.endswith("64") else np.int32
    out = np.full((shape[0], 4), 9, wanted)
    assert bs.spmm(A, x, out=out) is out
    for result in (out, bs.spmm(A, x), bs.spmm(A, x, reduce="max"), bs.plan_spmm(A, 4, dtype=dtype)(x)):
        assert result.dtype == wanted
        assert np.array_equal(result, np.zeros((shape[0], 4)))
    assert bs.spmm(A, x, reduce="mean").dtype == np.float32
    assert np.array_equal(bs.aggregate_edges(A, x[:0], side="cols"), np.zeros((shape[1], 4)))


@pytest.mark.parametrize("bits", [17, 24, 32])
def test_wide_codes_over_no_edges_give_zeros(bits: int) -> None:
    A, x = sp.csr_array((3, 2), dtype=bool), bs.BitTensor(np.ones((2, 5), int), bits)
    for got in (bs.spmm(A, x), bs.plan_spmm(A, 5, bits=bits)(x), bs.spmm(A, x, epilogue=bs.Epilogue())):
        assert np.array_equal(got, np.zeros((3, 5)))


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
def test_quantised_features_of_one_column_are_multiplied(bits: int, granularity: str) -> None:
    A = sp.csr_array(np.array([[1, 1, 0], [0, 0, 1]], bool))
    x = bs.quantize(np.array([[0.5], [2.0], [-3.0]], np.float32), bits, granularity=granularity)
    near(bs.spmm(A, x), A.toarray() @ x.dequantize().astype(np.float64), 5.0)

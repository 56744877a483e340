"""TCTiledCSR and FRDC must behave like SciPy's arrays: every constructor form and conversion, operators, values, scales."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
from cases_sparse import PATTERNS, components, disordered, equal, pattern_array, weighted
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bitsparse as bs
from bitsparse.arrays import indices as index_module

TYPES = [bs.TCTiledCSR, bs.FRDC]
SMALL = [name for name in PATTERNS if name not in ("panels", "spread")]
FORMATS = ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"]


# ---- constructor forms
@pytest.mark.parametrize("cls", TYPES)
@pytest.mark.parametrize("name", PATTERNS)
def test_pattern_forms_agree(cls: Any, name: str) -> None:
    indptr, indices, shape = PATTERNS[name]()
    a = pattern_array(name, np.bool_)
    want = cls(a)
    assert want.shape == shape
    assert want.nnz == indices.size
    rows = a.tocoo().row
    equal(cls((np.ones(a.nnz, bool), (rows, indices)), shape=shape), want)
    equal(cls((None, (rows, indices)), shape=shape), want)
    equal(cls((None, indices, indptr), shape=shape), want)
    equal(cls((None, indices.tolist(), indptr.tolist()), shape=shape), want)
    equal(cls.from_csr_arrays(indptr, indices, shape), want)
    equal(cls.from_edges(rows, indices, shape), want)
    equal(cls(want), want)
    for other in TYPES:
        equal(cls(other(a)), want)
    equal(cls(sp.csr_matrix(a)), want)
    for one, other in zip(want.csr_arrays()[:2], (indptr, indices), strict=True):
        assert np.array_equal(one, other)
    if name != "spread":  # its transpose has two billion rows
        equal(want.T.T, want)
    if name in SMALL:
        equal(cls(a.toarray()), want)
        equal(cls(bs.BitTensor(a)), want)
        equal(cls(bs.BitTensor(a, axis=-2, layout="rows")), want)
        assert np.array_equal(want.toarray(), a.toarray())
        assert np.array_equal(want.T.toarray(), a.toarray().T)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_scipy_formats(form: str, kind: str) -> None:
    a = weighted("band")
    a.eliminate_zeros()
    given_ = getattr(sp, f"{form}_{kind}")(a)
    tiled = bs.TCTiledCSR(given_)
    assert np.array_equal(tiled.toarray(), a.toarray())
    assert tiled.dtype == a.dtype
    assert np.array_equal(bs.FRDC(given_, pattern=True).toarray(), a.toarray() != 0)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"]
)
@pytest.mark.parametrize("name", SMALL)
def test_values_against_scipy(name: str, dtype: str) -> None:
    a = weighted(name, np.dtype(dtype))
    tiled = bs.TCTiledCSR(a)
    assert tiled.nnz == a.nnz  # explicit zeros stay
    assert np.array_equal(tiled.toarray(), a.toarray())
    if not (dtype == "bool" and a.data.all()):
        assert tiled.dtype == a.dtype
        assert tiled.tocsr().dtype == a.dtype
        assert np.array_equal(tiled.csr_arrays()[2], a.data)
    assert np.array_equal(bs.FRDC(a, pattern=True).toarray(), a.toarray() != 0)
    assert bs.FRDC(a, pattern=True).nnz == np.count_nonzero(a.data)


@pytest.mark.parametrize("name", ["full", "hub", "random", "wide", "random-thin"])
def test_duplicates_and_order(name: str) -> None:
    indptr, indices, shape = disordered(PATTERNS[name]())
    values = np.random.default_rng(3).integers(1, 9, indices.size).astype(np.float64)
    want = sp.csr_array((values, indices, indptr), shape=shape)
    rows = want.tocoo().row
    for made in (
        bs.TCTiledCSR((values, indices, indptr), shape=shape),
        bs.TCTiledCSR((values, (rows, indices)), shape=shape),
    ):
        assert np.array_equal(made.toarray(), want.toarray())
        assert made.had_duplicates
        with pytest.raises(ValueError, match="held entries twice"):
            made.with_values(np.ones(made.nnz))
    heads = np.stack([values, -values], axis=1)
    both = bs.TCTiledCSR((heads, indices, indptr), shape=shape)
    assert np.array_equal(both.csr_arrays()[2][:, 1], -both.csr_arrays()[2][:, 0])
    half = bs.TCTiledCSR((values.astype(np.float16), (rows, indices)), shape=shape)
    assert half.dtype == np.float16
    assert np.array_equal(half.toarray(), want.toarray())
    # duplicates of bits and of booleans are combined with or
    ones = np.ones(indices.size, np.int8)
    for made in (
        bs.FRDC((ones, indices, indptr), shape=shape),
        bs.TCTiledCSR((ones != 0, (rows, indices)), shape=shape),
    ):
        assert np.array_equal(made.toarray(), want.toarray() != 0)
    assert not bs.TCTiledCSR(sp.csr_array(want.toarray())).had_duplicates


def test_unsorted_without_duplicates_takes_values_in_sorted_order() -> None:
    a = bs.TCTiledCSR(([5, 3], [1, 0], [0, 2]), shape=(1, 2))
    assert not a.had_duplicates
    assert a.toarray().tolist() == [[3, 5]]
    assert a.with_values([1, 2]).toarray().tolist() == [[1, 2]]


def test_shapes_and_edges() -> None:
    assert bs.TCTiledCSR((3, 5)).toarray().tolist() == [[0] * 5] * 3
    assert bs.FRDC((0, 5)).toarray().shape == (0, 5)
    assert bs.FRDC.from_edges([], []).shape == (0, 0)
    assert bs.FRDC.from_edges([3], [1]).shape == (4, 4)
    assert bs.FRDC.from_edges([3], [1], 9).shape == (9, 9)
    weights = bs.TCTiledCSR.from_edges([0, 0], [1, 2], values=[0.5, 2.0], symmetric=True)
    assert weights.toarray().tolist() == [[0, 0.5, 2], [0.5, 0, 0], [2, 0, 0]]
    assert bs.TCTiledCSR.from_edges([0, 0], [1, 1], values=[1.0, 2.0]).toarray().tolist() == [[0, 3], [0, 0]]


@pytest.mark.parametrize("cls", TYPES)
def test_dense_of_any_dtype(cls: type) -> None:
    x = (np.random.default_rng(0).random((21, 34)) < 0.2).astype(np.float32)
    for dtype in ("bool", "int8", "uint64", "float16", "float64", ml_dtypes.bfloat16):
        assert np.array_equal(cls(x.astype(dtype)).toarray(np.float32), x)
    assert np.array_equal(cls(np.asfortranarray(x)[::2]).toarray(np.float32), x[::2])


# ---- refusals
@pytest.mark.parametrize("cls", TYPES)
@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (((np.ones(2), (np.array([0, -1]), np.array([0, 0]))),), ValueError, "negative"),
        (((np.ones(2), (np.array([0, 9]), np.array([0, 0]))), (3, 3)), bs.ShapeError, "outside of shape"),
        (((np.ones(2), (np.array([0]), np.array([0, 0]))),), bs.ShapeError, "1 row indices but 2 column"),
        (((np.ones(2), (np.array([0.0, 1.0]), np.array([0, 0]))),), bs.DTypeError, "indices are integers"),
        (((np.ones(3), (np.array([0, 1]), np.array([0, 0]))),), bs.ShapeError, "data has shape"),
        (((np.ones(2), np.array([0, 1]), np.array([0, 2])),), bs.ShapeError, "pass shape="),
        (
            ((np.ones(2), np.array([0, 7]), np.array([0, 2])), (1, 3)),
            ValueError,
            "row 0 holds the column 7, but there are 3 columns",
        ),
        (((np.ones(2), np.array([0, 1]), np.array([0, 3])), (1, 3)), ValueError, "indptr"),
        (((np.ones(2), np.array([0, 1]), np.array([0, 2, 1])), (2, 3)), ValueError, "indptr"),
        (((np.ones(2), np.array([0, 1]), np.array([0, 2**40])), (1, 3)), ValueError, "indptr"),
        (
            ((np.ones(2), np.array([0, 2**40]), np.array([0, 2])), (1, 3)),
            ValueError,
            "row 0 holds the column 1099511627776",
        ),
        ((np.zeros(3),), bs.ShapeError, "2 dimensions"),
        ((np.zeros((2, 2, 2)),), bs.ShapeError, "2 dimensions"),
        ((np.zeros((2, 2), complex),), bs.DTypeError, "complex"),
        ((np.zeros((2, 2)), (3, 2)), bs.ShapeError, "asked for"),
        ((sp.eye_array(3), (3, 2)), bs.ShapeError, "asked for"),
        ((sp.eye_array(3) * 1j,), bs.DTypeError, "complex"),
        (((-1, 3),), ValueError, "at least 0"),
        ((object(),), bs.DTypeError, "array"),
        ((sp.coo_array([1, 0, 2]),), bs.ShapeError, "2 are needed"),
        ((bs.BitTensor(np.eye(2, dtype=int), scale=0.5),), ValueError, "with_affine"),
        ((bs.BitTensor((2, 3, 4)),), bs.ShapeError, "2 dimensions"),
    ],
)
def test_bad_data_is_refused_by_name(cls: type, arguments: tuple, error: type, match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        cls(arguments[0], shape=arguments[1] if len(arguments) > 1 else None)
    assert cls.__name__ in str(caught.value)


def test_bits_hold_only_bits() -> None:
    for bad in (np.array([[0, 2]]), np.array([[0.5, 1]]), sp.csr_array([[0, -1]]), np.array([[np.nan, 1]])):
        with pytest.raises(ValueError, match="only 0 and 1"):
            bs.FRDC(bad)
        assert bs.FRDC(bad, pattern=True).nnz == np.count_nonzero(bad.toarray() if sp.issparse(bad) else bad)
    with pytest.raises(ValueError, match="only 0 and 1"):
        bs.FRDC(bs.TCTiledCSR(np.array([[3, 0]])))


def test_options_are_checked() -> None:
    a = np.eye(3)
    for window in (0, 17, -1):
        with pytest.raises(ValueError, match="window"):
            bs.TCTiledCSR(a, window=window)
    with pytest.raises(bs.DTypeError, match="window"):
        bs.TCTiledCSR(a, window=2.5)
    with pytest.raises(bs.ShapeError, match="row_scale has shape"):
        bs.FRDC(a, row_scale=[1.0, 2.0])
    with pytest.raises(ValueError, match="NaN or infinity"):
        bs.FRDC(a, col_scale=[1.0, np.inf, 2.0])
    with pytest.raises(bs.DTypeError, match="beyond float32"):
        bs.FRDC(a, col_scale=[1.0, 1e300, 2.0])
    with pytest.raises(bs.DTypeError, match="index_dtype"):
        bs.FRDC(a, index_dtype=np.int16)
    with pytest.raises(bs.ShapeError, match="data has shape"):
        bs.TCTiledCSR(a).with_values([1.0])
    with pytest.raises(bs.ShapeError, match="symmetric"):
        bs.FRDC.from_edges([0], [1], (2, 3), symmetric=True)


# ---- index width
@pytest.mark.parametrize("cls", TYPES)
@pytest.mark.parametrize("name", PATTERNS)
def test_int64_on_request_and_past_a_lowered_limit(cls: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a = pattern_array(name, np.bool_)
    narrow, asked = cls(a), cls(a, index_dtype=np.int64)
    assert asked.index_dtype == np.int64
    assert narrow.index_dtype == np.int32
    for one, other in zip(components(narrow), components(asked), strict=True):
        assert one is None or np.array_equal(one, other)
    monkeypatch.setattr(index_module, "INT32_LIMIT", 8)
    wide = cls(a)
    beyond = max(*a.shape, a.nnz) >= 8
    assert wide.index_dtype == (np.int64 if beyond else np.int32)
    assert all(part.dtype == wide.index_dtype for part in wide.csr_arrays()[:2])
    assert name == "spread" or wide.T.index_dtype == wide.index_dtype
    assert wide.tocsr().nnz == a.nnz
    if beyond:
        equal(wide, asked)
        with pytest.raises(ValueError, match="cannot count"):
            cls(a, index_dtype="int32")


# ---- values, scales, conversions
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int8", ml_dtypes.bfloat16])
@pytest.mark.parametrize("heads", [None, 1, 3])
def test_with_values_and_back(dtype: Any, heads: int | None) -> None:
    a = bs.TCTiledCSR(pattern_array("random"), pattern=True)
    shape = (a.nnz,) if heads is None else (a.nnz, heads)
    values = np.random.default_rng(1).integers(-50, 50, shape).astype(dtype)
    b = a.with_values(values)
    assert b.dtype == np.dtype(dtype)
    assert b.csr_arrays()[2].dtype == np.dtype(dtype)
    assert np.array_equal(b.csr_arrays()[2], values)
    assert b.cols is a.cols
    assert a.data is None
    assert b.with_values(None).data is None
    if heads is None:
        assert np.array_equal(b.toarray(np.float64), b.tocsr().toarray())
        assert np.array_equal(b.tocsr().data, values.astype(b.tocsr().dtype))
    else:
        with pytest.raises(bs.ShapeError, match="values each"):
            b.tocsr()
        assert np.array_equal(b.T.T.csr_arrays()[2], values)


@pytest.mark.parametrize("cls", TYPES)
def test_scales(cls: type) -> None:
    a = pattern_array("random", np.float64)
    rng = np.random.default_rng(4)
    row, col = rng.random(a.shape[0]).astype(np.float32), rng.random(a.shape[1]).astype(np.float32)
    x = cls(a, row_scale=row, col_scale=col)
    want = (a.toarray().astype(x.dtype) * row[:, None].astype(x.dtype)) * col.astype(x.dtype)
    assert x.dtype == (np.float64 if cls is bs.TCTiledCSR else np.float32)
    assert np.array_equal(x.toarray(), want)
    assert np.array_equal(x.T.toarray(), want.T)
    for other in TYPES:
        assert np.array_equal(other(x, pattern=True).toarray(), want.astype(np.float32))
    plain = x.with_scales()
    assert plain.row_scale is None
    assert np.array_equal(plain.toarray(), a.toarray())
    assert np.array_equal(x.with_scales(row).toarray(), a.toarray().astype(x.dtype) * row[:, None])
    assert np.array_equal(x.to_bit_tensor().toarray(), a.toarray())
    large = x.with_scales(row * 9, col)
    for dtype in ("int8", "uint64", "bool", "float32", "float64"):
        got = large.astype(dtype, copy=False)
        assert got.dtype == dtype
        assert np.allclose(got.toarray(), large.toarray().astype(dtype), rtol=1e-6, atol=0)
    with pytest.raises(bs.DTypeError):
        bs.BitTensor(x)  # scales would be lost


@pytest.mark.parametrize("cls", TYPES)
@pytest.mark.parametrize("name", SMALL)
def test_bit_tensor_and_back(cls: type, name: str) -> None:
    a = cls(pattern_array(name, np.bool_))
    for axis, layout in ((-1, "planes"), (-2, "planes"), (-1, "rows")):
        bits = a.to_bit_tensor(axis=axis, layout=layout)
        assert (bits.axis, bits.layout) == (axis, layout)
        equal(cls(bits), a)
        assert np.array_equal(bits.words, bs.BitTensor(a.tocsr(), 1, axis=axis, layout=layout).words)
    assert np.array_equal(bs.BitTensor(a).toarray(), a.toarray())


def test_astype() -> None:
    a = bs.TCTiledCSR(weighted("random"))
    assert a.astype("int8").dtype == np.int8
    assert np.array_equal(a.astype("int8").toarray(), a.toarray())
    assert bs.FRDC(np.eye(3)).astype(np.float16).data.tolist() == [1, 1, 1]
    with pytest.raises(bs.DTypeError):
        a.astype(complex)


# ---- operators
@pytest.mark.parametrize("cls", TYPES)
def test_operators_are_those_of_scipy(cls: type) -> None:
    a = pattern_array("random", np.int64)
    x, dense = cls(a), np.arange(a.shape[0] * a.shape[1]).reshape(a.shape)
    csr = x.tocsr().astype(np.int32) if cls is bs.FRDC else x.tocsr()  # the ones of a pattern are counted as integers
    for got, want in (
        (x + dense, csr + dense),
        (dense + x, dense + csr),
        (x - x, csr - csr),
        (x * 3, csr * 3),
        (2.5 * x, 2.5 * csr),
        (x * dense, csr * dense),
        (x / 2, csr / 2),
        (-x, -csr),
        (x - 2 * x, -csr),
        (x > 0, csr > 0),
        (x * csr, csr * csr),
        (x != dense, csr != dense),
    ):
        assert isinstance(got, bs.FRDC if cls is bs.FRDC and got.dtype == np.uint8 else bs.TCTiledCSR) == sp.issparse(
            want
        )
        one, other = (part.toarray() if bs.issparse(part) else part for part in (got, want))
        if isinstance(got, bs.FRDC):
            one = one.astype(np.bool_)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize("cls", TYPES)
def test_products_go_to_spmm(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    import bitsparse.ops

    monkeypatch.setattr(bitsparse.ops, "spmm", lambda a, x: a.tocsr() @ x, raising=False)
    a = pattern_array("random", np.float32)
    x = np.random.default_rng(0).random((a.shape[1], 4)).astype(np.float32)
    assert np.allclose(cls(a) @ x, a @ x)
    y = np.random.default_rng(0).random((3, a.shape[0])).astype(np.float32)
    assert np.allclose(y @ cls(a), y @ a)
    row = y[0] @ cls(a)
    assert row.shape == (a.shape[1],) and np.allclose(row, y[0] @ a)
    with pytest.raises(bs.ShapeError, match="left operand"):
        y[None] @ cls(a)


def test_numpy_never_densifies() -> None:
    a = bs.FRDC(np.eye(3))
    with pytest.raises(bs.DTypeError, match="toarray"):
        np.asarray(a, dtype=float)
    with pytest.raises(bs.DTypeError, match="not densified"):
        bs.quantize(a, 2)


# ---- properties
matrices = hnp.arrays(
    np.int8,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=40),
    elements=st.sampled_from([0, 0, 0, 1, -2]),
)


@given(matrices, st.integers(1, 16))
def test_every_round_trip(x: np.ndarray, window: int) -> None:
    tiled, bits = bs.TCTiledCSR(x, window=window), bs.FRDC(x, pattern=True)
    assert np.array_equal(tiled.toarray(), x)
    assert np.array_equal(tiled.T.toarray(), x.T)
    assert np.array_equal(bits.toarray(), x != 0)
    assert np.array_equal(bits.T.toarray(), (x != 0).T)
    equal(bs.TCTiledCSR(tiled.tocsr(), window=window), tiled)
    equal(bs.FRDC(bits.to_bit_tensor()), bits)
    equal(bs.FRDC(bs.TCTiledCSR(bits)), bits)
    assert np.array_equal(tiled.with_values(np.arange(tiled.nnz)).csr_arrays()[2], np.arange(tiled.nnz))
    rows = np.repeat(np.arange(tiled.shape[0]), np.diff(tiled.indptr))
    cols = tiled.cols[tiled.cols_indptr[rows // window] + tiled.edge_col] if tiled.nnz else tiled.cols
    assert np.array_equal(cols, tiled.indices)
    assert np.array_equal(x[rows, cols], tiled.data)
    for first, end in pairwise(tiled.cols_indptr):
        assert np.all(np.diff(tiled.cols[first:end]) > 0)
    assert tiled.has_symmetric_pattern == bits.has_symmetric_pattern
    assert tiled.has_symmetric_pattern == (x.shape[0] == x.shape[1] and np.array_equal(x != 0, (x != 0).T))


def test_a_dense_operand_is_of_real_numbers() -> None:
    A, dense = bs.TCTiledCSR(np.eye(2, dtype=np.float32)), np.array([[1.5, 2], [0, -1]], np.float32)
    short = dense.astype(ml_dtypes.bfloat16)
    for mine, theirs in (
        (A + short, A + dense),
        (short - A, dense - A),
        ((A * short).toarray(), (A * dense).toarray()),
    ):
        assert mine.dtype == np.float32 and (mine == theirs).all()
    for dtype in (object, "m8[s]"):
        with pytest.raises(bs.DTypeError, match=r"^multiply: the other operand has dtype .*; convert it with astype"):
            A * dense.astype(np.int64).astype(dtype)

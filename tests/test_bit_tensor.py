"""The class BitTensor: constructors, views, slices, operators, display, saving, pickling and its invariants."""

from __future__ import annotations

import copy
import decimal
import io
import itertools
import operator
import pickle
import re
import sys
import unittest.mock

import numpy as np
import pytest
import scipy.sparse as sp
from cases import ENCODINGS, FORMATS, SHAPES, same, value_range, words_of

import bitsparse as bs

FORMS = list(itertools.product((-1, -2), ("planes", "rows")))


def draw(shape: tuple[int, ...], bits: int, encoding: str = "unsigned", seed: int = 0) -> np.ndarray:
    low, high = value_range(bits, encoding)
    x = np.random.default_rng(seed).integers(low, high, shape, np.int64, endpoint=True)
    return np.where(x > 0, 1, -1) if encoding == "bipolar" else x


def check_invariants(x: bs.BitTensor) -> None:
    """Assert what DESIGN promises of every BitTensor, however it was made."""
    outer = x.shape[-3 - x.axis]
    length = x.shape[x.axis]
    n_words = -(-(length if x.layout == "planes" else length * x.bits) // 128) * 4
    plane = (x.bits,) if x.layout == "planes" else ()
    assert x.words.shape == (*x.shape[:-2], outer, *plane, n_words)
    assert x.words.dtype == np.uint32
    assert x.words.flags.c_contiguous
    assert x.words.ctypes.data % 16 == 0
    assert all(part is None or part.flags.c_contiguous for part in (x.scale, x.offset)), "files hold no other order"
    codes = np.asarray(x.toarray()).astype(np.int64) & ((1 << x.bits) - 1)
    if x.encoding == "bipolar":
        codes = (np.asarray(x.toarray()) > 0).astype(np.int64)
    if x.axis == -2:
        codes = np.swapaxes(codes, -1, -2)
    same(np.ascontiguousarray(x.words), words_of(codes.astype(np.uint64), x.bits, x.layout))  # pad bits are zero


# ---- constructors
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("layout", "bits"), FORMATS[::4] + FORMATS[-5:])
def test_from_dense(shape: tuple, layout: str, bits: int) -> None:
    for axis, encoding in itertools.product((-1, -2), ENCODINGS[: 3 if bits == 1 else 2]):
        x = draw(shape, bits, encoding)
        q = bs.BitTensor(x, bits, encoding=encoding, axis=axis, layout=layout)
        check_invariants(q)
        assert q.shape == shape
        assert q.ndim == len(shape)
        assert np.array_equal(q.toarray(), x)
        assert q.nnz == np.count_nonzero(x)
        assert q.density == (np.count_nonzero(x) / x.size if x.size else 0.0)
        assert q.device == "cpu"
        assert q.nbytes == q.words.nbytes
        assert len(q) == shape[0]


@pytest.mark.parametrize(
    ("values", "encoding", "bits"),
    [
        ([[0, 0]], "unsigned", 1),
        ([[0, 1]], "unsigned", 1),
        ([[0, 2]], "unsigned", 2),
        ([[255]], "unsigned", 8),
        ([[256]], "unsigned", 9),
        ([[2**32 - 1]], "unsigned", 32),
        ([[-1, 0]], "signed", 1),
        ([[0, 1]], "signed", 2),
        ([[-2, 1]], "signed", 2),
        ([[-3]], "signed", 3),
        ([[-128, 127]], "signed", 8),
        ([[-129]], "signed", 9),
        ([[128]], "signed", 9),
        ([[-(2**31), 2**31 - 1]], "signed", 32),
        ([[-4, -4]], "signed", 3),
        ([[-1]], "signed", 1),
        ([[-(2**31)]], "signed", 32),
        ([[-1, 1]], "bipolar", 1),
    ],
)
def test_bits_are_inferred(values: list, encoding: str, bits: int) -> None:
    q = bs.BitTensor(values, encoding=encoding)
    assert q.bits == bits
    assert q.toarray().tolist() == values


@pytest.mark.parametrize(
    ("bits", "encoding", "dtype"),
    [
        (1, "unsigned", "uint8"),
        (8, "unsigned", "uint8"),
        (9, "unsigned", "uint16"),
        (17, "unsigned", "uint32"),
        (1, "bipolar", "int8"),
        (8, "signed", "int8"),
        (9, "signed", "int16"),
        (16, "signed", "int16"),
        (32, "signed", "int32"),
    ],
)
def test_dtype_is_the_smallest(bits: int, encoding: str, dtype: str) -> None:
    q = bs.BitTensor(draw((2, 3), bits, encoding), bits, encoding=encoding)
    assert q.dtype == dtype
    assert q.toarray().dtype == dtype


@pytest.mark.parametrize("value", [np.float32, np.float64, np.float16])
def test_floats_are_taken_by_sign_at_one_bit(value: type) -> None:
    x = np.array([[-1.5, -0.0, 0.0, 2.0, np.inf, -np.inf]], value)
    assert bs.BitTensor(x, 1).toarray().tolist() == [[0, 1, 1, 1, 1, 0]]
    assert bs.BitTensor(x, encoding="bipolar").toarray().tolist() == [[-1, 1, 1, 1, 1, -1]]
    with pytest.raises(bs.DTypeError, match="quantize"):
        bs.BitTensor(x, 2)


def test_from_a_shape() -> None:
    q = bs.BitTensor((3, 200), 5, axis=-2)
    check_invariants(q)
    assert (q.shape, q.bits, q.nnz) == ((3, 200), 5, 0)
    assert bs.BitTensor((2, 3, 4)).shape == (2, 3, 4)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "lil", "dok", "csr_matrix"])
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("layout", ["planes", "rows"])
def test_from_scipy(kind: str, axis: int, layout: str) -> None:
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((33, 150)) < 0.1, rng.integers(1, 16, (33, 150)), 0)
    sparse = sp.csr_matrix(dense) if kind == "csr_matrix" else sp.csr_array(dense).asformat(kind)
    q = bs.BitTensor(sparse, 4, axis=axis, layout=layout)
    check_invariants(q)
    assert np.array_equal(q.toarray(), dense)
    assert bs.BitTensor(sparse).bits == 4


@pytest.mark.parametrize("bits", [1, 3, None])
def test_several_values_of_an_entry_are_refused(bits: int | None) -> None:
    values, places, starts = np.ones((2, 3), np.int64), np.array([0, 1]), np.array([0, 1, 2])
    for rest in ((places, starts), ((places, places),)):
        with pytest.raises(bs.ShapeError, match=r"data has shape \(2, 3\), but a BitTensor has one value"):
            bs.BitTensor((values, *rest), bits, shape=(2, 2))


@pytest.mark.parametrize("bits", [1, 2])
def test_duplicates_are_ored_in_bits_and_summed_in_integers(bits: int) -> None:
    rows, cols = np.array([0, 0, 2, 2, 2]), np.array([5, 5, 130, 0, 130])
    q = bs.BitTensor((np.ones(5, np.int64), (rows, cols)), bits, shape=(3, 140))
    check_invariants(q)
    want = np.zeros((3, 140), int)
    want[0, 5], want[2, 0], want[2, 130] = (1, 1, 1) if bits == 1 else (2, 1, 2)
    assert np.array_equal(q.toarray(), want)


def test_from_csr_components() -> None:
    a = sp.random_array((20, 30), density=0.2, rng=np.random.default_rng(0)).tocsr()
    a.data = np.arange(1, a.nnz + 1, dtype=np.int64)
    q = bs.BitTensor((a.data, a.indices, a.indptr), shape=a.shape)
    assert np.array_equal(q.toarray(), a.toarray())
    signed = bs.BitTensor((-a.data, a.indices, a.indptr), shape=a.shape, encoding="signed")
    assert np.array_equal(signed.toarray(), -a.toarray())


@pytest.mark.parametrize("axis", [-1, -2])
def test_to_scipy(axis: int) -> None:
    x = np.where(np.random.default_rng(0).random((40, 170)) < 0.05, draw((40, 170), 6, "signed"), 0)
    q = bs.BitTensor(x, 6, encoding="signed", axis=axis)
    for sparse in (q.tocsr(), q.to_scipy()):
        assert sparse.format == "csr"
        assert sparse.dtype == q.dtype
        assert sparse.has_canonical_format
        assert np.array_equal(sparse.toarray(), x)
    assert bs.BitTensor((0, 5)).tocsr().shape == (0, 5)
    assert bs.BitTensor((5, 0)).tocsr().shape == (5, 0)
    with pytest.raises(bs.ShapeError, match="tocsr"):
        bs.BitTensor((2, 3, 4)).tocsr()


def test_from_a_bit_tensor() -> None:
    x = draw((5, 140), 3)
    q = bs.BitTensor(x, 3, scale=0.5, offset=1.0)
    again = bs.BitTensor(q)
    assert np.shares_memory(again.words, q.words)
    assert (again.scale, again.offset) == (0.5, 1.0)
    assert not np.shares_memory(bs.BitTensor(q, copy=True).words, q.words)
    wider = bs.BitTensor(q, 7, encoding="signed", axis=-2)
    check_invariants(wider)
    assert (wider.bits, wider.encoding, wider.axis) == (7, "signed", -2)
    assert np.array_equal(wider.toarray(), x)
    with pytest.raises(ValueError, match="BitTensor: values reach"):
        bs.BitTensor(q, 2)


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_from_words_adopts_memory(dtype: type) -> None:
    source = bs.BitTensor(draw((6, 150), 5), 5)
    q = bs.BitTensor.from_words(source.words.view(dtype), (6, 150), 5)
    check_invariants(q)
    assert np.shares_memory(q.words, source.words)
    assert not np.shares_memory(bs.BitTensor.from_words(source.words, (6, 150), 5, copy=True).words, source.words)
    shifted = np.zeros(source.words.size + 1, np.uint32)[1:].reshape(source.words.shape)
    shifted[...] = source.words
    realigned = bs.BitTensor.from_words(shifted, (6, 150), 5)
    check_invariants(realigned)
    assert np.array_equal(realigned.toarray(), source.toarray())


@pytest.mark.parametrize(("layout", "bits"), [("planes", 1), ("planes", 3), ("rows", 1), ("rows", 2), ("rows", 16)])
def test_set_pad_bits_are_refused(layout: str, bits: int) -> None:
    length = 130
    words = bs.BitTensor(draw((3, length), bits), bits, layout=layout).words.copy()
    first_pad = length if layout == "planes" else length * bits
    for bit in (first_pad, words.shape[-1] * 32 - 1):
        bad = words.copy()
        bad[..., bit // 32] |= np.uint32(1 << (bit % 32))
        with pytest.raises(ValueError, match=r"padding bits beyond element 130"):
            bs.BitTensor.from_words(bad, (3, length), bits, layout=layout)
    assert bs.BitTensor.from_words(words, (3, length), bits, layout=layout).shape == (3, length)


# ---- the two layouts, byte for byte
def test_the_documented_bit_positions() -> None:
    x = np.zeros((1, 200), np.int64)
    x[0, 37], x[0, 199] = 0b101, 0b010
    planes = bs.BitTensor(x, 3).words
    assert planes.shape == (1, 3, 8)
    assert [planes[0, p, 37 // 32] >> (37 % 32) & 1 for p in range(3)] == [1, 0, 1]
    assert [planes[0, p, 199 // 32] >> (199 % 32) & 1 for p in range(3)] == [0, 1, 0]
    rows = bs.BitTensor(x, 4, layout="rows").words
    assert rows.shape == (1, 28)
    assert rows[0, 37 * 4 // 32] >> (37 * 4 % 32) & 15 == 0b101
    assert int(planes.sum()) == (1 << 5) * 2 + (1 << 7)
    one_bit = draw((7, 333), 1)
    assert bs.BitTensor(one_bit, 1).words.tobytes() == bs.BitTensor(one_bit, 1, layout="rows").words.tobytes()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_repack(form: tuple, to: tuple, bits: int) -> None:
    x = draw((2, 37, 141), bits, "signed")
    q = bs.BitTensor(x, bits, encoding="signed", axis=form[0], layout=form[1], scale=2.0)
    moved = q.repack(axis=to[0], layout=to[1])
    check_invariants(moved)
    assert (moved.axis, moved.layout) == to
    assert moved.scale == 2.0
    assert np.array_equal(moved.toarray(), x)
    if form == to:
        assert moved is q


# ---- views
def test_transposes_are_views() -> None:
    x = draw((9, 140), 2)
    q = bs.BitTensor(x, 2, scale=np.arange(1.0, 10.0)[:, None])
    t = q.T
    check_invariants(t)
    assert np.shares_memory(t.words, q.words)
    assert (t.shape, t.axis) == ((140, 9), -2)
    assert np.array_equal(t.toarray(), x.T)
    assert t.scale.shape == (1, 9)
    same(t.dequantize(), np.ascontiguousarray(q.dequantize().T))
    same(t.T.words, q.words)
    batched = bs.BitTensor(draw((3, 9, 140), 2), 2)
    assert np.array_equal(batched.mT.toarray(), np.swapaxes(batched.toarray(), -1, -2))
    assert np.shares_memory(batched.mT.words, batched.words)
    with pytest.raises(bs.ShapeError, match=r"T: .*\.mT"):
        _ = batched.T


KEYS_2D = [
    slice(None), slice(2, 5), slice(0, 0), slice(-3, None), slice(None, None, 2), slice(None, None, -1), slice(100, 200),
    (slice(None), slice(3, 7)), (slice(1, 4), slice(0, 130)), (slice(None), slice(None, None, 3)), ..., (..., slice(5, 9)),
    [0, 3, 3, 1], np.array([True] * 4 + [False] * 7), (slice(None), [139, 0, 5]), (np.array([-1, 2]), slice(None)),
    (slice(2, 6), np.arange(140) % 3 == 0), np.array([], np.int64),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS_2D, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_indexing_follows_numpy(key: object, form: tuple) -> None:
    x = draw((11, 140), 4, "signed")
    scale = np.linspace(1, 2, 11, dtype=np.float32)[:, None]
    offset = np.linspace(-1, 1, 140, dtype=np.float32)[None]
    q = bs.BitTensor(x, 4, encoding="signed", axis=form[0], layout=form[1], scale=scale, offset=offset)
    got = q[key]
    check_invariants(got)
    assert np.array_equal(got.toarray(), x[key])
    assert np.array_equal(got.dequantize(), q.dequantize()[key])
    assert (got.axis, got.layout, got.encoding) == (*form, "signed")


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        slice(1, 3),
        (0, slice(2, 5)),
        (slice(None), slice(None), slice(0, 9)),
        (..., [1, 2]),
        (slice(None), [2, 0]),
        (1, ..., slice(4, 40)),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", FORMS)
def test_indexing_batches(key: object, form: tuple) -> None:
    x = draw((3, 6, 50), 2)
    q = bs.BitTensor(
        x, 2, axis=form[0], layout=form[1], scale=np.arange(1.0, 4.0).reshape(3, 1, 1) * np.ones((3, 6, 1))
    )
    got = q[key]
    check_invariants(got)
    assert np.array_equal(got.toarray(), x[key])
    assert np.array_equal(got.dequantize(), q.dequantize()[key])


def test_outer_slices_are_views() -> None:
    q = bs.BitTensor(draw((50, 140), 3), 3)
    assert np.shares_memory(q[10:20].words, q.words)
    column_packed = bs.BitTensor(draw((140, 50), 3), 3, axis=-2)
    assert np.shares_memory(column_packed[:, 10:20].words, column_packed.words)
    assert not np.shares_memory(q[::2].words, q.words)
    # A slice builds a bitmap of its own, even if the whole array has one already.
    assert q.tile_bitmap.shape == (7, 1)
    assert q[10:20].tile_bitmap.shape == (2, 1)


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (0, bs.ShapeError),
        ((slice(None), 3), bs.ShapeError),
        (11, IndexError),
        ((0, 0, 0), bs.ShapeError),
        ((..., ...), bs.ShapeError),
        ([11], IndexError),
        ([-12], IndexError),
        (np.array([True, False]), bs.ShapeError),
        ([[0, 1]], bs.DTypeError),
        ([0.5], bs.DTypeError),
        ("rows", bs.DTypeError),
        (None, bs.DTypeError),
    ],
    ids=str,
)
def test_bad_indices(key: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"BitTensor\[\.\.\.\]"):
        bs.BitTensor(draw((11, 140), 2), 2)[key]


def test_the_remedy_for_an_integer_keeps_its_row_or_column() -> None:
    q = bs.BitTensor(draw((11, 140), 2), 2)
    for key, remedy in ((-1, "x[..., 10:11, :]"), ((slice(None), -1), "x[..., 139:140]")):
        with pytest.raises(bs.ShapeError, match=re.escape(remedy)):
            q[key]


# ---- arithmetic, comparison, bitwise operators
OPERATIONS = {
    "add": lambda p, q: p + q,
    "subtract": lambda p, q: p - q,
    "multiply": lambda p, q: p * q,
    "divide": lambda p, q: p / q,
    "less": lambda p, q: p < q,
    "less_equal": lambda p, q: p <= q,
    "greater": lambda p, q: p > q,
    "greater_equal": lambda p, q: p >= q,
    "equal": lambda p, q: p == q,
    "not_equal": lambda p, q: p != q,
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("affine", [False, True])
def test_arithmetic_decodes(name: str, affine: bool) -> None:
    f = OPERATIONS[name]
    x = draw((6, 40), 5, "signed") + 0
    q = bs.BitTensor(x, 5, encoding="signed", **({"scale": 0.25, "offset": 0.5} if affine else {}))
    decoded = q.dequantize() if affine else x.astype(np.int32)
    others = [np.full((6, 40), 3, np.float32), np.arange(1, 41, dtype=np.int16), 2, 0.5, np.float64(1.5), True]
    for other in others:
        with np.errstate(divide="ignore", invalid="ignore"):
            forward, backward = f(q, other), f(other, q)
            assert isinstance(forward, np.ndarray)
            same(forward, np.asarray(f(decoded, other)))
            same(backward, np.asarray(f(other, decoded)))
    two = bs.BitTensor(np.full((6, 40), 2), 2)
    same(f(q, two), np.asarray(f(decoded, np.full((6, 40), 2, np.int32))))


def test_negation_and_wide_values() -> None:
    x = np.array([[2**32 - 1, 0, 5]])
    q = bs.BitTensor(x, 32)
    assert (q + 1).tolist() == [[2**32, 1, 6]]
    assert (-q).tolist() == (-x).tolist()
    assert (bs.BitTensor([[127]], 7) * 127).tolist() == [[16129]]


@pytest.mark.parametrize("form", FORMS)
def test_bitwise_operators_stay_packed(form: tuple) -> None:
    x, y = draw((9, 150), 4, seed=1), draw((9, 150), 4, seed=2)
    p = bs.BitTensor(x, 4, axis=form[0], layout=form[1])
    q = bs.BitTensor(y, 4)
    for got, want in ((p & q, x & y), (p | q, x | y), (p ^ q, x ^ y), (~p, 15 - x)):
        assert isinstance(got, bs.BitTensor)
        check_invariants(got)
        assert np.array_equal(got.toarray(), want)
    with pytest.raises(bs.ShapeError, match="&"):
        p & bs.BitTensor((9, 151), 4)
    with pytest.raises(bs.DTypeError, match=r"\|"):
        p | bs.BitTensor((9, 150), 3)
    with pytest.raises(bs.DTypeError, match="~"):
        ~bs.BitTensor([[1, -1]], encoding="bipolar")


def test_numpy_never_takes_over() -> None:
    q = bs.BitTensor(draw((4, 30), 2), 2)
    assert isinstance(np.ones((4, 30)) + q, np.ndarray)
    assert (np.ones((5, 4), int) @ q).shape == (5, 30)
    assert np.asarray(q).dtype == object, "one opaque object, as for scipy.sparse"
    with pytest.raises(bs.DTypeError, match="toarray"):
        np.asarray(q, np.float32)
    with pytest.raises(TypeError):
        np.sin(q)
    with pytest.raises(TypeError):
        hash(q)
    with pytest.raises(ValueError, match="truth value"):
        bool(q)
    with pytest.raises(bs.DTypeError, match="toarray"):
        iter(q)
    with pytest.raises(bs.DTypeError, match="DLPack"):  # packed words exported as values would be silently wrong
        np.from_dlpack(q)


# ---- conversions
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64])
def test_astype_and_toarray(dtype: type) -> None:
    x = draw((5, 33), 1)
    q = bs.BitTensor(x, 1)
    same(q.astype(dtype), x.astype(dtype))
    same(q.toarray(dtype), x.astype(dtype))


@pytest.mark.parametrize(
    ("bits", "encoding", "dtype"),
    [(8, "unsigned", np.int8), (9, "unsigned", np.uint8), (2, "signed", np.uint8), (2, "unsigned", np.bool_)]
    + [(12, "unsigned", np.float16), (25, "unsigned", np.float32), (1, "bipolar", np.uint8)],
)
def test_a_dtype_that_cannot_hold_the_values_is_refused(bits: int, encoding: str, dtype: type) -> None:
    q = bs.BitTensor(draw((2, 3), bits, encoding), bits, encoding=encoding)
    with pytest.raises(bs.DTypeError, match=rf"toarray: {np.dtype(dtype)} cannot hold"):
        q.toarray(dtype)


def test_devices(monkeypatch) -> None:
    q = bs.BitTensor((2, 3))
    assert q.device == "cpu"
    assert q.to_device("cpu") is q
    assert q.get() is q
    with pytest.raises(bs.DeviceError, match=r"to_device.*'tpu'.*'cpu'"):
        q.to_device("tpu")
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails
    with pytest.raises(bs.DeviceError, match=r"to_device.*CuPy.*bitsparse\[cuda13\]"):
        q.to_device("cuda")


# ---- display
def test_repr_shows_the_facts() -> None:
    q = bs.BitTensor(draw((64, 1024), 3), 3, scale=0.5)
    text = repr(q)
    for fact in (
        "BitTensor",
        "(64, 1024)",
        "bits=3",
        "unsigned",
        "axis=-1",
        "planes",
        "cpu",
        "24.0 KiB",
        "0.09",
        "scale",
    ):
        assert fact in text
    assert "\n" not in text
    assert "(0, 4)" in repr(bs.BitTensor((0, 4)))


def test_html_repr_is_a_table_of_the_same_facts() -> None:
    q = bs.BitTensor(draw((64, 1024), 3), 3, encoding="unsigned", offset=1.0)
    html = q._repr_html_()
    assert html.startswith("<table")
    assert html.count("<tr>") == html.count("</tr>") >= 6
    for fact in ("(64, 1024)", "3 (unsigned)", "planes", "cpu", f"{q.density:.4f}", "24.0 KiB", "offset"):
        assert fact in html
    assert "<table" in bs.BitTensor((0, 4))._repr_html_()


# ---- saving, pickling, copying
def equal(p: bs.BitTensor, q: bs.BitTensor) -> None:
    assert (p.shape, p.bits, p.axis, p.layout, p.encoding) == (q.shape, q.bits, q.axis, q.layout, q.encoding)
    same(p.words, q.words)
    for one, other in ((p.scale, q.scale), (p.offset, q.offset)):
        assert (one is None) == (other is None)
        if one is not None:
            same(np.asarray(one), np.asarray(other))


EXAMPLES = [
    lambda: bs.BitTensor(draw((5, 140), 3), 3),
    lambda: bs.BitTensor(draw((2, 5, 140), 16, "signed"), 16, encoding="signed", axis=-2, layout="rows"),
    lambda: bs.BitTensor(draw((5, 9), 1, "bipolar"), encoding="bipolar"),
    lambda: bs.BitTensor((0, 7), 2),
    lambda: bs.BitTensor((7, 0), 32, axis=-2),
    lambda: bs.BitTensor(draw((5, 9), 2), 2, scale=np.arange(1, 6)[:, None], offset=-1.0),
]


@pytest.mark.parametrize("make", EXAMPLES)
@pytest.mark.parametrize("compressed", [True, False])
def test_save_and_load(make, compressed: bool, tmp_path) -> None:
    q = make()
    bs.save_npz(tmp_path / "x.npz", q, compressed=compressed)
    back = bs.load_npz(tmp_path / "x.npz")
    equal(back, q)
    check_invariants(back)
    file = io.BytesIO()
    bs.save_npz(file, q)
    file.seek(0)
    equal(bs.load_npz(file), q)
    bs.save_npz(str(tmp_path / "y"), q)
    equal(bs.load_npz(tmp_path / "y.npz"), q)


@pytest.mark.parametrize("make", EXAMPLES)
def test_pickle_and_copy(make) -> None:
    q = make()
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        equal(pickle.loads(pickle.dumps(q, protocol)), q)
    for other in (q.copy(), copy.deepcopy(q)):
        equal(other, q)
        assert not q.words.size or not np.shares_memory(other.words, q.words)
    equal(copy.copy(q), q)


def test_a_copy_shares_nothing() -> None:
    q = bs.BitTensor(np.ones((3, 40), int), 2, scale=np.ones((3, 1)))
    other = q.copy()
    other.words[...] = 0
    other.scale[...] = 7
    assert q.nnz == 120
    assert (q.scale == 1).all()


ARRAYS = {
    "BitTensor": lambda: bs.BitTensor([[1, 0, 1]], 1),
    "TCTiledCSR": lambda: bs.TCTiledCSR([[1, 0, 1]]),
    "FRDC": lambda: bs.FRDC([[1, 0, 1]]),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_what_is_no_array_is_not_equal(kind: str) -> None:
    """Comparison with an object that is no array must give unequal, as in scipy.sparse; text too, for which scipy.sparse fails."""
    a, csr = ARRAYS[kind](), sp.csr_array([[1, 0, 1]])
    for other in ({}, {1}, object(), len, bs.BitTensor, np.ndarray, sp.csr_array, ..., slice(1), iter([1]), None):
        assert (csr == other) is (a == other) is (other == a) is False
        assert (csr != other) is (a != other) is (other != a) is True
    for text in ("x", b"x"):
        assert (a == text) is (text == a) is False
        assert (a != text) is (text != a) is True
    assert a == unittest.mock.ANY
    with pytest.raises(bs.DTypeError, match=r"^less: the other operand must be an array .*, got dict$"):
        _ = a < {}
    with pytest.raises(bs.DTypeError, match="got Decimal"):  # a Decimal is a number, so "unequal" would be wrong
        _ = a == decimal.Decimal(1)
    for array in ([1, 0, 1], range(3), np.array([1, 0, 1]), memoryview(bytes([1, 0, 1]))):
        assert np.array_equal(a == array, np.array([[1, 0, 1]]) == np.asarray(array))


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize(
    "other", [[[2**70, 0, 1]], np.ones((1, 3), object), np.zeros((1, 3), "m8[s]"), np.array([["1", "2", "3"]])]
)
def test_arrays_without_numbers_are_no_operands(kind: str, other: object) -> None:
    for operation, name in ((operator.add, "add"), (operator.eq, "equal"), (operator.mul, "multiply")):
        with pytest.raises(bs.DTypeError, match=f"^{name}: the other operand has dtype "):
            operation(ARRAYS[kind](), other)


@pytest.mark.parametrize("kind", ARRAYS)
def test_classes_are_no_arrays(kind: str) -> None:
    for cls in (np.int32, np.ndarray, sp.csr_array):
        with pytest.raises(
            bs.DTypeError, match=f"add: the other operand must be an array .*, got the class {cls.__name__}"
        ):
            ARRAYS[kind]() + cls
        with pytest.raises(bs.DTypeError, match=f"must be an array .*, got the class {cls.__name__}"):
            ARRAYS[kind]() @ cls


def test_operands_that_do_not_broadcast_are_named() -> None:
    with pytest.raises(
        bs.ShapeError, match=r"^add: shapes \(1, 3\) and \(2, 2\) do not broadcast; sizes must be equal"
    ):
        _ = bs.BitTensor([[1, 0, 1]], 1) + np.ones((2, 2), int)


def test_with_affine() -> None:
    q = bs.BitTensor(draw((3, 40), 2), 2)
    r = q.with_affine(scale=2.0, offset=np.arange(40.0)[None])
    assert np.shares_memory(q.words, r.words)
    assert q.scale is None
    assert r.scale.dtype == r.offset.dtype == np.float32
    assert np.array_equal(r.dequantize(), q.toarray().astype(np.float32) * 2 + np.arange(40, dtype=np.float32))
    assert r.with_affine().scale is None


@pytest.mark.parametrize("shape", [(3,), (1, 40, 1), (40, 1), (1, 3), (2, 3, 1)])
def test_affine_parameters_of_another_shape_are_refused(shape: tuple) -> None:
    with pytest.raises(bs.ShapeError, match=r"scale has shape .*\(3, 40\)"):
        bs.BitTensor(draw((3, 40), 2), 2, scale=np.ones(shape))


def test_nnz_counts_values() -> None:
    assert bs.BitTensor([[1, -1, -1]], encoding="bipolar").nnz == 3
    assert bs.BitTensor([[0, -1, 3]], encoding="signed").nnz == 2
    assert bs.BitTensor([[0, 4, 3]], 8, layout="rows").nnz == 2

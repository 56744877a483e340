"""Packing and quantisation agree with their definitions, which are written out here in Python and NumPy arithmetic."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from cases import ENCODINGS, FORMATS, INTEGERS, MEMORY, dtype_of, floats, integers, lay_out, same, value_range, words_of

import bitsparse as bs
from bitsparse.backends import reference
from bitsparse.backends.host.bits import pack as host_bits
from bitsparse.backends.reference import scalar
from bitsparse.backends.reference.bits import pack as reference_bits

BF16 = np.dtype(ml_dtypes.bfloat16)


# ---- Philox and the rounding bits
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # the known-answer vectors published with Random123 for philox4x32-10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple, key: tuple, words: tuple) -> None:
    assert tuple(int(w) for w in scalar.philox4x32_10(counter, key)) == words
    assert _philox(counter, key) == words


def _philox(counter: tuple, key: tuple) -> tuple:
    """Philox4x32-10 in Python integers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (q >> 32) ^ c1 ^ k0, q & 0xFFFFFFFF, (p >> 32) ^ c3 ^ k1, p & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _draw(index: int, seed: int, stream: int) -> int:
    """The 16 random bits of one element, computed from the definition."""
    g, j = divmod(index, 8)
    words = _philox((g & 0xFFFFFFFF, g >> 32, stream, 0), (seed & 0xFFFFFFFF, seed >> 32))
    return (words[j // 2] >> (16 * (j % 2))) & 0xFFFF


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (1, 0), (2**64 - 1, 2**32 - 1), (0x0123456789ABCDEF, 7)])
def test_rounding_bits_follow_the_definition(seed: int, stream: int) -> None:
    indices = [*range(40), 2**35 - 1, 2**35, 2**40 + 13]
    want = [_draw(i, seed, stream) for i in indices]
    assert scalar.stochastic_bits(np.array(indices, np.uint64), seed, stream).tolist() == want


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_stochastic_round_follows_the_definition(dtype: str) -> None:
    x = floats(np.random.default_rng(0), (3, 45), np.dtype(dtype))
    got = bs.stochastic_round(x, seed=99, stream=5)
    want = [math.floor(v) + (_draw(i, 99, 5) < (float(v) - math.floor(v)) * 65536) for i, v in enumerate(x.ravel())]
    assert got.dtype == x.dtype
    assert got.ravel().tolist() == want


def test_stochastic_round_is_unbiased_and_keeps_integers() -> None:
    for fraction in (0.1, 0.25, 0.5, 0.9):
        rounded = bs.stochastic_round(np.full(400_000, 3 + fraction, np.float32), seed=1)
        assert set(np.unique(rounded)) == {3.0, 4.0}
        assert abs(rounded.mean() - 3 - fraction) < 0.004  # five standard deviations
    whole = np.arange(-500, 500, dtype=np.float32)
    assert np.array_equal(bs.stochastic_round(whole, seed=2), whole)


def test_stochastic_round_depends_on_seed_and_stream_only() -> None:
    x = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    base = bs.stochastic_round(x, seed=3)
    assert np.array_equal(base, bs.stochastic_round(x, seed=3, stream=0))
    assert np.array_equal(base.reshape(50, 100), bs.stochastic_round(x.reshape(50, 100), seed=3))
    assert not np.array_equal(base, bs.stochastic_round(x, seed=4))
    assert not np.array_equal(base, bs.stochastic_round(x, seed=3, stream=1))
    assert not np.array_equal(base, bs.stochastic_round(x, seed=3 + 2**32))


# ---- every 16-bit float, on every instruction set
@pytest.mark.parametrize("dtype", [np.dtype("float16"), BF16], ids=str)
def test_every_16_bit_float(dtype: np.dtype, host) -> None:
    """Widening, the sign test and stochastic rounding must be right for all finite 16-bit floats."""
    x = np.arange(2**16, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):  # ml_dtypes flags the signalling NaNs
        x = x[np.isfinite(x)]
    x = np.concatenate([x, x[: -x.size % 16]]).reshape(16, -1)
    steps = {"offset": np.float32(-3.0), "divisor": np.float32(6.0), "multiplier": 65535.0, "qmin": 0, "qmax": 65535}
    rest = {"rounding": "nearest", "seed": 0, "stream": 0, "axis": -1, "layout": "rows"}
    steps = {k: np.asarray(v) if k in ("offset", "divisor") else v for k, v in steps.items()}
    want_codes = reference_bits.quantize(x, 16, **steps, **rest)
    want_signs = words_of((x >= 0).astype(np.uint8), 1, "planes")
    checked = 0
    for level in host.simd_levels():
        host.set_simd(level)
        same(host.bits.pack.quantize(x, 16, **steps, **rest), want_codes)
        same(host.bits.pack.pack(x, 1, axis=-1, layout="planes", encoding="unsigned"), want_signs)
        if dtype == np.float16:
            same(host.bits.pack.stochastic_round(x, 5, 6), reference_bits.stochastic_round(x, 5, 6))
        checked += 1
    assert checked == len(host.simd_levels()) >= 1


@pytest.mark.parametrize("dtype", [np.dtype("float16"), BF16], ids=str)
@pytest.mark.parametrize("scale", [1e-12, 1e-9, 3e-7, 1.0, 777.0, 1e35])
def test_rounding_to_16_bit_floats(dtype: np.dtype, scale: float, host) -> None:
    """dequantize must round its float32 results once, subnormals and overflow included, for all 16-bit codes times a scale."""
    codes = np.arange(2**16, dtype=np.uint64).reshape(256, 256)
    words = words_of(codes, 16, "rows")
    arguments = {"axis": -1, "layout": "rows", "encoding": "signed", "offset": np.zeros((), np.float32), "dtype": dtype}
    with np.errstate(over="ignore"):
        want = codes.astype(np.uint16).view(np.int16).astype(np.float32) * np.float32(scale) + np.float32(0)
        want = want.astype(dtype)
    for level in host.simd_levels():
        host.set_simd(level)
        got = host.bits.pack.dequantize(words, (256, 256), 16, scale=np.asarray(scale, np.float32), **arguments)
        same(got, want)


# ---- pack and unpack
@pytest.mark.parametrize(("layout", "bits"), FORMATS)
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_pack_unpack_round_trip(layout: str, bits: int, axis: int, encoding: str) -> None:
    if encoding == "bipolar" and bits > 1:
        with pytest.raises(ValueError, match="bipolar"):
            bs.pack_bits(np.ones((2, 2), np.int8), bits, encoding=encoding, axis=axis, layout=layout)
        return
    low, high = value_range(bits, encoding)
    rng = np.random.default_rng(bits)
    x = rng.integers(low, high, (3, 37, 41), np.int64, endpoint=True)
    if encoding == "bipolar":
        x = np.where(x > 0, 1, -1)
    x.flat[:2] = low, high
    q = bs.pack_bits(x, bits, encoding=encoding, axis=axis, layout=layout)
    assert (q.shape, q.bits, q.encoding, q.axis, q.layout) == (x.shape, bits, encoding, axis, layout)
    codes = (np.asarray(x) & ((1 << bits) - 1)) if encoding != "bipolar" else (x > 0)
    codes = codes.astype(np.uint64)
    same(q.words, words_of(np.swapaxes(codes, -1, -2) if axis == -2 else codes, bits, layout))
    back = bs.unpack_bits(q)
    assert back.dtype == q.dtype
    assert np.array_equal(back, x)
    assert np.iinfo(q.dtype).min <= low
    assert high <= np.iinfo(q.dtype).max


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("memory", MEMORY)
def test_pack_every_integer_dtype(dtype: str, memory: str) -> None:
    d = dtype_of(dtype)
    bits = 1 if dtype == "bool" else min(d.itemsize * 8, 32)
    signed = d.kind == "i"
    low, high = value_range(bits, "signed" if signed else "unsigned")
    x = np.random.default_rng(5).integers(low, high, (19, 133), np.int64, endpoint=True).astype(d)
    q = bs.pack_bits(lay_out(x, memory), bits, encoding="signed" if signed else "unsigned")
    assert np.array_equal(bs.unpack_bits(q, np.int64), x.astype(np.int64))


def test_pack_bits_of_bool_needs_no_width() -> None:
    x = np.random.default_rng(0).random((5, 300)) < 0.3
    q = bs.pack_bits(x)
    assert q.bits == 1
    assert np.array_equal(q.toarray().astype(bool), x)


# ---- quantise: the equations of the three schemes
def _granular(x: np.ndarray, granularity: str, f) -> np.ndarray:
    return {"tensor": f(x), "row": f(x, -1, keepdims=True), "col": f(x, -2, keepdims=True)}[granularity]


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 7, 8, 12, 16, 24, 25, 31, 32])
@pytest.mark.parametrize("rounding", ["floor", "nearest", "stochastic"])
@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_affine(bits: int, rounding: str, granularity: str, dtype: str) -> None:
    x = floats(np.random.default_rng(bits), (21, 50), dtype_of(dtype))
    seed = 11 if rounding == "stochastic" else None
    q = bs.quantize(x, bits, scheme="affine", rounding=rounding, granularity=granularity, seed=seed)
    step = np.float64 if dtype == "float64" or bits > 24 else np.float32
    v = x.astype(step)
    low, high = _granular(v, granularity, np.min), _granular(v, granularity, np.max)
    low = low.astype(np.float32).astype(step)  # the offset is kept as float32, and the codes are relative to it
    levels = step(2**bits - 1)
    t = ((v - low) / (high - low)) * levels
    want = np.clip(reference_bits.round_to_integers(t, rounding, 11, 0), 0, levels).astype(np.int64)
    assert np.array_equal(q.toarray().astype(np.int64), want)
    assert want.max() == 2**bits - 1
    assert dtype == "float64" or want.min() == 0
    assert q.encoding == "unsigned"
    span = (high - low).astype(np.float64)
    assert np.allclose(np.broadcast_to(q.scale, span.shape), span / float(levels), rtol=1e-6, atol=0)
    assert np.allclose(np.broadcast_to(q.offset, low.shape), low, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16, 24, 32])
@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_affine_pow2(bits: int, granularity: str, dtype: str) -> None:
    x = floats(np.random.default_rng(bits), (2, 21, 50), dtype_of(dtype))
    q = bs.quantize(x, bits, scheme="affine-pow2", granularity=granularity)
    step = np.float64 if dtype == "float64" or bits > 24 else np.float32
    v = x.astype(step)
    low, high = _granular(v, granularity, np.min), _granular(v, granularity, np.max)
    low = low.astype(np.float32).astype(step)
    scale = (high - low) / step(2.0**bits)
    want = np.clip(np.floor((v - low) / scale), 0, 2**bits - 1).astype(np.int64)
    assert np.array_equal(q.toarray().astype(np.int64), want)
    assert want.max() == 2**bits - 1


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16, 24, 32])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_symmetric(bits: int, rounding: str, granularity: str, dtype: str) -> None:
    x = floats(np.random.default_rng(bits), (21, 50), dtype_of(dtype))
    seed = 4 if rounding == "stochastic" else None
    q = bs.quantize(x, bits, scheme="symmetric", rounding=rounding, granularity=granularity, seed=seed, stream=9)
    step = np.float64 if dtype == "float64" or bits > 24 else np.float32
    v = x.astype(step)
    top = 2 ** (bits - 1) - 1
    scale = _granular(np.abs(v), granularity, np.max) / step(top)
    want = np.clip(reference_bits.round_to_integers(v / scale, rounding, 4, 9), -top, top).astype(np.int64)
    assert np.array_equal(q.toarray().astype(np.int64), want)
    assert abs(want).max() == top
    assert q.encoding == "signed"


def test_affine_reaches_the_maximum_where_a_rounded_scale_would_not() -> None:
    """The maximum must get the last code, which dividing by range / levels would lose: the order of steps is defined."""
    lost = 0
    for i in range(1, 400):
        x = np.array([[0, i]], np.float32) / np.float32(7)
        q = bs.quantize(x, 8, scheme="affine", rounding="floor")
        assert q.toarray().tolist() == [[0, 255]]
        lost += int(np.floor(x[0, 1] / (x[0, 1] / np.float32(255))) != 255)
    assert lost > 0


@pytest.mark.parametrize("scheme", ["affine", "affine-pow2", "symmetric"])
@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
@pytest.mark.parametrize("value", [0.0, -0.0, 3.5, -2.0, 1e-45])
def test_constant_and_subnormal_ranges_use_scale_one(scheme: str, granularity: str, value: float) -> None:
    x = np.full((4, 6), value, np.float32)
    q = bs.quantize(x, 8, scheme=scheme, granularity=granularity)
    if scheme == "symmetric" and abs(value) > 1e-30:
        assert np.array_equal(q.toarray(), np.full((4, 6), 127 * np.sign(value)))
        return
    assert (np.broadcast_to(q.scale, (4, 6)) == 1).all()
    assert not q.toarray().any()
    if scheme != "symmetric":
        assert np.array_equal(bs.dequantize(q), x)


def test_a_given_range_clips() -> None:
    x = np.array([[-5.0, -1.0, 0.0, 0.6, 1.0, 7.0]], np.float32)
    q = bs.quantize(x, 2, scheme="affine", rounding="nearest", range=(-1.0, 1.0))
    assert q.toarray().tolist() == [[0, 0, 2, 2, 3, 3]]
    assert bs.quantize(x, 2, scheme="affine-pow2", range=(-1.0, 1.0)).toarray().tolist() == [[0, 0, 2, 3, 3, 3]]
    s = bs.quantize(x, 3, scheme="symmetric", rounding="nearest", range=1.0)
    assert s.toarray().tolist() == [[-3, -3, 0, 2, 3, 3]]


def test_stochastic_quantisation_needs_or_takes_a_seed() -> None:
    x = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)
    one = bs.quantize(x, 4, scheme="symmetric", rounding="stochastic", seed=1)
    assert np.array_equal(one.words, bs.quantize(x, 4, scheme="symmetric", rounding="stochastic", seed=1).words)
    assert not np.array_equal(one.words, bs.quantize(x, 4, scheme="symmetric", rounding="stochastic", seed=2).words)
    other_form = bs.quantize(x, 4, scheme="symmetric", rounding="stochastic", seed=1, axis=-2, layout="rows")
    assert np.array_equal(one.toarray(), other_form.toarray()), "draws go by logical index, whatever the layout"


@pytest.mark.parametrize("columns", [16, 13])
def test_a_part_of_an_array_draws_by_its_place_in_it(columns: int) -> None:
    x = np.random.default_rng(3).standard_normal((60, columns)).astype(np.float32)
    options = {"scheme": "symmetric", "rounding": "stochastic", "seed": 1, "stream": 2, "range": 4.0}
    whole = bs.quantize(x, 4, **options).toarray()
    for form in ({}, {"axis": -2}, {"layout": "rows"}):
        parts = [
            bs.quantize(x[rows], 4, first_index=rows.start * columns, **options, **form).toarray()
            for rows in (slice(0, 7), slice(7, 8), slice(8, 8), slice(8, 60))
        ]
        assert np.array_equal(np.concatenate(parts), whole)
    assert not np.array_equal(bs.quantize(x, 4, first_index=1, **options).toarray(), whole)
    for wrong in (-1, 1 << 63, 0.5):
        with pytest.raises((ValueError, TypeError), match="first_index"):
            bs.quantize(x, 4, first_index=wrong, **options)


@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
@pytest.mark.parametrize("memory", MEMORY)
def test_memory_order_changes_nothing(granularity: str, memory: str) -> None:
    x = floats(np.random.default_rng(8), (3, 33, 65), np.dtype("float32"))
    want = bs.quantize(x, 5, granularity=granularity, rounding="stochastic", seed=1)
    got = bs.quantize(lay_out(x, memory), 5, granularity=granularity, rounding="stochastic", seed=1)
    same(got.words, want.words)
    same(np.asarray(got.scale), np.asarray(want.scale))


# ---- dequantise, error, choice of bits
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dequantize_steps(dtype: str) -> None:
    x = floats(np.random.default_rng(2), (15, 70), np.dtype("float32"))
    q = bs.quantize(x, 6, granularity="row")
    step = np.float64 if dtype == "float64" else np.float32
    want = (q.toarray().astype(step) * np.asarray(q.scale).astype(step) + np.asarray(q.offset).astype(step)).astype(
        dtype_of(dtype)
    )
    same(bs.dequantize(q, dtype=dtype_of(dtype)), want)
    if dtype == "float32":
        same(bs.dequantize(q), want)


@pytest.mark.parametrize("bits", [2, 4, 8, 12])
@pytest.mark.parametrize("scheme", ["affine", "affine-pow2", "symmetric"])
def test_round_trip_error_is_within_a_step(bits: int, scheme: str) -> None:
    x = np.random.default_rng(bits).standard_normal((40, 41))
    q = bs.quantize(x, bits, scheme=scheme)
    span = np.abs(x).max() * 2 if scheme == "symmetric" else np.ptp(x)
    assert np.abs(bs.dequantize(q, dtype=np.float64) - x).max() <= span / (2**bits - 2) * (1 + 1e-5)


def test_quantization_error_follows_its_equation() -> None:
    x = np.random.default_rng(0).standard_normal((50, 60)).astype(np.float32)
    x[0, :5] = 0
    q = bs.quantize(x, 4, scheme="symmetric")
    decoded = bs.dequantize(q, dtype=np.float64)
    wide = x.astype(np.float64)
    want = np.mean(np.abs(wide - decoded) / (np.abs(wide) + np.abs(decoded) + 0.0005))
    got = bs.quantization_error(x, q)
    assert isinstance(got, float)
    assert got == pytest.approx(want, rel=1e-6)
    assert bs.quantization_error(np.zeros((3, 4), np.float32), bs.quantize(np.zeros((3, 4), np.float32), 4)) == 0.0


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.3, 0.5])
def test_choose_bits_is_the_first_width_below_the_threshold(threshold: float) -> None:
    x = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    errors = {b: bs.quantization_error(x, bs.quantize(x, b, scheme="symmetric")) for b in range(2, 17)}
    chosen = bs.choose_bits(x, threshold=threshold, bits=range(2, 17))
    assert chosen == min(b for b, e in errors.items() if e <= threshold)
    assert errors[2] > errors[4] > errors[8] > errors[16]


# ---- the reference itself
def test_calibrate_ignores_the_sign_of_zero() -> None:
    for x in (np.array([[0.0, -0.0, 3.0]]), np.array([[-0.0, 0.0, 3.0]]), np.array([[-0.0, 3.0]])):
        low, _, finite = reference.bits.pack.calibrate(x, "tensor")
        assert (float(low), np.signbit(low), finite) == (0.0, False, True)


def test_reference_pack_of_wide_integers_keeps_low_bits() -> None:
    x = integers(np.random.default_rng(0), (7, 11), np.dtype("int64"))
    words = reference.bits.pack.pack(x, 9, axis=-1, layout="planes", encoding="signed")
    back = reference.bits.pack.unpack(
        words, x.shape, 9, axis=-1, layout="planes", encoding="signed", dtype=np.dtype(np.int64)
    )
    assert back.tolist() == [[((int(v) + 256) % 512) - 256 for v in row] for row in x]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("columns", [1, 3, 47, 128, 341, 512, 513])
def test_rows_that_are_quantised_together_have_the_codes_of_one_long_row(columns, dtype):
    """If all rows share a grid, their codes must be those of one long row, random bits included, and each row's pad bits zero."""
    x = np.random.default_rng(columns).standard_normal((133, columns)).astype(dtype)
    for rounding, bits, layout in (("nearest", 3, "planes"), ("stochastic", 8, "rows"), ("stochastic", 4, "rows")):
        how = {
            "scheme": "symmetric",
            "rounding": rounding,
            "seed": 1 if rounding == "stochastic" else None,
            "range": 2.0,
        }
        made = bs.quantize(x, bits, layout=layout, first_index=5, **how)
        long = bs.quantize(x.reshape(1, -1), bits, layout=layout, first_index=5, **how)
        assert np.array_equal(made.toarray(), long.toarray().reshape(x.shape))
        assert np.array_equal(made.words, bs.pack_bits(made.toarray(), bits, encoding="signed", layout=layout).words)


@pytest.mark.parametrize("scheme", ["symmetric", "affine"])
def test_short_rows_with_grids_of_their_own_are_quantised_apart(scheme):
    x = (
        np.random.default_rng(0).standard_normal((70, 5)).astype(np.float32)
        * np.arange(1, 71, dtype=np.float32)[:, None]
    )
    rows = bs.quantize(x, 8, scheme=scheme, granularity="row")
    for i in range(70):
        assert np.array_equal(rows.toarray()[i], bs.quantize(x[i : i + 1], 8, scheme=scheme).toarray()[0])
    columns = bs.quantize(x.T.copy(), 8, scheme=scheme, granularity="col")
    assert np.array_equal(columns.toarray().T, rows.toarray())


def test_short_rows_whose_offset_or_divisor_alone_differs_are_quantised_apart():
    x = np.random.default_rng(0).standard_normal((70, 5)).astype(np.float32)
    one, rows = np.ones((), np.float32), np.linspace(0.1, 2, 70, dtype=np.float32)[:, None]
    grid = {"multiplier": 9.0, "qmin": 0, "qmax": 15, "rounding": "nearest", "seed": 0, "stream": 0, "axis": -1}
    for offset, divisor in ((one, rows), (rows, one), (rows.T[:, :5], one), (one, rows.T[:, :5])):
        how = grid | {"offset": offset, "divisor": divisor, "layout": "rows"}
        assert np.array_equal(host_bits.quantize(x, 4, **how), reference_bits.quantize(x, 4, **how))

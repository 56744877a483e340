"""Limits of a quantisation grid: wide integers, one bad range among many, scales too small for float32, scales shared by a batch, NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bitsparse as bs

TINY = np.finfo(np.float32).smallest_normal


# ---- integers
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("rounding", ["floor", "nearest"])
def test_wide_integers_are_quantised_in_float64(dtype: str, rounding: Any) -> None:
    # float32 cannot hold odd numbers above 2**24: two neighbours would get the same code, although there is a code for each.
    start = 2**24 + 1
    x = np.arange(start, start + 256, dtype=dtype).reshape(2, 128)
    q = bs.quantize(x, 8, rounding=rounding, range=(start - 1, start + 254))
    assert np.array_equal(q.toarray().ravel(), np.minimum(np.arange(1, 257), 255))
    assert np.unique(bs.quantize(x, 8, rounding=rounding).toarray()).size >= 255


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16"])
def test_narrow_integers_are_quantised_in_float32(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (7, 40)).astype(dtype)
    for bits in (3, 8):
        assert np.array_equal(bs.quantize(x, bits).words, bs.quantize(x.astype(np.float32), bits).words)


# ---- ranges
@given(st.integers(0, 4), st.sampled_from(["row", "col"]), st.sampled_from(["high", "nan", "inf"]))
def test_one_bad_range_among_good_ones_is_refused(place: int, granularity: Any, kind: str) -> None:
    x = np.ones((5, 5), np.float32)
    shape = (5, 1) if granularity == "row" else (1, 5)
    low, high = np.zeros(shape), np.ones(shape)
    low.flat[place] = {"high": 2.0, "nan": np.nan, "inf": -np.inf}[kind]
    wanted = r"low > high \(2\.0 and 1\.0\)" if kind == "high" else "low holds NaN or infinity"
    with pytest.raises(ValueError, match=f"quantize: .*{wanted}"):
        bs.quantize(x, 4, range=(low, high), granularity=granularity)
    largest = np.ones(shape)
    largest.flat[place] = -3.0
    with pytest.raises(ValueError, match=r"cannot be negative, got -3\.0"):
        bs.quantize(x, 4, scheme="symmetric", range=largest, granularity=granularity)


# ---- scales
@pytest.mark.parametrize("scheme", ["affine", "affine-pow2", "symmetric"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_scale_is_normal_in_float32_or_one(scheme: Any, dtype: Any) -> None:
    steps = {"affine": 15, "affine-pow2": 16, "symmetric": 7}[scheme]
    extents = np.array([0.0, 0.25 * TINY, 0.99 * TINY, 1.01 * TINY, 4 * TINY, 1.0]) * steps
    x = (extents[:, None] * np.array([0.0, 0.5, 1.0])).astype(dtype)
    q = bs.quantize(x, 4, scheme=scheme, granularity="row")
    assert q.scale is not None
    kept = np.ravel(q.scale)
    assert np.array_equal(kept[:3], [1, 1, 1])
    assert (kept[3:] >= TINY).all()
    assert np.allclose(kept[3:], extents[3:] / steps, rtol=1e-6)
    assert not q.toarray()[:3].any(), "what is smaller than any scale is 0"
    assert (q.toarray()[3:, 2] >= steps - 1).all()
    for row, extent in enumerate(extents):  # one range for all gives the same scale
        assert np.ravel(bs.quantize(x[row : row + 1], 4, scheme=scheme).scale)[0] == kept[row], extent


@given(
    st.sampled_from([(1, 4, 1), (3, 1, 1), (3, 4, 1), (1, 1, 5), (3, 1, 5), (1, 1, 1)]),
    st.data(),
    st.sampled_from([-1, -2]),
)
def test_an_index_reads_shared_scales_where_they_are(shape: tuple[int, ...], data: st.DataObject, axis: int) -> None:
    rng = np.random.default_rng(sum(shape))
    scale, offset = (rng.uniform(1, 2, shape).astype(np.float32) for _ in range(2))
    x = bs.BitTensor(rng.integers(0, 16, (3, 4, 5)), 4, axis=axis, scale=scale, offset=offset)
    batch = data.draw(st.one_of(st.integers(-3, 2), st.slices(3)))
    rows = data.draw(st.one_of(st.slices(4), st.lists(st.integers(-4, 3), max_size=5)))
    cols = data.draw(st.slices(5))
    for key in ((batch, rows, cols), (batch, rows), (batch,), (Ellipsis, cols)):
        wanted = x.dequantize()[tuple(np.array(one, int) if isinstance(one, list) else one for one in key)]
        assert np.array_equal(x[key].dequantize(), wanted), key


# ---- NaN among signs
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("layout", ["planes", "rows"])
def test_a_nan_is_found_at_every_place_of_a_word(host: Any, dtype: Any, layout: Any) -> None:
    for level in host.simd_levels():
        host.set_simd(level)
        for length in (32, 300):  # whole groups of 128 have a code path of their own
            for place in range(length):
                for axis in (-1, -2):
                    x = np.ones((2, length), dtype)
                    x[1, place] = np.nan
                    with pytest.raises(ValueError, match="pack_bits: x holds NaN"):
                        bs.pack_bits(x if axis == -1 else x.T, axis=axis, layout=layout)

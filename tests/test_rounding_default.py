"""The default rounding must be to nearest, except in QGTC's equation, which rounds down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import bitsparse as bs
from bitsparse.backends.params import EpilogueParams

NORMAL = np.random.default_rng(0).normal(size=(256, 128)).astype(np.float32)


@given(st.integers(0, 2**32), st.integers(2, 10), st.sampled_from(["affine", "symmetric"]), st.floats(-5, 5))
def test_quantising_is_unbiased_by_default(seed: int, bits: int, scheme: Any, centre: float) -> None:
    x = np.random.default_rng(seed).normal(centre, size=(64, 64)).astype(np.float32)
    q = bs.quantize(x, bits, scheme=scheme)
    step = float(np.max(q.scale))
    # A uniform error of half a step at most has a standard deviation of 0.29 steps; 64 * 64 of them average below 0.05 steps.
    assert abs(float((q.dequantize() - x).mean())) < (0.05 if bits > 3 else 0.25) * step
    assert np.abs(q.dequantize() - x).max() <= 0.51 * step


@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
def test_nearest_is_the_default_and_floor_is_for_the_asking(granularity: Any) -> None:
    for scheme in ("affine", "symmetric"):
        how = {"scheme": scheme, "granularity": granularity}
        assert np.array_equal(
            bs.quantize(NORMAL, 4, **how).words, bs.quantize(NORMAL, 4, rounding="nearest", **how).words
        )
    below, near = (bs.quantize(NORMAL, 4, granularity=granularity, rounding=each) for each in ("floor", "nearest"))
    assert (below.toarray() <= near.toarray()).all()
    assert not np.array_equal(below.words, near.words)


def test_qgtc_rounds_down() -> None:
    q = bs.quantize(NORMAL, 4, scheme="affine-pow2")
    low, high = NORMAL.min(), NORMAL.max()
    assert np.array_equal(q.toarray(), np.clip(np.floor((NORMAL - low) / ((high - low) / np.float32(16))), 0, 15))


@pytest.mark.parametrize("scheme", ["affine", "symmetric", "affine-pow2"])
def test_an_epilogue_rounds_as_quantize_does(scheme: Any) -> None:
    acc = np.arange(-40, 40, dtype=np.int32).reshape(8, 10)
    end = 0.75 * {"affine": 15, "symmetric": 7, "affine-pow2": 16}[scheme]
    epilogue = bs.Epilogue(bits=4, out_scale=0.75, row_scale=0.125, scheme=scheme)
    codes = bs.quantize(
        acc.astype(np.float32) * 0.125, 4, scheme=scheme, range=end if scheme == "symmetric" else (0, end)
    )
    assert np.array_equal(epilogue(acc).toarray(), codes.toarray())
    assert EpilogueParams().rounding == "nearest"


def test_a_sum_of_neighbours_keeps_its_mean() -> None:
    graph = sparse.random_array((300, 256), density=0.1, rng=np.random.default_rng(1), format="csr").astype(bool)
    exact = graph.astype(np.float64) @ NORMAL.astype(np.float64)
    error = {
        rounding: float(np.sqrt(np.mean((bs.spmm(graph, bs.quantize(NORMAL, 4, rounding=rounding)) - exact) ** 2)))
        for rounding in (None, "floor", "nearest")
    }
    assert error[None] == error["nearest"] < error["floor"] / 3


def test_the_fewest_bits_are_those_of_rounding_to_nearest() -> None:
    how: dict[str, Any] = {"scheme": "affine", "threshold": 0.1}
    assert bs.choose_bits(NORMAL, **how) == bs.choose_bits(NORMAL, rounding="nearest", **how)
    assert bs.choose_bits(NORMAL, **how) < bs.choose_bits(NORMAL, rounding="floor", **how)

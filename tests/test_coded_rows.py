"""Rows of codes that carry their scales: the codes of ``quantize`` with a scale for each row, on both devices, and their sums."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import interop
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.quantized.coded_rows import coded_rows, sum_of_rows, words_of_row
from bitsparse.ops.recorded import Recorded

#: Columns of one octet and of several, that fill groups of 16 bytes or leave no room for the scale, and more than a warp holds at once.
COLUMNS = (1, 7, 8, 23, 47, 124, 128, 130, 300)


def rows(columns, seed=0):
    """Rows of many magnitudes: zeros, steps above and below 1, values too small to divide by, and a largest that is hit exactly."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((40, columns)).astype(np.float32)
    x *= np.exp2(rng.integers(-40, 40, (40, 1))).astype(np.float32)
    x[3] = 0
    x[4] *= np.float32(1e-30)
    x[5] = x[5] / np.abs(x[5]).max() * np.float32(3e38)
    x[6, ::2] *= np.float32(1e-38)
    x[7] = np.float32(1e-42)
    x[8] = 127
    x[9, -1] = -1e5
    return x


def coding(bits, first=0):
    return Coding(bits, "stochastic", 11, 5, -1, "rows", first)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("columns", COLUMNS)
def test_codes_and_scales_are_those_of_quantize(bits, columns) -> None:
    x, first = rows(columns), 24 * columns
    made = coded_rows(x, bits, coding(bits, first))
    how = {"scheme": "symmetric", "granularity": "row", "rounding": "stochastic", "seed": 11, "stream": 5}
    wanted = bs.quantize(x, bits, layout="rows", first_index=first, **how)
    assert made.words.shape == (40, words_of_row(columns, bits)) and made.words.shape[1] % 4 == 0
    codes = made.codes()
    assert np.array_equal(codes.words, wanted.words)
    assert np.array_equal(codes.scale[:4], wanted.scale[:4])
    assert (codes.scale > 0).all() and codes.scale[3] == 1
    behind = made.words.view(np.uint8)[:, -(-columns * bits // 8) : -4]
    assert not behind.any()


def test_scales_have_factors_and_those_of_rows_that_are_not_finite_are_nan() -> None:
    x, factors = rows(23), np.random.default_rng(1).random(40, np.float32)
    plain = coded_rows(x, 8, coding(8)).codes()
    x[2, 3], x[11, 0] = np.nan, -np.inf
    made = coded_rows(x, 8, coding(8), factors).codes()
    fine = np.isfinite(x).all(axis=1)
    assert np.array_equal(made.words[fine], plain.words[fine])
    assert (
        np.array_equal(made.scale[fine], (plain.scale * factors[:, None])[fine]) and np.isnan(made.scale[~fine]).all()
    )


def test_words_are_written_where_they_belong() -> None:
    x, out = rows(23), np.full((40, 8), 7, np.uint32)
    assert coded_rows(x, 8, coding(8), out=out).words is out
    assert np.array_equal(out, coded_rows(x, 8, coding(8)).words)
    assert coded_rows(x[:0], 8, coding(8)).words.shape == (0, 8)


def graph(factors=None):
    """A pattern with empty rows and one that has all columns, and its factors of rows."""
    dense = np.random.default_rng(3).random((30, 40)) < 0.2
    dense[4], dense[7:9] = True, False
    csr = sp.csr_array(dense)
    return dense, bs.TCTiledCSR.from_arrays(csr.indptr, csr.indices, csr.shape).with_scales(factors)


@pytest.mark.parametrize("scaled", [False, True])
def test_sums_are_those_of_the_real_values(scaled) -> None:
    x = rows(20)
    x = x / np.abs(x).max(axis=1, keepdims=True, initial=1e-30)
    factors = np.linspace(0.5, 2, 30, dtype=np.float32) if scaled else None
    dense, pattern = graph(factors)
    made = coded_rows(x, 8, coding(8))
    wanted = dense @ made.codes().dequantize()
    wanted = wanted * factors[:, None] if scaled else wanted
    assert np.allclose(sum_of_rows("example", as_csr("example", pattern), made), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("columns", COLUMNS)
def test_words_on_a_gpu_are_those_of_the_cpu(bits, columns) -> None:
    x, factors = rows(columns), np.random.default_rng(2).random(40, np.float32)
    field = max(bits, 4) if bits == 3 else bits
    for first in (0, 24 * columns):
        for given in (None, factors):
            there = None if given is None else interop.move(given, "cuda:0")
            made = coded_rows(interop.move(x, "cuda:0"), bits, coding(field, first), there)
            wanted = coded_rows(x, bits, coding(field, first), given)
            assert np.array_equal(interop.move(made.words, "cpu"), wanted.words)
    x[1, 0] = np.nan
    scales = interop.move(coded_rows(interop.move(x, "cuda:0"), bits, coding(field)).codes().scale, "cpu")
    assert np.isnan(scales[1]).all() and np.isfinite(np.delete(scales, 1)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("columns", [5, 47, 128])
def test_sums_on_a_gpu_are_those_of_the_cpu(bits, columns) -> None:
    x = rows(columns)
    x = x / np.abs(x).max(axis=1, keepdims=True, initial=1e-30)
    _, pattern = graph(np.linspace(0.5, 2, 30, dtype=np.float32))
    wanted = sum_of_rows("example", as_csr("example", pattern), coded_rows(x, bits, coding(bits)))
    there = as_csr("example", pattern.to_device("cuda:0"))
    for _ in range(2):
        made = sum_of_rows("example", there, coded_rows(interop.move(x, "cuda:0"), bits, coding(bits)))
        assert np.allclose(interop.move(made, "cpu"), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_a_recorded_call_waits_for_nothing_and_draws_anew() -> None:
    """Rounding and sums, by a number of draws that the graph itself advances: each replay has the codes of the next one."""
    x, (_, pattern) = rows(47), graph()
    x = x / np.abs(x).max(axis=1, keepdims=True, initial=1e-30)
    mine, there = interop.move(x, "cuda:0"), as_csr("example", pattern.to_device("cuda:0"))
    space = interop.namespace(mine)
    number, words = space.full(1, 4, np.uint32), space.zeros((40, words_of_row(47, 8)), np.uint32)
    sums = space.zeros((30, 47), np.float32)

    def call():
        number[...] += np.uint32(1)
        made = coded_rows(mine, 8, coding(8)._replace(stream=number), out=words)
        sums[...] = sum_of_rows("example", there, made)

    replay = Recorded(call)  # which calls once, and records a second call
    for stream in (6, 7):
        replay()
        wanted = coded_rows(x, 8, coding(8)._replace(stream=stream))
        assert np.array_equal(interop.move(words, "cpu"), wanted.words)
        of_cpu = sum_of_rows("example", as_csr("example", pattern), wanted)
        assert np.allclose(interop.move(sums, "cpu"), of_cpu, rtol=1e-5, atol=1e-5)

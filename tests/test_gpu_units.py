"""The units that a GPU cuts CSR patterns into must equal those of a row-by-row cut in Python."""

from __future__ import annotations

import numpy as np
import pytest

from bitsparse.backends.cuda.csr import schedule, units
from bitsparse.jit import cupy

pytestmark = pytest.mark.gpu


def cut(indptr, span, limit, longest):
    """Return pieces of long rows, whole long rows, and streams of short rows, as rows of the table."""
    pieces, whole, streams, away = [], [], [], 0
    rows, reached_before, in_stream = len(indptr) - 1, None, False
    for row in range(rows):
        begin, end = int(indptr[row]), int(indptr[row + 1])
        reached = begin - away + row  # rows and edges before this row, without the edges of rows outside of streams
        if end - begin > limit:
            count = -(-(end - begin) // longest)
            if count > 1:
                starts = range(begin, end, longest)
                pieces += [(row, count, start, min(start + longest, end)) for start in starts]
            else:
                whole.append((row, 1, begin, end))
            away, in_stream = away + end - begin, False
        else:
            if in_stream and reached // span == reached_before // span:
                streams[-1] = (*streams[-1][:1], row + 1, streams[-1][2], end)
            else:
                streams.append((row, row + 1, begin, end))
            in_stream = True
        reached_before = reached
    return pieces, whole, streams


def lengths_of(kind, rows, rng):
    if kind == "short":
        return rng.integers(0, 9, rows)
    if kind == "empty":
        return np.where(rng.random(rows) < 0.9, 0, rng.integers(0, 4, rows))
    if kind == "hubs":
        return np.where(rng.random(rows) < 0.02, rng.integers(200, 3000, rows), rng.integers(0, 40, rows))
    return rng.integers(17, 500, rows)


@pytest.mark.parametrize("kind", ["short", "empty", "hubs", "long"])
@pytest.mark.parametrize("rows", [1, 2, 255, 257, 1024, 1025, 5000])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_units_are_those_of_a_walk_over_the_rows(kind, rows, dtype):
    rng = np.random.default_rng([rows, len(kind)])
    indptr = np.concatenate([[0], np.cumsum(lengths_of(kind, rows, rng))]).astype(dtype)
    pattern = schedule.Schedule(cupy.asarray(indptr), None, (rows, 7), int(indptr[-1]))
    for span, limit, longest in ((8, 16, 64), (32, 24, 256), (64, 64, 128)):
        found = units.units_of(pattern, 8, span=span, limit=limit, longest=longest)
        pieces, whole, streams = cut(indptr, span, limit, longest)
        assert (found.pieces, found.whole, found.streams) == (len(pieces), len(whole), len(streams))
        wanted = np.array([*pieces, *whole, *streams], dtype).reshape(-1, 4)
        assert found.table.dtype == dtype
        assert np.array_equal(found.table.get(), wanted)


def test_span_follows_the_work_of_short_rows():
    lengths = np.array([3] * 3000 + [100] * 40)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    pattern = schedule.Schedule(cupy.asarray(indptr), None, (lengths.size, 7), int(indptr[-1]))
    found = units.units_of(pattern, 4)
    share = units.edges_of_a_warp(pattern.nnz)
    warps = units.jit.capability().multiprocessors * units.WARPS
    assert found.span == units.span_of(4 * 3000, 4, warps, share)
    pieces, whole, streams = cut(indptr, found.span, found.limit, found.longest)
    assert np.array_equal(found.table.get(), np.array([*pieces, *whole, *streams]))

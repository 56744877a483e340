"""Counts and sums over lines longer than the number of words that are merged at a time."""

from __future__ import annotations

import numpy as np
import pytest

import bitsparse as bs

#: Elements of a line that the counter merges in one pass.
MERGED = 32 * 1024


@pytest.mark.parametrize("length", [MERGED - 1, MERGED, MERGED + 1, 2 * MERGED + 33])
@pytest.mark.parametrize(("bits", "layout"), [(1, "planes"), (3, "planes"), (4, "rows"), (16, "rows")])
@pytest.mark.parametrize("axis", [-1, -2])
def test_every_element_of_a_long_line_is_counted_once(length: int, bits: int, layout: str, axis: int) -> None:
    rng = np.random.default_rng(length)
    x = rng.integers(0, 1 << bits, (2, length)) * (rng.random((2, length)) < 0.3)
    for ends in (x, np.eye(2, length, length - 2, dtype=np.int64)):
        q = bs.BitTensor(ends if axis == -1 else ends.T, bits, layout=layout, axis=axis)
        assert q.nnz == np.count_nonzero(ends)
        assert np.array_equal(q.line_sums, ends.sum(axis=1))

"""Counts of rows turned into where rows start, on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, constants
from bitsparse.jit import cupy

_SOURCE = "sparse/starts.cu"
#: Threads of a block, and the rows that it takes.
_THREADS, _TILE = 1024, 8192

StartParams = jit.struct(_SOURCE, "StartParams")


def room_for_counts(rows: int, index: Any) -> Any:
    """Where kernels write the counts of rows, one place on, for :func:`start_rows`."""
    return cupy.empty(rows + 1, index) if rows else cupy.zeros(1, index)


def start_rows(starts: Any, found: Any = None) -> list[int]:
    """Turn counts of rows, one place on, into where rows start, in place; the number of all is waited for.

    Parameters
    ----------
    starts : array
        Of :func:`room_for_counts`, filled.
    found : array of int64, optional
        What else is to be looked at: the first number becomes that of all.

    Returns
    -------
    list of int
        The numbers of `found`. If the first exceeds what the dtype of `starts` holds, `starts` are worth nothing.
    """
    rows = starts.size - 1
    if not rows:
        return [0] * (1 if found is None else found.size)
    found = cupy.empty(1, np.int64) if found is None else found
    tiles = -(-rows // _TILE)
    sums = cupy.empty(tiles, np.int64) if tiles > 1 else None  # lives until the kernels are enqueued
    params = StartParams(starts.data.ptr, None if sums is None else sums.data.ptr, found.data.ptr, rows)
    for name in ("sum_tiles", "start_rows") if tiles > 1 else ("start_rows",):
        jit.kernel(_SOURCE, name, constants(starts.dtype)).run(tiles, _THREADS, params)
    numbers: list[int] = found.get().tolist()
    return numbers


VARIANTS = jit.variants_of(_SOURCE, "start_rows", BOTH_INDICES)

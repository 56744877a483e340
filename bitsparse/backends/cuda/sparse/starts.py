"""Turning the lengths of rows into row starts on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, constants
from bitsparse.jit import cupy

_SOURCE = "sparse/starts.cu"
#: Threads of a block, and the rows that a block processes.
_THREADS, _TILE = 1024, 8192

StartParams = jit.struct(_SOURCE, "StartParams")


def room_for_counts(rows: int, index: Any) -> Any:
    """An array into which kernels write the length of row i at place i + 1, for :func:`start_rows`."""
    return cupy.empty(rows + 1, index) if rows else cupy.zeros(1, index)


def start_rows(starts: Any, found: Any = None) -> list[int]:
    """Turn the lengths of rows into row starts, in place, and wait for the total.

    Parameters
    ----------
    starts : array
        The array of :func:`room_for_counts`, filled.
    found : array of int64, optional
        Numbers to fetch along with the total, which replaces the first one.

    Returns
    -------
    list of int
        The numbers of `found`. If the first, the total, does not fit the dtype of `starts`, the content of `starts` is meaningless.
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

"""Nearest rows of bits and pairs of similar rows on the CPU, by the compiled drivers ``nearest.c`` and ``pairs.c``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import search as _ext
from bitsparse.backends.host.buffers import as_bytes
from bitsparse.backends.host.settings import run_on, simd_level
from bitsparse.backends.params import NOWHERE, Array, PairTest


def ones_of(words: Array) -> NDArray[np.int32]:
    """How many bits are set in each row of ``words`` (N, W).

    Examples
    --------
    >>> ones_of(np.array([[3, 0, 0, 0], [0, 0, 0, 0]], np.uint32))
    array([2, 0], dtype=int32)
    """
    out = np.empty(len(words), np.int32)
    _ext.ones(run_on(words.size), as_bytes(words), len(words), words.shape[1], as_bytes(out))
    return out


def nearest(
    queries: Array, database: Array, ones: Array, k: int, jaccard: bool
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Keys and rows (Q, k) of the rows of ``database`` (N, W) nearest to each of ``queries`` (Q, W), ascending.

    ``ones`` (N,) is the result of :func:`ones_of`; a negative number excludes its row. Rows with equal keys are sorted by row number. If
    there are fewer than `k` rows, the missing ones are -1 with key FARTHEST.

    Examples
    --------
    >>> words = np.array([[3, 0, 0, 0], [1, 0, 0, 0], [7, 0, 0, 0]], np.uint32)
    >>> nearest(words[:1], words, ones_of(words), 2, False)
    (array([[0, 1]], dtype=uint32), array([[0, 1]]))
    """
    keys, rows = np.empty((len(queries), k), np.uint32), np.empty((len(queries), k), np.int64)
    sizes = len(queries), len(database), database.shape[1]
    work = len(queries) * len(database) * max(1, database.shape[1] // 8)
    lines = as_bytes(queries), as_bytes(database), as_bytes(np.asarray(ones, np.int32))
    _ext.nearest(run_on(work), *lines, sizes, k, jaccard, as_bytes(keys), as_bytes(rows))
    return keys, rows


def distances(keys: NDArray[np.uint32], rows: Array, metric: str, length: int, out: Array | None = None) -> Array:
    """Distances or inner products of the keys and rows (Q, k) that :func:`nearest` returns: int32, or float32 for "jaccard".

    A missing row has the distance ``NOWHERE[metric]``.

    Examples
    --------
    >>> keys, rows = np.array([[0, 1 << 31, 0xFFFFFFFF]], np.uint32), np.array([[2, 0, -1]])
    >>> distances(keys, rows, "jaccard", 128)
    array([[0. , 0.5, inf]], dtype=float32)
    >>> distances(keys >> 28, rows, "dot", 128)
    array([[        128,         112, -2147483648]], dtype=int32)
    """
    out = np.empty(keys.shape, np.float32 if metric == "jaccard" else np.int32) if out is None else out
    if metric == "jaccard":
        found = out if out.flags.c_contiguous else np.empty(keys.shape, np.float32)
        _ext.jaccard_distances(as_bytes(keys), keys.size, found.reshape(-1).view(np.uint8))
        out[...] = found
    else:
        out[...] = keys if metric == "hamming" else length - 2 * keys.astype(np.int64).clip(max=length)
    out[rows < 0] = NOWHERE[metric]
    return out


_PAIR = np.dtype([("a", np.int64), ("b", np.int64), ("common", np.int32), ("both", np.int32)])


def pairs(
    a: Array, a_ones: Array, b: Array, b_ones: Array, test: PairTest, triangle: bool, most: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]] | None:
    """For each pair that passes the test: its rows of a and b, their common ones and the ones of both; sorted by a, then b.

    ``b_ones`` ascends. ``triangle`` keeps only pairs whose row of b comes after the row of a. None if more than ``most`` pairs pass.

    Examples
    --------
    >>> words = np.array([[1, 0, 0, 0], [3, 0, 0, 0], [7, 0, 0, 0]], np.uint32)
    >>> rows, columns, *_ = pairs(words, ones_of(words), words, ones_of(words), PairTest(2, 1, -1), True)
    >>> rows.tolist(), columns.tolist()
    ([0, 1], [1, 2])
    """
    sizes = len(a), len(b), a.shape[1]
    lines = as_bytes(a), as_bytes(a_ones), as_bytes(b), as_bytes(b_ones)
    work = len(a) * len(b) * max(1, a.shape[1] // 8)
    limit = 1 << 62 if most is None else most
    buffer = _ext.pairs(run_on(work), *lines, sizes, (test.weight, test.share, test.bound), triangle, limit)
    if buffer is None:
        return None
    found = np.frombuffer(buffer, _PAIR)
    return found["a"].copy(), found["b"].copy(), found["common"].copy(), found["both"].copy()


#: The kernels that can be forced by name.
KERNELS = ("popcount",)
#: The most rows of a database that can be searched.
MOST_ROWS = 1 << 48


class Search:
    """Searches of one database: ``run(queries)``."""

    kernel, nbytes = "popcount", 0

    def __init__(self, database: Array, ones: Array, queries: int, k: int, jaccard: bool, kernel: str | None) -> None:
        self._arguments = database, ones, k, jaccard
        self.nbytes = ones.nbytes

    def run(self, queries: Array, rows: Array | None = None) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The result of :func:`nearest`; row numbers are written to ``rows`` if it is given."""
        keys, found = nearest(queries, *self._arguments)
        if rows is None:
            return keys, found
        rows[...] = found
        return keys, rows

    def explain(self) -> tuple[str, ...]:
        """Lines that a plan's explanation adds."""
        level = simd_level()
        wide = "AVX-512 VPOPCNTDQ" if level in ("avx512", "amx") else "AVX2 table lookups"
        how = "64-bit steps" if level == "scalar" else wide
        return (f"kernel: popcount, by {how}; up to 512 queries at a time against tiles of 128 rows",)

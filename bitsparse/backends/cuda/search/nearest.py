"""Nearest rows of bits and pairs of similar rows on the GPU."""

from __future__ import annotations

from typing import Any

from bitsparse import jit
from bitsparse.backends.cuda.search.scan import KERNELS as KERNELS
from bitsparse.backends.cuda.search.scan import TILE_QUERIES, Scan, chosen, terms_of
from bitsparse.backends.params import FARTHEST, PairTest
from bitsparse.jit import cupy

#: The most rows of a database: a row number takes 32 bits of a candidate.
MOST_ROWS = 1 << 30
#: The most queries per launch.
_MOST_QUERIES = 1 << 16
#: The number of pairs for which memory is allocated first.
_FIRST_ROOM = 1 << 20
_THREADS = 256

MergeParams = jit.struct("search/merge.cu", "MergeParams")
DistanceParams = jit.struct("search/merge.cu", "DistanceParams")
OnesParams = jit.struct("search/merge.cu", "OnesParams")


def ones_of(words: Any, out: Any = None) -> Any:
    """How many bits are set in each row of ``words`` (N, W), int32."""
    out = cupy.empty(words.shape[0], "int32") if out is None else out
    if words.size:
        params = OnesParams(words.data.ptr, out.data.ptr, words.shape[0], words.shape[1] // 4)
        kernel = jit.kernel("search/merge.cu", "row_ones")
        kernel.run(-(-words.shape[0] * 8 // _THREADS), _THREADS, params)
    else:
        out.fill(0)
    return out


def distances(keys: Any, rows: Any, metric: str, length: int, out: Any = None) -> Any:
    """Distances or inner products of keys and rows (Q, k): int32, or float32 for "jaccard"; ``NOWHERE[metric]`` for a missing row."""
    whole = out is not None and out.flags.c_contiguous
    found = out if whole else cupy.empty(keys.shape, "float32" if metric == "jaccard" else "int32")
    if keys.size:
        number = ("hamming", "jaccard", "dot").index(metric)
        params = DistanceParams(keys.data.ptr, rows.data.ptr, found.data.ptr, keys.size, number, length)
        jit.kernel("search/merge.cu", "distances").run(-(-keys.size // _THREADS), _THREADS, params)
    if out is None or whole:
        return found
    out[...] = found
    return out


class Search:
    """Searches of one database for the `k` nearest rows to each of `queries` queries; ``run(queries)`` enqueues a search.

    Parameters
    ----------
    ones : cupy.ndarray
        The result of :func:`ones_of`; a negative number excludes its row.

    Attributes
    ----------
    kernel : str
    nbytes : int
        Bytes that are kept in addition to the database.
    """

    def __init__(self, database: Any, ones: Any, queries: int, k: int, jaccard: bool, forced: str | None) -> None:
        kind = chosen(forced)
        self.kernel, self._k = kind.name, k
        self._queries, self.nbytes = queries, 0
        self._keys = cupy.empty((queries, k), "uint32")
        n, width = database.shape
        self._empty = not (queries and n)
        if self._empty:
            return
        if not width:  # rows without bits are all equal
            database, width = cupy.zeros((n, 4), "uint32"), 4
            self._blank = cupy.zeros((queries, 4), "uint32")
        else:
            self._blank = None
        self._scan = Scan(kind, width, jaccard=jaccard, pairs=False)
        terms = terms_of(ones, jaccard)
        self._scan.put_database(database, ones, terms)
        self._step = min(queries, _MOST_QUERIES)
        g = self._scan.fields
        q_tiles = -(-self._step // TILE_QUERIES)
        g.parts, g.part_tiles = parts_of(q_tiles, g.n_tiles, self._scan.slots)
        g.k, g.jaccard, g.room = k, int(jaccard), k + max(6, k // 2)
        entries = cupy.empty((g.parts, self._step, g.room), "uint64")
        counts = cupy.empty((g.parts, self._step), "int32")
        self._limits = cupy.empty(self._step, "uint32")
        self._ones = cupy.empty(self._step, "int32")
        g.entries, g.counts, g.limits = entries.data.ptr, counts.data.ptr, self._limits.data.ptr
        self._merge = jit.kernel("search/merge.cu", "merge_parts")
        jit.kernel("search/merge.cu", "row_ones")
        jit.kernel("search/merge.cu", "distances")
        self._kept = (database, ones, terms, entries, counts)
        self.nbytes = sum(one.nbytes for one in (ones, terms, entries, counts, self._limits, self._ones, self._keys))

    def run(self, queries: Any, rows: Any = None) -> tuple[Any, Any]:
        """Keys and rows (Q, k) of the nearest rows to ``queries`` (Q, W), ascending; the keys are overwritten by the next call."""
        whole = rows is not None and rows.flags.c_contiguous
        found = rows if whole else cupy.empty((self._queries, self._k), "int64")
        if self._empty:
            self._keys.fill(FARTHEST)
            found.fill(-1)
        else:
            words = queries if self._blank is None else self._blank
            for start in range(0, self._queries, self._step):
                self._search(words[start : start + self._step], start, found)
        if rows is None or whole:
            return self._keys, found
        rows[...] = found
        return self._keys, rows

    def _search(self, words: Any, start: int, found: Any) -> None:
        count = words.shape[0]
        ones = ones_of(words, self._ones[:count])
        self._limits.fill(FARTHEST)
        self._scan.put_queries(words, ones)
        self._scan.launch()
        g, k = self._scan.fields, self._k
        keys, rows = self._keys[start : start + count], found[start : start + count]
        params = MergeParams(g.entries, g.counts, g.limits, keys.data.ptr, rows.data.ptr, count, g.parts, k, g.room)
        self._merge.run(count, _THREADS, params)

    def explain(self) -> tuple[str, ...]:
        """Lines that a plan's explanation adds."""
        how = {
            "wgmma": "one-bit AND of warpgroups",
            "mma": "one-bit AND of warps",
            "mma-bytes": "8-bit products of bits spread to bytes, as this chip emulates the one-bit instruction",
        }[self.kernel]
        if self._empty:
            return (f"kernel: {self.kernel}, {how}",)
        g = self._scan.fields
        where = "stay in shared memory" if self._scan.resident else "come with every tile"
        tiles = f"tiles of {TILE_QUERIES} queries, which {where}, by {self._scan.kind.columns} rows"
        return (f"kernel: {self.kernel}, {how}; {tiles}, the database in {g.parts} parts",)


def parts_of(q_tiles: int, n_tiles: int, slots: int) -> tuple[int, int]:
    """The number of parts into which a database is cut so that all blocks stay busy to the end, and the tiles of a part.

    Examples
    --------
    >>> parts_of(79, 39063, 132), parts_of(1, 390625, 132), parts_of(7813, 3907, 132)
    ((5, 7813), (132, 2960), (1, 3907))
    """

    def share(parts: int) -> float:
        units = q_tiles * parts
        return units / (-(-units // slots) * slots)

    most = max(1, min(n_tiles, 2 * slots, -(-4 * slots // q_tiles)))
    parts = next((p for p in range(1, most + 1) if share(p) >= 0.995), None) or max(range(1, most + 1), key=share)
    tiles = -(-n_tiles // parts)
    return -(-n_tiles // tiles), tiles


def pairs(
    a: Any, a_ones: Any, b: Any, b_ones: Any, test: PairTest, triangle: bool, most: int | None = None
) -> tuple[Any, Any, Any, Any] | None:
    """For each pair that passes the test: its rows of a and b, their common ones and the ones of both; in any order.

    ``b_ones`` ascends. ``triangle`` keeps only pairs whose row of b comes after the row of a. None if more than ``most`` pairs pass.
    """
    kind = chosen(None)
    if not a.shape[0] or not b.shape[0]:
        nothing = cupy.empty(0, "int64")
        return nothing, nothing, cupy.empty(0, "int32"), cupy.empty(0, "int32")
    if not a.shape[1]:  # rows without bits
        a, b = (cupy.zeros((x.shape[0], 4), "uint32") for x in (a, b))
    jaccard = test.weight != 2 or test.share != 1
    scan = Scan(kind, a.shape[1], jaccard=jaccard, pairs=True)
    terms = terms_of(b_ones, jaccard)
    scan.put_database(b, b_ones, terms)
    scan.put_queries(a, a_ones)
    g = scan.fields
    windows = windows_of(a_ones, b_ones, test, kind.columns, triangle)
    found = cupy.empty(1, "uint64")
    g.parts, g.part_tiles, g.windows, g.found = 1, g.n_tiles, windows.data.ptr, found.data.ptr
    g.weight, g.share, g.bound, g.triangle, g.jaccard = *test, int(triangle), int(jaccard)
    room = _FIRST_ROOM if most is None else max(1, min(most, _FIRST_ROOM))
    while True:
        each = cupy.empty((room, 4), "int32")
        g.pairs, g.room_pairs = each.data.ptr, room
        found.fill(0)
        scan.launch()
        count = int(found[0])
        if most is not None and count > most:
            return None
        if count <= room:
            break
        room = count
    rows, columns, common = (each[:count, i] for i in range(3))
    both = a_ones[rows] + b_ones[columns]
    return rows.astype("int64"), columns.astype("int64"), cupy.ascontiguousarray(common), both.astype("int32")


def windows_of(a_ones: Any, b_ones: Any, test: PairTest, columns: int, triangle: bool) -> Any:
    """The range (first tile, end) of tiles of b that can pair with each tile of a, int32 (tiles, 2); see ``_ext/drivers/pairs.c``."""
    tiles = -(-a_ones.size // TILE_QUERIES)
    padded = cupy.full(tiles * TILE_QUERIES, a_ones[-1], "int64")
    padded[: a_ones.size] = a_ones
    by_tile = padded.reshape(tiles, TILE_QUERIES)
    low, high = by_tile.min(axis=1), by_tile.max(axis=1)
    weight, share, bound = test
    rest = weight - share
    least = cupy.maximum(share * low + bound, 0)
    least = cupy.minimum(-(-least // rest), low) if rest > 0 else cupy.zeros_like(low)
    first = cupy.searchsorted(b_ones, least.astype("int32"), side="left")
    if share > 0:
        reach = cupy.clip((rest * high - bound) // share, -1, 1 << 30)
        end = cupy.searchsorted(b_ones, reach.astype("int32"), side="right")
    else:
        end = cupy.full(tiles, b_ones.size, "int64")
    if triangle:
        first = cupy.maximum(first, cupy.arange(tiles, dtype="int64") * TILE_QUERIES + 1)
    windows = cupy.stack((first // columns, -(-end // columns)), axis=1)
    return cupy.ascontiguousarray(windows.astype("int32"))


VARIANTS = jit.variants_of("search/merge.cu", "merge_parts")  # one compilation contains all kernels of the file

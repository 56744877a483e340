"""The two kernels that compare queries with a database on the GPU: their variants, sizes and launches."""

from __future__ import annotations

from typing import Any, NamedTuple

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.chips import chip_here
from bitsparse.jit import cupy

ScanParams = jit.struct("search/mma.cu", "ScanParams")
WgmmaParams = jit.struct("search/wgmma.cu", "WgmmaParams")

#: The kernels that can be forced by name.
KERNELS = ("wgmma", "mma", "mma-bytes")
#: Queries of a tile.
TILE_QUERIES = 128
#: Replaces the number of ones of an excluded row.
EXCLUDED = 1 << 20


class Kind(NamedTuple):
    """The sizes of one of the kernels."""

    name: str
    columns: int  # rows of the database in a tile
    threads: int
    stages: int
    stage_bytes: int  # of a stage, if queries are resident
    query_bytes: int  # for 1024 bits of a tile of queries
    static_bytes: int  # shared memory that the kernel itself declares


_WGMMA = Kind("wgmma", 256, 384, 4, 128 * 256 + 4 * 256, 128 * 128, 29_800)
_MMA = Kind("mma", 64, 128, 3, 128 * 64 + 4 * 64, 128 * 128, 17_000)
KINDS = {"wgmma": _WGMMA, "mma": _MMA, "mma-bytes": replace(_MMA, name="mma-bytes")}


def chosen(forced: str | None) -> Kind:
    """The forced kernel, or else the one for this device."""
    if forced is None:
        wide = jit.capability().has_wgmma
        forced = "wgmma" if wide else "mma" if chip_here().bits else "mma-bytes"
    return KINDS[forced]


def blocks_of(width: int) -> int:
    """The number of blocks of 1024 bits in a row of `width` words."""
    return -(-width // 32)


def defines_of(kind: Kind, width: int, *, resident: bool, jaccard: bool, pairs: bool) -> dict[str, int]:
    """The compile-time constants of a search among rows of `width` words."""
    in_bytes, steps = kind.name == "mma-bytes", -(-width // 8) if kind is _WGMMA and width <= 24 else 0
    return {"BS_STAGES": kind.stages} | jit.flags(
        steps=steps, resident=resident, jaccard=jaccard, pairs=pairs, bytes=in_bytes
    )


class Scan:
    """A prepared launch over tiles of queries and a database."""

    def __init__(self, kind: Kind, width: int, *, jaccard: bool, pairs: bool) -> None:
        self.kind, blocks = kind, blocks_of(width)
        room = jit.capability().shared_bytes - kind.static_bytes - 1024
        resident = blocks * kind.query_bytes + kind.stages * kind.stage_bytes
        self.resident = resident <= room
        apart = kind.stages * (kind.stage_bytes + kind.query_bytes)
        self.shared = (resident if self.resident else apart) + 1024
        defines = defines_of(kind, width, resident=self.resident, jaccard=jaccard, pairs=pairs)
        if kind is _WGMMA:
            self._kernel = jit.kernel("search/wgmma.cu", "search_wgmma", defines)
        else:
            self._kernel = jit.kernel("search/mma.cu", "search_mma", defines)
        self._width, self._mapped = width, 0
        self.params: Any = WgmmaParams() if kind is _WGMMA else ScanParams()
        #: The fields that both kernels have.
        self.fields: Any = self.params.scan if kind is _WGMMA else self.params
        fitting = max(1, jit.capability().shared_bytes // (self.shared + kind.static_bytes + 1024))
        #: Blocks that run at the same time.
        self.slots = jit.capability().multiprocessors * (1 if kind is _WGMMA else min(4, fitting))

    def put_database(self, words: Any, ones: Any, terms: Any) -> None:
        """Set the database that is searched."""
        g, kind = self.fields, self.kind
        g.database, g.ones, g.terms = words.data.ptr, ones.data.ptr, terms.data.ptr
        g.n, g.width, g.n_tiles = words.shape[0], self._width, -(-words.shape[0] // kind.columns)
        if kind is _WGMMA:
            self.params.database[:] = _map(words.data.ptr, self._width, words.shape[0], kind.columns)
            self.params.terms[:] = _map(terms.data.ptr, 32, terms.size // 32, kind.columns // 32)

    def put_queries(self, words: Any, ones: Any) -> None:
        """Set the queries."""
        g = self.fields
        g.queries, g.query_ones, g.n_queries = words.data.ptr, ones.data.ptr, words.shape[0]
        g.q_tiles = -(-words.shape[0] // TILE_QUERIES)
        if self.kind is _WGMMA:
            self.params.queries[:] = _map(words.data.ptr, self._width, words.shape[0], TILE_QUERIES)

    def launch(self) -> None:
        """Enqueue on CuPy's current stream."""
        grid = min(self.fields.q_tiles * self.fields.parts, self.slots)
        self._kernel.run(grid, self.kind.threads, self.params, shared=self.shared)


def _map(address: int, words: int, rows: int, box_rows: int) -> Any:
    return jit.tensor_map(
        address, (words, rows, 1, 1), (4 * words, 4 * words * rows, 4 * words * rows), (32, box_rows, 1, 1)
    )


def terms_of(ones: Any, jaccard: bool) -> Any:
    """The term of each row that enters its comparison, padded to whole tiles: its ones for Jaccard, else minus half of its ones."""
    padded = cupy.full(-(-max(1, ones.size) // 256) * 256, EXCLUDED, "int32")
    padded[: ones.size] = cupy.where(ones < 0, EXCLUDED, ones)
    return padded if jaccard else -(padded >> 1)


def _variants() -> list[jit.Variant]:
    found = []
    for kind, source, function, only in (
        (_WGMMA, "search/wgmma.cu", "search_wgmma", "sm_90a"),
        (_MMA, "search/mma.cu", "search_mma", None),
        (KINDS["mma-bytes"], "search/mma.cu", "search_mma", None),
    ):
        each = [
            defines_of(kind, width, resident=resident, jaccard=jaccard, pairs=pairs)
            for resident, width in ((True, 32), (False, 2048))
            for jaccard in (False, True)
            for pairs in (False, True)
        ]
        if kind is _WGMMA:
            each += [defines_of(kind, width, resident=True, jaccard=False, pairs=False) for width in (4, 16, 24)]
        found += jit.variants_of(source, function, each, only)
    return found


VARIANTS = _variants()

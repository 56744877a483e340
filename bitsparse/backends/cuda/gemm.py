"""The tiled product of packed operands on the matrix units: which tiling, with which parameters, launched how."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.epilogue import DeviceEpilogue, EpilogueStruct
from bitsparse.errors import KernelError

__all__ = ["Operand", "Tiling", "WgmmaProduct", "choose_tiling", "estimate_us", "passes_of", "tilings"]

#: Contraction bytes, and so words, of one stage: one block of the contraction axis.
BLOCK_BYTES, BLOCK_WORDS = 128, 32
#: Passes that fit into the parameters.
INLINE_PASSES = 8
#: Blocks of 64 columns of a tile that may wait for an epilogue while the next tile is multiplied; 0: none ever do.
HELD_BLOCKS = 4


class Operand(NamedTuple):
    """One packed operand (batches, outer, planes, words) and what its planes mean.

    The integer of a code is ``weight * (sum of 2**shift[p] * plane p) + constant``; the last plane counts negative if ``negative_top``.
    """

    words: Any
    outer: int
    planes: int
    batches: int
    step: int  # bits of one plane: 1, or 8 for bytes
    weight: int = 1
    constant: int = 0
    negative_top: bool = False


class Tiling(NamedTuple):
    """How a product is cut up; the names are those of ``matmul_wgmma.cu``."""

    mb: int  # 64-row blocks of a consumer warpgroup: a block has 64 groups mb rows
    nb: int  # blocks of 64 columns side by side
    qb: int  # planes of the right operand side by side
    mc: int = 1  # row tiles that share the loads of the right operand
    rk: int = 1  # parts of the contraction axis
    rp: int = 1  # parts of the passes
    groups: int = 2  # consumer warpgroups of a block

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 64 * self.groups * self.mb

    @property
    def threads(self) -> int:
        """Threads of a block, the producer's warpgroup included."""
        return 128 * (self.groups + 1)

    def staging_bytes(self, way: int = 0) -> int:
        """Shared memory behind the stages, through which results leave; by way 3 they wait there."""
        return 8192 * self.groups * (_held_blocks(self) if way == 3 else 2)

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.mc * self.rk * self.rp

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage."""
        return BLOCK_BYTES * (self.rows + 64 * self.nb * self.qb)


@lru_cache(maxsize=512)
def passes_of(
    a_planes: int,
    b_planes: int,
    qb: int,
    blocks: int,
    step: int,
    a_negative: bool,
    b_negative: bool,
    weight: int,
    wide: bool,
) -> Any:
    """The table of passes, heaviest first (see ``struct Pass``), as an int32 array of 16 columns.

    With ``wide`` (an int64 result) every pass is flushed, so its sums must stay below 2**32: bytes are cut along the contraction axis.
    """
    order = sorted(
        ((p, q) for p in range(a_planes) for q in range(0, b_planes, qb)), key=lambda pq: pq[0] + pq[1], reverse=True
    )

    def sign(p: int, q: int) -> int:
        return (-1 if a_negative and p == a_planes - 1 else 1) * (-1 if b_negative and q == b_planes - 1 else 1)

    rows = []
    longest = 512 if wide and step == 8 else blocks
    previous: tuple[int, int] | None = None
    for p, q in order:
        ratios, weights = [], []
        for j in range(4):
            s = sign(p, q + j)
            weights.append(_wrap(s * weight << step * (p + q + j)))
            if previous is None:
                ratios.append(1)
            else:
                drop = step * (previous[0] + previous[1] - p - q)
                ratios.append(_wrap(sign(previous[0], previous[1] + j) * s << drop))
        previous = (p, q)
        if wide:
            shift = step * (p + q) + weight.bit_length() - 1
            weights[0] = shift | (64 if sign(p, q) < 0 else 0)
        rows += [
            (p, q, k0, min(blocks, k0 + longest), *ratios, *weights, 0, 0, 0, 0)
            for k0 in range(0, max(blocks, 1), longest)
        ]
    return np.array(rows, np.int32)


def _wrap(value: int) -> int:
    """``value`` modulo 2**32 as a signed number."""
    return (value + 2**31) % 2**32 - 2**31


def tilings(columns: int, b_planes: int, *, masked: bool, wide: bool) -> list[Tiling]:
    """The tilings worth considering for a result of ``columns`` columns and a right operand of ``b_planes``."""
    found = []
    for nb, qb in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 3), (1, 4), (3, 1)):
        if qb > b_planes or (wide and (qb > 1 or nb > 2)) or 64 * (nb - 1) >= columns:
            continue
        for groups, mb in ((2, 1), (2, 2), (1, 1)):
            if mb * nb * qb > (2 if wide else 4) or (mb == 2 and nb * qb == 3) or (groups == 1 and (nb > 1 or qb == 3)):
                continue
            whole = wide or mb * nb > 1  # too large to be added up
            found += [
                Tiling(mb, nb, qb, mc, rk, rp, groups)
                for mc in ((1,) if masked else (1, 2, 4))
                for rk in ((1,) if whole else (1, 2, 4, 8))
                for rp in ((1,) if whole else (1, 2, 4))
                if mc * rk * rp <= 8 and rk * rp <= 4 * groups
            ]
    return found


class Rates(NamedTuple):
    """Figures of one chip that the estimate is made of, fitted to measured times of all tilings; see benchmarks/NOTES.md."""

    clock_mhz: float = 1850.0
    launch_us: float = 1.6
    fill_clocks: float = 986.0  # from the first load to the first product, and from the last one to the result
    arrive_bytes: float = 43.0  # bytes a clock that one multiprocessor takes in
    leave_bytes: float = 4300.0  # bytes a clock that leave the L2
    part_clocks: float = 3000.0  # adding up the parts of a tile
    store_bytes: float = 22.8  # bytes a clock that one multiprocessor writes
    overhead: float = 1.15  # of the products
    multicast_clocks: float = 135.0  # what a stage waits longer for several blocks
    memory_bytes_per_us: float = 4.2e6
    flush_bytes_per_us: float = 2.3e6  # an int64 result read and written from the registers
    cache_bytes: float = 45e6  # operands up to this size stay in the L2
    #: Clusters of 1, 2, 4, 8 blocks that run at the same time.
    clusters: tuple[tuple[int, int], ...] = ((1, 132), (2, 66), (4, 30), (8, 15))


#: An NVIDIA H200.
RATES = Rates()


def estimate_us(
    t: Tiling, m: int, n: int, blocks: int, a_planes: int, b_planes: int, batches: int, rates: Rates = RATES
) -> float:
    """Microseconds that a product of ``blocks`` blocks of 128 bytes is expected to take; infinite if the tiling does not apply."""
    passes = a_planes * -(-b_planes // t.qb)
    if t.rp > passes or t.rk > max(blocks, 1):
        return math.inf
    fitting = dict(rates.clusters)[t.cluster]
    units = batches * -(-m // (t.rows * t.mc)) * -(-n // (64 * t.nb))
    stages = -(-passes // t.rp) * -(-blocks // t.rk)
    columns, parts = t.nb * t.qb, t.rk * t.rp
    busy = t.cluster * min(units, fitting)
    load = max(
        BLOCK_BYTES * (t.rows + 64 * columns) / rates.arrive_bytes,
        BLOCK_BYTES * (t.rows + 64 * columns / t.mc) * busy / rates.leave_bytes,
    )
    stage = max(128 * t.groups * t.mb * columns * rates.overhead, load) + (rates.multicast_clocks if t.mc > 1 else 0)
    tail = 256 * t.rows * t.nb / rates.store_bytes / parts + (rates.part_clocks if parts > 1 else 0)
    clocks = rates.fill_clocks + -(-units // fitting) * (stages * stage + tail)
    operands = batches * BLOCK_BYTES * blocks * (m * a_planes * -(-b_planes // t.qb) + n * b_planes)
    memory = operands / rates.memory_bytes_per_us if m * a_planes * blocks * BLOCK_BYTES > rates.cache_bytes else 0.0
    return rates.launch_us + max(clocks / rates.clock_mhz, memory)


@lru_cache(maxsize=1024)
def choose_tiling(
    m: int, n: int, blocks: int, a_planes: int, b_planes: int, batches: int, masked: bool, wide: bool
) -> Tiling:
    """The tiling with the lowest estimate; among equals the one with the most columns."""
    return min(
        tilings(n, b_planes, masked=masked, wide=wide),
        key=lambda t: (estimate_us(t, m, n, blocks, a_planes, b_planes, batches), -t.nb),
    )


class MatmulParams(ctypes.Structure):
    """The argument of ``matmul_wgmma``, field by field."""

    _fields_ = (
        ("a", jit.TensorMap),
        ("b", jit.TensorMap),
        ("c", jit.TensorMap),
        *((name, ctypes.c_void_p) for name in ("out", "row_term", "col_term", "passes", "blocks", "batch_indices")),
        *(
            (name, ctypes.c_int)
            for name in (
                *("m", "n", "block_words", "n_passes", "nb", "qb", "mc", "rk", "rp", "box_rows", "boxes"),
                *("m_groups", "n_tiles", "batches", "raster", "bulk"),
            )
        ),
        ("pad", ctypes.c_int * 4),
        ("inline_passes", ctypes.c_int * (16 * INLINE_PASSES)),
    )


class FusedParams(MatmulParams):
    """The argument of ``matmul_wgmma`` with an epilogue."""

    _fields_ = (("epilogue", EpilogueStruct),)


def _room_for(t: Tiling) -> int:
    """So many clusters of a tiling run at the same time at most: shared memory is enough for one block a multiprocessor."""
    return max(1, jit.capability().multiprocessors // t.cluster)


def _held_blocks(t: Tiling) -> int:
    """How many blocks of columns wait at once in an epilogue of way 3."""
    return min(t.nb * t.qb, HELD_BLOCKS)


def defines_of(t: Tiling, step: int, wide: bool, shared_bytes: int, way: int = 0) -> dict[str, int]:
    """The compile-time constants of a tiling; ``way`` is that through an epilogue, 0 without one."""
    stages = max(2, min(8, (shared_bytes - 2048 - t.staging_bytes(way)) // t.stage_bytes))
    found = {"BS_GROUPS": t.groups, "BS_MB": t.mb, "BS_NB": t.nb * t.qb, "BS_STAGES": stages}
    extra = {"BS_BYTES": int(step == 8), "BS_OUT64": int(wide), "BS_EPILOGUE": way}
    extra["BS_HELD"] = _held_blocks(t) if way == 3 else 0
    return found | {name: value for name, value in extra.items() if value}


def operand_map(words: Any, outer: int, planes: int, box_rows: int) -> Any:
    """The tensor map of an operand (..., outer, planes, words): words, outer, planes, batches."""
    n_words = words.shape[-1]
    batches = words.size // max(1, outer * planes * n_words)
    plane = 4 * n_words
    return jit.tensor_map(
        words.data.ptr,
        (n_words, outer, planes, batches),
        (planes * plane, plane, outer * planes * plane),
        (BLOCK_WORDS, box_rows, 1, 1),
    )


class WgmmaProduct:
    """A prepared product; ``run(b, out)`` enqueues it.

    Attributes
    ----------
    tiling : Tiling
    """

    def __init__(
        self,
        cupy: Any,
        a: Operand,
        b: Operand,
        batch_indices: Any,
        batches: int,
        wide: bool,
        blocks_mask: Any = None,
        tiling: Tiling | None = None,
        epilogue: DeviceEpilogue | None = None,
    ) -> None:
        n_words = a.words.shape[-1]
        blocks = -(-n_words // BLOCK_WORDS)
        masked = blocks_mask is not None
        t = tiling or choose_tiling(a.outer, b.outer, blocks, a.planes, b.planes, batches, masked, wide)
        self.tiling = t
        fused = epilogue is not None
        table = passes_of(
            a.planes, b.planes, t.qb, blocks, a.step, a.negative_top, b.negative_top, a.weight * b.weight, wide
        )
        if t.rk * t.rp > 1 and (t.mb * t.nb > 1 or wide):
            raise KernelError(f"matmul: the tiling {t} splits a tile that is too large to be added up")
        self._keep = [a.words, batch_indices, blocks_mask]
        p = FusedParams() if fused else MatmulParams()
        p.a[:] = operand_map(a.words, a.outer, a.planes, t.rows)
        p.n_passes = len(table)
        if len(table) <= INLINE_PASSES:
            p.inline_passes[: table.size] = table.ravel().tolist()
        else:
            self._keep.append(cupy.asarray(table))
            p.passes = self._keep[-1].data.ptr
        if masked:
            p.blocks, p.block_words = blocks_mask.data.ptr, blocks_mask.shape[-1]
        if batch_indices is not None:
            p.batch_indices = batch_indices.data.ptr
        p.m, p.n, p.nb, p.qb = a.outer, b.outer, t.nb, t.qb
        p.mc, p.rk, p.rp = t.mc, t.rk, t.rp
        p.box_rows = math.gcd(64, 64 * t.nb * t.qb // t.mc)
        p.boxes = 64 * t.nb * t.qb // (t.mc * p.box_rows)
        p.m_groups = -(-a.outer // (t.rows * t.mc))
        p.n_tiles = -(-b.outer // (64 * t.nb))
        p.batches = batches
        p.raster = max(1, 16 // (t.mc * t.mb))
        self._b = b
        self.params = p
        units = batches * p.m_groups * p.n_tiles
        self._step, self._wide, self._epilogue = a.step, wide, epilogue
        # For sums to wait there must be a next tile, and stages enough: half a block of columns is taken up in each.
        several = t.rk * t.rp == 1 and units > _room_for(t)
        steady = len(table) * blocks >= 2 * t.nb and not masked
        self._may_wait = several and steady and t.groups == 2 and t.mb == 1 and a.step == 1 and not wide
        defines, shared = self._variant()
        clusters = units
        if t.rk * t.rp == 1:
            kernel = jit.kernel("matmul_wgmma.cu", "matmul_wgmma", defines)
            clusters = min(units, _room_for(t), kernel.resident_clusters(t.threads, shared, t.cluster))
        # The copy engine's stores overlap with the next tile; for a block's only tile ordinary ones are sooner done.
        self._bulk = units > clusters and not wide and not fused and b.outer % 4 == 0
        self._grid = clusters * t.cluster
        self._launches: dict[int, Any] = {}
        self._launch = self._launch_for(self._way())
        self._mapped = self._out_mapped = 0

    def _way(self) -> int:
        """Which way the next launch's sums go: 0 if they are stored, 1 or 2 through an epilogue, 3 if that waits for the next tile."""
        if self._epilogue is None:
            return 0
        return 3 if self._may_wait and HELD_BLOCKS and self._epilogue.can_wait else self._epilogue.way

    def _variant(self) -> tuple[dict[str, int], int]:
        """The constants of the next launch's kernel and its shared memory."""
        t, way = self.tiling, self._way()
        defines = defines_of(t, self._step, self._wide, jit.capability().shared_bytes, way)
        return defines, defines["BS_STAGES"] * t.stage_bytes + t.staging_bytes(way) + 1024

    def _launch_for(self, way: int) -> Any:
        """The launch for a way through the epilogue."""
        if way not in self._launches:
            defines, shared = self._variant()
            kernel, t = jit.kernel("matmul_wgmma.cu", "matmul_wgmma", defines), self.tiling
            self._launches[way] = kernel.launch(
                self._grid, t.threads, self.params, shared=shared, cluster=t.cluster, dependent=True
            )
        return self._launches[way]

    def run(
        self, b_words: Any, out: Any, row_term: Any = None, col_term: Any = None, stream: int | None = None
    ) -> None:
        """Enqueue ``out = a @ b + row_term + col_term``, or what the epilogue makes of it, on CuPy's current stream, whose address is
        ``stream`` if the caller knows it.
        """
        p, b = self.params, self._b
        address = b_words.data.ptr
        if address != self._mapped:
            p.b[:] = operand_map(b_words, b.outer, b.planes, p.box_rows)
            self._mapped = address
        address = out.data.ptr
        if self._epilogue is not None:
            p.epilogue = self._epilogue.aim(out)
        elif address != self._out_mapped:
            p.out = self._out_mapped = address
            p.bulk = int(self._bulk and address % 16 == 0)
            if p.bulk:
                row = 4 * p.n
                p.c[:] = jit.tensor_map(address, (p.n, p.m, p.batches), (row, p.m * row), (32, 64, 1))
        if row_term is not None:
            p.row_term = row_term.data.ptr
        if col_term is not None:
            p.col_term = col_term.data.ptr
        launch = self._launch if self._epilogue is None else self._launch_for(self._way())
        launch(stream)

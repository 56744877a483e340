"""The tiled product of packed operands on the matrix units of warpgroups (Hopper): estimated times, parameters and launches."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from bitsparse import jit
from bitsparse.backends.cuda.chips import H200, WarpgroupRates
from bitsparse.backends.cuda.matmul.passes import (
    BLOCK_BYTES,
    BLOCK_WORDS,
    Multiplication,
    Sizes,
    passes_of,
    put_operands,
    runs_of,
    wide_passes_of,
)
from bitsparse.backends.cuda.matmul.wgmma_tilings import WIDTHS, Tiling, fitted_tilings, tilings
from bitsparse.errors import KernelError

_SOURCE = "matmul/wgmma.cu"
#: The alignment of results that is needed for the fastest stores, and for repeated launches.
QUICK_BYTES = 16
#: The most blocks of 64 columns of a tile that may wait for an epilogue while the next tile is multiplied; 0: none.
HELD_BLOCKS = 4

#: With at least this many such blocks, separate warps process all waiting sums of a tile; 5: never.
HANDED_BLOCKS = 3


#: Rates of the only chip with warpgroups, in general and for products of few multiplications.
RATES, SMALL_RATES = H200.warpgroups, H200.small_products
_SMALL = 1 << 31
#: Bytes that the L2 delivers at a time.
_SECTOR_BYTES = 32
#: Words of the contraction axis that one instruction multiplies.
_STEP_WORDS = 8
#: Sums of the tiles by which adding up parts was timed; larger ones are assumed to take as many times as long.
_PART_SUMS = 128 * 64


def is_small(sizes: Sizes, step: int) -> bool:
    """Whether the time of a product is dominated by launches, tiles and the L2, not by multiplying and memory."""
    return sizes.batches * sizes.m * sizes.n * (8 * sizes.short_bytes // step) < _SMALL


def rates_of(sizes: Sizes, step: int) -> WarpgroupRates:
    """The rates for a product of elements of `step` bits."""
    return SMALL_RATES if is_small(sizes, step) else RATES


def estimate_us(t: Tiling, sizes: Sizes, rates: WarpgroupRates = RATES, *, wide: bool = False, step: int = 1) -> float:
    """Estimated microseconds of a product; infinite if the tiling does not apply."""
    m, n, blocks, a_planes, b_planes, batches, _ = sizes
    passes = -(-a_planes // t.pa) * -(-b_planes // t.qb)
    if t.rp > passes or t.rk > max(blocks, 1):
        return math.inf
    fitting = dict(rates.clusters)[t.cluster]
    units = batches * -(-m // (t.rows * t.mc)) * -(-n // t.columns)
    stages = -(-passes // t.rp) * -(-blocks // t.rk)
    busy = t.cluster * min(units, fitting)
    load = max(
        t.stage_bytes / rates.arrive_bytes,
        BLOCK_BYTES * (t.left_rows + t.right_rows / t.mc) * busy / rates.leave_bytes,
    )
    ragged = rates.half_sectors if sizes.short_bytes % _SECTOR_BYTES else 1.0
    # Shared memory moves a row of a stage in a clock: once when it is loaded, and once for every 64 rows of the left operand that it meets.
    strips = t.groups * t.mb
    multiply = max(2 * strips * t.right_rows, strips * (64 + t.right_rows) + t.left_rows + t.right_rows)
    stage = max(multiply * rates.overhead, ragged * load) + (rates.multicast_clocks if t.mc > 1 else 0)
    copied = t.may_copy and t.parts == 1 and units > fitting and not wide and n % 4 == 0
    tail = (8 if wide else 4) * t.rows * t.columns / (rates.copy_bytes if copied else rates.store_bytes) / t.parts
    if t.parts > 1:
        tail += rates.part_clocks * (1 + math.log2(t.parts)) / 2 * max(1.0, t.rows * t.columns / _PART_SUMS)
    again = 0.0  # additions to an int64 result
    if wide:
        tail += (passes - 1) * rates.carry_clocks
        runs = runs_of(a_planes, b_planes, t.pa, t.qb, blocks, step, t.carries)
        again = (runs - 1) * 16.0 * batches * m * n / rates.flush_bytes_per_us
    rounds = -(-units // fitting)
    multiplied = math.hypot(rounds * stages * stage, ragged * _asked_clocks(t, sizes, units, passes, rates))
    clocks = rates.fill_clocks + multiplied + rounds * (tail + rates.tile_clocks)
    operands = batches * BLOCK_BYTES * blocks * (m * a_planes * -(-b_planes // t.qb) + n * b_planes)
    memory = operands / rates.memory_bytes_per_us if m * a_planes * blocks * BLOCK_BYTES > rates.cache_bytes else 0.0
    results = (8.0 if wide else 4.0) * batches * m * n / rates.result_bytes_per_us
    # Neither the clocks nor the memory hide the other completely, unless one takes much longer.
    us = rates.launch_us + ((clocks / rates.clock_mhz) ** 3 + memory**3) ** (1 / 3) + results + again
    return us * rates.fitted_widths if t.width else us


def _asked_clocks(t: Tiling, sizes: Sizes, units: int, passes: int, rates: WarpgroupRates) -> float:
    """Clocks in which the L2 delivers the rows of the most requested operand; a small operand lies in few places, so few rows at once."""
    m, n, blocks, a_planes, b_planes, batches, _ = sizes
    found = 0.0
    for outer, rows in ((m * a_planes, t.mc * t.left_rows), (n * b_planes, t.right_rows)):
        asked = units * passes * blocks * rows
        at_once = max(rates.small_rows, batches * outer * sizes.short_bytes / rates.small_bytes)
        found = max(found, asked / at_once)
    return found


def unpacking_us(t: Tiling, sizes: Sizes, rates: WarpgroupRates = RATES) -> float:
    """Microseconds of unpacking the right operand, during the previous product if that leaves multiprocessors free."""
    m, n, blocks, _, b_planes, batches, _ = sizes
    units = batches * -(-m // (t.rows * t.mc)) * -(-n // t.columns)
    chip = dict(rates.clusters)[1]
    room = chip - t.cluster * min(units, dict(rates.clusters)[t.cluster])
    warps = batches * n * b_planes * blocks * BLOCK_WORDS / 8 / 32
    used = min(-(-warps // 8), room if warps <= 128 * room else chip)
    return warps * rates.unpack_clocks / used / rates.clock_mhz if used else 0.0


@lru_cache(maxsize=1024)
def choose_tiling(sizes: Sizes, masked: bool, wide: bool, step: int = 1, fused: bool = False) -> Tiling:
    """The tiling with the lowest estimate, for elements of ``step`` bits; among equals the one with the most columns.

    ``fused`` tells whether an epilogue is part of the kernel.
    """
    rates = rates_of(sizes, step)
    widths = [] if masked or wide or fused else fitted_tilings(sizes, H200.card.multiprocessors)
    return min(
        tilings(sizes.n, sizes.b_planes, masked=masked, wide=wide, a_planes=sizes.a_planes) + widths,
        key=lambda t: (
            estimate_us(t, sizes, rates, wide=wide, step=step) + (unpacking_us(t, sizes, rates) if step == 8 else 0.0),
            -t.columns,
        ),
    )


MatmulParams = jit.struct("matmul/tiles.cuh", "MatmulParams")
FusedParams = jit.struct("matmul/tiles.cuh", "MatmulParams", optional=True)


def _room_for(t: Tiling) -> int:
    """The most clusters of a tiling that run at the same time, as shared memory suffices for one block per multiprocessor."""
    return max(1, jit.capability().multiprocessors // t.cluster)


def _staging_bytes(t: Tiling, way: int, room: int) -> int:
    """Shared memory after the stages, of `room` bytes, through which results are stored; in ways 3 and 4 they wait there."""
    if way == 4:
        return (8192 * t.groups + 3 * 544) * t.nb * t.qb
    return t.staging_bytes(room, _held_blocks(t)) if way == 3 else t.staging_bytes(room)


def _room(shared_bytes: int) -> int:
    """Shared memory of a block for stages and results: without barriers, and what aligning the stages may take."""
    return shared_bytes - 2048


def _held_blocks(t: Tiling) -> int:
    """How many blocks of columns wait at once in an epilogue of way 3."""
    return min(t.nb * t.qb, HELD_BLOCKS)


def _waiting_way(t: Tiling) -> int:
    """The way of sums that wait for the next tile: 3, kept by the warps that computed them, or 4, handed to other warps."""
    return 4 if t.nb * t.qb >= HANDED_BLOCKS else 3


def defines_of(t: Tiling, step: int, wide: bool, shared_bytes: int, way: int = 0, signed: int = 0) -> dict[str, int]:
    """The compile-time constants of a tiling; ``way`` is the epilogue path, 0 without an epilogue."""
    room = _room(shared_bytes)
    stages = max(2, min(8, (room - _staging_bytes(t, way, room)) // t.stage_bytes))
    found = {"BS_GROUPS": t.groups, "BS_MB": t.mb, "BS_STAGES": stages}
    found |= {"BS_WIDTH": t.width, "BS_QB": t.qb} if t.width else {"BS_NB": t.nb * t.qb}
    held = _held_blocks(t) if way == 3 else 0
    found |= jit.flags(bytes=step == 8, out64=wide, pa=t.pa > 1, epilogue=way, held=held, signed=signed)
    return found | jit.flags(over_ring=t.over_ring(room))


def operand_map(
    words: Any, outer: int, planes: int, box_rows: int, box_planes: int = 1, *, used: int | None = None
) -> Any:
    """The tensor map (words, outer, planes, batches) of an operand (..., outer, planes, words), reading only `used` words of a row."""
    n_words = words.shape[-1]
    batches = words.size // max(1, outer * planes * n_words)
    plane = 4 * n_words
    return jit.tensor_map(
        words.data.ptr,
        (used or n_words, outer, planes, batches),
        (planes * plane, plane, outer * planes * plane),
        (BLOCK_WORDS, box_rows, box_planes, 1),
    )


def reciprocals(m_groups: int, n_tiles: int, batches: int, raster: int) -> tuple[int, int, int, int]:
    """2**31 over each divisor of a tile's number, rounded up; zeros if division by such a multiplication would not be exact."""
    band, last = raster * n_tiles, m_groups % raster or raster
    per_batch = m_groups * n_tiles
    if max(batches * per_batch * per_batch if batches > 1 else 0, (per_batch + band) * band) >= 1 << 31:
        return 0, 0, 0, 0
    a, b, c, d = (-(-(1 << 31) // by) for by in (per_batch, band, raster, last))
    return a, b, c, d


def kept_eighths(nbytes: int) -> int:
    """How many eighths of a left operand of `nbytes` bytes can stay in the L2 until the next product, if the others are evicted first."""
    return min(8, int(8 * RATES.kept_bytes / max(1, nbytes)))


class WgmmaProduct:
    """A prepared product; ``run(b, out)`` enqueues it.

    With ``early``, only the kernel that writes `b` and earlier products may still be running when it starts to read `a`. ``signed`` tells
    which operands have signed bytes: 1 for `a` plus 2 for `b`. Of every row only ``used`` words are read (0: all); the others are padding.

    Attributes
    ----------
    tiling : Tiling
    """

    def __init__(
        self, what: Multiplication, tiling: Tiling | None = None, early: bool = False, signed: int = 0, used: int = 0
    ) -> None:
        a, b, batches, batch_indices, bitmap, wide, epilogue = what
        sizes, masked = what.sizes, bitmap is not None
        fused = epilogue is not None
        t = tiling or choose_tiling(sizes, masked, wide, a.step, fused)
        self.tiling = t
        blocks, signs = sizes.blocks, what.signs
        if wide:
            table = wide_passes_of(a.planes, b.planes, t.pa, t.qb, blocks, a.step, signs, t.carries)
        else:
            table = passes_of(a.planes, b.planes, t.qb, blocks, a.step, signs, False)
        if t.parts > 1 and (wide or not t.may_split):
            raise KernelError(f"matmul: the tiling {t} splits a tile that is too large to be added up")
        if t.pa != (t.mb if wide else 1):
            raise KernelError(f"matmul: the tiling {t} is not one of an {'int64' if wide else 'int32'} result")
        if t.width and (wide or fused):
            raise KernelError(f"matmul: the tiling {t} is only for an int32 result without an epilogue")
        p = FusedParams() if fused else MatmulParams()
        self._used = used or int(a.words.shape[-1])
        p.a[:] = operand_map(a.words, a.outer, a.planes, t.left_rows // t.pa, t.pa, used=self._used)
        p.last_block, p.last_steps = blocks - 1, -(-(self._used - BLOCK_WORDS * (blocks - 1)) // _STEP_WORDS)
        self._keep = put_operands(p, what, t.rows, table)
        p.nb, p.qb = t.nb, t.qb
        p.mc, p.rk, p.rp = t.mc, t.rk, t.rp
        p.box_rows = math.gcd(t.width or 64, t.right_rows // t.mc)
        p.boxes = t.right_rows // (t.mc * p.box_rows)
        p.m_groups = -(-a.outer // (t.rows * t.mc))
        p.n_tiles = -(-b.outer // t.columns)
        p.raster = max(1, 16 // (t.mc * t.mb))
        p.by_batch, p.by_band, p.by_height, p.by_last = reciprocals(p.m_groups, p.n_tiles, batches, p.raster)
        p.early = int(early)
        # Whether an element of `a` is read once in a product.
        once = p.n_tiles == 1 and b.planes <= t.qb and batch_indices is None
        p.kept = kept_eighths(batches * a.outer * a.planes * blocks * BLOCK_BYTES) if once else 8
        self._b = b
        self.params = p
        units = batches * p.m_groups * p.n_tiles
        self._step, self._wide, self._signed, self._epilogue = a.step, wide, signed, epilogue
        # Sums can wait only if there is a next tile with enough stages, since each stage processes half a block of waiting columns.
        several = t.parts == 1 and units > _room_for(t)
        steady = len(table) * blocks >= 2 * t.nb and not masked
        self._may_wait = several and steady and t.groups == 2 and t.mb == 1 and a.step == 1 and not wide
        defines, shared = self._variant()
        clusters = units
        if t.parts == 1:
            kernel = jit.kernel(_SOURCE, "matmul_wgmma", defines)
            clusters = min(units, _room_for(t), kernel.resident_clusters(t.threads, shared, t.cluster))
        # The copy engine's stores overlap with the next tile; for a block's only tile, ordinary stores finish sooner.
        self._bulk = units > clusters and not wide and not fused and b.outer % 4 == 0 and t.may_copy
        self._grid = clusters * t.cluster
        self._launches: dict[int, Any] = {}
        self._launch = self._launch_for(self._way())
        self._mapped = self._out_mapped = 0
        #: ``launch(stream, b address, out address)`` of :class:`bitsparse._ext.launch.Quick`, for calls that change nothing else.
        self.quick = None if self._bulk or wide or fused else self._launch.quick(MatmulParams.out.offset)

    def _way(self) -> int:
        """The way of the next launch's sums: 0, stored; 1 or 2, through an epilogue; 3 or 4, through one that waits for the next tile."""
        if self._epilogue is None:
            return 0
        if not (self._may_wait and HELD_BLOCKS and self._epilogue.can_wait):
            return self._epilogue.way
        return _waiting_way(self.tiling)

    def _variant(self) -> tuple[dict[str, int], int]:
        """The constants and the shared memory of the next launch's kernel."""
        t, way = self.tiling, self._way()
        available = jit.capability().shared_bytes
        defines = defines_of(t, self._step, self._wide, available, way, self._signed)
        return defines, defines["BS_STAGES"] * t.stage_bytes + _staging_bytes(t, way, _room(available)) + 1024

    def _launch_for(self, way: int) -> Any:
        """The launch for an epilogue path, prepared on first use."""
        if way not in self._launches:
            defines, shared = self._variant()
            kernel, t = jit.kernel(_SOURCE, "matmul_wgmma", defines), self.tiling
            self._launches[way] = kernel.launch(
                self._grid, t.threads, self.params, shared=shared, cluster=t.cluster, dependent=True
            )
        return self._launches[way]

    def run(
        self, b_words: Any, out: Any, row_term: Any = None, col_term: Any = None, stream: int | None = None
    ) -> None:
        """Enqueue ``out = a @ b + row_term + col_term``, followed by the epilogue, if any, on CuPy's current stream.

        ``stream`` is the address of that stream, if the caller knows it.
        """
        p, b = self.params, self._b
        operand = b_words.data.ptr
        if operand != self._mapped:
            if self.quick is not None:
                self.quick.operand = 0
            p.b[:] = operand_map(b_words, b.outer, b.planes, p.box_rows, used=self._used)
            self._mapped = operand
        address = out.data.ptr
        if self._epilogue is not None:
            p.epilogue = self._epilogue.aim(out)
        elif address != self._out_mapped:
            p.out = self._out_mapped = address
            p.bulk = int(self._bulk and address % QUICK_BYTES == 0)
            p.pairs = int(p.n % 2 == 0 and address % (2 * out.dtype.itemsize) == 0)
            if p.bulk:
                row = 4 * p.n
                p.c[:] = jit.tensor_map(address, (p.n, p.m, p.batches), (row, p.m * row), (32, 64, 1))
        if row_term is not None:
            p.row_term = row_term.data.ptr
        if col_term is not None:
            p.col_term = col_term.data.ptr
        launch = self._launch if self._epilogue is None else self._launch_for(self._way())
        launch(stream)
        if self.quick is not None:
            # A repeated launch does not check the alignment of results, on which stores depend, so it is only for aligned results.
            self.quick.operand = operand if address % QUICK_BYTES == 0 else 0


def _variants() -> list[jit.Variant]:
    """Variants of all tilings for bits, bytes and signed bytes in every way.

    Mixed signedness, and tiles of their own width that are split among parts or have several digits, are compiled only when needed.
    """
    room, found = H200.card.shared_bytes, []
    for wide in (False, True):
        for t in tilings(1 << 10, 4, masked=True, wide=wide, a_planes=2):
            steps = ((1, 0), (8, 0), (8, 3))
            found += [
                defines_of(t, step, wide, room, way, signed)
                for way in ((0,) if wide else (0, 1, 2))
                for step, signed in steps
            ]
            if t.groups == 2 and t.mb == 1 and not wide:
                found.append(defines_of(t, 1, False, room, _waiting_way(t)))
    for groups, mb, qb, widths in WIDTHS:
        for t in [Tiling(mb, 0, qb, groups=groups, width=width) for width in widths]:
            kinds = ((1, 0), (8, 0), (8, 3)) if qb == 1 else ((1, 0),)
            found += [defines_of(t, step, False, room, signed=signed) for step, signed in kinds]
    return jit.variants_of(_SOURCE, "matmul_wgmma", found, "sm_90a")


VARIANTS = _variants()

"""The mixed-input product on warpgroups, whose blocks unpack their columns once and keep them: tilings, time estimates and launches."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.chips import H200, ResidentRates
from bitsparse.backends.cuda.matmul.mixed import MOST_BITS, MixedSizes, OneLaunch, bytes_extended
from bitsparse.backends.cuda.matmul.passes import BLOCK_BYTES, Multiplication
from bitsparse.backends.cuda.matmul.wgmma import operand_map
from bitsparse.errors import KernelError

_SOURCE = "matmul/resident.cu"
#: Possible numbers of columns of a block.
COLUMNS = (16, 32, 48, 64, 96, 128)
#: The most warpgroups of a block, and possible numbers of warpgroups that multiply.
_MOST_GROUPS = 4
_GROUPS = (1, 2, 3, 4)
#: Rows that a warpgroup multiplies at a time (a strip), and bytes of a strip in one block of the contraction axis, with its barrier.
STRIP_ROWS = 64
_STAGE_BYTES = STRIP_ROWS * BLOCK_BYTES + 8
#: The buffer through which a group stores its sums by way of shared memory.
_STAGING_BYTES = 8192
#: Instructions along the contraction axis of a block, 32 elements each.
_BLOCK_STEPS = 4
#: The most strips in a group's ring.
_DEEPEST = 4
#: Results can be stored by way of shared memory if columns are a multiple of this: whole lines of 128 bytes.
_LINE_COLUMNS = 32
#: Words of each plane that a thread unpacks before more threads are used.
_FEW_UNITS = 2


class ResidentTiling(NamedTuple):
    """How a product is cut up."""

    columns: int  # columns of a block
    groups: int  # warpgroups of a block that multiply
    parts: int  # blocks among which rows are divided
    staged: int = 0  # whether results are stored by way of shared memory

    def threads(self, sizes: MixedSizes) -> int:
        """Threads of a block: more than those that multiply if there is much to unpack."""
        helping = -(-self.columns * sizes.used_words // (128 * _FEW_UNITS))
        return 128 * max(self.groups, min(_MOST_GROUPS, helping))

    def strips(self, sizes: MixedSizes) -> int:
        """Strips of the group with the most strips."""
        return -(--(-sizes.m // STRIP_ROWS) // (self.groups * self.parts))

    def blocks(self, sizes: MixedSizes) -> int:
        """Blocks of the whole launch."""
        return sizes.batches * self.parts * -(-sizes.n // self.columns)

    def depth(self, sizes: MixedSizes, chip: jit.Capability) -> int:
        """Strips of a ring, as many as leave room for the other blocks of a multiprocessor; 0 if not even one fits."""
        beside = min(-(-self.blocks(sizes) // chip.multiprocessors), 2048 // self.threads(sizes))
        least = self._beside_rings(sizes)
        strip = self.groups * sizes.blocks * _STAGE_BYTES
        fitting = (chip.shared_bytes - least) // strip
        shared = (chip.shared_bytes // max(1, beside) - 1024 - least) // strip
        return max(0, min(fitting, 1), min(shared, self.strips(sizes), _DEEPEST))

    def shared_bytes(self, sizes: MixedSizes, chip: jit.Capability) -> int:
        """Shared memory of a block: the columns as bytes, the rings, and the buffers for results.

        If there is a multiprocessor for every block, it is more than half of a multiprocessor's. Otherwise blocks that start while the
        previous kernel's still run would crowd on those multiprocessors that are idle by then.
        """
        rings = self.groups * self.depth(sizes, chip) * sizes.blocks * _STAGE_BYTES
        alone = chip.shared_bytes // 2 if self.blocks(sizes) <= chip.multiprocessors else 0
        return max(alone, self._beside_rings(sizes) + rings)

    def _beside_rings(self, sizes: MixedSizes) -> int:
        """Shared memory besides the rings: the columns as bytes, and the buffers for results."""
        return self.columns * sizes.blocks * BLOCK_BYTES + _STAGING_BYTES * self.groups * self.staged + 1024

    def defines(self, planes: int, signed: int, extend: bool) -> dict[str, int]:
        """The compile-time constants for columns of `planes` planes; with ``extend``, the last plane is a sign that is extended."""
        return {"BS_COLUMNS": self.columns, "BS_PLANES": planes} | jit.flags(
            signed=signed, extend=extend, staged=self.staged
        )


def tilings(sizes: MixedSizes, chip: jit.Capability) -> list[ResidentTiling]:
    """The tilings worth considering; none on a chip without warpgroups.

    Rows are divided among as many blocks as run at a time, among two to four times as many, or so that every group has one strip.
    """
    found: dict[ResidentTiling, None] = {}
    strips = -(-sizes.m // STRIP_ROWS)
    for columns in COLUMNS if chip.has_wgmma else ():
        if columns >= 2 * sizes.n + 16 or (columns > 64 and columns >= sizes.n + 32):
            continue
        tiles = sizes.batches * -(-sizes.n // columns)
        for groups in _GROUPS:
            most = -(-strips // groups)
            for share in (1, 2, 3, 4):
                fewest = min(most, max(1, share * chip.multiprocessors // tiles))
                # The fewest parts that give no group more strips.
                parts = -(-strips // (groups * -(-strips // (groups * fewest))))
                found[ResidentTiling(columns, groups, parts)] = None
            found[ResidentTiling(columns, groups, most)] = None
    staged = [replace(t, staged=1) for t in found if t.columns % _LINE_COLUMNS == 0]
    return [t for t in (*found, *staged) if t.depth(sizes, chip) > 0]


def estimate_us(t: ResidentTiling, sizes: MixedSizes, rates: ResidentRates, chip: jit.Capability = H200.card) -> float:
    """Estimated microseconds of a product.

    Loading rows, multiplying, waiting and storing results overlap but delay each other, so their clocks are added as a root of squares.
    Unpacking comes before these, and the time of all results together is added.
    """
    m, n, blocks, planes, batches, _ = sizes
    threads, strips = t.threads(sizes), t.strips(sizes)
    count = t.blocks(sizes)
    each = -(-count // chip.multiprocessors)
    registers = 48 + t.columns // 2
    resident = min(
        chip.shared_bytes // (t.shared_bytes(sizes, chip) + 1024), 2048 // threads, 65536 // (registers * threads)
    )
    rounds = -(-count // (max(1, resident) * chip.multiprocessors))
    units = t.columns * sizes.used_words
    unpacking = rounds * -(-units // threads) * rates.unit_clocks
    unpacking += each * units / 128 * (planes + 48) * rates.issue_clocks
    stages = each * t.groups * strips * blocks
    loading = stages * (STRIP_ROWS * BLOCK_BYTES) / rates.arrive_bytes
    multiplying = stages * 4 * max(t.columns / 2, 16)
    waiting = rounds * strips * blocks * rates.stage_clocks
    storing = (
        each
        * t.groups
        * strips
        * 4.0
        * STRIP_ROWS
        * t.columns
        / (rates.staged_bytes if t.staged else rates.store_bytes)
    )
    leaving = batches * m * 32.0 * sizes.used_words * -(-n // t.columns) / rates.leave_bytes
    busy = math.sqrt(sum(part * part for part in (loading, multiplying, waiting, storing, leaving)))
    start = rates.start_clocks + rates.warp_clocks * threads / 32
    if t.staged:
        busy += rounds * strips * t.columns / 32 * rates.staged_clocks
    return (start + unpacking + busy) / rates.clock_mhz + 4.0 * batches * m * n / rates.result_bytes_per_us


@lru_cache(maxsize=1024)
def choose_tiling(sizes: MixedSizes, chip: jit.Capability) -> ResidentTiling | None:
    """The tiling with the lowest estimate, or None if there is none."""
    return min(tilings(sizes, chip), key=lambda t: estimate_us(t, sizes, H200.resident_products, chip), default=None)


ResidentParams = jit.struct("matmul/resident.cu", "ResidentParams")


class ResidentProduct(OneLaunch):
    """A prepared product; ``signed`` tells which operands have signed bytes: 1 for `a` plus 2 for `b`.

    Attributes
    ----------
    tiling : ResidentTiling
    """

    def __init__(self, what: Multiplication, sizes: MixedSizes, tiling: ResidentTiling, signed: int = 0) -> None:
        t, chip = tiling, jit.capability()
        self.tiling, depth = t, t.depth(sizes, chip)
        if not depth:
            raise KernelError(
                f"matmul: {sizes.blocks} blocks of 128 elements of {t.columns} columns and of 64 rows do not fit into the "
                f"{chip.shared_bytes} bytes of shared memory of a block on {chip.name}; take a tiling with fewer columns"
            )
        a = what.a
        p = ResidentParams(m=sizes.m, n=sizes.n, blocks=sizes.blocks, words=sizes.used_words)
        p.a[:] = operand_map(a.words, a.outer, 1, STRIP_ROWS, used=8 * sizes.used_words)
        p.by_words, p.groups, p.stages = -(-(1 << 31) // sizes.used_words), t.groups, depth * sizes.blocks
        p.last_steps = sizes.used_words - _BLOCK_STEPS * (sizes.blocks - 1)
        kernel = jit.kernel(_SOURCE, "matmul_resident", t.defines(sizes.planes, signed, bytes_extended(what, signed)))
        grid = t.parts, -(-sizes.n // t.columns), sizes.batches
        super().__init__(kernel, grid, t.threads(sizes), p, what, shared=t.shared_bytes(sizes, chip))


def _variants() -> list[jit.Variant]:
    """Variants for all numbers of columns, 1 to 8 unsigned bits or 8 signed bits, and both ways to store results."""
    kinds = [(planes, 0) for planes in range(1, MOST_BITS + 1)] + [(MOST_BITS, 3)]
    ways = [ResidentTiling(columns, 1, 1) for columns in COLUMNS]
    ways += [replace(t, staged=1) for t in ways if t.columns % _LINE_COLUMNS == 0]
    found = [way.defines(planes, signed, False) for way in ways for planes, signed in kinds]
    return jit.variants_of(_SOURCE, "matmul_resident", found, "sm_90a")


VARIANTS = _variants()

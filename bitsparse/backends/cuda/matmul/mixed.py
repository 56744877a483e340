"""The mixed-input product (bytes times packed planes, ``mma.sync``) in one launch: tilings, what they take, parameters, launch."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.chips import H200, MixedRates
from bitsparse.backends.cuda.matmul.passes import BLOCK_BYTES, BLOCK_WORDS, Multiplication
from bitsparse.errors import KernelError

_SOURCE = "matmul/mixed.cu"
#: Bits of the widest operands: an element of the left one is a byte, one of the right one is unpacked into a byte.
MOST_BITS = 8
#: Bytes of one plane of a column in a block of the contraction axis.
_PIECE_BYTES = 16
#: What the L2 hands out at a time.
_SECTOR_BYTES = 32
#: Blocks of a grid in its second and third direction.
_MOST_BLOCKS = 65535


class MixedTiling(NamedTuple):
    """How a product is cut up; the names are those of ``matmul/mixed.cu``."""

    wn: int  # warps of a group, side by side along the columns
    wk: int  # groups of a block, each with its own part of the contraction axis
    mi: int  # 8-row and 16-column blocks of a warp
    nj: int
    span: int  # blocks of the contraction axis in a stage
    stages: int
    parts: int = 1  # blocks of a cluster, among which the contraction axis is divided

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 8 * self.mi

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return 16 * self.nj * self.wn

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.wn * self.wk

    @property
    def registers(self) -> int:
        """Registers of a thread, within a tenth of what the compiler takes."""
        return 32 + 8 * self.mi * self.nj

    def block_bytes(self, planes: int) -> int:
        """Bytes of both operands in one block of the contraction axis."""
        return self.rows * BLOCK_BYTES + planes * self.columns * _PIECE_BYTES

    def shared_bytes(self, planes: int) -> int:
        """Shared memory: for each group a ring and then its sums, and behind them those from other blocks of the cluster."""
        sums = 4 * self.rows * (self.columns + 4)
        rings = self.wk * max(sums, self.stages * self.span * self.block_bytes(planes))
        return rings + 4 * self.rows * self.columns * (self.parts - 1) // self.parts + BLOCK_BYTES

    def defines(self, planes: int, signed: int, extend: bool) -> dict[str, int]:
        """The compile-time constants for columns of so many planes, whose last one is a sign that is repeated if ``extend``."""
        found = {"BS_WN": self.wn, "BS_WK": self.wk, "BS_MI": self.mi, "BS_NJ": self.nj, "BS_SPAN": self.span}
        return found | {"BS_STAGES": self.stages, "BS_PLANES": planes} | jit.flags(signed=signed, extend=extend)


#: Tiles from 32 x 32 to 128 x 64 and 64 x 128; several groups are for long contraction axes. Six others won nowhere by more than 2 %.
TILES = (
    MixedTiling(1, 4, 8, 1, 1, 3),
    MixedTiling(2, 2, 4, 1, 1, 3),
    MixedTiling(2, 2, 8, 1, 1, 3),
    MixedTiling(2, 2, 16, 1, 1, 3),
    MixedTiling(4, 1, 8, 1, 2, 3),
    MixedTiling(4, 2, 16, 1, 1, 3),
    MixedTiling(8, 1, 8, 1, 1, 3),
)
#: Blocks of a cluster: clusters are Hopper's and later chips'.
PARTS = (1, 2, 4, 8)


class MixedSizes(NamedTuple):
    """How much a product multiplies."""

    m: int
    n: int
    blocks: int  # of 128 elements of the contraction axis
    planes: int  # of the right operand
    batches: int = 1


def tilings(sizes: MixedSizes, *, clusters: bool) -> list[MixedTiling]:
    """The tilings worth considering; ``clusters``: whether the chip has them.

    Examples
    --------
    >>> {tiling.parts for tiling in tilings(MixedSizes(64, 64, 3, 8), clusters=True)}
    {1, 2}
    """
    found = []
    for tile in TILES:
        if tile.columns >= 2 * sizes.n + 16:
            continue
        spans = -(-sizes.blocks // tile.span)
        found += [replace(tile, parts=parts) for parts in (PARTS if clusters else (1,)) if parts <= max(1, spans)]
    return found


#: Instructions of a lane that turn so many planes of 32 elements into bytes: those that the compiler leaves of 48 where words are zero.
_TURN = {1: 16, 2: 28, 3: 44, 4: 44}


def estimate_us(t: MixedTiling, sizes: MixedSizes, rates: MixedRates, chip: jit.Capability = H200.card) -> float:
    """Microseconds that a product is expected to take.

    Instructions of warps, bytes from the L2 and what the L2 hands out of a small operand go on beside each other and delay each other:
    their clocks are added up as squares. What follows the last product comes on top.
    """
    m, n, blocks, planes, batches = sizes
    sms, warps = chip.multiprocessors, t.threads // 32
    down, across = batches * -(-m // t.rows), -(-n // t.columns)
    count = down * across * t.parts
    each = -(-count // sms)  # blocks of a multiprocessor
    resident = min(chip.shared_bytes // (t.shared_bytes(planes) + 1024), 2048 // t.threads)
    resident = max(1, min(resident, 65536 // (t.registers * t.threads)))
    at_once = sms if t.parts == 1 else t.parts * dict(H200.warpgroups.clusters)[t.parts]
    rounds = -(-count // (at_once * resident))
    busy = min(t.wk, -(-blocks // (t.span * t.parts)))  # groups that have any block of the contraction axis
    stages = -(-(-(-blocks // t.span)) // (t.wk * t.parts))  # of the group that has most
    steps = each * stages * busy * t.span  # blocks of the contraction axis of all groups of a multiprocessor

    unpacking = 2 * t.nj * (planes + _TURN.get(planes, 48))
    issued = unpacking + 2 * t.mi * (2 * t.nj + 1) + t.block_bytes(planes) / (16 * 32 * t.wn) * 4
    shared = steps * t.wn / 4 * issued * rates.issue_clocks
    alone = rounds * stages * (t.span * issued * rates.alone_clocks + (rates.step_clocks if t.wn > 1 else 0.0))
    working = math.hypot(shared, alone) + steps * planes * t.columns * rates.piece_clocks

    left = batches * m * across * blocks * BLOCK_BYTES
    pieces = down * n * planes * blocks
    leaving = left / rates.left_bytes + pieces * _SECTOR_BYTES / rates.right_bytes
    held = batches * n * planes * blocks * _PIECE_BYTES
    asked = pieces / t.span / max(rates.small_pieces, held / rates.small_bytes)

    out = each * 4.0 * t.rows * t.columns
    tail = out / t.parts / rates.store_bytes + out * (t.parts - 1) / t.parts / rates.remote_bytes
    last = rates.tile_clocks + t.rows * t.columns / 4 / t.threads * rates.quad_clocks
    last += rates.part_clocks * math.log2(t.parts)
    start = rates.start_clocks + rates.warp_clocks * warps
    return (start + math.hypot(working, leaving, asked) + tail + rounds * last) / rates.clock_mhz


@lru_cache(maxsize=1024)
def choose_tiling(sizes: MixedSizes, chip: jit.Capability) -> MixedTiling:
    """The tiling with the lowest estimate of those that a block of the chip has shared memory for."""
    fitting = [t for t in tilings(sizes, clusters=chip.major >= 9) if t.shared_bytes(sizes.planes) <= chip.shared_bytes]
    return min(fitting, key=lambda t: estimate_us(t, sizes, H200.mixed_products, chip))


MixedParams = jit.struct("matmul/mixed.cu", "MixedParams")


class MixedProduct:
    """A prepared product; ``run(b, out)`` enqueues it.

    ``signed`` are the operands with signed bytes, 1 for `a` and 2 for `b`.

    Attributes
    ----------
    tiling : MixedTiling
    """

    def __init__(self, what: Multiplication, tiling: MixedTiling | None = None, signed: int = 0) -> None:
        a, b, batches, indices, _, wide, epilogue = what
        chip = jit.capability()
        if wide or epilogue is not None or a.planes > 1 or b.planes > MOST_BITS:
            raise KernelError(
                f"matmul: kernel 'mixed' multiplies operands of at most {MOST_BITS} bits into int32 sums, and here the left one has "
                f"{a.planes} digits, the right one {b.planes} bits, and sums are {'int64' if wide else 'int32'}; leave the choice to "
                f"the plan"
            )
        blocks = a.words.shape[-1] // BLOCK_WORDS
        sizes = MixedSizes(a.outer, b.outer, blocks, b.planes, batches)
        t = self.tiling = tiling or choose_tiling(sizes, chip)
        grid = -(-a.outer // t.rows) * t.parts, -(-b.outer // t.columns), batches
        if max(grid[1:]) > _MOST_BLOCKS:
            raise KernelError(
                f"matmul: kernel 'mixed' has at most {_MOST_BLOCKS} batches and tiles of columns, here {batches} and {grid[1]}; "
                f"leave the choice to the plan"
            )
        extend = bool(signed & 2) and b.negative_top and b.planes < MOST_BITS
        kernel = jit.kernel(_SOURCE, "matmul_mixed", t.defines(b.planes, signed, extend))
        p = self.params = MixedParams(a=a.words.data.ptr, m=a.outer, n=b.outer, blocks=blocks)
        p.weight, p.parts_log = a.weight * b.weight, t.parts.bit_length() - 1
        if indices is not None:
            p.batch_indices = indices.data.ptr
        self._keep = a.words, indices
        dependent = chip.major >= 9
        how: dict[str, Any] = {"shared": t.shared_bytes(b.planes), "cluster": t.parts}
        # The first call on a stream waits for all that was before, so that later ones can read the left operand early.
        self._first = kernel.launch(grid, t.threads, p, **how)
        self._later = kernel.launch(grid, t.threads, p, dependent=True, **how) if dependent else self._first
        #: ``launch(stream, b address, out address)`` of :class:`bitsparse._ext.launch.Quick` where nothing else changes between calls.
        self.quick = self._later.quick(MixedParams.out.offset)

    def run(
        self,
        b_words: Any,
        out: Any,
        row_term: Any = None,
        col_term: Any = None,
        stream: int | None = None,
        *,
        settled: bool = False,
    ) -> None:
        """Enqueue ``out = a @ b + row_term + col_term``; ``settled`` if what is in front of it on the stream does not make `a`."""
        if self.quick is not None:
            self.quick.operand = 0
        p = self.params
        p.b, p.out = b_words.data.ptr, out.data.ptr
        p.row_term = None if row_term is None else row_term.data.ptr
        p.col_term = None if col_term is None else col_term.data.ptr
        p.early = int(settled)
        (self._later if settled else self._first)(stream)
        if settled and self.quick is not None:
            self.quick.operand = p.b


def _variants() -> list[jit.Variant]:
    """Every tile for unsigned columns of 1 to 8 bits and signed ones of 8, on the chip where costs choose this kernel."""
    kinds = [(planes, 0) for planes in range(1, MOST_BITS + 1)] + [(MOST_BITS, 3)]
    found = [tile.defines(planes, signed, False) for tile in TILES for planes, signed in kinds]
    return jit.variants_of(_SOURCE, "matmul_mixed", found, "sm_90a")


VARIANTS = _variants()

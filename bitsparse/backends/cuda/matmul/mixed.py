"""The mixed-input product (bytes times packed planes, ``mma.sync``) in one launch: tilings, time estimates, parameters and launches."""

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
#: The most bits of an operand: an element of the left one is a byte, and an element of the right one is unpacked into a byte.
MOST_BITS = 8
#: Bytes of one plane of a column in a block of the contraction axis.
_PIECE_BYTES = 16
#: Bytes that the L2 delivers at a time.
_SECTOR_BYTES = 32
#: The most blocks of a grid along y and z.
_MOST_BLOCKS = 65535


class MixedTiling(NamedTuple):
    """How a product is cut up; the names are those of ``matmul/mixed.cu``."""

    wn: int  # warps of a group, along the columns
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
        """Registers of a thread, within 10 % of what the compiler uses."""
        return 32 + 8 * self.mi * self.nj

    def block_bytes(self, planes: int) -> int:
        """Bytes of both operands in one block of the contraction axis."""
        return self.rows * BLOCK_BYTES + planes * self.columns * _PIECE_BYTES

    def shared_bytes(self, planes: int) -> int:
        """Shared memory: for each group a ring, later reused for its sums, and then the sums from other blocks of the cluster."""
        sums = 4 * self.rows * (self.columns + 4)
        rings = self.wk * max(sums, self.stages * self.span * self.block_bytes(planes))
        return rings + 4 * self.rows * self.columns * (self.parts - 1) // self.parts + BLOCK_BYTES

    def defines(self, planes: int, signed: int, extend: bool) -> dict[str, int]:
        """The compile-time constants for columns of `planes` planes; with ``extend``, the last plane is a sign that is extended."""
        found = {"BS_WN": self.wn, "BS_WK": self.wk, "BS_MI": self.mi, "BS_NJ": self.nj, "BS_SPAN": self.span}
        return found | {"BS_STAGES": self.stages, "BS_PLANES": planes} | jit.flags(signed=signed, extend=extend)


#: Tiles from 32 x 32 to 128 x 64 and 64 x 128; several groups are for long contraction axes. Six others were never over 2 % faster.
TILES = (
    MixedTiling(1, 4, 8, 1, 1, 3),
    MixedTiling(2, 2, 4, 1, 1, 3),
    MixedTiling(2, 2, 8, 1, 1, 3),
    MixedTiling(2, 2, 16, 1, 1, 3),
    MixedTiling(4, 1, 8, 1, 2, 3),
    MixedTiling(4, 2, 16, 1, 1, 3),
    MixedTiling(8, 1, 8, 1, 1, 3),
)
#: Possible numbers of blocks of a cluster; only Hopper and later chips have clusters.
PARTS = (1, 2, 4, 8)


class MixedSizes(NamedTuple):
    """The sizes of a product."""

    m: int
    n: int
    blocks: int  # blocks of 128 elements of the contraction axis
    planes: int  # planes of the right operand
    batches: int = 1
    words: int = 0  # words of a plane of a column that hold elements; 0: all words of its blocks

    @property
    def used_words(self) -> int:
        """Words of a plane of a column that hold elements, 32 elements per word."""
        return self.words or 4 * self.blocks


def sizes_of(what: Multiplication, k: int) -> MixedSizes:
    """The sizes of a product of `k`-long rows; raises KernelError if this kernel does not take its operands."""
    a, b, batches, _, _, wide, epilogue = what
    if wide or epilogue is not None or a.planes > 1 or b.planes > MOST_BITS:
        raise KernelError(
            f"matmul: kernel 'mixed' multiplies operands of at most {MOST_BITS} bits into int32 sums, and here the left one has "
            f"{a.planes} digits, the right one {b.planes} bits, and sums are {'int64' if wide else 'int32'}; leave the choice to "
            f"the plan"
        )
    return MixedSizes(a.outer, b.outer, a.words.shape[-1] // BLOCK_WORDS, b.planes, batches, -(-k // 32))


def tilings(sizes: MixedSizes, *, clusters: bool) -> list[MixedTiling]:
    """The tilings worth considering; ``clusters`` tells whether the chip has clusters.

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


#: Instructions of a lane that convert this many planes of 32 elements to bytes: what the compiler leaves of 48 if other planes are zero.
_TURN = {1: 16, 2: 28, 3: 44, 4: 44}


def estimate_us(t: MixedTiling, sizes: MixedSizes, rates: MixedRates, chip: jit.Capability = H200.card) -> float:
    """Estimated microseconds of a product.

    Instructions of warps, bytes from the L2 and requests to a small operand in the L2 overlap but delay each other, so their clocks are
    added as a root of squares. The time after the last product is added to that.
    """
    m, n, blocks, planes, batches, _ = sizes
    sms, warps = chip.multiprocessors, t.threads // 32
    down, across = batches * -(-m // t.rows), -(-n // t.columns)
    count = down * across * t.parts
    each = -(-count // sms)  # blocks of a multiprocessor
    resident = min(chip.shared_bytes // (t.shared_bytes(planes) + 1024), 2048 // t.threads)
    resident = max(1, min(resident, 65536 // (t.registers * t.threads)))
    at_once = sms if t.parts == 1 else t.parts * dict(H200.warpgroups.clusters)[t.parts]
    rounds = -(-count // (at_once * resident))
    busy = min(t.wk, -(-blocks // (t.span * t.parts)))  # groups that have any block of the contraction axis
    stages = -(-(-(-blocks // t.span)) // (t.wk * t.parts))  # stages of the group with the most stages
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
    """The tiling with the lowest estimate among those that fit in the shared memory of a block."""
    fitting = [t for t in tilings(sizes, clusters=chip.major >= 9) if t.shared_bytes(sizes.planes) <= chip.shared_bytes]
    return min(fitting, key=lambda t: estimate_us(t, sizes, H200.mixed_products, chip))


MixedParams = jit.struct("matmul/mixed.cu", "MixedParams")


class OneLaunch:
    """A prepared product that is one launch; ``run(b, out)`` enqueues it.

    Parameters
    ----------
    kernel : Kernel
    grid, threads : tuple, int
        Grid and threads of its launches.
    params : ctypes.Structure
        The argument of the launches, without the right operand, the result and the terms.
    what : Multiplication
        The operands, which are kept alive.
    **how
        Shared memory and blocks of a cluster.
    """

    def __init__(
        self, kernel: Any, grid: tuple[int, int, int], threads: int, params: Any, what: Multiplication, **how: int
    ) -> None:
        if max(grid[1:]) > _MOST_BLOCKS:
            raise KernelError(
                f"matmul: kernel 'mixed' has at most {_MOST_BLOCKS} batches and tiles of columns, here {grid[2]} and {grid[1]}; "
                f"leave the choice to the plan"
            )
        self.params = params
        params.weight = what.a.weight * what.b.weight
        if what.batch_indices is not None:
            params.batch_indices = what.batch_indices.data.ptr
        self._keep = what.a.words, what.batch_indices
        # The first call on a stream waits for all earlier work, so that later calls can read the left operand early.
        self._first = self._later = kernel.launch(grid, threads, params, **how)
        if jit.capability().major >= 9:
            self._later = kernel.launch(grid, threads, params, dependent=True, **how)
        #: ``launch(stream, b address, out address)`` of :class:`bitsparse._ext.launch.Quick`, for calls that change nothing else.
        self.quick = self._later.quick(type(params).out.offset)

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
        """Enqueue ``out = a @ b + row_term + col_term``; ``settled`` if the preceding work on the stream does not write `a`."""
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


def bytes_extended(what: Multiplication, signed: int) -> bool:
    """Whether the sign of the right operand is extended to a byte."""
    return bool(signed & 2) and what.b.negative_top and what.b.planes < MOST_BITS


class MixedProduct(OneLaunch):
    """A prepared product on warps; ``signed`` tells which operands have signed bytes: 1 for `a` plus 2 for `b`.

    Attributes
    ----------
    tiling : MixedTiling
    """

    def __init__(self, what: Multiplication, sizes: MixedSizes, tiling: MixedTiling, signed: int = 0) -> None:
        t = self.tiling = tiling
        grid = -(-sizes.m // t.rows) * t.parts, -(-sizes.n // t.columns), sizes.batches
        kernel = jit.kernel(_SOURCE, "matmul_mixed", t.defines(sizes.planes, signed, bytes_extended(what, signed)))
        p = MixedParams(a=what.a.words.data.ptr, m=sizes.m, n=sizes.n, blocks=sizes.blocks)
        p.parts_log = t.parts.bit_length() - 1
        super().__init__(kernel, grid, t.threads, p, what, shared=t.shared_bytes(sizes.planes), cluster=t.parts)


def _variants() -> list[jit.Variant]:
    """Variants of every tile for unsigned columns of 1 to 8 bits and signed ones of 8, on the chip on which this kernel can be chosen."""
    kinds = [(planes, 0) for planes in range(1, MOST_BITS + 1)] + [(MOST_BITS, 3)]
    found = [tile.defines(planes, signed, False) for tile in TILES for planes, signed in kinds]
    return jit.variants_of(_SOURCE, "matmul_mixed", found, "sm_90a")


VARIANTS = _variants()

"""The tiled product of packed operands on warps (``mma.sync``, compute capability 8.0 and later): tilings, parameters, launch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.chips import RELEASED, chip_of
from bitsparse.backends.cuda.matmul.passes import BLOCK_BYTES, Multiplication, Sizes, passes_of, put_operands
from bitsparse.errors import KernelError

_SOURCE = "matmul/mma.cu"
#: Shared memory that every chip has for one block.
SHARED_BYTES = 99 << 10


class MmaTiling(NamedTuple):
    """How a product is cut up; the names are those of ``matmul/mma.cu``."""

    wm: int  # warps of a block along the rows and along the columns
    wn: int
    mi: int  # 16-row and 8-column blocks of a warp
    nj: int
    stages: int
    qb: int = 1  # planes of the right operand per tile: 1, 2 or 4
    rk: int = 1  # parts of the contraction axis

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return 16 * self.mi * self.wm

    @property
    def wide_columns(self) -> int:
        """Columns of a tile of the right operand, counting every plane."""
        return 8 * self.nj * self.wn

    @property
    def columns(self) -> int:
        """Columns of a tile of the result."""
        return self.wide_columns // self.qb

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.wm * self.wn

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage."""
        return BLOCK_BYTES * (self.rows + self.wide_columns)

    @property
    def blocks(self) -> int:
        """Blocks that run on a multiprocessor at a time."""
        return 2 if self.threads < 256 else 1

    def defines(self, step: int, wide: bool, fused: bool = False) -> dict[str, int]:
        """The compile-time constants; ``fused`` for a kernel with an epilogue."""
        found = {"BS_WM": self.wm, "BS_WN": self.wn, "BS_MI": self.mi, "BS_NJ": self.nj}
        found |= {"BS_STAGES": self.stages, "BS_BLOCKS": self.blocks}
        return found | jit.flags(bytes=step == 8, out64=wide, epilogue=fused)


#: Tiles of 128 x 256, 128 x 128, 128 x 64 and 64 x 64, with as many stages as fit on every chip; two blocks of the last fit.
TILES = (MmaTiling(2, 4, 4, 8, 2), MmaTiling(2, 4, 4, 4, 3), MmaTiling(4, 2, 2, 4, 4), MmaTiling(2, 2, 2, 4, 3))


def allows(t: MmaTiling, *, wide: bool, fused: bool, emulated: bool) -> bool:
    """Whether a tiling can be used.

    A tile has several planes only if their sums are added in registers. An epilogue needs whole blocks of 64 columns, and cannot be
    combined with parts, whose sums are complete only in memory. The largest tile leaves registers for nothing but the plain product.
    """
    if t.mi * t.nj > 16 and (wide or fused or emulated):
        return False
    return not (wide and t.qb > 1) and not (fused and (t.columns % 64 or t.rk > 1))


def tiles_of(shared_bytes: int) -> tuple[MmaTiling, ...]:
    """:data:`TILES`; the largest has a third stage if a block can have enough shared memory for it."""
    large = replace(TILES[0], stages=3)
    return (large if large.stages * large.stage_bytes + BLOCK_BYTES <= shared_bytes else TILES[0], *TILES[1:])


def tilings(
    columns: int,
    b_planes: int,
    blocks: int,
    *,
    wide: bool,
    fused: bool = False,
    emulated: bool = False,
    shared_bytes: int = SHARED_BYTES,
) -> list[MmaTiling]:
    """The tilings worth considering.

    Parameters
    ----------
    columns, b_planes, blocks : int
        Columns of the result, planes of the right operand, blocks of the contraction axis.
    wide, fused : bool
        Whether the result is int64, and whether there is an epilogue.
    emulated : bool
        Whether the chip emulates the instruction by many others, which takes registers.
    shared_bytes : int
        Shared memory that one block can have.
    """
    found = []
    for tile in tiles_of(shared_bytes):
        for qb in (1, 2, 4):
            t = replace(tile, qb=qb)
            if qb >= 2 * b_planes or (t.columns >= 2 * columns and t.wide_columns > 64):
                continue
            each = [replace(t, rk=rk) for rk in (1, 2, 4, 8, 16, 32) if rk <= max(1, blocks)]
            found += [t for t in each if allows(t, wide=wide, fused=fused, emulated=emulated)]
    return found


def estimate_us(t: MmaTiling, sizes: Sizes, capability: jit.Capability) -> float:
    """Estimated microseconds of a product.

    The estimate is not fitted to measurements but computed from the chip's rates: a stage takes as long as its products, its load from the
    L2 or its transfer through shared memory (128 bytes per clock), whichever is longest.
    """
    m, n, blocks, a_planes, b_planes, batches, _ = sizes
    chip, sms = chip_of(capability), capability.multiprocessors
    rate = chip.bits or 8 * chip.bytes
    units = batches * -(-m // t.rows) * -(-n // t.columns)
    items = units * t.rk
    together = max(1, min(t.blocks, -(-items // sms)))  # blocks that share a multiprocessor
    shared = t.stage_bytes + 4 * (t.threads // 32) * (512 * t.mi + 256 * t.nj)
    products = t.rows * t.wide_columns * 8 * BLOCK_BYTES / rate
    stage = max(together * max(products, shared / 128, t.stage_bytes / chip.load_bytes), 800 / (t.stages - 1))
    # A tile is stored while the next one, if any, is multiplied; sums of parts are added by atomics in the L2.
    tail = together * t.rows * t.columns * 4 / (0.7 * chip.load_bytes) * (3 if t.rk > 1 else 1)
    stages = a_planes * -(-b_planes // t.qb) * -(-blocks // t.rk)
    waves = -(-items // (together * sms))
    clocks = 1500 + waves * (stages * (1.1 * stage + 60) + tail)
    operands = batches * BLOCK_BYTES * blocks * (m * a_planes * -(-b_planes // t.qb) + n * b_planes)
    moved = 4 * batches * m * n + (operands if m * a_planes * blocks * BLOCK_BYTES > 0.7 * capability.l2_bytes else 0)
    launches = chip.launch_us + (1.5 if t.rk > 1 else 0)
    return launches + max(clocks / chip.clock_mhz, moved / chip.memory_bytes_per_us)


@lru_cache(maxsize=1024)
def choose_tiling(sizes: Sizes, step: int, wide: bool, fused: bool, capability: jit.Capability) -> MmaTiling:
    """The tiling with the lowest estimate, for elements of ``step`` bits."""
    emulated, room = step == 1 and chip_of(capability).bits == 0, capability.shared_bytes
    return min(
        tilings(sizes.n, sizes.b_planes, sizes.blocks, wide=wide, fused=fused, emulated=emulated, shared_bytes=room),
        key=lambda t: estimate_us(t, sizes, capability),
    )


MmaParams = jit.struct("matmul/mma.cuh", "MmaParams")
FusedMmaParams = jit.struct("matmul/mma.cuh", "MmaParams", optional=True)


class MmaProduct:
    """A prepared product; ``run(b, out)`` enqueues it.

    Attributes
    ----------
    tiling : MmaTiling
    """

    quick = None  # WgmmaProduct may have a quick launch

    def __init__(self, what: Multiplication, tiling: MmaTiling | None = None) -> None:
        a, b, batches, _, _, wide, epilogue = what
        sizes, chip, fused = what.sizes, jit.capability(), epilogue is not None
        t = tiling or choose_tiling(sizes, a.step, wide, fused, chip)
        if not allows(t, wide=wide, fused=fused, emulated=False):
            raise KernelError(
                f"matmul: the tiling {t} does not go with an int64 result or an epilogue; leave the choice to the plan"
            )
        self.tiling = t
        kernel = jit.kernel(_SOURCE, "matmul_mma", t.defines(a.step, wide, fused))
        table = passes_of(a.planes, b.planes, t.qb, sizes.blocks, a.step, what.signs, wide)
        p = FusedMmaParams() if fused else MmaParams()
        self._keep = put_operands(p, what, t.rows, table)
        p.a, p.words, p.a_planes, p.b_planes = a.words.data.ptr, a.words.shape[-1], a.planes, b.planes
        p.qb_log, p.parts = t.qb.bit_length() - 1, t.rk
        p.m_tiles, p.n_tiles = -(-a.outer // t.rows), -(-b.outer // t.columns)
        p.raster = max(1, 1024 // t.rows)
        items = batches * p.m_tiles * p.n_tiles * t.rk
        if items >= 2**31:
            raise KernelError(
                f"matmul: {batches} products of {a.outer} x {b.outer} are {items} tiles, more than 2**31; split the batch"
            )
        self.params, self._epilogue = p, epilogue
        shared = t.stages * t.stage_bytes + BLOCK_BYTES
        self._launch = kernel.launch(min(items, t.blocks * chip.multiprocessors), t.threads, p, shared=shared)

    def run(
        self, b_words: Any, out: Any, row_term: Any = None, col_term: Any = None, stream: int | None = None
    ) -> None:
        """Enqueue ``out = a @ b + row_term + col_term``, followed by the epilogue, if any; as in WgmmaProduct."""
        p = self.params
        p.b = b_words.data.ptr
        if self._epilogue is not None:
            p.epilogue = self._epilogue.aim(out)
        else:
            p.out = out.data.ptr
            p.pairs = int(p.n % 2 == 0 and p.out % 8 == 0)
        p.row_term = None if row_term is None else row_term.data.ptr
        p.col_term = None if col_term is None else col_term.data.ptr
        if p.parts > 1:
            out.data.memset_async(0, out.nbytes)
        self._launch(stream)


def _variants() -> list[jit.Variant]:
    """Variants of the tilings for bits and bytes, int32 and int64 results, and epilogues; stages of the largest depend on the chip."""
    ways = ((False, False), (True, False), (False, True))
    found = [tile.defines(step, *way) for step in (1, 8) for way in ways for tile in TILES[1:]]
    variants = jit.variants_of(_SOURCE, "matmul_mma", found)
    for arch, chip in RELEASED.items():
        largest = tiles_of(chip.card.shared_bytes)[0]
        steps = (1, 8) if chip.bits else (8,)
        variants += jit.variants_of(_SOURCE, "matmul_mma", [largest.defines(step, False) for step in steps], arch)
    return variants


VARIANTS = _variants()

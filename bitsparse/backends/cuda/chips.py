"""Every number that was fitted to a chip: one table, one row a chip, by compute capability.

The H200's row is measured, by ``benchmarks/limits.py`` and the programs in ``benchmarks/fit``. Of the other chips, rates of matrix
instructions, clocks and memory come from data sheets as said at the table; estimates that are only fitted on the H200 rank kernels there
as they do on it, until somebody measures.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from bitsparse import jit
from bitsparse.jit import Capability


class WarpgroupRates(NamedTuple):
    """Products on the matrix units of warpgroups (``matmul/wgmma.py``), fitted to measured times of all tilings by ``fit/dense.py``."""

    clock_mhz: float = 1850.0
    launch_us: float = 1.6
    fill_clocks: float = 986.0  # from the first load to the first product, and from the last one to the result
    arrive_bytes: float = 43.0  # bytes a clock that one multiprocessor takes in
    leave_bytes: float = 4300.0  # bytes a clock that leave the L2
    part_clocks: float = 3000.0  # adding up the parts of a tile
    store_bytes: float = 22.8  # bytes a clock that one multiprocessor writes
    tile_clocks: float = 0.0  # of a tile beside these
    overhead: float = 1.15  # of the products
    multicast_clocks: float = 135.0  # what a stage waits longer for several blocks
    memory_bytes_per_us: float = 4.2e6
    result_bytes_per_us: float = math.inf  # of all results together, on top
    small_rows: float = 1e9  # rows of a stage a clock that the L2 hands out of a small operand; bytes of an operand for each that it does
    small_bytes: float = 1.0
    half_sectors: float = 1.0  # times what rows take to come, where every other one begins within a sector of 32 bytes
    unpack_clocks: float = 38.0  # of a scheduler, for what a warp unpacks at a time: 32 words of each plane of a digit
    flush_bytes_per_us: float = 2.3e6  # an int64 result read and written from the registers
    carry_clocks: float = 400.0  # from one weight to the next in the registers
    cache_bytes: float = 45e6  # operands up to this size stay in the L2
    kept_bytes: float = 36e6  # of a larger one so much is kept there from one product to the next
    #: Clusters of 1, 2, 4, 8 blocks that run at the same time.
    clusters: tuple[tuple[int, int], ...] = ((1, 132), (2, 66), (4, 30), (8, 15))


#: The same of products of fewer than 2**31 multiplications, fitted by ``fit/products.py`` to 150 random shapes on an H100. What limits
#: results is their number of bytes, not that of a multiprocessor.
_SMALL_PRODUCTS = WarpgroupRates(
    launch_us=2.7,
    fill_clocks=427.0,
    arrive_bytes=34.2,
    leave_bytes=3050.0,
    part_clocks=2050.0,
    store_bytes=math.inf,
    overhead=1.75,
    multicast_clocks=84.0,
    unpack_clocks=104.0,
    small_rows=6.0,
    small_bytes=1720.0,
    half_sectors=1.44,
    result_bytes_per_us=3.28e6,
)


class MixedRates(NamedTuple):
    """Products of bytes and packed planes in one launch (``matmul/mixed.py``), fitted by ``fit/products.py`` to 150 random shapes of fewer
    than 2**31 multiplications on an H100.
    """

    clock_mhz: float = 1850.0
    start_clocks: float = 1210.0  # of a launch among others, to the first product
    warp_clocks: float = 180.0  # on top for each warp of a block
    issue_clocks: float = 2.14  # of a scheduler, an instruction of a warp beside others
    alone_clocks: float = 2.78  # of a warp by itself, whose instructions wait for each other
    step_clocks: float = 169.0  # of a stage, where several warps share it
    piece_clocks: float = 0.41  # of a multiprocessor, to ask for a piece of a plane
    left_bytes: float = 4110.0  # bytes a clock that leave the L2: of whole rows of 128
    right_bytes: float = 2320.0  # and of sectors of which half is wanted
    small_pieces: float = 3.35  # pieces a clock of a small operand; bytes of it for each that the L2 hands out at once
    small_bytes: float = 599.0
    tile_clocks: float = 1490.0  # of a round of blocks
    quad_clocks: float = 225.0  # of four sums of a thread on their way out
    store_bytes: float = 39.9  # bytes a clock that one multiprocessor writes
    part_clocks: float = 406.0  # for each doubling of the blocks of a cluster
    remote_bytes: float = 32.7  # bytes a clock that one multiprocessor sends to others


class ResidentRates(NamedTuple):
    """Products of bytes and packed planes on warpgroups (``matmul/resident.py``), fitted to 300 random shapes of fewer
    than 2**31 multiplications on an H100.
    """

    clock_mhz: float = 1850.0
    start_clocks: float = 3020.0  # of a launch among others, to the end of the last result
    warp_clocks: float = 25.0  # on top for each warp of a block
    unit_clocks: float = 450.0  # of a thread, until it has a word of each plane
    issue_clocks: float = 0.856  # of a scheduler, an instruction of a warp that unpacks
    arrive_bytes: float = 145.0  # bytes a clock that one multiprocessor takes in
    leave_bytes: float = 2960.0  # bytes a clock that leave the L2
    stage_clocks: float = 249.0  # of 64 rows in a block of the contraction axis, from their arrival to their product
    store_bytes: float = 26.5  # bytes a clock that one multiprocessor writes, from registers
    staged_bytes: float = 102.0  # and by way of shared memory, where 32 columns of 64 rows take so many clocks more
    staged_clocks: float = 57.8
    result_bytes_per_us: float = 4.0e6  # of all results together, on top


class RowRates(NamedTuple):
    """Sums of gathered rows of floats (``spmm/choice.py``): microseconds, and rates per microsecond.

    Fitted to COLLAB, DD, ss_pkustk04, web_notredame, artist and communities of reddit's size, 16 to 256 columns.
    """

    start: float = 5.0
    memory: float = 4.0e6
    #: Edge by edge: the start; a row of features, and bytes of such rows, for elements of 32 and of 16 bits.
    edges_start: float = 3.7
    row: tuple[float, float] = (3.5e-6, 4.5e-6)
    row_bytes: tuple[float, float] = (14.0e6, 10.8e6)
    #: How much longer a row takes whose vectors are a half, a quarter, an eighth or less of what they could be: 42 to 102 columns of
    #: float32, 41 to 44 of float16, over reddit's and products' sizes and artist (``fit/laid.py``).
    ragged: tuple[float, float, float] = (0.1, 0.5, 1.6)
    #: Where features are more than the L2 holds and rows have so many edges on average, columns are summed in slices of so many bytes: of
    #: float32 without weights, of all others (``fit/slices.py``).
    sliced_edges: int = 24
    slice_bytes: tuple[int, int] = (128, 256)
    #: The L1 finds bytes that near edges share: faster by this times what windows of 8 rows share beyond 1, up to a limit by row bytes.
    l1_gain: float = 0.174
    l1_least: float = 2.1
    l1_bytes: float = 3000.0
    #: An entry of a window of 8 rows, and each of its columns; without and with weights.
    window: tuple[tuple[float, float], tuple[float, float]] = ((1.0e-5, 4.0e-7), (1.6e-5, 7.4e-7))
    #: A group of 8 columns of a tile, and of 16: itself, by its rows, by the columns of features, by both.
    tile8: tuple[float, float, float, float] = (2.1e-5, 1.9e-6, 3.1e-6, 1.66e-7)
    tile16: tuple[float, float, float, float] = (2.0e-5, 1.9e-6, 3.25e-6, 2.28e-7)
    tile_weighed: float = 1.38
    #: Values that may change are brought into the order of windows or tiles in every call: a launch, and bytes of an edge, as measured
    #: (COLLAB's 24.6 M edges: 104 us in front of windows, 207 us in front of tiles).
    arrange_start: float = 2.0
    arrange_windows: float = 17.0
    arrange_tiles: float = 34.0
    #: Shares of the compulsory bytes' time that come on top, edge by edge and in windows.
    edges_moved: float = 0.64
    windows_moved: float = 0.6
    #: Windows must be quicker by so much (second) where less than so much is shared (first), as they are uneven there.
    margin_windows: tuple[float, float] = (4.5, 1.15)
    margin_tiles: tuple[float, float] = (2.5, 1.3)
    #: Edges to a column of windows of 8 rows from which dot products of both ends of edges are quicker in windows.
    dots_share: float = 3.5
    #: Whether packed integers with a weight for each edge and head are gathered as they are; else they are unpacked first. Waits for times.
    codes_per_head: bool = False


class BitRates(NamedTuple):
    """Sums of one-bit features (``binary/bspmm_params.py``)."""

    #: Mean lengths from which rows are long or middling, and edges from which a pattern with such rows keeps all teams busy with streams.
    long_rows: int = 200
    middling_rows: int = 48
    many_edges: int = 8_000_000
    #: For rows that are dealt out, by their mean lengths (below 16, 32, and longer ones): lanes that take edges of a row, edges in flight
    #: of a lane, blocks of a multiprocessor, edges for each lane from which a row is cut, edges of a piece.
    dealt: tuple[tuple[int, int, int, int, int], ...] = ((2, 8, 5, 64, 256), (2, 8, 5, 48, 512), (4, 8, 5, 48, 512))


class Chip(NamedTuple):
    """One chip. The first figures are what the estimates of :mod:`bitsparse.backends.cuda.matmul.mma` are made of.

    Attributes
    ----------
    card : Capability
        One with this chip.
    bits, bytes : int
        Multiply-adds a clock of one multiprocessor, of one-bit and of 8-bit integers; 0 bits where the one-bit AND is emulated.
    clock_mhz : float
    load_bytes : float
        Bytes a clock that one multiprocessor reads from the L2 while all of them do.
    memory_bytes_per_us : float
    launch_us : float
        A kernel in a replayed graph.
    fewer_blocks : int
        By how much kernels' launch bounds are lower than on Hopper, as the compiler takes more registers.
    warpgroups, small_products : WarpgroupRates
    mixed_products : MixedRates
    resident_products : ResidentRates
    rows : RowRates
    bit_sums : BitRates
    """

    card: Capability
    bits: int
    bytes: int
    clock_mhz: float
    load_bytes: float
    memory_bytes_per_us: float
    launch_us: float = 2.5
    fewer_blocks: int = 1
    warpgroups: WarpgroupRates = WarpgroupRates()
    small_products: WarpgroupRates = _SMALL_PRODUCTS
    mixed_products: MixedRates = MixedRates()
    resident_products: ResidentRates = ResidentRates()
    rows: RowRates = RowRates()
    bit_sums: BitRates = BitRates()


#: Matrix rates: 9.0 measured (``limits.py``), the others by their data sheets (dense int8; one-bit AND is 8 times that up to 9.0 and
#: assembled into many instructions on 10.0 and 12.0, as the compiler shows). Memory: nine tenths of the data sheet's slowest card.
CHIPS: dict[tuple[int, int], Chip] = {
    (8, 0): Chip(Capability("NVIDIA A100", 8, 0, 108, 166912, 41943040), 16384, 2048, 1410.0, 27.0, 1.4e6),
    (8, 6): Chip(Capability("NVIDIA RTX A6000", 8, 6, 84, 101376, 6291456), 8192, 1024, 1700.0, 18.0, 0.54e6),
    (8, 7): Chip(Capability("Orin", 8, 7, 16, 166912, 4194304), 8192, 1024, 1300.0, 16.0, 0.18e6),
    (8, 9): Chip(Capability("NVIDIA L40S", 8, 9, 142, 101376, 100663296), 8192, 1024, 2400.0, 20.0, 0.78e6),
    (9, 0): Chip(Capability("NVIDIA H200", 9, 0, 132, 232448, 62914560), 19400, 2430, 1850.0, 32.0, 4.2e6, 1.8, 0),
    (10, 0): Chip(Capability("NVIDIA B200", 10, 0, 148, 232448, 132120576), 0, 2048, 1800.0, 32.0, 6.5e6),
    (12, 0): Chip(Capability("NVIDIA RTX PRO 6000", 12, 0, 188, 101376, 134217728), 0, 1024, 2300.0, 20.0, 1.5e6),
}

#: Any other: nothing is known of its one-bit instruction, so bytes are taken.
UNKNOWN = Chip(Capability("unknown", 8, 0, 64, 101376, 4194304), 0, 1024, 1400.0, 16.0, 0.4e6)


def chip_of(capability: Capability) -> Chip:
    """The rates of a device; those of unknown chips are low guesses.

    Examples
    --------
    >>> chip_of(Capability("NVIDIA A100", 8, 0, 108, 166912, 41943040)).bits
    16384
    >>> chip_of(Capability("NVIDIA B200", 10, 0, 148, 232448, 132120576)).bits
    0
    """
    return CHIPS.get((capability.major, capability.minor), UNKNOWN)


def chip_here() -> Chip:
    """The row of the current device."""
    return chip_of(jit.capability())


#: The chip that was measured.
H200 = CHIPS[9, 0]

#: By the architectures that a release is compiled for.
RELEASED = {chip.card.arch: chip for chip in CHIPS.values() if chip.card.arch in jit.ARCHS}


def _variants() -> list[jit.Variant]:
    """Of the kernels that ``benchmarks/limits.py`` measures rates with."""
    found = jit.variants_of("limits/memory.cu", "read_all")
    for kind in ({}, {"BS_BYTES": 1}):
        found += jit.variants_of("limits/instructions.cu", "matrix_rate", [kind | {"BS_NB": 1}])
        groups = [kind | {"BS_NB": nb, "BS_WARPGROUP": 1} for nb in (1, 2, 4)]
        found += jit.variants_of("limits/instructions.cu", "matrix_rate", groups, "sm_90a")
    return found


VARIANTS = _variants()

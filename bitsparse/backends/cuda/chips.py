"""Every number that was fitted to a chip: one table with one row per chip, by compute capability.

The H200's row is measured by ``benchmarks/limits.py`` and the programs in ``benchmarks/fit``. For other chips, the rates of matrix
instructions, the clocks and the memory rates come from data sheets, as stated at the table. Rates fitted only on the H200 or H100 are used
unchanged on the other chips until somebody measures there.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from bitsparse import jit
from bitsparse.jit import Capability


class WarpgroupRates(NamedTuple):
    """Rates of products on the matrix units of warpgroups (``matmul/wgmma.py``).

    ``fit/products.py`` fits those of `FITTED_LARGER` to random shapes, ``fit/dense.py`` the others to times of all tilings.
    """

    clock_mhz: float = 1850.0
    launch_us: float = 1.6
    fill_clocks: float = 1950.0  # from the first load to the first product, plus from the last product to the result
    arrive_bytes: float = 50.8  # bytes per clock that one multiprocessor receives
    leave_bytes: float = 4780.0  # bytes per clock that leave the L2
    part_clocks: float = 3060.0  # to add up two parts of a tile; half of it more for each doubling of the parts
    store_bytes: float = 18.1  # bytes per clock that one multiprocessor writes from registers
    copy_bytes: float = 26.8  # by the copy engine
    tile_clocks: float = 733.0  # per tile, in addition to the others
    overhead: float = 1.08  # factor on the time of the products
    multicast_clocks: float = 135.0  # how much longer a stage waits if several blocks share it
    memory_bytes_per_us: float = 4.2e6
    result_bytes_per_us: float = math.inf  # all results together; this time is added
    small_rows: float = 1e9  # rows of a stage per clock from the L2, or one per `small_bytes` of operand if more
    small_bytes: float = 1.0
    half_sectors: float = 1.27  # factor on the arrival time if every other row begins within a sector of 32 bytes
    fitted_widths: float = 1.02  # how much faster a tile with a kernel for its width must be to be taken
    unpack_clocks: float = 38.0  # of a scheduler, for what a warp unpacks at a time: 32 words of each plane of a digit
    flush_bytes_per_us: float = 2.3e6  # to read an int64 result and write it back from the registers
    carry_clocks: float = 400.0  # from one weight to the next in the registers
    cache_bytes: float = 45e6  # operands up to this size stay in the L2
    kept_bytes: float = 36e6  # how much of a larger operand stays in the L2 from one product to the next
    #: For clusters of 1, 2, 4 and 8 blocks: how many run at the same time.
    clusters: tuple[tuple[int, int], ...] = ((1, 132), (2, 66), (4, 30), (8, 15))


#: The same rates for products of fewer than 2**31 multiplications; ``fit/products.py`` fits them to 150 random shapes on an H200. Stores
#: are limited by the bytes of all results together, not by those of one multiprocessor.
_SMALL_PRODUCTS = WarpgroupRates(
    launch_us=2.36,
    fill_clocks=442.0,
    arrive_bytes=38.4,
    leave_bytes=3950.0,
    part_clocks=1730.0,
    store_bytes=math.inf,
    copy_bytes=math.inf,
    tile_clocks=0.0,
    overhead=1.16,
    multicast_clocks=140.0,
    unpack_clocks=116.0,
    small_rows=5.86,
    small_bytes=2230.0,
    half_sectors=1.27,
    fitted_widths=1.0,
    result_bytes_per_us=2.91e6,
)


class MixedRates(NamedTuple):
    """Rates of products of bytes and packed planes in one launch (``matmul/mixed.py``).

    ``fit/products.py`` fits them to 150 random shapes of fewer than 2**31 multiplications on an H100.
    """

    clock_mhz: float = 1850.0
    start_clocks: float = 1210.0  # from a launch, among others, to its first product
    warp_clocks: float = 180.0  # in addition, for each warp of a block
    issue_clocks: float = 2.14  # of a scheduler, per instruction of a warp among others
    alone_clocks: float = 2.78  # per instruction of a warp alone, whose instructions wait for each other
    step_clocks: float = 169.0  # per stage that several warps share
    piece_clocks: float = 0.41  # of a multiprocessor, to request a piece of a plane
    left_bytes: float = 4110.0  # bytes per clock that leave the L2 in whole rows of 128
    right_bytes: float = 2320.0  # bytes per clock that leave the L2 in sectors of which half is needed
    small_pieces: float = 3.35  # pieces per clock from the L2: this many, or one per `small_bytes` of operand if more
    small_bytes: float = 599.0
    tile_clocks: float = 1490.0  # per round of blocks
    quad_clocks: float = 225.0  # to store four sums of a thread
    store_bytes: float = 39.9  # bytes per clock that one multiprocessor writes
    part_clocks: float = 406.0  # for each doubling of the blocks of a cluster
    remote_bytes: float = 32.7  # bytes per clock that one multiprocessor sends to others


class ResidentRates(NamedTuple):
    """Rates of products of bytes and packed planes on warpgroups (``matmul/resident.py``).

    They are fitted to 300 random shapes of fewer than 2**31 multiplications on an H100, `result_bytes_per_us` to 150 of all sizes on an
    H200, whose memory is faster.
    """

    clock_mhz: float = 1850.0
    start_clocks: float = 3020.0  # from a launch, among others, to the end of its last result
    warp_clocks: float = 25.0  # in addition, for each warp of a block
    unit_clocks: float = 450.0  # until a thread has a word of each plane
    issue_clocks: float = 0.856  # of a scheduler, per instruction of a warp that unpacks
    arrive_bytes: float = 145.0  # bytes per clock that one multiprocessor receives
    leave_bytes: float = 2960.0  # bytes per clock that leave the L2
    stage_clocks: float = 249.0  # for 64 rows in a block of the contraction axis, from their arrival to their product
    store_bytes: float = 26.5  # bytes per clock that one multiprocessor writes from registers
    staged_bytes: float = 102.0  # by way of shared memory, at `staged_clocks` more per 32 columns of 64 rows
    staged_clocks: float = 57.8
    result_bytes_per_us: float = 5.15e6  # all results together; this time is added


class RowRates(NamedTuple):
    """Sums of gathered rows of floats (``spmm/choice.py``): times in microseconds, and rates per microsecond.

    They are fitted to COLLAB, DD, ss_pkustk04, web_notredame, artist and communities of reddit's size, with 16 to 256 columns.
    """

    start: float = 5.0
    memory: float = 4.0e6
    #: Edge by edge: the start; the time per row of features, and the rate of bytes of such rows, for elements of 32 and of 16 bits.
    edges_start: float = 3.7
    row: tuple[float, float] = (3.5e-6, 4.5e-6)
    row_bytes: tuple[float, float] = (14.0e6, 10.8e6)
    #: How much longer a row takes if its vectors have a half, a quarter, or an eighth or less of the full width: measured for 42 to 102
    #: columns of float32 and 41 to 44 of float16, on reddit's and products' sizes and artist (``fit/laid.py``).
    ragged: tuple[float, float, float] = (0.1, 0.5, 1.6)
    #: If features exceed the L2 and rows have at least `sliced_edges` edges on average, columns are summed in slices of `slice_bytes`: for
    #: float32 without weights, and for all others (``fit/slices.py``).
    sliced_edges: int = 24
    slice_bytes: tuple[int, int] = (128, 256)
    #: The L1 serves bytes that nearby edges share: a speed-up of `l1_gain` times the sharing of windows of 8 rows beyond 1, limited by the
    #: bytes of a row.
    l1_gain: float = 0.174
    l1_least: float = 2.1
    l1_bytes: float = 3000.0
    #: Time per entry of a window of 8 rows, and per column of the features of an entry; without and with weights.
    window: tuple[tuple[float, float], tuple[float, float]] = ((1.0e-5, 4.0e-7), (1.6e-5, 7.4e-7))
    #: Time of a group of 8 and of 16 columns of a tile: constant, per row, per column of features, and per row times column.
    tile8: tuple[float, float, float, float] = (2.1e-5, 1.9e-6, 3.1e-6, 1.66e-7)
    tile16: tuple[float, float, float, float] = (2.0e-5, 1.9e-6, 3.25e-6, 2.28e-7)
    tile_weighed: float = 1.38
    #: Values that may change are rearranged into the order of windows or tiles in every call: the time of a launch, and bytes per edge, as
    #: measured (COLLAB's 24.6 M edges: 104 us before windows, 207 us before tiles).
    arrange_start: float = 2.0
    arrange_windows: float = 17.0
    arrange_tiles: float = 34.0
    #: The share of the compulsory memory traffic's time that is added, edge by edge and in windows.
    edges_moved: float = 0.64
    windows_moved: float = 0.6
    #: If sharing is below the first number, windows must be faster by the second one to be chosen, since they are uneven there.
    margin_windows: tuple[float, float] = (4.5, 1.15)
    margin_tiles: tuple[float, float] = (2.5, 1.3)
    #: Dot products of the ends of edges are computed in windows of 8 rows if these have at least this many edges per column.
    dots_share: float = 3.5
    #: Up to this many edges of a node on average, its gradient by attention is completed in the kernel that sums over its edges, which
    #: takes registers, and a little time for each edge; else in a pass over the nodes (``fit/attention.py``).
    completed_edges: int = 116
    #: Bytes of gathered rows from which on gradients are looked through for rows of zeros, in some 10 microseconds (``fit/zeros.py``).
    nonzero_bytes: int = 1 << 31
    #: Whether packed integers with a weight for each edge and head are gathered packed; else they are unpacked first. Not measured yet.
    codes_per_head: bool = False


class BitRates(NamedTuple):
    """Sums of one-bit features (``binary/bspmm_params.py``)."""

    #: Mean lengths from which rows count as long or middling, and edges from which a pattern with such rows keeps teams busy with streams.
    long_rows: int = 200
    middling_rows: int = 48
    many_edges: int = 8_000_000
    #: For rows that are dealt out, by mean length (below 16, below 32, longer): lanes that share the edges of a row, edges in flight per
    #: lane, blocks per multiprocessor, edges per lane above which a row is cut, and edges of a piece: four fewer than whole batches have,
    #: as a piece may begin up to three edges after its first batch.
    dealt: tuple[tuple[int, int, int, int, int], ...] = ((2, 8, 5, 64, 252), (2, 8, 5, 48, 508), (4, 8, 5, 48, 508))


class PanelRates(NamedTuple):
    """Sums by panels (``spmm/panels_build.py``): which rows form panels, and which panels gain.

    Counted in the kernel's code and compared with sums of 41 to 128 columns of reddit's and products' sizes (``docs/kernels/spmm.md``).
    """

    l2_bytes: float = 40.0  # bytes a clock of a multiprocessor, in gathered rows
    shared_share: float = 0.9  # of the clocks of shared memory that rows are read in
    starts: float = 3.2  # instructions a clock
    item_clocks: float = 3000.0  # of a panel or piece, which nothing hides


class FloatProducts(NamedTuple):
    """Tall products of float32 for which ``matmul/floats.py`` is quicker than cuBLAS (``fit/floats.py``)."""

    least_rows: int = 1 << 14
    least_steps: int = 1 << 26  # multiplications of a product that is not one over rows
    narrow: int = 32  # columns of a result up to which cuBLAS is quicker if the product is deeper than `shallow`
    shallow: int = 128
    over_rows_narrow: int = 32  # columns of the wider factor of a product over rows up to which cuBLAS is quicker


class Chip(NamedTuple):
    """One chip. The estimates of :mod:`bitsparse.backends.cuda.matmul.mma` use the fields up to `launch_us`.

    Attributes
    ----------
    card : Capability
        A card with this chip.
    bits, bytes : int
        Multiply-adds per clock of one multiprocessor, of one-bit and of 8-bit integers; `bits` is 0 if the one-bit AND is emulated.
    clock_mhz : float
    load_bytes : float
        Bytes per clock that one multiprocessor reads from the L2 while all of them do.
    memory_bytes_per_us : float
    launch_us : float
        Time of launching a kernel in a replayed graph.
    fewer_blocks : int
        How much lower the launch bounds of kernels are than on Hopper, since the compiler uses more registers.
    warpgroups, small_products : WarpgroupRates
    mixed_products : MixedRates
    resident_products : ResidentRates
    rows : RowRates
    bit_sums : BitRates
    panels : PanelRates
    float_products : FloatProducts
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
    panels: PanelRates = PanelRates()
    float_products: FloatProducts = FloatProducts()


#: Matrix rates are measured for 9.0 (``limits.py``) and taken from data sheets for the others: dense int8; the one-bit AND has 8 times that
#: rate up to 9.0, and is compiled to many instructions on 10.0 and 12.0. Memory: 0.9 times the data sheet's rate of the slowest card.
CHIPS: dict[tuple[int, int], Chip] = {
    (8, 0): Chip(Capability("NVIDIA A100", 8, 0, 108, 166912, 41943040), 16384, 2048, 1410.0, 27.0, 1.4e6),
    (8, 6): Chip(Capability("NVIDIA RTX A6000", 8, 6, 84, 101376, 6291456), 8192, 1024, 1700.0, 18.0, 0.54e6),
    (8, 7): Chip(Capability("Orin", 8, 7, 16, 166912, 4194304), 8192, 1024, 1300.0, 16.0, 0.18e6),
    (8, 9): Chip(Capability("NVIDIA L40S", 8, 9, 142, 101376, 100663296), 8192, 1024, 2400.0, 20.0, 0.78e6),
    (9, 0): Chip(Capability("NVIDIA H200", 9, 0, 132, 232448, 62914560), 19400, 2430, 1850.0, 32.0, 4.2e6, 1.8, 0),
    (10, 0): Chip(Capability("NVIDIA B200", 10, 0, 148, 232448, 132120576), 0, 2048, 1800.0, 32.0, 6.5e6),
    (12, 0): Chip(Capability("NVIDIA RTX PRO 6000", 12, 0, 188, 101376, 134217728), 0, 1024, 2300.0, 20.0, 1.5e6),
}

#: Any other chip. Nothing is known about its one-bit instruction, so products use bytes.
UNKNOWN = Chip(Capability("unknown", 8, 0, 64, 101376, 4194304), 0, 1024, 1400.0, 16.0, 0.4e6)


def chip_of(capability: Capability) -> Chip:
    """The rates of a device; an unknown chip gets low guesses.

    Examples
    --------
    >>> chip_of(Capability("NVIDIA A100", 8, 0, 108, 166912, 41943040)).bits
    16384
    >>> chip_of(Capability("NVIDIA B200", 10, 0, 148, 232448, 132120576)).bits
    0
    """
    return CHIPS.get((capability.major, capability.minor), UNKNOWN)


def chip_here() -> Chip:
    """The table's row for the current device."""
    return chip_of(jit.capability())


#: The chip that was measured.
H200 = CHIPS[9, 0]

#: The chips that a release is compiled for, by architecture.
RELEASED = {chip.card.arch: chip for chip in CHIPS.values() if chip.card.arch in jit.ARCHS}


def _variants() -> list[jit.Variant]:
    """Variants of the kernels with which ``benchmarks/limits.py`` measures rates."""
    found = jit.variants_of("limits/memory.cu", "read_all")
    for kind in ({}, {"BS_BYTES": 1}):
        found += jit.variants_of("limits/instructions.cu", "matrix_rate", [kind | {"BS_NB": 1}])
        groups = [kind | {"BS_NB": nb, "BS_WARPGROUP": 1} for nb in (1, 2, 4)]
        found += jit.variants_of("limits/instructions.cu", "matrix_rate", groups, "sm_90a")
    return found


VARIANTS = _variants()

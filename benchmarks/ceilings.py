"""Lower bounds and estimates of times on an H200: ``floor_ms`` and ``estimate_ms`` of every record.

A **floor** follows from the hardware: units, widths of ports, the highest clock, the memory's stated rate. Operands that fit into the L2
need not be read from memory in a warm call, so only bytes beyond its size count for the memory. An **estimate** uses the rates that
``limits.py`` measured; caches and lucky orders can beat it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

__all__ = [
    "BIT_RATE",
    "BYTE_RATE",
    "LINK_PEAK",
    "MEMORY_RATE",
    "NO_REUSE",
    "READ_RATE",
    "Bounds",
    "bounds",
    "gather_bounds",
    "gather_ms",
    "product_bounds",
    "row_rate",
]

# ---- the hardware
MULTIPROCESSORS, CLOCK = 132, 1.98e9
#: Operations per second on bytes and on bits; an addition and a multiplication count as two.
BYTE_PEAK = 8192 * MULTIPROCESSORS * CLOCK
BIT_PEAK = 8 * BYTE_PEAK
#: Bytes per second: the memory (stated), between L2 and multiprocessors (64 bytes per clock each way), and PCIe 5 with 16 lanes.
MEMORY_PEAK = 4.8e12
L2_PEAK = 2 * 64 * MULTIPROCESSORS * CLOCK
LINK_PEAK = 63.1e9
L2_BYTES = 60 << 20

# ---- rates measured by limits.py
#: Operations per second of the one-bit and the byte matrix unit; bytes per second of a copy (both directions) and of reading.
BIT_RATE, BYTE_RATE = 15.4e15, 1.93e15
MEMORY_RATE, READ_RATE = 4.0e12, 4.5e12
#: Billions of random rows per second, by bytes of a row: (rows in the table, rate). Measured with 4 loads in flight.
ROW_RATES = {
    8: ((50_000, 178), (131_072, 168), (233_000, 158), (370_000, 157), (2_449_029, 154), (111_000_000, 44)),
    16: ((50_000, 155), (131_072, 161), (233_000, 156), (370_000, 155), (2_449_029, 110), (111_000_000, 43)),
    32: ((50_000, 145), (131_072, 145), (233_000, 144), (370_000, 143), (2_449_029, 64), (111_000_000, 40)),
    64: ((50_000, 141), (131_072, 135), (233_000, 135), (370_000, 130), (2_449_029, 50), (111_000_000, 40)),
}
#: Billions of bytes per second of random rows of 128 bytes and more: (megabytes of the table, rate). The best over all lengths.
BYTE_RATES = ((4, 9_100), (16, 9_000), (24, 8_600), (64, 7_300), (256, 5_110), (1_024, 4_560), (4_096, 4_300))
_WIDE = 128
#: Below this many edges per column that a window of 16 rows touches, rows are hardly used twice, so gathering decides the time.
NO_REUSE = 1.25


class Bounds(NamedTuple):
    """Two times in milliseconds: a lower bound that nothing can beat, and the estimate from measured rates."""

    floor_ms: float
    estimate_ms: float


def bounds(
    moved: float, *, byte_operations: float = 0.0, bit_operations: float = 0.0, rate: float = MEMORY_RATE
) -> Bounds:
    """Bounds of a call that touches `moved` bytes and makes this many operations on the matrix units."""
    built = (
        byte_operations / BYTE_PEAK,
        bit_operations / BIT_PEAK,
        moved / L2_PEAK,
        max(0.0, moved - L2_BYTES) / MEMORY_PEAK,
    )
    measured = (byte_operations / BYTE_RATE, bit_operations / BIT_RATE, moved / rate)
    return Bounds(1e3 * max(built), 1e3 * max(measured))


def product_bounds(kernel: str, m: int, k: int, n: int, a_bits: int, b_bits: int, moved: int) -> Bounds:
    """Bounds of a product of packed integers by bit planes or by bytes; the floor is that of the cheaper way."""
    planes = 2.0 * m * k * n * a_bits * b_bits
    digits = 2.0 * m * k * n * -(-a_bits // 8) * -(-b_bits // 8)
    cheaper = {"bit_operations": planes} if planes / BIT_PEAK < digits / BYTE_PEAK else {"byte_operations": digits}
    chosen = {"bit_operations": planes} if kernel == "planes" else {"byte_operations": digits}
    return Bounds(bounds(moved, **cheaper).floor_ms, bounds(moved, **chosen).estimate_ms)


def gather_bounds(edges: int, row_bytes: int, rows: int, moved: int, reuse: float) -> tuple[Bounds, dict[str, Any]]:
    """Bounds of a sum or product over edges that fetches a row for each, and facts about the estimate for the record.

    If rows are hardly used twice, the estimate is the time to fetch a row for every edge at the measured rate, else that to move every
    array once.
    """
    gather, (floor, compulsory) = gather_ms(edges, row_bytes, rows), bounds(moved)
    gathers = reuse < NO_REUSE and gather > compulsory
    facts = {"gather_ms": gather, "compulsory_ms": compulsory, "gathered": edges * row_bytes}
    return Bounds(floor, gather if gathers else compulsory), facts | {"estimate": "gather" if gathers else "bytes"}


def gather_ms(edges: int, row_bytes: int, rows: int) -> float:
    """Milliseconds to gather a random row of a table for each edge, all edges at the measured rate of the card."""
    return 1e3 * edges / row_rate(row_bytes, rows)


def row_rate(row_bytes: int, rows: int) -> float:
    """Random rows per second, interpolated between measurements (both axes logarithmic)."""
    lengths = sorted(ROW_RATES)
    at = [(length, 1e9 * _between(ROW_RATES[length], rows)) for length in lengths]
    wide = [(b, 1e9 * _between(BYTE_RATES, rows * b / 1e6) / b) for b in (_WIDE, max(_WIDE, row_bytes))]
    return _between([*at, *dict(wide).items()], row_bytes)


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    """A piecewise power law through the points, constant outside."""
    if x <= points[0][0]:
        return float(points[0][1])
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return math.exp(math.log(y0) + math.log(y1 / y0) * math.log(x / x0) / math.log(x1 / x0))
    return float(points[-1][1])

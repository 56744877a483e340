"""What others reach on the same card, and what the card gives: the table of the field, and limits of gathering.

``field-h200.csv`` holds times of published kernels on one H200 (CUDA events, median of 20 and more, warm) for the graphs of
``cases/graphs.py``. They are carried over to another run by the ratio of cuSPARSE's times for the same graph and width, here and there.
An entry counts as correct by the largest relative error that it was seen with (column ``max_rel_err``).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

__all__ = ["GRAPHS", "Entry", "best", "field_ms", "gather_ms", "matches", "vendor_ms"]

#: Real graphs with entries in the table.
GRAPHS = ("COLLAB", "DD", "amazon_computers", "artist", "pubmed", "soc_slashdot0902")
#: The largest error that still counts as correct.
TOLERANCE = {"fp32": 1e-6, "tf32": 2e-3, "fp16": 5e-2, "bf16": 5e-2}
#: Bytes a second of the memory, both directions.
MEMORY_RATE = 4.0e12
#: Billions of random rows a second, by bytes of a row: (rows in the table, rate). Measured, 4 loads in flight.
ROW_RATES = {
    8: ((50_000, 178), (131_072, 168), (233_000, 158), (370_000, 157), (2_449_029, 154), (111_000_000, 44)),
    16: ((50_000, 155), (131_072, 161), (233_000, 156), (370_000, 155), (2_449_029, 110), (111_000_000, 43)),
    32: ((50_000, 145), (131_072, 145), (233_000, 144), (370_000, 143), (2_449_029, 64), (111_000_000, 40)),
    64: ((50_000, 141), (131_072, 135), (233_000, 135), (370_000, 130), (2_449_029, 50), (111_000_000, 40)),
}
#: Billions of bytes a second of random rows of 128 bytes and more: (megabytes of the table, rate). The best measured of all lengths.
BYTE_RATES = ((4, 9_100), (16, 9_000), (24, 8_600), (64, 7_300), (256, 5_110), (1_024, 4_560), (4_096, 4_300))
_WIDE = 128


class Entry(NamedTuple):
    """One measured time of somebody's kernel."""

    graph: str
    op: str
    columns: int
    peer: str
    variant: str
    ms: float
    error: float

    @property
    def name(self) -> str:
        """Whose kernel, and which."""
        return f"{self.peer} {self.variant}"

    @property
    def pattern_only(self) -> bool:
        """Whether it knows no values of edges."""
        return "ones" in self.variant.split("_")

    @property
    def half(self) -> bool:
        """Whether its features have 16 bits."""
        return "fp16" in self.variant.split("_")


@cache
def entries() -> tuple[Entry, ...]:
    """The whole table."""
    path = Path(__file__).resolve().parent / "field-h200.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            Entry(
                row["graph"],
                row["op"],
                int(row["D"]),
                row["peer"],
                row["variant"],
                float(row["ms"]),
                float(row["max_rel_err"]),
            )
            for row in csv.DictReader(file)
        )


def matches(entry: Entry, op: str, precision: str, *, pattern: bool) -> bool:
    """Whether a correct entry does the same work: fp32 meets fp32, TF32 both, 16 bits only 16 bits; a pattern meets patterns."""
    if entry.op != op or entry.pattern_only != pattern or not entry.error <= TOLERANCE[precision]:
        return False
    return entry.half == (precision in ("fp16", "bf16"))


def best(graph: str, columns: int, precision: str, *, op: str = "spmm", pattern: bool = False) -> Entry | None:
    """The fastest entry of a cell, None if there is none."""
    found = [e for e in entries() if (e.graph, e.columns) == (graph, columns)]
    return min((e for e in found if matches(e, op, precision, pattern=pattern)), key=lambda e: e.ms, default=None)


def vendor_ms(graph: str, columns: int, *, op: str = "spmm") -> float | None:
    """The table's time of cuSPARSE in float32, by which its other times are carried over."""
    found = [e for e in entries() if (e.graph, e.columns, e.op, e.peer) == (graph, columns, op, "cusparse")]
    return min((e.ms for e in found if matches(e, op, "fp32", pattern=False)), default=None)


def field_ms(
    graph: str, columns: int, precision: str, vendor_here: float, *, op: str = "spmm", pattern: bool = False
) -> tuple[float, str] | None:
    """The field's time of a cell on this machine, and whose it is; ``vendor_here`` is cuSPARSE's float32 time measured here."""
    entry, there = best(graph, columns, precision, op=op, pattern=pattern), vendor_ms(graph, columns, op=op)
    if entry is None or there is None:
        return None
    return entry.ms * vendor_here / there, entry.name


# ---- limits
def gather_ms(edges: int, row_bytes: int, rows: int) -> float:
    """Milliseconds to gather a random row of a table for each edge, all edges at the measured limit of the card."""
    return 1e3 * edges / row_rate(row_bytes, rows)


def row_rate(row_bytes: int, rows: int) -> float:
    """Random rows a second, interpolated between what was measured (both axes logarithmic)."""
    lengths = sorted(ROW_RATES)
    at = [(length, 1e9 * _between(ROW_RATES[length], rows)) for length in lengths]
    wide = [(b, 1e9 * _between(BYTE_RATES, rows * b / 1e6) / b) for b in (_WIDE, max(_WIDE, row_bytes))]
    return _between([*at, *dict(wide).items()], row_bytes)


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    """Piecewise power law through the points; constant outside."""
    if x <= points[0][0]:
        return float(points[0][1])
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return math.exp(math.log(y0) + math.log(y1 / y0) * math.log(x / x0) / math.log(x1 / x0))
    return float(points[-1][1])

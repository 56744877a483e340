"""The table of the field: times of other people's kernels on the same kind of card.

``field-h200.csv`` holds times of published kernels on one H200 (CUDA events, median of 20 and more, warm) for the graphs of
``cases/graphs.py``. To compare them with another run, they are scaled by the ratio of cuSPARSE's times for the same graph and width in that
run and in the table. The largest relative error observed (column ``max_rel_err``) decides whether an entry counts as correct.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["GRAPHS", "Entry", "best", "field_ms", "matches", "vendor_ms"]

#: Real graphs with entries in the table.
GRAPHS = ("COLLAB", "DD", "amazon_computers", "artist", "pubmed", "soc_slashdot0902")
#: The largest error that still counts as correct.
TOLERANCE = {"fp32": 1e-6, "tf32": 2e-3, "fp16": 5e-2, "bf16": 5e-2}


class Entry(NamedTuple):
    """One measured time of a published kernel."""

    graph: str
    op: str
    columns: int
    peer: str
    variant: str
    ms: float
    error: float

    @property
    def name(self) -> str:
        """The project and the variant of the kernel."""
        return f"{self.peer} {self.variant}"

    @property
    def pattern_only(self) -> bool:
        """Whether the kernel supports no values of edges."""
        return "ones" in self.variant.split("_")

    @property
    def half(self) -> bool:
        """Whether the kernel's features have 16 bits."""
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
    """Whether an entry does the same work correctly: fp32 is compared with fp32, TF32 with both, 16 bits and patterns with their like."""
    if entry.op != op or entry.pattern_only != pattern or not entry.error <= TOLERANCE[precision]:
        return False
    return entry.half == (precision in ("fp16", "bf16"))


def best(graph: str, columns: int, precision: str, *, op: str = "spmm", pattern: bool = False) -> Entry | None:
    """The fastest entry of a cell, or None."""
    found = [e for e in entries() if (e.graph, e.columns) == (graph, columns)]
    return min((e for e in found if matches(e, op, precision, pattern=pattern)), key=lambda e: e.ms, default=None)


def vendor_ms(graph: str, columns: int, *, op: str = "spmm") -> float | None:
    """The table's time of cuSPARSE in float32, by which its other times are scaled."""
    found = [e for e in entries() if (e.graph, e.columns, e.op, e.peer) == (graph, columns, op, "cusparse")]
    return min((e.ms for e in found if matches(e, op, "fp32", pattern=False)), default=None)


def field_ms(
    graph: str, columns: int, precision: str, vendor_here: float, *, op: str = "spmm", pattern: bool = False
) -> tuple[float, str] | None:
    """The field's time of a cell, scaled to this machine, and its kernel; ``vendor_here`` is cuSPARSE's float32 time here."""
    entry, there = best(graph, columns, precision, op=op, pattern=pattern), vendor_ms(graph, columns, op=op)
    if entry is None or there is None:
        return None
    return entry.ms * vendor_here / there, entry.name

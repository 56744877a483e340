"""The bars of suite ``gemm`` for randomly drawn shapes; ``summary.py`` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.suites.bars import Bar

__all__ = ["bars"]

#: A cell with at least this ratio does not count as slower than the peer: times repeat only to a few percent.
LEVEL = 0.95


def bars(records: Sequence[dict[str, Any]]) -> list[Bar]:
    """All bars; bars without cells are included, empty."""
    cells = {record["case"]: record for record in records if record["case"].startswith("random-") and record["ratio"]}
    ratios = {case: record["ratio"] for case, record in cells.items()}
    widths = sorted({case.split("-")[1] for case in ratios})
    share = {f"{len(ratios)} cells": sum(ratio >= LEVEL for ratio in ratios.values()) / len(ratios)} if ratios else {}
    return [
        Bar("random products, cuBLASLt int8", ratios, (1.9, 2.3), (0.85, LEVEL)),
        Bar(f"  share of cells at {LEVEL:.2f} and more", share, (0.98, 1.0)),
        *(Bar(f"  {width} bits", {c: r for c, r in ratios.items() if c.split("-")[1] == width}) for width in widths),
    ]

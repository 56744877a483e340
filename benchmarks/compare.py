"""Compare the records of two commits: is the new one slower?

    python3 benchmarks/compare.py OLD NEW [--least 0.93] [--mean 0.98]

OLD and NEW are files of records (``run.py --json``) or folders of them; commas separate several in one argument. All should come from one
machine. If a case occurs several times on a side, its median counts, and its spread is the longest time divided by the shortest. A ratio is
old over new, so the new commit is faster if it is above 1; a suite's mean is geometric. A cell is slower if its ratio is below ``--least``
and even the shortest new time is longer than the longest old one. The exit code is 1 if a cell is slower or if the mean of a suite is below
``--mean``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

#: The times of every case, by suite and case.
Times = dict[tuple[str, str], list[float]]
HEADINGS = ("suite", "cells", "mean", "worst", "spread old", "spread new", "slower", "worst cell")


class Cell(NamedTuple):
    """A case on both sides."""

    suite: str
    case: str
    old: list[float]
    new: list[float]

    @property
    def ratio(self) -> float:
        """The median old time divided by the median new time."""
        return median(self.old) / median(self.new)

    def is_slower(self, least: float) -> bool:
        """Whether the ratio is too small and the times of both sides do not overlap."""
        return self.ratio < least and min(self.new) > max(self.old)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each suite and each slower cell."""
    parser = argparse.ArgumentParser(description="Compare records of two commits on one machine.")
    parser.add_argument("old", help="files or folders of records, with commas between them")
    parser.add_argument("new", help="the same of the later commit")
    parser.add_argument(
        "--least", type=float, default=0.93, help="ratio below which a cell may be slower (default: 0.93)"
    )
    parser.add_argument(
        "--mean", type=float, default=0.98, help="ratio that every suite's mean reaches (default: 0.98)"
    )
    options = parser.parse_args(arguments)
    sides = [times_of(side.split(",")) for side in (options.old, options.new)]
    cells = [Cell(*key, sides[0][key], sides[1][key]) for key in sides[0] if key in sides[1]]
    if not cells:
        print("compare.py: no timed case stands on both sides", file=sys.stderr)
        return 2
    suites = list(dict.fromkeys(cell.suite for cell in cells))
    rows = [row([cell for cell in cells if cell.suite == suite], options.least) for suite in suites]
    for line in ([*HEADINGS], *rows):
        print("  ".join(text.ljust(12) if i == 0 else text.rjust(10) for i, text in enumerate(line)).rstrip())
    slower = [cell for cell in cells if cell.is_slower(options.least)]
    for cell in sorted(slower, key=lambda cell: cell.ratio):
        times = (f"{min(side):.6g} to {max(side):.6g}" for side in (cell.old, cell.new))
        print(f"slower: {cell.suite} {cell.case}: {cell.ratio:.3f}, {' then '.join(times)} ms")
    for name, one, other in (("old", *sides), ("new", *sides[::-1])):
        alone = [case for suite, case in one if (suite, case) not in other]
        if alone:
            print(f"only on the {name} side: {', '.join(alone)}")
    means = [mean([cell for cell in cells if cell.suite == suite]) for suite in suites]
    return int(bool(slower) or min(means) < options.mean)


def times_of(places: Iterable[str]) -> Times:
    """The times of our side in all records in files and folders."""
    found: Times = {}
    for place in map(Path, places):
        for path in sorted(place.rglob("*.jsonl")) if place.is_dir() else [place]:
            for line in path.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                if record.get("ours_ms"):
                    found.setdefault((record["suite"], record["case"]), []).append(record["ours_ms"])
    return found


def mean(cells: Sequence[Cell]) -> float:
    """Geometric mean of the ratios."""
    return math.exp(sum(math.log(cell.ratio) for cell in cells) / len(cells))


def row(cells: Sequence[Cell], least: float) -> list[str]:
    """A suite's line of the table; the spreads are those of its worst cell."""
    worst = min(cells, key=lambda cell: cell.ratio)
    spreads = [f"{max(side) / min(side):.3f}" if len(side) > 1 else "-" for side in (worst.old, worst.new)]
    slower = sum(cell.is_slower(least) for cell in cells)
    return [worst.suite, str(len(cells)), f"{mean(cells):.3f}", f"{worst.ratio:.3f}", *spreads, str(slower), worst.case]


if __name__ == "__main__":
    sys.exit(main())

"""A bar of a suite: ratios of cells, and what their mean and the worst must reach; ``summary.py`` prints it as a line of a table."""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["HEADINGS", "Bar", "row"]

HEADINGS = ("bar", "cells", "mean", "must", "aim", "worst", "must", "aim", "worst cell", "holds")


class Bar(NamedTuple):
    """A line of the summary: the ratios of its cells, and pairs (must, aim) for their geometric mean and for the worst."""

    title: str
    cells: dict[str, float]
    mean: tuple[float | None, float | None] = (None, None)
    worst: tuple[float | None, float | None] = (None, None)


def row(bar: Bar) -> list[str]:
    """Format a bar as a line of the table."""
    mean = math.exp(sum(map(math.log, bar.cells.values())) / len(bar.cells))
    worst = min(bar.cells, key=bar.cells.__getitem__)
    # Compared at the two printed digits: times repeat only to a percent.
    holds = all(
        limit is None or round(value, 2) >= limit
        for value, limit in ((mean, bar.mean[0]), (bar.cells[worst], bar.worst[0]))
    )
    judged = bar.mean[0] is not None or bar.worst[0] is not None
    numbers = [mean, *bar.mean, bar.cells[worst], *bar.worst]
    texts = ["-" if number is None else f"{number:.2f}" for number in numbers]
    return [bar.title, str(len(bar.cells)), *texts, worst, ("yes" if holds else "NO") if judged else "-"]

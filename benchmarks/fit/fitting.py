"""Shared parts of all families: measured variants, constants that explain their times, and the loss of a choice among variants.

Errors are relative, because a model must rank kernels that take from microseconds to milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

__all__ = ["Fit", "Row", "losses", "misses", "search", "solve"]

Facts = Mapping[str, Any]
Values = dict[str, float]


class Row(NamedTuple):
    """A timed variant of a kernel.

    Attributes
    ----------
    cell : str
        The computation; rows of one cell have the same result.
    variant : str
        The variant that computed it.
    facts : dict
        The input of a model.
    us : float
    chosen : bool
        Whether the library would choose this variant.
    """

    cell: str
    variant: str
    facts: dict[str, Any]
    us: float
    chosen: bool = False


class Fit(NamedTuple):
    """Constants that are fitted to rows, and where the library keeps them.

    Attributes
    ----------
    title, place : str
        A description of the constants, and where the library keeps them.
    fit : callable
        Maps rows to constants by name.
    predict : callable or None
        Maps constants and facts to microseconds; None for constants that only decide and estimate no time.
    takes : callable
        Whether a row belongs to this fit.
    """

    title: str
    place: str
    fit: Callable[[Sequence[Row]], Values]
    predict: Callable[[Values, Facts], float] | None
    takes: Callable[[Row], bool]


def solve(rows: Sequence[Row], terms: Callable[[Facts], Mapping[str, float]]) -> Values:
    """Fit a linear model without negative constants, ``us = sum(constant * term)``, by least squares of relative errors.

    Examples
    --------
    >>> rows = [Row("c", "v", {"edges": n}, 2.0 + 0.5 * n) for n in (1, 10, 100)]
    >>> found = solve(rows, lambda facts: {"start": 1.0, "edge": facts["edges"]})
    >>> {name: round(value, 6) for name, value in found.items()}
    {'start': 2.0, 'edge': 0.5}
    """
    each = [terms(row.facts) for row in rows]
    names = list(dict.fromkeys(name for one in each for name in one))
    matrix = np.array([[one.get(name, 0.0) / row.us for name in names] for one, row in zip(each, rows, strict=True)])
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    found, _ = nnls(matrix / scale, np.ones(len(rows)))
    return dict(zip(names, (float(value) for value in found / scale), strict=True))


def search(
    rows: Sequence[Row],
    predict: Callable[[Values, Facts], float],
    start: Values,
    *,
    rounds: int = 60,
    stay: float = 0.0,
) -> Values:
    """Fit the constants of any model from a start: each in turn is made larger or smaller as long as that reduces the error.

    With ``stay``, a constant that differs from its start counts like a row that is missed by that share of the difference (both in
    logarithms), so that few rows do not move constants on which they hardly depend.

    Examples
    --------
    >>> rows = [Row("c", "v", {"n": n}, max(3.0, 0.25 * n)) for n in (1, 8, 20, 40)]
    >>> found = search(rows, lambda v, facts: max(v["least"], v["each"] * facts["n"]), {"least": 1.0, "each": 1.0})
    >>> {name: round(value, 3) for name, value in found.items()}
    {'least': 3.0, 'each': 0.25}
    """
    best, step = dict(start), 0.5

    def error_of(values: Values) -> float:
        moved = sum(math.log(values[name] / start[name]) ** 2 for name in start) if stay else 0.0
        return _error(rows, predict, values) + stay**2 * moved

    error = error_of(best)
    for _ in range(rounds):
        before = error
        for name in best:
            for factor in (1 + step, 1 / (1 + step)):
                tried = best | {name: best[name] * factor}
                found = error_of(tried)
                if found < error:
                    best, error = tried, found
        if error > before * (1 - 1e-3):
            step /= 2
        if step < 1e-5:
            break
    return best


def _error(rows: Iterable[Row], predict: Callable[[Values, Facts], float], values: Values) -> float:
    """The sum of squares of log(estimate / time)."""
    return sum(math.log(max(predict(values, row.facts), 1e-9) / row.us) ** 2 for row in rows)


def misses(rows: Sequence[Row], predict: Callable[[Values, Facts], float], values: Values) -> tuple[float, float]:
    """The mean and the largest factor between estimate and time."""
    factors = [abs(math.log(predict(values, row.facts) / row.us)) for row in rows]
    return math.exp(sum(factors) / len(factors)), math.exp(max(factors))


def losses(rows: Iterable[Row]) -> dict[str, tuple[float, str]]:
    """For each cell, the time of the library's choice divided by the shortest time, and the name of the fastest variant.

    Examples
    --------
    >>> losses([Row("c", "a", {}, 1.2, True), Row("c", "b", {}, 1.0), Row("d", "a", {}, 1.0)])
    {'c': (1.2, 'b')}
    """
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(row.cell, []).append(row)
    found = {}
    for cell, some in cells.items():
        best, taken = min(some, key=lambda row: row.us), [row.us for row in some if row.chosen]
        if taken:
            found[cell] = (min(taken) / best.us, best.variant)
    return found

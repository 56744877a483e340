"""Products of packed integers on a CPU: every kernel at every SIMD level of the processor, and the figures behind ``cost``.

Shapes are drawn from a seed (16 to 2048 rows and columns, contractions of 64 to 4096, mostly ragged), with 1 to 8 bits on each side and a
few wider ones, up to 3e9 products of one bit. A time is the shortest of several calls, measured as CPU time of the single thread that they
run on; the kernels of a level take turns. A quarter of the shapes is held out of the fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.fit.fitting import Facts, Fit, Row, Values, solve
from bitsparse.backends import host
from bitsparse.backends.host.matmul.costs import BYTE, cost, terms
from bitsparse.backends.host.matmul.matmul import KERNELS

__all__ = ["FITS", "held_out", "measured", "shapes", "verdict"]

SEED, SHAPES, MOST = 11, 72, 3e9
#: Calls of one kernel on one shape go on for this many seconds, and number at least this many.
SECONDS, CALLS = 0.04, 3
LEVELS = host.simd_levels()
_SIZES = ("m", "n", "k", "a_bits", "b_bits")


def shapes(count: int = SHAPES, seed: int = SEED) -> list[tuple[int, int, int, int, int]]:
    """Draw shapes: rows, columns, contraction and the bits of both sides.

    >>> len(shapes(5)), shapes(5) == shapes(5)
    (5, True)
    """
    rng = np.random.default_rng(seed)
    found: list[tuple[int, int, int, int, int]] = []
    while len(found) < count:
        m, n, k = (int(2 ** rng.uniform(*ends)) for ends in ((4, 11), (4, 11), (6, 12)))
        a_bits, b_bits = (int(rng.choice([1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 12])) for _ in range(2))
        if m * n * k * a_bits * b_bits <= MOST:
            found.append((m, n, k, a_bits, b_bits))
    return found


def _terms(facts: Facts) -> dict[str, float]:
    """The amounts that the library counts, in thousands, because its rates are in nanoseconds and times in microseconds."""
    amounts = terms(facts["kernel"], *(facts[name] for name in _SIZES))
    return {name: amount / 1e3 for name, amount in amounts.items()}


def _predict(values: Values, facts: Facts) -> float:
    return sum(values.get(name, 0.0) * amount for name, amount in _terms(facts).items())


def held_out(row: Row) -> bool:
    """Whether a row is held out of the fit."""
    return sum(row.facts[name] for name in _SIZES) % 4 == 0


def _fitted(rows: Sequence[Row]) -> Values:
    return solve([row for row in rows if not held_out(row)], _terms)


def _takes(level: str, kernel: str, row: Row) -> bool:
    return (row.facts["level"], row.facts["kernel"]) == (level, kernel)


FITS = tuple(
    Fit(
        f"{kernel}, {level}",
        "RATES of backends/host/matmul/costs.py",
        _fitted,
        _predict,
        partial(_takes, level, kernel),
    )
    for level in LEVELS
    for kernel in KERNELS
)


def verdict(rows: Sequence[Row], constants: Sequence[Values]) -> Iterator[str]:
    """Report how much the choice by these constants loses on shapes held out of the fit."""
    cells: dict[str, list[tuple[float, float]]] = {}
    for fit, values in zip(FITS, constants, strict=True):
        for row in rows:
            if fit.takes(row) and held_out(row):
                cells.setdefault(row.cell, []).append((_predict(values, row.facts), row.us))
    for level in LEVELS:
        some = {
            cell: min(pairs)[1] / min(us for _, us in pairs) for cell, pairs in cells.items() if cell.endswith(level)
        }
        if some:
            worst, mean = max(some, key=some.__getitem__), float(np.exp(np.mean(np.log(list(some.values())))))
            yield f"{level}: the choice by these on {len(some)} shapes held out loses {mean:.3f}x, at worst {some[worst]:.2f}x ({worst})"


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of all kernels."""
    threads = host.get_num_threads()
    host.set_num_threads(1)
    try:
        for m, n, k, a_bits, b_bits in shapes():
            rng = np.random.default_rng(0)
            a = bs.BitTensor(rng.integers(0, 1 << a_bits, (m, k)), a_bits)
            b = bs.BitTensor(rng.integers(0, 1 << b_bits, (k, n)), b_bits, axis=-2)
            for level in LEVELS:
                cell = f"{a_bits}x{b_bits}-{m}x{k}x{n}-{level}"
                if not any(part in cell for part in only):
                    continue
                host.set_simd(level)
                names = [name for name in KERNELS if name != "bytes" or max(a_bits, b_bits) <= BYTE]
                plans = {name: bs.plan_matmul(a, n, bits=b_bits, kernel=name, skip_zero_tiles=False) for name in names}
                costs = {name: cost(name, m, n, k, a_bits, b_bits) for name in names}
                least = _least(
                    {name: partial(plan, b, out=np.empty((m, n), plan.acc_dtype)) for name, plan in plans.items()}
                )
                facts: dict[str, Any] = dict(zip(_SIZES, (m, n, k, a_bits, b_bits), strict=True)) | {"level": level}
                for name, us in least.items():
                    yield Row(cell, name, facts | {"kernel": name}, us, costs[name] == min(costs.values()))
    finally:
        host.set_simd(None)
        host.set_num_threads(threads)


def _least(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The shortest time of each call in microseconds, measured in turns."""
    found = dict.fromkeys(calls, np.inf)
    begin, turns = time.perf_counter(), 0
    while turns < CALLS or time.perf_counter() - begin < SECONDS * len(calls):
        for name, call in calls.items():
            start = time.thread_time()
            call()
            found[name] = min(found[name], 1e6 * (time.thread_time() - start))
        turns += 1
        if turns >= CALLS and time.perf_counter() - begin > 100 * SECONDS:
            break
    return found

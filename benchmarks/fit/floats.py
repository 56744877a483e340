"""Products of tall float32 matrices with small ones, and over their rows: our kernels on matrix units and cuBLAS in float32.

Cells are sizes of layers' products and of their gradients by the weights. A product over rows is computed as it stands, and with both of
its factors exchanged. The fit finds the limits within which our kernels are taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.cases.sparse_gpu import Timed, in_turns
from benchmarks.fit.fitting import Fit, Row, Values
from bitsparse import jit
from bitsparse.backends.cuda.chips import H200, FloatProducts
from bitsparse.backends.cuda.matmul import floats

__all__ = ["FITS", "measured"]

PRODUCTS, REDDIT, ARTIST, PUBMED, CORA = 2_449_029, 232_965, 50_515, 19_717, 2_708
#: Rows, columns of the features, and columns of the result.
SIZES = (
    *((PRODUCTS, *pair) for pair in ((100, 128), (128, 128), (128, 47), (47, 128), (64, 64), (100, 32), (128, 188))),
    *((PRODUCTS, *pair) for pair in ((188, 128), (32, 16))),
    *((REDDIT, *pair) for pair in ((602, 128), (602, 64), (602, 32), (128, 41), (41, 128), (128, 128), (64, 64))),
    *((ARTIST, *pair) for pair in ((100, 128), (128, 12))),
    *((PUBMED, *pair) for pair in ((500, 128), (128, 16))),
    *((CORA, *pair) for pair in ((1433, 128), (128, 16))),
)
REPETITIONS = 5
PEER, OURS, EXCHANGED = "cublas", "ours", "exchanged"
#: Values among which the limits are chosen.
CHOICES: dict[str, tuple[int, ...]] = {
    "least_rows": (1 << 12, 1 << 14, 1 << 16),
    "least_steps": (1 << 25, 1 << 27, 1 << 29, 1 << 31),
    "narrow": (0, 16, 32, 64),
    "shallow": (0, 64, 128, 256),
    "over_rows_narrow": (0, 16, 32, 64),
    "over_rows_wide": (128, 256, 512, 1 << 20),
}


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of all ways to compute the products, in replayed graphs."""
    cupy = jit.require_cupy("fit")
    for rows, depth, columns in SIZES:
        name = f"{rows}x{depth}-{columns}"
        if not any(part in name for part in only):
            continue
        random = cupy.random.default_rng(0)
        x, weight, gradient = (
            random.standard_normal(shape, dtype="float32")
            for shape in ((rows, depth), (columns, depth), (rows, columns))
        )
        facts = {"rows": rows, "depth": depth, "columns": columns}
        out, over, turned = (cupy.empty(shape, "float32") for shape in ((rows, columns), weight.shape, weight.T.shape))
        yield from _ways(
            name,
            facts | {"over_rows": False},
            {
                PEER: partial(cupy.matmul, x, weight.T, out=out),
                OURS: partial(floats.product, x, weight, out),
            },
        )
        yield from _ways(
            f"{name}-over_rows",
            facts | {"over_rows": True},
            {
                PEER: partial(cupy.matmul, gradient.T, x, out=over),
                OURS: partial(floats.product_over_rows, gradient, x, over),
                EXCHANGED: partial(floats.product_over_rows, x, gradient, turned),
            },
        )


def _ways(cell: str, facts: dict[str, Any], calls: dict[str, Any]) -> Iterator[Row]:
    timed = [Timed(call, name) for name, call in calls.items()]
    chosen = choice(H200.float_products, facts)
    for one, ms in zip(timed, in_turns(timed, REPETITIONS), strict=True):
        yield Row(cell, one.name, facts, 1e3 * ms, one.name == chosen)


def choice(limits: FloatProducts, facts: Any) -> str:
    """The way that is taken within these limits."""
    if facts["over_rows"]:
        return {0: PEER, 1: OURS, -1: EXCHANGED}[
            floats.winning_order(limits, facts["rows"], facts["columns"], facts["depth"])
        ]
    return OURS if floats.wins(limits, facts["rows"], facts["depth"], facts["columns"]) else PEER


def limits_of(rows: Sequence[Row]) -> Values:
    """The limits with which the choice loses least against the quickest way of each cell."""
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(row.cell, {})[row.variant] = row
    shared, own = (
        ("least_rows", "least_steps"),
        {False: ("narrow", "shallow"), True: ("over_rows_narrow", "over_rows_wide")},
    )
    best: tuple[float, dict[str, int]] = (math.inf, {})
    for common in itertools.product(*(CHOICES[name] for name in shared)):
        found, loss = dict(zip(shared, common, strict=True)), 0.0
        for over_rows, names in own.items():
            mine = [cell for cell in cells.values() if cell[PEER].facts["over_rows"] == over_rows]
            loss_of, values = min(
                (
                    _loss(FloatProducts(**found, **dict(zip(names, pair, strict=True))), mine),
                    tuple(-one for one in pair),
                )
                for pair in itertools.product(*(CHOICES[name] for name in names))
            )
            loss += loss_of
            found |= dict(zip(names, (-one for one in values), strict=True))
        best = min(best, (loss, found), key=lambda pair: pair[0])
    return {name: float(value) for name, value in best[1].items()}


def _loss(limits: FloatProducts, cells: Sequence[dict[str, Row]]) -> float:
    return sum(
        math.log(cell[choice(limits, cell[PEER].facts)].us / min(row.us for row in cell.values())) for cell in cells
    )


FITS = [
    Fit(
        "limits of tall products of float32",
        "backends/cuda/chips.py, FloatProducts",
        limits_of,
        None,
        lambda _: True,
    )
]

"""Products of tall float32 matrices with small ones, and over their rows: our kernels on matrix units and cuBLAS in float32.

Cells are sizes of layers' products and of their gradients by the weights. A product over rows is computed as it stands, and with both of
its factors exchanged. The fit finds the limits within which our kernels are taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.fit.fitting import Fit, Row, Values
from benchmarks.gpu_timing import ours_graph, replay, torch_graph, torch_module
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
    *((ARTIST, *pair) for pair in ((100, 128), (128, 12), (12, 128), (100, 64), (64, 64), (64, 12), (100, 32))),
    *((PUBMED, *pair) for pair in ((500, 128), (128, 3), (128, 16), (16, 128), (500, 64), (64, 64), (500, 32))),
    *((CORA, *pair) for pair in ((1433, 128), (128, 16), (16, 128), (64, 64))),
)
REPETITIONS, CALLS = 7, 5
PEER, GIVEN, EXCHANGED = "cublas", "given", "exchanged"
#: Values among which the limits are chosen, for products and for products over rows.
CHOICES: dict[str, tuple[int, ...]] = {
    "least_rows": (1 << 10, 1 << 12, 1 << 14, 1 << 16),
    "least_steps": (0, 1 << 23, 1 << 25, 1 << 26, 1 << 27, 1 << 29),
    "narrow": (0, 16, 32, 64),
    "shallow": (0, 64, 128, 256),
    "over_rows_narrow": (0, 16, 32, 64),
}


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of all ways to compute the products, in replayed graphs."""
    torch = torch_module()
    for rows, depth, columns in SIZES:
        name = f"{rows}x{depth}-{columns}"
        if not any(part in name for part in only):
            continue
        x, weight, gradient, out, over = (
            torch.randn(shape, device="cuda")
            for shape in ((rows, depth), (columns, depth), (rows, columns), (rows, columns), (columns, depth))
        )
        turned = torch.empty((depth, columns), device="cuda")
        facts = {"rows": rows, "depth": depth, "columns": columns}
        cupy = jit.require_cupy("fit")
        ours = [cupy.from_dlpack(part) for part in (x, weight, gradient, out, over, turned)]
        yield from _ways(
            name,
            facts | {"over_rows": False},
            partial(torch.mm, x, weight.t(), out=out),
            {GIVEN: partial(floats.product, ours[0], ours[1], ours[3])},
        )
        yield from _ways(
            f"{name}-over_rows",
            facts | {"over_rows": True},
            partial(torch.mm, gradient.t(), x, out=over),
            {
                GIVEN: partial(floats.product_over_rows, ours[2], ours[0], ours[4]),
                EXCHANGED: partial(floats.product_over_rows, ours[0], ours[2], ours[5]),
            },
        )


def _ways(cell: str, facts: dict[str, Any], peer: Any, ours: dict[str, Any]) -> Iterator[Row]:
    graphs = [torch_graph([peer] * CALLS), *(ours_graph([call] * CALLS) for call in ours.values())]
    chosen = choice(H200.float_products, facts)
    for name, ms in zip((PEER, *ours), replay(graphs, REPETITIONS), strict=True):
        yield Row(cell, name, facts, 1e3 * ms / CALLS, name == chosen)


def choice(limits: FloatProducts, facts: Any) -> str:
    """The way that is taken within these limits."""
    rows, depth, columns = facts["rows"], facts["depth"], facts["columns"]
    if not facts["over_rows"]:
        return GIVEN if floats.wins(limits, rows, depth, columns) else PEER
    if not floats.wins_over_rows(limits, rows, columns, depth):
        return PEER
    return EXCHANGED if floats.is_better_exchanged(columns, depth) else GIVEN


def limits_of(rows: Sequence[Row]) -> Values:
    """The limits with which the choice loses least against the quickest way of each cell."""
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(row.cell, {})[row.variant] = row
    every = (
        FloatProducts(**dict(zip(CHOICES, values, strict=True))) for values in itertools.product(*CHOICES.values())
    )
    best = min(every, key=lambda limits: _loss(limits, cells.values()))
    return {name: float(value) for name, value in best._asdict().items()}


def _loss(limits: FloatProducts, cells: Iterable[dict[str, Row]]) -> float:
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

"""Features whose rows are not whole vectors: fetched as they are, or first copied to an aligned layout.

Cells are products of patterns, edge by edge, with float32 and float16 features whose row sizes are multiples of only 2, 4, 8 or 16 bytes.
``scaled`` cells have factors of the columns, which become a factor for each edge or part of the copy. The fit finds how much longer a row
takes if its vectors are a half, a quarter or an eighth of the full size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.cases.sparse_gpu import Timed, in_turns, matrix_of
from benchmarks.fit.fitting import Fit, Row, Values
from bitsparse import jit
from bitsparse.backends.cuda.chips import H200
from bitsparse.backends.cuda.csr.rows import copy_us, laid_columns
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.spmm.spmm import Spmm, tuning_of

__all__ = ["FITS", "measured"]

GRAPHS = ("reddit-power_law", "products-communities", "artist", "pubmed")
WIDTHS = {"float32": (41, 42, 44, 100, 102), "float16": (41, 42, 44, 48, 100)}
REPETITIONS = 5
NAMES = ("half", "quarter", "eighth")


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of both ways, grouped by graph."""
    for name in GRAPHS:
        if any(part in name for part in only):
            matrix = matrix_of(name)
            schedule = Schedule(matrix.indptr, matrix.indices, matrix.shape, matrix.nnz)
            for dtype, widths in WIDTHS.items():
                for columns in widths:
                    for scaled in (False, True):
                        yield from _ways(
                            f"{name}-{dtype}-D{columns}{'-scaled' * scaled}", schedule, dtype, columns, scaled
                        )


def _ways(cell: str, schedule: Schedule, dtype: str, columns: int, scaled: bool) -> Iterator[Row]:
    cupy, rows = jit.require_cupy("fit"), schedule.shape[1]
    x = cupy.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32).astype(dtype)
    kind: dict[str, Any] = {"columns": columns, "x_dtype": dtype, "acc_dtype": "float32"}
    if scaled:
        kind["col_scale"] = cupy.random.default_rng(1).random(rows, dtype=np.float32)
    out = cupy.empty((schedule.shape[0], columns), dtype)
    products = [Spmm(schedule, lay=lay, **kind) for lay in (None, False, True)]
    timed = [
        Timed(partial(product, x, None, out), way) for product, way in zip(products, ("", "plain", "laid"), strict=True)
    ]
    item = np.dtype(dtype).itemsize
    fetched, whole = (tuning_of(n, item, 16, 4).load for n in (columns, laid_columns(columns, item)))
    facts = {
        "edges": schedule.nnz,
        "rows": rows,
        "row_bytes": columns * item,
        "part": whole // fetched,
        "scaled": scaled,
    }
    taken = "plain" if products[0].is_plain else "laid"
    for one, ms in zip(timed[1:], in_turns(timed, REPETITIONS)[1:], strict=True):
        yield Row(cell, one.name, facts, 1e3 * ms, one.name == taken)


def _longer(rows: Sequence[Row]) -> Values:
    """Medians of the extra time of such rows, relative to the estimated time of rows with whole vectors."""
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(row.cell, {})[row.variant] = row
    found: dict[str, list[float]] = {}
    for ways in cells.values():
        facts = ways["plain"].facts
        if facts["part"] > 1:
            gone = ways["plain"].us - ways["laid"].us + copy_us(H200, facts["rows"], facts["row_bytes"])
            row_us = H200.rows.row[0] + facts["row_bytes"] / H200.rows.row_bytes[0]
            found.setdefault(NAMES[min(facts["part"], 8).bit_length() - 2], []).append(gone / (facts["edges"] * row_us))
    return {name: median(each) for name, each in found.items()}


FITS = (
    Fit(
        "rows of parts of vectors",
        "ragged of RowRates of backends/cuda/chips.py",
        _longer,
        None,
        lambda row: not row.facts["scaled"],
    ),
)

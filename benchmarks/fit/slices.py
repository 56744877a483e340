"""Sums edge by edge over whole rows of features, or over one slice of columns after another, of which more fits into the L2.

Cells are sums of float32 and float16, without weights (``plain``) and with one for each edge (``weighed``). Variants differ in the number
of lanes in a group: a slice has 16 bytes for each lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.sparse_gpu import Timed, in_turns, matrix_of
from benchmarks.fit.fitting import Fit, Row
from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.spmm.spmm import Spmm

__all__ = ["FITS", "measured"]

GRAPHS = (
    "artist",
    "soc_slashdot0902",
    "web_notredame",
    "DD",
    "reddit-power_law",
    "reddit-communities",
    "products-power_law",
    "products-communities",
)
WIDTHS = (64, 128, 256)
LANES = (32, 16, 8, 4)
REPETITIONS = 5
#: No constants are fitted; the measured table decides.
FITS: tuple[Fit, ...] = ()


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times with groups of every width, grouped by graph."""
    for name in GRAPHS:
        if any(part in name for part in only):
            matrix = matrix_of(name)
            schedule = Schedule(matrix.indptr, matrix.indices, matrix.shape, matrix.nnz)
            for columns in WIDTHS:
                for dtype in ("float32", "float16"):
                    for weighed in (False, True):
                        cell = f"{name}-{dtype}-D{columns}-{'weighed' if weighed else 'plain'}"
                        yield from _sums(cell, schedule, columns, dtype, weighed)


def _sums(cell: str, schedule: Schedule, columns: int, dtype: str, weighed: bool) -> Iterator[Row]:
    cupy = jit.require_cupy("fit")
    x = cupy.random.default_rng(0).standard_normal((schedule.shape[1], columns), dtype=np.float32).astype(dtype)
    out = cupy.empty((schedule.shape[0], columns), dtype)
    kind: dict[str, Any] = {"columns": columns, "x_dtype": dtype, "acc_dtype": "float32"}
    values = None
    if weighed:
        values = cupy.random.default_rng(1).random(schedule.nnz, dtype=np.float32).astype(dtype)
        kind |= {"weights": "edge", "value_dtype": dtype if dtype == "float16" else None}
    usual = Spmm(schedule, **kind).tuning
    row_bytes = columns * np.dtype(dtype).itemsize
    lanes = [some for some in LANES if some <= row_bytes // usual.load]
    products = [Spmm(schedule, tuning=replace(usual, lanes=some), **kind) for some in lanes]
    timed = [Timed(partial(product, x, values, out), cell) for product in products]
    facts = {"rows": schedule.shape[1], "edges": schedule.nnz, "row_bytes": row_bytes}
    for some, ms in zip(lanes, in_turns(timed, REPETITIONS), strict=True):
        yield Row(cell, f"{some} lanes", facts, 1e3 * ms, some == usual.lanes)

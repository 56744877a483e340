"""Scales of the columns and rows of a pattern as one factor for each edge, on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.sparse.checks import rows_of


class EdgeFactors:
    """A factor for each edge, made of scales of the columns and maybe of the rows."""

    def __init__(self, schedule: Schedule, col_scale: Any, row_scale: Any, acc: np.dtype[Any]) -> None:
        #: What distinguishes them lives as long as they do.
        self.scales = col_scale, row_scale
        columns = slice(0, schedule.nnz) if schedule.indices is None else schedule.indices
        self.edges: Any = col_scale[columns].astype(acc, copy=False)
        if row_scale is not None:
            self.edges = self.edges * row_scale.astype(acc, copy=False)[rows_of(schedule.indptr, schedule.nnz)]


def edge_factors(schedule: Schedule, col_scale: Any, row_scale: Any, acc: np.dtype[Any]) -> EdgeFactors:
    """The factors of edges for these scales, shared by all products of the pattern that multiply by them."""
    key = id(col_scale), id(row_scale), acc
    with schedule.lock:
        found: EdgeFactors | None = schedule.factors.get(key)
    if found is None:
        found = EdgeFactors(schedule, col_scale, row_scale, acc)
        with schedule.lock:
            schedule.factors[key] = found
    return found

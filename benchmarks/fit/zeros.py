"""Sums of features with rows of zeros, which the kernel "nonzero" does not fetch, and the kernel "csr".

Cells are large graphs, columns, and the share of rows with numbers. ``changing`` cells have other rows in every call, so that the bits of
edges are made anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.cases.sparse_gpu import Matrix, Timed, in_turns, matrix_of
from benchmarks.fit.fitting import Fit, Row
from bitsparse import jit, plan_spmm
from bitsparse.backends.cuda.spmm.choice import Kind, nonzero_pays

__all__ = ["FITS", "measured"]

GRAPHS = ("reddit-power_law", "reddit-communities", "products-power_law", "products-communities")
WIDTHS, SHARES = (41, 47, 64, 128), (0.08, 0.5, 0.75, 1.0)
REPETITIONS = 5
#: No constants are fitted; the measured table decides.
FITS: tuple[Fit, ...] = ()


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of both kernels, grouped by graph."""
    for name in GRAPHS:
        if any(part in name for part in only):
            for columns in WIDTHS:
                yield from _sums(name, matrix_of(name), columns)


def _sums(name: str, matrix: Matrix, columns: int) -> Iterator[Row]:
    cupy, rows = jit.require_cupy("fit"), matrix.shape[1]
    random = cupy.random.default_rng(0)
    x, place = random.standard_normal((rows, columns), dtype=np.float32), random.random(rows)
    out = cupy.empty((matrix.shape[0], columns), np.float32)
    plans = {kernel: plan_spmm(matrix.tiled, columns, kernel=kernel) for kernel in ("csr", "nonzero")}
    taken = nonzero_pays(Kind(np.float32, columns), matrix.shape, matrix.nnz)
    for share in SHARES:
        given = [x * chosen[:, None] for chosen in ((place < share), (place >= 1 - share))]
        for kind, inputs in (("", given[:1]), ("-changing", given)):
            if share < 0.5 or not kind:
                timed = [
                    Timed(partial(_next, plan, cycle(inputs), out), f"{name}-D{columns}") for plan in plans.values()
                ]
                for kernel, ms in zip(plans, in_turns(timed, REPETITIONS), strict=True):
                    yield Row(
                        f"{name}-D{columns}-{share}{kind}",
                        kernel,
                        {"share": share},
                        1e3 * ms,
                        (kernel == "nonzero") == taken,
                    )


def _next(plan: Any, inputs: Iterator[Any], out: Any) -> None:
    plan(next(inputs), out=out)

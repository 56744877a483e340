"""The gradient of attention, completed for a node in the kernel that sums over its edges, or in a pass over the nodes behind it.

Cells are heads and columns on random graphs that differ in the number of edges of a node, each with some 25 million edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.sparse_gpu import Timed, in_turns
from benchmarks.fit.fitting import Fit, Row
from bitsparse import jit
from bitsparse.backends.cuda.chips import chip_here
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges import attention

__all__ = ["FITS", "measured"]

EDGES, DEGREES = 25_000_000, (8, 16, 32, 64, 96, 128, 192, 256, 512)
LAYERS = ((4, 32), (1, 48), (1, 47), (8, 8))
REPETITIONS = 5
#: No constants are fitted; the measured table decides.
FITS: tuple[Fit, ...] = ()


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of both forms, grouped by graph."""
    cupy = jit.require_cupy("fit")
    for degree in DEGREES:
        if not any(part in f"{degree}-edges" for part in only):
            continue
        nodes = EDGES // degree
        indptr = cupy.arange(nodes + 1, dtype=np.int32) * degree
        indices = cupy.random.default_rng(0).integers(0, nodes, (nodes, degree), dtype=np.int32)
        schedule = Schedule(indptr, cupy.sort(indices, axis=1).ravel(), (nodes, nodes), nodes * degree)
        for heads, width in LAYERS:
            yield from _gradients(f"{degree}-edges-{heads}x{width}", schedule, heads, width)


def _gradients(cell: str, schedule: Schedule, heads: int, width: int) -> Iterator[Row]:
    cupy, nodes = jit.require_cupy("fit"), schedule.shape[0]
    draw = partial(cupy.random.default_rng(0).standard_normal, dtype=np.float32)
    x, gradient, above = (draw((nodes, heads * width)) for _ in range(3))
    source, target, lse, share = (draw((nodes, heads)) for _ in range(4))
    vectors = draw((heads, width)), draw((heads, width))
    out = {"x": cupy.empty_like(x), "source": cupy.empty_like(source), "target": cupy.empty_like(target)}
    out["vectors"] = cupy.empty((2, heads, width), np.float32)
    operands: tuple[Any, ...] = (schedule, x, source, target, gradient, (x, lse + 10, share, above))
    how: dict[str, Any] = {"negative_slope": 0.2, "vectors": vectors, "out": out}
    forms = (True, False)
    timed = [Timed(partial(attention.attention_vjp, *operands, completed=form, **how), cell) for form in forms]
    degree = schedule.nnz / nodes
    taken = degree <= chip_here().rows.completed_edges
    for form, ms in zip(forms, in_turns(timed, REPETITIONS), strict=True):
        yield Row(cell, "completed" if form else "behind", {"edges": degree}, 1e3 * ms, form == taken)

"""Cases of suite ``spmm`` with forms of arrays: translation on the GPU, and scales instead of weights.

``translate-{graph}`` makes a ``TCTiledCSR`` from CSR arrays on the GPU, with all checks of its input. The time is wall-clock time from an
idle GPU until it is idle again, the median of several calls. The peer is one call on the CPU, for graphs of up to 30 million edges; its
arrays must be equal.

``scaled-fp32-{graph}-D16`` is a product with ``row_scale`` and ``col_scale`` and no weights; the peer is our own product with the products
of these factors as weights. The library chooses the kernels of both as usual.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.products import run_plan
from benchmarks.cases.sparse_gpu import cell_of, in_turns, matrix_of
from benchmarks.ceilings import bounds
from benchmarks.gpu_timing import wall_ms
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol

SCALED_WIDTH = 16
#: Repetitions of a translation, and the largest number of edges that the CPU translates for comparison.
REPETITIONS, ON_CPU = 9, 30_000_000


def cases(name: str, columns: int) -> list[Case]:
    """The cases of one graph and one width."""
    if columns != SCALED_WIDTH:
        return []
    return [
        Case(f"translate-{name}", partial(translation, name)),
        Case(f"scaled-fp32-{name}-D{columns}", partial(scaled, name, columns)),
    ]


def translation(name: str) -> Prepared:
    """The translation of a graph."""
    jit.require_cupy("suite spmm")
    matrix = matrix_of(name)
    params = matrix.facts()
    host_ms = None
    made = matrix.tiled
    if matrix.nnz <= ON_CPU:
        indptr, indices = matrix.indptr.get(), matrix.indices.get()
        start = time.perf_counter()
        host = translated(indptr, indices, matrix.shape)
        host_ms = 1e3 * (time.perf_counter() - start)
        for part in ("cols_indptr", "cols", "edge_col"):
            if not np.array_equal(getattr(made, part).get(), getattr(host, part)):
                raise AssertionError(f"translate-{name}: {part} differs from the CPU's")
    moved = int(matrix.pattern_bytes + made.cols_indptr.nbytes + made.cols.nbytes + made.edge_col.nbytes)
    build = partial(translated, matrix.indptr, matrix.indices, matrix.shape)

    def measure(protocol: Protocol) -> tuple[float, float | None]:
        return wall_ms(build, min(REPETITIONS, protocol.repetitions)), host_ms

    peer = None if host_ms is None else "bitsparse on the CPU"
    return Prepared(lambda: None, None, peer, params, moved, *bounds(moved), measure=measure)


def translated(indptr: Any, indices: Any, shape: tuple[int, int]) -> Any:
    """Build a TCTiledCSR from CSR arrays with its translation, including all checks."""
    made = bs.TCTiledCSR.from_csr_arrays(indptr, indices, shape)
    _ = made.translation  # otherwise built at first use
    return made


def scaled(name: str, columns: int) -> Prepared:
    """A product with factors of rows and columns, against one with their products as weights."""
    cupy = jit.require_cupy("suite spmm")
    cell = cell_of(name, columns)
    matrix = cell.matrix
    x, _ = cell.inputs("float32", pattern=True)
    random = cupy.random.default_rng(2)
    row_scale, col_scale = (random.random(n, dtype=np.float32) + np.float32(0.5) for n in matrix.shape)
    rows = cupy.searchsorted(matrix.indptr[1:], cupy.arange(matrix.nnz, dtype=matrix.indptr.dtype), side="right")
    weights = row_scale[rows] * col_scale[matrix.indices]
    del rows
    reference = cell.product(x.astype(np.float64) * col_scale[:, None]) * row_scale[:, None]
    case = f"scaled-fp32-{name}-D{columns}"
    ours, params = run_plan(case, cell, matrix.tiled.with_scales(row_scale, col_scale), "fp32", reference)
    peer, peer_params = run_plan(f"{case}, weights", cell, matrix.tiled.with_values(weights), "fp32", reference)
    params |= {"peer_kernel": peer_params["kernel"]}
    moved = int(matrix.pattern_bytes + x.nbytes + params["out_bytes"] + row_scale.nbytes + col_scale.nbytes)

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, peer_ms = in_turns([ours, peer], protocol.repetitions)
        return ms, peer_ms

    return Prepared(lambda: None, None, "bitsparse with weights", params, moved, *bounds(moved), measure=measure)

"""Products of both ends of edges, and sums over sampled edges: variants of the kernels against those that the library takes.

- ``dots``: float32 dot products with 1, 2 or 4 gathers in flight per lane and 4 to 16 blocks per multiprocessor (``dot_defines`` in
  ``backends/cuda/edges/sddmm.py``); the amount of sharing from which windows of 8 rows pay (``windows_pay`` there); and, with TF32
  allowed, windows of 16 and 32 rows on the matrix units (``taken`` in ``sddmm_tiles.py``).
- ``sampled``: sums over AES samples of 64 edges per row, drawn in every call, with 4, 8 and 16 edges in flight and 64 or 128 threads per
  block (``tuning_of`` in ``backends/cuda/sampling/sample.py``).

Only the sharing from which windows pay is fitted; the rest is a table of choices and of how much each loses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.sparse_gpu import Cell, Timed, cell_of, in_turns
from benchmarks.fit.fitting import Fit, Row, Values
from bitsparse import jit
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges import sddmm, sddmm_tiles
from bitsparse.backends.cuda.sampling.sample import Drawing, SampledSum, tuning_of
from bitsparse.backends.cuda.spmm import choice, tiles_build
from bitsparse.backends.cuda.spmm.windows import Windows

__all__ = ["FITS", "GRAPHS", "measured", "threshold"]

GRAPHS = ("artist", "COLLAB", "DD", "soc_slashdot0902", "amazon_computers", "ss_pkustk04", "web_notredame")
WIDTHS = (16, 64, 128, 256)
REPETITIONS, SAMPLES = 9, 64


def threshold(rows: Sequence[Row]) -> Values:
    """The number of edges per window column from which windows are used: the threshold that loses the least time in all."""
    pairs = {(row.facts["sharing"], row.cell): [0.0, 0.0] for row in rows}
    for row in rows:
        pairs[row.facts["sharing"], row.cell][row.variant == "windows"] = row.us
    pairs = {key: times for key, times in pairs.items() if all(times)}
    candidates = sorted({sharing for sharing, _ in pairs})

    def loss(least: float) -> float:
        return sum(math.log(times[sharing >= least] / min(times)) for (sharing, _), times in pairs.items())

    return {"windows_sharing": min([*candidates, 1e9], key=loss)}


FITS = (
    Fit(
        "dot products in windows",
        "dots_share of RowRates, backends/cuda/chips.py",
        threshold,
        None,
        lambda row: "sharing" in row.facts,
    ),
)


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of all variants, grouped by graph and width, so that operands are built once."""
    for name in GRAPHS:
        for columns in WIDTHS:
            for what, variants in (("dots", dots), ("sampled", sampled)):
                case = f"{what}-{name}-D{columns}"
                if any(part in case for part in only):
                    yield from variants(case, cell_of(name, columns))


def dots(case: str, cell: Cell) -> Iterator[Row]:
    """Dot products edge by edge, in every variant, and in windows."""
    cupy = jit.require_cupy("fit")
    matrix, x = cell.matrix, cell.inputs("float32", pattern=True)[0]
    schedule, out = (
        Schedule(matrix.indptr, matrix.indices, matrix.shape, matrix.nnz),
        cupy.empty(matrix.nnz, np.float32),
    )
    entries = choice.shared_columns(matrix.indptr, matrix.indices, matrix.shape, 8).entries
    kind: dict[str, Any] = {"op": "dot", "dtype": np.float32, "columns": cell.columns}
    edge_by_edge = sddmm.EdgeProduct(schedule, **kind)
    in_windows = sddmm.DotWindows(Windows(matrix.indptr, matrix.indices, matrix.shape), matrix.indptr, cell.columns)
    forms = [Timed(partial(edge_by_edge, x, x, out), "edges"), Timed(partial(in_windows, x, x, out), "windows")]
    pays = sddmm.windows_pay(matrix.nnz, entries)
    facts = {"sharing": matrix.nnz / max(1, entries)}
    for one, ms in zip(forms, in_turns(forms, REPETITIONS), strict=True):
        yield Row(case, one.name, facts, 1e3 * ms, pays == (one.name == "windows"))
    yield from on_matrix_units(f"{case}-tf32", cell, x, out, forms)
    timed = [Timed(partial(edge_by_edge, x, x, out), "what is taken")]
    for steps in (1, 2, 4):
        for blocks in (4, 6, 8, 12, 16):
            product = sddmm.EdgeProduct(schedule, **kind, steps=steps, blocks=blocks)
            timed.append(Timed(partial(product, x, x, out), f"{steps} steps, {blocks} blocks"))
    for i, (one, ms) in enumerate(zip(timed, in_turns(timed, REPETITIONS), strict=True)):
        yield Row(f"{case}-tunings", one.name, {}, 1e3 * ms, i == 0)


def on_matrix_units(case: str, cell: Cell, x: Any, out: Any, others: Sequence[Timed]) -> Iterator[Row]:
    """The same dot products with TF32 allowed."""
    matrix = cell.matrix
    pattern = (matrix.indptr, matrix.indices, matrix.shape)
    shared = {height: choice.shared_columns(*pattern, height) for height in (8, 16, 32)}
    kind = choice.Kind(np.dtype(np.float32), cell.columns, precision="tf32")
    possible = sddmm_tiles.heights("dot", "float32", cell.columns, 1, matrix.shape[1])
    taken = sddmm_tiles.taken(
        possible, "float32", 4 * cell.columns, choice.estimates(kind, matrix.shape, matrix.nnz, shared)
    )
    named = {f"{height} rows": height for height in possible}
    forms = list(others)
    for name, height in named.items():
        windows = tiles_build.Windows(*pattern, matrix.nnz, height=height, k=8)
        product = sddmm_tiles.DotTiles(windows, dtype="float32", columns=cell.columns)
        forms.append(Timed(partial(product, x, x, out), name))
    for one, ms in zip(forms, in_turns(forms, REPETITIONS), strict=True):
        yield Row(case, one.name, {}, 1e3 * ms, named.get(one.name, 0) == taken)


def sampled(case: str, cell: Cell) -> Iterator[Row]:
    """Sums over AES samples that are drawn in every call."""
    cupy = jit.require_cupy("fit")
    matrix, x = cell.matrix, cell.inputs("float32", pattern=True)[0]
    drawing = Drawing(matrix.indptr, matrix.shape, matrix.nnz, width=SAMPLES, strategy="aes")
    out = cupy.empty((matrix.shape[0], cell.columns), np.float32)
    taken = tuning_of(cell.columns, 4, 16)
    others = [taken._replace(unroll=unroll, threads=threads) for unroll in (4, 8, 16) for threads in (64, 128)]
    timed = []
    for tuning in dict.fromkeys((taken, *others)):
        sums = SampledSum(drawing, matrix.indices, columns=cell.columns, x_dtype=np.float32, tuning=tuning)
        timed.append(Timed(partial(sums, x, out), f"unroll {tuning.unroll}, threads {tuning.threads}"))
    for i, (one, ms) in enumerate(zip(timed, in_turns(timed, REPETITIONS), strict=True)):
        yield Row(case, one.name, {}, 1e3 * ms, i == 0)

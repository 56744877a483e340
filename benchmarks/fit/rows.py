"""Sums over rows of a sparse matrix: edge by edge, in windows and in tiles, and the figures behind the choice among them.

Times are those of ``plan_spmm`` with each kernel forced, on patterns and weighted graphs, in float32 (also as TF32) and float16, with 16 to
256 columns, each call in a CUDA graph. The models add up the following costs:

- for all kernels, a start, and a share of the time in which all arrays move once;
- edge by edge, each edge, and its bytes of features, some of which are found in the L1 if windows of 8 rows share columns;
- in windows, each column of a window, and each element of its features; in tiles, the same for groups of 8 or 16 columns, and for rows.

For the kernel that works edge by edge, tunings (threads, edges in flight, bytes per lane) are timed too, against the library's own choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.products import kernel_of
from benchmarks.cases.sparse_gpu import Cell, Timed, cell_of, in_turns
from benchmarks.ceilings import MEMORY_RATE
from benchmarks.fit.fitting import Facts, Fit, Row, Values, search, solve
from bitsparse import jit
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.spmm import choice
from bitsparse.backends.cuda.spmm.spmm import Spmm

__all__ = ["FITS", "GRAPHS", "facts_of", "measured", "predict"]

GRAPHS = ("COLLAB", "DD", "ss_pkustk04", "web_notredame", "artist", "reddit-communities")
WIDTHS = (16, 64, 128, 256)
REPETITIONS = 9
PLACE = "RowRates of backends/cuda/chips.py"
#: The gain from the L1 per sharing in windows of 8 rows, and its limit: a constant plus the bytes of a row divided by another constant.
GAIN = {"l1_gain": 0.2, "l1_least": 2.0, "l1_bytes": 3000.0}


def facts_of(kernel: str, height: int, kind: Any, shape: tuple[int, int], nnz: int, shared: Any) -> dict[str, Any]:
    """The facts about a product that the models read; ``shared`` holds the columns of windows by their height."""
    item, weighted = np.dtype(kind.dtype).itemsize, kind.values is not None
    row_bytes = kind.columns * item
    facts: dict[str, Any] = {"kernel": kernel, "height": height, "item": item, "weighted": weighted, "nnz": nnz}
    facts |= {"columns": kind.columns, "row_bytes": row_bytes, "sharing": nnz / max(1, shared[8].entries)}
    facts["moved_us"] = 1e6 * (sum(shape) * row_bytes + 4 * nnz * (1 + weighted)) / MEMORY_RATE
    if kernel == "windows":
        facts["entries"] = shared[8].entries
    if kernel == "tiles":
        facts["groups"] = shared[height].groups[choice.group_of(kind.dtype)]
        facts["split"] = 2 if choice.tiles_precision(kind) == "3xtf32" else 1
    return facts


def edge_terms(facts: Facts, gain: Mapping[str, float] | None = None) -> dict[str, float]:
    """The terms of a product edge by edge; without `gain`, no bytes come from the L1."""
    faster = 1.0
    if gain:
        most = gain["l1_least"] + facts["row_bytes"] / gain["l1_bytes"]
        faster = max(1.0, min(most, 1 + gain["l1_gain"] * max(0.0, facts["sharing"] - 1)))
    bits = 8 * facts["item"]
    each = {f"edge_us_{bits}": facts["nnz"], f"byte_us_{bits}": facts["nnz"] * facts["row_bytes"] / faster}
    return {"edges_start_us": 1.0, "edges_moved": facts["moved_us"]} | each


def window_terms(facts: Facts) -> dict[str, float]:
    """The terms of a product in windows of 8 rows."""
    kind = "weighted" if facts["weighted"] else "plain"
    each = {f"window_entry_us_{kind}": facts["entries"]}
    each[f"window_column_us_{kind}"] = facts["entries"] * facts["columns"]
    return {"windows_start_us": 1.0, "windows_moved": facts["moved_us"]} | each


def tile_terms(facts: Facts) -> dict[str, float]:
    """The terms of a product of a pattern in tiles."""
    group, wide = 8 if facts["item"] == 4 else 16, facts["groups"] * facts["split"] * facts["columns"]
    each = {"us": facts["groups"], "row_us": facts["groups"] * facts["height"]}
    each |= {"column_us": wide, "column_row_us": wide * facts["height"]}
    terms = {f"tile_{group}_{name}": value for name, value in each.items()}
    return {"tiles_start_us": 1.0, "tiles_moved": facts["moved_us"]} | terms


def predict(values: Values, facts: Facts) -> float:
    """Microseconds of a product."""
    if facts["kernel"] == "csr":
        terms = edge_terms(facts, values if "l1_gain" in values else None)
    else:
        terms = window_terms(facts) if facts["kernel"] == "windows" else tile_terms(facts)
    return sum(values[name] * value for name, value in terms.items())


def edges_fitted(rows: Sequence[Row]) -> Values:
    """Fit first the linear constants, from rows that share little, then the gain of the L1, then both together."""
    values = solve([row for row in rows if row.facts["sharing"] < 1.2] or rows, edge_terms)
    gain = search(rows, lambda some, facts: predict(values | some, facts), GAIN)
    values = solve(rows, partial(edge_terms, gain=gain))
    # The search multiplies constants, so those that least squares set to 0 get a tiny value from which they can grow again.
    return search(rows, predict, {name: max(value, 1e-12) for name, value in (values | gain).items()})


def _is(kernel: str, *, weighted: bool | None = None) -> Any:
    def takes(row: Row) -> bool:
        facts = row.facts
        return facts.get("kernel") == kernel and (weighted is None or facts["weighted"] == weighted)

    return takes


FITS = (
    Fit("sums edge by edge", f"edges_start, row, row_bytes, l1_... of {PLACE}", edges_fitted, predict, _is("csr")),
    Fit("in windows", f"window of {PLACE}", partial(solve, terms=window_terms), predict, _is("windows")),
    Fit(
        "in tiles", f"tile8, tile16 of {PLACE}", partial(solve, terms=tile_terms), predict, _is("tiles", weighted=False)
    ),
)


def measured(only: Sequence[str]) -> Iterator[Row]:
    """Times of all kernels and tunings, grouped by graph and width, so that operands are built once."""
    for name in GRAPHS:
        for columns in WIDTHS:
            for precision in ("fp32", "tf32", "fp16"):
                for weighted in (False, True):
                    cell = f"{name}-D{columns}-{precision}{'-weighted' if weighted else ''}"
                    if any(part in cell for part in only):
                        yield from kernels(cell, cell_of(name, columns), precision, weighted)
                        if precision == "fp32":
                            yield from tunings(f"{cell}-csr", cell_of(name, columns), weighted)


def kernels(case: str, cell: Cell, precision: str, weighted: bool) -> Iterator[Row]:
    """Times of every kernel that can compute a product."""
    matrix, dtype = cell.matrix, "float16" if precision == "fp16" else "float32"
    x, values = cell.inputs(dtype, pattern=not weighted)
    a: Any = matrix.tiled if values is None else matrix.tiled.with_values(values)
    shared = {h: choice.shared_columns(matrix.indptr, matrix.indices, matrix.shape, h) for h in (8, 16, 32)}
    options: dict[str, Any] = {} if precision == "fp16" else {"precision": precision}
    kind = choice.Kind(
        x.dtype, cell.columns, values=None if values is None else values.dtype, fixed=True, frozen=True, **options
    )
    guesses = choice.estimates(kind, matrix.shape, matrix.nnz, shared)
    taken = kernel_of(bs.plan_spmm(a, cell.columns, dtype=x.dtype, frozen=True, **options))
    timed, facts = [], []
    for kernel in dict.fromkeys(guess.kernel for guess in guesses):
        height = next(guess.height for guess in guesses if guess.kernel == kernel)
        plan = bs.plan_spmm(a, cell.columns, kernel=kernel, dtype=x.dtype, frozen=True, **options)
        timed.append(Timed(partial(plan, x, out=plan(x)), kernel))
        facts.append(facts_of(kernel, height, kind, matrix.shape, matrix.nnz, shared))
    for one, ms, fact in zip(timed, in_turns(timed, REPETITIONS), facts, strict=True):
        yield Row(case, one.name, fact, 1e3 * ms, one.name == taken)


def tunings(case: str, cell: Cell, weighted: bool) -> Iterator[Row]:
    """Times of tunings of the product edge by edge."""
    cupy = jit.require_cupy("fit")
    matrix, (x, values) = cell.matrix, cell.inputs("float32", pattern=not weighted)
    schedule = Schedule(matrix.indptr, matrix.indices, matrix.shape, matrix.nnz)
    kind: dict[str, Any] = {"columns": cell.columns, "x_dtype": x.dtype, "acc_dtype": np.float32}
    kind["weights"] = "none" if values is None else "edge"
    taken = Spmm(schedule, **kind).tuning
    others = [taken._replace(threads=threads, unroll=unroll) for threads in (64, 128) for unroll in (4, 8, 16)]
    out = cupy.empty((matrix.shape[0], cell.columns), np.float32)
    timed = []
    for tuning in dict.fromkeys((taken, *others)):
        product = Spmm(schedule, tuning=tuning, **kind)
        name = f"threads {tuning.threads}, unroll {tuning.unroll}, {tuning.lanes} lanes of {tuning.load} bytes"
        timed.append(Timed(partial(product, x, values, out), name))
    for i, (one, ms) in enumerate(zip(timed, in_turns(timed, REPETITIONS), strict=True)):
        yield Row(case, one.name, {}, 1e3 * ms, i == 0)

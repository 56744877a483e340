"""Suite ``spmm``: sparse products, products of edges, attention and translation on a GPU, through the public functions.

Where this suite differs from the protocol of ``run.py``:

- ``spmm-{precision}-{graph}-D{D}`` is ``plan(x, out=y)`` of :func:`bitsparse.plan_spmm` with a weight on every edge;
  ``spmm-pattern-...`` the same with none. fp32 and tf32 are float32 features with that ``precision=``; fp16 and bf16 features (and
  weights) of 16 bits, summed in float32. Features are normal, weights uniform in 1/2 to 3/2. Graphs are the files of ``graphs.py`` (a
  stand-in where one is missing, which ``params.source`` tells and which meets no field), and seeded synthetic ones of the sizes of
  reddit and ogbn-products, made on the GPU.
- The peer is the fastest right product of cuSPARSE in the same dtype: its algorithms 1 to 3 on row-major features with the analysis done
  beforehand, and in float32 PyTorch's ``sparse_csr @ dense``. A pattern's peer has weights, as cuSPARSE knows no patterns.
- Every result is compared with a float64 product before it is timed: ``params.error`` is the largest difference over the square root of the
  row's edges.
- Both sides are captured into CUDA graphs of as many calls as fill a millisecond, at most 20, and replayed in turns; a time is the
  median of 15 replays over the number of calls (at least 3 replays where one takes long). ``params.replayed`` is false for what could
  not be captured and was called one after another instead.
- ``params.field_ms`` is the best correct entry of ``field-h200.csv`` for this graph, width and precision, times cuSPARSE's float32 time
  here over the table's; ``params.field_ratio`` is that over ours. See ``field.py`` for which entry meets which precision.
- ``params.gather_ms`` is the measured limit of the card for fetching a row of features per edge; ``params.compulsory_ms`` reading
  all operands and writing the result once at 4 TB/s. ``floor_ms`` is the larger of both where rows are hardly used twice
  (``params.reuse`` below 1.25 edges for each column that a window of 16 rows touches), else the second; ``params.share`` is it over ours.
- The other cases stand in ``cases_edges_gpu.py`` and ``cases_graphs_gpu.py``.

``python3 benchmarks/summary.py FILE`` makes means and worst cells of the records.
"""

from __future__ import annotations

import importlib
import re
from functools import partial
from typing import Any

import numpy as np
from field import GRAPHS, MEMORY_RATE, field_ms, gather_ms
from gpu_timing import machine
from sparse_gpu import DTYPES, KINDS, NO_REUSE, Cell, Timed, cell_of, check, in_turns, narrow, vendor_product

from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["cases", "floors", "machine", "planned", "run_plan"]

WIDTHS = (16, 64, 128, 256)
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
#: Real graphs without entries in the table of the field.
OTHERS = ("ss_pkustk04", "web_notredame")
SYNTHETIC = tuple(f"{size}-{kind}" for size in ("reddit", "products") for kind in KINDS)
#: Files with further cases; each gives those of one graph and width, so that a graph's cases follow each other.
MORE = ("cases_edges_gpu", "cases_graphs_gpu")


def cases(threads: int) -> list[Case]:
    """All cases of the suite, by graph and width, so that operands are made once."""
    more = [importlib.import_module(name) for name in MORE]
    table = []
    for name in (*GRAPHS, *OTHERS, *SYNTHETIC):
        for columns in WIDTHS:
            for precision in PRECISIONS[:3] if name in SYNTHETIC else PRECISIONS:
                table.append(Case(f"spmm-{precision}-{name}-D{columns}", partial(product, name, columns, precision)))
            for precision in () if name in SYNTHETIC else ("fp32", "tf32"):
                case = f"spmm-pattern-{precision}-{name}-D{columns}"
                table.append(Case(case, partial(product, name, columns, precision, pattern=True)))
            for module in more:
                table += module.cases(name, columns)
    return table


def product(name: str, columns: int, precision: str, *, pattern: bool = False) -> Prepared:
    """A prepared product against the vendor's."""
    case = f"spmm-{'pattern-' if pattern else ''}{precision}-{name}-D{columns}"
    cell = cell_of(name, columns)
    ours, params, moved = planned(case, cell, precision, pattern=pattern)
    vendor = vendor_product(cell, precision)
    scale_by = vendor_product(cell, "fp32")  # carries the table's times over to this machine
    matrix = cell.matrix
    row_bytes = columns * (4 if DTYPES[precision] == "float32" else 2)
    params["flops"] = 2 * matrix.nnz * columns
    floor, more = floors(matrix.nnz, row_bytes, matrix.shape[1], moved, matrix.reuse)
    params |= more

    def measure(protocol: Protocol) -> tuple[float, float | None]:
        sides = [side for side in dict.fromkeys([ours, vendor, scale_by]) if side is not None]
        times = dict(zip(sides, in_turns(sides, protocol.repetitions), strict=True))
        ms = times[ours]
        params["share"] = floor / ms
        if scale_by is not None:
            params["vendor_fp32_ms"] = times[scale_by]
            found = field_ms(name, columns, precision, times[scale_by], pattern=pattern) if matrix.is_file else None
            if found is not None:
                params.update(field_ms=found[0], field_ratio=found[0] / ms, field=found[1])
        return ms, None if vendor is None else times[vendor]

    peer = None if vendor is None else vendor.name
    return Prepared(lambda: None, None, peer, params, moved, floor, measure=measure)


def planned(case: str, cell: Cell, precision: str, *, pattern: bool = False) -> tuple[Timed, dict[str, Any], int]:
    """Our checked product, what a record says of it, and the bytes that it must move."""
    matrix = cell.matrix
    x, values = cell.inputs(DTYPES[precision], pattern=pattern)
    a = matrix.tiled if values is None else matrix.tiled.with_values(values)
    ours, params = run_plan(case, cell, a, precision, cell.reference(DTYPES[precision], pattern=pattern))
    moved = int(matrix.pattern_bytes + x.nbytes + params["out_bytes"] + (0 if values is None else values.nbytes))
    return ours, params | {"pattern": pattern}, moved


def run_plan(case: str, cell: Cell, a: Any, precision: str, reference: Any) -> tuple[Timed, dict[str, Any]]:
    """A checked product with any array of the cell's pattern."""
    import bitsparse as bs

    cupy = jit.require_cupy("suite spmm")
    matrix, (x, _) = cell.matrix, cell.inputs(DTYPES[precision], pattern=True)
    # Only float32 features have a choice of precision.
    options: dict[str, Any] = {"precision": precision} if DTYPES[precision] == "float32" else {}
    plan = bs.plan_spmm(a, cell.columns, **(options | {"dtype": x.dtype}))
    out = narrow(cupy.full((matrix.shape[0], cell.columns), np.nan, np.float32), DTYPES[precision])
    plan(x, out=out)
    error = check(case, precision, out, reference, matrix.root)
    ours = Timed(partial(plan, x, out=out), case)
    params = matrix.facts() | {"D": cell.columns, "precision": precision, "error": error, "replayed": ours.replayed}
    text = plan.explain()
    named = re.search(r"kernel (\w+)", text)
    return ours, params | {"kernel": named and named[1], "plan": text, "out_bytes": out.nbytes}


def floors(edges: int, row_bytes: int, rows: int, moved: int, reuse: float) -> tuple[float, dict[str, Any]]:
    """``floor_ms`` of a gather, and what a record says of it."""
    gather, compulsory = gather_ms(edges, row_bytes, rows), 1e3 * moved / MEMORY_RATE
    gathers = reuse < NO_REUSE and gather > compulsory
    facts = {"gather_ms": gather, "compulsory_ms": compulsory, "gathered": edges * row_bytes}
    return (gather if gathers else compulsory), facts | {"floor": "gather" if gathers else "bytes"}

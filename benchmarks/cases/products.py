"""Prepared products of a graph and features against the vendor's: the ``spmm-...`` cases of suite ``spmm``, and shared helpers."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.sparse_gpu import (
    DTYPES,
    KINDS,
    Cell,
    Timed,
    cell_of,
    check,
    in_turns,
    narrow,
    vendor_product,
)
from benchmarks.ceilings import gather_bounds
from benchmarks.peers.field import field_ms
from bitsparse import jit
from bitsparse.bench import Prepared, Protocol

__all__ = ["SYNTHETIC", "WIDTHS", "kernel_of", "planned", "product", "run_plan"]

WIDTHS = (16, 64, 128, 256)
SYNTHETIC = tuple(f"{size}-{kind}" for size in ("reddit", "products") for kind in KINDS)


def product(name: str, columns: int, precision: str, *, pattern: bool = False) -> Prepared:
    """A prepared product against the vendor's."""
    case = f"spmm-{'pattern-' if pattern else ''}{precision}-{name}-D{columns}"
    cell = cell_of(name, columns)
    ours, params, moved = planned(case, cell, precision, pattern=pattern)
    live = None if pattern else planned(f"{case} live", cell, precision, frozen=False)[0]
    vendor = vendor_product(cell, precision)
    scale_by = vendor_product(cell, "fp32")  # scales the table's times to this machine
    matrix = cell.matrix
    row_bytes = columns * (4 if DTYPES[precision] == "float32" else 2)
    params["flops"] = 2 * matrix.nnz * columns
    limits, more = gather_bounds(matrix.nnz, row_bytes, matrix.shape[1], moved, matrix.reuse)
    params |= more

    def measure(protocol: Protocol) -> tuple[float, float | None]:
        sides = [side for side in dict.fromkeys([ours, live, vendor, scale_by]) if side is not None]
        times = dict(zip(sides, in_turns(sides, protocol.repetitions), strict=True))
        ms = times[ours]
        if live is not None:
            params["live_ms"] = times[live]
        if scale_by is not None:
            params["vendor_fp32_ms"] = times[scale_by]
            found = field_ms(name, columns, precision, times[scale_by], pattern=pattern) if matrix.is_file else None
            if found is not None:
                params.update(field_ms=found[0], field_ratio=found[0] / ms, field=found[1])
        return ms, None if vendor is None else times[vendor]

    peer = None if vendor is None else vendor.name
    return Prepared(lambda: None, None, peer, params, moved, *limits, measure=measure)


def planned(
    case: str, cell: Cell, precision: str, *, pattern: bool = False, frozen: bool = True
) -> tuple[Timed, dict[str, Any], int]:
    """Our checked product, facts for the record, and the bytes that it must move."""
    matrix = cell.matrix
    x, values = cell.inputs(DTYPES[precision], pattern=pattern)
    a = matrix.tiled if values is None else matrix.tiled.with_values(values)
    reference = cell.reference(DTYPES[precision], pattern=pattern)
    ours, params = run_plan(case, cell, a, precision, reference, frozen=frozen)
    moved = int(matrix.pattern_bytes + x.nbytes + params["out_bytes"] + (0 if values is None else values.nbytes))
    return ours, params | {"pattern": pattern}, moved


def run_plan(
    case: str, cell: Cell, a: Any, precision: str, reference: Any, *, frozen: bool = True
) -> tuple[Timed, dict[str, Any]]:
    """A checked product with any array that has the cell's pattern."""
    import bitsparse as bs

    cupy = jit.require_cupy("suite spmm")
    matrix, (x, _) = cell.matrix, cell.inputs(DTYPES[precision], pattern=True)
    # Only float32 features have a choice of precision.
    options: dict[str, Any] = {"precision": precision} if DTYPES[precision] == "float32" else {}
    plan = bs.plan_spmm(a, cell.columns, frozen=frozen, **(options | {"dtype": x.dtype}))
    out = narrow(cupy.full((matrix.shape[0], cell.columns), np.nan, np.float32), DTYPES[precision])
    plan(x, out=out)
    error = check(case, precision, out, reference, matrix.root)
    ours = Timed(partial(plan, x, out=out), case)
    params = matrix.facts() | {"D": cell.columns, "precision": precision, "error": error, "replayed": ours.replayed}
    return ours, params | {"kernel": kernel_of(plan), "plan": plan.explain(), "out_bytes": out.nbytes}


def kernel_of(plan: Any) -> str | None:
    """The kernel that a plan's explanation names."""
    named = re.search(r"kernel (\w+)", plan.explain())
    return named and named[1]

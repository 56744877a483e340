"""Sums over a sample of each row's edges against sums over all of them: the ``sampled-...`` cases of suite ``sampled``."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.cases.sparse_gpu import Cell, Matrix, Timed, cell_of, check, hold, in_turns, vendor_product
from benchmarks.ceilings import gather_bounds
from benchmarks.peers.cusparse import SparseProduct
from benchmarks.peers.field import entries, vendor_ms
from bitsparse import jit
from bitsparse.bench import Prepared, Protocol
from bitsparse.datasets import synthetic_csr

__all__ = ["field_of", "held", "sampled", "sampled_reference"]

#: Numbers of columns for which both kernels, for long rows and for short ones, are timed.
BOTH = (16, 64)
PROTEINS = (132_534, 39_561_252)
_held: dict[str, Matrix | None] = {}


@cache
def proteins(kind: Any) -> Matrix:
    """The synthetic graph with the number of entries that AES-SpMM counts."""
    arrays = synthetic_csr(PROTEINS, kind, device="cuda")
    source = f"synthetic {kind} graph of {PROTEINS[0]} nodes and {PROTEINS[1]} entries, seed 0"
    return Matrix(f"proteins39-{kind}", (*arrays, source))


def held(name: str, columns: int) -> Cell:
    """The cell of a graph and a width; it is kept until another one is asked for."""
    size, _, kind = name.partition("-")
    matrix = proteins(kind) if size == "proteins39" else None
    if matrix is not None and _held.get("matrix") is not matrix:
        hold(matrix)
    _held["matrix"] = matrix
    return cell_of(name, columns)


def sampled(name: str, columns: int, strategy: Any, width: int, *, bits: int | None = None) -> Prepared:
    """Sums over a sample against sums over all edges."""
    import bitsparse as bs

    cupy = jit.require_cupy("suite sampled")
    case = f"sampled-{'' if bits is None else f'int{bits}-'}{strategy}-{name}-D{columns}-W{width}"
    cell = held(name, columns)
    matrix, x = cell.matrix, cell.inputs("float32", pattern=True)[0]
    seed: dict[str, Any] = {"seed": 0} if strategy == "uniform" else {}
    features = x if bits is None else bs.quantize(x, bits, layout="rows")
    sample = bs.edge_sample(matrix.tiled, width, strategy, **seed)
    reference = sampled_reference(cell, sample.tocsr(), x if bits is None else features.dequantize())
    sides, errors = [], []
    for store in (True, False):
        plan = bs.plan_sampled_spmm(matrix.tiled, columns, width, strategy, store=store, **seed)
        out = cupy.full((matrix.shape[0], columns), np.nan, np.float32)
        plan(features, out)
        errors.append(check(case, "fp32", out, reference, matrix.root))
        sides.append(Timed(partial(plan, features, out), f"{case} {'kept' if store else 'drawn'}"))
        if store:
            text = plan.explain()
    forced: dict[str, Timed] = {}
    for kernel in ("csr", "short") if bits is None and columns in BOTH else ():
        plan = bs.plan_sampled_spmm(matrix.tiled, columns, width, strategy, kernel=kernel, **seed)
        out = cupy.full((matrix.shape[0], columns), np.nan, np.float32)
        plan(features, out)
        errors.append(check(case, "fp32", out, reference, matrix.root))
        forced[f"{kernel}_ms"] = Timed(partial(plan, features, out), f"{case} {kernel}")
    whole = bs.plan_spmm(matrix.tiled, columns)
    all_out = cupy.empty((matrix.shape[0], columns), np.float32)
    exact = Timed(partial(whole, x, out=all_out), "bitsparse.plan_spmm, all edges")
    vendor = vendor_product(cell, "fp32")
    against = vendor if name.startswith("proteins39") else exact
    distinct = sample.distinct
    row_bytes = columns * 4 if bits is None else -(-columns * bits // 128) * 16
    # Rows of features that no sampled edge fetches need not be read.
    fetched = int(cupy.unique(sample.tocsr().indices).size)
    moved = fetched * row_bytes + matrix.shape[0] * columns * 4 + distinct * 4 + int(matrix.indptr.nbytes)
    limits, more = gather_bounds(distinct, row_bytes, matrix.shape[1], moved, matrix.reuse)
    params = (
        matrix.facts()
        | more
        | {
            "D": columns,
            "strategy": strategy,
            "width": width,
            "bits": bits,
            "kept": sample.rate,
            "distinct": distinct / max(1, matrix.nnz),
            "error": max(errors),
            "plan": text,
            "replayed": all(side.replayed for side in sides),
        }
    )

    def measure(protocol: Protocol) -> tuple[float, float | None]:
        chosen = [side for side in dict.fromkeys([*sides, *forced.values(), exact, vendor]) if side is not None]
        times = dict(zip(chosen, in_turns(chosen, protocol.repetitions), strict=True))
        ms = times[sides[0]]
        params.update(drawn_ms=times[sides[1]], exact_ms=times[exact])
        params.update((kernel, times[side]) for kernel, side in forced.items())
        if vendor is not None:
            params["vendor_fp32_ms"] = times[vendor]
            found = field_of(name, columns, strategy, width) if matrix.is_file else None
            there = vendor_ms(name, columns)
            if found is not None and there is not None and bits is None:
                field = found * times[vendor] / there
                params.update(field_ms=field, field_ratio=field / ms)
        return ms, None if against is None else times[against]

    return Prepared(
        lambda: None, None, None if against is None else against.name, params, moved, *limits, measure=measure
    )


def field_of(graph: str, columns: int, strategy: str, width: int) -> float | None:
    """ES-SpMM's milliseconds of a cell; None if the table has no entry, as for random samples."""
    variant = f"{'AFS' if strategy == 'aes' else strategy.upper()}_S{width}"
    found = [e.ms for e in entries() if (e.graph, e.columns, e.peer, e.variant) == (graph, columns, "es-spmm", variant)]
    return min(found, default=None)


def sampled_reference(cell: Cell, matrix: Any, x: Any) -> Any:
    """The float64 product of the sampled matrix with the features."""
    cupy = jit.require_cupy("suite sampled")
    out = cupy.full((matrix.shape[0], cell.columns), np.nan, np.float64)
    parts = matrix.indptr, matrix.indices, matrix.data.astype(np.float64)
    SparseProduct(*parts, matrix.shape, x.astype(np.float64), out, "ALG2")()
    return out

"""Cases of suite ``sampled`` with packed integers at both ends of the edges.

``sddmm-int{bits}-{graph}-D{D}`` is :func:`bitsparse.sddmm` of two BitTensors with a scale each into a given float32 array: dot products of
``bits``-bit integers, scaled when they are complete. ``sddmm-int8-add-{graph}-D{D}`` adds two differently scaled ends element by element.
The peer is our own call with the real values in float32; both are compared with float64. The estimate counts bytes as suite ``spmm`` does:
the gathers of packed rows, or the least bytes to move.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.edges import edge_rows, exact_dots
from benchmarks.cases.sparse_gpu import Timed, cell_of, in_turns
from benchmarks.ceilings import gather_bounds
from benchmarks.peers.field import GRAPHS
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["cases"]

WIDTHS = (64, 128, 256)
BITS = (8, 4)
#: Graphs on which both ends are added: with 128 numbers per edge, their results take no more than about 2 GB.
ADDED = (("artist", 128), ("amazon_computers", 128))
#: Largest error: of a dot product divided by the square root of its length, and of a sum.
TOLERANCE = 2e-5


def cases() -> list[Case]:
    """All cases, grouped by graph and width."""
    table = []
    for name in GRAPHS:
        for columns in WIDTHS:
            for bits in BITS:
                table.append(Case(f"sddmm-int{bits}-{name}-D{columns}", partial(codes, name, columns, bits, "dot")))
            if (name, columns) in ADDED:
                table.append(Case(f"sddmm-int8-add-{name}-D{columns}", partial(codes, name, columns, 8, "add")))
    return table


def codes(name: str, columns: int, bits: int, op: Any) -> Prepared:
    """Products of packed ends against products of their real values in float32."""
    import bitsparse as bs

    cupy = jit.require_cupy("suite sampled")
    cell = cell_of(name, columns)
    matrix, case = cell.matrix, f"sddmm-int{bits}-{'' if op == 'dot' else f'{op}-'}{name}-D{columns}"
    y = cell.inputs("float32", pattern=True)[0]
    ends = [bs.quantize(side, bits, scheme="symmetric", layout="rows") for side in (y[::-1].copy() * 0.5, y)]
    left, right = (end.dequantize() for end in ends)
    shape = (matrix.nnz,) if op == "dot" else (matrix.nnz, columns)
    sides, errors = [], []
    for operands, what in ((ends, case), ((left, right), "bitsparse.sddmm, float32")):
        out = cupy.full(shape, np.nan, np.float32)
        call = partial(bs.sddmm, matrix.tiled, *operands, op=op, out=out)
        call()
        error = _error(matrix, left, right, op, out)
        if not error <= TOLERANCE:
            raise AssertionError(f"{what}: the result is wrong, error {error:.2e}")
        errors.append(error)
        sides.append(Timed(call, what))
    row_bytes = int(ends[0].words.shape[-1]) * 4
    moved = int(matrix.pattern_bytes + sum(end.words.nbytes for end in ends) + 4 * np.prod(shape))
    limits, more = gather_bounds(matrix.nnz, row_bytes, matrix.shape[1], moved, matrix.reuse)
    params = matrix.facts() | more | {"D": columns, "bits": bits, "op": op, "error": max(errors)}
    params["replayed"] = all(side.replayed for side in sides)

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, float_ms = in_turns(sides, protocol.repetitions)
        return ms, float_ms

    return Prepared(lambda: None, None, sides[1].name, params, moved, *limits, measure=measure)


def _error(matrix: Any, x: Any, y: Any, op: str, out: Any) -> float:
    """The largest error of a result, in the unit of :data:`TOLERANCE`."""
    cupy = jit.require_cupy("suite sampled")
    if op == "dot":
        return float(cupy.abs(out - exact_dots(matrix, x, y)).max().get()) / math.sqrt(x.shape[1])
    rows, worst, step = edge_rows(matrix), 0.0, 1 << 20
    for first in range(0, matrix.nnz, step):
        part = slice(first, first + step)
        wanted = x[rows[part]].astype(np.float64) + y[matrix.indices[part]]
        worst = float(np.maximum(worst, cupy.abs(out[part] - wanted).max().get()))
    return worst

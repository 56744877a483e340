"""Scores of nodes for graph attention, their gradients, and sums over nodes, on the GPU."""

from __future__ import annotations

import math
from typing import Any

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.edges.node_rows import (
    FEWER_BLOCKS,
    NodeLanes,
    lanes_for,
    lanes_of,
    over_nodes,
    summing_nodes,
)

_SOURCE = "edges/head_scores.cu"

#: Constants of sums that are also added to the gradient by the features.
_ADDED = {"BS_ADDED": 1, "BS_BLOCKS": FEWER_BLOCKS}

HeadScoresParams = jit.struct(_SOURCE, "HeadScoresParams")
SumNodesParams = jit.struct(_SOURCE, "SumNodesParams")


def head_scores(
    x: Any, first: Any, second: Any, out: tuple[Any, Any] | None = None, *, laid: Any = None
) -> tuple[Any, Any]:
    """Dot products of each head's features with two vectors.

    Parameters
    ----------
    x : cupy.ndarray (nodes, heads, width)
        float32, float16, bfloat16 or float64, C-contiguous.
    first, second : cupy.ndarray (heads, width)
        C-contiguous, in the dtype in which `x` is summed.
    out : tuple of cupy.ndarray, optional
        Arrays for both results.
    laid : cupy.ndarray, optional
        Memory for a copy of `x` whose heads are whole vectors, as ``LaidRows`` makes it.

    Returns
    -------
    cupy.ndarray (nodes, heads), twice
        In the dtype of `first`.
    """
    cupy, (nodes, heads, width) = jit.require_cupy("head_scores"), x.shape
    made = out or (cupy.empty((nodes, heads), first.dtype), cupy.empty((nodes, heads), first.dtype))
    if not width:
        made[0].fill(0), made[1].fill(0)
    elif nodes and heads:
        fields = {"x": x, "first": first, "second": second, "by_first": made[0], "by_second": made[1], "laid": laid}
        over_nodes(
            _SOURCE, "head_scores", x.shape, lanes_for(x.shape, (x,), True), jit.filled(HeadScoresParams(), **fields)
        )
    return made


def head_scores_vjp(
    x: Any, first: Any, second: Any, by_first: Any, by_second: Any, dx: Any = None, out: Any = None
) -> Any:
    """Gradients of :func:`head_scores` with respect to the two vectors, (2, heads, width).

    `by_first` and `by_second` (nodes, heads) are the gradients of the scores, in the dtype of `first`. If there is an array `dx`, of the
    shape and dtype of `x`, the gradient by the features is added to it.
    """
    fields = {"by_first": by_first, "by_second": by_second}
    if dx is not None:
        fields |= {"first": first, "second": second, "dx": dx}
    return _over_nodes(x, first.dtype, 2, out, **fields)


def column_sums(x: Any, out: Any = None, *, wide: bool = False) -> Any:
    """Sums of the columns of a C-contiguous matrix (nodes, columns), with the same bits in every run.

    The result has the dtype in which `x` is summed; `wide` sums are computed in float64 and rounded once.
    """
    rows = x.reshape(len(x), 1, math.prod(x.shape[1:]))
    into = None if out is None else out.reshape(1, *rows.shape[1:])
    return _over_nodes(rows, edges.sum_dtype(x.dtype), 1, into, wide).reshape(x.shape[1:])


def _over_nodes(x: Any, sums: Any, sets: int, out: Any = None, wide: bool = False, **fields: Any) -> Any:
    """Sums over the nodes, (sets, heads, columns): each block sums its nodes in order, then the sums of the blocks are added in order."""
    made = jit.require_cupy("column_sums").empty((sets, *x.shape[1:]), sums) if out is None else out
    if not x.size:
        made.fill(0)
        return made
    params = jit.filled(SumNodesParams(), x=x, **fields)
    lanes = lanes_for(x.shape, (x, fields.get("dx")), False)
    if "dx" in fields:
        lanes = replace(lanes, defines=lanes.defines | _ADDED)
    lanes, partial = summing_nodes(sets, x.shape, lanes, made, params, wide=wide)
    over_nodes(_SOURCE, "sum_nodes", x.shape, lanes, params)
    del partial  # held until here
    return made


#: Dtypes, heads and columns that are usual.
_USUAL = [("float32", 4, 32), ("float32", 1, 47), ("float32", 8, 8), ("float32", 1, 64), ("float32", 1, 1)]
_USUAL += [("float16", 4, 32), ("float16", 1, 47), ("float64", 4, 32)]


def usual_lanes(together: bool) -> list[NodeLanes]:
    """Lanes for rows of the usual heads and columns, for every kind of floats."""
    found = [lanes_of(*one, True, together) for one in _USUAL]
    half, bfloat16 = (edges.element_type(dtype) for dtype in ("float16", "bfloat16"))
    return found + [
        replace(one, defines=one.defines | {"BS_TYPE": bfloat16}) for one in found if one.defines["BS_TYPE"] == half
    ]


def _variants() -> list[jit.Variant]:
    scores = [lanes.defines for lanes in usual_lanes(True)]
    sums = [lanes.defines | {"BS_SETS": 1} for lanes in usual_lanes(False)]
    both = [lanes.defines | {"BS_SETS": 2} | added for lanes in usual_lanes(False) for added in ({}, _ADDED)]
    wide = [
        lanes_of(dtype, 1, 1, True, False).defines | {"BS_SETS": 1, "BS_WIDE": 1} for dtype in ("float32", "float64")
    ]
    return [
        *jit.variants_of(_SOURCE, "head_scores", scores),
        *jit.variants_of(_SOURCE, "sum_nodes", [*sums, *both, *wide]),
    ]


VARIANTS = _variants()

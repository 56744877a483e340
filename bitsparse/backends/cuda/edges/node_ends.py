"""What the gradient of attention needs of each node, from one pass over the gradient by the result, on the GPU."""

from __future__ import annotations

from typing import Any

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.edges.head_scores import usual_lanes
from bitsparse.backends.cuda.edges.node_rows import lanes_for, over_nodes, summing_nodes

_SOURCE = "edges/node_ends.cu"

NodeEndsParams = jit.struct(_SOURCE, "NodeEndsParams")


def node_ends(
    x: Any, y: Any, above: Any, heads: int, fields: dict[str, Any], *, column_sums: Any = None, laid: Any = None
) -> None:
    """Dot products of the heads of rows of x, y and above, as ``head_products`` makes them, from one pass over the rows.

    Parameters
    ----------
    x, y, above : cupy.ndarray (nodes, heads * columns)
        The gradient by the result, the result, and its second part or None. Heads fit in a warp (``node_rows.most_columns``).
    fields : dict
        Further fields of ``struct NodeEndsParams``.
    column_sums : cupy.ndarray (heads * columns,), optional
        Receives the sums of the columns of `x`, in the dtype of sums.
    laid : cupy.ndarray, optional
        Memory for a copy of `x` whose heads are whole vectors, as ``LaidRows`` makes it.
    """
    sizes = x.shape[0], heads, x.shape[1] // heads
    if not x.size:
        if column_sums is not None:
            column_sums.fill(0)
        return
    params = jit.filled(NodeEndsParams(), x=x, y=y, above=above, laid=laid, **fields)
    lanes, partial = lanes_for(sizes, (x, y, above), True), None
    if column_sums is None:
        lanes = replace(lanes, defines=lanes.defines | {"BS_SETS": 1})
    else:
        lanes, partial = summing_nodes(1, sizes, lanes, column_sums, params)
    over_nodes(_SOURCE, "node_ends", sizes, lanes, params)
    del partial  # held until here


VARIANTS = jit.variants_of(_SOURCE, "node_ends", [lanes.defines | {"BS_SETS": 1} for lanes in usual_lanes(True)])

"""How passes over the features of all nodes are spread over lanes and blocks on the GPU."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.counters import counters
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.rows import WIDEST

_THREADS = 256
#: The fewest rows for each thread.
_ROWS = 8
#: Blocks per multiprocessor, which all run at the same time, and the number for kernels with more registers.
_BLOCKS, FEWER_BLOCKS = 4, 2


class NodeLanes(NamedTuple):
    """How rows (nodes, heads, columns) are spread over lanes: constants of the kernels, and numbers for their argument.

    Attributes
    ----------
    defines : dict
    head_vectors, head_lanes : int
        Vectors and lanes of a head.
    stripes : int
        Stripes of lanes into which rows are cut.
    elements : int
        Elements of a vector.
    """

    defines: dict[str, int]
    head_vectors: int
    head_lanes: int
    stripes: int
    elements: int


def most_columns(dtype: Any) -> int:
    """The most columns of a head for which each lane of a warp has at most one vector.

    Examples
    --------
    >>> most_columns(np.float32), most_columns(np.float64)
    (128, 64)
    """
    return 32 * WIDEST // int(np.dtype(dtype).itemsize)


@functools.lru_cache(maxsize=256)
def lanes_of(dtype: Any, heads: int, columns: int, aligned: bool, together: bool) -> NodeLanes:
    """The lanes for rows of some heads in arrays that are `aligned` to whole vectors or not.

    If `together`, a power of two of lanes, which lie in one warp, have the same head and can exchange sums.

    Examples
    --------
    >>> made = lanes_of(np.float32, 4, 32, True, True)
    >>> made.defines["BS_LANES"], made.defines["BS_TOGETHER"], made.stripes
    (32, 8, 1)
    >>> lanes_of(np.float32, 1, 47, True, True).defines
    {'BS_TYPE': 0, 'BS_VECTOR': 16, 'BS_LANES': 16, 'BS_RAGGED': 1, 'BS_TOGETHER': 16, 'BS_BLOCKS': 4}
    """
    itemsize = np.dtype(dtype).itemsize
    row_bytes = columns * itemsize
    head_vectors = -(-row_bytes // WIDEST)
    head_lanes = min(32, edges.power_of_two(head_vectors)) if together else head_vectors
    defines = edges.rows_defines(dtype, WIDEST, heads * head_lanes, 32 if together else _THREADS)
    defines |= jit.flags(ragged=not aligned or row_bytes % WIDEST != 0)
    if together:
        defines["BS_TOGETHER"] = head_lanes
    defines["BS_BLOCKS"] = FEWER_BLOCKS if itemsize == 2 or defines["BS_LANES"] == 1 else _BLOCKS
    stripes = -(-heads * head_lanes // defines["BS_LANES"])
    return NodeLanes(defines, head_vectors, head_lanes, stripes, WIDEST // itemsize)


def lanes_for(sizes: tuple[int, int, int], arrays: tuple[Any, ...], together: bool) -> NodeLanes:
    """The lanes for arrays of sizes (nodes, heads, columns); all have the dtype of the first, and some may be None."""
    aligned = all(part is None or part.data.ptr % WIDEST == 0 for part in arrays)
    return lanes_of(arrays[0].dtype, *sizes[1:], aligned, together)


def over_nodes(
    source: str,
    function: str,
    sizes: tuple[int, int, int],
    lanes: NodeLanes,
    params: Any,
) -> None:
    """Launch a kernel over rows of these sizes; `params` is its argument, filled but for the rows."""
    rows = params.rows
    rows.nodes, rows.heads, rows.columns = sizes
    rows.head_vectors, rows.head_lanes = lanes.head_vectors, lanes.head_lanes
    rows.blocks = _blocks_for(sizes[0], lanes)
    jit.kernel(source, function, lanes.defines).run(rows.blocks * lanes.stripes, _THREADS, params)


def summing_nodes(
    sets: int, sizes: tuple[int, int, int], lanes: NodeLanes, out: Any, params: Any, wide: bool = False
) -> tuple[NodeLanes, Any]:
    """Prepare sums over nodes into ``out (sets, heads, columns)``: the lanes with the kernels' further constants, and memory to hold.

    The sums of each block are held in float64 if `wide`.
    """
    defines = lanes.defines | {"BS_SETS": sets} | jit.flags(wide=wide)
    blocks = _blocks_for(sizes[0], lanes)
    params.sums.out, partial = out.data.ptr, None
    if blocks > 1:
        of_block = sets * lanes.stripes * defines["BS_LANES"] * lanes.elements
        partial = jit.scratch((blocks, of_block), np.float64 if wide else out.dtype, out)
        params.sums.partial, params.sums.arrived = partial.data.ptr, counters(lanes.stripes).data.ptr
    return replace(lanes, defines=defines), partial


def _blocks_for(nodes: int, lanes: NodeLanes) -> int:
    """The number of blocks that share the nodes of a stripe on the current GPU."""
    rows = _THREADS // lanes.defines["BS_LANES"] * _ROWS
    at_once = jit.capability(jit.cupy.cuda.runtime.getDevice()).multiprocessors * lanes.defines["BS_BLOCKS"]
    return max(1, min(-(-nodes // rows), at_once // lanes.stripes))

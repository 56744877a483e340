"""Parts of a graph for training in batches on the GPU, with the host's results bit for bit, since draws use the same counters.

:func:`hop` waits twice, for its numbers of edges and of columns; :func:`induced` waits once. Arguments are validated by the callers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS, launch, rows_of
from bitsparse.backends.cuda.sparse.starts import room_for_counts, start_rows
from bitsparse.errors import KernelError

__all__ = ["below", "hop", "induced", "walks"]

_SOURCE = "sampling/subgraphs.cu"
#: Up to this many edges of a row, a warp sorts them by counting those before each edge; with more, all rows are sorted together.
_FEW = 256
#: Places are counted in 32 bits; the largest value means none.
_MOST_PLACES = 2**32 - 1

SubgraphParams = jit.struct(_SOURCE, "SubgraphParams")


def _launch(name: str, dtype: Any, items: int, params: Any) -> None:
    launch(_SOURCE, name, dtype, -(-items // THREADS), params)


def _params(indptr: Any, indices: Any, rows: Any, seed: int = 0, stream: int = 0, **fields: Any) -> Any:
    params = SubgraphParams(count=rows.size, total=0, width=0, first=0)
    params.draws.seed, params.draws.stream = seed, stream
    return jit.filled(params, indptr=indptr, indices=indices, rows=rows, **fields)


def hop(
    indptr: Any,
    indices: Any,
    columns: int,
    targets: Any,
    *,
    width: int,
    own: bool,
    seed: int,
    stream: int,
    place: Any,
) -> tuple[Any, Any, Any, Any]:
    """Some neighbours of each target, with columns renumbered; see the host backend.

    Raises
    ------
    KernelError
        If there are too many edges for one batch.
    """
    cupy, dtype, count = jit.require_cupy("sample"), indptr.dtype, targets.size
    starts = room_for_counts(count, np.int64)
    params = _params(indptr, indices, targets, seed, stream, width=width, starts=starts, place=place)
    params.first = count if own else 0
    _launch("hop_counts", dtype, count, params)
    (total,) = start_rows(starts)
    if total + params.first >= _MOST_PLACES:
        if own:
            _launch("forget_places", dtype, count, params)
        raise KernelError(
            f"NeighborSampler: {count} nodes of a batch have {total} edges, but a GPU takes {_MOST_PLACES - count}; make batches smaller"
        )
    picked, edges, made = cupy.empty(total, np.int64), cupy.empty(total, np.int64), cupy.empty(total, np.int32)
    fresh = room_for_counts(total, np.int64)
    params.total = total
    jit.filled(params, picked=picked, edges=edges, columns=made, fresh=fresh)
    _launch("hop_edges", dtype, 32 * count, params)
    _launch("hop_fresh", dtype, total, params)
    (new,) = start_rows(fresh)
    sources = cupy.empty(params.first + new, np.int64)
    jit.filled(params, out=sources)
    _launch("hop_sources", dtype, max(total, params.first), params)
    if 0 <= width <= _FEW:
        ordered = cupy.empty(total, np.int64)
        jit.filled(params, out=ordered)
        _launch("hop_sorted", dtype, 32 * count, params)
    else:
        _launch("hop_numbers", dtype, total, params)
        order = cupy.argsort(rows_of(starts, total) << 32 | made)
        made, ordered = made[order], edges[order]
    _launch("forget_places", dtype, sources.size, _params(indptr, indices, sources, place=place))
    return sources, starts, made, ordered


def induced(indptr: Any, indices: Any, columns: int, nodes: Any, *, place: Any) -> tuple[Any, Any, Any]:
    """The edges among ascending nodes; see the host backend."""
    cupy, dtype, count = jit.require_cupy("sample"), indptr.dtype, nodes.size
    starts = room_for_counts(count, np.int64)
    params = _params(indptr, indices, nodes, starts=starts, place=place)
    _launch("place_nodes", dtype, count, params)
    _launch("induced_rows", dtype, 32 * count, params)
    (total,) = start_rows(starts)
    made, edges = cupy.empty(total, np.int32), cupy.empty(total, np.int64)
    if total:
        jit.filled(params, columns=made, edges=edges)
        _launch("induced_rows", dtype, 32 * count, params)
    _launch("forget_places", dtype, count, params)
    return starts, made, edges


def walks(indptr: Any, indices: Any, columns: int, roots: Any, length: int, *, seed: int, stream: int) -> Any:
    """Walks of `length` steps to uniformly drawn neighbours; see the host backend."""
    out = jit.require_cupy("sample").empty((roots.size, length + 1), np.int64)
    _launch("walks", indptr.dtype, roots.size, _params(indptr, indices, roots, seed, stream, width=length, out=out))
    return out


def below(limit: int, count: int, *, seed: int, stream: int) -> Any:
    """`count` uniformly drawn integers below `limit`; see the host backend."""
    out = jit.require_cupy("sample").empty(count, np.int64)
    params = SubgraphParams(count=count, width=limit)
    params.draws.seed, params.draws.stream = seed, stream
    _launch("numbers_below", np.int32, count, jit.filled(params, out=out))
    return out


VARIANTS = jit.variants_of(_SOURCE, "hop_edges", BOTH_INDICES)

"""The transpose of a matrix whose rows are distributed: every rank gets the rows of the transpose that are its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse._communicator import Communicator, gathered_parts
from bitsparse.distributed.shards import Shard

Array = NDArray[Any]


def transposed(shard: Shard) -> Shard:
    """The shard of the transposed pattern, with rows' and columns' factors exchanged; all ranks call it together.

    Values are left out. If the transpose is the matrix itself, as for an undirected graph, this is `shard`; if only its pattern is, it
    shares the exchanges of `shard`.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from bitsparse import distributed
    >>> ring = sp.csr_array(np.roll(np.eye(4), 1, axis=1))
    >>> def mine(comm):
    ...     return transposed(distributed.shard(ring, distributed.partition(ring, comm))).columns.tolist()
    >>> distributed.local(2).run(mine)
    [[3, 0], [1, 2]]
    """
    comm, part, rows = shard.comm, shard.part, shard.part.rows()
    indptr, columns = (interop.move(array, "cpu") for array in (shard.indptr, shard.columns))
    starts, others = _own_rows(comm, part.bounds, indptr, columns, shard.nodes)
    row_scale = None if shard.col_scale is None else interop.contiguous(shard.col_scale[rows])
    col_scale = None
    if shard.row_scale is not None:
        whole = np.concatenate(gathered_parts(comm, interop.move(shard.row_scale, "cpu")))
        col_scale = interop.move(whole, shard.device)
    same = np.array([_equal(indptr, starts) and _equal(columns, others), _equal(shard.row_scale, row_scale)], np.int64)
    comm.all_reduce(same, "min")
    if same.all() and shard.values is None:
        return shard
    if same[0]:
        return shard.with_values(None).with_scales(row_scale, col_scale)
    dtype = np.int64 if max(shard.nodes, others.size) >= 1 << 31 else np.int32
    bare = Shard(part, starts.astype(dtype), others.astype(dtype, copy=False)).to_device(shard.device)
    return bare.with_scales(row_scale, col_scale)


def _own_rows(
    comm: Communicator, bounds: NDArray[np.int64], indptr: Array, columns: Array, nodes: int
) -> tuple[Array, Array]:
    """CSR arrays of this rank's rows of the transpose, from those of its rows of the matrix."""
    first, own = int(bounds[comm.rank]), int(bounds[comm.rank + 1] - bounds[comm.rank])
    # By columns: what goes to one rank lies together, each column's rows ascending.
    turned = sp.csr_array((np.ones(columns.size, np.int8), columns, indptr), (indptr.size - 1, nodes)).tocsc()
    sent = np.diff(turned.indptr[bounds]).tolist()
    lengths = np.empty((comm.size, own), np.int64)
    counts = np.diff(bounds).tolist()
    comm.all_to_all_v(np.diff(turned.indptr).astype(np.int64), counts, lengths.reshape(-1), [own] * comm.size)
    received = lengths.sum(axis=1)
    dtype = np.int32 if nodes < 1 << 31 else np.int64
    came = np.empty(int(received.sum()), dtype)
    rows = turned.indices.astype(dtype)
    rows += first
    comm.all_to_all_v(rows, sent, came, received.tolist())
    # A row's entries of one rank follow those of the rank before.
    starts = np.concatenate([[0], np.cumsum(lengths.sum(axis=0))])
    before = starts[:-1] + np.cumsum(lengths, axis=0) - lengths
    made, ends = np.empty_like(came), np.cumsum(received)
    for rank, stop in enumerate(ends.tolist()):
        piece = came[stop - int(received[rank]) : stop]
        at = np.repeat(before[rank] - (np.cumsum(lengths[rank]) - lengths[rank]), lengths[rank])
        made[at + np.arange(piece.size)] = piece
    return starts, made


def _equal(one: Any, other: Any) -> bool:
    """Whether both are None, or arrays of the same numbers."""
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and bool((one == other).all())

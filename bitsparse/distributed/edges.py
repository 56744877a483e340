"""Scores of edges and attention over shards; the rows that belong to the far ends of edges are exchanged."""

from __future__ import annotations

from typing import Any

from bitsparse import ops
from bitsparse._communicator import together
from bitsparse.distributed.operands import is_shard
from bitsparse.distributed.plans import Way, gathering
from bitsparse.errors import DTypeError
from bitsparse.ops.edges.sddmm import Op


def sddmm(A: Any, x: Any, y: Any = None, *, op: Op = "dot", exchange: Way = "auto", out: Any = None) -> Any:
    """A score for each of this rank's entries (i, j), from row i of `x` and row j of `y`; see :func:`bitsparse.sddmm`.

    Parameters
    ----------
    A : Shard
    x, y : array (rows, ...)
        This rank's rows. `y` is `x` by default; its rows are sent to the ranks whose entries need them.
    op, out
        As in :func:`bitsparse.sddmm`.
    exchange
        As in :func:`plan_spmm`.

    Returns
    -------
    array (nnz,) or (nnz, H)
        In the order of ``A.columns``.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from bitsparse import distributed
    >>> ring = sp.csr_array(np.roll(np.eye(4, dtype=int), 1, axis=1))
    >>> def mine(comm):
    ...     part = distributed.partition(ring, comm)
    ...     return distributed.sddmm(distributed.shard(ring, part), part.take(np.arange(4.0)[:, None])).tolist()
    >>> distributed.local(2).run(mine)
    [[0.0, 2.0], [6.0, 0.0]]
    """
    function = "sddmm"
    far = x if y is None else y
    shard, matrix, gather = gathering(function, A, exchange, {"op": op}, y=far)
    gathered = gather("y", far)
    with together(shard.comm, function):
        return ops.sddmm(matrix, x, gathered, op=op, out=out)


def attention(
    A: Any, x: Any, source: Any, target: Any, *, exchange: Way = "auto", out: Any = None, **options: Any
) -> Any:
    """Sums of neighbours' rows, weighed by a softmax over each row's entries (GAT), over shards; see :func:`bitsparse.attention`.

    Parameters
    ----------
    A : Shard
    x : array (rows, H, D)
        The rows of this rank's nodes.
    source, target : array (rows, H)
        The scores of this rank's nodes as sources of edges, which are exchanged with `x`, and as targets.
    exchange
        As in :func:`plan_spmm`.
    out, **options
        ``negative_slope``, ``return_lse``. Dropout is refused, because it draws by the node numbers of an edge, which differ in shards.

    Returns
    -------
    array (rows, H, D)
    """
    function = "attention"
    if options.get("dropout"):
        raise DTypeError(
            f"{function}: dropout draws by the numbers of an edge's ends, which shards renumber; leave dropout out"
        )
    slope = {"negative_slope": options.get("negative_slope")}
    shard, matrix, gather = gathering(function, A, exchange, slope, x=x, source=source)
    sent, scores = gather("x", x), gather("source", source)
    with together(shard.comm, function):
        return ops.attention(matrix, sent, scores, target, out=out, **options)


def edge_softmax(A: Any, scores: Any, *, out: Any = None) -> Any:
    """Softmax of scores over each row's entries; all entries of a row are on one rank. See :func:`bitsparse.edge_softmax`.

    Parameters
    ----------
    A : Shard
    scores : array (nnz,) or (nnz, H)
        In the order of ``A.columns``.
    out : optional
    """
    return ops.edge_softmax(is_shard("edge_softmax", A).own_rows(), scores, out=out)

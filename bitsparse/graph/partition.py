"""Partitions by METIS."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse.graph.adjacency import scipy_pattern, square_pattern

__all__ = ["partition"]


def partition(graph: Any, parts: int, *, seed: int = 0, recursive: bool | None = None) -> NDArray[np.int32]:
    """Split the nodes into parts of about equal size with few edges between them (METIS, as QGTC section 4.1 and Cluster-GCN use it).

    Parameters
    ----------
    graph : sparse array of shape (n, n), tuple, TCTiledCSR, FRDC, BitTensor
        Directions, values and self loops do not matter: METIS gets the symmetric pattern without loops.
    parts : int
        Number of parts, 1..n. Some may stay empty when it is close to n.
    seed : int, default 0
        Of METIS; the same seed gives the same parts.
    recursive : bool, optional
        Recursive bisection instead of k-way partitioning; by default up to 8 parts.

    Returns
    -------
    ndarray of int32, shape (n,)
        The part of each node.

    Examples
    --------
    >>> from bitsparse import graph
    >>> a = np.kron(np.eye(2, dtype=int), np.ones((4, 4), dtype=int))
    >>> labels = graph.partition(a, 2)
    >>> len(set(labels[:4])), len(set(labels[4:])), bool(labels[0] != labels[4])
    (1, 1, True)
    """
    pattern = square_pattern("partition", graph)
    nodes = pattern.shape[0]
    parts = _check.integer("partition", "parts", parts, 1, max(nodes, 1))
    seed = _check.integer("partition", "seed", seed, 0, 2**31 - 1)
    csr = scipy_pattern(pattern)
    both = (csr + csr.T).tocoo()
    off_diagonal = both.row != both.col
    if parts == 1 or not off_diagonal.any():  # METIS cannot cut a graph without edges
        return (np.arange(nodes, dtype=np.int64) * parts // max(nodes, 1)).astype(np.int32)
    from pymetis import CSRAdjacency, Options, part_graph, zero_copy_dtype
    from scipy import sparse

    kept = (np.ones(int(off_diagonal.sum()), np.int8), (both.row[off_diagonal], both.col[off_diagonal]))
    plain = sparse.coo_array(kept, shape=pattern.shape).tocsr()
    dtype = zero_copy_dtype()
    adjacency = CSRAdjacency(plain.indptr.astype(dtype, copy=False), plain.indices.astype(dtype, copy=False))
    cut = part_graph(parts, adjacency, recursive=recursive, options=Options(seed=seed))
    return np.asarray(cut.vertex_part, dtype=np.int32)

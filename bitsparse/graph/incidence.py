"""The incidence matrix of a graph, which sums edge features at the nodes that the edges touch (TANGO section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.graph.adjacency import pattern_of


@dataclass(frozen=True)
class Incidence:
    """The edges of each node: a 0/1 matrix of nodes by edges in CSR form, with one entry per edge.

    A sum over the edges of a node then reads two arrays (this and the edge features) instead of three (adjacency, edge features and
    node features of ones). For ``"rows"`` it also reads the edges in order.

    Attributes
    ----------
    indptr : ndarray, shape (nodes + 1,)
    edges : ndarray, shape (nnz,)
        Positions in the CSR order of the graph, ascending for each node.
    side : str
        ``"rows"`` or ``"cols"``.
    """

    indptr: NDArray[Any]
    edges: NDArray[Any]
    side: str

    @property
    def shape(self) -> tuple[int, int]:
        """(nodes, edges)."""
        return self.indptr.size - 1, self.edges.size

    @property
    def in_order(self) -> bool:
        """Whether `edges` counts up from 0, so that a sum runs over consecutive segments without a gather."""
        return self.side == "rows"

    def csr_arrays(self) -> tuple[NDArray[Any], NDArray[Any], None]:
        """``(indptr, indices, None)``: the pattern in the form that all bitsparse functions accept."""
        return self.indptr, self.edges, None

    def tocsr(self) -> Any:
        """The matrix as :class:`scipy.sparse.csr_array` of uint8 ones."""
        from scipy import sparse

        return sparse.csr_array((np.ones(self.edges.size, np.uint8), self.edges, self.indptr), shape=self.shape)


def incidence(graph: Any, side: str = "rows") -> Incidence:
    """Plan sums of edge features at the nodes of one side.

    Parameters
    ----------
    graph : sparse array of shape (m, n), tuple, TCTiledCSR, FRDC, BitTensor
        Edges are counted in its CSR order.
    side : {"rows", "cols"}, default "rows"
        ``"rows"``: node i gets the edges of row i (its in-edges in ``A @ X``); ``"cols"``: node j gets the edges of column j.

    Returns
    -------
    Incidence

    Examples
    --------
    >>> from bitsparse import graph
    >>> plan = graph.incidence(np.array([[0, 1, 1], [1, 0, 0]]), "cols")
    >>> plan.tocsr().toarray()
    array([[0, 0, 1],
           [1, 0, 0],
           [0, 1, 0]], dtype=uint8)
    """
    _check.choice("incidence", "side", side, ("rows", "cols"))
    pattern = pattern_of("incidence", graph)
    if side == "rows":
        return Incidence(pattern.indptr, np.arange(pattern.indices.size, dtype=pattern.indptr.dtype), side)
    build = backends.family(interop.device_of(pattern.indptr), "sparse.build")
    starts, _, edges = build.transpose_csr(pattern.indptr, pattern.indices, pattern.shape)
    return Incidence(starts, edges, side)

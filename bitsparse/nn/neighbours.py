"""The matrices by which full-precision networks sum over neighbours; they are normalised as in PyTorch Geometric."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.arrays import TCTiledCSR
from bitsparse.errors import DeviceError, DTypeError
from bitsparse.graph.adjacency import square_sparse
from bitsparse.graph.operand import Graph
from bitsparse.nn.layers import Neighbours
from bitsparse.ops.spmm.spmm import spmm

#: The Neighbours that each normalisation of a Graph stands for.
_NORMALISED = {
    "gcn": Neighbours("sum", gcn_norm=True, self_loop=1.0),
    "mean": Neighbours("mean"),
    "sum": Neighbours("sum"),
}


class NeighbourSums:
    """The sums of a network's layers over one graph; each matrix is made once.

    Parameters
    ----------
    function : str
        The public function, for errors.
    adjacency : sparse array (n, n) of SciPy or bitsparse, or Graph
        ``A[i, j]`` is the edge by which i receives from j; duplicates are summed. A Graph has no edge weights and is normalised already.
    weighted : bool
        Whether any layer reads the values; otherwise all must be 1.
    dtype : dtype
        The dtype of the sums.
    device : str, default "cpu"
        The device of the features. On a GPU the adjacency has to be a Graph on the same device.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = NeighbourSums("Network", sparse.csr_array([[0, 1], [0, 0]]), True, np.float32)
    >>> graph.matrix(nn.Neighbours(gcn_norm=True, self_loop=1.0)).toarray().round(3)
    array([[0.5  , 0.707],
           [0.   , 1.   ]], dtype=float32)
    """

    def __init__(self, function: str, adjacency: Any, weighted: bool, dtype: Any, device: str = "cpu") -> None:
        from scipy import sparse

        there = adjacency.device if isinstance(adjacency, Graph) else "cpu"
        if there != device:
            raise DeviceError(
                f"{function}: x is on {device} but the {'graph' if isinstance(adjacency, Graph) else 'adjacency'} on {there}; pass "
                + ("x as it lies there" if device == "cpu" else f"an nn.Graph with device={device!r}")
            )
        self._function, self._dtype = function, np.dtype(dtype)
        self._matrices: dict[Neighbours, Any] = {}
        self._graph: Graph | None = None
        if isinstance(adjacency, Graph):
            self._graph, self.nodes = adjacency, adjacency.nodes
            return
        adjacency = square_sparse(function, adjacency)
        if adjacency.dtype.kind not in "biuf":
            raise DTypeError(f"{function}: adjacency has dtype {adjacency.dtype}, but weights are real; use astype")
        values = sparse.csr_array(adjacency, dtype=np.float64, copy=True)
        values.sum_duplicates()
        if not np.isfinite(values.data).all():
            raise ValueError(f"{function}: adjacency holds NaN or infinity; remove these edges")
        if not weighted and (values.data != 1).any():
            other = values.data[values.data != 1][0]
            raise ValueError(
                f"{function}: adjacency holds {other:g}, but no layer of this network reads weights of edges; pass ones, as with "
                "adjacency.data[:] = 1 on a copy without duplicates"
            )
        self._values, self.nodes = values, int(values.shape[0])

    def reduce(self, how: Neighbours, x: Any) -> Any:
        """Gather the neighbours' rows of ``x`` for every node."""
        if how.reduce != "max" and hasattr(x, "tocsr"):
            return self.matrix(how).tocsr() @ x
        return spmm(self.matrix(how), self.dense(x), reduce="max" if how.reduce == "max" else "sum")

    def dense(self, x: Any) -> Any:
        """Check that features, of which maxima or cosines are taken, are dense, and make them contiguous."""
        if hasattr(x, "tocsr"):
            raise DTypeError(
                f"{self._function}: a maximum or a cosine needs dense features, got {type(x).__name__}; pass x.toarray()"
            )
        return interop.contiguous(x)

    def matrix(self, how: Neighbours) -> Any:
        """The matrix to multiply by, a TCTiledCSR; for maxima and attention, the edges themselves."""
        if how not in self._matrices:
            made = self._normalised(how) if self._graph is None else self._of_graph(self._graph, how)
            self._matrices[how] = made if isinstance(made, TCTiledCSR) else TCTiledCSR(made)
        return self._matrices[how]

    def _of_graph(self, graph: Graph, how: Neighbours) -> Any:
        if how.reduce == "softmax":
            if graph.self_loops != (how.self_loop is not None):
                raise ValueError(
                    f"{self._function}: a layer gathers with {how}, but the graph has self_loops={graph.self_loops}; pass "
                    f"nn.Graph(adjacency, self_loops={not graph.self_loops})"
                )
            return graph.pattern if graph.device == "cpu" else graph.packed("tiled")  # attention has its own weights
        if replace(how, weighted=False) != _NORMALISED[graph.normalisation] or graph.self_loops != how.gcn_norm:
            raise ValueError(
                f"{self._function}: a layer gathers with {how}, but the graph has normalisation={graph.normalisation!r} and "
                f"self_loops={graph.self_loops}; pass the adjacency instead"
            )
        if graph.device != "cpu":
            return graph.packed("tiled").with_scales(graph.row_scale, graph.col_scale)
        return graph.matrix.astype(self._dtype, copy=False)

    def _normalised(self, how: Neighbours) -> Any:
        matrix = self._values.copy()
        if not how.weighted:
            matrix.data[:] = 1.0
        if how.self_loop is not None:
            matrix = _with_loops(matrix, how.self_loop)
        rows = np.repeat(np.arange(self.nodes), np.diff(matrix.indptr))
        if how.gcn_norm:
            degrees = np.bincount(rows, matrix.data, minlength=self.nodes)
            if (degrees < 0).any():
                row = int(np.argmin(degrees))
                raise ValueError(
                    f"{self._function}: the weights of the edges to node {row} sum to {degrees[row]:g}, which has no square root; "
                    "gcn_norm needs sums that are not negative"
                )
            root = np.zeros(self.nodes)
            np.divide(1.0, np.sqrt(degrees), out=root, where=degrees > 0)
            matrix.data = root[rows] * matrix.data * root[matrix.indices]
        elif how.reduce == "mean":
            matrix.data = matrix.data / np.diff(matrix.indptr)[rows]
        return matrix.astype(self._dtype)


def _with_loops(values: Any, weight: float) -> Any:
    """Add a self loop of ``weight`` to each node that has none."""
    from scipy import sparse

    coo = values.tocoo()
    rows, cols = coo.coords
    missing: NDArray[np.bool_] = np.ones(values.shape[0], np.bool_)
    missing[rows[rows == cols]] = False
    loops = np.flatnonzero(missing).astype(rows.dtype)
    ends = (np.concatenate((rows, loops)), np.concatenate((cols, loops)))
    return sparse.coo_array(
        (np.concatenate((coo.data, np.full(loops.size, weight, coo.dtype))), ends), shape=values.shape
    ).tocsr()

"""The matrices that full-precision networks sum over neighbours with, as PyTorch Geometric makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.layers import Neighbours
from bitsparse.ops.spmm.spmm import spmm

__all__ = ["NeighbourSums", "neighbour_pattern"]


class NeighbourSums:
    """One graph as the layers of a network sum over it; each matrix is made once.

    Parameters
    ----------
    function : str
        Whose errors are raised.
    adjacency : scipy.sparse array (n, n)
        ``A[i, j]`` for what i takes from j; duplicates are summed.
    weighted : bool
        Whether any layer reads the values; if none does, they have to be ones.
    dtype : dtype
        Of the sums.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = NeighbourSums("Network", sparse.csr_array([[0, 1], [0, 0]]), True, np.float32)
    >>> graph.matrix(nn.Neighbours(gcn_norm=True, self_loop=1.0)).toarray().round(3)
    array([[0.5  , 0.707],
           [0.   , 1.   ]], dtype=float32)
    """

    def __init__(self, function: str, adjacency: Any, weighted: bool, dtype: Any) -> None:
        from scipy import sparse

        if not sparse.issparse(adjacency):
            raise DTypeError(
                f"{function}: adjacency must be a scipy.sparse array, got {type(adjacency).__name__}; wrap it in csr_array"
            )
        if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
            raise ShapeError(
                f"{function}: adjacency has shape {adjacency.shape}, but a graph needs a square array; pad it"
            )
        if adjacency.dtype.kind not in "biuf":
            raise DTypeError(f"{function}: adjacency has dtype {adjacency.dtype}, but weights are real; use astype")
        self._function, self._dtype = function, np.dtype(dtype)
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
        self._values = values
        self._made: dict[Neighbours, Any] = {}

    @property
    def nodes(self) -> int:
        """Nodes of the graph."""
        return int(self._values.shape[0])

    def reduce(self, how: Neighbours, x: Any) -> Any:
        """What every node gathers from its neighbours' ``x``."""
        if how.reduce != "max":
            return self.matrix(how) @ x
        if not isinstance(x, np.ndarray):
            raise DTypeError(
                f"{self._function}: the maximum over neighbours needs dense features, got {type(x).__name__}; pass x.toarray()"
            )
        return spmm(self.matrix(how), np.ascontiguousarray(x), reduce="max")

    def matrix(self, how: Neighbours) -> Any:
        """The csr_array to multiply by; for the maximum the edges themselves."""
        if how not in self._made:
            self._made[how] = self._make(how)
        return self._made[how]

    def _make(self, how: Neighbours) -> Any:
        made = self._values.copy()
        if not how.weighted:
            made.data[:] = 1.0
        if how.self_loop is not None:
            made = _with_loops(made, how.self_loop)
        rows = np.repeat(np.arange(self.nodes), np.diff(made.indptr))
        if how.gcn_norm:
            degrees = np.bincount(rows, made.data, minlength=self.nodes)
            if (degrees < 0).any():
                row = int(np.argmin(degrees))
                raise ValueError(
                    f"{self._function}: the weights of the edges to node {row} sum to {degrees[row]:g}, which has no square root; "
                    "gcn_norm needs sums that are not negative"
                )
            root = np.zeros(self.nodes)
            np.divide(1.0, np.sqrt(degrees), out=root, where=degrees > 0)
            made.data = root[rows] * made.data * root[made.indices]
        elif how.reduce == "mean":
            made.data = made.data / np.diff(made.indptr)[rows]
        return made.astype(self._dtype)


def _with_loops(values: Any, weight: float) -> Any:
    """An edge of ``weight`` from each node to itself where none is stored."""
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


def neighbour_pattern(adjacency: Any, self_loops: bool) -> Any:
    """The edges of ``adjacency`` as ones, a csr_array of float32, with one from each node to itself if ``self_loops``.

    Examples
    --------
    >>> from scipy import sparse
    >>> neighbour_pattern(sparse.csr_array([[0, 1], [0, 0]]), True).toarray()
    array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    from scipy import sparse

    made = sparse.csr_array(adjacency, dtype=np.float32, copy=True)
    made.sum_duplicates()
    made = _with_loops(made, 1.0) if self_loops else made
    made.data[:] = 1.0
    return made

"""Two-layer GraphSAGE with the mean of the neighbours (Hamilton et al. 2017), in full precision, trained in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.nn.full.training import Array, TwoLayers, checked, fit, glorot
from bitsparse.nn.inputs import Features, square_coo

__all__ = ["SAGE", "MeanNeighbours", "train_sage"]


class MeanNeighbours:
    """The mean over a node's neighbours, ``D^-1 A``, as a pattern with a factor per row.

    Every stored position counts as one edge, whatever its value; no self loops are added. Nodes without neighbours aggregate to 0.

    Parameters
    ----------
    adjacency : sparse array (n, n)
        Any scipy.sparse format.

    Attributes
    ----------
    pattern : csr_array (n, n) of float32
        All values 1.
    row_scale : ndarray (n,) of float32
        One over the number of neighbours; 1 where there are none.
    col_scale : None

    Raises
    ------
    DTypeError, ShapeError
        `adjacency` is not sparse or not square.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> nn.MeanNeighbours(sparse.csr_array([[0, 1, 1], [1, 0, 0], [0, 0, 0]])).matrix.toarray()
    array([[0. , 0.5, 0.5],
           [1. , 0. , 0. ],
           [0. , 0. , 0. ]], dtype=float32)
    """

    col_scale: None = None

    def __init__(self, adjacency: Any) -> None:
        from scipy import sparse

        coo = square_coo("MeanNeighbours", adjacency)
        ones = np.ones(coo.coords[0].size, np.float32)
        pattern = sparse.coo_array((ones, coo.coords), shape=coo.shape).tocsr()
        pattern.data[:] = 1.0
        self.pattern = pattern
        degrees = np.diff(pattern.indptr)
        self.row_scale: Array = np.float32(1) / np.maximum(degrees, 1).astype(np.float32)

    @cached_property
    def matrix(self) -> Any:
        """``D^-1 A`` as a csr_array of float32."""
        scaled = self.pattern.copy()
        scaled.data = np.repeat(self.row_scale, np.diff(scaled.indptr))
        return scaled


@dataclass(frozen=True)
class SAGE:
    """Weights of ``H S2 + M H W2 + b2`` with ``H = relu(X S1 + M X W1 + b1)`` and M the mean; calling it gives the logits.

    Attributes
    ----------
    s1, s2 : ndarray (features, hidden), (hidden, classes) of float32
        For a node's own features.
    w1, w2 : ndarray of the same shapes
        For the mean of its neighbours'.
    b1, b2 : ndarray (hidden,), (classes,) of float32

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> one, none = np.ones((1, 1), np.float32), np.zeros(1, np.float32)
    >>> model = nn.SAGE(one, one, none, one, one, none)
    >>> model(nn.MeanNeighbours(sparse.csr_array([[0, 1], [0, 0]])), nn.Features([[1.0], [4.0]]))
    array([[3.],
           [1.]], dtype=float32)
    """

    s1: Array
    w1: Array
    b1: Array
    s2: Array
    w2: Array
    b2: Array

    def __call__(self, graph: MeanNeighbours, features: Features) -> Array:
        """Logits of every node, ``(n, classes)`` float32, in full precision."""
        m, x = graph.matrix, features.normalized
        hidden = np.maximum(x @ self.s1 + m @ (x @ self.w1) + self.b1, 0)
        logits: Array = hidden @ self.s2 + m @ (hidden @ self.w2) + self.b2
        return logits

    @property
    def steps(self) -> tuple[tuple[Array | None, Array, Array], ...]:
        """Weights of a node's own features, weights of what is aggregated, and bias of each layer."""
        return (self.s1, self.w1, self.b1), (self.s2, self.w2, self.b2)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and biases."""
        return sum(part.nbytes for part in (self.s1, self.w1, self.b1, self.s2, self.w2, self.b2))


def train_sage(
    graph: MeanNeighbours,
    features: Features,
    labels: Any,
    train_mask: NDArray[np.bool_],
    *,
    hidden: int = 16,
    epochs: int = 200,
    learning_rate: float = 0.01,
    weight_decay: float = 5e-4,
    dropout: float = 0.5,
    seed: int = 0,
    progress: Callable[[], object] | None = None,
) -> SAGE:
    """Train a two-layer GraphSAGE on the labelled nodes of `train_mask`, as :func:`train_gcn` trains a GCN.

    Parameters
    ----------
    graph : MeanNeighbours (n, n)
    features : Features (n, features)
    labels : array_like (n,) of int
        Classes 0, 1, ...; negative for nodes without one.
    train_mask : array_like (n,) of bool
    hidden, epochs, learning_rate, weight_decay, dropout, seed, progress
        As in :func:`train_gcn`; biases are trained.

    Returns
    -------
    SAGE

    Raises
    ------
    ShapeError, DTypeError, ValueError
        As :func:`train_gcn`.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = nn.MeanNeighbours(sparse.csr_array(np.kron(np.eye(2), np.ones((4, 4)))))
    >>> x = nn.Features(np.eye(8))
    >>> labels = np.repeat([0, 1], 4)
    >>> model = nn.train_sage(graph, x, labels, np.arange(8) % 4 == 0, epochs=100)
    >>> model(graph, x).argmax(axis=1)
    array([0, 0, 0, 0, 1, 1, 1, 1])
    """
    found, train = checked(
        "train_sage", graph.pattern.shape[0], features.shape[0], np.asarray(labels), np.asarray(train_mask), dropout
    )
    rng = np.random.default_rng(seed)
    classes = int(found.max()) + 1
    own1, w1, own2, w2 = (
        glorot(rng, *shape) for shape in ((features.shape[1], hidden),) * 2 + ((hidden, classes),) * 2
    )
    params = [w1, np.zeros(hidden, np.float32), w2, np.zeros(classes, np.float32), own1, own2]
    net = TwoLayers(graph.matrix, features.csr, train, found[train], classes, dropout, own=True)
    fit(
        net,
        params,
        rng,
        epochs=epochs,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        bias=True,
        progress=progress,
    )
    return SAGE(own1, w1, params[1], own2, w2, params[3])

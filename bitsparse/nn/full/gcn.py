"""The two-layer graph convolutional network of Kipf and Welling (ICLR 2017), trained in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitsparse.nn.full.training import Array, TwoLayers, checked, fit, glorot
from bitsparse.nn.inputs import Features, Propagation

__all__ = ["GCN", "train_gcn"]


@dataclass(frozen=True)
class GCN:
    """Weights of ``P relu(P X W1 + b1) W2 + b2`` with P the propagation; calling it gives the logits.

    Attributes
    ----------
    w1, w2 : ndarray (features, hidden), (hidden, classes) of float32
    b1, b2 : ndarray (hidden,), (classes,) of float32

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> one = np.ones((1, 1), np.float32)
    >>> model = nn.GCN(one, np.zeros(1, np.float32), 2 * one, np.zeros(1, np.float32))
    >>> model(nn.Propagation(sparse.csr_array((2, 2))), nn.Features([[3.0], [0.0]]))
    array([[2.],
           [0.]], dtype=float32)
    """

    w1: Array
    b1: Array
    w2: Array
    b2: Array

    def __call__(self, graph: Propagation, features: Features) -> Array:
        """Logits of every node, ``(n, classes)`` float32, in full precision."""
        return self.layers(graph, features)[-1]

    def layers(self, graph: Propagation, features: Features) -> tuple[Array, Array]:
        """Input of the second layer (after relu) and the logits."""
        p, x = graph.matrix, features.normalized
        hidden = np.maximum(p @ (x @ self.w1) + self.b1, 0)
        logits: Array = p @ (hidden @ self.w2) + self.b2
        return hidden, logits

    @property
    def steps(self) -> tuple[tuple[Array | None, Array, Array], ...]:
        """Weights of a node's own features (none), weights of what is aggregated, and bias of each layer."""
        return (None, self.w1, self.b1), (None, self.w2, self.b2)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and biases."""
        return self.w1.nbytes + self.b1.nbytes + self.w2.nbytes + self.b2.nbytes


def train_gcn(
    graph: Propagation,
    features: Features,
    labels: Any,
    train_mask: Any,
    *,
    hidden: int = 16,
    epochs: int = 200,
    learning_rate: float = 0.01,
    weight_decay: float = 5e-4,
    dropout: float = 0.5,
    bias: bool = False,
    seed: int = 0,
    progress: Callable[[], object] | None = None,
) -> GCN:
    """Train a two-layer GCN on the labelled nodes of `train_mask`, by full-batch Adam on the mean cross entropy.

    The defaults are the recipe of Kipf and Welling (section 5.2): Glorot initialisation, dropout on the input of both layers, weight
    decay on the first layer only, the weights after the last epoch. Only nodes within two hops of a training node take part in the
    gradient, so only they are computed.

    Parameters
    ----------
    graph : Propagation (n, n)
    features : Features (n, features)
    labels : array_like (n,) of int
        Classes 0, 1, ...; negative for nodes without one.
    train_mask : array_like (n,) of bool
    hidden, epochs, learning_rate, weight_decay, dropout
        The recipe.
    bias : bool, default False
        Train `b1` and `b2` as well; the paper's model has none, and they stay 0.
    seed : int, default 0
        Of initialisation and dropout; the same seed gives the same weights.
    progress : callable, optional
        Called once after each epoch.

    Returns
    -------
    GCN

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Sizes disagree, dtypes are not int and bool, or `train_mask` selects no node or one without a label.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = nn.Propagation(sparse.csr_array(np.kron(np.eye(2), np.ones((4, 4)))))
    >>> x = nn.Features(np.eye(8))
    >>> labels = np.repeat([0, 1], 4)
    >>> model = nn.train_gcn(graph, x, labels, np.arange(8) % 4 == 0, epochs=100)
    >>> model(graph, x).argmax(axis=1)
    array([0, 0, 0, 0, 1, 1, 1, 1])
    """
    found, train = checked(
        "train_gcn", graph.pattern.shape[0], features.shape[0], np.asarray(labels), np.asarray(train_mask), dropout
    )
    rng = np.random.default_rng(seed)
    classes = int(found.max()) + 1
    w1, w2 = glorot(rng, features.shape[1], hidden), glorot(rng, hidden, classes)
    params = [w1, np.zeros(hidden, np.float32), w2, np.zeros(classes, np.float32)]
    net = TwoLayers(graph.matrix, features.csr, train, found[train], classes, dropout, own=False)
    fit(
        net,
        params,
        rng,
        epochs=epochs,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        bias=bias,
        progress=progress,
    )
    return GCN(*params)

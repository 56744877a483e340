"""The two-layer graph convolutional network of Kipf and Welling (ICLR 2017), trained in NumPy with its gradient written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.inputs import Features, Propagation

__all__ = ["GCN", "train_gcn"]

_Array = NDArray[np.float32]


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

    w1: _Array
    b1: _Array
    w2: _Array
    b2: _Array

    def __call__(self, graph: Propagation, features: Features) -> _Array:
        """Logits of every node, ``(n, classes)`` float32, in full precision."""
        return self.layers(graph, features)[-1]

    def layers(self, graph: Propagation, features: Features) -> tuple[_Array, _Array]:
        """Input of the second layer (after relu) and the logits."""
        p, x = graph.matrix, features.normalized
        hidden = np.maximum(p @ (x @ self.w1) + self.b1, 0)
        logits: _Array = p @ (hidden @ self.w2) + self.b2
        return hidden, logits

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
    labels, train = _checked(graph, features, np.asarray(labels), np.asarray(train_mask))
    if not 0 <= dropout < 1:
        raise ValueError(f"train_gcn: dropout must lie in [0, 1), got {dropout}")
    rng = np.random.default_rng(seed)
    classes = int(labels.max()) + 1
    w1, w2 = _glorot(rng, features.shape[1], hidden), _glorot(rng, hidden, classes)
    params = [w1, np.zeros(hidden, np.float32), w2, np.zeros(classes, np.float32)]
    net = _Trained(graph, features, train, labels[train], classes, dropout)
    step = _adam(params, learning_rate)
    for _ in range(epochs):
        gradients = net.gradients(params, rng)
        gradients[0] += np.float32(weight_decay) * params[0]
        if not bias:
            gradients[1], gradients[3] = np.zeros_like(params[1]), np.zeros_like(params[3])
        step(gradients)
        if progress is not None:
            progress()
    return GCN(*params)


class _Trained:
    """Forward and backward pass on the two-hop neighbourhood of the training nodes."""

    def __init__(
        self,
        graph: Propagation,
        features: Features,
        train: NDArray[Any],
        labels: NDArray[Any],
        classes: int,
        dropout: float,
    ) -> None:
        outer = graph.matrix[train]
        near = np.unique(outer.indices)
        inner = graph.matrix[near]
        far = np.unique(inner.indices)
        self.p2, self.p1, self.x = outer[:, near].tocsr(), inner[:, far].tocsr(), features.csr[far]
        self.p2_t, self.p1_t, self.x_t = self.p2.T.tocsr(), self.p1.T.tocsr(), self.x.T.tocsr()
        # Where each value of x lies in its transpose: dropout draws new values every epoch, the pattern stays.
        numbered = self.x.copy()
        numbered.data = np.arange(self.x.nnz)
        self.order = numbered.T.tocsr().data
        self.values = self.x.data.copy()
        self.target = np.zeros((train.size, classes), np.float32)
        self.target[np.arange(train.size), labels] = 1
        self.dropout = np.float32(dropout)

    def kept(self, rng: np.random.Generator, size: Any) -> _Array:
        """Inverted dropout: 0, or the inverse of the share kept."""
        kept = rng.random(size, dtype=np.float32) >= self.dropout
        return np.asarray(kept / (np.float32(1) - self.dropout), dtype=np.float32)

    def gradients(self, params: list[_Array], rng: np.random.Generator) -> list[_Array]:
        """Gradient of the mean cross entropy for w1, b1, w2, b2."""
        w1, b1, w2, b2 = params
        self.x.data = self.values * self.kept(rng, self.values.size)
        self.x_t.data = self.x.data[self.order]
        z = self.p1 @ (self.x @ w1) + b1
        kept = self.kept(rng, z.shape)
        hidden = np.maximum(z, 0) * kept
        logits = self.p2 @ (hidden @ w2) + b2
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        d_logits = (e / e.sum(axis=1, keepdims=True) - self.target) / np.float32(len(e))
        d_hw = self.p2_t @ d_logits
        d_z = (d_hw @ w2.T) * kept * (z > 0)
        return [self.x_t @ (self.p1_t @ d_z), d_z.sum(axis=0), hidden.T @ d_hw, d_logits.sum(axis=0)]


def _adam(
    params: list[_Array], learning_rate: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> Callable[[list[_Array]], None]:
    """One step of Adam (Kingma and Ba 2015, Algorithm 1) on ``params``, in place."""
    first, second = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    count = 0

    def step(gradients: list[_Array]) -> None:
        nonlocal count
        count += 1
        rate = learning_rate * np.sqrt(1 - betas[1] ** count) / (1 - betas[0] ** count)
        shift = eps * np.sqrt(1 - betas[1] ** count)
        for p, g, m, v in zip(params, gradients, first, second, strict=True):
            m += np.float32(1 - betas[0]) * (g - m)
            v += np.float32(1 - betas[1]) * (g * g - v)
            p -= np.float32(rate) * m / (np.sqrt(v) + np.float32(shift))

    return step


def _glorot(rng: np.random.Generator, rows: int, cols: int) -> _Array:
    limit = np.sqrt(6.0 / (rows + cols))
    return rng.uniform(-limit, limit, (rows, cols)).astype(np.float32)


def _checked(
    graph: Propagation, features: Features, labels: NDArray[Any], mask: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Labels, and the numbers of the training nodes."""
    n = graph.pattern.shape[0]
    if features.shape[0] != n:
        raise ShapeError(
            f"train_gcn: the graph has {n} nodes, but the features have {features.shape[0]} rows; give one row per node"
        )
    for name, array, kinds, kind in (("labels", labels, "iu", "integers"), ("train_mask", mask, "b", "bool")):
        if array.shape != (n,):
            raise ShapeError(
                f"train_gcn: {name} has shape {array.shape}, but the graph has {n} nodes; pass one value per node"
            )
        if array.dtype.kind not in kinds:
            raise DTypeError(f"train_gcn: {name} has dtype {array.dtype}, but {kind} is needed; convert it with astype")
    train = np.flatnonzero(mask)
    if not train.size:
        raise ValueError("train_gcn: train_mask selects no node; select at least one per class")
    if int(labels[train].min()) < 0:
        bare = int(train[np.argmin(labels[train])])
        raise ValueError(
            f"train_gcn: train_mask selects node {bare}, whose label is {int(labels[bare])}; select labelled nodes only"
        )
    return labels.astype(np.int64), train

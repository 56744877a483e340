"""Training of two-layer networks in NumPy: explicit forward and backward passes, Adam, and checks of the training data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse.graph.adjacency import per_node
from bitsparse.graph.operand import Graph
from bitsparse.nn.dense import Dense, glorot
from bitsparse.nn.features import Features
from bitsparse.nn.full.network import Network
from bitsparse.nn.labels import labels_and_mask
from bitsparse.nn.layers import Layer

Array = NDArray[np.float32]


class TwoLayers:
    """Gradients of the loss of ``P H W2 + H S2 + b2`` with ``H = relu(P X W1 + X S1 + b1)``.

    The parameters are ``[w1, b1, w2, b2]``. With `own` they also hold ``[s1, s2]``, the weights of a node's own features.
    Only nodes within two hops of a training node take part in the gradient, so only they are computed.
    """

    def __init__(
        self, matrix: Any, x: Any, train: NDArray[Any], labels: NDArray[Any], classes: int, dropout: float, own: bool
    ) -> None:
        outer = matrix[train]
        near = np.union1d(outer.indices, train) if own else np.unique(outer.indices)
        inner = matrix[near]
        far = np.union1d(inner.indices, near) if own else np.unique(inner.indices)
        self.own, self.near_in_far, self.train_in_near = own, np.searchsorted(far, near), np.searchsorted(near, train)
        self.p2, self.p1, self.x = outer[:, near].tocsr(), inner[:, far].tocsr(), x[far]
        self.p2_t, self.p1_t, self.x_t = self.p2.T.tocsr(), self.p1.T.tocsr(), self.x.T.tocsr()
        # The place of each value of x in its transpose. Dropout changes the values every epoch, but not the pattern.
        numbered = self.x.copy()
        numbered.data = np.arange(self.x.nnz)
        self.order = numbered.T.tocsr().data
        self.values = self.x.data.copy()
        self.target = np.zeros((train.size, classes), np.float32)
        self.target[np.arange(train.size), labels] = 1
        self.dropout = np.float32(dropout)

    def kept(self, rng: np.random.Generator, size: Any) -> Array:
        """Random factors of inverted dropout: 0, or the inverse of the share that is kept."""
        kept = rng.random(size, dtype=np.float32) >= self.dropout
        return np.asarray(kept / (np.float32(1) - self.dropout), dtype=np.float32)

    def gradients(self, params: list[Array], rng: np.random.Generator) -> list[Array]:
        """The gradient of the mean cross entropy for each parameter."""
        w1, b1, w2, b2, *own = params
        self.x.data = self.values * self.kept(rng, self.values.size)
        self.x_t.data = self.x.data[self.order]
        z = self.p1 @ (self.x @ w1) + b1
        if own:
            z += (self.x @ own[0])[self.near_in_far]
        kept = self.kept(rng, z.shape)
        hidden = np.maximum(z, 0) * kept
        logits = self.p2 @ (hidden @ w2) + b2
        if own:
            logits += hidden[self.train_in_near] @ own[1]
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        d_logits = (e / e.sum(axis=1, keepdims=True) - self.target) / np.float32(len(e))
        d_hw = self.p2_t @ d_logits
        d_hidden = d_hw @ w2.T
        if own:
            d_hidden[self.train_in_near] += d_logits @ own[1].T
        d_z = d_hidden * kept * (z > 0)
        gradients = [self.x_t @ (self.p1_t @ d_z), d_z.sum(axis=0), hidden.T @ d_hw, d_logits.sum(axis=0)]
        if own:
            spread = np.zeros((self.x.shape[0], d_z.shape[1]), np.float32)
            spread[self.near_in_far] = d_z
            gradients += [self.x_t @ spread, hidden[self.train_in_near].T @ d_logits]
        return gradients


#: So many classes a graph of any size may have; a larger one may have as many as it has nodes.
_FREE_CLASSES = 1 << 16


def train(
    graph: Graph,
    features: Features,
    labels: Any,
    train_mask: Any,
    *,
    hidden: int = 16,
    epochs: int = 200,
    learning_rate: float = 0.01,
    weight_decay: float = 5e-4,
    dropout: float = 0.5,
    bias: bool | None = None,
    seed: int = 0,
    progress: Callable[[], object] | None = None,
) -> Network:
    """Train a two-layer GCN or GraphSAGE on the labelled nodes of `train_mask`, by full-batch Adam on the mean cross entropy.

    The defaults are the recipe of Kipf and Welling (2017, section 5.2): Glorot initialisation, dropout on the input of both layers, and
    weight decay on the first layer only. The result has the weights after the last epoch. Only nodes within two hops of a training node
    take part in the gradient, so only they are computed.

    Parameters
    ----------
    graph : Graph (n, n)
        Its normalisation decides what is trained: ``"gcn"`` a GCN, ``"mean"`` a GraphSAGE (Hamilton et al. 2017).
    features : Features (n, features)
    labels : array_like (n,) of int
        Classes 0, 1, ...; negative for nodes without a label.
    train_mask : array_like (n,) of bool
    hidden, epochs, learning_rate, weight_decay, dropout
        The numbers of the recipe.
    bias : bool, optional
        Train biases; otherwise they stay 0. By default only a GraphSAGE has them, as the GCN of the paper has none.
    seed : int, default 0
        The seed of initialisation and dropout; the same seed gives the same weights.
    progress : callable, optional
        Called once after each epoch.

    Returns
    -------
    Network

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Sizes disagree, dtypes are not int and bool, `train_mask` selects no node or one without a label, a label is larger than 65535 and
        than the nodes could number, or a number of the recipe is invalid.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = nn.Graph(sparse.csr_array(np.kron(np.eye(2), np.ones((4, 4)))))
    >>> x = nn.Features(np.eye(8))
    >>> labels = np.repeat([0, 1], 4)
    >>> model = nn.train(graph, x, labels, np.arange(8) % 4 == 0, epochs=100)
    >>> model
    <Network gcn 8 -> 16 -> 2>
    >>> model(graph, x).argmax(axis=1)
    array([0, 0, 0, 0, 1, 1, 1, 1])
    """
    function = "train"
    if graph.normalisation not in ("gcn", "mean"):
        raise ValueError(
            f"{function}: the graph has normalisation {graph.normalisation!r}, but 'gcn' trains a GCN and 'mean' a GraphSAGE"
        )
    for name, value, least in (("hidden", hidden, 1), ("epochs", epochs, 0), ("seed", seed, 0)):
        _check.integer(function, name, value, least)
    for name, number in (("learning_rate", learning_rate), ("weight_decay", weight_decay), ("dropout", dropout)):
        _check.number(function, name, number)
    classes_of, nodes = _checked(function, graph.nodes, features.shape, labels, train_mask, dropout)
    sage = graph.normalisation == "mean"
    biased = sage if bias is None else _check.flag(function, "bias", bias)
    rng, classes = np.random.default_rng(seed), int(classes_of.max()) + 1
    shapes = (features.shape[1], hidden), (hidden, classes)
    # For each layer: the weights of own features, if there are any, then those of neighbours.
    drawn = [[glorot(rng, *shape) for _ in range(1 + sage)] for shape in shapes]
    own = [layer[0] for layer in drawn] if sage else []
    (w1, w2), (b1, b2) = (layer[-1] for layer in drawn), (np.zeros(columns, np.float32) for _, columns in shapes)
    params = [w1, b1, w2, b2, *own]
    two = TwoLayers(graph.matrix, features.csr, nodes, classes_of[nodes], classes, dropout, sage)
    step = adam(params, learning_rate)
    for _ in range(epochs):
        gradients = two.gradients(params, rng)
        for i in (0, 4) if sage else (0,):  # weight decay on the first layer only
            gradients[i] += np.float32(weight_decay) * params[i]
        if not biased:
            gradients[1], gradients[3] = np.zeros_like(b1), np.zeros_like(b2)
        step(gradients)
        if progress is not None:
            progress()
    updates = Dense(w1, b1, activation="relu"), Dense(w2, b2)
    owns: list[Array | None] = [*own] or [None, None]
    return Network(
        "sage" if sage else "gcn", [Layer((update,), own=part) for update, part in zip(updates, owns, strict=True)]
    )


def adam(params: list[Array], learning_rate: float) -> Callable[[list[Array]], None]:
    """Make a function that takes one step of Adam on ``params``, in place, with the paper's constants (Kingma and Ba 2015, Algorithm 1)."""
    betas, eps = (0.9, 0.999), 1e-8
    first, second = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    count = 0

    def step(gradients: list[Array]) -> None:
        nonlocal count
        count += 1
        rate = learning_rate * np.sqrt(1 - betas[1] ** count) / (1 - betas[0] ** count)
        shift = eps * np.sqrt(1 - betas[1] ** count)
        for p, g, m, v in zip(params, gradients, first, second, strict=True):
            m += np.float32(1 - betas[0]) * (g - m)
            v += np.float32(1 - betas[1]) * (g * g - v)
            p -= np.float32(rate) * m / (np.sqrt(v) + np.float32(shift))

    return step


def _checked(
    function: str, nodes: int, shape: tuple[int, int], labels: Any, mask: Any, dropout: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check the training data, and return the labels and the numbers of the training nodes."""
    per_node(function, "features", shape, nodes)
    labels, selected = labels_and_mask(function, nodes, labels, mask, "train_mask", "at least one per class")
    train = np.flatnonzero(selected)
    if int(labels[train].min()) < 0:
        bare = int(train[np.argmin(labels[train])])
        raise ValueError(
            f"{function}: train_mask selects node {bare}, whose label is {int(labels[bare])}; select labelled nodes only"
        )
    top, most = int(labels.max()), max(nodes, _FREE_CLASSES) - 1
    if top > most:
        raise ValueError(
            f"{function}: node {int(np.argmax(labels))} has label {top}, but of a graph of {nodes} nodes labels up to {most} are believed, "
            f"since there are weights for every number up to the largest; number the classes 0, 1, ..."
        )
    if not 0 <= dropout < 1:
        raise ValueError(f"{function}: dropout must lie in [0, 1), got {dropout}")
    return labels, train

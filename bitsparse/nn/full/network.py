"""Graph networks of any depth in full precision, with weights as plain arrays. Low-bit networks are made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._files import replacing
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.graph.adjacency import per_node
from bitsparse.nn.checks import chained
from bitsparse.nn.dense import Dense, glorot, on_device
from bitsparse.nn.description import described
from bitsparse.nn.features import Features
from bitsparse.nn.layers import ATTENTION_KINDS, GRAPH_KINDS, Attention, GraphKind, Layer
from bitsparse.nn.neighbours import NeighbourSums
from bitsparse.ops import BatchNorm, attention, cosine_attention, edge_softmax, gatv2_scores, spmm

#: The usual normalisation of each kind; "sum" for those not named.
_NORMALISATIONS: dict[str, Literal["gcn", "mean", "sum"]] = {"gcn": "gcn", "sage": "mean"}
_Array = NDArray[np.float32]


class Product(NamedTuple):
    """The arrays of a layer ``aggregate(x @ weight) + x @ own + bias``; `own` is None for a layer without own weights."""

    own: _Array | None
    weight: _Array
    bias: _Array


class Network:
    """A graph network in full precision; ``network(adjacency, x)`` gives the logits.

    ========  ==========================================  =================================================
    kind      a layer                                     sums over neighbours
    ========  ==========================================  =================================================
    "gcn"     ``P (x W) + b``                             ``D^-1/2 (A + I) D^-1/2`` (Kipf and Welling 2017)
    "sage"    ``mean(x_j) W + x W_own + b``               mean, 0 without neighbours (Hamilton et al. 2017)
    "gin"     ``mlp((1 + eps) x + sum(x_j))``             sum (Xu et al. 2019)
    "gat"     ``sum(w_ij (x W)_j) + b`` for each head     softmax of scores (Velickovic et al. 2018)
    "gatv2"   the same                                    the same, other scores (Brody et al. 2022)
    "agnn"    ``mlp(sum(w_ij x_j))``                      softmax of cosines (Thekumparampil et al. 2018)
    ========  ==========================================  =================================================

    ``A[i, j]`` is the edge by which i receives from j. As in PyTorch Geometric, a GCN takes its value as the edge's weight; degrees are
    sums of the weights of arriving edges, and each node without a self loop gets one of weight 1. The other kinds read no weights, so
    values other than 1 are refused. For a GraphSAGE and a GIN a stored self loop is one more neighbour; in attention every node has a self
    loop. Layers may differ from that (:class:`Neighbours`), and layers of different kinds make a network of kind "mixed".

    Parameters
    ----------
    kind : {"gcn", "sage", "gin", "gat", "gatv2", "agnn", "mixed"}
        The kind of the layers that name none. In a "mixed" network each layer names its own.
    layers : sequence of Layer
        Each layer takes as many features as the one before gives.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> network = nn.Network("sage", [nn.Layer([nn.Dense([[1.0]])], own=[[10.0]])])
    >>> network(sparse.csr_array([[0, 1], [0, 0]]), np.array([[1.0], [2.0]], np.float32))
    array([[12.],
           [20.]], dtype=float32)
    """

    def __init__(self, kind: GraphKind | Literal["mixed"], layers: Sequence[Layer]) -> None:
        function = "Network"
        self.kind = _check.choice(function, "kind", kind, (*GRAPH_KINDS, "mixed"))
        stack = tuple(layers)
        if not stack or not all(isinstance(layer, Layer) for layer in stack):
            raise DTypeError(f"{function}: layers must be one or more nn.Layer")
        chained(function, "layer", [(layer.inputs, layer.outputs) for layer in stack])
        for i, layer in enumerate(stack):
            if kind == "mixed" and layer.kind is None:
                raise ValueError(f"{function}: layer {i} has no kind, but each layer of a mixed network names its own")
            if kind != "mixed" and layer.kind not in (None, kind):
                raise ValueError(
                    f"{function}: layer {i} is of kind {_check.shown(layer.kind)} in a network of kind {_check.shown(kind)}; pass 'mixed'"
                )
        #: The layers, each with its kind and its neighbours filled in.
        self.layers = tuple(layer if layer.kind else _of_kind(i, layer, kind) for i, layer in enumerate(stack))
        self._on_device: dict[str, tuple[Layer, ...]] = {"cpu": self.layers}

    def _uniform(self, what: str) -> str:
        """The kind that all layers have; a mixed network is refused."""
        if self.kind == "mixed":
            raise ValueError(f"Network: a mixed network has no {what} of its own; ask its layers for their neighbours")
        return self.kind

    @property
    def normalisation(self) -> Literal["gcn", "mean", "sum"]:
        """The normalisation of the sums over neighbours: "gcn", "mean" or "sum"."""
        return _NORMALISATIONS.get(self._uniform("normalisation"), "sum")

    @property
    def self_loops(self) -> bool:
        """Whether the graph's pattern has to hold an edge from each node to itself."""
        kind = self._uniform("self_loops")
        if kind in ATTENTION_KINDS:
            return all(layer.neighbours is None or layer.neighbours.self_loop is not None for layer in self.layers)
        return kind == "gcn" or (kind == "gin" and all(layer.eps == 0 for layer in self.layers))

    @property
    def weighted(self) -> bool:
        """Whether any layer reads edge weights."""
        return any(layer.neighbours is not None and layer.neighbours.weighted for layer in self.layers)

    def unusual(self) -> str | None:
        """Say what it has beyond the first three kinds in the table, which low-bit networks do not have; None if nothing."""
        for i, layer in enumerate(self.layers):
            why = layer.unusual()
            if why:
                return f"layer {i} {why}"
        return "its layers are of several kinds" if self.kind == "mixed" else None

    def multiplies_first(self, layer: Layer) -> bool:
        """Whether codes are multiplied by weights before they are summed: always in a GCN, in a GIN if that makes them no wider."""
        narrows = layer.updates[0].weight.shape[1] <= layer.updates[0].weight.shape[0]
        return self.kind == "gcn" or (self.kind == "gin" and self.self_loops and narrows)

    def products(self, function: str) -> list[Product]:
        """The layers of a GCN or GraphSAGE with relu between them; batch norms are folded into the weights.

        Raises
        ------
        ValueError
            It is a network of another kind.
        """
        why = self.unusual() or (f"it is a {self.kind}" if self.kind == "gin" else None)
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            activation, wanted = layer.updates[0].activation, None if i == last else "relu"
            if why is None and activation != wanted:
                why = f"layer {i} ends in {activation}"
        if why:
            raise ValueError(f"{function}: {why}, but models are GCN or GraphSAGE with relu between the layers")
        return [_product(layer) for layer in self.layers]

    @property
    def features(self) -> int:
        """Number of features that the first layer takes."""
        return self.layers[0].inputs

    @property
    def classes(self) -> int:
        """Number of columns of the logits."""
        return self.layers[-1].outputs

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of features: of the input, then of each layer's result."""
        return (self.features, *(layer.outputs for layer in self.layers))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and biases."""
        return sum(part.nbytes for part in described(self.layers, "Network")[1].values())

    def __repr__(self) -> str:
        return f"<Network {self.kind} {' -> '.join(map(str, self.widths))}>"

    def __call__(self, adjacency: Any, x: Any) -> Any:
        """Logits of every node, ``(n, classes)`` float32, in full precision.

        Parameters
        ----------
        adjacency : sparse array (n, n) of SciPy or bitsparse, or Graph
            A :class:`Graph` must have the normalisation of all layers; attention uses only its pattern, and whether it has self loops.
        x : array (n, features), sparse array or Features
            On the device of the Graph; an array on a GPU may be of CuPy, PyTorch or JAX.

        Returns
        -------
        ndarray, or on a GPU an array of the same library as `x`
        """
        function, family = "Network", interop.NUMPY
        x = x.normalized if isinstance(x, Features) else x
        if not hasattr(x, "tocsr"):
            x, family = interop.as_array(x, function, "x")
        if x.ndim != 2 or x.shape[1] != self.features:
            raise ShapeError(f"{function}: x has shape {tuple(x.shape)}, but the network reads (n, {self.features})")
        _check.numeric(function, "x", x)
        device = "cpu" if hasattr(x, "tocsr") else interop.device_of(x)
        with interop.working_on(device, family if device != "cpu" else interop.NUMPY):
            if x.dtype.kind != "f" or x.dtype.itemsize < 4:  # 1 + eps is no integer, and SciPy has no 16-bit floats
                x = x.astype(np.float32)
            sums = self.sums(adjacency, x.dtype, device)
            per_node(function, "x", x.shape, sums.nodes)
            if device not in self._on_device:
                self._on_device[device] = on_device(self.layers, device)
            for layer in self._on_device[device]:
                x = self.run_layer(layer, sums, x)
            logits = x.astype(np.float32, copy=False)
            return logits if device == "cpu" else interop.from_array(logits, family, function)

    def sums(self, adjacency: Any, dtype: Any = np.float32, device: str = "cpu") -> NeighbourSums:
        """Prepare a graph for :meth:`run_layer` and features on a device; a graph on several ranks provides its own sums."""
        if hasattr(adjacency, "neighbour_sums"):
            _check.same_device("Network", (adjacency.device, device))
            return adjacency.neighbour_sums("Network", dtype)
        return NeighbourSums("Network", adjacency, self.weighted, dtype, device)

    def run_layer(self, layer: Layer, sums: NeighbourSums, x: Any) -> Any:
        """Run one layer over a graph from :meth:`sums`, in the dtype of graph and features."""
        first, how = layer.updates[0], layer.neighbours
        own = None if layer.own is None else x @ layer.own
        if how is None:
            y = first(x)
        elif layer.kind == "gcn":
            y = first.finish(sums.reduce(how, x @ first.weight), in_place=True)
        elif layer.kind == "sage":
            sent = x if layer.project is None else layer.project(x)
            y = first.finish(sums.reduce(how, sent) @ first.weight, own, in_place=True)
        elif layer.kind == "agnn":
            y = first(cosine_attention(sums.matrix(how), sums.dense(x), beta=layer.beta))
        elif layer.attention is not None:
            y = first.finish(_attended(layer.attention, sums.matrix(how), x @ first.weight, x), own, in_place=True)
        else:
            y = first(sums.reduce(how, x) + x * x.dtype.type(1 + layer.eps))
        for update in layer.updates[1:]:
            y = update(y)
        return y

    def state_dict(self) -> dict[str, _Array]:
        """The arrays under the names of a PyTorch Geometric model with lists ``convs`` and ``bns``; see :func:`load_state_dict`.

        A state dict holds no activations, slopes or self loops. Batch norms get the statistics 0 and 1 (with an eps of 1e-5); the rest is
        in their weights.

        Raises
        ------
        ValueError
            The network is mixed, or a layer has something that its class in PyTorch Geometric lacks; :meth:`save` keeps everything.

        Examples
        --------
        >>> from bitsparse import nn
        >>> list(nn.random_network("gcn", [4, 2]).state_dict())
        ['convs.0.lin.weight', 'convs.0.bias']
        """
        state: dict[str, _Array] = {}
        for i, layer in enumerate(self.layers):
            kind, at, norm, first = layer.kind, f"convs.{i}.", f"bns.{i}.", layer.updates[0]
            perceptron = kind in ("gin", "agnn")
            if (
                self.kind == "mixed"
                or (kind == "sage") != (layer.own is not None and layer.attention is None)
                or layer.project is not None
                or (len(layer.updates) > 1 and not perceptron)
                or any(update.then for update in layer.updates)
            ):
                raise ValueError(
                    f"Network.state_dict: layer {i} of kind {_check.shown(kind)} has what such a layer of PyTorch Geometric does not hold; "
                    "keep the network with save"
                )
            if perceptron:
                state[at + ("eps" if kind == "gin" else "beta")] = np.array(
                    [layer.eps if kind == "gin" else layer.beta], np.float32
                )
                for j, update in enumerate(layer.updates):
                    # A linear layer, its norm and its activation, as in Sequential.
                    state |= _dense(f"{at}nn.{3 * j}.weight", f"{at}nn.{3 * j}.bias", f"{at}nn.{3 * j + 1}.", update)
                continue
            name = "lin" if kind in ("gcn", "gat") else "lin_l"
            state |= _dense(at + name + ".weight", at + ("lin_l.bias" if kind == "sage" else "bias"), norm, first)
            if layer.own is not None:
                state[at + ("lin_r.weight" if kind == "sage" else "res.weight")] = np.ascontiguousarray(layer.own.T)
            if layer.attention is not None:
                state |= _attention(at, layer.attention)
        return state

    def save(self, path: str | Path) -> None:
        """Write the complete network to an ``.npz`` file, which :func:`bitsparse.nn.load_network` reads."""
        text, arrays = described(self.layers, "Network.save")
        with replacing(path) as file:
            np.savez_compressed(file, **arrays, layers=np.array(text), kind=np.array(self.kind))


def random_network(
    kind: GraphKind, widths: Sequence[int], *, seed: int = 0, bias: bool = True, batch_norm: bool = False
) -> Network:
    """A network with seeded Glorot weights and relu between the layers, for benchmarks and tests.

    Parameters
    ----------
    kind : {"gcn", "sage", "gin"}
        A GIN has one product per layer, as in QGTC.
    widths : sequence of int
        The number of features of the input, then of each layer's result: ``[in, 16, 16, classes]``.
    seed : int, default 0
    bias, batch_norm : bool
        Whether there are biases, and a batch norm before each relu.

    Examples
    --------
    >>> from bitsparse import nn
    >>> nn.random_network("gcn", [128, 16, 16, 40])
    <Network gcn 128 -> 16 -> 16 -> 40>
    """
    rng = np.random.default_rng(_check.integer("random_network", "seed", seed, 0))
    _check.flag("random_network", "bias", bias)
    _check.flag("random_network", "batch_norm", batch_norm)
    layers = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        dense = Dense(glorot(rng, inputs, outputs), activation=None if last else "relu")
        if bias:
            dense = replace(dense, bias=rng.normal(scale=0.1, size=outputs).astype(np.float32))
        if batch_norm and not last:
            mean, shift = rng.normal(scale=0.1, size=(2, outputs))
            var, weight = rng.uniform(0.5, 1.5, (2, outputs))
            dense = replace(dense, batch_norm=BatchNorm(mean, var, weight, shift))
        layers.append(Layer((dense,), own=glorot(rng, inputs, outputs) if kind == "sage" else None))
    return Network(kind, layers)


def _attended(how: Attention, pattern: Any, h: Any, x: Any) -> Any:
    """Sums of the neighbours' products `h`, weighed by attention for each head; the heads are side by side."""
    sent = (h if how.bias is None else h + how.bias).reshape(h.shape[0], *how.source.shape)
    if how.receive is None:
        source, target = ((sent * weights).sum(axis=-1) for weights in (how.source, how.target))
        return attention(pattern, sent, source, target, negative_slope=how.negative_slope).reshape(h.shape)
    received = how.receive(x).reshape(sent.shape)
    scores = gatv2_scores(pattern, sent, received, how.source, negative_slope=how.negative_slope)
    return spmm(pattern, sent, values=edge_softmax(pattern, scores)).reshape(h.shape)


def _product(layer: Layer) -> Product:
    first = layer.updates[0]
    bias = np.zeros(layer.outputs, np.float32) if first.bias is None else first.bias
    scale, shift = first.norm
    own = None if layer.own is None else (layer.own * scale).astype(np.float32)
    return Product(own, (first.weight * scale).astype(np.float32), (bias * scale + shift).astype(np.float32))


def _of_kind(i: int, layer: Layer, kind: Any) -> Layer:
    """A layer of a network with one kind, with that kind filled in."""
    if kind == "sage" and layer.own is None:
        raise ValueError(
            f"Network: layer {i} lacks weights `own`, which go with kind 'sage'; a layer without names its kind: nn.Layer(..., kind='sage')"
        )
    if kind != "gin" and len(layer.updates) != 1:
        raise ValueError(
            f"Network: layer {i} has {len(layer.updates)} updates, but a {kind} layer has one; linear layers that follow are told apart "
            f"by naming the kind: nn.Layer(..., kind={_check.shown(kind)})"
        )
    try:
        return replace(layer, kind=kind)
    except ValueError as error:
        raise ValueError(f"Network: layer {i}: {error}") from None


def _dense(weight: str, bias: str, norm: str, update: Dense) -> dict[str, _Array]:
    """The arrays of a product and of the norm after it, under these names."""
    state = {weight: np.ascontiguousarray(update.weight.T)}
    if update.bias is not None:
        state[bias] = update.bias
    if update.batch_norm is not None:
        scale, shift = update.norm
        state[norm + "weight"], state[norm + "bias"] = scale.astype(np.float32), shift.astype(np.float32)
        state[norm + "running_mean"] = np.zeros(scale.size, np.float32)
        state[norm + "running_var"] = np.ones(scale.size, np.float32) - np.float32(1e-5)
    return state


def _attention(at: str, attention: Attention) -> dict[str, _Array]:
    """The arrays of the attention scores in a GATConv or GATv2Conv."""
    if attention.receive is None:
        return {at + "att_src": attention.source[None], at + "att_dst": attention.target[None]}
    state = {at + "att": attention.source[None], at + "lin_r.weight": np.ascontiguousarray(attention.receive.weight.T)}
    for side, bias in (("lin_l", attention.bias), ("lin_r", attention.receive.bias)):
        if bias is not None:
            state[f"{at}{side}.bias"] = bias
    return state

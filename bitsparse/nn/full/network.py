"""GCN, GraphSAGE and GIN of any depth in full precision: weights as plain arrays, run with SciPy; what low-bit networks are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.features import Features
from bitsparse.nn.layers import GRAPH_KINDS, Dense, GraphKind, Layer
from bitsparse.nn.neighbours import NeighbourSums

__all__ = ["Network", "Product"]

#: What each kind does with the sums over neighbours, unless a layer says otherwise.
_NORMALISATIONS: dict[str, Literal["gcn", "mean", "sum"]] = {"gcn": "gcn", "sage": "mean", "gin": "sum"}
_Array = NDArray[np.float32]


class Product(NamedTuple):
    """A layer in so many words: ``aggregate(x @ weight) + x @ own + bias``, without own weights where there are none."""

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
    ========  ==========================================  =================================================

    ``A[i, j]`` is the edge for what i takes from j. As in PyTorch Geometric, its value is the edge's weight for a GCN, whose degrees are
    the sums of the weights that arrive, with a self loop of weight 1 for each node that has none; a GraphSAGE and a GIN read no
    weights, so that values other than 1 are refused, and a stored self loop is one more neighbour. Layers may say otherwise
    (:class:`Neighbours`), and those of different kinds make a network of kind "mixed".

    Parameters
    ----------
    kind : {"gcn", "sage", "gin", "mixed"}
        Of the layers that name none; in a "mixed" network each names its own.
    layers : sequence of Layer
        Each reads as many features as the one before gives.

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
        for i, (before, after) in enumerate(pairwise(stack)):
            if before.outputs != after.inputs:
                raise ShapeError(
                    f"{function}: layer {i} gives {before.outputs} features but layer {i + 1} takes {after.inputs}"
                )
        for i, layer in enumerate(stack):
            if kind == "mixed" and layer.kind is None:
                raise ValueError(f"{function}: layer {i} has no kind, but each layer of a mixed network names its own")
            if kind != "mixed" and layer.kind not in (None, kind):
                raise ValueError(
                    f"{function}: layer {i} is of kind {_check.shown(layer.kind)} in a network of kind {_check.shown(kind)}; pass 'mixed'"
                )
        #: With the kind and the neighbours of each written out.
        self.layers = tuple(layer if layer.kind else _of_kind(i, layer, kind) for i, layer in enumerate(stack))

    def _uniform(self, what: str) -> str:
        """The kind, where all layers have the same."""
        if self.kind == "mixed":
            raise ValueError(f"Network: a mixed network has no {what} of its own; ask its layers for their neighbours")
        return self.kind

    @property
    def normalisation(self) -> Literal["gcn", "mean", "sum"]:
        """What its kind does with the sums over neighbours: "gcn", "mean" or "sum"."""
        return _NORMALISATIONS[self._uniform("normalisation")]

    @property
    def self_loops(self) -> bool:
        """Whether the pattern that low-bit networks sum over holds an edge from each node to itself."""
        kind = self._uniform("self_loops")
        return kind == "gcn" or (kind == "gin" and all(layer.eps == 0 for layer in self.layers))

    @property
    def weighted(self) -> bool:
        """Whether any layer reads weights of edges."""
        return any(layer.neighbours is not None and layer.neighbours.weighted for layer in self.layers)

    def unusual(self) -> str | None:
        """What it has beyond the three kinds in the table, in words: low-bit networks and files have none of that. None without."""
        for i, layer in enumerate(self.layers):
            why = layer.unusual()
            if why:
                return f"layer {i} {why}"
        return "its layers are of several kinds" if self.kind == "mixed" else None

    def multiplies_first(self, layer: Layer) -> bool:
        """Whether codes are multiplied by the weights before they are summed: a GCN's always, a GIN's where that makes them no wider."""
        narrows = layer.updates[0].weight.shape[1] <= layer.updates[0].weight.shape[0]
        return self.kind == "gcn" or (self.kind == "gin" and self.self_loops and narrows)

    def products(self, function: str) -> list[Product]:
        """The layers of a GCN or GraphSAGE with relu between them, batch norm taken into the weights.

        Raises
        ------
        ValueError
            It is another network.
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
        """Features that the first layer reads."""
        return self.layers[0].inputs

    @property
    def classes(self) -> int:
        """Columns of the logits."""
        return self.layers[-1].outputs

    @property
    def widths(self) -> tuple[int, ...]:
        """Features of the input and behind each layer."""
        return (self.features, *(layer.outputs for layer in self.layers))

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and biases."""
        return sum(part.nbytes for _, part in self.arrays() if isinstance(part, np.ndarray))

    def __repr__(self) -> str:
        return f"<Network {self.kind} {' -> '.join(map(str, self.widths))}>"

    def __call__(self, adjacency: Any, x: Any) -> _Array:
        """Logits of every node, ``(n, classes)`` float32, in full precision.

        Parameters
        ----------
        adjacency : scipy.sparse array (n, n) or Graph
            A :class:`Graph` in the normalisation of all layers.
        x : array (n, features), sparse array or Features
        """
        function = "Network"
        if isinstance(x, Features):
            x = x.normalized
        if not hasattr(x, "tocsr"):
            x = interop.as_host(x, function, "x")
        if x.ndim != 2 or x.shape[1] != self.features:
            raise ShapeError(f"{function}: x has shape {tuple(x.shape)}, but the network reads (n, {self.features})")
        _check.numeric(function, "x", x)
        if x.dtype.kind != "f" or x.dtype.itemsize < 4:  # 1 + eps is no integer, and SciPy has no 16-bit floats
            x = x.astype(np.float32)
        sums = self.sums(adjacency, x.dtype)
        if x.shape[0] != sums.nodes:
            raise ShapeError(
                f"{function}: adjacency has {sums.nodes} nodes but x has {x.shape[0]} rows; pass one row for each node"
            )
        for layer in self.layers:
            x = self.run_layer(layer, sums, x)
        return np.asarray(x, dtype=np.float32)

    def sums(self, adjacency: Any, dtype: Any = np.float32) -> NeighbourSums:
        """A graph as :meth:`run_layer` takes it."""
        return NeighbourSums("Network", adjacency, self.weighted, dtype)

    def run_layer(self, layer: Layer, sums: NeighbourSums, x: Any) -> Any:
        """One layer over a graph from :meth:`sums`, in the dtype of graph and features."""
        first, how = layer.updates[0], layer.neighbours
        if how is None:
            y = first(x)
        elif layer.kind == "gcn":
            y = first.finish(np.asarray(sums.reduce(how, np.asarray(x @ first.weight))))
        elif layer.kind == "sage":
            sent = x if layer.project is None else layer.project(x)
            y = np.asarray(sums.reduce(how, sent) @ first.weight)
            y = first.finish(y if layer.own is None else y + np.asarray(x @ layer.own))
        else:
            y = first(sums.reduce(how, x) + x * x.dtype.type(1 + layer.eps))
        for update in layer.updates[1:]:
            y = update(y)
        return y

    def arrays(self) -> Iterator[tuple[str, Any]]:
        """Every array by the name that PyTorch Geometric gives it in a model with lists ``convs`` and ``bns``."""
        for i, layer in enumerate(self.layers):
            at = f"convs.{i}."
            if self.kind == "gin":
                yield at + "eps", np.array([layer.eps], np.float32)
                for j, update in enumerate(layer.updates):
                    # A linear layer, its norm and its activation, as in Sequential.
                    yield from _dense(f"{at}nn.{3 * j}.", f"{at}nn.{3 * j + 1}.", update)
            elif self.kind == "sage":
                yield from _dense(at + "lin_l.", f"bns.{i}.", layer.updates[0])
                yield at + "lin_r.weight", np.ascontiguousarray(layer.own.T)
            else:
                yield from (
                    (name.replace("lin.bias", "bias"), part)
                    for name, part in _dense(at + "lin.", f"bns.{i}.", layer.updates[0])
                )

    def save(self, path: str | Path) -> None:
        """Write it as ``.npz``, which :func:`bitsparse.nn.load_network` reads: PyTorch Geometric's names, kind and activations.

        Raises
        ------
        ValueError
            It has what such a file cannot say, as :meth:`unusual` tells.
        """
        why = self.unusual()
        if why:
            raise ValueError(f"Network.save: {why}, which no file holds; keep the model that it was read from")
        activations = [update.activation or "" for layer in self.layers for update in layer.updates]
        held = dict(self.arrays(), kind=np.array(self.kind), activations=np.array(activations))
        if self.kind == "gcn":
            held["weighted"] = np.array(
                [layer.neighbours is None or layer.neighbours.weighted for layer in self.layers]
            )
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **held)


def _product(layer: Layer) -> Product:
    first = layer.updates[0]
    bias = np.zeros(layer.outputs, np.float32) if first.bias is None else first.bias
    if first.batch_norm is None:
        return Product(layer.own, first.weight, bias)
    scale, shift = first.norm
    own = None if layer.own is None else (layer.own * scale).astype(np.float32)
    return Product(own, (first.weight * scale).astype(np.float32), (bias * scale + shift).astype(np.float32))


def _of_kind(i: int, layer: Layer, kind: Any) -> Layer:
    """The layer of a network of one kind, with the kind written into it."""
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


def _dense(at: str, norm: str, update: Dense) -> Iterator[tuple[str, Any]]:
    yield at + "weight", np.ascontiguousarray(update.weight.T)
    if update.bias is not None:
        yield at + "bias", update.bias
    if update.batch_norm is not None:
        scale, shift = update.norm
        yield norm + "weight", scale.astype(np.float32)
        yield norm + "bias", shift.astype(np.float32)
        yield norm + "running_mean", np.zeros(scale.size, np.float32)
        yield norm + "running_var", np.ones(scale.size, np.float32) - np.float32(1e-5)

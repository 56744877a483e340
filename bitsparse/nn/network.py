"""GCN, GraphSAGE and GIN of any depth in full precision: weights as plain arrays, run with SciPy; what low-bit networks are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.operand import factors
from bitsparse.ops.epilogue import folded

__all__ = ["KINDS", "Dense", "Layer", "Network", "neighbour_matrix"]

Kind = Literal["gcn", "sage", "gin"]
KINDS = ("gcn", "sage", "gin")
#: What each kind does with the sums over neighbours.
_NORMALISATIONS: dict[str, Literal["gcn", "mean", "sum"]] = {"gcn": "gcn", "sage": "mean", "gin": "sum"}
_ACTIVATIONS = ("relu", "leaky_relu", "tanh")
_Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Dense:
    """One product with weights: ``activation(batch_norm(x @ weight + bias))``.

    Parameters
    ----------
    weight : array_like (inputs, outputs)
    bias : array_like (outputs,), optional
    batch_norm : BatchNorm or tuple ``(mean, var[, weight, bias, eps])``, optional
        With the statistics of inference.
    activation : {None, "relu", "leaky_relu", "tanh"}
        Leaky relu has a slope of 0.01.

    Examples
    --------
    >>> from bitsparse import nn
    >>> nn.Dense(np.ones((2, 3)), activation="relu")(np.array([[1.0, -4.0]], np.float32))
    array([[0., 0., 0.]], dtype=float32)
    """

    weight: Any
    bias: Any = None
    batch_norm: Any = None
    activation: str | None = None

    def __post_init__(self) -> None:
        weight = _floats("weight", self.weight, 2)
        object.__setattr__(self, "weight", weight)
        if self.bias is not None:
            bias = _floats("bias", self.bias, 1)
            if bias.size != weight.shape[1]:
                raise ShapeError(
                    f"Dense: weight has {weight.shape[1]} outputs but bias has {bias.size} values; pass one for each output"
                )
            object.__setattr__(self, "bias", bias)
        if self.activation is not None:
            _check.choice("Dense", "activation", self.activation, _ACTIVATIONS)
        if self.batch_norm is not None:
            scale, _ = folded(self.batch_norm, "Dense")
            if scale is not None and scale.shape not in ((), (1,), (weight.shape[1],)):
                raise ShapeError(
                    f"Dense: weight has {weight.shape[1]} outputs but batch_norm has shape {scale.shape}; pass one value for each output"
                )

    @property
    def norm(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Batch norm as a factor and an addend for each output; 1 and 0 without one."""
        outputs = self.weight.shape[1]
        scale, shift = folded(self.batch_norm, "Dense")
        if scale is None or shift is None:
            return np.ones(outputs), np.zeros(outputs)
        return (
            np.broadcast_to(scale, (outputs,)).astype(np.float64),
            np.broadcast_to(shift, (outputs,)).astype(np.float64),
        )

    def finish(self, y: Any) -> Any:
        """What lies behind the product: bias, batch norm and activation."""
        if self.bias is not None:
            y = y + self.bias
        if self.batch_norm is not None:
            scale, shift = (part.astype(np.float32) for part in self.norm)
            y = y * scale + shift
        return activated(y, self.activation)

    def __call__(self, x: Any) -> Any:
        """In full precision, for an ndarray or a SciPy sparse array."""
        return self.finish(np.asarray(x @ self.weight))


def activated(y: Any, activation: str | None) -> Any:
    """The activation in the dtype of ``y``."""
    if activation == "relu":
        return np.maximum(y, 0)
    if activation == "leaky_relu":
        return np.where(y >= 0, y, y * y.dtype.type(0.01))
    return np.tanh(y) if activation == "tanh" else y


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a network: what happens to the sums over neighbours and to a node's own features.

    Parameters
    ----------
    updates : sequence of Dense
        One for GCN and GraphSAGE, the perceptron's one or more for GIN. A GCN's stands for ``P (x @ weight) + bias``: its bias, batch norm
        and activation come behind the sums over neighbours.
    own : array_like (inputs, outputs), optional
        GraphSAGE: weights of a node's own features, added to those of its neighbours' mean.
    eps : float, default 0.0
        GIN: own features count ``1 + eps`` times.

    Examples
    --------
    >>> from bitsparse import nn
    >>> nn.Layer([nn.Dense(np.ones((4, 2)))], own=np.ones((4, 2))).inputs
    4
    """

    updates: tuple[Dense, ...]
    own: Any = None
    eps: float = 0.0

    def __post_init__(self) -> None:
        updates = tuple(self.updates)
        if not updates or not all(isinstance(update, Dense) for update in updates):
            raise DTypeError("Layer: updates must be one or more nn.Dense")
        for before, after in pairwise(updates):
            if before.weight.shape[1] != after.weight.shape[0]:
                raise ShapeError(
                    f"Layer: one update gives {before.weight.shape[1]} features but the next takes {after.weight.shape[0]}"
                )
        object.__setattr__(self, "updates", updates)
        if self.own is not None:
            own = _floats("own", self.own, 2)
            if own.shape != updates[0].weight.shape:
                raise ShapeError(
                    f"Layer: own has shape {own.shape} but the neighbours' weights have {updates[0].weight.shape}; both must fit"
                )
            object.__setattr__(self, "own", own)
        eps = float(np.asarray(interop.as_host(self.eps, "Layer", "eps")).reshape(()))
        if not np.isfinite(eps):
            raise ValueError(f"Layer: eps must be finite, got {eps}")
        object.__setattr__(self, "eps", eps)

    @property
    def inputs(self) -> int:
        """Features that it reads."""
        return int(self.updates[0].weight.shape[0])

    @property
    def outputs(self) -> int:
        """Features that it gives."""
        return int(self.updates[-1].weight.shape[1])


class Network:
    """A graph network in full precision; ``network(adjacency, x)`` gives the logits.

    ========  ==========================================  =================================================
    kind      a layer                                     sums over neighbours
    ========  ==========================================  =================================================
    "gcn"     ``P (x W) + b``                             ``D^-1/2 (A + I) D^-1/2`` (Kipf and Welling 2017)
    "sage"    ``mean(x_j) W + x W_own + b``               mean, 0 without neighbours (Hamilton et al. 2017)
    "gin"     ``mlp((1 + eps) x + sum(x_j))``             sum (Xu et al. 2019)
    ========  ==========================================  =================================================

    Every stored entry of the adjacency counts as one edge, ``A[i, j]`` for what i takes from j; of self loops a GCN and a GIN with
    ``eps=0`` count one, stored or not.

    Parameters
    ----------
    kind : {"gcn", "sage", "gin"}
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

    def __init__(self, kind: Kind, layers: Sequence[Layer]) -> None:
        function = "Network"
        self.kind = _check.choice(function, "kind", kind, KINDS)
        self.layers = tuple(layers)
        if not self.layers or not all(isinstance(layer, Layer) for layer in self.layers):
            raise DTypeError(f"{function}: layers must be one or more nn.Layer")
        for i, (before, after) in enumerate(pairwise(self.layers)):
            if before.outputs != after.inputs:
                raise ShapeError(
                    f"{function}: layer {i} gives {before.outputs} features but layer {i + 1} takes {after.inputs}"
                )
        for i, layer in enumerate(self.layers):
            if self.kind != "gin" and len(layer.updates) != 1:
                raise ValueError(f"{function}: layer {i} has {len(layer.updates)} updates, but a {kind} layer has one")
            if (layer.own is not None) != (self.kind == "sage"):
                raise ValueError(
                    f"{function}: layer {i} {'lacks' if self.kind == 'sage' else 'has'} weights `own`, which go with kind 'sage' only"
                )
            if layer.eps and self.kind != "gin":
                raise ValueError(f"{function}: layer {i} has eps={layer.eps}, which goes with kind 'gin' only")

    @property
    def normalisation(self) -> Literal["gcn", "mean", "sum"]:
        """What is done with the sums over neighbours: "gcn", "mean" or "sum"."""
        return _NORMALISATIONS[self.kind]

    @property
    def self_loops(self) -> bool:
        """Whether the pattern to sum over holds an edge from each node to itself."""
        return self.kind == "gcn" or (self.kind == "gin" and all(layer.eps == 0 for layer in self.layers))

    def multiplies_first(self, layer: Layer) -> bool:
        """Whether codes are multiplied by the weights before they are summed: a GCN's always, a GIN's where that makes them no wider."""
        narrows = layer.updates[0].weight.shape[1] <= layer.updates[0].weight.shape[0]
        return self.kind == "gcn" or (self.kind == "gin" and self.self_loops and narrows)

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
        adjacency : scipy.sparse array (n, n)
        x : array (n, features) or sparse array
        """
        matrix = neighbour_matrix(adjacency, self.normalisation, self.self_loops)
        if x.dtype.kind != "f":  # 1 + eps is no integer
            x = x.astype(np.float32)
        for layer in self.layers:
            x = self.run_layer(layer, matrix, x)
        return np.asarray(x, dtype=np.float32)

    def run_layer(self, layer: Layer, matrix: Any, x: Any) -> Any:
        """One layer over a matrix from :func:`neighbour_matrix`, in the dtype of matrix and features."""
        first = layer.updates[0]
        if self.kind == "gcn":
            return first.finish(np.asarray(matrix @ np.asarray(x @ first.weight)))
        near = matrix @ x
        if self.kind == "sage":
            return first.finish(np.asarray(near @ first.weight) + np.asarray(x @ layer.own))
        if not self.self_loops:
            near = near + x * x.dtype.type(1 + layer.eps)
        for update in layer.updates:
            near = update(near)
        return near

    def arrays(self) -> Iterator[tuple[str, Any]]:
        """Every array by the name that PyTorch Geometric gives it in a model with a list ``convs``.

        Norms between the layers belong to them by their order alone: a layer without one has one that changes nothing, if another follows.
        """
        normed = [i for i, layer in enumerate(self.layers) if layer.updates[-1].batch_norm is not None]
        last = max(normed, default=-1)
        for i, layer in enumerate(self.layers):
            at = f"convs.{i}."
            if self.kind == "gin":
                yield at + "eps", np.array([layer.eps], np.float32)
                for j, update in enumerate(layer.updates):
                    # A linear layer, its norm and its activation, as in Sequential.
                    yield from _dense(f"{at}nn.{3 * j}.", f"{at}nn.{3 * j + 1}.", update)
            elif self.kind == "sage":
                yield from _dense(at + "lin_l.", f"bns.{i}.", layer.updates[0], i < last)
                yield at + "lin_r.weight", np.ascontiguousarray(layer.own.T)
            else:
                yield from (
                    (name.replace("lin.bias", "bias"), part)
                    for name, part in _dense(at + "lin.", f"bns.{i}.", layer.updates[0], i < last)
                )

    def save(self, path: str | Path) -> None:
        """Write it as ``.npz``, which :func:`bitsparse.nn.load_network` reads: PyTorch Geometric's names, kind and activations."""
        activations = [update.activation or "" for layer in self.layers for update in layer.updates]
        with Path(path).open("wb") as file:
            np.savez_compressed(
                file, kind=np.array(self.kind), activations=np.array(activations), **dict(self.arrays())
            )


def _dense(at: str, norm: str, update: Dense, filled: bool = False) -> Iterator[tuple[str, Any]]:
    yield at + "weight", np.ascontiguousarray(update.weight.T)
    if update.bias is not None:
        yield at + "bias", update.bias
    if update.batch_norm is not None or filled:
        scale, shift = update.norm
        yield norm + "weight", scale.astype(np.float32)
        yield norm + "bias", shift.astype(np.float32)
        yield norm + "running_mean", np.zeros(scale.size, np.float32)
        yield norm + "running_var", np.ones(scale.size, np.float32) - np.float32(1e-5)


def neighbour_matrix(adjacency: Any, normalisation: str, self_loops: bool) -> Any:
    """What a layer multiplies by: the pattern of ``adjacency``, with self loops and factors of the rows and columns, as a csr_array.

    Parameters
    ----------
    adjacency : scipy.sparse array (n, n)
    normalisation : {"gcn", "mean", "sum"}
    self_loops : bool

    Examples
    --------
    >>> from scipy import sparse
    >>> neighbour_matrix(sparse.csr_array([[0, 1], [0, 0]]), "gcn", True).toarray().round(3)
    array([[0.707, 0.5  ],
           [0.   , 0.707]], dtype=float32)
    """
    from scipy import sparse

    if not sparse.issparse(adjacency):
        raise DTypeError(
            f"Network: adjacency must be a scipy.sparse array, got {type(adjacency).__name__}; wrap it in csr_array"
        )
    if adjacency.shape[0] != adjacency.shape[1]:
        raise ShapeError(f"Network: adjacency has shape {adjacency.shape}, but a graph needs a square array; pad it")
    n = adjacency.shape[0]
    coo = adjacency.tocoo()
    rows, cols = coo.coords
    if self_loops:
        loops = np.arange(n, dtype=rows.dtype)
        rows, cols = np.concatenate((rows, loops)), np.concatenate((cols, loops))
    made = sparse.coo_array((np.ones(rows.size, np.float32), (rows, cols)), shape=(n, n)).tocsr()
    made.data[:] = 1.0
    if normalisation == "sum":
        return made
    left: Any
    left, right = factors(normalisation, np.diff(made.indptr), np.bincount(made.indices, minlength=n))
    made.data = np.repeat(left, np.diff(made.indptr)) * (right[made.indices] if right is not None else np.float32(1))
    return made


def _floats(name: str, value: Any, ndim: int) -> _Array:
    """A finite float32 array on the host from any array library."""
    array = interop.as_host(value, "Network", name)
    _check.numeric("Network", name, array)
    if array.ndim != ndim:
        raise ShapeError(f"Network: {name} has shape {array.shape}, but {ndim} dimension(s) are needed")
    array = np.ascontiguousarray(array, np.float32)
    _check.finite("Network", name, bool(np.isfinite(array).all()))
    return array

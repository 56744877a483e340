"""The layers that a full-precision network consists of: products with weights, what stands behind them, and sums over neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.finish.epilogue import BatchNorm, folded

__all__ = [
    "ACTIVATIONS",
    "FUSED",
    "GRAPH_KINDS",
    "KINDS",
    "Dense",
    "GraphKind",
    "Kind",
    "Layer",
    "LayerNorm",
    "Neighbours",
    "Step",
    "activated",
    "glorot",
]

GraphKind = Literal["gcn", "sage", "gin"]
Kind = GraphKind | Literal["dense"]
#: The kinds whose layers sum over neighbours, and all kinds.
GRAPH_KINDS = ("gcn", "sage", "gin")
KINDS = (*GRAPH_KINDS, "dense")
#: Activations that a product of integers can end in; see Epilogue.
FUSED = (None, "relu", "leaky_relu", "tanh")
ACTIVATIONS = ("relu", "leaky_relu", "elu", "tanh", "sigmoid", "gelu", "silu", "log_softmax", "l2_normalize")
#: What "l2_normalize" divides by at least, as torch.nn.functional.normalize.
_LEAST_NORM = 1e-12

_Array = NDArray[np.float32]


class LayerNorm(NamedTuple):
    """Layer normalisation: ``(x - mean) / spread * weight + bias``, with the mean and the spread of a row or of the whole array.

    Over rows the spread is ``sqrt(var + eps)``, over the whole graph ``sqrt(var) + eps``, as in PyTorch and PyTorch Geometric.

    Examples
    --------
    >>> from bitsparse import nn
    >>> nn.LayerNorm(eps=0.0)(np.array([[1.0, 3.0], [4.0, 2.0]]))
    array([[-1.,  1.],
           [ 1., -1.]])
    """

    weight: Any = None
    bias: Any = None
    eps: float = 1e-5
    over: Literal["row", "graph"] = "row"

    def __call__(self, y: Any) -> Any:
        """The normalised rows, in the dtype of ``y``."""
        axis = None if self.over == "graph" else -1
        centred = y - y.mean(axis=axis, keepdims=True)
        var = (centred * centred).mean(axis=axis, keepdims=True)
        spread = np.sqrt(var) + self.eps if self.over == "graph" else np.sqrt(var + self.eps)
        y = (centred / spread).astype(y.dtype)
        y = y if self.weight is None else y * self.weight
        return y if self.bias is None else y + self.bias


#: What may stand behind a product: the name of an activation, or a norm.
Step = str | BatchNorm | LayerNorm


@dataclass(frozen=True, eq=False)
class Dense:
    """One product with weights: ``activation(batch_norm(x @ weight + bias))``, and then whatever else follows.

    Parameters
    ----------
    weight : array_like (inputs, outputs)
    bias : array_like (outputs,), optional
    batch_norm : BatchNorm or tuple ``(mean, var[, weight, bias, eps])``, optional
        With the statistics of inference.
    activation : {None, "relu", "leaky_relu", "elu", "tanh", "sigmoid", "gelu", "silu", "log_softmax", "l2_normalize"}
        Leaky relu has a slope of 0.01, elu an alpha of 1, gelu is the exact one.
    then : sequence of str, BatchNorm or LayerNorm, optional
        Further activations and norms behind the activation, in their order.

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
    then: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        weight = _floats("Dense", "weight", self.weight, 2)
        object.__setattr__(self, "weight", weight)
        if self.bias is not None:
            object.__setattr__(self, "bias", self._of_outputs("bias", self.bias))
        if self.activation is not None:
            _check.choice("Dense", "activation", self.activation, ACTIVATIONS)
        if self.batch_norm is not None:
            self._fits(self.batch_norm)
        object.__setattr__(self, "then", tuple(self._step(step) for step in self.then))

    def _of_outputs(self, name: str, value: Any) -> _Array:
        array = _floats("Dense", name, value, 1)
        if array.size != self.weight.shape[1]:
            raise ShapeError(
                f"Dense: weight has {self.weight.shape[1]} outputs but {name} has {array.size} values; pass one for each output"
            )
        return array

    def _fits(self, batch_norm: Any) -> None:
        scale, _ = folded(batch_norm, "Dense")
        outputs = self.weight.shape[1]
        if scale is not None and scale.shape not in ((), (1,), (outputs,)):
            raise ShapeError(
                f"Dense: weight has {outputs} outputs but batch_norm has shape {scale.shape}; pass one value for each output"
            )

    def _step(self, step: Any) -> Step:
        if isinstance(step, BatchNorm):
            self._fits(step)
            return step
        if isinstance(step, LayerNorm):
            weight, bias = (
                None if value is None else self._of_outputs(f"LayerNorm.{name}", value)
                for name, value in (("weight", step.weight), ("bias", step.bias))
            )
            _check.choice("Dense", "LayerNorm.over", step.over, ("row", "graph"))
            return LayerNorm(weight, bias, step.eps, step.over)
        if isinstance(step, str):
            return _check.choice("Dense", "then", step, ACTIVATIONS)
        raise DTypeError(
            f"Dense: then holds {type(step).__name__}; pass names of activations, nn.BatchNorm and nn.LayerNorm"
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
        """What lies behind the product: bias, batch norm, activation, and the steps that follow."""
        if self.bias is not None:
            y = y + self.bias
        if self.batch_norm is not None:
            y = _normed(y, self.batch_norm)
        y = activated(y, self.activation)
        for step in self.then:
            y = _stepped(y, step)
        return y

    def __call__(self, x: Any) -> Any:
        """In full precision, for an ndarray or a SciPy sparse array."""
        return self.finish(np.asarray(x @ self.weight))


def _stepped(y: Any, step: Step) -> Any:
    if isinstance(step, str):
        return activated(y, step)
    return step(y) if isinstance(step, LayerNorm) else _normed(y, step)


def _normed(y: Any, batch_norm: Any) -> Any:
    scale, shift = folded(batch_norm, "Dense")
    return y if scale is None else y * scale + shift


def activated(y: Any, activation: str | None) -> Any:
    """The activation in the dtype of ``y``.

    Examples
    --------
    >>> activated(np.array([-1.0, 2.0], np.float32), "leaky_relu")
    array([-0.01,  2.  ], dtype=float32)
    """
    if activation == "relu":
        return np.maximum(y, 0)
    if activation == "leaky_relu":
        return np.where(y >= 0, y, y * y.dtype.type(0.01))
    if activation == "elu":
        return np.where(y > 0, y, np.expm1(np.minimum(y, 0)))
    if activation == "tanh":
        return np.tanh(y)
    if activation == "log_softmax":
        y = y - y.max(axis=-1, keepdims=True)
        return y - np.log(np.exp(y).sum(axis=-1, keepdims=True))
    if activation == "l2_normalize":
        return y / np.maximum(np.sqrt((y * y).sum(axis=-1, keepdims=True)), y.dtype.type(_LEAST_NORM))
    if activation in ("sigmoid", "silu", "gelu"):
        from scipy import special

        if activation == "gelu":
            return y * y.dtype.type(0.5) * (1 + special.erf(y * y.dtype.type(np.sqrt(0.5))))
        share = special.expit(y)
        return share if activation == "sigmoid" else y * share
    return y


@dataclass(frozen=True)
class Neighbours:
    """How a layer gathers what its neighbours send.

    Parameters
    ----------
    reduce : {"sum", "mean", "max"}
        0 for a node without neighbours.
    gcn_norm : bool, default False
        Divide each edge's weight by the square roots of both ends' degrees: sums of the weights of the edges that *arrive*, as PyTorch
        Geometric's ``gcn_norm`` does for directed graphs too.
    self_loop : float, optional
        Weight of the edge from a node to itself that is added where none is stored; none is added by default.
    weighted : bool, default False
        Values of the adjacency are weights of the edges; else it has to hold ones.

    Examples
    --------
    >>> from bitsparse import nn
    >>> nn.Neighbours("max")
    Neighbours(reduce='max', gcn_norm=False, self_loop=None, weighted=False)
    """

    reduce: Literal["sum", "mean", "max"] = "sum"
    gcn_norm: bool = False
    self_loop: float | None = None
    weighted: bool = False

    def __post_init__(self) -> None:
        _check.choice("Neighbours", "reduce", self.reduce, ("sum", "mean", "max"))
        if self.reduce != "sum" and (self.gcn_norm or self.weighted):
            raise ValueError(
                f"Neighbours: gcn_norm={self.gcn_norm} and weighted={self.weighted} go with reduce='sum', got {self.reduce!r}; drop them"
            )


#: What each kind does unless a layer says otherwise.
USUAL = {
    "gcn": Neighbours("sum", gcn_norm=True, self_loop=1.0, weighted=True),
    "sage": Neighbours("mean"),
    "gin": Neighbours("sum"),
    "dense": None,
}


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of a network: what happens to the sums over neighbours and to a node's own features.

    Parameters
    ----------
    updates : sequence of Dense
        The products, one behind the other. A GCN's first stands for ``P (x @ weight) + bias``: its bias, batch norm and activation come
        behind the sums over neighbours. Further ones are a GIN's perceptron, or plain linear layers that follow.
    own : array_like (inputs, outputs), optional
        GraphSAGE: weights of a node's own features, added to those of its neighbours' mean.
    eps : float, default 0.0
        GIN: own features count ``1 + eps`` times.
    kind : {"gcn", "sage", "gin", "dense"}, optional
        The network's unless given; "dense" has no neighbours.
    neighbours : Neighbours, optional
        By default what the kind is known for: normalised sums, means, sums.
    project : Dense, optional
        GraphSAGE: what neighbours' features go through before they are gathered.

    Examples
    --------
    >>> from bitsparse import nn
    >>> nn.Layer([nn.Dense(np.ones((4, 2)))], own=np.ones((4, 2))).inputs
    4
    """

    updates: tuple[Dense, ...]
    own: Any = None
    eps: float = 0.0
    kind: Kind | None = None
    neighbours: Neighbours | None = None
    project: Dense | None = None

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
        first = updates[0].weight.shape
        if self.own is not None:
            own = _floats("Layer", "own", self.own, 2)
            if own.shape != first:
                raise ShapeError(
                    f"Layer: own has shape {own.shape} but the neighbours' weights have {first}; both must fit"
                )
            object.__setattr__(self, "own", own)
        if self.project is not None and not isinstance(self.project, Dense):
            raise DTypeError(
                f"Layer: project must be a Dense, got {type(self.project).__name__}; pass nn.Dense(weight)"
            )
        if self.project is not None and self.project.weight.shape != (first[0], first[0]):
            raise ShapeError(
                f"Layer: project has shape {self.project.weight.shape} but takes and gives {first[0]} features; both must fit"
            )
        object.__setattr__(self, "eps", _check.number("Layer", "eps", self.eps))
        if self.kind is not None:
            self._check_kind(_check.choice("Layer", "kind", self.kind, KINDS))

    def _check_kind(self, kind: str) -> None:
        for name, there, wanted in (
            ("own", self.own is not None, "sage"),
            ("project", self.project is not None, "sage"),
            ("eps", bool(self.eps), "gin"),
        ):
            if there and kind != wanted:
                raise ValueError(
                    f"Layer: {name} goes with kind {_check.shown(wanted)} only, got kind {_check.shown(kind)}"
                )
        if kind == "dense" and self.neighbours is not None:
            raise ValueError("Layer: neighbours go with a kind that has them, got kind 'dense'")
        if self.neighbours is None:
            object.__setattr__(self, "neighbours", USUAL[kind])

    @property
    def inputs(self) -> int:
        """Features that it reads."""
        return int(self.updates[0].weight.shape[0])

    @property
    def outputs(self) -> int:
        """Features that it gives."""
        return int(self.updates[-1].weight.shape[1])

    def unusual(self) -> str | None:
        """The first thing in it that its kind does not have by itself, in words; None where low-bit networks can follow it."""
        if self.kind == "dense":
            return "is a linear layer without neighbours"
        usual = USUAL[str(self.kind)]
        if self.neighbours not in (usual, None if usual is None else replace(usual, weighted=False)):
            return f"gathers with {self.neighbours}"
        if self.project is not None:
            return "projects what neighbours send"
        if self.kind == "sage" and self.own is None:
            return "has no weights for own features"
        if self.kind != "gin" and len(self.updates) > 1:
            return f"is followed by {len(self.updates) - 1} linear layer(s)"
        for update in self.updates:
            if update.activation not in FUSED:
                return f"ends in {update.activation}"
            if update.then:
                step = update.then[0]
                return f"has {step if isinstance(step, str) else type(step).__name__} behind its activation"
        return None


def glorot(rng: np.random.Generator, rows: int, cols: int) -> _Array:
    """Initial weights (Glorot and Bengio 2010, Eq. 16)."""
    limit = np.sqrt(6.0 / (rows + cols))
    return rng.uniform(-limit, limit, (rows, cols)).astype(np.float32)


def _floats(function: str, name: str, value: Any, ndim: int) -> _Array:
    """A finite float32 array on the host from any array library."""
    array = interop.as_host(value, function, name)
    _check.numeric(function, name, array)
    if array.ndim != ndim:
        raise ShapeError(f"{function}: {name} has shape {array.shape}, but {ndim} dimension(s) are needed")
    array = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(array).all():
        raise ValueError(
            f"{function}: {name} holds NaN or infinity; the network gives nothing else then, train it again"
        )
    return array

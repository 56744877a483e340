"""A product with weights and the operations that may follow it: the smallest part in the description of a network."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.checks import agree, floats, vector
from bitsparse.ops.finish.epilogue import BatchNorm, folded

#: Activations that a product of integers can end in; see Epilogue.
FUSED = (None, "relu", "leaky_relu", "tanh")
ACTIVATIONS = ("relu", "leaky_relu", "elu", "tanh", "sigmoid", "gelu", "silu", "log_softmax", "l2_normalize")
#: The least divisor of "l2_normalize", as in torch.nn.functional.normalize.
_LEAST_NORM = 1e-12

_Array = NDArray[np.float32]


class LayerNorm(NamedTuple):
    """Layer normalisation: ``(x - mean) / spread * weight + bias``, with the mean and the spread of a row or of the whole array.

    The spread of rows is ``sqrt(var + eps)``, as in PyTorch; that of the whole array is ``sqrt(var) + eps``, as in PyTorch Geometric.

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


#: An operation that may follow a product: a norm, or an activation by its name.
Step = str | BatchNorm | LayerNorm


@dataclass(frozen=True, eq=False)
class Dense:
    """One product with weights, ``activation(batch_norm(x @ weight + bias))``, and the operations that follow.

    Parameters
    ----------
    weight : array_like (inputs, outputs)
    bias : array_like (outputs,), optional
    batch_norm : BatchNorm or tuple ``(mean, var[, weight, bias, eps])``, optional
        Batch norm with the statistics of inference.
    activation : {None, "relu", "leaky_relu", "elu", "tanh", "sigmoid", "gelu", "silu", "log_softmax", "l2_normalize"}
        Leaky relu has a slope of 0.01, elu an alpha of 1, and gelu is the exact function.
    then : sequence of str, BatchNorm or LayerNorm, optional
        Further activations and norms after the activation, in this order.
    average : int, default 1
        The number of groups of columns whose mean is taken right after the product, as for attention heads that are averaged.

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
    average: int = 1

    def __post_init__(self) -> None:
        weight = floats("Dense", "weight", self.weight, 2)
        object.__setattr__(self, "weight", weight)
        if weight.shape[1] % _check.integer("Dense", "average", self.average, 1):
            raise ShapeError(
                f"Dense: weight has {weight.shape[1]} columns, which {self.average} groups (average) cannot share evenly; pass a divisor"
            )
        if self.bias is not None:
            object.__setattr__(self, "bias", vector("Dense", "bias", self.bias, self.outputs))
        if self.activation is not None:
            _check.choice("Dense", "activation", self.activation, ACTIVATIONS)
        if self.batch_norm is not None:
            self._fits(self.batch_norm)
            object.__setattr__(self, "batch_norm", BatchNorm(*self.batch_norm))
        object.__setattr__(self, "then", tuple(self._step(step) for step in self.then))

    @property
    def outputs(self) -> int:
        """Number of columns of the result."""
        return int(self.weight.shape[1]) // self.average

    def _fits(self, batch_norm: Any) -> None:
        scale, _ = folded(batch_norm, "Dense")
        if scale is not None and scale.shape not in ((), (1,), (self.outputs,)):
            what = "one value for each output makes"
            agree("Dense", "batch_norm has shape", scale.shape, what, (self.outputs,))

    def _step(self, step: Any) -> Step:
        if isinstance(step, BatchNorm):
            self._fits(step)
            return step
        if isinstance(step, LayerNorm):
            weight, bias = (
                None if value is None else vector("Dense", f"LayerNorm.{name}", value, self.outputs)
                for name, value in (("weight", step.weight), ("bias", step.bias))
            )
            _check.choice("Dense", "LayerNorm.over", step.over, ("row", "graph"))
            return LayerNorm(weight, bias, _check.number("Dense", "LayerNorm.eps", step.eps), step.over)
        if isinstance(step, str):
            return _check.choice("Dense", "then", step, ACTIVATIONS)
        raise DTypeError(
            f"Dense: then holds {type(step).__name__}; pass names of activations, nn.BatchNorm and nn.LayerNorm"
        )

    @property
    def norm(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Batch norm as a factor and an addend for each output; 1 and 0 without one."""
        scale, shift = folded(self.batch_norm, "Dense")
        ones = np.ones(self.outputs)
        return (ones, 0 * ones) if scale is None or shift is None else (ones * scale, ones * shift)

    def finish(self, y: Any, more: Any = None, *, in_place: bool = False) -> Any:
        """Apply everything after the product: the mean of groups, the addition of `more`, bias, batch norm, activation and further steps.

        With `in_place` the array `y` may be overwritten, which saves allocating another one.
        """
        if self.average > 1:
            y = y.reshape(y.shape[0], self.average, self.outputs).mean(axis=1)
        if more is not None:
            y = y + more
        if self.bias is not None and in_place:
            y += self.bias
        elif self.bias is not None:
            y = y + self.bias
        y = _stepped(y, self.batch_norm)
        if in_place and self.activation == "relu":
            np.maximum(y, 0, out=y)
        else:
            y = _stepped(y, self.activation)
        for step in self.then:
            y = _stepped(y, step)
        return y

    def __call__(self, x: Any) -> Any:
        """Compute it in full precision, for an array or a SciPy sparse array."""
        return self.finish(x @ self.weight, in_place=True)


class _Folded(NamedTuple):
    """A batch norm on a GPU: a factor and an addend for each output."""

    scale: Any
    shift: Any


def on_device(part: Any, device: str) -> Any:
    """A copy of a layer, or of a part of one, with its arrays on a device.

    Examples
    --------
    >>> on_device((Dense([[2.0]]), "relu", 3), "cpu")[0].weight
    array([[2.]], dtype=float32)
    """
    if isinstance(part, np.ndarray):
        return interop.move(part, device)
    if isinstance(part, BatchNorm):
        return _Folded(*(interop.move(array, device) for array in folded(part, "Dense") if array is not None))
    if isinstance(part, LayerNorm):
        return LayerNorm(*(on_device(one, device) for one in part))
    if isinstance(part, tuple):
        return tuple(on_device(one, device) for one in part)
    if not is_dataclass(part):
        return part
    moved = copy.copy(part)
    for field in fields(part):
        object.__setattr__(moved, field.name, on_device(getattr(part, field.name), device))
    return moved


def _stepped(y: Any, step: Any) -> Any:
    """Apply a step that follows a product; None changes nothing."""
    if step is None or isinstance(step, str):
        return activated(y, step)
    if isinstance(step, LayerNorm):
        return step(y)
    scale, shift = step if isinstance(step, _Folded) else folded(step, "Dense")
    return y if scale is None else y * scale + shift


def activated(y: Any, activation: str | None) -> Any:
    """Apply an activation, in the dtype of ``y``.

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
        special = import_module("scipy.special" if isinstance(y, np.ndarray) else "cupyx.scipy.special")
        if activation == "gelu":
            return y * y.dtype.type(0.5) * (1 + special.erf(y * y.dtype.type(np.sqrt(0.5))))
        share = special.expit(y)
        return share if activation == "sigmoid" else y * share
    return y


def glorot(rng: np.random.Generator, rows: int, cols: int) -> _Array:
    """Initial weights (Glorot and Bengio 2010, Eq. 16)."""
    limit = np.sqrt(6.0 / (rows + cols))
    return rng.uniform(-limit, limit, (rows, cols)).astype(np.float32)

"""The two products of a binary layer, prepared: features times binary weights, and the sum over neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import assembled
from bitsparse.errors import ShapeError
from bitsparse.nn.binary.linear import BinaryLinear
from bitsparse.ops import BatchNorm, Epilogue, plan_bmm, plan_bspmm
from bitsparse.ops.operands.dense import converted

__all__ = [
    "Activation",
    "InputNorm",
    "Norm",
    "activation_of",
    "aggregate",
    "checked_features",
    "room_of",
    "standardized",
    "update",
    "view",
]

#: A product with everything but its activation decided: ``run(x, out=out)``.
Product = Callable[..., Any]


class InputNorm(NamedTuple):
    """Batch norm of the input, folded: a factor and an addend per feature, in front of the sign."""

    scale: NDArray[np.float32]
    shift: NDArray[np.float32]

    @property
    def batch_norm(self) -> BatchNorm:
        """The same as a batch norm, whose folding gives exactly these numbers back."""
        return BatchNorm(0.0, 1.0, self.scale, self.shift, 0.0)


#: What stands in front of the signs: nothing, the input's batch norm, or "rows" for rows of mean 0 and deviation 1.
Norm = InputNorm | Literal["rows"] | None


def standardized(x: Any) -> Any:
    """Rows of mean 0 and standard deviation 1, ``(x - mean) / (std + 0.0001)``, as inductive Bi-GCN, SAGE and SAINT read features.

    Parameters
    ----------
    x : array (n, features) of float
        NumPy's, or CuPy's on a GPU. The deviation is that of a sample, over ``features - 1``.

    Returns
    -------
    array (n, features) of float32

    Examples
    --------
    >>> from bitsparse.nn.binary.products import standardized
    >>> standardized(np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])).round(3)
    array([[-1.,  0.,  1.],
           [ 0.,  0.,  0.]], dtype=float32)
    """
    space = interop.namespace(x)
    values = converted(x, np.dtype(np.float32))
    if x.shape[1] == 0:
        return values
    centered = values - values.mean(axis=1, keepdims=True, dtype=np.float32)
    square = (centered * centered).sum(axis=1, keepdims=True, dtype=np.float32)
    return centered / (space.sqrt(square / np.float32(max(x.shape[1] - 1, 1))) + np.float32(1e-4))


class _OfStandardized:
    """A product whose activations are standardised first."""

    def __init__(self, plan: Any) -> None:
        self._plan, self.variant = plan, plan.variant

    def __call__(self, x: Any, out: Any = None) -> Any:
        return self._plan(standardized(x), out=out)

    def check(self) -> None:
        self._plan.check()

    def explain(self) -> str:
        return f"rows standardised; {self._plan.explain()}"


class Activation(NamedTuple):
    """What a layer reads: its letter, sizes and place, the dtype of full-precision features, and whether packed ones have a scale."""

    letter: str
    rows: int
    columns: int
    device: str
    dtype: Any = np.float32
    scaled: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        if self.letter == "B":
            return self.rows * (-(-self.columns // 128) * 16 + (4 if self.scaled else 0))
        return int(self.rows * self.columns * np.dtype(self.dtype).itemsize)


def activation_of(x: Any, function: str) -> Activation:
    """The kind of an array or of a BitTensor."""
    if isinstance(x, BitTensor):
        return Activation("B", x.shape[0], x.shape[1], x.device, None, x.scale is not None)
    array, _ = interop.as_array(x, function, "x")
    return Activation("F", array.shape[0], array.shape[1], interop.device_of(array), array.dtype)


def checked_features(function: str, x: Any, inputs: int) -> Activation:
    """The kind of features that weights of so many inputs take."""
    shape = x.shape if hasattr(x, "shape") else np.shape(x)
    if len(shape) != 2:
        raise ShapeError(f"{function}: x has shape {tuple(shape)}, but features are (nodes, features); reshape them")
    kind = activation_of(x, function)
    if kind.columns != inputs:
        raise ShapeError(
            f"{function}: x has {kind.columns} features but the first layer takes {inputs}; pass the features it was trained on"
        )
    return kind


def room_of(kind: Activation) -> int:
    """Bytes that a buffer for it takes, so that the next one is aligned."""
    return -(-kind.nbytes // 512) * 512


def view(memory: Any, kind: Activation) -> Any:
    """An activation of that kind in the first bytes of a buffer."""
    if kind.letter == "B":
        words = memory[: kind.nbytes].view(np.uint32).reshape(kind.rows, 1, -(-kind.columns // 128) * 4)
        family = interop.NUMPY if kind.device == "cpu" else interop.CUPY
        return assembled(BitTensor, words, (kind.rows, kind.columns), 1, -1, "planes", "bipolar", family)
    return memory[: kind.nbytes].view(np.float32).reshape(kind.rows, kind.columns)


def update(linear: BinaryLinear, x: Activation, gives: str, norm: Norm = None) -> tuple[Product, Activation]:
    """``alpha sign(x) @ (sign(W) m) + b`` as a prepared product, and the kind of its result.

    Alpha is the mean magnitude of each row of full-precision features (after `norm`), or the scale that packed features bring along; the
    sign of a result with letter B is that of the very chain.
    """
    epilogue = Epilogue(col_scale=linear.scale, bias=linear.bias, binarize=gives == "B")
    floats: dict[str, Any] = {}
    if x.letter == "F":
        floats = {"dtype": np.float32 if norm == "rows" else x.dtype, "row_absmean": True}
        if isinstance(norm, InputNorm):
            floats["a_norm"] = norm.batch_norm
    plan: Any = plan_bmm(linear.signs.to_device(x.device), x.rows, f"{x.letter}B{gives}", epilogue=epilogue, **floats)
    if x.letter == "F" and norm == "rows":
        plan = _OfStandardized(plan)
    return plan, Activation(gives, x.rows, linear.shape[1], x.device)


def aggregate(
    adjacency: Any, x: Activation, gives: str, *, reduce: Any = "sum", add: bool = False
) -> tuple[Any, Activation]:
    """The sum or mean over neighbours as a prepared product ``run(x, add, out)``, and the kind of its result.

    Counters that no float step follows would come out as int32, so that an epilogue without steps asks for float32.
    """
    plain = x.letter == "F" and gives == "F"
    plan = plan_bspmm(
        adjacency,
        x.columns,
        f"{x.letter}B{gives}",
        reduce=reduce,
        epilogue=None if plain else Epilogue(binarize=gives == "B"),
        add=add,
        dtype=None if x.letter == "B" else np.float32,
    )
    return plan, Activation(gives, adjacency.shape[0], x.columns, x.device)

"""The two products of a binary layer, prepared: features times binary weights, and the sum over neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.arrays import BitTensor
from bitsparse.errors import ShapeError
from bitsparse.nn.binary_linear import BinaryLinear
from bitsparse.ops import BatchNorm, Epilogue, plan_bmm
from bitsparse.ops.bspmm import plan_bspmm

__all__ = ["Activation", "InputNorm", "activation_of", "aggregate", "checked_features", "room_of", "update", "view"]

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
        return BitTensor._make(words, (kind.rows, kind.columns), 1, -1, "planes", "bipolar", family)
    return memory[: kind.nbytes].view(np.float32).reshape(kind.rows, kind.columns)


def update(
    linear: BinaryLinear, x: Activation, gives: str, norm: InputNorm | None = None
) -> tuple[Product, Activation]:
    """``alpha sign(x) @ (sign(W) m) + b`` as a prepared product, and the kind of its result.

    Alpha is the mean magnitude of each row of full-precision features (after `norm`), or the scale that packed features bring along; the
    sign of a result with letter B is that of the very chain.
    """
    epilogue = Epilogue(col_scale=linear.scale, bias=linear.bias, binarize=gives == "B")
    floats: dict[str, Any] = {}
    if x.letter == "F":
        floats = {"dtype": x.dtype, "row_absmean": True, "a_norm": None if norm is None else norm.batch_norm}
    plan = plan_bmm(linear.signs.to_device(x.device), x.rows, f"{x.letter}B{gives}", epilogue=epilogue, **floats)
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

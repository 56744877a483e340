"""Checks of the weights and features of networks: whether they are numbers, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.errors import ShapeError


def floats(function: str, name: str, value: Any, ndim: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Convert an array of any library to a dtype (None: its own) on the host; it must have `ndim` dimensions and be finite."""
    array = interop.as_host(value, function, name)
    _check.numeric(function, name, array)
    if array.ndim != ndim:
        raise ShapeError(f"{function}: {name} has shape {array.shape}, but {ndim} dimension(s) are needed")
    array = np.ascontiguousarray(array, dtype)
    _check.finite(function, name, bool(np.isfinite(array).all()))
    return array


def vector(function: str, name: str, value: Any, outputs: int) -> NDArray[np.float32]:
    """Like :func:`floats`, for a vector with one number for each output of a product."""
    array = floats(function, name, value, 1)
    agree(function, f"{name} has shape", array.shape, "one value for each output makes", (outputs,))
    return array


def agree(function: str, what: str, found: Any, by: str, wanted: Any, remedy: str = "both must fit") -> None:
    """Refuse an operand that does not fit another; `what` and `by` name a property of each, as in "x has shape" and "the plan is for"."""
    if found != wanted:
        raise ShapeError(f"{function}: {what} {found}, but {by} {wanted}; {remedy}")


def chained(function: str, name: str, sizes: Sequence[tuple[int, int]]) -> None:
    """Refuse layers, given by their inputs and outputs, of which one takes another number of features than the one before gives."""
    for i, ((_, gives), (takes, _)) in enumerate(pairwise(sizes)):
        if gives != takes:
            raise ShapeError(f"{function}: {name} {i} gives {gives} features but {name} {i + 1} takes {takes}")

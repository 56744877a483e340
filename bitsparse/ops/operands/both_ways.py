"""A sparse operand in both directions: a product gathers along its edges, and the gradient gathers along the transpose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.indices import gather
from bitsparse.arrays.inside import patterns_of
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.backends.params import Array
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import converted
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features, compute_dtype, plain_features
from bitsparse.ops.operands.places import device_of_sparse, same_place, working_with
from bitsparse.ops.operands.sparse import as_csr


class BothWays(NamedTuple):
    """A sparse operand, its pattern and the transpose of the pattern.

    Attributes
    ----------
    operand : CSROperand
        The operand with values, scales and the caller's order of the edges.
    forward, backward : SparseArray
        The pattern and its transpose, without values and scales; those of a container keep what is prepared for them.
    order : array (nnz,) or None
        Which edge of `forward` each edge of `backward` is; None if the caller passed both directions without this order.
    """

    operand: CSROperand
    forward: Any
    backward: Any
    order: Any

    def turned(self, edges: Array) -> Array:
        """Values per edge, from the edge order of `forward` to that of `backward`."""
        return gather(edges, self.order)

    def degrees(self, side: str = "rows") -> Array:
        """The number of edges of each row or column, but at least 1."""
        indptr = (self.forward if side == "rows" else self.backward).csr_arrays()[0]
        return interop.namespace(indptr).maximum(indptr[1:] - indptr[:-1], 1)


def both_ways(function: str, A: Any) -> BothWays:
    """Both directions of a sparse operand of any kind; for a container they are derived only once."""
    operand = as_csr(function, A)
    operand.has_edges(function)
    pattern = A
    if not isinstance(A, SparseArray):
        pattern = TCTiledCSR.from_csr_arrays(operand.indptr, operand.columns, operand.shape)
    return BothWays(operand, *patterns_of(pattern))


class Floats:
    """The floating operands of one function by name; each is checked and must be on the device of the sparse operand.

    Parameters
    ----------
    function : str
        Name of the function, for error messages.
    operand : CSROperand
    **given : array
        The operands by name.
    """

    def __init__(self, function: str, operand: CSROperand, **given: Any) -> None:
        self.function, self.operand = function, operand
        self.parts = {name: floating(function, name, part) for name, part in given.items()}
        same_place(function, [("A", operand.device), *((name, part.device) for name, part in self.parts.items())])

    def __getitem__(self, name: str) -> Features:
        return self.parts[name]

    @property
    def compute(self) -> np.dtype[Any]:
        """The dtype in which gradients of all these operands are computed."""
        return computed_in(*(part.dtype for part in self.parts.values()))

    def of_shape(self, name: str, shape: tuple[int, ...], what: str) -> None:
        """Refuse the operand `name` unless it has exactly `shape`, the shape of `what`."""
        found = self.parts[name].shape
        if found != shape:
            remedy = f"the gradient of {what}" if name == "gradient" else f"{name} of that shape"
            raise ShapeError(f"{self.function}: {name} has shape {found}, but {what} has {shape}; pass {remedy}")

    def edges(self, name: str) -> Array:
        """Features of edges, from the caller's order to that of the pattern, in the dtype of the computation."""
        return converted(self.operand.edge_values(self.function, name, self.parts[name].data), self.compute)

    def returned(self, name: str, made: Array, *, of_edges: bool = False) -> Any:
        """A gradient in the shape, dtype and family of its operand; a gradient of edges is put in the caller's order."""
        like = self.parts[name]
        result = converted(made.reshape(like.shape), like.dtype)
        return interop.from_array(
            self.operand.to_caller(result, None) if of_edges else result, like.family, self.function
        )


@contextmanager
def operands_of(function: str, A: Any, *others: Any, **given: Any) -> Iterator[tuple[BothWays, Floats]]:
    """The operands of a gradient as a context on their device: the sparse one in both directions, and the floating arrays by name."""
    with working_with(device_of_sparse(A), *given.values(), *others):
        ways = both_ways(function, A)
        yield ways, Floats(function, ways.operand, **given)


def as_asked(wrt: Any, results: dict[str, Any]) -> Any:
    """The gradient of one name, or a tuple of the gradients of several names, in their order.

    Examples
    --------
    >>> as_asked("x", {"x": 1}), as_asked(("y", "x"), {"x": 1, "y": 2})
    (1, (2, 1))
    """
    return results[wrt] if isinstance(wrt, str) else tuple(results[name] for name in wrt)


def floating(function: str, name: str, x: Any) -> Features:
    """Floating features: an operand that has a gradient, or a gradient itself.

    Examples
    --------
    >>> floating("example", "x", np.zeros((2, 3), np.float16)).dtype
    dtype('float16')
    """
    features = plain_features(function, name, x)
    _check.numeric(function, name, features.data, "f")
    return features


def computed_in(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which gradients are computed: float64 if any operand is float64, else float32.

    Examples
    --------
    >>> computed_in(np.dtype(np.float16), np.dtype(np.float64))
    dtype('float64')
    """
    return np.dtype(np.float64) if np.dtype(np.float64) in dtypes else np.dtype(np.float32)


def taken_in(compute: np.dtype[Any], *parts: Features) -> np.dtype[Any]:
    """The dtype in which kernels take features: the common dtype of `parts` if its computations are in `compute`, else `compute`."""
    own = parts[0].dtype
    return own if compute_dtype(own) == compute and all(part.dtype == own for part in parts) else compute


def wanted(function: str, wrt: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """The checked names of the operands whose gradients are asked for.

    Examples
    --------
    >>> wanted("example", "x", ("x", "values"))
    ('x',)
    """
    asked = (wrt,) if isinstance(wrt, str) else wrt
    if not isinstance(asked, (tuple, list)) or not asked:
        raise DTypeError(
            f"{function}: wrt must be a name or several of {names}, got {_check.shown(wrt)}; pass wrt={names!r}"
        )
    return tuple(_check.choice(function, "wrt", name, names) for name in asked)

"""NumPy functions called on sparse arrays: a function with an equivalent member calls it; any other raises an error that names it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from bitsparse.arrays.base import BitArray
from bitsparse.arrays.manners.elementwise import is_sparse
from bitsparse.errors import DTypeError, ShapeError

_BINARY: dict[Any, Callable[[Any, Any], Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.true_divide: operator.truediv,
    np.matmul: operator.matmul,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
    np.power: operator.pow,
    np.maximum: lambda a, b: a.maximum(b) if is_sparse(a) else b.maximum(a),
    np.minimum: lambda a, b: a.minimum(b) if is_sparse(a) else b.minimum(a),
}
_UNARY: dict[Any, Callable[[Any], Any]] = {
    np.absolute: operator.abs,
    np.negative: operator.neg,
    np.invert: operator.invert,
}
#: NumPy functions that take the array first and then the same arguments as the member of the same name.
_MEMBERS = {np.sum, np.mean, np.max, np.min, np.argmax, np.argmin, np.count_nonzero, np.diagonal, np.trace, np.nonzero}


def of_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``ufunc(*inputs)``, where at least one input is a sparse array."""
    meaning: Any = _of_one(ufunc, inputs[0]) if len(inputs) == 1 else _BINARY.get(ufunc)
    out = kwargs.pop("out", (None,))[0]
    if method != "__call__" or meaning is None or kwargs or (out is not None and not isinstance(out, np.ndarray)):
        what = f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
        name = next(type(one).__name__ for one in (*inputs, out) if isinstance(one, BitArray))
        options = f" with {', '.join(kwargs)}" if kwargs else ""
        raise DTypeError(
            f"{what}{options}: it is not defined for a {name}; pass {name}.toarray(), or use the operators and members of {name}"
        )
    result = meaning(*inputs) if len(inputs) == 1 else _operated(ufunc, meaning, *inputs)
    if out is None:
        return result
    if not isinstance(result, np.ndarray) or out.shape != result.shape:
        raise ShapeError(
            f"numpy.{ufunc.__name__}: out has shape {out.shape}, but the result is a {type(result).__name__} of shape "
            f"{getattr(result, 'shape', ())}; omit out="
        )
    np.copyto(out, result, casting="same_kind")
    return out


def _of_one(ufunc: Any, x: Any) -> Any:
    """The member or operator that a ufunc of one operand stands for; None if there is neither."""
    name = ufunc.__name__
    member = is_sparse(x) and hasattr(x, name) and getattr(np, name, None) is ufunc
    return operator.methodcaller(name) if member else _UNARY.get(ufunc)


def _operated(ufunc: Any, meaning: Any, left: Any, right: Any) -> Any:
    """Apply an operator by calling the sparse operand's own method.

    The operator itself would call the ufunc again, without end, if the sparse operand does not support the other one.
    """
    if ufunc in (np.maximum, np.minimum):
        return meaning(left, right)
    swapped = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
    name = meaning.__name__.strip("_")
    if is_sparse(left):
        member, other = getattr(left, f"__{name}__"), right
    else:
        member, other = getattr(right, f"__{swapped[name]}__" if name in swapped else f"__r{name}__", None), left
    result = NotImplemented if member is None else member(other)
    if result is NotImplemented:
        raise DTypeError(
            f"numpy.{ufunc.__name__}: it is not defined for {type(left).__name__} and {type(right).__name__}; call .toarray() on the "
            f"sparse one first"
        )
    return result


def of_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func(A, ...)`` by the member of that name, or NotImplemented if there is no such member."""
    if (
        func not in _MEMBERS
        or not args
        or not is_sparse(args[0])
        or any(is_sparse(one) for one in (*args[1:], *kwargs.values()))
    ):
        return NotImplemented
    if func is np.diagonal and "offset" in kwargs:
        kwargs = {("k" if name == "offset" else name): value for name, value in kwargs.items()}
    return getattr(args[0], func.__name__)(*args[1:], **kwargs)

"""``+ - *`` of integers, computed in a dtype in which the result cannot overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Limits = tuple[int, int]
_INT32, _INT64 = ((int(info.min), int(info.max)) for info in (np.iinfo(np.int32), np.iinfo(np.int64)))


def is_integral(x: Any) -> bool:
    """Whether ``x`` is an array of integers or booleans, or a Python integer."""
    return x.dtype.kind in "biu" if hasattr(x, "dtype") else isinstance(x, int)


def limits_of_operand(x: Any) -> Limits:
    """Smallest and largest value of an operand: the value of a scalar itself, or the range of an array's dtype.

    >>> limits_of_operand(7), limits_of_operand(np.zeros(2, np.int8)), limits_of_operand(np.zeros(2, bool))
    ((7, 7), (-128, 127), (0, 1))
    """
    if not hasattr(x, "dtype") or x.ndim == 0:
        return int(x), int(x)
    if x.dtype.kind == "b":
        return 0, 1
    info = np.iinfo(x.dtype)
    return int(info.min), int(info.max)


def computed(
    name: str, operation: Callable[[Any, Any], Any], left: Any, right: Any, limits: tuple[Limits, Limits]
) -> Any:
    """The exact ``operation(left, right)``, where `operation` is NumPy's ``add``, ``subtract`` or ``multiply``.

    The result is int32 if NumPy's would be and the limits of both operands rule out overflow, else int64.

    Parameters
    ----------
    name : str
        Name of the operator, for messages.
    operation : ufunc
    left, right : arrays, NumPy scalars or Python integers
        At least one is an array of one dimension or more.
    limits : two pairs of int
        Smallest and largest possible element of each operand.

    Raises
    ------
    ValueError
        An element of the result does not fit int64.

    Examples
    --------
    >>> x = np.array([65535], np.int32)
    >>> computed("multiply", np.multiply, x, x, ((0, 65535), (0, 65535)))
    array([4294836225])
    """
    (a, b), (c, d) = limits
    corners = (
        operation(np.array([[a], [b]], object), np.array([[c, d]], object)).ravel().tolist()
    )  # in Python's own integers
    low, high = min(*corners, a, c), max(*corners, b, d)
    operands = left, right
    narrow = all(not hasattr(x, "dtype") or np.can_cast(x.dtype, np.int32) for x in operands)
    if narrow and _INT32[0] <= low and high <= _INT32[1]:
        return operation(*(_as(x, np.int32) for x in operands))
    if any(not hasattr(x, "dtype") or x.ndim == 0 for x in operands) and not all(
        _within(pair, _INT64) for pair in limits
    ):
        raise _beyond(name, limits)
    result = operation(*(_as(x, np.int64) for x in operands))
    if not _within((low, high), _INT64) and result.size:
        # An overflow changes the result by a multiple of 2**64, which a comparison with float64 reveals despite its rounding.
        roughly = operation(*(_as(x, np.float64) for x in operands))
        if float(abs(roughly - result.astype(np.float64)).max()) > 2.0**62:
            raise _beyond(name, tuple(_found(x, pair) for x, pair in zip(operands, limits, strict=True)))
    return result


def _as(x: Any, dtype: Any) -> Any:
    """An array or a scalar, converted to a dtype."""
    if not hasattr(x, "dtype") or x.ndim == 0:
        return dtype(int(x))
    return x.astype(dtype, copy=False)


def _within(inner: Limits, outer: Limits) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _found(x: Any, limits: Limits) -> Limits:
    """The extreme values of the data itself; `limits` for a Python integer or an empty array."""
    return limits if not hasattr(x, "dtype") or not x.size else (int(x.min()), int(x.max()))


def _beyond(name: str, limits: Any) -> ValueError:
    (a, b), (c, d) = limits
    return ValueError(
        f"{name}: values in {a}..{b} and {c}..{d} give results beyond int64 ({_INT64[0]}..{_INT64[1]}); "
        f"convert an operand to floats first, as with .astype('float64')"
    )

"""Statistics over real arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import bits as _ext
from bitsparse.backends.host.buffers import as_bytes
from bitsparse.backends.host.settings import run_on

__all__ = ["content_sum", "relative_error"]

#: Elements widened to float64 at a time, so that no full-size temporaries arise.
_CHUNK = 1 << 18


def relative_error(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Mean of ``|x - y| / (|x| + |y| + 0.0005)`` in float64 (TANGO Eq. 4); 0.0 for empty arrays.

    The order of summation depends on the size alone, so the result does not depend on threads.
    """
    if x.size == 0:
        return 0.0
    x, y = np.ascontiguousarray(x).reshape(-1), np.ascontiguousarray(y).reshape(-1)
    total = 0.0
    for start in range(0, x.size, _CHUNK):
        left, right = x[start : start + _CHUNK].astype(np.float64), y[start : start + _CHUNK].astype(np.float64)
        total += float(np.sum(np.abs(left - right) / (np.abs(left) + np.abs(right) + 0.0005)))
    return total / x.size


def content_sum(x: NDArray[Any]) -> int:
    """A 64-bit fingerprint of the bytes of an array in C order (see ``common/content.h``), the same on every device and thread count.

    Two arrays that differ in one 8-byte word never share it, others with a chance of one in 2**64. It is no defence against people.

    Examples
    --------
    >>> content_sum(np.zeros(3)) == content_sum(np.zeros(6, np.int32)) != content_sum(np.zeros(4))
    True
    """
    return int(_ext.content_sum(run_on(x.nbytes), as_bytes(x)))

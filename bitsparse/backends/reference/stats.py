"""Statistics of the reference backend."""

from __future__ import annotations

from math import fsum
from typing import Any

from numpy.typing import NDArray

__all__ = ["relative_error"]


def relative_error(x: NDArray[Any], y: NDArray[Any]) -> float:
    """TANGO Eq. 4, summed without rounding."""
    pairs = [(float(a), float(b)) for a, b in zip(x.reshape(-1), y.reshape(-1), strict=True)]
    return fsum(abs(a - b) / (abs(a) + abs(b) + 0.0005) for a, b in pairs) / len(pairs) if pairs else 0.0

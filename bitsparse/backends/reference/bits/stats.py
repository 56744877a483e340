"""Statistics of the reference backend."""

from __future__ import annotations

from math import fsum
from typing import Any

from numpy.typing import NDArray

__all__ = ["content_sum", "relative_error"]


def relative_error(x: NDArray[Any], y: NDArray[Any]) -> float:
    """TANGO Eq. 4, summed without rounding."""
    pairs = [(float(a), float(b)) for a, b in zip(x.reshape(-1), y.reshape(-1), strict=True)]
    return fsum(abs(a - b) / (abs(a) + abs(b) + 0.0005) for a, b in pairs) / len(pairs) if pairs else 0.0


def content_sum(x: NDArray[Any]) -> int:
    """The sum modulo 2**64 of splitmix64's finaliser of each 8 bytes (little-endian, zeros at the end) plus (place + 1) times its step."""
    mask, data, total = (1 << 64) - 1, x.tobytes(), 0
    for place in range(-(-len(data) // 8)):
        word = int.from_bytes(data[8 * place : 8 * place + 8], "little")
        word = word + (place + 1) * 0x9E3779B97F4A7C15 & mask
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ word >> 27) * 0x94D049BB133111EB & mask
        total += word ^ word >> 31
    return total & mask

"""The cost model of products of packed integers on a CPU, which chooses among the kernels."""

from __future__ import annotations

import functools
import math
from typing import Any

from bitsparse.backends.host.settings import simd_level

#: The most bits of an operand that the bytes kernel takes.
BYTE = 8

#: The work that :func:`terms` counts: calls; products of two elements or bits; sums that a pass adds to; and, for either operand, the
#: elements, and bits of elements, that are converted to the kernel's form.
TERMS = ("call", "mac", "sum", "a", "a_bit", "b", "b_bit")

#: Nanoseconds of each of these on one thread of an EPYC Zen 5 (amx: a Xeon) with random data, by SIMD level and kernel.
#: ``benchmarks/fit/run.py host`` measures them.
_MEASURED = {
    ("scalar", "planes"): (10900.0, 0.011, 1.1, 0.0, 0.0, 0.0, 0.0209),
    ("scalar", "digits"): (0.0, 0.282, 2.19, 0.15, 0.394, 0.732, 0.316),
    ("scalar", "bytes"): (0.0, 0.118, 1.23, 0.0, 0.875, 0.0, 0.776),
    ("avx2", "planes"): (11400.0, 0.00161, 0.251, 0.0, 0.0, 0.0, 0.00661),
    ("avx2", "digits"): (7640.0, 0.0109, 0.761, 0.291, 0.0569, 0.63, 0.0413),
    ("avx2", "bytes"): (8660.0, 0.00504, 0.428, 0.0, 0.0232, 0.0343, 0.0306),
    ("avxvnni", "planes"): (11500.0, 0.0016, 0.251, 0.0, 0.0, 0.0, 0.00784),
    ("avxvnni", "digits"): (8580.0, 0.0107, 0.695, 0.334, 0.0509, 0.613, 0.0524),
    ("avxvnni", "bytes"): (9970.0, 0.00422, 0.256, 0.0, 0.0181, 0.0507, 0.0204),
    ("avx512", "planes"): (11700.0, 0.000404, 0.0939, 0.0, 0.0, 0.0, 0.00537),
    ("avx512", "digits"): (11000.0, 0.00605, 0.501, 0.0134, 0.0279, 0.311, 0.022),
    ("avx512", "bytes"): (11300.0, 0.00199, 0.197, 0.0, 0.00494, 0.0349, 0.00697),
    ("amx", "planes"): (10600.0, 0.00118, 0.175, 0.0, 0.0, 0.0, 0.00795),
    ("amx", "digits"): (9130.0, 0.00896, 1.09, 0.0885, 0.0559, 0.672, 0.0545),
    ("amx", "bytes"): (9820.0, 0.000662, 0.85, 0.0, 0.0108, 0.0936, 0.0146),
}
RATES = {which: dict(zip(TERMS, rates, strict=True)) for which, rates in _MEASURED.items()}


def terms(
    kernel: str, m: int, n: int, k: int, a_bits: int, b_bits: int, share_nonzero: float = 1.0
) -> dict[str, float]:
    """How often a kernel does each kind of work in `TERMS`, on sizes rounded up to its tiles; kinds it never does are left out.

    Examples
    --------
    >>> terms("planes", 8, 16, 128, 1, 2)
    {'call': 1.0, 'mac': 32768.0, 'sum': 256.0, 'b_bit': 4096.0}
    """
    rows, cols, depth = -(-m // 8) * 8, -(-n // 16) * 16, -(-k // 128) * 128
    passes = {"planes": a_bits * b_bits, "digits": _digit_products(a_bits, b_bits), "bytes": 1}[kernel]
    sums, a, b = rows * cols * passes, rows * depth, cols * depth
    found = {"call": 1.0, "mac": sums * depth * share_nonzero, "sum": float(sums)}
    if kernel == "planes":
        return found | {"b_bit": float(b * b_bits)}
    return found | {"a": float(a), "a_bit": float(a * a_bits), "b": float(b), "b_bit": float(b * b_bits)}


def cost(
    kernel: str,
    m: int,
    n: int,
    k: int,
    a_bits: int,
    b_bits: int,
    share_nonzero: float = 1.0,
    *,
    level: str | None = None,
) -> float:
    """Estimated nanoseconds of :func:`~bitsparse.backends.host.matmul.matmul.matmul` on one thread.

    All kernels scale equally with threads, so the smallest estimate wins.

    Parameters
    ----------
    kernel
        "planes", "digits" or "bytes"; the cost of "bytes" is infinite if an operand has more than 8 bits.
    share_nonzero
        Share of the 8 x 128 tiles of ``a`` that are not skipped.
    level
        SIMD level; the one in use if ``None``.

    Examples
    --------
    >>> cost("planes", 4096, 4096, 4096, 1, 1, level="avx512") < cost("bytes", 4096, 4096, 4096, 1, 1, level="avx512")
    True
    >>> cost("planes", 4096, 4096, 4096, 8, 8, level="avx512") < cost("bytes", 4096, 4096, 4096, 8, 8, level="avx512")
    False
    """
    if kernel == "bytes" and max(a_bits, b_bits) > BYTE:
        return math.inf
    return _estimate(simd_level() if level is None else level, kernel, m, n, k, a_bits, b_bits, share_nonzero)


@functools.lru_cache(maxsize=1024)  # calls often repeat the same sizes
def _estimate(level: str, kernel: str, *sizes: Any) -> float:
    rates, amounts = RATES[level, kernel], terms(kernel, *sizes)
    return sum(rates[name] * amount for name, amount in amounts.items())


@functools.cache
def _digit_products(a_bits: int, b_bits: int) -> int:
    """The number of digit products that the digits kernel computes; two digits have at most 15 bits each and 22 together."""
    best = a_bits * b_bits
    for a_digits in range(1, a_bits + 1):
        for b_digits in range(1, b_bits + 1):
            a_width, b_width = -(-a_bits // a_digits), -(-b_bits // b_digits)
            if max(a_width, b_width) <= 15 and a_width + b_width <= 22:
                best = min(best, a_digits * b_digits)
    return best

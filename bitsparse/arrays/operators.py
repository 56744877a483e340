"""The one hook of the array types: public functions that stand above this layer and that operators call.

:mod:`bitsparse.ops` fills it when it is imported, which ``import bitsparse`` does.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Operators", "hang", "operators"]


class Product(Protocol):
    """``spmm(A, x)`` or ``matmul(a, b)``."""

    def __call__(self, a: Any, b: Any, /) -> Any: ...


class Decoder(Protocol):
    """``dequantize(x, dtype)``."""

    def __call__(self, x: Any, dtype: Any, /) -> Any: ...


class Operators:
    """The functions behind ``@`` and :meth:`bitsparse.BitTensor.dequantize`."""

    __slots__ = ("dequantize", "matmul", "spmm")

    matmul: Product
    spmm: Product
    dequantize: Decoder


#: What the methods of the array types call.
operators = Operators()


def hang(*, matmul: Product, spmm: Product, dequantize: Decoder) -> None:
    """Hang the functions on the array types."""
    operators.matmul, operators.spmm, operators.dequantize = matmul, spmm, dequantize

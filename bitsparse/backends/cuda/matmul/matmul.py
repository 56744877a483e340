"""The exact low-bit product on the GPU: operands, correction terms, which kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from bitsparse import _check, jit
from bitsparse.backends.cuda.chips import chip_here, chip_of
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue, epilogue
from bitsparse.backends.cuda.matmul import mma as gemm_mma
from bitsparse.backends.cuda.matmul import wgmma as gemm
from bitsparse.backends.cuda.matmul.product import CHOICES, KERNELS, Product, on_warps
from bitsparse.backends.params import EpilogueParams, OperandParams

__all__ = ["CHOICES", "KERNELS", "Prepared", "Product", "cost", "epilogue", "matmul", "prepare"]


def matmul(
    a_words: Any,
    b_words: Any,
    *,
    k: int,
    a_bits: int,
    b_bits: int,
    a_encoding: str,
    b_encoding: str,
    acc_dtype: DTypeLike,
    bitmap: Any = None,
    epilogue: EpilogueParams | None = None,
    out: Any = None,
    kernel: str = "planes",
) -> Any:
    """Integer product of two planes operands, (..., m, k) times (..., n, k) transposed, on the current stream.

    See :func:`bitsparse.backends.reference.matmul.matmul` for the arguments. ``kernel`` "planes" multiplies bits, "digits" unpacks
    both operands to bytes first; "planes-mma" and "digits-mma" do so with the instructions of a warp (``mma.sync``) also where there are
    better ones. Their results are equal.

    Raises
    ------
    ValueError
        If NaN reaches requantisation; finding out waits for the device where NaN cannot be ruled out.
    """
    shape = (*np.broadcast_shapes(a_words.shape[:-3], b_words.shape[:-3]), a_words.shape[-3], b_words.shape[-3])
    chain = None if epilogue is None else DeviceEpilogue(epilogue, shape, largest_sum(k, a_bits, b_bits))
    product = Product(
        a_words,
        k=k,
        n=b_words.shape[-3],
        a_bits=a_bits,
        b_bits=b_bits,
        a_encoding=a_encoding,
        b_encoding=b_encoding,
        b_batch=b_words.shape[:-3],
        acc_dtype=acc_dtype,
        bitmap=bitmap,
        kernel=kernel,
        epilogue=chain,
    )
    result = product(b_words, out)
    if chain is not None and chain.may_see_nan:
        _check.no_nan_in_epilogue(chain.params.function, chain.nan_seen())
    return result


def largest_sum(k: int, a_bits: int, b_bits: int) -> float:
    """A bound of the product's elements for operands of these widths, whatever their encodings."""
    return float(k) * (2.0**a_bits - 1) * (2.0**b_bits - 1)


class Prepared:
    """Products with one left operand: ``prepared(b_words, out, operand)``, on the current stream. Making it compiles what calls need.

    Attributes
    ----------
    quick : callable or None
        The short way of a product that is one launch and nothing else: ``quick(b_words, out=None)``.
    keeps_left : bool
        Whether calls read what was made of the left operand (bytes, sums of its rows) instead of its words.
    """

    def __init__(self, a_words: Any, epilogue: EpilogueParams | None, arguments: dict[str, Any]) -> None:
        chain = None
        if epilogue is not None:
            batch = np.broadcast_shapes(a_words.shape[:-3], arguments["b_batch"])
            bound = largest_sum(arguments["k"], arguments["a_bits"], arguments["b_bits"])
            chain = DeviceEpilogue(epilogue, (*batch, a_words.shape[-3], arguments["n"]), bound)
        self._product = product = Product(a_words, epilogue=chain, **arguments)
        self.quick: Callable[..., Any] | None = product.run_plain if product.is_plain else None
        self.keeps_left = arguments["kernel"].startswith("digits") or arguments["b_encoding"] == "bipolar"

    @property
    def nbytes(self) -> int:
        """Bytes that are kept beside the operands."""
        return self._product.nbytes

    def __call__(self, b_words: Any, out: Any = None, operand: OperandParams | None = None) -> Any:
        """The product with ``b_words``, through the epilogue if there is one, with what operands contribute to that."""
        if operand is None:
            return self._product(b_words, out)
        scales = {"a_scale": operand.row_scale, "b_scale": operand.col_scale}
        return self._product(b_words, out, **scales, row_term=operand.row_term, col_term=operand.col_term)

    def explain(self) -> tuple[str, ...]:
        """Lines that a plan's explanation adds."""
        product, behind = self._product, ""
        if product.epilogue is not None:
            behind = f", epilogue in {'the same kernel' if product.fused else 'a kernel behind it'}"
        return (f"on {jit.capability().name}: {product.tiling or 'nothing to multiply'}{behind}",)

    def nan_seen(self) -> bool:
        """Whether an epilogue met NaN on its way to bits since this was asked last; waits only where it might have."""
        chain = self._product.epilogue
        return chain is not None and chain.may_see_nan and self._product.nan_seen()


def prepare(a_words: Any, *, epilogue: EpilogueParams | None = None, **arguments: Any) -> Prepared:
    """Products of one left operand with right operands of one kind; see :class:`Product` for the arguments."""
    return Prepared(a_words, epilogue, arguments)


def cost(
    kernel: str, m: int, n: int, k: int, a_bits: int, b_bits: int, density: float = 1.0, *, fresh: bool = False
) -> float:
    """Estimated nanoseconds of a prepared product of ``k``-long rows on the current device.

    ``density`` is the share of tiles that are not zero. Unpacking the left operand is done once and left out, but not if it is `fresh`.
    Infinite for bits on a chip that emulates their instruction, so that such a kernel is never chosen, only forced.
    """
    wide = k * ((1 << a_bits) - 1) * ((1 << b_bits) - 1) >= 1 << 31
    if kernel.startswith("planes"):
        if on_warps(kernel) and chip_here().bits == 0:
            return math.inf
        return 1e3 * _product_us(kernel, m, n, -(-k // 1024), a_bits, b_bits, density, wide)
    a_digits, b_digits = -(-a_bits // 8), -(-b_bits // 8)
    product = _product_us(kernel, m, n, -(-k // 128), a_digits, b_digits, 1.0, wide)
    unpacked = (n * (b_digits + b_bits / 8) + (m * (a_digits + a_bits / 8) if fresh else 0)) * k
    if on_warps(kernel):
        chip = chip_here()
        memory, launches = chip.memory_bytes_per_us, (2 + fresh) * chip.launch_us
    else:
        # What is left of unpacking beside the product, and more where the left operand drives everything out of the L2.
        memory = gemm.RATES.memory_bytes_per_us
        launches = (1.0 if m * k * a_digits <= gemm.RATES.cache_bytes else 3.0) + (2.0 if fresh else 0.0)
    return 1e3 * (product + launches + unpacked / memory)


def _product_us(
    kernel: str, m: int, n: int, blocks: int, a_planes: int, b_planes: int, density: float, wide: bool
) -> float:
    """Microseconds of the product alone, with the tiling that would be chosen; by warps an int64 result is added to in every pass."""
    some, step = max(1, round(blocks * density)), 1 if kernel.startswith("planes") else 8
    if on_warps(kernel):
        chip = jit.capability()
        flushed = a_planes * b_planes * m * n * 16.0 if wide else 0.0
        warps = gemm_mma.choose_tiling(m, n, blocks, a_planes, b_planes, 1, step, wide, False, chip)
        product = gemm_mma.estimate_us(warps, m, n, some, a_planes, b_planes, 1, chip)
        return product + flushed / chip_of(chip).memory_bytes_per_us
    tiling = gemm.choose_tiling(m, n, blocks, a_planes, b_planes, 1, False, wide, step)
    return gemm.estimate_us(tiling, m, n, some, a_planes, b_planes, 1, wide=wide, step=step)

"""The kernels for products of packed integers, and the estimated time of each."""

from __future__ import annotations

import math

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.chips import chip_here, chip_of
from bitsparse.backends.cuda.matmul import mixed, one_launch
from bitsparse.backends.cuda.matmul import mma as gemm_mma
from bitsparse.backends.cuda.matmul import wgmma as gemm
from bitsparse.backends.cuda.matmul.passes import Sizes

#: Values of ``kernel``. "planes" and "digits" run on the best matrix unit of the chip: the warpgroup's on Hopper, a warp's elsewhere.
#: "-mma" forces a warp's. "mixed" keeps the right operand packed until it is multiplied; ``one_launch.py`` picks its unit.
KERNELS = ("planes", "digits", "mixed", "planes-mma", "digits-mma")
#: The kernels among which the estimated costs decide.
CHOICES = KERNELS[:3]


def on_warps(kernel: str) -> bool:
    """Whether a kernel runs on the matrix instructions of a warp."""
    return kernel == "mixed" or kernel.endswith("-mma") or not jit.capability().has_wgmma


def in_bytes(kernel: str) -> bool:
    """Whether a kernel multiplies bytes, so that operands are unpacked."""
    return not kernel.startswith("planes")


def cost(
    kernel: str,
    m: int,
    n: int,
    k: int,
    a_bits: int,
    b_bits: int,
    density: float = 1.0,
    *,
    fresh: bool = False,
    epilogue: bool = False,
) -> float:
    """Estimated nanoseconds of a prepared product of ``k``-long rows on the current device.

    ``density`` is the share of tiles that are not zero. The left operand is unpacked only once, so that time is left out unless it is
    `fresh`. The cost is infinite for products that are never chosen, only forced: bits on a chip that emulates their instruction, and
    "mixed" on chips on which it was not measured, for an epilogue (which would be a second kernel), for a `fresh` left operand, for
    operands that the kernel does not take, and for empty products.
    """
    wide = k * ((1 << a_bits) - 1) * ((1 << b_bits) - 1) >= 1 << 31
    if kernel == "mixed":
        card = jit.capability()
        nothing = 0 in (m, n, k)
        if nothing or wide or epilogue or fresh or max(a_bits, b_bits) > mixed.MOST_BITS or not card.has_wgmma:
            return math.inf
        sizes = mixed.MixedSizes(m, n, -(-k // 128), b_bits, 1, -(-k // 32))
        return 1e3 * one_launch.estimate_us(one_launch.choose_tiling(sizes, card), sizes, card)
    if not in_bytes(kernel):
        if on_warps(kernel) and chip_here().bits == 0:
            return math.inf
        return 1e3 * _product_us(kernel, m, n, k, (a_bits, b_bits), density, wide, epilogue)
    digits = -(-a_bits // 8), -(-b_bits // 8)
    product = _product_us(kernel, m, n, k, digits, 1.0, wide, epilogue)
    left = m * k * (digits[0] + a_bits / 8) if fresh else 0.0
    if on_warps(kernel):
        chip = chip_here()
        unpacked = left + n * k * (digits[1] + b_bits / 8)
        return 1e3 * (product + (2 + fresh) * chip.launch_us + unpacked / chip.memory_bytes_per_us)
    unpacking = beside_us(m, n, k, a_bits, b_bits) + 2.0 * fresh + left / gemm.RATES.memory_bytes_per_us
    return 1e3 * (product + unpacking)


def beside_us(m: int, n: int, k: int, a_bits: int, b_bits: int) -> float:
    """Microseconds by which unpacking the right operand delays a product of bytes on warpgroups.

    It mostly overlaps with the product. The rest is larger if the left operand evicts everything from the L2; for small products the
    estimate of the product includes it.
    """
    a_digits, b_digits = -(-a_bits // 8), -(-b_bits // 8)
    bytes_us = n * k * (b_digits + b_bits / 8) / gemm.RATES.memory_bytes_per_us
    if gemm.is_small(_sizes(m, n, k, (a_digits, b_digits), 8), 8):
        return bytes_us
    return bytes_us + (1.0 if m * k * a_digits <= gemm.RATES.cache_bytes else 3.0)


def _sizes(m: int, n: int, k: int, planes: tuple[int, int], step: int) -> Sizes:
    return Sizes(m, n, -(-k * step // 1024), *planes, 1, 16 * step * -(-k // 128))


def _product_us(
    kernel: str, m: int, n: int, k: int, planes: tuple[int, int], density: float, wide: bool, fused: bool
) -> float:
    """Microseconds of the product with the tiling that would be chosen.

    On warps, every pass adds to an int64 result in memory. On warpgroups, a small product of bytes includes unpacking the right operand.
    """
    step = 8 if in_bytes(kernel) else 1
    sizes = _sizes(m, n, k, planes, step)
    not_zero = replace(sizes, blocks=max(1, round(sizes.blocks * density)))
    if on_warps(kernel):
        chip = jit.capability()
        flushed = math.prod(planes) * m * n * 16.0 if wide else 0.0
        warps = gemm_mma.choose_tiling(sizes, step, wide, False, chip)
        product = gemm_mma.estimate_us(warps, not_zero, chip)
        return product + flushed / chip_of(chip).memory_bytes_per_us
    tiling, rates = gemm.choose_tiling(sizes, False, wide, step, fused or density < 1), gemm.rates_of(sizes, step)
    unpacking = gemm.unpacking_us(tiling, sizes, rates) if step == 8 and gemm.is_small(sizes, step) else 0.0
    return gemm.estimate_us(tiling, not_zero, rates, wide=wide, step=step) + unpacking

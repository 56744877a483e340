"""Which kernels products of packed integers have, and what each is expected to take."""

from __future__ import annotations

import math

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda.chips import chip_here, chip_of
from bitsparse.backends.cuda.matmul import mixed, one_launch
from bitsparse.backends.cuda.matmul import mma as gemm_mma
from bitsparse.backends.cuda.matmul import wgmma as gemm
from bitsparse.backends.cuda.matmul.passes import Sizes

#: Names that ``kernel`` may have. The first two run on the best matrix unit that the chip has for them: the warpgroup's on Hopper, a
#: warp's elsewhere. "-mma" forces a warp's, and so does "mixed", whose right operand stays packed until it is multiplied.
KERNELS = ("planes", "digits", "mixed", "planes-mma", "digits-mma")
#: Those among which costs decide.
CHOICES = KERNELS[:3]


def on_warps(kernel: str) -> bool:
    """Whether a kernel runs on the matrix instructions of a warp."""
    return kernel == "mixed" or kernel.endswith("-mma") or not jit.capability().has_wgmma


def in_bytes(kernel: str) -> bool:
    """Whether a kernel multiplies bytes, into which operands are unpacked."""
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

    ``density`` is the share of tiles that are not zero. Unpacking the left operand is done once and left out, but not if it is `fresh`.
    Infinite for what is never chosen, only forced: bits on a chip that emulates their instruction, and "mixed" on chips on which it was not
    measured, with an epilogue, which is a kernel behind it, where it would not be one launch or cannot be, and of nothing.
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
        return 1e3 * _product_us(kernel, m, n, k, (a_bits, b_bits), density, wide)
    digits = -(-a_bits // 8), -(-b_bits // 8)
    product = _product_us(kernel, m, n, k, digits, 1.0, wide)
    unpacked = (n * (digits[1] + b_bits / 8) + (m * (digits[0] + a_bits / 8) if fresh else 0)) * k
    if on_warps(kernel):
        chip = chip_here()
        memory, launches = chip.memory_bytes_per_us, (2 + fresh) * chip.launch_us
    else:
        # What is left of unpacking beside the product, and more where the left operand drives everything out of the L2. Of small products
        # it is part of the estimate.
        memory = gemm.RATES.memory_bytes_per_us
        launches = (
            0.0
            if gemm.is_small(_sizes(m, n, k, digits, 8), 8)
            else 1.0
            if m * k * digits[0] <= gemm.RATES.cache_bytes
            else 3.0
        )
        launches += 2.0 if fresh else 0.0
    return 1e3 * (product + launches + unpacked / memory)


def _sizes(m: int, n: int, k: int, planes: tuple[int, int], step: int) -> Sizes:
    return Sizes(m, n, -(-k * step // 1024), *planes, 1, 16 * step * -(-k // 128))


def _product_us(kernel: str, m: int, n: int, k: int, planes: tuple[int, int], density: float, wide: bool) -> float:
    """Microseconds of the product with the tiling that would be chosen; by warps an int64 result is added to in every pass, and on
    warpgroups the right operand of a small product of bytes is unpacked in front of it.
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
    tiling, rates = gemm.choose_tiling(sizes, False, wide, step), gemm.rates_of(sizes, step)
    unpacking = gemm.unpacking_us(tiling, sizes, rates) if step == 8 and gemm.is_small(sizes, step) else 0.0
    return gemm.estimate_us(tiling, not_zero, rates, wide=wide, step=step) + unpacking

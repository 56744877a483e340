"""Kernel "mixed", bytes times packed planes in one launch, on warps or on warpgroups, whichever is estimated to be faster."""

from __future__ import annotations

from typing import Any

from bitsparse import jit
from bitsparse.backends.cuda.chips import chip_of
from bitsparse.backends.cuda.matmul import mixed, resident
from bitsparse.backends.cuda.matmul.passes import Multiplication

#: A tiling of either kind.
AnyMixedTiling = mixed.MixedTiling | resident.ResidentTiling


def estimate_us(tiling: AnyMixedTiling, sizes: mixed.MixedSizes, card: jit.Capability) -> float:
    """Estimated microseconds of a product."""
    chip = chip_of(card)
    if isinstance(tiling, resident.ResidentTiling):
        return resident.estimate_us(tiling, sizes, chip.resident_products, card)
    return mixed.estimate_us(tiling, sizes, chip.mixed_products, card)


def choose_tiling(sizes: mixed.MixedSizes, card: jit.Capability) -> AnyMixedTiling:
    """The tiling with the lowest estimate."""
    by_warps, kept = mixed.choose_tiling(sizes, card), resident.choose_tiling(sizes, card)
    if kept is None or estimate_us(by_warps, sizes, card) <= estimate_us(kept, sizes, card):
        return by_warps
    return kept


def product(what: Multiplication, k: int, tiling: Any, signed: int) -> mixed.OneLaunch:
    """A prepared product of `k`-long rows, by default with the fastest estimated tiling."""
    sizes = mixed.sizes_of(what, k)
    tiling = tiling or choose_tiling(sizes, jit.capability())
    if isinstance(tiling, resident.ResidentTiling):
        return resident.ResidentProduct(what, sizes, tiling, signed)
    return mixed.MixedProduct(what, sizes, tiling, signed)

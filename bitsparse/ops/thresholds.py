"""Integer thresholds equal to the sign of a float chain (DESIGN: binarise as ``v >= 0`` of the very chain).

Every step of an epilogue is monotone in the integer it starts from, rising or falling, and rounding keeps that order. So the
sign of the chain changes at most once over the integers, and bisecting the chain itself finds where: the bits are those of the chain for
every scale and bias, without a float in the kernel. Where a scale is negative the chain falls and the comparison turns round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends
from bitsparse.backends.params import EpilogueParams, Thresholds

__all__ = ["MIN_ROWS_PER_CLASS", "bisect", "of_epilogue"]

#: Fewer rows than this share a chain: computing the sums and the chain is then cheaper than bisecting the chain.
MIN_ROWS_PER_CLASS = 16


def bisect(
    is_one: Callable[[NDArray[np.int32]], NDArray[np.bool_]], shape: tuple[int, int], longest: int
) -> Thresholds:
    """Where a monotone predicate over ``-longest..longest`` changes, for each element of ``shape`` at once.

    Parameters
    ----------
    is_one
        Takes int32 sums of ``shape`` and says where the bit is one; monotone in each element, rising or falling.
    shape
        (classes, features).
    longest
        Largest magnitude of a sum.

    Returns
    -------
    Thresholds
        Without classes of rows.

    Examples
    --------
    >>> falling = bisect(lambda s: -0.5 * s + 1 >= 0, (1, 1), 10)
    >>> int(falling.values[0, 0]), bool(falling.flips[0, 0])
    (3, True)
    """
    low = np.full(shape, -longest, np.int64)
    high = np.full(shape, longest, np.int64)
    first, last = is_one(low.astype(np.int32)), is_one(high.astype(np.int32))
    flips = first & ~last
    constant = first == last
    # Where the predicate changes, `low` stays before the change and `high` at or after it.
    while (high - low > 1).any():
        middle = (low + high) >> 1
        reached = is_one(middle.astype(np.int32)) ^ flips
        high = np.where(reached, middle, high)
        low = np.where(reached, low, middle)
    values = np.where(constant, np.where(first, -longest, longest + 1), high)
    return Thresholds(values, flips, None, longest)


def of_epilogue(
    params: EpilogueParams, counts: NDArray[Any], features: int, longest: int, *, mean: bool
) -> Thresholds | None:
    """Thresholds on the integer sums of rows with ``counts`` entries, or None where the sums had better be computed.

    That is where too few rows share a chain, or where a product might overflow, which only the chain itself can judge.
    """
    if not _stays_finite(params, longest):
        return None
    rows = counts.size
    row_scale = None if params.row_scale is None else np.broadcast_to(np.asarray(params.row_scale), (rows,))
    class_of = None
    keys = [part for part in (row_scale, counts if mean else None) if part is not None]
    picked = np.zeros(1, np.int64)
    if keys and rows:
        classes, picked, class_of = _classes(keys)
        if classes > 1 and classes * MIN_ROWS_PER_CLASS > rows:
            return None
        class_of = class_of.astype(np.int32) if classes > 1 else None
    chain = params._replace(
        out="float", binarize=False, row_scale=None if row_scale is None else row_scale[picked] if rows else None
    )
    divisor = np.maximum(counts[picked], 1).astype(np.float32)[:, None] if mean and rows else None
    plain = all(part is None for part in (row_scale, params.col_scale, params.bias, params.bn_scale, params.activation))
    if plain:
        # The sign of the sum, or of a mean: nothing to look for.
        return Thresholds(np.zeros((1, 1), np.int64), np.zeros((1, 1), bool), None, longest)

    def is_one(sums: NDArray[np.int32]) -> NDArray[np.bool_]:
        start = sums if divisor is None else sums.astype(np.float32) / divisor
        return np.asarray(backends.family("cpu", "matmul").epilogue(start, chain) >= 0)

    return bisect(is_one, (picked.size, features), longest)._replace(class_of=class_of)


def _classes(keys: list[NDArray[Any]]) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Number of classes of rows with equal keys, a row of each, and the class of each row."""
    table = np.zeros((keys[0].size, 2), np.int64)
    for column, key in enumerate(keys):
        # bits of the scale, so that -0 and 0 are told apart and nothing is rounded
        table[:, column] = key.view(np.int32) if key.dtype == np.float32 else key
    _, picked, class_of = np.unique(
        table.view([("", np.int64), ("", np.int64)]).reshape(-1), return_index=True, return_inverse=True
    )
    return picked.size, picked, class_of.reshape(-1)


def _stays_finite(params: EpilogueParams, longest: int) -> bool:
    """Whether no step can leave the range of float32, with room to spare; then no step gives NaN either."""
    bound = float(longest)
    for factor, term in (
        (params.row_scale, None),
        (params.col_scale, None),
        (None, params.bias),
        (params.bn_scale, None),
        (None, params.bn_shift),
    ):
        for part in (factor, term):
            if part is None or not np.size(part):
                continue
            magnitude = float(np.abs(np.asarray(part, np.float64)).max())
            bound = bound * max(magnitude, 1.0) if part is factor else bound + magnitude
            if not bound < 1e37:
                return False
    return True

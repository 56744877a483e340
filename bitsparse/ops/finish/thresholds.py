"""Integer thresholds that give the same bits as the sign of a float chain (DESIGN: binarise as ``v >= 0`` of the very chain).

Every step of an epilogue is monotone in the integer that the chain starts from, rising or falling, and rounding keeps that order. So the
sign of the chain changes at most once over the integers, and bisecting the chain itself finds that place. The kernel then needs no floats,
and its bits equal those of the chain for every scale and bias. With a negative scale the chain falls, and the comparison is reversed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bitsparse import backends, interop
from bitsparse._records import replace
from bitsparse.backends.params import EpilogueParams, Thresholds

#: If fewer rows than this share a chain, computing the sums and the chain is cheaper than bisecting the chain.
MIN_ROWS_PER_CLASS = 16
#: Up to this many elements, a chain is quicker on the host.
_FEW = 1 << 15


def bisect(is_one: Callable[[Any], Any], shape: tuple[int, int], longest: int, space: Any = np) -> Thresholds:
    """Find where a monotone predicate over ``-longest..longest`` changes, for all elements of ``shape`` at once.

    Parameters
    ----------
    is_one
        Takes int32 sums of ``shape`` and returns where the bit is one; it is monotone in each element, rising or falling.
    shape
        (classes, features).
    longest
        Largest magnitude of a sum.
    space
        NumPy or CuPy, whichever arrays the predicate takes.

    Returns
    -------
    Thresholds
        One row per class; `class_of`, which maps rows to classes, is left at None.

    Examples
    --------
    >>> falling = bisect(lambda s: -0.5 * s + 1 >= 0, (1, 1), 10)
    >>> int(falling.values[0, 0]), bool(falling.flips[0, 0])
    (3, True)
    """
    low = space.full(shape, -longest, np.int64)
    high = space.full(shape, longest, np.int64)
    first, last = is_one(low.astype(np.int32)), is_one(high.astype(np.int32))
    flips = first & ~last
    constant = first == last
    # Where the predicate changes, `low` stays before the change and `high` at or after it.
    for _ in range(max(2 * longest, 1).bit_length()):
        middle = (low + high) >> 1
        reached = is_one(middle.astype(np.int32)) ^ flips
        open_yet = high - low > 1
        high = space.where(open_yet & reached, middle, high)
        low = space.where(open_yet & ~reached, middle, low)
    values = space.where(constant, space.where(first, -longest, longest + 1), high)
    return Thresholds(values, flips, None, longest)


def of_epilogue(params: EpilogueParams, counts: Any, features: int, longest: int, *, mean: bool) -> Thresholds | None:
    """Thresholds on the integer sums of rows with ``counts`` entries, or None if computing the sums themselves is better.

    It is better if too few rows share a chain, or if a step might overflow, as only the chain itself gives the right result then.
    If ``counts`` (and perhaps ``row_scale``) are on a GPU, only one row of each class is copied to the host. The thresholds are
    computed on whichever device is quicker, and the class of each row stays on the GPU.
    """
    space: Any = interop.namespace(counts)
    if not _stays_finite(params, longest):
        return None
    rows = int(counts.size)
    row_scale = params.row_scale
    if row_scale is not None and row_scale.size == 1:
        row_scale = space.broadcast_to(space.asarray(row_scale).reshape(()), (rows,))
    class_of, classes, picked_scale = None, 1, None
    picked_counts = np.zeros(1, np.int64)
    if rows and (row_scale is not None or mean):
        classes, picked, class_of = _classes(space, row_scale, counts if mean else None)
        if classes > 1 and classes * MIN_ROWS_PER_CLASS > rows:
            return None
        class_of = class_of.astype(np.int32) if classes > 1 else None
        picked_counts = interop.move(counts[picked], "cpu")
        picked_scale = None if row_scale is None else interop.move(row_scale[picked], "cpu")
    chain = replace(params, out="float", binarize=False, row_scale=picked_scale)
    divisor = np.maximum(picked_counts, 1).astype(np.float32)[:, None] if mean and rows else None
    plain = all(part is None for part in (row_scale, params.col_scale, params.bias, params.bn_scale, params.activation))
    if plain:
        # The sign of the sum or of the mean is the bit, so the threshold is zero.
        return Thresholds(np.zeros((1, 1), np.int64), np.zeros((1, 1), bool), None, longest)
    on_gpu = space is not np and classes * features > _FEW
    device = interop.device_of(counts) if on_gpu else "cpu"
    there: Any = space if on_gpu else np
    epilogue = backends.family(device, "matmul.matmul").epilogue
    if divisor is not None:
        divisor = there.asarray(divisor)

    def is_one(sums: Any) -> Any:
        return epilogue(sums if divisor is None else sums.astype(np.float32) / divisor, chain) >= 0

    return replace(bisect(is_one, (classes, features), longest, there), class_of=class_of)


def _classes(space: Any, row_scale: Any, counts: Any) -> tuple[int, Any, Any]:
    """Number of classes of rows with equal scale and count, one row of each class, and the class of each row."""
    key: Any = 0
    if row_scale is not None:  # compares the bits of the scale, so that -0 and 0 differ and nothing is rounded
        key = space.ascontiguousarray(space.asarray(row_scale, np.float32)).view(np.int32).astype(np.int64) << 32
    if counts is not None:
        key = key + counts.astype(np.int64)
    _, picked, class_of = space.unique(key, return_index=True, return_inverse=True)
    return int(picked.size), picked, class_of.reshape(-1)


def _stays_finite(params: EpilogueParams, longest: int) -> bool:
    """Whether no step can leave the range of float32, with room to spare; in that case no step gives NaN either."""
    bound = float(longest)
    steps = (params.row_scale, params.col_scale, params.bias, params.bn_scale, params.bn_shift)
    for part, adds in zip(steps, (False, False, True, False, True), strict=True):
        if part is not None and np.size(part):
            magnitude = float(abs(part.astype(np.float64)).max())
            bound = bound + magnitude if adds else bound * max(magnitude, 1.0)
            if not bound < 1e37:
                return False
    return True

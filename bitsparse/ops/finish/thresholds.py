"""Integer thresholds equal to the sign of a float chain (DESIGN: binarise as ``v >= 0`` of the very chain).

Every step of an epilogue is monotone in the integer it starts from, rising or falling, and rounding keeps that order. So the
sign of the chain changes at most once over the integers, and bisecting the chain itself finds where: the bits are those of the chain for
every scale and bias, without a float in the kernel. Where a scale is negative the chain falls and the comparison turns round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bitsparse import backends, interop
from bitsparse._records import replace
from bitsparse.backends.params import EpilogueParams, Thresholds

#: Fewer rows than this share a chain: computing the sums and the chain is then cheaper than bisecting the chain.
MIN_ROWS_PER_CLASS = 16
#: Chains of up to so many elements are quicker on the host.
_FEW = 1 << 15


def bisect(is_one: Callable[[Any], Any], shape: tuple[int, int], longest: int, space: Any = np) -> Thresholds:
    """Where a monotone predicate over ``-longest..longest`` changes, for each element of ``shape`` at once.

    Parameters
    ----------
    is_one
        Takes int32 sums of ``shape`` and says where the bit is one; monotone in each element, rising or falling.
    shape
        (classes, features).
    longest
        Largest magnitude of a sum.
    space
        NumPy, or CuPy where the predicate takes its arrays.

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
    """Thresholds on the integer sums of rows with ``counts`` entries, or None where the sums had better be computed.

    That is where too few rows share a chain, or where a product might overflow, which only the chain itself can judge. Of a GPU's
    ``counts`` (and ``row_scale``, which may lie there as well) only a row of each class is fetched; the thresholds are found where the
    chain is quicker, and the class of each row stays on the GPU.
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
        # The sign of the sum, or of a mean: nothing to look for.
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
    """Number of classes of rows with equal keys, a row of each, and the class of each row."""
    key: Any = 0
    if row_scale is not None:  # bits of the scale, so that -0 and 0 are told apart and nothing is rounded
        key = space.ascontiguousarray(space.asarray(row_scale, np.float32)).view(np.int32).astype(np.int64) << 32
    if counts is not None:
        key = key + counts.astype(np.int64)
    _, picked, class_of = space.unique(key, return_index=True, return_inverse=True)
    return int(picked.size), picked, class_of.reshape(-1)


def _stays_finite(params: EpilogueParams, longest: int) -> bool:
    """Whether no step can leave the range of float32, with room to spare; then no step gives NaN either."""
    bound = float(longest)
    steps = (params.row_scale, params.col_scale, params.bias, params.bn_scale, params.bn_shift)
    for part, adds in zip(steps, (False, False, True, False, True), strict=True):
        if part is not None and np.size(part):
            magnitude = float(abs(part.astype(np.float64)).max())
            bound = bound + magnitude if adds else bound * max(magnitude, 1.0)
            if not bound < 1e37:
                return False
    return True

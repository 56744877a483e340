"""All pairs of similar rows of bits, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse._records import replace
from bitsparse.backends.params import Array, PairTest
from bitsparse.ops.search.codes import METRICS, Codes, as_codes, ones_of, same_length

#: The number of rows of `a` that are compared at a time.
ROWS = 1 << 16


def pairs(
    a: Any, b: Any = None, *, threshold: float, metric: str = "jaccard", limit: int | None = None
) -> tuple[Any, Any, Any]:
    """All pairs of rows of bits that are at least as similar as a threshold, exactly.

    Rows are sorted by their number of ones: rows whose numbers differ too much cannot be similar and are not compared (BitBound,
    Swamidass and Baldi 2007).

    Parameters
    ----------
    a : BitTensor (M, length) of one bit, bool (M, length), or uint8 or int8 (M, length / 8)
        As in :func:`nearest`.
    b : as `a`, (N, length), optional
        By default, two different rows of `a` form a pair, each pair once.
    threshold : float
        "jaccard": the least similarity, 0..1, which is the number of bits in common divided by the number of bits set in either row. A pair
        is found if that quotient, as a float64, is not less. "hamming": the most bits that differ. "dot": the least product.
    metric : {"jaccard", "hamming", "dot"}
        As in :func:`nearest`.
    limit : int, optional
        Raise an error if there are more pairs than this.

    Returns
    -------
    i, j : arrays of int64
        Rows of `a`, and of `b`, in ascending order; ``i < j`` without `b`.
    s : array of float32, or int32
        Similarity for "jaccard" (1 for two empty rows), distance for "hamming", product for "dot".

    Raises
    ------
    ShapeError, DTypeError, ValueError, DeviceError
        Operands that do not fit, options out of range, or more than `limit` pairs.

    See Also
    --------
    pairs_iter : the same pairs in pieces, for when they do not fit into memory.

    Examples
    --------
    >>> rows = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]], bool)
    >>> bs.pairs(rows, threshold=0.6)
    (array([0]), array([1]), array([0.6666667], dtype=float32))
    """
    search = _Search("pairs", a, b, threshold, metric, limit)
    with search.working():
        found = list(search.pieces(ROWS))
        space = interop.namespace(search.left.words)
        i, j, s = (space.concatenate([one[part] for one in found]) for part in range(3))
        return search.handed_out(i, j, s)


def pairs_iter(
    a: Any, b: Any = None, *, threshold: float, metric: str = "jaccard", rows: int = ROWS
) -> Iterator[tuple[Any, Any, Any]]:
    """The pairs of :func:`pairs` in pieces, so that they need not fit into memory together.

    Parameters
    ----------
    a, b, threshold, metric
        As in :func:`pairs`.
    rows : int, default 65536
        Number of rows of `a` that are compared for one piece. Rows are sorted by their number of ones, so a piece has pairs of rows with
        similar numbers; pieces without pairs are left out.

    Yields
    ------
    i, j, s : arrays
        As from :func:`pairs`, in ascending order within a piece. Every pair is yielded once.

    Examples
    --------
    >>> bits = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]], bool)
    >>> [(i.tolist(), j.tolist()) for i, j, s in bs.pairs_iter(bits, threshold=2, metric="hamming", rows=1)]
    [([0], [1])]
    """
    search = _Search("pairs_iter", a, b, threshold, metric, None)
    step = _check.integer("pairs_iter", "rows", rows, 1)
    return search.each(step)


class _Search:
    """Both sides, sorted by their number of ones, and the test that pairs must pass."""

    def __init__(self, function: str, a: Any, b: Any, threshold: Any, metric: Any, limit: Any) -> None:
        self.function, self.limit = function, None if limit is None else _check.integer(function, "limit", limit, 0)
        self.metric = _check.choice(function, "metric", metric, METRICS)
        left = as_codes(function, "a", a)
        right = left if b is None else as_codes(function, "b", b)
        self.triangle = b is None
        _check.same_device(function, (left.device, right.device))
        self.length = same_length(function, ("a", "b"), left, right)
        self.test = test_of(function, self.metric, threshold, self.length)
        self.family = interop.common_family((left.family, right.family))
        self.device = left.device
        self.backend: Any = backends.family(self.device, "search.nearest")
        with self.working():
            self.left, self.left_ones, self.left_order = by_ones(left)
            same = (self.left, self.left_ones, self.left_order)
            self.right, self.right_ones, self.right_order = same if b is None else by_ones(right.like(left))

    def working(self) -> Any:
        """A context on the device and stream of the rows."""
        return interop.working_on(self.device, self.family)

    def pieces(self, step: int) -> Iterator[tuple[Array, Array, Array]]:
        """Pairs of `step` rows of the left side at a time, as NumPy or CuPy arrays, unsorted within a piece."""
        total, n, step = 0, self.left.words.shape[0], min(step, self.backend.MOST_ROWS)
        for start in range(0, max(1, n), step):
            begin, most_rows = start if self.triangle else 0, self.backend.MOST_ROWS
            for first in range(begin, max(begin + 1, self.right.words.shape[0]), most_rows):
                # Only the first part overlaps the left rows; rows of later parts all come behind them.
                triangle = self.triangle and first == begin
                left, right = slice(start, start + step), slice(first, first + most_rows)
                sides = self.left.words[left], self.left_ones[left], self.right.words[right], self.right_ones[right]
                room = None if self.limit is None else self.limit - total
                found = self.backend.pairs(*sides, self.test, triangle, room)
                if found is None:
                    raise ValueError(
                        f"{self.function}: more than limit={self.limit} pairs pass; choose a stricter threshold, a higher limit, or "
                        f"take them in pieces from pairs_iter"
                    )
                rows, columns, common, both = found
                total += rows.size
                i, j = self.left_order[rows + start], self.right_order[columns + first]
                space: Any = interop.namespace(rows)
                if self.triangle:
                    i, j = space.minimum(i, j), space.maximum(i, j)
                yield i, j, self._values(space, common, both)

    def _values(self, space: Any, common: Array, both: Array) -> Array:
        if self.metric == "jaccard":
            union = both - common
            # The similarity of two empty rows is 1.
            return space.where(union == 0, 1, common).astype(np.float32) / space.maximum(union, 1).astype(np.float32)
        distance = both - 2 * common
        return distance if self.metric == "hamming" else self.length - 2 * distance

    def handed_out(self, i: Array, j: Array, s: Array) -> tuple[Any, Any, Any]:
        """The pairs in ascending order, as arrays of the caller's library."""
        space: Any = interop.namespace(i)
        order = space.lexsort(space.stack((j, i)))
        i, j, s = (interop.from_array(one[order], self.family, self.function) for one in (i, j, s))
        return i, j, s

    def each(self, step: int) -> Iterator[tuple[Any, Any, Any]]:
        """The pieces that :func:`pairs_iter` yields."""
        pieces = self.pieces(step)
        while True:
            with self.working():  # left before the caller gets the piece
                piece = next(pieces, None)
                if piece is None:
                    return
                ready = self.handed_out(*piece) if piece[0].size else None
            if ready is not None:
                yield ready


def by_ones(codes: Codes) -> tuple[Codes, Array, Array]:
    """The rows in ascending order of their number of ones, these numbers, and the original index of each row."""
    ones, space = ones_of(codes), interop.namespace(codes.words)
    order: Any = space.argsort(ones, kind="stable").astype(np.int64)
    return replace(codes, words=space.ascontiguousarray(codes.words[order])), ones[order], order


def test_of(function: str, metric: str, threshold: Any, length: int) -> PairTest:
    """The test of integers that the ones of two rows must pass for a threshold.

    Examples
    --------
    >>> test_of("pairs", "jaccard", 0.7, 1024), test_of("pairs", "hamming", 3, 64)
    (PairTest(weight=17, share=7, bound=0), PairTest(weight=2, share=1, bound=-3))
    """
    value = _check.number(function, "threshold", threshold)
    if metric == "jaccard":
        if not 0 <= value <= 1:
            raise ValueError(
                f"{function}: threshold of metric='jaccard' is a similarity in 0..1, got {value}; pass such a number"
            )
        return _fraction_test(value, length)
    if metric == "hamming" and value < 0:
        raise ValueError(
            f"{function}: threshold of metric='hamming' is a distance of at least 0, got {value}; pass such a number"
        )
    most = np.floor(value) if metric == "hamming" else np.floor((length - value) / 2)
    # Clipped, as two rows differ in 0 to `length` bits; -1 lets no pair pass.
    return PairTest(2, 1, -int(np.clip(most, -1, length)))


def _fraction_test(least: float, length: int) -> PairTest:
    """The test for the least fraction common / union of rows of this length that, as a float64, is not below `least`."""
    if least == 0 or not length:
        return PairTest(1, 0, 0)
    union = np.arange(1, length + 1, dtype=np.int64)
    common = np.ceil(least * union).astype(np.int64)
    common -= (common - 1) / union >= least
    common += common / union < least
    place = int(np.argmin(common / union))
    p, q = int(common[place]), int(union[place])
    return PairTest(p + q, p, 0)

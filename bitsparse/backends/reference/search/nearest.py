"""Nearest rows of bits and pairs of similar rows, from the matrix of all distances: the oracle of the other backends."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import FARTHEST, NOWHERE, Array, PairTest


def ones_of(words: Array) -> NDArray[np.int32]:
    """How many bits are set in each row of ``words`` (N, W)."""
    return np.array([sum(bin(int(word)).count("1") for word in row) for row in words], np.int32)


def _common(a: Array, b: Array) -> NDArray[np.int64]:
    """How many ones each row of a has in common with each row of b, (M, N)."""
    left, right = (np.unpackbits(np.ascontiguousarray(x).view(np.uint8), axis=-1).astype(np.int64) for x in (a, b))
    return left @ right.T


def _key(jaccard: bool, common: int, both: int) -> int:
    """The sort key of a row: the Hamming distance, or the Jaccard distance in multiples of 2**-32, rounded down."""
    if not jaccard:
        return both - 2 * common
    union = both - common
    if not union:
        return 0
    return min(int(Fraction(union - common, union) * 2**32), FARTHEST)


def nearest(
    queries: Array, database: Array, ones: Array, k: int, jaccard: bool
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Keys and rows (Q, k) of the rows of ``database`` (N, W) nearest to each of ``queries`` (Q, W), ascending.

    ``ones`` (N,) is the result of :func:`ones_of`; a negative number excludes its row. Rows with equal keys are sorted by row number. If
    there are fewer than `k` rows, the missing ones are -1 with key FARTHEST.
    """
    common, own = _common(queries, database), ones_of(queries)
    keys = np.full((len(queries), k), FARTHEST, np.uint32)
    rows = np.full((len(queries), k), -1, np.int64)
    for q in range(len(queries)):
        found = [(_key(jaccard, int(common[q, i]), int(own[q] + ones[i])), i) for i in range(len(ones)) if ones[i] >= 0]
        for place, (key, row) in enumerate(sorted(found)[:k]):
            keys[q, place], rows[q, place] = key, row
    return keys, rows


def distances(keys: NDArray[np.uint32], rows: Array, metric: str, length: int) -> Array:
    """Distances or inner products of the keys and rows (Q, k) that :func:`nearest` returns: int32, or float32 for "jaccard".

    A missing row has the distance ``NOWHERE[metric]``. The key of a Jaccard distance is the distance rounded down to a multiple of 2**-32.
    Fractions with denominators of at most 2**16 are further apart than that, so the key determines which of them was rounded.
    """

    def distance(key: int, row: int) -> Any:
        if row < 0:
            return NOWHERE[metric]
        if metric != "jaccard":
            return key if metric == "hamming" else length - 2 * key
        if key == FARTHEST:
            return 1
        fraction = (Fraction(2 * key + 1, 2**33) if key else Fraction(0)).limit_denominator(2**16)
        return np.float32(fraction.numerator) / np.float32(fraction.denominator)

    each = [distance(int(key), int(row)) for key, row in zip(keys.reshape(-1), rows.reshape(-1), strict=True)]
    return np.array(each, np.float32 if metric == "jaccard" else np.int32).reshape(keys.shape)


def pairs(
    a: Array, a_ones: Array, b: Array, b_ones: Array, test: PairTest, triangle: bool, most: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]] | None:
    """For each pair that passes the test: its rows of a and b, their common ones and the ones of both; sorted by a, then b.

    ``b_ones`` ascends. ``triangle`` keeps only pairs whose row of b comes after the row of a. None if more than ``most`` pairs pass.
    """
    common = _common(a, b)
    both = a_ones.astype(np.int64)[:, None] + b_ones
    passes = test.weight * common >= test.share * both + test.bound
    if triangle:
        passes &= np.arange(len(b)) > np.arange(len(a))[:, None]
    rows, columns = np.nonzero(passes)
    if most is not None and len(rows) > most:
        return None
    return rows, columns, common[rows, columns].astype(np.int32), both[rows, columns].astype(np.int32)

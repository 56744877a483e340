"""Aggregation of one-bit features in plain NumPy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import Array, Thresholds
from bitsparse.backends.reference.bits.pack import codes_to_words, words_to_codes


def count(
    indptr: Array, indices: Array, words: Array, features: int, *, bipolar: bool, kernel: str = "twice-plus"
) -> NDArray[np.int32]:
    """int32 sums ``(m, features)`` of the neighbours' bits, as 0/1 or -1/+1, computed by the method ``kernel``."""
    b = words_to_codes(words.reshape(words.shape[0], 1, words.shape[-1]), features, 1, "planes")
    sums = np.zeros((indptr.size - 1, features), np.int64)
    for row, (start, stop) in enumerate(pairwise(indptr.tolist())):
        neighbours = b[indices[start:stop]]
        plus = neighbours.sum(0)
        if not bipolar:
            sums[row] = plus
        elif kernel == "twice-plus":
            sums[row] = 2 * plus - neighbours.shape[0]
        elif kernel == "plus-minus":
            sums[row] = plus - (1 - neighbours).sum(0)
        else:
            for node in neighbours:
                sums[row] += np.where(node == 1, 1, -1)
    return sums.astype(np.int32)


def sign(
    indptr: Array, indices: Array, words: Array, features: int, thresholds: Thresholds, *, bipolar: bool
) -> NDArray[np.uint32]:
    """Words ``(m, 1, W)`` of ``(sum >= threshold) ^ flip``."""
    sums = count(indptr, indices, words, features, bipolar=bipolar).astype(np.int64)
    of_row = np.zeros(sums.shape[0], np.int64) if thresholds.class_of is None else thresholds.class_of
    ones = (sums >= thresholds.values[of_row]) ^ thresholds.flips[of_row]
    return codes_to_words(ones.astype(np.int64), 1, "planes")

"""Candidates of parts of a database brought together."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop
from bitsparse.backends.params import Array


def merged(first: tuple[Array, Array], second: tuple[Array, Array], start: int) -> tuple[Array, Array]:
    """The k best of the keys and rows (Q, k) of two parts, the second's rows counted from `start`, behind those of the first.

    Examples
    --------
    >>> merged((np.array([[1, 4]], "u4"), np.array([[7, 2]])), (np.array([[1, 9]], "u4"), np.array([[0, -1]])), 10)
    (array([[1, 1]], dtype=uint32), array([[ 7, 10]]))
    """
    space: Any = interop.namespace(first[0])
    k = first[0].shape[1]
    keys = space.concatenate((first[0], second[0]), axis=1)
    rows = space.concatenate((first[1], space.where(second[1] < 0, -1, second[1] + start)), axis=1)
    # One number to sort by: what is not there behind every key, and equal keys by their places, as both parts are in order.
    order = space.where(rows < 0, np.uint64(1 << 32), keys.astype(np.uint64))
    order = (order << np.uint64(12)) | space.arange(2 * k, dtype=np.uint64)
    places = (space.sort(order, axis=1)[:, :k] & np.uint64(4095)).astype(np.int64)
    return space.take_along_axis(keys, places, axis=1), space.take_along_axis(rows, places, axis=1)

"""Signs of rows on all devices: which signs are dropped, and mean magnitudes in one order of additions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop

#: Groups of this many magnitudes are added as a tree; the sums of groups are added one after another.
_GROUP = 128


class Drop(NamedTuple):
    """Which elements of a matrix (m, k) become 0: those whose 16 random bits are not below `limit`.

    Element (i, j) takes the random bits of index ``i * pitch + j``, where `pitch` is k rounded up to a multiple of 8.
    """

    share: float  # of the elements that are kept, a float32 above 0
    seed: int
    stream: Any  # a number; on a GPU also an array of one uint32, which the kernel reads when it runs

    @property
    def limit(self) -> float:
        """The share times 2**16, exactly."""
        return float(np.float32(self.share)) * 65536


def mean_magnitudes(values: Any) -> Any:
    """Mean magnitude of every row of a float32 array, in an order of additions that does not depend on the device.

    Groups of 128 columns, the last padded with zeros, are added as a binary tree of neighbours; their sums are added one after another.

    Examples
    --------
    >>> mean_magnitudes(np.array([[1.0, -2.0, 6.0], [0.0, 0.0, -3.0]], np.float32))
    array([3., 1.], dtype=float32)
    """
    space = interop.namespace(values)
    *batch, columns = values.shape
    if columns == 0:
        return space.zeros(tuple(batch), np.float32)
    groups = -(-columns // _GROUP)
    tree = space.zeros((*batch, groups * _GROUP), np.float32)
    tree[..., :columns] = space.abs(values)
    tree = tree.reshape(*batch, groups, _GROUP)
    while tree.shape[-1] > 1:
        tree = tree[..., 0::2] + tree[..., 1::2]
    total = tree[..., 0, 0]
    for group in range(1, groups):
        total = total + tree[..., group, 0]
    return total / np.float32(columns)

"""The flag by which kernels tell the host that they met a number that has no code."""

from __future__ import annotations

import numpy as np

from bitsparse.jit import cupy


class Flag:
    """A number on the current device that kernels set if they meet NaN, or an infinity that is to be quantised.

    Attributes
    ----------
    address : int
        The address that kernels receive.
    nbytes : int
    """

    nbytes = 4

    def __init__(self) -> None:
        self._array = cupy.zeros(1, np.int32)
        self.address: int = self._array.data.ptr

    def seen(self) -> bool:
        """Whether a kernel has set the flag since the previous call; waits for the current stream."""
        found = bool(int(self._array.get()[0]))
        if found:
            self._array.fill(0)
        return found

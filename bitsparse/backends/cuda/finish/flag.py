"""What kernels tell the host: that they met a number that has no code."""

from __future__ import annotations

import numpy as np

from bitsparse.jit import cupy


class Flag:
    """A number on the current device that kernels set where they meet NaN, or infinity that is to be quantised.

    Attributes
    ----------
    address : int
        What kernels are told.
    nbytes : int
    """

    nbytes = 4

    def __init__(self) -> None:
        self._array = cupy.zeros(1, np.int32)
        self.address: int = self._array.data.ptr

    def seen(self) -> bool:
        """Whether one did since this was asked last; waits for the current stream."""
        found = bool(int(self._array.get()[0]))
        if found:
            self._array.fill(0)
        return found

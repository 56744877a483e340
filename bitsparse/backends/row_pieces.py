"""Matrices that a backend reads a piece of rows at a time, for who keeps them in fewer bits than it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bitsparse.backends.params import Array


class RowPieces(NamedTuple):
    """A float32 matrix whose rows are made a piece at a time, by who keeps them in few bits; read once, in order.

    Attributes
    ----------
    shape : (rows, columns)
    pieces : list of slice
        The rows of each piece, together all of them.
    make : callable
        The C-contiguous array of a piece, by its number.
    """

    shape: tuple[int, int]
    pieces: list[slice]
    make: Callable[[int], Array]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what is made."""
        return np.dtype(np.float32)

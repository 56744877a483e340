"""Matrices that a backend reads in pieces of rows, for callers that store them in fewer bits than the backend reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bitsparse.backends.params import Array


class RowPieces(NamedTuple):
    """A float32 matrix that a caller with fewer bits expands in pieces of rows; the pieces are read once, in order.

    Attributes
    ----------
    shape : (rows, columns)
    pieces : list of slice
        The rows of each piece; together the pieces cover all rows.
    make : callable
        ``make(i)`` returns piece i as a C-contiguous array.
    """

    shape: tuple[int, int]
    pieces: list[slice]
    make: Callable[[int], Array]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the arrays that `make` returns."""
        return np.dtype(np.float32)

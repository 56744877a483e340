"""The reductions of a row that every backend supports; ``common/reductions.h`` has the same table for C and for kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

#: The names that callers pass.
Reduce = Literal["sum", "mean", "max", "min"]


class Reduction(NamedTuple):
    """How the terms of a row are reduced to one.

    Attributes
    ----------
    number : int
        The reduction's number in C and in kernels.
    takes : callable or None
        ``takes(term, have)`` tells where a term replaces the current value; None if terms are added.
    """

    number: int
    takes: Callable[..., Any] | None = None

    @property
    def selects(self) -> bool:
        """Whether the result is one of the terms, so that row factors may be applied to the terms first and nothing can overflow."""
        return self.takes is not None


#: The reductions by the names that callers pass, in the order in which messages list them.
REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(0),
    "mean": Reduction(1),
    "max": Reduction(2, np.greater),
    "min": Reduction(3, np.less),
}

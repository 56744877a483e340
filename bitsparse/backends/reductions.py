"""The reductions of a row, which every backend knows: ``common/reductions.h`` has the same table for C and for kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

#: What callers write.
Reduce = Literal["sum", "mean", "max", "min"]


class Reduction(NamedTuple):
    """How the terms of a row become one.

    Attributes
    ----------
    number : int
        In C and in kernels.
    takes : callable or None
        ``takes(term, have)`` says where a term takes the place of what is there; None where terms are added.
    """

    number: int
    takes: Callable[..., Any] | None = None

    @property
    def selects(self) -> bool:
        """Whether one of the terms is taken, after all factors, so that rows may be scaled before and nothing can overflow."""
        return self.takes is not None


#: By the names that callers write, in the order of messages.
REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(0),
    "mean": Reduction(1),
    "max": Reduction(2, np.greater),
    "min": Reduction(3, np.less),
}

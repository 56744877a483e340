"""Choices of precisions that were measured, and which of them are worth having."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bitsparse._records import as_dict
from bitsparse.nn.binary.variants import Setting

__all__ = ["Candidate", "pareto_set", "quickest"]

#: Times that differ by less than this share are taken for equal: so much they differ from run to run.
_NOISE = 0.03


class Candidate(NamedTuple):
    """One choice of precisions and what it was measured at.

    Attributes
    ----------
    settings : tuple of Setting
        How each layer computes.
    accuracy : float
        Share of the masked nodes that are classified rightly.
    milliseconds : float
        Median time of a call of its plan.
    nbytes : int
        Graph, weights, buffers, features and logits.
    """

    settings: tuple[Setting, ...]
    accuracy: float
    milliseconds: float
    nbytes: int

    def __str__(self) -> str:
        named = ", ".join(map(str, self.settings))
        return f"{100 * self.accuracy:6.2f} %  {self.milliseconds:9.4f} ms  {self.nbytes / 1e6:9.3f} MB  {named}"

    def record(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return as_dict(self)

    def dominates(self, other: Candidate) -> bool:
        """Whether it is as good in all three respects and better in one, where times within the noise count as equal.

        >>> a, b = Candidate((), 0.8, 1.0, 5), Candidate((), 0.8, 2.0, 5)
        >>> a.dominates(b), b.dominates(a), a.dominates(a)
        (True, False, False)
        >>> Candidate((), 0.9, 1.01, 5).dominates(a), a.dominates(Candidate((), 0.8, 1.01, 5))
        (True, False)
        """
        if self.accuracy < other.accuracy or self.nbytes > other.nbytes:
            return False
        if self.milliseconds > other.milliseconds * (1 + _NOISE):
            return False
        better = self.accuracy > other.accuracy or self.nbytes < other.nbytes
        return better or self.milliseconds * (1 + _NOISE) < other.milliseconds


def pareto_set(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those that no other one dominates, in their order.

    Examples
    --------
    >>> from bitsparse.nn.binary.tuner import Candidate, pareto_set
    >>> three = [Candidate((), 0.9, 3.0, 9), Candidate((), 0.8, 1.0, 9), Candidate((), 0.7, 2.0, 9)]
    >>> [each.accuracy for each in pareto_set(three)]
    [0.9, 0.8]
    """
    every = list(candidates)
    return [each for each in every if not any(other.dominates(each) for other in every)]


def quickest(candidates: Sequence[Candidate]) -> Candidate:
    """The most accurate one of those that are quickest but for noise, then the smallest, then the quickest."""
    least = min(each.milliseconds for each in candidates)
    near = [each for each in candidates if each.milliseconds <= least * (1 + _NOISE)]
    return min(near, key=lambda each: (-each.accuracy, each.nbytes, each.milliseconds))

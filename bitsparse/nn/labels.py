"""Labels of nodes, a mask that selects nodes, and the share of the selected nodes that a network classifies correctly."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.graph.adjacency import per_node


class Judged(NamedTuple):
    """The class of each node and a mask of the nodes that count, on the host."""

    labels: NDArray[np.int64]
    mask: NDArray[np.bool_]

    def accuracy(self, logits: Any) -> float:
        """The share of the selected nodes whose own class has the largest logit.

        >>> Judged(np.array([0, 1, 1]), np.array([True, True, False])).accuracy(np.eye(3))
        1.0
        """
        classes = interop.as_host(logits, "accuracy", "logits")[self.mask].argmax(axis=1)
        return float((classes == self.labels[self.mask]).mean())


def labels_and_mask(function: str, nodes: int, labels: Any, mask: Any, name: str, purpose: str) -> Judged:
    """Check labels and a mask, called `name`, and bring them to the host: one integer and one bool for each node.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        A length or a dtype is wrong, or no node is selected.
    """
    classes, selected = interop.as_host(labels, function, "labels"), interop.as_host(mask, function, name)
    for which, array, kinds in (("labels", classes, "iu"), (name, selected, "b")):
        per_node(function, which, array.shape, nodes, 1)
        _check.numeric(function, which, array, kinds)
    if not selected.any():
        raise ValueError(f"{function}: {name} selects no node; select {purpose}")
    return Judged(classes.astype(np.int64), selected)


def check_tolerance(function: str, tolerance: float) -> None:
    """Raise if a tolerated loss of accuracy is not a share in 0..1."""
    if not 0 <= tolerance <= 1:
        shown = _check.shown(tolerance)
        raise ValueError(f"{function}: tolerance must be a share in 0..1, got {shown}; one point is 0.01")

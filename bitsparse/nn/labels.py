"""Labels of nodes, and the nodes that a mask selects."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.errors import DTypeError, ShapeError

__all__ = ["labels_and_mask"]


def labels_and_mask(
    function: str, nodes: int, labels: Any, mask: Any, name: str, purpose: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Labels and mask on the host, one integer and one bool for each node; the mask, called `name`, selects some.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Lengths or dtypes are others, or no node is selected.
    """
    classes, selected = interop.as_host(labels, function, "labels"), interop.as_host(mask, function, name)
    for which, array, kinds, kind in (("labels", classes, "iu", "integers"), (name, selected, "b", "bool")):
        if array.shape != (nodes,):
            raise ShapeError(
                f"{function}: {which} has shape {array.shape}, but the graph has {nodes} nodes; pass one value per node"
            )
        if array.dtype.kind not in kinds:
            raise DTypeError(
                f"{function}: {which} has dtype {array.dtype}, but {kind} is needed; convert it with astype"
            )
    if not selected.any():
        raise ValueError(f"{function}: {name} selects no node; select {purpose}")
    return classes, selected

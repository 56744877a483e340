"""Any graph as a canonical CSR pattern."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays import sparse_forms
from bitsparse.arrays.sparse_forms import Pattern
from bitsparse.errors import ShapeError

__all__ = ["pattern_of", "scipy_pattern", "square_pattern"]


def pattern_of(function: str, graph: Any) -> Pattern:
    """The stored entries of a sparse array of any kind, of a dense one, or of an object with `indptr` and `indices` (square)."""
    if hasattr(graph, "indptr") and hasattr(graph, "indices") and not hasattr(graph, "shape"):
        nodes = len(graph.indptr) - 1
        made = sparse_forms.from_csr(function, graph.indptr, graph.indices, (nodes, nodes), None, index=None)
    else:
        made = sparse_forms.read(function, graph, None, index=None, binary=False, pattern=True)
    _check.on_cpu(function, "the graph", interop.device_of(made.indptr))
    return made._replace(values=None)


def square_pattern(function: str, graph: Any) -> Pattern:
    """:func:`pattern_of`, with as many rows as columns."""
    made = pattern_of(function, graph)
    if made.shape[0] != made.shape[1]:
        raise ShapeError(f"{function}: a graph has as many rows as columns, got shape {made.shape}")
    return made


def scipy_pattern(made: Pattern) -> Any:
    """The pattern as a csr_array of int8 ones."""
    from scipy import sparse

    ones: NDArray[np.int8] = np.ones(made.indices.size, np.int8)
    return sparse.csr_array((ones, made.indices, made.indptr), shape=made.shape)

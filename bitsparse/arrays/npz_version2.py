"""TCTiledCSR arrays in files of format 2, which hold the translation instead of the CSR array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends
from bitsparse.arrays.indices import index_array, rows_of

__all__ = ["TRANSLATION", "csr_of_translation"]

#: Its arrays: where the columns of each window start, the columns; where its edges start, and of each edge, sorted by window, column and
#: row, its row in the window, its column among those of the window, and its position in the CSR array.
TRANSLATION = ("cols_indptr", "cols", "edge_indptr", "edge_row", "edge_col", "perm")


def csr_of_translation(
    parts: Mapping[str, NDArray[Any]], shape: tuple[int, int], window: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The CSR pattern ``(indptr, indices)`` that was translated.

    Raises
    ------
    ValueError
        The arrays are not those of any pattern.
    """
    height = _check.integer("load_npz", "window", window, 1, 16)
    dtype = np.result_type(*(parts[name].dtype for name in ("cols_indptr", "cols", "edge_indptr", "perm")))
    starts, cols, edges, row, col, perm = (index_array("load_npz", name, parts[name]) for name in TRANSLATION)
    nnz, windows = perm.size, -(-shape[0] // height)
    lengths = (starts.size, edges.size, row.size, col.size)
    if lengths != (windows + 1, windows + 1, nnz, nnz):
        raise ValueError(f"arrays of {lengths} entries do not belong to {windows} windows with {nnz} edges")
    for name, bounds, end in (("cols_indptr", starts, cols.size), ("edge_indptr", edges, nnz)):
        if bounds[0] != 0 or bounds[-1] != end or bool((bounds[1:] < bounds[:-1]).any()):
            raise ValueError(f"{name} must start at 0, never fall and end at {end}")
    window_of = np.repeat(np.arange(windows), np.diff(edges))
    rows = window_of * height + row
    inside = (row >= 0) & (row < height) & (rows < shape[0]) & (col >= 0) & (col < np.diff(starts)[window_of])
    if not bool((inside & (perm >= 0) & (perm < nnz)).all()):
        raise ValueError("an edge lies outside of its window")
    indptr = np.zeros(shape[0] + 1, dtype)
    np.cumsum(np.bincount(rows, minlength=shape[0]), out=indptr[1:])
    indices, positions = np.full(nnz, -1, dtype), np.empty(nnz, col.dtype)
    indices[perm], positions[perm] = cols[starts[window_of] + col], col
    build = backends.family("cpu", "sparse.build")
    if not np.array_equal(rows_of(indptr)[perm], rows) or build.validate_csr(indptr, indices, shape) != "canonical":
        raise ValueError("perm contradicts the edges")
    again = build.translate(indptr, indices, shape, height)
    if not all(np.array_equal(one, other) for one, other in zip(again, (starts, cols, positions), strict=True)):
        raise ValueError("the translation is not that of its edges")
    return indptr, indices

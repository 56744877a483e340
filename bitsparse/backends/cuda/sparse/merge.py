"""Elementwise operations of two canonical CSR arrays on the GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS
from bitsparse.backends.cuda.sparse.entries import grouped
from bitsparse.backends.cuda.sparse.starts import room_for_counts, start_rows
from bitsparse.jit import cupy

_SOURCE = "sparse/merge.cu"
#: Operations and dtypes; their positions are their numbers in the kernels. The operations from ``less`` on return booleans.
OPERATIONS = ("add", "subtract", "multiply", "maximum", "minimum", "less", "greater", "not_equal")
_COMPARISONS = frozenset(OPERATIONS[5:])
_KINDS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
#: The operations that replace these for booleans.
_OF_BOOLEANS = {"add": "maximum", "subtract": "not_equal"}
Matrix = tuple[Any, Any, Any]

MergeParams = jit.struct(_SOURCE, "MergeParams")


def merge(left: Matrix, right: Matrix, name: str, dtype: Any) -> Matrix:
    """The entries of the result that are not zero, as a canonical CSR array. Waits for their number only.

    Parameters
    ----------
    left, right : tuple of CuPy arrays
        ``(indptr, indices, values)``, canonical, with the same shape and index dtype; values have the dtype `dtype`, or are None if every
        entry is 1.
    name : str
        ``add``, ``subtract``, ``multiply``, ``maximum``, ``minimum``, ``less``, ``greater`` or ``not_equal``.
    dtype : dtype
        Dtype in which values are combined; integers wrap.

    Returns
    -------
    tuple
        ``(indptr, indices, values)``; values are booleans for comparisons, else of dtype `dtype`.
    """
    dtype, index = np.dtype(dtype), left[0].dtype
    if dtype.kind == "b":
        name = _OF_BOOLEANS.get(name, name)
    rows, entries = left[0].size - 1, left[1].size + right[1].size
    params = jit.filled(MergeParams(), left=left[0], left_columns=left[1], right=right[0], right_columns=right[1])
    # Contiguous copies must live until the kernels are enqueued.
    numbers = [None if part[2] is None else cupy.ascontiguousarray(part[2]) for part in (left, right)]
    starts = room_for_counts(rows, index)
    jit.filled(params, left_values=numbers[0], right_values=numbers[1], starts=starts, rows=rows)
    params.lanes, params.operation = _lanes(entries, rows), OPERATIONS.index(name)
    _launch("count_merged", dtype, index, params)
    (total,) = start_rows(starts)
    if total > np.iinfo(index).max:
        wide = [(*(part.astype(np.int64) for part in one[:2]), one[2]) for one in (left, right)]
        return merge(wide[0], wide[1], name, dtype)
    columns, values = cupy.empty(total, index), cupy.empty(total, np.bool_ if name in _COMPARISONS else dtype)
    jit.filled(params, columns=columns, values=values)
    _launch("fill_merged", dtype, index, params)
    return starts, columns, values


def _lanes(entries: int, rows: int) -> int:
    """Threads that share a row; each takes two entries of either array per round, and a row takes one or two rounds on average."""
    return min(32, 1 << max(0, (entries // max(rows, 1) // 4).bit_length() - 1))


@cache
def _constants(dtype: Any, index: Any) -> dict[str, int]:
    name = "uint8" if dtype.kind == "b" else dtype.name
    return {"BS_KIND": _KINDS.index(name)} | jit.flags(large=index == np.int64)


def _launch(name: str, dtype: Any, index: Any, params: Any) -> None:
    if params.rows:
        blocks = grouped(params.rows, params.lanes)
        jit.kernel(_SOURCE, name, _constants(dtype, index)).run(blocks, THREADS, params)


VARIANTS = jit.variants_of(
    _SOURCE,
    "fill_merged",
    [{"BS_KIND": kind} | large for kind in range(len(_KINDS)) for large in BOTH_INDICES],
)

"""Checks of CSR patterns on the GPU, which assume nothing, and the rows of their entries."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.params import check_indices
from bitsparse.jit import cupy

#: Threads of a block, and the entries per block in kernels that distribute entries evenly.
THREADS, CHUNK = 256, 2048
#: Kernels report a place as this number minus the place, so that the maximum is the first place and zero means none.
FROM_END = 1 << 62
DAMAGED = "the arrays are damaged or belong to another shape"
#: Blocks that keep a multiprocessor busy with streaming, and the number of blocks up to which no limit applies.
_BLOCKS_EACH, _FEW_BLOCKS = 16, 2048
_BAD_START, _BAD_INDEX, _FALLS, _REPEATS = range(4)
_INT64 = np.dtype(np.int64)  # comparing with it is faster than with np.int64


CheckParams = jit.struct("sparse/check.cu", "CheckParams")


def constants(dtype: Any) -> dict[str, int]:
    """The compile-time constants of kernels for indices of this dtype."""
    return {"BS_LARGE": 1} if dtype == _INT64 else {}


def launch(source: str, name: str, dtype: Any, blocks: int, params: ctypes.Structure) -> None:
    """Enqueue a kernel with :data:`THREADS` threads per block, unless `blocks` is 0."""
    if blocks:
        jit.kernel(source, name, constants(dtype)).run(blocks, THREADS, params)


def streaming(items: int) -> int:
    """Blocks of a kernel that loops over items; for few items there is one thread per item on every chip."""
    blocks = -(-items // THREADS)
    return blocks if blocks <= _FEW_BLOCKS else min(blocks, _BLOCKS_EACH * jit.capability().multiprocessors)


def contiguous_indices(*arrays: Any) -> list[Any]:
    """The index arrays without gaps; raises ValueError unless they share one dtype."""
    check_indices(*arrays)
    return [cupy.ascontiguousarray(array) for array in arrays]


def check_length(what: str, array: Any, wanted: int) -> None:
    """Raise ValueError unless the array has `wanted` entries."""
    if array.size != wanted:
        raise ValueError(
            f"{what} has {array.size} entries, but {wanted} are needed; the array is truncated or belongs to another shape"
        )


def check_count(what: str, count: int, index: Any) -> None:
    """Raise ValueError if `count` exceeds what indices of this dtype can count."""
    if count > np.iinfo(index).max:
        raise ValueError(f"the number of {what} is {count} but must lie between 0 and {np.iinfo(index).max}")


def start_check(indptr: Any, indices: Any, shape: tuple[int, int], found: Any) -> None:
    """Enqueue ``check_csr``, which writes four counts to the beginning of `found`, a zeroed array of uint64."""
    check_length("indptr", indptr, shape[0] + 1)
    check_count("indices", indices.size, indptr.dtype)
    params = CheckParams(indptr.data.ptr, indices.data.ptr, found.data.ptr, None, *shape, indices.size)
    launch("sparse/check.cu", "check_csr", indptr.dtype, streaming(max(indices.size, shape[0] + 1)), params)


def _counts(indptr: Any, indices: Any, shape: tuple[int, int]) -> Any:
    """The counts of ``check_csr``, which are waited for."""
    found = cupy.zeros(4, np.uint64)
    start_check(indptr, indices, shape, found)
    return found.get()


def _state(what: str, found: Any, indptr: Any) -> str:
    """The state of a pattern by its counts; raises ValueError if it is not a CSR pattern."""
    if found[_BAD_START]:
        where = FROM_END - int(found[_BAD_START])
        raise ValueError(
            f"{what}: indptr must start at 0, never fall and end at the number of indices, which it breaks at entry {where}; {DAMAGED}"
        )
    if found[_BAD_INDEX]:
        row = int(np.searchsorted(indptr.get(), FROM_END - int(found[_BAD_INDEX]), side="right")) - 1
        raise ValueError(
            f"{what}: row {row} holds a column index that is negative or beyond the last column; {DAMAGED}"
        )
    return "unsorted" if found[_FALLS] else "duplicates" if found[_REPEATS] else "canonical"


def validate_csr(indptr: Any, indices: Any, shape: tuple[int, int]) -> str:
    """Check a CSR pattern about which nothing is known; see the host backend. One pass over the indices."""
    indptr, indices = contiguous_indices(indptr, indices)
    return _state("CSR", _counts(indptr, indices, shape), indptr)


def checked(what: str, indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    """Contiguous arrays of a pattern; raises ValueError unless it is canonical."""
    indptr, indices = contiguous_indices(indptr, indices)
    refuse(what, _counts(indptr, indices, shape), indptr, indices, shape)
    return indptr, indices


def refuse(what: str, counts: Any, indptr: Any, indices: Any, shape: tuple[int, int]) -> None:
    """Raise ValueError unless these are the counts of a canonical pattern."""
    if _state(what, counts, indptr) == "canonical":
        return
    host = indices.get()  # find the first bad row for the message; speed no longer matters
    rows = np.repeat(np.arange(shape[0]), np.diff(indptr.get()))
    wrong = (rows[1:] == rows[:-1]) & (host[1:] <= host[:-1])
    row = int(rows[1:][wrong][0])
    falls = bool((host[1:] < host[:-1])[(rows[1:] == row) & (rows[:-1] == row)].any())
    trouble = f"column indices of row {row} are not ascending" if falls else f"row {row} holds the same column twice"
    raise ValueError(f"{what}: {trouble}; {DAMAGED}")


def rows_of(indptr: Any, nnz: int) -> Any:
    """The row of every entry, for a valid `indptr`."""
    rows = cupy.empty(nnz, indptr.dtype)
    params = CheckParams(indptr.data.ptr, None, None, rows.data.ptr, indptr.size - 1, 0, nnz)
    launch("sparse/check.cu", "rows_of", indptr.dtype, -(-nnz // CHUNK), params)
    return rows


#: Compile-time constants for int32 and for int64 indices.
BOTH_INDICES: tuple[dict[str, int], ...] = ({}, {"BS_LARGE": 1})
VARIANTS = jit.variants_of("sparse/check.cu", "check_csr", BOTH_INDICES)

"""Canonical CSR patterns with their values: merging of repeated entries, and checks for bits; for NumPy and CuPy arrays alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse.arrays.indices import rows_of
from bitsparse.interop import as_bits

#: The bits of 1.0 in bfloat16.
_ONE = 0x3F80


@dataclass(frozen=True, slots=True)
class Pattern:
    """A canonical CSR array: columns ascend strictly in every row."""

    indptr: NDArray[Any]
    indices: NDArray[Any]
    shape: tuple[int, int]
    values: NDArray[Any] | None = None  # (nnz,) or (nnz, H); None: every entry is 1
    had_duplicates: bool = False
    row_scale: NDArray[np.float32] | None = None
    col_scale: NDArray[np.float32] | None = None
    family: interop.Family = interop.NUMPY
    blocks: tuple[NDArray[Any], NDArray[Any], NDArray[np.uint16]] | None = None  # those of FRDC, if made in passing


def _starts_of_kept(starts: NDArray[Any], kept: NDArray[Any]) -> NDArray[Any]:
    """The indptr of the entries that are kept."""
    space = interop.namespace(kept)
    before = space.zeros(kept.size + 1, starts.dtype)
    before[1:] = space.cumsum(kept, dtype=starts.dtype)
    return before[starts]


def merge_duplicates(
    starts: NDArray[Any], columns: NDArray[Any], values: NDArray[Any] | None, binary: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, bool]:
    """Merge repeated entries of sorted rows: numbers are summed, booleans and bits are or-ed.

    Integers overflow as in SciPy. Floats are added as in NumPy: 16-bit floats in float32, and pairwise from nine entries per element on.

    Returns
    -------
    indptr, indices, values
    repeated : bool
        Whether there were repeated entries.
    """
    space, rows = interop.namespace(columns), rows_of(starts)
    first = space.ones(columns.size, np.bool_)
    first[1:] = (columns[1:] != columns[:-1]) | (rows[1:] != rows[:-1])
    if bool(first.all()):
        return starts, columns, values, False
    at = space.flatnonzero(first)
    if values is not None:
        if space is not np:
            values = _reduced_on_gpu(values, at, binary)
        elif binary or values.dtype.kind == "b":
            values = np.logical_or.reduceat(values != 0, at)
        elif values.dtype.itemsize == 2 and values.dtype.kind not in "iu":
            values = np.add.reduceat(values.astype(np.float32), at).astype(values.dtype)
        else:
            values = np.add.reduceat(values, at, dtype=values.dtype)
    return _starts_of_kept(starts, first), columns[at], values, True


def _reduced_on_gpu(values: Any, at: Any, binary: bool) -> Any:
    backend = backends.family(interop.device_of(values), "sparse.build")
    if binary or values.dtype.kind == "b":
        return backend.sum_runs(nonzeros(values), at) != 0
    return backend.sum_runs(values, at)


# -- bits -------------------------------------------------------------------------------------------------------------
def nonzeros(values: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask of the values that are not zero."""
    if values.dtype.name == "bfloat16" and interop.namespace(values) is not np:
        values = as_bits(values) & 0x7FFF
    return np.not_equal(values, 0)


def occupied(values: NDArray[Any]) -> Any:
    """A mask of the entries that have a value other than zero."""
    found = nonzeros(values)
    return found if found.ndim == 1 else found.any(axis=1)


def zeros_and_ones(values: NDArray[Any]) -> bool:
    """Whether there is one value per entry and each is 0 or 1."""
    if values.ndim != 1 or values.dtype.kind == "b":
        return values.ndim == 1
    if values.dtype.name == "bfloat16" and interop.namespace(values) is not np:
        bits = as_bits(values)
        return bool((((bits & 0x7FFF) == 0) | (bits == _ONE)).all())
    return bool(((values == 0) | (values == 1)).all())


def all_set(data: Any, nnz: int) -> bool:
    """Whether there are no values, or booleans that are all true."""
    if data is None:
        return True
    return isinstance(data, np.ndarray) and data.dtype.kind == "b" and data.shape == (nnz,) and bool(data.all())


def not_bits(function: str) -> ValueError:
    """The error for values other than 0 and 1."""
    return ValueError(
        f"{function}: bits hold only 0 and 1, but the data has other values; keep them in a TCTiledCSR, or pass pattern=True "
        f"to keep only which elements are not zero"
    )


def bits_only(function: str, made: Pattern, pattern: bool) -> Pattern:
    """The entries that are not zero, without values."""
    if made.values is None:
        return made
    if not pattern and not zeros_and_ones(made.values):
        raise not_bits(function)
    kept = occupied(made.values)
    made = replace(made, values=None)
    return made if bool(kept.all()) else kept_entries(made, kept)


def entries_of(made: Pattern) -> tuple[Any, Any]:
    """Row pointers and columns in one common dtype, as the functions on entries require."""
    wide = np.result_type(made.indptr.dtype, made.indices.dtype)
    return made.indptr.astype(wide, copy=False), made.indices.astype(wide, copy=False)


def kept_entries(made: Pattern, kept: Any) -> Pattern:
    """The entries that a mask keeps.

    Examples
    --------
    >>> kept_entries(Pattern(np.array([0, 2, 3]), np.array([0, 4, 1]), (2, 5)), np.array([False, True, True])).indices
    array([4, 1])
    """
    keep = backends.family(interop.device_of(kept), "sparse.entries").keep
    indptr, indices, values = keep(*entries_of(made), made.values, kept)
    return replace(made, indptr=indptr, indices=indices, values=values)

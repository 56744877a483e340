"""How a sparse container comes to be: one function per form of the constructor, all ending in one canonical CSR pattern."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.indices import canonical_order, index_array, index_dtype, matrix_shape, rows_of
from bitsparse.errors import DTypeError, ShapeError

__all__ = ["Pattern", "bits_only", "edge_values", "from_csr", "from_edges", "read", "scale_vector"]

#: Elements of a dense array that are looked at together.
_CHUNK = 1 << 22


class Pattern(NamedTuple):
    """A canonical CSR array: columns ascend strictly in every row."""

    indptr: NDArray[Any]
    indices: NDArray[Any]
    shape: tuple[int, int]
    values: NDArray[Any] | None = None  # (nnz,) or (nnz, H); None: every entry is 1
    had_duplicates: bool = False
    row_scale: NDArray[np.float32] | None = None
    col_scale: NDArray[np.float32] | None = None
    family: interop.Family = interop.NUMPY


# -- the forms --------------------------------------------------------------------------------------------------------
def read(function: str, arg: Any, shape: Any, *, index: Any, binary: bool, pattern: bool) -> Pattern:
    """Recognise the form of ``arg`` as scipy.sparse does.

    Parameters
    ----------
    function : str
        Whose argument it is, for messages.
    arg, shape
        The data, and the shape of forms that do not carry one.
    index : dtype, optional
        Index dtype asked for.
    binary : bool
        The result holds bits: repeated entries are or-ed instead of summed, zeros are dropped.
    pattern : bool
        Values other than 0 and 1 may be dropped.
    """
    if hasattr(arg, "csr_arrays"):
        return _of_container(function, arg, shape, index, pattern)
    if isinstance(arg, BitTensor):
        return _of_bits(function, arg, shape, index)
    if hasattr(arg, "nnz") and hasattr(arg, "tocsr"):
        _same_shape(function, shape, tuple(arg.shape))
        return _of_scipy(function, arg, index, binary, pattern)
    if isinstance(arg, tuple) and len(arg) == 2 and all(isinstance(size, (int, np.integer)) for size in arg):
        _same_shape(function, shape, arg)
        sizes = matrix_shape(function, arg)
        dtype = index_dtype(function, sizes, 0, index)
        return Pattern(np.zeros(sizes[0] + 1, dtype), np.empty(0, dtype), sizes)
    if isinstance(arg, tuple) and len(arg) == 2 and isinstance(arg[1], (tuple, list)) and len(arg[1]) == 2:
        return _of_coordinates(function, arg[0], arg[1][0], arg[1][1], shape, index, binary, pattern)
    if isinstance(arg, tuple) and len(arg) == 3:
        if shape is None:
            raise ShapeError(
                f"{function}: (data, indices, indptr) does not tell the number of columns; pass shape=(m, n)"
            )
        return from_csr(function, arg[2], arg[1], shape, arg[0], index=index, binary=binary, pattern=pattern)
    return _of_dense(function, arg, shape, index, pattern)


def _same_shape(function: str, asked: Any, have: tuple[int, ...]) -> None:
    if asked is not None and tuple(asked) != tuple(have):
        raise ShapeError(f"{function}: shape {tuple(asked)} was asked for, but the data has shape {tuple(have)}")


def _of_container(function: str, arg: Any, shape: Any, index: Any, pattern: bool) -> Pattern:
    _same_shape(function, shape, arg.shape)
    indptr, indices, values = arg.csr_arrays()
    dtype = index_dtype(function, arg.shape, indices.size, index)
    return Pattern(
        indptr.astype(dtype, copy=False),
        indices.astype(dtype, copy=False),
        arg.shape,
        None if pattern else values,
        arg.had_duplicates,
        arg.row_scale,
        arg.col_scale,
        arg._family,
    )


def _of_bits(function: str, arg: BitTensor, shape: Any, index: Any) -> Pattern:
    _check.on_cpu(function, "the BitTensor", arg.device)
    _same_shape(function, shape, arg.shape)
    sizes = matrix_shape(function, arg.shape)
    if arg.scale is not None or arg.offset is not None:
        raise ValueError(
            f"{function}: the BitTensor has a scale or an offset, which the stored integers leave out; pass "
            f"x.with_affine() for the integers, or a sparse array of x.dequantize()"
        )
    if arg.bits > 1 or arg.encoding != "unsigned":
        return _of_scipy(function, arg.tocsr(), index, False, False)._replace(family=arg._family)
    plain = arg.repack(axis=-1, layout="planes")
    dtype = index_dtype(function, sizes, plain.nnz, index)
    indptr, indices = backends.family("cpu", "build").words_to_csr(plain.words, sizes, dtype)
    return Pattern(indptr, indices, sizes, family=arg._family)


def _of_scipy(function: str, arg: Any, index: Any, binary: bool, pattern: bool) -> Pattern:
    if len(arg.shape) != 2:
        raise ShapeError(
            f"{function}: a sparse array of shape {arg.shape} has {len(arg.shape)} dimensions, but 2 are needed"
        )
    if getattr(arg, "format", None) == "coo":
        return _of_coordinates(function, arg.data, arg.row, arg.col, arg.shape, index, binary, pattern)
    csr = arg.tocsr()
    return from_csr(function, csr.indptr, csr.indices, arg.shape, csr.data, index=index, binary=binary, pattern=pattern)


def _of_dense(function: str, arg: Any, shape: Any, index: Any, pattern: bool) -> Pattern:
    array, family = interop.as_numpy(arg, function, "the dense array")
    _check.numeric(function, "the dense array", array)
    if array.ndim != 2:
        raise ShapeError(
            f"{function}: the dense array has shape {array.shape}, but 2 dimensions are needed; reshape it"
        )
    _same_shape(function, shape, array.shape)
    sizes = matrix_shape(function, array.shape)
    step = max(1, _CHUNK // max(sizes[1], 1))
    counts = np.zeros(sizes[0] + 1, np.int64)
    for start in range(0, sizes[0], step):
        counts[start + 1 : start + 1 + step] = np.count_nonzero(array[start : start + step] != 0, axis=1)
    indptr = np.cumsum(counts)
    nnz = int(indptr[-1])
    dtype = index_dtype(function, sizes, nnz, index)
    indices = np.empty(nnz, dtype)
    binary = pattern or array.dtype.kind == "b"
    values = None if binary else np.empty(nnz, array.dtype)
    for start in range(0, sizes[0], step):
        part = array[start : start + step]
        rows, cols = np.nonzero(part)
        inside = slice(int(indptr[start]), int(indptr[start]) + cols.size)
        indices[inside] = cols
        if values is not None:
            values[inside] = part[rows, cols]
    return Pattern(indptr.astype(dtype), indices, sizes, values, family=family)


# -- coordinates and edge lists ---------------------------------------------------------------------------------------
def _of_coordinates(
    function: str, data: Any, rows: Any, cols: Any, shape: Any, index: Any, binary: bool, pattern: bool
) -> Pattern:
    from scipy import sparse

    row, col = index_array(function, "row", rows), index_array(function, "col", cols)
    if row.size != col.size:
        raise ShapeError(f"{function}: there are {row.size} row indices but {col.size} column indices")
    lowest = min(int(row.min()), int(col.min())) if row.size else 0
    if lowest < 0:
        raise ValueError(f"{function}: an index is negative ({lowest}); count rows and columns from 0")
    reach = (int(row.max()) + 1, int(col.max()) + 1) if row.size else (0, 0)
    sizes = matrix_shape(function, reach if shape is None else shape)
    if reach[0] > sizes[0] or reach[1] > sizes[1]:
        raise ShapeError(
            f"{function}: indices reach row {reach[0] - 1} and column {reach[1] - 1}, outside of shape {sizes}"
        )
    dtype = index_dtype(function, sizes, row.size, index)
    values, family = edge_values(function, data, row.size)
    if values is None or values.dtype.kind == "b" or (binary and _zeros_and_ones(values)):
        # SciPy adds booleans by or-ing them.
        ones = np.ones(row.size, np.bool_) if values is None else values.astype(np.bool_, copy=False)
        csr = sparse.coo_array((ones, (row, col)), shape=sizes).tocsr()
        whole = None if values is None or bool(csr.data.all()) else csr.data
        made = Pattern(csr.indptr.astype(dtype, copy=False), csr.indices.astype(dtype, copy=False), sizes, whole)
        made = made._replace(had_duplicates=csr.nnz < row.size, family=family)
        return bits_only(function, made, pattern) if binary else made
    # Sorted by row only: numbering the entries keeps every dtype and shape of values.
    order = np.argsort(row, kind="stable")
    indptr = np.zeros(sizes[0] + 1, dtype)
    np.cumsum(np.bincount(row, minlength=sizes[0]), out=indptr[1:])
    made = from_csr(function, indptr, col[order], sizes, values[order], index=index, binary=binary, pattern=pattern)
    return made._replace(family=family)


def from_edges(function: str, rows: Any, cols: Any, shape: Any, values: Any, symmetric: bool, index: Any) -> Pattern:
    """An edge list; without a shape, as many nodes as the largest index tells."""
    row, col = index_array(function, "rows", rows), index_array(function, "cols", cols)
    if row.size != col.size:
        raise ShapeError(f"{function}: there are {row.size} rows but {col.size} cols; pass one of each for every edge")
    if shape is None:
        nodes = max(int(row.max()), int(col.max())) + 1 if row.size else 0
        shape = (max(nodes, 0), max(nodes, 0))
    elif isinstance(shape, (int, np.integer)):
        shape = (int(shape), int(shape))
    if symmetric:
        sizes = matrix_shape(function, shape)
        if sizes[0] != sizes[1]:
            raise ShapeError(f"{function}: symmetric=True needs as many rows as columns, got shape {sizes}")
        row, col = np.concatenate([row, col]), np.concatenate([col, row])
        values = None if values is None else np.concatenate([interop.as_numpy(values, function, "values")[0]] * 2)
    return _of_coordinates(function, values, row, col, shape, index, False, False)


# -- CSR --------------------------------------------------------------------------------------------------------------
def from_csr(
    function: str,
    indptr: Any,
    indices: Any,
    shape: Any,
    data: Any,
    *,
    index: Any,
    binary: bool = False,
    pattern: bool = False,
) -> Pattern:
    """Any CSR array, checked, sorted, and with repeated entries summed as SciPy does (or-ed for bits)."""
    sizes = matrix_shape(function, shape)
    starts, columns = index_array(function, "indptr", indptr), index_array(function, "indices", indices)
    dtype = index_dtype(function, sizes, columns.size, index)
    if starts.size and not 0 <= int(starts.min()) <= int(starts.max()) <= columns.size:
        raise ValueError(
            f"{function}: indptr reaches {int(starts.min())}..{int(starts.max())}, but there are {columns.size} indices; "
            f"the arrays are damaged or truncated"
        )
    if columns.dtype != dtype and columns.size and not 0 <= int(columns.min()) <= int(columns.max()) < sizes[1]:
        raise ValueError(
            f"{function}: column indices reach {int(columns.min())}..{int(columns.max())}, outside of shape {sizes}"
        )
    starts, columns = starts.astype(dtype, copy=False), columns.astype(dtype, copy=False)
    try:
        state = backends.family("cpu", "build").validate_csr(starts, columns, sizes)
    except ValueError as error:
        raise ValueError(f"{function}: {error}") from None
    values, family = edge_values(function, data, columns.size)
    if binary and values is not None and not pattern and not _zeros_and_ones(values):
        raise _not_bits(function)
    repeated = False
    if state != "canonical":
        if state == "unsorted":
            columns, order = canonical_order(starts, columns, sizes)
            values = None if values is None else values[order]
        starts, columns, values, repeated = _merge_duplicates(starts, columns, values, binary)
    if values is not None and values.dtype.kind == "b" and bool(values.all()):
        values = None
    made = Pattern(starts, columns, sizes, values, repeated, family=family)
    return bits_only(function, made, pattern) if binary else made


def edge_values(function: str, data: Any, nnz: int) -> tuple[NDArray[Any] | None, interop.Family]:
    """Values of shape (nnz,) or (nnz, H) and their family, or None for a pattern."""
    if data is None:
        return None, interop.NUMPY
    values, family = interop.as_numpy(data, function, "data")
    _check.numeric(function, "data", values)
    if values.ndim not in (1, 2) or values.shape[0] != nnz:
        raise ShapeError(f"{function}: data has shape {values.shape}, but {nnz} entries take {(nnz,)} or {(nnz, 'H')}")
    return values, family


def _merge_duplicates(
    starts: NDArray[Any], columns: NDArray[Any], values: NDArray[Any] | None, binary: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, bool]:
    rows = rows_of(starts)
    first = np.ones(columns.size, np.bool_)
    first[1:] = (columns[1:] != columns[:-1]) | (rows[1:] != rows[:-1])
    if bool(first.all()):
        return starts, columns, values, False
    at = np.flatnonzero(first)
    if values is not None:
        if binary or values.dtype.kind == "b":
            values = np.logical_or.reduceat(values != 0, at)
        elif values.dtype.itemsize == 2 and values.dtype.kind not in "iu":
            values = np.add.reduceat(values.astype(np.float32), at).astype(values.dtype)
        else:
            values = np.add.reduceat(values, at, dtype=values.dtype)
    kept = np.zeros(starts.size, np.int64)
    np.cumsum(np.bincount(rows[at], minlength=starts.size - 1), out=kept[1:])
    return kept.astype(starts.dtype), columns[at], values, True


# -- bits -------------------------------------------------------------------------------------------------------------
def _zeros_and_ones(values: NDArray[Any]) -> bool:
    return values.ndim == 1 and (values.dtype.kind == "b" or bool(((values == 0) | (values == 1)).all()))


def _not_bits(function: str) -> ValueError:
    return ValueError(
        f"{function}: bits hold only 0 and 1, but the data has other values; keep them in a TCTiledCSR, or pass pattern=True "
        f"to keep only which elements are not zero"
    )


def bits_only(function: str, made: Pattern, pattern: bool) -> Pattern:
    """The entries that are not zero, without values."""
    if made.values is None:
        return made
    if not pattern and not _zeros_and_ones(made.values):
        raise _not_bits(function)
    kept = made.values != 0 if made.values.ndim == 1 else (made.values != 0).any(axis=1)
    if bool(kept.all()):
        return made._replace(values=None)
    counts = np.zeros(made.indptr.size, np.int64)
    np.cumsum(np.bincount(rows_of(made.indptr)[kept], minlength=made.shape[0]), out=counts[1:])
    return made._replace(indptr=counts.astype(made.indptr.dtype), indices=made.indices[kept], values=None)


def scale_vector(function: str, name: str, value: Any, length: int) -> NDArray[np.float32] | None:
    """A finite float32 vector with one scale per row or column, or None."""
    if value is None:
        return None
    array = interop.as_host(value, function, name)
    _check.numeric(function, name, array)
    if array.shape != (length,):
        raise ShapeError(
            f"{function}: {name} has shape {array.shape}, but there must be one scale for each of {length}"
        )
    _check.finite(function, name, bool(np.isfinite(array.astype(np.float64)).all()))
    if array.dtype == np.float64 and array.size and float(np.abs(array).max()) > float(np.finfo(np.float32).max):
        raise DTypeError(f"{function}: {name} reaches {float(np.abs(array).max()):.3g}, beyond float32; scale it down")
    return np.ascontiguousarray(array, dtype=np.float32)

"""Index arrays: the choice of their dtype, and checks of indices that come from outside."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.errors import DTypeError, ShapeError

#: Sizes and counts below this fit int32 indices (tests lower it).
INT32_LIMIT = 1 << 31
#: Largest size: beyond it, an index would leave no spare bits in the 64-bit words of the compiled part.
_LARGEST = 1 << 58


def matrix_shape(function: str, shape: Any) -> tuple[int, int]:
    """A shape of exactly two sizes."""
    sizes = _check.shape(function, shape)
    if len(sizes) != 2:
        raise ShapeError(f"{function}: sparse arrays have 2 dimensions, got shape {sizes}")
    if max(sizes) > _LARGEST:
        raise ShapeError(f"{function}: shape {sizes} is beyond the largest size, {_LARGEST}")
    return sizes[0], sizes[1]


def index_dtype(function: str, shape: tuple[int, int], nnz: int, asked: Any = None) -> np.dtype[Any]:
    """int32 if it holds every size and count, else int64; a caller may ask for int64, or for int32 if that fits."""
    largest = max(*shape, nnz)
    needed = np.dtype(np.int32 if largest < INT32_LIMIT else np.int64)
    if asked is None:
        return needed
    wanted = _check.dtype(function, asked, name="index_dtype")
    if wanted not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise DTypeError(f"{function}: index_dtype must be int32 or int64, got {wanted}")
    if wanted.itemsize < needed.itemsize:
        raise ValueError(
            f"{function}: index_dtype={wanted} cannot count {largest} of shape {shape} with {nnz} entries; "
            f"pass index_dtype='int64' or None"
        )
    return wanted


def index_array(function: str, name: str, value: Any) -> NDArray[Any]:
    """A one-dimensional integer array as int32 or int64, without a copy if it has such a dtype already."""
    array: NDArray[Any]
    array, _ = interop.as_array(value, function, name)
    if array.ndim != 1:
        raise ShapeError(f"{function}: {name} must have one dimension, got shape {array.shape}")
    if array.dtype.kind not in "iu" and array.size:
        raise DTypeError(
            f"{function}: {name} has dtype {array.dtype}, but indices are integers; convert it with astype"
        )
    if array.dtype in (np.dtype(np.int32), np.dtype(np.int64)):
        return array
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{function}: {name} reaches {int(array.max())}, beyond any size; the array is damaged")
    return array.astype(np.int32 if array.dtype.itemsize < 4 else np.int64)


def index_arrays(function: str, indptr: Any, indices: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both arrays after :func:`index_array`, in the wider of their dtypes."""
    starts, columns = index_array(function, "indptr", indptr), index_array(function, "indices", indices)
    wide = np.result_type(starts.dtype, columns.dtype)
    return starts.astype(wide, copy=False), columns.astype(wide, copy=False)


def rows_of(indptr: NDArray[Any]) -> NDArray[Any]:
    """The row of every entry.

    >>> rows_of(np.array([0, 2, 2, 3])).tolist()
    [0, 0, 2]
    """
    if (device := interop.device_of(indptr)) != "cpu":
        return backends.family(device, "sparse.build").rows_of(indptr, int(indptr[-1]))
    return np.repeat(np.arange(indptr.size - 1, dtype=indptr.dtype), np.diff(indptr))


def row_range(indptr: NDArray[Any], start: int, stop: int) -> tuple[NDArray[Any], int, int]:
    """The indptr of rows ``start..stop`` on their own, and the range of their entries; on a GPU with one transfer to the host.

    >>> row_range(np.array([0, 2, 2, 3]), 1, 3)
    (array([0, 0, 1]), 2, 3)
    """
    if (device := interop.device_of(indptr)) != "cpu":
        return backends.family(device, "sparse.entries").row_range(indptr, start, stop)
    starts = indptr[start : stop + 1]
    first, last = (int(end) for end in (starts[0], starts[-1])) if starts.size else (0, 0)
    return starts - first, first, last


def devices_of(*arrays: Any) -> list[str]:
    """The devices of the arrays that are not None."""
    return [interop.device_of(array) for array in arrays if array is not None]


def gather(values: NDArray[Any], order: NDArray[Any]) -> NDArray[Any]:
    """``values[order]``, along the first axis.

    >>> gather(np.array([5, 6, 7]), np.array([2, 0], dtype=np.int32)).tolist()
    [7, 5]
    """
    return backends.family(interop.device_of(values), "sparse.entries").gather(values, order)


def canonical_order(
    indptr: NDArray[Any], indices: NDArray[Any], shape: tuple[int, int]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Column indices sorted within each row, and the old position of each; repeated columns keep their order."""
    if (device := interop.device_of(indptr)) != "cpu":
        columns, moved, _ = backends.family(device, "sparse.build").canonical_csr(indptr, indices, shape)
        return columns, moved
    if shape[1] > 8 * indices.size:  # transposing, as below, needs memory for every column
        order = np.lexsort((indices, rows_of(indptr)))
        return indices[order], order
    from scipy import sparse

    # Transposing twice is two stable counting sorts, linear in the entries.
    numbered = sparse.csr_array((np.arange(indices.size, dtype=indices.dtype), indices, indptr), shape=shape)
    there_and_back = numbered.tocsc().tocsr()
    return there_and_back.indices.astype(indices.dtype, copy=False), there_and_back.data


def without_spare(matrix: Any) -> Any:
    """A SciPy or CuPy matrix whose arrays end at its last entry; SciPy allows spare room after it.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> a = sp.csr_array(([1, 2], [0, 1], [0, 1, 2]), shape=(2, 2))
    >>> a.indptr = np.array([0, 1, 1])
    >>> without_spare(a).indices.tolist()
    [0]
    """
    if getattr(matrix, "format", None) not in ("csr", "csc") or not matrix.indptr.size:
        return matrix
    nnz = int(matrix.indptr[-1])
    if not 0 <= nnz < matrix.indices.size or nnz > matrix.data.size:
        return matrix
    return type(matrix)((matrix.data[:nnz], matrix.indices[:nnz], matrix.indptr), shape=matrix.shape)


def csr_of(function: str, matrix: Any) -> Any:
    """A SciPy or CuPy matrix in CSR format. Its arrays are checked first, because SciPy may crash when it converts damaged ones.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> csr_of("example", sp.csc_array([[0, 1], [2, 0]])).indices.tolist()
    [1, 0]
    """
    if interop.namespace(getattr(matrix, "data", None)) is not np:
        return matrix.tocsr()
    if len(matrix.shape) == 1:
        matrix = matrix.reshape(1, -1)
    kind = getattr(matrix, "format", None)
    if kind == "coo":
        for name, index, size in (("row", matrix.row, matrix.shape[0]), ("column", matrix.col, matrix.shape[1])):
            if index.size and not 0 <= int(index.min()) <= int(index.max()) < size:
                raise ValueError(
                    f"{function}: {name}s of a coo_array of shape {matrix.shape} reach {int(index.min())}..{int(index.max())}; "
                    f"the arrays are damaged or belong to another shape; rebuild it with theirs"
                )
    elif kind in ("csc", "bsr"):
        _refuse_damaged(function, matrix, kind)
    csr = without_spare(matrix).tocsr()
    if kind not in ("coo", "csc", "bsr"):  # these were checked before the conversion
        _refuse_damaged(function, csr, "csr")
    return csr


def _refuse_damaged(function: str, matrix: Any, kind: str) -> None:
    """Raise unless the arrays of a compressed matrix in host memory fit its shape."""
    starts, index = index_arrays(function, matrix.indptr, matrix.indices)
    block = matrix.blocksize if kind == "bsr" else (1, 1)
    rows, cols = (size // step for size, step in zip(matrix.shape, block, strict=True))
    nnz = int(starts[-1]) if starts.size else 0
    try:
        backends.family("cpu", "sparse.build").validate_csr(
            starts,
            index[: max(nnz, 0)],  # SciPy allows spare room after the entries
            (cols, rows) if kind == "csc" else (rows, cols),
        )
    except ValueError as error:
        raise ValueError(f"{function}: a {kind}_array of shape {matrix.shape} is damaged: {error}") from None
    if len(matrix.data) < nnz:
        raise ShapeError(
            f"{function}: a {kind}_array has {nnz} entries but data of shape {matrix.data.shape}; rebuild it"
        )


def outside(indptr: Any, indices: Any, columns: int) -> str | None:
    """Text about the first column index that is out of range, or None if all are valid; `indptr` may be damaged too.

    Examples
    --------
    >>> outside(np.array([0, 1, 3]), np.array([0, 1, 7]), 5)
    'row 1 holds the column 7, but there are 5 columns'
    """
    space: Any = interop.namespace(indices)
    found = space.flatnonzero((indices < 0) | (indices >= columns))
    if not found.size:
        return None
    at = int(found[0])
    row = int(space.count_nonzero(indptr[1:] <= at))
    return f"row {row} holds the column {int(indices[at])}, but there are {columns} columns"

"""``A[key]``: rows, columns, elements and masks, with the results of :class:`scipy.sparse.csr_array`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import backends, interop
from bitsparse.arrays import sparse_convert
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.indices import csr_of, gather, index_dtype, row_range, rows_of
from bitsparse.arrays.inside import family_of, row_blocks, scales_of, values_and_scales, with_fields
from bitsparse.arrays.manners.plain import entries, fitted, matrix, on_cpu, wide
from bitsparse.arrays.sparse_merge import Pattern, entries_of
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import as_bits

if TYPE_CHECKING:
    from bitsparse.arrays.sparse_base import SparseArray

_WHERE = "A[...]"


def getitem(x: SparseArray, key: Any) -> Any:
    """Rows, columns and elements, as in :class:`scipy.sparse.csr_array`.

    ``A[2:5]``, ``A[:, cols]``, ``A[mask]`` and ``A[rows][:, cols]`` are arrays of this type with the scales of these rows and columns
    (whole block rows of an FRDC are views). ``A[i, j]`` and ``A[rows, cols]`` are values; two-dimensional index arrays give a sparse array
    of their shape. ``A[i]`` and ``A[:, j]`` are SciPy's one-dimensional sparse arrays, and are refused on a GPU.

    Raises
    ------
    IndexError
        An index is out of bounds or of an unsupported kind.

    Examples
    --------
    >>> a = bs.TCTiledCSR(np.array([[0, 2, 1], [0, 0, 0], [3, 0, 0]]))
    >>> a[::2, [0, 2]].toarray(), int(a[0, 1]), a[[0, 2], [1, 0]]
    (array([[0, 1],
           [3, 0]]), 2, array([2, 3]))
    """
    if (rows := _named_on_gpu(x, key)) is not None:
        return _rows_on_gpu(x, rows)
    row, col = _two_keys(x, key)
    flat = [part for part in (row, col) if isinstance(part, int)]
    listed = [part for part in (row, col) if not isinstance(part, (int, slice))]
    if len(flat) == 2 or len(listed) == 2 or (flat and listed and listed[0].ndim == 2):
        return _elements(x, row, col)
    if any(part.ndim == 2 for part in listed):
        raise IndexError(f"{_WHERE}: an index array of 2 dimensions needs another beside it, as in A[rows, cols]")
    if flat:
        on_cpu(x, _WHERE, "its result would have one dimension; keep two with a slice, as in A[i:i + 1]")
    picked = _picked(x, *(slice(part, part + 1) if isinstance(part, int) else part for part in (row, col)))
    return _line(picked, 0 if isinstance(row, int) else 1) if flat else picked


def _line(x: SparseArray, axis: int) -> Any:
    """A single row or column as a one-dimensional sparse array of SciPy."""
    from scipy import sparse

    made = sparse_convert.scaled(x, _WHERE)
    places = made.indices.copy() if axis == 0 else rows_of(made.indptr)  # the indices of a row may be a view
    return sparse.coo_array((made.values, (places,)), shape=(x.shape[1 - axis],))


# -- keys -------------------------------------------------------------------------------------------------------------
def _two_keys(x: SparseArray, key: Any) -> tuple[Any, Any]:
    """A checked key for rows and one for columns: an int, a slice or an int64 array."""
    if getattr(key, "ndim", 0) == 2 and not isinstance(key, tuple) and getattr(key, "dtype", None) == np.bool_:
        return _mask(x, key)
    keys = list(key) if isinstance(key, tuple) else [key]
    dots = [at for at, one in enumerate(keys) if one is Ellipsis]
    if len(dots) > 1:
        raise IndexError(f"{_WHERE}: an index may hold one '...', got {len(dots)}")
    at = dots[0] if dots else len(keys)
    keys[at : at + len(dots)] = [slice(None)] * (2 - len(keys) + len(dots))
    if len(keys) != 2:
        raise IndexError(f"{_WHERE}: {len(keys)} indices for 2 dimensions")
    row, col = (_one_key(x, one, axis) for axis, one in enumerate(keys))
    return row, col


def _mask(x: SparseArray, mask: Any) -> tuple[Any, Any]:
    if tuple(mask.shape) != x.shape:
        raise IndexError(f"{_WHERE}: a mask of shape {tuple(mask.shape)} does not fit an array of shape {x.shape}")
    if hasattr(mask, "nnz"):
        known: Any = mask if isinstance(mask, BitArray) else csr_of(_WHERE, mask)
        rows, cols = known.nonzero()
    else:
        plain, _ = interop.as_array(mask, _WHERE, "the mask")
        rows, cols = interop.namespace(plain).nonzero(plain)
    return tuple(interop.move(part, x.device).astype(np.int64) for part in (rows, cols))


def _one_key(x: SparseArray, key: Any, axis: int) -> Any:
    size = x.shape[axis]
    if isinstance(key, slice):
        return key
    if isinstance(key, (int, np.integer)) and not isinstance(key, (bool, np.bool_)):
        if not -size <= key < size:
            raise IndexError(f"{_WHERE}: index {key} is out of bounds for axis {axis} with size {size}")
        return int(key) % size
    if key is None or isinstance(key, (bool, np.bool_, float, str)):
        raise IndexError(
            f"{_WHERE}: an axis is indexed by integers, slices, index arrays or masks, got {type(key).__name__}"
        )
    found, _ = interop.as_array(key, _WHERE, "the index")
    found = interop.move(found, x.device)
    if found.ndim == 0 and found.dtype.kind in "iu":
        return _one_key(x, int(found), axis)
    if found.ndim not in (1, 2) or (found.dtype.kind not in "biu" and found.size):
        raise DTypeError(f"{_WHERE}: an index array holds integers or booleans, got {found.ndim}-D {found.dtype}")
    if found.dtype.kind == "b":
        if found.shape != (size,):
            raise IndexError(f"{_WHERE}: a mask of shape {found.shape} does not fit axis {axis} with size {size}")
        return interop.namespace(found).flatnonzero(found)
    low, high = _extent(found) if found.size else (0, 0)
    if found.size and not (-size <= low and high < size):
        raise _beyond(found, axis, size)
    found = found.astype(np.int64)  # after the check of bounds, because uint64 may be beyond int64
    return found if low >= 0 else found + (found < 0) * size


def _extent(found: Any) -> tuple[int, int]:
    """The smallest and the largest number; on a GPU with one transfer to the host."""
    if (space := interop.namespace(found)) is np:
        return int(found.min()), int(found.max())
    low, high = space.stack((found.min(), found.max())).get().tolist()
    return low, high


def _beyond(found: Any, axis: int, size: int) -> IndexError:
    low, high = _extent(found)
    return IndexError(f"{_WHERE}: indices reach {low}..{high}, but axis {axis} has size {size}")


# -- rows and columns -------------------------------------------------------------------------------------------------
def _named_on_gpu(x: SparseArray, key: Any) -> Any:
    """The key if it lists rows of an array on a GPU, which are checked while they are counted; None for any other key."""
    if x.device == "cpu" or getattr(key, "ndim", 0) != 1 or hasattr(key, "nnz"):
        return None
    found, _ = interop.as_array(key, _WHERE, "the index")
    fits = found.dtype.kind in "iu" and found.dtype != np.uint64
    return interop.move(found, x.device).astype(np.int64, copy=False) if fits else None


def _rows_on_gpu(x: SparseArray, rows: Any) -> SparseArray:
    made = sparse_convert.stored(x)
    picked = backends.family(x.device, "sparse.entries").pick_rows(*entries_of(made), made.values, rows)
    if picked is None:
        raise _beyond(rows, 0, x.shape[0])
    shape, row_scale = (int(rows.size), x.shape[1]), scales_of(x)[0]
    fields = {} if row_scale is None else {"row_scale": row_scale[rows]}
    indptr, indices, values = picked
    if x.holds_bits or index_dtype(_WHERE, shape, int(indices.size), wide(x)) != x.index_dtype:
        made = replace(made, indptr=indptr, indices=indices, values=values, shape=shape)
        return with_fields(fitted(x, made, _WHERE), col_scale=scales_of(x)[1], **fields)
    arrays = {"shape": shape, "indptr": indptr, "indices": indices, "data": values, "prepared": {}}
    result = with_fields(x, **arrays, **fields)
    result.had_duplicates = False
    return result


def _picked(x: SparseArray, row: Any, col: Any) -> SparseArray:
    """Rows and columns picked by slices and index arrays, with their scales; values keep their dtype and heads."""
    row_scale, col_scale = scales_of(x)
    start, stop, step = _bounds(row, x.shape[0])
    blocks = row_blocks(x, start, stop) if step == 1 and _is_whole(col, x.shape[1]) else None
    if blocks is not None:
        return with_fields(blocks, row_scale=None if row_scale is None else row_scale[start:stop])
    if step == 1 and not x.holds_bits and _is_whole(col, x.shape[1]):
        return _some_rows(x, start, stop, row_scale)
    whole = sparse_convert.stored(x)
    made = _columns(_rows(whole, row), col)
    if made.values is whole.values and made.values is not None:
        made = replace(made, values=made.values.copy())
    result = fitted(x, made, _WHERE)
    scales = {"row_scale": (row_scale, row), "col_scale": (col_scale, col)}
    fields = {name: interop.contiguous(scale[key]) for name, (scale, key) in scales.items() if scale is not None}
    return with_fields(result, **fields) if fields else result


def _some_rows(x: SparseArray, start: int, stop: int, row_scale: Any) -> SparseArray:
    """Rows ``start..stop``; their indices are a view if kernels can read it there, and no entry has to be examined."""
    indptr, indices, values = x.csr_arrays()
    starts, first, last = row_range(indptr, start, stop)
    columns = indices[first:last]
    made = with_fields(
        x,
        shape=(stop - start, x.shape[1]),
        indptr=starts,
        indices=columns if x.device == "cpu" else interop.aligned(columns),
        data=None if values is None else values[first:last].copy(),
        row_scale=None if row_scale is None else interop.contiguous(row_scale[start:stop]),
        prepared={},
    )
    made.had_duplicates = False
    return made


def _bounds(key: Any, size: int) -> tuple[int, int, int]:
    """Start, stop and step of a slice; the step of an index array is 0."""
    if not isinstance(key, slice):
        return 0, 0, 0
    start, stop, step = key.indices(size)
    return start, max(start, stop) if step > 0 else stop, step


def _is_whole(key: Any, size: int) -> bool:
    return _bounds(key, size) == (0, size, 1)


def _places(made: Pattern, key: Any, size: int) -> Any:
    """The index array of a slice; an index array itself."""
    return interop.namespace(made.indptr).arange(*_bounds(key, size)) if isinstance(key, slice) else key


def _rows(made: Pattern, key: Any) -> Pattern:
    start, stop, step = _bounds(key, made.shape[0])
    if step != 1:
        return rows_at(made, _places(made, key, made.shape[0]))
    if _is_whole(key, made.shape[0]):
        return made
    starts, first, last = row_range(made.indptr, start, stop)
    values = None if made.values is None else made.values[first:last].copy()
    return replace(
        made,
        indptr=starts,
        indices=made.indices[first:last],
        shape=(stop - start, made.shape[1]),
        values=values,
    )


def rows_at(made: Pattern, rows: Any) -> Pattern:
    """The rows of a pattern that an int64 index array lists.

    Examples
    --------
    >>> made = rows_at(Pattern(np.array([0, 1, 3]), np.array([4, 0, 2]), (2, 5)), np.array([1, 0, 1]))
    >>> made.indptr, made.indices
    (array([0, 2, 3, 5]), array([0, 2, 4, 0, 2]))
    """
    take = backends.family(interop.device_of(made.indptr), "sparse.entries").take_rows
    indptr, indices, values = take(*entries_of(made), made.values, rows)
    return replace(made, indptr=indptr, indices=indices, values=values, shape=(int(rows.size), made.shape[1]))


def _columns(made: Pattern, key: Any) -> Pattern:
    start, stop, step = _bounds(key, made.shape[1])
    if step == 1 and _is_whole(key, made.shape[1]):
        return made
    device = interop.device_of(made.indptr)
    if step == 1:
        take = backends.family(device, "sparse.entries").take_columns
        indptr, indices, values = take(*entries_of(made), made.values, start, stop)
        return replace(made, indptr=indptr, indices=indices, values=values, shape=(made.shape[0], stop - start))
    columns = _places(made, key, made.shape[1])
    if made.shape[1] > 8 * made.indices.size:  # both methods below need memory for every column
        made, columns = _occupied(made, columns)
    return _columns_by_scipy(made, columns) if device == "cpu" else turned(rows_at(turned(made), columns))


def _occupied(made: Pattern, columns: Any) -> tuple[Pattern, Any]:
    """The pattern with only its occupied columns and an empty last one, and the numbers of `columns` among these.

    Examples
    --------
    >>> made, columns = _occupied(Pattern(np.array([0, 2]), np.array([4, 9]), (1, 99)), np.array([9, 5]))
    >>> made.indices, made.shape, columns
    (array([0, 1]), (1, 3), array([1, 2]))
    """
    space = interop.namespace(made.indptr)
    used, places = space.unique(made.indices, return_inverse=True)
    at = space.searchsorted(used, columns)
    known = space.isin(columns, used)
    moved = replace(made, indices=places.astype(made.indices.dtype), shape=(made.shape[0], int(used.size) + 1))
    return moved, space.where(known, at, used.size)


def _columns_by_scipy(made: Pattern, columns: Any) -> Pattern:
    """Pick columns with SciPy, which carries the bits of the values as integers, or the number of each entry that has several values."""
    values: Any = made.values
    if values is None:
        carried: Any = np.ones(made.indices.size, np.int8)
    elif values.ndim == 1:
        carried = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
    else:
        carried = np.arange(made.indices.size)
    picked = matrix(replace(made, values=carried), _WHERE)[:, columns]
    picked.sort_indices()
    if values is not None:
        values = gather(values, picked.data) if values.ndim == 2 else picked.data.view(values.dtype)
    return replace(made, indptr=picked.indptr, indices=picked.indices, shape=picked.shape, values=values)


def turned(made: Pattern) -> Pattern:
    """The transpose of a canonical pattern with its values.

    Examples
    --------
    >>> made = turned(Pattern(np.array([0, 1, 3]), np.array([1, 0, 1]), (2, 2), np.array([5, 6, 7])))
    >>> made.indptr, made.indices, made.values
    (array([0, 1, 3]), array([1, 0, 1]), array([6, 5, 7]))
    """
    starts, columns = entries_of(made)
    other, _ = sparse_convert.transposed(starts, columns, made.values, made.shape)
    return replace(other, family=made.family)


# -- elements ---------------------------------------------------------------------------------------------------------
def _elements(x: SparseArray, row: Any, col: Any) -> Any:
    """Single elements at index arrays that broadcast: a scalar, or a result of the broadcast shape."""
    if x.device == "cpu" and isinstance(row, int) and isinstance(col, int):
        values, *scales = values_and_scales(x)
        if all(scale is None for scale in scales) and (values is None or values.ndim == 1):
            return _element(x, row, col)
    made = entries(x, _WHERE)
    space = interop.namespace(made.indptr)
    try:
        rows, cols = space.broadcast_arrays(space.asarray(row), space.asarray(col))
    except ValueError:
        shapes = tuple(getattr(part, "shape", ()) for part in (row, col))
        raise IndexError(f"{_WHERE}: index arrays of shapes {shapes[0]} and {shapes[1]} do not broadcast") from None
    found = elements(made, rows.ravel(), cols.ravel()).reshape(rows.shape)
    if found.ndim == 0:
        return found[()]
    if found.ndim == 1:
        return interop.from_array(found, made.family, _WHERE)
    return of_dense(x, found != 0 if made.values is None and x.holds_bits else found)


def _element(x: SparseArray, row: int, col: int) -> Any:
    indptr, indices, values = x.csr_arrays()
    start, stop = int(indptr[row]), int(indptr[row + 1])
    at = start + int(indices[start:stop].searchsorted(col))
    there = at < stop and indices[at] == col
    if values is None:
        return np.uint8(there)
    return values[at] if there else values.dtype.type(0)


def elements(made: Pattern, rows: Any, cols: Any) -> Any:
    """The elements at `rows` and `cols` (int64, one dimension), found by a search in each row.

    Examples
    --------
    >>> made = Pattern(np.array([0, 1, 3]), np.array([1, 0, 1]), (2, 2), np.array([5, 6, 7]))
    >>> elements(made, np.array([1, 0]), np.array([1, 0]))
    array([7, 0])
    """
    if made.values is not None and made.values.ndim == 2:
        raise one_value_each(made.values.shape[1])
    space, device = interop.namespace(made.indptr), interop.device_of(made.indptr)
    backend = backends.family(device, "sparse.entries")
    if device != "cpu":
        found: Any = backend.elements(*entries_of(made), made.values, rows, cols)
        return found
    places = backend.find(*entries_of(made), rows, cols)
    at, there = np.maximum(places, 0), places >= 0
    if made.values is None:
        return there.astype(np.uint8)
    if not made.indices.size:
        return np.zeros(rows.size, made.values.dtype)
    return space.where(there, as_bits(made.values)[at], as_bits(made.values).dtype.type(0)).view(made.values.dtype)


def one_value_each(heads: int) -> ShapeError:
    """The error for single elements of an array whose edges have several values."""
    return ShapeError(f"{_WHERE}: the edges have {heads} values each; pick one with with_values")


def of_dense(x: SparseArray, found: Any) -> SparseArray:
    """The non-zero elements of a dense array as a sparse array like `x`."""
    space = interop.namespace(found)
    rows, cols = space.nonzero(found)
    starts = space.zeros(found.shape[0] + 1, np.int64)
    starts[1:] = space.cumsum(space.count_nonzero(found, axis=1))
    return fitted(x, Pattern(starts, cols, found.shape, found[rows, cols], family=family_of(x)), _WHERE)

"""Conversions of sparse containers: to compressed matrices of SciPy or CuPy, to dense arrays, and to the transposed pattern."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import backends, interop
from bitsparse.arrays.indices import rows_of
from bitsparse.arrays.inside import family_of, scales_of
from bitsparse.arrays.sparse_merge import Pattern
from bitsparse.errors import ShapeError

#: Elements decoded at a time when a packed array is read as coordinates.
_CHUNK = 1 << 22


def stored(x: Any) -> Pattern:
    """The stored entries, without the scales."""
    indptr, indices, values = x.csr_arrays()
    return Pattern(indptr, indices, x.shape, values, family=family_of(x))


def scaled(x: Any, function: str) -> Pattern:
    """The entries with one value each and the scales applied; 16-bit floats become float32."""
    indptr, indices, values = x.csr_arrays()
    space = interop.namespace(indices)
    if values is not None and values.ndim == 2:
        raise ShapeError(
            f"{function}: the edges have {values.shape[1]} values each, but one is needed; "
            f"pick one, as in A.with_values(A.csr_arrays()[2][:, 0])"
        )
    if values is None:
        values = space.ones(indices.size, np.uint8)
    elif values.dtype.itemsize == 2 and values.dtype.kind not in "iu":
        values = interop.converted(values, np.dtype(np.float32))
    dtype = x.scaled_dtype(values.dtype)
    values = values.astype(dtype, copy=False)
    row_scale, col_scale = scales_of(x)
    if row_scale is not None:
        values = values * row_scale[rows_of(indptr)].astype(dtype, copy=False)
    if col_scale is not None:
        values = values * col_scale[indices].astype(dtype, copy=False)
    return Pattern(indptr, indices, x.shape, values, family=family_of(x))


def scipy_csr(function: str, made: Pattern, *, copy: bool) -> Any:
    """A :class:`scipy.sparse.csr_array`. SciPy trusts the arrays, so they are checked again in case their owner has written into them."""
    from scipy import sparse

    try:
        state = backends.family("cpu", "sparse.build").validate_csr(made.indptr, made.indices, made.shape)
    except ValueError as error:
        state = str(error)
    if state != "canonical":
        raise ValueError(
            f"{function}: indptr or indices of an array of shape {made.shape} were written into after it was made ({state}); make it anew"
        )
    return sparse.csr_array((made.values, made.indices, made.indptr), shape=made.shape, copy=copy)


def to_matrix(x: Any, function: str = "tocsr", copy: bool = True) -> Any:
    """A :class:`scipy.sparse.csr_array`, or a :class:`cupyx.scipy.sparse.csr_matrix` for an array on a GPU.

    Without `copy` it shares memory with the container and must not be changed in place.
    """
    made = scaled(x, function)
    if x.device == "cpu":
        return scipy_csr(function, made, copy=copy)
    from cupyx.scipy import sparse as on_gpu

    values: Any = made.values
    if values.dtype.kind in "iu":  # CuPy's matrices hold booleans and floats
        values = values.astype(np.float32 if values.dtype.itemsize <= 2 else np.float64)
    return on_gpu.csr_matrix((values, made.indices, made.indptr), shape=x.shape, copy=copy)


def to_dense(x: Any, order: str | None = None) -> Any:
    """The dense NumPy or CuPy array, in the dtype of the values; 16-bit floats become float32."""
    if x.device == "cpu":
        return to_matrix(x, "toarray", copy=False).toarray(order=order)
    made = scaled(x, "toarray")
    values: Any = made.values
    dense = interop.namespace(values).zeros(x.shape, values.dtype, order=order or "C")
    dense[rows_of(made.indptr), made.indices] = values
    return dense


def transposed(indptr: Any, indices: Any, values: Any, shape: tuple[int, int]) -> tuple[Pattern, Any]:
    """The transpose of a canonical pattern with its values, and on a GPU also its order; the same arrays if it is symmetric."""
    build = backends.family(interop.device_of(indices), "sparse.build")
    starts, rows, order, moved = build.transpose_both(indptr, indices, values, shape)
    return Pattern(starts, rows, (shape[1], shape[0]), moved), order


def coordinates_of_words(x: Any) -> tuple[Any, Any, Any]:
    """Values, rows and columns of the non-zero integers of a BitTensor, on its device, decoded a chunk of outer slices at a time."""
    plain = x.with_affine() if x.axis == -1 else x.with_affine().T
    length = plain.shape[1]
    step = max(1, _CHUNK // max(length, 1))
    rows, cols, data = [], [], []
    space = interop.namespace(plain.words)
    for start in range(0, plain.shape[0], step):
        chunk, _ = interop.as_array(plain[start : start + step].toarray(), "tocsr")
        row, col = space.nonzero(chunk)
        rows.append(row + start)
        cols.append(col)
        data.append(chunk[row, col])
    joined = [space.concatenate(part) if part else space.empty(0, np.int64) for part in (data, rows, cols)]
    values = joined[0].astype(x.dtype)
    return (values, joined[1], joined[2]) if x.axis == -1 else (values, joined[2], joined[1])


def words_to_matrix(x: Any) -> Any:
    """The non-zero integers of a BitTensor as :class:`scipy.sparse.csr_array`."""
    from scipy import sparse

    values, rows, cols = coordinates_of_words(x)
    return sparse.coo_array((values, (rows, cols)), shape=x.shape).tocsr()

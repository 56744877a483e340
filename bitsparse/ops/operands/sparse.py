"""The sparse operand of every sparse function: CSR arrays from whatever holds a sparse matrix, and the caller's edge order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.errors import DeviceError, DTypeError, ShapeError
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.places import device_of_sparse
from bitsparse.ops.operands.sparse_gpu import csr_on_gpu, incidence_on_gpu, scales_of

__all__ = ["CSROperand", "as_csr", "host_csr", "incidence_csr"]

Array = NDArray[Any]


def host_csr(function: str, A: Any) -> CSROperand:
    """:func:`as_csr` for functions without kernels on a GPU.

    Raises
    ------
    DeviceError
        `A` is on a GPU.
    """
    device = device_of_sparse(A)
    if device != "cpu":
        raise DeviceError(
            f"{function}: A is on {device}, but this function runs on the CPU in this release; pass it with .get()"
        )
    return as_csr(function, A)


def as_csr(function: str, A: Any, device: str | None = None) -> CSROperand:
    """CSR arrays of a bitsparse container or incidence matrix, a BitTensor or any :mod:`scipy.sparse` array, or on a GPU one of
    ``cupyx.scipy.sparse``, where they lie; nothing is copied that is canonical already.

    Raises
    ------
    DTypeError
        `A` is not sparse, or its values are not real numbers.
    ShapeError
        `A` does not have two dimensions.
    ValueError
        Its arrays do not describe a matrix.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> a = as_csr("example", sp.csr_array(np.array([[0, 2.5], [1.5, 0]])))
    >>> a.indptr, a.indices, a.values
    (array([0, 1, 2], dtype=int32), array([1, 0], dtype=int32), array([2.5, 1.5]))
    """
    _refuse_bits(function, A)
    device = device_of_sparse(A) if device is None else device
    if device != "cpu":
        return csr_on_gpu(function, A, device)
    if hasattr(A, "csr_arrays"):
        indptr, indices, values = A.csr_arrays()
        made = _operand(function, indptr, indices, values, A.shape, *scales_of(A))
        # In the incidence matrix of rows and edges an edge's column is the edge itself.
        return replace(made, indices=None, count=made.nnz) if getattr(A, "in_order", False) else made
    if isinstance(A, BitTensor):
        return _from_bits(function, A)
    if not (hasattr(A, "tocsr") and hasattr(A, "format") and hasattr(A, "nnz")):
        raise DTypeError(
            f"{function}: A must be sparse (TCTiledCSR, FRDC, BitTensor or a scipy.sparse array), got {type(A).__name__}; "
            f"{_check.sparse_remedy(A)}"
        )
    if len(A.shape) != 2:
        raise ShapeError(f"{function}: A has shape {A.shape}, but a sparse operand has 2 dimensions; reshape it")
    return _from_scipy(function, A if A.format == "csr" else A.tocsr())


def _refuse_bits(function: str, A: Any) -> None:
    """BitTensors whose stored bits are not the non-zero elements."""
    if not isinstance(A, BitTensor):
        return
    if A.scale is not None or A.offset is not None:
        raise ValueError(
            f"{function}: A is a BitTensor with a scale or an offset, which a sparse operand leaves out; pass A.with_affine() and "
            f"scale the result"
        )
    if A.encoding == "bipolar":
        raise ValueError(f"{function}: A is bipolar, so that it has no zeros to leave out; multiply with matmul")
    if A.ndim != 2:
        raise ShapeError(
            f"{function}: A has shape {A.shape}, but a sparse operand has 2 dimensions; index a batch first"
        )


def _from_bits(function: str, A: BitTensor) -> CSROperand:
    made = A.tocsr()
    values = None if (A.bits, A.encoding) == (1, "unsigned") else made.data
    return _operand(function, made.indptr, made.indices, values, A.shape, None, None)


def _from_scipy(function: str, A: Any) -> CSROperand:
    operand = _operand(function, A.indptr, A.indices, A.data, A.shape, None, None)
    if A.has_canonical_format:
        return operand
    # SciPy's sort carries positions along as if they were values.
    import scipy.sparse as sp

    position = np.arange(operand.nnz, dtype=operand.indptr.dtype)
    indices = np.array(operand.indices)
    carried = sp.csr_array((position, indices, operand.indptr), shape=operand.shape)
    carried.sort_indices()
    if not _has_duplicates(carried.indptr, carried.indices):
        order, indices = (np.ascontiguousarray(part, operand.indptr.dtype) for part in (carried.data, carried.indices))
        values = None if operand.values is None else operand.values[order]
        return CSROperand(operand.indptr, indices, values, None, None, operand.shape, order)
    summed = sp.csr_array((A.data[: operand.nnz], operand.indices, operand.indptr), shape=operand.shape, copy=True)
    summed.sum_duplicates()
    made = _operand(function, summed.indptr, summed.indices, summed.data, operand.shape, None, None)
    return CSROperand(made.indptr, made.indices, made.values, None, None, made.shape, None, True)


def _has_duplicates(indptr: Array, indices: Array) -> bool:
    """Whether sorted rows repeat a column."""
    same = indices[1:] == indices[:-1]
    starts = indptr[1:-1]
    same[starts[(starts > 0) & (starts < indices.size)] - 1] = False
    return bool(same.any())


def _operand(
    function: str, indptr: Any, indices: Any, values: Any, shape: Any, row_scale: Any, col_scale: Any
) -> CSROperand:
    """Sizes and dtypes checked; what only a pass over the indices shows is checked by the kernels on the way."""
    rows, cols = (int(size) for size in shape)
    indptr, indices = np.asarray(indptr), np.asarray(indices)
    if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise DTypeError(f"{function}: A has indices of dtype {indptr.dtype} and {indices.dtype}; pass integers")
    wide = np.int64 if 8 in (indptr.dtype.itemsize, indices.dtype.itemsize) else np.int32
    indptr, indices = np.ascontiguousarray(indptr, wide), np.ascontiguousarray(indices, wide)
    if indptr.shape != (rows + 1,) or indices.ndim != 1:
        raise ShapeError(
            f"{function}: A has {rows} rows but indptr of shape {indptr.shape} and indices of shape {indices.shape}; rebuild A"
        )
    nnz = int(indptr[-1])
    if not 0 <= nnz <= indices.size:
        raise ValueError(f"{function}: A's indptr ends at {nnz}, but it has {indices.size} indices; rebuild A")
    try:
        backends.family("cpu", "spmm.spmm").longest_row(indptr, nnz)
    except ValueError as error:
        raise ValueError(f"{function}: A is not a sparse matrix: {error}") from None
    indices = indices[:nnz]
    return CSROperand(indptr, indices, _values(function, values, nnz), row_scale, col_scale, (rows, cols))


def _values(function: str, values: Any, nnz: int) -> Array | None:
    """None where every value is a stored True, as in a pattern."""
    if values is None:
        return None
    values = np.asarray(values)
    if values.ndim not in (1, 2) or values.shape[0] < nnz:
        raise ShapeError(f"{function}: A has {nnz} edges but values of shape {values.shape}; rebuild A")
    values = values[:nnz]
    _check.numeric(function, "A", values)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    return None if values.dtype == np.bool_ and bool(values.all()) else values


def incidence_csr(function: str, A: Any, side: str) -> CSROperand:
    """The incidence matrix of nodes and edges (TANGO section 3.3): row v marks the edges of node v.

    Parameters
    ----------
    side : {"rows", "cols"}
        Which end of an edge counts as its node. By rows the matrix needs no column indices: the edges of a row lie side by side.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> a = sp.csr_array(np.array([[0, 1, 1], [0, 0, 1]]))
    >>> incidence_csr("example", a, "cols").indices
    array([0, 1, 2], dtype=int32)
    """
    operand = as_csr(function, A)
    operand.has_edges(function)
    if operand.device != "cpu":
        return incidence_on_gpu(operand, side)
    if side == "rows":
        indptr, indices, nodes = operand.indptr, operand.order, operand.shape[0]
    else:
        import scipy.sparse as sp

        # SciPy's conversion counts by column before any kernel has looked at the columns.
        found = operand.columns
        operand.check_columns(function, found)
        position = np.arange(operand.nnz, dtype=operand.indptr.dtype) if operand.order is None else operand.order
        by_column = sp.csr_array((position, found, operand.indptr), shape=operand.shape).tocsc()
        indptr, indices, nodes = by_column.indptr, by_column.data, operand.shape[1]
    if indices is not None:
        indices = np.ascontiguousarray(indices, indptr.dtype)
    return CSROperand(indptr, indices, None, None, None, (nodes, operand.nnz))

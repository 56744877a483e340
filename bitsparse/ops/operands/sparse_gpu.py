"""CSR arrays on a GPU from whatever holds a sparse matrix there: containers, BitTensors, the matrices of ``cupyx.scipy.sparse``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import inside, sparse_forms
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.indices import outside
from bitsparse.arrays.inside import pattern_of, store_of, values_and_scales
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.sparse_merge import merge_duplicates
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop.kept import READY, Slot, Store
from bitsparse.ops.operands.csr import SCHEDULE, CSROperand

__all__ = ["csr_on_gpu", "incidence_on_gpu", "scales_of"]

Array = NDArray[Any]
#: What is prepared for the incidence matrices of a pattern, by side, and the edges in the order of their columns.
_INCIDENCES: Slot[Store] = Slot("incidence matrices")
_BY_COLUMN: Slot[tuple[Array, Array]] = Slot("edges by column")


def csr_on_gpu(function: str, A: Any, device: str) -> CSROperand:
    """CSR arrays of `A`, which lies on the GPU `device`; the current stream makes what is missing.

    The pattern of a container is canonical and was checked when it was made; foreign arrays are checked and, if need be, sorted here.
    """
    if isinstance(A, SparseArray):
        return _of_container(function, A)
    if hasattr(A, "csr_arrays"):
        indptr, indices, values = A.csr_arrays()
        indptr, indices = _indices(function, indptr, indices, A.shape)
        _state(function, device, indptr, indices, A.shape)
        made = _values(function, values, int(indices.size))
        # In the incidence matrix of rows and edges an edge's column is the edge itself.
        found = None if getattr(A, "in_order", False) else indices
        return CSROperand(indptr, found, made, *scales_of(A), tuple(A.shape), count=int(indices.size))
    if isinstance(A, BitTensor):
        return _of_pattern(sparse_forms.read(function, A, None, index=None, binary=False, pattern=False))
    if not (hasattr(A, "tocsr") and hasattr(A, "format") and hasattr(A, "nnz")):
        raise DTypeError(
            f"{function}: A must be sparse (TCTiledCSR, FRDC, BitTensor or a matrix of cupyx.scipy.sparse), got {type(A).__name__}; "
            f"{_check.sparse_remedy(A)}"
        )
    return _of_cupyx(function, A if A.format in ("csr", "csc", "coo") else A.tocsr(), device)


def _of_container(function: str, A: SparseArray) -> CSROperand:
    # Arrays that share a pattern share what is prepared for it. Values are read where they lie, as they may change.
    kept, (data, row_scale, col_scale) = store_of(A), values_and_scales(A)
    READY.of(kept, interop.Ready).wait()
    indptr, indices = pattern_of(A)
    # Whether booleans are all true is not asked: the answer would wait for the device in every call.
    values = None if data is None else _numbers(function, data, int(indices.size))
    return CSROperand(indptr, indices, values, row_scale, col_scale, A.shape, prepared=kept)


def scales_of(A: Any) -> tuple[Any, Any]:
    """The factors of rows and of columns that an object with CSR arrays brings along; those of a container as it keeps them."""
    if isinstance(A, SparseArray):
        return inside.scales_of(A)
    return getattr(A, "row_scale", None), getattr(A, "col_scale", None)


def _of_pattern(made: sparse_forms.Pattern) -> CSROperand:
    return CSROperand(made.indptr, made.indices, made.values, None, None, made.shape)


def _of_cupyx(function: str, A: Any, device: str) -> CSROperand:
    if len(A.shape) != 2:
        raise ShapeError(f"{function}: A has shape {A.shape}, but a sparse operand has 2 dimensions; reshape it")
    shape = (int(A.shape[0]), int(A.shape[1]))
    _check.numeric(function, "A", A.data)
    if A.format == "coo":
        # Duplicates are summed as tocsr() of such a matrix does, so that the edges are those of the sum.
        return _of_pattern(sparse_forms.read(function, A, None, index=None, binary=False, pattern=False))
    build = backends.family(device, "sparse.build")
    if A.format == "csc":
        turned = (shape[1], shape[0])
        indptr, indices = _indices(function, A.indptr, A.indices, turned)
        _state(function, device, indptr, indices, turned)
        indptr, indices, order = build.transpose_csr(indptr, indices, turned)
        return _without_duplicates(function, indptr, indices, A.data[order], shape, None)
    indptr, indices = _indices(function, A.indptr, A.indices, shape)
    values = A.data[: indices.size]
    state = _state(function, device, indptr, indices, shape)
    if state == "canonical":
        return CSROperand(indptr, indices, _values(function, values, int(indices.size)), None, None, shape)
    indices, order, _ = build.canonical_csr(indptr, indices, shape)
    return _without_duplicates(function, indptr, indices, values if order is None else values[order], shape, order)


def _without_duplicates(
    function: str, indptr: Array, indices: Array, values: Array, shape: tuple[int, int], order: Array | None
) -> CSROperand:
    """Sorted arrays with the values of repeated entries summed, as SciPy does."""
    indptr, indices, summed, repeated = merge_duplicates(indptr, indices, values, False)
    made = _values(function, summed, int(indices.size))
    return CSROperand(indptr, indices, made, None, None, shape, None if repeated else order, repeated)


def _indices(function: str, indptr: Any, indices: Any, shape: Any) -> tuple[Array, Array]:
    """Index arrays of one dtype, as many indices as there are edges; their content is not looked at."""
    if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise DTypeError(f"{function}: A has indices of dtype {indptr.dtype} and {indices.dtype}; pass integers")
    space: Any = interop.namespace(indptr)
    wide = np.int64 if 8 in (indptr.dtype.itemsize, indices.dtype.itemsize) else np.int32
    indptr, indices = (space.ascontiguousarray(part.astype(wide, copy=False)) for part in (indptr, indices))
    if indptr.shape != (int(shape[0]) + 1,) or indices.ndim != 1:
        raise ShapeError(
            f"{function}: A has {shape[0]} rows but indptr of shape {indptr.shape} and indices of shape {indices.shape}; rebuild A"
        )
    nnz = int(indptr[-1])
    if not 0 <= nnz <= indices.size:
        raise ValueError(f"{function}: A's indptr ends at {nnz}, but it has {indices.size} indices; rebuild A")
    return indptr, interop.aligned(indices[:nnz])


def _state(function: str, device: str, indptr: Array, indices: Array, shape: Any) -> str:
    """What a foreign pattern is like; kernels believe its indices afterwards."""
    sizes = (int(shape[0]), int(shape[1]))
    try:
        return str(backends.family(device, "sparse.build").validate_csr(indptr, indices, sizes))
    except ValueError as error:
        what = outside(indptr, indices, sizes[1]) or error
        raise ValueError(f"{function}: A is not a sparse matrix: {what}; rebuild A") from None


def _values(function: str, values: Any, nnz: int) -> Array | None:
    """None where every value is a stored True, as in a pattern."""
    if values is None:
        return None
    made = _numbers(function, values, nnz)
    return None if made.dtype == np.bool_ and bool(made.all()) else made


def _numbers(function: str, values: Any, nnz: int) -> Array:
    """One number for each edge, or one for each edge and head; what is stored behind the last edge is left out."""
    if values.ndim not in (1, 2) or values.shape[0] < nnz:
        raise ShapeError(f"{function}: A has {nnz} edges but values of shape {values.shape}; rebuild A")
    made: Array = values if values.shape[0] == nnz else values[:nnz]
    _check.numeric(function, "A", made)
    return made


def incidence_on_gpu(operand: CSROperand, side: str) -> CSROperand:
    """The incidence matrix of nodes and edges for an operand on a GPU; by columns the transposed order is made once per pattern."""
    kept = _INCIDENCES.of(operand.prepared, dict, side)
    READY.of(kept, lambda: operand.ready)
    if side == "rows":
        SCHEDULE.of(kept, lambda: operand.schedule)  # the same rows
        indptr, indices, nodes = operand.indptr, operand.order, operand.shape[0]
    else:
        nodes = operand.shape[1]
        by_column = _BY_COLUMN.get(kept)
        if by_column is None:
            build = backends.family(operand.device, "sparse.build")
            indptr, _, order = build.transpose_csr(operand.indptr, operand.columns, operand.shape)
            by_column = _BY_COLUMN.keep(kept, (indptr, order if operand.order is None else operand.order[order]))
            operand.ready.renew()
        indptr, indices = by_column
    if indices is not None:
        indices = indices.astype(indptr.dtype, copy=False)
    return CSROperand(indptr, indices, None, None, None, (nodes, operand.nnz), count=operand.nnz, prepared=kept)

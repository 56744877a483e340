"""Conversion of every kind of sparse matrix to the operand of sparse functions: CSR arrays and the caller's order of the edges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays import sparse_forms
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.indices import canonical_order, csr_of, gather, outside
from bitsparse.arrays.inside import parts_of, scales_of
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.sparse_merge import merge_duplicates
from bitsparse.backends.params import Array
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop.kept import READY, Slot, Store
from bitsparse.ops.operands.csr import SCHEDULE, CSROperand
from bitsparse.ops.operands.dense import native
from bitsparse.ops.operands.places import device_of_sparse, working_with

#: Slots for what is prepared for a pattern's incidence matrices, by side, and for the edges in the order of their columns.
_INCIDENCES: Slot[Store] = Slot("incidence matrices")
_BY_COLUMN: Slot[tuple[Array, Array]] = Slot("edges by column")


def as_csr(function: str, A: Any, device: str | None = None) -> CSROperand:
    """The CSR arrays of a bitsparse container or incidence matrix, a BitTensor, a :mod:`scipy.sparse` array or, on a GPU, a matrix of
    ``cupyx.scipy.sparse``. They stay on their device, and what is canonical already is not copied.

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
    if isinstance(A, SparseArray):
        if device != "cpu":
            return _of_container(function, A, device)
        # The pattern was checked when the container was made, and CPU kernels check what they read.
        indptr, indices, values = A.csr_arrays()
        values = _values(function, values, int(indices.size))
        return CSROperand(indptr, indices, values, *scales_of(A), A.shape)
    if hasattr(A, "csr_arrays"):
        indptr, indices, values = A.csr_arrays()
        indptr, indices = _pattern(function, indptr, indices, A.shape)
        if device != "cpu":
            _is_canonical(function, device, indptr, indices, A.shape)
        values = _values(function, values, int(indices.size))
        row_scale, col_scale = (getattr(A, name, None) for name in ("row_scale", "col_scale"))
        # In the incidence matrix of rows and edges, the column of an edge is the number of the edge.
        columns, count = None if getattr(A, "in_order", False) else indices, int(indices.size)
        return CSROperand(indptr, columns, values, row_scale, col_scale, tuple(A.shape), count=count)
    if isinstance(A, BitTensor):
        return _of_form(function, A)
    graph = interop.read_graph(A, function)
    if graph is not None:
        made = sparse_forms.from_graph(function, graph)
        return CSROperand(made.indptr, made.indices, made.values, None, None, made.shape, summed=made.had_duplicates)
    if not (hasattr(A, "tocsr") and hasattr(A, "format") and hasattr(A, "nnz")):
        foreign = "a scipy.sparse array" if device == "cpu" else "a matrix of cupyx.scipy.sparse"
        raise DTypeError(
            f"{function}: A must be sparse (TCTiledCSR, FRDC, BitTensor or {foreign}), got {type(A).__name__}; "
            f"{_check.sparse_remedy(A)}"
        )
    if len(A.shape) != 2:
        raise ShapeError(f"{function}: A has shape {A.shape}, but a sparse operand has 2 dimensions; reshape it")
    return _of_matrix(function, A, device)


@contextmanager
def sparse_operand(function: str, A: Any, *others: Any) -> Iterator[CSROperand]:
    """:func:`as_csr` as a context, in which work runs on the operand's device and on the stream of `A` and `others`."""
    device = device_of_sparse(A)
    with working_with(device, *others):
        yield as_csr(function, A, device)


def single_csr(function: str, A: Any, device: str | None = None) -> CSROperand:
    """:func:`as_csr`, but refuses a matrix whose edges have several values each."""
    return single_values(function, as_csr(function, A, device))


def single_values(function: str, operand: CSROperand) -> CSROperand:
    """The operand itself; refuses it if its edges have several values each."""
    if operand.values is not None and operand.values.ndim != 1:
        raise ShapeError(
            f"{function}: A has {operand.values.shape[1]} values to an edge, but {function} takes one; pick one, as in "
            f"A.with_values(A.csr_arrays()[2][:, 0])"
        )
    return operand


def _refuse_bits(function: str, A: Any) -> None:
    """Refuse a BitTensor whose stored bits are not the non-zero elements of a matrix."""
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


def _of_container(function: str, A: SparseArray, device: str) -> CSROperand:
    """The operand of a container on a GPU, whose pattern is canonical and was checked when it was made."""
    # Arrays that share a pattern share what is prepared for it. Values are not copied, as they may change.
    kept, (indptr, indices), (data, row_scale, col_scale), shape = parts_of(A)
    READY.of(kept, interop.Ready).wait()
    # Boolean values are kept even if all are true: to find out, every call would have to wait for the device.
    values = None if data is None else _numbers(function, data, int(indices.size))
    return CSROperand(indptr, indices, values, row_scale, col_scale, shape, device=device, prepared=kept)


def _of_form(function: str, A: Any) -> CSROperand:
    made = sparse_forms.read(function, A)
    return CSROperand(made.indptr, made.indices, made.values, None, None, made.shape)


def _of_matrix(function: str, A: Any, device: str) -> CSROperand:
    """The operand of a SciPy matrix, or of a CuPy matrix on a GPU; sorted if need be, with repeated entries summed as in SciPy."""
    if device != "cpu":
        _check.numeric(function, "A", A.data)
        if A.format == "coo":
            # Duplicates are summed as in tocsr() of such a matrix, so that each edge is one summed entry.
            return _of_form(function, A)
    shape, turned = (int(A.shape[0]), int(A.shape[1])), device != "cpu" and A.format == "csc"
    if turned:
        indptr, indices = _pattern(function, A.indptr, A.indices, shape[::-1])
        _is_canonical(function, device, indptr, indices, shape[::-1])
        build = backends.family(device, "sparse.build")
        indptr, indices, order = build.transpose_csr(indptr, indices, shape[::-1])
        values = A.data[order]
    else:
        A = A if A.format == "csr" else csr_of(function, A)
        indptr, indices = _pattern(function, A.indptr, A.indices, shape)
        nnz = int(indices.size)
        values = _numbers(function, A.data, nnz)
        if A.has_canonical_format if device == "cpu" else _is_canonical(function, device, indptr, indices, shape):
            return CSROperand(indptr, indices, _values(function, values, nnz), None, None, shape)
        CSROperand(indptr, indices, None, None, None, shape).check_columns(function, indices)
        indices, order = canonical_order(indptr, indices, shape)
        values = values if order is None else gather(values, order)
    indptr, indices, summed, repeated = merge_duplicates(indptr, indices, values, False)
    numbers = _values(function, summed, int(indices.size))
    return CSROperand(indptr, indices, numbers, None, None, shape, None if turned or repeated else order, repeated)


def _pattern(function: str, indptr: Any, indices: Any, shape: Any) -> tuple[Array, Array]:
    """Index arrays of one dtype, with exactly one index per edge; CPU kernels check the indices as they read them."""
    space: Any = interop.namespace(indptr)
    if space is np:
        indptr, indices = np.asarray(indptr), np.asarray(indices)
    if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise DTypeError(f"{function}: A has indices of dtype {indptr.dtype} and {indices.dtype}; pass integers")
    wide = np.int64 if 8 in (indptr.dtype.itemsize, indices.dtype.itemsize) else np.int32
    indptr, indices = (space.ascontiguousarray(part.astype(wide, copy=False)) for part in (indptr, indices))
    if indptr.shape != (int(shape[0]) + 1,) or indices.ndim != 1:
        raise ShapeError(
            f"{function}: A has {shape[0]} rows but indptr of shape {indptr.shape} and indices of shape {indices.shape}; rebuild A"
        )
    nnz = int(indptr[-1])
    if not 0 <= nnz <= indices.size:
        raise ValueError(f"{function}: A's indptr ends at {nnz}, but it has {indices.size} indices; rebuild A")
    if space is not np:
        return indptr, interop.aligned(indices[:nnz])
    try:
        backends.family("cpu", "spmm.spmm").longest_row(indptr, nnz)
    except ValueError as error:
        raise ValueError(f"{function}: A is not a sparse matrix: {error}") from None
    return indptr, indices[:nnz]


def _is_canonical(function: str, device: str, indptr: Array, indices: Array, shape: Any) -> bool:
    """Whether a foreign pattern on a GPU is sorted without duplicates; bad indices are refused, as kernels do not check them later."""
    sizes = (int(shape[0]), int(shape[1]))
    try:
        return bool(backends.family(device, "sparse.build").validate_csr(indptr, indices, sizes) == "canonical")
    except ValueError as error:
        what = outside(indptr, indices, sizes[1]) or error
        raise ValueError(f"{function}: A is not a sparse matrix: {what}; rebuild A") from None


def _values(function: str, values: Any, nnz: int) -> Array | None:
    """The checked values; None if every value is True, as in a pattern."""
    if values is None:
        return None
    made = _numbers(function, values, nnz)
    return None if made.dtype == np.bool_ and bool(made.all()) else made


def _numbers(function: str, values: Any, nnz: int) -> Array:
    """One number per edge, or one per edge and head; entries behind the last edge are left out."""
    if values.ndim not in (1, 2) or values.shape[0] < nnz:
        raise ShapeError(f"{function}: A has {nnz} edges but values of shape {values.shape}; rebuild A")
    made: Array = values if values.shape[0] == nnz else values[:nnz]
    _check.numeric(function, "A", made)
    return native(made)


def incidence_csr(function: str, A: Any, side: str) -> CSROperand:
    """The incidence matrix of nodes and edges (TANGO section 3.3): row v marks the edges of node v.

    Parameters
    ----------
    side : {"rows", "cols"}
        Which end of an edge counts as its node. With "rows" the matrix needs no column indices: the edges of a row lie side by side.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> a = sp.csr_array(np.array([[0, 1, 1], [0, 0, 1]]))
    >>> incidence_csr("example", a, "cols").indices
    array([0, 1, 2], dtype=int32)
    """
    operand = as_csr(function, A)
    operand.has_edges(function)
    kept = _INCIDENCES.of(operand.prepared, dict, side)
    READY.of(kept, lambda: operand.ready)
    if side == "rows":
        indptr, indices, nodes = operand.indptr, operand.order, operand.shape[0]
    else:
        nodes = operand.shape[1]
        indptr, indices = operand.kept(_BY_COLUMN, lambda: _by_column(function, operand))
    if indices is not None:
        indices = indices.astype(indptr.dtype, copy=False)
    if side == "rows" and operand.device != "cpu":
        SCHEDULE.of(kept, lambda: operand.schedule.along(indices))  # the same rows
    return CSROperand(indptr, indices, None, None, None, (nodes, operand.nnz), count=operand.nnz, prepared=kept)


def _by_column(function: str, operand: CSROperand) -> tuple[Array, Array]:
    """Where the edges of each column start, and the edges in the order of their columns."""
    if operand.device != "cpu":
        build = backends.family(operand.device, "sparse.build")
        indptr, _, order = build.transpose_csr(operand.indptr, operand.columns, operand.shape)
    else:
        import scipy.sparse as sp

        # SciPy's conversion reads the columns before any kernel has checked them.
        operand.check_columns(function, operand.columns)
        position = np.arange(operand.nnz, dtype=operand.indptr.dtype)
        turned = sp.csr_array((position, operand.columns, operand.indptr), shape=operand.shape).tocsc()
        indptr, order = turned.indptr, turned.data
    return indptr, order if operand.order is None else operand.order[order]

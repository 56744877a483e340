"""Construction of sparse containers: one function per form of the constructor's argument, each returning a canonical CSR pattern.

Everything works on NumPy and CuPy arrays alike, and the result is on the device of the data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import sparse_convert
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.indices import (
    canonical_order,
    csr_of,
    devices_of,
    gather,
    index_array,
    index_arrays,
    index_dtype,
    matrix_shape,
    outside,
    rows_of,
    without_spare,
)
from bitsparse.arrays.inside import family_of, scales_of
from bitsparse.arrays.sparse_merge import (
    Pattern,
    all_set,
    bits_only,
    merge_duplicates,
    nonzeros,
    not_bits,
    zeros_and_ones,
)
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import as_bits, converted

#: Elements of a dense array that are processed at a time, in host memory and on a GPU.
_CHUNK, _GPU_CHUNK = 1 << 22, 1 << 26
#: Most parts of a form, and deepest nesting of its tuples.
_PARTS, _LEVELS = 8, 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of the conversion to a pattern."""

    index: Any = None  #: index dtype; None for the smallest that fits
    binary: bool = False  #: bits: repeated entries are or-ed instead of summed, zeros are dropped
    pattern: bool = False  #: values other than 0 and 1 may be dropped
    integers: bool = False  #: integers only, added in 64 bits or or-ed if they are bits; scales are multiplied in
    blocks: bool = False  #: also make the blocks of FRDC if that checks whether the pattern is canonical
    adopt: bool = False  #: accept only a canonical CSR array, and keep its index dtype and values


_ANY = Wanted()
#: Types that are never on a GPU, so that no GPU library has to be asked about them.
_ELSEWHERE = (np.ndarray, np.generic, int, float, str, Wanted)


# -- where it is ------------------------------------------------------------------------------------------------------
def _home(part: Any, deeper: int = _LEVELS) -> tuple[str, interop.Family] | None:
    """The GPU and family of the data, or of the first part of it that is on a GPU; None if no part is."""
    if part is None or isinstance(part, _ELSEWHERE):
        return None
    if isinstance(part, (tuple, list)):
        # A longer list is a list of numbers.
        found = (_home(one, deeper - 1) for one in (part if deeper and len(part) <= _PARTS else ()))
        return next((home for home in found if home is not None), None)
    if isinstance(part, BitArray):
        return None if part.device == "cpu" else (part.device, family_of(part))
    if hasattr(part, "nnz") and hasattr(part, "tocsr"):
        return _home(getattr(part, "data", None))
    return interop.gpu_of(part)


def working_on(parts: Any) -> AbstractContextManager[Any]:
    """A context for work on the GPU of the first part that is on one, or else on the CPU."""
    device, family = _home(parts) or ("cpu", interop.NUMPY)
    return interop.working_on(device, family)


def _where_it_lies(read: Callable[..., Pattern]) -> Callable[..., Pattern]:
    """Make a reader work on the device and stream of its data, and return a pattern in that family unless its values have another."""

    @functools.wraps(read)
    def wrapped(function: str, *args: Any, **options: Any) -> Pattern:
        home = _home(args)
        if home is None:
            return read(function, *args, **options)
        with interop.working_on(*home):
            made = read(function, *args, **options)
        return replace(made, family=home[1]) if made.family is interop.NUMPY else made

    return wrapped


# -- the forms --------------------------------------------------------------------------------------------------------
def read(function: str, arg: Any, shape: Any = None, wanted: Wanted = _ANY) -> Pattern:
    """Recognise the form of ``arg`` as scipy.sparse does.

    Parameters
    ----------
    function : str
        The function whose argument this is, for messages.
    arg, shape
        The data, and the shape of forms that do not carry one.
    wanted : Wanted
    """
    _check.flag(function, "pattern", wanted.pattern)
    return arg if isinstance(arg, Pattern) else _read(function, arg, shape, wanted)


@_where_it_lies
def _read(function: str, arg: Any, shape: Any, wanted: Wanted) -> Pattern:
    if hasattr(arg, "csr_arrays"):
        return _of_container(function, arg, shape, wanted)
    if isinstance(arg, BitArray):
        return _of_bits(function, arg, shape, wanted.index)
    if hasattr(arg, "nnz") and hasattr(arg, "tocsr"):
        _same_shape(function, shape, tuple(arg.shape))
        return _of_scipy(function, arg, wanted)
    if isinstance(arg, tuple) and len(arg) == 2 and all(isinstance(size, (int, np.integer)) for size in arg):
        _same_shape(function, shape, arg)
        sizes = matrix_shape(function, arg)
        dtype = index_dtype(function, sizes, 0, wanted.index)
        return Pattern(np.zeros(sizes[0] + 1, dtype), np.empty(0, dtype), sizes)
    if isinstance(arg, tuple) and len(arg) == 2 and isinstance(arg[1], (tuple, list)) and len(arg[1]) == 2:
        return _of_coordinates(function, arg[0], arg[1][0], arg[1][1], shape, wanted)
    if isinstance(arg, tuple) and len(arg) == 3:
        if shape is None:
            raise ShapeError(
                f"{function}: (data, indices, indptr) does not tell the number of columns; pass shape=(m, n)"
            )
        return from_csr(function, arg[2], arg[1], shape, arg[0], wanted)
    graph = None if isinstance(arg, np.ndarray) else interop.read_graph(arg, function)
    if graph is not None:
        _same_shape(function, shape, graph.shape)
        return from_graph(function, graph, wanted)
    return _of_dense(function, arg, shape, wanted.index, wanted.pattern)


def _same_shape(function: str, asked: Any, have: tuple[int, ...]) -> None:
    if asked is not None and (wanted := _check.shape(function, asked)) != tuple(have):
        raise ShapeError(
            f"{function}: shape {_check.shown(wanted)} was asked for, but the data has shape {tuple(have)}"
        )


def _of_container(function: str, arg: Any, shape: Any, wanted: Wanted) -> Pattern:
    _same_shape(function, shape, arg.shape)
    made = sparse_convert.scaled(arg, function) if wanted.integers else sparse_convert.stored(arg)
    dtype = index_dtype(function, arg.shape, made.indices.size, wanted.index)
    indptr, indices = made.indptr.astype(dtype, copy=False), made.indices.astype(dtype, copy=False)
    # Values are needed to find explicit zeros, which arrays of bits drop.
    values = None if wanted.pattern and not wanted.binary else made.values
    scales = (None, None) if wanted.integers else scales_of(arg)
    return Pattern(indptr, indices, arg.shape, values, arg.had_duplicates, *scales, made.family)


def _of_bits(function: str, arg: Any, shape: Any, index: Any) -> Pattern:
    _same_shape(function, shape, arg.shape)
    sizes = matrix_shape(function, arg.shape)
    if arg.scale is not None or arg.offset is not None:
        raise ValueError(
            f"{function}: the BitTensor has a scale or an offset, which the stored integers leave out; pass "
            f"x.with_affine() for the integers, or a sparse array of x.dequantize()"
        )
    if arg.bits > 1 or arg.encoding != "unsigned":
        values, rows, cols = sparse_convert.coordinates_of_words(arg)
        made = _of_coordinates(function, values, rows, cols, sizes, Wanted(index))
        return replace(made, family=family_of(arg))
    plain = arg.repack(axis=-1, layout="planes")
    dtype = index_dtype(function, sizes, plain.nnz, index)
    indptr, indices = backends.family(arg.device, "sparse.build").words_to_csr(plain.words, sizes, dtype)
    return Pattern(indptr, indices, sizes, family=family_of(arg))


def _of_scipy(function: str, arg: Any, wanted: Wanted) -> Pattern:
    if len(arg.shape) != 2:
        raise ShapeError(
            f"{function}: a sparse array of shape {arg.shape} has {len(arg.shape)} dimensions, but 2 are needed"
        )
    if getattr(arg, "format", None) == "coo":
        return _of_coordinates(function, arg.data, arg.row, arg.col, arg.shape, wanted)
    if getattr(arg, "format", None) == "csc" and interop.namespace(arg.data) is not np:
        arg = without_spare(arg)
        return _of_columns(function, arg.indptr, arg.indices, arg.shape, arg.data, wanted)
    csr = without_spare(arg) if getattr(arg, "format", None) == "csr" else csr_of(function, arg)
    return from_csr(function, csr.indptr, csr.indices, arg.shape, csr.data, wanted)


def _of_columns(function: str, indptr: Any, indices: Any, shape: Any, data: Any, wanted: Wanted) -> Pattern:
    """Read a matrix in compressed column format as coordinates."""
    starts, rows = index_arrays(function, indptr, indices)
    device = _check.same_device(function, devices_of(starts, rows))
    try:
        backends.family(device, "sparse.build").validate_csr(starts, rows, matrix_shape(function, shape[::-1]))
    except ValueError as error:
        raise ValueError(f"{function}: {error}") from None
    return _of_coordinates(function, data, rows, rows_of(starts), shape, wanted)


@_where_it_lies
def from_graph(function: str, graph: interop.Compressed | interop.Coordinates, wanted: Wanted = _ANY) -> Pattern:
    """The pattern of a graph from :func:`bitsparse.interop.read_graph`; its family is that of the graph's indices."""
    if isinstance(graph, interop.Coordinates):
        family = interop.common_family([graph.family, interop.as_array(graph.rows, function, "the rows")[1]])
        made = _of_coordinates(function, graph.values, graph.rows, graph.cols, graph.shape, wanted)
    else:
        family = interop.as_array(graph.indices, function, "the indices")[1]
        read_as = _of_columns if graph.by_columns else from_csr
        made = read_as(function, graph.indptr, graph.indices, graph.shape, graph.values, wanted)
    return replace(made, family=interop.common_family([family, made.family]))


def _of_dense(function: str, arg: Any, shape: Any, index: Any, pattern: bool) -> Pattern:
    _check.not_edges(function, arg)
    array, family = interop.as_array(arg, function, "the dense array", kinds="biuf")
    if array.ndim != 2:
        raise ShapeError(
            f"{function}: the dense array has shape {array.shape}, but 2 dimensions are needed; reshape it"
        )
    _same_shape(function, shape, array.shape)
    sizes, space = matrix_shape(function, array.shape), interop.namespace(array)
    step = max(1, (_CHUNK if space is np else _GPU_CHUNK) // max(sizes[1], 1))
    counts = space.zeros(sizes[0] + 1, np.int64)
    for start in range(0, sizes[0], step):
        counts[start + 1 : start + 1 + step] = space.count_nonzero(nonzeros(array[start : start + step]), axis=1)
    indptr = space.cumsum(counts)
    nnz = int(indptr[-1])
    dtype = index_dtype(function, sizes, nnz, index)
    indices = space.empty(nnz, dtype)
    binary = pattern or array.dtype.kind == "b"
    values = None if binary else space.empty(nnz, array.dtype)
    for start in range(0, sizes[0], step):
        part = array[start : start + step]
        rows, cols = space.nonzero(nonzeros(part))
        inside = slice(int(indptr[start]), int(indptr[start]) + cols.size)
        indices[inside] = cols
        if values is not None:
            as_bits(values)[inside] = as_bits(part)[rows, cols]
    return Pattern(indptr.astype(dtype), indices, sizes, values, family=family)


# -- coordinates and edge lists ---------------------------------------------------------------------------------------
def _of_coordinates(function: str, data: Any, rows: Any, cols: Any, shape: Any, wanted: Wanted) -> Pattern:
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
    dtype = index_dtype(function, sizes, row.size, wanted.index)
    values, family = edge_values(function, data, row.size)
    _check.same_device(function, devices_of(row, col, values))
    if interop.namespace(row) is not np:
        row, col = row.astype(dtype, copy=False), col.astype(dtype, copy=False)
        order, starts = backends.family(interop.device_of(row), "sparse.build").sort_coordinates(row, col, sizes)
        columns = col[order]
    else:
        from scipy import sparse

        or_ed = wanted.binary or (values is not None and values.dtype.kind == "b" and not wanted.integers)
        if values is not None and or_ed and values.ndim == 1 and (values == 1).all():
            values = None
        # Sorting the numbers of the entries works for every dtype and shape of values. These numbers must not be summed where entries
        # are repeated.
        kept = np.ones(row.size, np.bool_) if values is None else np.arange(row.size, dtype=dtype)
        matrix = sparse.coo_array((kept, (row, col)), shape=sizes)
        matrix.has_canonical_format = values is not None
        csr = matrix.tocsr()
        order, starts, columns = csr.data, csr.indptr, csr.indices
    values = None if values is None else gather(values, order)
    made = from_csr(function, starts, columns, sizes, values, wanted)
    return replace(made, had_duplicates=made.had_duplicates or columns.size < row.size, family=family)


@_where_it_lies
def from_edges(function: str, rows: Any, cols: Any, shape: Any, values: Any, symmetric: bool, index: Any) -> Pattern:
    """The pattern of an edge list; without a shape, the largest index determines the number of nodes."""
    _check.flag(function, "symmetric", symmetric)
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
        space = interop.namespace(row)
        _check.same_device(function, devices_of(row, col))
        row, col = space.concatenate([row, col]), space.concatenate([col, row])
        if values is not None:
            once, family = interop.as_array(values, function, "values")
            twice = interop.namespace(once).concatenate([as_bits(once)] * 2).view(once.dtype)
            made = _of_coordinates(function, twice, row, col, shape, Wanted(index))
            return replace(made, family=family)
    return _of_coordinates(function, values, row, col, shape, Wanted(index))


# -- CSR --------------------------------------------------------------------------------------------------------------
@_where_it_lies
def from_csr(function: str, indptr: Any, indices: Any, shape: Any, data: Any = None, wanted: Wanted = _ANY) -> Pattern:
    """The canonical pattern of any CSR array: checked, sorted, and with repeated entries summed as in SciPy (or-ed for bits)."""
    sizes = matrix_shape(function, shape)
    starts, columns = index_arrays(function, indptr, indices)
    widest = starts.dtype
    dtype = index_dtype(function, sizes, columns.size, widest if wanted.adopt else wanted.index)
    device, widest = _check.same_device(function, devices_of(starts, columns)), np.result_type(widest, dtype)
    starts, columns = starts.astype(widest, copy=False), columns.astype(widest, copy=False)
    build, blocks = backends.family(device, "sparse.build"), None
    try:
        if wanted.blocks and device == "cpu" and widest == dtype and all_set(data, columns.size):
            # On the CPU this also checks every entry; if it fails, the check below finds out why.
            with suppress(ValueError):
                blocks = build.frdc(starts, columns, sizes)
        state = "canonical" if blocks is not None else build.validate_csr(starts, columns, sizes)
    except ValueError as error:
        wrong = outside(starts, columns, sizes[1])
        what = f"{wrong}; the arrays are damaged or belong to another shape" if wrong else error
        raise ValueError(f"{function}: {what}") from None
    starts, columns = starts.astype(dtype, copy=False), columns.astype(dtype, copy=False)
    values, family = edge_values(function, data, columns.size)
    _check.same_device(function, devices_of(starts, values))
    if wanted.adopt:
        if state != "canonical":
            raise ValueError(f"{function}: columns must ascend in every row, but they are {state}; use from_csr_arrays")
        family = family if data is not None else interop.as_array(indptr, function)[1]
        return Pattern(starts, columns, sizes, values, family=family)
    if wanted.integers and values is not None:
        wanted = replace(wanted, binary=wanted.binary and zeros_and_ones(values))
        if not wanted.binary and state != "canonical" and values.dtype.kind in "biu" and values.dtype.itemsize < 8:
            values = values.astype(np.int64)
    if wanted.binary and values is not None and not wanted.pattern and not zeros_and_ones(values):
        raise not_bits(function)
    repeated = False
    if state != "canonical":
        if state == "unsorted":
            columns, order = canonical_order(starts, columns, sizes)
            values = None if values is None or order is None else as_bits(values)[order].view(values.dtype)
        starts, columns, values, repeated = merge_duplicates(starts, columns, values, wanted.binary)
    if values is not None and values.dtype.kind == "b" and bool(values.all()):
        values = None
    made = Pattern(starts, columns, sizes, values, repeated, family=family, blocks=blocks)
    return bits_only(function, made, wanted.pattern) if wanted.binary else made


def edge_values(function: str, data: Any, nnz: int) -> tuple[NDArray[Any] | None, interop.Family]:
    """Values of shape (nnz,) or (nnz, H) and their family, or None for a pattern."""
    if data is None:
        return None, interop.NUMPY
    values, family = interop.as_array(data, function, "data", kinds="biuf")
    if values.ndim not in (1, 2) or values.shape[0] != nnz:
        raise ShapeError(f"{function}: data has shape {values.shape}, but {nnz} entries take {(nnz,)} or {(nnz, 'H')}")
    return values, family


# -- scales -----------------------------------------------------------------------------------------------------------
def scale_vector(function: str, name: str, value: Any, length: int, device: str = "cpu") -> NDArray[np.float32] | None:
    """A finite float32 vector on `device` with one scale per row or column, or None."""
    if value is None:
        return None
    array = interop.as_array(value, function, name, kinds="biuf")[0]
    array = interop.move(array, "cpu") if device == "cpu" else array
    if array.shape != (length,):
        raise ShapeError(
            f"{function}: {name} has shape {array.shape}, but there must be one scale for each of {length}"
        )
    space = interop.namespace(array)
    if array.dtype.name == "bfloat16":
        array = converted(array, np.dtype(np.float32))
    _check.finite(function, name, bool(space.isfinite(array).all()))
    if array.dtype == np.float64 and array.size and float(abs(array).max()) > float(np.finfo(np.float32).max):
        raise DTypeError(f"{function}: {name} reaches {float(abs(array).max()):.3g}, beyond float32; scale it down")
    # A copy, so that nobody can change what kernels have folded into other arrays.
    return interop.move(space.array(array, np.float32, order="C"), device)

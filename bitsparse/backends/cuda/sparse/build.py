"""Builders on the GPU: packed arrays from coordinates, sparse formats from CSR and back, sorting, transposes. Results equal the host's.

As on the host, every function checks its arguments. It waits for the outcome, with one or two synchronisations per call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.sparse.checks import (
    BOTH_INDICES,
    CHUNK,
    DAMAGED,
    FROM_END,
    THREADS,
    check_count,
    check_length,
    checked,
    contiguous_indices,
    launch,
    streaming,
)
from bitsparse.backends.cuda.sparse.checks import rows_of as rows_of
from bitsparse.backends.cuda.sparse.checks import validate_csr as validate_csr
from bitsparse.backends.cuda.sparse.entries import gather
from bitsparse.backends.cuda.sparse.windows import cells_of
from bitsparse.backends.params import packed_words
from bitsparse.jit import cupy

#: The most words of a row that one warp reads.
_SEGMENT = 1024
_WARPS = THREADS // 32
_MOST_BLOCKS = 1 << 20
#: Keys that a block of a transpose processes, and bits of a digit of its radix sort.
_TILE, _DIGIT_BITS = 4096, 8
_LARGEST_KEY = 1 << 63
#: The numbers that ``sparse/runs.cu`` gives to the dtypes that it sums.
_KINDS = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
_TRANSPOSE = "sparse/transpose.cu"

InverseParams = jit.struct("sparse/inverse.cu", "InverseParams")
BitParams = jit.struct("sparse/words.cu", "BitParams")
TransposeParams = jit.struct(_TRANSPOSE, "TransposeParams")
RunParams = jit.struct("sparse/runs.cu", "RunParams")


def _warps(items: int) -> int:
    """Blocks of a kernel that gives one warp to each item."""
    return min(_MOST_BLOCKS, -(-items // _WARPS))


def _contiguous_of(dtype: Any, array: Any, name: str) -> Any:
    """The array in C order; raises ValueError if it has another dtype."""
    if array.dtype != dtype:
        raise ValueError(f"{name} has dtype {array.dtype}, but {np.dtype(dtype)} is needed; convert it with astype")
    return cupy.ascontiguousarray(array)


# -- coordinates ------------------------------------------------------------------------------------------------------
def pack_coo(rows: Any, cols: Any, values: Any, shape: tuple[int, int], bits: int, *, axis: int, layout: str) -> Any:
    """Words of a two-dimensional array given by coordinates; codes at repeated coordinates are OR-ed. See the host backend."""
    outer, inner = (rows, cols) if axis == -1 else (cols, rows)
    outer_length, inner_length = shape[-3 - axis], shape[axis]
    width = packed_words(inner_length, bits, layout)
    plane = () if layout == "rows" else (bits,)
    words = cupy.zeros((outer_length, *plane, width), np.uint32)
    outer, inner = (cupy.ascontiguousarray(index, dtype=np.int64) for index in (outer, inner))
    codes = cupy.ascontiguousarray(values.astype(np.int64, copy=False))
    params = BitParams(None, None, outer.data.ptr, inner.data.ptr, codes.data.ptr, words.data.ptr)
    params.nnz, params.width, params.bits, params.fields = codes.size, width, bits, int(layout == "rows")
    launch("sparse/words.cu", "set_codes", np.dtype(np.int32), streaming(codes.size), params)
    return words


def csr_to_words(indptr: Any, indices: Any, shape: tuple[int, int]) -> Any:
    """Words ``(m, 1, W)`` of a 1-bit BitTensor in planes, packed along the columns, from a canonical CSR pattern."""
    indptr, indices = checked("csr_to_words", indptr, indices, shape)
    width = packed_words(shape[1], 1, "planes")
    words = cupy.zeros((shape[0], 1, width), np.uint32)
    params = BitParams(indptr.data.ptr, indices.data.ptr, words=words.data.ptr)
    params.rows, params.cols, params.nnz, params.width = *shape, indices.size, width
    launch("sparse/words.cu", "set_entries", indptr.dtype, -(-indices.size // CHUNK), params)
    return words


def words_to_csr(words: Any, shape: tuple[int, int], dtype: Any) -> tuple[Any, Any]:
    """The canonical CSR pattern of the set bits of 1-bit words that are packed along the columns; see the host backend."""
    dtype = np.dtype(dtype)
    words = _contiguous_of(np.uint32, words, "words")
    width = packed_words(shape[1], 1, "planes")
    check_length("words", words, shape[0] * width)
    segments = -(-width // _SEGMENT)
    spread = shape[0] * segments
    counts, found = cupy.zeros(spread + 1, np.int64), cupy.zeros(1, np.uint64)
    params = BitParams(words=words.data.ptr, counts=counts.data.ptr, found=found.data.ptr)
    params.rows, params.cols, params.width, params.segments, params.spread = *shape, width, segments, spread
    launch("sparse/words.cu", "count_bits", np.dtype(np.int64), _warps(spread), params)
    counts = cupy.cumsum(counts)
    total, bad = int(counts[-1]), int(found[0])
    if bad:
        raise ValueError(
            f"words_to_csr: row {FROM_END - bad} holds a column index that is negative or beyond the last column; {DAMAGED}"
        )
    check_count("set bits", total, dtype)
    starts, columns = counts.astype(dtype, copy=False), cupy.empty(total, dtype)
    params.counts, params.columns = starts.data.ptr, columns.data.ptr
    launch("sparse/words.cu", "list_bits", dtype, _warps(spread), params)
    if segments == 0:
        return cupy.zeros(shape[0] + 1, dtype), columns
    return cupy.ascontiguousarray(starts[::segments]), columns


# -- order ------------------------------------------------------------------------------------------------------------
def _order_of(major: Any, minor: Any, sizes: tuple[int, int]) -> Any:
    """The stable order (int64) by `major`, then by `minor`; their values are below `sizes`."""
    if sizes[0] * sizes[1] >= _LARGEST_KEY:
        return cupy.lexsort(cupy.stack([minor.astype(np.int64), major.astype(np.int64)]))
    keys = major.astype(np.int64)
    keys *= sizes[1]
    keys += minor
    return cupy.argsort(keys, kind="stable")


def canonical_csr(indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[Any, Any, bool]:
    """Sort the column indices of each row.

    Returns
    -------
    indices : cupy.ndarray
        The indices, ascending in each row; the given array itself if it is sorted already.
    order : cupy.ndarray of int64, or None
        The old position of each index (repeated columns keep their order); None if nothing was moved.
    has_duplicates : bool
        Whether any row holds a column more than once.

    Raises
    ------
    ValueError
        If :func:`validate_csr` finds the pattern damaged.
    """
    indptr, indices = contiguous_indices(indptr, indices)
    state = validate_csr(indptr, indices, shape)
    if state != "unsorted":
        return indices, None, state == "duplicates"
    rows = rows_of(indptr, indices.size)
    order = _order_of(rows, indices, shape)
    moved = indices[order]
    return moved, order, validate_csr(indptr, moved, shape) == "duplicates"


def sort_coordinates(rows: Any, cols: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    """The stable order of coordinates by row and then column (int64), and the row pointers of the sorted coordinates."""
    order = _order_of(rows, cols, shape)
    starts = cupy.searchsorted(rows[order], cupy.arange(shape[0] + 1, dtype=rows.dtype))
    return order, starts.astype(rows.dtype)


def sum_runs(values: Any, starts: Any) -> Any:
    """Sums of runs of consecutive rows, in the dtype of the values; `starts` (int64, ascending, the first 0) says where each run starts.

    Integers wrap. Booleans are counted, as int64. Floats, 16-bit ones in float32, are summed as NumPy sums up to eight entries: the first
    entry is added to the sum of the others, which are added one after another (NumPy adds more entries in pairs).
    """
    if values.dtype.kind in "biu":
        total = cupy.zeros((values.shape[0] + 1, *values.shape[1:]), np.int64)
        total[1:] = cupy.cumsum(values.astype(np.int64), axis=0)
        ends = cupy.concatenate([starts[1:], cupy.full(1, values.shape[0], starts.dtype)])
        sums = total[ends] - total[starts]
        return sums if values.dtype.kind == "b" else sums.astype(values.dtype)
    bits = values.view(np.uint16) if values.dtype.itemsize == 2 else values
    bits = cupy.ascontiguousarray(bits)
    out = cupy.empty((starts.size, *values.shape[1:]), bits.dtype)
    params = RunParams(bits.data.ptr, out.data.ptr, starts.data.ptr, starts.size, values.shape[0])
    params.width, params.kind = values[:1].size, _KINDS[values.dtype.name]
    launch("sparse/runs.cu", "sum_runs", np.dtype(np.int32), streaming(out.size), params)
    return out.view(values.dtype)


# -- transposes -------------------------------------------------------------------------------------------------------
def transpose_csr(indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """The transpose ``(indptr_T, indices_T, order)`` of a canonical pattern; its entry k is entry ``order[k]`` of the pattern.

    If the pattern is symmetric, `indptr` and `indices` themselves are returned. For a square pattern the call waits to find this out.
    """
    return transpose_both(indptr, indices, None, shape)[:3]


def transpose_both(indptr: Any, indices: Any, values: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """:func:`transpose_csr`, and the values in the order of the transpose (None if they are None)."""
    starts, columns = contiguous_indices(indptr, indices)
    if shape[0] == shape[1]:
        order, moved = _mirrors(starts, columns, values, shape[0])
        if order is not None:
            return indptr, indices, order, gather(values, order) if moved is None and values is not None else moved
    made, rows, order = _sorted_columns(starts, columns, shape)
    return made, rows, order, None if values is None else gather(values, order)


def _mirrors(starts: Any, columns: Any, values: Any, size: int) -> tuple[Any, Any]:
    """The position of each entry's mirror image, and one-dimensional values in that order; both None unless every entry has one."""
    order, unlike = cupy.empty(columns.size, starts.dtype), cupy.zeros(2, np.int64)
    params = TransposeParams(starts.data.ptr, columns.data.ptr, order.data.ptr, unlike=unlike.data.ptr)
    params.rows, params.nnz, moved = size, columns.size, None
    if values is not None and values.ndim == 1:
        bits = interop.as_bits(interop.contiguous(values))  # has to live until the kernel is enqueued
        room = cupy.empty(bits.shape, bits.dtype)
        params.values, params.out, params.unit = bits.data.ptr, room.data.ptr, bits.dtype.itemsize
        moved = room if room.dtype == values.dtype else room.view(values.dtype)
    launch(_TRANSPOSE, "find_mirrors", starts.dtype, -(-columns.size // CHUNK), params)
    return (None, None) if columns.size and any(unlike.get().tolist()) else (order, moved)


def _sorted_columns(starts: Any, columns: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """The transpose by a stable radix sort of the columns, without waiting for the GPU."""
    index, nnz = starts.dtype, columns.size
    blocks = -(-nnz // _TILE)
    params = jit.filled(TransposeParams(), rows=shape[0], cols=shape[1], nnz=nnz, blocks=blocks)
    keys, ids = columns, None
    for shift in range(0, max(1, (shape[1] - 1).bit_length()) if nnz else 0, _DIGIT_BITS):
        counts = cupy.empty((blocks << _DIGIT_BITS) + 1, index)
        params.shift = shift
        jit.filled(params, keys=keys, ids=ids, counts=counts)
        launch(_TRANSPOSE, "count_digits", index, blocks, params)
        before = cupy.cumsum(counts, dtype=index)
        moved, named = cupy.empty(nnz, index), cupy.empty(nnz, index)
        jit.filled(params, before=before, keys_out=moved, ids_out=named)
        launch(_TRANSPOSE, "move_digits", index, blocks, params)
        keys, ids = moved, named
    made = cupy.empty(shape[1] + 1, index)
    jit.filled(params, keys=keys, starts=made)
    launch(_TRANSPOSE, "start_columns", index, streaming(made.size), params)
    order = cupy.empty(0, index) if ids is None else ids
    return made, gather(rows_of(starts, nnz), order), order


# -- windows ----------------------------------------------------------------------------------------------------------
def translate(
    indptr: Any, indices: Any, shape: tuple[int, int], window: int, *, checked: bool = False
) -> tuple[Any, ...]:
    """Sparse graph translation (TC-GNN section 4.1, Algorithm 1) of a canonical CSR pattern, for windows of up to 256 rows.

    With `checked`, the pattern is assumed to be canonical, which saves a pass over it and a wait.

    Returns
    -------
    cols_indptr, cols, edge_col : cupy.ndarray
        As :class:`bitsparse.TCTiledCSR` defines them.
    """
    found = cells_of("translate", indptr, indices, shape, window, 0, "positions", believed=checked)
    return found.starts, found.cells, found.edge_col


# -- 4 x 4 blocks -----------------------------------------------------------------------------------------------------
def frdc(indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """4 x 4 bit blocks (BitGNN section 3.2) of a canonical CSR pattern: ``(indptr, indices, tiles)``."""
    made = cells_of("frdc", indptr, indices, shape, 4, 2, "tiles")
    return made.starts, made.cells, made.tiles


def frdc_to_csr(indptr: Any, indices: Any, tiles: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    """The canonical CSR pattern ``(indptr, indices)`` of the set bits; raises ValueError for arrays that :func:`frdc` never returns."""
    tiles = _contiguous_of(np.uint16, tiles, "tiles")
    blocks = (-(-shape[0] // 4), -(-shape[1] // 4))
    check_length("tiles", tiles, indices.size)
    block_starts, block_columns = checked("FRDC", indptr, indices, blocks)
    dtype = block_starts.dtype
    found, rows = cupy.zeros(1, np.uint64), cupy.zeros(shape[0] + 1, dtype)
    params = InverseParams(block_starts.data.ptr, block_columns.data.ptr, tiles=tiles.data.ptr, found=found.data.ptr)
    params.rows, params.cols, params.windows = *shape, blocks[0]
    params.indptr = rows.data.ptr
    launch("sparse/inverse.cu", "count_tiles", dtype, _warps(params.windows), params)
    total = int(rows.sum(dtype=np.int64))
    bad = int(found[0])
    if bad:
        raise ValueError(f"FRDC: block row {FROM_END - bad} holds an empty tile or bits beyond the shape; {DAMAGED}")
    check_count("set bits", total, dtype)
    starts, made = cupy.cumsum(rows, dtype=dtype), cupy.empty(total, dtype)
    params.indptr, params.indices = starts.data.ptr, made.data.ptr
    launch("sparse/inverse.cu", "fill_tiles", dtype, _warps(params.windows), params)
    return starts, made


VARIANTS = [
    *jit.variants_of(_TRANSPOSE, "move_digits", BOTH_INDICES),
    *jit.variants_of("sparse/runs.cu", "sum_runs"),
    *jit.variants_of("sparse/inverse.cu", "count_tiles", BOTH_INDICES),
    *jit.variants_of("sparse/words.cu", "list_bits", BOTH_INDICES),
]

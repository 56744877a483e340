"""Builders on the GPU: packed arrays from coordinates, the sparse formats from CSR and back. The host's arrays, bit for bit.

Every function checks what it is given, as on the host, and waits for the answer (one or two synchronisations a call).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import (
    BOTH_INDICES,
    CHUNK,
    DAMAGED,
    FROM_END,
    THREADS,
    check_length,
    checked,
    launch,
    rows_of,
    streaming,
    validate_csr,
)
from bitsparse.backends.cuda.sparse.order import canonical_csr, sort_coordinates, sum_runs
from bitsparse.backends.cuda.sparse.transpose import transpose_both, transpose_csr
from bitsparse.backends.cuda.sparse.windows import cells_of
from bitsparse.backends.params import packed_words
from bitsparse.jit import cupy

__all__ = [
    "canonical_csr",
    "csr_to_words",
    "frdc",
    "frdc_to_csr",
    "pack_coo",
    "rows_of",
    "sort_coordinates",
    "sum_runs",
    "translate",
    "transpose_both",
    "transpose_csr",
    "validate_csr",
    "words_to_csr",
]

#: Words of a row that a warp reads.
_SEGMENT = 1024
_WARPS = THREADS // 32
_MOST_BLOCKS = 1 << 20


InverseParams = jit.struct("sparse/inverse.cu", "InverseParams")
BitParams = jit.struct("sparse/words.cu", "BitParams")


def _warps(items: int) -> int:
    """Blocks of a kernel with a warp an item."""
    return min(_MOST_BLOCKS, -(-items // _WARPS))


def _of(array: Any, dtype: Any, name: str) -> Any:
    if array.dtype != dtype:
        raise ValueError(f"{name} has dtype {array.dtype}, but {np.dtype(dtype)} is needed; convert it with astype")
    return cupy.ascontiguousarray(array)


# -- coordinates ------------------------------------------------------------------------------------------------------
def pack_coo(rows: Any, cols: Any, values: Any, shape: tuple[int, int], bits: int, *, axis: int, layout: str) -> Any:
    """Words of a two-dimensional array given by coordinates; repeated coordinates are or-ed. See the host backend."""
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
    words = _of(words, np.uint32, "words")
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
    if total > np.iinfo(dtype).max:
        raise ValueError(f"the number of set bits is {total} but must lie between 0 and {np.iinfo(dtype).max}")
    starts, columns = counts.astype(dtype, copy=False), cupy.empty(total, dtype)
    params.counts, params.columns = starts.data.ptr, columns.data.ptr
    launch("sparse/words.cu", "list_bits", dtype, _warps(spread), params)
    if segments == 0:
        return cupy.zeros(shape[0] + 1, dtype), columns
    return cupy.ascontiguousarray(starts[::segments]), columns


# -- windows ----------------------------------------------------------------------------------------------------------
def translate(
    indptr: Any, indices: Any, shape: tuple[int, int], window: int, *, checked: bool = False
) -> tuple[Any, ...]:
    """Sparse graph translation (TC-GNN section 4.1, Algorithm 1) of a canonical CSR pattern, for windows of up to 256 rows.

    With `checked` the pattern is believed, which saves a pass over it and a wait.

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
    """The canonical CSR pattern ``(indptr, indices)`` of the set bits; ValueError if :func:`frdc` makes no such arrays."""
    tiles = _of(tiles, np.uint16, "tiles")
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
    if total > np.iinfo(dtype).max:
        raise ValueError(f"the number of set bits is {total} but must lie between 0 and {np.iinfo(dtype).max}")
    starts, made = cupy.cumsum(rows, dtype=dtype), cupy.empty(total, dtype)
    params.indptr, params.indices = starts.data.ptr, made.data.ptr
    launch("sparse/inverse.cu", "fill_tiles", dtype, _warps(params.windows), params)
    return starts, made


VARIANTS = [
    *jit.variants_of("sparse/inverse.cu", "count_tiles", BOTH_INDICES),
    *jit.variants_of("sparse/words.cu", "list_bits", BOTH_INDICES),
]

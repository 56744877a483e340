"""Builders on the GPU: the sparse formats from CSR and back, canonical and transposed patterns. The host's arrays, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit

__all__ = [
    "canonical_csr",
    "frdc",
    "frdc_to_csr",
    "rows_of",
    "tile_starts",
    "translate",
    "translated_to_csr",
    "transpose_csr",
    "validate_csr",
]

_TALLEST = 256
_DAMAGED = "the arrays are damaged or belong to another shape"


def _check_indices(*arrays: Any) -> None:
    """Index arrays share one dtype."""
    dtypes = {array.dtype for array in arrays}
    if dtypes not in ({np.dtype(np.int32)}, {np.dtype(np.int64)}):
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise ValueError(f"index arrays must all be int32 or all int64, got {names}; convert them with astype")


def _check_starts(what: str, starts: Any, rows: int, nnz: int) -> None:
    if starts.size != rows + 1:
        raise ValueError(
            f"{what} has {starts.size} entries, but {rows + 1} are needed; the array is truncated or belongs to another shape"
        )
    if int(starts[0]) != 0 or int(starts[-1]) != nnz or bool((starts[1:] < starts[:-1]).any()):
        raise ValueError(f"{what} must start at 0, never fall and end at {nnz}; {_DAMAGED}")


def rows_of(indptr: Any, nnz: int) -> Any:
    """The row of every entry of a valid `indptr`."""
    cupy = jit.require_cupy("rows_of")
    marks = cupy.zeros(nnz + 1, indptr.dtype)
    cupy.add.at(marks, indptr[1:-1], marks.dtype.type(1))
    return cupy.cumsum(marks[:-1], dtype=indptr.dtype)


def validate_csr(indptr: Any, indices: Any, shape: tuple[int, int]) -> str:
    """What a CSR pattern is like, without believing anything about it; see the host backend."""
    _check_indices(indptr, indices)
    _check_starts("indptr", indptr, shape[0], indices.size)
    if indices.size == 0:
        return "canonical"
    if int(indices.min()) < 0 or int(indices.max()) >= shape[1]:
        raise ValueError(f"CSR: a column index is negative or beyond the last column; {_DAMAGED}")
    rows = rows_of(indptr, indices.size)
    same = rows[1:] == rows[:-1]
    if bool((same & (indices[1:] < indices[:-1])).any()):
        return "unsorted"
    return "duplicates" if bool((same & (indices[1:] == indices[:-1])).any()) else "canonical"


def _canonical(what: str, indptr: Any, indices: Any, shape: tuple[int, int]) -> None:
    state = validate_csr(indptr, indices, shape)
    if state != "canonical":
        trouble = "are not ascending" if state == "unsorted" else "hold a column twice"
        raise ValueError(f"{what}: column indices of a row {trouble}; {_DAMAGED}")


def _ordered(keys: list[Any], sizes: list[int]) -> Any:
    """A stable order by several keys, the first one leading."""
    cupy = jit.require_cupy("order")
    total = 1
    for size in sizes:
        total *= max(size, 1)
    if total >= 1 << 62:
        return cupy.lexsort(cupy.stack([key.astype(np.int64) for key in reversed(keys)]))
    packed = keys[0].astype(np.int64)
    for key, size in zip(keys[1:], sizes[1:], strict=True):
        packed *= max(size, 1)
        packed += key
    return cupy.argsort(packed)


def _cells(indptr: Any, indices: Any, shape: tuple[int, int], window: int, shift: int) -> tuple[Any, ...]:
    """Starts of the cells of each window, the cells, and for every edge in order: row in window, cell, position."""
    cupy = jit.require_cupy("translate")
    edges = window_starts_of(indptr, window)
    rows = rows_of(indptr, indices.size)
    order = _ordered([rows // window, indices >> shift, rows], [-(-shape[0] // window), shape[1], shape[0]])
    rows, cells = rows[order], indices[order] >> shift
    first = cupy.ones(indices.size, np.bool_)
    windows = rows // window
    first[1:] = (cells[1:] != cells[:-1]) | (windows[1:] != windows[:-1])
    count = cupy.zeros(indices.size + 1, indptr.dtype)
    cupy.cumsum(first, dtype=indptr.dtype, out=count[1:])
    starts = count[edges]
    position = (count[1:] - 1 - starts[windows]).astype(np.int32)
    return starts, cells[first], (rows % window).astype(np.uint8), position, order.astype(indptr.dtype)


def window_starts_of(indptr: Any, window: int) -> Any:
    """Where the entries of each window of rows start, and where the last one ends."""
    cupy = jit.require_cupy("window_starts")
    rows = indptr.shape[0] - 1
    return indptr[cupy.minimum(cupy.arange(-(-rows // window) + 1) * window, rows)]


def tile_starts(indptr: Any, indices: Any, shape: tuple[int, int], window: int, width: int) -> Any:
    """Where the non-empty tiles of each window start; see the host backend."""
    shift = width.bit_length() - 1
    if width < 1 or width != 1 << shift:
        raise ValueError(f"tile_starts: width is {width}, but a power of two is needed")
    _canonical("tile_starts", indptr, indices, shape)
    return _cells(indptr, indices, shape, window, shift)[0]


def translate(indptr: Any, indices: Any, shape: tuple[int, int], window: int) -> tuple[Any, ...]:
    """Sparse graph translation of a canonical CSR pattern; see the host backend. Windows of up to 256 rows.

    Returns
    -------
    cols_indptr, cols, edge_indptr, edge_row, edge_col, perm : cupy.ndarray
    """
    if not 1 <= window <= _TALLEST:
        raise ValueError(f"window is {window} but must lie between 1 and {_TALLEST}")
    _canonical("translate", indptr, indices, shape)
    starts, cols, row, col, perm = _cells(indptr, indices, shape, window, 0)
    return starts, cols, window_starts_of(indptr, window), row, col, perm


def translated_to_csr(
    cols_indptr: Any,
    cols: Any,
    edge_indptr: Any,
    edge_row: Any,
    edge_col: Any,
    perm: Any,
    shape: tuple[int, int],
    window: int,
) -> tuple[Any, Any]:
    """The canonical CSR pattern that was translated; see the host backend."""
    cupy = jit.require_cupy("translated_to_csr")
    _check_indices(cols_indptr, cols, edge_indptr, perm)
    windows, nnz = -(-shape[0] // window), edge_row.size
    for name, array in (("edge_col", edge_col), ("perm", perm)):
        if array.size != nnz:
            raise ValueError(f"{name} has {array.size} entries, but {nnz} are needed; {_DAMAGED}")
    _check_starts("cols_indptr", cols_indptr, windows, cols.size)
    _check_starts("edge_indptr", edge_indptr, windows, nnz)
    trouble = ValueError(f"TCTiledCSR: edges are out of range or not sorted by column and row; {_DAMAGED}")
    of = rows_of(edge_indptr, nnz)
    rows = of.astype(np.int64) * window + edge_row
    place = cols_indptr[of].astype(np.int64) + edge_col
    if nnz and not (
        bool((edge_row < window).all())
        and bool((rows < shape[0]).all())
        and bool((edge_col >= 0).all())
        and bool((place < cols_indptr[of + 1]).all())
        and bool((perm >= 0).all())
        and bool((perm < nnz).all())
    ):
        raise trouble
    indptr = cupy.zeros(shape[0] + 1, cols_indptr.dtype)
    cupy.add.at(indptr, rows + 1, indptr.dtype.type(1))
    indptr = cupy.cumsum(indptr, dtype=indptr.dtype)
    indices = cupy.full(nnz, -1, cols_indptr.dtype)
    indices[perm] = cols[place] if nnz else cols[:0]
    _canonical("TCTiledCSR", indptr, indices, shape)
    again = _cells(indptr, indices, shape, window, 0)
    for one, other in zip((cols_indptr, cols, edge_row, edge_col, perm), again, strict=True):
        if one.shape != other.shape or bool((one != other).any()):
            raise trouble
    return indptr, indices


def frdc(indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """4 x 4 bit blocks of a canonical CSR pattern; see the host backend."""
    cupy = jit.require_cupy("frdc")
    _canonical("frdc", indptr, indices, shape)
    starts, blocks, row, col, perm = _cells(indptr, indices, shape, 4, 2)
    tiles = cupy.zeros(blocks.size, np.int32)
    of = rows_of(window_starts_of(indptr, 4), indices.size)
    bits = cupy.left_shift(np.int32(1), 4 * row.astype(np.int32) + (indices[perm] & 3).astype(np.int32))
    cupy.add.at(tiles, starts[of] + col, bits)
    return starts, blocks, tiles.astype(np.uint16)


def frdc_to_csr(indptr: Any, indices: Any, tiles: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
    """The canonical CSR pattern of the set bits; see the host backend."""
    cupy = jit.require_cupy("frdc_to_csr")
    blocks = (-(-shape[0] // 4), -(-shape[1] // 4))
    if tiles.size != indices.size:
        raise ValueError(f"tiles has {tiles.size} entries, but {indices.size} are needed; {_DAMAGED}")
    _canonical("FRDC", indptr, indices, blocks)
    set_bits = (tiles[:, None] >> cupy.arange(16, dtype=np.uint16)) & 1
    at, bit = cupy.nonzero(set_bits)
    rows = rows_of(indptr, indices.size)[at].astype(np.int64) * 4 + bit // 4
    cols = indices[at].astype(np.int64) * 4 + bit % 4
    if bool((tiles == 0).any()) or (rows.size and (int(rows.max()) >= shape[0] or int(cols.max()) >= shape[1])):
        raise ValueError(f"FRDC: a block row holds an empty tile or bits beyond the shape; {_DAMAGED}")
    made = cupy.zeros(shape[0] + 1, indptr.dtype)
    cupy.add.at(made, rows + 1, made.dtype.type(1))
    order = _ordered([rows, cols], list(shape))
    return cupy.cumsum(made, dtype=indptr.dtype), cols[order].astype(indptr.dtype)


def canonical_csr(indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[Any, Any, bool]:
    """Column indices that ascend in every row.

    Returns
    -------
    indices : cupy.ndarray
        Sorted in each row; those given where they are sorted already.
    order : cupy.ndarray of int64, or None
        Where each came from (repeated columns keep their order); None if nothing was moved.
    has_duplicates : bool
        Whether a row holds a column more than once.

    Raises
    ------
    ValueError
        As :func:`validate_csr`.
    """
    state = validate_csr(indptr, indices, shape)
    if state != "unsorted":
        return indices, None, state == "duplicates"
    rows = rows_of(indptr, indices.size)
    order = _ordered([rows, indices], list(shape))
    moved = indices[order]
    return moved, order, bool(((moved[1:] == moved[:-1]) & (rows[1:] == rows[:-1])).any())


def transpose_csr(indptr: Any, indices: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """The transposed pattern of a canonical CSR pattern: ``(indptr_T, indices_T, order)``; entry k of it is entry ``order[k]``."""
    cupy = jit.require_cupy("transpose_csr")
    rows = rows_of(indptr, indices.size)
    order = _ordered([indices, rows], [shape[1], shape[0]])
    starts = cupy.zeros(shape[1] + 1, indptr.dtype)
    cupy.add.at(starts, indices.astype(np.int64) + 1, starts.dtype.type(1))
    return cupy.cumsum(starts, dtype=indptr.dtype), rows[order], order.astype(indptr.dtype)

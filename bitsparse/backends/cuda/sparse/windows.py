"""Windows of rows sorted by column on the GPU: the cells that occur in each, and every entry's place among them."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS, checked, constants, launch

__all__ = ["TALLEST", "Cells", "cells_of"]

#: Rows of a window at most, as a row in its window is a byte.
TALLEST = 256
#: Threads of a block, and the most entries of the windows that it sorts. The last one sorts what shared memory holds.
_CLASSES = ((64, 256), (128, 1024), (256, 3072), (512, 6144), (1024, 1 << 20))
#: Shared memory that is not for entries: bounds of rows, counts of warps, and room for what a compiler adds.
_STATIC_BYTES = 3072
#: Blocks that share the entries of a window that is too full for shared memory, and the most such windows along a grid.
_RANK_BLOCKS, _GRID_Y = 64, 65535


WindowParams = jit.struct("sparse/windows.cu", "WindowParams")


class Cells(NamedTuple):
    """What :func:`cells_of` finds; None where it was not asked for."""

    edges: Any  # where the entries of each window start
    starts: Any  # where its cells start
    cells: Any = None  # columns, or blocks of them
    tiles: Any = None  # bits of 4 x 4 blocks
    perm: Any = None  # of each entry: its place in the CSR array,
    edge_row: Any = None  # its row in the window
    edge_cell: Any = None  # and its cell among those of the window
    edge_col: Any = None  # the same cells in the order of the CSR array
    most: int = 0  # at least the cells of a window, where their positions were asked for; exact beyond 256


def _sort(params: ctypes.Structure, dtype: Any, tallest: int) -> int:
    """Sort the windows that fit shared memory; the number of entries that fit."""
    kernel = jit.kernel("sparse/windows.cu", "order_windows", constants(dtype))
    item = 2 * (dtype.itemsize + 4)
    most = min(_CLASSES[-1][1], (jit.capability().shared_bytes - _STATIC_BYTES) // item)
    low = -1
    for threads, capacity in _CLASSES:
        params.low, params.capacity = low, min(capacity, most)
        kernel.launch(params.windows, threads, params, shared=item * params.capacity)()
        low = params.capacity
        if low >= min(tallest, most):
            break
    return low


def _rank(cupy: Any, params: ctypes.Structure, edges: Any, fits: int) -> None:
    """Sort and number the windows that do not fit."""
    full = cupy.flatnonzero(edges[1:] - edges[:-1] > fits)
    params.full, params.fulls = full.data.ptr, full.size
    kernel = jit.kernel("sparse/windows.cu", "rank_windows", constants(edges.dtype))
    kernel.launch((_RANK_BLOCKS, min(full.size, _GRID_Y), 1), THREADS, params)()
    number = jit.kernel("sparse/windows.cu", "number_cells", constants(edges.dtype))
    number.launch(min(full.size, _GRID_Y), 1024, params)()


def cells_of(
    what: str,
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    window: int,
    shift: int,
    *,
    entries: bool = False,
    positions: bool = False,
    tiles: bool = False,
    count_only: bool = False,
) -> Cells:
    """The cells of every window of rows: groups of ``2**shift`` columns in which it has an entry.

    Parameters
    ----------
    what : str
        Who asks, for messages.
    indptr, indices, shape
        A canonical pattern, which is checked.
    window, shift : int
    entries : bool
        Also say of each entry where it stands.
    positions : bool
        Also give the cell of each entry in the order of the CSR array, and a bound on the cells of a window.
    tiles : bool
        Also give the bits of blocks (windows of 4 rows, shift 2).
    count_only : bool
        Give nothing but the starts.
    """
    cupy = jit.require_cupy(what)
    if not 1 <= window <= TALLEST:
        raise ValueError(f"{what}: window is {window} but must lie between 1 and {TALLEST}")
    indptr, indices, edges, tallest = checked(what, indptr, indices, shape, window)
    if tallest > np.iinfo(np.int32).max:
        raise ValueError(f"{what}: a window has {tallest} entries, beyond int32; make the window smaller")
    nnz, windows, dtype = indices.size, edges.size - 1, indptr.dtype
    starts = cupy.zeros(windows + 1, dtype) if windows == 0 else cupy.empty(windows + 1, dtype)
    params = WindowParams(indptr.data.ptr, indices.data.ptr, edges.data.ptr, counts=starts.data.ptr)
    params.rows, params.windows, params.window, params.shift = shape[0], windows, window, shift
    room = None if count_only else cupy.empty(nnz, dtype)
    bits = cupy.empty(nnz, np.uint16) if tiles else None
    perm = edge_row = edge_cell = most = None
    edge_col = cupy.empty(nnz, np.int32) if positions else None
    if entries:
        perm, edge_row, edge_cell = (cupy.empty(nnz, kind) for kind in (dtype, np.uint8, np.int32))
        params.perm, params.edge_row, params.edge_cell = perm.data.ptr, edge_row.data.ptr, edge_cell.data.ptr
    for name, array in (("cells", room), ("tiles", bits), ("edge_col", edge_col)):
        setattr(params, name, None if array is None else array.data.ptr)
    if windows:
        fits = _sort(params, dtype, tallest)
        if tallest > fits:
            if not entries:  # ranks are written somewhere
                ranks, rows = cupy.empty(nnz, dtype), cupy.empty(nnz, np.uint8)
                params.perm, params.edge_row = ranks.data.ptr, rows.data.ptr
            _rank(cupy, params, edges, fits)
        # No window has more cells than entries; only where that says too little is the exact number looked for.
        most = starts.max() if positions and tallest > 256 else None
        starts = cupy.cumsum(starts, dtype=dtype)
    if count_only:
        return Cells(edges, starts)
    total, longest = int(starts[-1]), tallest if most is None else int(most)
    packed = cupy.empty(total, dtype)
    packed_bits = cupy.empty(total, np.uint16) if tiles else None
    params.counts, params.packed = starts.data.ptr, packed.data.ptr
    params.packed_tiles = None if packed_bits is None else packed_bits.data.ptr
    launch("sparse/windows.cu", "pack_cells", dtype, min(1 << 20, -(-windows // (THREADS // 32))), params)
    return Cells(edges, starts, packed, packed_bits, perm, edge_row, edge_cell, edge_col, longest)


VARIANTS = jit.variants_of("sparse/windows.cu", "order_windows", BOTH_INDICES)

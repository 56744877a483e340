"""Sorting the entries of windows of rows by column on the GPU: the cells of each window, and every entry's cell."""

from __future__ import annotations

import ctypes
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse.checks import (
    BOTH_INDICES,
    THREADS,
    constants,
    contiguous_indices,
    launch,
    refuse,
    start_check,
    streaming,
)
from bitsparse.backends.params import position_dtype
from bitsparse.jit import cupy

#: The most rows of a window, since the number of a row in its window is a byte.
TALLEST = 256
#: For each class of windows: threads of a block, and the most entries of a window. The last class takes what fits in shared memory.
_CLASSES = ((64, 256), (128, 1024), (256, 3072), (512, 6144), (1024, 1 << 20))
#: Shared memory that is not for entries: bounds of rows, counts of warps, and a reserve for what the compiler adds.
_STATIC_BYTES = 3072
#: Blocks that share the entries of a window that is too full for shared memory, and the most such windows along a grid.
_RANK_BLOCKS, _GRID_Y = 64, 65535
#: Threads that a multiprocessor gets over several rounds, so that all finish together; parts of the windows, whose cells are added up.
_ROUNDS, _PARTS = 4 * 2048, 1024
#: Positions of the kernels' figures: after the four counts of a check, and before the number of windows of each class.
_TALLEST, _MOST, _TOTAL, _LISTED = range(4, 8)


WindowParams = jit.struct("sparse/windows.cu", "WindowParams")


class Cells(NamedTuple):
    """The result of :func:`cells_of`; parts that were not requested are None."""

    edges: Any  # where the entries of each window start; None unless entries are wanted
    starts: Any  # where the cells of each window start
    cells: Any = None  # columns, or blocks of columns
    tiles: Any = None  # bits of 4 x 4 blocks
    perm: Any = None  # for each entry, in the order of windows: its place in the CSR array
    edge_row: Any = None  # for each entry: its row in the window
    edge_cell: Any = None  # for each entry: its cell among those of the window
    edge_col: Any = None  # the same cells in the order of the CSR array, in the smallest dtype that holds them


def _capacities(dtype: Any, shared_bytes: int) -> list[int]:
    """The most entries of a window of each class, limited by shared memory."""
    most = min(_CLASSES[-1][1], (shared_bytes - _STATIC_BYTES) // (2 * (dtype.itemsize + 4)))
    return sorted({min(capacity, most) for _, capacity in _CLASSES})


def _sort(params: ctypes.Structure, dtype: Any, nnz: int, tallest: int) -> None:
    """Sort the windows of every class, and number their cells."""
    item, low, capacities = 2 * (dtype.itemsize + 4), 0, params.capacities[: params.classes]
    multiprocessors = jit.capability().multiprocessors
    kernel = jit.kernel("sparse/windows.cu", "order_windows", constants(dtype))
    launch = kernel.launch(1, 1, params, shared=item * capacities[-1])
    config = launch.config  # one launch for all classes: preparing it takes longer than enqueueing it
    for place, ((threads, _), capacity) in enumerate(zip(_CLASSES, capacities, strict=False)):
        params.list, params.capacity = place, capacity
        # At most nnz // (low + 1) windows have more entries than those of the previous class.
        config.grid[0] = min(params.windows, nnz // (low + 1), multiprocessors * (_ROUNDS // threads))
        config.block[0], config.shared = threads, item * capacity
        if low < min(tallest, nnz):
            launch()
        low = capacity


def _rank(params: ctypes.Structure, dtype: Any, nnz: int) -> None:
    """Sort the windows that do not fit in shared memory, and number their cells."""
    params.list = params.classes
    blocks = min(nnz // params.capacities[params.classes - 1], _GRID_Y)
    kernel = jit.kernel("sparse/windows.cu", "rank_windows", constants(dtype))
    kernel.run((_RANK_BLOCKS, blocks, 1), THREADS, params)
    jit.kernel("sparse/windows.cu", "number_cells", constants(dtype)).run(blocks, 1024, params)


def cells_of(
    what: str,
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    window: int,
    shift: int,
    want: str,
    *,
    believed: bool = False,
) -> Cells:
    """The cells of every window of rows: the groups of ``2**shift`` columns in which the window has an entry.

    Parameters
    ----------
    what : str
        The caller's name, for messages.
    indptr, indices, shape
        A canonical pattern, which is checked unless `believed`.
    window, shift : int
    want : {"starts", "entries", "positions", "tiles"}
        "starts": only where cells start. The others also return the cells, and "entries": the entries in the order of windows;
        "positions": each entry's cell in the order of the CSR array; "tiles": the bits of blocks (windows of 4 rows, shift 2).
    believed : bool
        The pattern is known to be canonical. This saves a pass over it and a wait for the stream.
    """
    if not 1 <= window <= TALLEST:
        raise ValueError(f"{what}: window is {window} but must lie between 1 and {TALLEST}")
    count_only, entries, positions, tiles = (want == each for each in ("starts", "entries", "positions", "tiles"))
    indptr, indices = contiguous_indices(indptr, indices)
    nnz, windows, dtype = indices.size, -(-shape[0] // window), indptr.dtype
    found = cupy.zeros(_LISTED + len(_CLASSES) + 1 + _PARTS, np.uint64)
    if not believed:
        start_check(indptr, indices, shape, found)
    capacities = _capacities(dtype, jit.capability().shared_bytes)
    sizes = (windows + 1, windows, (len(capacities) + 1) * windows, 0 if count_only else nnz)
    work = cupy.empty(sum(sizes), dtype)
    edges, counts, lists, room = (work.data.ptr + dtype.itemsize * place for place in (0, *accumulate(sizes[:-1])))
    params = WindowParams(indptr.data.ptr, indices.data.ptr, found.data.ptr, edges, lists, counts=counts)
    params.sums = found.data.ptr + found.dtype.itemsize * (found.size - _PARTS)
    params.rows, params.windows, params.window, params.shift = shape[0], windows, window, shift
    params.part, params.classes = max(1, -(-windows // _PARTS)), len(capacities)
    params.capacities[: len(capacities)] = capacities
    launch("sparse/windows.cu", "list_windows", dtype, streaming(windows), params)
    bits = cupy.empty(nnz, np.uint16) if tiles else None
    if not count_only:
        jit.filled(params, cells=room, tiles=bits)
    kinds = {"perm": dtype, "edge_row": np.uint8, "edge_cell": np.int32} if entries else {}
    of_entries = {name: cupy.empty(nnz, kind) for name, kind in kinds.items()}
    jit.filled(params, **of_entries)
    places: dict[Any, Any] = {}
    if positions:  # written in two dtypes, since only the kernels find out which one holds them all
        places = {kind: cupy.empty(nnz, kind) for kind in (np.uint8, np.uint16)}
        params.edge_byte, params.edge_short = (array.data.ptr for array in places.values())
    if not believed:
        figures = found.get()
        refuse(what, figures, indptr, indices, shape)
    _sort(params, dtype, nnz, nnz if believed else int(figures[_TALLEST]))
    starts = cupy.empty(windows + 1, dtype) if windows else cupy.zeros(1, dtype)
    params.starts = starts.data.ptr
    # Prepared while the GPU sorts.
    pack = jit.kernel("sparse/windows.cu", "pack_cells", constants(dtype)).launch(
        -(-windows // params.part), THREADS, params
    )
    if believed:
        figures = found.get()
    tallest = int(figures[_TALLEST])
    if tallest > np.iinfo(np.int32).max:
        raise ValueError(f"{what}: a window has {tallest} entries, beyond int32; make the window smaller")
    if tallest > capacities[-1]:
        if not entries:  # the kernels need room for ranks
            ranks, rows = cupy.empty(nnz, dtype), cupy.empty(nnz, np.uint8)
            params.perm, params.edge_row = ranks.data.ptr, rows.data.ptr
        if positions and min(tallest, shape[1]) > 1 << 16:
            places[np.int32] = places[np.uint16].astype(np.int32)
            params.edge_int = places[np.int32].data.ptr
        _rank(params, dtype, nnz)
    packed = packed_bits = None
    if not count_only:
        if not believed or tallest > capacities[-1]:
            figures = found.get()
        total = int(figures[_TOTAL])
        packed, packed_bits = cupy.empty(total, dtype), cupy.empty(total, np.uint16) if tiles else None
        jit.filled(params, packed=packed, packed_tiles=packed_bits)
    if windows:
        pack()
    edge_col = places[position_dtype(int(figures[_MOST])).type] if positions else None
    edges_of = work[: windows + 1] if entries else None
    return Cells(edges_of, starts, packed, packed_bits, edge_col=edge_col, **of_entries)


VARIANTS = jit.variants_of("sparse/windows.cu", "order_windows", BOTH_INDICES)

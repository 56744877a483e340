"""Sums of float32 features on the GPU's CUDA cores, in windows of eight rows, for patterns whose neighbouring rows share columns."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.csr.schedule import Workspaces
from bitsparse.backends.cuda.finish.floats import BIAS, RELU, Behind, Finish, finish_constants
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS, launch, streaming
from bitsparse.backends.cuda.sparse.windows import cells_of
from bitsparse.jit import cupy

#: Rows of a window, and entries (columns of a window) that the kernel takes at a time.
ROWS, BATCH = 8, 4
#: Warps assumed on a multiprocessor, parts that each of them should get, and the fewest and most entries of a part.
_WARPS, _ROUNDS, _SHORTEST, _LONGEST = 24, 4, 128, 512


WindowsParams = jit.struct("spmm/windows.cu", "WindowsParams")
FinishedParams = jit.struct("spmm/windows.cu", "WindowsParams", optional=True)
FillParams = jit.struct("spmm/windows_fill.cu", "FillParams")
WeighParams = jit.struct("spmm/windows_fill.cu", "WeighParams")


class Windows:
    """A canonical pattern in windows of eight rows; made once, and kept by the pattern's owner.

    Parameters
    ----------
    indptr, indices : cupy.ndarray of int32 or int64
    shape : tuple of int
        Fewer than 2**32 columns.
    part : int, optional
        Windows with more entries than this are cut into parts; a multiple of 4. By default it is chosen to balance the work of the warps.

    Attributes
    ----------
    reuse : float
        Edges per gathered row of features.
    """

    def __init__(self, indptr: Any, indices: Any, shape: tuple[int, int], *, part: int | None = None) -> None:
        found = cells_of("spmm", indptr, indices, shape, ROWS, 0, "entries")
        windows, self.shape, self.nnz = int(found.starts.size) - 1, shape, int(indices.size)
        padded = (found.starts[1:] - found.starts[:-1] + (BATCH - 1)).astype(np.int64) // BATCH * BATCH
        if part is None:
            each_warp = int(found.cells.size) // (jit.capability().multiprocessors * _WARPS * _ROUNDS)
            part = max(_SHORTEST, min(_LONGEST, each_warp // BATCH * BATCH))
        first, parts = cupy.zeros(windows + 1, np.int64), cupy.zeros(windows + 1, np.int64)
        each = cupy.maximum(1, -(-padded // part))
        first[1:], parts[1:] = cupy.cumsum(padded), cupy.cumsum(each)
        total, units, slots = (int(n) for n in cupy.stack([first[-1], parts[-1], cupy.sum(each * (each > 1))]).get())
        if shape[1] >= 1 << 32 or total * ROWS >= 1 << 32:
            raise ValueError(
                f"spmm: windows number columns and edges in 32 bits, but A has shape {shape} and {total * ROWS} places for edges; pass "
                f"kernel='csr'"
            )
        self.entries = cupy.zeros((total + BATCH, 2), np.uint32)
        self._place = cupy.empty(self.nnz, np.uint32)
        self._total, self._slots, self._count = total, slots, units
        self.reuse = self.nnz / max(1, int(found.cells.size))
        names = ("starts", "cells", "edges", "perm", "edge_row", "edge_cell")
        params = jit.filled(FillParams(windows=windows), **{name: getattr(found, name) for name in names}, first=first)
        jit.filled(params, entries=self.entries, place=self._place)
        blocks = min(1 << 16, -(-windows // (THREADS // 32)))
        launch("spmm/windows_fill.cu", "fill_windows", indptr.dtype, blocks, params)
        #: One ``WindowUnit`` of ``spmm/windows.cuh`` in each row: a whole window, or a part of one with many entries.
        self.units = _units(first, parts, padded, each, units, part)
        #: Memory for the sums of parts, and the counters of finished parts, by the vectors of a row.
        self._rooms: dict[int, Workspaces] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without values."""
        return int(self.entries.nbytes + self._place.nbytes + self.units.nbytes)

    def weigh(self, values: Any = None, col_scale: Any = None, out: Any = None) -> Any:
        """The weights for :meth:`run`: float32 `values` (in CSR order) times the scales of their columns, or the scales alone."""
        if out is None:
            size = (self._total + BATCH, ROWS) if values is not None else (self._total + BATCH,)
            out = jit.scratch(size, np.float32, values, zero=True)
        params = WeighParams(count=self._total if values is None else self.nnz)
        arrays = {"entries": self.entries, "place": self._place, "weights": out}
        jit.filled(params, **arrays, values=values, col_scale=col_scale)
        launch("spmm/windows_fill.cu", "weigh_windows", np.dtype(np.int32), streaming(params.count), params)
        return out

    def run(
        self,
        x: Any,
        out: Any,
        *,
        weights: Any = None,
        row_scale: Any = None,
        counts: Any = None,
        finish: Finish | None = None,
        behind: Behind | None = None,
    ) -> Any:
        """Write the sums into `out` and return it; later calls with the same width on the same stream allocate nothing.

        Parameters
        ----------
        x, out : cupy.ndarray of float32, (columns, D) and (rows, D)
            C-contiguous, aligned to 16 bytes, D a multiple of 4.
        weights : cupy.ndarray, optional
            From :meth:`weigh`.
        row_scale, counts : cupy.ndarray of float32 (rows,), optional
            Sums are divided by the counts, then multiplied by the scales.
        finish : Finish, optional
            The epilogue, applied after the division in place of storing the sums.
        behind : Behind, optional
            What this call hands to `finish`.
        """
        vectors = x.shape[1] // 4
        if not (self._count and vectors):
            return out
        lanes = min(32, 1 << (vectors - 1).bit_length())
        slices = -(-vectors // lanes)
        pointers = (x.data.ptr, out.data.ptr, self.units.data.ptr, self.entries.data.ptr)
        params = WindowsParams(*pointers) if finish is None else FinishedParams(*pointers)
        jit.filled(params, weights=weights, row_scale=row_scale, counts=counts)
        params.rows, params.row_bytes, params.vectors = self.shape[0], 16 * vectors, vectors
        params.count, params.shift, params.slices = self._count, lanes.bit_length() - 1, slices
        if self._slots:
            wide = slices * lanes
            with self._lock:
                if wide not in self._rooms:
                    shape, counters = (self._slots, ROWS, wide, 4), (self._slots, wide)
                    self._rooms[wide] = Workspaces(shape, np.float32, counters)
                # held until the kernel is enqueued
                room = self._rooms[wide].on(cupy.cuda.get_current_stream().ptr)
            params.partial, params.arrived = room.partial.data.ptr, room.arrived.data.ptr
        kind = 0 if weights is None else weights.ndim
        defines = {"BS_WEIGHTS": kind}
        if finish is not None:
            params.finish, defines = finish.struct, defines | finish.defines
            finish.aim(params.finish, behind)
        kernel = jit.kernel("spmm/windows.cu", "spmm_windows", defines)
        kernel.run((-(-self._count // (THREADS // lanes)), slices, 1), THREADS, params)
        return out


def _units(first: Any, parts: Any, padded: Any, each: Any, units: int, part: int) -> Any:
    """One ``WindowUnit`` of ``spmm/windows.cuh`` in each row."""
    number = cupy.arange(units, dtype=np.int64)
    window = cupy.searchsorted(parts[1:], number, side="right")
    part_of_window = number - parts[window]
    shared = each[window] > 1
    slot = cupy.where(shared, cupy.cumsum(shared) - 1, -1)
    done = part_of_window * part
    batches = cupy.minimum(part, padded[window] - done) // BATCH
    columns = (window, first[window] + done, batches, slot, each[window], part_of_window)
    return cupy.ascontiguousarray(cupy.stack(columns, axis=1).astype(np.int32))


_FINISHES = (finish_constants(2), finish_constants(3), finish_constants(1, BIAS | RELU))
_SUMS = [*({"BS_WEIGHTS": kind} for kind in range(3)), *({"BS_WEIGHTS": 0} | finish for finish in _FINISHES)]
VARIANTS = [
    *jit.variants_of("spmm/windows.cu", "spmm_windows", _SUMS),
    *jit.variants_of("spmm/windows_fill.cu", "fill_windows", BOTH_INDICES),
]

"""Float32 sums over short rows on the GPU; rows are dealt out by their length to teams of lanes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.sparse.checks import rows_of
from bitsparse.jit import cupy

#: The most columns of features, and edges of a row, that the kernel takes.
MOST_COLUMNS, MOST_EDGES = 64, 1024
#: Edges that a group of lanes loads at once: a batch.
_UNROLL = 4
#: The most batches of a group; a longer row gets a team of more groups, up to a whole warp.
_ROUNDS = 4
#: Threads of a block.
_THREADS = 128

ShortParams = jit.struct("spmm/short.cu", "ShortParams")


def refusal(columns: int, dtype: Any, longest: int, size: int) -> str | None:
    """Why these sums cannot be computed, or None if they can; rows have at most `longest` edges, and all rows `size` edges.

    Examples
    --------
    >>> refusal(16, np.float32, 64, 1000), refusal(6, np.float32, 64, 1000)
    (None, '6 columns are no multiple of 4 up to 64')
    """
    if np.dtype(dtype) != np.float32:
        return f"features are {np.dtype(dtype)}, not float32"
    if columns % 4 or not 0 < columns <= MOST_COLUMNS:
        return f"{columns} columns are no multiple of 4 up to {MOST_COLUMNS}"
    if longest > MOST_EDGES:
        return f"a row has {longest} edges, more than {MOST_EDGES}"
    most = (1 << 30) // edges.power_of_two(columns // 4)  # threads are counted in 32 bits
    return None if size < most else f"{size} edges are more than {most}"


def constants(lanes: int, weighted: bool) -> dict[str, int]:
    """Compile-time constants of ``spmm/short.cu``."""
    return {"BS_LANES": lanes, "BS_U": _UNROLL, "BS_WEIGHTS": int(weighted), "BS_THREADS": _THREADS}


class ShortSum:
    """Sums over the rows of one pattern, ``sums(x, out=None)``; rows may be empty, and should have few edges.

    Building it compiles the kernel, sorts the rows and copies the edges; calls allocate nothing but the result. Every run gives the same
    bits: each group of lanes adds its interleaved share of the edges in order, and a team adds the sums of its groups in a tree.

    Parameters
    ----------
    indptr, indices : cupy.ndarray
        int32 or int64; the values of `indices` fit int32.
    columns : int
        Columns of the features.
    values : cupy.ndarray of float32 (nnz,), optional
    row_scale : cupy.ndarray of float32 (rows,), optional
    """

    def __init__(
        self,
        indptr: Any,
        indices: Any,
        columns: int,
        *,
        values: Any = None,
        row_scale: Any = None,
    ) -> None:
        self.shape, self._lock = (int(indptr.size) - 1, columns), threading.Lock()
        self._launch: Any = None
        if self.shape[0] == 0:
            return
        lanes = edges.power_of_two(columns // 4)
        starts = self._pad(indptr, indices, values)
        self._units = _dealt(indptr[1:] - indptr[:-1], starts, 32 // lanes)
        self._row_scale = None if row_scale is None else cupy.ascontiguousarray(row_scale, np.float32)
        params = self._params = ShortParams(vectors=columns // 4, row_bytes=columns * 4)
        jit.filled(params, units=self._units, indices=self._indices, values=self._values, row_scale=self._row_scale)
        params.warps = self._units.shape[0] * lanes // 32
        kernel = jit.kernel("spmm/short.cu", "spmm_short", constants(lanes, values is not None))
        self._launch = kernel.launch(-(-params.warps * 32 // _THREADS), _THREADS, params)

    def _pad(self, indptr: Any, indices: Any, values: Any) -> Any:
        """Copy the edges so that each row starts at a multiple of four, and return the row starts."""
        lengths = (indptr[1:] - indptr[:-1]).astype(np.int64)
        ends = cupy.cumsum((lengths + 3) // 4 * 4)
        starts = ends - (lengths + 3) // 4 * 4
        nnz = int(indices.size)
        place = (starts - indptr[:-1])[rows_of(indptr, nnz)] + cupy.arange(nnz, dtype=np.int64)
        total = int(ends[-1].get()) + 8
        self._indices = cupy.zeros(total, np.int32)
        self._values: Any = None
        self._indices[place] = indices.astype(np.int32, copy=False)
        if values is not None:
            self._values, self._place = cupy.zeros(total, np.float32), place
            self.weigh(values)
        return starts

    def weigh(self, values: Any) -> None:
        """Replace the values by others, float32 (nnz,), with one launch."""
        self._values[self._place] = values.astype(np.float32, copy=False)

    def __call__(self, x: Any, out: Any = None) -> Any:
        """The sums of the rows of `x`. `x` and `out` are float32 and C-contiguous, and `out` is aligned to 16 bytes."""
        out = cupy.empty(self.shape, np.float32) if out is None else out
        if self._launch is not None:
            x = interop.aligned(x)
            with self._lock:
                self._params.x, self._params.out = x.data.ptr, out.data.ptr
                self._launch()
        return out


def _dealt(lengths: Any, starts: Any, groups: int) -> Any:
    """The work of each group of each warp, (warps * groups, 4) int32: large teams first, and among them long rows first."""
    lengths = lengths.astype(np.int64)
    team = cupy.ones(lengths.shape, np.int64)
    sizes = [1 << i for i in range(groups.bit_length())]
    for size in sizes[1:]:
        team[lengths > _UNROLL * _ROUNDS * (size // 2)] = size
    rows = int(lengths.size)
    batches = (lengths + team * _UNROLL - 1) // (team * _UNROLL)
    # All keys differ, so the order does not depend on the sorting algorithm.
    order = cupy.argsort((team * -(1 << 20) - batches) * rows + cupy.arange(rows))
    parts, first = [], 0
    for size in reversed(sizes):
        count = int((team == size).sum().get())
        mine, first = order[first : first + count], first + count
        # Fill up the last warp; rows from `count` on are empty.
        whole = -(-count * size // groups) * groups // size
        part = cupy.zeros((whole, size, 4), np.int32)
        part[:, :, 0] = -1
        rank = cupy.arange(size) * _UNROLL
        part[:count, :, 0] = mine[:, None]
        part[:count, :, 1] = starts[mine][:, None] + rank
        part[:count, :, 2] = lengths[mine][:, None] - rank
        part[:, :, 3] = size * _UNROLL
        parts.append(part.reshape(-1, 4))
    return cupy.concatenate(parts)


VARIANTS = jit.variants_of("spmm/short.cu", "spmm_short", [constants(4, False), constants(16, True)])

"""Condensed windows of a CSR pattern on the GPU: tiles, the pieces of windows that warps take, and values in the order of tiles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.sparse import build
from bitsparse.backends.params import Translation
from bitsparse.jit import cupy

#: Warps of a multiprocessor among which tiles are shared out, and the fewest and most tiles of a piece.
_WARPS, _SHORTEST, _LONGEST = 16, 32, 1024
_THREADS = 128


BuildParams = jit.struct("spmm/tiles_build.cu", "BuildParams")


class Arranged(NamedTuple):
    """Values of edges in the order of tiles, the result of :meth:`Windows.arrange`."""

    array: Any  # float32 (heads, nnz)


def piece_limit(tiles: int, multiprocessors: int) -> int:
    """The most tiles of a piece: twice what a warp has on average, within limits.

    Examples
    --------
    >>> piece_limit(384_335, 132), piece_limit(11_474, 132)
    (364, 32)
    """
    return min(_LONGEST, max(_SHORTEST, 2 * -(-tiles // (_WARPS * max(1, multiprocessors)))))


class Windows:
    """The tiles of one canonical CSR pattern, for windows of `height` rows and groups of `k` columns.

    If `translation` has windows of this height, it is used; otherwise the pattern is translated.

    Attributes
    ----------
    cols : cupy.ndarray of uint32 (tiles, k)
    bits : cupy.ndarray of uint32 (tiles, k / 2, height / 16)
        One bit for each edge, as described in ``spmm/tiles.cuh``.
    pieces, splits : cupy.ndarray of int64 (n, 4)
        ``Piece`` of ``spmm/tiles.cuh``; `splits` repeats the first piece of each window that has several pieces.
    slots : int
        Pieces of windows that have several pieces.
    unique : int
        Columns of all windows together, which is the number of feature rows that are read.
    """

    def __init__(
        self,
        indptr: Any,
        indices: Any,
        shape: tuple[int, int],
        nnz: int,
        *,
        height: int,
        k: int,
        translation: Translation | None = None,
    ) -> None:
        self.shape, self.nnz = (int(shape[0]), int(shape[1])), int(nnz)
        self.height, self.k = height, k
        self._defines = constants(k, height)
        self.indptr = indptr
        if translation is None or translation.window != height:
            translation = Translation(height, *build.translate(indptr, indices, shape, height))
        cols_indptr, cols, edge_col = translation.cols_indptr, translation.cols, translation.edge_col
        self.unique, self.windows = int(cols.size), -(-shape[0] // height)
        chip = jit.capability()
        tiles = (cols_indptr[1:] - cols_indptr[:-1] + (k - 1)) // k
        starts = cupy.zeros(self.windows + 1, np.int64)
        cupy.cumsum(tiles, out=starts[1:])
        limit = piece_limit(self.unique // k + self.windows // 2, chip.multiprocessors)
        pieces = cupy.maximum((tiles + (limit - 1)) // limit, 1).astype(np.int64)
        ends = cupy.cumsum(pieces)
        split = cupy.where(pieces > 1, pieces, 0)
        slots = cupy.cumsum(split)
        if self.windows:
            counts = cupy.stack([starts[-1], ends[-1], slots[-1], (pieces > 1).sum()]).get()
            total, self.count, self.slots, several = (int(n) for n in counts)
        else:
            total = self.count = self.slots = several = 0
        self._starts = starts
        first_of_several = self._make_pieces(tiles, pieces, ends, split, slots)
        self.splits = self.pieces[cupy.flatnonzero(first_of_several)] if several else self.pieces[:0]
        self.cols = cupy.empty((total, k), np.uint32)
        self.bits = cupy.zeros((total, k // 2, height // 16), np.uint32)
        if total:
            sources = {"cols_indptr": cols_indptr, "source_cols": cols, "indptr": indptr, "edge_col": edge_col}
            large = int(indptr.dtype.itemsize == 8)
            self._launch(
                "place_tiles", self.windows, **sources, rows=shape[0], bytes=edge_col.dtype.itemsize, large=large
            )
        self._lock = threading.RLock()  # reentrant, since products hold it while they call methods that take it
        self._later: dict[str, Any] = {}

    @property
    def reuse(self) -> float:
        """Edges per row of features that is read."""
        return self.nnz / max(1, self.unique)

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without the pattern itself."""
        parts = (self.cols, self.bits, self.pieces, self.splits, self._starts)
        return int(sum(part.nbytes for part in (*parts, *self._later.values())))

    def _make_pieces(self, tiles: Any, pieces: Any, ends: Any, split: Any, slots: Any) -> Any:
        """Cut the tiles of each window into even pieces; returns a mask of pieces that are the first of several."""
        self.pieces = cupy.empty((self.count, 4), np.int64)
        if not self.count:
            self._first = cupy.zeros(0, np.int64)
            return cupy.zeros(0, bool)
        number = cupy.arange(self.count, dtype=np.int64)
        window = cupy.searchsorted(ends, number, side="right")
        of, own = pieces[window], tiles[window].astype(np.int64)
        self._first = ends[window] - of  # the first piece of the window
        at = number - self._first
        begin = at * own // of
        self.pieces[:, 0] = self._starts[window] + begin
        self.pieces[:, 1] = self.indptr[window * self.height]
        rest = self.pieces.view(np.int32)
        rest[:, 4] = window
        rest[:, 5] = (at + 1) * own // of - begin
        rest[:, 6] = cupy.where(of > 1, slots[window] - split[window] + at, -1)
        rest[:, 7] = of
        return (of > 1) & (at == 0)

    # ---- tables that only some products need, made on first use
    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if name not in self._later:
                self._later[name] = make()
            return self._later[name]

    def offsets(self) -> Any:
        """For each word of `bits`, the number of edges of its window before it."""
        return self._once("offsets", self._make_offsets)

    def row_offsets(self) -> Any:
        """For each piece and row: the number of edges of the window, in row order, before the row's first edge in the piece."""
        return self._once("row_offsets", self._make_row_offsets)

    def counts(self) -> Any:
        """Edges of each row as float32, at least 1: the divisors of means."""
        lengths = self.indptr[1:] - self.indptr[:-1]
        return self._once("counts", lambda: cupy.maximum(lengths, 1).astype(np.float32))

    def _make_offsets(self) -> Any:
        offsets = cupy.empty_like(self.bits)
        if self.cols.size:
            self._launch("offsets_of_words", -(-self.windows // (_THREADS // 32)), offsets=offsets)
        return offsets

    def _make_row_offsets(self) -> Any:
        shape = (self.count, self.height)
        padded = cupy.full(self.windows * self.height + 1, self.nnz, np.int64)
        padded[: self.indptr.size] = self.indptr
        starts = padded[:-1].reshape(-1, self.height)
        window = self.pieces.view(np.int32)[:, 4]
        found = (starts - starts[:, :1])[window]
        if self.slots:
            counts = cupy.empty(shape, np.uint32)
            self._launch("count_rows", -(-self.count // (_THREADS // 32)), row_counts=counts)
            before = cupy.cumsum(counts.astype(np.int64), axis=0) - counts
            found += before - before[self._first]
        return found.astype(np.uint32)

    def arrange(self, values: Any, into: Arranged | None = None) -> Arranged:
        """Rearrange values (nnz,) or (nnz, heads) from CSR order into the order of the tiles, once for many products.

        If `into` is given, which must have the same shape, its memory is overwritten by one launch.
        """
        heads = 1 if values.ndim == 1 else int(values.shape[1])
        values = interop.contiguous(values.astype(np.float32, copy=False))
        out = jit.scratch((heads, self.nnz), np.float32, values) if into is None else into.array
        if out.size:
            fields = {"offsets": self.offsets(), "row_offsets": self.row_offsets(), "values": values, "arranged": out}
            self._launch("arrange_values", -(-self.count // (_THREADS // 32)), **fields, heads=heads, edges=self.nnz)
        return Arranged(out)

    def _launch(self, name: str, blocks: int, **fields: Any) -> None:
        params = BuildParams(windows=self.windows, piece_count=self.count)
        jit.filled(params, starts=self._starts, cols=self.cols, bits=self.bits, pieces=self.pieces)
        kernel = jit.kernel("spmm/tiles_build.cu", name, self._defines)
        kernel.run(blocks, _THREADS, jit.filled(params, **fields))


def constants(k: int, height: int) -> dict[str, int]:
    """Constants of ``spmm/tiles_build.cu`` for groups of `k` columns and windows of `height` rows."""
    return {"BS_TYPE": int(k == 16), "BS_M": height // 16}


VARIANTS = jit.variants_of(
    "spmm/tiles_build.cu", "place_tiles", [constants(k, height) for height in (16, 32, 64) for k in (8, 16)]
)

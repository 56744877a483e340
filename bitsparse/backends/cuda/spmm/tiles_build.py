"""Condensed windows of a CSR pattern on the GPU: tiles, the pieces that warps take, values in their order."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.sparse import build
from bitsparse.backends.params import Translation
from bitsparse.errors import KernelError

__all__ = ["HEIGHTS", "Arranged", "TileStats", "Windows", "piece_limit"]

#: Rows of a window.
HEIGHTS = (16, 32, 64)
#: Warps of a multiprocessor among which tiles are shared out, tiles of a piece.
_WARPS, _SHORTEST, _LONGEST = 16, 32, 1024
_THREADS = 128


BuildParams = jit.struct("spmm/tiles_build.cu", "BuildParams")


class TileStats(NamedTuple):
    """What a product over tiles costs depends on.

    Attributes
    ----------
    rows, cols, nnz : int
    height, k : int
        Rows of a window, columns of a tile.
    unique : int
        Columns of all windows together: the rows of features that are read.
    tiles : int
    """

    rows: int
    cols: int
    nnz: int
    height: int
    k: int
    unique: int
    tiles: int

    @property
    def reuse(self) -> float:
        """Edges for each row of features that is read.

        Examples
        --------
        >>> TileStats(16, 16, 24, 16, 8, 8, 1).reuse
        3.0
        """
        return self.nnz / max(1, self.unique)


class Arranged(NamedTuple):
    """Values of edges in the order of tiles, made by :meth:`Windows.arrange`."""

    array: Any  # float32 (heads, nnz)
    heads: int
    key: tuple[int, int]  # of the windows


def piece_limit(tiles: int, multiprocessors: int) -> int:
    """Tiles of a piece at most: twice what a warp has on average, within limits.

    Examples
    --------
    >>> piece_limit(384_335, 132), piece_limit(11_474, 132)
    (364, 32)
    """
    return min(_LONGEST, max(_SHORTEST, 2 * -(-tiles // (_WARPS * max(1, multiprocessors)))))


class Windows:
    """The tiles of one canonical CSR pattern, for windows of `height` rows and groups of `k` columns.

    A translation of the pattern for windows of this height is taken as it lies, if there is one.

    Attributes
    ----------
    cols : cupy.ndarray of uint32 (tiles, k)
    bits : cupy.ndarray of uint32 (tiles, k / 2, height / 16)
        One bit for each edge; ``spmm/tiles.cuh`` says which.
    pieces, splits : cupy.ndarray of int64 (n, 4)
        ``Piece`` of ``spmm/tiles.cuh``; `splits` repeats the first piece of each window that has several.
    slots : int
        Pieces of windows that have several.
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
        if height not in HEIGHTS or k not in (8, 16):
            raise ValueError(f"tiles: rows must be one of {HEIGHTS} and k 8 or 16, got {height} and {k}")
        if shape[1] > 1 << 32:
            raise KernelError(f"tiles: {shape[1]} columns are more than 2**32; use kernel='csr'")
        cupy = self._cupy = jit.require_cupy("tiles")
        self.height, self.k, self._nnz = height, k, nnz
        self._defines = constants(k, height)
        self.indptr = indptr
        if translation is None or translation.window != height:
            translation = Translation(height, *build.translate(indptr, indices, shape, height))
        cols_indptr, cols, edge_col = translation.cols_indptr, translation.cols, translation.edge_col
        unique, self.windows = int(cols.size), -(-shape[0] // height)
        chip = jit.capability()
        tiles = (cols_indptr[1:] - cols_indptr[:-1] + (k - 1)) // k
        starts = cupy.zeros(self.windows + 1, np.int64)
        cupy.cumsum(tiles, out=starts[1:])
        limit = piece_limit(unique // k + self.windows // 2, chip.multiprocessors)
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
        self.stats = TileStats(int(shape[0]), int(shape[1]), nnz, height, k, unique, total)
        first_of_several = self._make_pieces(tiles, pieces, ends, split, slots)
        self.splits = self.pieces[cupy.flatnonzero(first_of_several)] if several else self.pieces[:0]
        self.cols = cupy.empty((total, k), np.uint32)
        self.bits = cupy.zeros((total, k // 2, height // 16), np.uint32)
        params = self._params(cols_indptr=cols_indptr, source_cols=cols, indptr=indptr, edge_col=edge_col)
        params.rows, params.bytes, params.large = shape[0], edge_col.dtype.itemsize, int(indptr.dtype.itemsize == 8)
        if total:
            self._launch("place_tiles", self.windows, params)
        self._lock = threading.Lock()
        self._offsets: Any = None
        self._row_offsets: Any = None
        self._counts: Any = None

    @property
    def key(self) -> tuple[int, int]:
        """Height and width of the tiles."""
        return self.height, self.k

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without the pattern itself."""
        parts = (self.cols, self.bits, self.pieces, self.splits, self._starts)
        later = (self._offsets, self._row_offsets, self._counts)
        return int(sum(part.nbytes for part in (*parts, *(part for part in later if part is not None))))

    def _make_pieces(self, tiles: Any, pieces: Any, ends: Any, split: Any, slots: Any) -> Any:
        """Cut the tiles of each window evenly; which pieces are the first of several."""
        cupy = self._cupy
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

    # ---- what only some products need
    def offsets(self) -> Any:
        """How many edges of its window stand before each word of `bits`."""
        with self._lock:
            if self._offsets is None:
                self._offsets = self._cupy.empty_like(self.bits)
                if self.stats.tiles:
                    blocks = -(-self.windows // (_THREADS // 32))
                    self._launch("offsets_of_words", blocks, self._params(offsets=self._offsets))
        return self._offsets

    def row_offsets(self) -> Any:
        """How many edges of its window stand, in the order of rows, before those of each row from each piece on."""
        with self._lock:
            if self._row_offsets is None:
                self._row_offsets = self._make_row_offsets()
        return self._row_offsets

    def _make_row_offsets(self) -> Any:
        cupy, shape = self._cupy, (self.count, self.height)
        padded = cupy.full(self.windows * self.height + 1, self._nnz, np.int64)
        padded[: self.indptr.size] = self.indptr
        starts = padded[:-1].reshape(-1, self.height)
        window = self.pieces.view(np.int32)[:, 4]
        found = (starts - starts[:, :1])[window]
        if self.slots:
            counts = cupy.empty(shape, np.uint32)
            blocks = -(-self.count // (_THREADS // 32))
            self._launch("count_rows", blocks, self._params(row_counts=counts))
            before = cupy.cumsum(counts.astype(np.int64), axis=0) - counts
            found += before - before[self._first]
        return found.astype(np.uint32)

    def counts(self) -> Any:
        """Edges of each row as float32, at least 1: what a mean divides by."""
        with self._lock:
            if self._counts is None:
                lengths = self.indptr[1:] - self.indptr[:-1]
                self._counts = self._cupy.maximum(lengths, 1).astype(np.float32)
        return self._counts

    def arrange(self, values: Any, into: Arranged | None = None) -> Arranged:
        """Values (nnz,) or (nnz, heads) in the order of the CSR pattern, brought into the order of the tiles, once for many products.

        They go into the memory of others like them if such are given, by one launch.
        """
        heads = 1 if values.ndim == 1 else int(values.shape[1])
        values = self._cupy.ascontiguousarray(values, np.float32)
        out = self._cupy.empty((heads, self._nnz), np.float32) if into is None else into.array
        if out.size:
            params = self._params(offsets=self.offsets(), row_offsets=self.row_offsets(), values=values, arranged=out)
            params.heads, params.edges = heads, self._nnz
            self._launch("arrange_values", -(-self.count // (_THREADS // 32)), params)
        return Arranged(out, heads, self.key)

    def _params(self, **arrays: Any) -> ctypes.Structure:
        params = BuildParams(windows=self.windows, piece_count=self.count)
        known = {"starts": self._starts, "cols": self.cols, "bits": self.bits, "pieces": self.pieces}
        for name, array in (known | arrays).items():
            setattr(params, name, array.data.ptr)
        return params

    def _launch(self, name: str, blocks: int, params: ctypes.Structure) -> None:
        jit.kernel("spmm/tiles_build.cu", name, self._defines).launch(blocks, _THREADS, params)()


def constants(k: int, height: int) -> dict[str, int]:
    """What ``spmm/tiles_build.cu`` is compiled with, for groups of `k` columns and windows of so many rows."""
    return {"BS_TYPE": int(k == 16), "BS_M": height // 16}


VARIANTS = jit.variants_of(
    "spmm/tiles_build.cu", "place_tiles", [constants(k, height) for height in (16, 32, 64) for k in (8, 16)]
)

"""Sparse graph translation, named as in the literature, and counts of tiles that show what translation and batching save."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitsparse import _check, backends
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.errors import DTypeError
from bitsparse.graph.adjacency import pattern_of
from bitsparse.graph.batches import SubgraphBatch


def translate(
    graph: Any, *, window: int = 16, pattern: bool = False, row_scale: Any = None, col_scale: Any = None
) -> TCTiledCSR:
    """A CSR array whose columns are condensed in each window of rows immediately, not at first use (TC-GNN section 4.1, Algorithm 1).

    Parameters
    ----------
    graph : sparse array, tuple, array_like, BitTensor, FRDC
        In any form that :class:`bitsparse.TCTiledCSR` takes.
    window : int, default 16
        Rows per window, 1..16.
    pattern : bool, default False
        Drop the values.
    row_scale, col_scale : array_like of float, optional
        float32 factors of shapes (m,) and (n,).

    Returns
    -------
    TCTiledCSR

    Examples
    --------
    >>> from bitsparse import graph
    >>> a = graph.translate((None, ([0, 1, 1], [7, 7, 900])))
    >>> a.shape, a.cols, a.tile_count(8)
    ((2, 901), array([  7, 900], dtype=int32), 1)
    """
    translated = TCTiledCSR(graph, window=window, pattern=pattern, row_scale=row_scale, col_scale=col_scale)
    _ = translated.translation  # builds and caches the index
    return translated


@dataclass(frozen=True)
class TileStatistics:
    """Numbers of tiles of one shape that cover a sparse array.

    Attributes
    ----------
    window, width : int
        Rows and columns of a tile.
    nnz : int
        Stored entries.
    total : int
        Tiles of the whole array, including empty ones.
    before : int
        Tiles with an entry before the columns are condensed.
    after : int
        Tiles once the columns of each window are condensed.
    columns : int
        Number of unique columns, summed over the windows.
    """

    window: int
    width: int
    nnz: int
    total: int
    before: int
    after: int
    columns: int

    @property
    def reduction(self) -> float:
        """Share of the non-empty tiles that condensing saves (TC-GNN Fig. 7)."""
        return 1 - self.after / self.before if self.before else 0.0

    @property
    def fill_before(self) -> float:
        """Average share of a non-empty tile that is filled with entries."""
        return self.nnz / (self.before * self.window * self.width) if self.before else 0.0

    @property
    def fill_after(self) -> float:
        """The same once the columns are condensed."""
        return self.nnz / (self.after * self.window * self.width) if self.after else 0.0

    @property
    def sharing(self) -> float:
        """Share of the entries whose column occurs already in another row of the window."""
        return 1 - self.columns / self.nnz if self.nnz else 0.0


def tile_statistics(graph: Any, *, window: int = 16, width: int = 8) -> TileStatistics:
    """Count the tiles that an instruction visits before and after translation (TC-GNN section 5.3, Fig. 7).

    Parameters
    ----------
    graph : sparse array, tuple, TCTiledCSR, FRDC, BitTensor
    window : int, default 16
        Rows of a tile, 1..16.
    width : int, default 8
        Columns of a tile, a power of two: 8 for SpMM and 16 for SDDMM in the paper.

    Returns
    -------
    TileStatistics

    Examples
    --------
    >>> from bitsparse import graph
    >>> counted = graph.tile_statistics((None, ([0, 1, 2, 3], [0, 40, 80, 120])))
    >>> counted.before, counted.after, counted.reduction
    (4, 1, 0.75)
    """
    window = _check.integer("tile_statistics", "window", window, 1, 16)
    width = _check.integer("tile_statistics", "width", width, 1, 1 << 30)
    if width & (width - 1):
        raise ValueError(f"tile_statistics: width must be a power of two, got {width}")
    pattern = pattern_of("tile_statistics", graph)
    build = backends.family("cpu", "sparse.build")
    before = build.tile_starts(pattern.indptr, pattern.indices, pattern.shape, window, width)
    unique = np.diff(build.tile_starts(pattern.indptr, pattern.indices, pattern.shape, window, 1).astype(np.int64))
    return TileStatistics(
        window,
        width,
        int(pattern.indices.size),
        -(-pattern.shape[0] // window) * -(-pattern.shape[1] // width),
        int(before[-1]),
        int((-(-unique // width)).sum()),
        int(unique.sum()),
    )


def zero_tile_share(batches: BitTensor | SubgraphBatch | Iterable[SubgraphBatch]) -> float:
    """Share of the 8 x 128 tiles of adjacency matrices that hold no edge, which a product skips (QGTC Fig. 8).

    Parameters
    ----------
    batches : BitTensor, SubgraphBatch, or an iterable of SubgraphBatch
        Tiles are counted over all of them; batches are not kept.

    Examples
    --------
    >>> from bitsparse import graph
    >>> graph.zero_tile_share(bs.BitTensor(np.eye(256, dtype=int)))
    0.5
    """
    zero = total = 0
    for one in [batches] if isinstance(batches, (BitTensor, SubgraphBatch)) else batches:
        matrix = one.adjacency if isinstance(one, SubgraphBatch) else one
        if not isinstance(matrix, BitTensor):
            raise DTypeError(f"zero_tile_share: batches must hold SubgraphBatch objects, got {type(one).__name__}")
        rows, cols = matrix.shape[-2:]
        tiles = -(-rows // 8) * -(-cols // 128) * int(np.prod(matrix.shape[:-2], dtype=np.int64))
        total += tiles
        zero += tiles - int(np.bitwise_count(matrix.tile_bitmap).sum(dtype=np.int64))
    return zero / total if total else 0.0

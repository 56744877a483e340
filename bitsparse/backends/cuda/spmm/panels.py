"""Sums of float32 features on the GPU over panels of 256 rows, whose shared rows of features pass through shared memory once each."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import _records, interop, jit
from bitsparse.backends.after_sums import AfterSums
from bitsparse.backends.cuda.spmm.panels_build import WARPS, PanelIndex
from bitsparse.backends.cuda.spmm.spmm import Spmm

_SOURCE, _THREADS, _PIECE_THREADS = "spmm/panels.cu", 32 * (WARPS + 4), 256
#: The architecture whose bulk copies and registers that warps hand on the kernel is made for.
_ARCH = "sm_90a"

PanelParams = jit.struct(_SOURCE, "PanelParams")
PieceParams = jit.struct(_SOURCE, "PieceParams")

__all__ = ["PanelIndex", "PanelSum"]


class PanelSum:
    """A sum of float32 features prepared for one index: ``product(x, out, after=None)``; it may be shared by threads and streams.

    The edges that are not staged are summed by ``spmm_csr``, which also adds own features and a bias; then the staged ones are added. A
    relu takes a pass of its own.

    Parameters
    ----------
    index : PanelIndex
    columns : int
        Columns of the features.
    factor : cupy.ndarray of float32 (rows,), optional
        What the sums of rows are multiplied by.
    col_scale : cupy.ndarray of float32 (columns of the pattern,), optional
        Factors of the rows of features, which are copied for them.
    after : bool
        Whether calls may pass steps after the sums.

    Attributes
    ----------
    width : int
        Columns of the rows that are gathered: those of the features, or of their copy.
    lays : bool
        Whether features are copied.
    """

    def __init__(
        self, index: PanelIndex, columns: int, *, factor: Any = None, col_scale: Any = None, after: bool = False
    ) -> None:
        shape, arrays = index.shape, index.arrays
        self.width, self.lays = shape.vectors * 4, columns % 4 != 0 or col_scale is not None
        factor = None if factor is None else interop.contiguous(factor.astype(np.float32, copy=False))
        kind: dict[str, Any] = {"columns": columns, "x_dtype": np.float32, "acc_dtype": np.float32, "after": after}
        self._alone = Spmm(index.left, row_scale=factor, col_scale=col_scale, lay=self.lays, **kind)
        #: Keeps the arrays alive whose addresses the launches hold.
        self._kept, self._order, self._rooms = (index, factor), index.left.order, index.left.rooms
        defines = jit.flags(ragged=columns % 4 != 0) | {"BS_GROUPS": shape.groups}
        sizes = {"columns": columns, "vectors": shape.vectors}
        self._params = jit.filled(PanelParams(), factor=factor, **arrays, **sizes, part=shape.part)
        self._params.stage_rows = shape.stage_rows
        self._sum = self._add = None
        if arrays:
            grid = (shape.blocks, shape.slices, 1)
            kernel = jit.kernel(_SOURCE, "spmm_panels", defines)
            self._sum = kernel.launch(grid, _THREADS, self._params, shared=shape.shared)
        count = int(index.pieces.shape[0])
        self._pieces = jit.filled(PieceParams(), factor=factor, pieces=index.pieces, count=count, **sizes)
        if count:
            kernel = jit.kernel(_SOURCE, "add_pieces", defines)
            self._add = kernel.launch(-(-count * columns // _PIECE_THREADS), _PIECE_THREADS, self._pieces)
        self._room = (index.slots, self.width)

    def __call__(self, x: Any, out: Any, after: AfterSums | None = None) -> None:
        """Write the sums over `x` (columns of the pattern, columns) into `out`; both are C-contiguous and aligned to 16 bytes."""
        with self._order:
            self.of_laid(self._alone.laid(x) if self.lays else x, out, after)

    def of_laid(self, rows: Any, out: Any, after: AfterSums | None = None, apart: int | None = None) -> None:
        """The sums over rows that already lie as the copy would: `width` columns, multiplied by their scale.

        If rows are parts of wider ones, `apart` is the number of bytes from one to the next, a multiple of 16.
        """
        later = AfterSums(relu=after is not None and after.relu)
        self._alone.of_laid(rows, out, None if after is None else _records.replace(after, relu=False), apart)
        with self._order:
            self._params.row_bytes = apart or 4 * self.width
            self._params.x, self._params.out, self._pieces.out = rows.data.ptr, out.data.ptr, out.data.ptr
            if self._add is not None:
                room = self._rooms.on_stream("sums of pieces", self._room, np.float32)  # held until both are enqueued
                self._params.partial = self._pieces.partial = room.partial.data.ptr
            for launch in (self._sum, self._add):
                if launch is not None:
                    launch()
        later.take(out)


_CONSTANTS = [jit.flags(ragged=ragged) | {"BS_GROUPS": groups} for groups in (1, 2, 4) for ragged in (False, True)]
VARIANTS = jit.variants_of(_SOURCE, "spmm_panels", _CONSTANTS, _ARCH)

"""Copies of feature rows for kernels over edges: each row starts at a multiple of 16 bytes, and is scaled by its own factor if given."""

from __future__ import annotations

from typing import Any

from bitsparse import interop, jit
from bitsparse.backends.cuda.chips import Chip
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.jit import cupy

#: The most bytes that a lane fetches at a time, and the threads of a block.
WIDEST, _THREADS = 16, 256
_SOURCE = "csr/rows.cu"

LaidRowsParams = jit.struct(_SOURCE, "LaidRowsParams")


def laid_columns(columns: int, itemsize: int) -> int:
    """The number of columns, rounded up so that a row is a multiple of 16 bytes.

    Examples
    --------
    >>> laid_columns(41, 4), laid_columns(64, 4), laid_columns(41, 2)
    (44, 64, 48)
    """
    each = max(1, WIDEST // itemsize)
    return -(-columns // each) * each


def worth_laying(chip: Chip, edges: int, rows: int, row_bytes: int, fetched: int, whole: int) -> bool:
    """Whether edges gather features often enough that copying them to aligned rows costs less time than it saves.

    Parameters
    ----------
    edges, rows : int
        Edges of the pattern, and rows of the features.
    row_bytes : int
        Bytes of a row before it is padded.
    fetched, whole : int
        Bytes that a lane fetches at a time without a copy, and with one.

    Examples
    --------
    >>> from bitsparse.backends.cuda.chips import H200
    >>> worth_laying(H200, 114_615_892, 232_965, 164, 4, 16), worth_laying(H200, 13_264, 2708, 28, 4, 16)
    (True, False)
    """
    if fetched >= whole:
        return False
    row_us = chip.rows.row[0] + row_bytes / chip.rows.row_bytes[0]
    longer = chip.rows.ragged[min(whole // fetched, 8).bit_length() - 2]
    return edges * row_us * longer > copy_us(chip, rows, row_bytes)


def copy_us(chip: Chip, rows: int, row_bytes: int) -> float:
    """Estimated microseconds to copy the rows: one launch, and one read and one write of each byte."""
    return chip.launch_us + 2 * rows * row_bytes / chip.memory_bytes_per_us


class LaidRows:
    """A prepared copy of features with one shape and dtype, for one pattern: ``laid(x)`` makes it.

    The copy lies in a workspace of the pattern's schedule, which all calls on a stream share: kernels that read it must be enqueued before
    ``schedule.order`` is released. When memory is lent by another library, each copy is allocated and freed once nobody holds it.

    Parameters
    ----------
    schedule : Schedule
    parts : int
        Number of rows, or of heads of all rows, which follow each other in memory.
    columns : int
        Columns of a part; not 0.
    itemsize : int
        Bytes of an element.
    scale : cupy.ndarray of float32 (parts,), optional
        A factor for each part, for float32 and float64.
    marked : bool
        Whether the parts of a copy get marks: a bit for each, in words of 32, which says whether it has a number that is not 0.
    """

    def __init__(
        self, schedule: Schedule, parts: int, columns: int, itemsize: int, scale: Any = None, marked: bool = False
    ) -> None:
        vectors = laid_columns(columns, itemsize) * itemsize // WIDEST
        self._rooms, self._scale, self._shape = schedule.rooms, scale, (parts * vectors * WIDEST,)
        self._params = jit.filled(LaidRowsParams(), scale=scale, items=parts * vectors, columns=columns)
        self._params.vectors = vectors
        kernel = jit.kernel(_SOURCE, "lay_rows", _constants(itemsize, scale is not None, marked))
        blocks = -(-parts // 32) if marked else max(1, -(-parts * vectors // _THREADS))
        self._launch = kernel.launch(blocks, _THREADS, self._params)

    def room(self) -> Any:
        """Memory for a copy that another kernel makes, as bytes."""
        return cupy.empty(self._shape, "uint8")

    def __call__(self, x: Any, marks: Any = None) -> Any:
        """The copy of C-contiguous `x`, as bytes; with `marked`, `marks` get the marks of its parts."""
        room = None if interop.is_lent() else self._rooms.on_stream("laid rows", self._shape, "uint8")
        out = cupy.empty(self._shape, "uint8") if room is None else room.partial
        self._params.x, self._params.out = x.data.ptr, out.data.ptr
        self._params.marks = None if marks is None else marks.data.ptr
        self._launch()
        return out


def _constants(itemsize: int, scaled: bool, marked: bool = False) -> dict[str, int]:
    return {"BS_ITEM": itemsize} | jit.flags(scaled=scaled, marked=marked)


VARIANTS = jit.variants_of(
    _SOURCE,
    "lay_rows",
    [
        *(_constants(size, False) for size in (1, 2, 4, 8)),
        *(_constants(4, scaled, True) for scaled in (False, True)),
        _constants(4, True),
        _constants(8, True),
    ],
)

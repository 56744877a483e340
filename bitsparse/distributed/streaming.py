"""Features that do not fit into memory: they are read from a memory map piece by piece, and packed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Literal

import numpy as np

from bitsparse import _check, interop, ops
from bitsparse._communicator import Communicator, agree, is_communicator, together
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import assembled
from bitsparse.backends.params import words_shape
from bitsparse.distributed.rounding import range_of_all
from bitsparse.errors import DTypeError, ShapeError

#: Default number of bytes that are read at a time.
_PIECE_BYTES = 1 << 26


def quantize_streamed(
    source: Any,
    bits: int,
    *,
    range: Any = None,
    rows: slice | None = None,
    granularity: Literal["row", "tensor", "col"] = "row",
    scheme: str | None = None,
    device: str = "cpu",
    piece_bytes: int = _PIECE_BYTES,
) -> BitTensor:
    """Quantise the rows of a memory map in one pass, a piece at a time; only the packed words are kept.

    550 GiB of float32 features take 17 GiB at one bit. While one piece is packed, a thread reads the next.

    Parameters
    ----------
    source : array (nodes, features), as of ``numpy.load(path, mmap_mode="r")``
        float16, float32 or float64, with features side by side.
    bits : int
        1..16. One bit keeps signs, -1 and +1, and each row's mean magnitude as its scale, as binary networks read them.
    range : optional
        ``(low, high)``, or the largest magnitude for "symmetric". The granularities "tensor" and "col" need it, because their range is not
        known before all rows are read; :func:`streamed_range` finds it in a separate pass. Values outside are clipped.
    rows : slice, optional
        The rows to read, for example ``part.rows()``, with step 1; by default all.
    granularity : {"row", "tensor", "col"}
        One scale for each row, for all values, or for each feature.
    scheme : {"affine", "affine-pow2", "symmetric"}, default "affine"
    device : str, default "cpu"
        The device of the words.
    piece_bytes : int
        Bytes that are read at a time.

    Returns
    -------
    BitTensor (rows, features)
        The same bits as :func:`bitsparse.quantize` of all rows at once; 2, 4, 8 and 16 bits have the layout "rows".

    Examples
    --------
    >>> from bitsparse import distributed
    >>> x = np.array([[0.5, -1.0], [2.0, 3.0], [-1.0, 0.0]], np.float32)
    >>> distributed.quantize_streamed(x, 1, rows=slice(1, 3)).toarray()
    array([[ 1,  1],
           [-1,  1]], dtype=int8)
    >>> whole = bs.quantize(x, 4, granularity="row", layout="rows")
    >>> bool((distributed.quantize_streamed(x, 4, piece_bytes=8).words == whole.words).all())
    True
    """
    function = "quantize_streamed"
    bits = _check.bit_count(function, bits, 1, 16)
    mine, columns = _checked(function, source, rows, piece_bytes)
    _check.choice(function, "granularity", granularity, _check.GRANULARITIES)
    if bits == 1 and (range is not None or scheme is not None or granularity != "row"):
        raise ValueError(
            f"{function}: one bit keeps signs and a scale for each row; leave range, scheme and granularity out"
        )
    if granularity != "row" and range is None:
        raise ValueError(
            f"{function}: granularity {granularity!r} needs a range before the first row is packed; pass range=streamed_range(source), or "
            f"granularity='row'"
        )
    target = interop.parse_device(device, function)
    layout = "rows" if bits in (2, 4, 8, 16) else "planes"
    shape = (mine.stop - mine.start, columns)
    space: Any = np if target == "cpu" else interop.require_cupy(function)
    with interop.working_on(target, interop.CUPY):
        words = space.empty(words_shape(shape, bits, -1, layout), np.uint32)
        affine: list[Any] = [None, None]
        encoding, place = "bipolar" if bits == 1 else "unsigned", 0
        pieces = (_read_ahead if target == "cpu" else _in_place)(source, mine, columns, piece_bytes)
        for piece in pieces:
            part = _packed(interop.move(piece, target), bits, range, granularity, scheme or "affine", layout)
            stop = place + part.shape[0]
            words[place:stop] = part.words
            for number, found in enumerate((part.scale, part.offset)):
                if found is not None and found.shape[:1] == (part.shape[0],) and granularity == "row":
                    affine[number] = (
                        space.empty((shape[0], 1), np.float32) if affine[number] is None else affine[number]
                    )
                    affine[number][place:stop] = found
                else:
                    affine[number] = found
            encoding, place = part.encoding, stop
    family = interop.NUMPY if target == "cpu" else interop.CUPY
    return assembled(BitTensor, words, shape, bits, -1, layout, encoding, family, *affine)


def _packed(rows: Any, bits: int, ends: Any, granularity: Any, scheme: Any, layout: Any) -> BitTensor:
    if bits == 1:
        space: Any = interop.namespace(rows)
        _check.finite("quantize_streamed", "source", bool(space.isfinite(rows).all()))
        scale = None
        if rows.shape[1]:
            with np.errstate(over="ignore"):  # reported below
                scale = space.abs(rows.astype(np.float32, copy=False)).mean(axis=1, keepdims=True)
            if not bool(space.isfinite(scale).all()):
                raise ValueError(
                    f"quantize_streamed: magnitudes of a row of source, up to {float(abs(rows).max()):.3g}, add up beyond float32 "
                    f"({np.finfo(np.float32).max:.3g}); clip source, or divide it by a number"
                )
        return ops.pack_bits(rows, encoding="bipolar").with_affine(scale)
    return ops.quantize(rows, bits, scheme=scheme, granularity=granularity, range=ends, layout=layout)


def streamed_range(
    source: Any,
    *,
    rows: slice | None = None,
    granularity: Literal["tensor", "col"] = "tensor",
    comm: Communicator | None = None,
    piece_bytes: int = _PIECE_BYTES,
) -> tuple[Any, Any]:
    """The lowest and highest value of a memory map's rows, found in one pass; with a communicator, of the rows of all ranks.

    Parameters
    ----------
    source, rows, piece_bytes
        As in :func:`quantize_streamed`.
    granularity : {"tensor", "col"}
        The range of all values, or of each feature, ``(1, features)``.
    comm : Communicator, optional

    Raises
    ------
    CommunicationError
        The call failed on another rank, or the ranks have different features or granularities.

    Examples
    --------
    >>> from bitsparse import distributed
    >>> low, high = distributed.streamed_range(np.array([[0.5, -1.0], [2.0, 3.0]], np.float32))
    >>> float(low), float(high)
    (-1.0, 3.0)
    """
    function = "streamed_range"
    if comm is not None:
        is_communicator(function, comm)
    with nullcontext() if comm is None else together(comm, function):
        mine, columns = _checked(function, source, rows, piece_bytes)
        axis = 0 if _check.choice(function, "granularity", granularity, ("tensor", "col")) == "col" else None
        ends = np.full((2, *((columns,) if axis == 0 else ())), -np.inf)
        finite = True
        for piece in _read_ahead(source, mine, columns, piece_bytes):
            finite &= bool(np.isfinite(piece).all())
            if piece.size:
                ends = np.maximum(ends, np.stack([-piece.min(axis=axis), piece.max(axis=axis)]).astype(np.float64))
    if comm is not None:
        agree(comm, function, granularity=granularity, features=columns)
    return range_of_all(function, "source", ends, finite, comm)


def _checked(function: str, source: Any, rows: slice | None, piece_bytes: int) -> tuple[slice, int]:
    """Check the arguments and return the rows to read and their number of features."""
    if not isinstance(source, np.ndarray):
        raise DTypeError(
            f"{function}: source must be a NumPy array or memory map, got {type(source).__name__}; use numpy.load(path, mmap_mode='r')"
        )
    _check.numeric(function, "source", source, "f")
    if source.ndim != 2:
        raise ShapeError(f"{function}: source has shape {source.shape}, but takes (nodes, features); reshape it")
    _check.integer(function, "piece_bytes", piece_bytes, 1)
    wanted = (
        slice(None) if rows is None else _check.instance(function, "rows", rows, slice, "a slice", "as part.rows()")
    )
    start, stop, step = wanted.indices(source.shape[0])
    if step != 1:
        raise ValueError(f"{function}: rows have step {step}, but are read one after another; pass a slice of step 1")
    return slice(start, max(start, stop)), int(source.shape[1])


def _in_place(source: Any, rows: slice, columns: int, piece_bytes: int) -> Iterator[Any]:
    """Yield pieces of rows without copying them; a later copy to a GPU reads them with several threads, into page-locked memory.

    If there are no rows, it yields one empty piece, so that the result has the same encoding and scales as on ranks with rows.
    """
    count = max(1, piece_bytes // max(columns * source.dtype.itemsize, 1))
    for start in range(rows.start, max(rows.stop, rows.start + 1), count):
        yield np.asarray(source[start : min(start + count, rows.stop)])


def _read_ahead(source: Any, rows: slice, columns: int, piece_bytes: int) -> Iterator[Any]:
    """Yield pieces of rows in two buffers that are reused; a thread reads the next piece while the caller works on one.

    The system would have to clear new memory for each piece first, which takes as long as reading.
    """
    pieces = _in_place(source, rows, columns, piece_bytes)
    memory: list[Any] = []

    def read(turn: int) -> Any:
        piece = next(pieces, None)
        if piece is None:
            return None
        if len(memory) < 2:
            memory.append(np.empty_like(piece, order="C"))
        copy = memory[turn % 2][: piece.shape[0]]
        np.copyto(copy, piece)
        return copy

    with ThreadPoolExecutor(1) as reader:
        turn, piece = 1, read(0)
        while piece is not None:
            following = reader.submit(read, turn)
            yield piece
            turn, piece = turn + 1, following.result()

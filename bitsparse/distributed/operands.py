"""Checks the features of a rank's rows and gathers the rows that its matrix asks for, whatever kind of array they are."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, interop
from bitsparse._communicator import agree, together, who
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import family_of, with_words, working
from bitsparse.backends.params import words_shape
from bitsparse.distributed.exchange import Exchange
from bitsparse.distributed.shards import Shard
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.operands.target import target_of


def kind_of(x: Any, function: str) -> dict[str, Any]:
    """The properties that the features of all ranks share, for :func:`agree`: dtype or bits, columns, kinds of scales."""
    if isinstance(x, BitTensor):
        rows = x.shape[0]
        scales = [
            None if part is None else "rows" if of_rows(part, rows) else part.tolist() for part in (x.scale, x.offset)
        ]
        return {
            "bits": x.bits,
            "encoding": x.encoding,
            "columns": list(x.shape[1:]),
            "scale": scales[0],
            "offset": scales[1],
        }
    array = interop.as_array(x, function, "x")[0]
    return {"dtype": str(array.dtype), "columns": list(array.shape[1:])}


def of_rows(affine: Any, rows: int) -> bool:
    """Whether a scale or an offset has the shape (rows, 1), which means one number for each row.

    Examples
    --------
    >>> of_rows(np.ones((1, 1)), 1), of_rows(np.ones((1, 1)), 3), of_rows(np.ones(()), 1)
    (True, False, False)
    """
    return tuple(affine.shape) == (rows, 1)


def row_bytes(columns: int, *, bits: int | None = None, dtype: Any = None) -> int:
    """Bytes of an exchanged row: of packed words if `bits` is given, else of numbers of `dtype`.

    Examples
    --------
    >>> row_bytes(128, bits=1), row_bytes(100, bits=8), row_bytes(128, dtype=np.float32)
    (16, 112, 512)
    """
    if bits is None:
        return columns * np.dtype(dtype).itemsize
    layout = "rows" if bits in _check.ROW_LAYOUT_BITS else "planes"
    return 4 * int(np.prod(words_shape((1, columns), bits, -1, layout), dtype=np.int64))


class Ready(NamedTuple):
    """Features in the form that is sent (a NumPy or CuPy array, or a BitTensor), their original family, and a context to work in."""

    x: Any
    family: interop.Family
    on: AbstractContextManager[Any]


class Gathering:
    """Gathers the features of all rows that a rank's matrix asks for; every call reuses the buffers.

    Parameters
    ----------
    function : str
        The public function, for errors.
    shard : Shard
    exchange : Exchange
    """

    def __init__(self, function: str, shard: Shard, exchange: Exchange) -> None:
        self._function, self._shard, self._exchange = function, shard, exchange
        self._buffers: dict[Any, Any] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(int(buffer.nbytes) for buffer in self._buffers.values())

    def rows(self, name: str, array: Any) -> Any:
        """Exchange rows into the buffer of this name."""
        array = interop.contiguous(array)
        key = name, array.shape[1:], array.dtype
        if key not in self._buffers:
            self._buffers[key] = self._exchange.buffer(interop.namespace(array), *key[1:])
        return self._exchange(array, self._buffers[key])

    def __call__(self, name: str, x: Any) -> Any:
        """Gather features (slots, ...) of the same kind and on the same device as `x`, which has one row for each of this rank's rows."""
        ready = self.ready(name, x)
        with ready.on:
            if isinstance(ready.x, BitTensor):
                return self._bits(name, ready.x)
            return interop.from_array(self.rows(name, ready.x), ready.family, self._function)

    def ready(self, name: str, x: Any) -> Ready:
        """Check the features of this rank's rows and convert them to the form that is sent."""
        function, shard = self._function, self._shard
        _of_own_rows(function, shard, name, x)
        if isinstance(x, BitTensor):
            _check.same_device(function, (shard.device, x.device))
            if x.ndim != 2:
                raise ShapeError(
                    f"{function}: {name} has shape {x.shape}, but packed features are (rows, D) over shards"
                )
            packed = x.repack(axis=-1, layout="rows" if x.bits in (2, 4, 8, 16) else "planes")
            return Ready(packed, family_of(x), working(x))
        array, family = interop.as_array(x, function, name)
        _check.same_device(function, (shard.device, interop.device_of(array)))
        on = interop.working_on(shard.device, family)
        return Ready(array, family, on)

    def _bits(self, name: str, packed: BitTensor) -> BitTensor:
        """Gather packed words, and scales and offsets if each row has its own; those that hold for all rows stay as they are."""
        affine = [
            None if part is None else self.rows(f"{name} {what}", part) if of_rows(part, packed.shape[0]) else part
            for what, part in (("scale", packed.scale), ("offset", packed.offset))
        ]
        words = self.rows(name, packed.words)
        return with_words(
            packed,
            words,
            (self._exchange.slots, packed.shape[1]),
            -1,
            packed.layout,
            tuple(affine) if any(part is not None for part in affine) else (None, None),
        )


def widened(result: Any, dtype: np.dtype[Any], out: Any, function: str) -> Any:
    """Convert a result of integers to a wider dtype, written into `out` if it is given."""
    if isinstance(result, BitTensor):
        return result
    array, family = interop.as_array(result, function)
    if out is None:
        return result if array.dtype == dtype else interop.from_array(array.astype(dtype), family, function)
    target = target_of(function, out, array.shape, dtype, interop.device_of(array), [array], None, "an array")
    target[...] = array.reshape(target.shape)
    return out


def checked_kind(function: str, shard: Shard, options: dict[str, Any], **operands: Any) -> None:
    """Raise on every rank if options or kinds of features differ between ranks, or if features are invalid or not of own rows."""
    facts = dict(options)
    with together(shard.comm, function):
        for name, x in operands.items():
            facts |= {f"{what} of {name}": value for what, value in kind_of(x, function).items()}
            _of_own_rows(function, shard, name, x)
    agree(shard.comm, function, **facts)


def _of_own_rows(function: str, shard: Shard, name: str, x: Any) -> None:
    """Raise unless the features have one row for each of this rank's rows."""
    shape = tuple(x.shape) if hasattr(x, "shape") else np.shape(x)
    if shape[:1] != shard.shape[:1]:
        raise ShapeError(
            f"{function}: {name} has shape {shape}, but {who(shard.comm)} has {shard.shape[0]} rows; pass the features of its own rows, as "
            f"part.take gives them"
        )


def is_shard(function: str, A: Any) -> Shard:
    """Return `A`, or raise if it is not a shard."""
    if not isinstance(A, Shard):
        raise DTypeError(
            f"{function}: A must be a Shard, got {type(A).__name__}; make one with distributed.shard(graph, partition(graph, comm))"
        )
    return A

"""Launches of a call, recorded instead of enqueued, to be enqueued again and again by compiled code (``_ext/drivers/xla.c``).

The call gets stand-ins for its arrays. It is made twice. The first time prepares whatever it needs: launches that touch no stand-in are
enqueued, as those that cut up a pattern, and all others are passed over. The second time must do nothing but launch kernels over
stand-ins and over memory that is kept; it is what is recorded. Memory that a call only works in becomes further buffers:
:func:`scratch`, and the workspaces of kernels.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from bitsparse.interop.devices import require_cupy
from bitsparse.interop.stand_ins import NotRecordable, StandIn, place_of


class Node(NamedTuple):
    """One launch, or memory that is set to zero.

    Attributes
    ----------
    name : bytes
    function : int
        Its address; 0 where memory is set to zero.
    grid : (x, y, z)
    threads : int
    shared : int
        Bytes of dynamic shared memory, or to set to zero.
    attributes, params : bytes
    patches : tuple of (at, number, beyond)
        Where in `params` an address stands, of which buffer, and how far behind its start.
    """

    name: bytes
    function: int
    grid: tuple[int, int, int]
    threads: int
    shared: int
    attributes: bytes
    params: bytes
    patches: tuple[tuple[int, int, int], ...]


class Recorded(NamedTuple):
    """What a call launches.

    Attributes
    ----------
    nodes : list of Node
    spaces : list of int
        Bytes of the buffers behind the call's own that it works in.
    """

    nodes: list[Node]
    spaces: list[int]


class _Recorder:
    """What is launched in this thread."""

    def __init__(self, buffers: int) -> None:
        self.buffers, self.strict = buffers, False
        self.again()

    def again(self) -> None:
        self.nodes: list[Node] = []
        self.spaces: dict[Hashable, StandIn] = {}

    def take(self, launch: Any) -> bool:
        """Whether a launch is not to be enqueued."""
        params = ctypes.string_at(ctypes.addressof(launch.params), ctypes.sizeof(launch.params))
        patches = tuple(_patches(launch.params))
        if len(patches) != sum(
            place_of(word) is not None for word in struct.unpack_from(f"<{len(params) // 8}Q", params)
        ):
            raise NotRecordable("the address of an array stands where no pointer is declared")
        if not patches:
            if self.strict:
                raise NotRecordable("a kernel that reads and writes no array of a call runs in every call")
            return False
        config = launch.config
        size = ctypes.sizeof(type(launch.attributes)) // len(launch.attributes)
        attributes = ctypes.string_at(ctypes.addressof(launch.attributes), size * config.attribute_count)
        self.nodes.append(
            Node(
                launch.name.encode(),
                launch.function,
                tuple(config.grid),
                config.block[0],
                config.shared,
                attributes,
                params,
                patches,
            )
        )
        return True

    def scratch(self, key: Hashable, shape: int | tuple[int, ...], dtype: Any, zero: bool) -> StandIn:
        """A buffer that nobody reads after the call; the same one for the same key."""
        found = self.spaces.get(key)
        if found is None:
            number = self.buffers + sum(1 for one in self.spaces.values() if one.size)
            found = self.spaces[key] = StandIn(number, (shape,) if isinstance(shape, int) else shape, dtype)
            if zero and found.size:
                self.nodes.append(Node(b"zeros", 0, (1, 1, 1), 1, found.nbytes, b"", b"", ((0, found.number, 0),)))
        return found


class _Local(threading.local):
    recorder: _Recorder | None = None


_local = _Local()
#: How many threads are recording: a look at this is all that a launch costs the others.
_active = 0
_count = threading.Lock()


def recorder() -> _Recorder | None:
    """What records the launches of this thread, if anything does."""
    return _local.recorder if _active else None


def scratch(shape: tuple[int, ...], dtype: Any, made_of: Any, *, zero: bool = False) -> Any:
    """Memory for what a call makes of an array and reads itself: of CuPy's, or a buffer of the call that is being recorded.

    What is made of an array that there is, is there as well: it may be kept.

    Parameters
    ----------
    shape, dtype
    made_of : array
    zero : bool
        Set to zero.
    """
    recording = recorder()
    if recording is not None and made_of.__class__ is StandIn:
        return recording.scratch(len(recording.spaces), shape, dtype, zero)
    cupy = require_cupy("scratch")
    return cupy.zeros(shape, dtype) if zero else cupy.empty(shape, dtype)


def record(call: Callable[[], Any], buffers: int) -> Recorded:
    """What `call` launches, which has stand-ins for its arrays, numbers 0 to ``buffers - 1``.

    Raises
    ------
    NotRecordable
        It does more than that.
    """
    with _recording(buffers) as found:
        call()
        found.again()
        found.strict = True
        with require_cupy("record").cuda.using_allocator(_refuse):
            call()
        return Recorded(found.nodes, [one.nbytes for one in found.spaces.values() if one.size])


@contextmanager
def _recording(buffers: int) -> Iterator[_Recorder]:
    global _active
    if _local.recorder is not None:
        raise NotRecordable("a call that is being recorded records another")
    _local.recorder = found = _Recorder(buffers)
    with _count:
        _active += 1
    try:
        yield found
    finally:
        _local.recorder = None
        with _count:
            _active -= 1


def _refuse(nbytes: int) -> Any:
    raise NotRecordable(f"{nbytes} bytes are allocated in every call")


def _patches(params: Any, at: int = 0) -> Iterator[tuple[int, int, int]]:
    """Where pointers to stand-ins are in a structure."""
    for name, kind, *_ in params._fields_:
        here, value = at + getattr(type(params), name).offset, getattr(params, name)
        yield from _patches_of(kind, value, here)


def _patches_of(kind: Any, value: Any, at: int) -> Iterator[tuple[int, int, int]]:
    if kind is ctypes.c_void_p:
        place = None if value is None else place_of(value)
        if place is not None:
            yield at, *place
    elif issubclass(kind, ctypes.Structure):
        yield from _patches(value, at)
    elif issubclass(kind, ctypes.Array):
        parts: Sequence[Any] = value
        each: Any = kind._type_
        if issubclass(each, (ctypes.Structure, ctypes.c_void_p)):
            for number, part in enumerate(parts):
                yield from _patches_of(each, part, at + number * ctypes.sizeof(each))

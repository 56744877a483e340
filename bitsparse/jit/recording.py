"""Records the launches of a call instead of enqueueing them, so that compiled code (``_ext/drivers/xla.c``) can replay them many times.

The call gets stand-ins for its arrays, and runs twice. The first run prepares whatever the call needs: launches that touch no stand-in,
such as those that split a pattern, are enqueued, and all others are skipped. The second run is recorded; it may only launch kernels over
stand-ins and over memory that stays allocated. Work memory of the call, from :func:`scratch` and for the workspaces of kernels, becomes
further buffers.
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
    """One launch of a kernel, or one setting of memory to zero.

    Attributes
    ----------
    name : bytes
    function : int
        Address of the kernel; 0 if memory is set to zero.
    grid : (x, y, z)
    threads : int
    shared : int
        Bytes of dynamic shared memory, or bytes to set to zero.
    attributes, params : bytes
    patches : tuple of (at, number, beyond)
        For each address in `params`: its position, the number of its buffer, and its offset from the buffer's start.
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
    """The recorded launches of a call.

    Attributes
    ----------
    nodes : list of Node
    spaces : list of int
        Bytes of each buffer of work memory; these buffers are numbered after those of the call's arrays.
    """

    nodes: list[Node]
    spaces: list[int]


class _Recorder:
    """Collects the launches of this thread."""

    def __init__(self, buffers: int) -> None:
        self.buffers, self.strict = buffers, False
        self.again()

    def again(self) -> None:
        self.nodes: list[Node] = []
        self.spaces: dict[Hashable, StandIn] = {}

    def take(self, launch: Any) -> bool:
        """Record a launch over stand-ins and return True; return False for a launch that must be enqueued."""
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
        """A buffer of work memory, which is not read after the call; the same key gives the same buffer."""
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
#: Number of threads that are recording, so that launches in all other threads cost only a check of this.
_active = 0
_count = threading.Lock()


def recorder() -> _Recorder | None:
    """The recorder of this thread's launches, or None."""
    return _local.recorder if _active else None


def scratch(shape: tuple[int, ...], dtype: Any, made_of: Any, *, zero: bool = False) -> Any:
    """Memory for data that a call derives from an array and reads itself: a CuPy array, or a buffer of the call being recorded.

    Data derived from a real array gets real memory even during a recording, so that it may be cached.

    Parameters
    ----------
    shape, dtype
    made_of : array
        The array from which the data is derived.
    zero : bool
        Whether to set the memory to zero.
    """
    recording = recorder()
    if recording is not None and made_of.__class__ is StandIn:
        return recording.scratch(len(recording.spaces), shape, dtype, zero)
    cupy = require_cupy("scratch")
    return cupy.zeros(shape, dtype) if zero else cupy.empty(shape, dtype)


def record(call: Callable[[], Any], buffers: int) -> Recorded:
    """Record the launches of `call`, whose arrays are stand-ins with numbers 0 to ``buffers - 1``.

    Raises
    ------
    NotRecordable
        The call does more than launch kernels.
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
    """Position, buffer number and offset of each pointer to a stand-in in a structure."""
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

"""Streams, devices and memory of the fake CuPy."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
import weakref
from typing import Any

from emulator import runtime as _emulated
from emulator.settings import CHIP

from cupy.cuda import (  # noqa: F401
    compiler,
    driver,
    nvrtc,
    runtime,
)


def is_available() -> bool:
    return True


class Device:
    """A device, given by its number; also a context manager."""

    def __init__(self, device: Any = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __enter__(self) -> Device:
        _state.devices.append(runtime.getDevice())
        runtime.setDevice(self.id)
        return self

    def __exit__(self, *exc: Any) -> None:
        runtime.setDevice(_state.devices.pop())

    def use(self) -> None:
        runtime.setDevice(self.id)

    def synchronize(self) -> None:
        runtime._check(self.id)
        _settle_all()

    @property
    def compute_capability(self) -> str:
        return f"{CHIP.major}{CHIP.minor}"

    @property
    def mem_info(self) -> tuple[int, int]:
        return runtime.memGetInfo()

    @property
    def attributes(self) -> dict[str, Any]:
        p = runtime.getDeviceProperties(self.id)
        return {
            "MultiProcessorCount": p["multiProcessorCount"],
            "ComputeCapabilityMajor": p["major"],
            "ComputeCapabilityMinor": p["minor"],
        }

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{self.id:02X}:00.0"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return hash(("Device", self.id))

    def __lt__(self, other: Device) -> bool:
        return self.id < other.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"


class _State(threading.local):
    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.devices: list[int] = []
        self.current: dict[int, Any] = {}
        self.pool: Any = None


_state = _State()
_streams: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_capture: dict[int, list[Any] | None] = {}
_next = [0x7000]
#: By stream, the asynchronous copies that have not happened yet: each one's number on the stream, the copy, both addresses and its size.
_late: dict[int, list[tuple[int, Any, tuple[int, int], int]]] = {}
_enqueued: dict[int, int] = {}
#: Held while copies happen: a thread that finds none left must not go on before another thread has finished the last one.
_happening = threading.RLock()


def _settle(pointer: int, count: int | None = None) -> None:
    """Let the first ``count`` copies ever enqueued on a stream happen; all of them by default."""
    with _happening:
        waiting = _late.get(pointer)
        while waiting and (count is None or waiting[0][0] <= count):
            waiting.pop(0)[1]()


def _settle_all() -> None:
    for pointer in list(_late):
        _settle(pointer)


def _before_free(address: int, size: int) -> None:
    """Let copies from or to memory happen before it is freed: CuPy's pool would keep it for later work of the same stream."""
    for pointer, waiting in list(_late.items()):
        touching = [n for n, _, ends, bytes in waiting if any(e < address + size and address < e + bytes for e in ends)]
        if touching:
            _settle(pointer, touching[-1])


def _stream_by_ptr(ptr: int) -> Any:
    found = _streams.get(int(ptr))
    return found if found is not None else Stream._at(int(ptr))


class Graph:
    """The recorded calls of a stream; a launch repeats them."""

    def __init__(self, calls: list[Any]) -> None:
        self._calls = calls

    def launch(self, stream: Any = None) -> None:
        target = stream or get_current_stream()
        for call in self._calls:
            target._enqueue(call)

    def upload(self, stream: Any = None) -> None:
        pass


class _BaseStream:
    ptr = 0
    device_id = -1

    def _capturing(self) -> bool:
        return _capture.get(self.ptr) is not None

    def _record(self, call: Any) -> None:
        calls = _capture[self.ptr]
        assert calls is not None
        calls.append(call)

    def _enqueue(self, call: Any) -> None:
        if self._capturing():
            self._record(call)
        else:
            _settle(self.ptr)
            call()

    def _copy(self, call: Any, ends: tuple[int, int], size: int) -> None:
        """Enqueue an asynchronous copy; on any stream but the default one it happens as late as it may."""
        if self._capturing() or self.ptr == 0:
            self._enqueue(call)
        else:
            _enqueued[self.ptr] = _enqueued.get(self.ptr, 0) + 1
            _late.setdefault(self.ptr, []).append((_enqueued[self.ptr], call, ends, size))

    def __enter__(self) -> Any:
        _state.streams.append((runtime.getDevice(), _state.current.get(runtime.getDevice())))
        _state.current[runtime.getDevice()] = self
        return self

    def __exit__(self, *exc: Any) -> None:
        device, before = _state.streams.pop()
        if before is None:
            _state.current.pop(device, None)
        else:
            _state.current[device] = before

    def use(self) -> Any:
        _state.current[runtime.getDevice()] = self
        return self

    @property
    def done(self) -> bool:
        return True

    @property
    def is_non_blocking(self) -> bool:
        return False

    def synchronize(self) -> None:
        if self._capturing():
            raise runtime.CUDARuntimeError(
                900, "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"
            )
        _settle(self.ptr)

    def record(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        event.synchronize()

    def begin_capture(self, mode: Any = None) -> None:
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default stream")
        if self._capturing():
            raise runtime.CUDARuntimeError(401, "cudaErrorIllegalState")
        _capture[self.ptr] = []

    def end_capture(self) -> Graph:
        calls = _capture.pop(self.ptr, None)
        if calls is None:
            raise runtime.CUDARuntimeError(401, "cudaErrorIllegalState")
        return Graph(calls)

    def is_capturing(self) -> bool:
        return self._capturing()

    def add_callback(self, callback: Any, arg: Any) -> None:
        self._enqueue(lambda: callback(self, 0, arg))

    def launch_host_func(self, callback: Any, arg: Any) -> None:
        self._enqueue(lambda: callback(arg))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and other.ptr == self.ptr

    def __hash__(self) -> int:
        return hash(self.ptr)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr:#x} (emulated)>"


class Stream(_BaseStream):
    null: Any = None
    ptds: Any = None

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: Any = None
    ) -> None:
        self.device_id = runtime.getDevice()
        if null:
            self.ptr = 0
        elif ptds:
            self.ptr = 2
        else:
            _next[0] += 16
            self.ptr = _next[0]
        _streams.setdefault(self.ptr, self)

    @classmethod
    def _at(cls, ptr: int) -> Any:
        made = cls.__new__(cls)
        made.ptr, made.device_id = ptr, -1
        return made

    @classmethod
    def from_external(cls, obj: Any) -> Any:
        return cls._at(int(obj.__cuda_stream__()[1]))


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)


def get_current_stream(device_id: int = -1) -> Any:
    return _state.current.get(runtime.getDevice() if device_id < 0 else device_id, Stream.null)


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self._time = 0.0
        self.ptr = id(self)
        self._after = (0, 0)

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()
        pointer = (stream or get_current_stream()).ptr
        self._after = (pointer, _enqueued.get(pointer, 0))

    def synchronize(self) -> None:
        _settle(*self._after)

    @property
    def done(self) -> bool:
        """Whether the event has happened; if a copy before it has not, the first answer is False and the second True."""
        waiting = _late.get(self._after[0])
        before = not waiting or waiting[0][0] > self._after[1]
        self.synchronize()
        return before


def get_elapsed_time(start: Event, end: Event) -> float:
    return max(1e3 * (end._time - start._time), 1e-4)


class MemoryPointer:
    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset
        self.device_id = getattr(mem, "device", 0)
        self.device = Device(self.device_id)

    def __add__(self, n: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + n)

    def __int__(self) -> int:
        return self.ptr


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner, self.device = ptr, size, owner, max(device_id, 0)
        self.device_id = self.device


def alloc(size: int) -> MemoryPointer:
    return MemoryPointer(_emulated.Memory(size, runtime.getDevice()), 0)


class MemoryPool:
    """Keeps the memory that arrays take from it under :func:`using_allocator`: it is not freed before the pool is gone."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def used_bytes(self) -> int:
        return int(_emulated.library.emu_live_bytes())

    total_bytes = used_bytes

    def free_all_blocks(self, stream: Any = None) -> None:
        pass

    def free_all_free(self) -> None:
        pass

    def get_limit(self) -> int:
        return 0

    def set_limit(self, *args: Any, **kwargs: Any) -> None:
        pass

    def malloc(self, size: int) -> MemoryPointer:
        return alloc(size)

    def n_free_blocks(self) -> int:
        return 0

    def free_bytes(self) -> int:
        return 0


PinnedMemoryPool = MemoryPool


def set_allocator(allocator: Any = None) -> None:
    pass


@contextlib.contextmanager
def using_allocator(allocator: Any = None) -> Any:
    before, _state.pool = _state.pool, getattr(allocator, "__self__", None)
    try:
        yield
    finally:
        _state.pool = before


def keep(memory: Any) -> None:
    """Let the pool in use, if any, keep the memory of a new array."""
    if _state.pool is not None:
        _state.pool.kept.append(memory)


#: Page-locked memory by its address.
_pinned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def alloc_pinned_memory(size: int) -> Any:
    made = (ctypes.c_ubyte * max(1, size))()
    ctypes.memset(made, 0xA5, max(1, size))
    _pinned[ctypes.addressof(made)] = made
    return made


def is_memory_pinned(address: int) -> bool:
    return any(start <= address < start + len(found) for start, found in list(_pinned.items()))


def Module(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("emulator: cupy.cuda.Module")


class _Submodule:
    """A submodule such as ``cupy.cuda.stream``."""

    def __init__(self, **names: Any) -> None:
        self.__dict__.update(names)


stream = _Submodule(Stream=Stream, get_current_stream=get_current_stream, BaseStream=_BaseStream)
graph = _Submodule(Graph=Graph)
memory = _Submodule(
    MemoryPointer=MemoryPointer,
    UnownedMemory=UnownedMemory,
    MemoryPool=MemoryPool,
    alloc=alloc,
    OutOfMemoryError=MemoryError,
)
device = _Submodule(Device=Device)
pinned_memory = _Submodule(alloc_pinned_memory=alloc_pinned_memory, is_memory_pinned=is_memory_pinned)
_emulated.before_free.append(_before_free)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'cupy.cuda' has no attribute {name!r} in the emulator")

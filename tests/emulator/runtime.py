"""Device memory, loaded kernels and launches: everything that talks to the runtime library."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from emulator import settings
from emulator.builds import EmulationError, hash_of, install_file, runtime_library

__all__ = ["EmulationError", "Function", "Memory", "counts", "launch", "library", "state"]

_MOST_BLOCKS = 16  # in a cluster; the runtime's Launch has as many places


class _Launch(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p * _MOST_BLOCKS),
        ("s_static", ctypes.c_void_p * _MOST_BLOCKS),
        ("n_static", ctypes.c_uint64),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("n_dynamic", ctypes.c_uint64),
        ("align_dynamic", ctypes.c_uint64),
        ("params", ctypes.c_void_p),
        ("cluster", ctypes.c_uint),
        ("order", ctypes.c_uint),
        ("name", ctypes.c_char_p),
    )


def _load() -> ctypes.PyDLL:
    # A PyDLL keeps Python's lock, since fibers switch stacks during a call. RTLD_GLOBAL lets kernels find the functions by name.
    found = ctypes.PyDLL(str(runtime_library()), mode=ctypes.RTLD_GLOBAL)
    found.emu_alloc.restype = ctypes.c_void_p
    found.emu_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    found.emu_free.argtypes = [ctypes.c_void_p]
    found.emu_error.restype = ctypes.c_char_p
    found.emu_live_bytes.restype = ctypes.c_size_t
    return found


library = _load()


@dataclass
class _State:
    order: int


state = _State(settings.ORDER)
#: Counts of what has happened so far; :func:`emulator.counts` returns a copy.
counts = {"launches": 0, "to_host": 0, "to_device": 0, "allocations": 0, "allocated_bytes": 0}
#: Functions that are called with the address and size of device memory before it is freed.
before_free: list[Callable[[int, int], None]] = []


class Memory:
    """One allocation of device memory."""

    def __init__(self, size: int, device: int) -> None:
        self.size, self.device = size, device
        counts["allocations"] += 1
        counts["allocated_bytes"] += size
        self.ptr = library.emu_alloc(size, settings.GRANULE)
        if not self.ptr:
            raise MemoryError(f"emulator: no memory for {size} bytes")
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def __del__(self) -> None:
        if getattr(self, "ptr", None):
            for call in before_free:
                call(self.ptr, self.size)
            library.emu_free(self.ptr)


class Function:
    """A kernel of a shared object, which is loaded once per block of a cluster: its static data is static shared memory."""

    by_handle: ClassVar[dict[int, Function]] = {}
    #: Without this lock, threads that launch a kernel at the same time could load one copy twice: two blocks would share static memory.
    _loading: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = Path(path), name
        self.libraries: list[ctypes.CDLL] = []
        self.entries: list[int] = []
        self.ranges: list[tuple[int, int]] = []
        self._content = hash_of(self.path.read_bytes())
        self.load_ranks(1)
        first = self.libraries[0]
        self.bound = int(getattr(first, f"emu_bound_{name}")())
        self.size = int(getattr(first, f"emu_size_{name}")())
        self.align = int(first.emu_dynamic_align())
        self.max_dynamic = 48 << 10
        self.handle = 0x5000 + 16 * len(self.by_handle)
        self.by_handle[self.handle] = self

    @property
    def static_bytes(self) -> int:
        """Bytes of static shared memory."""
        return self.ranges[0][1] - self.ranges[0][0]

    def load_ranks(self, n: int) -> None:
        """Load copies until ``n`` blocks have one of their own; the loader tells copies apart by their files."""
        with self._loading:
            while len(self.libraries) < n:
                copy = settings.CACHE / "copies" / f"{self._content}-{len(self.libraries)}.so"
                if not copy.is_file():
                    install_file(copy, self.path.read_bytes())
                found = ctypes.CDLL(str(copy))
                try:
                    entry = getattr(found, f"emu_entry_{self.name}")
                except AttributeError:
                    raise EmulationError(f"emulator: {self.path.name} has no kernel {self.name}") from None
                start, end = ctypes.c_void_p(), ctypes.c_void_p()
                found.emu_shared_range(ctypes.byref(start), ctypes.byref(end))
                self.libraries.append(found)
                self.entries.append(ctypes.cast(entry, ctypes.c_void_p).value or 0)
                self.ranges.append((start.value or 0, end.value or 0))


def launch(
    function: Function, grid: tuple[int, ...], block: tuple[int, ...], shared: int, params: bytes, cluster: int
) -> None:
    """Run a kernel to its end."""
    counts["launches"] += 1
    if settings.TRACE:
        print(f"emulator: {function.name} grid {grid} block {block} shared {shared} cluster {cluster}")
    function.load_ranks(cluster)
    room = ctypes.create_string_buffer(len(params) + 256)
    address = -(-ctypes.addressof(room) // 128) * 128
    ctypes.memmove(address, params, len(params))
    what = _Launch(
        n_dynamic=shared,
        align_dynamic=function.align,
        params=address,
        cluster=cluster,
        order=state.order,
        name=function.name.encode(),
        n_static=function.static_bytes,
    )
    for rank in range(cluster):
        what.entry[rank] = function.entries[rank]
        what.s_static[rank] = function.ranges[rank][0]
    what.grid[:], what.block[:] = grid, block
    if library.emu_launch(ctypes.byref(what)):
        raise EmulationError("emulator: " + library.emu_error().decode(errors="replace"))
    if library.emu_check_guards():
        raise EmulationError(
            f"emulator: after {function.name}, grid {grid}, block {block}: {library.emu_error().decode()}"
        )

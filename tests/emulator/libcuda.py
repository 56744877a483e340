"""A stand-in for libcuda.so.1, as far as bitsparse calls it."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from emulator import runtime
from emulator.settings import ARCH, CHIP, MULTIPROCESSORS


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


def _address(x: Any) -> int:
    if x is None:
        return 0
    if isinstance(x, int):
        return x
    if isinstance(x, ctypes.c_void_p):
        return x.value or 0
    if hasattr(x, "_obj"):  # byref
        return ctypes.addressof(x._obj)
    return ctypes.addressof(x)


def _value(x: Any) -> int:
    return int(getattr(x, "value", x) or 0)


class _Call:
    """A function of the library: takes attributes argtypes and restype without minding them."""

    def __init__(self, function: Any) -> None:
        self._function, self.argtypes, self.restype = function, None, None

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


_texts = {
    1: "invalid argument",
    2: "out of memory",
    700: "illegal address",
    701: "too many resources requested for launch",
    900: "operation not permitted when stream is capturing",
}
_text_buffers = {status: ctypes.create_string_buffer(text.encode()) for status, text in _texts.items()}


def _error_string(status: int, to: Any) -> int:
    text = _text_buffers.get(_value(status))
    pointer = ctypes.cast(_address(to), ctypes.POINTER(ctypes.c_void_p))
    pointer[0] = ctypes.addressof(text) if text else None
    return 0 if text else 1


def _attributes(config: _Config) -> tuple[int, list[int]]:
    cluster, ids = 1, []
    for i in range(config.count):
        attribute = _Attribute.from_address(config.attributes + i * ctypes.sizeof(_Attribute))
        ids.append(attribute.id)
        if attribute.id == 4:
            cluster = attribute.value[0] * attribute.value[1] * attribute.value[2]
    return cluster, ids


def _caller_params() -> Any:
    """The structure that a bitsparse.jit Launch two frames up passes, to compare its size."""
    frame: Any = sys._getframe(1)
    for _ in range(5):
        frame = frame.f_back
        if frame is None:
            return None
        owner = frame.f_locals.get("self")
        if hasattr(owner, "params") and isinstance(owner.params, ctypes.Structure):
            return owner.params
    return None


def _launch_ex(config_address: Any, function: Any, arguments: Any, extra: Any) -> int:
    from cupy.cuda import _stream_by_ptr

    config = _Config.from_address(_address(config_address))
    kernel = runtime.Function.by_handle[_value(function)]
    grid, block = tuple(config.grid), tuple(config.block)
    cluster, ids = _attributes(config)
    threads = block[0] * block[1] * block[2]
    where = f"emulator: launch of {kernel.name}, grid {grid}, block {block}, shared {config.shared}, cluster {cluster}"
    if 0 in grid or 0 in block or grid[0] >= 1 << 31 or grid[1] > 65535 or grid[2] > 65535:
        raise runtime.EmulationError(f"{where}: grid or block out of range")
    if threads > 1024 or threads > kernel.bound:
        raise runtime.EmulationError(f"{where}: {threads} threads, launch bounds {kernel.bound}")
    if config.shared > kernel.max_dynamic:
        raise runtime.EmulationError(f"{where}: dynamic shared memory above the allowed {kernel.max_dynamic}")
    static = kernel.static_bytes
    if static > 48 << 10 or config.shared + static > CHIP.shared_bytes:
        raise runtime.EmulationError(
            f"{where}: {config.shared} + {static} bytes of shared memory, the chip has {CHIP.shared_bytes}"
        )
    if cluster > 1 and CHIP.major < 9:
        raise runtime.EmulationError(f"{where}: no clusters on {ARCH}")
    if cluster > 8 or grid[0] % cluster:
        raise runtime.EmulationError(f"{where}: the grid is no multiple of the cluster, or the cluster is above 8")
    if 6 in ids and CHIP.major < 9:
        raise runtime.EmulationError(f"{where}: no dependent launches on {ARCH}")
    params = _caller_params()
    if params is not None and ctypes.sizeof(params) != kernel.size:
        raise runtime.EmulationError(
            f"{where}: {type(params).__name__} has {ctypes.sizeof(params)} bytes, the kernel's structure {kernel.size}"
        )
    first = ctypes.cast(_address(arguments), ctypes.POINTER(ctypes.c_void_p))[0]
    content = ctypes.string_at(first, kernel.size) if kernel.size else b""
    stream = _stream_by_ptr(config.stream or 0)
    shared = int(config.shared)
    stream._enqueue(lambda: runtime.launch(kernel, grid, block, shared, content, cluster))
    return 0


def _occupancy(found: Any, function: Any, config_address: Any) -> int:
    config = _Config.from_address(_address(config_address))
    kernel = runtime.Function.by_handle[_value(function)]
    cluster, _ = _attributes(config)
    static = kernel.static_bytes
    threads = config.block[0] * config.block[1] * config.block[2]
    each = min(2048 // max(threads, 1), (CHIP.shared_bytes + 1024) // (config.shared + static + 1024), 32)
    ctypes.cast(_address(found), ctypes.POINTER(ctypes.c_int))[0] = MULTIPROCESSORS * each // cluster if each else 0
    if each and MULTIPROCESSORS * each // cluster == 0:
        ctypes.cast(_address(found), ctypes.POINTER(ctypes.c_int))[0] = 1
    return 0


def _occupancy_blocks(found: Any, function: Any, threads: Any, shared: Any, *flags: Any) -> int:
    kernel = runtime.Function.by_handle[_value(function)]
    static = kernel.static_bytes
    each = min(2048 // _value(threads), (CHIP.shared_bytes + 1024) // (_value(shared) + static + 1024), 32)
    ctypes.cast(_address(found), ctypes.POINTER(ctypes.c_int))[0] = each
    return 0


def _tensor_map(
    to: Any,
    kind: Any,
    rank: Any,
    address: Any,
    dim: Any,
    strides: Any,
    box: Any,
    steps: Any,
    interleave: Any,
    swizzle: Any,
    *rest: Any,
) -> int:
    size = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}[_value(kind)]
    if CHIP.major < 9 or _value(interleave):
        return 1
    if any(steps[i] != 1 for i in range(_value(rank))):
        return 1
    return int(
        runtime.library.emu_tensor_map(
            ctypes.c_void_p(_address(to)),
            ctypes.c_uint64(_value(address)),
            ctypes.c_uint(size),
            ctypes.c_uint(_value(rank)),
            dim,
            strides,
            box,
            ctypes.c_uint(_value(swizzle)),
        )
    )


def _function_attribute(found: Any, attribute: Any, function: Any) -> int:
    kernel = runtime.Function.by_handle[_value(function)]
    values = {0: kernel.bound, 1: kernel.static_bytes, 2: 0, 3: 0, 4: 32, 8: kernel.max_dynamic}
    ctypes.cast(_address(found), ctypes.POINTER(ctypes.c_int))[0] = values.get(_value(attribute), 0)
    return 0


def _set_function_attribute(function: Any, attribute: Any, value: Any) -> int:
    if _value(attribute) == 8:
        runtime.Function.by_handle[_value(function)].max_dynamic = _value(value)
    return 0


class Driver:
    """What ``ctypes.CDLL("libcuda.so.1")`` gives."""

    _name = "libcuda.so.1"

    def __init__(self) -> None:
        self.cuLaunchKernelEx = _Call(_launch_ex)
        self.cuGetErrorString = _Call(_error_string)
        self.cuOccupancyMaxActiveClusters = _Call(_occupancy)
        self.cuOccupancyMaxActiveBlocksPerMultiprocessor = _Call(_occupancy_blocks)
        self.cuTensorMapEncodeTiled = _Call(_tensor_map)
        self.cuFuncGetAttribute = _Call(_function_attribute)
        self.cuFuncSetAttribute = _Call(_set_function_attribute)
        self.cuInit = _Call(lambda flags: 0)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cu"):
            raise NotImplementedError(f"emulator: the driver function {name} is not emulated; add it to libcuda.py")
        raise AttributeError(name)


_driver: Driver | None = None
_real_cdll = ctypes.CDLL


class _CDLL(_real_cdll):
    def __new__(cls, name: Any = None, *arguments: Any, **options: Any) -> Any:
        global _driver
        if isinstance(name, str) and name.startswith("libcuda.so"):
            if _driver is None:
                _driver = Driver()
            return _driver
        return super().__new__(cls)


_CDLL.__name__ = "CDLL"


def install() -> None:
    """Put the driver where ``ctypes.CDLL`` finds it."""
    if ctypes.CDLL is not _CDLL:
        ctypes.CDLL = _CDLL  # type: ignore[misc]

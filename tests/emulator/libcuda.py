"""A stand-in for those functions of libcuda.so.1 that bitsparse calls."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from emulator import runtime
from emulator.calls import Call, address_of, number_of
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


_texts = {
    1: "invalid argument",
    2: "out of memory",
    700: "illegal address",
    701: "too many resources requested for launch",
    900: "operation not permitted when stream is capturing",
}
_text_buffers = {status: ctypes.create_string_buffer(text.encode()) for status, text in _texts.items()}


def _error_string(status: int, to: Any) -> int:
    text = _text_buffers.get(number_of(status))
    pointer = ctypes.cast(address_of(to), ctypes.POINTER(ctypes.c_void_p))
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
    """The parameters that a bitsparse.jit Launch some frames up passes, so that their size can be compared."""
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

    config = _Config.from_address(address_of(config_address))
    kernel = runtime.Function.by_handle[number_of(function)]
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
    first = ctypes.cast(address_of(arguments), ctypes.POINTER(ctypes.c_void_p))[0]
    content = ctypes.string_at(first, kernel.size) if kernel.size else b""
    stream = _stream_by_ptr(config.stream or 0)
    shared = int(config.shared)
    stream._enqueue(lambda: runtime.launch(kernel, grid, block, shared, content, cluster))
    return 0


def _occupancy(found: Any, function: Any, config_address: Any) -> int:
    config = _Config.from_address(address_of(config_address))
    kernel = runtime.Function.by_handle[number_of(function)]
    cluster, _ = _attributes(config)
    static = kernel.static_bytes
    threads = config.block[0] * config.block[1] * config.block[2]
    each = min(2048 // max(threads, 1), (CHIP.shared_bytes + 1024) // (config.shared + static + 1024), 32)
    ctypes.cast(address_of(found), ctypes.POINTER(ctypes.c_int))[0] = MULTIPROCESSORS * each // cluster if each else 0
    if each and MULTIPROCESSORS * each // cluster == 0:
        ctypes.cast(address_of(found), ctypes.POINTER(ctypes.c_int))[0] = 1
    return 0


def _occupancy_blocks(found: Any, function: Any, threads: Any, shared: Any, *flags: Any) -> int:
    kernel = runtime.Function.by_handle[number_of(function)]
    static = kernel.static_bytes
    each = min(2048 // number_of(threads), (CHIP.shared_bytes + 1024) // (number_of(shared) + static + 1024), 32)
    ctypes.cast(address_of(found), ctypes.POINTER(ctypes.c_int))[0] = each
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
    size = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}[number_of(kind)]
    if CHIP.major < 9 or number_of(interleave):
        return 1
    if any(steps[i] != 1 for i in range(number_of(rank))):
        return 1
    return int(
        runtime.library.emu_tensor_map(
            ctypes.c_void_p(address_of(to)),
            ctypes.c_uint64(number_of(address)),
            ctypes.c_uint(size),
            ctypes.c_uint(number_of(rank)),
            dim,
            strides,
            box,
            ctypes.c_uint(number_of(swizzle)),
        )
    )


def _function_attribute(found: Any, attribute: Any, function: Any) -> int:
    kernel = runtime.Function.by_handle[number_of(function)]
    values = {0: kernel.bound, 1: kernel.static_bytes, 2: 0, 3: 0, 4: 32, 8: kernel.max_dynamic}
    ctypes.cast(address_of(found), ctypes.POINTER(ctypes.c_int))[0] = values.get(number_of(attribute), 0)
    return 0


def _set_function_attribute(function: Any, attribute: Any, value: Any) -> int:
    if number_of(attribute) == 8:
        runtime.Function.by_handle[number_of(function)].max_dynamic = number_of(value)
    return 0


def _set(address: Any, value: Any, nbytes: Any, stream: Any) -> int:
    from cupy.cuda import _stream_by_ptr

    to, byte, count = number_of(address), number_of(value), number_of(nbytes)
    _stream_by_ptr(number_of(stream))._enqueue(lambda: ctypes.memset(to, byte, count))
    return 0


class Called:
    """Counts the driver calls of compiled code, and keeps the exceptions that they raised."""

    def __init__(self) -> None:
        self.count, self.raised = 0, list[BaseException]()


class Driver:
    """What ``ctypes.CDLL("libcuda.so.1")`` returns."""

    _name = "libcuda.so.1"

    def __init__(self) -> None:
        self.cuLaunchKernelEx = Call(_launch_ex)
        self.cuGetErrorString = self.cuGetErrorName = Call(_error_string)
        self.cuMemsetD8Async = Call(_set)
        self.cuOccupancyMaxActiveClusters = Call(_occupancy)
        self.cuOccupancyMaxActiveBlocksPerMultiprocessor = Call(_occupancy_blocks)
        self.cuTensorMapEncodeTiled = Call(_tensor_map)
        self.cuFuncGetAttribute = Call(_function_attribute)
        self.cuFuncSetAttribute = Call(_set_function_attribute)
        self.cuInit = Call(lambda flags: 0)

    def callbacks(self, called: Called) -> list[Any]:
        """``cuLaunchKernelEx``, ``cuMemsetD8Async`` and ``cuGetErrorName`` for compiled code, as functions of :mod:`ctypes`."""

        def of(function: Call) -> Any:
            def call(*arguments: Any) -> int:
                called.count += 1
                try:
                    return int(function(*arguments))
                except BaseException as error:  # no exception may pass through compiled code
                    called.raised.append(error)
                    return 999

            return call

        pointer, signature = ctypes.c_void_p, ctypes.CFUNCTYPE
        kinds = (pointer,) * 4, (ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, pointer), (ctypes.c_int, pointer)
        functions = self.cuLaunchKernelEx, self.cuMemsetD8Async, self.cuGetErrorName
        return [signature(ctypes.c_int, *kind)(of(one)) for kind, one in zip(kinds, functions, strict=True)]

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
    """Make ``ctypes.CDLL`` return the emulated driver for libcuda."""
    if ctypes.CDLL is not _CDLL:
        ctypes.CDLL = _CDLL  # type: ignore[misc]

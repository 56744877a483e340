"""The calls of the CUDA runtime."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from emulator.runtime import counts
from emulator.settings import CHIP, DEVICES, MULTIPROCESSORS

cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault = 1, 2, 3, 4
memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = 0, 1, 2, 3, 4
streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = 0, 1, 2
streamNonBlocking, streamDefault = 1, 0
is_hip = False


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int, text: str = "") -> None:
        self.status = status
        super().__init__(text or f"CUDA error {status}")


class _Current(threading.local):
    device = 0


_current = _Current()


def _check(device: int) -> None:
    if not 0 <= device < DEVICES:
        raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal")


def getDevice() -> int:
    return _current.device


def setDevice(device: int) -> None:
    _check(device)
    _current.device = int(device)


def getDeviceCount() -> int:
    return DEVICES


def getDeviceProperties(device: int) -> dict[str, Any]:
    _check(device)
    return {
        "name": CHIP.name.encode(),
        "major": CHIP.major,
        "minor": CHIP.minor,
        "multiProcessorCount": MULTIPROCESSORS,
        "sharedMemPerBlockOptin": CHIP.shared_bytes,
        "sharedMemPerBlock": 49152,
        "sharedMemPerMultiprocessor": CHIP.shared_bytes + 1024,
        "l2CacheSize": CHIP.l2_bytes,
        "totalGlobalMem": 140 << 30,
        "warpSize": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiProcessor": 2048,
        "regsPerBlock": 65536,
        "regsPerMultiprocessor": 65536,
        "clockRate": 1980000,
        "memoryClockRate": 2619000,
        "memoryBusWidth": 6144,
        "computeMode": 0,
        "pciBusID": device,
        "pciDeviceID": 0,
        "pciDomainID": 0,
        "uuid": bytes(16),
    }


def deviceGetAttribute(attribute: int, device: int) -> int:
    return {16: MULTIPROCESSORS, 75: CHIP.major, 76: CHIP.minor, 97: CHIP.shared_bytes, 38: CHIP.l2_bytes}[attribute]


def deviceSynchronize() -> None:
    from cupy.cuda import _settle_all

    _settle_all()


def streamSynchronize(stream: int) -> None:
    from cupy.cuda import _settle

    _settle(stream)


def streamIsCapturing(stream: int) -> bool:
    from cupy.cuda import _capture

    return _capture.get(stream) is not None


def driverGetVersion() -> int:
    return 13000


def runtimeGetVersion() -> int:
    return 13000


def getVersion() -> int:
    return 13000


def memGetInfo() -> tuple[int, int]:
    return 130 << 30, 140 << 30


class PointerAttributes:
    def __init__(self, device: int, pointer: int) -> None:
        self.device, self.devicePointer, self.hostPointer, self.type = device, pointer, 0, 2


def pointerGetAttributes(pointer: int) -> PointerAttributes:
    return PointerAttributes(0, pointer)


def memcpyAsync(to: int, source: int, size: int, kind: int, stream: int) -> None:
    from cupy.cuda import _stream_by_ptr

    if kind == memcpyHostToDevice:
        counts["to_device"] += 1
    elif kind == memcpyDeviceToHost:
        counts["to_host"] += 1
    _stream_by_ptr(stream)._copy(lambda: ctypes.memmove(to, source, size), (to, source), size)


def memcpy(to: int, source: int, size: int, kind: int) -> None:
    ctypes.memmove(to, source, size)


def memsetAsync(to: int, value: int, size: int, stream: int) -> None:
    from cupy.cuda import _stream_by_ptr

    _stream_by_ptr(stream)._enqueue(lambda: ctypes.memset(to, value, size))


def memset(to: int, value: int, size: int) -> None:
    ctypes.memset(to, value, size)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"cupy.cuda.runtime.{name} is not emulated; add it to site/cupy/cuda/runtime.py")

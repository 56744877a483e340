"""Capabilities of the current device, and loaded kernels, their launches and tensor maps, through the CUDA driver."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from bitsparse._ext import launch as _launch
from bitsparse.errors import DeviceError, KernelError
from bitsparse.interop.devices import require_cupy
from bitsparse.jit.cubins import compile_kernel
from bitsparse.jit.recording import recorder
from bitsparse.jit.structs import TensorMap

_ATTRIBUTE_CLUSTER, _ATTRIBUTE_DEPENDENT = 4, 6


class Capability(NamedTuple):
    """Properties of one device.

    Attributes
    ----------
    name : str
    major, minor : int
        Compute capability.
    multiprocessors : int
    shared_bytes : int
        Most shared memory of one block.
    l2_bytes : int
    """

    name: str
    major: int
    minor: int
    multiprocessors: int
    shared_bytes: int
    l2_bytes: int

    @property
    def arch(self) -> str:
        """The NVRTC architecture to compile for, with the chip-specific features ("a") that exist from compute capability 9.0 on.

        Examples
        --------
        >>> Capability("NVIDIA H200", 9, 0, 132, 232448, 62914560).arch
        'sm_90a'
        """
        return f"sm_{self.major}{self.minor}{'a' if self.major >= 9 else ''}"

    @property
    def has_wgmma(self) -> bool:
        """Whether the chip has Hopper's warpgroup matrix instructions."""
        return (self.major, self.minor) == (9, 0)


def capability(device: int | None = None) -> Capability:
    """The capabilities of ``device``, by default of the current one.

    Raises
    ------
    DeviceError
        There is no CuPy or no usable GPU.
    KernelError
        The GPU is older than compute capability 8.0.
    """
    cupy = require_cupy("capability")
    if not cupy.cuda.is_available():
        raise DeviceError("capability: CuPy finds no CUDA device; check the driver with nvidia-smi, or stay on the CPU")
    return _capability(cupy.cuda.runtime.getDevice() if device is None else device)


@cache
def _capability(device: int) -> Capability:
    cupy = require_cupy("capability")
    properties = cupy.cuda.runtime.getDeviceProperties(device)
    numbers = "major", "minor", "multiProcessorCount", "sharedMemPerBlockOptin", "l2CacheSize"
    result = Capability(properties["name"].decode(), *(properties[name] for name in numbers))
    if result.major < 8:
        raise KernelError(
            f"capability: {result.name} has compute capability {result.major}.{result.minor}, but the kernels need 8.0, "
            "the first with a one-bit matrix AND; use the CPU"
        )
    return result


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


@cache
def _driver() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise KernelError(
            f"bitsparse.jit: the CUDA driver library cannot be loaded ({error}); install the NVIDIA driver"
        ) from error
    library.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
    return library


@cache
def _entry(function: str = "cuLaunchKernelEx") -> int:
    """The address of a function of the driver; 0 for a driver written in Python, as used in tests."""
    try:
        return ctypes.cast(getattr(_driver(), function), ctypes.c_void_p).value or 0
    except ctypes.ArgumentError:
        return 0


def driver_entries() -> tuple[int, int, int]:
    """The addresses of ``cuLaunchKernelEx``, ``cuMemsetD8Async`` and ``cuGetErrorName``, for launches from compiled code."""
    return _entry(), _entry("cuMemsetD8Async"), _entry("cuGetErrorName")


@cache
def _launcher() -> Callable[[int, int, int], int]:
    """``cuLaunchKernelEx`` as a function of three addresses: of the configuration, the kernel and the array of its arguments."""
    address = _entry()
    if address:
        return partial(_launch.launch, address)
    entry = _driver().cuLaunchKernelEx
    return lambda config, function, arguments: int(entry(config, function, arguments, None))


def _check(status: int, what: str) -> None:
    if status == 0:
        return
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(status, ctypes.byref(text))
    reason = (text.value or b"unknown error").decode()
    raise KernelError(f"bitsparse.jit: {what} failed: {reason} (CUDA error {status})")


class Launch:
    """A prepared launch: ``launch()`` enqueues it on CuPy's current stream.

    The structure ``params`` is read at every call, so pointers in it may be changed in between. While this thread records launches
    (:func:`~bitsparse.jit.recording.record`), the launch is recorded instead.
    """

    def __init__(
        self, kernel: Kernel, grid: tuple[int, ...], size: tuple[int, int], params: Any, cluster: int, dependent: bool
    ) -> None:
        self.function, self.name, self.params = kernel.function, kernel.name, params
        attributes = [_Attribute(_ATTRIBUTE_CLUSTER, 0, (cluster, 1, 1))] if cluster > 1 else []
        attributes += [_Attribute(_ATTRIBUTE_DEPENDENT, 0, (1,))] if dependent else []
        self.attributes, (threads, shared) = (_Attribute * 2)(*attributes), size
        self.config = _Config(grid, (threads, 1, 1), shared, None, self.attributes, len(attributes))
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        self._call = _launcher()
        self._config_address, self._arguments_address = ctypes.addressof(self.config), ctypes.addressof(self._arguments)
        self._stream = require_cupy("bitsparse.jit").cuda.get_current_stream

    def __call__(self, stream: int | None = None) -> None:
        """Enqueue the launch on CuPy's current stream; a caller that knows its address passes it as ``stream``."""
        recording = recorder()
        if recording is not None and recording.take(self):
            return
        self.config.stream = self._stream().ptr if stream is None else stream
        status = self._call(self._config_address, self.function, self._arguments_address)
        if status:
            _check(status, f"launching {self.name}")

    def quick(self, out_at: int) -> Any:
        """The same launch as a compiled call that changes only the stream and the address at byte ``out_at`` of the parameters.

        ``None`` for a driver written in Python. The call reads this launch, which must be kept alive.
        """
        if not _entry():
            return None
        config = (self._config_address, ctypes.sizeof(_Config), _Config.stream.offset)
        params = (ctypes.addressof(self.params), ctypes.sizeof(self.params), out_at)
        return _launch.Quick(_entry(), *config, self.function, *params)


class Kernel:
    """A function loaded on one device; made by :func:`kernel`."""

    def __init__(self, raw: Any, name: str) -> None:
        self.raw, self.name = raw, name
        self.function, self._entry = int(raw.kernel.ptr), _entry()
        self._stream = require_cupy("bitsparse.jit").cuda.get_current_stream
        self._shared = 0
        self._clusters: dict[tuple[int, int, int], int] = {}

    def launch(
        self,
        grid: int | tuple[int, int, int],
        threads: int,
        params: ctypes.Structure,
        *,
        shared: int = 0,
        cluster: int = 1,
        dependent: bool = False,
    ) -> Launch:
        """Prepare a launch.

        Parameters
        ----------
        grid, threads : int or tuple, int
        params : ctypes.Structure
            The kernel's one argument.
        shared : int
            Bytes of dynamic shared memory.
        cluster : int
            Number of blocks in a cluster, along x.
        dependent : bool
            Let the kernel start before the previous one ends; only for kernels that execute ``griddepcontrol.wait``.
        """
        self._allow(shared)
        whole = (grid, 1, 1) if isinstance(grid, int) else grid
        return Launch(self, whole, (threads, shared), params, cluster, dependent)

    def _allow(self, shared: int) -> None:
        if shared > self._shared:
            self.raw.max_dynamic_shared_size_bytes = shared
            self._shared = shared

    def run(self, grid: Any, threads: int, params: ctypes.Structure, shared: int = 0, dependent: bool = False) -> None:
        """Enqueue one launch on CuPy's current stream, without preparing it by :meth:`launch`, which takes longer than a small kernel."""
        if not isinstance(grid, int) or dependent or not self._entry or recorder() is not None:
            self.launch(grid, threads, params, shared=shared, dependent=dependent)()
            return
        self._allow(shared)
        at = ctypes.addressof(params)
        status = _launch.once(self._entry, self.function, grid, threads, shared, self._stream().ptr, at)
        if status:
            _check(status, f"launching {self.name}")

    def resident_clusters(self, threads: int, shared: int, cluster: int) -> int:
        """Number of clusters of ``cluster`` blocks that the device can run at the same time."""
        key = (threads, shared, cluster)
        if key not in self._clusters:
            probe = self.launch((cluster, 1, 1), threads, _Config(), shared=shared, cluster=cluster)
            probe.config.attributes[0] = _Attribute(_ATTRIBUTE_CLUSTER, 0, (cluster, 1, 1))  # also for a single block
            probe.config.attribute_count = 1
            clusters = ctypes.c_int()
            status = _driver().cuOccupancyMaxActiveClusters(
                ctypes.byref(clusters), ctypes.c_void_p(self.function), ctypes.byref(probe.config)
            )
            _check(status, f"asking for the occupancy of {self.name}")
            self._clusters[key] = clusters.value
        return self._clusters[key]


_loaded: dict[tuple[int, str, str, tuple[tuple[str, int], ...]], Kernel] = {}


def kernel(source: str, name: str, defines: Mapping[str, int] | None = None) -> Kernel:
    """The function ``name`` of ``source``, compiled and loaded for the current device; cached for each device."""
    cupy = sys.modules.get("cupy") or require_cupy("bitsparse.jit")
    device = cupy.cuda.runtime.getDevice()
    key = (device, source, name, tuple(sorted(defines.items())) if defines else ())
    found = _loaded.get(key)
    if found is None:
        path, _ = compile_kernel(source, defines or {}, capability(device).arch)
        found = _loaded[key] = Kernel(cupy.RawModule(path=str(path)).get_function(name), name)
    return found


def tensor_map(address: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]) -> Any:
    """Encode a TMA descriptor of an array of 32-bit words.

    Parameters
    ----------
    address : int
        Device address, 16-byte aligned.
    shape : sequence of int
        Sizes, innermost first, in words.
    strides : sequence of int
        Bytes between neighbours along every dimension but the innermost, multiples of 16.
    box : sequence of int
        Sizes of the tile that one copy moves; 32 words innermost, because of the swizzle. Reads beyond the array give zeros.

    Returns
    -------
    list of int
        The 16 words of a :data:`TensorMap`.
    """
    rank = len(shape)
    room = (ctypes.c_uint64 * 24)()  # larger than needed, because the driver requires 64-byte alignment
    aligned = -(-ctypes.addressof(room) // 64) * 64
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(aligned),
        2,  # 32-bit words
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*shape),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*([1] * rank)),
        0,
        3,  # the 128-byte swizzle
        2,  # fetch 128 bytes into L2
        0,
    )
    _check(status, f"encoding a tensor map of shape {tuple(shape)}, strides {tuple(strides)}, box {tuple(box)}")
    return list(TensorMap.from_address(aligned))

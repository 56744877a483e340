"""Loaded kernels, their launches and tensor maps, through the CUDA driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from bitsparse._ext import launch as _launch
from bitsparse.errors import KernelError
from bitsparse.jit.cache import compile_kernel
from bitsparse.jit.device import capability, require_cupy
from bitsparse.jit.structs import TensorMap

__all__ = ["Kernel", "Launch", "kernel", "tensor_map"]

_ATTRIBUTE_CLUSTER, _ATTRIBUTE_DEPENDENT = 4, 6
_SUCCESS, _OUT_OF_MEMORY = 0, 2


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
def _entry() -> int:
    """The address of ``cuLaunchKernelEx``; 0 for a driver in Python, as tests have one."""
    try:
        return ctypes.cast(_driver().cuLaunchKernelEx, ctypes.c_void_p).value or 0
    except ctypes.ArgumentError:
        return 0


@cache
def _launcher() -> Callable[[int, int, int], int]:
    """``cuLaunchKernelEx`` of addresses: of a configuration, a function and the array of its arguments."""
    address = _entry()
    if address:
        return partial(_launch.launch, address)
    entry = _driver().cuLaunchKernelEx
    return lambda config, function, arguments: int(entry(config, function, arguments, None))


def _check(status: int, what: str) -> None:
    if status == _SUCCESS:
        return
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(status, ctypes.byref(text))
    reason = (text.value or b"unknown error").decode()
    raise KernelError(f"bitsparse.jit: {what} failed: {reason} (CUDA error {status})")


class Launch:
    """A launch prepared once: ``launch()`` enqueues it on CuPy's current stream.

    The structure ``params`` is read at every call, so that pointers in it may be changed in between.
    """

    def __init__(
        self,
        function: int,
        name: str,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        params: ctypes.Structure,
        cluster: int,
        dependent: bool,
    ) -> None:
        self._function, self._name, self.params = function, name, params
        self._attributes = (_Attribute * 2)()
        count = 0
        if cluster > 1:
            self._attributes[count].id = _ATTRIBUTE_CLUSTER
            self._attributes[count].value[0:3] = [cluster, 1, 1]
            count += 1
        if dependent:
            self._attributes[count].id = _ATTRIBUTE_DEPENDENT
            self._attributes[count].value[0] = 1
            count += 1
        self.config = _Config((*grid,), (threads, 1, 1), shared, None, self._attributes, count)
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        self._call = _launcher()
        self._config_address, self._arguments_address = ctypes.addressof(self.config), ctypes.addressof(self._arguments)
        self._stream = require_cupy("bitsparse.jit").cuda.get_current_stream

    def __call__(self, stream: int | None = None) -> None:
        """Enqueue on CuPy's current stream, whose address is ``stream`` if the caller knows it."""
        self.config.stream = self._stream().ptr if stream is None else stream
        status = self._call(self._config_address, self._function, self._arguments_address)
        if status:
            _check(status, f"launching {self._name}")

    def quick(self, out_at: int) -> Any:
        """The same launch as a compiled call that only changes the stream and the address at byte ``out_at`` of the parameters.

        ``None`` for a driver in Python. It reads this launch, which must be kept.
        """
        if not _entry():
            return None
        config = (self._config_address, ctypes.sizeof(_Config), _Config.stream.offset)
        params = (ctypes.addressof(self.params), ctypes.sizeof(self.params), out_at)
        return _launch.Quick(_entry(), *config, self._function, *params)


class Kernel:
    """One loaded function of one device; made by :func:`kernel`."""

    def __init__(self, raw: Any, name: str) -> None:
        self.raw, self.name = raw, name
        self.function = int(raw.kernel.ptr)
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
            Blocks of a cluster, along x.
        dependent : bool
            Let the kernel start before the one in front of it ends; only for kernels that execute ``griddepcontrol.wait``.
        """
        if shared > self._shared:
            self.raw.max_dynamic_shared_size_bytes = shared
            self._shared = shared
        whole = (grid, 1, 1) if isinstance(grid, int) else grid
        return Launch(self.function, self.name, whole, threads, shared, params, cluster, dependent)

    def resident_clusters(self, threads: int, shared: int, cluster: int) -> int:
        """How many clusters of ``cluster`` blocks the device runs at the same time."""
        key = (threads, shared, cluster)
        if key not in self._clusters:
            probe = self.launch((cluster, 1, 1), threads, _Config(), shared=shared, cluster=cluster)
            probe.config.attributes[0].id = _ATTRIBUTE_CLUSTER  # also for a cluster of one
            probe.config.attributes[0].value[0:3] = [cluster, 1, 1]
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
    """The function ``name`` of ``source``, compiled and loaded for the current device; remembered for each device."""
    cupy = require_cupy("bitsparse.jit")
    constants = {} if defines is None else dict(defines)
    device = cupy.cuda.runtime.getDevice()
    key = (device, source, name, tuple(sorted(constants.items())))
    if key not in _loaded:
        path, _ = compile_kernel(source, constants, capability(device).arch)
        _loaded[key] = Kernel(cupy.RawModule(path=str(path)).get_function(name), name)
    return _loaded[key]


def tensor_map(
    address: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], *, swizzle: bool = True
) -> Any:
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
        The tile that one copy moves; reads beyond the array give zeros.
    swizzle : bool
        The 128-byte swizzle (the innermost box size is then 32 words).

    Returns
    -------
    list of int
        The 16 words of a :data:`TensorMap`.
    """
    rank = len(shape)
    room = (ctypes.c_uint64 * 24)()  # the driver wants 64-byte alignment
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
        3 if swizzle else 0,
        2,  # fetch 128 bytes into L2
        0,
    )
    _check(status, f"encoding a tensor map of shape {tuple(shape)}, strides {tuple(strides)}, box {tuple(box)}")
    return list(TensorMap.from_address(aligned))

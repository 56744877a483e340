"""CuPy, found or explained, and what the current device can do."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from bitsparse.errors import DeviceError, KernelError
from bitsparse.interop import require_cupy

__all__ = ["Capability", "capability", "require_cupy"]


class Capability(NamedTuple):
    """Properties of one device.

    Attributes
    ----------
    name : str
    major, minor : int
        Compute capability.
    multiprocessors : int
    shared_bytes : int
        Shared memory that one block can have.
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
        """The NVRTC architecture to build for: with the features of this very chip where there are any.

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
    """What ``device``, by default the current one, can do.

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
    result = Capability(
        properties["name"].decode(),
        properties["major"],
        properties["minor"],
        properties["multiProcessorCount"],
        properties["sharedMemPerBlockOptin"],
        properties["l2CacheSize"],
    )
    if result.major < 8:
        raise KernelError(
            f"capability: {result.name} has compute capability {result.major}.{result.minor}, but the kernels need 8.0, "
            "the first with a one-bit matrix AND; use the CPU"
        )
    return result

"""From the CUDA C++ in ``cuda_src`` to loaded kernels: compilation with NVRTC, a cache of cubins on disk, launches, device properties.

Every kernel takes one structure by value, which is a :class:`ctypes.Structure` here. Nothing in this package needs a GPU before a kernel is
loaded; :func:`compile_all` compiles for any list of architectures on a machine without one.
"""

from bitsparse.interop.devices import cupy as cupy
from bitsparse.interop.devices import require_cupy
from bitsparse.jit.cubins import (
    ARCHS,
    Compiled,
    Variant,
    cache_dir,
    compile_all,
    compile_kernel,
    flags,
    nvrtc_version,
    source_dir,
    variants_of,
)
from bitsparse.jit.kernel import Capability, Kernel, Launch, capability, driver_entries, kernel, tensor_map
from bitsparse.jit.recording import Node, Recorded, record, recorder, scratch
from bitsparse.jit.structs import TensorMap, filled, struct

__all__ = [
    "ARCHS",
    "Capability",
    "Compiled",
    "Kernel",
    "Launch",
    "Node",
    "Recorded",
    "TensorMap",
    "Variant",
    "cache_dir",
    "capability",
    "compile_all",
    "compile_kernel",
    "driver_entries",
    "filled",
    "flags",
    "kernel",
    "nvrtc_version",
    "record",
    "recorder",
    "require_cupy",
    "scratch",
    "source_dir",
    "struct",
    "tensor_map",
    "variants_of",
]

"""CUDA C++ from ``cuda_src`` to loaded kernels: compilation with NVRTC, a cache of cubins on disk, launches, device properties.

Every kernel takes one structure by value, given here as a :class:`ctypes.Structure`. Nothing in this package needs a GPU before a
kernel is loaded; :func:`compile_all` builds for any list of architectures on a machine without one.
"""

from bitsparse.interop.devices import cupy as cupy
from bitsparse.interop.devices import require_cupy as require_cupy
from bitsparse.jit.cubins import ARCHS as ARCHS
from bitsparse.jit.cubins import Compiled as Compiled
from bitsparse.jit.cubins import Variant as Variant
from bitsparse.jit.cubins import cache_dir as cache_dir
from bitsparse.jit.cubins import compile_all as compile_all
from bitsparse.jit.cubins import flags as flags
from bitsparse.jit.cubins import nvrtc_version as nvrtc_version
from bitsparse.jit.cubins import source_dir as source_dir
from bitsparse.jit.cubins import variants_of as variants_of
from bitsparse.jit.kernel import Capability as Capability
from bitsparse.jit.kernel import Kernel as Kernel
from bitsparse.jit.kernel import Launch as Launch
from bitsparse.jit.kernel import capability as capability
from bitsparse.jit.kernel import driver_entries as driver_entries
from bitsparse.jit.kernel import kernel as kernel
from bitsparse.jit.kernel import tensor_map as tensor_map
from bitsparse.jit.recording import Node as Node
from bitsparse.jit.recording import Recorded as Recorded
from bitsparse.jit.recording import record as record
from bitsparse.jit.recording import recorder as recorder
from bitsparse.jit.recording import scratch as scratch
from bitsparse.jit.structs import filled as filled
from bitsparse.jit.structs import struct as struct

"""Any array library in, the same library out, on the CPU and on NVIDIA GPUs.

``host`` views arrays in host memory as NumPy arrays, ``cuda`` those in a GPU's memory as CuPy arrays; neither copies where the memory
can be shared. ``transfers``, ``uploads`` and ``pinned`` copy between the two. ``streams`` decides on which stream the work of a call is
enqueued. PyTorch and JAX are never imported here: they are found in ``sys.modules`` when one of their arrays arrives.
"""

from bitsparse.interop.cuda import (
    aligned,
    as_array,
    as_host,
    common_family,
    contiguous,
    from_array,
    gpu_of,
    move,
    writable_array,
)
from bitsparse.interop.devices import device_of, namespace, parse_device, require_cupy
from bitsparse.interop.host import CUPY, JAX, NUMPY, TORCH, Family, as_numpy, from_numpy, writable_numpy
from bitsparse.interop.pinned import is_pinned, pinned_empty
from bitsparse.interop.streams import Ready, current_gpu, is_capturing, moving, stream_at, use_stream, working_on
from bitsparse.interop.transfers import Download, Downloader, offsets_of, to_gpu, view
from bitsparse.interop.uploads import Upload, Uploader

__all__ = [
    "CUPY",
    "JAX",
    "NUMPY",
    "TORCH",
    "Download",
    "Downloader",
    "Family",
    "Ready",
    "Upload",
    "Uploader",
    "aligned",
    "as_array",
    "as_host",
    "as_numpy",
    "common_family",
    "contiguous",
    "current_gpu",
    "device_of",
    "from_array",
    "from_numpy",
    "gpu_of",
    "is_capturing",
    "is_pinned",
    "move",
    "moving",
    "namespace",
    "offsets_of",
    "parse_device",
    "pinned_empty",
    "require_cupy",
    "stream_at",
    "to_gpu",
    "use_stream",
    "view",
    "working_on",
    "writable_array",
    "writable_numpy",
]

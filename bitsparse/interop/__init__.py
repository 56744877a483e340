"""Any array library in, the same library out, on the CPU and on NVIDIA GPUs.

``arrays`` views arrays in host memory as NumPy arrays and those in a GPU's memory as CuPy arrays; neither copies where the memory can
be shared. ``transfers`` and ``uploads`` copy between the two. ``streams`` decides on which stream the work of a call is
enqueued. PyTorch and JAX are never imported here: they are found in ``sys.modules`` when one of their arrays arrives.
"""

from bitsparse.interop.alike import ArrayKind, Arrays, Bounds, arrays_on, span
from bitsparse.interop.arrays import (
    aligned,
    as_array,
    as_host,
    as_numpy,
    common_family,
    contiguous,
    from_array,
    gpu_of,
    move,
    writable_array,
)
from bitsparse.interop.devices import (
    CUPY,
    NUMPY,
    TORCH,
    Family,
    cupy_arrays,
    device_of,
    namespace,
    parse_device,
    require_cupy,
)
from bitsparse.interop.streams import Ready, current_gpu, is_capturing, moving, use_stream, working_on
from bitsparse.interop.transfers import Downloader, aligned_bytes, offsets_of, pinned_empty, to_gpu, view
from bitsparse.interop.uploads import Uploader

__all__ = [
    "CUPY",
    "NUMPY",
    "TORCH",
    "ArrayKind",
    "Arrays",
    "Bounds",
    "Downloader",
    "Family",
    "Ready",
    "Uploader",
    "aligned",
    "aligned_bytes",
    "arrays_on",
    "as_array",
    "as_host",
    "as_numpy",
    "common_family",
    "contiguous",
    "cupy_arrays",
    "current_gpu",
    "device_of",
    "from_array",
    "gpu_of",
    "is_capturing",
    "move",
    "moving",
    "namespace",
    "offsets_of",
    "parse_device",
    "pinned_empty",
    "require_cupy",
    "span",
    "to_gpu",
    "use_stream",
    "view",
    "working_on",
    "writable_array",
]

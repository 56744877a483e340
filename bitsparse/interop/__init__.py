"""Conversion of arrays from any library and back to the same library, on the CPU and on NVIDIA GPUs.

``arrays`` views arrays in host memory as NumPy arrays and arrays on a GPU as CuPy arrays, without a copy if the memory can be shared.
``results`` returns them in the caller's library. ``transfers`` and ``uploads`` copy between host and GPU. ``streams`` chooses the stream
on which a call enqueues its work, and ``memory`` the allocator that it uses. PyTorch and JAX are never imported here: they are found in
``sys.modules`` when one of their arrays arrives.
"""

from bitsparse.interop.addresses import ArraysAt, on_stream
from bitsparse.interop.alike import ArrayKind, Arrays, Bounds, arrays_on, span
from bitsparse.interop.arrays import as_array, as_host, as_numpy, gpu_of, is_array_like, over_tensor, writable_array
from bitsparse.interop.devices import (
    CUPY,
    JAX,
    NUMPY,
    TORCH,
    Family,
    cupy_arrays,
    device_of,
    namespace,
    parse_device,
    require_cupy,
)
from bitsparse.interop.graphs import Compressed, Coordinates, device_of_graph, edges_of, nodes_of_data, read_graph
from bitsparse.interop.memory import is_lent, lent_memory
from bitsparse.interop.protocols import ArrayLike, SparseLike
from bitsparse.interop.results import aligned, as_bits, common_family, contiguous, converted, from_array, move
from bitsparse.interop.stand_ins import NotRecordable, StandIn
from bitsparse.interop.streams import (
    Ready,
    current_gpu,
    is_capturing,
    moving,
    stream_for_torch,
    stream_of_torch,
    use_stream,
    working_on,
)
from bitsparse.interop.transfers import Downloader, aligned_bytes, offsets_of, pinned_empty, to_gpu, uploaded, view
from bitsparse.interop.uploads import Uploader

__all__ = [
    "CUPY",
    "JAX",
    "NUMPY",
    "TORCH",
    "ArrayKind",
    "ArrayLike",
    "Arrays",
    "ArraysAt",
    "Bounds",
    "Compressed",
    "Coordinates",
    "Downloader",
    "Family",
    "NotRecordable",
    "Ready",
    "SparseLike",
    "StandIn",
    "Uploader",
    "aligned",
    "aligned_bytes",
    "arrays_on",
    "as_array",
    "as_bits",
    "as_host",
    "as_numpy",
    "common_family",
    "contiguous",
    "converted",
    "cupy_arrays",
    "current_gpu",
    "device_of",
    "device_of_graph",
    "edges_of",
    "from_array",
    "gpu_of",
    "is_array_like",
    "is_capturing",
    "is_lent",
    "lent_memory",
    "move",
    "moving",
    "namespace",
    "nodes_of_data",
    "offsets_of",
    "on_stream",
    "over_tensor",
    "parse_device",
    "pinned_empty",
    "read_graph",
    "require_cupy",
    "span",
    "stream_for_torch",
    "stream_of_torch",
    "to_gpu",
    "uploaded",
    "use_stream",
    "view",
    "working_on",
    "writable_array",
]

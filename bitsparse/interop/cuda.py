"""Arrays on any device: CuPy views of arrays in GPU memory beside :mod:`bitsparse.interop.host`, and results in the caller's family."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.errors import DeviceError, DTypeError
from bitsparse.interop import streams
from bitsparse.interop.devices import device_of, is_cupy, namespace, require_cupy
from bitsparse.interop.host import CUPY, JAX, NUMPY, TORCH, Family, as_numpy, from_numpy, writable_numpy
from bitsparse.interop.tensors import plain_tensor
from bitsparse.interop.transfers import to_gpu

__all__ = [
    "aligned",
    "as_array",
    "as_host",
    "common_family",
    "contiguous",
    "from_array",
    "gpu_of",
    "move",
    "writable_array",
]

#: DLPack device types that CuPy reads: CUDA, and memory managed by CUDA.
_CUDA_DLPACK_DEVICES = (2, 13)
#: Packed words start at addresses that are multiples of this.
_ALIGNMENT = 16


def gpu_of(x: Any) -> tuple[str, Family] | None:
    """``"cuda:0"`` and so on and the family of an array in a GPU's memory, of whatever library; None for everything else.

    Examples
    --------
    >>> gpu_of(np.zeros(3)), gpu_of("no array")
    (None, None)
    """
    if isinstance(x, np.ndarray):
        return None
    if is_cupy(x):
        return device_of(x), CUPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return (f"cuda:{x.device.index}", TORCH) if x.is_cuda else None
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        if isinstance(x, jax.core.Tracer) or {device.platform for device in x.devices()} == {"cpu"}:
            return None
    elif hasattr(x, "__dlpack_device__"):
        if int(x.__dlpack_device__()[0]) not in _CUDA_DLPACK_DEVICES:
            return None
    elif not hasattr(x, "__cuda_array_interface__"):
        return None
    array, family = as_array(x, "as_array")
    return (device_of(array), family) if is_cupy(array) else None


def as_array(x: Any, function: str, name: str = "x") -> tuple[Any, Family]:
    """A NumPy or CuPy view of ``x`` where it lies, and the family that ``x`` belongs to.

    Memory on a GPU is shared with CuPy arrays, PyTorch CUDA tensors, JAX arrays and every other producer of DLPack or of the CUDA array
    interface. Work that its owner has enqueued is waited for in stream order, as DLPack asks for, not by the host.

    Raises
    ------
    DeviceError
        ``x`` lies on a device that is neither a CPU nor an NVIDIA GPU, or on a GPU while CuPy is missing.
    DTypeError
        As :func:`as_numpy`.
    """
    if isinstance(x, np.ndarray):
        return as_numpy(x, function, name)
    if is_cupy(x):
        return x, CUPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return (_from_torch(x, torch, function, name), TORCH) if x.is_cuda else as_numpy(x, function, name)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer):
        on_gpu = {device.platform for device in x.devices()} <= {"gpu", "cuda"} and len(x.devices()) == 1
        return (_from_dlpack(x, function, name), JAX) if on_gpu else as_numpy(x, function, name)
    if hasattr(x, "__dlpack_device__") and int(x.__dlpack_device__()[0]) in _CUDA_DLPACK_DEVICES:
        space = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
        family = CUPY if space is None else Family(space.__name__.partition(".")[0], space)
        return _from_dlpack(x, function, name), family
    if hasattr(x, "__cuda_array_interface__"):
        return require_cupy(function).asarray(x), CUPY
    return as_numpy(x, function, name)


def _from_torch(x: Any, torch: Any, function: str, name: str) -> Any:
    x = plain_tensor(x, torch, function, name)
    with streams.working_on(f"cuda:{x.device.index}", TORCH):
        return _from_dlpack(x, function, name)


def _from_dlpack(x: Any, function: str, name: str) -> Any:
    cupy = require_cupy(function)
    if not cupy.cuda.is_available():
        raise DeviceError(
            f"{function}: {name} is on a GPU, but CuPy finds no CUDA device; check the driver with nvidia-smi, or pass {name} on the CPU"
        )
    try:
        return cupy.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise DTypeError(
            f"{function}: {name} ({type(x).__name__}) cannot be read through DLPack ({error}); convert it to float32 or an integer dtype"
        ) from None


def as_host(x: Any, function: str, name: str = "x") -> NDArray[Any]:
    """``x`` as a NumPy array, copied from a GPU if it lies there; for small parameters only."""
    array, _ = as_array(x, function, name)
    return array if isinstance(array, np.ndarray) else np.asarray(array.get())


def common_family(families: Iterable[Family]) -> Family:
    """The family that results come back in: the first that is neither NumPy nor CuPy, else the first.

    Examples
    --------
    >>> common_family([NUMPY, Family("torch")])
    Family('torch')
    """
    known = list(families)
    return next((family for family in known if family.name not in ("numpy", "cupy")), known[0] if known else NUMPY)


def from_array(result: Any, family: Family, function: str) -> Any:
    """``result`` as an array of ``family`` on the device where it lies, without a copy where the library can adopt the memory.

    A family that knows one device only gives way on the other: NumPy's results on a GPU are CuPy's, and the other way round.
    """
    if isinstance(result, np.ndarray):
        return from_numpy(result, NUMPY if family.name == "cupy" else family, function)
    if family.name == "torch":
        torch = sys.modules["torch"]
        if result.dtype.name == "bfloat16":  # which not every CuPy exports
            return torch.from_dlpack(result.view(np.int16)).view(torch.bfloat16)
        return torch.from_dlpack(result)
    if family.name == "jax":
        jax = sys.modules["jax"]
        if result.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
            raise DTypeError(
                f"{function}: the result is {result.dtype}, which JAX would cut to 32 bits; "
                f"call jax.config.update('jax_enable_x64', True) first, or pass CuPy arrays"
            )
        return jax.dlpack.from_dlpack(result)
    if family.namespace is not None and hasattr(family.namespace, "from_dlpack"):
        try:
            return family.namespace.from_dlpack(result)
        except (BufferError, RuntimeError, TypeError, ValueError):
            return result  # a library of the host
    return result


def writable_array(x: Any, function: str, name: str = "out") -> Any:
    """The memory of ``x`` itself as NumPy or CuPy array, to write results into; never a copy."""
    if is_cupy(x):
        return x
    if hasattr(x, "__dlpack_device__") and int(x.__dlpack_device__()[0]) in _CUDA_DLPACK_DEVICES:
        if type(x).__module__.partition(".")[0] in ("jax", "jaxlib"):
            raise DTypeError(f"{function}: {name} is a JAX array, which cannot be written to; pass {name}=None")
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            plain_tensor(x, torch, function, name, writable=True)
        return as_array(x, function, name)[0]
    return writable_numpy(x, function, name)


def move(x: Any, device: str, *, later: bool = False) -> Any:
    """A NumPy or CuPy array on ``device`` (as :func:`parse_device` writes it); itself if it is there.

    Host memory has been read when this returns, unless it is page-locked and ``later`` allows to read it in stream order.
    """
    if device_of(x) == device:
        return x
    if device == "cpu":
        with streams.working_on(device_of(x), CUPY):
            return x.get()
    cupy = sys.modules["cupy"]
    with streams.working_on(device, CUPY):
        if isinstance(x, np.ndarray):
            return to_gpu(x, device, later=later)
        return cupy.asarray(x)


def contiguous(x: Any) -> Any:
    """A NumPy or CuPy array in C order, itself if it is; CuPy copies bfloat16 only as bits."""
    space = namespace(x)
    if space is not np and x.dtype.name == "bfloat16" and not x.flags.c_contiguous:
        return space.ascontiguousarray(x.view(np.uint16)).view(x.dtype)
    return space.ascontiguousarray(x)


def aligned(words: Any) -> Any:
    """C-contiguous and 16-byte aligned, copied only if it is not."""
    space = namespace(words)
    words = space.ascontiguousarray(words)
    address = words.ctypes.data if space is np else words.data.ptr
    if address % _ALIGNMENT == 0:
        return words
    if space is not np:
        return words.copy()  # CuPy's allocations are aligned to 512 bytes
    buffer = np.empty(words.nbytes + _ALIGNMENT, dtype=np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    placed = buffer[start : start + words.nbytes].view(words.dtype).reshape(words.shape)
    placed[...] = words
    return placed

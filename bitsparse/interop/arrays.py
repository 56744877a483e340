"""NumPy and CuPy views of arrays of any library on any device.

Memory is shared through DLPack, the array interfaces or the library's own NumPy view (with the bfloat16 of ml_dtypes). A copy is made only
later on, if a function needs another memory layout. PyTorch and JAX are never imported here: they are found in ``sys.modules`` when one of
their arrays arrives.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse.errors import DeviceError, DTypeError
from bitsparse.interop import streams
from bitsparse.interop.devices import CUPY, JAX, NUMPY, TORCH, Family, device_of, is_cupy, require_cupy
from bitsparse.interop.tensors import plain_tensor

#: DLPack device types whose memory the CPU can read (CPU, pinned CUDA host, ROCm host), and those that CuPy can (CUDA, managed by CUDA).
_HOST_DLPACK_DEVICES, _CUDA_DLPACK_DEVICES = (1, 3, 11), (2, 13)
#: Names under which libraries that support only DLPack have the function that adopts an array.
_ADOPTING = ("from_dlpack", "utils.dlpack.from_dlpack", "experimental.dlpack.from_dlpack")
#: Deepest nesting of lists that are read as one array.
_DEEPEST = 16
#: Types that are not arrays, but that NumPy makes arrays from.
_SEQUENCES = (np.generic, bool, int, float, complex, list, tuple, range)

#: Attributes by which arrays and tensors of all libraries export their memory.
_PROTOCOLS = (
    *("__array__", "__array_interface__", "__array_struct__", "__cuda_array_interface__"),
    *("__dlpack__", "__buffer__"),
)


def _is_of(x: Any, library: str, kind: str) -> Any:
    """The module of `library` if `x` is one of its arrays, else None."""
    module = sys.modules.get(library)
    return module if module is not None and isinstance(x, getattr(module, kind)) else None


def _on_gpu(x: Any) -> bool:
    """Whether an array of any library is in the memory of one GPU."""
    if is_cupy(x):
        return True
    if _is_of(x, "torch", "Tensor"):
        return bool(x.is_cuda)
    jax = _is_of(x, "jax", "Array")
    if jax:
        return not isinstance(x, jax.core.Tracer) and {device.platform for device in x.devices()} <= {"gpu", "cuda"}
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[0]) in _CUDA_DLPACK_DEVICES
    return hasattr(x, "__cuda_array_interface__")


def gpu_of(x: Any) -> tuple[str, Family] | None:
    """Device (``"cuda:0"`` and so on) and family of an array of any library in a GPU's memory; None for everything else.

    Examples
    --------
    >>> gpu_of(np.zeros(3)), gpu_of("no array")
    (None, None)
    """
    if isinstance(x, np.ndarray) or not _on_gpu(x):
        return None
    if _is_of(x, "torch", "Tensor"):
        return f"cuda:{x.device.index}", TORCH
    array, family = as_array(x, "as_array")
    return device_of(array), family


def is_array_like(x: Any) -> bool:
    """Whether `x` is an array of some library, or an object that NumPy makes an array from; text and classes do not count.

    Examples
    --------
    >>> is_array_like([1, 2]), is_array_like({1, 2}), is_array_like("12")
    (True, False, False)
    """
    if isinstance(x, (type, str, bytes)):
        return False
    if isinstance(x, _SEQUENCES) or any(hasattr(x, protocol) for protocol in _PROTOCOLS):
        return True
    try:
        memoryview(x)
    except TypeError:
        return False
    return True


def as_array(
    x: Any, function: str, name: str = "x", *, gpu: bool = True, kinds: str | None = None
) -> tuple[Any, Family]:
    """A NumPy or CuPy view of ``x`` on its device, in native byte order, and the family that ``x`` belongs to.

    Memory on a GPU is shared with CuPy arrays, PyTorch CUDA tensors, JAX arrays and all other producers of DLPack or of the CUDA array
    interface. The stream waits for work that the owner has enqueued, as DLPack specifies, but the host does not. A copy is made only for
    lists, ranges, scalars and arrays in the other byte order.

    Parameters
    ----------
    x : array_like
        Array of NumPy, CuPy, PyTorch or JAX, any other DLPack or array-interface producer, nested lists or a scalar.
    function, name : str
        The calling function and its argument, for messages.
    gpu : bool, default True
        Whether arrays in a GPU's memory are accepted too.
    kinds : str, optional
        The kinds of dtypes that are accepted, such as "biuf" for all plain numbers; by default, all are.

    Raises
    ------
    DeviceError
        ``x`` is on a device that is not accepted, or on a GPU while CuPy is missing.
    DTypeError
        ``x`` is masked, sparse, needs a gradient, cannot be viewed as numbers or is of another kind than `kinds`.

    Examples
    --------
    >>> array, family = as_array([[1, 2], [3, 4]], "example")
    >>> array.shape, family
    ((2, 2), Family('numpy'))
    """
    array, family = _view(x, function, name, gpu)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if kinds is not None:
        _check.numeric_dtype(function, name, array.dtype, kinds)
    return array, family


def as_numpy(x: Any, function: str, name: str = "x") -> tuple[NDArray[Any], Family]:
    """:func:`as_array` for arrays in host memory only."""
    return as_array(x, function, name, gpu=False)


def _view(x: Any, function: str, name: str, gpu: bool) -> tuple[Any, Family]:
    """:func:`as_array`, but in the byte order of ``x``."""
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise DTypeError(
                f"{function}: {name} is a masked array, whose mask would be lost; fill it first with {name}.filled(value)"
            )
        return np.asarray(x), NUMPY
    if is_cupy(x):
        if not gpu:
            raise _not_on_cpu(function, name, f"cuda:{x.device.id}", ".get()")
        return x, CUPY
    if isinstance(x, _SEQUENCES):
        return _from_sequence(x, function, name), NUMPY
    torch = _is_of(x, "torch", "Tensor")
    if torch:
        return _from_torch(x, torch, function, name, gpu), TORCH
    jax = _is_of(x, "jax", "Array")
    if jax:
        return _from_jax(x, jax, function, name, gpu), JAX
    if isinstance(x, type):  # a class has its objects' protocols, but they cannot be called
        raise _not_array(x, function, name)
    if hasattr(x, "nnz") and hasattr(x, "toarray"):
        raise DTypeError(
            f"{function}: {name} is a {type(x).__name__}, and sparse arrays are not densified silently; call its "
            f".toarray() first"
        )
    space = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
    family = _dlpack_family(x) if space is None else Family(space.__name__.partition(".")[0], space)
    if gpu and _on_gpu(x):
        shared = hasattr(x, "__dlpack_device__")
        array = _from_dlpack(x, function, name) if shared else require_cupy(function).asarray(x)
        return array, CUPY if family is NUMPY else family
    return _from_protocol(x, function, name), family


def _dlpack_family(x: Any) -> Family:
    """The library of an array that exports DLPack if it can also adopt it, as TensorFlow and PaddlePaddle can; else NumPy."""
    name = type(x).__module__.partition(".")[0]
    if not hasattr(x, "__dlpack__") or name not in sys.modules:
        return NUMPY
    for place in _ADOPTING:
        found: Any = sys.modules[name]
        for part in place.split("."):
            found = getattr(found, part, None)
        if callable(found):
            return Family(name, adopt=found)
    return NUMPY


def _from_sequence(x: Any, function: str, name: str) -> NDArray[Any]:
    part, depth = x, 0
    while isinstance(part, (list, tuple)) and part:
        part, depth = part[0], depth + 1
        if depth > _DEEPEST:  # NumPy would visit every element, and there may be 2**depth of them
            raise DTypeError(f"{function}: {name} is lists in lists, more than {_DEEPEST} deep; pass an array")
    try:
        return np.asarray(x)
    except ValueError as error:
        raise DTypeError(f"{function}: {name} is not a rectangular array of numbers ({error})") from None


def _not_on_cpu(function: str, name: str, device: str, remedy: str) -> DeviceError:
    return DeviceError(f"{function}: {name} is on {device}, but this function runs on the CPU; pass {name}{remedy}")


def _from_torch(x: Any, torch: Any, function: str, name: str, gpu: bool) -> Any:
    if gpu and x.is_cuda:
        x = plain_tensor(x, torch, function, name)
        with streams.working_on(f"cuda:{x.device.index}", TORCH):
            array = _over_tensor(x, torch, function)
            return _from_dlpack(x, function, name) if array is None else array
    if x.device.type != "cpu":
        raise _not_on_cpu(function, name, str(x.device), ".cpu()")
    x = plain_tensor(x, torch, function, name)
    try:
        view: NDArray[Any] = x.view(torch.int16).numpy() if x.dtype == torch.bfloat16 else x.numpy()
    except (TypeError, RuntimeError) as error:
        raise DTypeError(
            f"{function}: {name} has dtype {x.dtype}, which NumPy cannot view ({error}); "
            f"pass a tensor of float32 or an integer dtype that has memory of its own, outside of vmap, jvp and torch.export"
        ) from None
    if x.dtype == torch.bfloat16:
        try:
            import ml_dtypes  # only here, because it makes our import slower
        except ModuleNotFoundError:
            raise DTypeError(
                f"{function}: {name} is bfloat16, for which NumPy needs the package ml_dtypes; install it, or pass {name}.float()"
            ) from None
        view = view.view(ml_dtypes.bfloat16)
    return view


@functools.cache
def _numbers(torch: Any) -> dict[Any, tuple[Any, Any]]:
    """For each dtype of PyTorch that kernels know: the dtype of the CuPy array, and the one to view it as, if it differs."""
    names = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
    known = {getattr(torch, name): (np.dtype(name), None) for name in names}
    ml_dtypes = sys.modules.get("ml_dtypes")
    return known if ml_dtypes is None else known | {torch.bfloat16: (np.dtype("uint16"), np.dtype(ml_dtypes.bfloat16))}


def over_tensor(x: Any, function: str) -> Any:
    """A CuPy array over a PyTorch tensor on the current device and stream, for callers that take care of its gradient.

    :func:`as_array` also checks that no gradient is lost, which takes three times as long as everything else.
    """
    array = None if x.is_neg() or not x.is_cuda else _over_tensor(x, sys.modules["torch"], function)
    return as_array(x, function)[0] if array is None else array


def _over_tensor(x: Any, torch: Any, function: str) -> Any:
    """A CuPy array over a contiguous tensor, if PyTorch and CuPy have the same current stream; None if DLPack has to be used.

    This is ten times as fast as an export by PyTorch.
    """
    kind = _numbers(torch).get(x.dtype)
    index, size = x.device.index, x.numel()
    if kind is None or not size or not x.is_contiguous():
        return None
    cupy = require_cupy(function)
    if streams.stream_of_torch(index) != cupy.cuda.get_current_stream().ptr:
        return None
    memory = cupy.cuda.UnownedMemory(x.data_ptr(), size * x.element_size(), x, index)
    array = cupy.ndarray(tuple(x.shape), kind[0], cupy.cuda.MemoryPointer(memory, 0))
    return array if kind[1] is None else array.view(kind[1])


def _from_jax(x: Any, jax: Any, function: str, name: str, gpu: bool) -> Any:
    if isinstance(x, jax.core.Tracer):
        raise DTypeError(
            f"{function}: {name} is a JAX tracer without values; call {function} outside of jit, grad and vmap"
        )
    platforms = sorted({device.platform for device in x.devices()})
    if gpu and len(x.devices()) == 1 and platforms[0] in ("gpu", "cuda"):
        return _from_dlpack(x, function, name)
    if platforms != ["cpu"]:
        raise _not_on_cpu(function, name, "/".join(platforms), " moved with jax.device_put(x, jax.devices('cpu')[0])")
    return np.asarray(x)


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


def _from_protocol(x: Any, function: str, name: str) -> NDArray[Any]:
    """A NumPy view of an object that exports host memory by one of the standard protocols."""
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        device_type, device_id = x.__dlpack_device__()
        if int(device_type) not in _HOST_DLPACK_DEVICES:
            raise _not_on_cpu(function, name, f"DLPack device ({int(device_type)}, {device_id})", " moved to the CPU")
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError) as error:
            if not hasattr(x, "__array__") and not hasattr(x, "__array_interface__"):
                raise DTypeError(
                    f"{function}: {name} ({type(x).__name__}) cannot be read through DLPack ({error})"
                ) from None
    if not is_array_like(x):
        raise _not_array(x, function, name)
    return np.asarray(x)


def _not_array(x: Any, function: str, name: str) -> DTypeError:
    found = f"the class {x.__name__}" if isinstance(x, type) else type(x).__name__
    return DTypeError(f"{function}: {name} must be an array (NumPy, PyTorch, JAX or any DLPack producer), got {found}")


def as_host(x: Any, function: str, name: str = "x", *, kinds: str | None = None) -> NDArray[Any]:
    """``x`` as a NumPy array, copied from a GPU if it is there; for small parameters only."""
    array, _ = as_array(x, function, name, kinds=kinds)
    return array if isinstance(array, np.ndarray) else np.asarray(array.get())


def as_host_floats(x: Any, function: str, name: str) -> NDArray[np.float32]:
    """A small parameter as float32 numbers in host memory; refuses what is not a number or, in float32, not finite."""
    array = as_host(x, function, name, kinds="biuf")
    with np.errstate(over="ignore"):  # reported below
        array = array.astype(np.float32)
    _check.finite(function, name, bool(np.isfinite(array).all()))
    return array


def writable_array(x: Any, function: str, name: str = "out") -> Any:
    """A NumPy or CuPy view of ``x`` to write results into; never a copy.

    Raises
    ------
    DTypeError
        ``x`` is not an array that can be written to, or its dtype has no NumPy view.
    """
    if is_cupy(x):
        return x
    if isinstance(x, _SEQUENCES):
        raise DTypeError(
            f"{function}: {name} ({type(x).__name__}) has no memory that NumPy can write to; pass {name}=None or another array"
        )
    torch = _is_of(x, "torch", "Tensor")
    if torch:
        plain_tensor(x, torch, function, name, writable=True)
    elif _is_of(x, "jax", "Array") and _on_gpu(x):
        raise DTypeError(f"{function}: {name} is a JAX array, which cannot be written to; pass {name}=None")
    array, family = _view(x, function, name, True)
    if family.name == "tensorflow":
        raise DTypeError(f"{function}: {name} is a tensor of TensorFlow, which does not change; pass {name}=None")
    if not array.dtype.isnative:
        raise DTypeError(
            f"{function}: {name} has dtype {array.dtype}, but results are in native byte order; pass such an array"
        )
    return array

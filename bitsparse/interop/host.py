"""Arrays in host memory: NumPy views of foreign arrays, and results in the caller's family.

CPU arrays are viewed without a copy through DLPack, the array interface or the library's own NumPy view (bfloat16 as that of ml_dtypes).
A copy is made only where the memory layout asks for it later on. PyTorch and JAX are never imported here: they are found in
``sys.modules`` when one of their arrays arrives.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.errors import DeviceError, DTypeError
from bitsparse.interop.tensors import plain_tensor

__all__ = ["CUPY", "JAX", "NUMPY", "TORCH", "Family", "as_numpy", "from_numpy", "writable_numpy"]

#: DLPack device types whose memory the CPU reads: CPU, pinned CUDA host, ROCm host, CUDA managed is left to the GPU.
_HOST_DLPACK_DEVICES = (1, 3, 11)


@dataclass(frozen=True)
class Family:
    """An array library: ``name`` and, for libraries known only by the array API standard, their namespace."""

    name: str
    namespace: Any = None

    def __repr__(self) -> str:
        return f"Family({self.name!r})"


NUMPY = Family("numpy")
CUPY = Family("cupy")
TORCH = Family("torch")
JAX = Family("jax")


def as_numpy(x: Any, function: str, name: str = "x") -> tuple[NDArray[Any], Family]:
    """A NumPy view of ``x`` in native byte order, and the family that ``x`` belongs to.

    A copy is made only for lists, scalars and arrays in the other byte order.

    Parameters
    ----------
    x : array_like
        NumPy array, PyTorch CPU tensor, JAX CPU array, any other DLPack or array-interface producer, nested lists or a scalar.
    function, name : str
        Who asks and for which argument; used in messages.

    Raises
    ------
    DeviceError
        ``x`` lives on another device than the CPU.
    DTypeError
        ``x`` is masked, sparse, needs a gradient or cannot be viewed as numbers.

    Examples
    --------
    >>> array, family = as_numpy([[1, 2], [3, 4]], "example")
    >>> array.shape, family
    ((2, 2), Family('numpy'))
    """
    array, family = _view(x, function, name)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array, family


def _view(x: Any, function: str, name: str) -> tuple[NDArray[Any], Family]:
    """:func:`as_numpy` in the byte order of ``x``."""
    if isinstance(x, np.ma.MaskedArray):
        raise DTypeError(
            f"{function}: {name} is a masked array, whose mask would be lost; fill it first with {name}.filled(value)"
        )
    if isinstance(x, np.ndarray):
        return np.asarray(x), NUMPY
    if isinstance(x, (np.generic, bool, int, float, complex, list, tuple)):
        return _from_sequence(x, function, name), NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _from_torch(x, torch, function, name), TORCH
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        return _from_jax(x, jax, function, name), JAX
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        raise _not_on_cpu(function, name, f"cuda:{x.device.id}", ".get()")
    if hasattr(x, "nnz") and hasattr(x, "toarray"):
        raise DTypeError(
            f"{function}: {name} is a {type(x).__name__}, and sparse arrays are not densified silently; call its "
            f".toarray() first"
        )
    return _from_protocol(x, function, name)


#: Lists in lists that are read as one array.
_DEEPEST = 16


def _from_sequence(x: Any, function: str, name: str) -> NDArray[Any]:
    part, depth = x, 0
    while isinstance(part, (list, tuple)) and part:
        part, depth = part[0], depth + 1
        if depth > _DEEPEST:  # NumPy would visit every element, of which there may be 2 to the power of the depth
            raise DTypeError(f"{function}: {name} is lists in lists, more than {_DEEPEST} deep; pass an array")
    try:
        return np.asarray(x)
    except ValueError as error:
        raise DTypeError(f"{function}: {name} is not a rectangular array of numbers ({error})") from None


def _not_on_cpu(function: str, name: str, device: str, remedy: str) -> DeviceError:
    return DeviceError(f"{function}: {name} is on {device}, but this function runs on the CPU; pass {name}{remedy}")


def _from_torch(x: Any, torch: Any, function: str, name: str) -> NDArray[Any]:
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
            import ml_dtypes  # only here, as it costs time at import
        except ModuleNotFoundError:
            raise DTypeError(
                f"{function}: {name} is bfloat16, for which NumPy needs the package ml_dtypes; install it, or pass {name}.float()"
            ) from None
        view = view.view(ml_dtypes.bfloat16)
    return view


def _from_jax(x: Any, jax: Any, function: str, name: str) -> NDArray[Any]:
    if isinstance(x, jax.core.Tracer):
        raise DTypeError(
            f"{function}: {name} is a JAX tracer without values; call {function} outside of jit, grad and vmap"
        )
    platforms = sorted({device.platform for device in x.devices()})
    if platforms != ["cpu"]:
        raise _not_on_cpu(function, name, "/".join(platforms), " moved with jax.device_put(x, jax.devices('cpu')[0])")
    return np.asarray(x)


def _from_protocol(x: Any, function: str, name: str) -> tuple[NDArray[Any], Family]:
    namespace = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
    family = Family(namespace.__name__.partition(".")[0], namespace) if namespace is not None else NUMPY
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        device_type, device_id = x.__dlpack_device__()
        if int(device_type) not in _HOST_DLPACK_DEVICES:
            raise _not_on_cpu(function, name, f"DLPack device ({int(device_type)}, {device_id})", " moved to the CPU")
        try:
            return np.from_dlpack(x), family
        except (BufferError, RuntimeError, TypeError) as error:
            if not hasattr(x, "__array__") and not hasattr(x, "__array_interface__"):
                raise DTypeError(
                    f"{function}: {name} ({type(x).__name__}) cannot be read through DLPack ({error})"
                ) from None
    if not any(
        hasattr(x, protocol) for protocol in ("__array__", "__array_interface__", "__array_struct__", "__buffer__")
    ):
        try:
            memoryview(x)
        except TypeError:
            raise DTypeError(
                f"{function}: {name} must be an array (NumPy, PyTorch, JAX or any DLPack producer), got {type(x).__name__}"
            ) from None
    return np.asarray(x), family


def writable_numpy(x: Any, function: str, name: str = "out") -> NDArray[Any]:
    """The memory of ``x`` itself as NumPy array, to write results into; never a copy.

    Raises
    ------
    DTypeError
        ``x`` is not an array, or its dtype has no NumPy view.
    """
    if isinstance(x, (np.generic, bool, int, float, complex, list, tuple)):
        raise DTypeError(
            f"{function}: {name} ({type(x).__name__}) has no memory that NumPy can write to; pass {name}=None or another array"
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        plain_tensor(x, torch, function, name, writable=True)
    array = _view(x, function, name)[0]
    if not array.dtype.isnative:
        raise DTypeError(
            f"{function}: {name} has dtype {array.dtype}, but results are in native byte order; pass such an array"
        )
    return array


def from_numpy(result: NDArray[Any], family: Family, function: str) -> Any:
    """``result`` as an array of ``family``, without a copy where the library can adopt NumPy memory.

    Raises
    ------
    DTypeError
        The library cannot hold ``result.dtype`` without changing values (64-bit results in JAX without x64 mode).
    """
    if family.name == "numpy":
        return result
    if family.name == "torch":
        torch = sys.modules["torch"]
        if result.dtype.name == "bfloat16":
            return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(result)
    if family.name == "jax":
        jax = sys.modules["jax"]
        if result.dtype.itemsize == 8 and not jax.config.jax_enable_x64:
            raise DTypeError(
                f"{function}: the result is {result.dtype}, which JAX would cut to 32 bits; "
                f"call jax.config.update('jax_enable_x64', True) first, or pass NumPy arrays"
            )
        return jax.numpy.asarray(result)
    return family.namespace.asarray(result)

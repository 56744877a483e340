"""Access to CuPy, which is imported only when it is needed; names of devices; and names of array libraries."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any, NamedTuple

import numpy as np

from bitsparse._check import shown
from bitsparse.errors import DeviceError
from bitsparse.interop.stand_ins import StandIn


class Family(NamedTuple):
    """An array library; a tuple, since calls look up what they keep by it, and tuples are hashed and compared quickly.

    Attributes
    ----------
    name : str
    namespace : module, optional
        For a library that is known only through the array API standard.
    adopt : callable, optional
        For a library that is known only through DLPack: the function that makes its arrays from those of others.
    """

    name: str
    namespace: Any = None
    adopt: Any = None

    def __repr__(self) -> str:
        return f"Family({self.name!r})"


NUMPY, CUPY, TORCH, JAX = map(Family, ("numpy", "cupy", "torch", "jax"))


def require_cupy(function: str) -> Any:
    """The module ``cupy``, imported if need be; a DeviceError that names the package to install if it is missing."""
    module = sys.modules.get("cupy")
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        return module
    try:
        return importlib.import_module("cupy")  # waits if another thread is importing it
    except ImportError as error:
        raise DeviceError(
            f"{function}: data on a GPU needs CuPy, which cannot be imported ({error}); "
            "install bitsparse[cuda13], or bitsparse[cuda12] for a driver of that generation"
        ) from error


class _CuPy:
    """A stand-in for the module ``cupy`` that imports it when one of its attributes is first used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # tools that inspect modules ask for these, and must not import CuPy
            raise AttributeError(name)
        return getattr(require_cupy("bitsparse"), name)


cupy: Any = _CuPy()


def cupy_arrays() -> Any:
    """CuPy's array class, or an empty tuple of classes if CuPy has not been imported or its import has not finished."""
    return getattr(sys.modules.get("cupy"), "ndarray", ())


def is_cupy(x: Any) -> bool:
    """Whether ``x`` is a CuPy array or a stand-in for one; never imports CuPy."""
    kind = x.__class__
    return kind is not np.ndarray and (isinstance(x, cupy_arrays()) or kind is StandIn)


def namespace(x: Any) -> Any:
    """The module ``numpy`` or ``cupy`` that ``x`` belongs to.

    Examples
    --------
    >>> namespace(np.zeros(3)).__name__
    'numpy'
    """
    return sys.modules["cupy"] if is_cupy(x) else np


def device_of(x: Any) -> str:
    """``"cpu"``, or ``"cuda:0"`` and so on for a CuPy array.

    Examples
    --------
    >>> device_of(np.zeros(3))
    'cpu'
    """
    return f"cuda:{x.device.id}" if is_cupy(x) else "cpu"


def parse_device(device: Any, function: str) -> str:
    """``"cpu"`` or ``"cuda:N"`` for a device given by a user as a string or a ``torch.device``; ``"cuda"`` is the current GPU.

    Raises
    ------
    DeviceError
        There is no such device on this machine.

    Examples
    --------
    >>> parse_device("cpu", "example")
    'cpu'
    """
    text = str(device)
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", text)
    if match is None:
        raise DeviceError(f"{function}: there is no backend for device {shown(text)}; choose 'cpu', 'cuda' or 'cuda:N'")
    if text == "cpu":
        return text
    cupy = require_cupy(function)
    if not cupy.cuda.is_available():
        raise DeviceError(
            f"{function}: device {shown(text)} was asked for, but CuPy finds no CUDA device; check the driver with "
            f"nvidia-smi, or use 'cpu'"
        )
    count = cupy.cuda.runtime.getDeviceCount()
    index = cupy.cuda.runtime.getDevice() if match[1] is None else int(match[1])
    if index >= count:
        raise DeviceError(
            f"{function}: device {shown(text)} was asked for, but the GPUs here are numbered from 0 to {count - 1}; choose one of these"
        )
    return f"cuda:{index}"

"""CuPy found without being imported, the names of devices, and those of array libraries."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitsparse._check import shown
from bitsparse.errors import DeviceError
from bitsparse.interop.stand_ins import StandIn


@dataclass(frozen=True)
class Family:
    """An array library by its name.

    Libraries known only by the array API standard have their namespace, those known only by DLPack the function that adopts arrays.
    """

    name: str
    namespace: Any = None
    adopt: Any = None

    def __repr__(self) -> str:
        return f"Family({self.name!r})"


NUMPY, CUPY, TORCH, JAX = map(Family, ("numpy", "cupy", "torch", "jax"))


def require_cupy(function: str) -> Any:
    """The module cupy; a :class:`~bitsparse.errors.DeviceError` that names the package to install if it is missing."""
    module = sys.modules.get("cupy")
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        return module
    try:
        return importlib.import_module("cupy")  # which waits for a thread that is importing it
    except ImportError as error:
        raise DeviceError(
            f"{function}: data on a GPU needs CuPy, which cannot be imported ({error}); "
            "install bitsparse[cuda13], or bitsparse[cuda12] for a driver of that generation"
        ) from error


class _CuPy:
    """The module cupy to those who compute on a GPU, imported when it is first asked for something."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # which inspection of a module without CuPy asks for
            raise AttributeError(name)
        return getattr(require_cupy("bitsparse"), name)


cupy: Any = _CuPy()


def cupy_arrays() -> Any:
    """What CuPy's arrays are instances of; of nothing where nobody has imported CuPy, or another thread is still at it."""
    return getattr(sys.modules.get("cupy"), "ndarray", ())


def is_cupy(x: Any) -> bool:
    """Whether ``x`` is a CuPy array, or stands for one; never imports CuPy."""
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
    """``"cpu"`` or ``"cuda:N"`` from what a user wrote: ``"cuda"`` is the current GPU; PyTorch's device objects are taken as well.

    Raises
    ------
    DeviceError
        There is no such device here.

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
            f"nvidia-smi, or stay on 'cpu'"
        )
    count = cupy.cuda.runtime.getDeviceCount()
    index = cupy.cuda.runtime.getDevice() if match[1] is None else int(match[1])
    if index >= count:
        raise DeviceError(f"{function}: device {shown(text)} was asked for, but there are {count} GPUs; count from 0")
    return f"cuda:{index}"

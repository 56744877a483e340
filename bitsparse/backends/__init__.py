"""The backends do the work: they take and return plain arrays. Each has one module per family of functions, with the same names.

``host`` is C behind Cython with run-time SIMD dispatch; ``cuda`` is CUDA C++ on CuPy arrays; ``reference`` is slow plain NumPy, the
oracle of the tests.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from bitsparse.errors import DeviceError

__all__ = ["family"]


@functools.cache
def _module(name: str) -> ModuleType:
    return importlib.import_module(f"bitsparse.backends.{name}")


def family(device: str, name: str) -> ModuleType:
    """The module of one family (``bits.pack``, ``matmul.matmul``, ``sparse.build``) in the backend that serves ``device``.

    Raises
    ------
    DeviceError
        The device is a GPU, and this family has no kernels there.

    Examples
    --------
    >>> family("cpu", "bits.pack").__name__
    'bitsparse.backends.host.bits.pack'
    """
    if device == "cpu":
        return _module(f"host.{name}")
    try:
        return _module(f"cuda.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or not f"bitsparse.backends.cuda.{name}".startswith(error.name):
            raise
        raise DeviceError(
            f"bitsparse: there are no {name} kernels for {device} in this release; move the data with .get() or .to_device('cpu')"
        ) from None

"""Where the work is done: plain arrays in, plain arrays out. One module per family of functions, the same names in each backend.

``host`` is C behind Cython with run-time SIMD dispatch; ``reference`` is slow plain NumPy and the oracle of the tests.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from bitsparse.errors import DeviceError

__all__ = ["family"]


def family(device: str, name: str) -> ModuleType:
    """The module of one function family (``bits``, ``matmul``, ``build``, ``stats``) in the backend that serves ``device``.

    Examples
    --------
    >>> family("cpu", "bits").__name__
    'bitsparse.backends.host.bits'
    """
    if device != "cpu":
        raise DeviceError(
            f"bitsparse: there is no backend for device {device!r} in this release; move the data with .to_device('cpu')"
        )
    return importlib.import_module(f"bitsparse.backends.host.{name}")

"""Where the work is done: plain arrays in, plain arrays out. One module per family of functions, the same names in each backend.

``host`` is C behind Cython with run-time SIMD dispatch, ``cuda`` CUDA C++ on CuPy arrays; ``reference`` is slow plain NumPy and the
oracle of the tests.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from bitsparse.errors import DeviceError

__all__ = ["family"]


#: The families that have GPU kernels.
_ON_GPU = (
    "binary.bmm",
    "binary.bspmm",
    "bits.pack",
    "bits.stats",
    "csr.schedule",
    "edges.attention",
    "edges.sddmm",
    "edges.sddmm_codes",
    "finish.floats",
    "matmul.matmul",
    "quantized.product",
    "sampling.sample",
    "sparse.build",
    "spmm.choice",
    "spmm.codes",
    "spmm.packed",
    "spmm.short_rows",
    "spmm.spmm",
    "spmm.tiles",
    "spmm.windows",
)


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
        return importlib.import_module(f"bitsparse.backends.host.{name}")
    if name not in _ON_GPU:
        raise DeviceError(
            f"bitsparse: there are no {name} kernels for {device} in this release; move the data with .get() or .to_device('cpu')"
        )
    return importlib.import_module(f"bitsparse.backends.cuda.{name}")

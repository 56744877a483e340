"""bitsparse: low-bit and sparse graph arrays, the same answers on CPU and GPU.

>>> import bitsparse as bs
>>> import numpy as np
>>> a = bs.pack_bits(np.array([[1, 0, 1], [0, 1, 1]]))
>>> a @ bs.pack_bits(np.array([[5], [2], [1]]), axis=-2)
array([[6],
       [3]], dtype=int32)

Functions on the CPU release the GIL, so several threads may call them at once. If a thread writes into an array while a function reads it,
the function returns a wrong result or raises a ValueError; nothing worse happens.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bitsparse import _compiled as _compiled  # first: it explains a missing compiled part
from bitsparse import arrays, errors, ops
from bitsparse.arrays import *
from bitsparse.backends.host import get_num_threads, set_num_threads
from bitsparse.errors import *
from bitsparse.interop import use_stream
from bitsparse.ops import *

#: Public names of this module itself; each layer below adds its own.
__all__ = ["__version__", "get_num_threads", "set_num_threads", "tune", "use_stream"]
__all__ += arrays.__all__
__all__ += errors.__all__
__all__ += ops.__all__

#: Public submodules that are imported on first access, as in ``bs.nn``.
_PARTS = ("datasets", "distributed", "graph", "nn", "viz")

if TYPE_CHECKING:
    from bitsparse import datasets as datasets
    from bitsparse import distributed as distributed
    from bitsparse import graph as graph
    from bitsparse import nn as nn
    from bitsparse import viz as viz
    from bitsparse.nn import tune

    __version__: str


def __getattr__(name: str) -> Any:
    # Read from the installed metadata on first access only: importlib.metadata costs more than the rest of the import.
    if name == "__version__":
        from importlib.metadata import version

        return version("bitsparse")
    if name in _PARTS:
        return importlib.import_module(f"bitsparse.{name}")
    if name == "tune":  # imported late, because the networks are a layer above the arrays
        from bitsparse.nn import tune

        globals()["tune"] = tune
        return tune
    raise AttributeError(f"module 'bitsparse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*__all__, *_PARTS))

"""Small tables from the host that are uploaded to a GPU once and kept there."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.jit import cupy

__all__ = ["on_device"]

#: Tables that recorded graphs read. They are kept forever, since nothing tells when a graph is gone.
_RECORDED: dict[tuple[Any, ...], Any] = {}


def on_device(function: str, table: NDArray[Any]) -> Any:
    """The table on the current GPU; all calls with an equal table share one copy.

    Raises
    ------
    DeviceError
        If the table is not on the GPU yet and the current stream is capturing.
    """
    gpu = cupy.cuda.runtime.getDevice()
    key = function, gpu, table.shape, table.dtype.str, table.tobytes()
    found = _RECORDED.get(key)
    if found is None:
        found = _uploaded(*key)
        if interop.is_capturing("cuda"):
            _RECORDED[key] = found
    return found


@lru_cache(maxsize=512)
def _uploaded(function: str, gpu: int, shape: tuple[int, ...], dtype: str, content: bytes) -> Any:
    table = interop.uploaded(np.frombuffer(content, dtype).reshape(shape), function)
    cupy.cuda.get_current_stream().synchronize()  # other streams may read it next
    return table

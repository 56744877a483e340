"""Packed codes to the numbers of a table on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import geometry

_THREADS = 256
#: Codes of a thread at a time.
_OCTET = 8
_SOURCE = "bits/look_up.cu"

LookUpParams = jit.struct(_SOURCE, "LookUpParams")


def look_up(words: Any, size: int, bits: int, *, table: Any, times: Any = None, out: Any = None) -> Any:
    """The host's function of the same name, which enqueues on the current stream and waits for nothing."""
    values = geometry.output("look_up", out, (size,), np.dtype(np.float32), 4)
    if not size:
        return values
    parts = [values] if times is None else [values, times]
    params = jit.filled(LookUpParams(size=size), words=words, table=table, times=times, out=values)
    params.vector = int(all(part.data.ptr % 16 == 0 for part in parts))
    defines = {"BS_BITS": bits} | jit.flags(times=times is not None)
    blocks = min(geometry.MAX_BLOCKS, -(-size // (_OCTET * _THREADS)))
    jit.kernel(_SOURCE, "look_up", defines).run(blocks, _THREADS, params)
    return values


VARIANTS = jit.variants_of(
    _SOURCE, "look_up", [{"BS_BITS": bits} | jit.flags(times=times) for bits in (1, 2, 4, 8) for times in (False, True)]
)

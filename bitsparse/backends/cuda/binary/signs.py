"""Signs of rows as bit planes, and as bytes, on a GPU; nothing waits for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.params import packed_words
from bitsparse.backends.signs import Drop
from bitsparse.jit import cupy

_SOURCE = "binary/signs.cu"
_THREADS = 256
#: Rows that a warp takes at a time, warps of a block, and blocks of a multiprocessor; further rows are taken in turn.
_ROWS, _WARPS, _BLOCKS = 4, 8, 16

SignParams = jit.struct(_SOURCE, "SignParams")
SignBytesParams = jit.struct(_SOURCE, "SignBytesParams")


def sign_rows(x: Any, norm: tuple[Any, Any] | None, drop: Drop | None, gain: float, passes: bool) -> Any:
    """Words of the signs of float32 rows, the rows' mean magnitudes times `gain`, and words of a mask; see the host's function."""
    x = interop.contiguous(x)
    rows, columns = x.shape
    width = packed_words(columns, 1, "planes")
    words = cupy.empty((rows, 1 if drop is None else 2, width), np.uint32)
    mask = cupy.empty((rows, 1, width), np.uint32) if passes else None
    means = (cupy.empty if columns else cupy.zeros)(rows, np.float32)
    if x.size:
        params = SignParams(x=x.data.ptr, words=words.data.ptr, means=means.data.ptr, rows=rows, cols=columns)
        params.width, params.gain = width, gain
        params.passes = None if mask is None else mask.data.ptr
        if norm is not None:
            params.factor, params.addend = (part.data.ptr for part in norm)
        if drop is not None:
            params.limit, params.seed = drop.limit, drop.seed & 0xFFFFFFFFFFFFFFFF
            params.stream, params.stream_at = geometry.stream_of_draws(drop.stream)
        how = jit.flags(norm=norm is not None, drop=drop is not None, passes=passes)
        blocks = min(-(-rows // (_ROWS * _WARPS)), _BLOCKS * jit.capability().multiprocessors)
        jit.kernel(_SOURCE, "sign_rows", how).run(blocks, 32 * _WARPS, params)
    return words, means, mask


def sign_bytes(words: Any, columns: int) -> Any:
    """Signs as signed bytes, as words (rows, W) of the layout "rows"; see the host's function."""
    rows, planes, width = words.shape
    out = cupy.empty((rows, packed_words(columns, 8, "rows")), np.uint32)
    if out.size:
        pieces = out.shape[1] // 4
        params = SignBytesParams(words.data.ptr, out.data.ptr, rows, columns, width, planes, pieces)
        jit.kernel(_SOURCE, "sign_bytes").run(-(-rows * pieces // _THREADS), _THREADS, params)
    return out


VARIANTS = [
    *jit.variants_of(
        _SOURCE,
        "sign_rows",
        [
            jit.flags(norm=norm, drop=drop, passes=passes)
            for norm in (False, True)
            for drop in (False, True)
            for passes in (False, True)
        ],
    ),
    *jit.variants_of(_SOURCE, "sign_bytes"),
]

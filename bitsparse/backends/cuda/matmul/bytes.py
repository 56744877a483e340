"""Signed bytes that are multiplied as they lie side by side, on matrix units that take them: along the other axis, and sums of pieces."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, jit

#: Rows and columns of a tile that a block turns.
_TILE, _THREADS = 128, 256

TurnParams = jit.struct("matmul/bytes.cu", "TurnParams")
PiecesParams = jit.struct("matmul/bytes.cu", "PiecesParams")


def takes_bytes() -> bool:
    """Whether products of bytes on the current device take them signed and as they are."""
    return jit.capability().has_wgmma


def turned(words: Any, columns: int, piece: int) -> Any:
    """The bytes of a matrix, (rows, W words) with so many columns, along its columns: (pieces, columns, 1, piece / 4) words.

    A piece has `piece` rows, a multiple of 16; behind the last row there are zeros.
    """
    cupy = jit.require_cupy("matmul")
    words = interop.aligned(words)
    rows, width = words.shape
    pieces = -(-rows // piece)
    out = cupy.empty((pieces, columns, 1, piece // 4), np.uint32)
    across, down = -(-columns // _TILE), -(-piece // _TILE)
    params = TurnParams(words.data.ptr, out.data.ptr, rows, 4 * width, columns, piece, across, down)
    jit.kernel("matmul/bytes.cu", "turn_bytes").launch(pieces * down * across, _THREADS, params)()
    return out


def scaled_sums(sums: Any, first: Any, second: Any) -> Any:
    """``fl(fl(fl(sum) * first) * second)`` of int32 sums (pieces, m, n) added up, by two float32 arrays of one element."""
    cupy = jit.require_cupy("matmul")
    pieces, *shape = sums.shape
    out = cupy.empty(shape, np.float32)
    params = PiecesParams(sums.data.ptr, out.data.ptr, first.data.ptr, second.data.ptr, pieces, out.size)
    jit.kernel("matmul/bytes.cu", "scale_sums").launch(-(-out.size // _THREADS), _THREADS, params)()
    return out


VARIANTS = [*jit.variants_of("matmul/bytes.cu", "turn_bytes"), *jit.variants_of("matmul/bytes.cu", "scale_sums")]

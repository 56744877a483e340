"""Products of signed bytes without unpacking, on matrix units that take them: transposing, products over rows, and sums of pieces."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.jit import cupy

#: Rows and columns of a tile that a block transposes.
_TILE, _THREADS = 128, 256
#: Sums that a block adds up.
_SUMS = 32
#: For a product over rows: rows and columns of the result per warp, and the most warps of a block down and across, limited by registers;
#: rows of a stage of the ring, number of stages, and bytes of padding of a row of each operand.
_WARP, _MOST_DOWN, _MOST_ACROSS = 64, 2, 4
_STAGE_ROWS, _STAGES, _PAD = 64, 3, 32
#: The most warps and blocks of a multiprocessor.
_MOST_WARPS, _MOST_BLOCKS = 8, 4
#: The fewest rows of a piece, since its sums are written and read once more.
_LEAST_ROWS = 256

TurnParams = jit.struct("matmul/bytes.cu", "TurnParams")
PiecesParams = jit.struct("matmul/bytes.cu", "PiecesParams")
OverRowsParams = jit.struct("matmul/bytes_over_rows.cu", "OverRowsParams")


def takes_bytes() -> bool:
    """Whether products on the current device take signed bytes without unpacking."""
    return jit.capability().has_wgmma


def turned(words: Any, columns: int, piece: int) -> Any:
    """Transpose the bytes of a matrix (rows, W words) with `columns` columns, in pieces: (pieces, columns, 1, piece / 4) words.

    A piece has `piece` rows, a multiple of 16; the last piece is padded with zeros.
    """
    words = interop.aligned(words)
    rows, width = words.shape
    pieces = -(-rows // piece)
    out = cupy.empty((pieces, columns, 1, piece // 4), np.uint32)
    across, down = -(-columns // _TILE), -(-piece // _TILE)
    params = TurnParams(words.data.ptr, out.data.ptr, rows, 4 * width, columns, piece, across, down)
    jit.kernel("matmul/bytes.cu", "turn_bytes").run(pieces * down * across, _THREADS, params)
    return out


def product_over_rows(a: Any, b: Any, m: int, n: int, most: int) -> Any:
    """``A^T B`` of matrices of bytes (rows, m) and (rows, n), as int32 sums (pieces, m, columns) of up to `most` rows each.

    Columns after the first n are meaningless.
    """
    a, b = interop.aligned(a), interop.aligned(b)
    rows, down, across = a.shape[0], min(_MOST_DOWN, -(-m // _WARP)), -(-n // _WARP)
    across = -(-across // -(-across // _MOST_ACROSS))
    tiles = -(-m // (_WARP * down)), -(-n // (_WARP * across))
    how = over_rows_constants(down, across)
    busy = jit.capability().multiprocessors * how["BS_BLOCKS"] // (tiles[0] * tiles[1])
    pieces = max(-(-rows // most), min(busy, -(-rows // _LEAST_ROWS)), 1)
    piece = -(-rows // (pieces * _STAGE_ROWS)) * _STAGE_ROWS
    pieces, pitch = -(-rows // piece), -(-n // 4) * 4
    sums = cupy.empty((pieces, m, pitch), np.int32)
    params = OverRowsParams(
        a.data.ptr, b.data.ptr, sums.data.ptr, rows, 4 * a.shape[1], 4 * b.shape[1], m, pitch, piece
    )
    params.down, params.across = tiles
    shared = _STAGES * _STAGE_ROWS * (_WARP * (down + across) + 2 * _PAD)
    kernel = jit.kernel("matmul/bytes_over_rows.cu", "bytes_over_rows", how)
    kernel.run(pieces * tiles[0] * tiles[1], 32 * down * across, params, shared=shared)
    return sums


def over_rows_constants(down: int, across: int) -> dict[str, int]:
    """Constants of the product over rows for `down` warps of a block along the rows and `across` along the columns of the result."""
    return {
        "BS_DOWN": down,
        "BS_ACROSS": across,
        "BS_BLOCKS": max(1, min(_MOST_BLOCKS, _MOST_WARPS // (down * across))),
    }


def scaled_sums(sums: Any, columns: int, first: Any, second: Any) -> Any:
    """``fl(fl(fl(sum) * first) * second)`` for the first `columns` columns of int32 sums (pieces, m, n), added over pieces.

    `first` and `second` are float32 arrays of one element.
    """
    pieces, rows, pitch = sums.shape
    out = cupy.empty((rows, columns), np.float32)
    params = PiecesParams(
        sums.data.ptr, out.data.ptr, first.data.ptr, second.data.ptr, pieces, out.size, columns, pitch
    )
    params.step = rows * pitch
    jit.kernel("matmul/bytes.cu", "scale_sums").run(-(-out.size // _SUMS), _THREADS, params)
    return out


VARIANTS = [
    *jit.variants_of("matmul/bytes.cu", "turn_bytes"),
    *jit.variants_of("matmul/bytes.cu", "scale_sums"),
    *jit.variants_of(
        "matmul/bytes_over_rows.cu",
        "bytes_over_rows",
        [over_rows_constants(down + 1, across + 1) for down in range(_MOST_DOWN) for across in range(_MOST_ACROSS)],
        "sm_90a",
    ),
]

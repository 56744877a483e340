"""Codes of rows that are rounded at random, each row by a step of its own, which lies behind its codes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.geometry import FLOAT
from bitsparse.backends.params import ROUNDINGS

#: Threads of a block of ``bits/octets.cu`` and ``bits/row_octets.cu``, and blocks for each multiprocessor.
OCTET_THREADS, OCTET_BLOCKS = 256, 20
#: What Philox adds to its keys after each round.
_PHILOX_STEPS = 0x9E3779B9, 0xBB67AE85

EncodeParams = jit.struct("bits/encode.cuh", "EncodeParams")
RowOctetParams = jit.struct("bits/row_octets.cu", "RowOctetParams")


def round_keys(seed: int) -> Any:
    """The keys of the rounds of Philox."""
    seeds = seed & 0xFFFFFFFF, seed >> 32
    return (ctypes.c_uint32 * 20)(*((seeds[i % 2] + i // 2 * _PHILOX_STEPS[i % 2]) & 0xFFFFFFFF for i in range(20)))


def quantize_rows(
    x: Any,
    bits: int,
    words: Any,
    *,
    top: int,
    seed: int,
    stream: Any = 0,
    first_index: int = 0,
    factors: Any = None,
) -> None:
    """Write the codes of a float32 matrix, rounded at random, each row by its own step, in one pass.

    The step of a row is its largest magnitude over `top`, like that of :func:`steps_up_to`. Codes lie side by side.

    Parameters
    ----------
    bits : {2, 4, 8}
    words : cupy.ndarray of uint32 (rows, multiple of 4)
        Written in place: the codes of each row, zeros, and in the last word the step as a float32. The last word has no codes.
    factors : cupy.ndarray of float32 (rows,), optional
        Factors by which the steps are multiplied before they are written.
    """
    if x.size == 0:
        words[...] = 0
        words[:, -1] = np.float32(1).view(np.uint32)
        return
    x = interop.contiguous(x)
    params = EncodeParams(x=x.data.ptr, words=words.data.ptr, bits=bits, width=words.shape[-1], multiplier=1.0)
    params.batches, params.rows, params.cols, params.x_row = 1, x.shape[0], x.shape[1], x.shape[1]
    params.low, params.high, params.rounding = -top, top, ROUNDINGS["stochastic"]
    params.gain, params.middle, params.range = 1.0, -top, top
    params.seed, params.first_index = seed & 0xFFFFFFFFFFFFFFFF, first_index
    params.stream, params.stream_at = geometry.stream_of_draws(stream)
    # Lanes of a row, eight values to each.
    lanes = min(32, 1 << (-(-x.shape[1] // 8) - 1).bit_length())
    even = x.shape[1] % 8 == 0 and first_index % 8 == 0 and x.data.ptr % geometry.quad_alignment(x.dtype) == 0
    kind = {"BS_KIND": FLOAT} | jit.flags(ragged=not even, large=max(x.size, words.size) >> 30 > 0)
    blocks = min(OCTET_BLOCKS * jit.capability().multiprocessors, -(-x.shape[0] * lanes // OCTET_THREADS))
    address = None if factors is None else factors.data.ptr
    jit.kernel("bits/row_octets.cu", "row_octets", kind).run(
        blocks, OCTET_THREADS, RowOctetParams(params, round_keys(params.seed), address, lanes)
    )


VARIANTS = jit.variants_of(
    "bits/row_octets.cu",
    "row_octets",
    [{"BS_KIND": FLOAT} | jit.flags(ragged=ragged, large=large) for ragged in (0, 1) for large in (0, 1)],
)

"""The exact low-bit product and its epilogue in plain NumPy."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from bitsparse._records import as_dict
from bitsparse.backends.params import Array, EpilogueParams, Factors
from bitsparse.backends.reference.bits.pack import (
    codes_to_values,
    codes_to_words,
    packed_last,
    quantize_codes,
    words_to_codes,
)
from bitsparse.backends.reference.scalar import activate, into


def matmul(
    a_words: Array,
    b_words: Array,
    *,
    bitmap: Array | None = None,
    epilogue: EpilogueParams | None = None,
    out: Array | None = None,
    kernel: str = "planes",
    **factors: Unpack[Factors],
) -> Array:
    """Integer product of two planes operands, (..., m, k) times (..., n, k) transposed, then the epilogue if any.

    ``kernel`` is accepted and ignored. With ``bitmap``, tiles whose bit is clear are taken as zero. The left operand's
    own bitmap therefore changes nothing.
    """
    k, a_bits, b_bits = factors["k"], factors["a_bits"], factors["b_bits"]
    a_codes = words_to_codes(a_words, k, a_bits, "planes")
    if bitmap is not None:
        a_codes = a_codes * _tile_mask(bitmap, a_codes.shape[-2], k)
    a = codes_to_values(a_codes, a_bits, factors["a_encoding"])
    b = codes_to_values(words_to_codes(b_words, k, b_bits, "planes"), b_bits, factors["b_encoding"])
    # int64 wraps modulo 2^64, so the sum is right whenever the final value fits.
    acc = np.matmul(a, np.swapaxes(b, -1, -2)).astype(factors["acc_dtype"])
    result = acc if epilogue is None else _epilogue(acc, epilogue)
    return into(out, result)


def _tile_mask(bitmap: Array, m: int, k: int) -> NDArray[np.int64]:
    bits = (bitmap[..., None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
    tiles = bits.reshape(*bitmap.shape[:-1], bitmap.shape[-1] * 32)
    elements = tiles.repeat(8, axis=-2)[..., :m, :].repeat(128, axis=-1)[..., :k]
    return elements.astype(np.int64)


def _row(vector: Any) -> Array:
    """A row vector, shape () or (..., m), reshaped to broadcast against (..., m, n)."""
    vector = np.asarray(vector, np.float32)
    return np.asarray(vector if vector.ndim == 0 else vector[..., :, None])


def _col(vector: Any) -> Array:
    """A column vector, shape () or (..., n), reshaped to broadcast against (..., m, n)."""
    vector = np.asarray(vector, np.float32)
    return np.asarray(vector if vector.ndim == 0 else vector[..., None, :])


def epilogue(acc: Array, params: EpilogueParams) -> Array:
    """Apply the steps of :class:`~bitsparse.backends.params.EpilogueParams` to an accumulator (..., m, n)."""
    return _epilogue(acc, params)


def _epilogue(acc: Array, p: EpilogueParams) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # infinities and NaN follow IEEE rules; NaN is reported below
        v = acc.astype(np.float32)
        if p.row_scale is not None:
            v = v * _row(p.row_scale)
        if p.col_scale is not None:
            v = v * _col(p.col_scale)
        for term in (p.row_term, p.col_term):
            if term is not None:
                v = v + _row(term[0]) * _col(term[1])
        if p.bias is not None:
            v = v + _col(p.bias)
        if p.bn_scale is not None:
            v = v * _col(p.bn_scale)
            v = v + _col(p.bn_shift)
        v = activate(v, p.activation, p.negative_slope)
    assert v.dtype == np.float32
    if p.out == "float":
        return v
    if np.isnan(v).any():
        raise ValueError(
            f"{p.function}: the epilogue produced NaN; check the scales, the bias and the batch norm for NaN or infinity"
        )
    if p.binarize:
        codes = (v >= 0).astype(np.int64)
        return codes_to_words(packed_last(codes, p.axis), 1, p.layout)
    with np.errstate(over="ignore", invalid="ignore"):
        codes = quantize_codes(v, p.bits, as_dict(p))
    return codes_to_words(packed_last(codes, p.axis), p.bits, p.layout)

"""Signs of rows as bit planes, and as bytes, on the host."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.host.bits import pack as bits
from bitsparse.backends.params import Array
from bitsparse.backends.signs import Drop, mean_magnitudes

#: The sizes of rows' draws are rounded up to a multiple of the elements that share one draw of the generator.
_TOGETHER = 8


def sign_rows(
    x: Array, norm: tuple[Array, Array] | None, drop: Drop | None, gain: float, passes: bool
) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.uint32] | None]:
    """Words of the signs of float32 rows (m, k), the rows' mean magnitudes times `gain`, and words of a mask.

    Parameters
    ----------
    x
        The values v, or, with a norm, ``v = fl(fl(x * factor) + addend)``. NaN counts as negative.
    norm
        Factor and addend of each column, float32 (k,).
    drop
        Which signs become 0; without it one plane holds the bits of -1 and +1 ("bipolar"), with it two hold those of -1, 0 and 1
        ("signed").
    passes
        Whether to return the mask, words (m, 1, W): where a sign was not dropped and v lies in -1..1.

    Examples
    --------
    >>> words, means, mask = sign_rows(np.array([[0.5, -2.0, 0.0]], np.float32), None, None, 1.0, True)
    >>> words[0, 0, 0], means, mask[0, 0, 0]
    (np.uint32(5), array([0.8333333], dtype=float32), np.uint32(5))
    """
    with np.errstate(over="ignore", invalid="ignore"):
        v = x if norm is None else x * norm[0] + norm[1]
        means = mean_magnitudes(v) * np.float32(gain)
        plus = v >= 0
        kept = np.ones(v.shape, bool)
        if drop is not None:
            pitch = -(-v.shape[1] // _TOGETHER) * _TOGETHER
            share = np.full((v.shape[0], pitch), drop.share, np.float32)
            kept = bits.stochastic_round(share, drop.seed, drop.stream)[:, : v.shape[1]] > 0
        within = kept & (np.abs(v) <= 1) if passes else None
    if drop is None:
        words = bits.pack(plus, 1, axis=-1, layout="planes", encoding="bipolar")
    else:
        signs = kept * np.where(plus, np.int8(1), np.int8(-1))
        words = bits.pack(signs, 2, axis=-1, layout="planes", encoding="signed")
    mask = None if within is None else bits.pack(within, 1, axis=-1, layout="planes", encoding="unsigned")
    return words, means, mask


def sign_bytes(words: NDArray[np.uint32], columns: int) -> NDArray[np.uint32]:
    """Signs that :func:`sign_rows` made, as signed bytes: words (m, W) of the layout "rows".

    Examples
    --------
    >>> words = bits.pack(np.array([[1, -1]], np.int8), 1, axis=-1, layout="planes", encoding="bipolar")
    >>> sign_bytes(words, 2)[0, 0] == 0xFF01
    np.True_
    """
    encoding, planes = ("bipolar", 1) if words.shape[1] == 1 else ("signed", 2)
    shape = (words.shape[0], columns)
    signs = bits.unpack(words, shape, planes, axis=-1, layout="planes", encoding=encoding, dtype=np.int8)
    return bits.pack(signs, 8, axis=-1, layout="rows", encoding="signed")

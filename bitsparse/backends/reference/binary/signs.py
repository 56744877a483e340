"""Signs of rows in plain NumPy, row by row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import Array
from bitsparse.backends.reference.bits.pack import codes_to_values, codes_to_words, words_to_codes
from bitsparse.backends.reference.scalar import stochastic_bits
from bitsparse.backends.signs import Drop


def sign_rows(
    x: Array, norm: tuple[Array, Array] | None, drop: Drop | None, gain: float, passes: bool
) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.uint32] | None]:
    """Take each row by itself; its magnitudes are added pair by pair."""
    rows, columns = x.shape
    codes, within = np.zeros((rows, columns), np.int64), np.zeros((rows, columns), np.int64)
    means = np.zeros(rows, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(rows):
            v = x[i] if norm is None else (x[i] * norm[0]).astype(np.float32) + norm[1]
            kept = np.ones(columns, bool)
            if drop is not None:
                index = i * (-(-columns // 8) * 8) + np.arange(columns)
                kept = stochastic_bits(index, drop.seed, drop.stream).astype(np.float32) < np.float32(drop.limit)
            sign = np.where(v >= 0, 1, -1) * kept
            codes[i] = (sign + 1) // 2 if drop is None else sign & 3
            within[i] = kept & (np.abs(v) <= 1)
            if columns:
                means[i] = _sum(np.abs(v)) / np.float32(columns) * np.float32(gain)
    mask = codes_to_words(within, 1, "planes") if passes else None
    return codes_to_words(codes, 1 if drop is None else 2, "planes"), means, mask


def _sum(magnitudes: NDArray[np.float32]) -> np.float32:
    total = np.float32(0)
    for start in range(0, magnitudes.size, 128):
        group = np.zeros(128, np.float32)
        part = magnitudes[start : start + 128]
        group[: part.size] = part
        while group.size > 1:
            group = group[0::2] + group[1::2]
        total = group[0] if start == 0 else total + group[0]
    return total


def sign_bytes(words: NDArray[np.uint32], columns: int) -> NDArray[np.uint32]:
    """Decode the planes and write the bytes."""
    planes = words.shape[1]
    codes = words_to_codes(words, columns, planes, "planes")
    signs = codes_to_values(codes, planes, "bipolar" if planes == 1 else "signed")
    return codes_to_words(signs & 255, 8, "rows")

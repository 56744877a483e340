"""Aggregation of one-bit features over a 0/1 adjacency on the host. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import bspmm as _ext
from bitsparse.backends.host.bits import pack as host_bits
from bitsparse.backends.host.buffers import as_bytes
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import METHODS, Array, Thresholds, packed_words

Bytes = NDArray[np.uint8]


def count(
    indptr: Array, indices: Array, words: Array, features: int, *, bipolar: bool, kernel: str = "twice-plus"
) -> NDArray[np.int32]:
    """Sum of the one-bit features of each row's neighbours: int32 ``(m, features)``.

    Parameters
    ----------
    indptr, indices
        CSR pattern, int32 or int64.
    words
        uint32 ``(n, W)`` or ``(n, 1, W)``: features packed along their own axis.
    features
        Features per node.
    bipolar
        Whether bits stand for -1 and +1 instead of 0 and 1.
    kernel
        ``"twice-plus"``: 2 popc(a & b) - popc(a); ``"plus-minus"``: popc(a & b) - popc(a & ~b); ``"select"``: bit by bit (BitGNN
        section 3.2.2). All compute the same integers.

    Examples
    --------
    >>> words = host_bits.pack(np.array([[1, 0], [1, 1]]), 1, axis=-1, layout="planes", encoding="unsigned")
    >>> count(np.array([0, 2, 3]), np.array([0, 1, 0]), words, 2, bipolar=True)
    array([[ 2,  0],
           [ 1, -1]], dtype=int32)
    """
    rows = indptr.size - 1
    out = np.empty((rows, features), np.int32)
    on = run_on(indices.size * words.shape[-1] + out.size)
    _ext.count(on, *_pattern(indptr, indices, words), features, bipolar, METHODS.index(kernel), as_bytes(out))
    return out


def sign(
    indptr: Array, indices: Array, words: Array, features: int, thresholds: Thresholds, *, bipolar: bool
) -> NDArray[np.uint32]:
    """Bits ``(sum >= threshold) ^ flip`` of the sums of :func:`count`, which are never stored: uint32 ``(m, 1, W)``.

    Examples
    --------
    >>> words = host_bits.pack(np.array([[1, 0], [1, 1]]), 1, axis=-1, layout="planes", encoding="unsigned")
    >>> at_zero = Thresholds(np.zeros((1, 1), np.int64), np.zeros((1, 1), bool), None, 2)
    >>> sign(np.array([0, 2, 3]), np.array([0, 1, 0]), words, 2, at_zero, bipolar=True)[:, 0, 0]
    array([3, 1], dtype=uint32)
    """
    rows, width = indptr.size - 1, packed_words(features, 1, "planes")
    bits = np.empty((rows, 1, width), np.uint32)
    nothing, single = np.empty(0, np.uint8), thresholds.single
    sliced = (nothing, nothing, nothing, 0, 0, 0) if single is not None else _sliced(thresholds, features)
    on = run_on((indices.size + rows) * width)
    mask = as_bytes(_packed(np.ones((1, features), bool)))
    _ext.sign(on, *_pattern(indptr, indices, words), features, bipolar, mask, single, *sliced, as_bytes(bits))
    return bits


def _packed(values: Array, bits: int = 1) -> NDArray[np.uint32]:
    return host_bits.pack(values, bits, axis=-1, layout="planes", encoding="unsigned")


def _pattern(indptr: Array, indices: Array, words: Array) -> tuple[Bytes, Bytes, bool, int, int, Bytes]:
    rows, wide = indptr.size - 1, indptr.dtype.itemsize == 8
    return as_bytes(indptr), as_bytes(indices), wide, rows, words.shape[0], as_bytes(words)


def _sliced(thresholds: Thresholds, features: int) -> tuple[Bytes, Bytes, Bytes, int, int, int]:
    """Bit-sliced thresholds and packed flips; thresholds and sums are raised by the same number so that none is negative."""
    base = thresholds.longest
    shape = (thresholds.values.shape[0], features)
    raised = np.broadcast_to(np.clip(thresholds.values, -base, base + 1) + base, shape)
    planes = (2 * base + 1).bit_length()
    # A threshold has up to 62 bits, but a packed integer at most 32, so it is packed in one or two parts.
    parts = [_packed((raised >> low) & 0xFFFFFFFF, min(planes - low, 32)) for low in range(0, planes, 32)]
    words = np.ascontiguousarray(np.concatenate(parts, axis=1))
    flips = _packed(np.broadcast_to(thresholds.flips, shape))
    classes = np.empty(0, np.int32) if thresholds.class_of is None else thresholds.class_of.astype(np.int32, copy=False)
    return as_bytes(words), as_bytes(flips), as_bytes(classes), planes, shape[0], base

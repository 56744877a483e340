"""Aggregation of one-bit features over a 0/1 adjacency on the host. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import bspmm as _ext
from bitsparse.backends.host.bits import pack as host_bits
from bitsparse.backends.host.buffers import as_bytes
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import Thresholds, packed_words

__all__ = ["KERNELS", "count", "sign"]

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

KERNELS = ("twice-plus", "plus-minus", "select")

#: Bytes of int32 sums that the kernels without bit-sliced thresholds hold at a time.
_ROOM = 1 << 22


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
        Bits stand for -1 and +1, else for 0 and 1.
    kernel
        ``"twice-plus"``: 2 popc(a & b) - popc(a); ``"plus-minus"``: popc(a & b) - popc(a & ~b); ``"select"``: bit by bit (BitGNN
        section 3.2.2). All give the same integers.

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
    _ext.count(on, *_pattern(indptr, indices, words), features, bipolar, KERNELS.index(kernel), as_bytes(out))
    return out


def sign(
    indptr: Array,
    indices: Array,
    words: Array,
    features: int,
    thresholds: Thresholds,
    *,
    bipolar: bool,
    kernel: str = "twice-plus",
    out: Array | None = None,
) -> NDArray[np.uint32]:
    """Bits ``(sum >= threshold) ^ flip`` of :func:`count`'s sums, which are never stored: uint32 ``(m, 1, W)``.

    Examples
    --------
    >>> words = host_bits.pack(np.array([[1, 0], [1, 1]]), 1, axis=-1, layout="planes", encoding="unsigned")
    >>> at_zero = Thresholds(np.zeros((1, 1), np.int64), np.zeros((1, 1), bool), None, 2)
    >>> sign(np.array([0, 2, 3]), np.array([0, 1, 0]), words, 2, at_zero, bipolar=True)[:, 0, 0]
    array([3, 1], dtype=uint32)
    """
    rows, width = indptr.size - 1, packed_words(features, 1, "planes")
    bits = np.empty((rows, 1, width), np.uint32) if out is None else out
    if kernel != "twice-plus":
        return _sign_of_counts(indptr, indices, words, features, thresholds, bipolar, kernel, bits)
    mask = host_bits.pack(np.ones((1, features), bool), 1, axis=-1, layout="planes", encoding="unsigned")
    nothing = np.empty(0, np.uint8)
    uniform, sliced = _uniform(thresholds), (nothing, nothing, nothing, 0, 0, 0)
    if uniform is None:
        sliced = _sliced(thresholds, features)
    on = run_on((indices.size + rows) * width)
    pattern = _pattern(indptr, indices, words)
    _ext.sign(on, *pattern, features, bipolar, as_bytes(mask), uniform, *sliced, as_bytes(bits))
    return bits


def _pattern(indptr: Array, indices: Array, words: Array) -> tuple[Bytes, Bytes, bool, int, int, Bytes]:
    return (
        as_bytes(indptr),
        as_bytes(indices),
        indptr.dtype.itemsize == 8,
        indptr.size - 1,
        words.shape[0],
        as_bytes(words),
    )


def _uniform(thresholds: Thresholds) -> tuple[int, bool] | None:
    """The one threshold and direction, if all are the same."""
    values, flips = thresholds.values, thresholds.flips
    if values.size == 1 or (values.size and (values == values.flat[0]).all() and (flips == flips.flat[0]).all()):
        return int(values.flat[0]), bool(flips.flat[0])
    return None


def _sliced(thresholds: Thresholds, features: int) -> tuple[Bytes, Bytes, Bytes, int, int, int]:
    """Bit-sliced thresholds, raised so that none is negative (the sums are raised by as much), and packed directions."""
    base = thresholds.longest
    shape = (thresholds.values.shape[0], features)
    raised = np.broadcast_to(np.clip(thresholds.values, -base, base + 1) + base, shape)
    planes = (2 * base + 1).bit_length()
    # A threshold has up to 62 bits, but a packed integer at most 32: so it is packed in one or two halves.
    parts = [
        host_bits.pack(
            (raised >> low) & 0xFFFFFFFF, min(planes - low, 32), axis=-1, layout="planes", encoding="unsigned"
        )
        for low in range(0, planes, 32)
    ]
    words = np.ascontiguousarray(np.concatenate(parts, axis=1))
    flips = host_bits.pack(np.broadcast_to(thresholds.flips, shape), 1, axis=-1, layout="planes", encoding="unsigned")
    classes = np.empty(0, np.int32) if thresholds.class_of is None else thresholds.class_of.astype(np.int32, copy=False)
    return as_bytes(words), as_bytes(flips), as_bytes(classes), planes, shape[0], base


def _sign_of_counts(
    indptr: Array,
    indices: Array,
    words: Array,
    features: int,
    thresholds: Thresholds,
    bipolar: bool,
    kernel: str,
    bits: Array,
) -> NDArray[np.uint32]:
    """The other two ways: integer sums of some rows at a time, compared and packed."""
    rows = indptr.size - 1
    step = max(1, _ROOM // max(4 * features, 1))
    for r0 in range(0, rows, step):
        r1 = min(r0 + step, rows)
        first, last = int(indptr[r0]), int(indptr[r1])
        sums = count(indptr[r0 : r1 + 1] - first, indices[first:last], words, features, bipolar=bipolar, kernel=kernel)
        chosen = slice(0, 1) if thresholds.class_of is None else thresholds.class_of[r0:r1]
        ones = (sums >= thresholds.values[chosen]) ^ thresholds.flips[chosen]
        bits[r0:r1] = host_bits.pack(ones, 1, axis=-1, layout="planes", encoding="unsigned").reshape(bits[r0:r1].shape)
    return bits

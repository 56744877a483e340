"""The scalar steps of ``cuda_src/scalar.h`` in NumPy: the same operations in the same order, one IEEE rounding each.

The compiled part and the CUDA kernels share that header. This module repeats it independently, so that a test which
compares a backend with it also tests the header. Change both together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import Array

_f32 = np.float32
_MASK32 = np.uint64(0xFFFFFFFF)


def into(out: Array | None, result: Array) -> Array:
    """Return `result`, or copy it into `out` and return that, unless `out` is None."""
    if out is None:
        return result
    out[...] = result
    return out


def philox4x32_10(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[NDArray[np.uint32], ...]:
    """Philox4x32-10, the counter-based generator of Salmon et al. (SC 2011).

    Parameters
    ----------
    counter
        Four integers or arrays of integers in ``[0, 2**32)``, broadcast against each other.
    key
        Two integers in ``[0, 2**32)``.

    Returns
    -------
    tuple of four uint32 arrays
        The four output words, in the broadcast shape of ``counter``.

    Examples
    --------
    >>> [hex(int(w)) for w in philox4x32_10((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) for c in np.broadcast_arrays(*counter))
    k0, k1 = key
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0 = (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0)
        c1 = p1 & _MASK32
        c2 = (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
        c3 = p0 & _MASK32
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return tuple(np.asarray(c, dtype=np.uint32) for c in (c0, c1, c2, c3))


def stochastic_bits(index: Any, seed: int, stream: int) -> NDArray[np.uint16]:
    """Sixteen random bits for each logical index: eight elements share one Philox draw.

    Parameters
    ----------
    index
        C-order logical indices, uint64, any shape.
    seed
        Key. Only its low 64 bits count.
    stream
        Stream number. Only its low 32 bits count.

    Returns
    -------
    uint16 array of the shape of ``index``

    Examples
    --------
    >>> stochastic_bits(np.arange(3), 0, 0).tolist()
    [59605, 26151, 50573]
    """
    index = np.asarray(index, dtype=np.uint64)
    draw, j = index >> np.uint64(3), (index & np.uint64(7)).astype(np.int64)
    counter = (draw & _MASK32, draw >> np.uint64(32), stream & 0xFFFFFFFF, 0)
    words = np.stack(philox4x32_10(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)))
    word = np.take_along_axis(words, (j // 2)[None], axis=0)[0]
    halves = (word >> (16 * (j % 2)).astype(np.uint32)) & np.uint32(0xFFFF)
    return np.asarray(halves, dtype=np.uint16)


def edges_kept(rows: Any, columns: Any, heads: int, seed: int, threshold: int) -> NDArray[np.bool_]:
    """Which heads of edges keep their weights under dropout: those whose 32 random bits are no less than `threshold`.

    Parameters
    ----------
    rows, columns
        Ends of the edges, integers of any shape. Only their low 32 bits count.
    heads
        Number of heads. Four heads share one Philox draw.

    Returns
    -------
    bool array (..., heads)

    Examples
    --------
    >>> edges_kept([0, 7], [5, 5], 3, seed=1, threshold=1 << 31)
    array([[ True, False,  True],
           [ True, False, False]])
    """
    row, column = (np.asarray(end, dtype=np.uint64)[..., None] & _MASK32 for end in (rows, columns))
    group = np.arange(-(-heads // 4), dtype=np.uint64)
    words = np.stack(philox4x32_10((row, column, group, 1), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)), axis=-1)
    return np.asarray(words.reshape(*row.shape[:-1], 4 * group.size)[..., :heads] >= threshold)


def round_stochastic(v: Array, half_words: NDArray[np.uint16]) -> Array:
    """``floor(v) + (u < (v - floor(v)) * 65536)`` in the dtype of ``v`` (float32 or float64).

    Examples
    --------
    >>> round_stochastic(np.array([0.5, 0.5, -2.0], np.float32), np.array([0, 65535, 0], np.uint16))
    array([ 1.,  0., -2.], dtype=float32)
    """
    below = np.floor(v)
    up = half_words.astype(v.dtype) < (v - below) * v.dtype.type(65536)
    return np.asarray(below + up.astype(v.dtype))


def tanh(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Hyperbolic tangent in float32 steps; within 2e-7 of float64, odd, exactly +-1 from ``|x| >= 9.01``.

    For ``|x|`` below 0.55 it is an odd polynomial; above, ``1 - 2 / (exp(2 |x|) + 1)`` with the exponential split at multiples of ln 2.

    Examples
    --------
    >>> tanh(np.array([0.0, 1.0, -20.0], np.float32))
    array([ 0.       ,  0.7615942, -1.       ], dtype=float32)
    """
    x = np.asarray(x, dtype=np.float32)
    a = np.abs(x)
    c = np.where(a < _f32(9.01), a, _f32(9.01))

    s = c * c
    p = s * _f32(-6.282447372e-03) + _f32(2.107773907e-02)
    p = s * p + _f32(-5.385385454e-02)
    p = s * p + _f32(1.333260089e-01)
    p = s * p + _f32(-3.333331943e-01)
    small = c + c * (s * p)

    y = c + c
    n = (y * _f32(1.442695041) + _f32(12582912.0)) - _f32(12582912.0)
    r = (y - n * _f32(0.693359375)) - n * _f32(-2.121944400e-04)
    e = r * _f32(1.395059400e-03) + _f32(8.368954062e-03)
    e = r * e + _f32(4.166620597e-02)
    e = r * e + _f32(1.666651815e-01)
    e = r * e + _f32(0.5)
    e = ((r * r) * e + r) + _f32(1.0)
    e = e * ((n.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    large = _f32(1.0) - _f32(2.0) / (e + _f32(1.0))

    t = np.where(c < _f32(0.55), small, large)
    t = np.where(a >= _f32(9.01), _f32(1.0), t)
    return np.asarray(np.where(x == x, np.copysign(t, x), x))


def activate(v: NDArray[np.float32], activation: str | None, negative_slope: float) -> NDArray[np.float32]:
    """The activation of an epilogue, in float32: ``None``, ``"relu"``, ``"leaky_relu"`` or ``"tanh"``. NaN stays NaN.

    Examples
    --------
    >>> activate(np.array([-2.0, 3.0], np.float32), "leaky_relu", 0.5)
    array([-1.,  3.], dtype=float32)
    """
    if activation == "relu":
        return np.asarray(np.where(v <= 0, _f32(0.0), v))
    if activation == "leaky_relu":
        return np.asarray(np.where(v >= 0, v, v * _f32(negative_slope)))
    return tanh(v) if activation == "tanh" else v


def lane_sum(terms: Array) -> Array:
    """Sum along the last axis in 64 bytes of interleaved lanes: each lane is summed in order, then the lanes are folded in halves."""
    ways = 64 // terms.dtype.itemsize
    steps = -(-terms.shape[-1] // ways)
    padded = np.zeros((*terms.shape[:-1], steps * ways), terms.dtype)
    padded[..., : terms.shape[-1]] = terms
    lanes = np.zeros((*terms.shape[:-1], ways), terms.dtype)
    for step in range(steps):
        lanes = lanes + padded[..., step * ways : (step + 1) * ways]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return np.asarray(lanes[..., 0])

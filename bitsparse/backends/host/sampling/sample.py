"""Edge sampling and sums over sampled edges on the host. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import sample as _ext
from bitsparse.backends.host.buffers import as_bytes, pattern_bytes
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import ENCODINGS, EVERY_EDGE, STRATEGIES, Array, CodeFeatures, Sampling

_NOTHING = np.empty(0, np.uint8)


def _sampler(sampling: Sampling) -> tuple[int, int, int, int]:
    width, strategy, seed, stream = sampling
    return STRATEGIES.index(strategy), width, seed, stream


def sample_edges(
    indptr: Array, *, width: int, strategy: str, seed: int = 0, stream: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which edges of each row are sampled.

    Parameters
    ----------
    indptr
        Row starts, int32 or int64.
    width
        The most edges per row.
    strategy
        ``"aes"`` (AES-SpMM Table 1 and Eq. 3), ``"afs"``, ``"sfs"`` (ES-SpMM), ``"uniform"`` (one Philox draw per stratum) or ``"all"``.
    seed, stream
        Random draws of "uniform".

    Returns
    -------
    starts : ndarray of int64, shape (m + 1,)
    edges : ndarray of int64, shape (starts[-1],)
        Edge numbers (positions in the CSR's indices) in sampling order; repeats are kept.

    Examples
    --------
    >>> starts, edges = sample_edges(np.array([0, 1, 9]), width=4, strategy="aes")
    >>> starts, edges
    (array([0, 1, 5]), array([0, 1, 6, 3, 8]))
    """
    rows, nnz = indptr.size - 1, int(indptr[-1])
    pattern = (as_bytes(indptr), indptr.dtype.itemsize == 8, rows, nnz)
    sampler = _sampler(Sampling(width, strategy, seed, stream))
    starts = np.zeros(rows + 1, np.int64)
    counts = np.empty(rows, np.int64)
    _ext.counts(run_on(rows), *pattern, sampler, as_bytes(counts))
    np.cumsum(counts, out=starts[1:])
    edges = np.empty(int(starts[-1]), np.int64)
    _ext.edges(run_on(edges.size), *pattern, sampler, as_bytes(starts), as_bytes(edges))
    return starts, edges


def gather(
    indptr: Array,
    indices: Array,
    x: Array | CodeFeatures,
    sampling: Sampling = EVERY_EDGE,
    *,
    values: Array | None = None,
    col_scale: Array | None = None,
    row_scale: Array | None = None,
    rescale: bool = False,
    mean: bool = False,
) -> Array:
    """Weighted sums of the sampled neighbours' features, added in sampling order, with every step rounded once.

    ``v = sum of (value * col_scale[column]) * x[column]``, then ``v * (row_nnz / samples)`` if `rescale`, ``v / row_nnz`` if `mean`,
    ``v * row_scale``. Empty rows give 0.

    Parameters
    ----------
    indptr, indices
        CSR pattern, int32 or int64.
    x
        float32 or float64 ``(n, features)``, or codes of 1, 2, 4 or 8 bits side by side, dequantised on the fly in float32.
    sampling
        All edges by default.
    values, col_scale, row_scale
        Arrays ``(nnz,)``, ``(n,)`` and ``(m,)`` of the result's dtype, or None.

    Returns
    -------
    ndarray ``(m, features)`` of float64 for float64 features, else float32

    Examples
    --------
    >>> gather(np.array([0, 2, 2]), np.array([0, 1]), np.array([[1, 2], [3, 4]], np.float32), mean=True)
    array([[2., 3.],
           [0., 0.]], dtype=float32)
    """
    rows = indptr.size - 1
    if isinstance(x, CodeFeatures):
        kind, data, cols, features, dtype = 2, x.words, x.words.shape[0], x.features, np.dtype(np.float32)
        bits, encoding = x.bits, ENCODINGS[x.encoding]
        affine = (*_affine(x.scale), *_affine(x.offset))
    else:
        kind, data, cols, features, dtype = int(x.dtype == np.float64), x, x.shape[0], x.shape[1], x.dtype
        bits = encoding = 0
        affine = (_NOTHING, (0, 0), _NOTHING, (0, 0))
    out = np.empty((rows, features), dtype)
    work = (
        min(indices.size, rows * sampling.width if sampling.strategy != "all" else indices.size) * features + out.size
    )
    pattern = *pattern_bytes(indptr, indices), rows, cols, _sampler(sampling)
    codes = kind, as_bytes(data), features, bits, encoding, *affine
    factors = _given(values), _given(col_scale), _given(row_scale), rescale, mean
    arguments = *pattern, *codes, *factors
    _ext.gather(run_on(work), *arguments, as_bytes(out))
    return out


def _given(part: Array | None) -> NDArray[np.uint8]:
    """The bytes of an array, or no bytes for None."""
    return _NOTHING if part is None else as_bytes(part)


def _affine(part: Array | None) -> tuple[Array, tuple[int, int]]:
    """Bytes and (row, column) strides of a scale or offset: scalar, ``(n, 1)`` or ``(1, features)``."""
    if part is None:
        return _NOTHING, (0, 0)
    if part.size == 1:
        return as_bytes(part), (0, 0)
    return as_bytes(part), (1, 0) if part.shape[1] == 1 else (0, 1)

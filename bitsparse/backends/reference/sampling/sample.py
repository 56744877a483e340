"""Edge sampling and sums over sampled edges in plain Python and NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bitsparse._records import as_dict
from bitsparse.backends.params import EVERY_EDGE, Array, CodeFeatures, Sampling
from bitsparse.backends.reference.bits.pack import codes_to_values, words_to_codes
from bitsparse.backends.reference.scalar import philox4x32_10


def _positions(row: int, nnz: int, width: int, strategy: str, seed: int, stream: int) -> Iterator[int]:
    """Positions within one row, in sampling order; unbounded Python integers throughout."""
    w = min(nnz, width)
    if nnz == 0:
        return
    if strategy == "all":
        yield from range(nnz)
    elif strategy == "sfs":
        yield from range(w)
    elif strategy == "afs":
        yield from (577 * k % nnz for k in range(w))
    elif strategy == "uniform":
        for k in range(w):
            low, high = k * nnz // w, (k + 1) * nnz // w
            g = row * width + k
            w0, w1, _, _ = philox4x32_10(
                (g & 0xFFFFFFFF, g >> 32 & 0xFFFFFFFF, stream, 0), (seed & 0xFFFFFFFF, seed >> 32)
            )
            yield low + ((int(w1) << 32 | int(w0)) * (high - low) >> 64)
    else:
        # Table 1 of AES-SpMM: R = nnz / W against 1, 2, 36 and 54
        if nnz <= w:
            run, samples = nnz, 1
        else:
            parts = next((n for limit, n in ((2, 4), (36, 8), (54, 16)) if nnz <= limit * w), 32)
            run, samples = max(1, w // parts), min(parts, w)
        for k in range(samples):
            start = k * 1429 % (nnz - run + 1)  # Eq. 3
            yield from range(start, start + run)


def sample_edges(
    indptr: Array, *, width: int, strategy: str, seed: int = 0, stream: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row starts among the sampled edges, and the edges' numbers."""
    picked = [
        [start + p for p in _positions(row, stop - start, width, strategy, seed, stream)]
        for row, (start, stop) in enumerate(pairwise(indptr.tolist()))
    ]
    starts = np.cumsum([0, *map(len, picked)], dtype=np.int64)
    return starts, np.array([edge for row in picked for edge in row], np.int64)


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
    """Weighted sums in sampling order with one rounding per step, in float64 for float64 features, else in float32."""
    real = _real(x) if isinstance(x, CodeFeatures) else x
    one = real.dtype.type(1)
    starts, edges = sample_edges(indptr, **as_dict(sampling))
    out = np.zeros((indptr.size - 1, real.shape[1]), real.dtype)
    # Overflow and NaN in the features follow IEEE rules, as in C.
    with np.errstate(over="ignore", invalid="ignore"):
        for row in range(indptr.size - 1):
            chosen, nnz = edges[starts[row] : starts[row + 1]], int(indptr[row + 1] - indptr[row])
            for edge in chosen:
                column = indices[edge]
                weight = one if values is None else values[edge]
                weight = weight if col_scale is None else weight * col_scale[column]
                out[row] = out[row] + real[column] * weight
            if nnz:
                if rescale:
                    out[row] = out[row] * (one * nnz / (one * chosen.size))
                if mean:
                    out[row] = out[row] / (one * nnz)
                if row_scale is not None:
                    out[row] = out[row] * row_scale[row]
    return out


def _real(x: CodeFeatures) -> NDArray[np.float32]:
    codes = words_to_codes(x.words, x.features, x.bits, "rows")
    real = codes_to_values(codes, x.bits, x.encoding).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if x.scale is not None:
            real = real * x.scale
        if x.offset is not None:
            real = real + x.offset
    return np.asarray(real, np.float32)

"""Sparse times dense, edge by edge in the defined order: for k = 0, 1, 2, ..., the k-th edges of all rows are added at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import SEGMENT, SIXTEEN, Array, PackedFeatures, Pattern
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.backends.reference.bits import pack as _bits
from bitsparse.backends.reference.scalar import into


def longest_row(indptr: Array, nnz: int) -> int:
    """The most edges in a row; raises ValueError unless `indptr` is valid for `nnz` edges.

    Examples
    --------
    >>> longest_row(np.array([0, 2, 2, 5]), 5)
    3
    """
    starts = indptr.astype(np.int64)
    lengths = starts[1:] - starts[:-1]
    if indptr[0] != 0 or indptr[-1] != nnz or (lengths < 0).any():
        raise ValueError(f"indptr must start at 0, never decrease and end at nnz = {nnz}; rebuild the sparse array")
    return int(lengths.max(initial=0))


def spmm(
    pattern: Pattern,
    x: Array,
    *,
    acc_dtype: Any,
    heads: int = 1,
    values: Array | None = None,
    row_scale: Array | None = None,
    col_scale: Array | None = None,
    reduce: str = "sum",
    packed: PackedFeatures | None = None,
    out: Array | None = None,
) -> Array:
    """Reduce rows of `x` over the edges of each row of a CSR pattern; see the host's function of the same name.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    >>> spmm(Pattern(np.array([0, 2, 2]), np.array([0, 1]), (2, 2)), x, acc_dtype=np.float32, reduce="mean")
    array([[2., 3.],
           [0., 0.]], dtype=float32)
    """
    (indptr, indices, shape, _), nnz, acc = pattern, pattern.nnz, np.dtype(acc_dtype)
    longest_row(indptr, nnz)
    columns = np.arange(nnz) if indices is None else indices.astype(np.int64)
    if nnz and (columns.min() < 0 or columns.max() >= shape[1]):
        raise ValueError(f"indices hold a column outside 0..{shape[1] - 1}; rebuild the sparse array")
    starts = indptr.astype(np.int64)
    lengths = starts[1:] - starts[:-1]
    with np.errstate(all="ignore"):
        features = _decoded(x, packed, acc)
        row_of = np.repeat(np.arange(shape[0]), lengths)
        # Row factors are part of the weights only for reductions that select a term; otherwise they scale the result.
        takes = REDUCTIONS[reduce].takes
        row_weight = None if takes is None else row_scale
        weights = None
        if any(factor is not None for factor in (values, col_scale, row_weight)):
            weights = np.ones((nnz, 1), acc) if values is None else values.astype(acc)
            weights = weights.reshape(nnz, *weights.shape[1:2] or (1,))
            if col_scale is not None:
                weights = weights * col_scale.astype(acc)[columns][:, None]
            if row_weight is not None:
                weights = weights * row_weight.astype(acc)[row_of][:, None]
            per_head = heads if weights.shape[1] == 1 else 1
            weights = np.repeat(
                np.repeat(weights, per_head, axis=1), features.shape[1] // heads if heads else 0, axis=1
            )
        result = _reduce(starts, columns, features, weights, takes, acc)
        dtype = x.dtype if packed is None and x.dtype.name in SIXTEEN else acc
        if reduce == "mean":
            floating = np.dtype(np.float32) if acc.kind == "i" else acc
            count = np.maximum(lengths, 1)[:, None].astype(np.float32).astype(floating)
            result = result.astype(floating) / count
            dtype = floating if acc.kind == "i" else dtype
        if row_scale is not None and takes is None:
            result = result * row_scale.astype(result.dtype)[:, None]
        result = result.astype(dtype)
    return into(out, result)


def _decoded(x: Array, packed: PackedFeatures | None, acc: np.dtype[Any]) -> Array:
    """Features as (rows, heads * width) of the accumulator's type."""
    if packed is None:
        return x.astype(acc)
    whole = _bits.unpack(
        x, (*x.shape[:2], packed.width), packed.bits, axis=-1, layout="rows", encoding=packed.encoding, dtype=np.int64
    )
    whole = whole.reshape(x.shape[0], x.shape[1] * packed.width)
    if packed.affine is None:
        return whole.astype(acc)
    scale, offset = (p[:, None] if packed.affine == "row" else p[None, :] for p in (packed.scale, packed.offset))
    return np.asarray((whole.astype(np.float32) * scale + offset).astype(acc))


def _reduce(
    indptr: NDArray[np.int64],
    columns: Array,
    features: Array,
    weights: Array | None,
    takes: Callable[..., Any] | None,
    acc: np.dtype[Any],
) -> Array:
    lengths = indptr[1:] - indptr[:-1]
    pieces = -(-lengths // SEGMENT)
    row_of_piece = np.repeat(np.arange(lengths.size), pieces)
    first_piece = np.concatenate(([0], np.cumsum(pieces)))
    start = indptr[:-1][row_of_piece] + (np.arange(row_of_piece.size) - first_piece[row_of_piece]) * SEGMENT
    end = np.minimum(start + SEGMENT, indptr[1:][row_of_piece])
    partial = np.zeros((start.size, features.shape[1]), acc)
    for k in range(int((end - start).max(initial=0))):
        live = np.flatnonzero(start + k < end)
        edge = start[live] + k
        term = features[columns[edge]]
        if weights is not None:
            term = term * weights[edge]
        partial[live] = _combine(partial[live], term, takes, k == 0)
    result = np.zeros((lengths.size, features.shape[1]), acc)
    for k in range(int(pieces.max(initial=0))):
        live = np.flatnonzero(pieces > k)
        result[live] = _combine(result[live], partial[first_piece[live] + k], takes, k == 0)
    return result


def _combine(have: Array, term: Array, takes: Callable[..., Any] | None, first: bool) -> Array:
    if takes is None:
        return np.asarray(have + term)
    return term if first else np.where(takes(term, have) | (term != term), term, have)

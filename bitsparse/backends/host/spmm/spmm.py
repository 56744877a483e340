"""Sparse times dense on the host. Arguments are validated by the callers in ``ops``; CSR arrays are checked again on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import spmm as _ext
from bitsparse.backends.host.bits import pack as _bits
from bitsparse.backends.host.buffers import ENCODINGS, as_bytes
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import PackedFeatures
from bitsparse.backends.reductions import REDUCTIONS

__all__ = ["attention", "longest_row", "spmm"]

Array = NDArray[Any]

#: enum bs_spmm_load: how features are read and what they are summed in.
_LOADS = {
    (x, acc): code
    for code, (x, acc) in enumerate(
        (
            ("float32", "float32"),
            ("float16", "float32"),
            ("bfloat16", "float32"),
            ("int8", "float32"),
            ("uint8", "float32"),
            ("int16", "float32"),
            ("uint16", "float32"),
            ("field", "float32"),
            ("float64", "float64"),
            ("int8", "int32"),
            ("uint8", "int32"),
            ("int16", "int32"),
            ("uint16", "int32"),
            ("field", "int32"),
            ("int32", "int64"),
            ("uint32", "int64"),
            ("int64", "int64"),
        )
    )
}
_AFFINES = {None: 0, "row": 1, "column": 2}


def longest_row(indptr: Array, nnz: int) -> int:
    """Most edges in a row; ValueError if `indptr` is not one of `nnz` edges.

    Examples
    --------
    >>> longest_row(np.array([0, 2, 2, 5]), 5)
    3
    """
    return int(_ext.longest_row(as_bytes(indptr), indptr.dtype.itemsize == 8, indptr.size - 1, nnz))


def spmm(
    indptr: Array,
    indices: Array | None,
    shape: tuple[int, int],
    x: Array,
    *,
    nnz: int,
    acc_dtype: Any,
    heads: int = 1,
    values: Array | None = None,
    row_scale: Array | None = None,
    col_scale: Array | None = None,
    reduce: str = "sum",
    packed: PackedFeatures | None = None,
    out: Array | None = None,
) -> Array:
    """Reduce rows of `x` over the edges of each row of a CSR pattern.

    Rows of up to ``SEGMENT`` edges are summed edge by edge, longer ones in pieces of so many edges whose sums are added in order; every
    step is one rounding. So a result depends neither on the number of threads nor on the SIMD level.

    Parameters
    ----------
    indptr, indices : ndarray of int32 or int64
        The pattern, of one dtype. `indices` None means that edge e belongs to row e of `x`.
    x : ndarray (cols, heads * width), or words (cols, heads, words) with `packed`
    acc_dtype : float32, float64, int32 or int64
        What sums are held in, and the dtype of the result, but for 16-bit floats, which are rounded back. The caller has made sure that
        integers fit.
    values : ndarray (nnz,) or (nnz, heads), optional
    row_scale, col_scale : ndarray of float32, optional
        Factors per row and column of the pattern; only with floating sums. A maximum is taken after all factors, a sum before `row_scale`.
    reduce : str
        One of `REDUCTIONS`.
        The mean of integers is float32, the quotient of the sum and the count as float32.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    >>> spmm(np.array([0, 2, 2]), np.array([0, 1]), (2, 2), x, nnz=2, acc_dtype=np.float32, reduce="mean")
    array([[2., 3.],
           [0., 0.]], dtype=float32)
    """
    acc = np.dtype(acc_dtype)
    integral_mean = reduce == "mean" and acc.kind == "i"
    load, data, layout, packed = _features(x, packed, heads, acc)
    width = layout[4]
    dtype = x.dtype if packed is None and x.dtype.name in ("float16", "bfloat16") else acc
    result = out if out is not None and not integral_mean else np.empty((shape[0], heads * width), dtype)
    weights = None if values is None else as_bytes(values.astype(acc, copy=False))
    affine = None if packed is None else packed.affine
    _ext.spmm(
        run_on(),
        as_bytes(indptr),
        None if indices is None else as_bytes(indices),
        indptr.dtype.itemsize == 8,
        shape,
        nnz,
        load,
        REDUCTIONS["sum" if integral_mean else reduce].number,
        data,
        layout,
        1 if packed is None else packed.bits,
        0 if packed is None else ENCODINGS[packed.encoding],
        weights,
        1 if values is None or values.ndim == 1 else values.shape[1],
        _floats(row_scale),
        _floats(col_scale),
        _AFFINES[affine],
        _floats(packed.scale) if packed is not None and affine is not None else None,
        _floats(packed.offset) if packed is not None and affine is not None else None,
        as_bytes(result),
        0,
    )
    if not integral_mean:
        return result
    count = np.maximum(np.diff(indptr), 1).astype(np.float32)[:, None]
    return np.divide(result.astype(np.float32), count, out=out)


def attention(
    indptr: Array,
    indices: Array,
    shape: tuple[int, int],
    x: Array,
    source: Array,
    target: Array,
    *,
    negative_slope: float,
    out: Array | None = None,
) -> Array:
    """Softmax-weighted sums of rows of `x` (cols, heads * width), without storing a value per edge.

    Parameters
    ----------
    source, target : ndarray (cols, heads), (rows, heads)
        float64 for float64 features, else float32. The score of an edge is ``leaky_relu(source[column] + target[row])``.

    Examples
    --------
    >>> one = np.ones((2, 1), np.float32)
    >>> attention(np.array([0, 2]), np.array([0, 1]), (1, 2), np.array([[2.0], [4.0]], np.float32), one, one[:1], negative_slope=0.2)
    array([[3.]], dtype=float32)
    """
    heads = source.shape[1]
    load, data, layout, _ = _features(x, None, heads, source.dtype)
    result = np.empty((shape[0], heads * layout[4]), x.dtype) if out is None else out
    _ext.attention(
        run_on(),
        as_bytes(indptr),
        as_bytes(indices),
        indptr.dtype.itemsize == 8,
        shape,
        indices.size,
        load,
        data,
        layout,
        as_bytes(source),
        as_bytes(target),
        negative_slope,
        as_bytes(result),
        0,
    )
    return result


def _floats(part: Array | None) -> Array | None:
    return None if part is None else as_bytes(part.astype(np.float32, copy=False))


def _features(
    x: Array, packed: PackedFeatures | None, heads: int, acc: np.dtype[Any]
) -> tuple[int, Array, tuple[int, int, int, int, int], PackedFeatures | None]:
    """Code of the load, bytes, ``(stride, head stride, row bytes, heads, width)`` and, if it still counts, `packed`."""
    if packed is not None and acc.name not in ("float32", "int32"):
        # Sums beyond 32 bits of few-bit integers are rare: unpack instead of keeping more kernels.
        first = np.dtype(np.float32) if packed.affine is not None else acc
        whole = _bits.unpack(
            x, (*x.shape[:2], packed.width), packed.bits, axis=-1, layout="rows", encoding=packed.encoding, dtype=first
        ).reshape(x.shape[0], x.shape[1] * packed.width)
        if packed.affine is not None:
            scale, offset = (p[:, None] if packed.affine == "row" else p for p in (packed.scale, packed.offset))
            whole = whole * scale + offset
        x, packed = whole.astype(acc, copy=False), None
    if packed is not None:
        name = "field" if packed.bits < 8 else f"{'' if packed.encoding == 'signed' else 'u'}int{packed.bits}"
        head_bytes = x.shape[2] * 4
        row_bytes = x.shape[1] * head_bytes
        # Head rows of 8 and 16 bits are padded as well, so heads stay apart here too.
        return _LOADS[name, acc.name], as_bytes(x), (row_bytes, head_bytes, row_bytes, heads, packed.width), packed
    if x.dtype == np.bool_:
        x = x.view(np.uint8)
    elif x.dtype == np.uint64 and acc == np.int64:
        x = x.view(np.int64)
    if (x.dtype.name, acc.name) not in _LOADS:
        x = x.astype(acc)
    width = x.shape[1] // heads if heads else 0
    row_bytes = x.shape[1] * x.dtype.itemsize
    layout = (row_bytes, width * x.dtype.itemsize, row_bytes, heads, width)
    return _LOADS[x.dtype.name, acc.name], as_bytes(x), layout, None

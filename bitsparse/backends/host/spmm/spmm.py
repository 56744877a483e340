"""Sparse times dense on the host. Arguments are validated by the callers in ``ops``; compiled code checks CSR arrays again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bitsparse._ext import spmm as _ext
from bitsparse.backends.host.bits import pack as _bits
from bitsparse.backends.host.buffers import arrays_of, as_bytes
from bitsparse.backends.host.settings import run_on
from bitsparse.backends.params import ENCODINGS, SIXTEEN, Array, PackedFeatures, Pattern
from bitsparse.backends.reductions import REDUCTIONS

_SMALL = ("int8", "uint8", "int16", "uint16", "field")
#: enum bs_spmm_load: the type that features are read from and the type that they are summed in.
_LOADS = {
    load: code
    for code, load in enumerate(
        (
            *((x, "float32") for x in ("float32", "float16", "bfloat16", *_SMALL)),
            ("float64", "float64"),
            *((x, "int32") for x in _SMALL),
            *((x, "int64") for x in ("int32", "uint32", "int64")),
        )
    )
}
_AFFINES = {None: 0, "row": 1, "column": 2}


def longest_row(indptr: Array, nnz: int) -> int:
    """The most edges in a row; raises ValueError unless `indptr` is valid for `nnz` edges.

    Examples
    --------
    >>> longest_row(np.array([0, 2, 2, 5]), 5)
    3
    """
    return int(_ext.longest_row(as_bytes(indptr), indptr.dtype.itemsize == 8, indptr.size - 1, nnz))


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
    """Reduce rows of `x` over the edges of each row of a CSR pattern.

    Rows of up to ``SEGMENT`` edges are summed edge by edge. Longer rows are summed in pieces of ``SEGMENT`` edges, and the sums of the
    pieces are added in order. Every step is rounded once. So the result depends neither on the number of threads nor on the SIMD level.

    Parameters
    ----------
    pattern : Pattern
        Its index arrays share one dtype, int32 or int64. `indices` is None if edge e belongs to row e of `x`.
    x : ndarray (cols, heads * width), or words (cols, heads, words) with `packed`
    acc_dtype : float32, float64, int32 or int64
        The dtype of the sums and of the result, except that results of 16-bit float features are rounded back to these. The caller has made
        sure that integers fit.
    values : ndarray (nnz,) or (nnz, heads), optional
    row_scale, col_scale : ndarray of float32, optional
        Factors per row and column of the pattern, only for floating sums. A maximum is taken after all factors; a sum is multiplied by
        `row_scale` at the end.
    reduce : str
        One of `REDUCTIONS`. The mean of integers is float32: the float32 sum divided by the float32 count.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    >>> spmm(Pattern(np.array([0, 2, 2]), np.array([0, 1]), (2, 2)), x, acc_dtype=np.float32, reduce="mean")
    array([[2., 3.],
           [0., 0.]], dtype=float32)
    """
    acc = np.dtype(acc_dtype)
    integral_mean = reduce == "mean" and acc.kind == "i"
    load, data, layout, packed = features_of(x, packed, heads, acc)
    width = layout[4]
    dtype = x.dtype if packed is None and x.dtype.name in SIXTEEN else acc
    result = out if out is not None and not integral_mean else np.empty((pattern.shape[0], heads * width), dtype)
    weights = None if values is None else as_bytes(values.astype(acc, copy=False))
    codes: tuple[int, int] = (1, 0)
    affine: tuple[int, Any, Any] = (_AFFINES[None], None, None)
    if packed is not None:
        codes = packed.bits, ENCODINGS[packed.encoding]
        if packed.affine is not None:
            affine = _AFFINES[packed.affine], _floats(packed.scale), _floats(packed.offset)
    number = REDUCTIONS["sum" if integral_mean else reduce].number
    features = load, number, data, layout, *codes
    factors = weights, max(1, _value_heads(values)), _floats(row_scale), _floats(col_scale), *affine
    arrays = arrays_of(pattern)
    arguments = *arrays, *features, *factors
    _ext.spmm(run_on(arrays[-1] * heads * width), *arguments, as_bytes(result), 0)
    if not integral_mean:
        return result
    count = np.maximum(np.diff(pattern.indptr), 1).astype(np.float32)[:, None]
    return np.divide(result.astype(np.float32), count, out=out)


class Sums:
    """:func:`spmm` for repeated calls, with features of one floating dtype at any address.

    Parameters
    ----------
    columns : int
        Columns of the features, all heads together.
    values : ndarray (nnz,) or (nnz, heads), optional
        An example of the values that calls will pass, in the dtype of the sums.

    Examples
    --------
    >>> sums = Sums(Pattern(np.array([0, 2]), np.array([0, 1]), (1, 2)), dtype=np.dtype(np.float64), columns=1)
    >>> sums(np.array([[1.0], [2.0]]), None, out := np.empty((1, 1)))
    >>> out
    array([[3.]])
    """

    def __init__(
        self,
        pattern: Pattern,
        *,
        dtype: np.dtype[Any],
        columns: int,
        heads: int = 1,
        values: Array | None = None,
        row_scale: Array | None = None,
        col_scale: Array | None = None,
        reduce: str = "sum",
    ) -> None:
        load = _LOADS[dtype.name, "float64" if dtype == np.float64 else "float32"]
        features = load, REDUCTIONS[reduce].number, _layout(dtype, columns, heads)
        self._sums = _ext.Sums(
            *arrays_of(pattern), *features, _value_heads(values), _floats(row_scale), _floats(col_scale)
        )
        self._work = pattern.nnz * columns

    def __call__(self, x: Any, values: Any, out: Any) -> None:
        """Write the sums to `out`. Arguments are arrays in C order or their addresses."""
        self._sums(run_on(self._work), x, values, out)

    def over(self, values: Array | None) -> Callable[[Any, Any], None]:
        """``call(x, out)`` with these values."""
        sums, work = self._sums, self._work
        return lambda x, out: sums(run_on(work), x, values, out)


def _value_heads(values: Array | None) -> int:
    return 0 if values is None else 1 if values.ndim == 1 else int(values.shape[1])


def _layout(dtype: np.dtype[Any], columns: int, heads: int) -> tuple[int, int, int, int, int]:
    """``(stride, head stride, row bytes, heads, width)`` of features without gaps."""
    width, row_bytes = columns // heads if heads else 0, columns * dtype.itemsize
    return row_bytes, width * dtype.itemsize, row_bytes, heads, width


def _floats(part: Array | None) -> Array | None:
    return None if part is None else as_bytes(part.astype(np.float32, copy=False))


def features_of(
    x: Array, packed: PackedFeatures | None, heads: int, acc: np.dtype[Any]
) -> tuple[int, Array, tuple[int, int, int, int, int], PackedFeatures | None]:
    """Code of the load, bytes, ``(stride, head stride, row bytes, heads, width)``, and `packed`, or None if the features were unpacked."""
    if packed is not None and acc.name not in ("float32", "int32"):
        # Few-bit integers are rarely summed in 64 bits: unpack them instead of having more kernels.
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
        # Each head's row is padded, also for 8 and 16 bits, so heads have a stride of their own here too.
        return _LOADS[name, acc.name], as_bytes(x), (row_bytes, head_bytes, row_bytes, heads, packed.width), packed
    if x.dtype == np.bool_:
        x = x.view(np.uint8)
    elif x.dtype == np.uint64 and acc == np.int64:
        x = x.view(np.int64)
    if (x.dtype.name, acc.name) not in _LOADS:
        x = x.astype(acc)
    return _LOADS[x.dtype.name, acc.name], as_bytes(x), _layout(x.dtype, x.shape[1], heads), None

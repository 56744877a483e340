"""Features of nodes with normalised rows, in full precision and quantised."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops import quantize

#: The most bytes of features that are made dense at a time while they are quantised.
_CHUNK_BYTES = 1 << 26
#: Shares of a row's maximum tried as the upper end of its range.
_CLIPS = np.linspace(0.15, 1.0, 35)
#: Nearest codes on a grid for each row.
_by_rows = partial(quantize, rounding="nearest", granularity="row")


def pieces(rows: int, columns: int, itemsize: int = 4) -> list[slice]:
    """Slices of rows of a bounded size; one empty slice if there are no rows.

    >>> pieces(3, 1 << 23)
    [slice(0, 2, None), slice(2, 3, None)]
    """
    step = max(1, _CHUNK_BYTES // max(itemsize * columns, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, max(rows, 1), step)]


def code_dtype(bits: int) -> np.dtype[Any]:
    """The dtype of sparse codes.

    >>> code_dtype(8), code_dtype(9)
    (dtype('uint8'), dtype('uint16'))
    """
    return np.dtype(np.uint8 if bits <= 8 else np.uint16)


def codes_of_entries(
    values: NDArray[Any], ends: tuple[NDArray[Any], NDArray[Any]], lines: NDArray[Any], bits: int
) -> NDArray[Any]:
    """Codes of single values, each on the grid of its line, equal to those of :func:`bitsparse.quantize`.

    >>> ends = np.array([0.0, 0.0]), np.array([1.0, 15.0])
    >>> codes_of_entries(np.array([1.0, 1.0, 0.5]), ends, np.array([0, 1, 0]), 4)
    array([15,  1,  8], dtype=uint8)
    """
    low, high = (np.asarray(end)[lines][:, None] for end in ends)
    column = np.asarray(values, np.float32)[:, None]
    codes = _by_rows(column, bits, range=(low, high), axis=-2)
    return np.asarray(codes.toarray())[:, 0].astype(code_dtype(bits), copy=False)


def rows_of(function: str, features: Any) -> Any:
    """Features as an array in host memory (a memory map stays one) or a SciPy CSR array, both of which give some rows at a time."""
    from scipy import sparse

    if isinstance(features, Features):
        features = features.csr
    elif hasattr(features, "tocsr"):
        features = features.tocsr()
    if not isinstance(features, np.ndarray) and not sparse.issparse(features):
        features = interop.as_host(features, function, "features")
    _check.numeric(function, "features", features)
    return features


class Features:
    """Node features with rows normalised to an absolute sum of 1, in full precision and quantised.

    Parameters
    ----------
    x : array_like (n, features) or sparse array
        Rows of zeros stay zero.

    Attributes
    ----------
    row_factor : ndarray (n,) of float32
        The factor of each row.

    Examples
    --------
    >>> from bitsparse import nn
    >>> words = nn.Features(np.array([[1, 0, 1], [0, 1, 0]]))
    >>> words.normalized
    array([[0.5, 0. , 0.5],
           [0. , 1. , 0. ]], dtype=float32)
    >>> words.quantized(8)
    <BitTensor shape=(2, 3) bits=1 unsigned axis=-1 layout=planes scale device=cpu, 40 B (1.67 of float32)>
    """

    def __init__(self, x: Any) -> None:
        from scipy import sparse

        if isinstance(x, BitTensor):
            raise DTypeError("Features: x is a BitTensor, but values are needed; pass x.dequantize()")
        self._dense = not sparse.issparse(x)
        raw = sparse.csr_array(np.asarray(x) if self._dense else x)
        if raw.ndim != 2:
            raise ShapeError(
                f"Features: x has shape {raw.shape}, but one row per node is needed; pass x[:, None] for a single feature"
            )
        _check.numeric("Features", "x", raw)
        raw = raw.astype(np.float32)
        raw.sum_duplicates()
        _check.finite("Features", "x", bool(np.isfinite(raw.data).all()))
        self._raw = raw
        sums = np.asarray(abs(raw).sum(axis=1, dtype=np.float64)).ravel()
        self.row_factor: NDArray[np.float32] = (1.0 / np.where(sums > 0, sums, 1.0)).astype(np.float32)
        self._quantized: dict[int, BitTensor] = {}

    @property
    def shape(self) -> tuple[int, int]:
        """Nodes and features."""
        rows, cols = self._raw.shape
        return int(rows), int(cols)

    @cached_property
    def csr(self) -> Any:
        """The normalised features as a csr_array of float32."""
        scaled = self._raw.copy()
        scaled.data = scaled.data * np.repeat(self.row_factor, np.diff(scaled.indptr))
        return scaled

    @cached_property
    def normalized(self) -> Any:
        """The normalised features in the form they came in: an ndarray or a csr_array of float32."""
        return self.csr.toarray() if self._dense else self.csr

    @property
    def nbytes(self) -> int:
        """Bytes of `normalized`."""
        csr = self.csr
        return int(self.normalized.nbytes if self._dense else csr.data.nbytes + csr.indices.nbytes + csr.indptr.nbytes)

    def quantized(self, bits: int) -> BitTensor:
        """The normalised features in at most ``bits`` bits, with one scale per row that holds the normalisation as well.

        Non-negative integers, such as the 0/1 of a bag of words, are stored exactly, in no more bits than they need, if ``bits`` suffice.
        Other non-negative features have ranges from zero; the upper end of each row's range is the one with the least squared error. If
        there are negative values, each row's range is from its lowest to its highest value, including zero, with an offset per row.
        """
        if bits not in self._quantized:
            low, high, bits_used = self._ranges(bits)
            parts = [
                _by_rows(self._raw[rows].toarray(), bits_used, range=(low[rows, None], high[rows, None]))
                for rows in pieces(*self.shape)
            ]
            factor = self.row_factor[:, None]
            words, scale = (
                np.concatenate([np.asarray(getattr(part, name)) for part in parts]) for name in ("words", "scale")
            )
            offset = low[:, None] * factor if low.any() else None
            self._quantized[bits] = BitTensor.from_words(
                words, self.shape, bits_used, scale=scale * factor, offset=offset
            )
        return self._quantized[bits]

    @property
    def has_negative(self) -> bool:
        """Whether some value is negative; then the code 0 no longer stands for zero."""
        return bool(self._raw.nnz and self._raw.data.min() < 0)

    def quantized_entries(self, bits: int) -> TCTiledCSR:
        """The codes of :meth:`quantized` for the stored entries, with its scales as `row_scale`; for features without negative values.

        Examples
        --------
        >>> from bitsparse import nn
        >>> nn.Features(np.array([[1, 0, 1], [0, 1, 0]])).quantized_entries(8).toarray()
        array([[0.5, 0. , 0.5],
               [0. , 1. , 0. ]], dtype=float32)
        """
        raw, (low, high, used) = self._raw, self._ranges(bits)
        if low.any():
            raise ValueError("Features: x has negative values, of which no code is zero; use quantized(bits)")
        rows = np.repeat(np.arange(raw.shape[0]), np.diff(raw.indptr))
        codes = codes_of_entries(raw.data, (low, high), rows, used).astype(code_dtype(bits), copy=False)
        ends = low[:, None], high[:, None]
        of_zeros = _by_rows(np.zeros_like(ends[0]), used, range=ends)
        scale = (np.asarray(of_zeros.scale) * self.row_factor[:, None]).reshape(-1)
        return TCTiledCSR.from_arrays(raw.indptr, raw.indices, self.shape, data=codes, row_scale=scale)

    def rounded(self, bits: int) -> Any:
        """The values of :meth:`quantized`, in the form of `normalized`: sparse features without negative values stay sparse."""
        if self._dense or self.has_negative:
            from scipy import sparse

            dense = self.quantized(bits).dequantize()
            return dense if self._dense else sparse.csr_array(dense)
        return self.quantized_entries(bits).tocsr()

    def _ranges(self, bits: int) -> tuple[NDArray[np.float32], NDArray[np.float32], int]:
        """The lower and upper end of each row's range, and the number of bits to store."""
        raw, n = self._raw, self.shape[0]
        top = 2**bits - 1
        smallest, largest = (float(raw.data.min()), float(raw.data.max())) if raw.nnz else (0.0, 0.0)
        if smallest >= 0 and largest <= top and bool((raw.data == np.rint(raw.data)).all()):
            needed = max(1, int(largest).bit_length())
            return np.zeros(n, np.float32), np.full(n, 2**needed - 1, np.float32), needed
        high = np.asarray(raw.max(axis=1).toarray(), dtype=np.float32).ravel()
        if smallest < 0:
            low = np.asarray(raw.min(axis=1).toarray(), dtype=np.float32).ravel()
            return np.minimum(low, 0), np.maximum(high, 0), bits
        high = np.where(high > 0, high, np.float32(1))
        rows = np.repeat(np.arange(n), np.diff(raw.indptr))
        least, best = np.full(n, np.inf), high
        for clip in _CLIPS:
            step = (high * np.float32(clip / top)).astype(np.float64)
            of_row = step[rows]
            error = raw.data - of_row * np.minimum(np.rint(raw.data / of_row), top)
            total = np.bincount(rows, error * error, minlength=n)
            best = np.where(total < least, (step * top).astype(np.float32), best)
            least = np.minimum(total, least)
        return np.zeros(n, np.float32), best, bits

"""Builders of packed arrays from coordinates, and of the sparse formats from CSR and back. The heavy ones are in _ext/sparse/build.c."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._ext import build as _ext
from bitsparse.backends.host.buffers import as_bytes, items_of
from bitsparse.backends.host.settings import get_num_threads, run_on
from bitsparse.backends.host.sparse.entries import gather
from bitsparse.backends.params import Array, check_indices, packed_words

#: If a window spans more columns per entry than this power of two, its entries are sorted instead of marked in a panel.
SPREAD = int(_ext.SPREAD)

Index = NDArray[np.int32] | NDArray[np.int64]


def pack_coo(
    rows: NDArray[np.int64],
    cols: NDArray[np.int64],
    values: Array,
    shape: tuple[int, int],
    bits: int,
    *,
    axis: int,
    layout: str,
) -> NDArray[np.uint32]:
    """Words of a two-dimensional array given by coordinates, without a dense array; codes at repeated coordinates are OR-ed.

    Parameters
    ----------
    rows, cols : ndarray of int64, shape (nnz,)
    values : ndarray of bool or integer, shape (nnz,)
        Codes are the low `bits` bits in two's complement.
    shape, bits, axis, layout
        Properties of the result.

    Returns
    -------
    ndarray of uint32
    """
    outer, inner = (rows, cols) if axis == -1 else (cols, rows)
    outer_length, inner_length = shape[-3 - axis], shape[axis]
    width = packed_words(inner_length, bits, layout)
    planes = bits if layout == "planes" else 1
    words = np.zeros(outer_length * planes * width, dtype=np.uint32)
    codes = values.astype(np.uint64) & np.uint64((1 << bits) - 1)
    if layout == "rows":
        place = inner * bits
        np.bitwise_or.at(
            words, outer * width + (place >> 5), (codes << (place & 31).astype(np.uint64)).astype(np.uint32)
        )
        return words.reshape(outer_length, width)
    base = outer * (planes * width) + (inner >> 5)
    bit = np.left_shift(np.uint32(1), (inner & 31).astype(np.uint32))
    for plane in range(bits):
        chosen = np.flatnonzero(codes >> np.uint64(plane) & np.uint64(1))
        np.bitwise_or.at(words, base[chosen] + plane * width, bit[chosen])
    return words.reshape(outer_length, planes, width)


def _pattern(indptr: Index, indices: Index) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bool]:
    """The bytes of index arrays, which must share one dtype, and whether that dtype is int64."""
    check_indices(indptr, indices)
    return as_bytes(indptr), as_bytes(indices), indptr.dtype == np.int64


def _of(array: Array, dtype: Any, name: str) -> Array:
    if array.dtype != dtype:
        raise ValueError(f"{name} has dtype {array.dtype}, but {np.dtype(dtype)} is needed; convert it with astype")
    return array


def validate_csr(indptr: Index, indices: Index, shape: tuple[int, int]) -> str:
    """Check a CSR pattern about which nothing is known, and tell whether it is canonical.

    Parameters
    ----------
    indptr : ndarray of int32 or int64, shape (m + 1,)
    indices : ndarray of the same dtype, shape (nnz,)
    shape : tuple of int
        (m, n).

    Returns
    -------
    str
        ``"canonical"``: columns ascend strictly in each row; ``"duplicates"``: they ascend, but some repeat; ``"unsorted"``.

    Raises
    ------
    ValueError
        If indptr does not start at 0, decreases, overflows or has the wrong length, or if an index is negative or too large.
    """
    code, _ = _ext.check_csr(*_pattern(indptr, indices), *shape, run_on())
    return {_ext.OK: "canonical", _ext.DUPLICATE: "duplicates", _ext.UNSORTED: "unsorted"}[code]


def transpose_csr(indptr: Index, indices: Index, shape: tuple[int, int]) -> tuple[Index, Index, Index]:
    """The transpose ``(indptr_T, indices_T, order)`` of a canonical pattern; its entry k is entry ``order[k]`` of the pattern.

    If the pattern is its own transpose, `indptr` and `indices` themselves are returned.

    Examples
    --------
    >>> transpose_csr(np.array([0, 2, 2]), np.array([0, 2]), (2, 3))
    (array([0, 1, 1, 2]), array([0, 0]), array([0, 1]))
    """
    starts, rows, order, _, same = _ext.transpose(*_pattern(indptr, indices), *shape, get_num_threads())
    assert order is not None
    return (indptr, indices, order) if same else (starts, rows, order)


def transpose_both(
    indptr: Index, indices: Index, values: Array | None, shape: tuple[int, int]
) -> tuple[Index, Index, None, Array | None]:
    """The transpose ``(indptr_T, indices_T, None, values_T)`` of a canonical pattern and of its values (one per entry, first axis).

    If the pattern is its own transpose, `indptr` and `indices` themselves are returned. Only the GPU backend returns the order of entries
    instead of None.

    Examples
    --------
    >>> transpose_both(np.array([0, 2, 2]), np.array([0, 2]), np.array([5, 6]), (2, 3))
    (array([0, 1, 1, 2]), array([0, 0]), None, array([5, 6]))
    """
    data, item = items_of(values)
    starts, rows, order, moved, same = _ext.transpose(*_pattern(indptr, indices), *shape, get_num_threads(), data, item)
    turned = None
    if values is not None and order is not None:
        turned = gather(values, order)
    elif values is not None and moved is not None:
        turned = moved.view(values.dtype).reshape(values.shape)
    return (*((indptr, indices) if same else (starts, rows)), None, turned)


def tile_starts(indptr: Index, indices: Index, shape: tuple[int, int], window: int, width: int) -> Index:
    """Where the non-empty tiles of each window start, if tiles are numbered window by window.

    Parameters
    ----------
    indptr, indices, shape
        A canonical CSR pattern.
    window, width : int
        Rows and columns of a tile. Tiles start at multiples of them, and `width` is a power of two.
    """
    shift = width.bit_length() - 1
    if width < 1 or width != 1 << shift:
        raise ValueError(f"tile_starts: width is {width}, but a power of two is needed")
    return _ext.tile_starts(*_pattern(indptr, indices), *shape, window, shift, SPREAD, run_on())


def translate(
    indptr: Index, indices: Index, shape: tuple[int, int], window: int, *, checked: bool = False
) -> tuple[Index, Index, Array]:
    """Sparse graph translation (TC-GNN section 4.1, Algorithm 1) of a canonical CSR pattern.

    `checked` says that the caller knows that the pattern is canonical. This backend ignores it and checks anyway.

    Returns
    -------
    cols_indptr, cols, edge_col : ndarray
        As :class:`bitsparse.TCTiledCSR` defines them.
    """
    return _ext.translate(*_pattern(indptr, indices), *shape, window, SPREAD, run_on())


def frdc(indptr: Index, indices: Index, shape: tuple[int, int]) -> tuple[Index, Index, NDArray[np.uint16]]:
    """4 x 4 bit blocks (BitGNN section 3.2) of a canonical CSR pattern: ``(indptr, indices, tiles)``."""
    return _ext.frdc(*_pattern(indptr, indices), *shape, SPREAD, run_on())


def frdc_to_csr(
    indptr: Index, indices: Index, tiles: NDArray[np.uint16], shape: tuple[int, int]
) -> tuple[Index, Index]:
    """The canonical CSR pattern ``(indptr, indices)`` of the set bits.

    Raises
    ------
    ValueError
        If :func:`frdc` returns these arrays for no pattern of this shape.
    """
    _of(tiles, np.uint16, "tiles")
    starts, columns, wide = _pattern(indptr, indices)
    return _ext.unfrdc(starts, columns, as_bytes(tiles), wide, *shape, get_num_threads())


def csr_to_words(indptr: Index, indices: Index, shape: tuple[int, int]) -> NDArray[np.uint32]:
    """Words ``(m, 1, W)`` of a 1-bit BitTensor in planes, packed along the columns, from a canonical CSR pattern."""
    width = packed_words(shape[1], 1, "planes")
    words = _ext.csr_to_words(*_pattern(indptr, indices), *shape, width, get_num_threads())
    return words[:, None, :]


def words_to_csr(words: NDArray[np.uint32], shape: tuple[int, int], dtype: Any) -> tuple[Index, Index]:
    """The canonical CSR pattern of the set bits of 1-bit words that are packed along the columns.

    Parameters
    ----------
    words : ndarray of uint32, shape (m, 1, W) or (m, W)
    shape : tuple of int
        (m, n).
    dtype : dtype
        Index dtype of the result, int32 or int64.
    """
    wide = np.dtype(dtype) == np.int64
    width = packed_words(shape[1], 1, "planes")
    return _ext.words_to_csr(as_bytes(_of(words, np.uint32, "words")), wide, *shape, width, get_num_threads())

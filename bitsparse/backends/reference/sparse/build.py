"""The reference backend's builders of sparse formats, which use no optimisations."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import Array, position_dtype
from bitsparse.backends.reference.bits import pack as reference_bits


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
    """Pack the dense array in which codes of equal positions are OR-ed; see the host backend."""
    dense = np.zeros(shape, dtype=np.int64)
    for row, col, value in zip(rows.tolist(), cols.tolist(), values.tolist(), strict=True):
        dense[row, col] |= int(value) & ((1 << bits) - 1)
    return reference_bits.pack(dense, bits, axis=axis, layout=layout, encoding="unsigned")


# -- sparse formats: every entry is a row and a column -------------------------------------------------------------------
def _entries(indptr: Array, indices: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.repeat(np.arange(indptr.size - 1), indptr[1:] - indptr[:-1]), indices.astype(np.int64)


def _starts(rows: Array, count: int, dtype: Any) -> Array:
    """The start of each of `count` rows among entries sorted by row, and the end of the last one."""
    return np.searchsorted(rows, np.arange(count + 1)).astype(dtype)


def validate_csr(indptr: Array, indices: Array, shape: tuple[int, int]) -> str:
    """See the host backend."""
    starts, columns = indptr.tolist(), indices.tolist()
    if len(starts) != shape[0] + 1 or starts[0] != 0 or starts[-1] != len(columns):
        raise ValueError(f"indptr of {len(starts)} entries does not fit shape {shape} and {len(columns)} indices")
    if any(later < earlier for earlier, later in pairwise(starts)):
        raise ValueError("indptr falls")
    if any(not 0 <= col < shape[1] for col in columns):
        raise ValueError(f"an index is outside 0..{shape[1] - 1}")
    rows = [columns[start:stop] for start, stop in pairwise(starts)]
    if any(row != sorted(row) for row in rows):
        return "unsorted"
    return "duplicates" if any(len(set(row)) < len(row) for row in rows) else "canonical"


def transpose_csr(indptr: Array, indices: Array, shape: tuple[int, int]) -> tuple[Array, Array, Array]:
    """Entries sorted by column and row; see the host backend."""
    rows, cols = _entries(indptr, indices)
    order = np.lexsort((rows, cols)).astype(indptr.dtype)
    return _starts(cols[order], shape[1], indptr.dtype), rows[order].astype(indptr.dtype), order


def transpose_both(
    indptr: Array, indices: Array, values: Array | None, shape: tuple[int, int]
) -> tuple[Array, Array, None, Array | None]:
    """The transposed pattern, and the values in its order; see the host backend."""
    starts, rows, order = transpose_csr(indptr, indices, shape)
    return starts, rows, None, None if values is None else values[order]


def _cells(
    indptr: Array, indices: Array, shape: tuple[int, int], height: int, width: int
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """The cells that have entries: the start of each window's cells, the cells' columns, and the cell of each entry."""
    (rows, cols), across = _entries(indptr, indices), max(1, -(-shape[1] // width))
    keys, of = np.unique(rows // height * across + cols // width, return_inverse=True)
    return _starts(keys // across, -(-shape[0] // height), indptr.dtype), keys % across, of


def tile_starts(indptr: Array, indices: Array, shape: tuple[int, int], window: int, width: int) -> Array:
    """See the host backend."""
    return _cells(indptr, indices, shape, window, width)[0]


def translate(
    indptr: Array, indices: Array, shape: tuple[int, int], window: int, *, checked: bool = False
) -> tuple[Array, ...]:
    """TC-GNN Algorithm 1: sort and deduplicate the columns of each window, then look up the position of each entry."""
    starts, cols, of = _cells(indptr, indices, shape, window, 1)
    most = (starts[1:] - starts[:-1]).max(initial=0)
    positions = of - starts[_entries(indptr, indices)[0] // window]
    return starts, cols.astype(indptr.dtype), positions.astype(position_dtype(int(most)))


def frdc(indptr: Array, indices: Array, shape: tuple[int, int]) -> tuple[Array, ...]:
    """OR the bit of each entry into its 4 x 4 block; see the host backend."""
    (rows, cols), (starts, blocks, of) = _entries(indptr, indices), _cells(indptr, indices, shape, 4, 4)
    tiles = np.zeros(blocks.size, np.uint16)
    np.bitwise_or.at(tiles, of, (1 << (4 * (rows % 4) + cols % 4)).astype(np.uint16))
    return starts, blocks.astype(indptr.dtype), tiles


def frdc_to_csr(
    indptr: Array, indices: Array, tiles: NDArray[np.uint16], shape: tuple[int, int]
) -> tuple[Array, Array]:
    """The entries that the tiles' bits stand for; raises ValueError unless the blocks are canonical and every tile is valid."""
    if (
        validate_csr(indptr, indices, (-(-shape[0] // 4), -(-shape[1] // 4))) != "canonical"
        or tiles.size != indices.size
    ):
        raise ValueError("block columns do not ascend, or there is not one tile for each")
    rows, cols = _entries(indptr, indices)
    tile, bit = np.nonzero(tiles[:, None] >> np.arange(16, dtype=np.uint16) & np.uint16(1))
    rows, cols = 4 * rows[tile] + bit // 4, 4 * cols[tile] + bit % 4
    if (rows >= shape[0]).any() or (cols >= shape[1]).any() or not tiles.all():
        raise ValueError("a tile is empty or has bits beyond the shape")
    order = np.lexsort((cols, rows))
    return _starts(rows[order], shape[0], indptr.dtype), cols[order].astype(indptr.dtype)


def csr_to_words(indptr: Array, indices: Array, shape: tuple[int, int]) -> NDArray[np.uint32]:
    """Packed rows of bits, by way of a dense array; see the host backend."""
    dense = np.zeros(shape, np.int64)
    dense[_entries(indptr, indices)] = 1
    return reference_bits.pack(dense, 1, axis=-1, layout="planes", encoding="unsigned")


def words_to_csr(words: NDArray[np.uint32], shape: tuple[int, int], dtype: Any) -> tuple[Array, Array]:
    """The pattern of the bits that are set; see the host backend."""
    rows, cols = np.nonzero(
        reference_bits.words_to_codes(words.reshape(shape[0], words.shape[-1]), 32 * words.shape[-1], 1, "rows")
    )
    if (cols >= shape[1]).any():
        raise ValueError("padding bits are set")
    return _starts(rows, shape[0], dtype), cols.astype(dtype)

"""Builders of the reference backend: one element at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import Array, packed_words
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
    """The dense array of or-ed codes, packed; see the host backend."""
    dense = np.zeros(shape, dtype=np.int64)
    for row, col, value in zip(rows.tolist(), cols.tolist(), values.tolist(), strict=True):
        dense[row, col] |= int(value) & ((1 << bits) - 1)
    return reference_bits.pack(dense, bits, axis=axis, layout=layout, encoding="unsigned")


# -- sparse formats: every entry as a (row, column) pair of Python integers ---------------------------------------------
def _entries(indptr: Array, indices: Array) -> list[tuple[int, int]]:
    starts = indptr.tolist()
    columns = indices.tolist()
    return [(row, col) for row in range(len(starts) - 1) for col in columns[starts[row] : starts[row + 1]]]


def _pattern(entries: list[tuple[int, int]], rows: int, dtype: Any) -> tuple[Array, Array]:
    """CSR of sorted entries."""
    indptr = np.zeros(rows + 1, dtype)
    for row, _ in entries:
        indptr[row + 1 :] += 1
    return indptr, np.array([col for _, col in entries], dtype)


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
    entries = _entries(indptr, indices)
    order = sorted(range(len(entries)), key=lambda at: entries[at][::-1])
    starts, rows = _pattern([entries[at][::-1] for at in order], shape[1], indptr.dtype)
    return starts, rows, np.array(order, indptr.dtype)


def transpose_entries(
    indptr: Array, indices: Array, values: Array | None, shape: tuple[int, int]
) -> tuple[Array, Array, Array | None]:
    """The transposed pattern, and the values in its order; see the host backend."""
    starts, rows, order = transpose_csr(indptr, indices, shape)
    return starts, rows, None if values is None else values[order]


def tile_starts(indptr: Array, indices: Array, shape: tuple[int, int], window: int, width: int) -> Array:
    """A set of tile coordinates; see the host backend."""
    tiles = {(row // window, col // width) for row, col in _entries(indptr, indices)}
    counts = [sum(at == w for at, _ in tiles) for w in range(-(-shape[0] // window))]
    return np.cumsum([0, *counts]).astype(indptr.dtype)


def translate(
    indptr: Array, indices: Array, shape: tuple[int, int], window: int, *, checked: bool = False
) -> tuple[Array, ...]:
    """TC-GNN Algorithm 1, window by window: sort, deduplicate, look up."""
    cols: list[int] = []
    positions: list[int] = []
    cols_indptr = [0]
    entries = _entries(indptr, indices)
    for first in range(0, shape[0], window):
        inside = [col for row, col in entries if first <= row < first + window]
        unique = sorted(set(inside))
        positions += [unique.index(col) for col in inside]
        cols += unique
        cols_indptr.append(len(cols))
    most = max([end - start for start, end in pairwise(cols_indptr)], default=0)
    edge_col = np.array(positions, np.uint8 if most <= 256 else np.uint16 if most <= 65536 else np.int32)
    return np.array(cols_indptr, indptr.dtype), np.array(cols, indptr.dtype), edge_col


def frdc(indptr: Array, indices: Array, shape: tuple[int, int]) -> tuple[Array, ...]:
    """A dictionary from block coordinates to the bits of the block."""
    blocks: dict[tuple[int, int], int] = {}
    for row, col in _entries(indptr, indices):
        key = (row // 4, col // 4)
        blocks[key] = blocks.get(key, 0) | 1 << (4 * (row % 4) + col % 4)
    order = sorted(blocks)
    starts, block_indices = _pattern(order, -(-shape[0] // 4), indptr.dtype)
    return starts, block_indices, np.array([blocks[key] for key in order], np.uint16)


def frdc_to_csr(
    indptr: Array, indices: Array, tiles: NDArray[np.uint16], shape: tuple[int, int]
) -> tuple[Array, Array]:
    """Read the bits, and accept them only if their blocks are the same arrays."""
    block_shape = (-(-shape[0] // 4), -(-shape[1] // 4))
    if validate_csr(indptr, indices, block_shape) != "canonical" or len(tiles) != len(indices):
        raise ValueError("block columns do not ascend, or there is not one tile for each")
    entries = []
    for (block_row, block_col), tile in zip(_entries(indptr, indices), tiles.tolist(), strict=True):
        entries += [(4 * block_row + bit // 4, 4 * block_col + bit % 4) for bit in range(16) if tile >> bit & 1]
    entries.sort()
    if any(row >= shape[0] or col >= shape[1] for row, col in entries) or 0 in tiles.tolist():
        raise ValueError("a tile is empty or has bits beyond the shape")
    return _pattern(entries, shape[0], indptr.dtype)


def csr_to_words(indptr: Array, indices: Array, shape: tuple[int, int]) -> NDArray[np.uint32]:
    """Through a dense array; see the host backend."""
    dense = np.zeros(shape, np.int64)
    for row, col in _entries(indptr, indices):
        dense[row, col] = 1
    return reference_bits.pack(dense, 1, axis=-1, layout="planes", encoding="unsigned")


def words_to_csr(words: NDArray[np.uint32], shape: tuple[int, int], dtype: Any) -> tuple[Array, Array]:
    """Bit by bit; see the host backend."""
    width = packed_words(shape[1], 1, "planes")
    rows = words.reshape(shape[0], width).tolist()
    entries = [(r, c) for r, row in enumerate(rows) for c in range(32 * width) if row[c // 32] >> (c % 32) & 1]
    if any(col >= shape[1] for _, col in entries):
        raise ValueError("padding bits are set")
    return _pattern(entries, shape[0], dtype)

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
#: Arrays of int32 or int64, as the call says.
Index = NDArray[Any]

OK: int
UNSORTED: int
DUPLICATE: int
SPREAD: int
WINDOW_MAX: int

def check_csr(
    indptr: Bytes, indices: Bytes, wide: bool, rows: int, cols: int, on: tuple[int, int]
) -> tuple[int, int]: ...
def transpose(
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    rows: int,
    cols: int,
    threads: int,
    values: Bytes | None = None,
    item: int | None = None,
) -> tuple[Index, Index, Index | None, Bytes | None, bool]: ...
def tile_starts(
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    rows: int,
    cols: int,
    window: int,
    shift: int,
    spread: int,
    on: tuple[int, int],
) -> Index: ...
def translate(
    indptr: Bytes, indices: Bytes, wide: bool, rows: int, cols: int, window: int, spread: int, on: tuple[int, int]
) -> tuple[Index, Index, NDArray[Any]]: ...
def frdc(
    indptr: Bytes, indices: Bytes, wide: bool, rows: int, cols: int, spread: int, on: tuple[int, int]
) -> tuple[Index, Index, NDArray[np.uint16]]: ...
def unfrdc(
    block_indptr: Bytes, blocks: Bytes, tiles: Bytes, wide: bool, rows: int, cols: int, threads: int
) -> tuple[Index, Index]: ...
def csr_to_words(
    indptr: Bytes, indices: Bytes, wide: bool, rows: int, cols: int, width: int, threads: int
) -> NDArray[np.uint32]: ...
def words_to_csr(words: Bytes, wide: bool, rows: int, cols: int, width: int, threads: int) -> tuple[Index, Index]: ...

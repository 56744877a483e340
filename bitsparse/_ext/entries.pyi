from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
#: Arrays of int32 or int64, as the call says.
Index = NDArray[Any]

def gather(values: Bytes, item: int, order: Bytes, wide: bool, threads: int) -> Bytes: ...
def keep(
    indptr: Bytes, indices: Bytes, wide: bool, mask: Bytes, values: Bytes | None, item: int, threads: int
) -> tuple[Index, Index, Bytes | None]: ...
def take_rows(
    indptr: Bytes, indices: Bytes, wide: bool, rows: Bytes, values: Bytes | None, item: int, threads: int
) -> tuple[Index, Index, Bytes | None]: ...
def take_columns(
    indptr: Bytes, indices: Bytes, wide: bool, low: int, high: int, values: Bytes | None, item: int, threads: int
) -> tuple[Index, Index, Bytes | None]: ...
def find(indptr: Bytes, indices: Bytes, wide: bool, rows: Bytes, cols: Bytes, threads: int) -> NDArray[np.int64]: ...
def diagonal(
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    row: int,
    column: int,
    count: int,
    values: Bytes | None,
    item: int,
    threads: int,
) -> Bytes: ...
def merge(
    indptr: Bytes,
    indices: Bytes,
    values: Bytes,
    other_indptr: Bytes,
    other_indices: Bytes,
    other_values: Bytes,
    wide: bool,
    cols: int,
    dtype: int,
    item: int,
    subtract: bool,
    threads: int,
) -> tuple[Index, Index, Bytes, int]: ...
def product(
    indptr: Bytes, indices: Bytes, other_indptr: Bytes, other_indices: Bytes, wide: bool, cols: int, threads: int
) -> tuple[Index, Index]: ...
def row_sums(indptr: Bytes, wide: bool, values: Bytes, dtype: int, item: int, threads: int) -> Bytes: ...

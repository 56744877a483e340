import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
#: An array, or its address.
Place = NDArray[np.generic] | int
#: SIMD level and threads.
RunOn = tuple[int, int]

SEGMENT: int

def longest_row(indptr: Bytes, wide: bool, rows: int, nnz: int) -> int: ...
def spmm(
    on: RunOn,
    indptr: Bytes,
    indices: Bytes | None,
    wide: bool,
    shape: tuple[int, ...],
    nnz: int,
    load: int,
    reduce: int,
    x: Bytes,
    layout: tuple[int, int, int, int, int],
    bits: int,
    encoding: int,
    values: Bytes | None,
    value_heads: int,
    row_scale: Bytes | None,
    col_scale: Bytes | None,
    affine: int,
    scale: Bytes | None,
    offset: Bytes | None,
    out: Bytes,
    slice_blocks: int,
) -> None: ...

class Sums:
    def __init__(
        self,
        indptr: Bytes,
        indices: Bytes | None,
        wide: bool,
        shape: tuple[int, ...],
        nnz: int,
        load: int,
        reduce: int,
        layout: tuple[int, int, int, int, int],
        value_heads: int,
        row_scale: Bytes | None,
        col_scale: Bytes | None,
    ) -> None: ...
    def __call__(self, on: RunOn, x: Place, values: Place | None, out: Place) -> None: ...

def attention(
    on: RunOn,
    indptr: Bytes,
    indices: Bytes | None,
    wide: bool,
    shape: tuple[int, ...],
    nnz: int,
    load: int,
    x: Bytes,
    layout: tuple[int, int, int, int, int],
    ends: Bytes,
    target: Bytes,
    slope: float,
    dropout: tuple[int, float, int] | None,
    turned: bool,
    out: Bytes,
    lse: Bytes | None,
    share: Bytes | None,
    above: Bytes | None,
    slice_blocks: int,
) -> None: ...

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
#: SIMD level and threads.
RunOn = tuple[int, int]

def sddmm(
    on: RunOn,
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    shape: tuple[int, ...],
    nnz: int,
    dtype: int,
    op: int,
    x: Bytes,
    y: Bytes,
    heads: int,
    width: int,
    out: Bytes,
) -> None: ...
def leaky_dots(
    on: RunOn,
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    shape: tuple[int, ...],
    nnz: int,
    double_precision: bool,
    x: Bytes,
    y: Bytes,
    heads: int,
    width: int,
    weights: Bytes,
    slope: float,
    out: Bytes,
) -> None: ...
def steep_sums(
    on: RunOn,
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    shape: tuple[int, ...],
    nnz: int,
    double_precision: bool,
    x: Bytes,
    y: Bytes,
    heads: int,
    width: int,
    weights: Bytes,
    slope: float,
    out: Bytes,
) -> None: ...
def edge_softmax(
    on: RunOn,
    indptr: Bytes,
    wide: bool,
    rows: int,
    nnz: int,
    double_precision: bool,
    scores: Bytes,
    heads: int,
    out: Bytes,
) -> None: ...

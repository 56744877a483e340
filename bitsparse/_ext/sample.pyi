import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
#: SIMD level and threads.
RunOn = tuple[int, int]

def counts(
    on: RunOn, indptr: Bytes, wide: bool, rows: int, nnz: int, sampler: tuple[int, int, int, int], out: Bytes
) -> None: ...
def edges(
    on: RunOn,
    indptr: Bytes,
    wide: bool,
    rows: int,
    nnz: int,
    sampler: tuple[int, int, int, int],
    starts: Bytes,
    out: Bytes,
) -> None: ...
def gather(
    on: RunOn,
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    rows: int,
    cols: int,
    sampler: tuple[int, int, int, int],
    kind: int,
    x: Bytes,
    features: int,
    bits: int,
    encoding: int,
    scale: Bytes,
    scale_strides: tuple[int, ...],
    offset: Bytes,
    offset_strides: tuple[int, ...],
    values: Bytes,
    col_scale: Bytes,
    row_scale: Bytes,
    rescale: bool,
    mean: bool,
    out: Bytes,
) -> None: ...

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
#: SIMD level and threads.
RunOn = tuple[int, int]

def count(
    on: RunOn,
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    rows: int,
    cols: int,
    words: Bytes,
    features: int,
    bipolar: bool,
    kernel: int,
    counts: Bytes,
) -> None: ...
def sign(
    on: RunOn,
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    rows: int,
    cols: int,
    words: Bytes,
    features: int,
    bipolar: bool,
    mask: Bytes,
    uniform: tuple[int, bool] | None,
    thresholds: Bytes,
    flips: Bytes,
    class_of: Bytes,
    planes: int,
    classes: int,
    base: int,
    bits: Bytes,
) -> None: ...

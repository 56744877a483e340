import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]
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
    uniform: int,
    thresholds: Bytes,
    flips: Bytes,
    class_of: Bytes,
    planes: int,
    classes: Int32s,
    base: int,
    bits: Bytes,
) -> None: ...

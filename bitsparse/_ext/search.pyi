import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
#: SIMD level and threads.
RunOn = tuple[int, int]

def ones(on: RunOn, words: Bytes, n: int, width: int, out: Bytes) -> None: ...
def nearest(
    on: RunOn,
    queries: Bytes,
    database: Bytes,
    ones: Bytes,
    sizes: tuple[int, int, int],
    k: int,
    jaccard: bool,
    keys: Bytes,
    rows: Bytes,
) -> None: ...
def pairs(
    on: RunOn,
    a: Bytes,
    a_ones: Bytes,
    b: Bytes,
    b_ones: Bytes,
    sizes: tuple[int, int, int],
    test: tuple[int, int, int],
    triangle: bool,
    most: int,
) -> bytearray | None: ...
def jaccard_distances(keys: Bytes, n: int, out: Bytes) -> None: ...

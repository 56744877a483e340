import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
#: SIMD level and threads.
RunOn = tuple[int, int]

CHUNK_ROWS: int
HEAD_WORDS: int
CHUNK_WORDS: int

def sizes(
    on: RunOn,
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    order: Int32s,
    place: Int32s,
    blocks: Int64s,
    chunks: Int64s,
    loops: bool,
    out: Int64s,
) -> None: ...
def encode(
    on: RunOn,
    indptr: Bytes,
    indices: Bytes,
    wide: bool,
    order: Int32s,
    place: Int32s,
    blocks: Int64s,
    chunks: Int64s,
    loops: bool,
    known: Int64s,
    starts: Int64s,
    stream: Bytes,
) -> None: ...
def expand(on: RunOn, packet: Bytes, indptr: Int32s, indices: Int32s) -> None: ...
def copy_runs(on: RunOn, to: Bytes, to_stride: int, source: Bytes, from_stride: int, used: int, count: int) -> None: ...

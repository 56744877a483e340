import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]
#: SIMD level and threads.
RunOn = tuple[int, int]
#: Bytes of a vector or array and its strides along batch, rows and columns.
Operand = tuple[Bytes, tuple[int, int, int]]
#: Operands, activation, slope, whether bits are signs, quantiser, seed, stream, bits, axis, layout.
Chain = tuple[tuple[Operand | None, ...], int, float, bool, tuple[float, int, int, int], int, int, int, int, int]
#: Panels or None, columns, chain of one row, and which vectors stand for the rows.
Layer = tuple[Bytes | None, int, Chain, tuple[int, int, int]]

LONGEST: int
PIECE_ROWS: int

def bytes_step(
    on: RunOn,
    x: Bytes,
    stride: int,
    dims: tuple[int, int, int],
    panels: Bytes | None,
    indptr: Int32s | None,
    indices: Int32s | None,
    result: int,
    chain: Chain,
    out: Bytes,
) -> bool: ...
def sparse_step(
    on: RunOn,
    lines: Int32s,
    dims: tuple[int, int, int],
    indptr: Int32s,
    indices: Int32s,
    values: Bytes | None,
    result: int,
    chain: Chain,
    out: Bytes,
) -> bool: ...
def network(
    on: RunOn,
    packet: Bytes,
    normalisation: int,
    features: tuple[int, int, bool, int],
    layers: tuple[Layer, ...],
    places: Int32s,
    out: Bytes,
) -> bool: ...

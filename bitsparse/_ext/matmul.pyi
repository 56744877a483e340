from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
#: SIMD level and threads.
RunOn = tuple[int, int]
#: Bytes of a vector or array and its strides along batch, rows and columns.
Operand = tuple[Bytes, tuple[int, int, int]]
#: Operands, activation, slope, whether bits are signs, quantiser, seed, stream, bits, axis, layout.
Chain = tuple[tuple[Operand | None, ...], int, float, bool, tuple[float, int, int, int], int, int, int, int, int]

PLANES: int
DIGITS: int
BYTES: int

class Product:
    def __init__(
        self,
        kernel: int,
        a: Bytes,
        bitmap: Bytes | None,
        a_index: Int64s,
        b_index: Int64s,
        batches: tuple[int, int, int],
        dims: tuple[int, int, int],
        bits: tuple[int, int],
        encodings: tuple[int, int],
        narrow: bool,
    ) -> None: ...
    def __call__(self, on: RunOn, b: NDArray[Any], out: NDArray[Any]) -> None: ...
    def through(self, on: RunOn, b: NDArray[Any], result: int, chain: Chain, out: Bytes) -> bool: ...

def epilogue(
    on: RunOn, acc: Bytes, dtype: int, shape: tuple[int, ...], result: int, chain: Chain | None, out: Bytes
) -> bool: ...

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
#: SIMD level and threads.
RunOn = tuple[int, int]

def levels() -> tuple[int, ...]: ...
def has_openmp() -> bool: ...
def pool() -> int: ...
def default_threads() -> int: ...
def pack(
    on: RunOn,
    values: Bytes,
    dtype: int,
    how: int,
    shape: tuple[int, ...],
    bits: int,
    axis: int,
    layout: int,
    words: Bytes,
) -> bool: ...
def quantize(
    on: RunOn,
    x: Bytes,
    dtype: int,
    wide: bool,
    shape: tuple[int, ...],
    offset: Bytes,
    offset_strides: tuple[int, ...],
    divisor: Bytes,
    divisor_strides: tuple[int, ...],
    multiplier: float,
    qmin: int,
    qmax: int,
    rounding: int,
    seed: int,
    stream: int,
    first_index: int,
    bits: int,
    axis: int,
    layout: int,
    words: Bytes,
) -> bool: ...
def unpack(
    on: RunOn,
    words: Bytes,
    shape: tuple[int, ...],
    bits: int,
    axis: int,
    layout: int,
    encoding: int,
    dtype: int,
    values: Bytes,
) -> None: ...
def dequantize(
    on: RunOn,
    words: Bytes,
    shape: tuple[int, ...],
    bits: int,
    axis: int,
    layout: int,
    encoding: int,
    scale: Bytes,
    scale_strides: tuple[int, ...],
    offset: Bytes,
    offset_strides: tuple[int, ...],
    dtype: int,
    values: Bytes,
) -> None: ...
def repack(
    on: RunOn,
    words: Bytes,
    shape: tuple[int, ...],
    bits: int,
    axis: int,
    layout: int,
    to_axis: int,
    to_layout: int,
    out: Bytes,
) -> None: ...
def stochastic_round(on: RunOn, x: Bytes, dtype: int, seed: int, stream: int, out: Bytes) -> None: ...
def calibrate(
    on: RunOn, x: Bytes, dtype: int, shape: tuple[int, ...], granularity: int, lo: Bytes, hi: Bytes
) -> bool: ...
def tile_bitmap(on: RunOn, words: Bytes, batch: int, outer: int, bits: int, width: int, bitmap: Bytes) -> None: ...
def count_nonzero(on: RunOn, words: Bytes, lines: int, bits: int, layout: int, width: int) -> int: ...
def code_sums(
    on: RunOn, words: Bytes, lines: int, bits: int, encoding: int, k: int, width: int, sums: Bytes
) -> None: ...
def pad_is_zero(words: Bytes, planes: int, used_bits: int, width: int) -> bool: ...
def content_sum(on: RunOn, x: Bytes) -> int: ...

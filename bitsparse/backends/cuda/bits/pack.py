"""Packing, quantisation and their inverses on the GPU, with the host's results bit for bit; also re-exports the family's reductions.

Every function enqueues on the current stream. With ``out`` and without ``check``, nothing is allocated or waited for, so a call can be
captured in a CUDA graph. bfloat16 arrays have the dtype ``ml_dtypes.bfloat16``.
"""

from __future__ import annotations

import ctypes
from typing import Any, Unpack

import numpy as np
from numpy.typing import DTypeLike

from bitsparse import _check, jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.bits.rows import OCTET_BLOCKS, OCTET_THREADS, EncodeParams, round_keys
from bitsparse.backends.cuda.bits.stats import calibrate as calibrate
from bitsparse.backends.cuda.bits.stats import content_sum as content_sum
from bitsparse.backends.cuda.bits.stats import minmax as minmax
from bitsparse.backends.cuda.bits.stats import relative_error as relative_error
from bitsparse.backends.cuda.bits.stats import stochastic_round as stochastic_round
from bitsparse.backends.cuda.bits.words import code_sums as code_sums
from bitsparse.backends.cuda.bits.words import count_nonzero as count_nonzero
from bitsparse.backends.cuda.bits.words import pad_is_zero as pad_is_zero
from bitsparse.backends.cuda.bits.words import repack as repack
from bitsparse.backends.cuda.bits.words import tile_bitmap as tile_bitmap
from bitsparse.backends.cuda.geometry import DOUBLE, FLOAT, GROUP, HALF, Source
from bitsparse.backends.params import ROUNDINGS, Packing, Quantisation, Sides, words_shape
from bitsparse.errors import KernelError
from bitsparse.jit import cupy

_STOCHASTIC = 2
_WARPS, _CHUNKS = 4, 8
#: Bytes of random draws that a warp keeps in shared memory, along and across the lanes.
_ROW_DRAWS, _COLUMN_DRAWS = 8 * 17 * 16, 32 * 5 * 16
#: The most bits of codes that may use ``bits/quick.cu``, and the error of its rounding points in multiples of 2**-16.
_POINT_BITS, _POINT_ERROR = 4, 2
#: Codes of up to this many bits are rounded by adding 1.5 * 2**23.
_QUICK_BITS = 22


OctetParams = jit.struct("bits/octets.cu", "OctetParams")
DecodeParams = jit.struct("bits/decode.cu", "DecodeParams")


def _set(params: ctypes.Structure, name: str, triple: tuple[int, int, int]) -> None:
    for part, value in zip(("batch", "row", "col"), triple, strict=True):
        setattr(params, f"{name}_{part}", value)


def _set_operand(
    params: ctypes.Structure, name: str, vector: Any, shape: tuple[int, ...], dtype: Any, view: Source | None = None
) -> Any:
    """Describe a vector that broadcasts over an array of `shape`, or over a view of it; returns what must live until the launch."""
    found = geometry.operand(vector, shape, dtype)
    jit.filled(params, **{name: found.address, f"{name}_value": found.value})
    _set(params, name, found.strides if view is None else view.turn(found.strides))
    return found.keep


def _is_large(*counts: int) -> bool:
    """Whether kernels need 64-bit indices because some count, or some stride times its count, does not fit 30 bits."""
    return any(abs(count) >> 30 for count in counts)


def _blocks(rows: bool, batches: int, height: int, width: int) -> int:
    """The number of blocks for an array of `batches`, `height` rows and `width` columns; `rows` selects the kernels along rows."""
    if rows:
        chunks = batches * height * -(-width // GROUP)
        return min(geometry.MAX_BLOCKS, -(-chunks // (_WARPS * _CHUNKS)))
    return min(geometry.MAX_BLOCKS, batches * -(-height // GROUP) * -(-width // 32))


def _stage_bytes(bits: int) -> int:
    """Shared memory of a block that collects pieces of 32 columns; an odd number of pieces per column avoids bank conflicts."""
    return 512 * (bits | 1)


def _encode(
    found: Source,
    params: ctypes.Structure,
    words: Any,
    bits: int,
    axis: int,
    layout: str,
    looks: bool,
    factors: Any = None,
    sides: Sides | None = None,
    **kind: int,
) -> bool:
    """Write the words; with `looks`, wait and return whether an element (NaN or infinity) cannot be encoded."""
    flag = cupy.zeros((), np.int32) if looks else None
    params.flag = None if flag is None else flag.data.ptr
    params.words, params.bits = words.data.ptr, bits
    params.batches, params.rows, params.cols = found.batches, found.rows, found.cols
    params.x, params.vector, params.width = found.array.data.ptr, found.vector, words.shape[-1]
    params.fields = int(layout == "rows" and bits > 1)
    params.infinity = geometry.infinity_of(found.array.dtype)
    _set(params, "x", found.strides)
    rows = (axis == -1) != found.turned
    draws = 0 if params.rounding != _STOCHASTIC else _WARPS * (_ROW_DRAWS if rows else _COLUMN_DRAWS)
    counts = (found.batches, found.rows, found.cols)
    steps = sum(abs(step) * count for step, count in zip(found.strides, counts, strict=True))
    if _is_large(steps, GROUP * found.batches * found.rows * -(-found.cols // GROUP), words.size):
        kind["BS_LARGE"] = 1
    way, may_be_quick = "rows" if rows else "columns", kind.get("BS_STEPS") == 0
    if may_be_quick and rows and _is_octets(found, params):
        _encode_octets(found, params, kind, factors, sides)
    else:
        if factors is not None or sides is not None:
            raise KernelError(
                "quantize: factors of rows, and sides, go with codes of 2, 4 or 8 bits side by side; multiply or map the values before "
                "the call"
            )
        if may_be_quick and _is_quick(found, params, rows):
            del kind["BS_STEPS"]
            kernel, draws = jit.kernel("bits/quick.cu", f"quick_{way}", kind), 0
        else:
            kernel = jit.kernel("bits/encode.cu", f"encode_{way}", kind)
        blocks = _blocks(rows, *counts)
        kernel.run(blocks, 32 * _WARPS, params, shared=draws + (0 if rows else _stage_bytes(bits)))
    return flag is not None and bool(flag.get())


def _is_octets(found: Source, params: ctypes.Structure) -> bool:
    """Whether ``bits/octets.cu`` can be used: values are adjacent in memory, and offset and divisor are constant along them."""
    fits = params.bits in (2, 4, 8) and -128 <= params.low <= params.high <= 255 and not found.turned
    together = found.strides[2] == 1 and not (params.offset_col or params.divisor_col)
    return bool(params.fields and fits and together)


def _encode_octets(
    found: Source, params: ctypes.Structure, kind: dict[str, int], factors: Any, sides: Sides | None
) -> None:
    del kind["BS_STEPS"]
    varied = any(getattr(params, f"{name}_{part}") for name in ("offset", "divisor") for part in ("row", "batch"))
    whole = found.cols * params.bits % GROUP == 0 and found.array.flags.c_contiguous
    if whole and not varied and factors is None:  # one long line
        params.width *= params.batches * params.rows
        params.cols *= params.batches * params.rows
        params.batches = params.rows = 1
    params.gain, params.middle, params.range = params.multiplier, params.low, params.high
    keys = round_keys(params.seed)
    octets = params.batches * params.rows * params.width * 4 // params.bits
    blocks = min(OCTET_BLOCKS * jit.capability().multiprocessors, -(-octets // OCTET_THREADS))
    kind["BS_DRAWN"] = int(params.rounding == _STOCHASTIC)
    # Whether every octet can be loaded as vectors and has one draw of its own.
    even = found.vector and params.cols % 8 == 0 and (not kind["BS_DRAWN"] or params.first_index % 8 == 0)
    kind["BS_RAGGED"] = int(not even)
    kind |= jit.flags(factors=factors is not None, sides=sides is not None)
    filled = OctetParams(params, keys, None if factors is None else factors.data.ptr)
    if sides is not None:
        filled.zero, filled.below, filled.marked = sides.zero, sides.below, int(sides.marked)
    jit.kernel("bits/octets.cu", "octet_rows", kind).run(blocks, OCTET_THREADS, filled)


def _is_quick(found: Source, params: ctypes.Structure, rows: bool) -> bool:
    """Whether ``bits/quick.cu`` can be used; also fills in the constants that its arithmetic needs (see ``bits/quick.cuh``)."""
    span, nearest = params.high - params.low, params.rounding == ROUNDINGS["nearest"]
    if params.bits > _POINT_BITS or params.fields or params.rounding == _STOCHASTIC:
        return False
    if not (-64 <= params.low < params.high <= 63 and 2.0**-20 <= abs(params.multiplier) / span <= 2.0**20):
        return False
    if rows:
        dense = found.vector and found.cols % GROUP == 0 and (found.rows == 1 or found.strides[1] == found.cols)
        dense = dense and (found.batches == 1 or found.strides[0] == found.rows * found.cols)
        along = (params.offset_col, params.divisor_col)
    else:
        dense, along = True, (params.offset_row, params.divisor_row)
    middle = (-params.low - (0.0 if nearest else 0.5)) / span
    limit = 384 / span - 8 - 8 * abs(middle)
    params.gain, params.middle, params.range, params.quick_limit = params.multiplier / span, middle, span, limit
    params.base = (192 if params.low < 0 else 128) + params.low + 0.5 + _POINT_ERROR / 65536
    return dense and not any(along) and limit > 0


def pack(values: Any, bits: int, *, axis: int, layout: str, encoding: str, out: Any = None, check: bool = True) -> Any:
    """Pack integers (their low ``bits`` bits; ``v > 0`` if bipolar) or floats (one bit, ``v >= 0``).

    Parameters
    ----------
    values : cupy.ndarray
        bool, integer or float array of at least two dimensions, any strides.
    bits, axis, layout, encoding
        Format of the words; see ``BitTensor``.
    out : cupy.ndarray, optional
        The words, written in place.
    check : bool
        Look for NaN in floats, which waits for the stream. Without it, NaN becomes 0.

    Raises
    ------
    ValueError
        If a float is NaN, which has no sign.
    """
    words = geometry.output("pack_bits", out, words_shape(values.shape, bits, axis, layout), np.uint32)
    if values.size == 0:
        return words
    found, kind = geometry.source(values), geometry.kind_of(values.dtype)
    params = EncodeParams(positive=int(values.dtype.kind == "b" or encoding == "bipolar"))
    params.is_signed = int(values.dtype.kind == "i")
    looks = check and kind >= HALF
    _check.no_nan("pack_bits", "x", _encode(found, params, words, bits, axis, layout, looks, BS_KIND=kind))
    return words


def quantize(
    x: Any, bits: int, *, out: Any = None, check: bool = False, factors: Any = None, **how: Unpack[Quantisation]
) -> Any:
    """The packed codes of real numbers; see :class:`~bitsparse.backends.params.Quantisation`.

    ``x`` is widened to the dtype of the steps. NaN becomes ``qmin``.

    Parameters
    ----------
    offset, divisor : number, numpy.ndarray or cupy.ndarray
        Anything that broadcasts against `x`. Single numbers on the host are passed by value.
    out : cupy.ndarray, optional
        The words, written in place.
    check : bool
        Look for NaN and infinity, which waits for the stream.
    factors : cupy.ndarray of float32, optional
        Factors by which the rows of a float32 matrix are multiplied first; only for adjacent codes ("rows" layout) along the rows.

    Raises
    ------
    ValueError
        If `check` is True and `x` holds NaN or infinity.
    """
    offset, qmin, qmax, axis, layout = how["offset"], how["qmin"], how["qmax"], how["axis"], how["layout"]
    dtype = np.dtype(offset.dtype) if hasattr(offset, "dtype") else np.asarray(offset).dtype
    kind = geometry.kind_of(x.dtype)
    if kind < HALF or (kind == DOUBLE and dtype == np.float32):
        x = x.astype(dtype)
        kind = geometry.kind_of(dtype)
    words = geometry.output("quantize", out, words_shape(x.shape, bits, axis, layout), np.uint32)
    if x.size == 0:
        return words
    found = geometry.source(x)
    params = EncodeParams(multiplier=how["multiplier"], low=qmin, high=qmax, rounding=ROUNDINGS[how["rounding"]])
    params.seed = how["seed"] & 0xFFFFFFFFFFFFFFFF
    params.stream, params.stream_at = geometry.stream_of_draws(how["stream"])
    params.first_index = how.get("first_index", 0)
    _kept = [_set_operand(params, name, how[name], x.shape, dtype, found) for name in ("offset", "divisor")]
    _set(params, "index", found.index_strides)
    quick = max(bits, int(qmax).bit_length(), int(-qmin).bit_length()) <= _QUICK_BITS
    steps = 2 if dtype == np.float64 else 0 if quick else 1
    ways = {"BS_KIND": kind, "BS_STEPS": steps}
    odd = _encode(found, params, words, bits, axis, layout, check, factors, how.get("sides"), **ways)
    _check.finite("quantize", "x", not odd)
    return words


def _decode(words: Any, values: Any, bits: int, scale: Any = None, offset: Any = None, **how: Unpack[Packing]) -> None:
    """Write the values of ``words`` to ``values``; without a scale, these are the integers themselves."""
    shape, dtype, encoding = values.shape, values.dtype, how["encoding"]
    params = DecodeParams(words=words.data.ptr, out=values.data.ptr, bits=bits, width=words.shape[-1])
    params.rows, params.cols = int(shape[-2]), int(shape[-1])
    params.batches = values.size // (params.rows * params.cols)
    params.fields = int(how["layout"] == "rows" and bits > 1)
    params.weight, params.is_unsigned = 1, int(encoding == "unsigned")
    if encoding == "signed":
        params.top = params.less = 1 << (bits - 1)
    elif encoding == "bipolar":
        params.weight, params.less = 2, 1
    params.is_bool, params.infinity = int(dtype.kind == "b"), geometry.infinity_of(dtype)
    params.vector = int(shape[-1] % 4 == 0 and values.data.ptr % geometry.quad_alignment(dtype) == 0)
    parts = {} if scale is None else {"scale": scale, "offset": offset}
    params.affine = int(scale is not None)
    _kept = [_set_operand(params, name, vector, shape, np.float32) for name, vector in parts.items()]
    rows = how["axis"] == -1
    constant = all(np.size(vector) == 1 for vector in parts.values())
    whole = params.fields and params.cols * bits == 32 * params.width
    if rows and whole and constant and params.batches > 1:
        # Lines without gaps are treated as one line: a warp takes a stretch of a line, which short lines would fill only in part.
        params.batches, params.rows = 1, params.batches
        params.cols, params.width = shape[-2] * params.cols, shape[-2] * params.width
    kind = {"BS_KIND": geometry.kind_of(dtype)}
    if _is_large(GROUP * params.batches * params.rows * -(-params.cols // GROUP), words.size):
        kind["BS_LARGE"] = 1
    kernel = jit.kernel("bits/decode.cu", "decode_rows" if rows else "decode_columns", kind)
    blocks = _blocks(rows, params.batches, params.rows, params.cols)
    kernel.run(blocks, 32 * _WARPS, params, shared=0 if rows else _stage_bytes(bits))


def unpack(
    words: Any, shape: tuple[int, ...], bits: int, *, dtype: DTypeLike, out: Any = None, **how: Unpack[Packing]
) -> Any:
    """The integers of ``words`` as a C-contiguous array of ``dtype``, or in ``out``."""
    values = geometry.output("unpack_bits", out, shape, np.dtype(dtype), np.dtype(dtype).itemsize)
    if values.size:
        _decode(words, values, bits, **how)
    return values


def dequantize(
    words: Any,
    shape: tuple[int, ...],
    bits: int,
    *,
    scale: Any,
    offset: Any,
    dtype: DTypeLike,
    out: Any = None,
    **how: Unpack[Packing],
) -> Any:
    """``fl(fl(fl(q) * scale) + offset)`` in float64 if ``dtype`` is float64, else in float32; a 16-bit result is rounded once from that.

    ``scale`` and ``offset`` are numbers, NumPy arrays or CuPy arrays that broadcast against ``shape``; ``out`` is written in place.
    """
    values = geometry.output("dequantize", out, shape, np.dtype(dtype), np.dtype(dtype).itemsize)
    if values.size:
        _decode(words, values, bits, scale, offset, **how)
    return values


def _variants() -> list[jit.Variant]:
    """Variants for every kind of elements, floats with float32 (two ways) and float64 steps; the usual ones also with 64-bit indices."""
    large = {"BS_LARGE": 1}
    kinds = [{"BS_KIND": kind} for kind in range(DOUBLE + 1)]
    steps = [{"BS_KIND": kind, "BS_STEPS": way} for kind in (HALF, FLOAT) for way in range(3)]
    steps.append({"BS_KIND": DOUBLE, "BS_STEPS": 2})
    codes = [*kinds, *steps]
    usual = [kinds[0], kinds[FLOAT], {"BS_KIND": FLOAT, "BS_STEPS": 0}, steps[-1]]
    quick = [kinds[HALF] | index for index in ({}, large)] + [kinds[FLOAT] | index for index in ({}, large)]
    octets = [
        kind | {"BS_DRAWN": drawn, "BS_RAGGED": ragged}
        for kind in (kinds[HALF], kinds[FLOAT], kinds[FLOAT] | large)
        for drawn in (0, 1)
        for ragged in (0, 1)
    ]
    octets += [{**kind, flag: 1} for kind in octets if kind["BS_KIND"] == FLOAT for flag in ("BS_FACTORS", "BS_SIDES")]
    return [
        *jit.variants_of("bits/encode.cu", "encode_rows", [*codes, *(large | one for one in usual)]),
        *jit.variants_of("bits/quick.cu", "quick_rows", quick),
        *jit.variants_of("bits/octets.cu", "octet_rows", octets),
        *jit.variants_of("bits/decode.cu", "decode_rows", [*kinds, large | kinds[0], large | kinds[FLOAT]]),
    ]


VARIANTS = _variants()

"""Quantisation, packing and their inverses."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays import construct
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import assembled, family_of, working
from bitsparse.arrays.packed import Encoding, Layout
from bitsparse.backends.params import Array, Sides, ends_shape
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import ArrayLike, converted
from bitsparse.ops.finish import schemes

Scheme = Literal["affine", "affine-pow2", "symmetric"]
Granularity = Literal["tensor", "row", "col"]
Rounding = Literal["floor", "nearest", "stochastic"]


def pack_bits(
    x: ArrayLike, bits: int | None = None, *, encoding: Encoding = "unsigned", axis: int = -1, layout: Layout = "planes"
) -> BitTensor:
    """Pack an array of integers into bits (3D-stacked bit compression, QGTC section 4.2).

    Parameters
    ----------
    x : array_like of bool or integer, or of floating dtype at ``bits=1``
        At least two dimensions. Floats are binarised: the bit is ``x >= 0`` (BitGNN section 2; the sign of zero is +1).
    bits : int, optional
        1..32; by default the fewest that hold the data.
    encoding : {"unsigned", "signed", "bipolar"}
        Which integers the bits stand for; see :class:`BitTensor`.
    axis : int, default -1
        The packed axis, -1 or -2.
    layout : {"planes", "rows"}
        See :class:`BitTensor`.

    Returns
    -------
    BitTensor

    Raises
    ------
    ValueError
        A value does not fit, or `x` holds NaN.
    DTypeError, ShapeError
        `x` is not integral (beyond 1 bit) or has fewer than two dimensions.

    Examples
    --------
    >>> bs.pack_bits(np.array([[3, 0], [1, 2]])).bits
    2
    >>> bs.pack_bits(np.array([[-0.5, 0.0]]), encoding="bipolar").toarray()
    array([[-1,  1]], dtype=int8)
    """
    return assembled(BitTensor, *construct.pack("pack_bits", x, bits, encoding=encoding, axis=axis, layout=layout))


def unpack_bits(q: BitTensor, dtype: Any = None) -> Any:
    """The stored integers of a BitTensor as an ordinary array; :meth:`BitTensor.toarray` as a function.

    Parameters
    ----------
    q : BitTensor
    dtype : dtype, optional
        By default the smallest integer dtype that holds every value.

    Raises
    ------
    DTypeError
        `q` is not a BitTensor, or `dtype` cannot hold its values exactly.

    Examples
    --------
    >>> bs.unpack_bits(bs.pack_bits([[1, 0, 1]]), np.int32)
    array([[1, 0, 1]], dtype=int32)
    """
    return bit_tensor("unpack_bits", "q", q).toarray(dtype)


def quantize(
    x: ArrayLike,
    bits: int,
    *,
    scheme: Scheme = "affine",
    rounding: Rounding | None = None,
    range: Any = None,
    granularity: Granularity = "tensor",
    axis: int = -1,
    layout: Layout = "planes",
    seed: int | None = None,
    stream: int = 0,
    first_index: int = 0,
) -> BitTensor:
    """Quantise real numbers to ``bits``-bit integers with an affine scale.

    Parameters
    ----------
    x : array_like of float16, bfloat16, float32, float64, integer or bool
        At least two dimensions. float64 and integers of 32 bits and more are computed in float64, the others in float32.
    bits : int
        1..32 (2..32 for ``symmetric``). Above 24 bits the formula is computed in float64.
    scheme : {"affine", "affine-pow2", "symmetric"}
        * ``"affine"`` (AES-SpMM Eq. 1): ``round(((x - low) / (high - low)) * (2**bits - 1))``, unsigned.
        * ``"affine-pow2"`` (QGTC Eq. 2): ``floor((x - low) / ((high - low) / 2**bits))`` clipped to ``2**bits - 1``, unsigned.
        * ``"symmetric"`` (TANGO section 3.1): ``round(x / (absmax / (2**(bits-1) - 1)))``, signed, no offset.
    rounding : {"floor", "nearest", "stochastic"}, optional
        affine and symmetric: nearest (default, ties to even) or stochastic; affine also takes floor, as AES-SpMM prints it, which is half a
        step too low on average. affine-pow2: floor, as in QGTC's equation.
    range : optional
        ``(low, high)``, or the absmax for ``symmetric``: numbers, or arrays of the granularity's shape. Values outside are clipped. If low
        equals high, the grid starts there with steps of 1. By default the range is calibrated from `x`.
    granularity : {"tensor", "row", "col"}
        One scale for the whole tensor, per row ``(..., M, 1)`` or per column ``(..., 1, N)``.
    axis, layout
        The packed axis and the layout of the result; see :class:`BitTensor`.
    seed, stream : int, optional
        Seed and stream of stochastic rounding (Philox4x32-10). The same seed gives the same bits on every device; None draws a fresh one.
    first_index : int, default 0
        If `x` is part of a larger array, the C-order index of its first element there, below 2**63. Stochastic rounding then gives the same
        bits as when the whole array is quantised at once (over the same range).

    Returns
    -------
    BitTensor
        With `scale`, and `offset` for the affine schemes, so that :func:`dequantize` undoes it.

    Raises
    ------
    ValueError
        NaN or infinity, an unusable range, bits out of 1..32, an unknown option.
    DTypeError, ShapeError, DeviceError
        As for :class:`BitTensor`.

    Examples
    --------
    >>> x = np.array([[0.0, 0.3, 1.0], [0.5, 0.9, 0.1]], dtype=np.float32)
    >>> q = bs.quantize(x, 2)
    >>> q.toarray()
    array([[0, 1, 3],
           [2, 3, 0]], dtype=uint8)
    >>> bs.quantize(x, 8, scheme="symmetric").dequantize().round(2)
    array([[0. , 0.3, 1. ],
           [0.5, 0.9, 0.1]], dtype=float32)
    """
    function = "quantize"
    array, family = interop.as_array(x, function, kinds="biuf")
    _check.at_least_2d(function, "x", array.shape)
    options = schemes.checked_options(function, bits, scheme, rounding, granularity, seed, stream)
    bits, scheme_name, rounding_name, granularity_name, seed_number, stream = options
    packed = _check.axis(function, axis, array.ndim)
    layout_name = _check.layout(function, layout, bits)
    first_index = _check.integer(function, "first_index", first_index, 0, (1 << 63) - 1)
    device = interop.device_of(array)
    with interop.working_on(device, family):
        array = real(array)
        low, high = ends_of(function, array, scheme_name, granularity_name, range)
        coding = Coding(bits, rounding_name, seed_number, stream, packed, layout_name, first_index)
        return coded(function, array, family, scheme_name, (low, high), coding, check=range is not None)


def real(array: Any) -> Any:
    """The array as floats; integers are converted exactly up to 2**53."""
    if array.dtype.kind not in "biu":
        return array
    return array.astype(np.float64 if array.dtype.itemsize >= 4 else np.float32)


class Coding(NamedTuple):
    """How numbers become codes and how codes are packed; on a GPU `stream` may be an array of one uint32, read when the kernel runs."""

    bits: int
    rounding: str
    seed: int
    stream: Any = 0
    axis: int = -1
    layout: str = "planes"
    first_index: int = 0


def coded(
    function: str,
    array: Any,
    family: interop.Family,
    scheme: str,
    ends: tuple[Any, Any],
    coding: Coding,
    *,
    check: bool = False,
) -> BitTensor:
    """Quantise an array over the range `ends`, on the array's stream; `check` says that values may lie outside and must be clipped."""
    wide = coding.bits > schemes.MAX_FLOAT32_BITS or array.dtype == np.float64
    grid = schemes.grid_from_range(function, scheme, coding.bits, *ends, np.float64 if wide else np.float32)
    return on_grid(array, family, grid, coding, check=check)


def on_grid(
    array: Any,
    family: interop.Family,
    grid: schemes.Grid,
    coding: Coding,
    *,
    check: bool = False,
    factors: Any = None,
    sides: Sides | None = None,
    out: Any = None,
) -> BitTensor:
    """Quantise an array on a given grid, as :func:`coded` does on the grid of a range; on a GPU each row may first be scaled by `factors`.

    With `sides`, quotients by the grid's divisor are mapped further before they are rounded. The words are written to `out` if it is given:
    contiguous memory on the array's device.
    """
    device = interop.device_of(array)
    offset, divisor, multiplier, qmin, qmax, encoding, scale, stored_offset = grid
    bits, rounding, seed, stream, axis, layout, first = coding
    steps = {"offset": offset, "divisor": divisor, "multiplier": multiplier, "qmin": qmin, "qmax": qmax}
    draws = {"rounding": rounding, "seed": seed, "stream": stream, "first_index": first}
    further = {} if factors is None else {"factors": factors}
    if sides is not None:
        further["sides"] = sides
    quantize = backends.family(device, "bits.pack").quantize
    words = quantize(array, bits, out=out, check=check, axis=axis, layout=layout, **steps, **draws, **further)
    scale, stored_offset = interop.move(scale, device), interop.move(stored_offset, device)
    return assembled(BitTensor, words, array.shape, bits, axis, layout, encoding, family, scale, stored_offset)


def ends_of(function: str, array: Array, scheme: str, granularity: str, given: Any) -> tuple[Array, Array]:
    """Lower and upper end of the range, calibrated or as given, as single numbers or in the granularity's shape."""
    if given is None:
        low, high, is_finite = backends.family(interop.device_of(array), "bits.pack").calibrate(array, granularity)
        _check.finite(function, "x", is_finite)
        # A single grid is computed on the host; a vector of ranges stays on its device.
        return (low, high) if low.ndim else (interop.move(low, "cpu"), interop.move(high, "cpu"))
    if scheme == "symmetric":
        high = _range_part(function, "range (the absmax)", given, array.shape, granularity)
        if (high < 0).any():
            raise ValueError(
                f"{function}: range is the absmax for scheme='symmetric' and cannot be negative, got {high.min()}"
            )
        high = _placed(high, array)
        return high, high
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ValueError(
            f"{function}: range must be (low, high) for scheme={_check.shown(scheme)}, got {_check.shown(given)}"
        )
    low, high = (
        _range_part(function, name, part, array.shape, granularity)
        for name, part in zip(("low", "high"), given, strict=True)
    )
    low, high = np.broadcast_arrays(low, high)
    wrong = low > high
    if wrong.any():
        raise ValueError(f"{function}: range has low > high ({low[wrong][0]} and {high[wrong][0]}); swap them")
    return _placed(low, array), _placed(high, array)


def _placed(end: Array, x: Any) -> Any:
    """A vector of ranges, moved to the device of `x`; a single number stays on the host, where its grid is computed."""
    return interop.move(end, interop.device_of(x)) if end.ndim else end


def _range_part(function: str, name: str, value: Any, shape: tuple[int, ...], granularity: str) -> Array:
    array = interop.as_host(value, function, name, kinds="biuf")
    array = array.astype(np.float64)
    _check.finite(function, name, bool(np.isfinite(array).all()))
    wanted = ends_shape(shape, granularity)
    if array.shape not in ((), wanted):
        raise ShapeError(
            f"{function}: {name} has shape {array.shape}, but granularity={granularity!r} of an array {shape} takes () or {wanted}"
        )
    return array


def dequantize(q: BitTensor, dtype: Any = np.float32) -> Any:
    """Real values ``q * scale + offset`` (AES-SpMM Eq. 2), each step rounded once in float32 (float64 for ``dtype=float64``).

    Parameters
    ----------
    q : BitTensor
        A missing scale counts as 1, a missing offset as 0.
    dtype : dtype, default float32
        float16, bfloat16 (of ml_dtypes), float32 or float64.

    Returns
    -------
    array of `dtype`, in the family of the data that `q` was made from

    Examples
    --------
    >>> q = bs.BitTensor([[0, 3]], bits=2, scale=0.5, offset=-1.0)
    >>> bs.dequantize(q)
    array([[-1. ,  0.5]], dtype=float32)
    """
    q = bit_tensor("dequantize", "q", q)
    wanted = _check.dtype("dequantize", dtype)
    if wanted.kind in "biu":
        raise DTypeError(
            f"dequantize: dtype {wanted} is not floating; use float16, bfloat16, float32 or float64, or unpack_bits for integers"
        )
    with working(q):
        return interop.from_array(decode(q, wanted), family_of(q), "dequantize")


def decode(q: BitTensor, dtype: Any) -> Any:
    """:func:`dequantize` as a NumPy or CuPy array, whatever the family of `q`."""
    return backends.family(q.device, "bits.pack").dequantize(
        q.words,
        q.shape,
        q.bits,
        axis=q.axis,
        layout=q.layout,
        encoding=q.encoding,
        scale=np.ones((), np.float32) if q.scale is None else q.scale,
        offset=np.zeros((), np.float32) if q.offset is None else q.offset,
        dtype=np.dtype(dtype),
    )


def stochastic_round(x: ArrayLike, *, seed: int | None = None, stream: int = 0) -> Any:
    """Round down or up at random (TANGO section 3.1); the fraction is the probability of rounding up, so that the mean is kept.

    Parameters
    ----------
    x : array_like of float16, bfloat16, float32 or float64
        Any shape.
    seed, stream : int, optional
        The same seed and stream give the same result on every device and thread count; None draws a fresh seed.

    Returns
    -------
    array of the dtype of `x`, holding integers
        ``floor(x) + (u < (x - floor(x)) * 65536)``, with 16 random bits u from Philox4x32-10 for each C-order index.

    Raises
    ------
    ValueError
        NaN or infinity.

    Examples
    --------
    >>> bs.stochastic_round(np.array([0.25, 2.0, -1.5]), seed=1)
    array([ 1.,  2., -1.])
    """
    function = "stochastic_round"
    array, family = interop.as_array(x, function, kinds="f")
    seed_number, stream = schemes.checked_seed(function, "stochastic", seed, stream)
    device = interop.device_of(array)
    with interop.working_on(device, family):
        wide = converted(array, np.float32) if array.dtype.name == "bfloat16" else array
        _check.finite(function, "x", bool(np.isfinite(wide).all()))
        rounded = backends.family(device, "bits.pack").stochastic_round(wide, seed_number, stream)
        # Exact: a bfloat16 with a fraction is so small that both neighbouring integers are bfloat16 too.
        return interop.from_array(converted(rounded, array.dtype), family, function)


def bit_tensor(function: str, name: str, q: Any) -> BitTensor:
    """`q`, which must be a BitTensor; `function` and `name` appear in the message if it is not."""
    return _check.instance(function, name, q, BitTensor, "a BitTensor", "make one with quantize or pack_bits")

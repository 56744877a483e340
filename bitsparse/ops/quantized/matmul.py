"""Products of real matrices in integers: both operands are quantised, and the result is real again (TANGO Fig. 4)."""

from __future__ import annotations

from typing import Any, Literal

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import derived_of
from bitsparse.errors import DTypeError
from bitsparse.interop import ArrayLike
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.quantized.operands import Settings, check_matrix, checked_dtype
from bitsparse.ops.quantized.plan import QuantizedMatmulPlan, QuantizedProduct

#: Slot for the plans that a weight on a GPU keeps.
_PLANS: Slot[QuantizedMatmulPlan] = Slot("quantized plans", most=8)


def quantized_matmul(
    x: ArrayLike,
    w: Any,
    bits: int = 8,
    *,
    scheme: Literal["symmetric"] = "symmetric",
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | None = None,
    stream: int = 0,
    scale: Any = None,
    range: Any = None,
    w_granularity: Literal["tensor", "col"] = "tensor",
    bias: Any = None,
    out: Any = None,
    absmax: Any = None,
    return_operands: bool = False,
    cache: Any = None,
    kernel: str | None = None,
) -> Any:
    """``x @ w + bias`` of real matrices, multiplied as integers of a few bits and scaled back (TANGO section 3.2, Fig. 4).

    The result is ``fl(fl(float32(qx @ qw) * scale_x) * scale_w) + bias``, where ``qx`` are the codes of
    ``quantize(x, bits, scheme="symmetric")`` and ``qw`` those of `w`. The integers are exact, and a GPU gives the same bits as a CPU. A GPU
    quantises `x` while it loads it for the product, so that codes never travel through memory unless they are asked for.

    Parameters
    ----------
    x : array (m, k) of float32, float16 or bfloat16
    w : array (k, n), or BitTensor (k, n)
        An array is quantised like `x`, with a scale calibrated from it; a BitTensor (one scale or one per column, no offset) is used
        as it is, so weights may have other bits.
    bits : {8, 4}
    scheme : {"symmetric"}
        See :func:`quantize`.
    rounding : {"nearest", "stochastic"}
    seed, stream : int, optional
        Seed and stream of stochastic rounding; `x` draws like ``quantize(x, ..., seed=seed, stream=stream)``, and an array `w` draws from
        ``stream + 1``.
    scale : float, or on a GPU an array of one float32, optional
        The size of one step of `x`. An array on a GPU is read when the kernel runs, and is not checked before.
    range : likewise, optional
        The absmax of `x`, which determines the scale; for instance the `absmax` of the previous layer. Without scale and range, a pass
        over `x` finds the absmax.
    w_granularity : {"tensor", "col"}
        One scale for an array `w`, or one per column.
    bias : array_like (n,) or number, optional
        Added in float32.
    out : float32 array (m, n), optional
        Where to write; also returned.
    absmax : float32 array of one element, optional
        Receives the largest magnitude of the result, which can serve as the `range` of the next layer.
    return_operands : bool, default False
        Return the codes as well, for a backward pass.
    cache : QuantCache, optional
        A cache in which codes of `x` and `w` are looked up and kept. It cannot be combined with `scale`.
    kernel : {None, "wgmma", "mma", "composed"}
        Force a kernel; all give the same bits. "composed" quantises first and then multiplies. It is the only kernel on a CPU, and on a
        GPU if ``127 * 128 * k`` exceeds int32 or the weight's codes are wider than a signed byte.

    Returns
    -------
    float32 array (m, n), or QuantizedProduct (out, x, w) with `return_operands`

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        Operands that do not fit.
    ValueError
        NaN or infinity (on a GPU raised after the product, and `out` then holds no result), an unusable scale, or a weight with an offset.

    Notes
    -----
    Let ``a = max|x|``, ``b = max|w|``, ``sx = a / (2**(bits-1) - 1)``, and ``sw`` likewise. With nearest rounding, every element is within
    ``k * (a * sw + b * sx + sx * sw / 2) / 2`` of the real product (twice that for stochastic), plus three roundings of float32.

    Examples
    --------
    >>> x = np.array([[0.5, 1.0, 0.25], [0.0, 2.0, 1.0]], np.float32)
    >>> w = np.array([[1.0, 0.0], [0.5, -1.0], [0.0, 1.0]], np.float32)
    >>> bs.quantized_matmul(x, w).round(2)
    array([[ 1.01, -0.76],
           [ 1.01, -0.99]], dtype=float32)
    >>> product = bs.quantized_matmul(x, w, return_operands=True)
    >>> product.x.toarray()
    array([[ 32,  64,  16],
           [  0, 127,  64]], dtype=int8)
    """
    function = "quantized_matmul"
    settings = Settings.checked(function, bits, scheme, rounding, seed, stream, w_granularity)
    _check.flag(function, "return_operands", return_operands)
    array = _activations(function, x)
    if not hasattr(w, "shape"):
        w = interop.as_array(w, function, "w")[0]
    check_matrix(function, "w", w, "(k, n)")
    _check.matmul_shapes(function, tuple(array.shape), tuple(w.shape))
    options: dict[str, Any] = {}
    if cache is not None:
        if not all(hasattr(cache, method) for method in ("quantize", "find", "keep")):
            raise DTypeError(
                f"{function}: cache must be a QuantCache, got {type(cache).__name__}; pass bitsparse.QuantCache()"
            )
        if scale is not None:
            raise ValueError(
                f"{function}: a cache knows codes by their range, not by scale={_check.shown(scale)}; pass range="
            )
        if rounding == "stochastic" and seed is None:
            raise ValueError(f"{function}: a cache knows stochastic codes by their seed; pass seed=")
        options = settings.options(seed) | ({} if range is None else {"range": range})
        if not isinstance(w, BitTensor):
            w_options = settings.options(seed, 1) | {"granularity": w_granularity, "axis": -2, "layout": "rows"}
            w = cache.quantize(w, settings.bits, **w_options)
    plan = _plan_for(function, w, array, settings, bias, kernel)
    if cache is not None:
        codes = None
        if kernel in (None, "composed"):  # the other kernels quantise by themselves and cannot use kept codes
            codes = cache.find(x, settings.bits, axis=-1, layout="rows", **options)
        if codes is not None:
            with working_with(plan.device, array, out):
                plan.targets(array, out, absmax)
            result = plan.of_codes(codes, out, absmax)
            return QuantizedProduct(result, codes, plan.w) if return_operands else result
    found = plan.run(x, out, scale, range, seed, absmax, return_operands or cache is not None, copies=True)
    plan.check()
    if cache is not None:
        cache.keep(x, found.x, **options)
        return found if return_operands else found.out
    return found


def plan_quantized_matmul(
    w: ArrayLike,
    m: int,
    bits: int = 8,
    *,
    scheme: Literal["symmetric"] = "symmetric",
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | None = None,
    stream: int = 0,
    w_granularity: Literal["tensor", "col"] = "tensor",
    bias: Any = None,
    dtype: Any = None,
    kernel: str | None = None,
) -> QuantizedMatmulPlan:
    """Prepare products with one weight: ``plan(x, out=None, scale=None, range=None, seed=None, absmax=None, return_operands=False)``.

    Parameters
    ----------
    w : array (k, n) or BitTensor
        The weight; an array is quantised once, by this call.
    m : int
        Rows of the activations.
    bits, scheme, rounding, seed, stream, w_granularity, bias, kernel
        As in :func:`quantized_matmul`; a call may pass its own seed.
    dtype : dtype, optional
        Dtype of the activations: float32 (default), float16 or bfloat16.

    Returns
    -------
    QuantizedMatmulPlan
        On a GPU ``plan(x, out=y)`` allocates, compiles and waits for nothing from its second call on, so that it can be captured into a
        CUDA graph. It may have `absmax`, and scale or range as numbers or as elements on the GPU; but kernel "composed" and
        `return_operands` allocate. On a GPU ``plan.check()`` reports NaN and infinity.

    Examples
    --------
    >>> plan = bs.plan_quantized_matmul(np.array([[1.0], [2.0]], np.float32), 1)
    >>> plan(np.array([[1.0, 0.5]], np.float32), range=1.0)
    array([[2.015748]], dtype=float32)
    """
    function = "plan_quantized_matmul"
    settings = Settings.checked(function, bits, scheme, rounding, seed, stream, w_granularity)
    rows = _check.integer(function, "m", m, 0)
    return QuantizedMatmulPlan(function, w, rows, settings, dtype, bias, kernel)


def _activations(function: str, x: Any) -> Any:
    """The activations as a NumPy or CuPy view, checked for kind, shape and dtype."""
    if isinstance(x, BitTensor):
        raise DTypeError(f"{function}: x is a BitTensor, which is quantised already; use matmul with an Epilogue")
    array = interop.as_array(x, function)[0]
    check_matrix(function, "x", array, "(m, k)")
    checked_dtype(function, array.dtype)
    return array


def _plan_for(function: str, w: Any, x: Any, settings: Settings, bias: Any, kernel: Any) -> QuantizedMatmulPlan:
    """The plan for these operands; a weight given as BitTensor on a GPU keeps it for calls of the same kind."""
    # A plan with an array as bias is not kept: it copies the array, which may be written to between calls.
    fixed = bias is None or isinstance(bias, (int, float))

    def make() -> QuantizedMatmulPlan:
        return QuantizedMatmulPlan(function, w, int(x.shape[0]), settings, x.dtype, bias, kernel)

    if not isinstance(w, BitTensor) or w.device == "cpu" or not fixed or settings.seed is not None:
        return make()
    key = (x.shape[0], x.dtype.name, settings, bias, kernel)
    return _PLANS.of(derived_of(w).prepared, make, key)

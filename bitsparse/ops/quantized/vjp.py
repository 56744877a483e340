"""Gradients of integer products of real matrices: the gradient is quantised once, and codes of the forward pass are reused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from bitsparse import _check, _records, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import derived_of, family_of, with_scale, working
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.errors import ShapeError
from bitsparse.interop import converted
from bitsparse.interop.kept import Slot
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.finish import schemes
from bitsparse.ops.matmul.products import LeftKind, RightKind, multiply, products_of_codes
from bitsparse.ops.operands.both_ways import as_asked, both_ways, wanted
from bitsparse.ops.operands.places import device_of_sparse, working_with
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.quantized import bytewise
from bitsparse.ops.quantized.operands import Settings, check_matrix, checked_dtype
from bitsparse.ops.quantized.scaled import scaled_codes
from bitsparse.ops.quantized.spmm import Granularity, SumSettings, feature_rows, summed

#: Slot for codes cut into pieces of rows and packed along the rows; kept because features of the data serve every step.
PIECES: Slot[list[BitTensor]] = Slot("pieces of rows", most=4)
#: Rows of one piece of a product over many rows on a GPU: sums of a piece fit int32, and pieces run in parallel.
PIECE = 8192


def quantized_spmm_vjp(
    A: Any,
    gradient: Any,
    bits: int = 8,
    *,
    granularity: Granularity | None = None,
    reduce: Literal["sum", "mean"] = "sum",
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | None = None,
    stream: int = 0,
) -> Any:
    """Gradient of :func:`quantized_spmm` by the features, as if nothing had been rounded; it is an integer sum over the transpose itself.

    Parameters
    ----------
    A, bits, granularity, reduce, rounding, seed, stream
        As in :func:`quantized_spmm`.
    gradient : array (M,), (M, D) or (M, H, D) of float32, float16 or bfloat16
        Gradient by the product, in the product's shape.

    Returns
    -------
    float32 array (N, ...), in the family of `gradient`
        The result of :func:`quantized_spmm` for the transpose. With stochastic rounding, its mean over seeds is the gradient of
        :func:`spmm`.

    Raises
    ------
    ShapeError, DTypeError, DeviceError, ValueError
        As in :func:`quantized_spmm`, or `A` holds duplicates.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0, 1, 1], [1, 0, 0]]))
    >>> bs.quantized_spmm_vjp(A != 0, np.array([[2.0], [1.0]], np.float32), reduce="mean").round(2).ravel()
    array([1., 1., 1.], dtype=float32)
    """
    function = "quantized_spmm_vjp"
    settings = SumSettings.checked(function, bits, granularity, reduce, rounding, seed, stream)
    with working_with(device_of_sparse(A), gradient):
        ways = both_ways(function, A)
        operand = ways.operand
        given = interop.as_array(gradient, function, "gradient")[0]
        if given.shape[:1] != operand.shape[:1]:
            raise ShapeError(
                f"{function}: gradient has shape {tuple(given.shape)}, but the product with A of shape {operand.shape} has "
                f"{operand.shape[0]} rows; pass the gradient of the product"
            )
        factor: Any = operand.row_scale
        if reduce == "mean":
            inverse = 1 / ways.degrees().astype(np.float32)
            factor = inverse if factor is None else factor * inverse
        values = None if operand.values is None else ways.turned(converted(operand.values, np.float32))
        turned = replace(as_csr(function, ways.backward), values=values, row_scale=operand.col_scale, col_scale=factor)
        flat, shape, family = feature_rows(function, "gradient", gradient, turned)
        made = summed(function, turned, flat, _records.replace(settings, reduce="sum"), isinstance(A, SparseArray))
        return interop.from_array(made.reshape(operand.shape[1], *shape[1:]), family, function)


def quantized_matmul_vjp(
    x: Any,
    w: Any,
    gradient: Any,
    bits: int = 8,
    *,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    seed: int | None = None,
    stream: int = 0,
    wrt: str | tuple[str, ...] = ("x", "w"),
) -> Any:
    """Gradients of :func:`quantized_matmul`, as if nothing had been rounded; they are integer products themselves (TANGO section 3.2).

    The gradient is quantised once for both products. Pass the codes of the forward pass (``return_operands=True``) as `x` and `w`: they
    are not quantised again then, and nothing else of that pass has to be kept.

    Parameters
    ----------
    x : array (m, k) of float32, float16 or bfloat16, or BitTensor with one scale
    w : array (k, n), or BitTensor with one scale
    gradient : array (m, n), or BitTensor with one scale
    bits : {8, 4}
        Bits of the codes of operands that are quantised here.
    rounding : {"nearest", "stochastic"}
    seed, stream : int, optional
        `gradient` draws from `stream`, an array `x` from ``stream + 1`` and an array `w` from ``stream + 2``.
    wrt : {"x", "w"} or tuple of these
        Operands whose gradients are computed.

    Returns
    -------
    float32 array, or tuple of arrays in the order of `wrt`
        ``gradient @ w.T`` (m, k) and ``x.T @ gradient`` (k, n), in the family of `gradient`. Integers are summed exactly, in int64 if
        int32 could overflow, so that all devices give the same bits. The call does not wait for a GPU; NaN and infinity give NaN there.

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        Operands that do not fit.
    ValueError
        A BitTensor has an offset or several scales; NaN or infinity on a CPU.

    Examples
    --------
    >>> x, w = np.array([[0.5, 1.0]], np.float32), np.array([[1.0], [-2.0]], np.float32)
    >>> codes = bs.quantized_matmul(x, w, return_operands=True)
    >>> dx, dw = bs.quantized_matmul_vjp(codes.x, codes.w, np.ones((1, 1), np.float32))
    >>> dx.round(2), dw.round(2)
    (array([[ 1.01, -2.  ]], dtype=float32), array([[0.5],
           [1. ]], dtype=float32))
    """
    function = "quantized_matmul_vjp"
    settings = Settings.checked(function, bits, "symmetric", rounding, seed, stream, "tensor")
    number, _ = schemes.checked_seed(function, settings.rounding, seed, stream)
    names = wanted(function, wrt, ("x", "w"))
    parts = {}
    for further, (name, part) in enumerate({"gradient": gradient, "x": x, "w": w}.items()):
        if name == "gradient" or {"x": "w", "w": "x"}[name] in names:
            coding = Coding(settings.bits, settings.rounding, number, settings.stream + further, -1, "rows")
            parts[name] = _as_codes(function, name, part, coding)
    m, n, k = *_shape(gradient), (_shape(x) or (0,))[-1]
    for name, part, shape in (("x", x, (m, k)), ("w", w, (k, n))):
        if _shape(part) != shape:
            raise ShapeError(
                f"{function}: {name} has shape {_shape(part)}, but a gradient of shape {(m, n)} goes with x (m, k) and w (k, n), here "
                f"{(m, k)} and {(k, n)}; pass the operands of the product"
            )
    _check.same_device(function, tuple(part.device for part in parts.values()))
    made = {}
    if "x" in names:
        made["x"] = product_of_codes(function, parts["gradient"], parts["w"].T)
    if "w" in names:
        made["w"] = product_over_rows(function, parts["x"], parts["gradient"])
    return as_asked(wrt, made)


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape if hasattr(x, "shape") else interop.as_array(x, "quantized_matmul_vjp", "x")[0].shape)


def _as_codes(function: str, name: str, x: Any, coding: Coding) -> BitTensor:
    """An operand's codes: those of a BitTensor, or the codes of a quantised array."""
    if isinstance(x, BitTensor):
        check_matrix(function, name, x, "")
        if x.offset is not None or x.scale is None or x.scale.size != 1:
            raise ValueError(
                f"{function}: {name} is a BitTensor with scale {x.scale} and offset {x.offset}, but codes have one scale and no offset; "
                f"quantize it with scheme='symmetric'"
            )
        return x if x.scale.ndim == 0 else with_scale(x, x.scale.reshape(()))
    array, family = interop.as_array(x, function, name)
    check_matrix(function, name, array, "")
    checked_dtype(function, array.dtype)
    with interop.working_on(interop.device_of(array), family):
        return scaled_codes(function, name, array, family, coding).codes


def product_of_codes(function: str, a: BitTensor, b: BitTensor, bias: Any = None, out: Any = None) -> Any:
    """``fl(fl(fl32(a @ b) * a.scale) * b.scale)`` of BitTensors with one scale each.

    A `bias`, a float32 NumPy or CuPy array (n,) on their device, is added by the same kernel, with one more rounding. With a C-contiguous
    float32 `out` (m, n), all this is added to its contents, with another rounding; on Hopper the same kernel does that, too.
    """
    if bytewise.fits(a, b, a.shape[-1]):
        return bytewise.product(function, a, b, bias, out)
    left, right = a.repack(axis=-1, layout="planes"), b.repack(axis=-2, layout="planes")
    made = products_of_codes(function, left.device, LeftKind.of(left), RightKind.of(right)).once(left, right, bias=bias)
    if out is None:
        return made
    with working(a):
        out += interop.as_array(made, function)[0]
        return interop.from_array(out, family_of(b), function)


def product_over_rows(function: str, a: BitTensor, b: BitTensor) -> Any:
    """``a.T @ b`` of BitTensors (m, k) and (m, n), scaled likewise; with many rows on a GPU, sums of pieces are added in int64."""
    rows = a.shape[0]
    if bytewise.fits(a, b, min(rows, PIECE)):
        return bytewise.product_over_rows(function, a, b, PIECE)
    if a.device == "cpu" or rows <= PIECE:
        return product_of_codes(function, a.repack(axis=-2, layout="planes").T, b)
    with working(a):
        pairs = zip(*(_cut(part.repack(axis=-1, layout="rows"), PIECE) for part in (a, b)), strict=True)
        parts: Any = [interop.as_array(multiply(function, one.mT, other), function)[0] for one, other in pairs]
        sums = parts[0].sum(axis=0, dtype=np.int64)
        for part in parts[1:]:
            sums += part[0]
        made = sums.astype(np.float32) * a.scale * b.scale
        return interop.from_array(made, family_of(b), function)


def _cut(x: BitTensor, length: int) -> list[BitTensor]:
    """The rows in pieces of `length`, as a batch packed along the rows without a scale, and the rest as another batch; kept with `x`."""

    def make() -> list[BitTensor]:
        (rows, width), words = x.words.shape, x.words
        whole = rows // length * length
        how: Any = {"encoding": "signed", "layout": "rows", "check": False}
        made: list[Any] = []
        for part, each in ((words[:whole], length), (words[whole:], rows - whole)):
            if len(part):
                batch = part.reshape(-1, each, width)
                codes: Any = BitTensor.from_words(batch, (len(batch), each, x.shape[-1]), x.bits, **how)
                made.append(codes.repack(axis=-2, layout="planes"))
        return made

    return PIECES.of(derived_of(x).prepared, make, length)

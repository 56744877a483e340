"""Products of -1/+1 matrices, in which full-precision operands are binarised while loading (BitGNN's BMM)."""

from __future__ import annotations

from typing import Any

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import derived_of
from bitsparse.interop import ArrayLike
from bitsparse.interop.kept import Slot
from bitsparse.ops.binary import letters
from bitsparse.ops.binary.bmm_plan import (
    BmmPlan,
    Wanted,
    checked_variant,
    full_precision_only,
    multiply_signs,
    rows_kernel_serves,
)
from bitsparse.ops.binary.signs import as_signs, bipolar, check_array, norm_of
from bitsparse.ops.finish.epilogue import Epilogue

#: Slot for the plans that a right operand on a GPU keeps.
_PLANS: Slot[BmmPlan] = Slot("bmm plans", most=8)


def bmm(
    a: ArrayLike,
    w: ArrayLike,
    variant: str | None = None,
    *,
    epilogue: Epilogue | None = None,
    a_norm: Any = None,
    row_absmean: bool = False,
    kernel: str | None = None,
    out: Any = None,
    absmean: Any = None,
) -> Any:
    """Product of the signs of two matrices, ``sign(a) @ sign(w)``, exact (BitGNN sections 2.2 and 3.1.2).

    The letters of `variant` are the precisions of the activation `a`, of the weight `w` and of the output: F is full precision, B is one
    bit. Full-precision operands are binarised while loading, ``v >= 0``. FFF does not exist, as nothing in it is binary.

    Parameters
    ----------
    a : BitTensor of one bipolar bit, or array (..., m, k)
        Letter B or F.
    w : BitTensor of one bipolar bit, or array (..., k, n)
        Letter B or F. Batch dimensions broadcast.
    variant : str, optional
        ``"BBB"``, ``"BBF"``, ``"BFB"``, ``"BFF"``, ``"FBB"``, ``"FBF"`` or ``"FFB"``. By default the letters of the operands, with output
        B if the epilogue binarises, else F.
    epilogue : Epilogue, optional
        Scales (such as Bi-GCN's mean magnitudes), bias, batch norm, activation; for output B the result is exactly the sign of that float32
        chain. Scales of BitTensors are multiplied in, as in :func:`matmul`.
    a_norm : BatchNorm or tuple ``(mean, var[, weight, bias, eps])``, optional
        Batch norm of a full-precision `a`, one value per column, before its sign is taken. As in :class:`Epilogue`, it is folded into
        ``fl(fl(float32(a) * scale) + shift)``. With ``(threshold, 1.0, 1.0, 0.0, 0.0)`` a column's bit is exactly ``a >= threshold``.
    row_absmean : bool, default False
        Multiply each row of the result by the mean magnitude of that row of `a` (or of the batch norm's result), as in Bi-GCN and
        XNOR-Net. It is one more row scale: the product with the epilogue's row scale is rounded and comes first in the chain.
    kernel : str, optional
        Force a kernel: one of those of :func:`matmul`, for which `a` is packed first, or ``"rows"`` on a GPU, which binarises while it
        loads. By default a GPU uses "rows" for matrices whose rows are contiguous.
    out
        As in :func:`matmul`.
    absmean : float32 array (m,), optional
        Receives the mean magnitudes of the rows of a full-precision `a`, whether or not they scale the result. Groups of 128 columns
        are added as a binary tree of neighbours, and their sums one after another, so that all devices give the same numbers.

    Returns
    -------
    array (..., m, n) or BitTensor (..., m, n)
        Int32 sums of -1/+1 products; float32 with an epilogue or `row_absmean`; a bipolar BitTensor for output B.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Operands that do not fit each other or the letters; NaN, which has no sign.

    Examples
    --------
    >>> a = np.array([[0.5, -2.0, 0.0]])
    >>> w = bs.pack_bits(np.array([[1.0], [3.0], [-1.0]]), encoding="bipolar", axis=-2)
    >>> bs.bmm(a, w), bs.bmm(a, w, "FBB").toarray()
    (array([[-1]], dtype=int32), array([[-1]], dtype=int8))
    >>> bs.bmm(a, w, row_absmean=True), bs.bmm(a, w, a_norm=([1.0, 0.0, 0.0], 1.0))
    (array([[-0.8333333]], dtype=float32), array([[-3]], dtype=int32))
    """
    function = "bmm"
    wanted = Wanted(variant, epilogue, a_norm, _check.flag(function, "row_absmean", row_absmean))
    if kernel is None and isinstance(w, BitTensor) and _is_whole(a):
        kept = _PLANS.get(derived_of(w).prepared, _key_of(a, getattr(a, "dtype", None), wanted))
        if kept is not None:
            return _checked_call(kept, a, out, absmean)
    found = "".join(letters.activation_letter(function, name, x) for name, x in (("a", a), ("w", w)))
    chosen = checked_variant(function, variant, found, epilogue)
    device = _device_of(function, a, w)
    full = Wanted(chosen, *wanted[1:])
    full_precision_only(function, full, absmean is not None)
    a_shape, w_shape = (_shape_of(function, name, x) for name, x in (("a", a), ("w", w)))
    _check.matmul_shapes(function, a_shape, w_shape)
    norm = None if a_norm is None else norm_of(function, a_norm, a_shape[-1])
    if (kernel == "rows" or (kernel is None and device != "cpu")) and rows_kernel_serves(
        function, a, w, device, forced=kernel is not None
    ):
        return _checked_call(_kept_plan(function, a, w, wanted, full), a, out, absmean)
    right, _ = as_signs(function, "w", w, -2)
    return multiply_signs(function, a, right, full, norm, kernel, out, absmean)


def plan_bmm(
    w: ArrayLike,
    m: int,
    variant: str | None = None,
    *,
    epilogue: Epilogue | None = None,
    dtype: Any = None,
    a_norm: Any = None,
    row_absmean: bool = False,
    kernel: str | None = None,
) -> BmmPlan:
    """Prepare products of signs with one weight: ``plan(a, out=None, absmean=None)``.

    Parameters
    ----------
    w : BitTensor of one bipolar bit, or array (k, n)
        The weight, which is packed once, by this call. Neither it nor the activations have an offset.
    m : int
        Rows of the activations.
    variant : str, optional
        As in :func:`bmm`. The first letter is the kind of the activations: F (default) for arrays of `dtype`, B for BitTensors.
    epilogue, a_norm, row_absmean, kernel
        As in :func:`bmm`; on a GPU a plan always uses the kernel ``"rows"``.
    dtype : dtype, optional
        Dtype of full-precision activations, float32 by default.

    Returns
    -------
    BmmPlan
        On a GPU ``plan(a, out=y)`` allocates, compiles and waits for nothing from its second call on, so that it can be captured into
        a CUDA graph. On a GPU ``plan.check()`` reports NaN.

    Examples
    --------
    >>> plan = bs.plan_bmm(bs.pack_bits(np.array([[1.0], [3.0], [-1.0]]), encoding="bipolar", axis=-2), 1)
    >>> plan(np.array([[0.5, -2.0, 0.0]], np.float32))
    array([[-1]], dtype=int32)
    """
    function = "plan_bmm"
    second = letters.activation_letter(function, "w", w)
    first = variant[0] if isinstance(variant, str) and variant[:1] in ("B", "F") else "F"
    chosen = checked_variant(function, variant, first + second, epilogue)
    rows = _check.integer(function, "m", m, 0)
    plan = BmmPlan(
        function,
        w,
        rows,
        Wanted(chosen, epilogue, a_norm, _check.flag(function, "row_absmean", row_absmean)),
        dtype,
        kernel,
    )
    plan.compile_rest()
    return plan


def _device_of(function: str, a: Any, w: Any) -> str:
    """The device of both operands, which must be the same."""
    places = [x.device if isinstance(x, BitTensor) else (interop.gpu_of(x) or ("cpu",))[0] for x in (a, w)]
    return _check.same_device(function, places)


def _shape_of(function: str, name: str, x: Any) -> tuple[int, ...]:
    """The shape of an operand, whose elements have signs and are laid out in at least two dimensions."""
    if isinstance(x, BitTensor):
        return bipolar(function, name, x).shape
    array, _ = interop.as_array(x, function, name)
    check_array(function, name, array)
    return tuple(array.shape)


def _is_whole(a: Any) -> bool:
    """Whether `a` is a BitTensor or a C-contiguous array."""
    return isinstance(a, BitTensor) or bool(getattr(getattr(a, "flags", None), "c_contiguous", False))


def _key_of(a: Any, dtype: Any, wanted: Wanted) -> tuple[Any, ...]:
    """The key by which a weight keeps a plan; the plan holds the objects whose ids are in the key, so that these stay valid."""
    kind = (a.encoding, a.bits, a.offset is None) if isinstance(a, BitTensor) else dtype
    return tuple(a.shape), kind, wanted.variant, id(wanted.epilogue), id(wanted.a_norm), wanted.row_absmean


def _checked_call(plan: BmmPlan, a: Any, out: Any, absmean: Any) -> Any:
    result = plan(a, out=out, absmean=absmean)
    plan.check()
    return result


def _kept_plan(function: str, a: Any, w: Any, wanted: Wanted, full: Wanted) -> BmmPlan:
    """The plan with the kernel "rows"; a BitTensor as right operand keeps it for calls of the same kind.

    `full` is `wanted` with all three letters known.
    """
    dtype = None if full.variant[0] == "B" else interop.as_array(a, function, "a")[0].dtype

    def make() -> BmmPlan:
        return BmmPlan(function, w, int(a.shape[0]), full, dtype, "rows")

    return _PLANS.of(derived_of(w).prepared, make, _key_of(a, dtype, wanted)) if isinstance(w, BitTensor) else make()

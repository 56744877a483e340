"""Products of signs, prepared for one weight."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import contents_of_words, family_of, words_to_overwrite, working
from bitsparse.errors import DeviceError, DTypeError, KernelError, ShapeError
from bitsparse.interop.identity import Seen
from bitsparse.ops.binary import letters
from bitsparse.ops.binary.bmm_short import ShortWay
from bitsparse.ops.binary.signs import Norm, as_signs, bipolar, check_array, norm_of
from bitsparse.ops.finish import thresholds
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.finish.target import target_of
from bitsparse.ops.finish.terms import operand_terms
from bitsparse.ops.matmul.matmul import matmul
from bitsparse.ops.operands.places import working_with

__all__ = ["BmmPlan", "checked_variant", "multiply", "rows_kernel_serves"]

#: Products of packed operands of at most so many bits of the right one are left to the kernel that loads rows: larger ones are
#: worth the warpgroup's instructions.
_SMALL_WEIGHT = 1 << 22


def checked_variant(function: str, variant: Any, found: str, epilogue: Any) -> str:
    """The three letters, which the operands (`found`) must fit."""
    chosen = letters.checked(function, variant, found, epilogue)
    if chosen == "FFF":
        raise ValueError(
            f"{function}: FFF is an ordinary product; use a @ w, or binarise something: variant 'FFB', or pack_bits(w, encoding='bipolar')"
        )
    if chosen[:2] != found:
        raise DTypeError(
            f"{function}: variant {_check.shown(chosen)} does not fit operands {found!r} (B is a one-bit BitTensor, F an array); pass "
            f"{_check.shown(found + chosen[2])}, or pack or unpack an operand"
        )
    return chosen


def rows_kernel_serves(function: str, a: Any, w: Any, epilogue: Epilogue | None, device: str, *, forced: bool) -> bool:
    """Whether the kernel that binarises while it loads takes these operands; if it is forced and cannot, an error says why."""
    reason = _why_not(a, w, epilogue, device)
    if reason and forced:
        raise KernelError(f"{function}: kernel 'rows' {reason}; pass kernel=None")
    if reason or forced:
        return not reason
    packed = isinstance(a, BitTensor)
    return not packed or w.shape[-2] * w.shape[-1] <= _SMALL_WEIGHT


def _why_not(a: Any, w: Any, epilogue: Epilogue | None, device: str) -> str:
    if device == "cpu":
        return "runs on a GPU, but a and w are on the CPU"
    if len(a.shape) != 2 or len(w.shape) != 2:
        return f"takes matrices, but a has shape {tuple(a.shape)} and w {tuple(w.shape)}"
    if any(isinstance(x, BitTensor) and x.offset is not None for x in (a, w)):
        return "knows no offsets, but an operand has one"
    if not isinstance(a, BitTensor):
        view = interop.as_array(a, "bmm", "a")[0]
        if view.shape[1] > 1 and view.size and view.strides[1] != view.itemsize:
            return f"reads rows that are contiguous, but a has strides {view.strides}"
    return ""


def multiply(
    function: str,
    left: BitTensor,
    right: BitTensor,
    epilogue: Epilogue | None,
    means: Any,
    *,
    out: Any,
    absmean: Any,
    kernel: str | None,
    scaled: bool,
) -> Any:
    """The product of packed operands by :func:`matmul`, the rows scaled by their mean magnitudes if `scaled`."""
    if absmean is not None:
        target = interop.writable_array(absmean, function)
        _check.out_array(function, target, left.shape[:-1], np.dtype(np.float32))
        _check.same_device(function, (left.device, interop.device_of(target)))
    if scaled:
        left = _scaled(left, means)
        epilogue = Epilogue() if epilogue is None else epilogue
    # A tile of -1 is not a tile of zeros that could be skipped: all bits count.
    result = matmul(left, right, epilogue=epilogue, out=out, kernel=kernel, skip_zero_tiles=False)
    if absmean is not None:
        with interop.working_on(left.device, family_of(left)):
            target[...] = means
    return result


def _scaled(left: BitTensor, means: Any) -> BitTensor:
    family = family_of(left)
    made = left.with_affine(means[..., None])
    made._family = family
    return made


class BmmPlan:
    """A prepared product ``plan(a, out=None, absmean=None)``; made by :func:`plan_bmm`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    device : str
        Where the weight is and the activations must be.
    variant : str
        BitGNN's letters.
    dtype : dtype or None
        Of full-precision activations; None where they are BitTensors.
    kernel : str
        ``"rows"`` on a GPU; on the CPU the kernel forced, or "packed".

    Examples
    --------
    >>> bs.plan_bmm(np.ones((40, 3)), 2, "FFB")
    <BmmPlan shape=(2, 3) variant=FFB kernel=packed>
    """

    def __init__(
        self,
        function: str,
        w: Any,
        m: int,
        variant: str,
        epilogue: Epilogue | None,
        dtype: Any,
        a_norm: Any,
        row_absmean: bool,
        kernel: str | None,
    ) -> None:
        self._function, self.variant, self._scaled = function, variant, bool(row_absmean)
        finish = letters.with_output(function, variant[2], epilogue)
        self._epilogue = Epilogue() if finish is None and self._scaled else finish
        self._given = (epilogue, a_norm)  # kept, as their identity is part of a key
        self.dtype = _dtype_of(function, variant, dtype)
        right, _ = as_signs(function, "w", w, -2)
        if right.ndim != 2:
            raise ShapeError(
                f"{function}: w has shape {right.shape}, but a plan takes two dimensions; pass one matrix, or use bmm"
            )
        if right.offset is not None:
            raise ValueError(f"{function}: w has an offset, which signs do not have; pass w.with_affine(w.scale)")
        # Tensors of its own, as the one given may keep this plan.
        self._w = copy(right)
        self._right, self.device = copy(self._w.repack(axis=-2, layout="planes")), right.device
        #: What was made of `w` belongs to the contents that it had, and may be made anew on another stream than a call's.
        self._seen, self._ready = Seen(contents_of_words(self._w)), interop.Ready()
        self._k, n = right.shape
        self.shape = (m, n)
        if variant[0] == "B" and (a_norm is not None or row_absmean):
            name = "a_norm" if a_norm is not None else "row_absmean"
            raise DTypeError(
                f"{function}: {name} needs the values of a, but variant {variant!r} takes its bits; drop it"
            )
        self._norm: Norm | None = None if a_norm is None else norm_of(function, a_norm, self._k)
        _check.accumulator(function, self._k, 1, 1)
        self._products: dict[tuple[bool, bool], Any] = {}
        #: On a GPU, what a call may do at once for arrays of CuPy's.
        self._short: ShortWay | None = None
        self._params = None if self._epilogue is None else self._epilogue.params(function, self.shape)
        if self.device == "cpu":
            self._forced = _check.kernel(function, kernel, backends.family("cpu", "matmul.matmul").KERNELS)
            self.kernel = self._forced or "packed"
            return
        self.kernel = _check.kernel(function, kernel, ("rows",)) or "rows"
        with working(right):
            if self._params is not None and self._epilogue is not None:
                terms = operand_terms(function, _NoTerms(self._k), self._right, False, ("a", "w"))
                own = terms._replace(
                    col_scale=None if terms.col_scale is None else interop.as_host(terms.col_scale, function, "w.scale")
                )
                self._params = self._epilogue.params(function, self.shape, own)
            self._short = ShortWay(
                self._product(False, False), self._right.words, self.device, self.dtype, m, self._k, self._epilogue
            )

    def _product(self, own_scale: bool, means: bool) -> Any:
        """The kernel's product, for activations with a scale of their own or none, with or without means; made once."""
        key = own_scale, means or self._scaled
        if key not in self._products:
            self._products[key] = backends.family(self.device, "binary.bmm").SignProduct(
                self._right.words,
                m=self.shape[0],
                k=self._k,
                dtype=self.dtype,
                norm=self._norm,
                epilogue=self._params,
                thresholds=None if own_scale or self._scaled else self._thresholds(),
                scale_rows=self._scaled or own_scale,
                absmean=means,
            )
        return self._products[key]

    def _thresholds(self) -> Any:
        """Integer thresholds equal to the chain's sign, where all rows share them."""
        p = self._params
        if p is None or not p.binarize or p.axis != -1 or not self.shape[0] or not self._k:
            return None
        if p.row_scale is not None and np.size(p.row_scale) != 1:
            return None
        scale = None if p.row_scale is None else np.asarray(p.row_scale).reshape(())
        return thresholds.of_epilogue(
            p._replace(row_scale=scale), np.ones(1, np.int64), self.shape[1], self._k, mean=False
        )

    def _renew(self) -> None:
        """Make again what was made of the weight, to which somebody has written, in the memory from which calls read it."""
        with working(self._w):
            if self._right._words is not self._w._words:
                words_to_overwrite(self._right)[...] = self._w.repack(axis=-2, layout="planes").words
            for product in self._products.values():
                product.renew()
            if self.device != "cpu":
                self._ready.renew()

    def explain(self) -> str:
        """What runs, in a few lines."""
        m, n = self.shape
        what = (
            "bits"
            if self.dtype is None
            else f"{self.dtype} binarised while loading"
            if self.device != "cpu"
            else f"{self.dtype}"
        )
        lines = [f"{m} x {self._k} x {n}, {self.variant}: activations {what}, kernel {self.kernel}"]
        for product in list(self._products.values())[:1]:
            t = product.tuning
            lines.append(f"blocks of {t.rows} rows and {t.warps} warps, {product.fused}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<BmmPlan shape={self.shape} variant={self.variant} kernel={self.kernel}>"

    def __call__(self, a: Any, out: Any = None, absmean: Any = None) -> Any:
        """The product with activations of the planned shape and dtype; see :func:`bmm`."""
        function, epilogue = self._function, self._epilogue
        self._seen.keep_up(self._renew)
        self._ready.wait()
        if self._short is not None and absmean is None and self._short.fits(a, out):
            result = self._short(a, out)
            if out is not None:
                return out
            return result if epilogue is None else epilogue.wrap(result, self.shape, interop.CUPY, function)
        with working_with(self.device, a, out):
            x, family, scale = self._activations(a)
            target = means = None
            read = (self._right.words, x if self.dtype is not None else x.words)
            if absmean is not None:
                if self.dtype is None:
                    raise DTypeError(
                        f"{function}: absmean needs the values of a, but variant {_check.shown(self.variant)} takes its bits; drop it"
                    )
                means = interop.writable_array(absmean, function)
                _check.out_array(function, means, self.shape[:1], np.dtype(np.float32))
                _check.same_device(function, (self.device, interop.device_of(means)))
                _check.no_overlap(function, means, *read)
            if out is not None:
                target = target_of(function, epilogue, out, self.shape, np.dtype(np.int32), self.device, read)
                if means is not None:
                    _check.no_overlap(function, means, target)
            if self.device == "cpu":
                return self._on_cpu(a, out, absmean)
            if scale is not None and epilogue is not None:
                product = self._product(True, False)
                result = product(x.words, target, row_scale=scale)
            else:
                result = self._product(False, means is not None)(
                    x if self.dtype is not None else x.words, target, means
                )
            if out is not None:
                return out
            if epilogue is None:
                return interop.from_array(result, family, function)
            return epilogue.wrap(result, self.shape, family, function)

    def _activations(self, a: Any) -> tuple[Any, interop.Family, Any]:
        """The activations as the kernel takes them, their family, and the row scale that bits may have."""
        function, wanted = self._function, (self.shape[0], self._k)
        letter = letters.activation_letter(function, "a", a)
        if letter != self.variant[0]:
            kind = "a BitTensor" if letter == "B" else "an array"
            raise DTypeError(
                f"{function}: a is {kind}, but the plan is for {_check.shown(self.variant)}; make another plan"
            )
        scale = None
        if letter == "B":
            x: Any = bipolar(function, "a", a)
            device, family = x.device, family_of(x)
        else:
            x, family = interop.as_array(a, function, "a")
            device = interop.device_of(x)
            check_array(function, "a", x)
            if x.dtype != self.dtype:
                raise DTypeError(
                    f"{function}: a has dtype {x.dtype}, but the plan is for {self.dtype}; make another plan, or use astype"
                )
        if device != self.device:
            raise DeviceError(f"{function}: a is on {device}, but w is on {self.device}; move one of them")
        if tuple(x.shape) != wanted:
            raise ShapeError(
                f"{function}: a has shape {tuple(x.shape)}, but the plan is for {wanted}; make another plan"
            )
        family = interop.common_family((family, family_of(self._right)))
        if letter == "B" and self.device != "cpu":
            x = x.repack(axis=-1, layout="planes")
            if x.offset is not None:
                raise ValueError(f"{function}: a has an offset, which signs do not have; pass a.with_affine(a.scale)")
            scale = operand_terms(function, x, self._right, False, ("a", "w")).row_scale
        elif letter == "F" and self.device != "cpu" and x.shape[1] > 1 and x.strides[1] != x.itemsize:
            raise ValueError(
                f"{function}: a has strides {x.strides}, but a plan reads rows that are contiguous; pass a copy, or use bmm"
            )
        return x, family, scale

    def _on_cpu(self, a: Any, out: Any, absmean: Any) -> Any:
        left, means = as_signs(self._function, "a", a, -1, self._norm, self._scaled or absmean is not None)
        return multiply(
            self._function,
            left,
            self._right,
            self._epilogue,
            means,
            out=out,
            absmean=absmean,
            kernel=self._forced,
            scaled=self._scaled,
        )

    def check(self) -> None:
        """Raise if a call since the last check met NaN, which has no sign; waits for those on a GPU, where results then mean nothing.

        A CPU raises as it goes. :func:`bmm` checks every time.

        Raises
        ------
        ValueError
        """
        if self.device == "cpu" or not any(product.may_see_nan for product in self._products.values()):
            return
        with interop.working_on(self.device, family_of(self._right)):
            seen = [product.nan_seen() for product in self._products.values() if product.may_see_nan]
        _check.no_nan(self._function, "a", any(mine for mine, _ in seen))
        _check.no_nan_in_epilogue(self._function, any(chain for _, chain in seen))


class _NoTerms:
    """A left operand without scale and offset."""

    scale = offset = None

    def __init__(self, k: int) -> None:
        self.shape = (0, k)

    @property
    def line_sums(self) -> Any:
        """Never asked for, as there is no offset."""
        return np.zeros(0, np.int64)


def _dtype_of(function: str, variant: str, dtype: Any) -> np.dtype[Any] | None:
    """The dtype of full-precision activations."""
    if variant[0] == "B":
        if dtype is not None:
            raise DTypeError(
                f"{function}: dtype={_check.shown(dtype)} is for full-precision activations, but variant {variant!r} takes bits; drop it"
            )
        return None
    return _check.dtype(function, np.float32 if dtype is None else dtype)

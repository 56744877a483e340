"""Products of signs that are prepared for one weight."""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse._records import replace
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import contents_of_words, family_of, kind_of, kind_of_bits, words_to_overwrite, working
from bitsparse.backends.params import OperandParams, words_shape
from bitsparse.errors import DTypeError, KernelError, ShapeError
from bitsparse.interop.identity import Seen
from bitsparse.ops.binary import letters
from bitsparse.ops.binary.signs import Norm, as_signs, bipolar, check_array, norm_of
from bitsparse.ops.finish import thresholds
from bitsparse.ops.finish.epilogue import Epilogue, as_array_or_bits, target_behind
from bitsparse.ops.finish.terms import Factor, operand_terms
from bitsparse.ops.matmul.products import multiply
from bitsparse.ops.operands.places import same_place, working_with
from bitsparse.ops.operands.target import target_array
from bitsparse.ops.plan import KeptCall


class Wanted(NamedTuple):
    """The options of a product of signs: letters, epilogue, batch norm of `a`, and whether mean magnitudes of rows scale the result."""

    variant: Any
    epilogue: Epilogue | None
    a_norm: Any
    row_absmean: bool


#: If both operands are packed, the kernel "rows" is used for right operands of up to this many bits; larger ones are quicker with
#: warpgroup instructions.
_SMALL_WEIGHT = 1 << 22


def checked_variant(function: str, variant: Any, found: str, epilogue: Any) -> str:
    """The three letters; refuses FFF, and letters that the operands (`found`) do not fit."""
    if letters.checked(function, variant, found, epilogue) == "FFF":
        raise ValueError(
            f"{function}: FFF is an ordinary product; use a @ w, or binarise something: variant 'FFB', or pack_bits(w, encoding='bipolar')"
        )
    return letters.fitting(function, variant, found, epilogue)


def rows_kernel_serves(function: str, a: Any, w: Any, device: str, *, forced: bool) -> bool:
    """Whether to use the kernel "rows" for these operands; if it is `forced` but does not take them, an error says why."""
    reason = _why_not(a, w, device)
    if reason and forced:
        raise KernelError(f"{function}: kernel 'rows' {reason}; pass kernel=None")
    if reason or forced:
        return not reason
    packed = isinstance(a, BitTensor)
    return not packed or w.shape[-2] * w.shape[-1] <= _SMALL_WEIGHT


def _why_not(a: Any, w: Any, device: str) -> str:
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


def full_precision_only(function: str, wanted: Wanted, absmean: bool) -> None:
    """Refuse options that need the values of activations if these are packed."""
    if wanted.variant[0] == "F":
        return
    asked = (("a_norm", wanted.a_norm is not None), ("row_absmean", wanted.row_absmean), ("absmean", absmean))
    for name, is_asked in asked:
        if is_asked:
            raise DTypeError(
                f"{function}: {name} needs the values of a, but variant {wanted.variant!r} takes its bits; drop {name}, give a as an "
                f"array, or use a.with_affine(scale) for a scale that is known"
            )


def multiply_signs(
    function: str,
    a: Any,
    right: BitTensor,
    wanted: Wanted,
    norm: Norm | None,
    kernel: str | None,
    out: Any,
    absmean: Any,
) -> Any:
    """The product of checked operands by the kernels of :func:`matmul`, for which `a` is packed first; `wanted` has all three letters."""
    epilogue = letters.with_output(function, wanted.variant[2], wanted.epilogue)
    left, means = as_signs(function, "a", a, -1, norm, wanted.row_absmean or absmean is not None)
    target = None
    if absmean is not None:
        read = () if isinstance(a, BitTensor) else (interop.as_array(a, function, "a")[0],)
        target = target_array(function, absmean, left.shape[:-1], np.dtype(np.float32), left.device, read, "absmean")
        if out is not None:
            result = out.words if isinstance(out, BitTensor) else interop.writable_array(out, function)
            _check.no_overlap(function, target, result, name="absmean")
    if wanted.row_absmean:
        left = left.with_affine(means[..., None])
        epilogue = Epilogue() if epilogue is None else epilogue
    # No tiles are skipped: a zero bit stands for -1.
    product = multiply(function, left, right, epilogue=epilogue, out=out, kernel=kernel)
    if target is not None:
        with working(left):
            target[...] = means
    return product


class BmmPlan:
    """A prepared product ``plan(a, out=None, absmean=None)``; made by :func:`plan_bmm`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    device : str
        Device of the weight, on which the activations must be too.
    variant : str
        BitGNN's three letters.
    a_dtype : dtype or None
        Dtype of full-precision activations; None if they are BitTensors.
    kernel : str
        ``"rows"`` on a GPU; on the CPU the forced kernel, or "packed".

    Examples
    --------
    >>> bs.plan_bmm(np.ones((40, 3)), 2, "FFB")
    <BmmPlan shape=(2, 3) variant=FFB kernel=packed>
    """

    def __init__(self, function: str, w: Any, m: int, wanted: Wanted, a_dtype: Any, kernel: str | None) -> None:
        self._function, self.variant, self._scaled = function, wanted.variant, wanted.row_absmean
        self._known_by = wanted  # held, since the ids of its parts are in the key of this plan
        finish = letters.with_output(function, self.variant[2], wanted.epilogue)
        self._epilogue = Epilogue() if finish is None and self._scaled else finish
        self._wanted = replace(wanted, epilogue=self._epilogue)
        #: Dtype of the result; if that is a BitTensor, of the integers that it holds.
        self.dtype: np.dtype[Any] = np.dtype(np.int32) if self._epilogue is None else self._epilogue.dtype
        self.a_dtype = _dtype_of(function, self.variant, a_dtype)
        right, _ = as_signs(function, "w", w, -2)
        if right.ndim != 2:
            raise ShapeError(
                f"{function}: w has shape {right.shape}, but a plan takes two dimensions; pass one matrix, or use bmm"
            )
        _no_offset(function, "w", right)
        # The plan holds copies of the tensor, which share its words: the tensor itself may keep this plan.
        self._w = copy(right)
        self._right, self.device = copy(self._w.repack(axis=-2, layout="planes")), right.device
        #: The contents of `w` for which the plan was prepared; after a write to `w`, another stream than a call's may prepare it again.
        self._seen, self._ready = Seen(contents_of_words(self._w)), interop.Ready()
        self._k, n = right.shape
        self.shape = (m, n)
        full_precision_only(function, wanted, False)
        self._norm: Norm | None = None if wanted.a_norm is None else norm_of(function, wanted.a_norm, self._k)
        _check.accumulator(function, self._k, 1, 1)
        self._products: dict[tuple[bool, bool], Any] = {}
        #: On a GPU, the call that CuPy arrays take without further checks, and the kinds of BitTensors that may take it.
        self._call: KeptCall | None = None
        self._a_kind: tuple[Any, ...] | None = None
        self._out_kind: tuple[Any, ...] | None = None
        self._params = None if self._epilogue is None else self._epilogue.params(function, self.shape)
        if self.device == "cpu":
            self._forced = _check.kernel(function, kernel, backends.family("cpu", "matmul.matmul").KERNELS)
            self.kernel = self._forced or "packed"
            return
        self.kernel = _check.kernel(function, kernel, ("rows",)) or "rows"
        with working(right):
            if self._params is not None and self._epilogue is not None:
                scale = operand_terms(function, Factor((0, self._k)), self._right, False, ("a", "w")).col_scale
                own = OperandParams(None, None if scale is None else interop.as_host(scale, function, "w.scale"))
                self._params = self._epilogue.params(function, self.shape, own)
            self._keep_call()

    def _keep_call(self) -> None:
        """Compile the kernel, and prepare the call that arrays and BitTensors of exactly the planned kind need."""
        product, words = self._product(False, False), self._right.words
        kind: Any = (self.shape[0], self._k), self.a_dtype
        if self.a_dtype is None:
            kind = words_shape(kind[0], 1, -1, "planes"), np.dtype(np.uint32)
            self._a_kind = kind_of_bits((self.shape[0], self._k), 1, -1, "planes", "bipolar", self.device, interop.CUPY)
        if self._epilogue is not None and self._epilogue.gives_bits:
            self._out_kind = kind_of(self._epilogue.wrap(words[:0], self.shape, interop.CUPY, self._function))
        result = product.out_shape, product.out_dtype
        self._call = KeptCall(product, (kind,), result, self.device, ready=self._ready, beside=(words,))

    def compile_rest(self) -> None:
        """Compile the further kernels that calls on a GPU may need: with mean magnitudes of rows, or with a scale of packed activations."""
        if self.device != "cpu":
            with working(self._right):
                self._product(self.a_dtype is None and self._epilogue is not None, self.a_dtype is not None)

    def _product(self, own_scale: bool, means: bool) -> Any:
        """The product of the kernel, for activations with or without their own scale, and with or without means; created once."""
        key = own_scale, means or self._scaled
        if key not in self._products:
            self._products[key] = backends.family(self.device, "binary.bmm").SignProduct(
                self._right.words,
                m=self.shape[0],
                k=self._k,
                dtype=self.a_dtype,
                norm=self._norm,
                epilogue=self._params,
                thresholds=None if own_scale or self._scaled else self._thresholds(),
                scale_rows=self._scaled or own_scale,
                absmean=means,
            )
        return self._products[key]

    def _thresholds(self) -> Any:
        """Integer thresholds equal to the chain's sign, if all rows share them; else None."""
        p = self._params
        if p is None or not p.binarize or p.axis != -1 or not self.shape[0] or not self._k:
            return None
        if p.row_scale is not None and np.size(p.row_scale) != 1:
            return None
        scale = None if p.row_scale is None else np.asarray(p.row_scale).reshape(())
        return thresholds.of_epilogue(
            replace(p, row_scale=scale), np.ones(1, np.int64), self.shape[1], self._k, mean=False
        )

    def _renew(self) -> None:
        """Prepare the weight again after a write to it, in the same memory as before, as captured calls read that."""
        with working(self._w):
            if self._right.words is not self._w.words:
                words_to_overwrite(self._right)[...] = self._w.repack(axis=-2, layout="planes").words
            for product in self._products.values():
                product.renew()
            if self.device != "cpu":
                self._ready.renew()

    @property
    def nbytes(self) -> int:
        """Bytes that the plan keeps in addition to the words of `w`."""
        own = 0 if self._right.words is self._w.words else self._right.words.nbytes
        return int(own) + sum(int(product.nbytes) for product in self._products.values())

    def explain(self) -> str:
        """Say in a few lines what runs."""
        (m, n), what = self.shape, "bits" if self.a_dtype is None else str(self.a_dtype)
        if self.a_dtype is not None and self.device != "cpu":
            what += " binarised while loading"
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
        call = self._call
        if call is not None and absmean is None:
            x, words = _array_of(a, self._a_kind), _array_of(out, self._out_kind)
            if x is not None and (words is None) == (out is None) and call.fits((x,), words):
                if self._out_kind is not None and out is not None:
                    words_to_overwrite(out)
                result = call((x,), words)
                if out is not None:
                    return out
                return result if epilogue is None else epilogue.wrap(result, self.shape, interop.CUPY, function)
        self._ready.wait()
        with working_with(self.device, a, out):
            full_precision_only(function, self._wanted, absmean is not None)
            x, family, scale = self._activations(a)
            if self.device == "cpu":
                return multiply_signs(function, a, self._right, self._wanted, self._norm, self._forced, out, absmean)
            x = x if self.a_dtype is not None else x.words
            read, target, means = (self._right.words, x), None, None
            if absmean is not None:
                means = target_array(
                    function, absmean, self.shape[:1], np.dtype(np.float32), self.device, read, "absmean"
                )
            if out is not None:
                target = target_behind(function, epilogue, out, self.shape, np.dtype(np.int32), self.device, read)
                if means is not None:
                    _check.no_overlap(function, means, target, name="absmean")
            if scale is not None and epilogue is not None:
                result = self._product(True, False)(x, target, row_scale=scale)
            else:
                result = self._product(False, means is not None)(x, target, means)
            if out is not None:
                return out
            return as_array_or_bits(function, epilogue, result, self.shape, family)

    def _activations(self, a: Any) -> tuple[Any, interop.Family, Any]:
        """The checked activations, their family, and the row scale that packed activations may have."""
        function, wanted = self._function, (self.shape[0], self._k)
        letter = letters.activation_letter(function, "a", a)
        if letter != self.variant[0]:
            kind = "a BitTensor" if letter == "B" else "an array"
            _check.planned(function, "a is", kind, _check.shown(self.variant), DTypeError)
        scale = None
        if letter == "B":
            x: Any = bipolar(function, "a", a)
            _no_offset(function, "a", x)
            device, family = x.device, family_of(x)
        else:
            x, family = interop.as_array(a, function, "a")
            device = interop.device_of(x)
            check_array(function, "a", x)
            _check.planned(function, "a has dtype", x.dtype, self.a_dtype, DTypeError)
        same_place(function, [("a", device), ("w", self.device)])
        _check.planned(function, "a has shape", tuple(x.shape), wanted)
        family = interop.common_family((family, family_of(self._right)))
        if letter == "B" and self.device != "cpu":
            x = x.repack(axis=-1, layout="planes")
            scale = operand_terms(function, x, self._right, False, ("a", "w")).row_scale
        elif letter == "F" and self.device != "cpu" and x.shape[1] > 1 and x.strides[1] != x.itemsize:
            raise ValueError(
                f"{function}: a has strides {x.strides}, but a plan reads rows that are contiguous; pass a copy, or use bmm"
            )
        return x, family, scale

    def check(self) -> None:
        """Raise if a call since the last check met NaN, which has no sign; such results are meaningless. Waits for calls on a GPU.

        On a CPU each call raises by itself. :func:`bmm` checks every time.

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


def _array_of(x: Any, kind: tuple[Any, ...] | None) -> Any:
    """The array itself if `kind` is None; else the words of a BitTensor of this kind without scale and offset, or None."""
    if kind is None:
        return x
    right_kind = x.__class__ is BitTensor and kind_of(x) == kind and x.scale is None and x.offset is None
    return x.words if right_kind else None


def _no_offset(function: str, name: str, x: BitTensor) -> None:
    """Refuse an offset, on a CPU too, so that a plan that works on one device works on the other."""
    if x.offset is not None:
        raise ValueError(
            f"{function}: {name} has an offset, which a plan leaves out; pass {name}.with_affine({name}.scale), or use bmm"
        )


def _dtype_of(function: str, variant: str, dtype: Any) -> np.dtype[Any] | None:
    """The checked dtype of full-precision activations; None for packed ones."""
    if variant[0] == "B":
        if dtype is not None:
            raise DTypeError(
                f"{function}: dtype={_check.shown(dtype)} is for full-precision activations, but variant {variant!r} takes bits; drop it"
            )
        return None
    return _check.dtype(function, np.float32 if dtype is None else dtype)

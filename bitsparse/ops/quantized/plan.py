"""Products of real activations with a weight of a few bits, prepared for that weight."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import assembled, contents_of_words, words_to_overwrite, working
from bitsparse.errors import DTypeError, KernelError, ShapeError
from bitsparse.interop.arrays import as_host_floats
from bitsparse.interop.identity import Seen
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.finish import schemes
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.matmul.products import LeftKind, Products, RightKind, products_of_codes
from bitsparse.ops.operands.places import same_place, working_with
from bitsparse.ops.operands.target import target_array
from bitsparse.ops.quantized.operands import Settings, bytes_of, checked_dtype, codes_of, weight_of

#: The first two kernels quantise while they load; "composed" quantises first and then multiplies.
KERNELS = ("wgmma", "mma", "composed")
_SMALLEST = np.finfo(np.float32).smallest_normal


class QuantizedProduct(NamedTuple):
    """The result of a quantised product, with the quantised operands.

    Attributes
    ----------
    out : float32 array (m, n)
    x, w : BitTensor
        The codes of both operands with their scales, in rows layout, packed along the contraction axis. A `w` given as BitTensor is
        returned itself.

    Examples
    --------
    >>> w = np.array([[1.0], [0.5]], np.float32)
    >>> bs.quantized_matmul(w.T, w, return_operands=True).w.toarray().T
    array([[127,  64]], dtype=int8)
    """

    out: Any
    x: BitTensor
    w: BitTensor


class QuantizedMatmulPlan:
    """A prepared product ``plan(x, out=None)``; made by :func:`plan_quantized_matmul`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    device : str
        Device of the weight, on which the activations must be too.
    dtype, x_dtype : dtype
        Dtype of the result, float32, and of the activations.
    kernel : str
        ``"wgmma"``, ``"mma"`` or ``"composed"``.
    w : BitTensor
        The weight's codes.

    Examples
    --------
    >>> bs.plan_quantized_matmul(np.ones((40, 3)), 2)
    <QuantizedMatmulPlan shape=(2, 3) bits=8 float32 kernel=composed>
    """

    def __init__(
        self,
        function: str,
        w: Any,
        m: int,
        settings: Settings,
        x_dtype: Any = None,
        bias: Any = None,
        kernel: Any = None,
    ) -> None:
        self._function, self.settings = function, settings
        self.dtype = np.dtype(np.float32)
        self.x_dtype = checked_dtype(function, _check.dtype(function, np.float32 if x_dtype is None else x_dtype))
        self._seed, self._given = settings.drawn(), isinstance(w, BitTensor)
        self.w = weight_of(function, w, settings, self._seed)
        self._k, n = self.w.shape
        self.shape, self.device = (m, n), self.w.device
        epilogue = None if bias is None else Epilogue(bias=bias)
        self.kernel = self._chosen(kernel)
        self._product: Any = None
        self._right: BitTensor | None = None  # the weight as products of BitTensors read it
        self._bytes: Any = None
        #: Notices writes to `w`, of which the plan may keep repacked copies.
        self._seen = Seen(contents_of_words(self.w))
        self._ready = interop.Ready()
        kinds = LeftKind((m, self._k), settings.bits, "signed"), RightKind.of(self.w)
        if epilogue is None:
            self._products = products_of_codes(function, self.device, *kinds)
        else:
            self._products = Products(function, self.device, *kinds, epilogue)
        if self.kernel == "composed":
            return
        with working(self.w):
            self._bytes = bytes_of(self.w)
            scale = np.ones((), np.float32) if self.w.scale is None else self.w.scale
            self._product = backends.family(self.device, "quantized.product").QuantizedProduct(
                self._bytes,
                (m, n, self._k),
                dtype=self.x_dtype,
                bits=settings.bits,
                rounding=settings.rounding,
                w_scale=scale.reshape(-1) if scale.size > 1 else scale.reshape(()),
                bias=None if epilogue is None else epilogue.params(function, self.shape).bias,
                kernel=self.kernel,
            )

    def _renew(self) -> None:
        """Pack the weight again after a write to it, into the same memory as before, as captured calls read that."""
        with working(self.w):
            if self._right is not None and self._right.words is not self.w.words:
                words_to_overwrite(self._right)[...] = self.w.repack(axis=-2, layout="planes").words
            if self._bytes is not None and self._bytes is not self.w.words:
                self._bytes[...] = bytes_of(self.w)
            if self.device != "cpu":
                self._ready.renew()

    def _chosen(self, forced: Any) -> str:
        name = _check.kernel(self._function, forced, KERNELS)
        reason = self._why_not()
        if name is None or name == "composed":
            if name or reason:
                return "composed"
            return KERNELS[0 if backends.family(self.device, "quantized.product").has_wgmma() else 1]
        if not reason and name == "wgmma" and not backends.family(self.device, "quantized.product").has_wgmma():
            reason = "needs a Hopper GPU"
        if reason:
            raise KernelError(f"{self._function}: kernel {_check.shown(name)} {reason}; pass kernel=None")
        return name

    def _why_not(self) -> str:
        """Why no kernel that quantises while it loads can be used; empty if one can."""
        low, high = _check.limits_of(self.w.bits, self.w.encoding)
        if self.device == "cpu":
            return "runs on a GPU, but w is on the CPU"
        if 0 in (*self.shape, self._k):
            return f"multiplies something, but x has shape {(self.shape[0], self._k)} and w {self.w.shape}"
        if low < -128 or high > 127:
            return f"takes weights that fit into signed bytes, but w has {self.w.bits} {self.w.encoding} bits"
        if 127 * 128 * self._k >= 1 << 31:
            return f"adds up to {((1 << 31) - 1) // (127 * 128)} products in 32 bits, but there are {self._k}"
        return ""

    @property
    def nbytes(self) -> int:
        """Bytes that the plan keeps in addition to the codes of `w`."""
        right = None if self._right is None else self._right.words
        kept = sum(part.nbytes for part in (right, self._bytes) if part is not None and part is not self.w.words)
        return kept + (0 if self._product is None else int(self._product.nbytes))

    def explain(self) -> str:
        """Say in a few lines what runs."""
        (m, n), s = self.shape, self.settings
        how = "quantised, then multiplied" if self.kernel == "composed" else "quantised while loading"
        return (
            f"{m} x {self._k} x {n}: {self.x_dtype} to {s.bits} bits ({s.rounding}) x {self.w.bits} {self.w.encoding}\n"
            f"kernel {self.kernel}: activations {how}"
        )

    def __repr__(self) -> str:
        return f"<QuantizedMatmulPlan shape={self.shape} bits={self.settings.bits} {self.x_dtype} kernel={self.kernel}>"

    def __call__(
        self,
        x: Any,
        out: Any = None,
        *,
        scale: Any = None,
        range: Any = None,
        seed: int | None = None,
        absmax: Any = None,
        return_operands: bool = False,
    ) -> Any:
        """The product with activations of the planned shape and dtype; see :func:`quantized_matmul`."""
        return self.run(x, out, scale, range, seed, absmax, return_operands)

    def run(
        self,
        x: Any,
        out: Any,
        scale: Any,
        range: Any,
        seed: Any,
        absmax: Any,
        wanted: bool,
        *,
        copies: bool = False,
        stream: Any = None,
    ) -> Any:
        """Run a call; `copies` allows activations with gaps within rows, `stream` replaces the plan's stream of draws (see Coding)."""
        function = self._function
        with working_with(self.device, x, out):
            self._seen.keep_up(self._renew)
            array, family = interop.as_array(x, function)
            same_place(function, [("x", interop.device_of(array)), ("w", self.device)])
            _check.planned(function, "x has dtype", array.dtype, self.x_dtype, DTypeError)
            _check.planned(function, "x has shape", tuple(array.shape), (self.shape[0], self._k))
            if self._product is not None and array.shape[1] > 1 and array.strides[1] != array.itemsize:
                if not copies:
                    raise ValueError(
                        f"{function}: x has strides {array.strides}, but a plan reads rows that are contiguous; pass a copy"
                    )
                array = interop.contiguous(array)
            if scale is not None and range is not None:
                raise ValueError(f"{function}: scale and range both say how x is quantised; pass one of them")
            step, largest = self._one_number("scale", scale), self._one_number("range", range)
            number = self._seed_of(seed)
            stream = self.settings.stream if stream is None else stream
            target, top = self.targets(array, out, absmax, step, largest)
            s, codes = self.settings, None
            if self._product is None:
                coding = Coding(s.bits, s.rounding, number, stream)
                q = codes_of(function, "x", array, family, coding, scale=step, largest=largest)
                result = self.of_codes(q, out, top)
                codes = q.repack(layout="rows") if wanted else None
            else:
                if target is None:
                    target = interop.require_cupy(function).empty(self.shape, np.float32)
                if largest is not None and interop.device_of(largest) == "cpu":  # the grid is computed here
                    step = schemes.grid_from_range(function, "symmetric", s.bits, largest, largest, np.float32).scale
                    largest = None
                drawn: dict[str, Any] = {"seed": number, "stream": stream}
                if wanted:
                    words, size, largest = self._product.room_for_codes(array, step, largest)
                    form = array.shape, s.bits, -1, "rows", "signed", family
                    codes, drawn["codes"] = assembled(BitTensor, words, *form, size), words
                self._product(array, target, scale=step, largest=largest, absmax=top, **drawn)
                result = interop.from_array(target, family, function) if out is None else out
        if codes is None:
            return result
        return QuantizedProduct(result, codes, self.w if self._given else self.w.repack(layout="rows"))

    def of_codes(self, q: BitTensor, out: Any = None, absmax: Any = None) -> Any:
        """The product with activations that have been quantised already."""
        with working_with(self.device, q, out):
            self._seen.keep_up(self._renew)
            self._ready.wait()
            if self._right is None:
                self._right = self.w.repack(axis=-2, layout="planes")
                if self.device != "cpu":
                    self._ready.renew()
        result = self._products.once(q, self._right, out)
        if absmax is not None:
            y = interop.as_array(result, self._function)[0]
            with working_with(self.device, result):
                interop.writable_array(absmax, self._function, "absmax")[...] = abs(y).max() if y.size else 0
        return result

    def _seed_of(self, seed: Any) -> int:
        """The seed of a call: its own, the plan's, or a fresh one."""
        stochastic = self.settings.rounding == "stochastic"
        if seed is None and (self.settings.seed is not None or not stochastic):
            return self._seed
        return schemes.checked_seed(self._function, self.settings.rounding, seed, self.settings.stream)[0]

    def _one_number(self, name: str, value: Any) -> Any:
        """A scale or range as a float32 on the host, or as one element on the device, which the kernel reads when it runs."""
        if value is None:
            return None
        function, there = self._function, interop.gpu_of(value)
        if there is not None and self._product is not None:
            array = interop.as_array(value, function, name)[0]
            same_place(function, [(name, there[0]), ("w", self.device)])
            if array.size != 1 or array.dtype != np.float32:
                raise ShapeError(
                    f"{function}: {name} on a GPU must be one float32, got shape {tuple(array.shape)} of {array.dtype}"
                )
            return array.reshape(())
        array = as_host_floats(value, function, name)
        if array.size != 1:
            raise ShapeError(
                f"{function}: {name} has shape {array.shape}, but there is one for the whole of x; pass a number"
            )
        number = array.reshape(())
        if name == "scale" and not number >= _SMALLEST:
            raise ValueError(f"{function}: scale must be positive and normal, got {number}")
        if number < 0:
            raise ValueError(f"{function}: range is the absmax of x and cannot be negative, got {number}")
        return number

    def targets(self, x: Any, out: Any, absmax: Any, *numbers: Any) -> tuple[Any, Any]:
        """The arrays behind `out` and `absmax`, or None; refuses arrays that cannot take the product with activations `x`.

        `numbers` are further arrays or numbers that the kernel reads.
        """
        function, target, top = self._function, None, None
        if out is None and absmax is None:
            return None, None
        read = [x, self.w.words, *(one for one in numbers if one is not None and interop.device_of(one) != "cpu")]
        if out is not None:
            target = target_array(function, out, self.shape, self.dtype, self.device, read)
            read.append(target)
        if absmax is not None:
            top = interop.writable_array(absmax, function, "absmax")
            if top.shape not in ((), (1,)) or top.dtype != np.float32:
                raise ShapeError(
                    f"{function}: absmax must be one float32, shape () or (1,), got {top.shape} of {top.dtype}"
                )
            target_array(function, absmax, top.shape, top.dtype, self.device, read, "absmax")
        return target, top

    def check(self) -> None:
        """Raise if a call since the last check met NaN or infinity; such results are meaningless. Waits for calls on a GPU.

        On a CPU each call raises by itself. :func:`quantized_matmul` checks every time.

        Raises
        ------
        ValueError
        """
        if self._product is not None:
            with working(self.w):
                _check.finite(self._function, "x", not self._product.not_finite())

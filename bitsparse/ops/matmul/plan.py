"""Products of BitTensors, prepared for one left operand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays import construct
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import assembled, contents_of_words, family_of, kind_of, words_to_overwrite, working
from bitsparse.arrays.packed import kind_of_bits
from bitsparse.backends.params import EpilogueParams, OperandParams
from bitsparse.errors import DeviceError, DTypeError, ShapeError
from bitsparse.interop.identity import Seen
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.finish.terms import operand_terms

__all__ = ["MatmulPlan", "as_bits", "target_of"]

#: The chain, and on a GPU what the operands contribute to it.
_Chain = tuple[EpilogueParams, OperandParams | None]


class MatmulPlan:
    """A prepared product ``plan(b)``; made by :func:`plan_matmul`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    device : str
        Where the left operand is and the right ones must be.
    kernel : str
        The kernel chosen or forced.
    acc_dtype : dtype
        int32 or int64, whichever cannot overflow.
    share_skipped : float
        Share of the 8 x 128 tiles of `a` that are zero and skipped.
    """

    def __init__(
        self,
        function: str,
        a: BitTensor,
        n: int,
        bits: int,
        encoding: str,
        batch: tuple[int, ...],
        epilogue: Epilogue | None,
        kernel: str | None,
        skip_zero_tiles: bool,
    ) -> None:
        if epilogue is not None and not isinstance(epilogue, Epilogue):
            raise DTypeError(f"{function}: epilogue must be an Epilogue, got {type(epilogue).__name__}")
        self.device = a.device
        backend = backends.family(self.device, "matmul.matmul")
        forced = _check.kernel(function, kernel, backend.KERNELS)
        self._function, self._a, self._epilogue = function, a, epilogue
        self._b_shape, self._b_bits, self._b_encoding = (*batch, a.shape[-1], n), bits, encoding
        self.shape = (*_check.batches(function, a.shape[:-2], batch), a.shape[-2], n)
        self.acc_dtype = _check.accumulator(
            function, a.shape[-1], _largest(a.bits, a.encoding), _largest(bits, encoding)
        )
        self.forced, self._skips = forced is not None, skip_zero_tiles and bool(a.size)
        self._kernels = backend.CHOICES if forced is None else (forced,)
        #: What the plan made of `a` belongs to the contents that `a` had.
        self._seen = Seen(contents_of_words(self._a))
        self._prepare()
        # On a GPU calls take a short way for operands of CuPy's that leave nothing to be decided.
        self._plain: tuple[Any, ...] | None = None
        if self.device != "cpu" and epilogue is None and family_of(a) is interop.CUPY:
            left: Any = self._left.words
            right_shape = construct.words_shape(self._b_shape, bits, -2, "planes")
            out_bytes = int(np.prod(self.shape, dtype=object)) * self.acc_dtype.itemsize
            self._plain = kind_of_bits(self._b_shape, bits, -2, "planes", encoding, self.device, interop.CUPY)
            self._gpu, self._current_gpu = int(self.device[5:]), interop.current_gpu()
            self._memory = (left.data.ptr, left.nbytes, 4 * int(np.prod(right_shape, dtype=object)), out_bytes)
        self._own_chain = EpilogueParams() if epilogue is None else epilogue.params(function, self.shape)
        self._chain: tuple[Any, Any, _Chain] | None = None

    def _prepare(self) -> None:
        """Choose a kernel for the contents of `a`, and make of them what it needs."""
        a, bits, backend = self._a, self._b_bits, backends.family(self.device, "matmul.matmul")
        n, k = self._b_shape[-1], a.shape[-1]
        with working(a):
            self._left = a.repack(axis=-1, layout="planes")
            density = self._left.tile_density if self._skips else 1.0
            rows = int(np.prod(self.shape[:-1], dtype=object))
            self.costs = {name: backend.cost(name, rows, n, k, a.bits, bits, density) for name in self._kernels}
            self.kernel = min(self._kernels, key=self.costs.__getitem__)
            self.share_skipped = 1.0 - density
            self._product = backend.prepare(
                self._left.words,
                k=k,
                n=n,
                a_bits=a.bits,
                b_bits=bits,
                a_encoding=a.encoding,
                b_encoding=self._b_encoding,
                b_batch=self._b_shape[:-2],
                acc_dtype=self.acc_dtype,
                # A bitmap without a zero tile only costs the kernel its run lists.
                bitmap=self._left.tile_bitmap if self.share_skipped > 0 else None,
                kernel=self.kernel,
            )

    def _renew(self) -> None:
        """Prepare anew what was made of `a`, to which somebody has written; a plan that reads its words as they are needs nothing."""
        if self._left is self._a and not self._skips and not self._product.keeps_left:
            return
        if interop.is_capturing(self.device):
            raise DeviceError(
                f"{self._function}: a was written to after the plan was made, and what the plan keeps of it cannot be made anew while "
                f"the stream is capturing; call the plan once between the two, or plan with skip_zero_tiles=False"
            )
        self._prepare()

    def explain(self) -> str:
        """Which kernel runs, why, and what is skipped, in a few lines."""
        *batch, m, n = self.shape
        k = self._a.shape[-1]
        repacked = " (a repacked to axis -1, planes)" if self._left is not self._a else ""
        costs = ", ".join(f"{name} {cost / 1e6:.3g} ms" for name, cost in self.costs.items() if np.isfinite(cost))
        return "\n".join(
            (
                f"{m} x {k} x {n}{f' in batches {tuple(batch)}' if batch else ''}: "
                f"{self._a.bits} {self._a.encoding} x {self._b_bits} {self._b_encoding}{repacked}",
                f"kernel {self.kernel} ({'forced' if self.forced else 'lowest estimated cost'}; {costs})",
                f"accumulator {self.acc_dtype}, zero tiles skipped {100 * self.share_skipped:.1f} %",
                *self._product.explain(self._epilogue is not None),
            )
        )

    def __repr__(self) -> str:
        return (
            f"<MatmulPlan shape={self.shape} kernel={self.kernel} skips {100 * self.share_skipped:.1f} % of the tiles>"
        )

    def __call__(self, b: Any, out: Any = None) -> Any:
        """The product with one right operand of the planned shape, bits and encoding."""
        self._seen.keep_up(self._renew)
        plain = self._plain
        if plain is not None and b.__class__ is BitTensor and (b._kind_kept is plain or kind_of(b) == plain):
            quick, words = self._product.quick, b.words
            if quick is not None and self._current_gpu() == self._gpu and (out is None or self._fits(out, words)):
                return quick(words, out)
        function = self._function
        b = as_bits(function, "b", b, -2)
        if b.shape != self._b_shape:
            raise ShapeError(
                f"{function}: b has shape {b.shape}, but the plan is for {self._b_shape}; make another plan"
            )
        if (b.bits, b.encoding) != (self._b_bits, self._b_encoding):
            raise DTypeError(
                f"{function}: b has {b.bits} {b.encoding} bits, but the plan is for {self._b_bits} {self._b_encoding}; make another plan"
            )
        _check.same_device(function, (self.device, b.device))
        family = interop.common_family((family_of(self._a), family_of(b)))
        with interop.working_on(self.device, family):
            right = b.repack(axis=-2, layout="planes")
            target = None if out is None else self._target(out, self._left.words, right.words)
            result = self._product(right.words, target, *self._finish(right))
            if out is not None:
                return out
            if self._epilogue is None:
                return interop.from_array(result, family, function)
            return self._epilogue.wrap(result, self.shape, family, function)

    def _fits(self, out: Any, right: Any) -> bool:
        """Whether a CuPy array can take the result without a further question; all others are looked at by :meth:`_target`."""
        if out.__class__ is not right.__class__ or out.shape != self.shape or out.dtype != self.acc_dtype:
            return False
        start, right_start = out.data.ptr, right.data.ptr
        left_start, left_bytes, right_bytes, out_bytes = self._memory
        end = start + out_bytes
        apart = (start >= left_start + left_bytes or end <= left_start) and (
            start >= right_start + right_bytes or end <= right_start
        )
        return bool(apart and out.flags.c_contiguous and out.data.device_id == self._gpu)

    def check(self) -> None:
        """Raise if an epilogue met NaN on its way to bits in a product since the last check; waits for those on a GPU.

        A CPU raises as it goes. On a GPU a plan does not wait, and such results hold the smallest code; :func:`matmul` checks every time.

        Raises
        ------
        ValueError
        """
        if self.device != "cpu" and self._epilogue is not None and self._epilogue.gives_bits:
            with interop.working_on(self.device, family_of(self._a)):
                _check.no_nan_in_epilogue(self._function, self._product.nan_seen())

    def _finish(self, right: BitTensor) -> _Chain | tuple[()]:
        """The chain behind this product; the last one is kept as long as right operands bring along the same scale."""
        epilogue, kept = self._epilogue, self._chain
        if epilogue is None:
            return ()
        if kept is not None and kept[0] is right.scale and kept[1] is right.offset:
            return kept[2]
        operands = operand_terms(self._function, self._left, right, epilogue.offset_correction)
        if self.device == "cpu":
            chain: _Chain = epilogue.params(self._function, self.shape, operands), None
        else:
            chain = self._own_chain, epilogue.behind(operands, self.device)
        if operands.row_term is None and operands.col_term is None:  # those depend on the integers
            self._chain = (right.scale, right.offset, chain)
        return chain

    def _target(self, out: Any, *operands: Any) -> Any:
        """The NumPy or CuPy array behind ``out``, checked before anything is written."""
        return target_of(self._function, self._epilogue, out, self.shape, self.acc_dtype, self.device, operands)


def target_of(
    function: str,
    epilogue: Epilogue | None,
    out: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: str,
    operands: Iterable[Any],
) -> Any:
    """The NumPy or CuPy array behind ``out``, into which a product goes: through the epilogue, or as sums of ``dtype``.

    Checked before anything is written: what it is, where it is, and that it shares no memory with the operands' arrays.
    """
    if epilogue is not None and epilogue.gives_bits:
        if not isinstance(out, BitTensor):
            raise DTypeError(
                f"{function}: the epilogue gives bits, so out must be a BitTensor, got {type(out).__name__}; pass out=None"
            )
        model = epilogue.wrap(next(iter(operands))[:0], shape, interop.NUMPY, function)
        wanted = (model.shape, model.bits, model.axis, model.layout, model.encoding)
        found = (out.shape, out.bits, out.axis, out.layout, out.encoding)
        if found != wanted:
            raise ShapeError(
                f"{function}: out is (shape, bits, axis, layout, encoding) {found}, but the result is {wanted}"
            )
        for name in ("scale", "offset"):
            mine, theirs = getattr(model, name), getattr(out, name)
            if not (mine is theirs or (mine is not None and theirs is not None and np.array_equal(mine, theirs))):
                raise ValueError(
                    f"{function}: out has another {name} than the epilogue writes; make it with_affine(scale, offset)"
                )
        words = words_to_overwrite(out)
    else:
        if isinstance(out, BitTensor):
            raise DTypeError(
                f"{function}: the result is an ordinary array, but out is a BitTensor; pass Epilogue(bits=...) or another out"
            )
        words = interop.writable_array(out, function)
        _check.out_array(function, words, shape, dtype if epilogue is None else np.dtype(np.float32))
    _check.same_device(function, (device, interop.device_of(words)))
    _check.no_overlap(function, words, *operands)
    return words


def _largest(bits: int, encoding: str) -> int:
    return max(abs(limit) for limit in _check.limits_of(bits, encoding))


def as_bits(function: str, name: str, x: Any, axis: int) -> BitTensor:
    """A BitTensor as it is; an ordinary integer array packed along the contraction axis."""
    if isinstance(x, BitTensor):
        return x
    array, family = interop.as_array(x, function, name)
    if array.dtype.kind not in "biu":
        raise DTypeError(
            f"{function}: {name} has dtype {array.dtype}, but products of bits are exact integers; quantize {name}, or multiply with "
            f".dequantize() of the other operand"
        )
    signed = array.dtype.kind == "i" and array.size > 0 and int(array.min()) < 0
    parts = construct.pack(
        function, array, None, encoding="signed" if signed else "unsigned", axis=axis, layout="planes"
    )
    return assembled(BitTensor, *parts._replace(family=family))

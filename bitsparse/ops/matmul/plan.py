"""Products of BitTensors, prepared for one left operand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import contents_of_words, family_of, kind_of, kind_of_bits
from bitsparse.backends.params import OperandParams, words_shape
from bitsparse.errors import DeviceError, DTypeError
from bitsparse.interop.identity import Seen
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.matmul.products import LeftKind, Products, RightKind, as_bits


class MatmulPlan:
    """A prepared product ``plan(b)``; made by :func:`plan_matmul`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    device : str
        Device of the left operand, on which right operands must be too.
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
        right: RightKind,
        epilogue: Epilogue | None,
        kernel: str | None,
        skip_zero_tiles: bool,
    ) -> None:
        self._function, self._a, self._right = function, a, right
        self._products = Products(function, a.device, LeftKind.of(a), right, epilogue, kernel)
        self.device, self.shape, self.acc_dtype = a.device, self._products.shape, self._products.acc_dtype
        #: Dtype of the result; if that is a BitTensor, of the integers that it holds.
        self.dtype = self.acc_dtype if epilogue is None else epilogue.dtype
        self._skips = skip_zero_tiles
        #: The contents of `a` for which the plan was prepared.
        self._seen = Seen(contents_of_words(a))
        self._prepare()
        # On a GPU, calls with CuPy operands for which every decision has been made take a short path.
        self._plain: tuple[Any, ...] | None = None
        if self.device != "cpu" and epilogue is None and family_of(a) is interop.CUPY:
            left: Any = self._prepared.left.words
            b_shape = self._products.b_shape
            right_shape = words_shape(b_shape, right.bits, -2, "planes")
            out_bytes = math.prod(self.shape) * self.acc_dtype.itemsize
            self._plain = kind_of_bits(b_shape, right.bits, -2, "planes", right.encoding, self.device, interop.CUPY)
            self._gpu, self._current_gpu = int(self.device[5:]), interop.current_gpu()
            self._memory = (left.data.ptr, left.nbytes, 4 * math.prod(right_shape), out_bytes)
        self._behind: tuple[Any, Any, OperandParams | None] | None = None

    def _prepare(self) -> None:
        """Prepare what the kernel needs from the contents of `a`."""
        prepared = self._prepared = self._products.prepare(self._a, self._skips)
        self.kernel, self.share_skipped = prepared.kernel, 1.0 - prepared.density
        #: Estimated nanoseconds of the kernels that were compared.
        self.costs = prepared.costs
        #: The backend's product of the words of `a` with others.
        self.product = product = prepared.product
        self._quick = product.run_plain if product.is_plain else None

    def _renew(self) -> None:
        """Prepare again after `a` was written to; a plan that reads the words of `a` directly has nothing to prepare."""
        if self._prepared.left is self._a and not self._skips and not self.product.keeps_left:
            return
        if interop.is_capturing(self.device):
            raise DeviceError(
                f"{self._function}: a was written to after the plan was made, and what the plan keeps of it cannot be made anew while "
                f"the stream is capturing; call the plan once between the two, or plan with skip_zero_tiles=False"
            )
        self._prepare()

    @property
    def nbytes(self) -> int:
        """Bytes that the plan keeps in addition to the words of `a`."""
        left = self._prepared.left
        repacked = 0 if left is self._a else left.words.nbytes
        return repacked + int(self.product.nbytes)

    def explain(self) -> str:
        """Say in a few lines which kernel runs, why, and what is skipped."""
        *batch, m, n = self.shape
        k = self._a.shape[-1]
        repacked = " (a repacked to axis -1, planes)" if self._prepared.left is not self._a else ""
        found = self.costs.items()
        costs = ", ".join(f"{name} {cost / 1e6:.3g} ms" for name, cost in found if np.isfinite(cost))
        return "\n".join(
            (
                f"{m} x {k} x {n}{f' in batches {tuple(batch)}' if batch else ''}: "
                f"{self._a.bits} {self._a.encoding} x {self._right.bits} {self._right.encoding}{repacked}",
                f"kernel {self.kernel} ({'forced' if self._products.forced else 'lowest estimated cost'}; {costs})",
                f"accumulator {self.acc_dtype}, zero tiles skipped {100 * self.share_skipped:.1f} %",
                *self.product.explain(),
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
        if plain is not None and b.__class__ is BitTensor:
            kind = kind_of(b)
            if kind is plain or kind == plain:
                quick, words = self._quick, b.words
                if quick is not None and self._current_gpu() == self._gpu and (out is None or self._fits(out, words)):
                    return quick(words, out)
        function, right = self._function, self._right
        b = as_bits(function, "b", b, -2)
        _check.planned(function, "b has shape", b.shape, self._products.b_shape)
        found, wanted = (f"{x.bits} {x.encoding} bits" for x in (b, right))
        _check.planned(function, "b has", found, wanted, DTypeError)
        _check.same_device(function, (self.device, b.device))
        return self.run(b, out)

    def run(self, b: BitTensor, out: Any = None) -> Any:
        """The product with an operand that is known to fit the plan."""
        family = interop.common_family((family_of(self._a), family_of(b)))
        with interop.working_on(self.device, family):
            right = b.repack(axis=-2, layout="planes")
            return self._products.run(self._prepared, right, out, self._of_operands(right), family)

    def _fits(self, out: Any, right: Any) -> bool:
        """Whether `out` is a CuPy array that can take the result without further checks; others are left to :func:`target_behind`."""
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
        """Raise if an epilogue that makes bits met NaN in a product since the last check; waits for products on a GPU.

        On a CPU each call raises by itself. On a GPU a plan does not wait, and such results hold the smallest code in place of NaN;
        :func:`matmul` checks every time.

        Raises
        ------
        ValueError
        """
        self._products.check(self.product, family_of(self._a))

    def _of_operands(self, right: BitTensor) -> OperandParams | None:
        """What the operands add to the chain; the last one is kept for right operands with the same scale and offset."""
        kept = self._behind
        if kept is not None and kept[0] is right.scale and kept[1] is right.offset:
            return kept[2]
        behind = self._products.terms(self._prepared.left, right)
        if behind is None or (behind.row_term is None and behind.col_term is None):  # terms depend on the integers
            self._behind = (right.scale, right.offset, behind)
        return behind

"""Products of BitTensors, prepared for one left operand."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse._records import replace
from bitsparse.arrays import construct
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import assembled, contents_of_words, family_of, kind_of, kind_of_bits, working
from bitsparse.backends.params import OperandParams, words_shape
from bitsparse.errors import DeviceError, DTypeError
from bitsparse.interop.identity import Seen
from bitsparse.ops.finish.epilogue import Epilogue, as_array_or_bits, target_behind
from bitsparse.ops.finish.terms import operand_terms


class RightKind(NamedTuple):
    """What a product is prepared for: columns, bits, encoding and batch dimensions of its right operands."""

    n: int
    bits: int
    encoding: str
    batch: tuple[int, ...]

    @classmethod
    def of(cls, b: BitTensor) -> RightKind:
        """The kind of one operand."""
        return cls(b.shape[-1], b.bits, b.encoding, b.shape[:-2])


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
        right: RightKind,
        epilogue: Epilogue | None,
        kernel: str | None,
        skip_zero_tiles: bool,
    ) -> None:
        if epilogue is not None:
            _check.instance(function, "epilogue", epilogue, Epilogue, "an Epilogue")
        self.device = a.device
        self._backend = backends.family(self.device, "matmul.matmul")
        forced = _check.kernel(function, kernel, self._backend.KERNELS)
        self._function, self._a, self._right, self._epilogue = function, a, right, epilogue
        self._b_shape = (*right.batch, a.shape[-1], right.n)
        self.shape = (*_check.batches(function, a.shape[:-2], right.batch), a.shape[-2], right.n)
        largest = (_check.largest_code(x.bits, x.encoding) for x in (a, right))
        self.acc_dtype = _check.accumulator(function, a.shape[-1], *largest)
        self._skips = skip_zero_tiles and bool(a.size)
        self.forced, self._forced = forced is not None, forced
        self._params = None if epilogue is None else epilogue.params(function, self.shape)
        #: What the plan made of `a` belongs to the contents that `a` had.
        self._seen = Seen(contents_of_words(a))
        self._prepare()
        # On a GPU calls take a short way for operands of CuPy's that leave nothing to be decided.
        self._plain: tuple[Any, ...] | None = None
        if self.device != "cpu" and epilogue is None and family_of(a) is interop.CUPY:
            left: Any = self._left.words
            right_shape = words_shape(self._b_shape, right.bits, -2, "planes")
            out_bytes = int(np.prod(self.shape, dtype=object)) * self.acc_dtype.itemsize
            self._plain = kind_of_bits(
                self._b_shape, right.bits, -2, "planes", right.encoding, self.device, interop.CUPY
            )
            self._gpu, self._current_gpu = int(self.device[5:]), interop.current_gpu()
            self._memory = (left.data.ptr, left.nbytes, 4 * int(np.prod(right_shape, dtype=object)), out_bytes)
        self._behind: tuple[Any, Any, OperandParams | None] | None = None

    def _prepare(self) -> None:
        """Choose a kernel for the contents of `a`, and make of them what it needs; on a GPU this compiles the kernel."""
        a, right = self._a, self._right
        k = a.shape[-1]
        with working(a):
            self._left = a.repack(axis=-1, layout="planes")
            density = self._left.tile_density if self._skips else 1.0
            rows = int(np.prod(self.shape[:-1], dtype=object))
            sizes = (rows, right.n, k, a.bits, right.bits)
            kind: dict[str, Any] = {"k": k, "n": right.n, "a_bits": a.bits, "b_bits": right.bits}
            kind |= {"a_encoding": a.encoding, "b_encoding": right.encoding}
            kind |= {"b_batch": right.batch, "acc_dtype": self.acc_dtype}
            names = self._backend.CHOICES if self._forced is None else (self._forced,)
            behind = {} if self.device == "cpu" else {"epilogue": self._params is not None}
            self.costs = {name: self._backend.cost(name, *sizes, density, **behind) for name in names}
            self.kernel = min(self.costs, key=self.costs.__getitem__)
            self.share_skipped = 1.0 - density
            #: The backend's product of these words with others.
            self.product = self._backend.prepare(
                self._left.words,
                # A bitmap without a zero tile only costs the kernel its run lists.
                bitmap=self._left.tile_bitmap if self.share_skipped > 0 else None,
                kernel=self.kernel,
                epilogue=self._params,
                **kind,
            )
            self._quick = self.product.run_plain if self.product.is_plain else None

    def _renew(self) -> None:
        """Prepare anew what was made of `a`, to which somebody has written; a plan that reads its words as they are needs nothing."""
        if self._left is self._a and not self._skips and not self.product.keeps_left:
            return
        if interop.is_capturing(self.device):
            raise DeviceError(
                f"{self._function}: a was written to after the plan was made, and what the plan keeps of it cannot be made anew while "
                f"the stream is capturing; call the plan once between the two, or plan with skip_zero_tiles=False"
            )
        self._prepare()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the result; of the integers that it holds if it is a BitTensor."""
        return self.acc_dtype if self._epilogue is None else self._epilogue.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that the plan keeps beside the words of `a`."""
        repacked = 0 if self._left is self._a else self._left.words.nbytes
        return repacked + int(self.product.nbytes)

    def explain(self) -> str:
        """Which kernel runs, why, and what is skipped, in a few lines."""
        *batch, m, n = self.shape
        k = self._a.shape[-1]
        repacked = " (a repacked to axis -1, planes)" if self._left is not self._a else ""
        costs = ", ".join(f"{name} {cost / 1e6:.3g} ms" for name, cost in self.costs.items() if np.isfinite(cost))
        return "\n".join(
            (
                f"{m} x {k} x {n}{f' in batches {tuple(batch)}' if batch else ''}: "
                f"{self._a.bits} {self._a.encoding} x {self._right.bits} {self._right.encoding}{repacked}",
                f"kernel {self.kernel} ({'forced' if self.forced else 'lowest estimated cost'}; {costs})",
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
        _check.planned(function, "b has shape", b.shape, self._b_shape)
        found, wanted = (f"{x.bits} {x.encoding} bits" for x in (b, right))
        _check.planned(function, "b has", found, wanted, DTypeError)
        _check.same_device(function, (self.device, b.device))
        return self.run(b, out)

    def run(self, b: BitTensor, out: Any = None, bias: Any = None) -> Any:
        """The product with an operand that is known to fit the plan; `bias` is :func:`multiply`'s."""
        function, epilogue = self._function, self._epilogue
        family = interop.common_family((family_of(self._a), family_of(b)))
        with interop.working_on(self.device, family):
            right = b.repack(axis=-2, layout="planes")
            target = None
            if out is not None:
                operands = (self._left.words, right.words)
                target = target_behind(function, epilogue, out, self.shape, self.acc_dtype, self.device, operands)
            behind = None if epilogue is None else self._of_operands(epilogue, right)
            if bias is not None:
                assert behind is not None
                behind = replace(behind, bias=bias)
            result = self.product(right.words, target, behind)
            if out is not None:
                return out
            return as_array_or_bits(function, epilogue, result, self.shape, family)

    def _fits(self, out: Any, right: Any) -> bool:
        """Whether a CuPy array can take the result without a further question; all others are looked at by :func:`target_behind`."""
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
                _check.no_nan_in_epilogue(self._function, self.product.nan_seen())

    def _of_operands(self, epilogue: Epilogue, right: BitTensor) -> OperandParams | None:
        """What the operands add to the chain; the last of it is kept as long as right operands bring along the same scale."""
        kept = self._behind
        if kept is not None and kept[0] is right.scale and kept[1] is right.offset:
            return kept[2]
        terms = operand_terms(self._function, self._left, right, epilogue.offset_correction)
        behind = epilogue.behind(terms, self.device)
        if terms.row_term is None and terms.col_term is None:  # those depend on the integers
            self._behind = (right.scale, right.offset, behind)
        return behind


def multiply(
    function: str,
    a: BitTensor,
    b: BitTensor,
    *,
    epilogue: Epilogue | None = None,
    out: Any = None,
    kernel: str | None = None,
    skip_zero_tiles: bool = False,
    bias: Any = None,
) -> Any:
    """One product of operands of fitting shapes on one device, for `function`, which messages name.

    A `bias`, a float32 array (n,) of that device, takes the place of the epilogue's own, which comes from the host.
    """
    plan = MatmulPlan(function, a, RightKind.of(b), epilogue, kernel, skip_zero_tiles)
    result = plan.run(b, out, bias)
    plan.check()
    return result


def as_bits(function: str, name: str, x: Any, axis: int) -> BitTensor:
    """A BitTensor as it is; an ordinary integer array packed along the contraction axis."""
    if isinstance(x, BitTensor):
        return x
    array, family = interop.as_array(x, function, name)
    _check.at_least_2d(function, name, array.shape)
    if array.dtype.kind not in "biu":
        raise DTypeError(
            f"{function}: {name} has dtype {array.dtype}, but products of bits are exact integers; quantize {name}, or multiply with "
            f".dequantize() of the other operand"
        )
    signed = array.dtype.kind == "i" and array.size > 0 and int(array.min()) < 0
    parts = construct.pack(
        function, array, None, encoding="signed" if signed else "unsigned", axis=axis, layout="planes"
    )
    return assembled(BitTensor, *parts[:-1], family)

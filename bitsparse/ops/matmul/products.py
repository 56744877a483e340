"""Products of BitTensors of two kinds: the kinds are checked once, for operands with any contents."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from bitsparse import _check, backends, interop
from bitsparse._records import replace
from bitsparse.arrays import construct
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.inside import assembled, family_of, working
from bitsparse.backends.params import OperandParams
from bitsparse.errors import DTypeError
from bitsparse.ops.finish.epilogue import PLAIN, Epilogue, as_array_or_bits, target_behind
from bitsparse.ops.finish.terms import operand_terms


class LeftKind(NamedTuple):
    """Shape, bits and encoding of left operands."""

    shape: tuple[int, ...]
    bits: int
    encoding: str

    @classmethod
    def of(cls, a: BitTensor) -> LeftKind:
        """The kind of one operand."""
        return cls(a.shape, a.bits, a.encoding)


class RightKind(NamedTuple):
    """The right operands for which a product is prepared: their columns, bits, encoding and batch dimensions."""

    n: int
    bits: int
    encoding: str
    batch: tuple[int, ...]

    @classmethod
    def of(cls, b: BitTensor) -> RightKind:
        """The kind of one operand."""
        return cls(b.shape[-1], b.bits, b.encoding, b.shape[:-2])


class Prepared(NamedTuple):
    """A product prepared for one left operand.

    Attributes
    ----------
    left : BitTensor
        The operand as kernels read it: packed along the contraction axis, in planes.
    product : object
        The backend's product of its words with those of right operands.
    kernel : str
    costs : dict
        Estimated nanoseconds of the kernels that were compared.
    density : float
        Share of the tiles that are not skipped.
    """

    left: BitTensor
    product: Any
    kernel: str
    costs: dict[str, float]
    density: float


class Products:
    """Products of left and right operands of two kinds on one device; error messages name `function`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    b_shape : tuple of int
        Shape of right operands.
    acc_dtype : dtype
        int32 or int64, whichever cannot overflow.
    forced : str or None
        The kernel that was asked for.
    """

    def __init__(
        self,
        function: str,
        device: str,
        left: LeftKind,
        right: RightKind,
        epilogue: Epilogue | None = None,
        kernel: str | None = None,
    ) -> None:
        if epilogue is not None:
            _check.instance(function, "epilogue", epilogue, Epilogue, "an Epilogue")
        self.function, self.device, self.left, self.right, self.epilogue = function, device, left, right, epilogue
        self._backend = backends.family(device, "matmul.matmul")
        self.forced = _check.kernel(function, kernel, self._backend.KERNELS)
        *batch, m, k = left.shape
        self.b_shape = (*right.batch, k, right.n)
        self.shape = (*_check.batches(function, tuple(batch), right.batch), m, right.n)
        largest = (_check.largest_code(x.bits, x.encoding) for x in (left, right))
        self.acc_dtype = _check.accumulator(function, k, *largest)
        self._params = None if epilogue is None else epilogue.params(function, self.shape)

    def prepare(self, a: BitTensor, skip_zero_tiles: bool = False) -> Prepared:
        """Choose a kernel for a left operand and prepare what the kernel needs; on a GPU this compiles the kernel."""
        right, k = self.right, a.shape[-1]
        with working(a):
            left = a.repack(axis=-1, layout="planes")
            density = left.tile_density if skip_zero_tiles and a.size else 1.0
            sizes = (math.prod(self.shape[:-1]), right.n, k, a.bits, right.bits)
            names = self._backend.CHOICES if self.forced is None else (self.forced,)
            behind = {} if self.device == "cpu" else {"epilogue": self.epilogue is not None}
            costs = {name: self._backend.cost(name, *sizes, density, **behind) for name in names}
            kernel = min(costs, key=costs.__getitem__)
            product = self._backend.prepare(
                left.words,
                n=right.n,
                b_batch=right.batch,
                # Without a zero tile, a bitmap would only make the kernel build run lists for nothing.
                bitmap=left.tile_bitmap if density < 1.0 else None,
                kernel=kernel,
                epilogue=self._params,
                k=k,
                a_bits=a.bits,
                b_bits=right.bits,
                a_encoding=a.encoding,
                b_encoding=right.encoding,
                acc_dtype=self.acc_dtype,
            )
        return Prepared(left, product, kernel, costs, density)

    def terms(self, left: BitTensor, right: BitTensor) -> OperandParams | None:
        """What the operands add to the epilogue's chain; None without an epilogue."""
        if self.epilogue is None:
            return None
        found = operand_terms(self.function, left, right, self.epilogue.offset_correction)
        return self.epilogue.behind(found, self.device)

    def run(
        self, prepared: Prepared, right: BitTensor, out: Any, behind: OperandParams | None, family: interop.Family
    ) -> Any:
        """The product with a right operand packed along axis -2 in planes, in `out` if it is given; on the operands' stream."""
        target, words = None, right.words
        if out is not None:
            operands = (prepared.left.words, words)
            target = target_behind(self.function, self.epilogue, out, self.shape, self.acc_dtype, self.device, operands)
        result = prepared.product(words, target, behind)
        return out if out is not None else as_array_or_bits(self.function, self.epilogue, result, self.shape, family)

    def check(self, product: Any, family: interop.Family) -> None:
        """Raise if a product's epilogue that makes bits met NaN; waits for products on a GPU."""
        if self.device != "cpu" and self.epilogue is not None and self.epilogue.gives_bits:
            with interop.working_on(self.device, family):
                _check.no_nan_in_epilogue(self.function, product.nan_seen())

    def once(self, a: BitTensor, b: BitTensor, out: Any = None, bias: Any = None, skip_zero_tiles: bool = False) -> Any:
        """The product of two operands.

        A `bias`, a float32 array (n,) on the operands' device, replaces the epilogue's own bias, which comes from the host.
        """
        prepared = self.prepare(a, skip_zero_tiles)
        family = interop.common_family((family_of(a), family_of(b)))
        with interop.working_on(self.device, family):
            right = b.repack(axis=-2, layout="planes")
            behind = self.terms(prepared.left, right)
            if bias is not None:
                assert behind is not None
                behind = replace(behind, bias=bias)
            result = self.run(prepared, right, out, behind, family)
        self.check(prepared.product, family_of(a))
        return result


@functools.lru_cache(maxsize=256)
def products_of_codes(function: str, device: str, left: LeftKind, right: RightKind) -> Products:
    """Products of codes that become real numbers by their scales alone; equal kinds get the same object."""
    return Products(function, device, left, right, PLAIN)


def multiply(
    function: str,
    a: BitTensor,
    b: BitTensor,
    *,
    epilogue: Epilogue | None = None,
    out: Any = None,
    kernel: str | None = None,
    skip_zero_tiles: bool = False,
) -> Any:
    """One product of two operands of fitting shapes on one device; error messages name `function`."""
    products = Products(function, a.device, LeftKind.of(a), RightKind.of(b), epilogue, kernel)
    return products.once(a, b, out, skip_zero_tiles=skip_zero_tiles)


def as_bits(function: str, name: str, x: Any, axis: int) -> BitTensor:
    """A BitTensor unchanged, or an ordinary integer array packed along the contraction axis."""
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

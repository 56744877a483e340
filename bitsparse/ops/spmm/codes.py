"""Sparse products of packed integers on a GPU: when they are gathered as they are, by which kernel, and what is kept for it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.backends.params import EpilogueParams, packed_words
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.errors import KernelError
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features, converted
from bitsparse.ops.operands.edge_weights import EdgeWeights
from bitsparse.ops.spmm.finish import Behind, SumFinish

__all__ = ["FEW_EDGES", "ONE_KERNEL_BYTES", "WIDE", "CodeProducts"]

Array = NDArray[Any]
#: Bytes of int32 sums beyond which they are not kept for a second kernel, the epilogue's; edges of a row, on average, below which wide rows
#: of floats come out of one kernel because that is quicker, and how wide.
ONE_KERNEL_BYTES, FEW_EDGES, WIDE = 1 << 30, 8, 64
_NOT_PACKED = "what is gathered packed has 1, 2, 4, 8 or 16 bits and no scale or offset, unless they follow the sums"


class CodesKey(NamedTuple):
    """What tells apart the products of packed integers that a pattern keeps."""

    bits: int
    encoding: str
    width: int
    heads: int
    mean: bool
    weights: str
    finish: int


#: Products of packed integers, each with the finish that is part of it.
CODE_SUMS: Slot[tuple[Any, SumFinish | None]] = Slot("code sums")
#: Values of the edges as these kernels take them, with the arrays that they were made of.
FLOAT32_VALUES: Slot[tuple[tuple[Any, ...], EdgeWeights]] = Slot("float32 values")
INT32_VALUES: Slot[tuple[Array, EdgeWeights]] = Slot("int32 values")


class CodeProducts:
    """Sums and means of packed integers over patterns on a GPU, with an epilogue or without, in int32 or, by float weights, in float32.

    Parameters
    ----------
    function : str
        For messages.
    reduce : str
        One of `REDUCTIONS`.
    forced : str or None
        The kernel that the caller insists on.
    epilogue : bool
        Whether the caller has one; what stands behind sums else are scales and offsets.
    """

    def __init__(self, function: str, reduce: str, forced: str | None, epilogue: bool) -> None:
        self._function, self._reduce, self._forced, self._epilogue = function, reduce, forced, epilogue
        self._told: dict[CodesKey, str] = {}

    def explain(self) -> list[str]:
        """Which kernels have been prepared here, and how they sum."""
        return list(self._told.values())

    def _tell(self, key: CodesKey, made: Any, finish: SumFinish | None) -> None:
        how = "bspmm_count, vertical counters"
        if key.bits > 1:
            sums = "float32 sums" if key.weights == "float32" else "integer sums"
            how = f"spmm_codes, {sums} of words gathered as they are, {made.tuning.lanes} lanes a row"
        behind = ", the epilogue in a kernel of its own" if self._epilogue else ""
        if finish is not None:
            behind = f", {'the epilogue' if self._epilogue else 'scale and offset'} in the same kernel"
        self._told[key] = f"{key.bits} {key.encoding} bits: kernel codes ({how}){behind}"

    def refusal(self, operand: CSROperand, x: Features, weights: Array | None, acc: np.dtype[Any]) -> str | None:
        """Why packed features have to be unpacked, if they have to."""
        if self._forced not in (None, "codes"):
            return f"kernel {_check.shown(self._forced)} takes unpacked features"
        if x.packed is None:
            return _NOT_PACKED
        if REDUCTIONS[self._reduce].selects:
            return f"a {self._reduce}imum is taken of whole integers"
        if acc != np.int32 and not _is_float(operand, weights, acc):
            return f"sums are taken in {acc}"
        if x.packed.bits == 1:
            if x.packed.encoding == "signed":
                return "one bit is counted as 0 and 1 or as signs, not as 0 and -1"
            if weights is not None or acc != np.int32:
                return "one bit is counted, without values and scales"
            if operand.indices is None or (len(x.shape) == 3 and x.packed.width % 128):
                return "one bit is counted for edges with columns, and heads of whole words"
        if weights is not None:
            if weights.ndim != 1:
                return "values come per head"
            scaled = operand.row_scale is not None or operand.col_scale is not None
            if scaled and weights is not operand.values:
                return "values come with every call and are scaled"
        return None

    def run(
        self,
        operand: CSROperand,
        x: Features,
        weights: Array | None,
        acc: np.dtype[Any],
        target: Array | None,
        finish: SumFinish | None = None,
        behind: Behind | None = None,
    ) -> Array | None:
        """The product, into `target` if it is given; None where there is no kernel for it, with an epilogue or at all."""
        refused = self.refusal(operand, x, weights, acc)
        if refused is not None:
            if self._forced == "codes":
                raise KernelError(f"{self._function}: kernel 'codes' cannot compute this: {refused}")
            return None
        if finish is not None and not self._in_one(operand, x, finish):
            return None
        made = self.prepare(operand, x, weights, acc, finish)
        shape = None if target is None else target.shape
        into = None if target is None else target.reshape(made.shape)
        with operand.schedule.order:
            words = self._words(operand, x)
            if x.packed is not None and x.packed.bits == 1:
                return _shaped(made(words, into), shape)
            floats = acc == np.float32
            values = (
                self._float32(operand, weights)
                if floats
                else None
                if weights is None
                else self._int32(operand, weights)
            )
            return _shaped(made(words, values, None if behind is None else behind.operand, into), shape)

    def prepare(
        self, operand: CSROperand, x: Features, weights: Array | None, acc: np.dtype[Any], finish: SumFinish | None
    ) -> Any:
        """The kernel for features like these, or None."""
        if self.refusal(operand, x, weights, acc) is not None:
            return None
        if finish is not None and not self._in_one(operand, x, finish):
            finish = None
        packed, mean = x.packed, self._reduce == "mean"
        assert packed is not None
        heads = x.shape[1] if len(x.shape) == 3 else 1
        kind = "float32" if acc == np.float32 else "none" if weights is None else "int32"
        key = CodesKey(packed.bits, packed.encoding, packed.width, heads, mean, kind, id(finish))
        found = CODE_SUMS.get(operand.prepared, key)
        if found is not None and found[1] is finish:
            if key not in self._told:
                self._tell(key, found[0], finish)
            return found[0]
        operand.ready.wait()
        if packed.bits == 1:
            made = self._counter(operand, packed.encoding, heads * packed.width, mean)
        else:
            family = backends.family(operand.device, "spmm.codes")
            chain = None
            if finish is not None:
                low, high = _check.limits_of(packed.bits, packed.encoding)
                largest = float(max(1, operand.longest_row) * max(-low, high))
                chain = finish.device_chain("codes", largest if weights is None else 2.0**31)
            made = family.CodeSum(
                operand.schedule,
                operand.indices,
                width=packed.width,
                bits=packed.bits,
                encoding=packed.encoding,
                heads=heads,
                mean=mean,
                weights=kind,
                chain=chain,
            )
        CODE_SUMS.keep(operand.prepared, (made, finish), key)
        self._tell(key, made, finish)
        operand.ready.renew()
        return made

    def chains(self, operand: CSROperand, finish: SumFinish) -> tuple[Any, ...]:
        """The chains of an epilogue that are part of kernels."""
        return tuple(product.chain for product, mine in CODE_SUMS.all(operand.prepared) if mine is finish)

    @staticmethod
    def _in_one(operand: CSROperand, x: Features, finish: SumFinish) -> bool:
        """Whether sums and epilogue are one kernel.

        That needs no memory for the sums, but lanes of a warp end their rows at different times: most wait while one row is finished.
        """
        params, packed = finish.params, x.packed
        if packed is None or packed.bits == 1 or (params.out != "float" and params.axis != -1):
            return False
        few = operand.nnz < FEW_EDGES * operand.shape[0] and packed.width >= WIDE
        return (few and params.out == "float") or 4 * math.prod(finish.shape) > ONE_KERNEL_BYTES

    @staticmethod
    def _counter(operand: CSROperand, encoding: str, features: int, mean: bool) -> Any:
        family = backends.family(operand.device, "binary.bspmm")
        output = "float32" if mean else "int32"
        return family.BinarySum(
            operand.schedule,
            operand.indices,
            features=features,
            bipolar=encoding == "bipolar",
            output=output,
            params=EpilogueParams() if mean else None,
            mean=mean,
        )

    @staticmethod
    def _words(operand: CSROperand, x: Features) -> Array:
        """The words of `x` packed along the features, whole integers side by side."""
        source = x.source
        assert source is not None
        if source.axis == -1 and (source.layout == "rows" or source.bits == 1):
            words: Array = source.words
            return words
        shape = (*source.shape[:-1], packed_words(source.shape[-1], source.bits, "rows"))
        room = operand.schedule.workspace("rows of integers", shape, np.uint32)
        made: Array = backends.family(operand.device, "bits.pack").repack(
            source.words, source.shape, source.bits, axis=source.axis, layout=source.layout, to_axis=-1, to_layout="rows", out=room
        )  # fmt: skip
        return made

    @staticmethod
    def _float32(operand: CSROperand, weights: Array | None) -> Array:
        """Values of the edges with the factors of rows and columns in them."""
        owner = (weights, operand.row_scale, operand.col_scale)
        kept = FLOAT32_VALUES.get(operand.prepared)
        if kept is None or any(a is not b for a, b in zip(kept[0], owner, strict=True)):
            kept = owner, EdgeWeights(operand, weights, np.float32, operand.col_scale, operand.row_scale)
            if weights is None or weights is operand.values:
                FLOAT32_VALUES.keep(operand.prepared, kept)
                operand.ready.renew()
        made: Array = kept[1].now()
        return made

    @staticmethod
    def _int32(operand: CSROperand, weights: Array) -> Array:
        """Values of the edges as the kernel takes them."""
        made: Array
        if weights is not operand.values:
            made = interop.aligned(converted(weights, np.int32))
            return made
        kept = INT32_VALUES.get(operand.prepared)
        if kept is None or kept[0] is not weights:
            kept = INT32_VALUES.keep(operand.prepared, (weights, EdgeWeights(operand, weights, np.int32)))
            operand.ready.renew()
        made = kept[1].now()
        return made


def _is_float(operand: CSROperand, weights: Array | None, acc: np.dtype[Any]) -> bool:
    """Whether sums are taken in float32 because of what the edges have."""
    real = weights is not None and weights.dtype.kind not in "biu"
    return acc == np.float32 and (real or operand.row_scale is not None or operand.col_scale is not None)


def _shaped(made: Array, shape: tuple[int, ...] | None) -> Array:
    return made if shape is None else made.reshape(shape)

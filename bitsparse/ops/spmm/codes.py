"""Sparse products of packed integers on a GPU: when they are gathered as they are, by which kernel, and what is kept for it."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from bitsparse import _check, backends
from bitsparse.backends.params import Array, CodeSumKind, EpilogueParams, OperandParams, packed_words
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.errors import KernelError
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features
from bitsparse.ops.operands.edge_weights import EdgeWeights
from bitsparse.ops.spmm.finish import SumFinish
from bitsparse.ops.spmm.sums import Sums

#: Bytes of int32 sums beyond which there is no room for them between two kernels: the epilogue is then part of the first.
ONE_KERNEL_BYTES = 1 << 30
#: One kernel is also quicker for floats of rows of fewer edges on average, if they have at least so many columns.
FEW_EDGES, WIDE = 8, 64
_NOT_PACKED = "what is gathered packed has 1, 2, 4, 8 or 16 bits and no scale or offset, unless they follow the sums"


#: Products of packed integers by their kind and what finishes them, each with the finish that is part of it.
CODE_SUMS: Slot[tuple[Any, SumFinish | None]] = Slot("code sums")
#: Values of the edges as these kernels take them, by their dtype, with the arrays that they were made of.
CODE_VALUES: Slot[tuple[Any, EdgeWeights]] = Slot("values of codes")


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
        Whether the caller has one. Without it, what finishes sums are the features' scales and offsets.
    """

    def __init__(self, function: str, reduce: str, forced: str | None, epilogue: bool) -> None:
        self._function, self._reduce, self._forced, self._epilogue = function, reduce, forced, epilogue
        self._told: dict[tuple[CodeSumKind, int], str] = {}

    def explain(self) -> list[str]:
        """Which kernels have been prepared here, and how they sum."""
        return list(self._told.values())

    def _tell(self, kind: CodeSumKind, product: Any, finish: SumFinish | None) -> None:
        if kind.bits == 1:
            how = "bspmm_count, vertical counters"
        else:
            sums = "float32 sums" if kind.weights == "float32" else "integer sums"
            how = f"spmm_codes, {sums} of words gathered as they are, {product.tuning.lanes} lanes a row"
        if finish is not None:
            behind = f", {'the epilogue' if self._epilogue else 'scale and offset'} in the same kernel"
        else:
            behind = ", the epilogue in a kernel of its own" if self._epilogue else ""
        self._told[kind, id(finish)] = f"{kind.bits} {kind.encoding} bits: kernel codes ({how}){behind}"

    def refusal(self, sums: Sums) -> str | None:
        """Why packed features have to be unpacked, if they have to."""
        operand, weights, packed = sums.operand, sums.weights, sums.x.packed
        if self._forced not in (None, "codes"):
            return f"kernel {_check.shown(self._forced)} takes unpacked features"
        if packed is None:
            return _NOT_PACKED
        if REDUCTIONS[self._reduce].selects:
            return f"a {self._reduce}imum is taken of whole integers"
        scaled = operand.is_scaled
        real = scaled or (weights is not None and weights.dtype.kind not in "biu")
        if sums.acc != np.int32 and not (real and sums.acc == np.float32):
            return f"sums are taken in {sums.acc}"
        if packed.bits == 1:
            if packed.encoding == "signed":
                return "one bit is counted as 0 and 1 or as signs, not as 0 and -1"
            if weights is not None or sums.acc != np.int32:
                return "one bit is counted, without values and scales"
            if operand.indices is None or (len(sums.x.shape) == 3 and packed.width % 128):
                return "one bit is counted for edges with columns, and heads of whole words"
        per_head = weights is not None and weights.ndim != 1 and self._forced != "codes"
        if per_head and not backends.family(operand.device, "spmm.codes").takes_heads():
            return "values come per head"
        if weights is not None and scaled and weights is not operand.values:
            return "values come with every call and are scaled"
        return None

    def run(
        self, sums: Sums, target: Array | None, finish: SumFinish | None = None, behind: OperandParams | None = None
    ) -> Array | None:
        """The product, into `target` if it is given; None where there is no kernel for it, with an epilogue or at all."""
        operand, weights = sums.operand, sums.weights
        refused = self.refusal(sums)
        if refused is not None:
            if self._forced == "codes":
                raise KernelError(f"{self._function}: kernel 'codes' cannot compute this: {refused}")
            return None
        if finish is not None and not _in_one(sums, finish):
            return None
        product = self._prepared(sums, finish)
        into = None if target is None else target.reshape(product.shape)
        with operand.schedule.order:
            words, packed = self._words(operand, sums.x), sums.x.packed
            if packed is not None and packed.bits == 1:
                result = product(words, into)
            else:
                plain = weights is None and sums.acc != np.float32
                values = None if plain else self._values(operand, weights, sums.acc)
                result = product(words, values, behind, into)
            return cast(Array, result if target is None else result.reshape(target.shape))

    def prepare(self, sums: Sums, finish: SumFinish | None) -> Any:
        """The kernel for features like these, or None."""
        if self.refusal(sums) is not None:
            return None
        return self._prepared(sums, finish if finish is not None and _in_one(sums, finish) else None)

    def _prepared(self, sums: Sums, finish: SumFinish | None) -> Any:
        operand, weights, packed, mean = sums.operand, sums.weights, sums.x.packed, self._reduce == "mean"
        assert packed is not None
        value_kind = "float32" if sums.acc == np.float32 else "none" if weights is None else "int32"
        per_head = weights is not None and weights.ndim == 2
        kind = CodeSumKind(packed.bits, packed.encoding, packed.width, sums.heads, mean, value_kind, per_head)
        key = kind, id(finish)
        product, _ = operand.kept(CODE_SUMS, lambda: (_made(sums, kind, finish), finish), key)
        if key not in self._told:
            self._tell(kind, product, finish)
        return product

    def chains(self, operand: CSROperand, finish: SumFinish) -> tuple[Any, ...]:
        """The chains of an epilogue that are part of kernels."""
        return tuple(product.chain for product, mine in CODE_SUMS.all(operand.prepared) if mine is finish)

    @staticmethod
    def _words(operand: CSROperand, x: Features) -> Array:
        """The words of `x` packed along the features, whole integers side by side."""
        source = x.source
        assert source is not None
        if source.axis == -1 and (source.layout == "rows" or source.bits == 1):
            return source.words
        shape = (*source.shape[:-1], packed_words(source.shape[-1], source.bits, "rows"))
        room = operand.schedule.workspace("rows of integers", shape, np.uint32)
        return backends.family(operand.device, "bits.pack").repack(
            source.words, source.shape, source.bits, axis=source.axis, layout=source.layout, to_axis=-1, to_layout="rows", out=room
        )  # fmt: skip

    @staticmethod
    def _values(operand: CSROperand, weights: Array | None, dtype: np.dtype[Any]) -> Array:
        """Values of the edges: float32 with the factors of rows and columns in them, or int32 where there are no factors."""

        def made() -> EdgeWeights:
            return EdgeWeights(operand, weights, dtype, operand.col_scale, operand.row_scale)

        if weights is None or weights is operand.values:
            return operand.kept_with_factors(CODE_VALUES, made, dtype.name).now()
        return made().now()


def _made(sums: Sums, kind: CodeSumKind, finish: SumFinish | None) -> Any:
    """Sums of words gathered as they are, or by vertical counters."""
    operand, chain = sums.operand, None
    if kind.bits == 1:
        return _counter(operand, kind)
    if finish is not None:
        largest = float(max(1, operand.longest_row) * sums.x.largest())
        chain = finish.device_chain(largest if sums.weights is None else 2.0**31)
    return backends.family(operand.device, "spmm.codes").CodeSum(operand.schedule, kind, chain=chain)


def _counter(operand: CSROperand, kind: CodeSumKind) -> Any:
    """Sums by vertical counters."""
    output, params = ("float32", EpilogueParams()) if kind.mean else ("int32", None)
    how: dict[str, Any] = {"features": kind.heads * kind.width, "bipolar": kind.encoding == "bipolar"}
    how |= {"output": output, "params": params, "mean": kind.mean}
    return backends.family(operand.device, "binary.bspmm").BinarySum(operand.schedule, **how)


def _in_one(sums: Sums, finish: SumFinish) -> bool:
    """Whether sums and epilogue are one kernel.

    That needs no memory for the sums, but lanes of a warp end their rows at different times: most wait while one row is finished.
    """
    params, packed, operand = finish.params, sums.x.packed, sums.operand
    if packed is None or packed.bits == 1 or (params.out != "float" and params.axis != -1):
        return False
    few = operand.nnz < FEW_EDGES * operand.shape[0] and packed.width >= WIDE
    return (few and params.out == "float") or 4 * math.prod(finish.shape) > ONE_KERNEL_BYTES

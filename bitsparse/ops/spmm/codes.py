"""Sparse products of packed integers on a GPU: when features are gathered packed, by which kernel, and what is kept."""

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

#: If int32 sums would take more bytes than this, they are not stored between two kernels: the epilogue becomes part of the first.
ONE_KERNEL_BYTES = 1 << 30
#: One kernel is also quicker for float results if rows have fewer than FEW_EDGES edges on average and at least WIDE columns.
FEW_EDGES, WIDE = 8, 64
_NOT_PACKED = "features are gathered packed only with 1, 2, 4, 8 or 16 bits, and with scales and offsets only if these follow the sums"


#: Slot for products of packed integers by their kind and finish, each with the finish that is part of its kernel.
CODE_SUMS: Slot[tuple[Any, SumFinish | None]] = Slot("code sums")
#: Slot for the edge values in the form that these kernels take, by dtype, with the arrays from which they were made.
CODE_VALUES: Slot[tuple[Any, EdgeWeights]] = Slot("values of codes")


class CodeProducts:
    """Sums and means of packed integers over patterns on a GPU, in int32 or, with float weights, in float32; an epilogue may follow.

    Parameters
    ----------
    function : str
        The public function, for error messages.
    reduce : str
        One of `REDUCTIONS`.
    forced : str or None
        The kernel that the caller demands.
    epilogue : bool
        Whether the caller passed an epilogue. If not, the finish of a sum consists of the features' scales and offsets.
    """

    def __init__(self, function: str, reduce: str, forced: str | None, epilogue: bool) -> None:
        self._function, self._reduce, self._forced, self._epilogue = function, reduce, forced, epilogue
        self._told: dict[tuple[CodeSumKind, int], str] = {}

    def explain(self) -> list[str]:
        """Sentences about the kernels prepared so far, and how they sum."""
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
        """Why packed features have to be unpacked; None if they can be gathered packed."""
        operand, weights, packed = sums.operand, sums.weights, sums.x.packed
        if self._forced not in (None, "codes"):
            return f"kernel {_check.shown(self._forced)} takes unpacked features"
        if packed is None:
            return _NOT_PACKED
        if REDUCTIONS[self._reduce].selects:
            return f"a {self._reduce}imum is taken of unpacked integers"
        scaled = operand.is_scaled
        real = scaled or (weights is not None and weights.dtype.kind not in "biu")
        if sums.acc != np.int32 and not (real and sums.acc == np.float32):
            return f"sums are taken in {sums.acc}"
        if packed.bits == 1:
            if packed.encoding == "signed":
                return "single bits are counted as 0 and 1 or as signs, not as 0 and -1"
            if weights is not None or sums.acc != np.int32:
                return "single bits are counted only without values and scales"
            if operand.indices is None or (len(sums.x.shape) == 3 and packed.width % 128):
                return "single bits are counted only for matrices with column indices, and for heads of a multiple of 128 columns"
        per_head = weights is not None and weights.ndim != 1 and self._forced != "codes"
        if per_head and not backends.family(operand.device, "spmm.codes").takes_heads():
            return "edges have a value for each head"
        if weights is not None and scaled and weights is not operand.values:
            return "values are passed with every call, and would have to be scaled each time"
        return None

    def run(
        self, sums: Sums, target: Array | None, finish: SumFinish | None = None, behind: OperandParams | None = None
    ) -> Array | None:
        """The product, in `target` if it is given; None if features have to be unpacked, or if `finish` needs a kernel of its own."""
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
        """The prepared kernel for features like these, or None if they have to be unpacked."""
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
        """The epilogues on the GPU that are part of prepared kernels and belong to `finish`."""
        return tuple(product.chain for product, mine in CODE_SUMS.all(operand.prepared) if mine is finish)

    @staticmethod
    def _words(operand: CSROperand, x: Features) -> Array:
        """The words of `x` in the layout "rows", packed along the features."""
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
        """Values of the edges in `dtype`: float32, multiplied by the scales of rows and columns, or int32 if there are no scales."""

        def made() -> EdgeWeights:
            return EdgeWeights(operand, weights, dtype, operand.col_scale, operand.row_scale)

        if weights is None or weights is operand.values:
            return operand.kept_with_factors(CODE_VALUES, made, dtype.name).now()
        return made().now()


def _made(sums: Sums, kind: CodeSumKind, finish: SumFinish | None) -> Any:
    """Prepare the kernel: sums of packed words, or, for single bits, vertical counters."""
    operand, chain = sums.operand, None
    if kind.bits == 1:  # counted by vertical counters
        output, params = ("float32", EpilogueParams()) if kind.mean else ("int32", None)
        how: dict[str, Any] = {"features": kind.heads * kind.width, "bipolar": kind.encoding == "bipolar"}
        how |= {"output": output, "params": params, "mean": kind.mean}
        return backends.family(operand.device, "binary.bspmm").BinarySum(operand.schedule, **how)
    if finish is not None:
        largest = float(max(1, operand.longest_row) * sums.x.largest())
        chain = finish.device_chain(largest if sums.weights is None else 2.0**31)
    return backends.family(operand.device, "spmm.codes").CodeSum(operand.schedule, kind, chain=chain)


def _in_one(sums: Sums, finish: SumFinish) -> bool:
    """Whether the epilogue becomes part of the kernel that sums.

    Then no memory is needed for the sums. But the lanes of a warp finish their rows at different times, so that most lanes wait while one
    applies the epilogue.
    """
    params, packed, operand = finish.params, sums.x.packed, sums.operand
    if packed is None or packed.bits == 1 or (params.out != "float" and params.axis != -1):
        return False
    few = operand.nnz < FEW_EDGES * operand.shape[0] and packed.width >= WIDE
    return (few and params.out == "float") or 4 * math.prod(finish.shape) > ONE_KERNEL_BYTES

"""The steps of a low-bit network on a CPU, with codes in bytes between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse.arrays import BitTensor
from bitsparse.backends.host import bytes as steps_on_bytes
from bitsparse.nn.operand import GraphOperand
from bitsparse.ops.terms import operand_terms

if TYPE_CHECKING:
    from bitsparse.nn.lowbit import LowBitNetwork

__all__ = ["steps_in_bytes"]

#: Longest rows, of weights and of neighbours, whose sums of bytes times bytes fit int32.
_MOST_TERMS = 1 << 16
_Array = NDArray[Any]


class _Sides(NamedTuple):
    """What corrections of a sum over neighbours need of either factor."""

    shape: tuple[int, int]
    scale: Any = None
    offset: Any = None
    line_sums: Any = None


def steps_in_bytes(
    network: LowBitNetwork, operand: Any, x: BitTensor
) -> tuple[list[Callable[[], Any]], Callable[[Any], Any]] | None:
    """All steps but the last, and the last one with its result's array; None where the network or the graph's form needs others."""
    steps = network.steps
    if not isinstance(operand, GraphOperand) or operand.form != "csr" or max(network.bits) > 8 or not operand.nodes:
        return None
    if max(network.widths) > steps_on_bytes.LONGEST or max(operand.longest, network.features) >= _MOST_TERMS:
        return None
    # Layers inside a GIN's perceptron do not stand among the widths.
    if (
        max(step.chain.col_scale.size for step in steps) > steps_on_bytes.LONGEST
        or operand.pattern[0].dtype != np.int32
    ):
        return None
    if any(getattr(step, "own", False) or (step.chain.bits or 1) > 8 for step in steps):
        return None
    nodes = operand.nodes
    indptr, indices = (np.ascontiguousarray(part, np.int32) for part in operand.pattern)
    # Memory that is not zeroed can be what the plan before this one let go of; pads are written by every step.
    codes = np.empty((nodes, steps_on_bytes.row_bytes(x.shape[1])), np.uint8)
    codes[:, x.shape[1] :] = 0
    calls: list[Callable[[], Any]] = [partial(_unpack, x, codes)]
    if x.bits == 8 and x.layout == "rows":
        codes, calls = x.words.view(np.uint8).reshape(nodes, -1), []
    for number, step in enumerate(steps):
        columns = step.chain.col_scale.size
        if hasattr(step, "weights"):
            run = partial(_update, network, number, operand, codes)
        else:
            run = partial(_aggregate, network, number, operand, indptr, indices, codes)
        if number + 1 == len(steps):
            return calls, run
        codes = np.empty((nodes, steps_on_bytes.row_bytes(columns)), np.uint8)
        calls.append(partial(run, codes))
    return None


def _unpack(x: BitTensor, codes: NDArray[np.uint8]) -> None:
    codes[:, : x.shape[1]] = x.toarray()


def _update(network: LowBitNetwork, number: int, operand: GraphOperand, codes: NDArray[np.uint8], out: _Array) -> None:
    """A product with weights."""
    step: Any = network.steps[number]
    k, n = step.weights.shape
    rows = operand.right if step.scaled else None
    term = None if step.constant is None else (rows, step.constant)
    params = step.chain.epilogue().params("LowBitNetwork", (operand.nodes, n))
    steps_on_bytes.product(codes, network.panels(number), k, n, params._replace(row_scale=rows, col_term=term), out)


def _aggregate(
    network: LowBitNetwork,
    number: int,
    operand: GraphOperand,
    indptr: NDArray[np.int32],
    indices: NDArray[np.int32],
    codes: NDArray[np.uint8],
    out: _Array,
) -> None:
    """Sums over neighbours."""
    step: Any = network.steps[number]
    shape = (operand.nodes, step.columns)
    left: Any = _Sides(shape, None if operand.left is None else operand.left[:, None], None, operand.degrees)
    right: Any = _Sides(shape, None, None if step.offset is None else step.offset[None, :])
    epilogue = step.chain.epilogue()
    terms = operand_terms("LowBitNetwork", left, right, epilogue.offset_correction)
    steps_on_bytes.sums(codes, indptr, indices, step.columns, epilogue.params("LowBitNetwork", shape, terms), out)

"""The steps of a low-bit network on a CPU with one byte per code, over a whole graph or piece by piece over a packet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse._records import replace
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.graph.operand import Graph
from bitsparse.nn.lowbit.inputs import scale_of
from bitsparse.nn.lowbit.steps import Aggregate, Update
from bitsparse.ops import steps as on_codes
from bitsparse.ops.finish.terms import Factor, operand_terms

if TYPE_CHECKING:
    from bitsparse.nn.lowbit.network import LowBitNetwork

#: Sums of fewer products of two bytes than this fit into int32; it limits the entries of a row.
_MOST_TERMS = 1 << 16
_NAME = "LowBitNetwork"


def steps_in_bytes(
    network: LowBitNetwork, operand: Any, x: BitTensor | TCTiledCSR
) -> tuple[list[Callable[[], Any]], Callable[[Any], Any], int] | None:
    """All steps but the last as calls, the last one as a function of its result's array, and the bytes of the buffers between them.

    None if the network or the graph's form cannot work on bytes.
    """
    steps, sparse = network.steps, isinstance(x, TCTiledCSR)
    if not isinstance(operand, Graph) or operand.form != "csr" or not operand.nodes or not _fits_bytes(network, sparse):
        return None
    if isinstance(x, TCTiledCSR) and (x.index_dtype != np.int32 or np.diff(x.indptr).max(initial=0) >= _MOST_TERMS):
        return None
    if operand.longest >= _MOST_TERMS or operand.indptr.dtype != np.int32:
        return None
    nodes = operand.nodes
    indptr, indices = (np.ascontiguousarray(part, np.int32) for part in (operand.indptr, operand.indices))
    calls: list[Callable[[], Any]] = []
    held = 0
    in_bytes = isinstance(x, BitTensor) and x.bits == 8 and x.layout == "rows"
    multiplies = isinstance(steps[0], Update)
    if isinstance(x, TCTiledCSR):
        codes = np.empty((0, 0), np.uint8)  # the first step reads the entries only
    elif in_bytes:
        codes = x.words.view(np.uint8).reshape(nodes, -1)
    else:
        codes = on_codes.room_in_bytes(on_codes.piece_rows(x.shape) if multiplies else nodes, x.shape[1])
        held = codes.nbytes
        if not multiplies:  # sums need all rows, since neighbours may lie anywhere
            calls.append(partial(on_codes.unpack, x, codes))
    for number, step in enumerate(steps):
        columns, params = step.chain.col_scale.size, step_params(step, operand, scale_of(x) if number == 0 else None)
        if isinstance(step, Aggregate):
            run = partial(on_codes.sums, codes, indptr, indices, columns, params)
        elif isinstance(x, TCTiledCSR) and number == 0:
            lines = network.laid(number, on_codes.lines_of)
            run = partial(on_codes.sparse_product, (x.indptr, x.indices), x.data, lines, columns, params)
        else:
            packed: Any = x if number == 0 and not in_bytes else None
            panels, sizes = network.laid(number, on_codes.panels_of), (step.weights.shape[0], columns)
            run = partial(on_codes.product_in_bytes, codes, panels, sizes, params, packed)
        if number + 1 == len(steps):
            return calls, run, held
        codes = np.empty((nodes, on_codes.row_bytes(columns)), np.uint8)
        held += codes.nbytes
        calls.append(partial(run, codes))
    return None


def _fits_bytes(network: LowBitNetwork, sparse: bool = False) -> bool:
    """Whether steps on bytes can compute the network. Sparse features may have any number of columns."""
    # The widths do not include the inner layers of a GIN's perceptron.
    columns = [step.chain.col_scale.size for step in network.steps]
    return (
        max(network.bits) <= 8
        and max(*columns, *network.widths[int(sparse) :]) <= on_codes.LONGEST
        and not any(getattr(step, "own", False) or (step.chain.bits or 1) > 8 for step in network.steps)
    )


def layers_in_bytes(network: LowBitNetwork) -> tuple[on_codes.Layer, ...] | None:
    """The steps in the form of :func:`bitsparse.ops.steps.network`; None if they cannot work on bytes."""
    if not _fits_bytes(network) or not min(network.features, *(step.chain.col_scale.size for step in network.steps)):
        return None
    made, one = [], np.ones(1, np.float32)  # a placeholder for vectors over the rows
    vectors: tuple[str | None, str | None, str | None]
    for number, step in enumerate(network.steps):
        epilogue, columns = step.chain.epilogue(), step.chain.col_scale.size
        if isinstance(step, Update):
            params, panels = epilogue.params(_NAME, (1, columns)), network.laid(number, on_codes.panels_of)
            term = None if step.constant is None else (one, step.constant)
            vectors = ("factor" if step.scaled else None, None, None if term is None else "factor")
            made.append(on_codes.layer(panels, columns, replace(params, col_term=term), vectors))
            continue
        terms = operand_terms(_NAME, *_sides_of(step, (1, columns), None, one), epilogue.offset_correction)
        params = epilogue.params(_NAME, (1, columns), terms)
        factor = None if network.normalisation == "sum" else "factor"
        vectors = (factor, None if params.row_term is None else "degrees", None)
        made.append(on_codes.layer(None, columns, params, vectors))
    return tuple(made)


def _sides_of(step: Aggregate, shape: tuple[int, int], scale: Any, degrees: Any) -> tuple[Any, Any]:
    """The left and the right factor of a sum over neighbours."""
    offset = None if step.offset is None else step.offset[None, :]
    return Factor(shape, scale, None, degrees), Factor(shape, None, offset)


def step_params(step: Update | Aggregate, operand: Graph, scale: Any = None, **form: Any) -> Any:
    """The parameters for :func:`~bitsparse.ops.steps.finished`, which turns a step's integer sums into its result on the CPU.

    `scale` is the scale of the step's codes, and `form` is the packing of the result's codes.
    """
    epilogue, shape = step.chain.epilogue(**form), (operand.nodes, step.chain.col_scale.size)
    if isinstance(step, Update):
        rows = on_codes.row_operands(operand.col_scale if step.scaled else None, step.constant, scale)
        return replace(epilogue.params(_NAME, shape), **rows)
    left = None if operand.row_scale is None else operand.row_scale[:, None]
    terms = operand_terms(_NAME, *_sides_of(step, shape, left, operand.degrees), epilogue.offset_correction)
    return epilogue.params(_NAME, shape, terms)

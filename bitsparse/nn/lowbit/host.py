"""The steps of a low-bit network on a CPU, with codes in bytes between them: over a whole graph, or over a packet, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._records import replace
from bitsparse.arrays import BitTensor
from bitsparse.backends.host.bits import pack
from bitsparse.backends.host.matmul import bytes as steps_on_bytes
from bitsparse.backends.params import EpilogueParams
from bitsparse.graph.operand import Graph
from bitsparse.ops.finish.terms import Factor, operand_terms

if TYPE_CHECKING:
    from bitsparse.nn.lowbit.network import LowBitNetwork

#: Longest rows, of weights and of neighbours, whose sums of bytes times bytes fit int32.
_MOST_TERMS = 1 << 16
#: Bytes of features that are taken apart at a time, on their way into the first product. Much smaller pieces wait longer for the threads
#: of a busy CPU than their work takes.
_PIECE_BYTES = 1 << 24
_NAME = "LowBitNetwork"


def steps_in_bytes(
    network: LowBitNetwork, operand: Any, x: BitTensor
) -> tuple[list[Callable[[], Any]], Callable[[Any], Any], int] | None:
    """All steps but the last, the last one with its result's array, and the bytes of what lies between them.

    None where the network or the graph's form needs others.
    """
    steps = network.steps
    if not isinstance(operand, Graph) or operand.form != "csr" or not operand.nodes or not _fits_bytes(network):
        return None
    if operand.longest >= _MOST_TERMS or operand.indptr.dtype != np.int32:
        return None
    nodes = operand.nodes
    indptr, indices = (np.ascontiguousarray(part, np.int32) for part in (operand.indptr, operand.indices))
    calls: list[Callable[[], Any]] = []
    held = 0
    in_bytes, multiplies = x.bits == 8 and x.layout == "rows", hasattr(steps[0], "weights")
    if in_bytes:
        codes = x.words.view(np.uint8).reshape(nodes, -1)
    else:
        codes = _room(_piece_rows(x.shape) if multiplies else nodes, x.shape[1])
        held = codes.nbytes
        if not multiplies:  # neighbours may lie anywhere
            calls.append(partial(_unpack, x, codes))
    step: Any
    for number, step in enumerate(steps):
        epilogue, columns = step.chain.epilogue(), step.chain.col_scale.size
        if hasattr(step, "weights"):
            right, scale = operand.col_scale if step.scaled else None, x.scale if number == 0 else None
            rows, k = row_operands(right, step.constant, scale), step.weights.shape[0]
            params = replace(epilogue.params(_NAME, (nodes, columns)), **rows)
            given: tuple[Any, ...] = (codes, network.panels(number), k, columns, params)
            pieces = number == 0 and not in_bytes
            run = partial(_product_in_pieces, x, *given) if pieces else partial(steps_on_bytes.product, *given)
        else:
            scale = None if operand.row_scale is None else operand.row_scale[:, None]
            sides = _sides_of(step, (nodes, columns), scale, operand.degrees)
            terms = operand_terms(_NAME, *sides, epilogue.offset_correction)
            params = epilogue.params(_NAME, (nodes, columns), terms)
            run = partial(steps_on_bytes.sums, codes, indptr, indices, columns, params)
        if number + 1 == len(steps):
            return calls, run, held
        codes = np.empty((nodes, steps_on_bytes.row_bytes(columns)), np.uint8)
        held += codes.nbytes
        calls.append(partial(run, codes))
    return None


def _fits_bytes(network: LowBitNetwork) -> bool:
    """Whether the steps on bytes can compute the network."""
    # Layers inside a GIN's perceptron do not stand among the widths.
    columns = [step.chain.col_scale.size for step in network.steps]
    return (
        max(network.bits) <= 8
        and max(*columns, *network.widths) <= steps_on_bytes.LONGEST
        and not any(getattr(step, "own", False) or (step.chain.bits or 1) > 8 for step in network.steps)
    )


def layers_in_bytes(network: LowBitNetwork) -> tuple[steps_on_bytes.Layer, ...] | None:
    """The steps as :func:`bitsparse.backends.host.matmul.bytes.network` takes them; None where the network needs others."""
    if not _fits_bytes(network) or not min(network.features, *(step.chain.col_scale.size for step in network.steps)):
        return None
    made, one = [], np.ones(1, np.float32)  # in place of vectors over the rows
    step: Any
    vectors: tuple[str | None, str | None, str | None]
    for number, step in enumerate(network.steps):
        epilogue, columns = step.chain.epilogue(), step.chain.col_scale.size
        if hasattr(step, "weights"):
            params, panels = epilogue.params(_NAME, (1, columns)), network.panels(number)
            term = None if step.constant is None else (one, step.constant)
            vectors = ("right" if step.scaled else None, None, None if term is None else "right")
            made.append(steps_on_bytes.layer(panels, columns, replace(params, col_term=term), vectors))
            continue
        terms = operand_terms(_NAME, *_sides_of(step, (1, columns), None, one), epilogue.offset_correction)
        params = epilogue.params(_NAME, (1, columns), terms)
        left = None if network.normalisation == "sum" else "left"
        vectors = (left, None if params.row_term is None else "degrees", None)
        made.append(steps_on_bytes.layer(None, columns, params, vectors))
    return tuple(made)


def _sides_of(step: Any, shape: tuple[int, int], scale: Any, degrees: Any) -> tuple[Any, Any]:
    """Both factors of a sum over neighbours."""
    offset = None if step.offset is None else step.offset[None, :]
    return Factor(shape, scale, None, degrees), Factor(shape, None, offset)


def _room(rows: int, columns: int) -> NDArray[np.uint8]:
    """Memory for codes, with zeros behind each row; what is not zeroed can be what the plan before this one let go of."""
    codes = np.empty((rows, steps_on_bytes.row_bytes(columns)), np.uint8)
    codes[:, columns:] = 0
    return codes


def _piece_rows(shape: tuple[int, ...]) -> int:
    """Rows of packed features that are taken apart at a time."""
    return min(shape[0], max(1, _PIECE_BYTES // max(1, steps_on_bytes.row_bytes(shape[1]))))


def _unpack(x: BitTensor, codes: NDArray[np.uint8]) -> None:
    if codes.shape != x.shape:
        codes[:, : x.shape[1]] = x.toarray()
        return
    pack.unpack(x.words, x.shape, x.bits, axis=x.axis, layout=x.layout, encoding=x.encoding, dtype=np.uint8, out=codes)


def _product_in_pieces(
    x: BitTensor,
    codes: NDArray[np.uint8],
    panels: NDArray[np.int8],
    k: int,
    n: int,
    params: EpilogueParams,
    out: NDArray[Any],
) -> None:
    """The product of packed codes with weights: `codes` holds some of their rows at a time."""
    for start in range(0, x.shape[0], codes.shape[0]):
        rows = slice(start, min(start + codes.shape[0], x.shape[0]))
        piece = codes[: rows.stop - start]
        _unpack(x[rows], piece)
        steps_on_bytes.product(piece, panels, k, n, _params_of(params, rows), out[rows])


def _params_of(params: EpilogueParams, rows: slice) -> EpilogueParams:
    """Those of some rows, where :func:`row_operands` made what belongs to rows."""
    term = params.col_term
    if term is not None and term[0] is not None:
        term = (term[0][rows], term[1])
    scale = None if params.row_scale is None else params.row_scale[rows]
    return replace(params, row_scale=scale, col_term=term)


def row_operands(right: Any, constant: Any, scale: Any) -> dict[str, Any]:
    """What a product with weights does to each row, by the graph's right-hand factors, and by the scale of its codes if they have one."""
    term = None if constant is None else (right, constant)
    if scale is not None:
        right = scale.reshape(-1) if right is None else right * scale.reshape(-1)
    return {"row_scale": right, "col_term": term}

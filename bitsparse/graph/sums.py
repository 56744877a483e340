"""Sums of codes over the neighbours in a graph, on a CPU and on a GPU; a graph on a GPU may change between calls, in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import family_of
from bitsparse.arrays.packed import Encoding
from bitsparse.backends.params import OperandParams
from bitsparse.ops import Epilogue, matmul, plan_spmm
from bitsparse.ops.finish.epilogue import target_behind
from bitsparse.ops.matmul.plan import MatmulPlan
from bitsparse.ops.matmul.products import RightKind
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import as_features
from bitsparse.ops.spmm.plan import SpmmPlan

if TYPE_CHECKING:
    from bitsparse.graph.operand import Graph

_INT32 = np.dtype(np.int32)
#: Bits of codes that are stored side by side; codes of other bits are stored in planes.
CODE_ROW_BITS = (2, 4, 8, 16)


def message_form(form: str, bits: int) -> dict[str, Any]:
    """Packed axis and layout of codes that sums over a pattern in this form read without a conversion.

    Examples
    --------
    >>> message_form("dense", 4), message_form("csr", 4)
    ({'axis': -2, 'layout': 'planes'}, {'axis': -1, 'layout': 'rows'})
    """
    if form == "dense":
        return {"axis": -2, "layout": "planes"}
    return {"axis": -1, "layout": "rows" if bits in CODE_ROW_BITS else "planes"}


def host_sums(
    graph: Graph, columns: int, bits: int, encoding: str, epilogue: Epilogue
) -> Callable[[BitTensor, Any], Any]:
    """``run(x, out)`` for :meth:`bitsparse.graph.Graph.aggregate` on the CPU: a product with dense bits, or sums over neighbours."""
    function, scale = "aggregate", graph.row_scale
    if graph.form == "dense":
        left = graph.packed().with_affine(None if scale is None else scale[:, None])
        return MatmulPlan(function, left, RightKind(columns, bits, encoding, ()), epilogue, None, True)
    shape = (graph.nodes, graph.nodes)
    operand = CSROperand(graph.indptr, graph.indices, None, scale, None, shape)
    plan = SpmmPlan(function, operand, (columns,), "sum", epilogue=epilogue)
    return lambda x, out: plan.run(as_features(function, "x", x), None, out)


def device_sums(
    graph: Graph, columns: int, bits: int, encoding: str, acc: np.dtype[Any], epilogue: Epilogue
) -> Callable[[BitTensor, Any], Any]:
    """``run(x, out)`` for :meth:`bitsparse.graph.Graph.aggregate` on a GPU."""
    function, shape = "aggregate", (graph.nodes, columns)
    bits = _check.bit_count(function, bits, high=16)
    if acc != _INT32:
        raise ValueError(
            f"{function}: sums of {graph.longest} codes of {bits} bits may need more than 32 bits; pass fewer bits or smaller parts"
        )
    if epilogue.row_scale is not None:
        raise ValueError(f"{function}: factors of rows are the graph's on a GPU; pass an Epilogue without row_scale")
    params = epilogue.params(function, shape)
    form = graph.message_form(bits)
    sums: Callable[[BitTensor, Any], Any] | None = None
    offset: Any = None

    def behind(x: BitTensor) -> OperandParams:
        """The scales and offsets of graph and codes, as additions to the epilogue."""
        term = None
        if x.offset is not None:
            if not epilogue.offset_correction:
                raise ValueError(f"{function}: the codes have an offset; pass Epilogue(offset_correction=True)")
            own = 1.0 if params.col_scale is None else interop.move(params.col_scale, graph.device)
            none = interop.require_cupy(function).zeros(columns, np.float64)
            term = graph.term, ((x.offset.astype(np.float64) * own) + none).astype(np.float32).reshape(-1)
        col_scale = None if x.scale is None else x.scale.reshape(-1 if x.scale.size > 1 else ())
        return OperandParams(graph.row_scale, col_scale, term)

    def run(x: BitTensor, out: Any) -> Any:
        nonlocal sums, offset
        target = None if out is None else target_behind(function, epilogue, out, shape, acc, graph.device, (x.words,))
        codes = x.repack(**form)
        if sums is None or offset is not x.offset:
            sums, offset = _sums_of(graph, columns, bits, encoding, params, behind(x)), x.offset
        result = sums(codes, target)
        return epilogue.wrap(result, shape, family_of(x), function) if out is None else out

    return run


def _sums_of(
    graph: Graph, columns: int, bits: int, encoding: str, params: Any, behind: OperandParams
) -> Callable[[BitTensor, Any], Any]:
    if graph.form == "csr" and not graph.fixed:
        layout = graph.message_form(bits)["layout"]
        sums_of = backends.family(graph.device, "packets").CodeSums
        in_place = sums_of(graph.indptr, graph.indices, columns, bits, encoding, layout, params, behind)
        return lambda codes, out: in_place(codes.words, out)
    shape = (graph.nodes, columns)
    integers = interop.require_cupy("aggregate").empty(shape, _INT32)
    product = (
        partial(matmul, graph.packed())
        if graph.form == "dense"
        else plan_spmm(graph.packed(), columns, bits=bits, encoding=cast(Encoding, encoding))
    )
    chain = backends.family(graph.device, "finish.epilogue").DeviceEpilogue(params, shape).with_operand(behind)
    finish = chain.on(_INT32)

    def run(codes: BitTensor, out: Any) -> Any:
        product(codes.with_affine(), out=integers)
        target = chain.empty() if out is None else out
        finish.run(integers, target)
        return target

    return run

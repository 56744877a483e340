"""Sums of codes over the neighbours in a graph, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bitsparse.arrays import BitTensor
from bitsparse.ops import Epilogue
from bitsparse.ops.matmul.plan import MatmulPlan, RightKind
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import as_features
from bitsparse.ops.spmm.plan import SpmmPlan

if TYPE_CHECKING:
    from bitsparse.graph.operand import Graph

#: Bits of codes that lie side by side; others lie in planes.
CODE_ROW_BITS = (2, 4, 8, 16)


def message_form(form: str, bits: int) -> dict[str, Any]:
    """Packed axis and layout of codes that sums over a pattern in this form read without converting them.

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
    """``run(x, out)`` for :meth:`bitsparse.graph.Graph.aggregate`: a product with dense bits, or sums over neighbours."""
    function, scale = "aggregate", graph.row_scale
    if graph.form == "dense":
        left = graph.packed().with_affine(None if scale is None else scale[:, None])
        return MatmulPlan(function, left, RightKind(columns, bits, encoding, ()), epilogue, None, True)
    shape = (graph.nodes, graph.nodes)
    operand = CSROperand(graph.indptr, graph.indices, None, scale, None, shape)
    plan = SpmmPlan(function, operand, (columns,), "sum", epilogue=epilogue)
    return lambda x, out: plan.run(as_features(function, "x", x), None, out)

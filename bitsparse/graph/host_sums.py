"""Sums of codes over the neighbours in a graph, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends
from bitsparse.arrays import BitTensor
from bitsparse.backends.params import PackedFeatures
from bitsparse.ops import Epilogue, matmul, spmm
from bitsparse.ops.finish.terms import Factor, operand_terms

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
    graph: Graph, columns: int, acc: np.dtype[Any], epilogue: Epilogue, scaled: bool
) -> Callable[[BitTensor, Any], Any]:
    """``run(x, target)`` for :meth:`bitsparse.graph.Graph.aggregate`."""
    function, shape = "aggregate", (graph.nodes, columns)
    scale = graph.row_scale[:, None] if scaled and graph.row_scale is not None else None
    left = Factor((graph.nodes, graph.nodes), scale, None, graph.degrees)

    def run(x: BitTensor, target: Any) -> Any:
        terms = operand_terms(function, left, x, epilogue.offset_correction, ("the graph", "x"))
        params = epilogue.params(function, shape, terms)
        result = backends.family("cpu", "matmul.matmul").epilogue(_integers(graph, x.with_affine(), acc), params)
        if target is not None:
            target[...] = result
        return result

    return run


def _integers(graph: Graph, codes: BitTensor, acc: np.dtype[Any]) -> NDArray[Any]:
    if graph.form == "dense":
        return np.asarray(matmul(graph.packed(), codes))
    if graph.form != "csr":
        return np.ascontiguousarray(np.asarray(spmm(graph.packed(), codes)))
    if 0 in codes.shape:
        return np.zeros(codes.shape, acc)
    x = codes.repack(axis=-1, layout="rows") if codes.bits in (1, *CODE_ROW_BITS) else None
    data = codes.toarray() if x is None else x.words[:, None, :]
    packed = None if x is None else PackedFeatures(x.bits, x.encoding, x.shape[1])
    shape = (graph.nodes, graph.nodes)
    sums: NDArray[Any] = backends.family("cpu", "spmm.spmm").spmm(
        graph.indptr, graph.indices, shape, data, nnz=graph.edges, acc_dtype=acc, packed=packed
    )
    return sums

"""Sums of codes over the neighbours in a graph, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import family_of
from bitsparse.backends.params import PackedFeatures
from bitsparse.errors import ShapeError
from bitsparse.ops import Epilogue, matmul, spmm
from bitsparse.ops.finish.target import target_of
from bitsparse.ops.finish.terms import operand_terms

if TYPE_CHECKING:
    from bitsparse.graph.operand import Graph

__all__ = ["CODE_ROW_BITS", "Factor", "host_sums", "message_form", "same_codes"]

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


class Factor(NamedTuple):
    """One factor of a sum over neighbours, as :func:`bitsparse.ops.finish.terms.operand_terms` reads it.

    Attributes
    ----------
    shape : tuple of int
    scale, offset : ndarray of float32 or None
    line_sums : ndarray
        Edges of each row of a graph.
    """

    shape: tuple[int, ...]
    scale: Any = None
    offset: Any = None
    line_sums: Any = None


def host_sums(
    graph: Graph, columns: int, bits: int, encoding: str, epilogue: Epilogue, scaled: bool
) -> Callable[..., Any]:
    """``run(x, out=None)`` of :meth:`bitsparse.graph.Graph.aggregate`."""
    function = "aggregate"
    acc = _check.accumulator(function, graph.longest, max(map(abs, _check.limits_of(bits, encoding))), 1)
    shape = (graph.nodes, columns)
    scale = graph.row_scale[:, None] if scaled and graph.row_scale is not None else None
    left = Factor((graph.nodes, graph.nodes), scale, None, graph.degrees)

    def run(x: BitTensor, out: Any = None) -> Any:
        same_codes(function, x, shape, bits, encoding)
        _check.same_device(function, (graph.device, x.device))
        terms = operand_terms(function, left, x, epilogue.offset_correction, ("the graph", "x"))
        params = epilogue.params(function, shape, terms)
        target = None if out is None else target_of(function, epilogue, out, shape, acc, graph.device, (x.words,))
        result = backends.family("cpu", "matmul.matmul").epilogue(_integers(graph, x.with_affine(), acc), params)
        if target is None:
            return epilogue.wrap(result, shape, family_of(x), function)
        target[...] = result
        return out

    return run


def same_codes(function: str, x: BitTensor, shape: tuple[int, int], bits: int, encoding: str) -> None:
    """Refuse codes of another kind than planned."""
    kind = (x.shape, x.bits, x.encoding)
    if kind != (shape, bits, encoding):
        raise ShapeError(f"{function}: x is (shape, bits, encoding) {kind}, but planned was {(shape, bits, encoding)}")


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

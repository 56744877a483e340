"""The graph of a binary network: 0/1 entries, with and without the scales of its normalisation, where the features are."""

from __future__ import annotations

from typing import Any, NamedTuple

from bitsparse.arrays import FRDC, TCTiledCSR
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.graph.operand import Graph

__all__ = ["Neighbours", "neighbours_of"]


class Neighbours(NamedTuple):
    """One pattern twice: plain, and with ``row_scale`` and ``col_scale``. Both share what is prepared for it."""

    plain: Any
    scaled: Any

    @property
    def nbytes(self) -> int:
        """Bytes of the pattern and its scales."""
        return int(self.scaled.nbytes)

    def fit(self, function: str, rows: int) -> None:
        """Refuse features of another number of nodes."""
        nodes = self.plain.shape[0]
        if rows != nodes:
            raise ShapeError(f"{function}: the graph has {nodes} nodes but x has {rows} rows; pass one row per node")


def neighbours_of(function: str, graph: Any, device: str, *, loops: bool) -> Neighbours:
    """What a model aggregates over, on `device`.

    Parameters
    ----------
    graph : Graph, FRDC, TCTiledCSR, sparse array or a graph of :mod:`bitsparse.datasets`
        A Graph, an FRDC or a TCTiledCSR is taken as it is, with its scales. From anything else: with `loops` the propagation of a
        GCN, ``D^-1/2 (A + I) D^-1/2``; else the stored entries as they are.
    """
    kept = graph.prepared if isinstance(graph, Graph) else None
    if kept is not None and device in kept:
        found: Neighbours = kept[device]
        return found
    neighbours = _made(function, graph, loops)
    sizes = neighbours.plain.shape
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"{function}: the graph has shape {sizes}, but nodes aggregate over nodes; pass a square array"
        )
    if neighbours.scaled.device != device:
        moved = neighbours.scaled.to_device(device)
        neighbours = Neighbours(moved.with_scales(), moved)
    if kept is not None:
        kept[device] = neighbours
    return neighbours


def _made(function: str, graph: Any, loops: bool) -> Neighbours:
    if isinstance(graph, Graph):
        bits = graph.packed("frdc")
        return Neighbours(bits, bits.with_scales(graph.row_scale, graph.col_scale))
    if isinstance(graph, (FRDC, TCTiledCSR)):
        if isinstance(graph, TCTiledCSR) and graph.data is not None:
            raise DTypeError(
                f"{function}: the graph has a value per edge, but one-bit adjacencies have none; pass FRDC(graph, pattern=True), with "
                f"row_scale and col_scale for weights that factorise"
            )
        return Neighbours(graph.with_scales(), graph)
    pattern = getattr(graph, "adjacency", graph)
    if not hasattr(pattern, "tocsr"):
        raise DTypeError(
            f"{function}: graph must be a Graph, FRDC, TCTiledCSR, sparse array or a graph of bitsparse.datasets, got "
            f"{type(graph).__name__}"
        )
    if loops:
        if hasattr(pattern, "get"):
            pattern = pattern.get()
        return _made(function, Graph(pattern), loops)
    bits = FRDC(pattern, pattern=True)
    return Neighbours(bits, bits)

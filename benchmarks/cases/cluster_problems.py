"""Problems of the cases with batches of parts: a graph with features, its METIS parts, and batches for a peer.

Widths and classes are those of QGTC's Table 1 (DD: TC-GNN's Table 4). If a data set has no features, or features of another width, normal
ones from a fixed seed replace them. METIS makes 1500 parts, which are kept in the folder named by ``BITSPARSE_PARTS``, by default
``benchmarks/.parts`` (a file ``GRAPH-1500.npz`` each): on one core METIS takes seconds for most graphs, but minutes for one of the size of
products.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases.graphs import graph as graph_of
from bitsparse import jit
from bitsparse.datasets import SIZES as PUBLISHED
from bitsparse.datasets import GraphData, synthetic_csr
from bitsparse.errors import DeviceError
from bitsparse.graph import partition

__all__ = ["BITS", "GRAPHS", "HIDDEN", "KINDS", "PARTS", "PARTS_PER_BATCH", "Batch", "Problem", "labels_of", "problem"]

Kind = Literal["gcn", "gin"]
#: Features per node, and classes.
GRAPHS: dict[str, tuple[int, int]] = {
    "artist": (100, 12),
    "PROTEINS_full": (29, 2),
    "DD": (89, 2),
    "ppi": (50, 121),
    "blogcatalog": (128, 39),
    "arxiv": (128, 40),
    "products": (100, 47),
}
BITS = (1, 2, 4, 8)
#: Columns of the two hidden layers of networks with three layers (QGTC, section 6).
HIDDEN: dict[Kind, int] = {"gcn": 16, "gin": 64}
KINDS: tuple[Kind, ...] = ("gcn", "gin")
PARTS, PARTS_PER_BATCH = 1500, 20


class Batch(NamedTuple):
    """Some parts as one block-diagonal graph, without self loops: both models add these themselves."""

    nodes: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]

    def with_loops(self) -> Batch:
        """The same batch with an edge from each node to itself, after the node's other edges."""
        own = np.arange(self.nodes.size, dtype=np.int32)
        indptr = self.indptr + np.arange(self.indptr.size)
        indices = np.empty(int(indptr[-1]), np.int32)
        last = np.zeros(indices.size, bool)
        last[indptr[1:] - 1] = True
        indices[last], indices[~last] = own, self.indices
        return Batch(self.nodes, indptr, indices)

    def normalised(self) -> NDArray[np.float32]:
        """The values of ``D^-1/2 A D^-1/2``, with the degrees within this batch."""
        degrees = np.diff(self.indptr)
        factors = 1 / np.sqrt(np.maximum(degrees, 1))
        return (np.repeat(factors, degrees) * factors[self.indices]).astype(np.float32)


class Problem:
    """A graph with features and parts, which are computed when they are first asked for."""

    def __init__(self, name: str, data: GraphData, source: str, columns: int, classes: int) -> None:
        self.name, self.data, self.source, self.columns, self.classes = name, data, source, columns, classes

    @property
    def nodes(self) -> int:
        """The number of nodes of the graph."""
        return self.data.num_nodes

    @property
    def own_features(self) -> bool:
        """Whether the features are the data set's."""
        return self.data.x is not None and self.data.x.shape[1] == self.columns

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """Float32 features: the data set's if they have the right width, else random ones."""
        if self.own_features:
            dense = self.data.x.toarray() if hasattr(self.data.x, "toarray") else self.data.x
            return np.ascontiguousarray(dense, np.float32)
        return np.random.default_rng(0).standard_normal((self.nodes, self.columns), dtype=np.float32)

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """The part of each node."""
        return labels_of(self.name, self.data)

    @cached_property
    def _kept(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Nodes ordered by part, CSR arrays of the edges inside parts in that order (no loops), and where the parts start."""
        labels, indptr, indices = self.labels, self.data.indptr, self.data.indices
        order = np.argsort(labels, kind="stable")
        bounds = np.concatenate([[0], np.cumsum(np.bincount(labels))])
        place = np.empty(order.size, np.int32)
        place[order] = np.arange(order.size, dtype=np.int32)
        degrees = np.diff(indptr)
        inside = labels[indices] == np.repeat(labels, degrees)
        inside &= indices != np.repeat(np.arange(labels.size, dtype=indices.dtype), degrees)
        before = np.concatenate([[0], np.cumsum(inside, dtype=np.int64)])[indptr]
        kept = indices[inside]
        counts = np.diff(before)[order]
        starts = np.concatenate([[0], np.cumsum(counts)])
        entries = np.repeat(before[:-1][order] - starts[:-1], counts) + np.arange(kept.size)
        return order, starts, place[kept[entries]], bounds

    @property
    def kept_edges(self) -> int:
        """The number of edges inside the parts, without loops."""
        return int(self._kept[2].size)

    def batches(self, parts: int = PARTS_PER_BATCH) -> Iterator[Batch]:
        """Yield batches of this many parts, in ascending order of parts."""
        order, starts, indices, bounds = self._kept
        for first in range(0, bounds.size - 1, parts):
            low, high = int(bounds[first]), int(bounds[min(first + parts, bounds.size - 1)])
            indptr = starts[low : high + 1]
            yield Batch(order[low:high], indptr - indptr[0], indices[indptr[0] : indptr[-1]] - np.int32(low))

    def spread(self, parts: int) -> Batch:
        """One batch of `parts` parts, spread evenly over all parts."""
        order, starts, indices, bounds = self._kept
        chosen = np.unique(np.linspace(0, bounds.size - 2, min(parts, bounds.size - 1)).astype(np.int64))
        sizes = bounds[chosen + 1] - bounds[chosen]
        ends = np.cumsum(sizes)
        # The positions of the nodes in the order of parts, and how far their numbers move.
        move = np.repeat(ends - sizes - bounds[chosen], sizes)
        places = np.arange(ends[-1]) - move
        counts = starts[places + 1] - starts[places]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        entries = np.arange(indptr[-1]) + np.repeat(starts[places] - indptr[:-1], counts)
        return Batch(order[places], indptr, (indices[entries] + np.repeat(move, counts)).astype(np.int32))

    def widths(self, kind: Kind) -> list[int]:
        """Columns before, between and after the layers."""
        return [self.columns, HIDDEN[kind], HIDDEN[kind], self.classes]

    def facts(self) -> dict[str, Any]:
        """Facts about the problem for the record."""
        facts: dict[str, Any] = {"graph": self.name, "source": self.source, "nodes": self.nodes}
        facts |= {"entries": int(self.data.indices.size), "kept_edges": self.kept_edges, "features": self.columns}
        return facts | {"classes": self.classes, "own_features": self.own_features, "parts": int(self.labels.max()) + 1}


def labels_of(name: str, data: GraphData) -> NDArray[np.int32]:
    """The part of each node of the graph with this name, from the folder of parts or from METIS."""
    folder = Path(os.environ.get("BITSPARSE_PARTS") or Path(__file__).resolve().parents[1] / ".parts")
    parts = min(PARTS, data.num_nodes)
    path, entries = folder / f"{name}-{parts}.npz", int(data.indices.size)
    if path.is_file():
        with np.load(path, allow_pickle=False) as kept:
            if int(kept["nodes"]) == data.num_nodes and int(kept["entries"]) == entries:
                return np.asarray(kept["labels"], np.int32)
    labels = partition(data.adjacency, parts, seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / f"{path.stem}-{os.getpid()}.npz"  # an interrupted run leaves no partial file under the final name
    np.savez_compressed(own, labels=labels.astype(np.int16), nodes=data.num_nodes, entries=entries)
    own.replace(path)
    return labels


@cache
def maker() -> str:
    """The device on which synthetic graphs are made: a GPU if there is one, which is faster and makes the same graph."""
    try:
        return "cuda" if jit.require_cupy("suite cluster").cuda.is_available() else "cpu"
    except DeviceError:
        return "cpu"


_held: dict[str, Problem] = {}


def problem(name: str) -> Problem:
    """The problem of this name; it is kept until another one is asked for."""
    if name not in _held:
        _held.clear()
        if name in PUBLISHED:
            indptr, indices = synthetic_csr(name, "communities", device=maker())
            if maker() != "cpu":
                indptr, indices = indptr.get(), indices.get()
            data = GraphData(indptr=indptr, indices=indices, name=name)
            source = f"synthetic communities graph of the size of {name}, seed 0"
        else:
            data, source = graph_of(name)
        _held[name] = Problem(name, data, source, *GRAPHS[name])
    return _held[name]

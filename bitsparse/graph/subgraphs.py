"""Batches that are subgraphs: those of GraphSAINT, with weights that correct for uneven draws, and clusters."""

from __future__ import annotations

import threading
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._fork import fresh_in_children
from bitsparse.arrays.indices import index_array
from bitsparse.graph.parts import numbered_by_part
from bitsparse.graph.samplers import BatchSampler, Nodes, SampledBatch

#: Share of one edge in the tables for drawing nodes and edges. Shares are integers, so that every machine draws the same.
_SHARE = 1 << 32
#: Number of the first epoch whose batches are used only to count coverage.
_COUNTED = 1 << 31


class SaintSampler(BatchSampler):
    """Subgraphs of nodes drawn with known probabilities, with weights that correct for these (GraphSAINT, Zeng et al., ICLR 2020).

    Parameters
    ----------
    graph : sparse array (n, n)
        As for :class:`NeighborSampler`.
    kind : {"node", "edge", "walk"}
        What is drawn, with replacement: nodes by the squared norm of their column of ``D^-1 A``, edges by ``1 / degree`` of both ends, or
        walks from uniformly drawn roots (Algorithm 2). A batch has all nodes that were drawn and all edges among them.
    size : int
        Number of draws for a batch.
    length : int
        Steps of a walk.
    batches : int, optional
        Batches in an epoch; by default enough for one draw per node.
    seed : int
    counted : int
        For walks, the number of batches in which the coverage is counted that determines the weights. For nodes and edges it is known.

    Notes
    -----
    P is the probability that a node, or both ends of an edge, are in a batch (section 3.2). ``batch.weight`` is 1 / (n P(v)), so that the
    sum of weighted losses is on average the mean over all nodes. ``block.weight`` is P(v) / P(u, v), so that the sum over a target's
    neighbours, in batches with this target, is on average the sum over all its neighbours. Nodes that were never counted weigh as if
    counted once.

    Examples
    --------
    >>> from bitsparse import graph
    >>> batch = graph.SaintSampler(np.ones((8, 8)), "node", 4, seed=0).batch(epoch=0, number=0)
    >>> batch.nodes, batch.blocks[0].shape
    (array([2, 4, 7]), (3, 3))
    """

    _lock: threading.Lock

    def __init__(
        self,
        graph: Any,
        kind: Literal["node", "edge", "walk"],
        size: int,
        *,
        length: int = 2,
        batches: int | None = None,
        seed: int = 0,
        counted: int = 64,
    ) -> None:
        name = "SaintSampler"
        super().__init__(name, graph, seed)
        self.kind = _check.choice(name, "kind", kind, ("node", "edge", "walk"))
        self.size = _check.integer(name, "size", size, 1, 1 << 40)
        self.length = _check.integer(name, "length", length, 0, 1 << 20)
        nodes = self.shape[0]
        whole = max(-(-nodes // self.size), 1)
        self._batches = _check.integer(name, "batches", whole if batches is None else batches, 1, 1 << 40)
        self._counted = _check.integer(name, "counted", counted, 1, 1 << 20)
        #: Rows and running shares to draw from, in host memory and (below) on the device of the graph; walks need neither.
        self._rows, self._table = np.empty(0, np.int64), np.empty(0, np.int64)
        self._host = interop.move(self._indptr, "cpu"), interop.move(self._indices, "cpu")
        if kind != "walk":
            self._rows = np.repeat(np.arange(nodes), np.diff(self._host[0]))
            self._table = self._shares()
        self._drawn_from = self._there(self._rows), self._there(self._table)
        self._coverage: tuple[Any, Any] | None = None
        fresh_in_children(self, _lock=threading.Lock)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        fresh_in_children(self, _lock=threading.Lock)

    def __len__(self) -> int:
        return self._batches if self.shape[0] else 0

    def _shares(self) -> Nodes:
        """Running sums of the shares by which nodes or edges are drawn."""
        indptr, indices = self._host
        degrees, incoming = np.diff(indptr).astype(np.int64), np.bincount(indices, minlength=self.shape[0])
        if self.kind == "edge":
            return np.cumsum(_SHARE // degrees[self._rows] + _SHARE // incoming[indices])
        each = np.maximum(_SHARE // np.maximum(degrees, 1) ** 2, 1)[self._rows]
        # Sums of integers below 2**53 are exact. Nodes without edges get a share of 1, so they may be drawn too.
        return np.cumsum(np.maximum(np.bincount(indices, each, self.shape[0]).astype(np.int64), 1))

    def _drawn(self, epoch: int, number: int) -> Nodes:
        """The nodes of a batch, ascending."""
        draws, kernels, space = self._draws(epoch, number), self._kernels, self._space
        if not self.shape[0] or (self.kind == "edge" and not self._table.size):  # nothing to draw
            return space.empty(0, np.int64)
        if self.kind == "walk":
            roots = kernels.below(self.shape[0], self.size, **draws)
            return space.unique(kernels.walks(*self._graph, roots, self.length, **draws))
        rows, table = self._drawn_from
        chosen = space.searchsorted(table, kernels.below(int(self._table[-1]), self.size, **draws), side="right")
        if self.kind == "node":
            return space.unique(chosen)
        return space.unique(space.concatenate([rows[chosen], self._indices[chosen]]).astype(np.int64))

    def coverage(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Probabilities that a node, and that both ends of an edge, are in a batch; known for nodes and edges, counted for walks."""
        with self._lock, interop.working_on(self.device, interop.CUPY):
            if self._coverage is None:
                node, edge = self._counts() if self.kind == "walk" else self._known()
                self._coverage = self._there(node), self._there(edge)
        return self._coverage

    def _counts(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        nodes, edges, each = np.zeros(self.shape[0]), np.zeros(self._indices.size), max(len(self), 1)
        for i in range(self._counted):
            drawn = self._drawn(_COUNTED + i // each, i % each)
            nodes[interop.move(drawn, "cpu")] += 1
            edges[interop.move(self._induced(drawn).edges, "cpu")] += 1
        return np.maximum(nodes, 1) / self._counted, np.maximum(edges, 1) / self._counted

    def _known(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        share: Any = np.diff(self._table, prepend=0) / max(int(self._table[-1]) if self._table.size else 0, 1)
        columns, loops = self._host[1], self._rows == self._host[1]
        both: Any = np.zeros(self._indices.size)
        if self.kind == "edge":
            # A node is in a batch if any of its edges, out or in, is drawn; an edge in either direction brings both of its ends.
            at = np.bincount(self._rows, share, self.shape[0])
            at += np.bincount(columns, np.where(loops, 0, share), self.shape[0])
            keys = np.minimum(self._rows, columns) * np.int64(self.shape[0]) + np.maximum(self._rows, columns)
            _, pair = np.unique(keys, return_inverse=True)
            both, share = np.bincount(pair, share)[pair], at
        # Probability of no hit in `size` draws, minus 1; expm1 and log1p avoid cancellation for rare nodes.
        either = share[self._rows] + share[columns] - both
        missed = [np.expm1(self.size * np.log1p(-np.minimum(part, 1 - 1e-16))) for part in (share, either)]
        node = -missed[0]
        met = node[self._rows] + node[columns] + missed[1]
        return node, np.where(loops, node[self._rows], met)

    def _batch(self, epoch: int, number: int) -> SampledBatch:
        nodes, (node, edge) = self._drawn(epoch, number), self.coverage()
        block = self._induced(nodes, lambda rows, edges: node[rows] / edge[edges])
        weight = (1 / (self.shape[0] * node[nodes])).astype(np.float32)
        return SampledBatch(nodes, (block,), nodes, weight)


class ClusterSampler(BatchSampler):
    """Batches of several parts of a graph, with all edges among their nodes (Cluster-GCN, Chiang et al., KDD 2019).

    Parameters
    ----------
    graph : sparse array (n, n)
        As for :class:`NeighborSampler`.
    labels : array_like (n,) of int
        The part of each node, as :func:`bitsparse.graph.partition` returns it.
    parts : int
        Number of parts in a batch.
    shuffle : bool
        Whether every epoch combines other parts.
    seed : int

    Examples
    --------
    >>> from bitsparse import graph
    >>> sampler = graph.ClusterSampler(np.ones((6, 6)), [0, 0, 1, 1, 2, 2], parts=2, shuffle=False)
    >>> [batch.nodes.tolist() for batch in sampler]
    [[0, 1, 2, 3], [4, 5]]
    """

    def __init__(self, graph: Any, labels: Any, parts: int = 1, *, shuffle: bool = True, seed: int = 0) -> None:
        name = "ClusterSampler"
        super().__init__(name, graph, seed)
        labels = interop.move(index_array(name, "labels", labels), "cpu")
        self.parts, self.shuffle = (
            _check.integer(name, "parts", parts, 1, 1 << 40),
            _check.flag(name, "shuffle", shuffle),
        )
        members, _, self._bounds = numbered_by_part(name, self.shape[0], labels)
        self._members = members.astype(np.int64)

    def __len__(self) -> int:
        return -(-(self._bounds.size - 1) // self.parts)

    def _batch(self, epoch: int, number: int) -> SampledBatch:
        self._draws(epoch, number)  # only to check the arguments
        count = self._bounds.size - 1
        order = interop.move(self._order(epoch, count), "cpu") if self.shuffle else np.arange(count)
        some = order[number * self.parts : (number + 1) * self.parts]
        members = [self._members[self._bounds[one] : self._bounds[one + 1]] for one in some]
        nodes = self._there(np.sort(np.concatenate([np.empty(0, np.int64), *members])))
        return SampledBatch(nodes, (self._induced(nodes),), nodes)

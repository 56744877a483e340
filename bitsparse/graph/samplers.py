"""Batches of a graph for training: the base class of samplers, neighbour sampling, and threads that make batches ahead of time.

Random draws come from a counter-based generator. For a graph on a GPU, batches are made there, bitwise equal to those of the CPU.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays.indices import index_array
from bitsparse.errors import ShapeError
from bitsparse.graph.adjacency import pattern_of, refuse_edge_list, square_pattern

Nodes = NDArray[np.int64]
_T = TypeVar("_T")
_STREAMS = 32
#: Range of the random keys whose sorted order is the order of an epoch; equal keys keep their order.
_KEYS = 1 << 62


@dataclass(frozen=True, eq=False)
class Block:
    """Some edges of a graph as a graph of its own with new row and column numbers; its arrays are CuPy's if the graph is on a GPU.

    Attributes
    ----------
    indptr : ndarray of int32 or int64, shape (targets + 1,)
    indices : ndarray of int32
        Columns, ascending within a row.
    edges : ndarray of int64
        The number of each entry in the whole graph.
    shape : tuple of int
        Number of targets and of sources.
    weight : ndarray of float32, or None
        Weight of each edge that makes sums equal those of the whole graph on average, if edges are drawn unevenly.
    """

    indptr: NDArray[Any]
    indices: NDArray[np.int32]
    edges: Nodes
    shape: tuple[int, int]
    weight: NDArray[np.float32] | None = None

    def tocsr(self) -> Any:
        """The block as :class:`scipy.sparse.csr_array` with its weights, or ones if it has none.

        Examples
        --------
        >>> from bitsparse import graph
        >>> graph.NeighborSampler(np.eye(3), [2], batch_size=2, shuffle=False).batch(0, 1).blocks[0].tocsr().toarray()
        array([[1.]], dtype=float32)
        """
        from scipy import sparse

        indptr, indices, weight = (interop.move(part, "cpu") for part in (self.indptr, self.indices, self.weight))
        data = np.ones(indices.size, np.float32) if weight is None else weight
        return sparse.csr_array((data, indices, indptr), shape=self.shape)


@dataclass(frozen=True, eq=False)
class SampledBatch:
    """The part of a graph for one step of training; its arrays are CuPy's if the graph is on a GPU.

    Attributes
    ----------
    nodes : ndarray of int64
        The nodes whose features are needed, which are the sources of the first block, by their numbers in the whole graph.
    blocks : tuple of Block
        One block for each layer, first layer first; its targets are the sources of the next. Or a single block for all layers.
    targets : ndarray of int64
        The nodes whose results count, which are the targets of the last block, by their numbers in the whole graph.
    weight : ndarray of float32, or None
        Weight of each target's loss that makes the sum equal that of the whole graph on average, if nodes are drawn unevenly.
    """

    nodes: Nodes
    blocks: tuple[Block, ...]
    targets: Nodes
    weight: NDArray[np.float32] | None = None


class BatchSampler(ABC):
    """Base class of the samplers: a graph, a seed, and batches that depend only on the seed, the epoch and their number."""

    def __init__(self, function: str, graph: Any, seed: int, *, square: bool = True) -> None:
        if not square:
            refuse_edge_list(function, graph)
        pattern = (square_pattern if square else pattern_of)(function, graph, anywhere=True)
        self._function, self.shape = function, pattern.shape
        #: The device of the graph and of its batches.
        self.device = interop.device_of(pattern.indptr)
        self.seed = _check.integer(function, "seed", seed, 0, 2**63 - 1)
        self._indptr, self._indices = pattern.indptr, pattern.indices
        if self._indices.size and not 0 <= int(self._indices.min()) <= int(self._indices.max()) < self.shape[1]:
            raise ValueError(f"{function}: an index lies outside 0..{self.shape[1] - 1}; check the graph")
        self._own = threading.local()
        self._orders: dict[int, Nodes] = {}

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickles and copies, without thread-local arrays and without the cache of orders."""
        return {**self.__dict__, "_own": None, "_orders": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _own=threading.local())

    @abstractmethod
    def __len__(self) -> int:
        """Number of batches in an epoch."""

    def batch(self, epoch: int, number: int) -> SampledBatch:
        """A batch of an epoch; the same seed gives the same batch, whatever the order of calls and the calling thread."""
        with interop.working_on(self.device, interop.CUPY):
            return self._batch(epoch, number)

    @abstractmethod
    def _batch(self, epoch: int, number: int) -> SampledBatch:
        """Make a batch; CuPy's current device is that of the graph."""

    def __iter__(self) -> Iterator[SampledBatch]:
        return (self.batch(0, number) for number in range(len(self)))

    @property
    def _kernels(self) -> Any:
        return backends.family(self.device, "sampling.subgraphs")

    @property
    def _space(self) -> Any:
        return interop.namespace(self._indptr)

    def _there(self, array: Any) -> Any:
        """An array, moved to the device of the graph."""
        return interop.move(array, self.device)

    @property
    def _graph(self) -> tuple[Any, Any, int]:
        return self._indptr, self._indices, self.shape[1]

    @property
    def _place(self) -> Any:
        """Work array with a number for every column, all -1 between batches; each thread has its own."""
        if not hasattr(self._own, "place"):
            self._own.place = self._space.full(self.shape[1], -1, np.int32)
        return self._own.place

    def _draws(self, epoch: int, number: int, hop: int = 0, hops: int = 1) -> dict[str, int]:
        """Seed and stream of the random generator that only this hop of this batch uses."""
        _check.integer(self._function, "epoch", epoch, 0, 1 << 40)
        _check.integer(self._function, "number", number, 0, max(len(self) - 1, 0))
        place = (epoch * len(self) + number) * hops + hop
        return {"seed": (self.seed + (place >> _STREAMS)) % (1 << 64), "stream": place % (1 << _STREAMS)}

    def _order(self, epoch: int, count: int) -> Nodes:
        """A permutation for an epoch."""
        order = self._orders.get(epoch)
        if order is None:
            keys = self._kernels.below(_KEYS, count, seed=self.seed, stream=epoch % (1 << _STREAMS))
            if len(self._orders) > 2:
                self._orders.clear()
            self._orders[epoch] = order = self._space.argsort(keys, kind="stable").astype(np.int64)
        return order

    def _induced(self, nodes: Nodes, weight: Callable[[Nodes, Nodes], Any] | None = None) -> Block:
        """The block of all edges among ascending nodes; `weight` computes weights from rows and edges, as numbered in the whole graph."""
        starts, columns, edges = self._kernels.induced(*self._graph, nodes, place=self._place)
        made, space = None, self._space
        if weight is not None:
            rows = nodes[space.searchsorted(starts[1:], space.arange(edges.size), side="right")]
            made = weight(rows, edges).astype(np.float32)
        return Block(_narrow(starts, edges), columns, edges, (nodes.size, nodes.size), made)


def _narrow(starts: Nodes, edges: Nodes) -> NDArray[Any]:
    return starts.astype(np.int32) if edges.size < 2**31 else starts


class NeighborSampler(BatchSampler):
    """Batches of nodes with some neighbours of each, some neighbours of these, and so on (GraphSAGE, Hamilton et al., NeurIPS 2017).

    Parameters
    ----------
    graph : sparse array (targets, sources)
        Any graph that :func:`bitsparse.graph.partition` takes, or one on a GPU, where batches are then made; row i lists the nodes that
        node i receives from. Values are ignored. A bipartite graph can be sampled for one layer only.
    fanouts : sequence of int
        Most neighbours of a node in each layer, last layer first, as in ``NeighborLoader`` of PyTorch Geometric; -1 for all. Every set of
        that many neighbours is equally likely; no neighbour is drawn twice.
    nodes : array_like of int, optional
        The targets, each at most once; by default all nodes.
    batch_size : int
    shuffle : bool
        Whether every epoch has an order of its own.
    seed : int

    Raises
    ------
    ShapeError, ValueError, DTypeError
        The graph is an edge list, or is bipartite and there is more than one layer; or nodes are repeated or not in the graph.

    Examples
    --------
    >>> from bitsparse import graph
    >>> sampler = graph.NeighborSampler(np.ones((6, 6)), [2, 2], batch_size=3, seed=0)
    >>> batch = sampler.batch(epoch=0, number=1)
    >>> batch.targets, [block.shape[0] for block in batch.blocks], batch.blocks[-1].indptr
    (array([2, 3, 5]), [6, 3], array([0, 2, 4, 6], dtype=int32))
    """

    def __init__(
        self,
        graph: Any,
        fanouts: Sequence[int],
        nodes: Any = None,
        *,
        batch_size: int = 1024,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        name = "NeighborSampler"
        _check.instance(name, "fanouts", fanouts, Iterable, "numbers of neighbours", "pass for example [10, 5]")
        self.fanouts = [_check.integer(name, "a fan-out", one, -1, 1 << 28) for one in fanouts]
        super().__init__(name, graph, seed, square=len(self.fanouts) != 1)
        if not self.fanouts or 0 in self.fanouts:
            raise ValueError(
                f"{name}: fanouts must be numbers of neighbours or -1 for all, got {list(fanouts)}; pass for example [10, 5]"
            )
        self.batch_size = _check.integer(name, "batch_size", batch_size, 1, 1 << 30)
        self.shuffle = _check.flag(name, "shuffle", shuffle)
        targets = np.arange(self.shape[0]) if nodes is None else interop.move(index_array(name, "nodes", nodes), "cpu")
        self.targets = self._there(_distinct(name, np.asarray(targets, np.int64), self.shape[0]))

    def __len__(self) -> int:
        return -(-self.targets.size // self.batch_size)

    def _batch(self, epoch: int, number: int) -> SampledBatch:
        hops = len(self.fanouts)
        draws = [self._draws(epoch, number, hop, hops) for hop in range(hops)]
        order = self._order(epoch, self.targets.size) if self.shuffle else slice(None)
        chosen = self.targets[order][number * self.batch_size : (number + 1) * self.batch_size]
        own = self.shape[0] == self.shape[1]
        nodes, blocks = chosen, []
        for width, draw in zip(self.fanouts, draws, strict=True):
            found = self._kernels.hop(*self._graph, nodes, width=width, own=own, place=self._place, **draw)
            sources, starts, columns, edges = found
            blocks.append(Block(_narrow(starts, edges), columns, edges, (nodes.size, sources.size)))
            nodes = sources
        return SampledBatch(nodes, tuple(reversed(blocks)), chosen)


def _distinct(function: str, nodes: Nodes, count: int) -> Nodes:
    if nodes.ndim != 1:
        raise ShapeError(f"{function}: nodes have shape {nodes.shape}; pass one number for each node")
    if nodes.size and not 0 <= int(nodes.min()) <= int(nodes.max()) < count:
        raise ValueError(
            f"{function}: nodes reach from {int(nodes.min())} to {int(nodes.max())}, but the graph has {count}"
        )
    if np.unique(nodes).size != nodes.size:
        raise ValueError(f"{function}: nodes are repeated; pass each once")
    return nodes


def ahead(
    sampler: BatchSampler,
    epoch: int = 0,
    *,
    threads: int = 1,
    depth: int | None = None,
    finish: Callable[[SampledBatch], _T] | None = None,
) -> Iterator[Any]:
    """The batches of an epoch in order, made by threads while the caller works on earlier ones; the same for any number of threads.

    Parameters
    ----------
    sampler : NeighborSampler, SaintSampler or ClusterSampler
    epoch : int
    threads : int
        0 makes each batch on request, as a sampler on a GPU always does.
    depth : int, optional
        Most batches that are made ahead; by default one for each thread, but at least four.
    finish : callable, optional
        Function that a thread applies to each batch, for example to fetch the features of its nodes.

    Yields
    ------
    SampledBatch, or what `finish` returns

    Examples
    --------
    >>> from bitsparse import graph
    >>> sampler = graph.ClusterSampler(np.eye(4), [0, 0, 1, 1], shuffle=False)
    >>> [batch.nodes.tolist() for batch in graph.ahead(sampler, threads=2)]
    [[0, 1], [2, 3]]
    """
    _check.integer("ahead", "threads", threads, 0, 1024)
    depth = _check.integer("ahead", "depth", max(4, threads) if depth is None else depth, 1, 1 << 20)

    def make(number: int) -> Any:
        made = sampler.batch(epoch, number)
        return made if finish is None else finish(made)

    return made_ahead(make, range(len(sampler)), threads if sampler.device == "cpu" else 0, depth)


def made_ahead(make: Callable[[Any], _T], items: Iterable[Any], threads: int, depth: int) -> Generator[_T]:
    """``make(item)`` for each item in order; threads, if any, work at most `depth` items ahead and end when this generator is closed.

    Examples
    --------
    >>> list(made_ahead(str, range(3), 2, 1))
    ['0', '1', '2']
    """
    if not threads:
        yield from map(make, items)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="bitsparse-batches")
    waiting: deque[Future[_T]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

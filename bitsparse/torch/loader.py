"""Batches of a sampler for PyTorch: graphs, features and labels, made ahead by threads; features stay packed until they are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitsparse import _check, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DeviceError, ShapeError
from bitsparse.graph.samplers import BatchSampler, Block, SampledBatch, ahead
from bitsparse.torch.coded import tensor_of, working
from bitsparse.torch.graph import Graph

_NAME = "BatchLoader"


@dataclass(frozen=True, eq=False)
class Batch:
    """What one step of training looks at, on the loader's device.

    Attributes
    ----------
    x : Tensor (nodes, D) of float32, or None
        Features of the nodes that are needed.
    graphs : tuple of Graph
        One for each layer, the first layer's first: its targets, the first of its sources, are the sources of the next. Or a single one
        that all layers sum over, with the sampler's weights if it has any.
    labels : Tensor (targets,), or None
    nodes, targets : Tensor of int64
        Numbers in the whole graph of all nodes, and of those whose results count.
    weight : Tensor (targets,) of float32, or None
        What each target's loss counts (:class:`bitsparse.graph.SaintSampler`).
    """

    x: Tensor | None
    graphs: tuple[Graph, ...]
    labels: Tensor | None
    nodes: Tensor
    targets: Tensor
    weight: Tensor | None

    def graph(self, layer: int) -> Graph:
        """The graph that a layer sums over."""
        return self.graphs[layer if len(self.graphs) > 1 else 0]


class BatchLoader:
    """The batches of a sampler, epoch after epoch: ``for batch in loader``.

    Parameters
    ----------
    sampler : NeighborSampler, SaintSampler or ClusterSampler
        Of :mod:`bitsparse.graph`.
    x : Tensor, array or BitTensor (nodes, D), optional
        Features of all nodes, in host memory. Those of a BitTensor in ``layout="rows"`` (:func:`bitsparse.quantize` with
        ``granularity="row"``, "col" or "tensor") stay packed there, travel packed and become float32 on the device.
    labels : Tensor or array (nodes,), optional
        In host memory.
    device : str or torch.device
    threads, depth : int
        How many threads make batches, and how many batches ahead; 0 threads make each when it is asked for. Batches are the same.

    Attributes
    ----------
    epoch : int
        Of the next iteration; it counts on by itself, and is all that training which is resumed has to set.

    Raises
    ------
    ShapeError, DeviceError, ValueError
        Features or labels do not fit the graph, are not in host memory, or codes are not in rows.

    Examples
    --------
    >>> import torch
    >>> import bitsparse as bs
    >>> import bitsparse.torch as bst
    >>> ring = torch.eye(8).roll(1, 1).numpy()
    >>> sampler = bs.graph.NeighborSampler(ring, [2, 2], batch_size=4, seed=0)
    >>> loader = bst.BatchLoader(sampler, bs.quantize(torch.rand(8, 3), 8, layout="rows"), torch.arange(8) % 2)
    >>> conv = torch.nn.ModuleList([bst.SAGEConv(3, 4), bst.SAGEConv(4, 2)])
    >>> for batch in loader:
    ...     h = batch.x
    ...     for layer, graph in zip(conv, batch.graphs):
    ...         h = layer((h, h[: graph.num_targets]), graph)
    ...     torch.nn.functional.cross_entropy(h, batch.labels).backward()
    >>> len(loader), loader.epoch
    (2, 1)
    """

    def __init__(
        self,
        sampler: BatchSampler,
        x: Any = None,
        labels: Any = None,
        *,
        device: Any = "cpu",
        threads: int = 1,
        depth: int = 4,
    ) -> None:
        _check.instance(_NAME, "sampler", sampler, BatchSampler, "a sampler", "see bitsparse.graph.NeighborSampler")
        self.sampler, self.device, self.epoch = sampler, torch.device(device), 0
        self.threads = _check.integer(_NAME, "threads", threads, 0, 1024)
        self.depth = _check.integer(_NAME, "depth", depth, 1, 1 << 20)
        rows, columns = sampler.shape
        self._x = x if isinstance(x, BitTensor) or x is None else _on_host("x", x)
        self._labels = None if labels is None else _on_host("labels", labels)
        for name, part, nodes in (("x", self._x, columns), ("labels", self._labels, rows)):
            if part is not None and (part.shape[:1] != (nodes,) or (name == "x" and part.ndim != 2)):
                raise ShapeError(
                    f"{_NAME}: {name} has shape {tuple(part.shape)}, but the graph has {nodes} nodes; pass a row for each"
                )
        if isinstance(x, BitTensor):
            _check.on_cpu(_NAME, "x", x.device)
            if (x.axis, x.layout) != (-1, "rows"):
                raise ValueError(
                    f"{_NAME}: x is packed along axis {x.axis} in {x.layout}, but rows are fetched; pass x.repack(axis=-1, layout='rows')"
                )
            self._words = torch.from_numpy(np.asarray(interop.as_host(x.words, _NAME, "x")).view(np.int32))

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        for made in ahead(self.sampler, epoch, threads=self.threads, depth=self.depth, finish=self._fetched):
            yield self._there(*made)

    def _fetched(self, batch: SampledBatch) -> tuple[SampledBatch, Any, Any, list[Graph]]:
        """What a thread makes of a batch: rows of features and labels, in memory that copies to a GPU may read, and graphs."""
        x = None
        if self._x is not None:
            x = (self._words if isinstance(self._x, BitTensor) else self._x)[torch.from_numpy(batch.nodes)]
        labels = None if self._labels is None else self._labels[torch.from_numpy(batch.targets)]
        return batch, self._pinned(x), self._pinned(labels), [_graph(block) for block in batch.blocks]

    def _pinned(self, part: Tensor | None) -> Tensor | None:
        return part.pin_memory() if part is not None and self.device.type == "cuda" else part

    def _moved(self, part: Any) -> Any:
        part = torch.from_numpy(part) if isinstance(part, np.ndarray) else part
        return None if part is None else part.to(self.device, non_blocking=True)

    def _there(self, batch: SampledBatch, x: Any, labels: Any, graphs: list[Graph]) -> Batch:
        there = self._moved(x)
        if isinstance(self._x, BitTensor):
            there = self._real(there, batch.nodes)
        moved = tuple(graph.to(self.device) for graph in graphs)
        rest = [self._moved(part) for part in (labels, batch.nodes, batch.targets, batch.weight)]
        return Batch(there, moved, *rest)

    def _real(self, words: Tensor, nodes: Any) -> Tensor:
        """Packed rows as float32, where they are."""
        like = self._x
        assert isinstance(like, BitTensor)
        affine = {}
        for name in ("scale", "offset"):
            part = getattr(like, name)
            if part is not None:
                part = np.asarray(part, np.float32)
                rows = part.ndim == 2 and part.shape[0] == like.shape[0] and like.shape[0] != 1
                affine[name] = self._moved(part[nodes] if rows else part)
        with working(words):
            shape = (len(nodes), like.shape[1])
            options = {"encoding": like.encoding, "layout": "rows", **affine}
            return tensor_of(BitTensor.from_words(words, shape, like.bits, check=False, **options).dequantize())


def _on_host(name: str, part: Any) -> Tensor:
    made = torch.as_tensor(part)
    if made.device.type != "cpu":
        raise DeviceError(
            f"{_NAME}: {name} is on {made.device}, but threads fetch its rows in host memory; pass {name}.cpu()"
        )
    return made.detach()


def _graph(block: Block) -> Graph:
    """The edges of a block; its indices are canonical already."""
    indptr = block.indptr if block.indptr.dtype == np.int32 else block.indptr.astype(np.int64)
    indices = block.indices.astype(indptr.dtype, copy=False)
    made = TCTiledCSR.from_arrays(indptr, indices, block.shape, data=block.weight)
    return Graph(made)

"""Batches of a sampler for PyTorch: graphs, features and labels, prepared by threads. Packed features stay packed until on the device."""

from __future__ import annotations

import math
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
from bitsparse.torch.dense import check_dense
from bitsparse.torch.graph import Graph
from bitsparse.torch.registration import torch_memory

_NAME = "BatchLoader"


@dataclass(frozen=True, eq=False)
class Batch:
    """The data of one training step, on the loader's device.

    Attributes
    ----------
    x : Tensor (nodes, D) of float32, or None
        Features of all nodes of the batch.
    graphs : tuple of Graph
        One graph for each layer, in the order of the layers. The targets of a graph are the first of its sources, and are the sources of
        the next graph. Or a single graph for all layers, with the sampler's weights if it has any.
    labels : Tensor (targets,), or None
    nodes, targets : Tensor of int64
        The numbers, in the whole graph, of the batch's nodes and of those whose results are used.
    weight : Tensor (targets,) of float32, or None
        The weight of each target in the loss (:class:`bitsparse.graph.SaintSampler`).
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
    """Iterate over the batches of a sampler, one epoch for each ``for batch in loader``.

    Parameters
    ----------
    sampler : NeighborSampler, SaintSampler or ClusterSampler
        A sampler of :mod:`bitsparse.graph`. If its graph is on a GPU, batches are made there.
    x : Tensor, array or BitTensor (nodes, D), optional
        Features of all nodes, in host memory or on the device of the sampler's graph. A BitTensor in ``layout="rows"``
        (:func:`bitsparse.quantize` with ``granularity="row"``, "col" or "tensor") stays packed there; its rows travel packed, and become
        float32 on the loader's device.
    labels : Tensor or array (nodes,), optional
        Labels of all nodes, in host memory or on the device of the sampler's graph.
    device : str or torch.device
        Where batches go; by default the device of the sampler's graph.
    threads : int
        Threads that make batches if the graph is in host memory; with 0, each batch is made when it is asked for. The number does not
        change the batches.
    depth : int, optional
        How many batches are made ahead, as for :func:`bitsparse.graph.ahead`.

    Attributes
    ----------
    epoch : int
        The number of the next epoch. It advances by itself; to resume training, set it.

    Raises
    ------
    ShapeError
        Features or labels do not have one row for each node.
    DeviceError
        Features or labels are neither in host memory nor on the device of the sampler's graph.
    ValueError
        Features or labels require a gradient, or packed features are not in the layout "rows".

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
        device: Any = None,
        threads: int = 1,
        depth: int | None = None,
    ) -> None:
        _check.instance(_NAME, "sampler", sampler, BatchSampler, "a sampler", "see bitsparse.graph.NeighborSampler")
        self.sampler, self.device, self.epoch = sampler, torch.device(sampler.device if device is None else device), 0
        self.threads = _check.integer(_NAME, "threads", threads, 0, 1024)
        self.depth = None if depth is None else _check.integer(_NAME, "depth", depth, 1, 1 << 20)
        self._packed = x if isinstance(x, BitTensor) else None
        self._labels = None if labels is None else self._rows("labels", labels)
        #: The parts of the features of which each batch fetches rows, and the parts that all rows share.
        self._features: dict[str, _Rows] = {}
        self._shared: dict[str, Tensor] = {}
        rows, columns = sampler.shape
        if x is not None and self._packed is None:
            x = torch.as_tensor(x)
            self._features["x"] = self._rows("x", x)
        given = (("x", x, columns), ("labels", None if self._labels is None else self._labels.part, rows))
        for name, part, nodes in given:
            if part is not None and (tuple(part.shape[:1]) != (nodes,) or (name == "x" and part.ndim != 2)):
                raise ShapeError(
                    f"{_NAME}: {name} has shape {tuple(part.shape)}, but the graph has {nodes} nodes; pass a row for each"
                )
        if self._packed is not None:
            self._read(self._packed)

    def _read(self, x: BitTensor) -> None:
        """Take the words, scales and offsets of packed features."""
        if (x.axis, x.layout) != (-1, "rows"):
            raise ValueError(
                f"{_NAME}: x has axis={x.axis} and layout={x.layout!r}, but axis=-1 and layout='rows' are needed to fetch rows; pass "
                f"x.repack(axis=-1, layout='rows')"
            )
        self._features["x"] = self._rows("x", tensor_of(interop.as_array(x.words, _NAME, "x")[0].view(np.int32)))
        for name in ("scale", "offset"):
            part = getattr(x, name)
            if part is None:
                continue
            made = torch.as_tensor(tensor_of(interop.as_array(part, _NAME, name)[0])).float()
            if made.ndim == 2 and made.shape[0] == x.shape[0] != 1:
                self._features[name] = self._rows("x", made)
            else:
                self._shared[name] = made

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        if self.sampler.device == "cpu":
            for made in ahead(self.sampler, epoch, threads=self.threads, depth=self.depth, finish=self._fetched):
                yield self._on_device(*made)
            return
        for number in range(len(self.sampler)):
            with torch_memory(), interop.working_on(self.sampler.device, interop.TORCH):
                batch = self._on_device(*self._fetched(self.sampler.batch(epoch, number)))
            yield batch

    def _rows(self, name: str, part: Any) -> _Rows:
        """Check an array of which batches fetch rows; it must be in host memory or on the device of the sampler's graph."""
        made = torch.as_tensor(part)
        check_dense(_NAME, **{name: made})
        if made.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{_NAME}: {name} requires a gradient, which would be lost; pass {name}.detach(), or omit it and index it with "
                f"batch.nodes in every step"
            )
        made = made.detach()
        if str(made.device) not in ("cpu", self.sampler.device):
            places = "in host memory"
            if self.sampler.device != "cpu":
                places += f" or on {self.sampler.device}, where the sampler's graph is"
            remedy = "x.to_device('cpu')" if name == "x" and self._packed is not None else f"{name}.cpu()"
            raise DeviceError(f"{_NAME}: {name} is on {made.device}, but must be {places}; pass {remedy}")
        return _Rows(made, pinned=self.device.type == "cuda")

    def _fetched(self, batch: SampledBatch) -> tuple[SampledBatch, dict[str, Tensor], Tensor | None, list[Graph]]:
        """The work of a thread: fetch a batch's rows of features and labels into memory that a GPU can copy from, and make its graphs."""
        parts = {name: rows.at(batch.nodes) for name, rows in self._features.items()}
        labels = None if self._labels is None else self._labels.at(batch.targets)
        return batch, parts, labels, [_graph(block) for block in batch.blocks]

    def _moved(self, part: Any) -> Any:
        return None if part is None else tensor_of(part).to(self.device, non_blocking=True)

    def _on_device(
        self, batch: SampledBatch, parts: dict[str, Tensor], labels: Tensor | None, graphs: list[Graph]
    ) -> Batch:
        moved = {name: self._moved(part) for name, part in (self._shared | parts).items()}
        x = moved.get("x") if self._packed is None else self._real(moved)
        rest = [self._moved(part) for part in (labels, batch.nodes, batch.targets, batch.weight)]
        return Batch(x, tuple(graph.to(self.device) for graph in graphs), *rest)

    def _real(self, parts: dict[str, Tensor]) -> Tensor:
        """Packed rows as float32, on their device."""
        like, words = self._packed, parts.pop("x")
        assert like is not None
        with working(words):
            shape, options = (len(words), like.shape[1]), {"encoding": like.encoding, "layout": "rows", **parts}
            return tensor_of(BitTensor.from_words(words, shape, like.bits, check=False, **options).dequantize())


class _Rows:
    """An array whose rows are fetched by number; from host memory they go into page-locked memory if they are then copied to a GPU."""

    def __init__(self, part: Tensor, pinned: bool) -> None:
        # rows are fetched as bytes, which do not show a pending conjugation or negation
        self.part, self._pinned = part.resolve_conj().resolve_neg().contiguous(), pinned
        #: The bytes as a NumPy array: numpy.take releases the GIL and starts no threads, whereas PyTorch's indexing would start some.
        self._bytes = self._flat(self.part) if part.device.type == "cpu" and part.numel() else None

    def _flat(self, part: Tensor) -> Any:
        return part.view(len(part), math.prod(self.part.shape[1:])).view(torch.uint8).numpy()

    def at(self, nodes: Any) -> Tensor:
        """The rows of some nodes, on the device of the array."""
        if self._bytes is None:
            return self.part[tensor_of(nodes).to(self.part.device)]
        nodes = interop.move(nodes, "cpu")
        found = torch.empty((nodes.size, *self.part.shape[1:]), dtype=self.part.dtype, pin_memory=self._pinned)
        # the numbers are known to be in range; "clip" spares NumPy a buffer
        np.take(self._bytes, nodes, axis=0, out=self._flat(found), mode="clip")
        return found


def _graph(block: Block) -> Graph:
    """The edges of a block as a graph; the block's indices are canonical already."""
    indptr = block.indptr if block.indptr.dtype == np.int32 else block.indptr.astype(np.int64)
    indices = block.indices.astype(indptr.dtype, copy=False)
    made = TCTiledCSR.from_arrays(indptr, indices, block.shape, data=block.weight)
    return Graph(made)

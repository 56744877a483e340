"""An epoch of a network of PyTorch Geometric in float32 over batches of parts: the peer of suite ``cluster``.

The batches lie in pinned memory before anything is timed, with all that can be prepared (including self loops and GCN's weights); the
numbers of their nodes are on the GPU, as ours are. In an epoch, each batch is copied on a separate stream while the previous one is
computed, and its logits are written to their rows of one array on the GPU, in the nodes' order. There are three ways to pass the edges:

- ``sparse``: CSR with int64 indices, PyTorch Geometric's sparse path: layers aggregate by ``torch.sparse.mm``. GIN's values, all 1, are
  made on the GPU;
- ``sparse32``: the same with int32 indices of half the size;
- ``edges``: ``edge_index`` as a loader makes it (int64, two numbers per edge); layers gather and scatter.

Every way runs in four variants: with single batches or with as many together as in a group of ours (``grouped``), and launched one by
one or with the whole epoch, including copies, captured as one CUDA graph (``replayed``).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cases.cluster_problems import Batch, Kind, Problem
from benchmarks.gpu_timing import torch_module
from benchmarks.peers.pyg import geometric

__all__ = ["WAYS", "Epoch", "Variant", "Weights", "plain_bytes", "variants_of"]

WAYS = ("sparse", "sparse32", "edges")
#: A weight (inputs, outputs) and a bias for each layer.
Weights = Sequence[tuple[Any, Any]]


class _Held(NamedTuple):
    """A batch: its rows of the result, on the device; its features and the parts of its adjacency, in host memory until copied."""

    nodes: Any
    x: Any
    graph: tuple[Any, ...]


class Epoch:
    """All batches of a problem, and the network; calling it with an array for the result runs an epoch.

    Parameters
    ----------
    problem, kind
        The problem, and the kind of network.
    weights
        Weights of the layers, which have ReLU between them.
    way : {"sparse", "sparse32", "edges"}
    parts : int
        Parts per batch.
    device : str
        "cpu" is for tests: nothing is pinned, copied or overlapped there.
    """

    def __init__(
        self, problem: Problem, kind: Kind, weights: Weights, way: str, parts: int, device: str = "cuda"
    ) -> None:
        self.kind, self.way, self.device, self.name = kind, way, device, problem.name
        self.shape = (problem.nodes, problem.classes)
        self.layers = layers_of(kind, weights, device)
        self.batches = [self._held(batch, problem.features) for batch in problem.batches(parts)]
        self.nbytes = sum(part.nbytes for held in self.batches for part in (held.x, *held.graph) if part is not None)

    def _held(self, batch: Batch, features: Any) -> _Held:
        weighted = self.kind == "gcn"
        full = batch.with_loops() if weighted else batch
        index = np.int32 if self.way == "sparse32" else np.int64
        values = full.normalised() if weighted else None
        if self.way == "edges":
            rows = np.repeat(np.arange(full.nodes.size, dtype=index), np.diff(full.indptr))
            graph: tuple[Any, ...] = (np.stack([full.indices.astype(index), rows]), values)
        else:
            graph = (full.indptr.astype(index), full.indices.astype(index), values)
        nodes = torch_module().from_numpy(np.ascontiguousarray(full.nodes)).to(self.device)
        return _Held(nodes, self._pinned(features[batch.nodes]), tuple(map(self._pinned, graph)))

    def _pinned(self, array: Any) -> Any:
        if array is None:
            return None
        made = torch_module().from_numpy(np.ascontiguousarray(array))
        return made if self.device == "cpu" else made.pin_memory()

    def __call__(self, out: Any) -> Any:
        """Run an epoch; `out` has the logits of all nodes when the current stream has finished."""
        torch = torch_module()
        with torch.no_grad():
            if self.device == "cpu":
                for held in self.batches:
                    out[held.nodes] = self._logits(held)
                return out
            ahead, main = torch.cuda.Stream(), torch.cuda.current_stream()
            ahead.wait_stream(main)
            coming = self._copied(self.batches[0], ahead)
            for i in range(len(self.batches)):
                here, copied = coming
                if i + 1 < len(self.batches):
                    coming = self._copied(self.batches[i + 1], ahead)
                main.wait_event(copied)
                for part in (here.x, *here.graph):
                    if part is not None:
                        part.record_stream(main)
                out.index_copy_(0, here.nodes, self._logits(here))
        return out

    def captured(self, out: Any) -> Callable[[], object]:
        """Capture the whole epoch as one CUDA graph that writes `out`; calling the result replays it."""
        torch = torch_module()
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            self(out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self(out)
        replay: Callable[[], object] = graph.replay
        return replay

    def _copied(self, held: _Held, stream: Any) -> tuple[_Held, Any]:
        torch = torch_module()

        def moved(part: Any) -> Any:
            return None if part is None else part.to(self.device, non_blocking=True)

        with torch.cuda.stream(stream):
            there = _Held(held.nodes, moved(held.x), tuple(map(moved, held.graph)))
            event = torch.cuda.Event()
            event.record(stream)
        return there, event

    def _logits(self, held: _Held) -> Any:
        torch = torch_module()
        weight: dict[str, Any] = {}
        if self.way == "edges":
            graph, values = held.graph
            if values is not None:
                weight = {"edge_weight": values}
        else:
            indptr, indices, values = held.graph
            if values is None:
                values = torch.ones(indices.numel(), device=indices.device)
            size = (held.x.shape[0], held.x.shape[0])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # CSR is called a beta feature
                graph = torch.sparse_csr_tensor(indptr, indices, values, size=size)
        y = held.x
        for i, layer in enumerate(self.layers):
            y = layer(y if i == 0 else y.relu_(), graph, **weight)
        return y


class Variant(NamedTuple):
    """A variant of an epoch: its name, its call, and the bytes that it copies."""

    name: str
    call: Callable[[], object]
    nbytes: int


def variants_of(problem: Problem, kind: Kind, weights: Weights, parts: int, group: int, out: Any) -> list[Variant]:
    """All variants: every way with `parts` and with `group` parts per batch, launched and replayed; all write `out`."""
    found = []
    for way in WAYS:
        for together in dict.fromkeys((parts, group)):
            epoch = Epoch(problem, kind, weights, way, together)
            name = way if together == parts else f"{way} grouped"
            found.append(Variant(name, partial(epoch, out), epoch.nbytes))
            try:
                found.append(Variant(f"{name} replayed", epoch.captured(out), epoch.nbytes))
            except RuntimeError as error:
                print(f"PyTorch Geometric, {name}: not captured, {error}".splitlines()[0], file=sys.stderr)
    return found


def layers_of(kind: Kind, weights: Weights, device: str) -> list[Any]:
    """Layers of PyTorch Geometric with these weights; GCN's layers expect a normalised adjacency."""
    torch, layers = torch_module(), geometric().nn
    made = []
    for weight, bias in weights:
        inputs, outputs = weight.shape
        if kind == "gcn":
            layer = layers.GCNConv(inputs, outputs, normalize=False)
            linear, shift = layer.lin, layer.bias
        else:
            linear = torch.nn.Linear(inputs, outputs)
            layer, shift = layers.GINConv(linear), linear.bias
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(np.asarray(weight, np.float32).T)))
            shift.copy_(torch.from_numpy(np.asarray(bias, np.float32).ravel().copy()))
        made.append(layer.to(device).eval())
    return made


def plain_bytes(nodes: int, edges: int, columns: int) -> int:
    """Bytes of ``edge_index`` and float32 features: the least that an epoch of PyTorch Geometric moves."""
    return 16 * edges + 4 * nodes * columns

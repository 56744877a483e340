"""Epochs of GraphSAGE on batches of sampled neighbours: cases of suite ``minibatch``, against PyTorch Geometric's loader and layers."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bitsparse as bs
import bitsparse.torch as bst
from benchmarks.cases import training
from benchmarks.cases.products import SYNTHETIC
from benchmarks.cases.sparse_gpu import matrix_of
from benchmarks.cases.training_cpu import problem_of
from benchmarks.cases.training_sides import Problem
from benchmarks.peers import pyg
from bitsparse.bench import Prepared

__all__ = ["epoch"]

#: Hidden columns, the most neighbours per node from the last layer on, targets per batch, and batches per epoch.
HIDDEN, FANOUTS, BATCH, BATCHES = (256, 256), (15, 10, 5), 1024, 4
#: Batches per epoch on a large graph: enough to make the start of worker processes worthwhile.
MORE_BATCHES = 32
RATE = 0.01


class Network(nn.Module):
    """GraphSAGE with means; `convolution` makes the layers."""

    def __init__(self, widths: tuple[int, ...], convolution: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(convolution(*pair) for pair in pairwise(widths))

    def forward(self, x: Tensor, step: Callable[[nn.Module, int, Tensor], Tensor]) -> Tensor:
        """Compute the logits; `step` applies a layer."""
        for number, layer in enumerate(self.layers):
            x = step(layer, number, x if not number else x.relu())
        return x


def epoch(name: str, threads: int, device: str = "cpu") -> Prepared:
    """An epoch of ours with 8-bit features in host memory, and one of the peer with float32 if its sampler is installed."""
    torch.set_num_threads(threads)
    made, source, batches = problem_at_hand(name)
    widths = (made.x.shape[1], *HIDDEN, made.classes)
    targets = np.arange(0, made.nodes, max(made.nodes // (batches * BATCH), 1))[: batches * BATCH]
    codes = bs.quantize(made.x.numpy(), 8, granularity="row", layout="rows")
    params: dict[str, Any] = {
        "graph": source,
        "nodes": made.nodes,
        "entries": made.indices.numel(),
        "targets": targets.size,
    }
    params |= {"fanouts": list(FANOUTS), "widths": list(widths), "batch": BATCH, "feature_bytes": codes.nbytes}
    ours, epoch_of = _ours(made, codes, targets, widths, threads, device)
    params["gathered_nodes"] = sum(batch.nodes.numel() for batch in epoch_of())
    params["loader_ms"] = min(_alone_ms(epoch_of, device) for _ in range(3))
    peer, version = None, None
    params["peer_missing"] = (
        "" if _sampler() else "neither pyg-lib nor torch-sparse is installed, which its loader samples with"
    )
    if _sampler():
        peer, params["peer_workers"] = _quickest(made, targets, widths, device, threads)
        version = f"{pyg.version()}, {_sampler()}"
    return Prepared(ours, peer, version, params, 0)


def _alone_ms(epoch_of: Callable[[], Iterator[bst.Batch]], device: str) -> float:
    """Milliseconds to make an epoch's batches, without any computation on them."""
    start = time.perf_counter()
    for _ in epoch_of():
        pass
    if device != "cpu":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def problem_at_hand(name: str) -> tuple[Problem, str, int]:
    """The problem in host memory, the source of its graph, and the number of batches per epoch."""
    if name not in SYNTHETIC:
        return *problem_of(name), BATCHES
    there = training.problem_of(name)
    made = Problem(*(part.cpu() if isinstance(part, Tensor) else part for part in there))
    return made, matrix_of(name).source, MORE_BATCHES


def _sampler() -> str:
    """The package with which PyTorch Geometric's loader samples; empty if none is installed."""
    return next((name for name in ("pyg_lib", "torch_sparse") if importlib.util.find_spec(name) is not None), "")


def _ours(
    made: Problem, codes: Any, targets: Any, widths: tuple[int, ...], threads: int, device: str
) -> tuple[Callable[[], None], Callable[[], Iterator[bst.Batch]]]:
    graph = bs.TCTiledCSR.from_arrays(made.indptr.numpy(), made.indices.numpy(), (made.nodes, made.nodes))
    sampler = bs.graph.NeighborSampler(graph, FANOUTS, targets, batch_size=BATCH)
    loader = bst.BatchLoader(sampler, codes, made.labels, device=device, threads=threads)
    torch.manual_seed(0)
    net = Network(widths, bst.SAGEConv).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)

    def run() -> None:
        for batch in loader:
            graphs = batch.graphs
            optimizer.zero_grad()

            def step(layer: nn.Module, number: int, x: Tensor, graphs: Any = graphs) -> Tensor:
                y: Tensor = layer((x, x[: graphs[number].num_targets]), graphs[number])
                return y

            nn.functional.cross_entropy(net(batch.x, step), batch.labels).backward()
            optimizer.step()

    return run, lambda: iter(loader)


def _quickest(
    made: Problem, targets: Any, widths: tuple[int, ...], device: str, threads: int
) -> tuple[Callable[[], None], int]:
    """The peer's epoch with the fastest number of worker processes, and that number."""
    data = pyg.geometric().data.Data(x=made.x, y=made.labels)
    data.edge_index = pyg.adjacency(made.indptr, made.indices, "scatter")
    best: tuple[float, Callable[[], None], int] | None = None
    for workers in dict.fromkeys((0, threads // 2, threads - 1)):
        run = _theirs(data, made, targets, widths, device, workers)
        run()
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
        if best is None or seconds < best[0]:
            best = seconds, run, workers
    assert best is not None
    return best[1:]


def _theirs(
    data: Any, made: Problem, targets: Any, widths: tuple[int, ...], device: str, workers: int
) -> Callable[[], None]:
    geometric = pyg.geometric()
    processes = {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": device != "cpu"}
    loader = geometric.loader.NeighborLoader(
        # Edges are ordered by their targets already, so the loader need not sort them.
        data,
        list(FANOUTS),
        torch.from_numpy(targets),
        batch_size=BATCH,
        shuffle=True,
        is_sorted=True,
        **processes,
    )
    torch.manual_seed(0)
    net = Network(widths, geometric.nn.SAGEConv).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)

    def run() -> None:
        for batch in loader:
            batch = batch.to(device, non_blocking=True)
            optimizer.zero_grad()

            def step(layer: nn.Module, number: int, x: Tensor, edges: Any = batch.edge_index) -> Tensor:
                y: Tensor = layer(x, edges)
                return y

            y = net(batch.x, step)[: batch.batch_size]
            nn.functional.cross_entropy(y, batch.y[: batch.batch_size]).backward()
            optimizer.step()

    return run

"""Epochs of GCN on a CPU, and of an accelerated network, against PyTorch Geometric and PyTorch: part of suite ``training``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import bitsparse.torch as bst
from benchmarks.cases.graphs import graph
from benchmarks.cases.training import in_turns
from benchmarks.cases.training_sides import SIZES, Network, Problem, Side, compare, ours_of, peer_of, problem, widths_of
from benchmarks.peers import pyg, pyg_layers
from bitsparse.bench import Prepared, Protocol

__all__ = ["PEERS", "epoch", "problem_of", "step"]


def problem_of(name: str) -> tuple[Problem, str]:
    """The problem on a graph on the CPU, and the graph's source; missing features and labels are random."""
    data, source = graph(name)
    arrays = torch.from_numpy(data.indptr), torch.from_numpy(data.indices)
    if data.x is None or data.labels is None:
        return problem(arrays, SIZES[name]), source
    x = data.x.toarray() if hasattr(data.x, "toarray") else data.x
    return problem(arrays, (x.shape[1], data.num_classes), x, data.targets), source


def geometric_of(made: Problem, cached: bool) -> Side:
    """PyTorch Geometric's layers, with seeded weights."""
    torch.manual_seed(0)
    network = Network("gcn", pyg_layers.layers("gcn", widths_of("gcn", made, "fp32")[0], cached=cached))
    edges = pyg.adjacency(made.indptr, made.indices, "scatter")
    return Side(network.to(made.x.device), edges, made, made.x, rate=0.01)


def geometric_peer(made: Problem, weights: dict[str, Tensor]) -> Side:
    """PyTorch Geometric's layers, which cache their normalised weights, with the weights of ours."""
    peer = geometric_of(made, cached=True)
    peer.network.load_state_dict(weights)
    return peer


def torch_peer(made: Problem, weights: dict[str, Tensor]) -> Side:
    """PyTorch's sparse products, with matrices made once for both directions, and with the weights of ours."""
    return peer_of("gcn", made, made.x, "fp32", weights)


#: For each peer, the function that makes its side and the one that gives its name in records.
PEERS = {
    "pyg": (geometric_peer, pyg.version),
    "torch": (
        torch_peer,
        lambda: f"torch {torch.__version__}, products of {'MKL' if torch.backends.mkl.is_available() else 'its own'}",
    ),
}


def epoch(case: str, name: str, who: str, threads: int) -> Prepared:
    """Epochs of our layers and of a peer's."""
    torch.set_num_threads(threads)
    made, source = problem_of(name)
    ours = ours_of("gcn", made, made.x, "fp32")
    side, version = PEERS[who]
    return measured(case, made, source, ours, side(made, ours.network.state_dict()), version())


def step(case: str, name: str, threads: int, device: str = "cpu") -> Prepared:
    """Epochs of a network of PyTorch Geometric, accelerated and unchanged; neither is captured."""
    torch.set_num_threads(threads)
    made, source = problem_of(name)
    made = Problem(*(part.to(device) if isinstance(part, Tensor) else part for part in made))
    peer, ours = geometric_of(made, cached=False), geometric_of(made, cached=False)
    bst.accelerate(ours.network)
    ours.operand = bst.Graph(ours.operand, made.nodes)
    return measured(case, made, source, ours, peer, pyg.version())


def measured(case: str, made: Problem, source: str, ours: Side, peer: Side, version: str) -> Prepared:
    """Compare both sides, then prepare them for timing."""
    params: dict[str, Any] = {"graph": source, "network": "gcn", "precision": "fp32", "nodes": made.nodes}
    params |= {"entries": made.indices.numel(), "features": made.x.shape[1], "classes": made.classes}
    weights = {name: part.clone() for name, part in ours.network.state_dict().items()}
    params |= compare(case, "fp32", ours, peer)
    for one in (ours, peer):  # equal again, with fresh moments
        one.network.load_state_dict(weights)
        one.optimizer.state.clear()

    def by_events(protocol: Protocol) -> tuple[float, float]:
        ms, peer_ms = in_turns([ours.step, peer.step], protocol.repetitions)
        return ms, peer_ms

    return Prepared(ours.step, peer.step, version, params, 0, measure=by_events if made.x.is_cuda else None)

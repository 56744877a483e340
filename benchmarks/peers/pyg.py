"""Networks of PyTorch Geometric in float32, as its users write them, for comparison with binary ones.

``sparse``: the adjacency is a CSR tensor of PyTorch, so that layers aggregate by a sparse product (BitGNN's "FP32 (T)"). ``scatter``: the
adjacency is a list of edges, so that layers gather and scatter ("FP32 (S)"). Normalised weights are computed once (``cached=True``).
Without PyTorch Geometric, cases that need it are not measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.gpu_timing import torch_module
from bitsparse.bench import Unavailable

__all__ = ["MODELS", "PATHS", "adjacency", "geometric", "model_call", "version"]

MODELS = ("gcn", "sage", "saint")
PATHS = ("sparse", "scatter")


def geometric() -> Any:
    """Import PyTorch Geometric; if it is missing, the case is unavailable."""
    try:
        import torch_geometric
    except ImportError as error:
        raise Unavailable(f"the peer is PyTorch Geometric, which is not installed ({error})") from error
    return torch_geometric


def version() -> str:
    """The name of the peer in records."""
    return f"torch_geometric {geometric().__version__}, torch {torch_module().__version__}"


def adjacency(indptr: Any, indices: Any, path: str) -> Any:
    """The operand of a layer, from CSR arrays in PyTorch whose rows are the targets."""
    torch = torch_module()
    nodes = indptr.numel() - 1
    if path == "sparse":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CSR is called a beta feature
            ones = torch.ones(indices.numel(), device=indices.device)
            return torch.sparse_csr_tensor(indptr.long(), indices.long(), ones, size=(nodes, nodes))
    rows = torch.repeat_interleave(torch.arange(nodes, device=indptr.device), torch.diff(indptr.long()))
    return torch.stack([indices.long(), rows])


def model_call(
    model: str, path: str, indptr: Any, indices: Any, x: Any, hidden: int, classes: int
) -> Callable[[], Any]:
    """A call that computes the logits of every node by a network with random weights."""
    torch, layers = torch_module(), geometric().nn
    torch.manual_seed(0)
    graph, columns = adjacency(indptr, indices, path), x.shape[1]
    if model == "gcn":
        first = layers.GCNConv(columns, hidden, cached=True)
        second = layers.GCNConv(hidden, classes, cached=True)
    else:
        kind: Any = layers.SAGEConv if model == "sage" else layers.GraphConv
        first, second = kind(columns, hidden), kind(hidden, classes if model == "sage" else hidden)
    last = torch.nn.Linear(2 * hidden, classes) if model == "saint" else None
    parts = torch.nn.ModuleList([first, second, *([last] if last is not None else [])]).to(x.device).eval()

    def call() -> Any:
        with torch.no_grad():
            one = parts[0](x, graph).relu()
            two = parts[1](one, graph)
            return two if last is None else parts[2](torch.cat([one, two.relu()], 1))

    return call

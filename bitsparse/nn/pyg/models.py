"""Networks from models of PyTorch Geometric: the modules are read, and the network's output is compared with the model's."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np

from bitsparse import interop
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.nn.full.network import Network
from bitsparse.nn.pyg.trace import Caller, caller_of, trace

#: Nodes and edges of the graph on which every network is compared, and the largest error, relative to the largest output.
_NODES, _EDGES, _TOLERANCE = 24, 90, 1e-5


def from_pyg(model: Any, x: Any = None, edge_index: Any = None) -> Network:
    """Read a PyTorch Geometric model as a network with the same output as ``model.eval()``.

    These layers are read: GCNConv (normalize, add_self_loops, improved, bias, cached), SAGEConv (sum, mean and max, root_weight, project,
    normalize), GINConv (any perceptron, eps, sum, mean and max), GATConv and GATv2Conv (heads, concat, negative_slope, add_self_loops,
    bias, residual, share_weights) and AGNNConv (add_self_loops); Linear layers before, between and after them; BatchNorm; LayerNorm (of
    PyTorch, and of PyTorch Geometric by node and by graph); dropout; and the activations relu, leaky_relu, elu, tanh, sigmoid, gelu, silu
    and log_softmax. They may be part of GCN, GraphSAGE, GIN and GAT in ``torch_geometric.nn.models``, of both kinds of Sequential, or of
    your own classes, whose forward is traced with ``torch.fx``. Everything else, such as edge features, JumpingKnowledge, residual
    connections around layers and pooling, is refused by name. The network's output is then compared with the model's, on a small directed
    graph with self loops, lone nodes and (if the model takes them) weights, and on `x` and `edge_index`. If they differ, the model is
    refused.

    Parameters
    ----------
    model : torch.nn.Module
        Its forward takes ``(x, edge_index)``, ``(x, edge_index, edge_weight)`` or ``data``. The model is not changed.
    x, edge_index : array (n, features) and array of int (2, edges), optional
        A further graph to compare on.

    Returns
    -------
    Network
        ``network(adjacency, x)`` equals ``model(x, edge_index, edge_weight)`` with ``adjacency[target, source] = weight``; on the compared
        graphs it differs by at most 1e-5 of the largest output. If the model takes no weights, the adjacency has to hold ones.

    Raises
    ------
    DTypeError
        `model` is not a torch.nn.Module.
    ValueError
        Something in the model is not supported, or the network gives other numbers than the model.

    Notes
    -----
    PyTorch Geometric's ``improved=True`` adds self loops of weight 2 if edge weights are given, and of weight 1 if not. If the model passes
    weights on, its network always adds loops of weight 2, since the values of an adjacency are its weights.

    A model and its network in three lines::

        model = torch_geometric.nn.GCN(3, 16, num_layers=2, out_channels=2).eval()
        network = nn.from_pyg(model)
        logits = network(data.adjacency, x)
    """
    function = "from_pyg"
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise DTypeError(
            f"{function}: model must be a torch.nn.Module, got {type(model).__name__}; see nn.load_state_dict"
        )
    if (x is None) != (edge_index is None):
        raise ValueError(f"{function}: x and edge_index make a graph together; pass both, or neither")
    name = type(model).__name__
    try:
        reading = copy.deepcopy(model).cpu().float().eval()
    except RuntimeError as error:
        raise ValueError(
            f"{function}: {name} cannot be copied ({error}); pass a fresh one with its state dict"
        ) from error
    try:
        caller, takes = caller_of(reading)
        layers = trace(reading, caller)
    except ValueError as error:
        raise ValueError(f"{function}: {name}: {error}") from error.__cause__
    kinds = {layer.kind for layer in layers}
    kind: Any = kinds.pop() if len(kinds) == 1 else "mixed"
    network = Network(kind, layers)
    _compare(name, reading.double(), caller, network, takes is not None, *_small_graph(network.features))
    if x is not None:
        features, edges = _given_graph(function, network, x, edge_index)
        _compare(name, reading, caller, network, False, features, edges, None)
    return network


def _forget(model: Any) -> None:
    """Clear what layers with ``cached=True`` have cached for the last graph."""
    for module in model.modules():
        for kept in ("_cached_edge_index", "_cached_adj_t"):
            if hasattr(module, kept):
                setattr(module, kept, None)


def _small_graph(features: int) -> tuple[Any, Any, Any]:
    """Random features, distinct directed edges with self loops and lone nodes, and edge weights."""
    rng = np.random.default_rng(0)
    ends = np.unique(rng.integers(0, _NODES - 3, (2, _EDGES)), axis=1)
    ends = np.unique(np.hstack((ends, np.full((2, 1), _NODES - 2), [[0, 1], [0, 1]])), axis=1)
    return rng.normal(size=(_NODES, features)), ends, rng.uniform(0.2, 2.0, ends.shape[1])


def _given_graph(function: str, network: Network, x: Any, edge_index: Any) -> tuple[Any, Any]:
    features, edges = (
        np.asarray(interop.as_host(value.detach() if hasattr(value, "detach") else value, function, name))
        for name, value in (("x", x), ("edge_index", edge_index))
    )
    if features.ndim != 2 or features.shape[1] != network.features:
        raise ShapeError(f"{function}: x has shape {features.shape}, but the model reads (n, {network.features})")
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        raise ShapeError(f"{function}: edge_index is {edges.dtype} of shape {edges.shape}; pass integers (2, edges)")
    if edges.size and not 0 <= edges.min() <= edges.max() < len(features):
        raise ShapeError(f"{function}: edge_index holds {edges.min()} to {edges.max()}, but x has {len(features)} rows")
    return features.astype(np.float64), np.unique(edges, axis=1)


def _compare(
    name: str, model: Any, caller: Caller, network: Network, weighted: bool, x: Any, ends: Any, weights: Any
) -> None:
    """Raise if the network gives other numbers than the model, without edge weights or with them."""
    from scipy import sparse

    torch = sys.modules["torch"]
    improved = any(layer.neighbours is not None and layer.neighbours.self_loop == 2.0 for layer in network.layers)
    for values in [weights] if improved else [None, weights] if weighted and network.weighted else [None]:
        tensors = [
            None if part is None else torch.from_numpy(np.ascontiguousarray(part))
            for part in (x, ends.astype(np.int64), values)
        ]
        try:
            _forget(model)
            with torch.no_grad():
                wanted = caller(model, *tensors).numpy()
        except Exception as error:  # the code of a model may raise anything
            raise ValueError(f"from_pyg: {name} fails on float64 features (n, {network.features}): {error}") from error
        data = np.ones(ends.shape[1]) if values is None else values
        got = network(sparse.csr_array((data, (ends[1], ends[0])), shape=(len(x), len(x))), x)
        if wanted.shape != got.shape:
            raise ValueError(
                f"from_pyg: {name} gives {wanted.shape} but the network read from it {got.shape}; it is not a sequence of layers"
            )
        off = float(np.abs(wanted - got).max(initial=0))
        if not off <= _TOLERANCE * max(1.0, float(np.abs(wanted).max(initial=0))):
            raise ValueError(
                f"from_pyg: the network read from {name} is off by {off:.3g} {'without' if values is None else 'with'} weights, "
                "so that the model does something which its modules do not say; build it from nn.Layer and nn.Dense"
            )

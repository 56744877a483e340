"""PyTorch Geometric's models with the sums of this library: the layers keep their weights, and only what passes messages is replaced."""

from __future__ import annotations

import functools
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bitsparse.errors import ShapeError
from bitsparse.torch.attention_kinds import gatv2_attention, once_each
from bitsparse.torch.graph import Graph
from bitsparse.torch.quantizer import Floats, quantizer_of

_KNOWN = ("GCNConv", "SAGEConv", "GINConv", "GATConv", "GATv2Conv", "AGNNConv")
#: Layers with scores per edge and head.
_SCORED = ("GATConv", "GATv2Conv")
_WEIGHTS = "return_attention_weights"
#: What PyTorch Geometric calls hooks before and behind.
_STEPS = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")


class LayerReport(NamedTuple):
    """What became of one layer that passes messages.

    Attributes
    ----------
    name : str
        Within the model; empty for the model itself.
    layer : str
        Its class.
    accelerated : bool
    reason : str
        Why it is not, or which calls of one that is are left to PyTorch Geometric.
    """

    name: str
    layer: str
    accelerated: bool
    reason: str


def accelerate(model: nn.Module) -> nn.Module:
    """Let the layers of a PyTorch Geometric model sum over a :class:`Graph` that is passed in place of `edge_index`.

    Layers whose arguments are not known here stay as they are: :func:`report` names them. So do all with an `edge_index` that is no Graph.
    Calls with ``return_attention_weights=True`` are PyTorch Geometric's own, over the edges of the Graph. Layers with its hooks on
    messages, of which there are none over a Graph, or with ``explain=True`` refuse one.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place; weights, `state_dict` and hooks stay.

    Returns
    -------
    torch.nn.Module
        `model`.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> bst.report(bst.accelerate(torch.nn.Linear(2, 2)))  # has no layer that passes messages
    []
    """
    for module in model.modules():
        if passes_messages(module) and not refusal(module) and not _is_accelerated(module):
            module.propagate = functools.partial(_propagate, module)
            if type(module).__name__ in _SCORED:
                module.edge_updater = functools.partial(_edge_scores, module)
                if _with_edges not in module._forward_pre_hooks.values():
                    module.register_forward_pre_hook(_with_edges, with_kwargs=True)
    return model


def report(model: nn.Module) -> list[LayerReport]:
    """Which layers of a model pass messages, and which of them use this library when they get a :class:`Graph`."""
    found = []
    for name, module in model.named_modules():
        if passes_messages(module):
            reason = refusal(module)
            if not reason and not _is_accelerated(module):
                reason = "accelerate() was not called, or explain or decomposed_layers was set behind it"
            accelerated = not reason
            if accelerated and type(module).__name__ in _SCORED:
                reason = f"calls with {_WEIGHTS}=True are PyTorch Geometric's"
            found.append(LayerReport(name, type(module).__name__, accelerated, reason))
    return found


def _is_accelerated(module: nn.Module) -> bool:
    """Whether a layer has the `propagate` of this module, which setting some of PyTorch Geometric's attributes takes away."""
    return getattr(vars(module).get("propagate"), "func", None) is _propagate


def passes_messages(module: nn.Module) -> bool:
    """Whether a module is one of PyTorch Geometric's graph layers."""
    return any(
        base.__name__ == "MessagePassing" and base.__module__.startswith("torch_geometric.")
        for base in type(module).__mro__
    )


def refusal(layer: Any) -> str:
    """Why a layer is left to PyTorch Geometric; empty if it is not."""
    kind = type(layer).__name__
    if not type(layer).__module__.startswith("torch_geometric.nn.conv.") or kind not in _KNOWN:
        return f"only {', '.join(_KNOWN)} are known"
    if layer.flow != "source_to_target":
        return f"flow={layer.flow!r}; pass flow='source_to_target' and the reversed edges"
    if layer.node_dim != (0 if kind in _SCORED else -2):
        return f"node_dim={layer.node_dim}, not its default"
    known = ("sum", "add", "mean", "max", "min") if kind == "SAGEConv" else ("sum", "add")
    if layer.aggr not in known:
        return f"aggr={layer.aggr!r}, not one of {', '.join(known)}"
    if kind in _SCORED and layer.edge_dim is not None:
        return f"edge_dim={layer.edge_dim}: features of edges are not known"
    return ""


def _with_edges(layer: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Put an edge list in place of a Graph where weights of edges are to be returned, which here nobody ever has."""
    if _WEIGHTS not in given and len(args) < 4:
        return None
    bound = inspect.signature(type(layer).forward).bind_partial(layer, *args, **given)
    graph = bound.arguments.get("edge_index")
    # Which values but None ask for weights depends on the version.
    if bound.arguments.get(_WEIGHTS) is None or not isinstance(graph, Graph):
        return None
    once_each(type(layer).__name__, graph)
    bound.arguments["edge_index"] = torch.stack([graph.indices.long(), graph.rows()])
    if "size" in bound.signature.parameters:  # else features of the targets tell how many these are
        bound.arguments["size"] = _checked_size(layer, graph, bound.arguments.get("size"))
    return bound.args[1:], bound.kwargs


def _checked_size(layer: Any, graph: Graph, size: Any) -> tuple[int, int]:
    """How many sources and targets there are, as a layer's `size` has to say if it is given."""
    sizes = (graph.num_sources, graph.num_targets)
    if size is not None and any(one not in (None, other) for one, other in zip(size, sizes, strict=True)):
        raise ShapeError(
            f"{type(layer).__name__}: size={tuple(size)}, but the Graph has {sizes} sources and targets; leave size out"
        )
    return sizes


def _edge_scores(layer: Any, edge_index: Any, **given: Any) -> Any:
    """What a layer's own `edge_updater` does; for a Graph the scores of the nodes, of which weights are made while edges are summed."""
    if isinstance(edge_index, Graph):
        return given.get("alpha")
    return type(layer).edge_updater(layer, edge_index, **given)


def _propagate(layer: Any, edge_index: Any, size: Any = None, **given: Any) -> Tensor:
    """What a layer's own `propagate` does, over a Graph; anything else goes to the layer's class."""
    if not isinstance(edge_index, Graph):
        return type(layer).propagate(layer, edge_index, size=size, **given)
    _checked_size(layer, edge_index, size)
    _refuse_watchers(layer)
    x, graph, quantizer = given["x"], edge_index, quantizer_of(layer)
    if given.get("edge_weight") is not None:
        raise ValueError(
            f"{type(layer).__name__}: edge_weight beside a Graph; put the weights into it, Graph(edge_index, edge_weight=...)"
        )
    if type(layer).__name__ == "GCNConv":
        if layer.normalize:
            graph = graph.normalized(layer.add_self_loops, 2.0 if layer.improved and graph.weight is not None else 1.0)
        return _over_nodes(quantizer, graph, x, "sum")
    if type(layer).__name__ == "GATConv":
        graph = graph.with_self_loops() if layer.add_self_loops else graph
        source, target = given["alpha"]
        if target is None:  # no features of targets: PyTorch Geometric adds nothing to the scores of the sources
            target = source.new_zeros((graph.num_targets, *source.shape[1:]))
        dropout = layer.dropout if layer.training else 0.0
        return quantizer.attention(graph, x[0], source, target, layer.negative_slope, dropout)
    if type(layer).__name__ == "GATv2Conv":
        graph, (source, target) = graph.with_self_loops() if layer.add_self_loops else graph, x
        dropout = layer.dropout if layer.training else 0.0
        return gatv2_attention(graph, source, target, layer.att.squeeze(0), layer.negative_slope, dropout)
    if type(layer).__name__ == "AGNNConv":
        graph = graph.with_self_loops() if layer.add_self_loops else graph
        return quantizer.cosine_attention(graph, x, layer.beta)
    return _over_nodes(quantizer, graph.unweighted(), x[0], "sum" if layer.aggr == "add" else layer.aggr)


def _over_nodes(quantizer: Floats, graph: Graph, x: Tensor, reduce: str) -> Tensor:
    """Sums over the last axis but one, which is that of the nodes, for each of a batch of features of one graph."""
    if x.ndim < 3:
        return quantizer.spmm(graph, x, reduce)
    nodes = x.movedim(-2, 0)
    made = quantizer.spmm(graph, nodes.flatten(1), reduce)
    return made.reshape(graph.num_targets, *nodes.shape[1:]).movedim(0, -2)


def _refuse_watchers(layer: Any) -> None:
    """Refuse a Graph where somebody wants to see messages along edges, of which there are none."""
    hooks = (f"_{step}_forward_{when}" for step in _STEPS for when in ("pre_hooks", "hooks"))
    watched = (
        "explain=True" if getattr(layer, "explain", False) else next((h for h in hooks if getattr(layer, h, None)), "")
    )
    if watched:
        raise ValueError(
            f"{type(layer).__name__}: the layer has {watched.strip('_')}, which want messages along edges, but over a Graph there are "
            f"none; pass edge_index for this call"
        )

"""Run PyTorch Geometric's models on this library's sums: layers keep their weights, and only their message passing is replaced."""

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
#: The steps of a layer around which PyTorch Geometric calls hooks.
_STEPS = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")


class LayerReport(NamedTuple):
    """Whether :func:`accelerate` took over one layer that passes messages, and if not, why.

    Attributes
    ----------
    name : str
        The layer's name within the model; empty for the model itself.
    layer : str
        The name of the layer's class.
    accelerated : bool
    reason : str
        Why the layer is not accelerated, or, if it is, which of its calls are left to PyTorch Geometric.
    """

    name: str
    layer: str
    accelerated: bool
    reason: str


def accelerate(model: nn.Module) -> nn.Module:
    """Let the layers of a PyTorch Geometric model sum over a :class:`Graph` that is passed in place of `edge_index`.

    Layers with unsupported arguments are left unchanged: :func:`report` names them. Any layer behaves as before if `edge_index` is no
    Graph. Calls with ``return_attention_weights=True`` run PyTorch Geometric's own code over the edges of the Graph. A sum over a Graph
    makes no messages, so layers with PyTorch Geometric's message hooks or with ``explain=True`` refuse a Graph.

    Parameters
    ----------
    model : torch.nn.Module
        The model, changed in place; its weights, `state_dict` and hooks stay.

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
    """List the layers of a model that pass messages, and say which of them use this library when they get a :class:`Graph`."""
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
    """Whether a layer has the `propagate` of this module; setting some of PyTorch Geometric's attributes removes it again."""
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
    """Replace a Graph by its edge list if attention weights are to be returned: this library's kernels never store them."""
    if _WEIGHTS not in given and len(args) < 4:
        return None
    bound = inspect.signature(type(layer).forward).bind_partial(layer, *args, **given)
    graph = bound.arguments.get("edge_index")
    # Which values other than None ask for weights depends on PyTorch Geometric's version.
    if bound.arguments.get(_WEIGHTS) is None or not isinstance(graph, Graph):
        return None
    once_each(type(layer).__name__, graph)
    bound.arguments["edge_index"] = torch.stack([graph.indices.long(), graph.rows()])
    if "size" in bound.signature.parameters:  # other layers infer the number of targets from the targets' features
        bound.arguments["size"] = _checked_size(layer, graph, bound.arguments.get("size"))
    return bound.args[1:], bound.kwargs


def _checked_size(layer: Any, graph: Graph, size: Any) -> tuple[int, int]:
    """The numbers of sources and targets; a layer's `size`, if given, has to agree."""
    sizes = (graph.num_sources, graph.num_targets)
    if size is not None and any(one not in (None, other) for one, other in zip(size, sizes, strict=True)):
        raise ShapeError(
            f"{type(layer).__name__}: size={tuple(size)}, but the Graph has {sizes} sources and targets; leave size out"
        )
    return sizes


def _edge_scores(layer: Any, edge_index: Any, **given: Any) -> Any:
    """Stand in for a layer's `edge_updater`: over a Graph, return the nodes' scores, which the sum turns into weights as it goes."""
    if isinstance(edge_index, Graph):
        return given.get("alpha")
    return type(layer).edge_updater(layer, edge_index, **given)


def _propagate(layer: Any, edge_index: Any, size: Any = None, **given: Any) -> Tensor:
    """Stand in for a layer's `propagate` over a Graph; any other `edge_index` goes to the layer's class."""
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
    """Sum over a graph whose nodes are on the last axis but one; axes in front of it are a batch of features."""
    if x.ndim < 3:
        return quantizer.spmm(graph, x, reduce)
    nodes = x.movedim(-2, 0)
    made = quantizer.spmm(graph, nodes.flatten(1), reduce)
    return made.reshape(graph.num_targets, *nodes.shape[1:]).movedim(0, -2)


def _refuse_watchers(layer: Any) -> None:
    """Refuse a Graph if a hook or an explainer wants to see the messages along edges: over a Graph there are none."""
    hooks = (f"_{step}_forward_{when}" for step in _STEPS for when in ("pre_hooks", "hooks"))
    watched = (
        "explain=True" if getattr(layer, "explain", False) else next((h for h in hooks if getattr(layer, h, None)), "")
    )
    if watched:
        raise ValueError(
            f"{type(layer).__name__}: the layer has {watched.strip('_')}, which want messages along edges, but over a Graph there are "
            f"none; pass edge_index for this call"
        )

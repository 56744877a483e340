"""Finds the order in which a PyTorch Geometric model calls its modules with ``torch.fx``, without importing a framework."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from bitsparse.nn.dense import Dense, Step
from bitsparse.nn.layers import Layer
from bitsparse.nn.pyg.modules import CONVS, Conv, Refused, check_conv, function_step, is_leaf, module_steps, read_conv
from bitsparse.ops.finish.epilogue import BatchNorm

#: The names of the parameters of `forward` that take edge weights.
_WEIGHTS = ("edge_weight", "edge_weights", "edge_attr")

Caller = Callable[[Any, Any, Any, Any], Any]


def caller_of(model: Any) -> tuple[Caller, str | None]:
    """A function that calls a model with features, edges and edge weights, and the name of the parameter for the weights, if any."""
    known = inspect.signature(model.forward).parameters.values()
    named = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [p.name for p in named if p.default is p.empty]
    if len(needed) == 1 and (len(named) == 1 or needed[0] in ("data", "batch")):

        def with_data(model: Any, x: Any, edges: Any, weights: Any) -> Any:
            return model(SimpleNamespace(x=x, edge_index=edges, edge_weight=weights, edge_attr=weights, batch=None))

        return with_data, "data.edge_weight"
    if len(named) < 2:
        raise Refused(f"takes {', '.join(needed) or 'nothing'}; forward has to take x and edge_index, or data")
    taken = next((name for name in _WEIGHTS if any(p.name == name for p in named[2:])), None)
    more = [name for name in needed if name not in (named[0].name, named[1].name, taken)]
    if more:
        raise Refused(f"takes {', '.join(more)} beside features and edges, which is not there yet")

    def with_arrays(model: Any, x: Any, edges: Any, weights: Any) -> Any:
        return model(x, edges) if taken is None or weights is None else model(x, edges, **{taken: weights})

    return with_arrays, taken


def trace(model: Any, caller: Caller) -> list[Layer]:
    """The layers of a model in the order in which its forward calls them."""
    chain = _Chain()
    _follow(chain, model, lambda inner, x, edges, weights: caller(inner, x, edges, weights))
    return chain.layers()


def _follow(chain: _Chain, module: Any, call: Caller) -> None:
    """Append the steps of a module to the chain."""
    graph, modules = _graph(module, call)
    given = [node for node in graph.nodes if node.op == "placeholder"]
    current = given[0]
    for node in graph.nodes:
        if node in given:
            continue
        if node.op == "output":
            if node.args[0] is not current:
                raise Refused("does not return the result of its last step, one array; return that")
        else:
            what = _name(node, modules)
            try:
                _step(chain, node, modules, current, given[1:])
            except Refused as error:
                raise Refused(f"{what} {error}") from None
            current = node


def _graph(module: Any, call: Caller) -> tuple[Any, dict[str, Any]]:
    torch, fx = sys.modules["torch"], sys.modules["torch.fx"]

    class Whole(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, x: Any, edge_index: Any, edge_weight: Any) -> Any:
            return call(self.model, x, edge_index, edge_weight)

    class Tracer(fx.Tracer):  # type: ignore[misc, name-defined]
        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            return is_leaf(m)

    whole = Whole()
    try:
        graph = Tracer().trace(whole)
    except Exception as error:  # the code of a model may raise anything when it gets a stand-in for a tensor
        text = str(error).partition("\n")[0]
        raise Refused(f"cannot be traced ({text}); build the network from nn.Layer and nn.Dense instead") from error
    return graph, dict(whole.named_modules())


def _name(node: Any, modules: dict[str, Any]) -> str:
    if node.op != "call_module":
        return "the forward"
    return (
        str(node.target).removeprefix("model.") if node.target != "model" else f"the {type(modules['model']).__name__}"
    )


def _step(chain: _Chain, node: Any, modules: dict[str, Any], current: Any, given: list[Any]) -> None:
    """Append one call of the trace to the chain; `given` are the model's edges and edge weights."""
    if node.op == "get_attr":
        raise Refused(
            f"reads {str(node.target).removeprefix('model.')} itself, outside of any layer, which is not there yet"
        )
    rest = list(node.args)
    told = dict(node.kwargs)
    x = rest.pop(0) if rest else told.pop("input", told.pop("x", None))
    others = node.op != "call_module" and any(part is not current for part in node.all_input_nodes)
    called = getattr(node.target, "__name__", str(node.target))
    if x is not current or others:
        what = called if node.op != "call_module" else type(modules[node.target]).__name__
        raise Refused(
            f"{'calls' if node.op != 'call_module' else 'is'} {what} on something else than the result of the step before: residual "
            "connections, JumpingKnowledge and changed edges are not there yet"
        )
    if node.op != "call_module":
        chain.steps(function_step(called, tuple(rest), told))
        return
    module = modules[node.target]
    if not any(base.__name__ == "MessagePassing" for base in type(module).__mro__):
        if any(part is not None for part in (*rest, *told.values())):
            raise Refused(f"is a {type(module).__name__} called with more than features, which is not there yet")
        found = module_steps(module)
        if isinstance(found, Dense):
            chain.linear(found)
        else:
            chain.steps(found)
        return
    check_conv(module)
    chain.conv(read_conv(module, _weights_given(module, rest, told, *given)))


def _weights_given(module: Any, rest: list[Any], told: dict[str, Any], edges: Any, edge_weights: Any) -> bool:
    """Whether a graph layer gets the model's edge weights; its edges have to be those of the model."""
    names = [name for name in inspect.signature(module.forward).parameters if name != "x"]
    told = dict(zip(names, rest, strict=False)) | told
    if told.pop("edge_index", None) is not edges:
        raise Refused(f"is a {type(module).__name__} on other edges than the model was given, which is not there yet")
    weights = told.pop("edge_weight", None)
    more = [name for name, part in told.items() if part is not None]
    if more or (weights is not None and weights is not edge_weights):
        raise Refused(
            f"is a {type(module).__name__} given {', '.join(more) or 'weights that the model makes'}, which is not there yet"
        )
    return weights is not None


class _Chain:
    """The layers that have been read so far; each method appends the model's next step."""

    def __init__(self) -> None:
        self._layers: list[Conv] = []

    def conv(self, conv: Conv) -> None:
        """Begin a graph layer."""
        if conv.kind == "agnn":  # it has no weights, so its width is that of its input
            if not self._layers:
                raise Refused(
                    "is an AGNNConv in front of the first product with weights, so that its width is not known"
                )
            conv.updates.append(Dense(np.eye(self._layers[-1].updates[-1].outputs)))
        self._layers.append(conv)
        if conv.inner is not None:
            if not isinstance(conv.inner, sys.modules["torch"].nn.Module):
                raise Refused(f"has a {type(conv.inner).__name__} for nn; pass a torch.nn.Module")
            _follow(self, conv.inner, lambda module, x, edges, weights: module(x))
            if not conv.updates:
                raise Refused("has no Linear in its nn; a GINConv needs one")
        self.steps(conv.steps)

    def linear(self, dense: Dense) -> None:
        """Append a product with weights to the current layer, or begin a layer without neighbours if there is none yet."""
        if not self._layers:
            self._layers.append(Conv("dense"))
        self._layers[-1].updates.append(dense)

    def steps(self, steps: list[Step]) -> None:
        """Append steps after the last product."""
        for step in steps:
            if not self._layers or not self._layers[-1].updates:
                name = step if isinstance(step, str) else type(step).__name__
                raise Refused(f"has {name} in front of the first product with weights, which is not there yet")
            updates = self._layers[-1].updates
            updates[-1] = _followed(updates[-1], step)

    def layers(self) -> list[Layer]:
        """The finished layers."""
        if all(layer.kind == "dense" for layer in self._layers):
            raise Refused(f"has no graph layer; a network needs one of {', '.join(CONVS)}")
        return [Layer(tuple(one.updates), kind=one.kind, **one.fields) for one in self._layers]


def _followed(dense: Dense, step: Step) -> Dense:
    """Add a step after a product: in its own field if the usual order of steps allows that, else in `then`."""
    if not dense.then:
        if isinstance(step, BatchNorm) and dense.batch_norm is None and dense.activation is None:
            return replace(dense, batch_norm=step)
        if isinstance(step, str) and dense.activation is None:
            return replace(dense, activation=step)
    return replace(dense, then=(*dense.then, step))

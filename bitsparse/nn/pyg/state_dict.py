"""Networks from the state dicts of PyTorch and PyTorch Geometric, without either of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, interop
from bitsparse._archive import opened, reading
from bitsparse.errors import DTypeError, FileFormatError
from bitsparse.nn.full.network import Network
from bitsparse.nn.layers import GRAPH_KINDS, USUAL, Dense, Layer, Neighbours
from bitsparse.nn.pyg.state_names import in_order, norms_behind
from bitsparse.ops.finish.epilogue import BatchNorm

__all__ = ["load_network", "load_state_dict"]

#: What ends the name of a layer's tensor, and the kind of layer that has it.
_CONVS = {
    "gcn": re.compile(r"^(?:(?P<at>.*?)\.)?lin\.(?P<part>weight)$"),
    "sage": re.compile(r"^(?:(?P<at>.*?)\.)?(?P<part>lin_l\.weight|lin_l\.bias|lin_r\.weight)$"),
    "gin": re.compile(r"^(?:(?P<at>.*?)\.)?(?P<part>eps|nn\..*)$"),
}
#: What each kind may do with its neighbours, the usual one first.
_AGGREGATES = {"gcn": ("gcn", "sum"), "sage": ("mean", "sum", "max"), "gin": ("sum", "mean", "max")}
_STATISTICS = {"running_mean", "running_var"}
_NORM_PARTS = _STATISTICS | {"weight", "bias"}
#: Counters of training, which a norm has beside its statistics.
_COUNTER = "num_batches_tracked"


class _Conv(NamedTuple):
    at: str
    parts: dict[str, Any]


class _Told(NamedTuple):
    """What a state dict does not say."""

    function: str
    kind: Any
    activation: str | None
    neighbours: Neighbours | None
    after: bool
    eps: float


def load_state_dict(
    state: Mapping[str, Any],
    kind: str | None = None,
    *,
    activation: str | None = "relu",
    aggregate: str | None = None,
    self_loops: bool | None = None,
    norm: str = "before",
    eps: float = 1e-5,
    activations: Sequence[str | None] | None = None,
) -> Network:
    """Make a network from the names and tensors of a PyTorch Geometric model of GCNConv, SAGEConv or GINConv layers.

    :func:`from_pyg` reads a model itself and checks the result. A state dict holds tensors and their names only; from these are taken
    the kind of the layers, their order (by the one number in which their names differ) and the batch norm behind each (of the same
    number, or the next one where both are numbered together). Names that are no such sequence, and tensors that are not used, are
    refused. **What it cannot say has to be told where it is not PyTorch Geometric's default**: see `activation`, `aggregate`,
    `self_loops`, `norm` and `eps`. Residual connections, SAGEConv's ``normalize=True`` and ``improved=True`` of GCNConv leave no trace in
    a state dict and cannot be told: such a model goes to :func:`from_pyg` or is refused there. Dropout does nothing in inference.

    Parameters
    ----------
    state : mapping of str to tensor
        ``model.state_dict()``, or arrays of the same names. Weights are ``(outputs, inputs)``, as PyTorch's.
    kind : {"gcn", "sage", "gin"}, optional
        By default read from the names: ``lin.weight`` (GCNConv), ``lin_l`` and ``lin_r`` (SAGEConv), ``nn`` (GINConv).
    activation : {"relu", "leaky_relu", "elu", "tanh", "sigmoid", "gelu", "silu", None}
        What stands between the layers and between the linear layers of a GIN's perceptron; nothing stands behind the last layer.
    aggregate : str, optional
        ``aggr`` of the layers: "mean" (default), "sum" or "max" for SAGEConv; "sum" (default), "mean" or "max" for GINConv; "gcn"
        (default), or "sum" for ``normalize=False``, for GCNConv.
    self_loops : bool, optional
        ``add_self_loops`` of GCNConv: True by default, unless ``aggregate="sum"``.
    norm : {"before", "after"}
        Whether batch norms stand in front of the activation or behind it (``act_first=True``).
    eps : float, default 1e-5
        Of the batch norms, which a state dict does not hold.
    activations : sequence of str or None, optional
        The activation behind each product, one after the other, in place of `activation`.

    Returns
    -------
    Network

    Raises
    ------
    DTypeError
        `state` is no mapping; a model is not its state dict.
    ValueError
        Names that are not understood, form no one sequence or do not fit together; nothing is left out silently.

    Examples
    --------
    >>> from bitsparse import nn
    >>> state = {"conv1.bias": np.zeros(4), "conv1.lin.weight": np.ones((4, 3))}
    >>> state |= {"conv2.bias": np.zeros(2), "conv2.lin.weight": np.ones((2, 4))}
    >>> nn.load_state_dict(state)
    <Network gcn 3 -> 4 -> 2>
    """
    function = "load_state_dict"
    if not isinstance(state, Mapping):
        raise DTypeError(
            f"{function}: state must be a mapping of names to tensors, got {type(state).__name__}; pass model.state_dict(), or the model "
            "itself to nn.from_pyg"
        )
    named = {
        str(name): np.asarray(interop.as_host(_detached(tensor), function, str(name))) for name, tensor in state.items()
    }
    found = kind or _kind_of(function, named)
    _check.choice(function, "kind", found, GRAPH_KINDS)
    _check.choice(function, "norm", norm, ("before", "after"))
    told = _Told(
        function, found, activation, _neighbours(function, found, aggregate, self_loops), norm == "after", float(eps)
    )
    convs, norms = _sorted(function, named, found)
    if found == "gcn" and kind is None and len(convs) == 1 and not convs[0].at and "bias" not in convs[0].parts:
        raise ValueError(
            f"{function}: lin.weight alone may be a GCNConv without bias or a linear layer; pass kind='gcn' if it is the former"
        )
    behind = norms_behind(function, [conv.at for conv in convs], list(norms)) if norms else {}
    layers = []
    for i, conv in enumerate(convs):
        found_norm = _norm(told, _Conv(behind[conv.at], norms[behind[conv.at]])) if conv.at in behind else None
        layers.append(_layer(told, conv, found_norm, None if i == len(convs) - 1 else activation))
    if activations is not None:
        layers = _with_activations(function, layers, activations)
    return Network(found, layers)  # type: ignore[arg-type]


def load_network(path: str | Path) -> Network:
    """Read a network that :meth:`Network.save` wrote, or an ``.npz`` with the arrays of a state dict under its names.

    Examples
    --------
    >>> import tempfile
    >>> from bitsparse import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nn.random_network("gin", [8, 64, 2]).save(folder + "/gin.npz")
    ...     nn.load_network(folder + "/gin.npz")
    <Network gin 8 -> 64 -> 2>
    """
    with reading("load_network", path, "; write it with Network.save"):
        try:
            with opened(path) as archive:
                kind = archive.text("kind") if "kind" in archive else None
                activations = archive.texts("activations") if "activations" in archive else None
                weighted = archive["weighted"] if "weighted" in archive.names else None
                told = {"kind", "activations", "weighted"}
                state = {name: archive[name] for name in sorted(archive.names - told)}
        except FileFormatError as error:
            raise ValueError(f"it is no .npz of arrays ({error})") from None
        network = load_state_dict(
            state, kind, activations=None if activations is None else [one or None for one in activations]
        )
        return network if weighted is None else _with_weights(network, weighted)


def _with_weights(network: Network, weighted: Any) -> Network:
    """The network with layers that read weights of edges where the file says so."""
    usual = USUAL["gcn"]
    if network.kind != "gcn" or usual is None or weighted.shape != (len(network.layers),):
        raise ValueError(
            f"it tells for {weighted.shape} layers whether they read weights, but holds {len(network.layers)} of kind {network.kind}"
        )
    hows = (replace(usual, weighted=bool(one)) for one in weighted)
    return Network("gcn", [replace(layer, neighbours=how) for layer, how in zip(network.layers, hows, strict=True)])


def _detached(tensor: Any) -> Any:
    """A parameter without its gradient: DLPack refuses those that have one."""
    return tensor.detach() if hasattr(tensor, "detach") else tensor


def _neighbours(function: str, kind: str, aggregate: str | None, self_loops: bool | None) -> Neighbours | None:
    """How layers of a kind gather, as told; None for its usual way."""
    if aggregate is not None:
        _check.choice(function, "aggregate", aggregate, _AGGREGATES[kind])
    if self_loops is not None and kind != "gcn":
        raise ValueError(
            f"{function}: self_loops={self_loops} goes with GCNConv only, and this is a {kind} network; drop it"
        )
    if kind != "gcn":
        return Neighbours(aggregate) if aggregate else None  # type: ignore[arg-type]
    normed = aggregate != "sum"
    loops = normed if self_loops is None else bool(self_loops)
    if loops and not normed:
        raise ValueError(f"{function}: self_loops=True goes with aggregate='gcn' only, as in GCNConv; drop one of them")
    made = Neighbours("sum", gcn_norm=normed, self_loop=1.0 if loops else None, weighted=True)
    return None if made == USUAL["gcn"] else made


def _kind_of(function: str, named: Mapping[str, Any]) -> str:
    for kind in ("sage", "gin", "gcn"):
        if any(_CONVS[kind].match(name) for name in named):
            return kind
    raise ValueError(
        f"{function}: none of {', '.join(list(named)[:4]) or 'no names'} belongs to a GCNConv (lin.weight), SAGEConv (lin_l.weight) or "
        "GINConv (nn...); pass the state dict of such a model"
    )


def _sorted(function: str, named: Mapping[str, Any], kind: str) -> tuple[list[_Conv], dict[str, dict[str, Any]]]:
    """Layers in their order and outer norms by their place; refuses names that belong to neither."""
    found: dict[str, dict[str, Any]] = {}
    rest = dict(named)
    for name in named:
        match = _CONVS[kind].match(name)
        if match:
            found.setdefault(match["at"] or "", {})[match["part"]] = rest.pop(name)
    if kind == "gcn":
        for at, parts in found.items():
            bias = f"{at}.bias" if at else "bias"
            if bias in rest:
                parts["bias"] = rest.pop(bias)
    norms: dict[str, dict[str, Any]] = {
        at: {} for at, _, part in (name.rpartition(".") for name in rest) if part in _STATISTICS
    }
    for name in list(rest):
        at, _, part = name.rpartition(".")
        if at in norms and part in _NORM_PARTS:
            norms[at][part] = rest.pop(name)
        elif at in norms and part == _COUNTER:
            del rest[name]
    if rest:
        attention = any(".att" in f".{name}" for name in rest)
        raise ValueError(
            f"{function}: no {kind} layer has {', '.join(sorted(rest)[:4])}"
            + (", which belong to an attention layer; these are not there yet" if attention else "")
            + "; nothing is left out: pass the model itself to nn.from_pyg, or name the kind"
        )
    if not found:
        raise ValueError(f"{function}: there is no {kind} layer among the names; pass the kind that the model has")
    return [_Conv(at, found[at]) for at in in_order(function, list(found))], norms


def _layer(told: _Told, conv: _Conv, norm: BatchNorm | None, behind: str | None) -> Layer:
    parts, kind = conv.parts, told.kind

    def need(name: str) -> Any:
        if name not in parts:
            raise ValueError(
                f"{told.function}: layer {_check.shown(conv.at)} has {', '.join(parts)} but no {name}, which a {kind} layer needs"
            )
        return parts[name]

    if kind == "gin":
        updates = _perceptron(told, conv)
        last = updates[-1]
        if norm is not None and last.batch_norm is not None:
            raise ValueError(
                f"{told.function}: layer {_check.shown(conv.at)} ends in a norm and another one follows; fold one of them into the weights"
            )
        updates[-1] = _finished(told, last, norm or last.batch_norm, behind)
        eps = float(parts["eps"].reshape(-1)[0]) if "eps" in parts and parts["eps"].size else 0.0
        return Layer(tuple(updates), eps=eps, kind=kind, neighbours=told.neighbours)
    name = "weight" if kind == "gcn" else "lin_l.weight"
    dense = Dense(need(name).T, parts.get(name.replace("weight", "bias")))
    own = need("lin_r.weight").T if kind == "sage" else None
    return Layer((_finished(told, dense, norm, behind),), own, kind=kind, neighbours=told.neighbours)


def _finished(told: _Told, dense: Dense, norm: BatchNorm | None, activation: str | None) -> Dense:
    """A product with its norm and activation in the order that was told."""
    if norm is not None and told.after and activation is not None:
        return Dense(dense.weight, dense.bias, None, activation, (norm,))
    return Dense(dense.weight, dense.bias, norm, activation)


def _perceptron(told: _Told, conv: _Conv) -> list[Dense]:
    """The linear layers of a GIN's ``nn`` with the norms behind them: a Linear, a Sequential, or an MLP with ``lins`` and ``norms``."""
    modules: dict[str, dict[str, Any]] = {}
    for name, array in conv.parts.items():
        if name != "eps":
            at, _, part = name.rpartition(".")
            modules.setdefault(at, {})[part] = array
    linear: dict[str, Dense] = {}
    norms: dict[str, dict[str, Any]] = {}
    for at, parts in modules.items():
        weight = parts.get("weight")
        kept = {part: array for part, array in parts.items() if part != _COUNTER}
        if "running_mean" in parts and set(kept) <= _NORM_PARTS:
            norms[at] = kept
        elif weight is not None and weight.ndim == 2 and set(parts) <= {"weight", "bias"}:
            linear[at] = Dense(weight.T, parts.get("bias"))
        else:
            raise ValueError(
                f"{told.function}: layer {_check.shown(conv.at)} has a part {at} with {', '.join(parts)}, "
                f"neither a linear layer nor a batch norm"
            )
    if not linear:
        raise ValueError(f"{told.function}: layer {_check.shown(conv.at)} has no linear layer in its nn")
    order = in_order(told.function, list(linear), f"linear layers in layer {_check.shown(conv.at)}")
    behind = norms_behind(told.function, order, list(norms)) if norms else {}
    made = []
    for at in order:
        norm = _norm(told, _Conv(behind[at], norms[behind[at]])) if at in behind else None
        made.append(_finished(told, linear[at], norm, None if at == order[-1] else told.activation))
    return made


def _norm(told: _Told, conv: _Conv) -> BatchNorm:
    parts = conv.parts
    if not parts.keys() >= _STATISTICS:
        raise ValueError(
            f"{told.function}: batch norm {_check.shown(conv.at)} has {', '.join(parts)}, but both running statistics are needed; pass "
            f"running_mean and running_var"
        )
    return BatchNorm(parts["running_mean"], parts["running_var"], parts.get("weight"), parts.get("bias"), told.eps)


def _with_activations(function: str, layers: Sequence[Layer], activations: Sequence[str | None]) -> list[Layer]:
    count = sum(len(layer.updates) for layer in layers)
    if len(activations) != count:
        raise ValueError(
            f"{function}: there are {len(activations)} activations for {count} products; pass one for each"
        )
    rest = iter(activations)
    return [
        replace(layer, updates=tuple(replace(dense, activation=next(rest)) for dense in layer.updates))
        for layer in layers
    ]

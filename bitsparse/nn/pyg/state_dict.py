"""Networks from state dicts of PyTorch and PyTorch Geometric; neither has to be installed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, interop
from bitsparse._archive import opened, reading
from bitsparse.errors import FileFormatError, ShapeError
from bitsparse.nn.dense import Dense, LayerNorm
from bitsparse.nn.description import restored
from bitsparse.nn.full.network import Network
from bitsparse.nn.layers import ATTENTION_KINDS, GRAPH_KINDS, Attention, Layer, Neighbours
from bitsparse.nn.pyg.state_names import in_order, norms_behind
from bitsparse.ops.finish.epilogue import BatchNorm

#: For each kind of layer, the names of its tensors: `at` is the layer's place, `part` the end of the name.
_CONVS = {
    "gat": re.compile(r"^(?:(?P<at>.*?)\.)?(?P<part>att_src|att_dst|lin\.weight|res\.weight)$"),
    "gatv2": re.compile(r"^(?:(?P<at>.*?)\.)?(?P<part>att|lin_[lr]\.(?:weight|bias)|res\.weight)$"),
    "agnn": re.compile(r"^(?:(?P<at>.*?)\.)?(?P<part>beta|nn\..*)$"),
    "gcn": re.compile(r"^(?:(?P<at>.*?)\.)?(?P<part>lin\.weight)$"),
    "sage": re.compile(r"^(?:(?P<at>.*?)\.)?(?P<part>lin_l\.weight|lin_l\.bias|lin_r\.weight)$"),
    "gin": re.compile(r"^(?:(?P<at>.*?)\.)?(?P<part>eps|nn\..*)$"),
}
#: For kinds that share names with others: how the end of a name begins that only this kind has.
_TELLING = {"gat": "att_", "gatv2": "att", "agnn": "beta"}
#: The most characters of the text in a file that describes its layers.
_LONGEST = 1 << 22
#: How each kind may aggregate, beginning with the usual way.
_AGGREGATES = {"gcn": ("gcn", "sum"), "sage": ("mean", "sum", "max"), "gin": ("sum", "mean", "max")}
_AGGREGATES |= dict.fromkeys(ATTENTION_KINDS, ("softmax",))
_STATISTICS = {"running_mean", "running_var"}
_NORM_PARTS = _STATISTICS | {"weight", "bias"}
#: The counter of training steps that a norm holds beside its statistics.
_COUNTER = "num_batches_tracked"


class _Part(NamedTuple):
    """A layer or a norm: the common beginning of its names, and its tensors by the rest of their names."""

    at: str
    tensors: dict[str, Any]


class _Options(NamedTuple):
    """The arguments of :func:`load_state_dict` that say what a state dict does not."""

    function: str
    kind: Any
    activation: str | None
    neighbours: Neighbours | None
    after: bool
    eps: float
    slope: float


def load_state_dict(
    state: Mapping[str, Any],
    kind: str | None = None,
    *,
    activation: str | None = "relu",
    aggregate: str | None = None,
    self_loops: bool | None = None,
    norm: str = "before",
    eps: float = 1e-5,
    negative_slope: float = 0.2,
    activations: Sequence[str | None] | None = None,
) -> Network:
    """Make a network from the state dict of a PyTorch Geometric model whose layers are all GCNConv, SAGEConv, GINConv, GATConv...

    :func:`from_pyg` reads a model itself and checks the result. A state dict holds only tensors and their names. They tell the kind of the
    layers, their order (by the one number in which their names differ) and the batch norm after each layer (the one with the same number,
    or the next one if both are numbered together). Names that form no such sequence and unused tensors are refused. **Anything else has to
    be passed if it is not the default of PyTorch Geometric**: see `activation`, `aggregate`, `self_loops`, `norm`, `eps` and
    `negative_slope`. Residual connections between layers, ``normalize=True`` of SAGEConv and ``improved=True`` of GCNConv leave no trace in
    a state dict and cannot be passed here; give such a model to :func:`from_pyg`, which reads or refuses it. Dropout has no effect in
    inference.

    Parameters
    ----------
    state : mapping of str to tensor
        ``model.state_dict()``, or arrays with the same names. Weights are ``(outputs, inputs)``, as in PyTorch.
    kind : {"gcn", "sage", "gin", "gat", "gatv2", "agnn"}, optional
        By default read from the names: ``att_src`` and ``att_dst`` (GATConv), ``att`` (GATv2Conv), ``beta`` (AGNNConv, followed by a
        perceptron ``nn``), ``lin.weight`` (GCNConv), ``lin_l`` and ``lin_r`` (SAGEConv), ``nn`` (GINConv).
    activation : {"relu", "leaky_relu", "elu", "tanh", "sigmoid", "gelu", "silu", None}
        The activation between layers, and between the linear layers of a GIN's perceptron. The last layer has none.
    aggregate : str, optional
        ``aggr`` of the layers: "mean" (default), "sum" or "max" for SAGEConv; "sum" (default), "mean" or "max" for GINConv; "gcn"
        (default), or "sum" for ``normalize=False``, for GCNConv.
    self_loops : bool, optional
        ``add_self_loops`` of GCNConv and of attention: True by default, unless ``aggregate="sum"``.
    norm : {"before", "after"}
        Whether batch norms come before the activation or after it (``act_first=True``).
    eps : float, default 1e-5
        The eps of the batch norms, which a state dict does not hold.
    negative_slope : float, default 0.2
        The slope of the leaky relu in GATConv and GATv2Conv. Whether their heads are side by side follows from the sizes of tensors.
    activations : sequence of str or None, optional
        The activation after each product, in order, instead of `activation`.

    Returns
    -------
    Network

    Raises
    ------
    DTypeError
        `state` is not a mapping, for example a model instead of its state dict.
    ValueError
        Names are unknown, do not form one sequence or do not fit together. No tensor is left out silently.

    Examples
    --------
    >>> from bitsparse import nn
    >>> state = {"conv1.bias": np.zeros(4), "conv1.lin.weight": np.ones((4, 3))}
    >>> state |= {"conv2.bias": np.zeros(2), "conv2.lin.weight": np.ones((2, 4))}
    >>> nn.load_state_dict(state)
    <Network gcn 3 -> 4 -> 2>
    """
    function = "load_state_dict"
    how = "pass model.state_dict(), or the model itself to nn.from_pyg"
    _check.instance(function, "state", state, Mapping, "a mapping of names to tensors", how)
    named = {
        str(name): np.asarray(interop.as_host(_detached(tensor), function, str(name))) for name, tensor in state.items()
    }
    of_layers = kind or _kind_of(function, named)
    _check.choice(function, "kind", of_layers, GRAPH_KINDS)
    _check.choice(function, "norm", norm, ("before", "after"))
    options = _Options(
        function,
        of_layers,
        activation,
        _neighbours(function, of_layers, aggregate, self_loops),
        norm == "after",
        float(eps),
        float(negative_slope),
    )
    convs, norms = _sorted(function, named, of_layers)
    if of_layers == "gcn" and kind is None and len(convs) == 1 and not convs[0].at and "bias" not in convs[0].tensors:
        raise ValueError(
            f"{function}: lin.weight alone may be a GCNConv without bias or a linear layer; pass kind='gcn' if it is the former"
        )
    of_convs, layers = _norms(options, [conv.at for conv in convs], norms), []
    for i, conv in enumerate(convs):
        follows = convs[i + 1] if i + 1 < len(convs) else None
        layers.append(_layer(options, conv, of_convs.get(conv.at), None if follows is None else activation, follows))
    if activations is not None:
        layers = _with_activations(function, layers, activations)
    return Network(of_layers, layers)  # type: ignore[arg-type]


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
    with reading("load_network", path, "; write it with Network.save (load_lowbit reads networks on bits)"):
        try:
            with opened("load_network", path) as archive:
                layers = archive.text("layers", _LONGEST) if "layers" in archive else None
                kind = archive.text("kind") if "kind" in archive else None
                arrays = {name: archive[name] for name in sorted(archive.names - {"layers", "kind"})}
        except FileFormatError as error:
            raise ValueError(f"it is no .npz of arrays ({error})") from None
        if layers is None:
            return load_state_dict(arrays, kind)
        made = restored(layers, arrays, (Attention, BatchNorm, Dense, Layer, LayerNorm, Neighbours))
        return Network(kind, made if isinstance(made, tuple) else ())  # type: ignore[arg-type]


def _detached(tensor: Any) -> Any:
    """Detach a parameter from its gradient, because DLPack refuses tensors that require one."""
    return tensor.detach() if hasattr(tensor, "detach") else tensor


def _neighbours(function: str, kind: str, aggregate: str | None, self_loops: bool | None) -> Neighbours | None:
    """How the layers gather from neighbours, by the arguments; None for the usual way of the kind."""
    if aggregate is not None:
        _check.choice(function, "aggregate", aggregate, _AGGREGATES[kind])
    if self_loops is not None:
        _check.flag(function, "self_loops", self_loops)
    if self_loops is not None and kind not in ("gcn", *ATTENTION_KINDS):
        raise ValueError(
            f"{function}: self_loops={self_loops} goes with GCNConv and attention, and this is a {kind} network; drop it"
        )
    if kind in ATTENTION_KINDS:
        return Neighbours("softmax", self_loop=1.0 if self_loops in (None, True) else None)
    if kind != "gcn":
        return Neighbours(aggregate) if aggregate else None  # type: ignore[arg-type]
    normed = aggregate != "sum"
    loops = normed if self_loops is None else self_loops
    if loops and not normed:
        raise ValueError(f"{function}: self_loops=True goes with aggregate='gcn' only, as in GCNConv; drop one of them")
    return Neighbours("sum", gcn_norm=normed, self_loop=1.0 if loops else None, weighted=True)


def _kind_of(function: str, named: Mapping[str, Any]) -> str:
    for kind in (*ATTENTION_KINDS, "sage", "gin", "gcn"):
        matches = filter(None, map(_CONVS[kind].match, named))
        if any(match["part"].startswith(_TELLING.get(kind, "")) for match in matches):
            return kind
    raise ValueError(
        f"{function}: none of {', '.join(list(named)[:4]) or 'no names'} belongs to a GCNConv (lin.weight), SAGEConv (lin_l.weight) or "
        "GINConv (nn...), nor to attention (att_src, att, beta); pass the state dict of such a model"
    )


def _sorted(function: str, named: Mapping[str, Any], kind: str) -> tuple[list[_Part], dict[str, dict[str, Any]]]:
    """The layers in their order, and the norms outside them by their place; names that belong to neither are refused."""
    convs: dict[str, dict[str, Any]] = {}
    rest = dict(named)
    for name in named:
        match = _CONVS[kind].match(name)
        if match:
            convs.setdefault(match["at"] or "", {})[match["part"]] = rest.pop(name)
    if kind in ("gcn", "gat", "gatv2"):
        for at, parts in convs.items():
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
        raise ValueError(
            f"{function}: no {kind} layer has {', '.join(sorted(rest)[:4])}; nothing is left out: pass the model itself to nn.from_pyg, or "
            "name the kind"
        )
    if not convs:
        raise ValueError(f"{function}: there is no {kind} layer among the names; pass the kind that the model has")
    return [_Part(at, convs[at]) for at in in_order(function, list(convs))], norms


def _layer(options: _Options, conv: _Part, norm: BatchNorm | None, behind: str | None, follows: _Part | None) -> Layer:
    parts, kind = conv.tensors, options.kind

    def need(name: str) -> Any:
        if name not in parts:
            raise ValueError(
                f"{options.function}: layer {_check.shown(conv.at)} has {', '.join(parts)} but no {name}, which a {kind} layer needs"
            )
        return parts[name]

    if kind in ("gin", "agnn"):
        updates = _perceptron(options, conv)
        last = updates[-1]
        if norm is not None and last.batch_norm is not None:
            raise ValueError(
                f"{options.function}: layer {_check.shown(conv.at)} ends in a norm and another one follows; fold one of them into the "
                "weights"
            )
        updates[-1] = _finished(options, last, norm or last.batch_norm, behind)
        eps, beta = (float((*parts.get(name, np.empty(0)).flat, usual)[0]) for name, usual in (("eps", 0), ("beta", 1)))
        return Layer(tuple(updates), eps=eps, kind=kind, neighbours=options.neighbours, beta=beta)
    name, attention, average = "lin.weight" if kind in ("gcn", "gat") else "lin_l.weight", None, 1
    if kind in ("gat", "gatv2"):
        attention = _scores(options, conv, need)
        next_weight = None if follows is None else follows.tensors.get(name)
        sizes = [parts[each].shape[0] for each in ("bias", "res.weight") if each in parts and parts[each].ndim]
        sizes += [] if next_weight is None else [next_weight.shape[-1]]
        average = 1 if not sizes or sizes[0] == attention.source.size else attention.heads
    dense = Dense(need(name).T, parts.get("lin_l.bias" if kind == "sage" else "bias"), average=average)
    own = need("lin_r.weight") if kind == "sage" else parts.get("res.weight")
    told: dict[str, Any] = {"kind": kind, "neighbours": options.neighbours, "attention": attention}
    return Layer((_finished(options, dense, norm, behind),), None if own is None else own.T, **told)


def _scores(options: _Options, conv: _Part, need: Callable[[str], Any]) -> Attention:
    """The attention of a GATConv or GATv2Conv."""

    def heads(name: str) -> Any:
        array = need(name)
        if array.ndim != 3 or array.shape[0] != 1:
            raise ShapeError(
                f"{options.function}: layer {_check.shown(conv.at)} has {name} of shape {array.shape}, but one of PyTorch Geometric has "
                "(1, heads, channels)"
            )
        return array[0]

    if options.kind == "gat":
        return Attention(heads("att_src"), heads("att_dst"), negative_slope=options.slope)
    receive = Dense(need("lin_r.weight").T, conv.tensors.get("lin_r.bias"))
    return Attention(heads("att"), None, receive, conv.tensors.get("lin_l.bias"), options.slope)


def _finished(options: _Options, dense: Dense, norm: BatchNorm | None, activation: str | None) -> Dense:
    """Add a norm and an activation to a product, in the order of the options."""
    if norm is not None and options.after and activation is not None:
        return replace(dense, activation=activation, then=(norm,))
    return replace(dense, batch_norm=norm, activation=activation)


def _perceptron(options: _Options, conv: _Part) -> list[Dense]:
    """The linear layers of a GIN's ``nn`` with their norms; it is a Linear, a Sequential, or an MLP with ``lins`` and ``norms``."""
    modules: dict[str, dict[str, Any]] = {}
    for name, array in conv.tensors.items():
        if name not in ("eps", "beta"):
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
                f"{options.function}: layer {_check.shown(conv.at)} has a part {at} with {', '.join(parts)}, "
                f"neither a linear layer nor a batch norm"
            )
    if not linear:
        raise ValueError(f"{options.function}: layer {_check.shown(conv.at)} has no linear layer in its nn")
    order = in_order(options.function, list(linear), f"linear layers in layer {_check.shown(conv.at)}")
    of_linear = _norms(options, order, norms)
    activations = dict.fromkeys(order[:-1], options.activation)
    return [_finished(options, linear[at], of_linear.get(at), activations.get(at)) for at in order]


def _norms(options: _Options, places: Sequence[str], norms: Mapping[str, dict[str, Any]]) -> dict[str, BatchNorm]:
    """The batch norm behind each layer that has one, by the layer's place."""
    found = {}
    for place, at in (norms_behind(options.function, places, list(norms)) if norms else {}).items():
        parts = norms[at]
        if not parts.keys() >= _STATISTICS:
            raise ValueError(
                f"{options.function}: batch norm {_check.shown(at)} has {', '.join(parts)}, but both running statistics are needed; pass "
                f"running_mean and running_var"
            )
        others = parts.get("weight"), parts.get("bias"), options.eps
        found[place] = BatchNorm(parts["running_mean"], parts["running_var"], *others)
    return found


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

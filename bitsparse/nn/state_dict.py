"""Networks from the state dicts of PyTorch and PyTorch Geometric, without either of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop
from bitsparse._archive import opened, reading
from bitsparse.errors import FileFormatError
from bitsparse.nn.network import KINDS, Dense, Layer, Network
from bitsparse.ops.epilogue import BatchNorm

__all__ = ["load_network", "load_state_dict"]

#: What ends the name of a layer's tensor, and the kind of layer that has it.
_CONVS = {
    "gcn": re.compile(r"^(?P<at>.*?)\.?lin\.(?P<part>weight)$"),
    "sage": re.compile(r"^(?P<at>.*?)\.?(?P<part>lin_l\.weight|lin_l\.bias|lin_r\.weight)$"),
    "gin": re.compile(r"^(?P<at>.*?)\.?(?P<part>eps|nn\..*)$"),
}
_NORM = re.compile(r"^(?P<at>.*?)\.?(?P<part>running_mean|running_var)$")
#: Counters of training, and what stands for lazily made parameters.
_IGNORED = ("num_batches_tracked",)


class _Conv(NamedTuple):
    at: str
    parts: dict[str, Any]


def load_state_dict(
    state: Mapping[str, Any],
    kind: str | None = None,
    *,
    activation: str | None = "relu",
    eps: float = 1e-5,
    activations: Sequence[str | None] | None = None,
) -> Network:
    """Make a network from the names and tensors of a PyTorch Geometric model of GCNConv, SAGEConv (mean) or GINConv layers.

    Layers follow each other by the numbers in their names, else in the order of the dict; batch norms outside of layers
    belong to the layers in their order, behind the sums. What a state dict does not say is taken as usual: `activation`
    stands between the layers, behind their norms, and between the linear layers of a GIN's perceptron; nothing stands behind
    the last layer. Dropout does nothing in inference.

    Parameters
    ----------
    state : mapping of str to tensor
        ``model.state_dict()``, or arrays of the same names. Weights are ``(outputs, inputs)``, as PyTorch's.
    kind : {"gcn", "sage", "gin"}, optional
        By default read from the names: ``lin.weight`` (GCNConv), ``lin_l`` and ``lin_r`` (SAGEConv), ``nn`` (GINConv).
    activation : {"relu", "leaky_relu", "tanh", None}
    eps : float, default 1e-5
        Of the batch norms, which a state dict does not hold.
    activations : sequence of str or None, optional
        The activation behind each product, one after the other, in place of what is usual.

    Returns
    -------
    Network

    Raises
    ------
    ValueError
        Names that are not understood or do not fit together; nothing is left out silently.

    Examples
    --------
    >>> from bitsparse import nn
    >>> state = {"conv1.bias": np.zeros(4), "conv1.lin.weight": np.ones((4, 3))}
    >>> state |= {"conv2.bias": np.zeros(2), "conv2.lin.weight": np.ones((2, 4))}
    >>> nn.load_state_dict(state)
    <Network gcn 3 -> 4 -> 2>
    """
    function = "load_state_dict"
    named = {
        name: np.asarray(interop.as_host(_detached(tensor), function, name))
        for name, tensor in state.items()
        if not name.endswith(_IGNORED)
    }
    found = kind or _kind_of(function, named)
    if found not in KINDS:
        raise ValueError(f"{function}: kind must be one of {', '.join(KINDS)}, got {kind!r}")
    convs, norms, left = _sorted(function, named, found)
    if left:
        raise ValueError(
            f"{function}: no {found} layer has {', '.join(sorted(left)[:4])}; leave out what is not part of the network, or name the kind"
        )
    if len(norms) > len(convs):
        raise ValueError(
            f"{function}: there are {len(norms)} batch norms outside of {len(convs)} layers; leave out those that do not belong"
        )
    layers = []
    for i, conv in enumerate(convs):
        last = i == len(convs) - 1
        norm = _norm(norms[i], eps) if i < len(norms) else None
        layers.append(_layer(function, found, conv, norm, None if last else activation, activation, eps))
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
                state = {name: archive[name] for name in sorted(archive.names - {"kind", "activations"})}
        except FileFormatError as error:
            raise ValueError(f"it is no .npz of arrays ({error})") from None
        return load_state_dict(
            state, kind, activations=None if activations is None else [one or None for one in activations]
        )


def _detached(tensor: Any) -> Any:
    """A parameter without its gradient: DLPack refuses those that have one."""
    return tensor.detach() if hasattr(tensor, "detach") else tensor


def _kind_of(function: str, named: Mapping[str, Any]) -> str:
    for kind in ("sage", "gin", "gcn"):
        if any(_CONVS[kind].match(name) for name in named):
            return kind
    raise ValueError(
        f"{function}: none of {', '.join(list(named)[:4]) or 'no names'} belongs to a GCNConv (lin.weight), SAGEConv (lin_l.weight) or "
        "GINConv (nn...); pass the state dict of such a model"
    )


def _sorted(function: str, named: Mapping[str, Any], kind: str) -> tuple[list[_Conv], list[_Conv], list[str]]:
    """Layers and outer norms, each in its order, and names that belong to neither."""
    found: dict[str, dict[str, Any]] = {}
    for name, array in named.items():
        match = _CONVS[kind].match(name)
        if match:
            found.setdefault(match["at"], {})[match["part"]] = array
    places = set(found)
    norms: dict[str, dict[str, Any]] = {}
    for name in named:
        match = _NORM.match(name)
        if match and not any(name.startswith(f"{place}." if place else "nn.") for place in places):
            norms.setdefault(match["at"], {})
    left = []
    for name, array in named.items():
        at, _, part = name.rpartition(".")
        if at in norms:
            norms[at][part] = array
        elif _CONVS[kind].match(name):
            continue
        elif kind == "gcn" and part == "bias" and at in places:
            found[at]["bias"] = array
        else:
            left.append(name)
    convs = [_Conv(at, parts) for at, parts in found.items()]
    return sorted(convs, key=_number), sorted((_Conv(at, parts) for at, parts in norms.items()), key=_number), left


def _number(conv: _Conv) -> tuple[int, ...]:
    """Numbers in a name, so that ``convs.10`` follows ``convs.9``."""
    return tuple(int(digits) for digits in re.findall(r"\d+", conv.at))


def _layer(
    function: str, kind: str, conv: _Conv, norm: Any, behind: str | None, inside: str | None, eps: float
) -> Layer:
    parts = conv.parts

    def need(name: str) -> Any:
        if name not in parts:
            raise ValueError(
                f"{function}: layer {conv.at!r} has {', '.join(parts)} but no {name}, which a {kind} layer needs"
            )
        return parts[name]

    if kind == "gcn":
        return Layer((Dense(need("weight").T, parts.get("bias"), norm, behind),))
    if kind == "sage":
        dense = Dense(need("lin_l.weight").T, parts.get("lin_l.bias"), norm, behind)
        return Layer((dense,), own=need("lin_r.weight").T)
    updates = _perceptron(function, conv, inside, eps)
    last = updates[-1]
    if norm is not None:
        if last.batch_norm is not None or last.activation is not None:
            raise ValueError(
                f"{function}: layer {conv.at!r} ends in a norm and another one follows; fold one of them into the weights"
            )
        last = Dense(last.weight, last.bias, norm, None)
    ends = last.activation or behind
    updates[-1] = Dense(last.weight, last.bias, last.batch_norm, ends)
    return Layer(tuple(updates), eps=float(np.asarray(parts.get("eps", 0.0)).reshape(-1)[0]))


def _perceptron(function: str, conv: _Conv, inside: str | None, eps: float) -> list[Dense]:
    """The linear layers of a GIN's ``nn`` with the norms behind them: a Linear, a Sequential, or an MLP with ``lins`` and ``norms``."""
    modules: dict[tuple[int, ...], dict[str, Any]] = {}
    as_lists = any(name.startswith("nn.lins.") for name in conv.parts)
    for name, array in conv.parts.items():
        if name == "eps":
            continue
        at, _, part = name.removeprefix("nn.").rpartition(".")
        place = tuple(int(digits) for digits in re.findall(r"\d+", at))
        if as_lists:  # a norm stands behind the linear layer of its number
            place = (*place, int("norm" in at))
        modules.setdefault(place, {})[part] = array
    found: list[Dense] = []
    for place in sorted(modules):
        parts = modules[place]
        weight = parts.get("weight")
        if "running_mean" in parts:
            if not found or found[-1].batch_norm is not None:
                raise ValueError(f"{function}: layer {conv.at!r} has a norm that stands behind no linear layer")
            found[-1] = Dense(found[-1].weight, found[-1].bias, _norm(_Conv("", parts), eps), None)
        elif weight is not None and weight.ndim == 2 and set(parts) <= {"weight", "bias"}:
            found.append(Dense(weight.T, parts.get("bias")))
        else:
            raise ValueError(
                f"{function}: layer {conv.at!r} has a part nn.{'.'.join(map(str, place))} with {', '.join(parts)}, neither a linear "
                "layer nor a batch norm"
            )
    if not found:
        raise ValueError(f"{function}: layer {conv.at!r} has no linear layer in its nn")
    return [
        Dense(dense.weight, dense.bias, dense.batch_norm, inside if i < len(found) - 1 else None)
        for i, dense in enumerate(found)
    ]


def _norm(conv: _Conv, eps: float) -> BatchNorm:
    parts = conv.parts
    if not {"running_mean", "running_var"} <= set(parts):
        raise ValueError(
            f"load_state_dict: batch norm {conv.at!r} has {', '.join(parts)}, but both running statistics are needed; pass "
            f"running_mean and running_var"
        )
    return BatchNorm(parts["running_mean"], parts["running_var"], parts.get("weight"), parts.get("bias"), eps)


def _with_activations(function: str, layers: Sequence[Layer], activations: Sequence[str | None]) -> list[Layer]:
    count = sum(len(layer.updates) for layer in layers)
    if len(activations) != count:
        raise ValueError(
            f"{function}: there are {len(activations)} activations for {count} products; pass one for each"
        )
    rest = iter(activations)
    return [
        Layer(tuple(Dense(d.weight, d.bias, d.batch_norm, next(rest)) for d in layer.updates), layer.own, layer.eps)
        for layer in layers
    ]

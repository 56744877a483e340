"""Training in integers of a few bits (TANGO, Chen et al., SC 2023): products and sums use codes in both the forward and backward pass."""

from __future__ import annotations

import functools
import itertools
import sys
from typing import Any

import torch
from torch import Tensor, nn

from bitsparse import ops
from bitsparse.errors import DTypeError
from bitsparse.torch.accelerate import passes_messages
from bitsparse.torch.attention_layers import AGNNConv, GATConv, GATv2Conv
from bitsparse.torch.binary import OnSigns, SignLinear
from bitsparse.torch.code_source import CodeSource
from bitsparse.torch.kept import KeptInFewBits
from bitsparse.torch.layer_quantizer import LayerQuantizer
from bitsparse.torch.layers import GCNConv, GINConv, SAGEConv
from bitsparse.torch.quantization import Quantization, Tango
from bitsparse.torch.quantizer import FLOATS, linear_forward, quantizer_of, remove_quantizer, set_quantizer
from bitsparse.torch.registration import torch_memory

#: A layer on signs also sums its products over neighbours, if its network does.
_OURS = (GCNConv, SAGEConv, GINConv, GATConv, GATv2Conv, AGNNConv, SignLinear)
#: The numbers of bits from which "auto" chooses.
_CHOICES = (4, 8)
_STATE = "quantization"


def quantize_(net: nn.Module, config: Tango | None = None) -> nn.Module:
    """Make a network train in integers of a few bits: layers of this package, accelerated ones of PyTorch Geometric, and linear ones.

    Products with weights and sums over neighbours are computed in integers, forward and backward, and each result is scaled back at once.
    Scales, softmax, activations, normalisation, weights and their updates stay in float32. Products keep codes for their gradients. A
    tensor is quantised once, and all layers that read it share its codes. Networks on signs (:class:`BinaryGCN` and its like) keep their
    exact products of signs; the sums of these and all gradients are computed in integers.

    Parameters
    ----------
    net : torch.nn.Module
        The network, changed in place; parameters and their names stay. Its ``state_dict`` gets one more entry,
        ``quantization._extra_state``: load a state saved without it before this call, or with ``strict=False``.
    config : Tango, optional
        The settings; ``Tango()`` by default.

    Returns
    -------
    torch.nn.Module
        `net`.

    Raises
    ------
    DTypeError
        `config` is no Tango.
    ValueError
        The network has no module of a name in ``config.exact``, nothing to quantise, or a module of its own named ``quantization``.

    Notes
    -----
    Layers that aggregate maxima or minima, and layers of PyTorch Geometric that :func:`accelerate` does not support, sum in floats; so do
    all layers if their `edge_index` is no :class:`Graph`. The attention layers (GAT, AGNN) gather features and gradients rounded to the
    grid of their codes; scores and softmax are float32. Only first gradients exist. A step can be captured in a CUDA graph after one
    uncaptured step; each replay draws anew. ``torch.utils.checkpoint`` cannot recompute layers that round stochastically, and
    ``torch.compile`` does not compile quantised layers.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> class Net(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv1, self.conv2 = bst.GCNConv(3, 16), bst.GCNConv(16, 2)
    ...
    ...     def forward(self, x, graph):
    ...         return self.conv2(self.conv1(x, graph).relu(), graph)
    >>> net = bst.quantize_(Net(), bst.Tango(bits=8))
    >>> graph = bst.Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    >>> net(torch.eye(3), graph).sum().backward()
    >>> net.quantization
    Quantization(bits=8, stochastic, 2 draws)
    """
    config = Tango() if config is None else config
    if not isinstance(config, Tango):
        raise DTypeError(f"quantize_: config is a {type(config).__name__}; pass bst.Tango(...)")
    if hasattr(net, _STATE) and not isinstance(getattr(net, _STATE), Quantization):
        raise ValueError(
            f"quantize_: the network has a {type(getattr(net, _STATE)).__name__} of its own under the name {_STATE!r}, under which it gets "
            f"what quantises it; give its own another name"
        )
    names = dict(net.named_modules())
    unknown = [name for name in config.exact if name not in names]
    if unknown:
        raise ValueError(
            f"quantize_: the network has no module {unknown[0]!r}; its modules are {', '.join(filter(None, names))}"
        )
    layers = _layers(net)
    if not layers:
        raise ValueError(
            "quantize_: the network has neither graph layers nor linear ones; there is nothing to quantise"
        )
    unquantize_(net)
    state = Quantization(config)
    state.train(net.training)
    net.add_module(_STATE, state)
    net.register_forward_pre_hook(_begin)
    if config.activations is not None:
        net.forward = functools.partial(_forward, net)
    exempt = [names[name] for name in config.exact]
    left = {id(part) for module in exempt for part in module.modules()}
    ends, numbers = _last(net, layers), itertools.count()
    for layer in layers:
        last = layer in ends and config.last != "quantized"
        products, sums = not last, not last or config.last == "sums"
        for part in layer.modules():
            if id(part) not in left and id(layer) not in left:
                _take(part, LayerQuantizer(state, products, sums, next(numbers)), part is layer)
    if state.bits is None:
        first = next((layer for layer in layers if _is_graph_layer(layer)), layers[0])
        first.register_forward_hook(functools.partial(_choose, state))
    return net


def unquantize_(net: nn.Module) -> nn.Module:
    """Undo :func:`quantize_`: the network trains in floats again.

    Parameters
    ----------
    net : torch.nn.Module
        The network, changed in place.

    Returns
    -------
    torch.nn.Module
        `net`.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> bst.unquantize_(bst.quantize_(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))))
    Sequential(
      (0): Linear(in_features=2, out_features=2, bias=True)
      (1): Linear(in_features=2, out_features=2, bias=True)
    )
    """
    for part in net.modules():
        if quantizer_of(part) is not FLOATS:
            remove_quantizer(part)
            if _is_linear(part):
                vars(part).pop("forward", None)
    if isinstance(getattr(net, _STATE, None), Quantization):
        delattr(net, _STATE)
    if getattr(vars(net).get("forward"), "func", None) is _forward:
        del net.forward
    for part in net.modules():
        for hooks in (part._forward_pre_hooks, part._forward_hooks):
            for number in [
                number for number, hook in hooks.items() if getattr(hook, "func", hook) in (_begin, _choose)
            ]:
                del hooks[number]
    return net


def _is_linear(module: nn.Module) -> bool:
    kind = type(module)
    theirs = kind.__name__ == "Linear" and kind.__module__ == "torch_geometric.nn.dense.linear"
    return kind is nn.Linear or theirs


def _is_graph_layer(module: nn.Module) -> bool:
    return isinstance(module, _OURS) or passes_messages(module)


def _layers(net: nn.Module) -> list[nn.Module]:
    """Graph layers, and linear layers outside of them, in the order in which the network names them."""
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in net.modules():
        if id(module) not in inside and (_is_graph_layer(module) or _is_linear(module)):
            found.append(module)
            inside.update(id(part) for part in module.modules())
    return found


def _last(net: nn.Module, layers: list[nn.Module]) -> list[nn.Module]:
    """The last layer, together with those that make the same logits in a network on signs."""
    for module in net.modules():
        if isinstance(module, OnSigns) and layers[-1] in module.last:
            return list(module.last)
    return layers[-1:]


def _take(module: nn.Module, quantizer: LayerQuantizer, is_layer: bool) -> None:
    """Give a quantizer to a layer or to a linear part of one."""
    if _is_linear(module):
        set_quantizer(module, quantizer)
        module.forward = functools.partial(linear_forward, module)
    elif is_layer:
        set_quantizer(module, quantizer)


def _forward(net: Any, *args: Any, **given: Any) -> Any:
    """Call a network's own `forward`; in training, its activations and dropout keep few bits."""
    state = net.quantization
    if not (state.training and torch.is_grad_enabled()):
        return type(net).forward(net, *args, **given)
    forward = type(net).forward
    if "torch._dynamo" in sys.modules:  # if not loaded, nothing is compiled; importing it takes seconds
        forward = torch.compiler.disable(forward)
    with KeptInFewBits(state.config.activations, lambda x: CodeSource(state, False)):
        return forward(net, *args, **given)


def _begin(net: Any, given: Any) -> None:
    """Tell the shared state that a forward pass begins."""
    net.quantization.begin()


def _choose(state: Quantization, layer: nn.Module, given: Any, made: Tensor) -> None:
    """Choose the bits from the first output of the first layer."""
    if state.bits is not None or not state.training or not isinstance(made, Tensor) or not made.numel():
        return
    values = made.detach().float().reshape(made.shape[0], -1)
    try:
        with torch_memory():
            state.bits = ops.choose_bits(values, threshold=state.config.threshold, bits=_CHOICES, granularity="row")
    except ValueError:  # no choice is exact enough
        state.bits = _CHOICES[-1]

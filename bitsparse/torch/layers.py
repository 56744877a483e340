"""Graph layers for PyTorch with the arguments, parameters and results of PyTorch Geometric's layers, summing over a :class:`Graph`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bitsparse.torch.bias import has_hooks, through
from bitsparse.torch.graph import Graph
from bitsparse.torch.kept_graphs import as_graph
from bitsparse.torch.quantizer import is_bypassable, linear_and_own, quantizer_of, sums_and_own

#: What follows a layer: a function of a tensor.
Activation = Callable[[Tensor], Tensor]


def glorot(weight: Tensor) -> None:
    """Fill a matrix with uniform weights (Glorot and Bengio, 2010), in place."""
    limit = math.sqrt(6 / (weight.shape[0] + weight.shape[1]))
    nn.init.uniform_(weight, -limit, limit)


def checked_activation(layer: str, activation: Any) -> Activation | None:
    """The activation itself; a TypeError if it cannot be called."""
    if activation is None or callable(activation):
        return activation
    raise TypeError(
        f"{layer}: activation is {activation!r}, which cannot be called; pass a function, such as torch.relu"
    )


def is_relu(activation: Any) -> bool:
    """Whether an activation is relu, as a function or as a module without hooks."""
    if isinstance(activation, nn.Module):
        return type(activation) is nn.ReLU and not has_hooks(activation) and "forward" not in vars(activation)
    return activation in (torch.relu, nn.functional.relu)


def activated(x: Tensor, activation: Activation | None, done: bool) -> Tensor:
    """Apply an activation, unless it is done already or there is none."""
    return x if done or activation is None else activation(x)


class GCNConv(nn.Module):
    """Graph convolution, ``D^-1/2 (A + I) D^-1/2 x W + b`` (Kipf and Welling, ICLR 2017).

    Parameters
    ----------
    in_channels, out_channels : int
    improved : bool
        Whether added self loops weigh 2 instead of 1 in a graph with weights.
    cached : bool
        Accepted for compatibility; the graph caches its normalisation in any case.
    add_self_loops : bool, optional
        Whether missing self loops are added; by default the value of `normalize`.
    normalize : bool
    bias : bool
    activation : callable, optional
        A function or module that is applied to the result. On a GPU, relu (`torch.relu`, `torch.nn.functional.relu` or
        `torch.nn.ReLU()`) becomes part of the sums or of the product, which saves passes over the nodes.

    Notes
    -----
    The narrower operand is summed: the features or their product with the weights. The weights of a repeated self loop add up, like those
    of other edges; PyTorch Geometric uses the weight of the last repetition only.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1], [1, 0]]))
    >>> bst.GCNConv(3, 2)(torch.ones(2, 3), g).shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        self.activation = checked_activation("GCNConv", activation)
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        if self.add_self_loops and not normalize:
            raise ValueError("GCNConv: add_self_loops=True needs normalize=True; put the loops into the graph")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights from Glorot and Bengio's uniform distribution, and set the bias to zeros."""
        glorot(self.lin.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, graph: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Map features (nodes, in_channels) to (nodes, out_channels) over a :class:`Graph`, or over an edge list and its weights."""
        if edge_weight is not None:
            graph = Graph(graph, x.shape[0], edge_weight=edge_weight)
        graph = as_graph(graph, x.shape[0])
        if self.normalize:
            # In a graph without weights, PyTorch Geometric's loops do not weigh 2 either.
            heavier = self.improved and graph.weight is not None
            graph = graph.normalized(self.add_self_loops, 2.0 if heavier else 1.0)
        quantizer, relu = quantizer_of(self), is_relu(self.activation)
        if not is_bypassable(self.lin) or self.lin.bias is not None:
            made = quantizer.spmm(graph, through(x, self.lin), "sum", self.bias, relu)
        elif self.out_channels > self.in_channels:
            sums = quantizer.spmm(graph, x, "sum")
            made = quantizer_of(self.lin).linear(sums, self.lin.weight, self.bias, relu=relu)
        else:
            made = quantizer.spmm_of_product(graph, x, self.lin, "sum", self.bias, relu)
        return activated(made, self.activation, relu)

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        return f"{self.in_channels}, {self.out_channels}"


class SAGEConv(nn.Module):
    """GraphSAGE (Hamilton et al., NeurIPS 2017): ``reduce(neighbours) W_l + b + x W_r``.

    Parameters
    ----------
    in_channels : int or tuple of int
        Columns of the features of sources and targets.
    out_channels : int
    aggr : {"mean", "sum", "add", "max", "min"}
    normalize : bool
        Whether the rows of the result are scaled to length 1.
    root_weight, project, bias : bool
        Whether the target's own features are added, whether sources pass a layer of their own first, and whether a bias is added.
    activation : callable, optional
        Applied to the result; see :class:`GCNConv`.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1], [1, 0]]))
    >>> bst.SAGEConv(3, 2)(torch.ones(2, 3), g).shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        self.activation = checked_activation("SAGEConv", activation)
        if aggr not in ("mean", "sum", "add", "max", "min"):
            raise ValueError(f"SAGEConv: aggr must be 'mean', 'sum', 'add', 'max' or 'min', got {aggr!r}")
        sources, targets = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        if project:
            self.lin = nn.Linear(sources, sources)
        self.lin_l = nn.Linear(sources, out_channels, bias=bias)
        if root_weight:
            self.lin_r = nn.Linear(targets, out_channels, bias=False)

    def reset_parameters(self) -> None:
        """Draw new weights and biases as :class:`torch.nn.Linear` does."""
        for layer in self.children():
            if layer is not self.activation:
                layer.reset_parameters()

    def forward(self, x: Tensor | tuple[Tensor, Tensor | None], graph: Any) -> Tensor:
        """Compute features of the targets from those of all nodes, or from a pair (sources, targets)."""
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        graph = as_graph(graph, (sources.shape[0], sources.shape[0] if targets is None else targets.shape[0]))
        graph = graph.unweighted()
        if self.project:
            sources = through(sources, self.lin).relu()
        reduce = "sum" if self.aggr == "add" else self.aggr
        quantizer, adds = quantizer_of(self), reduce in ("sum", "mean")  # then the product may come first
        alone = is_bypassable(self.lin_l)  # else hooks must see the layer's own result, and may keep it
        first = adds and alone and self.out_channels < sources.shape[1]
        relu = not self.normalize and is_relu(self.activation)
        if not self.root_weight or targets is None:
            if first:
                out = quantizer.spmm_of_product(graph, sources, self.lin_l, reduce, self.lin_l.bias, relu)
            else:
                out = through(quantizer.spmm(graph, sources, reduce), self.lin_l, relu)
        elif first:
            out = sums_and_own(quantizer, graph, sources, self.lin_l, targets, self.lin_r, reduce, relu)
        else:
            out = linear_and_own(quantizer.spmm(graph, sources, reduce), self.lin_l, targets, self.lin_r, relu)
        if self.normalize:
            out = nn.functional.normalize(out, dim=-1)
        return activated(out, self.activation, relu)

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"


class GINConv(nn.Module):
    """Graph isomorphism network (Xu et al., ICLR 2019): ``nn((1 + eps) x + sum of neighbours)``.

    Parameters
    ----------
    nn : torch.nn.Module
    eps : float
    train_eps : bool
        Whether `eps` is learnt.

    Notes
    -----
    If `nn` is, or is a Sequential that begins with, a :class:`torch.nn.Linear` without hooks that has no more outputs than inputs (in
    integers: fewer), that product is computed before the sums. On a GPU, its bias and a :class:`torch.nn.ReLU` that comes next are part
    of the sums.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1], [1, 0]]))
    >>> bst.GINConv(torch.nn.Linear(3, 2))(torch.ones(2, 3), g).shape
    torch.Size([2, 2])
    """

    def __init__(self, nn: nn.Module, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.nn, self.initial_eps = nn, eps
        value = torch.full((1,), float(eps))
        if train_eps:
            self.eps = torch.nn.Parameter(value)
        else:
            self.register_buffer("eps", value)

    def reset_parameters(self) -> None:
        """Draw new weights in `nn`, and reset `eps`."""
        for layer in self.nn.modules():
            if layer is not self.nn or not list(layer.children()):
                getattr(layer, "reset_parameters", lambda: None)()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def forward(self, x: Tensor | tuple[Tensor, Tensor | None], graph: Any) -> Tensor:
        """Compute features of the targets from those of all nodes, or from a pair (sources, targets)."""
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        graph = as_graph(graph, (sources.shape[0], sources.shape[0] if targets is None else targets.shape[0]))
        quantizer, graph, bias = quantizer_of(self), graph.unweighted(), None
        first, relu, others = _first_product(self.nn, 0 if quantizer.fuses else 1)
        if first is not None:  # the product comes before the sums, its bias after them
            both, multiply, bias = targets is sources, quantizer_of(first).linear, first.bias
            sources = multiply(sources, first.weight)
            targets = sources if both else None if targets is None else multiply(targets, first.weight)
        if targets is None:
            made = quantizer.spmm(graph, sources, "sum", bias, relu)
        else:
            made = quantizer.spmm_and_own(graph, sources, targets, 1 + self.eps, bias, relu)
        for layer in others:
            made = layer(made)
        return made


def _first_product(module: nn.Module, fewer: int) -> tuple[Any, bool, list[Any]]:
    """Split a module that begins with a linear layer without hooks: that layer, whether relu is next, and the rest.

    The layer must have at least `fewer` fewer outputs than inputs. For any other module, return no layer, False, and the module.
    """
    layers = list(module) if type(module) is nn.Sequential else [module]
    first = layers[0] if layers else module
    if type(first) is not nn.Linear or first.out_features + fewer > first.in_features or not is_bypassable(first):
        return None, False, [module]
    if first is not module and (has_hooks(module) or "forward" in vars(module)):
        return None, False, [module]
    relu = len(layers) > 1 and is_relu(layers[1])
    return first, relu, layers[2 if relu else 1 :]

"""Graph layers of PyTorch with the arguments, parameters and numbers of PyTorch Geometric's, summing over a :class:`Graph`."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from bitsparse.torch.attention_kinds import cosine_attention, gatv2_attention, scored_attention
from bitsparse.torch.bias import biased
from bitsparse.torch.graph import Graph, as_graph
from bitsparse.torch.sums import spmm


def _glorot(weight: Tensor) -> None:
    limit = math.sqrt(6 / (weight.shape[0] + weight.shape[1]))
    nn.init.uniform_(weight, -limit, limit)


class GCNConv(nn.Module):
    """Graph convolution, ``D^-1/2 (A + I) D^-1/2 x W + b`` (Kipf and Welling, ICLR 2017).

    Parameters
    ----------
    in_channels, out_channels : int
    improved : bool
        Self loops that are added weigh 2, where edges have weights.
    cached : bool
        Taken for compatibility: the graph keeps its normalisation.
    add_self_loops : bool, optional
        By default as `normalize`.
    normalize : bool
    bias : bool

    Notes
    -----
    Whichever is narrower is summed: the features or their product with the weights.

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
    ) -> None:
        super().__init__()
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        if self.add_self_loops and not normalize:
            raise ValueError("GCNConv: add_self_loops=True needs normalize=True; put the loops into the graph")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New weights, uniform as Glorot and Bengio have them; a bias of zeros."""
        _glorot(self.lin.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, graph: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Features (nodes, out_channels) from (nodes, in_channels); `graph` is a :class:`Graph` or an edge list, which may have weights."""
        if edge_weight is not None:
            graph = Graph(graph, x.shape[0], edge_weight=edge_weight)
        graph = as_graph(graph, x.shape[0])
        if self.normalize:
            # Where edges have no weights, PyTorch Geometric gives loops none either.
            heavier = self.improved and graph.weight is not None
            graph = graph.normalized(self.add_self_loops, 2.0 if heavier else 1.0)
        x = spmm(graph, self.lin(x)) if self.out_channels <= self.in_channels else self.lin(spmm(graph, x))
        return x if self.bias is None else biased(x, self.bias)

    def extra_repr(self) -> str:
        """Sizes, for ``repr``."""
        return f"{self.in_channels}, {self.out_channels}"


class SAGEConv(nn.Module):
    """GraphSAGE (Hamilton et al., NeurIPS 2017): ``reduce(neighbours) W_l + b + x W_r``.

    Parameters
    ----------
    in_channels : int or tuple of int
        Of sources and targets.
    out_channels : int
    aggr : {"mean", "sum", "add", "max", "min"}
    normalize : bool
        Bring the rows of the result to length 1.
    root_weight, project, bias : bool
        Whether the target's own features are added, sources go through a layer of their own first, and a bias is added.

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
    ) -> None:
        super().__init__()
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
        """New weights and biases, uniform as :class:`torch.nn.Linear` has them."""
        for layer in self.children():
            layer.reset_parameters()

    def forward(self, x: Tensor | tuple[Tensor, Tensor | None], graph: Any) -> Tensor:
        """Features of the targets from those of all nodes, or of (sources, targets)."""
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        graph = as_graph(graph, (sources.shape[0], sources.shape[0] if targets is None else targets.shape[0]))
        graph = graph.unweighted()
        if self.project:
            sources = self.lin(sources).relu()
        reduce = "sum" if self.aggr == "add" else self.aggr
        linear = reduce in ("sum", "mean")  # then the product may come first
        if linear and self.out_channels < sources.shape[1]:
            out = spmm(graph, nn.functional.linear(sources, self.lin_l.weight), reduce=reduce)
            if self.lin_l.bias is not None:
                out = biased(out, self.lin_l.bias)
        else:
            out = self.lin_l(spmm(graph, sources, reduce=reduce))
        if self.root_weight and targets is not None:
            out = out + self.lin_r(targets)
        return nn.functional.normalize(out, dim=-1) if self.normalize else out

    def extra_repr(self) -> str:
        """Sizes, for ``repr``."""
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
    Where `nn` is a :class:`torch.nn.Linear`, or a Sequential that begins with one, which has fewer outputs than inputs and no hooks, its
    products are summed.

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
        """New weights in `nn`, and `eps` as at first."""
        for layer in self.nn.modules():
            if layer is not self.nn or not list(layer.children()):
                getattr(layer, "reset_parameters", lambda: None)()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def forward(self, x: Tensor | tuple[Tensor, Tensor | None], graph: Any) -> Tensor:
        """Features of the targets from those of all nodes, or of (sources, targets)."""
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        graph = as_graph(graph, (sources.shape[0], sources.shape[0] if targets is None else targets.shape[0]))
        first, others = _narrowing(self.nn)
        if first is not None:  # the product comes before the sums, its bias behind them
            both = targets is sources
            sources = first(sources)
            targets = sources if both else None if targets is None else first(targets)
        out = spmm(graph.unweighted(), sources)
        if targets is not None:
            out = out + (1 + self.eps) * targets
        made: Tensor = others(out)
        return made


#: Where modules keep who watches them.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _narrowing(module: nn.Module) -> tuple[Any, Any]:
    """A product with fewer columns than its operand that a module begins with, if nobody watches it, and all else; None and the module."""
    layers = list(module) if type(module) is nn.Sequential else [module]
    first = layers[0] if layers else module
    watched = any(getattr(part, hooks) for part in (module, first) for hooks in _HOOKS)
    if type(first) is not nn.Linear or first.out_features >= first.in_features or watched:
        return None, module

    def others(x: Tensor) -> Tensor:
        x = x if first.bias is None else biased(x, first.bias)
        for layer in layers[1:]:
            x = layer(x)
        return x

    return functools.partial(nn.functional.linear, weight=first.weight), others


class _Attending(nn.Module):
    """What layers with heads of attention share: their settings, and what becomes of the heads' sums."""

    def __init__(
        self, out_channels: int, heads: int, concat: bool, negative_slope: float, dropout: float, add_self_loops: bool
    ) -> None:
        super().__init__()
        self.out_channels, self.heads, self.concat = out_channels, heads, concat
        self.negative_slope, self.dropout, self.add_self_loops = negative_slope, dropout, add_self_loops

    def _add_behind(self, targets: int, bias: bool, residual: bool) -> None:
        """The parameters of :meth:`_behind`."""
        size = self.out_channels * (self.heads if self.concat else 1)
        self.res = nn.Linear(targets, size, bias=False) if residual else None
        self.bias = nn.Parameter(torch.empty(size)) if bias else None

    def _graph(self, graph: Any, nodes: int | tuple[int, int]) -> Graph:
        made = as_graph(graph, nodes)
        return made.with_self_loops() if self.add_self_loops else made

    def _settings(self) -> tuple[float, float]:
        """The slope, and the dropout of now."""
        return self.negative_slope, self.dropout if self.training else 0.0

    def _behind(self, y: Tensor, targets: Tensor) -> Tensor:
        """Heads side by side or their mean, with a linear map of the features and a bias if there are any."""
        y = y.flatten(1) if self.concat else y.mean(dim=1)
        if self.res is not None:
            y = y + self.res(targets)
        return y if self.bias is None else biased(y, self.bias)

    def extra_repr(self) -> str:
        """Sizes, for ``repr``."""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


class GATConv(_Attending):
    """Graph attention (Velickovic et al., ICLR 2018).

    Parameters
    ----------
    in_channels, out_channels : int
        `out_channels` is that of a head.
    heads : int
    concat : bool
        Put the heads side by side; their mean otherwise.
    negative_slope : float
        Of the leaky relu.
    dropout : float
        Of the weights, while training.
    add_self_loops, bias, residual : bool
        Whether nodes attend to themselves, a bias is added, and a linear map of the features.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1], [1, 0]]))
    >>> bst.GATConv(3, 2, heads=4)(torch.ones(2, 3), g).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
        residual: bool = False,
    ) -> None:
        super().__init__(out_channels, heads, concat, negative_slope, dropout, add_self_loops)
        self.in_channels = in_channels
        self.lin = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self._add_behind(in_channels, bias, residual)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New weights, uniform as Glorot and Bengio have them; a bias of zeros."""
        for weight in (
            self.lin.weight,
            self.att_src[0],
            self.att_dst[0],
            *([] if self.res is None else [self.res.weight]),
        ):
            _glorot(weight.data)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Features (nodes, heads * out_channels), or (nodes, out_channels) without `concat`, from (nodes, in_channels)."""
        graph = self._graph(graph, x.shape[0])
        h = self.lin(x).view(-1, self.heads, self.out_channels)
        return self._behind(scored_attention(graph, h, self.att_src[0], self.att_dst[0], *self._settings()), x)


class GATv2Conv(_Attending):
    """Graph attention of the second kind (Brody et al., ICLR 2022), whose scores look at both ends together.

    Parameters
    ----------
    in_channels : int or tuple of int
        Of sources and targets.
    out_channels : int
        Of a head.
    heads : int
    concat : bool
        Put the heads side by side; their mean otherwise.
    negative_slope : float
        Of the leaky relu.
    dropout : float
        Of the weights, while training.
    add_self_loops, bias, share_weights, residual : bool
        Whether nodes attend to themselves, biases are added, sources and targets go through the same linear map, and a linear map of the
        features is added.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1], [1, 0]]))
    >>> bst.GATv2Conv(3, 2, heads=4)(torch.ones(2, 3), g).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__(out_channels, heads, concat, negative_slope, dropout, add_self_loops)
        sources, targets = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        self.in_channels, self.share_weights = in_channels, share_weights
        self.lin_l = nn.Linear(sources, heads * out_channels, bias=bias)
        self.lin_r = self.lin_l if share_weights else nn.Linear(targets, heads * out_channels, bias=bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self._add_behind(targets, bias, residual)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New weights, uniform as Glorot and Bengio have them; biases as :class:`torch.nn.Linear` has them, zeros behind the sums."""
        for layer in (self.lin_l, self.lin_r, *([] if self.res is None else [self.res])):
            layer.reset_parameters()
            _glorot(layer.weight.data)
        _glorot(self.att.data[0])
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | tuple[Tensor, Tensor], graph: Any) -> Tensor:
        """Features of the targets, (nodes, heads * out_channels) or the mean head's, from those of all nodes, or of (sources, targets)."""
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        graph = self._graph(graph, (sources.shape[0], targets.shape[0]))
        shape = (-1, self.heads, self.out_channels)
        source = self.lin_l(sources).view(shape)
        target = source if self.share_weights and targets is sources else self.lin_r(targets).view(shape)
        return self._behind(gatv2_attention(graph, source, target, self.att[0], *self._settings()), targets)


class AGNNConv(nn.Module):
    """Attention by cosines (Thekumparampil et al., 2018): a sum of neighbours weighted with a softmax of ``beta * cos(x[i], x[j])``.

    Parameters
    ----------
    requires_grad : bool
        Whether `beta`, which is 1 at first, is learnt.
    add_self_loops : bool
        Whether nodes attend to themselves.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1], [1, 0]]))
    >>> bst.AGNNConv()(torch.eye(2), g).detach()
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """

    beta: Tensor

    def __init__(self, requires_grad: bool = True, add_self_loops: bool = True) -> None:
        super().__init__()
        self.requires_grad, self.add_self_loops = requires_grad, add_self_loops
        if requires_grad:
            self.beta = nn.Parameter(torch.ones(1))
        else:
            self.register_buffer("beta", torch.ones(1))

    def reset_parameters(self) -> None:
        """A `beta` of 1."""
        with torch.no_grad():
            self.beta.fill_(1)

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Features (nodes, channels) from (nodes, channels)."""
        graph = as_graph(graph, x.shape[0])
        return cosine_attention(graph.with_self_loops() if self.add_self_loops else graph, x, self.beta)

"""Graph attention layers for PyTorch, with the arguments, parameters and results of PyTorch Geometric's layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bitsparse.torch.attention_kinds import gatv2_attention
from bitsparse.torch.bias import biased, through
from bitsparse.torch.graph import Graph
from bitsparse.torch.kept_graphs import as_graph
from bitsparse.torch.layers import glorot
from bitsparse.torch.quantizer import quantizer_of


class _Attending(nn.Module):
    """What layers with attention heads share: their settings, and the step from the heads' sums to the output."""

    def __init__(
        self, out_channels: int, heads: int, concat: bool, negative_slope: float, dropout: float, add_self_loops: bool
    ) -> None:
        super().__init__()
        self.out_channels, self.heads, self.concat = out_channels, heads, concat
        self.negative_slope, self.dropout, self.add_self_loops = negative_slope, dropout, add_self_loops

    def _add_behind(self, targets: int, bias: bool, residual: bool) -> None:
        """Create the parameters that :meth:`_behind` uses."""
        size = self.out_channels * (self.heads if self.concat else 1)
        self.res = nn.Linear(targets, size, bias=False) if residual else None
        self.bias = nn.Parameter(torch.empty(size)) if bias else None

    def _graph(self, graph: Any, nodes: int | tuple[int, int]) -> Graph:
        made = as_graph(graph, nodes)
        return made.with_self_loops() if self.add_self_loops else made

    def _settings(self) -> tuple[float, float]:
        """The negative slope, and the dropout in the present mode: 0 unless training."""
        return self.negative_slope, self.dropout if self.training else 0.0

    def _behind(self, y: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
        """Concatenate the heads or take their mean, then add the linear map of the features, if the layer has one, and a bias."""
        y = y.flatten(1) if self.concat else y.mean(dim=1)
        if self.res is not None:
            y = y + through(targets, self.res)
        return y if bias is None else biased(y, bias)

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


class GATConv(_Attending):
    """Graph attention (Velickovic et al., ICLR 2018).

    Parameters
    ----------
    in_channels, out_channels : int
        Columns of the input, and columns of each head's output.
    heads : int
    concat : bool
        Whether the heads are concatenated; otherwise the layer returns their mean.
    negative_slope : float
        The slope of the leaky relu below 0.
    dropout : float
        The share of attention weights that is dropped in training.
    add_self_loops, bias, residual : bool
        Whether nodes attend to themselves, whether a bias is added, and whether a linear map of the features is added.

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
        """Draw new weights from Glorot and Bengio's uniform distribution, and set the bias to zeros."""
        for weight in (
            self.lin.weight,
            self.att_src[0],
            self.att_dst[0],
            *([] if self.res is None else [self.res.weight]),
        ):
            glorot(weight.data)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Map features (nodes, in_channels) to (nodes, heads * out_channels), or to (nodes, out_channels) without `concat`."""
        graph = self._graph(graph, x.shape[0])
        h = through(x, self.lin).view(-1, self.heads, self.out_channels)
        vectors = self.att_src.squeeze(0), self.att_dst.squeeze(0)  # [0] would cost a fill and a copy in backward
        within = self.concat and self.res is None  # whether the bias comes next after the sums
        y = quantizer_of(self).scored_attention(graph, h, vectors, *self._settings(), self.bias if within else None)
        return self._behind(y, x, None if within else self.bias)


class GATv2Conv(_Attending):
    """Graph attention GATv2 (Brody et al., ICLR 2022), whose scores depend on both ends of an edge together.

    Parameters
    ----------
    in_channels : int or tuple of int
        Columns of the features of sources and targets.
    out_channels : int
        Columns of each head's output.
    heads : int
    concat : bool
        Whether the heads are concatenated; otherwise the layer returns their mean.
    negative_slope : float
        The slope of the leaky relu below 0.
    dropout : float
        The share of attention weights that is dropped in training.
    add_self_loops, bias, share_weights, residual : bool
        Whether nodes attend to themselves, whether biases are added, whether sources and targets share one linear map, and whether a
        linear map of the features is added.

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
        """Draw new weights (Glorot and Bengio, uniform); linear maps get the biases of :class:`torch.nn.Linear`, the sums' bias is 0."""
        for layer in (self.lin_l, self.lin_r, *([] if self.res is None else [self.res])):
            layer.reset_parameters()
            glorot(layer.weight.data)
        glorot(self.att.data[0])
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor | tuple[Tensor, Tensor], graph: Any) -> Tensor:
        """Map features of all nodes, or a pair (sources, targets), to (targets, heads * out_channels) or to the heads' mean."""
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        graph = self._graph(graph, (sources.shape[0], targets.shape[0]))
        shape = (-1, self.heads, self.out_channels)
        source = through(sources, self.lin_l).view(shape)
        target = source if self.share_weights and targets is sources else through(targets, self.lin_r).view(shape)
        return self._behind(
            gatv2_attention(graph, source, target, self.att.squeeze(0), *self._settings()), targets, self.bias
        )


class AGNNConv(nn.Module):
    """Attention by cosines (Thekumparampil et al., 2018): a sum over neighbours, weighted by a softmax of ``beta * cos(x[i], x[j])``.

    Parameters
    ----------
    requires_grad : bool
        Whether `beta`, which starts at 1, is learnt.
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
        """Set `beta` to 1."""
        with torch.no_grad():
            self.beta.fill_(1)

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Map features (nodes, channels) to new ones of the same shape."""
        graph = as_graph(graph, x.shape[0])
        graph = graph.with_self_loops() if self.add_self_loops else graph
        return quantizer_of(self).cosine_attention(graph, x, self.beta)

"""Training of networks on signs (Bi-GCN, Wang et al., CVPR 2021; BitGNN, Chen et al., ICS 2023): bits forward, float gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bitsparse import _check, ops
from bitsparse import nn as networks
from bitsparse.errors import ShapeError
from bitsparse.torch.graph import Graph
from bitsparse.torch.kept_graphs import as_graph
from bitsparse.torch.quantizer import quantizer_of
from bitsparse.torch.signs import Norm


class SignLinear(nn.Module):
    """A linear layer on signs: ``alpha sign(x) @ (m sign(W)) + b``.

    Parameters
    ----------
    in_features, out_features : int
    dropout : float
        The share of signs that count as 0 while training; the others are scaled up.

    Notes
    -----
    alpha is the mean magnitude of a row of `x`, m that of an output's weights. Products are of integers, in two bit planes with dropout.
    Gradients are float32: they pass a sign where its input lies in -1..1, and reach weights through their signs and through m (Bi-GCN,
    section 3.3). ``sign(0) = +1``. After :func:`quantize_` gradients are products of 8-bit codes with signs.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> layer = bst.SignLinear(2, 1)
    >>> with torch.no_grad():
    ...     _ = layer.weight.copy_(torch.tensor([[1.0], [-3.0]]))
    >>> layer(torch.tensor([[1.0, -2.0]])).tolist()  # 1.5 * (1 + 1) * 2
    [[6.0]]
    """

    def __init__(self, in_features: int, out_features: int, dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(
                f"SignLinear: dropout must be at least 0 and less than 1, got {dropout}; pass the share of signs to drop"
            )
        self.in_features, self.out_features, self.dropout = in_features, out_features, dropout
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights from Glorot and Bengio's uniform distribution, and set the bias to zeros."""
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        """Map features (nodes, in_features) to (nodes, out_features); a network passes the batch norm in front of the signs as `norm`."""
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise ShapeError(
                f"SignLinear: x has shape {tuple(x.shape)}, but the layer takes (nodes, {self.in_features}); pass as many columns, or make "
                f"the layer with in_features={x.shape[-1] if x.ndim else 1}"
            )
        rate = self.dropout if self.training else 0.0
        return quantizer_of(self).signs(x, self.weight, self.bias, rate, norm)

    def export(self) -> networks.BinaryLinear:
        """Return the layer as it runs in networks on bits."""
        return networks.BinaryLinear.from_weights(self.weight.detach().cpu(), self.bias.detach().cpu())

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        return f"{self.in_features}, {self.out_features}, dropout={self.dropout}"


class OnSigns(nn.Module):
    """What networks on signs share: the normalisation in front of the signs, and its export."""

    mean: Tensor
    var: Tensor
    known: Tensor

    def __init__(self, inputs: int, norm: Literal["batch", "rows"] | None) -> None:
        super().__init__()
        if norm not in ("batch", "rows", None):
            raise ValueError(f"{type(self).__name__}: norm must be 'batch', 'rows' or None, got {norm!r}")
        self.norm = norm
        if norm == "batch":
            self.register_buffer("mean", torch.zeros(inputs))
            self.register_buffer("var", torch.ones(inputs))
            self.register_buffer("known", torch.zeros((), dtype=torch.bool))
        self._is_known = False

    def _load_from_state_dict(self, *args: Any) -> None:
        self._is_known = False
        super()._load_from_state_dict(*args)

    def _normed(self, x: Tensor, first: bool) -> tuple[Tensor] | tuple[Tensor, Norm]:
        """A layer's input, normalised by rows, or the first layer's together with a batch norm: the arguments of a layer."""
        if self.norm == "rows":
            return ((x - x.mean(dim=1, keepdim=True)) / (x.std(dim=1, keepdim=True) + 1e-4),)
        if self.norm is None or not first:
            return (x,)
        if self.training and not self._is_known:
            if not bool(self.known):
                with torch.no_grad():
                    wide = x.detach().double()
                    self.mean.copy_(wide.mean(dim=0))
                    self.var.copy_(wide.var(dim=0, correction=0))
                    self.known.fill_(True)
            self._is_known = True  # the GPU's flag is read once only: a captured step must not wait for the GPU
        return x, Norm(self.mean, self.var)

    @property
    def last(self) -> list[SignLinear]:
        """The layers whose products make the logits: the last one, unless a network adds up several."""
        return [layer for layer in self.modules() if isinstance(layer, SignLinear)][-1:]

    def _input_norm(self) -> Any:
        if self.norm != "batch":
            return self.norm
        return ops.BatchNorm(self.mean.cpu().double().numpy(), self.var.cpu().double().numpy())


def _chain(widths: Sequence[int]) -> list[tuple[int, int]]:
    if len(widths) < 2:
        raise ValueError(f"widths must hold inputs and outputs, got {tuple(widths)}; pass for example (1433, 64, 7)")
    return list(pairwise(widths))


class BinaryGCN(OnSigns):
    """A graph convolutional network on signs for Bi-GCN's recipe; each layer is ``P (alpha sign(x) @ (m sign(W)) + b)``.

    Parameters
    ----------
    widths : sequence of int
        Columns of the input and of each layer's output.
    dropout : float
        The share of signs that is dropped in training, after the sign is taken.
    norm : {"batch", "rows", None}
        The normalisation in front of the signs. "batch": batch norm without parameters in the first layer, with the mean and variance
        of the first features that it trains on. "rows": in every layer, rows get mean 0 and deviation 1.
    aggregation : {"full", "binary"}
        What is summed over neighbours. "full": the products, as above. "binary" (BitGNN, section 3.1): in all layers but the last their
        signs, over the plain ``A + I``, and the next layer reads the signs of the sums, the mean of which gives the gradient.

    Notes
    -----
    P is ``D^-1/2 (A + I) D^-1/2``. No activation follows, since the next sign acts as one. The recipe (Wang et al., CVPR 2021) is Adam
    with a learning rate of 0.001 and a weight decay of 0.0005, dropout 0.4, 1000 epochs, and the state with the least validation loss.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> net, graph = bst.BinaryGCN((3, 8, 2)), bst.Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    >>> net(torch.eye(3), graph).shape, net.export()
    (torch.Size([3, 2]), <BinaryGCN 3 -> 2, FBF+FBF scaled, FBF+FBF scaled>)
    """

    def __init__(
        self,
        widths: Sequence[int],
        dropout: float = 0.4,
        norm: Literal["batch", "rows"] | None = "batch",
        aggregation: Literal["full", "binary"] = "full",
    ) -> None:
        super().__init__(widths[0], norm)
        self.aggregation = _check.choice("BinaryGCN", "aggregation", aggregation, ("full", "binary"))
        self.layers = nn.ModuleList(SignLinear(*pair, dropout) for pair in _chain(widths))

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Compute the logits (nodes, classes)."""
        plain, binary = as_graph(graph, x.shape[0]), self.aggregation == "binary"
        for number, layer in enumerate(self.layers):
            first = number == 0
            x = layer(*(self._normed(x, first) if first or not binary else (x,)))
            if binary and layer is not self.layers[-1]:
                x = quantizer_of(layer).signs_of_sums(plain.with_self_loops(), x)
            else:
                x = quantizer_of(layer).spmm(plain.normalized(), x, "sum")
        return x

    def export(self, variants: Any = None) -> networks.BinaryGCN:
        """Return the network on bits, a :class:`bitsparse.nn.BinaryGCN`, which explains `variants`; by default those of this network."""
        layers = [layer.export() for layer in self.layers]
        if variants is None:
            message = "F" if self.aggregation == "full" else "B"
            given = ["F", *(message for _ in layers[1:])]  # what each layer reads
            variants = [f"{reads}B{message}+{message}B{message}" for reads in given[:-1]] + [f"{given[-1]}BF+FBF"]
        return networks.BinaryGCN(layers, variants, input_norm=self._input_norm())


class BinarySAGE(OnSigns):
    """GraphSAGE on signs: each layer is ``X W1 + mean_j X_j W2``, with products as in :class:`BinaryGCN`.

    Parameters
    ----------
    widths, dropout, norm
        As in :class:`BinaryGCN`.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> net, graph = bst.BinarySAGE((3, 8, 2)), bst.Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    >>> net(torch.eye(3), graph).shape
    torch.Size([3, 2])
    """

    _reduce = "mean"

    def __init__(
        self, widths: Sequence[int], dropout: float = 0.4, norm: Literal["batch", "rows"] | None = "rows"
    ) -> None:
        super().__init__(widths[0], norm)
        pairs = _chain(widths)
        self.own = nn.ModuleList(SignLinear(*pair, dropout) for pair in pairs)
        self.others = nn.ModuleList(SignLinear(*pair, dropout) for pair in pairs)

    def _layers(self, x: Tensor, graph: Graph) -> list[Tensor]:
        """The outputs of all layers."""
        found: list[Tensor] = []
        for own, others in zip(self.own, self.others, strict=True):
            given = self._normed(x, not found)
            x = own(*given) + quantizer_of(others).spmm(graph.unweighted(), others(*given), self._reduce)
            found.append(x)
        return found

    def _pairs(self) -> list[Any]:
        return [(own.export(), others.export()) for own, others in zip(self.own, self.others, strict=True)]

    @property
    def last(self) -> list[SignLinear]:
        """The layers whose products make the logits."""
        return [list(self.own)[-1], list(self.others)[-1]]

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Compute the logits (nodes, classes)."""
        return self._layers(x, as_graph(graph, x.shape[0]))[-1]

    def export(self, variants: Any = "full") -> Any:
        """Return the network on bits, a :class:`bitsparse.nn.BinarySAGE`, which explains `variants`."""
        return networks.BinarySAGE(self._pairs(), variants, input_norm=self._input_norm())


class BinarySAINT(BinarySAGE):
    """GraphSAINT's network on signs: layers ``X W1 + sum_j X_j W2``, whose concatenated outputs go into a head on signs.

    Parameters
    ----------
    widths, dropout, norm
        As in :class:`BinaryGCN`; the last width is that of the head.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> net, graph = bst.BinarySAINT((3, 8, 8, 2)), bst.Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    >>> net(torch.eye(3), graph).shape, net.head
    (torch.Size([3, 2]), SignLinear(16, 2, dropout=0.4))
    """

    _reduce = "sum"

    def __init__(
        self, widths: Sequence[int], dropout: float = 0.4, norm: Literal["batch", "rows"] | None = "rows"
    ) -> None:
        super().__init__(widths[:-1], dropout, norm)
        self.head = SignLinear(sum(widths[1:-1]), widths[-1], dropout)

    @property
    def last(self) -> list[SignLinear]:
        """The layers whose products make the logits."""
        return [self.head]

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Compute the logits (nodes, classes)."""
        return self.head(torch.cat(self._layers(x, as_graph(graph, x.shape[0])), dim=1))

    def export(self, variants: Any = "full") -> networks.BinarySAINT:
        """Return the network on bits, a :class:`bitsparse.nn.BinarySAINT`, which explains `variants`."""
        return networks.BinarySAINT(self._pairs(), self.head.export(), variants, input_norm=self._input_norm())

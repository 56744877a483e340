"""Attention over a graph: by scores of nodes, by cosines, and by scores of both ends together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bitsparse.torch import attention_operators, operators
from bitsparse.torch.dense import check_dense
from bitsparse.torch.graph import Graph, checked


def attention(
    graph: Graph, x: Tensor, source: Tensor, target: Tensor, negative_slope: float = 0.2, dropout: float = 0.0
) -> Tensor:
    """Graph attention (Velickovic et al., ICLR 2018): sums of `x` with weights that are a softmax over each target's edges.

    Parameters
    ----------
    graph : Graph
        A graph without repeated edges. Its weights are ignored.
    x : Tensor (sources, D) or (sources, H, D)
    source, target : Tensor (sources,) or (sources, H), and (targets,) or (targets, H)
        Scores of both ends; that of an edge is ``leaky_relu(source[j] + target[i])``.
    negative_slope : float
    dropout : float
        The share of the weights that is set to 0; the others are scaled up. A seed drawn from PyTorch's generator on the device of `x`
        decides which ones, and no mask over the edges is stored.

    Returns
    -------
    Tensor (targets, D) or (targets, H, D)
        The result of :func:`bitsparse.attention`; once differentiable by `x`, `source` and `target`.

    Raises
    ------
    ValueError
        The graph has repeated edges.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1, 2], [1, 1, 1]]))
    >>> bst.attention(g, torch.tensor([[1.0], [2.0], [6.0]]), torch.zeros(3), torch.zeros(3)).flatten().tolist()
    [0.0, 3.0, 0.0]
    """
    once_each("attention", graph)
    check_dense("attention", x=x, source=source, target=target)
    seed = torch.randint(2**62, (1,), device=x.device) if dropout else None
    return attention_operators.attention(graph.pattern(), x, source, target, negative_slope, dropout, seed)


def scored_attention(
    graph: Graph, x: Tensor, first: Tensor, second: Tensor, negative_slope: float = 0.2, dropout: float = 0.0
) -> Tensor:
    """:func:`attention` whose scores are dot products of the nodes' features with the vectors `first` and `second` (H, D)."""
    once_each("attention", graph)
    seed = torch.randint(2**62, (1,), device=x.device) if dropout else None
    return attention_operators.scored_attention(graph.pattern(), x, first, second, negative_slope, dropout, seed)


def cosine_attention(graph: Graph, x: Tensor, beta: Tensor) -> Tensor:
    """Attention by cosines (AGNN, Thekumparampil et al., 2018): sums of `x` with weights ``softmax_j(beta * cos(x[i], x[j]))``.

    Parameters
    ----------
    graph : Graph
        A square graph without repeated edges. Its weights are ignored.
    x : Tensor (nodes, D)
    beta : Tensor of one element
        A factor on the device of `x`.

    Returns
    -------
    Tensor (nodes, D)
        The result of :func:`bitsparse.cosine_attention`; once differentiable by `x` and `beta`. Nothing per edge is kept for the gradient.

    Raises
    ------
    ValueError
        The graph has repeated edges.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1, 1], [0, 1, 0]]))
    >>> bst.cosine_attention(g, torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor(3.0).log())
    tensor([[1.5000, 0.2500],
            [0.0000, 1.0000]])
    """
    once_each("cosine_attention", graph)
    check_dense("cosine_attention", x=x, beta=beta)
    return attention_operators.cosine_attention(graph.pattern(), x, beta)


def gatv2_attention(
    graph: Graph, source: Tensor, target: Tensor, a: Tensor, negative_slope: float = 0.2, dropout: float = 0.0
) -> Tensor:
    """Graph attention GATv2 (Brody et al., ICLR 2022): sums of `source`, weighted by a softmax of scores from both ends together.

    Parameters
    ----------
    graph : Graph
        A graph without repeated edges. Its weights are ignored.
    source : Tensor (sources, D) or (sources, H, D)
        Projected features of the nodes that are attended to.
    target : Tensor (targets, D) or (targets, H, D)
        Projected features of the nodes that attend; an edge's score is ``a @ leaky_relu(source[j] + target[i])``.
    a : Tensor (D,) or (H, D)
    negative_slope : float
    dropout : float
        The share of the weights that is set to 0; the others are scaled up.

    Returns
    -------
    Tensor (targets, D) or (targets, H, D)
        Sums in the dtype of `source`; once differentiable by `source`, `target` and `a`. Scores and weights are stored per edge and head;
        features of edges never are.

    Raises
    ------
    ValueError
        The graph has repeated edges.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1, 2], [1, 1, 1]]))
    >>> bst.gatv2_attention(g, torch.tensor([[1.0], [2.0], [6.0]]), torch.zeros(3, 1), torch.zeros(1)).flatten().tolist()
    [0.0, 3.0, 0.0]
    """
    once_each("gatv2_attention", graph)
    check_dense("gatv2_attention", source=source, target=target, a=a)
    scores = attention_operators.gatv2_scores(graph.pattern(), source, target, a, negative_slope)
    weights = nn.functional.dropout(attention_operators.edge_softmax(graph.pattern(), scores), dropout)
    return operators.spmm(graph.pattern(values=True), weights, None, None, source).to(source.dtype)


def once_each(function: str, graph: Graph) -> None:
    """Refuse anything that is no graph, samples of a graph, and graphs with repeated edges."""
    if checked(function, graph).with_all_edges("attention weighs edges against each other").multiplicity is not None:
        raise ValueError(
            f"{function}: the graph has repeated edges, which a softmax counts one by one; make it of edge_index.unique(dim=1)"
        )

"""Link prediction with networks trained in few bits: do two nodes have an edge that training did not see? Each run has a float32 pair."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse, stats
from torch import Tensor
from torch.nn import functional

from bitsparse.torch.accuracy import Network, Result, Task, quantize_as
from bitsparse.torch.graph import Graph

#: Shares of the edges for validation and test; columns of the nodes' embeddings.
_VALIDATE, _TEST, _EMBEDDED = 0.05, 0.10, 16
_LOOK = 5


class Links(NamedTuple):
    """A graph without the held-out edges, the ends of its own edges, and held-out (edges, as many pairs without an edge)."""

    graph: Graph
    train: Tensor
    validate: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def links_of(graph: Graph, seed: int) -> Links:
    """Split the edges of a graph; loops are dropped, and both directions of an edge stay together."""
    random, nodes, device = np.random.default_rng(seed), graph.num_targets, graph.indptr.device
    rows, columns = graph.rows().cpu().numpy(), graph.indices.cpu().numpy().astype(np.int64)
    keys = np.unique(np.minimum(rows, columns) * nodes + np.maximum(rows, columns))
    keys = keys[keys // nodes != keys % nodes]
    drawn = random.permutation(keys)
    bounds = int(_VALIDATE * keys.size), int((_VALIDATE + _TEST) * keys.size)
    parts = [np.stack([part // nodes, part % nodes]) for part in np.split(drawn, bounds)]
    made: list[tuple[Tensor, Tensor]] = []
    for part in parts[:2]:
        apart = _apart(keys, nodes, part.shape[1], random)
        made.append((torch.from_numpy(part).to(device), torch.from_numpy(apart).to(device)))
    both = np.concatenate([parts[2], parts[2][::-1]], axis=1)
    ones = np.ones(both.shape[1], np.float32)
    left = Graph(sparse.csr_array((ones, (both[1], both[0])), shape=(nodes, nodes))).to(device)
    return Links(left, torch.from_numpy(parts[2]).to(device), made[0], made[1])


def _apart(keys: np.ndarray, nodes: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw pairs of nodes that no edge connects."""
    found = np.empty(0, np.int64)
    if keys.size >= nodes * (nodes - 1) // 2:
        raise ValueError("link prediction: every pair of nodes has an edge, so that there is nothing to tell apart")
    while found.size < count:
        one, other = random.integers(nodes, size=(2, 2 * count + 16))
        made = np.minimum(one, other) * nodes + np.maximum(one, other)
        found = np.concatenate([found, made[(one != other) & ~np.isin(made, keys)]])
    return np.stack([found[:count] // nodes, found[:count] % nodes])


def area_under_curve(positive: np.ndarray, negative: np.ndarray) -> float:
    """The area under the ROC curve: how often a positive score is above a negative one, where ties count half.

    Examples
    --------
    >>> import numpy as np
    >>> from bitsparse.torch.link_accuracy import area_under_curve
    >>> area_under_curve(np.array([2.0, 1.0]), np.array([1.0, 0.0]))
    0.875
    """
    ranks = stats.rankdata(np.concatenate([positive, negative]))
    above = ranks[: positive.size].sum() - positive.size * (positive.size + 1) / 2
    return float(above / (positive.size * negative.size))


def trained_links(
    task: Task, kind: str, precision: str, seed: int, epochs: int = 200, dropout: tuple[float, float] = (0.5, 0.5)
) -> Result:
    """Train embeddings whose dot products tell edges from other pairs; return 100 times the area under the ROC curve.

    85 % of the edges train, with as many other pairs drawn anew in every epoch; 5 % choose the epoch, and 10 % give the result. `seed`
    also decides the split.

    Parameters
    ----------
    task, kind, precision, seed, epochs, dropout
        As in :func:`bitsparse.torch.accuracy.trained`.
    """
    links, device = links_of(task.graph.unweighted(), seed), task.x.device
    torch.manual_seed(seed)
    net = Network(kind, task.x.shape[1], _EMBEDDED, dropout).to(device)
    quantize_as(net, precision, seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.005 if kind == "gat" else 0.01)
    torch.manual_seed(seed)
    best, found, last = -1.0, 0.0, 0.0
    for epoch in range(1, epochs + 1):
        net.train()
        optimiser.zero_grad()
        h = net(task.x, links.graph)
        pairs = torch.cat([links.train, torch.randint(h.shape[0], links.train.shape, device=device)], dim=1)
        wanted = torch.zeros(pairs.shape[1], device=device)
        wanted[: links.train.shape[1]] = 1
        functional.binary_cross_entropy_with_logits((h[pairs[0]] * h[pairs[1]]).sum(dim=1), wanted).backward()
        optimiser.step()
        if epoch % _LOOK == 0 or epoch == epochs:
            net.eval()
            with torch.no_grad():
                h = net(task.x, links.graph)
            looked, last = (100 * _area(h, *part) for part in (links.validate, links.test))
            if looked >= best:
                best, found = looked, last
    return Result(found, last, best)


def _area(h: Tensor, edges: Tensor, apart: Tensor) -> float:
    return area_under_curve(*((h[pairs[0]] * h[pairs[1]]).sum(dim=1).cpu().numpy() for pairs in (edges, apart)))

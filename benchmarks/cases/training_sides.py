"""Problems of training, and the networks of both sides from equal weights, which are compared: ours and PyTorch's alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import bitsparse.torch as bst
from benchmarks.peers import torch_gnn
from bitsparse import TCTiledCSR
from bitsparse.torch.kept import kept_bytes

__all__ = ["DTYPES", "Problem", "Side", "compare", "ours_of", "peer_of", "problem"]

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.float32,
    "int4": torch.float32,
}
#: Bits of gathered features in quantised epochs.
BITS = {"int8": 8, "int4": 4}
#: Columns of features, and classes, by the first word of the graph's name.
SIZES = {"cora": (1433, 7), "pubmed": (500, 3), "artist": (100, 12), "reddit": (602, 41), "products": (100, 47)}
#: Columns between the layers; below, the heads of GAT's layers before the last.
HIDDEN = {"gcn": [128], "sage": [128], "gin": [64, 64], "gat": [32], "agnn": [32] * 5, "bigcn": [128], "binary": [128]}
#: What networks on signs sum over neighbours.
ON_SIGNS: dict[str, Literal["full", "binary"]] = {"bigcn": "full", "binary": "binary"}
HEADS = 4
#: The share of signs that networks on signs drop.
DROPOUT = 0.4
RATE, STEPS = 0.01, 5
#: The largest differences: of gradients, relative to their size, and of losses, relative to the loss.
TOLERANCE = {"fp32": (1e-2, 2e-2), "tf32": (5e-2, 2e-2), "bf16": (0.3, 0.3), "int8": (0.5, 0.3), "int4": (1.0, 0.5)}
#: The label of nodes that do not count in the loss.
IGNORED = -100


class Problem(NamedTuple):
    """A graph without loops as CSR arrays, with features, and labels for half of the nodes."""

    indptr: Tensor
    indices: Tensor
    x: Tensor
    labels: Tensor
    classes: int

    @property
    def nodes(self) -> int:
        """The number of nodes of the graph."""
        return len(self.indptr) - 1


def problem(
    arrays: tuple[Tensor, Tensor], size: tuple[int, int], x: Any = None, labels: Any = None, seed: int = 0
) -> Problem:
    """A problem on a graph; missing features and labels are random, with the columns and classes in `size`."""
    indptr, indices = arrays
    device, nodes = indptr.device, len(indptr) - 1
    rows = torch.repeat_interleave(torch.arange(nodes, device=device), torch.diff(indptr.long()))
    kept = indices != rows
    if not bool(kept.all()):
        counts = torch.bincount(rows[kept], minlength=nodes)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(indptr.dtype)
        indices = indices[kept]
    random = torch.Generator(device=device).manual_seed(seed)
    if x is None:
        x = torch.randn((nodes, size[0]), generator=random, device=device)
    if labels is None:
        labels = torch.randint(size[1], (nodes,), generator=random, device=device)
    x, labels = torch.as_tensor(x, dtype=torch.float32, device=device), torch.as_tensor(labels, device=device).long()
    left_out = torch.randperm(nodes, generator=random, device=device)[nodes // 2 :]
    return Problem(
        indptr, indices, x, labels.masked_fill(labels < 0, IGNORED).index_fill(0, left_out, IGNORED), size[1]
    )


# ---- networks
#: Networks whose layers have relu as a part, on our side.
WITH_RELU = ("gcn", "sage", "gin")


class Network(nn.Module):
    """Layers with an activation between them, unless it is a part of them."""

    def __init__(self, kind: str, layers: Sequence[nn.Module], has_relu: bool = False) -> None:
        super().__init__()
        self.layers, self.activation = nn.ModuleList(layers), nn.functional.elu if kind == "gat" else torch.relu
        #: The number of layers that an activation has to follow; in AGNN only the first linear map is.
        self.activated = 0 if has_relu else 1 if kind == "agnn" else len(self.layers) - 1

    def forward(self, x: Tensor, operand: Any) -> Tensor:
        """Compute the logits."""
        for i, layer in enumerate(self.layers):
            x = layer(x, operand)
            if i < self.activated:
                x = self.activation(x)
        return x


def widths_of(
    kind: str, made: Problem, precision: str, hidden: Sequence[int] | None = None
) -> tuple[list[int], list[int]]:
    """Columns per head before, between (by default this suite's) and after the layers, and heads of each layer.

    In 16 bits, the number of classes is rounded up to a multiple of 16.
    """
    classes = -(-made.classes // 16) * 16 if precision == "bf16" else made.classes
    between = HIDDEN[kind] if hidden is None else hidden
    return [made.x.shape[1], *between, classes], [HEADS if kind == "gat" else 1] * len(between) + [1]


def our_layers(kind: str, widths: list[int], heads: list[int]) -> list[nn.Module]:
    """The layers of :mod:`bitsparse.torch`, with relu as a part of all but the last one of networks `WITH_RELU`."""
    if kind == "agnn":
        return [torch_gnn.Dense(*widths[:2]), *(bst.AGNNConv() for _ in widths[2:-1]), torch_gnn.Dense(*widths[-2:])]
    made: list[nn.Module] = []
    for i, outputs in enumerate(widths[1:]):
        inputs, last = widths[i] * (heads[i - 1] if i else 1), i == len(widths) - 2
        if kind == "gat":
            made.append(bst.GATConv(inputs, outputs, heads[i]))
        elif kind == "gin":
            made.append(bst.GINConv(nn.Sequential(nn.Linear(inputs, outputs), *([] if last else [nn.ReLU()]))))
        else:
            layer = bst.GCNConv if kind == "gcn" else bst.SAGEConv
            made.append(layer(inputs, outputs, activation=None if last else torch.relu))
    return made


def our_network(kind: str, widths: list[int], heads: list[int]) -> nn.Module:
    """The network of :mod:`bitsparse.torch`."""
    if kind in ON_SIGNS:
        return bst.BinaryGCN(widths, DROPOUT, aggregation=ON_SIGNS[kind])
    return Network(kind, our_layers(kind, widths, heads), kind in WITH_RELU)


class Side:
    """One side of a comparison: a network, the operand of its sums, and its optimiser."""

    def __init__(self, network: nn.Module, operand: Any, made: Problem, x: Tensor, rate: float) -> None:
        self.network, self.operand, self.x, self.labels = network, operand, x, made.labels
        self.counted = int((made.labels != IGNORED).sum())
        self.optimizer = torch.optim.Adam(network.parameters(), lr=rate, fused=True, capturable=x.is_cuda)

    def backward(self) -> Tensor:
        """Compute new gradients; return the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.network(self.x, self.operand).float())
        loss.backward()
        return loss.detach()

    def loss(self, logits: Tensor) -> Tensor:
        """The mean cross entropy, without the single block of threads in which PyTorch's own mean is summed on a GPU.

        That is quicker from cora's 2708 nodes on, by 11 us there and by 43 us for artist's 50 515.
        """
        return nn.functional.cross_entropy(logits, self.labels, reduction="none").sum() / self.counted

    def step(self) -> Tensor:
        """Run an epoch; return the loss before it."""
        loss = self.backward()
        self.optimizer.step()
        return loss


def size_of(kind: str, made: Problem) -> float:
    """The factor of GIN's initial weights and learning rate: without it, sums over thousands of edges grow from layer to layer."""
    return 1 / (1 + made.indices.numel() / made.nodes) if kind == "gin" else 1.0


def ours_of(
    kind: str,
    made: Problem,
    x: Tensor,
    precision: str,
    last: Any = "float32",
    hidden: Sequence[int] | None = None,
    activations: int | None = None,
    fixed: bool = True,
    sums: str | None = None,
) -> Side:
    """Our side, with seeded weights; quantised for "int8" and "int4", where `last` and `activations` are those of ``bst.Tango``.

    With `fixed`, codes of the features, which are the same in every epoch, are constants of a captured epoch. `sums` is that of the graph.
    """
    torch.manual_seed(0)
    network = our_network(kind, *widths_of(kind, made, precision, hidden))
    size = size_of(kind, made)
    for parameter in network.parameters():
        parameter.data *= size
    adjacency = TCTiledCSR.from_arrays(made.indptr, made.indices, (made.nodes, made.nodes))
    if precision in BITS:
        bst.quantize_(network, bst.Tango(bits=BITS[precision], last=last, activations=activations))
        if fixed:
            network.quantization.fix(x)
    return Side(network.to(x.device, x.dtype), bst.Graph(adjacency, sums=sums), made, x, RATE * size)


def named(side: Side) -> dict[str, nn.Parameter]:
    """Parameters by names that are the same on all sides."""
    return {
        name.replace(".nn.0.weight", ".lin.weight").replace(".nn.0.bias", ".bias"): part
        for name, part in side.network.named_parameters()
    }


def peer_of(
    kind: str,
    made: Problem,
    x: Tensor,
    precision: str,
    weights: dict[str, Tensor],
    hidden: Sequence[int] | None = None,
) -> Side:
    """The peer's side, with the weights of ours."""
    network = Network(kind, torch_gnn.layers(kind, *widths_of(kind, made, precision, hidden))).to(x.device, x.dtype)
    network.load_state_dict(weights)
    operand = torch_gnn.operand(kind, made.indptr, made.indices, x.dtype)
    return Side(network, operand, made, x, RATE * size_of(kind, made))


# ---- numbers
@contextlib.contextmanager
def without_dropout(*sides: Side) -> Iterator[None]:
    """Within this context no signs are dropped, so that sides which draw differently can be compared."""
    layers = [part for side in sides for part in side.network.modules() if isinstance(part, bst.SignLinear)]
    rates = [layer.dropout for layer in layers]
    for layer in layers:
        layer.dropout = 0.0
    try:
        yield
    finally:
        for layer, rate in zip(layers, rates, strict=True):
            layer.dropout = rate


def difference(ours: Side, other: Side) -> tuple[float, float]:
    """How far the gradients of two sides are apart, relative to the size of the other's: all together, and the farthest of one weight."""
    found = named(other)
    pairs = [(part.grad.float(), found[name].grad.float()) for name, part in named(ours).items()]
    differences = [float((one - two).norm()) for one, two in pairs]
    sizes = [float(two.norm()) for _, two in pairs]
    # Gradients by single numbers (AGNN's factors) are sums over all edges that nearly cancel, so they do not count as a weight.
    several = (pair[0].numel() > 1 for pair in pairs)
    each = (one / max(two, 1e-30) for one, two, counts in zip(differences, sizes, several, strict=True) if counts)
    return float(np.linalg.norm(differences) / max(float(np.linalg.norm(sizes)), 1e-30)), max(each)


def compare(case: str, precision: str, ours: Side, peer: Side, exact: Side | None = None) -> dict[str, Any]:
    """Compare gradients at equal weights, and the losses of some epochs; an AssertionError if they differ too much.

    Our gradients are compared with those of `exact` if it is given, as the peer's may be the less exact ones in 16 bits.
    """
    for side in (ours, peer, *(() if exact is None else (exact,))):
        side.backward()
    gradient, worst = difference(ours, exact or peer)
    facts: dict[str, Any] = {"gradient_difference": gradient, "worst_gradient_difference": worst}
    if exact is not None:
        facts["peer_gradient_difference"] = difference(peer, exact)[0]
    losses = [(float(ours.step()), float(peer.step())) for _ in range(STEPS)]
    loss = max(abs(one - two) / max(abs(two), 1e-30) for one, two in losses)
    allowed = TOLERANCE[precision]
    if not (gradient <= allowed[0] and loss <= allowed[1]):
        raise AssertionError(f"{case}: gradients differ by {gradient:.1e} and losses by {loss:.1e}: {losses}")
    return facts | {"loss_difference": loss, "losses": [one for one, _ in losses]}


def kept_by(side: Side) -> int:
    """Bytes that a forward pass keeps for the gradients."""
    return kept_bytes(side.network(side.x, side.operand), side.x)

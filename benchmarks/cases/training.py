"""Epochs of training with :mod:`bitsparse.torch` and with PyTorch alone, from equal weights: the cases of suite ``training``."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import bitsparse.torch as bst
from benchmarks.cases.graphs import file_of
from benchmarks.cases.sparse_gpu import matrix_of
from benchmarks.ceilings import Bounds, gather_bounds
from benchmarks.gpu_timing import replay, torch_graph
from benchmarks.peers import torch_gnn
from bitsparse import TCTiledCSR, jit
from bitsparse.bench import Prepared, Protocol
from bitsparse.datasets import read_npz
from bitsparse.torch.kept import kept_bytes

__all__ = ["DTYPES", "Problem", "Side", "compare", "epoch", "ours_of", "peer_of", "problem"]

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
#: Epochs in a row that a sample has at least, as training does not wait for the end of each.
IN_A_ROW = 4
#: Milliseconds that a sample has at least, and all samples of a case at most.
FILL_MS, ALL_MS = 2.0, 1500.0


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


# ---- on a GPU
_held: dict[str, Problem] = {}


def problem_of(name: str) -> Problem:
    """The problem on a graph of suite ``spmm``; it is kept until another one is asked for."""
    if name not in _held:
        _held.clear()
        matrix, path = matrix_of(name), file_of(name)
        arrays = torch.from_dlpack(matrix.indptr), torch.from_dlpack(matrix.indices)
        data = None if path is None else read_npz(path)
        size = SIZES[name.partition("-")[0]]
        if data is None or data.x is None or data.labels is None:
            _held[name] = problem(arrays, size)
        else:
            x = data.x.toarray() if hasattr(data.x, "toarray") else data.x
            labels = np.where(data.labels < 0, -1, data.targets)
            _held[name] = problem(arrays, (x.shape[1], data.num_classes), x, labels)
    return _held[name]


def free() -> None:
    """Free all unused memory."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    jit.require_cupy("suite training").get_default_memory_pool().free_all_blocks()


def warm(dtype: torch.dtype) -> None:
    """Make cuBLAS allocate its permanent workspaces, which must not count for either side."""
    weight, bias = (torch.ones(size, device="cuda", dtype=dtype, requires_grad=True) for size in ((16, 16), (16,)))
    (torch.addmm(bias, weight, weight) @ weight).sum().backward()


def weighed(make: Callable[[], Side]) -> tuple[Side, int]:
    """Make a side and measure its peak in an epoch: matrices, weights, moments, activations, in PyTorch's and CuPy's memory."""
    pool = jit.require_cupy("suite training").get_default_memory_pool()
    free()
    before = torch.cuda.memory_allocated() + pool.total_bytes()
    side = make()
    side.step()
    free()
    torch.cuda.reset_peak_memory_stats()
    side.step()
    torch.cuda.synchronize()
    return side, int(torch.cuda.max_memory_allocated() + pool.total_bytes() - before)


def kept_by(side: Side) -> int:
    """Bytes that a forward pass keeps for the gradients."""
    return kept_bytes(side.network(side.x, side.operand), side.x)


def epoch(
    case: str,
    kind: str,
    name: str,
    precision: str,
    *,
    captured: bool,
    own: bool = False,
    last: Any = "float32",
    activations: int | None = None,
    sums: str | None = None,
) -> Prepared:
    """Epochs of both sides; with `own`, the peer is our own epoch in float32. `sums` is that of our graph."""
    jit.require_cupy("suite training")
    made = problem_of(name)
    x = made.x.to(DTYPES[precision])
    warm(x.dtype)
    ours, our_peak = weighed(partial(ours_of, kind, made, x, precision, last, activations=activations, sums=sums))
    if own:
        peer, peer_peak = weighed(partial(ours_of, kind, made, x, "fp32"))
    else:
        peer, peer_peak = weighed(lambda: peer_of(kind, made, x, precision, dict(named(ours))))
    # Make both sides equal again, with fresh moments, after the epochs in which memory was measured.
    with torch.no_grad():
        for name_, part in named(ours).items():
            named(peer)[name_].copy_(part)
    for side in (ours, peer):
        side.optimizer.state.clear()
    matrix = matrix_of(name)
    params: dict[str, Any] = matrix.facts() | {
        "network": kind,
        "precision": precision,
        "last": last if precision in BITS else "as others",
        "fixed_features": precision in BITS,
        "sums": sums,
        "entries": made.indices.numel(),
        "features": x.shape[1],
        "classes": made.classes,
        "peak_bytes": our_peak,
        "peer_bytes": peer_peak,
    }
    if own:
        params |= {"activations": activations, "kept_bytes": kept_by(ours), "peer_kept_bytes": kept_by(peer)}
    exact = peer_of(kind, made, made.x, precision, dict(named(ours))) if precision == "bf16" else None
    with without_dropout(ours, peer):
        params |= compare(case, precision, ours, peer, exact)
    del exact
    widths, heads = widths_of(kind, made, precision)
    item = BITS[precision] / 8 if precision in BITS else x.element_size()
    limits, moved = bounds_of(kind, made, widths, heads, item, matrix.reuse)
    rest = ours_of(kind, without_edges(made), x, precision, last, activations=activations, sums=sums)
    launches: list[Callable[[], object]] = [ours.step, peer.step, rest.step]
    if captured:
        names = ("ours", "peer", "without edges")
        launches = [recorded(f"{case}, {who}", step) for who, step in zip(names, launches, strict=True)]
    params |= {"replayed": launches[0] != ours.step, "peer_replayed": launches[1] != peer.step}

    version = "bitsparse in float32" if own else torch_gnn.version()

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, peer_ms, params["without_edges_ms"] = in_turns(launches, protocol.repetitions)
        return ms, peer_ms

    return Prepared(lambda: None, None, version, params, moved, *limits, measure=measure)


def without_edges(made: Problem) -> Problem:
    """The same problem on a graph without edges."""
    return made._replace(indptr=torch.zeros_like(made.indptr), indices=made.indices[:0])


def in_turns(launches: list[Callable[[], object]], repetitions: int, all_ms: float = ALL_MS) -> list[float]:
    """Milliseconds per call of each side, by events, in turns; with fewer samples if `all_ms` would not suffice."""
    once = replay(launches, 1)
    calls = [max(IN_A_ROW, int(FILL_MS / max(ms, 1e-3))) for ms in once]
    sample_ms = sum(ms * count for ms, count in zip(once, calls, strict=True))
    times = max(3, min(repetitions, int(all_ms / sample_ms)))
    found = replay([partial(repeated, *pair) for pair in zip(launches, calls, strict=True)], times)
    return [total / count for total, count in zip(found, calls, strict=True)]


def recorded(name: str, step: Callable[[], object]) -> Callable[[], object]:
    """A step as a CUDA graph, or the step itself if it cannot be captured."""
    try:
        return torch_graph([step])
    except RuntimeError as error:
        first = error.__context__ or error  # what invalidated the capture, rather than that it is invalid
        print(f"{name}: not captured, {first}".splitlines()[0], file=sys.stderr)
        torch.cuda.synchronize()
        return step


def repeated(call: Callable[[], object], times: int) -> None:
    """Make `times` calls in a row."""
    for _ in range(times):
        call()


def bounds_of(
    kind: str, made: Problem, widths: list[int], heads: list[int], item: float, reuse: float
) -> tuple[Bounds, int]:
    """Bounds of an epoch's sums in both passes, and the bytes that they must touch; dense products are not included."""
    floor = estimate = 0.0
    total, entries = 0, made.indices.numel()
    if kind == "agnn":  # the gradient of each sum fetches features and gradients
        moved = int(4 * (entries + made.nodes) + 2 * made.nodes * widths[1] * item)
        limits, sums = gather_bounds(entries, int(widths[1] * item), made.nodes, moved, reuse)[0], len(widths) - 3
        return Bounds(3 * sums * limits.floor_ms, 3 * sums * limits.estimate_ms), 3 * sums * moved

    def gathered(width: float, item: float) -> tuple[int, Bounds]:
        moved = int(4 * (entries + made.nodes) + 2 * made.nodes * width * item)
        return moved, gather_bounds(entries, max(1, int(width * item)), made.nodes, moved, reuse)[0]

    for i, outputs in enumerate(widths[1:]):
        inputs = widths[i] * (heads[i - 1] if i else 1)
        first = kind in ("gat", *ON_SIGNS) or outputs <= inputs  # the product comes before the sum
        width = outputs * heads[i] if first else inputs
        # Features of the first layer have no gradient; attention's gradients fetch two rows for every edge.
        back = 1 if i or first else 0
        moved_back, limits_back = gathered(width, item)
        on_bits = kind == "binary" and i < len(widths) - 2
        moved, limits = gathered(width, 1 / 8) if on_bits else (moved_back, limits_back)
        floor += limits.floor_ms + back * limits_back.floor_ms
        estimate += limits.estimate_ms + back * (2 if kind == "gat" else 1) * limits_back.estimate_ms
        total += moved + back * moved_back
    return Bounds(floor, estimate), total

"""Accuracies of networks trained in few bits, each paired with a float32 run that has the same initial weights and the same dropout."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bitsparse.datasets import GraphData
from bitsparse.nn import Features, load_state_dict, quantize_network
from bitsparse.torch.attention_layers import GATConv
from bitsparse.torch.binary import BinaryGCN
from bitsparse.torch.graph import Graph
from bitsparse.torch.layers import GCNConv, SAGEConv
from bitsparse.torch.low_bits import LowBitModule
from bitsparse.torch.quantization import Tango
from bitsparse.torch.tango import quantize_

NETWORKS = ("gcn", "sage", "gat")
#: Precisions by name: None is float32.
PRECISIONS: dict[str, Tango | None] = {
    "float32": None,
    "int8": Tango(8),
    "int4": Tango(4),
    "int8-sums": Tango(8, last="sums"),
    "int4-sums": Tango(4, last="sums"),
    "int8-nearest": Tango(8, rounding="nearest"),
    "int8-all": Tango(8, last="quantized"),
}
#: Bits of networks trained with their rounding (quantisation-aware), by name.
AWARE = {f"{bits}-bit": bits for bits in (8, 4, 3, 2, 1)}
#: Their training: steps, and Adam's initial learning rate, which falls to 0 along half a cosine.
_AWARE_EPOCHS, _AWARE_RATE = 100, 0.05
#: Labelled nodes per class for training and for validation in a graph without a split.
_TRAIN, _VALIDATE = 20, 30
_LOOK = 5
#: Steps run on a GPU before one is recorded: they choose kernels, fill caches, and give the optimiser its state.
_WARM = 3


class Task(NamedTuple):
    """A graph, its features and labels on the device that trains, and masks of the nodes to train, validate and test on."""

    graph: Graph
    x: Tensor
    labels: Tensor
    train: Tensor
    validate: Tensor
    test: Tensor

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.labels.max()) + 1


class Result(NamedTuple):
    """Accuracies in per cent: `best` and `last` are those of the test nodes, `validated` is that of the validation nodes.

    `best` and `validated` belong to the epoch with the most validation nodes right, `last` to the last epoch. `curve` holds the test
    accuracy of every fifth epoch.
    """

    best: float
    last: float
    validated: float
    curve: tuple[float, ...] = ()


def task_of(data: GraphData, device: str = "cpu", *, normalised: bool = True) -> Task:
    """Put a data set on a device; if it has no split, 20 nodes per class train and 30 validate, drawn with seed 0.

    Parameters
    ----------
    data : GraphData
    device : str
    normalised : bool
        Divide the rows of the features by their sums.
    """
    x = np.asarray(data.x.toarray() if hasattr(data.x, "toarray") else data.x, np.float32)
    if normalised:
        x = x / np.maximum(np.abs(x).sum(axis=1, keepdims=True), np.float32(1e-12))
    labels = np.asarray(data.targets).astype(np.int64)
    masks = (data.train_mask, data.val_mask, data.test_mask)
    if masks[0] is None:
        masks = _split(labels)
    parts = [torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (x, labels, *masks)]
    return Task(Graph(data.adjacency).to(device), *parts)


def _split(labels: Any) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    train, validate = np.zeros(len(labels), bool), np.zeros(len(labels), bool)
    for each in np.unique(labels[labels >= 0]):
        nodes = random.permutation(np.flatnonzero(labels == each))
        train[nodes[:_TRAIN]], validate[nodes[_TRAIN : _TRAIN + _VALIDATE]] = True, True
    return train, validate, (labels >= 0) & ~train & ~validate


class Network(nn.Module):
    """Two layers with dropout in front of each and 16 hidden columns, or 8 heads of 8 columns for attention."""

    def __init__(self, kind: str, inputs: int, classes: int, dropout: tuple[float, float]) -> None:
        super().__init__()
        self.dropout = dropout
        self.activation = functional.elu if kind == "gat" else functional.relu
        makers: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
            "gcn": lambda: (GCNConv(inputs, 16), GCNConv(16, classes)),
            "sage": lambda: (SAGEConv(inputs, 16), SAGEConv(16, classes)),
            "gat": lambda: (GATConv(inputs, 8, 8), GATConv(64, classes, 1)),
        }
        self.first, self.second = makers[kind]()

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        """Compute the logits."""
        x = functional.dropout(x, self.dropout[0], self.training)
        x = self.activation(self.first(x, graph))
        return self.second(functional.dropout(x, self.dropout[1], self.training), graph)


def trained(
    task: Task, kind: str, precision: str, seed: int, epochs: int = 200, dropout: tuple[float, float] = (0.5, 0.5)
) -> Result:
    """Train a network and measure its accuracy: Adam, weight decay 0.0005 on the first layer, learning rate 0.01 (GAT 0.005).

    Parameters
    ----------
    task : Task
    kind : {"gcn", "sage", "gat"}
    precision : str
        One of `PRECISIONS`.
    seed : int
        Seeds the weights and the dropout, which are the same for every precision, and the random rounding.
    epochs : int
    dropout : tuple of float
        Dropout of the features, and between the layers.
    """
    return _trained(task, kind, precision, seed, epochs, dropout)[1]


def quantize_as(net: nn.Module, precision: str, seed: int) -> None:
    """Make a network train in the precision of this name."""
    config = PRECISIONS[precision]
    if config is not None:
        quantize_(net, replace(config, seed=seed))


def _trained(
    task: Task, kind: str, precision: str, seed: int, epochs: int, dropout: tuple[float, float]
) -> tuple[Network, Result]:
    """The network in its best epoch, and its accuracies."""
    _begin(task, seed)
    net = Network(kind, task.x.shape[1], task.classes, dropout).to(task.x.device)
    quantize_as(net, precision, seed)
    groups: list[dict[str, Any]] = [
        {"params": net.first.parameters(), "weight_decay": 5e-4},
        {"params": net.second.parameters()},
    ]
    optimiser = torch.optim.Adam(groups, lr=0.005 if kind == "gat" else 0.01, capturable=task.x.is_cuda)
    torch.manual_seed(seed)
    best, most = _Best(net), torch.full((), -1, device=task.x.device)

    def look() -> Tensor:
        counts = _counts(net(task.x, task.graph), task)
        best.keep_if(counts[0, 0] >= most)
        most.copy_(torch.maximum(counts[0, 0], most))
        return counts

    step, look_on = _steps(net, task, optimiser), replayed(look, task.x.device)
    counts = []
    for epoch in range(1, epochs + 1):
        step()
        if epoch % _LOOK == 0 or epoch == epochs:
            with torch.no_grad():
                counts.append(look_on().clone())
    best.restore()
    shares = [_shares(each) for each in torch.stack(counts).tolist()]
    validated, found = max(reversed(shares), key=lambda both: both[0])  # the last of equals
    return net, Result(found, shares[-1][1], validated, tuple(round(tested, 2) for _, tested in shares))


class _Best:
    """The best state of a network so far; it is chosen on the network's device, so that the host never waits for a GPU."""

    def __init__(self, net: nn.Module) -> None:
        self._parts = [part.detach() for part in (*net.parameters(), *net.buffers())]
        self._kept = [part.clone() for part in self._parts]

    def keep_if(self, better: Tensor) -> None:
        """Keep the present state if `better`, a single bool, is true."""
        for kept, part in zip(self._kept, self._parts, strict=True):
            kept.copy_(torch.where(better, part, kept))

    def restore(self) -> None:
        """Put the best state back into the network."""
        for kept, part in zip(self._kept, self._parts, strict=True):
            part.copy_(kept)


def _begin(task: Task, seed: int) -> None:
    torch.manual_seed(seed)
    if task.x.is_cuda:
        torch.cuda.empty_cache()  # PyTorch still holds the memory of steps that earlier runs recorded


def _steps(net: nn.Module, task: Task, optimiser: torch.optim.Optimizer) -> Callable[[], Any]:
    """Return a function that makes one training step and leaves the network in ``eval()``."""
    nodes = task.train.nonzero()[:, 0]
    labels = task.labels[nodes]

    def step() -> None:
        net.train()
        optimiser.zero_grad()
        functional.cross_entropy(net(task.x, task.graph)[nodes], labels).backward()
        optimiser.step()
        net.eval()

    return replayed(step, task.x.device)


def replayed(work: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """Wrap work so that on a GPU it is recorded as a CUDA graph after a few calls: on small graphs Python takes longer than all kernels.

    Each call overwrites the result of the one before.
    """
    return work if device.type == "cpu" else _Replayed(work)


class _Replayed:
    """Work that is recorded once, after the warm-up calls, and replayed from then on."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work, self._stream, self._calls = work, torch.cuda.Stream(), 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None

    def __call__(self) -> Any:
        if self._graph is None:
            self._calls += 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                if self._calls <= _WARM:
                    self._result = self._work()
                else:
                    self._record()
            torch.cuda.current_stream().wait_stream(self._stream)
        if self._graph is not None:
            self._graph.replay()
        return self._result

    def _record(self) -> None:
        # torch.cuda.graph() would collect Python's garbage first, which takes as long as a hundred steps.
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin()
        try:
            self._result = self._work()
        except BaseException:
            with suppress(RuntimeError):  # it only repeats that the capture failed
                graph.capture_end()
            raise
        graph.capture_end()
        self._graph = graph


def _right(logits: Tensor, task: Task) -> tuple[float, float]:
    """The percentages of validation nodes and of test nodes that logits classify correctly."""
    return _shares(_counts(logits, task).tolist())


def _counts(logits: Tensor, task: Task) -> Tensor:
    """Count the validation and test nodes that logits classify correctly, and all validation and test nodes."""
    right = logits.argmax(dim=1) == task.labels
    parts = torch.stack([task.validate, task.test])
    return torch.stack([(parts & right).sum(dim=1), parts.sum(dim=1)])


def _shares(counts: list[list[int]]) -> tuple[float, float]:
    (validated, tested), (of, among) = counts
    return 100 * validated / max(of, 1), 100 * tested / max(among, 1)  # 0 if there are no nodes


def aware(
    task: Task,
    data: GraphData,
    kind: str,
    bits: Sequence[int],
    seed: int,
    epochs: int = 200,
    dropout: tuple[float, float] = (0.5, 0.5),
) -> dict[str, Result]:
    """Train a network in float32, quantise it, and train it further with its rounding; return the result of each by name.

    ``"float32"`` is the result of :func:`trained`, ``"2-bit-calibrated"`` that of :func:`bitsparse.nn.quantize_network`, and ``"2-bit"``
    that of a :class:`LowBitModule` trained from there. This module learns the classes that the float32 network predicts (Hinton et al.
    2015, with hard targets) for all nodes except the test nodes, whose accuracy would mean nothing once they were learnt. The state with
    the most validation nodes right is exported: the initial state counts too, and the last of equals wins. All accuracies but the first
    are those of networks on bits.

    Parameters
    ----------
    task : Task
    data : GraphData
        The data on which the networks on bits run.
    kind : {"gcn", "sage"}
    bits : sequence of int
    seed : int
    epochs : int
        Epochs of the float32 training.
    dropout : tuple of float
        Dropout of the float32 training: of the features, and between the layers.
    """
    net, result = _trained(task, kind, "float32", seed, epochs, dropout)
    layers = enumerate((net.first, net.second))
    full = load_state_dict({f"{i}.{name}": part for i, layer in layers for name, part in layer.state_dict().items()})
    with torch.no_grad():
        classes = net(task.x, task.graph).argmax(dim=1)
    found, x = {"float32": result}, Features(data.x)
    for each in bits:
        low = quantize_network(full, data.adjacency, x, each)
        validated, tested = _right(torch.from_numpy(low(data.adjacency, x)), task)
        found[f"{each}-bit-calibrated"] = Result(tested, tested, validated)
        module = LowBitModule(low)
        best, state, last = validated, copy.deepcopy(module.state_dict()), tested  # training must not make it worse
        for looked, shown in _lessons(module, task, x, classes):
            last = shown
            if looked >= best:
                best, state = looked, copy.deepcopy(module.state_dict())
        module.load_state_dict(state)
        _, tested = _right(torch.from_numpy(module.export()(data.adjacency, x)), task)
        found[f"{each}-bit"] = Result(tested, last, best)
    return found


def _lessons(module: LowBitModule, task: Task, x: Any, classes: Tensor) -> Iterator[tuple[float, float]]:
    """Train a network on bits on the classes of all nodes but the test nodes, and yield its accuracies every few steps."""
    optimiser = torch.optim.Adam(module.parameters(), lr=_AWARE_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _AWARE_EPOCHS)
    for epoch in range(1, _AWARE_EPOCHS + 1):
        optimiser.zero_grad()
        functional.cross_entropy(module(x, task.graph)[~task.test], classes[~task.test]).backward()
        optimiser.step()
        schedule.step()
        if epoch % _LOOK == 0:
            with torch.no_grad():
                yield _right(module(x, task.graph), task)


def binary(task: Task, data: GraphData, seed: int, epochs: int = 1000) -> dict[str, float]:
    """Train Bi-GCN with 64 columns by its recipe and run it on bits; return its test accuracies with full and binary aggregation."""
    _begin(task, seed)
    net = BinaryGCN((task.x.shape[1], 64, task.classes)).to(task.x.device)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=5e-4, capturable=task.x.is_cuda)
    nodes = task.validate.nonzero()[:, 0]
    labels, best, least = task.labels[nodes], _Best(net), torch.full((), float("inf"), device=task.x.device)

    def look() -> None:
        loss = functional.cross_entropy(net(task.x, task.graph)[nodes], labels)
        best.keep_if(loss < least)
        least.copy_(torch.minimum(loss, least))

    step, look_on = _steps(net, task, optimiser), replayed(look, task.x.device)
    for _ in range(epochs):
        step()
        with torch.no_grad():
            look_on()
    best.restore()
    found = {}
    for variants in ("full", "binary"):
        logits = np.asarray(net.export(variants)(data.adjacency, task.x.cpu().numpy()))
        right = logits.argmax(axis=1) == task.labels.cpu().numpy()
        found[variants] = 100 * float(right[task.test.cpu().numpy()].mean())
    return found


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, which is NaN for a single value.

    Examples
    --------
    >>> from bitsparse.torch.accuracy import mean_and_error
    >>> mean_and_error([1.0, 3.0])
    (2.0, 1.0)
    """
    array = np.asarray(values, float)
    error = float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else float("nan")
    return float(array.mean()), error

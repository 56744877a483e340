"""Do networks trained with our layers learn as well as those with PyTorch Geometric's layers? Test accuracies of paired runs.

    python3 benchmarks/accuracy.py --data FOLDER --records FILE [--graphs cora citeseer pubmed] [--models gcn sage gin gat]

A pair is a network of PyTorch Geometric's own layers, and one of the layers of :mod:`bitsparse.torch` with the same names. Both have the
same initial weights and, epoch by epoch, the same dropout of features. (For GAT's dropout of attention, each side draws separately.) Every
pair becomes a record, one JSON object per line. Pairs that the file already holds are not trained again, so a stopped run can continue. At
the end, or at once with ``--only-table``, a table shows means, the mean of the differences, and its standard error.

Recipes: GCN of 2 layers, 16 columns wide (Kipf and Welling, ICLR 2017, section 5.2), GraphSAGE likewise, GIN of 3 layers, 64 columns
wide, with batch norm; features normalised by rows, dropout 0.5, Adam, learning rate 0.01, weight decay 0.0005 (with two layers, on the
first only), 200 epochs. GAT (Velickovic et al., ICLR 2018, section 3.3): 8 heads of 8 columns, one output head (on PubMed the mean of 8),
ELU, dropout 0.6 of features and attention, learning rate 0.005, weight decay 0.0005 (PubMed: 0.001), until neither accuracy nor loss of the
validation nodes has improved for 100 epochs. Validation accuracy is measured every five epochs; the test accuracy of the best epoch counts.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

import bitsparse.torch as bst
from bitsparse import bench, datasets, set_num_threads
from bitsparse.nn import Features

with warnings.catch_warnings():  # its import warns about deprecated parts of PyTorch
    warnings.simplefilter("ignore")
    from torch_geometric import nn as pyg

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # last, so that the installed package precedes the sources
from benchmarks import accuracy_page  # noqa: E402

#: Epochs between two measurements of the validation nodes, and epochs without improvement after which a recipe stops early.
LOOK, PATIENCE = 5, 100


class Recipe(NamedTuple):
    """The sizes of a network and the settings of its training."""

    widths: tuple[int, ...]
    dropout: float = 0.5
    rate: float = 0.01
    decay: float = 5e-4
    #: Whether weight decay applies to the first layer only.
    decay_first: bool = True
    epochs: int = 200
    stops_early: bool = False


def recipe(model: str, graph: str) -> Recipe:
    """The settings that the module's docstring describes."""
    if model == "gat":
        return Recipe((8,), 0.6, 0.005, 1e-3 if graph == "pubmed" else 5e-4, False, 1000, True)
    return Recipe((64, 64), decay_first=False) if model == "gin" else Recipe((16,))


class Task(NamedTuple):
    """A graph with features and a split."""

    name: str
    edges: Tensor
    graph: bst.Graph
    x: Tensor
    labels: Tensor
    masks: tuple[Tensor, Tensor, Tensor]
    classes: int


def task(path: Path) -> Task:
    """Read a graph from its file."""
    data = datasets.read(path)
    coo = sparse.coo_array(data.adjacency)
    edges = torch.from_numpy(np.stack([coo.col, coo.row]).astype(np.int64))  # rows of the adjacency are targets
    x = torch.from_numpy(Features(data.x).csr.toarray())
    masks = [torch.from_numpy(mask) for mask in (data.train_mask, data.val_mask, data.test_mask)]
    # Nodes without a label are in no mask.
    labels = torch.from_numpy(np.maximum(data.targets, 0)).long()
    graph = bst.Graph(edges, data.num_nodes)
    return Task(path.stem, edges, graph, x, labels, (masks[0], masks[1], masks[2]), data.num_classes)


class Dropped:
    """Features with dropout from a given generator; zeros stay zero, so nothing is drawn for them."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.room = x, torch.zeros_like(x)
        self.at = x.flatten().nonzero()[:, 0]
        self.values = x.flatten()[self.at]

    def draw(self, share: float, generator: torch.Generator) -> Tensor:
        """Draw once; the next draw overwrites the result."""
        self.room.view(-1)[self.at] = dropped(self.values, share, generator)
        return self.room


def dropped(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Dropout whose draws depend on the generator only."""
    return x * torch.empty_like(x).bernoulli_(1 - share, generator=generator) / (1 - share)


class Network(nn.Module):
    """Graph layers with an activation and dropout between them; `layers` is the Python module that has their classes."""

    def __init__(self, layers: Any, model: str, settings: Recipe, inputs: int, classes: int, output_heads: int) -> None:
        super().__init__()
        widths = [inputs, *settings.widths, classes]
        self.settings, self.activation = settings, nn.functional.elu if model == "gat" else torch.relu
        made = []
        for i, outputs in enumerate(widths[1:]):
            last = i + 2 == len(widths)
            if model == "gat":
                before, heads = (widths[i], 8) if i == 0 else (8 * widths[i], output_heads)
                made.append(layers.GATConv(before, outputs, heads=heads, concat=not last, dropout=settings.dropout))
            elif model == "gin":
                behind = [] if last else [nn.BatchNorm1d(outputs), nn.ReLU()]
                made.append(layers.GINConv(nn.Sequential(nn.Linear(widths[i], outputs), *behind)))
            else:
                made.append({"gcn": layers.GCNConv, "sage": layers.SAGEConv}[model](widths[i], outputs))
        self.convs = nn.ModuleList(made)

    def forward(self, x: Tensor, edges: Any, generator: torch.Generator) -> Tensor:
        """Compute the logits; dropout was applied to `x` already."""
        for i, layer in enumerate(self.convs):
            if i:
                x = self.activation(x)
                x = dropped(x, self.settings.dropout, generator) if self.training else x
            x = layer(x, edges)
        return x


def pair(model: str, of: Task, seed: int, epochs: int | None = None) -> tuple[Network, Network]:
    """PyTorch Geometric's network and ours, with the same weights."""
    settings = recipe(model, of.name)
    settings = settings if epochs is None else settings._replace(epochs=epochs)
    torch.manual_seed(seed)
    sizes = of.x.shape[1], of.classes, 8 if of.name == "pubmed" else 1
    theirs, ours = (Network(layers, model, settings, *sizes) for layers in (pyg, bst))
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    return theirs, ours


def train(net: Network, of: Task, edges: Any, seed: int) -> tuple[float, int]:
    """Train; return the test accuracy of the best epoch in per cent, and the number of epochs."""
    settings, generator, features = net.settings, torch.Generator().manual_seed(seed), Dropped(of.x)
    torch.manual_seed(seed)  # for the dropout of attention
    later = [parameter for layer in net.convs[1:] for parameter in layer.parameters()]
    groups: list[dict[str, Any]] = [
        {"params": list(net.convs[0].parameters())},
        {"params": later, "weight_decay": 0.0 if settings.decay_first else settings.decay},
    ]
    optimizer = torch.optim.Adam(groups, lr=settings.rate, weight_decay=settings.decay)
    best, least, improved, counts = -1.0, math.inf, 0, 0.0
    for epoch in range(1, settings.epochs + 1):
        net.train()
        optimizer.zero_grad()
        y = net(features.draw(settings.dropout, generator), edges, generator)
        nn.functional.cross_entropy(y[of.masks[0]], of.labels[of.masks[0]]).backward()
        optimizer.step()
        if epoch % LOOK and epoch < settings.epochs:
            continue
        net.eval()
        with torch.no_grad():
            y = net(of.x, edges, generator)
            right = y.argmax(dim=1) == of.labels
            loss = float(nn.functional.cross_entropy(y[of.masks[1]], of.labels[of.masks[1]]))
        share, tested = (round(100 * float(right[mask].float().mean()), 2) for mask in of.masks[1:])
        improved = epoch if share > best or loss < least else improved
        if share >= best:
            best, counts = share, tested
        least = min(least, loss)
        if settings.stops_early and epoch - improved >= PATIENCE:
            break
    return counts, epoch


def compare(model: str, of: Task, seed: int, epochs: int | None, machine: bench.Machine) -> bench.Record:
    """Train a pair and return its record."""
    theirs, ours = pair(model, of, seed, epochs)
    results = {}
    for side, net, edges in (("theirs", theirs, of.edges), ("ours", ours, of.graph)):
        results[side], results[f"{side}_epochs"] = train(net, of, edges, seed)
    return bench.Record.counted(
        "accuracy", f"{of.name}-{model}-{seed}", _params(model, of.name, seed) | results, machine
    )


def _params(model: str, graph: str, seed: int) -> dict[str, Any]:
    return {"graph": graph, "model": model, "seed": seed}


def table(records: Sequence[dict[str, Any]]) -> str:
    """Format means in per cent, their spread, and the mean of the differences with its standard error."""
    return bench.format_table(accuracy_page.PAIRED, list(accuracy_page.paired(records)))


def known(path: Path) -> list[dict[str, Any]]:
    """The records in a file; none if the file does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def runs(options: argparse.Namespace, done: set[str], machine: bench.Machine) -> Iterator[bench.Record]:
    """Train all pairs that are not done, one graph after another."""
    for graph in options.graphs:
        of = None
        for model in options.models:
            for seed in range(options.seeds):
                if f"{graph}-{model}-{seed}" not in done:
                    of = of or task(options.data / f"{graph}.npz")
                    yield compare(model, of, seed, options.epochs, machine)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write records and print the table; return 1 if a difference is too large."""
    parser = argparse.ArgumentParser(
        description="Compare accuracies of networks trained with PyG's layers and with ours."
    )
    parser.add_argument("--data", type=Path, default=Path(), metavar="FOLDER", help="of the graphs (default: .)")
    parser.add_argument("--records", type=Path, required=True, metavar="FILE", help="JSON lines, added to")
    parser.add_argument("--graphs", nargs="+", default=["cora", "citeseer", "pubmed"], help="NAME of NAME.npz")
    parser.add_argument(
        "--models", nargs="+", choices=["gcn", "sage", "gin", "gat"], default=["gcn", "sage", "gin", "gat"]
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, help="at most (default: the recipe's)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-table", action="store_true", help="of the records there are")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    set_num_threads(options.threads)
    records = known(options.records)
    if not options.only_table:
        machine = bench.Machine.of_cpu(options.threads, bench.program_commit(ROOT))
        for record in runs(options, {record["case"] for record in records}, machine):
            with options.records.open("a", encoding="utf-8") as file:
                file.write(record.to_json() + "\n")
            records.append(record.flat())
            print(f"{record.case}: {record.params['theirs']:.1f}, ours {record.params['ours']:.1f}", flush=True)
    report = table(records)
    print(report)
    return int("differ" in report)


if __name__ == "__main__":
    sys.exit(main())

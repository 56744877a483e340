"""PyTorch Geometric models for tests; tests import this module only if PyTorch Geometric is installed."""

from __future__ import annotations

import warnings
from itertools import pairwise

import torch
from torch.nn import functional

with warnings.catch_warnings():  # the import below warns of deprecated parts of PyTorch
    warnings.simplefilter("ignore")
    from torch_geometric import nn as pyg

WIDTH = {"in": 5, "hidden": 8, "out": 3}


def seeded(make):
    """The model that ``make`` returns, in inference mode, with random biases, norm weights and running statistics."""
    torch.manual_seed(0)
    model = make()
    for name, part in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith(("running_var",)):
            part.data.uniform_(0.5, 1.5)
        elif name.endswith(("running_mean", "bias")) or ("norm" in name and name.endswith("weight")):
            part.data.normal_()
    return model.eval()


def basic(kind, depth, **how):
    """A model of the named class of torch_geometric.nn.models."""
    return seeded(lambda: getattr(pyg, kind)(WIDTH["in"], WIDTH["hidden"], depth, WIDTH["out"], **how))


def conv(kind, inputs, outputs, **how):
    """One graph layer; a GINConv gets a perceptron of two products."""
    if kind == "GINConv":
        inner = torch.nn.Sequential(
            torch.nn.Linear(inputs, 7), torch.nn.BatchNorm1d(7), torch.nn.ReLU(), torch.nn.Linear(7, outputs)
        )
        return pyg.GINConv(inner, **how)
    return getattr(pyg, kind)(inputs, outputs, **how)


class Stack(torch.nn.Module):
    """Graph layers with an activation between them, and optional norms, an encoder in front and a head at the end."""

    def __init__(self, convs, between=functional.relu, encoder=None, head=None, norms=None, norm_last=False):
        super().__init__()
        self.convs, self.between = torch.nn.ModuleList(convs), between
        self.norms = torch.nn.ModuleList(norms or [torch.nn.Identity() for _ in convs])
        self.encoder, self.head, self.norm_last = encoder, head, norm_last

    def forward(self, x, edge_index):
        if self.encoder is not None:
            x = self.encoder(x).relu()
        for i, layer in enumerate(self.convs):
            x = functional.dropout(x, 0.5, training=self.training)
            x = layer(x, edge_index)
            if i + 1 < len(self.convs) or self.head is not None:
                x = self.norms[i](self.between(x)) if self.norm_last else self.between(self.norms[i](x))
        return x if self.head is None else self.head(x)


def stack(kind, depth, between=functional.relu, **how):
    """A model of a user-defined class, with `depth` layers of one kind."""

    def make():
        widths = [WIDTH["in"], *[WIDTH["hidden"]] * (depth - 1), WIDTH["out"]]
        return Stack([conv(kind, *pair, **how) for pair in pairwise(widths)], between)

    return seeded(make)


def around(kind, **how):
    """Two layers with norms, an encoder in front, and a perceptron at the end."""

    def make():
        hidden = WIDTH["hidden"]
        return Stack(
            [conv(kind, hidden, hidden), conv(kind, hidden, hidden)],
            encoder=torch.nn.Linear(WIDTH["in"], hidden),
            head=torch.nn.Sequential(torch.nn.Linear(hidden, 6), torch.nn.Tanh(), torch.nn.Linear(6, WIDTH["out"])),
            **{name: value() if callable(value) else value for name, value in how.items()},
        )

    return seeded(make)


def norms_of(kind):
    """Two norms of one kind, one for each of two layers."""
    made = {
        "batch": lambda: torch.nn.BatchNorm1d(WIDTH["hidden"]),
        "pyg batch": lambda: pyg.BatchNorm(WIDTH["hidden"]),
        "layer": lambda: torch.nn.LayerNorm(WIDTH["hidden"]),
        "node": lambda: pyg.LayerNorm(WIDTH["hidden"], mode="node"),
        "graph": lambda: pyg.LayerNorm(WIDTH["hidden"], mode="graph"),
    }
    return lambda: [made[kind]() for _ in range(2)]


def heads(kind, **how):
    """Two GATConvs or GATv2Convs with the same arguments; the first has 4 channels per head."""
    count = how["heads"] if how["concat"] else 1
    return seeded(
        lambda: Stack([conv(kind, WIDTH["in"], 4, **how), conv(kind, 4 * count, WIDTH["out"], **how)], functional.elu)
    )


def propagated(**how):
    """Two AGNNConvs between linear layers, as in their authors' model."""

    def does(self, x, edge_index):
        x = self.first(functional.dropout(x, 0.5, training=self.training)).relu()
        return self.last(self.two(self.one(x, edge_index), edge_index))

    def make():
        made = Free(
            does,
            first=torch.nn.Linear(WIDTH["in"], WIDTH["hidden"]),
            one=pyg.AGNNConv(**how),
            two=pyg.AGNNConv(**how),
            last=torch.nn.Linear(WIDTH["hidden"], WIDTH["out"]),
        )
        for name, part in made.named_parameters():
            if name.endswith("beta"):
                part.data.fill_(1.75)
        return made

    return seeded(make)


def gin(inner, **how):
    """One GINConv with a perceptron, followed by a linear layer."""

    def make():
        return pyg.Sequential(
            "x, edge_index",
            [
                (pyg.GINConv(inner(), **how), "x, edge_index -> x"),
                torch.nn.ReLU(),
                torch.nn.Linear(WIDTH["hidden"], WIDTH["out"]),
            ],
        )

    return seeded(make)


def mlp(depth, **how):
    """A function that makes PyTorch Geometric's perceptron."""
    return lambda: pyg.MLP([WIDTH["in"], *[WIDTH["hidden"]] * depth], **how)


def sequential(*steps, first="x, edge_index"):
    """A PyTorch Geometric Sequential of the given steps."""
    return seeded(lambda: pyg.Sequential(first, [step() if isinstance(step, type) else step for step in steps]))


class Weighted(torch.nn.Module):
    """Two layers, of which the first ``weighted`` ones get the edge weights."""

    def __init__(self, weighted=2, **how):
        super().__init__()
        self.first, self.second = pyg.GCNConv(WIDTH["in"], 8, **how), pyg.GCNConv(8, WIDTH["out"], **how)
        self.weighted = weighted

    def forward(self, x, edge_index, edge_weight=None):
        x = self.first(x, edge_index, edge_weight if self.weighted > 0 else None)
        return self.second(x.tanh(), edge_index, edge_weight=edge_weight if self.weighted > 1 else None)


class FromData(torch.nn.Module):
    """A model in the form of PyTorch Geometric's first tutorial: it takes a ``data`` object."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(WIDTH["in"], 16), pyg.GCNConv(16, WIDTH["out"])

    def forward(self, data):
        x, edge_index = data.x, data.edge_index
        x = functional.dropout(functional.relu(self.conv1(x, edge_index)), training=self.training)
        return functional.log_softmax(self.conv2(x, edge_index), dim=1)


class Free(torch.nn.Module):
    """A model whose forward is a given function of the model, features and edges."""

    def __init__(self, does, **parts):
        super().__init__()
        self.does = does
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x, edge_index):
        return self.does(self, x, edge_index)

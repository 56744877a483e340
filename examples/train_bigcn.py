"""Train Bi-GCN with PyTorch and run it on bits: full-precision and binary aggregation from the same weights.

Run with `python examples/train_bigcn.py cora.npz` (needs PyTorch; any file that `bitsparse inspect` reads will do if it has features,
labels and a split). `--seeds 6 --save FOLDER` writes the trained models as FOLDER/bigcn-NAME-SEED.npz, which `bitsparse.nn.load_binary`
reads.

The recipe is Bi-GCN's (Wang et al., CVPR 2021). The input passes batch norm without parameters. Each layer takes alpha sign(x), where
alpha is the mean magnitude of a node's features, drops 0.4 of it, multiplies by m sign(W), where m is the mean magnitude of an output's
weights, adds a bias and multiplies by D^-1/2 (A + I) D^-1/2. Gradients pass a sign if its input lies in -1..1. Adam trains with learning
rate 0.001 and weight decay 0.0005 for 1000 epochs; the epoch with the least validation loss counts.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from torch.nn import functional as F

import bitsparse as bs
from bitsparse import datasets, nn

warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
HIDDEN, DROPOUT, RATE, DECAY = 64, 0.4, 1e-3, 5e-4


class Signs(torch.autograd.Function):
    """alpha sign(x), with sign(0) = +1."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0) * x.abs().mean(dim=1, keepdim=True)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class BinaryWeights(torch.autograd.Function):
    """m sign(W)."""

    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return torch.where(w >= 0, 1.0, -1.0) * w.abs().mean(dim=0)

    @staticmethod
    def backward(ctx, gradient):
        (w,) = ctx.saved_tensors
        signs = torch.where(w >= 0, 1.0, -1.0)
        through_signs = w.abs().mean(dim=0) * gradient * (w.abs() <= 1)
        return through_signs + signs * (signs * gradient).sum(dim=0) / len(w)


class Aggregate(torch.autograd.Function):
    """A symmetric sparse matrix times features."""

    @staticmethod
    def forward(ctx, matrix, x):
        ctx.matrix = matrix
        return matrix @ x

    @staticmethod
    def backward(ctx, gradient):
        return None, ctx.matrix @ gradient


class Data:
    """A graph, its features and labels as PyTorch tensors."""

    def __init__(self, graph: datasets.GraphData) -> None:
        self.graph, self.propagation = graph, nn.Graph(graph.adjacency)
        self.scaled, self.plain = (_torch_csr(each) for each in (self.propagation.matrix, self.propagation.pattern))
        x = graph.x.toarray() if sparse.issparse(graph.x) else np.asarray(graph.x)
        self.x = np.ascontiguousarray(x, np.float32)
        self.mean, self.var = (getattr(self.x, name)(axis=0, dtype=np.float64) for name in ("mean", "var"))
        # The first signs are the same in every epoch: their input is not trained, and the batch is always the whole graph.
        self.first = Signs.apply(torch.from_numpy(((self.x - self.mean) / np.sqrt(self.var + 1e-5)).astype(np.float32)))
        self.targets = torch.from_numpy(np.maximum(graph.targets, 0))
        masks = (graph.train_mask, graph.val_mask, graph.test_mask)
        self.train, self.val, self.test = (torch.from_numpy(np.flatnonzero(mask)) for mask in masks)

    def accuracy(self, logits) -> float:
        """The percentage of test nodes that logits classify correctly."""
        found = np.asarray(logits)[self.test].argmax(axis=1)
        return 100 * float((found == self.targets[self.test].numpy()).mean())


def _torch_csr(matrix):
    parts = (torch.from_numpy(each.astype(np.int64)) for each in (matrix.indptr, matrix.indices))
    return torch.sparse_csr_tensor(*parts, torch.from_numpy(matrix.data), matrix.shape, check_invariants=False)


def logits(data: Data, weights, *, binary: bool = False, training: bool = False):
    """Compute the network in PyTorch: Bi-GCN's own steps, or binary aggregation (counts signs over A + I, then sums plainly)."""
    w1, b1, w2, b2 = weights
    x = F.dropout(data.first, DROPOUT, training) @ BinaryWeights.apply(w1) + b1
    if binary:
        x = torch.where(x >= 0, 1.0, -1.0)
        x = torch.where(data.plain @ x >= 0, 1.0, -1.0)
    else:
        x = Signs.apply(Aggregate.apply(data.scaled, x))
    x = F.dropout(x, DROPOUT, training) @ BinaryWeights.apply(w2) + b2
    return data.plain @ x if binary else Aggregate.apply(data.scaled, x)


def train(data: Data, seed: int, epochs: int) -> list[torch.Tensor]:
    """Train; return the weights and biases of the epoch with the least validation loss."""
    torch.manual_seed(seed)
    classes = data.graph.num_classes
    shapes = (data.x.shape[1], HIDDEN), (HIDDEN, classes)
    weights = [torch.nn.init.xavier_uniform_(torch.empty(shape)) for shape in shapes]
    parameters = [weights[0], torch.zeros(HIDDEN), weights[1], torch.zeros(classes)]
    for each in parameters:
        each.requires_grad_(True)
    optimizer = torch.optim.Adam(parameters, lr=RATE, weight_decay=DECAY)
    least, best = np.inf, parameters
    for _ in range(epochs):
        optimizer.zero_grad()
        F.cross_entropy(logits(data, parameters, training=True)[data.train], data.targets[data.train]).backward()
        optimizer.step()
        with torch.no_grad():
            loss = float(F.cross_entropy(logits(data, parameters)[data.val], data.targets[data.val]))
        if loss < least:
            least, best = loss, [each.detach().clone() for each in parameters]
    return best


def on_bits(data: Data, weights) -> nn.BinaryGCN:
    """Convert the trained network to one of bitsparse."""
    w1, b1, w2, b2 = (each.detach().numpy() for each in weights)
    layers = [nn.BinaryLinear.from_weights(w1, b1), nn.BinaryLinear.from_weights(w2, b2)]
    return nn.BinaryGCN(layers, input_norm=bs.BatchNorm(data.mean, data.var))


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(description="Train Bi-GCN and run it on bits.")
    parser.add_argument("graph", help="a graph with features, labels and masks, such as cora.npz")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--save", metavar="FOLDER", help="where to write the trained models")
    options = parser.parse_args(arguments)
    data = Data(datasets.read(options.graph))
    found: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        weights = train(data, seed, options.epochs)
        model = on_bits(data, weights)
        for way in ("full", "binary"):
            with torch.no_grad():
                theirs = data.accuracy(logits(data, weights, binary=way == "binary"))
            ours = data.accuracy(model.with_settings(way)(data.propagation, data.x))
            found.setdefault(f"{way}, PyTorch", []).append(theirs)
            found.setdefault(f"{way}, bits", []).append(ours)
        print(f"seed {seed}: " + "; ".join(f"{name} {each[-1]:.1f} %" for name, each in found.items()))
        if options.save:
            model.save(Path(options.save) / f"bigcn-{data.graph.name}-{seed}.npz")
    for name, each in found.items():
        print(f"{name}: test accuracy {np.mean(each):.2f} +- {np.std(each):.2f} % over {len(each)} seeds")
    return found


if __name__ == "__main__":
    main()

"""Train GraphSAGE in PyTorch on batches of sampled neighbours, with packed features: python examples/train_batches.py pubmed.npz

Any file that `bitsparse inspect` reads will do if it has features, labels and a split. `--train rest` ignores the split's training nodes
and trains on all labelled nodes outside of its validation and test nodes. The network has two layers of 64 columns and dropout 0.5; Adam
has learning rate 0.01 and weight decay 0.0005; the fan-out is 10 in each layer. Batches depend only on the seed, not on the number of
threads.
"""

import argparse
import time

import numpy as np
import torch
from scipy import sparse
from torch.nn import functional as F

import bitsparse as bs
import bitsparse.torch as bst
from bitsparse import datasets

HIDDEN, DROPOUT, RATE, DECAY = 64, 0.5, 0.01, 5e-4


class Network(torch.nn.Module):
    """Two layers; each computes features of the targets of its graph, which are the first of its sources."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([bst.SAGEConv(inputs, HIDDEN), bst.SAGEConv(HIDDEN, classes)])

    def forward(self, x: torch.Tensor, graphs: tuple[bst.Graph, ...]) -> torch.Tensor:
        for number, (layer, graph) in enumerate(zip(self.layers, graphs, strict=True)):
            x = F.dropout(x.relu() if number else x, DROPOUT, self.training)
            x = layer((x, x[: graph.num_targets]), graph)
        return x


def correct(net: Network, loader: bst.BatchLoader) -> float:
    """The percentage of a loader's targets that the network classifies correctly."""
    net.eval()
    with torch.no_grad():
        right = [net(batch.x, batch.graphs).argmax(dim=1) == batch.labels for batch in loader]
    return 100 * float(torch.cat(right).float().mean())


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description="Train GraphSAGE on batches of sampled neighbours.")
    parser.add_argument("graph", help="a graph with features, labels and a split")
    parser.add_argument(
        "--bits", type=int, choices=(8, 4, 2, 1, 32), default=8, help="of features in host memory (32: float32)"
    )
    parser.add_argument("--train", choices=("split", "rest"), default="split")
    parser.add_argument("--fanout", type=int, default=10)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="that make batches")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    data = datasets.read(options.graph)
    features = data.x.toarray() if sparse.issparse(data.x) else np.asarray(data.x)
    features = (features / np.maximum(features.sum(axis=1, keepdims=True), 1e-12)).astype(np.float32)
    x = features if options.bits == 32 else bs.quantize(features, options.bits, granularity="row", layout="rows")
    labels, masks = torch.from_numpy(np.maximum(data.targets, 0)), [data.train_mask, data.val_mask, data.test_mask]
    if options.train == "rest":
        masks[0] = (data.targets >= 0) & ~masks[1] & ~masks[2]
    parts = [np.flatnonzero(mask) for mask in masks]
    accuracies = []
    for seed in range(options.seeds):
        how = {"device": options.device, "threads": options.threads}
        fanouts = [[options.fanout] * 2, [-1, -1], [-1, -1]]
        loaders = [
            bst.BatchLoader(
                bs.graph.NeighborSampler(data.adjacency, fan, nodes, batch_size=options.batch, seed=seed),
                x,
                labels,
                **how,
            )
            for fan, nodes in zip(fanouts, parts, strict=True)
        ]
        torch.manual_seed(seed)
        net = Network(features.shape[1], data.num_classes).to(options.device)
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=DECAY)
        best, start = (-1.0, 0.0), time.perf_counter()
        for epoch in range(1, options.epochs + 1):
            net.train()
            for batch in loaders[0]:
                optimizer.zero_grad()
                F.cross_entropy(net(batch.x, batch.graphs), batch.labels).backward()
                optimizer.step()
            if epoch % 5 == 0 or epoch == options.epochs:
                looked = correct(net, loaders[1])
                best = max(best, (looked, correct(net, loaders[2]) if looked > best[0] else 0.0))
        accuracies.append(best[1])
        print(f"seed {seed}: {accuracies[-1]:.1f} % of the test nodes, {time.perf_counter() - start:.1f} s")
    size = x.nbytes
    print(
        f"mean {np.mean(accuracies):.2f} +- {np.std(accuracies):.2f}, features {size / 1e6:.1f} MB of {features.nbytes / 1e6:.1f}"
    )
    return accuracies


if __name__ == "__main__":
    main()

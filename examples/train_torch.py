"""Train a graph network in PyTorch with bitsparse's sums, on a CPU or a GPU: python examples/train_torch.py cora.npz

Any file that `bitsparse inspect` reads will do if it has features, labels and a split. The recipe is Kipf and Welling's (ICLR 2017,
section 5): two layers of 16 columns, dropout 0.5, Adam with learning rate 0.01 and weight decay 0.0005 for 200 epochs; features are
normalised by rows.
`--layer sage`, `gat` and `gin` use other layers; `--seeds 10` trains ten times and prints the mean.
"""

import argparse
import time

import numpy as np
import torch
from scipy import sparse
from torch.nn import functional as F

import bitsparse.torch as bst
from bitsparse import datasets

HIDDEN, DROPOUT, RATE, DECAY = 16, 0.5, 0.01, 5e-4
LAYERS = {
    "gcn": bst.GCNConv,
    "sage": bst.SAGEConv,
    "gat": lambda inputs, outputs: bst.GATConv(inputs, outputs, heads=8, concat=False),
    "gin": lambda inputs, outputs: bst.GINConv(torch.nn.Linear(inputs, outputs)),
}


class Network(torch.nn.Module):
    """Two graph layers."""

    def __init__(self, layer: str, inputs: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = LAYERS[layer](inputs, HIDDEN), LAYERS[layer](HIDDEN, classes)

    def forward(self, x: torch.Tensor, graph: bst.Graph) -> torch.Tensor:
        x = F.dropout(x, DROPOUT, self.training)
        x = F.dropout(self.first(x, graph).relu(), DROPOUT, self.training)
        return self.second(x, graph)


def train(net: Network, x: torch.Tensor, graph: bst.Graph, labels: torch.Tensor, masks: list, epochs: int) -> float:
    """Train; return the test accuracy, in per cent, of the epoch with the best validation accuracy."""
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=DECAY)
    best = (-1.0, 0.0)
    for _ in range(epochs):
        net.train()
        optimizer.zero_grad()
        F.cross_entropy(net(x, graph)[masks[0]], labels[masks[0]]).backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            right = net(x, graph).argmax(dim=1) == labels
        best = max(best, tuple(100 * float(right[mask].float().mean()) for mask in masks[1:]))
    return best[1]


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description="Train a graph network in PyTorch with bitsparse's sums.")
    parser.add_argument("graph", help="a graph with features, labels and a split")
    parser.add_argument("--layer", choices=LAYERS, default="gcn")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    data = datasets.read(options.graph)
    features = data.x.toarray() if sparse.issparse(data.x) else np.asarray(data.x)
    features = features / np.maximum(features.sum(axis=1, keepdims=True), 1e-12)
    x = torch.from_numpy(features.astype(np.float32)).to(options.device)
    labels = torch.from_numpy(np.maximum(data.targets, 0)).to(options.device)
    masks = [torch.from_numpy(mask).to(options.device) for mask in (data.train_mask, data.val_mask, data.test_mask)]
    graph = bst.Graph(data.adjacency).to(options.device)
    accuracies = []
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        net = Network(options.layer, x.shape[1], data.num_classes).to(options.device)
        start = time.perf_counter()
        accuracies.append(train(net, x, graph, labels, masks, options.epochs))
        print(f"seed {seed}: {accuracies[-1]:.1f} % of the test nodes, {time.perf_counter() - start:.1f} s")
    print(f"mean {np.mean(accuracies):.2f} +- {np.std(accuracies):.2f}")
    return accuracies


if __name__ == "__main__":
    main()

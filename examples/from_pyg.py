"""A network trained with PyTorch Geometric, quantised after its training and run on bits.

`python examples/from_pyg.py` trains a GCN on a random graph with PyTorch Geometric (`pip install torch torch_geometric`) and converts it
with `nn.from_pyg`, which checks the converted network against the model's own output. `--save FILE.pt` saves the state dict. Instead of
training, `--weights FILE` reads a saved one: a `.pt` file of `torch.save(model.state_dict(), FILE)`, or an `.npz` with the same names,
which needs no framework.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse import datasets, nn


def example_graph() -> datasets.GraphData:
    return datasets.synthetic((3000, 24_000), "communities").with_generated(features=48, classes=6).with_split()


def train(data: datasets.GraphData, epochs: int) -> Any:
    """Train a GCN of two GCNConv layers."""
    try:
        import torch
        from torch_geometric.nn import GCNConv
    except ImportError as error:
        sys.exit(
            f"{error}: training needs PyTorch Geometric (pip install torch torch_geometric); or pass --weights FILE"
        )

    features, classes = data.x.shape[1], int(data.targets.max()) + 1

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = torch.nn.ModuleList([GCNConv(features, 16), GCNConv(16, classes)])

        def forward(self, x, edges):
            return self.convs[1](torch.relu(self.convs[0](x, edges)), edges)

    torch.manual_seed(0)
    coo = data.adjacency.tocoo()
    edges = torch.from_numpy(np.stack((coo.coords[1], coo.coords[0])).astype(np.int64))  # source, target
    x, labels = torch.from_numpy(features_of(data)), torch.from_numpy(data.targets.astype(np.int64))
    chosen = torch.from_numpy(data.train_mask)
    net = Net()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(epochs):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x, edges)[chosen], labels[chosen]).backward()
        optimiser.step()
    return net


def features_of(data: datasets.GraphData) -> np.ndarray:
    return np.asarray(data.x.toarray() if hasattr(data.x, "toarray") else data.x, np.float32)


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="state dict: .npz or .pt (default: train one)")
    parser.add_argument(
        "--graph", help="graph with features, labels and masks, as `bitsparse inspect` reads it (default: a seeded one)"
    )
    parser.add_argument("--epochs", type=int, default=100, help="of the training (default: 100)")
    parser.add_argument("--save", type=Path, help="write the trained state dict to this .pt file")
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 4])
    args = parser.parse_args(argv)

    data = example_graph() if args.graph is None else datasets.read(args.graph)
    if args.weights is None:
        model = train(data, args.epochs)
        network = nn.from_pyg(model)
        if args.save is not None:
            import torch

            torch.save(model.state_dict(), args.save)
    elif args.weights.suffix == ".npz":
        network = nn.load_network(args.weights)
    else:
        import torch

        network = nn.load_state_dict(torch.load(args.weights, weights_only=True))

    x = features_of(data)
    found = {"full precision": network(data.adjacency, x)}
    for bits in args.bits:
        low = nn.quantize_network(network, data.adjacency, x, bits)
        graph = nn.Graph.from_csr(
            data.adjacency.indptr,
            data.adjacency.indices,
            normalisation=low.normalisation,
            self_loops=low.self_loops,
        )
        found[f"{bits} bits"] = low(graph, low.quantize(x))
    print(network)
    accuracies = {
        name: 100 * float((y.argmax(axis=1) == data.targets)[data.test_mask].mean()) for name, y in found.items()
    }
    for name, accuracy in accuracies.items():
        print(f"{name:15} {accuracy:6.2f} % of the test nodes")
    return accuracies


if __name__ == "__main__":
    main()

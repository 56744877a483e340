"""A network trained with PyTorch Geometric, quantised after its training and run on bits.

`python examples/from_pyg.py` trains a GCN on a seeded graph with PyTorch Geometric (`pip install torch torch_geometric`),
saves its state dict as `gcn.pt` and quantises it. `--weights FILE` takes a state dict that is there already instead: a `.pt`
file of `torch.save(model.state_dict(), FILE)`, or an `.npz` with the same names, for which no framework is needed.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from bitsparse import datasets, nn


def example_graph() -> datasets.GraphData:
    return datasets.synthetic((3000, 24_000), "communities").with_generated(features=48, classes=6).with_split()


def train(data: datasets.GraphData, epochs: int = 100) -> dict[str, np.ndarray]:
    """The state dict of a GCN of two GCNConv layers."""
    try:
        import torch
        from torch_geometric.nn import GCNConv
    except ImportError as error:
        sys.exit(
            f"{error}: training needs PyTorch Geometric (pip install torch torch_geometric); or pass --weights FILE"
        )

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = torch.nn.ModuleList([GCNConv(data.num_features, 16), GCNConv(16, data.num_classes)])

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
    torch.save(net.state_dict(), "gcn.pt")
    return net.state_dict()


def features_of(data: datasets.GraphData) -> np.ndarray:
    return np.asarray(data.x.toarray() if hasattr(data.x, "toarray") else data.x, np.float32)


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="state dict: .npz or .pt (default: train one)")
    parser.add_argument(
        "--graph", help="graph with features, labels and masks, as `bitsparse inspect` reads it (default: a seeded one)"
    )
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 4])
    args = parser.parse_args(argv)

    data = example_graph() if args.graph is None else datasets.read(args.graph)
    if args.weights is None:
        network = nn.load_state_dict(train(data))
    elif args.weights.suffix == ".npz":
        network = nn.load_network(args.weights)
    else:
        import torch

        network = nn.load_state_dict(torch.load(args.weights, weights_only=True))

    x = features_of(data)
    found = {"full precision": network(data.adjacency, x)}
    for bits in args.bits:
        model = nn.quantize_network(network, data.adjacency, x, bits)
        graph = nn.GraphOperand.from_csr(
            data.adjacency.indptr,
            data.adjacency.indices,
            normalisation=model.normalisation,
            self_loops=model.self_loops,
        )
        found[f"{bits} bits"] = model(graph, model.quantize(x))
    print(network)
    accuracies = {
        name: 100 * float((y.argmax(axis=1) == data.targets)[data.test_mask].mean()) for name, y in found.items()
    }
    for name, accuracy in accuracies.items():
        print(f"{name:15} {accuracy:6.2f} % of the test nodes")
    return accuracies


if __name__ == "__main__":
    main()

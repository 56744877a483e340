"""Train GCN, GraphSAGE and GIN with PyTorch, quantise them after the training: test accuracies by number of bits.

Run with `python examples/train_quantized.py --data FOLDER` (needs PyTorch), where FOLDER holds cora.npz and pubmed.npz; `--bits 8 4 2`
makes the table of docs/accuracy.md. `--networks gcn-2x16 --graphs cora --seeds 1` makes a small part of it quickly. `--json` prints the
accuracies of every seed, and `--save FOLDER` saves the networks for `bitsparse.nn.load_network`. Parameters have the names of PyTorch
Geometric, which is not needed itself.

The recipe is Kipf and Welling's: Xavier initialisation, row-normalised features, dropout 0.5 before every layer, ReLU between layers, Adam
with learning rate 0.01 and weight decay 0.0005 (with two layers, on the first only), 200 epochs. The validation accuracy is measured every
five epochs, and the best state counts.
"""

import argparse
import json
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import sparse

from bitsparse import datasets, nn

try:
    import torch
    from torch.nn import functional as F
except ImportError as error:
    sys.exit(f"{error}: training needs PyTorch (pip install torch); examples/from_pyg.py quantises stored weights")

warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
NETWORKS = ["gcn-2x16", "gcn-3x16", "sage-2x16", "gin-3x64"]
RATE, DECAY, DROPOUT, LOOK = 0.01, 5e-4, 0.5, 5


def torch_csr(a, values=None):
    parts = torch.tensor(a.indptr), torch.tensor(a.indices), torch.tensor(a.data) if values is None else values
    return torch.sparse_csr_tensor(*parts, a.shape)


class Convolution(torch.nn.Module):
    """GCNConv, SAGEConv or GINConv; it multiplies `x`, dense or sparse, by weights before it sums with the matrix `neighbours`."""

    def __init__(self, kind, inputs, outputs, last):
        super().__init__()
        self.kind = kind
        if kind == "gcn":
            self.lin, self.bias = torch.nn.Linear(inputs, outputs, bias=False), torch.nn.Parameter(torch.zeros(outputs))
            torch.nn.init.xavier_uniform_(self.lin.weight)
        elif kind == "sage":
            self.lin_l, self.lin_r = torch.nn.Linear(inputs, outputs), torch.nn.Linear(inputs, outputs, bias=False)
        else:
            self.register_buffer("eps", torch.zeros(1))
            behind = [] if last else [torch.nn.BatchNorm1d(outputs), torch.nn.ReLU()]
            self.nn = torch.nn.Sequential(torch.nn.Linear(inputs, outputs), *behind)

    def forward(self, x, neighbours):
        def gathered(linear):
            return torch.sparse.mm(neighbours, x @ linear.weight.T)

        if self.kind == "gcn":
            return gathered(self.lin) + self.bias
        if self.kind == "sage":
            return gathered(self.lin_l) + self.lin_l.bias + x @ self.lin_r.weight.T
        return self.nn[1:](gathered(self.nn[0]) + self.nn[0].bias)


class Net(torch.nn.Module):
    def __init__(self, kind, widths):
        super().__init__()
        pairs = list(pairwise(widths))
        self.convs = torch.nn.ModuleList(Convolution(kind, *pair, i == len(pairs) - 1) for i, pair in enumerate(pairs))

    def forward(self, features, neighbours):
        values = F.dropout(torch.tensor(features.data), DROPOUT, self.training)  # zeros need no dropout
        y = self.convs[0](torch_csr(features, values), neighbours)
        for convolution in self.convs[1:]:
            y = convolution(F.dropout(F.relu(y), DROPOUT, self.training), neighbours)
        return y


def neighbours_of(kind, adjacency):
    """The matrix that sums over neighbours: normalised with self-loops (gcn), means (sage), or sums with self-loops (gin)."""
    a = sparse.csr_array(adjacency, dtype=np.float32)
    a.data[:] = 1
    if kind == "gcn":
        return torch_csr(nn.Graph(adjacency).matrix)
    if kind == "sage":
        return torch_csr(sparse.csr_array(a / np.maximum(np.diff(a.indptr), 1).astype(np.float32)[:, None]))
    return torch_csr(sparse.csr_array(a + sparse.eye_array(a.shape[0], dtype=np.float32)))


def train(data, x, kind, depth, hidden, seed, epochs):
    """Train; return the state dict of the epoch with the best validation accuracy."""
    torch.manual_seed(seed)
    net = Net(kind, [x.shape[1], *[hidden] * (depth - 1), data.num_classes])
    later = [p for convolution in net.convs[1:] for p in convolution.parameters()]
    groups = {"params": list(net.convs[0].parameters())}, {"params": later, "weight_decay": DECAY if depth > 2 else 0}
    optimiser = torch.optim.Adam(groups, lr=RATE, weight_decay=DECAY)
    neighbours = neighbours_of(kind, data.adjacency)
    labels, chosen, looked_at = (torch.tensor(each) for each in (data.targets, data.train_mask, data.val_mask))
    best, state = -1.0, {}
    for epoch in range(1, epochs + 1):
        net.train()
        optimiser.zero_grad()
        F.cross_entropy(net(x, neighbours)[chosen], labels[chosen]).backward()
        optimiser.step()
        if epoch % LOOK == 0 or epoch == epochs:
            net.eval()
            with torch.no_grad():
                right = net(x, neighbours).argmax(dim=1) == labels
            if (found := float(right[looked_at].float().mean())) >= best:
                best, state = found, {name: p.numpy().copy() for name, p in net.state_dict().items()}
    return state


def accuracies(data, x, network, bits):
    """Test accuracies in per cent, by number of bits; 32 stands for full precision."""
    logits = {32: network(data.adjacency, x)}
    for each in bits:
        low = nn.quantize_network(network, data.adjacency, x, each)
        how = {"normalisation": low.normalisation, "self_loops": low.self_loops}
        graph = nn.Graph.from_csr(data.adjacency.indptr, data.adjacency.indices, **how)
        logits[each] = low(graph, low.quantize(x))
    right = {each: (y.argmax(axis=1) == data.targets)[data.test_mask].mean() for each, y in logits.items()}
    return {each: round(100 * float(share), 2) for each, share in right.items()}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the graphs (default: .)")
    parser.add_argument("--graphs", nargs="+", default=["cora", "pubmed"], help="NAME of NAME.npz, with a split")
    parser.add_argument(
        "--networks", nargs="+", default=NETWORKS, help="KIND-LAYERSxWIDTH (default: all of docs/accuracy.md)"
    )
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 4])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--save", type=Path, help="folder for GRAPH-NETWORK-SEED.npz")
    parser.add_argument("--json", action="store_true", help="a JSON object a line instead of a table")
    args = parser.parse_args(argv)
    found = []
    if not args.json:
        print(f"| graph | network | {' | '.join(f'{each} bits' for each in (32, *args.bits))} |")
        print(f"|---|---|{'---:|' * (1 + len(args.bits))}", flush=True)
    for graph in args.graphs:
        data = datasets.read(args.data / f"{graph}.npz")
        x = nn.Features(data.x).csr
        for name in args.networks:
            kind, _, size = name.partition("-")
            depth, hidden = map(int, size.split("x"))
            seeds = []
            for seed in range(args.seeds):
                network = nn.load_state_dict(train(data, x, kind, depth, hidden, seed, args.epochs))
                if args.save is not None:
                    network.save(args.save / f"{graph}-{name}-{seed}.npz")
                seeds.append(accuracies(data, x, network, args.bits))
            found.append({"graph": graph, "network": name, "accuracies": seeds})
            means = {each: np.mean([one[each] for one in seeds]) for each in seeds[0]}
            lost = {each: max(one[32] - one[each] for one in seeds) for each in args.bits}
            cells = [f"{means[32]:.1f}", *(f"{means[each]:.1f} ({lost[each]:.1f})" for each in args.bits)]
            print(json.dumps(found[-1]) if args.json else f"| {graph} | {name} | {' | '.join(cells)} |", flush=True)
    return found


if __name__ == "__main__":
    main()

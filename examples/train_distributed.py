"""Train a graph network over all ranks, which exchange features and gradients in 8 bits; then run it in few bits over the same shards:

torchrun --nproc-per-node 2 examples/train_distributed.py

METIS partitions the graph; every rank has the rows, features and labels of its own nodes. `--bits 32` sends float32. On a single CPU, the
ranks share its cores, so more ranks are not faster; the example shows that accuracy stays while fewer bytes travel.
"""

import argparse
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch._dynamo  # DistributedDataParallel imports it, and imported behind a process group it keeps the group alive beyond its end
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import bitsparse as bs
import bitsparse.torch as bst
from bitsparse import datasets, nn


class GCN(torch.nn.Module):
    """Two layers that sum products with the weights over neighbours, since these are narrower than the features."""

    def __init__(self, graph: bs.distributed.GraphShard, sizes: tuple[int, int, int], bits: int | None) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(sizes[0], sizes[1]), torch.nn.Linear(sizes[1], sizes[2])
        self.sums = torch.nn.ModuleList([bst.ShardedSum(graph, bits=bits, seed=i) for i in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.sums[0](F.linear(x, self.first.weight)) + self.first.bias)
        return self.sums[1](F.linear(x, self.second.weight)) + self.second.bias


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bits", type=int, default=8, help="2 to 8, or 32 for floats")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--nodes", type=int, default=4000)
    options = parser.parse_args(arguments)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)  # without torchrun this is the only rank
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    try:
        found = train(bs.distributed.from_torch(dist.group.WORLD), options)
        dist.barrier()
        return found
    finally:  # a process group whose threads outlive Python aborts the process
        dist.destroy_process_group()


def train(comm: Any, options: argparse.Namespace) -> dict[str, float]:
    """Train; return the accuracy of the trained network and of its 8-bit version."""
    size = (options.nodes, 10 * options.nodes)
    data = datasets.synthetic(size, "communities").with_generated(features=48, classes=6).with_split()
    part = bs.distributed.partition(data.adjacency, comm, method="metis")
    graph = bs.distributed.GraphShard(bs.distributed.shard(data.adjacency, part))
    x, y, train, test = (
        torch.tensor(part.take(each))
        for each in (np.asarray(nn.Features(data.x).csr.toarray()), data.targets, data.train_mask, data.test_mask)
    )
    y, all_train, all_test = y.long(), int(data.train_mask.sum()), int(data.test_mask.sum())

    torch.manual_seed(0)
    net = GCN(graph, (48, 32, 6), None if options.bits == 32 else options.bits)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(options.epochs):
        optimizer.zero_grad()
        # This rank's share of the mean over all training nodes, times the number of ranks, by which DistributedDataParallel divides.
        loss = F.cross_entropy(model(x)[train], y[train], reduction="sum") * comm.size / all_train
        loss.backward()
        optimizer.step()

    weights = [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in (net.first, net.second)]
    layers = [nn.Layer([nn.Dense(w, b, activation="relu" if i == 0 else None)]) for i, (w, b) in enumerate(weights)]
    low = nn.quantize_network(
        nn.Network("gcn", layers), data.adjacency, np.asarray(nn.Features(data.x).csr.toarray()), 8
    )
    found = {}
    for name, logits in (("trained", net(x).detach().numpy()), ("in 8 bits", low(graph, x.numpy()))):
        right = np.array([(logits.argmax(axis=1) == y.numpy())[test.numpy()].sum()])
        comm.all_reduce(right)
        found[name] = 100 * float(right[0]) / all_test
    if comm.rank == 0:
        sent = sum(each.exchanged_bytes for each in net.sums) / (options.epochs + 1)
        print(f"{comm.size} ranks, {options.bits} bits on their way: {sent / 1e6:.2f} MB to rank 0 in an epoch")
        print(", ".join(f"{name}: {accuracy:.1f} % of the test nodes" for name, accuracy in found.items()))
    return found


if __name__ == "__main__":
    main()

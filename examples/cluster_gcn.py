"""A graph convolutional network over a graph in batches of METIS parts, in low bits (Cluster-GCN as QGTC runs it).

Run with `python examples/cluster_gcn.py [--bits 8] [--device cuda]`; it needs no framework. The graph is random, with communities and a
fixed seed.
"""

import argparse

import numpy as np

from bitsparse import datasets, nn


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bits", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(argv)

    data = datasets.synthetic((4000, 40_000), "communities").with_generated(features=48, classes=6).with_split()
    graph, features = nn.Graph(data.adjacency), nn.Features(data.x)
    network = nn.train(graph, features, data.targets, data.train_mask, epochs=60)

    x = np.asarray(features.csr.toarray())
    model = nn.quantize_network(network, data.adjacency, x, args.bits)
    runner = nn.ClusterRunner(
        data.adjacency, model, parts=40, parts_per_batch=10, between=True, device=args.device, cache=False
    )
    logits = runner.run(x)  # packs, copies and computes batch after batch; x may also be a path or a memmap

    report = runner.report
    right = {
        "full precision, whole graph": network(data.adjacency, x),
        f"{args.bits} bits, batches": logits,
    }
    found = {name: 100 * float((y.argmax(axis=1) == data.targets)[data.test_mask].mean()) for name, y in right.items()}
    for name, accuracy in found.items():
        print(f"{name:28} {accuracy:6.2f} % of the test nodes")
    print(
        f"{report.batches} batches, {report.dropped} of {report.edges + report.dropped} edges lead out of their batch"
    )
    print(f"bytes that a device would be sent: {report.bytes_moved}, in float32 {report.float_bytes}")
    return found


if __name__ == "__main__":
    main()

"""The accuracy on a small graph for each number of bits."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from bitsparse import nn
from bitsparse._progress import progress
from bitsparse.cli import common

_BITS = (8, 4, 2, 1)
_EPOCHS = 200


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """The results under ``accuracy``."""
    data = common.load_task(args)
    graph, features = nn.Graph(data.adjacency), nn.Features(data.x)
    there = graph.to_device(args.device)
    accuracies: dict[int, list[float]] = {bits: [] for bits in (32, *(args.bits or _BITS))}
    with progress(args.seeds * (_EPOCHS + len(accuracies)), "step") as advance:
        for seed in range(args.seeds):
            options: Any = {"seed": seed, "epochs": _EPOCHS, "progress": advance}
            model = nn.train(graph, features, data.targets, data.train_mask, **options)
            for bits, of_seeds in accuracies.items():
                if bits == 32:
                    logits = model(graph, features)
                else:
                    quantized = nn.quantize_network(model, data.adjacency, features, bits)
                    logits = quantized(there, quantized.quantize(features).to_device(args.device))
                of_seeds.append(common.accuracy(data, logits, data.test_mask))
                advance()
    results = [
        {"bits": bits, "accuracy": round(float(np.mean(some)), 4), "accuracy_std": round(float(np.std(some)), 4)}
        for bits, some in accuracies.items()
    ]
    about = {"graph": data.name, "nodes": data.num_nodes, "edges": data.num_edges, "seeds": args.seeds}
    return about | {"results": results}

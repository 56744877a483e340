"""Time, memory and agreement of a GCN over a large synthetic graph."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop, nn
from bitsparse._progress import progress
from bitsparse.bench import Protocol, time_interleaved
from bitsparse.cli.demo import sides
from bitsparse.cli.memory import need_memory
from bitsparse.datasets import GraphData, synthetic

#: Forms of the pattern. Dense bits are not among them, since they would not fit into memory.
FORMS = ("csr", "frdc", "tiled")
_BITS = (8, 4, 1)
_FEATURES, _HIDDEN, _CLASSES = 128, 64, 16
#: Each class is a range of consecutive nodes. Training and calibration use at most this many nodes from the start of each range, because
#: consecutive nodes keep their neighbours, which nodes drawn one by one would lose.
_TRAINED = 500
#: The standard deviation of a feature within its class, relative to that of the class means.
_NOISE = 3.0
_TRAINING: Any = {"hidden": _HIDDEN, "epochs": 30, "learning_rate": 0.02, "bias": True, "seed": 0}
#: The pause is there because threads of a pool spin for a while after their last task.
_TIMING = Protocol(warmup=1, repetitions=5, seconds=12.0, sample_ms=0.0, pause=0.1)


class Task(NamedTuple):
    """A graph with planted classes, features (nodes, 128) whose rows have an absolute sum of 1, and the ascending nodes to train on."""

    data: GraphData
    x: NDArray[np.float32]
    labels: NDArray[np.int64]
    trained: NDArray[np.int64]


def task(nodes: int, edges: int) -> Task:
    """Make a task in which nodes with near numbers share edges (see :func:`bitsparse.datasets.synthetic`) and classes."""
    data = synthetic((nodes, edges), "communities")
    labels, place = np.divmod(np.arange(nodes), -(-nodes // _CLASSES))
    rng = np.random.default_rng(0)
    means = rng.standard_normal((_CLASSES, _FEATURES), np.float32)
    x = rng.standard_normal((nodes, _FEATURES), np.float32)
    x *= np.float32(_NOISE)
    x += means[labels]
    x /= np.abs(x).sum(axis=1, keepdims=True)
    return Task(data, x, labels, np.flatnonzero(place < _TRAINED))


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """The results under ``large``."""
    nodes, edges = args.large
    need_memory(f"--large {nodes},{edges}", 8 * edges + 4 * nodes * _FEATURES)
    all_bits = args.bits or _BITS
    calls = (len(all_bits) + 3) * (_TIMING.repetitions + 2)  # at most
    with progress(1 + _TRAINING["epochs"] + len(all_bits) + calls, "step") as advance:
        given = task(*args.large)
        advance()
        graph = nn.Graph(given.data.adjacency, form=args.adjacency or "csr")
        part, x = given.data.adjacency[given.trained][:, given.trained], given.x[given.trained]
        labels, mask = given.labels[given.trained], np.ones(given.trained.size, np.bool_)
        network = nn.train(nn.Graph(part), nn.Features(x), labels, mask, progress=advance, **_TRAINING)
        about = (graph, given.x, network, args.device)
        found = [sides.vendor(*about), sides.geometric(*about), sides.in_full(*about)]
        there = graph.to_device(args.device)
        for bits in all_bits:
            quantized = nn.quantize_network(network, part, x, bits)
            found.append(sides.in_bits(there, given.x, quantized, args.device))
            advance()
        results = _compared([side for side in found if side is not None], advance)
    return {
        "nodes": given.data.num_nodes,
        "edges": given.data.num_edges,
        "widths": list(network.widths),
        "results": results,
    }


def _compared(found: list[sides.Side], advance: Callable[[], object]) -> list[dict[str, Any]]:
    """The result of each side: its time, its bytes and its agreement with the first side."""
    classes = [interop.as_host(side.call(), "demo", "logits").argmax(axis=1) for side in found]

    def counted(side: sides.Side) -> Callable[[], object]:
        def call() -> None:
            side.call()
            advance()

        return call

    times = time_interleaved([counted(side) for side in found], _TIMING)
    return [
        {
            "name": side.name,
            "bits": side.bits,
            "threads": side.threads,
            "ms": round(ms, 3),
            "speed": round(times[0] / ms, 3),
            "bytes": side.bytes,
            "agreement": round(100.0 * float((mine == classes[0]).mean()), 3),
        }
        for side, ms, mine in zip(found, times, classes, strict=True)
    ]

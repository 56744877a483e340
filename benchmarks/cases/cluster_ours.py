"""Our side of the cases with batches of parts: networks with random weights on bits, and the runner over a problem's parts."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.cases.cluster_problems import BITS, PARTS_PER_BATCH, Batch, Kind, Problem
from bitsparse import nn

__all__ = ["SAMPLE", "checked", "model_of", "network_of", "runner_of", "same_classes", "weights_of"]

#: Parts, and the largest number of their nodes, on which a network's grids are calibrated. Accuracy is not measured here.
SAMPLE_PARTS, SAMPLE = 50, 2048
#: Larger errors of an 8-bit network's logits, relative to their spread, mean that something is wrong. Random weights and clipped sums over
#: hubs alone cause errors of up to half the spread.
CLOSE = 0.8


@cache
def network_of(kind: Kind, widths: tuple[int, ...]) -> Any:
    """The network in full precision, whose weights both sides use."""
    return nn.random_network(kind, list(widths), seed=0)


def weights_of(network: Any) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Weight and bias of each layer."""
    return [(layer.updates[0].weight, layer.updates[0].bias) for layer in network.layers]


def pattern_of(batch: Batch) -> Any:
    """The adjacency of a batch as a separate graph."""
    ones = np.ones(batch.indices.size, np.bool_)
    return sparse.csr_array((ones, batch.indices, batch.indptr), shape=(batch.nodes.size,) * 2)


def model_of(problem: Problem, kind: Kind, bits: int) -> Any:
    """The network on `bits` bits, calibrated on parts from the whole graph, since the parts of one batch may all be alike."""
    network = network_of(kind, tuple(problem.widths(kind)))
    few = problem.spread(SAMPLE_PARTS)
    return nn.quantize_network(network, pattern_of(few), problem.features[few.nodes], bits, sample=SAMPLE)


def runner_of(problem: Problem, model: Any, device: str) -> Any:
    """The runner over the problem's parts."""
    graph = problem.data.adjacency
    return nn.ClusterRunner(graph, model, labels=problem.labels, parts_per_batch=PARTS_PER_BATCH, device=device)


def checked(case: str, problem: Problem, model: Any, out: NDArray[np.float32]) -> None:
    """Check that all logits are numbers, and that those of the first batch equal the CPU's for it as a separate graph."""
    if not np.isfinite(out).all():
        raise AssertionError(f"{case}: {int((~np.isfinite(out)).any(axis=1).sum())} nodes have no logits")
    first = next(problem.batches())
    one = nn.ClusterRunner(pattern_of(first), model, labels=np.zeros(first.nodes.size, np.int32), device="cpu")
    wanted = np.empty((first.nodes.size, problem.classes), np.float32)
    one.run(problem.features[first.nodes], out=wanted)
    got = out[first.nodes]
    if got.tobytes() != wanted.tobytes():
        rows = (got.view(np.uint32) != wanted.view(np.uint32)).any(axis=1)
        raise AssertionError(
            f"{case}: {int(rows.sum())} of the first batch's {rows.size} nodes have other logits than on the CPU"
        )


def same_classes(case: str, bits: int, out: NDArray[np.float32], peer: NDArray[np.float32]) -> dict[str, float]:
    """The share of nodes with the same class as in full precision, and the logits' error over their spread, checked for 8 bits only."""
    same = float((out.argmax(axis=1) == peer.argmax(axis=1)).mean())
    error = float(np.sqrt(np.mean((out - peer) ** 2)) / max(float(peer.std()), 1e-30))
    if bits == max(BITS) and not error <= CLOSE:
        raise AssertionError(f"{case}: the logits differ from full precision by {error:.2f} of their spread")
    return {"same_class": round(same, 4), "logit_error": round(error, 4)}


def fingerprint(out: NDArray[np.float32]) -> str:
    """A short hash of the logits, equal on every device."""
    return hashlib.sha256(np.ascontiguousarray(out).tobytes()).hexdigest()[:16]

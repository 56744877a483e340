"""An epoch of the networks of suite ``cluster`` in SciPy and NumPy, float32, over the same batches: the peer on the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.cases.cluster_problems import Kind, Problem

__all__ = ["Epoch"]


class _Held(NamedTuple):
    """A batch: its rows of the result, its adjacency with values, and its features."""

    nodes: NDArray[np.int64]
    adjacency: Any
    x: NDArray[np.float32]


class Epoch:
    """All batches as CSR arrays with self loops and weights, made beforehand; calling it with an array for the result runs an epoch.

    A layer is two products, which commute because both are linear up to the activation. They run in the order with fewer operations: the
    weights come first if they do not widen the features, else the aggregation does (only in the last layer of GCN).
    """

    def __init__(self, problem: Problem, kind: Kind, weights: Any, parts: int) -> None:
        self.weights = [(np.asarray(w, np.float32), np.asarray(b, np.float32).ravel()) for w, b in weights]
        self.batches = []
        for batch in problem.batches(parts):
            full = batch.with_loops()
            values = full.normalised() if kind == "gcn" else np.ones(full.indices.size, np.float32)
            indptr = full.indptr.astype(np.int32) if full.indices.size < 2**31 else full.indptr
            adjacency = sparse.csr_array((values, full.indices, indptr), shape=(full.nodes.size,) * 2)
            self.batches.append(_Held(full.nodes, adjacency, problem.features[full.nodes]))
        self.nbytes = sum(
            held.x.nbytes + held.adjacency.data.nbytes + held.adjacency.indices.nbytes + held.adjacency.indptr.nbytes
            for held in self.batches
        )

    def __call__(self, out: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run an epoch; `out` gets the logits of all nodes."""
        for held in self.batches:
            y = held.x
            for i, (weight, bias) in enumerate(self.weights):
                if i:
                    np.maximum(y, 0, out=y)
                first = weight.shape[1] <= weight.shape[0]
                y = held.adjacency @ (y @ weight) if first else (held.adjacency @ y) @ weight
                y += bias
            out[held.nodes] = y
        return out

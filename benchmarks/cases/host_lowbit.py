"""Low-bit networks on sparse features on the CPU, part of the suite ``host``.

- ``lowbit-gcn-8bit-NAME-sparse``: a GCN of 16 hidden columns on 8 bits, on the bag-of-words features of cora, citeseer and pubmed. Features
  are quantised beforehand to codes in CSR (``network.quantize(x, layout="csr")``); the peer's are floats in CSR. A call is
  ``plan(out=logits)`` on one thread. The peer is the same network in float32 on one thread: ``scipy.sparse.csr_array @`` throughout, with
  NumPy for the second product. ``params.dense_ms`` is our own plan of the same codes as dense bits.

Graphs are files as in ``cases/host_spmm.py``; if they are missing, graphs of their size with the same number of feature entries stand in.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.cases.graphs import graph
from benchmarks.cases.host_spmm import BoundsOf, parameters
from bitsparse import nn
from bitsparse.backends import host
from bitsparse.bench import Case, Prepared, Protocol, time_interleaved

__all__ = ["cases"]

#: Columns of the features, their stored entries, and classes.
FEATURES = {"cora": (1433, 49_216, 7), "citeseer": (3703, 105_165, 6), "pubmed": (500, 988_031, 3)}
HIDDEN, BITS = 16, 8


def cases(bounds_of: BoundsOf) -> list[Case]:
    """All cases."""
    return [Case(f"lowbit-gcn-{BITS}bit-{name}-sparse", partial(network, name, bounds_of)) for name in FEATURES]


def data_of(name: str) -> tuple[Any, Any, str]:
    """The adjacency, the features as a csr_array of float32, and their source."""
    data, source = graph(name)
    columns, entries, _ = FEATURES[name]
    x = data.x
    if not sparse.issparse(x) or x.shape[1] != columns:
        rng = np.random.default_rng(0)
        at = rng.choice(data.adjacency.shape[0] * columns, entries, replace=False)
        x = sparse.coo_array((np.ones(entries), np.divmod(at, columns)), shape=(data.adjacency.shape[0], columns))
    return data.adjacency, sparse.csr_array(x, dtype=np.float32), source


def network(name: str, bounds_of: BoundsOf) -> Prepared:
    """The network on bits against the one in floats."""
    import scipy

    adjacency, x, source = data_of(name)
    widths = [x.shape[1], HIDDEN, FEATURES[name][2]]
    full = nn.random_network("gcn", widths, seed=0)
    low = nn.quantize_network(full, adjacency, x, BITS)
    operand = nn.Graph(adjacency, "gcn", self_loops=True, form="csr")
    codes, dense_codes = low.quantize(x, layout="csr"), low.quantize(x)
    plan, dense = low.plan(operand, codes), low.plan(operand, dense_codes)
    out, theirs = (np.empty(plan.shape, np.float32) for _ in range(2))
    pattern = operand.pattern.astype(np.float32)
    weighted = sparse.csr_array(sparse.diags_array(operand.row_scale) @ pattern @ sparse.diags_array(operand.col_scale))
    updates = [layer.updates[0] for layer in full.layers]

    def ours() -> None:
        plan(out=out)

    def peer() -> Any:
        hidden = weighted @ (x @ updates[0].weight)
        if updates[0].bias is not None:
            hidden += updates[0].bias
        np.maximum(hidden, 0, out=hidden)
        logits = weighted @ (hidden @ updates[1].weight)
        return logits if updates[1].bias is None else logits + updates[1].bias

    ours()
    dense(out=theirs)
    if not np.array_equal(out, theirs):
        raise AssertionError("the logits of sparse codes are not those of dense ones")
    wanted = peer()
    if np.abs(out - wanted).max() > 0.1 * np.abs(wanted).max():
        raise AssertionError("the logits are far from those in float32")
    moved = codes.nbytes + sum(part.nbytes for part in (operand.indptr, operand.indices, out)) + low.nbytes
    limits, rates = bounds_of(moved, 1)
    params = parameters(adjacency, source, rates, entries=int(codes.nnz), widths=widths, bits=BITS, threads=1)

    def measure(protocol: Protocol) -> tuple[float, float]:
        threads = host.get_num_threads()
        host.set_num_threads(1)
        try:
            ours_ms, peer_ms, dense_ms = time_interleaved([ours, peer, lambda: dense(out=theirs)], protocol)
        finally:
            host.set_num_threads(threads)
        params["dense_ms"] = dense_ms
        return ours_ms, peer_ms

    return Prepared(
        ours, peer, f"scipy {scipy.__version__} csr_array, float32", params, moved, *limits, measure=measure
    )

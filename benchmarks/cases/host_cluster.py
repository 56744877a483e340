"""Epochs of inference over batches of METIS parts on the CPU, part of the suite ``host``.

``cluster-{gcn|gin}-{graph}-b{bits}``: an epoch of ``bitsparse.nn.ClusterRunner`` on the CPU, from packed batches to logits in the nodes'
order, against the same network in float32 over the same batches. The peer uses SciPy's CSR products and NumPy's products with weights, in
each layer in the cheaper order, and prepares all that it can beforehand (``peers/scipy_cluster.py``). Packing is not timed on either side;
``params.pack_ms`` is the time of ours. Graphs, parts, widths, networks and checks are those of suite ``cluster``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy

from benchmarks.cases.cluster_ours import (
    checked,
    fingerprint,
    model_of,
    network_of,
    runner_of,
    same_classes,
    weights_of,
)
from benchmarks.cases.cluster_problems import BITS, KINDS, PARTS_PER_BATCH, Kind, Problem, problem
from benchmarks.peers.scipy_cluster import Epoch
from bitsparse.backends import host
from bitsparse.bench import Prepared

#: Graphs whose cases take only seconds on a CPU.
GRAPHS = ("PROTEINS_full", "artist", "ppi", "blogcatalog", "arxiv", "DD")

#: Bytes and threads to ``(floor_ms, estimate_ms)`` and what the estimate rests on.
BoundsOf = Callable[[int, int], tuple[tuple[float | None, float | None], str]]


def table(threads: int, bounds_of: BoundsOf) -> list[tuple[str, Callable[[], Prepared]]]:
    """Names and preparations of the cases."""
    return [
        (f"cluster-{kind}-{name}-b{bits}", partial(epoch, kind, name, bits, threads, bounds_of))
        for name in GRAPHS
        for kind in KINDS
        for bits in BITS
    ]


_held: dict[tuple[str, Kind], tuple[Epoch, Any]] = {}


def peer_of(made: Problem, kind: Kind) -> tuple[Epoch, Any]:
    """The peer on a problem and its logits; they are kept until another problem is asked for."""
    if (made.name, kind) not in _held:
        _held.clear()
        one = Epoch(made, kind, weights_of(network_of(kind, tuple(made.widths(kind)))), PARTS_PER_BATCH)
        _held[made.name, kind] = one, one(np.full((made.nodes, made.classes), np.nan, np.float32))
    return _held[made.name, kind]


def epoch(kind: Kind, name: str, bits: int, threads: int, bounds_of: BoundsOf) -> Prepared:
    """An epoch of ours against one of SciPy."""
    case, made = f"cluster-{kind}-{name}-b{bits}", problem(name)
    peer, logits = peer_of(made, kind)
    model = model_of(made, kind, bits)
    runner = runner_of(made, model, "cpu")
    start = time.perf_counter()
    packed = runner.pack(made.features)
    params: dict[str, Any] = {"pack_ms": 1e3 * (time.perf_counter() - start)}
    out = np.full((made.nodes, made.classes), np.nan, np.float32)
    runner.run_packed(packed, out=out)
    checked(case, made, model, out)
    params |= made.facts() | {"kind": kind, "bits": bits, "packed": packed.facts(), "simd": host.simd_level()}
    params |= same_classes(case, bits, out, logits) | {"hash": fingerprint(out), "peer_bytes": peer.nbytes}
    moved = int(packed.nbytes) + out.nbytes
    limits, params["estimate"] = bounds_of(moved, threads)
    result = np.empty_like(out)
    name_of_peer = f"scipy {scipy.__version__} float32 CSR @, numpy {np.__version__} @"
    ours: Callable[[], object] = partial(runner.run_packed, packed, out=out)
    return Prepared(ours, partial(peer, result), name_of_peer, params, moved, *limits)

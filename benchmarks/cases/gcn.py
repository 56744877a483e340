"""Cases of suite ``binary`` with whole networks: Bi-GCN's two layers of 64 columns on Planetoid's graphs.

``gcn-{full,bin}-{graph}`` is a binary GCN with random weights, prepared for the graph and replayed as one CUDA graph: *full* aggregates
floats, and *bin* aggregates bits in its first layer (BitGNN's two versions). Features are float32, as for the peer; ``...-packed-...``
takes their packed signs instead, as BitGNN keeps them. The peer is PyTorch Geometric in float32 with a sparse CSR adjacency, captured too;
``params.scatter_ms`` is its other method, which gathers and scatters along edges.

``params.peak_bytes`` is the peak of the memory pool during a call: graph, weights, features, buffers, result, and temporary memory.
``params.peer_bytes`` is that of PyTorch Geometric's better method, without the workspace of cuBLAS.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.cases.binary_models import OURS, contender, network
from benchmarks.cases.sparse_gpu import drop_all, in_turns
from benchmarks.peers.pyg import version as geometric_version
from bitsparse.bench import Case, Prepared, Protocol

NAMES = ("cora", "citeseer", "pubmed")


def cases() -> list[Case]:
    """The cases of this file."""
    found = []
    for name in NAMES:
        for way in OURS:
            found.append(Case(f"gcn-{way}-{name}", partial(whole, name, way, packed=False)))
            found.append(Case(f"gcn-{way}-packed-{name}", partial(whole, name, way, packed=True)))
    return found


_held: dict[str, Any] = {}


def sides_of(name: str) -> dict[str, Any]:
    """A graph and the peers' networks on it; they are kept until another graph is asked for."""
    if _held.get("name") != name:
        _held.clear()
        drop_all()
        net = network(name)
        _held.update(name=name, net=net, peers=[contender("gcn", version, net) for version in ("fp32 (T)", "fp32 (S)")])
    return _held


def whole(name: str, way: str, *, packed: bool) -> Prepared:
    """A whole network against PyTorch Geometric's."""
    net, peers = (sides_of(name)[part] for part in ("net", "peers"))
    mine = contender("gcn", way, net, packed=packed)
    params: dict[str, Any] = net.facts() | mine.facts | peers[0].facts
    params |= {"version": way, "packed": packed, "replayed": mine.timed.replayed}
    params |= {"peak_bytes": mine.peak_bytes, "peer_bytes": min(peer.peak_bytes for peer in peers)}

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, peer_ms, params["scatter_ms"] = in_turns([mine.timed, *(p.timed for p in peers)], protocol.repetitions)
        return ms, peer_ms

    return Prepared(lambda: None, None, geometric_version(), params, mine.peak_bytes, measure=measure)

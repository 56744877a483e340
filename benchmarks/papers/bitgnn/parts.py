"""The measurements of ``papers/bitgnn/program.py``: whole networks of the paper's sizes, ours and PyTorch Geometric's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.cases.binary_models import OURS, THEIRS, Contender, contender, network
from benchmarks.cases.sparse_gpu import drop_all, in_turns
from benchmarks.gpu_timing import machine
from benchmarks.peers.pyg import version as geometric_version
from bitsparse.bench import Record

__all__ = ["PARTS", "measurements"]

#: The models and graphs of each table.
PARTS = {
    "table-3": (("gcn",), ("cora", "pubmed", "citeseer")),
    "table-4": (("gcn", "sage"), ("flickr", "reddit")),
    "table-5": (("saint",), ("flickr", "reddit")),
}
#: Gathering along the edges of a graph with more edges would take all of the card's memory.
MOST_SCATTERED = 20_000_000


def measurements(
    part: str, commit: str | None, repetitions: int
) -> Iterator[tuple[str, Callable[[], list[dict[str, Any]]]]]:
    """Yield a name and a measurement for each graph and model of a part."""
    models, graphs = PARTS[part]
    for graph in graphs:
        for model in models:
            yield f"{part}-{model}-{graph}", partial(versions, part, model, graph, commit, repetitions)


def versions(part: str, model: str, graph: str, commit: str | None, repetitions: int) -> list[dict[str, Any]]:
    """Records of all versions of a model on one graph, timed in turns; the peer of each is FP32 (T), with sparse products."""
    drop_all()
    net = network(graph)
    found: dict[str, Contender] = {}
    for version in (*THEIRS, *OURS):
        if THEIRS.get(version) == "scatter" and net.indices.size > MOST_SCATTERED:
            continue
        found[version] = contender(model, version, net, packed=True)
    times = dict(zip(found, in_turns([one.timed for one in found.values()], repetitions), strict=True))
    where, made = machine(1, commit), []
    for version, one in found.items():
        params = {"part": part, "model": model, "version": version} | net.facts() | one.facts
        params |= {"peak_bytes": one.peak_bytes, "replayed": one.timed.replayed}
        peer = geometric_version(), times["fp32 (T)"]
        case = f"{part}-{model}-{graph}-{version}"
        record = Record("bitgnn", case, params, times[version], *peer, one.peak_bytes, where)
        made.append(record.flat())
    return made

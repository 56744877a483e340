"""The bars of suite ``training``; ``summary.py`` prints them. The worst cell of each counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.suites.bars import Bar
from benchmarks.suites.training import ON_SIGNS

__all__ = ["bars"]

_Record = dict[str, Any]
_Limits = tuple[float, float]
#: The speed-up over the peer that epochs must and should reach, by graph and precision, for each network.
SPEED: dict[tuple[str, str], dict[str, _Limits]] = {
    ("reddit", "fp32"): {
        "gcn": (1.7, 2.1), "sage": (1.7, 2.1), "gin": (2.0, 2.5), "gat": (8.0, 13.0), "agnn": (2.8, 3.9),
    },
    ("reddit", "bf16"): {"gcn": (2.2, 2.8), "sage": (2.2, 2.8), "gin": (2.5, 3.2)},
    ("products", "fp32"): {
        "gcn": (2.1, 2.6), "sage": (2.2, 2.8), "gin": (2.4, 3.0), "gat": (10.0, 14.0), "agnn": (5.0, 6.5),
    },
    ("small", "fp32"): {"gcn": (2.0, 3.0), "gat": (5.0, 9.0), "agnn": (3.0, 6.0)},
}  # fmt: skip
#: The share of the peer's memory that an epoch of reddit's size must not and should not exceed.
MEMORY: dict[str, _Limits] = {"gat": (1 / 5, 1 / 7.5), "agnn": (1 / 8, 1 / 13), "gcn": (0.8, 0.64)}
SMALL = ("cora", "pubmed", "artist")
#: Milliseconds that an epoch on signs with gradients in int8 on a graph of reddit's size must and should not exceed, on an H200.
BINARY_MS: _Limits = (9.0, 7.0)


def bars(records: Iterable[_Record]) -> list[Bar]:
    """All bars; bars without cells are included, empty."""
    epochs = [record for record in records if "peak_bytes" in record["params"]]
    others = [record for record in records if "peak_bytes" not in record["params"]]

    def cells(network: str, precision: str, size: str, value: Callable[[_Record], float]) -> dict[str, float]:
        found = {}
        for record in epochs:
            params, graph = record["params"], record["case"].split("-", 3)[3]
            fits = graph in SMALL if size == "small" else graph.startswith(size)
            if fits and (params["network"], params["precision"]) == (network, precision):
                found[record["case"]] = value(record)
        return found

    found = []
    for (size, precision), networks in SPEED.items():
        for network, limits in networks.items():
            title = f"{size} {network} {precision}"
            found.append(Bar(title, cells(network, precision, size, _ratio), worst=limits))
            if all("without_edges_ms" in record["params"] for record in epochs):
                found.append(Bar("  if sums took no time", cells(network, precision, size, _bound)))
    for network, (must, aim) in MEMORY.items():
        shares = cells(network, "fp32", "reddit", _memory)
        found.append(Bar(f"reddit {network} memory, the peer's over ours", shares, worst=(1 / must, 1 / aim)))
    for network in ON_SIGNS:
        of_limit = cells(network, "int8", "reddit", lambda record: BINARY_MS[0] / float(record["ours_ms"]))
        title = f"reddit {network} int8, {BINARY_MS[0]:.0f} ms over ours"
        found.append(Bar(title, of_limit, worst=(1.0, BINARY_MS[0] / BINARY_MS[1])))
    accelerated = {record["case"]: _ratio(record) for record in others if record["case"] == "training-accelerate-cora"}
    found.append(Bar("accelerate on cora, PyTorch Geometric", accelerated, worst=(1.0, 1.5)))
    on_cpu = {record["case"]: _ratio(record) for record in others if record["case"].startswith("training-cpu-gcn")}
    found.append(Bar("GCN on a CPU", on_cpu, worst=(1.3, 2.0)))
    return found


def _ratio(record: _Record) -> float:
    return float(record["ratio"])


def _bound(record: _Record) -> float:
    """The ratio if our sums over edges took no time."""
    return float(record["peer_ms"] / record["params"]["without_edges_ms"])


def _memory(record: _Record) -> float:
    return float(record["params"]["peer_bytes"] / record["params"]["peak_bytes"])

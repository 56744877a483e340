"""The bars of suite ``cluster``; ``summary.py`` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.suites.bars import Bar

__all__ = ["bars"]

#: Milliseconds allowed for packing an epoch of products, and the share of the time for which the GPU may be idle in an epoch.
PACKED_MS, IDLE = 3000.0, 0.2
_Record = dict[str, Any]
_Ratio = Callable[[_Record], float | None]


def bars(records: Iterable[_Record]) -> list[Bar]:
    """All bars; bars without cells are included, empty."""
    table = [record for record in records if record["case"].startswith("cluster-")]
    epochs = [record for record in table if "-pack-" not in record["case"]]

    def cells(value: _Ratio, chosen: Iterable[_Record] = epochs, **params: Any) -> dict[str, float]:
        found = {}
        for record in chosen:
            if all(record["params"].get(name) == want for name, want in params.items()):
                ratio = value(record)
                if ratio:
                    found[record["case"]] = ratio
        return found

    packed = [record for record in table if "-pack-" in record["case"]]
    return [
        Bar("epochs of GCN and GIN, PyTorch Geometric", cells(_ratio), (3.0, 6.0), (1.2, 2.0)),
        *(Bar(f"  {kind}", cells(_ratio, kind=kind)) for kind in ("gcn", "gin")),
        *(Bar(f"  {bits} bit{'s' if bits > 1 else ''}", cells(_ratio, bits=bits)) for bits in (1, 2, 4, 8)),
        Bar("  its batches launched one by one", cells(over("launched_ms"))),
        # Features and edge_index alone: every variant of the peer moves at least these bytes.
        Bar("bytes moved, 1 bit, fewer than PyTorch Geometric", cells(fewer("plain_bytes"), bits=1), (16.0, 24.0)),
        Bar("bytes moved, 8 bits, fewer than PyTorch Geometric", cells(fewer("plain_bytes"), bits=8), (3.5, 4.0)),
        Bar("  8 bits, the way that counts", cells(fewer("peer_moved"), bits=8)),
        Bar("packing products, 3 s over ours", cells(limit(PACKED_MS), packed), (None, None), (1.0, 3.0)),
        Bar("idle share, products, 20 % over ours", cells(idle, graph="products"), (None, None), (1.0, 2.0)),
        Bar("  share in which kernels run, products", cells(parameter("computing"), graph="products")),
        Bar("the estimate over ours", cells(estimated)),
    ]


def _ratio(record: _Record) -> float | None:
    ratio: float | None = record["ratio"]
    return ratio


def over(name: str) -> _Ratio:
    """A parameter divided by our time."""
    return lambda record: float(record["params"][name]) / record["ours_ms"] if record["params"].get(name) else None


def fewer(name: str) -> _Ratio:
    """The peer's bytes divided by ours."""
    return lambda record: record["params"][name] / record["params"]["moved"]


def limit(ms: float) -> _Ratio:
    """The allowed time divided by ours."""
    return lambda record: ms / float(record["ours_ms"])


def idle(record: _Record) -> float | None:
    """The allowed idle share divided by ours, which counts as at least a hundredth."""
    found = record["params"].get("idle")
    return None if found is None else IDLE / max(float(found), 0.01)


def parameter(name: str) -> _Ratio:
    """A parameter itself."""
    return lambda record: record["params"].get(name)


def estimated(record: _Record) -> float | None:
    """The estimate divided by our time."""
    return record["estimate_ms"] / record["ours_ms"] if record["estimate_ms"] else None

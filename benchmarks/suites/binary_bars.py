"""The bars of suite ``binary``; ``summary.py`` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.suites.bars import Bar

__all__ = ["bars"]

#: Shorter estimates (milliseconds) are not compared with: the start and end of any call take 2 us, which would dominate below 5 us.
LONG = 0.005
#: By number of columns: the speed-up over cuSPARSE's float32 that a BBB product must and should reach.
AGAINST_VENDOR = {64: (3.0, 6.0), 128: (5.0, 10.0), 256: (8.0, 16.0)}
#: The memory's rate in bytes per second, and the share of it at which a product should read its activations.
READ_RATE, READ_SHARE = 4.5e12, 0.9
LARGE_BMM = "232965x602x128"
_Record = dict[str, Any]
_Ratio = Callable[[_Record], float | None]


def bars(records: Iterable[_Record]) -> list[Bar]:
    """All bars; bars without cells are included, empty."""
    table = list(records)

    def cells(prefix: str, value: _Ratio, end: str = "", **params: Any) -> dict[str, float]:
        found = {}
        for record in table:
            facts, case = record["params"], record["case"]
            if case.startswith(prefix) and case.endswith(end) and all(facts.get(k) == v for k, v in params.items()):
                ratio = value(record)
                if ratio:
                    found[case] = ratio
        return found

    # Cases with frdc=True are the same graph in another format: they are recorded but not judged.
    bbb = {width: cells("bspmm-bbb-", _ratio, f"-D{width}", frdc=False) for width in AGAINST_VENDOR}
    memory = over("peer_bytes", "peak_bytes")
    return [
        *(Bar(f"BBB, {width} columns, cuSPARSE fp32", bbb[width], AGAINST_VENDOR[width]) for width in AGAINST_VENDOR),
        Bar("BBB without reuse, against the gather estimate", cells("bspmm-bbb-", _share, frdc=False), (0.6, 0.85)),
        Bar("BBF, 128 columns, cuSPARSE fp32", cells("bspmm-bbf-", _ratio, "-D128"), (3.0, 5.0)),
        # Both sides run the same kernel and differ only in the rest of the call.
        Bar("FBF, our float32 spmm", cells("bspmm-fbf-", _ratio), (1.0, None), (0.95, None)),
        Bar("FBB, our float32 spmm", cells("bspmm-fbb-", _ratio)),
        Bar("FBB, our spmm, then sign and pack", cells("bspmm-fbb-", over("packed_ms")), (1.0, 1.1)),
        Bar("with weights, cuSPARSE fp32", weighted(cells)),
        Bar(
            "BBB reddit power law, 1.2 ms over ours", cells("bspmm-bbb-reddit-power_law-D128", limit(1.2)), (1.0, 1.41)
        ),
        Bar("BBB papers, 100 ms over ours", cells("papers-bbb-", limit(100.0)), (None, None), (1.0, 2.22)),
        Bar("FRDC COLLAB, 10 ms over ours", cells("frdc-COLLAB", limit(10.0)), (1.0, 2.0)),
        Bar(f"BMM FBB {LARGE_BMM}, TF32, then sign and pack", cells("bmm-fbb-", _ratio, LARGE_BMM), (1.5, None)),
        Bar(f"BMM FBB {LARGE_BMM}, X at 90 % of the memory", cells("bmm-fbb-", reading, LARGE_BMM), (None, 1.0)),
        Bar("BMM, other shapes, TF32", others(cells)),
        Bar("binary GCN, PyTorch Geometric", cells("gcn-", _ratio, packed=False), (2.0, 4.0), (2.0, None)),
        Bar("  from packed features", cells("gcn-", _ratio, packed=True)),
        Bar("memory of fp32 over a binary GCN's, pubmed", cells("gcn-bin-packed-pubmed", memory), (8.0, 15.0)),
        Bar("  full-precision aggregation, memory", cells("gcn-full-packed-pubmed", memory)),
        Bar("a row of 30 000, the same without", cells("hub-bspmm-bbb-", _ratio), (None, None), (0.67, 0.91)),
    ]


def weighted(cells: Callable[..., dict[str, float]]) -> dict[str, float]:
    """All cases of adjacencies with values."""
    return cells("bspmm-", _ratio, weighted=True)


def others(cells: Callable[..., dict[str, float]]) -> dict[str, float]:
    """All dense products except the one that has a bar."""
    return {case: ratio for case, ratio in cells("bmm-", _ratio).items() if case != f"bmm-fbb-{LARGE_BMM}"}


def _ratio(record: _Record) -> float | None:
    ratio: float | None = record["ratio"]
    return ratio


def _share(record: _Record) -> float | None:
    if record["params"].get("estimate") != "gather" or record["estimate_ms"] < LONG:
        return None
    return float(record["estimate_ms"] / record["ours_ms"])


def over(name: str, ours: str | None = None) -> _Ratio:
    """A parameter divided by our time, or by another parameter."""

    def value(record: _Record) -> float | None:
        facts = record["params"]
        below = record["ours_ms"] if ours is None else facts.get(ours)
        return float(facts[name]) / below if facts.get(name) and below else None

    return value


def limit(ms: float) -> _Ratio:
    """The allowed time divided by ours."""
    return lambda record: ms / float(record["ours_ms"])


def reading(record: _Record) -> float:
    """The time to read the activations at nine tenths of the memory's rate, divided by our time."""
    return 1e3 * float(record["params"]["x_bytes"]) / (READ_SHARE * READ_RATE) / float(record["ours_ms"])

"""The bars of suite ``spmm``; ``summary.py`` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.suites.bars import Bar

__all__ = ["bars"]

#: Estimates of fewer milliseconds are too short to compare with.
LONG = 0.020
_Record = dict[str, Any]


def bars(records: Iterable[_Record]) -> list[Bar]:
    """All bars; bars without cells are included, empty."""
    table = list(records)
    real = [record for record in table if not synthetic(record)]
    made = [record for record in table if synthetic(record)]

    def cells(
        chosen: Iterable[_Record], family: str, value: Callable[[_Record], float | None], **params: Any
    ) -> dict[str, float]:
        found = {}
        for record in chosen:
            facts = record["params"]
            if record["case"].split("-")[0] == family and all(facts.get(name) == want for name, want in params.items()):
                ratio = value(record)
                if ratio:
                    found[record["case"]] = ratio
        return found

    def field(precision: str, *, pattern: bool = False, family: str = "spmm") -> dict[str, float]:
        more = {"pattern": pattern} if family == "spmm" else {}
        return cells(real, family, lambda record: record["params"].get("field_ratio"), precision=precision, **more)

    def vendor(chosen: list[_Record], precision: str, family: str = "spmm") -> dict[str, float]:
        more = {"pattern": False} if family == "spmm" else {}
        return cells(chosen, family, lambda record: record["ratio"], precision=precision, **more)

    fp32, tf32, tf32_ones = field("fp32"), field("tf32"), field("tf32", pattern=True)
    both = {name: min(ratio, tf32_ones.get(ones_of(name), ratio)) for name, ratio in tf32.items()}
    hub = {
        kind: {record["case"]: record["ratio"] for record in table if record["case"].startswith(f"hub-{kind}-")}
        for kind in ("gat", "agnn", "spmm")
    }
    halves = field("fp16") | field("bf16")
    field_limits = ((1.15, 1.5), (0.9, 1.0))
    vendor_limits = ((1.5, 2.0), (1.0, None))
    made_limits = ((1.3, 2.0), (1.05, None))
    attention = ((3.0, 5.0), (None, None))
    ratio = _ratio
    return [
        Bar("spmm fp32, field", fp32, *field_limits),
        Bar("spmm tf32, field", both, *field_limits),
        Bar("  with weights", tf32),
        Bar("  patterns", tf32_ones),
        Bar("spmm fp32 and tf32, field", fp32 | both, *field_limits),
        Bar("spmm fp16 and bf16, field", halves, (1.4, 2.0), (0.95, None)),
        Bar("spmm fp32, cuSPARSE", vendor(real, "fp32"), *vendor_limits),
        Bar("spmm tf32, cuSPARSE", vendor(real, "tf32"), *vendor_limits),
        Bar("spmm fp16, cuSPARSE", vendor(real, "fp16"), *vendor_limits),
        Bar("spmm bf16, cuSPARSE", vendor(real, "bf16"), *vendor_limits),
        Bar("the gather estimate over ours, fp32", shares(real, "fp32"), (0.75, 0.9)),
        Bar("the gather estimate over ours, fp16", shares(real, "fp16"), (0.75, 0.9)),
        Bar("sddmm fp32, field", field("fp32", family="sddmm"), (1.2, 1.6), (0.8, None)),
        Bar("sddmm fp32, cuSPARSE", vendor(real, "fp32", "sddmm")),
        Bar("sddmm, TF32 allowed, field", field("tf32", family="sddmm"), (1.6, 2.0), (1.0, 1.1)),
        Bar("sddmm, TF32 allowed, cuSPARSE", vendor(real, "tf32", "sddmm")),
        Bar("synthetic fp32, cuSPARSE", vendor(made, "fp32"), *made_limits),
        Bar("synthetic tf32, cuSPARSE", vendor(made, "tf32"), *made_limits),
        Bar("synthetic fp16, cuSPARSE", vendor(made, "fp16"), *made_limits),
        Bar("GAT, 4 heads x 32, PyTorch", cells(table, "gat", ratio), *attention),
        Bar("AGNN, PyTorch", cells(table, "agnn", ratio), *attention),
        Bar("translate COLLAB, 10 ms over ours", translations(table, "COLLAB", 10.0), (1.0, 2.0)),
        Bar("translate reddit, 40 ms over ours", translations(table, "reddit", 40.0), (1.0, 2.0)),
        Bar("hubs: fused attention, the same without", hub["gat"] | hub["agnn"], (None, None), (0.67, 0.91)),
        Bar("hubs: float32 sums, the same without", hub["spmm"]),
        Bar("scales against weights, D = 16", cells(table, "scaled", ratio), (1.0, 1.1)),
    ]


def _ratio(record: _Record) -> float | None:
    ratio: float | None = record["ratio"]
    return ratio


def synthetic(record: _Record) -> bool:
    """Whether the record's graph is synthetic."""
    return str(record["params"].get("source", "")).startswith("synthetic")


def ones_of(case: str) -> str:
    """The case of the same cell without weights."""
    return case.replace("spmm-", "spmm-pattern-", 1)


def shares(records: Iterable[_Record], precision: str) -> dict[str, float]:
    """The estimate divided by our time, for records whose estimate rests on gathers and is long enough."""
    found = {}
    for record in records:
        facts = record["params"]
        if facts.get("estimate") != "gather" or facts["precision"] != precision or facts["pattern"]:
            continue
        if record["estimate_ms"] >= LONG:
            found[record["case"]] = float(record["estimate_ms"] / record["ours_ms"])
    return found


def translations(records: Iterable[_Record], graph: str, limit: float) -> dict[str, float]:
    """The allowed time divided by ours."""
    prefix = f"translate-{graph}"
    return {record["case"]: limit / record["ours_ms"] for record in records if record["case"].startswith(prefix)}

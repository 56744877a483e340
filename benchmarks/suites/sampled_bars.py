"""The bars of suite ``sampled``; ``summary.py`` prints them.

Only cells that read fewer than half of the edges are compared with the product over all edges. There a ratio of 1 means that they are 1.3
times as fast, or that the estimated time of their gathers is 75 % of ours. The first words of a case's name tell its kind. A transfer's
ratio is the time of float32 features divided by that of packed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.suites.bars import Bar

__all__ = ["bars"]


def bars(records: Sequence[dict[str, Any]]) -> list[Bar]:
    """All bars; bars without cells are included, empty."""
    ratios = {record["case"]: record["ratio"] for record in records if record["ratio"]}
    facts = {
        record["case"]: record["params"]
        | {"ratio": record["ratio"], "estimated": (record["estimate_ms"] or 0.0) / record["ours_ms"]}
        for record in records
        if record["case"].startswith("sampled-")
    }
    real = {case: found for case, found in facts.items() if "proteins39" not in case and found["bits"] is None}
    field = {case: found["field_ratio"] for case, found in real.items() if "field_ratio" in found}
    few = {case: found for case, found in real.items() if found["distinct"] < 0.5 and found["ratio"]}
    whole = {case: max(found["ratio"] / 1.3, found["estimated"] / 0.75) for case, found in few.items()}
    proteins = {case: found for case, found in facts.items() if "proteins39" in case and found["ratio"]}

    def vendor(bits: int | None) -> dict[str, float]:
        return {case: found["ratio"] for case, found in proteins.items() if found["bits"] == bits}

    def named(first: str, *, holds: str = "") -> dict[str, float]:
        return {case: ratio for case, ratio in ratios.items() if case.startswith(first) and holds in case}

    def sums(bits: int, form: str = "") -> dict[str, float]:
        found = named(f"codes-spmm-int{bits}-")
        forms = {case: case.split("-")[3] for case in found}
        return {
            c: r for c, r in found.items() if (forms[c] if forms[c] in ("out", "weighted", "heads") else "") == form
        }

    dots = {case: ratio for case, ratio in named("sddmm-int8-").items() if "-add-" not in case}
    return [
        Bar("ES-SpMM in the field", field, (1.3, 2.0), (0.95, None)),
        *(
            Bar(f"  {s}", {case: ratio for case, ratio in field.items() if f"-{s}-" in case})
            for s in ("sfs", "afs", "aes")
        ),
        Bar("all edges, fewer than half read", whole, (None, None), (1.0, None)),
        Bar("proteins39, cuSPARSE of all edges", vendor(None), (4.0, 5.0)),
        Bar("proteins39, 8 bits", vendor(8), (10.0, 15.0)),
        Bar("proteins39, 4 bits", vendor(4)),
        Bar(
            "drawn in every call, ES-SpMM",
            {c: f["field_ms"] / f["drawn_ms"] for c, f in real.items() if "field_ms" in f},
        ),
        Bar("spmm of 8 bits, our float32", sums(8), (1.6, 2.5)),
        Bar("spmm of 4 bits, our float32", sums(4), (2.0, 4.0)),
        Bar("spmm of 2 bits, our float32", sums(2)),
        Bar("  8 and 4 bits, codes out", sums(8, "out") | sums(4, "out")),
        Bar("  8 and 4 bits, weighted", sums(8, "weighted") | sums(4, "weighted")),
        Bar("  8 bits, a weight for each edge and head", sums(8, "heads"), (1.5, 2.0), (1.0, 1.2)),
        Bar("sddmm of 8 bits, our float32", dots, (1.4, 2.0)),
        Bar("  sums written per edge", named("sddmm-int8-add-")),
        Bar("sddmm of 4 bits, our float32", named("sddmm-int4-")),
        Bar("stochastic rounding, a copy's rate", named("rounding-", holds="copy"), (0.8, 0.95)),
        Bar("stochastic rounding, cupy.random", named("rounding-", holds="cupy"), (5.0, None)),
        Bar("quantised GEMM, cuBLAS fp32", named("qgemm-", holds="tf32off"), (6.0, 8.0)),
        Bar("quantised GEMM, cuBLAS TF32", named("qgemm-", holds="tf32on"), (1.1, 1.4)),
        Bar("transfer of 8 bits, float32", named("transfer-"), (1 / 0.3, 1 / 0.26)),
    ]

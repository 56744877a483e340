"""The bars of suite ``manners``, separate for records of a CPU and of a GPU; ``summary.py`` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.suites.bars import Bar

__all__ = ["bars"]

EVERYDAY = ("transpose-", "slice-2:5-", "sum-1-", "add-", "times-", "diagonal-")


def bars(records: Sequence[dict[str, Any]]) -> list[Bar]:
    """All bars; bars without cells are included, empty."""
    found: list[Bar] = []
    for where, musts in (("CPU", (0.85, 0.95)), ("GPU", (0.8, 0.95))):
        here = [record for record in records if (record["gpu"] is not None) == (where == "GPU")]
        ratios = {record["case"]: record["ratio"] for record in here if record["ratio"]}
        shares = {record["case"]: record["params"]["share"] for record in here if record["case"] == "members"}

        def named(*first: str, of: dict[str, float] = ratios) -> dict[str, float]:
            return {case: ratio for case, ratio in of.items() if case.startswith(first)}

        peer = "SciPy" if where == "CPU" else "cupyx"
        found += [
            Bar(f"{where}: members of csr_array that are the same", shares, musts),
            Bar(
                f"{where}: everyday calls, {peer}", named(*EVERYDAY), (1.0, 2.0 if where == "CPU" else 3.0), (1.0, None)
            ),
            Bar(
                f"{where}: A @ A of booleans, {peer}",
                named("square-"),
                (None, None),
                (1.0, 3.0) if where == "GPU" else (None, None),
            ),
            Bar(
                f"{where}: other picks and comparisons",
                named("slice-rows", "slice-columns", "pick-", "compare-", "and-"),
            ),
            Bar(f"{where}: A @ v", named("vector-")),
            Bar(f"{where}: constructing, tocsc", named("construct-"), (None, None), (1.0, 2.0)),
            Bar(f"{where}: short calls", named("short-"), (None, None), (0.8, 1.2)),
        ]
    return found

"""The bars of suite ``sampled`` from its records: geometric means and worst cells.

python3 benchmarks/summary_sampled.py FILE [FILE ...]

Files are what ``run.py --suite sampled --json`` writes; of a case that occurs twice the last record counts. Against all edges
stand the cells that read fewer than half of them: 1 is 1.3 times as quick, or 75 % of the gather limit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from summary import HEADINGS, Bar, row

from bitsparse.bench import format_table

__all__ = ["bars", "main"]


def bars(records: Sequence[dict[str, Any]]) -> list[Bar]:
    """Every bar; those without cells are there, empty."""
    facts = {record["case"]: record["params"] | {"ratio": record["ratio"]} for record in records}
    real = {case: found for case, found in facts.items() if "proteins39" not in case and found["bits"] is None}
    field = {case: found["field_ratio"] for case, found in real.items() if "field_ratio" in found}
    few = {case: found for case, found in real.items() if found["distinct"] < 0.5 and found["ratio"]}
    whole = {case: max(found["ratio"] / 1.3, found["share"] / 0.75) for case, found in few.items()}
    proteins = {case: found for case, found in facts.items() if "proteins39" in case and found["ratio"]}

    def vendor(bits: int | None) -> dict[str, float]:
        return {case: found["ratio"] for case, found in proteins.items() if found["bits"] == bits}

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
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the bars; the exit code is 0 whatever they say."""
    records: dict[str, dict[str, Any]] = {}
    for path in sys.argv[1:] if arguments is None else arguments:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["suite"] == "sampled":
                records[record["case"]] = record
    found = [bar for bar in bars(list(records.values())) if bar.cells]
    print(format_table(HEADINGS, map(row, found)) if found else "no record of suite sampled meets a bar")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Print the bars of all suites that have any, from their records: geometric means and worst cells.

python3 benchmarks/summary.py FILE [FILE ...] [--cells]

``run.py --suite ... --json`` writes the files; if a case occurs twice, the last record counts. The bars of each suite are in its
``suites/..._bars.py``. A TF32 cell against the field is the smaller of two ratios: with weights, against all kernels that support weights,
and without weights, against kernels that support only patterns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bitsparse.bench import format_table

#: Suites with bars; those of each suite have their own module.
SUITES = ("gemm", "spmm", "binary", "sampled", "cluster", "training", "manners")
_Record = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the bars; the exit code is always 0."""
    parser = argparse.ArgumentParser(description=f"Means and worst cells of suites {', '.join(SUITES)}.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="records, one JSON object a line")
    parser.add_argument("--cells", action="store_true", help="also every ratio of every bar, worst first")
    options = parser.parse_args(arguments)
    records: dict[str, dict[tuple[str, bool], _Record]] = {suite: {} for suite in SUITES}
    for path in options.files:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["suite"] in SUITES:
                records[record["suite"]][record["case"], record.get("gpu") is not None] = record
    # Only after bitsparse is imported: this folder holds the sources of bitsparse too, but not its compiled part.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    table: Any = importlib.import_module("benchmarks.suites.bars")
    found = []
    for suite in SUITES:
        module: Any = importlib.import_module(f"benchmarks.suites.{suite}_bars")
        found += [bar for bar in module.bars(list(records[suite].values())) if bar.cells]
    if not found:
        print(f"no record of suites {', '.join(SUITES)} meets a bar", file=sys.stderr)
        return 0
    print(format_table(table.HEADINGS, map(table.row, found)))
    if options.cells:
        for bar in found:
            lines = (f"  {ratio:6.3f}  {name}" for name, ratio in sorted(bar.cells.items(), key=lambda item: item[1]))
            print(f"\n{bar.title}", *lines, sep="\n")
    everything = [item for of_suite in records.values() for item in of_suite.items()]
    missing = [
        name
        for (name, _), record in everything
        if record["params"].get("replayed") is False and record["suite"] != "training"
    ]
    if missing:
        print(f"\nnot captured, and so with the host's time in them: {', '.join(missing)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""TC-GNN's figures again (ATC'23: Figures 7 and 8, Tables 5 and 6), on the same axes: ours, cuSPARSE's, the paper's.

    python3 benchmarks/tcgnn.py [--only figure-7 table-5 ...] [--records FILE] [--out FILE] [--repetitions N]

Figure 7 counts tiles on the CPU; the others are measured on the GPU at hand. After each part its records, one JSON object a line, take the
place of the old ones in ``--records``, and ``--out`` (by default docs/tcgnn-tables.md) is written anew from all of them.

Graphs are the files of ``graphs.py``; where there is none, a seeded synthetic one of the same size stands in, and the table says so.
Products are prepared ones without weights, in float32 and in TF32, compared with float64 results and replayed from CUDA graphs in turns
with the fastest right product of cuSPARSE (see ``suite_spmm.py``).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bitsparse import bench
from bitsparse.errors import DeviceError

HERE = Path(__file__).resolve().parent
PARTS = ("figure-7", "figure-8", "table-5", "table-6")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    parser = argparse.ArgumentParser(description="Make TC-GNN's tables again.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--records", type=Path, default=HERE / "results" / "h200" / "tcgnn.jsonl", metavar="FILE")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "tcgnn-tables.md", metavar="FILE")
    parser.add_argument("--repetitions", type=int, default=15, metavar="N", help="replays of each graph (default: 15)")
    options = parser.parse_args(arguments)
    # The folder of a script is not always searched (PYTHONSAFEPATH), so what lies beside it is imported late.
    sys.path[:] = [*sys.path, *({str(HERE)} - set(sys.path))]
    tables: Any = importlib.import_module("tcgnn_tables")
    if options.repetitions < 1:
        parser.error(f"--repetitions is {options.repetitions}, must be at least 1")
    commit = bench.git_commit(HERE)
    records = []
    if options.records.is_file():
        records = [json.loads(line) for line in options.records.read_text(encoding="utf-8").splitlines()]
    status = 0
    for part in options.only:
        start = time.perf_counter()
        module: Any = importlib.import_module("tcgnn_tiles" if part == "figure-7" else "tcgnn_parts")
        made: list[dict[str, Any]] = []
        for name, measure in module.measurements(part, commit, options.repetitions):
            try:
                made.append(measure())
                print(tables.line_of(made[-1]), flush=True)
            except (bench.Unavailable, DeviceError) as reason:
                print(f"{name}: not measured, {reason}", file=sys.stderr)
                status = 1
            except Exception:
                print(f"{name}: failed", file=sys.stderr)
                traceback.print_exc()
                status = 1
        if not made:
            continue
        print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        records = [record for record in records if record["params"]["part"] != part] + made
        write(options.records, "".join(json.dumps(record) + "\n" for record in records))
        write(options.out, tables.document(records))
    return status


def write(path: Path, text: str) -> None:
    """A whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

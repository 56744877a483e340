"""BitGNN's tables again (ICS'23: Tables 3, 4 and 5), on the same axes: ours, PyTorch Geometric's, the paper's.

    python3 benchmarks/bitgnn.py [--only table-3 table-4 ...] [--records FILE] [--out FILE] [--repetitions N]

All is measured on the GPU at hand. After each part its records, one JSON object a line, take the place of the old ones in ``--records``,
and ``--out`` (by default docs/bitgnn-tables.md) is written anew from all of them.

Networks have random weights: times and memory are compared, not accuracy. cora, citeseer and pubmed are the graphs' files (a seeded
synthetic stand-in where one is missing, and the table says so) with random features; Flickr and Reddit are synthetic power-law graphs of
their sizes. Both sides are inference of the whole graph at once, captured as a CUDA graph and replayed in turns (see ``suite_binary.py``);
memory is the most bytes that the pool of the framework hands out at once, with the features: float32 there, packed bits in ours, as there.
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
PARTS = ["table-3", "table-4", "table-5"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    parser = argparse.ArgumentParser(description="Make BitGNN's tables again.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--records", type=Path, default=HERE / "results" / "h200" / "bitgnn.jsonl", metavar="FILE")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "bitgnn-tables.md", metavar="FILE")
    parser.add_argument("--repetitions", type=int, default=15, metavar="N", help="replays of each graph (default: 15)")
    options = parser.parse_args(arguments)
    # The folder of a script is not always searched (PYTHONSAFEPATH), so what lies beside it is imported late.
    sys.path[:] = [*sys.path, *({str(HERE)} - set(sys.path))]
    parts_of: Any = importlib.import_module("bitgnn_parts")
    tables: Any = importlib.import_module("bitgnn_tables")
    if options.repetitions < 1:
        parser.error(f"--repetitions is {options.repetitions}, must be at least 1")
    commit = bench.git_commit(HERE)
    records = []
    if options.records.is_file():
        records = [json.loads(line) for line in options.records.read_text(encoding="utf-8").splitlines()]
    status = 0
    for part in options.only:
        start = time.perf_counter()
        made: list[dict[str, Any]] = []
        for name, measure in parts_of.measurements(part, commit, options.repetitions):
            try:
                for record in measure():
                    made.append(record)
                    print(tables.line_of(record), flush=True)
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

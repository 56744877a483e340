"""QGTC's own tables again (PPoPP'22: Table 3, Figures 7c, 8, 9 and 10), on the same axes: ours, int8's, the paper's.

    python3 benchmarks/qgtc.py [--only table-3 figure-9 ...] [--records FILE] [--out FILE] [--repetitions N]

Everything but Figure 8 is measured on the GPU at hand; Figure 8 counts tiles of graphs on the CPU (minutes, for METIS) and runs only when
named. After each part its records, one JSON object a line, take the place of the old ones in ``--records``, and ``--out`` (by default
docs/qgtc-tables.md) is written anew from all of them.

All products are N x N x D: a 1-bit adjacency by features of some bits, random and without zero tiles. Ours goes into a preallocated int32
result through a prepared product of the CUDA backend, with the kernel that the library chooses. The peer is ``torch._int_mm`` of the same
integers as int8 (16 bits: of their two digits, added up by one more pass), whose result is compared with ours before either is timed. Both
sides replay CUDA graphs of 20 calls in turns, with operands in the L2 where they fit; a time is the median of 15 replays. ``tflops`` counts
2 N N D operations, whatever the number of bits, as the paper does.
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
MEASURED = ["table-3", "figure-7c", "figure-9", "figure-10"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    parser = argparse.ArgumentParser(description="Make QGTC's tables again.")
    parts = [*MEASURED, "figure-8"]
    parser.add_argument("--only", nargs="+", choices=parts, default=MEASURED, metavar="PART", help=" ".join(parts))
    parser.add_argument("--records", type=Path, default=HERE / "results" / "h200" / "qgtc.jsonl", metavar="FILE")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "qgtc-tables.md", metavar="FILE")
    parser.add_argument("--repetitions", type=int, default=15, metavar="N", help="replays of each graph (default: 15)")
    options = parser.parse_args(arguments)
    # The folder of a script is not always searched (PYTHONSAFEPATH), so what lies beside it is imported late.
    sys.path[:] = [*sys.path, *({str(HERE)} - set(sys.path))]
    parts_of: Any = importlib.import_module("qgtc_parts")
    tables: Any = importlib.import_module("qgtc_tables")
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
        try:
            for record in (
                parts_of.figure_8(commit)
                if part == "figure-8"
                else parts_of.measured(part, commit, options.repetitions)
            ):
                made.append(record)
                print(line_of(record), flush=True)
        except (bench.Unavailable, DeviceError) as reason:
            print(f"{part}: not measured, {reason}", file=sys.stderr)
            status = 1
        except Exception:
            print(f"{part}: failed after {len(made)} records", file=sys.stderr)
            traceback.print_exc()
            status = 1
        if not made:
            continue
        print(f"{part}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        records = [record for record in records if record["params"]["part"] != part] + made
        write(options.records, "".join(json.dumps(record) + "\n" for record in records))
        write(options.out, tables.document(records))
    return status


def line_of(record: dict[str, Any]) -> str:
    """One line for the terminal."""
    params = record["params"]
    if "tiles" in params:
        return f"{record['case']:<32} {params['processed']} of {params['tiles']} tiles processed"
    return (
        f"{record['case']:<32} {1e3 * record['ours_ms']:9.2f} us {params['tflops']:9.1f} TFLOPs, "
        f"int8 {1e3 * record['peer_ms']:9.2f} us, {record['ratio']:.2f}x, {params['kernel']}"
    )


def write(path: Path, text: str) -> None:
    """A whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""Shared parts of the programs that reproduce a paper's tables: options, parts, records, the document."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bitsparse import bench
from bitsparse.errors import DeviceError

__all__ = ["BENCHMARKS", "Record", "recorded", "run"]

BENCHMARKS = Path(__file__).resolve().parents[1]
#: A folder for each machine, with a file for each paper.
RESULTS = BENCHMARKS / "results"
Record = dict[str, Any]
#: ``measurements(part, commit, repetitions)`` yields names, each with a function that yields its records.
Measurements = Callable[[str, "str | None", int], Iterable[tuple[str, Callable[[], Iterable[Record]]]]]


def run(
    paper: str,
    parts: Sequence[str],
    measurements: Measurements,
    line_of: Callable[[Record], str],
    document: Callable[[Iterable[Record]], str],
    arguments: Sequence[str] | None = None,
    usual: Sequence[str] | None = None,
) -> int:
    """Measure the parts that the command line names (by default the `usual` ones), write records and tables; return the exit code.

    If a measurement fails, only its remaining records are lost, and the exit code is 1. If the records belong to :data:`RESULTS`, the
    document is made from the records of all machines.
    """
    stem = paper.lower().replace("-", "")
    parser = argparse.ArgumentParser(prog=f"paper.py {stem}", description=f"Make {paper}'s tables again.")
    parser.add_argument(
        "--only", nargs="+", choices=parts, default=usual or parts, metavar="PART", help=" ".join(parts)
    )
    parser.add_argument("--records", type=Path, default=RESULTS / "h200" / f"{stem}.jsonl", metavar="FILE")
    parser.add_argument("--out", type=Path, default=BENCHMARKS.parent / "docs" / f"{stem}-tables.md", metavar="FILE")
    parser.add_argument("--repetitions", type=int, default=15, metavar="N", help="replays of each graph (default: 15)")
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error(f"--repetitions is {options.repetitions}, must be at least 1")
    commit = bench.program_commit(BENCHMARKS.parent)
    records = _read(options.records)
    status = 0
    for part in options.only:
        start = time.perf_counter()
        made: list[Record] = []
        for name, measure in measurements(part, commit, options.repetitions):
            try:
                for record in measure():
                    made.append(record)
                    print(line_of(record), flush=True)
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
        _write(options.records, "".join(json.dumps(record) + "\n" for record in records))
        _write(options.out, document(recorded(stem) if options.records.resolve().parents[1] == RESULTS else records))
    return status


def recorded(paper: str) -> list[Record]:
    """The records of a paper in :data:`RESULTS`: for each part, those of the first machine that has any."""
    found: list[Record] = []
    for path in sorted(RESULTS.glob(f"*/{paper}.jsonl")):
        known = {record["params"]["part"] for record in found}
        found += [record for record in _read(path) if record["params"]["part"] not in known]
    return found


def _read(path: Path) -> list[Record]:
    """The records in a file; none if it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def _write(path: Path, text: str) -> None:
    """Write a file and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

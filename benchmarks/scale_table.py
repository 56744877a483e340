"""A table of the records of suite ``scale``, with the times that the links of the same runs need.

python3 benchmarks/scale_table.py FILE [FILE ...]

``run.py --suite scale --json`` writes the files; if a case occurs twice with the same number of ranks, the last record counts. *links, ms*
is the time that the run's own links need for the bytes that a rank receives in a call, interpolated between the times of its
``scale-link-...`` cases.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse.bench import format_table

Record = dict[str, Any]
#: Ranks and engine of a run.
Run = tuple[int, str]
HEADINGS = ("case", "ranks", "engine", "ours ms", "peer ms", "ratio", "received MB", "links ms", "peer")


def read(paths: Iterable[Path]) -> dict[Run, dict[str, Record]]:
    """The records of suite scale, by run and case."""
    found: dict[Run, dict[str, Record]] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["suite"] == "scale":
                run = record["params"]["ranks"], record["params"]["engine"]
                found.setdefault(run, {})[record["case"]] = record
    return dict(sorted(found.items()))


def link_ms(cases: dict[str, Record], kind: str, received: float) -> float | None:
    """The milliseconds that a run's links need to send each rank `received` bytes; None if not measured or if nothing is sent."""
    points = sorted(
        (record["bytes"], record["ours_ms"]) for name, record in cases.items() if name.startswith(f"scale-link-{kind}-")
    )
    points = [point for point in points if point[0]]
    if not points or received <= 0:
        return None
    sizes, times = np.array(points).T
    if received >= sizes[-1]:
        return float(times[-1] * received / sizes[-1])
    return float(np.interp(received, [0.0, *sizes], [0.0, *times]))


def rates(cases: dict[str, Record]) -> str:
    """Describe the rates of a run's links."""
    told = [
        f"{name.removeprefix('scale-link-')} {record['bytes'] / 1e6 / record['ours_ms']:.1f} GB/s"
        for name, record in cases.items()
        if name.startswith("scale-link-") and record["bytes"]
    ]
    return ", ".join(told) or "not measured"


def row(cases: dict[str, Record], record: Record) -> tuple[str, ...]:
    """A line of the table."""
    params = record["params"]
    received = params.get("received", 0)
    link = link_ms(cases, "allgather" if params.get("exchange") == "allgather" else "pairs", received)
    number = [None if value is None else f"{value:.3g}" for value in (record["peer_ms"], record["ratio"], link)]
    return (
        record["case"].removeprefix("scale-"),
        str(params["ranks"]),
        params["engine"],
        f"{record['ours_ms']:.4g}",
        number[0] or "-",
        number[1] or "-",
        f"{received / 1e6:.3g}" if received else "-",
        number[2] or "-",
        record["peer"] or "-",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is always 0."""
    parser = argparse.ArgumentParser(description="What suite scale measured, and what the links of the runs carry.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="records, one JSON object a line")
    found = read(parser.parse_args(arguments).files)
    if not found:
        print("no record of suite scale", file=sys.stderr)
        return 0
    for (ranks, engine), cases in found.items():
        print(f"{ranks} ranks on {engine}, links: {rates(cases)}")
    measured = [(cases, each) for cases in found.values() for name, each in cases.items() if "-link-" not in name]
    print("\n" + format_table(HEADINGS, [row(*each) for each in sorted(measured, key=lambda each: each[1]["case"])]))
    return 0


if __name__ == "__main__":
    importlib.import_module("bitsparse")
    sys.exit(main())

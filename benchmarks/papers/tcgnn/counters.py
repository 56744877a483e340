"""Cache hit rates and occupancy of the aggregations of TC-GNN's Table 1, counted by NVIDIA's profiler ``ncu``.

    python3 benchmarks/papers/tcgnn/counters.py

is the program that is profiled: for each graph and width, one call of ours, with TF32 allowed, then one of cuSPARSE. ``program.py`` runs it
once under ``ncu`` and makes a record of each call, with the numbers of the call's longest kernel.
"""

from __future__ import annotations

import csv
import importlib
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
#: The profiler's names for the L1 hit rate (share of requested sectors), the occupancy (share of the possible warps), and the time.
METRICS = {
    "hits": "l1tex__t_sector_hit_rate.pct",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "time": "gpu__time_duration.sum",
}
SIDES = ("ours", "cuSPARSE")
_Counts = dict[str, Any]


def measurements(part: str, commit: str | None, repetitions: int) -> Iterator[tuple[str, Callable[[], _Counts]]]:
    """Yield a name and a count for each call."""
    parts: Any = importlib.import_module("benchmarks.papers.tcgnn.parts")
    for place, ((name, columns), side) in enumerate(itertools.product(parts.layers(), SIDES)):
        yield f"{part}-{name}-D{columns}-{side}", partial(counted, part, place, name, columns, side, commit)


def counted(part: str, place: int, name: str, columns: int, side: str, commit: str | None) -> _Counts:
    """Return the record of one call."""
    bench: Any = importlib.import_module("bitsparse.bench")
    timing: Any = importlib.import_module("benchmarks.gpu_timing")
    graphs: Any = importlib.import_module("benchmarks.cases.sparse_gpu")
    params = {"part": part, "D": columns, "side": side} | graphs.matrix_of(name).facts() | profiled()[place]
    case = f"{part}-{name}-D{columns}-{side}"
    made: _Counts = bench.Record.counted("tcgnn", case, params, timing.machine(1, commit)).flat()
    return made


@cache
def profiled() -> list[_Counts]:
    """Return the counts of all calls."""
    bench: Any = importlib.import_module("bitsparse.bench")
    parts: Any = importlib.import_module("benchmarks.papers.tcgnn.parts")
    if shutil.which("ncu") is None:
        raise bench.Unavailable("NVIDIA's profiler ncu is not installed")
    options = [
        "--csv",
        "--clock-control",
        "none",
        "--profile-from-start",
        "off",
        "--metrics",
        ",".join(METRICS.values()),
    ]
    done = subprocess.run(
        ["ncu", *options, sys.executable, __file__], capture_output=True, text=True, check=False, cwd=ROOT
    )
    found, wanted = calls_of(kernels_of(done.stdout.splitlines())), len(SIDES) * len(parts.layers())
    if len(found) != wanted:
        said = (done.stdout + done.stderr).strip()[-400:]
        raise bench.Unavailable(f"ncu counted {len(found)} calls, not {wanted}: {said}")
    return found


def kernels_of(lines: list[str]) -> list[_Counts]:
    """Parse the profiler's output (its own lines, then a table with one line per count) into kernels in order with their counts."""
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[str, _Counts] = {}
    for row in csv.DictReader(lines[first:]):
        counts = found.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
        for name, metric in METRICS.items():
            if row["Metric Name"] == metric:
                counts[name] = float(row["Metric Value"].replace(",", ""))
    return list(found.values())


def calls_of(kernels: Iterable[_Counts]) -> list[_Counts]:
    """Return the longest kernel of each call: calls of ours and of cuSPARSE alternate, and all other kernels are ignored."""

    def side_of(counts: _Counts) -> str | None:
        name = counts["kernel"]
        return "cuSPARSE" if "cusparse" in name else "ours" if name.startswith("spmm_") else None

    known = (counts for counts in kernels if side_of(counts))
    return [max(group, key=lambda counts: counts["time"]) for _, group in itertools.groupby(known, side_of)]


def main() -> None:
    """Run the calls, with the profiler switched on around each."""
    importlib.import_module("bitsparse")
    # Only after bitsparse is imported: this folder holds the sources of bitsparse too, but not its compiled part.
    sys.path.insert(0, str(ROOT))
    parts: Any = importlib.import_module("benchmarks.papers.tcgnn.parts")
    graphs: Any = importlib.import_module("benchmarks.cases.sparse_gpu")
    products: Any = importlib.import_module("benchmarks.cases.products")
    runtime = importlib.import_module("cupy").cuda.runtime
    for name, columns in parts.layers():
        cell = graphs.cell_of(name, columns)
        ours = products.planned(f"{name}-D{columns}", cell, "tf32", pattern=True)[0]
        for call in (ours.call, graphs.vendor_product(cell, "fp32").call):
            runtime.deviceSynchronize()
            runtime.profilerStart()
            call()
            runtime.deviceSynchronize()
            runtime.profilerStop()


if __name__ == "__main__":
    main()

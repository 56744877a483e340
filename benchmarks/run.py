"""Run a benchmark suite: print a table to the terminal and write one JSON object per line to a file.

    python3 benchmarks/run.py --suite host [--only SUBSTRING ...] [--quick] [--json FILE] [--threads N] [--list]

The protocol is the same for every suite. Ours and the peer run in one process on the same random data (seed 0) with the same number of
threads (two by default); operands and results are allocated beforehand if both interfaces allow it. Untimed calls come first. Then each
round times each side once, in alternating order. Each sample follows a pause of 150 ms (an idle thread pool keeps spinning for up to
0.1 s and would take the other side's cores) and one untimed call; a sample of a fast function consists of as many calls as fill 20 ms.
The median of 15 rounds is reported (3 with ``--quick``; slow cases take fewer, never below 3). Every product is checked against the peer's
or a float64 result before it is timed. A record's ``ratio`` is ``peer_ms / ours_ms``. The docstring of each module in ``suites/`` says
what is special about that suite.

There are no thresholds here: a benchmark reports; it does not pass or fail. If a case raises an error, the error is shown on stderr, the
other cases still run, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
#: The suites, each in a file of the same name.
SUITES = (
    "host",
    "gemm",
    "spmm",
    "binary",
    "sampled",
    "cluster",
    "training",
    "minibatch",
    "frameworks",
    "manners",
    "nearest",
    "scale",
)
#: Thread counts that the numerical libraries read once, when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; an unknown suite ends the program with the names of the existing ones."""
    parser = argparse.ArgumentParser(
        description="Measure bitsparse against its peers.", epilog=f"Suites: {', '.join(SUITES)}."
    )
    parser.add_argument("--suite", required=True, metavar="NAME", help="which suite to run")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="SUBSTRING", help="only cases whose name contains one of these"
    )
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, for a first impression")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON object a line to FILE")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads on both sides (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    options = parser.parse_args(arguments)
    if options.suite not in SUITES:
        parser.error(f"--suite {options.suite} does not exist; the suites that exist: {', '.join(SUITES)}")
    if options.threads < 1:
        parser.error(f"--threads is {options.threads}, must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite that the command line names."""
    options = parse(arguments)
    if int(os.environ.get("RANK", "0")):  # under torchrun only the first rank reports
        options.json = None
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(options.threads)

    # Imported only now: NumPy reads the thread counts when it is loaded.
    from bitsparse import bench, set_num_threads

    set_num_threads(options.threads)
    # Only after bitsparse is imported: this folder holds the sources of bitsparse too, but not its compiled part.
    sys.path.insert(0, str(HERE.parent))
    suite: Any = importlib.import_module(f"benchmarks.suites.{options.suite}")
    cases = [case for case in suite.cases(options.threads) if any(part in case.name for part in options.only)]
    if not cases:
        names = ", ".join(case.name for case in suite.cases(options.threads))
        asked = " or ".join(map(repr, options.only))
        print(f"no case of suite {options.suite} contains {asked}; cases: {names}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0

    machine = suite.machine(options.threads, bench.program_commit(HERE.parent))
    protocol = bench.Protocol.quick() if options.quick else bench.Protocol()
    records = []
    failed = 0
    out = options.json.open("w", encoding="utf-8") if options.json else None
    try:
        for case in cases:
            print(f"\r\033[K{case.name} ...", end="", file=sys.stderr, flush=True) if sys.stderr.isatty() else None
            start = time.perf_counter()
            try:
                records += list(bench.run_cases(options.suite, [case], machine, protocol))
            except bench.Unavailable as reason:
                print(f"{case.name}: not measured, {reason}", file=sys.stderr)
                continue
            except Exception:
                print(f"\n{case.name}: failed", file=sys.stderr)
                traceback.print_exc()
                failed += 1
                continue
            if not sys.stderr.isatty():
                seconds = time.perf_counter() - start
                print(f"{'  '.join(bench.record_row(records[-1])[:4])}  ({seconds:.1f} s)", file=sys.stderr, flush=True)
            if out:
                out.write(records[-1].to_json() + "\n")
                out.flush()
    finally:
        if out:
            out.close()
    print("\r\033[K", end="", file=sys.stderr) if sys.stderr.isatty() else None
    print(f"{machine.device}, {options.threads} threads, commit {machine.commit or 'unknown'}\n")
    print(bench.format_table(bench.HEADINGS, map(bench.record_row, records)))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

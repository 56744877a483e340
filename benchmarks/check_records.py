"""Check benchmark records for consistency: python3 benchmarks/check_records.py [FOLDER]

Reads ``FOLDER/MACHINE/SUITE.jsonl`` (by default in ``benchmarks/results``) and prints each complaint with its file and line; the exit code
is 1 if there is any. Needs only Python and git. A record must

- belong to the suite that gives the file its name, and be the only record of its case;
- name the commit of the program that made it, by twelve hexadecimal digits without ``-dirty``, and that commit must exist in this
  repository (a shallow clone cannot tell, and says so);
- name the machine, the date and the versions: on a GPU those of driver, CUDA and CuPy, on a CPU those of the compiler and of BLAS.
  For commits older than the field ``versions``, it may be ``null``;
- take no less time than its floor, and contain no share below 0 or above 1.

All records of a suite must come from one commit. A paper is measured part by part: there, all records of a part must.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Parameters that are shares of a whole, in addition to those whose names end in ``_share``.
SHARES = ("share", "computing", "idle")
_Record = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every complaint; return 1 if there is one, or if there are no records at all."""
    parser = argparse.ArgumentParser(description="Check the records of the benchmarks.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "benchmarks" / "results", metavar="FOLDER")
    files = sorted(parser.parse_args(arguments).folder.glob("*/*.jsonl"))
    complaints = [f"{path}: {complaint}" for path in files for complaint in check_file(path)]
    for complaint in complaints:
        print(complaint)
    if not complete_history():
        print("this is a shallow clone, or none: whether the commits exist was not checked")
    print(f"{len(files)} files, {len(complaints)} complaints")
    return int(bool(complaints) or not files)


def check_file(path: Path) -> Iterator[str]:
    """Yield complaints about a file, as ``line N: ...``."""
    lines_of: dict[str, int] = {}
    commit_of: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            case, params, commit = record["case"], record["params"], record["commit"]
        except (ValueError, TypeError, KeyError) as error:
            yield f"line {number}: not a record ({type(error).__name__}: {error})"
            continue
        found = [*wrong_origin(record), *wrong_times(record)]
        if record.get("suite") != path.stem:
            found.append(f"suite {record.get('suite')!r} in a file of suite {path.stem!r}")
        if case in lines_of:
            found.append(f"the case stands in line {lines_of[case]} already")
        lines_of.setdefault(case, number)
        unit = f"part {params['part']}" if "part" in params else "the suite"
        first, line_of_first = commit_of.setdefault(unit, (commit, number))
        if commit != first:
            found.append(f"commit {commit}, but line {line_of_first} of {unit} is from {first}")
        yield from (f"line {number}: {case}: {what}" for what in found)


def wrong_origin(record: _Record) -> Iterator[str]:
    """Yield complaints about a record's commit, machine, date and versions."""
    commit = record["commit"]
    known = isinstance(commit, str) and re.fullmatch("[0-9a-f]{12}", commit)
    if not known:
        yield f"commit {commit!r} is not twelve hexadecimal digits"
    elif complete_history() and not commit_exists(commit):
        yield f"commit {commit} does not exist in this repository"
    try:
        date.fromisoformat(str(record.get("date")))
    except (TypeError, ValueError):
        yield f"date {record.get('date')!r} is not a day"
    if not record.get("device"):
        yield "no machine"
    on_gpu = record.get("gpu") is not None
    if on_gpu:
        yield from (f"no {name}" for name in ("driver", "cuda") if not record.get(name))
    versions = record.get("versions")
    if versions is None and known and complete_history() and not records_versions(commit):
        return
    needed = ("cupy",) if on_gpu else ("compiler", "blas")
    yield from (f"no version of {name}" for name in needed if not (versions or {}).get(name))


def wrong_times(record: _Record) -> Iterator[str]:
    """Yield complaints about floors and shares."""
    ours, floor = record.get("ours_ms"), record.get("floor_ms")
    if ours is not None and floor is not None and ours < floor:
        yield f"{ours:.6g} ms beat the floor of {floor:.6g} ms, which nothing can"
    for name, value in record["params"].items():
        is_share = name in SHARES or name.endswith("_share")
        if is_share and isinstance(value, int | float) and not 0 <= value <= 1:
            yield f"{name} is {100 * value:.1f} %"


# ---- the repository
@cache
def complete_history() -> bool:
    """Whether this clone has the complete history."""
    return git("rev-parse", "--is-shallow-repository") == "false"


@cache
def commit_exists(commit: str) -> bool:
    """Whether this repository has the commit."""
    return git("cat-file", "-e", f"{commit}^{{commit}}") is not None


@cache
def records_versions(commit: str) -> bool:
    """Whether the program at that commit wrote versions into its records."""
    return "versions" in (git("show", f"{commit}:bitsparse/bench/records.py") or "versions")


def git(*arguments: str) -> str | None:
    """The output of git for the checkout of this file; None if git fails or is missing."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())

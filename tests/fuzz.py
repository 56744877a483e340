"""Fuzzing of all file readers: a damaged or invented file must give a right result or a named error, in bounded time and memory.

The number of a case determines its file, so that a run can go on where another ended, and a failure can be repeated::

    python tests/fuzz.py --cases 100000 --state FILE     # spread over all targets; FILE remembers how far each one is
    python tests/fuzz.py --case read_edges:4711          # one case, in this process

Cases run in forked workers with limits on memory and time. If a worker dies, the case that killed it is recorded, and a new worker
continues with the next case.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from bitsparse.backends.host.settings import set_num_threads
from bitsparse.errors import DTypeError, FileFormatError, ShapeError

NAMED = (FileFormatError, ShapeError, DTypeError)
BATCH = 2000
#: Seconds of CPU time that a case may take, wall-clock seconds after which its worker is killed, and bytes that a case may map.
SECONDS, STUCK, MEMORY = 5.0, 120.0, 1 << 30


class TooSlow(BaseException):
    """A case took more than its CPU time."""


def run_case(name: str, target: Any, number: int, folder: Path) -> None:
    """Run one case; every exception that leaves this function is a failure."""
    content = target.draw(random.Random(f"{name}:{number}"))
    try:
        target.check(content, folder)
    except NAMED as error:
        if len(str(error)) > 2000:
            raise AssertionError(f"a message of {len(str(error))} characters") from error
    except OSError as error:
        raise AssertionError(f"a file that is there gave {error!r}") from error


def _work(name: str, target: Any, first: int, last: int, folder: Path, at: mmap.mmap, out: Path) -> NoReturn:
    """Run a worker's cases: ``at`` shows the present case's number to the parent, ``out`` collects the failures."""

    def too_slow(signum: int, frame: FrameType | None) -> None:
        raise TooSlow

    status = 1
    try:
        signal.signal(signal.SIGPROF, too_slow)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        with out.open("a") as failures:
            for number in range(first, last):
                at[:8] = struct.pack("<q", number)
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                try:
                    run_case(name, target, number, folder)
                except (Exception, TooSlow):
                    said = traceback.format_exc(limit=-4)[-1500:]
                    failures.write(json.dumps({"case": f"{name}:{number}", "error": said}) + "\n")
                    failures.flush()
                signal.setitimer(signal.ITIMER_PROF, 0)
        status = 0
    finally:
        os._exit(status)


def run_batch(name: str, target: Any, first: int, last: int, folder: Path, out: Path) -> int:
    """Run cases of one target in workers, and return how many workers died."""
    at, died = mmap.mmap(-1, 8), 0
    while first < last:
        at[:8] = struct.pack("<q", first)
        child = os.fork()
        if not child:
            _work(name, target, first, last, folder, at, out)
        status = _wait(child, at)
        if not status:
            break
        died += 1
        (number,) = struct.unpack("<q", at[:8])
        with out.open("a") as failures:
            failures.write(
                json.dumps({"case": f"{name}:{number}", "error": f"the worker died: status {status}"}) + "\n"
            )
        first = number + 1
    return died


def _wait(child: int, at: mmap.mmap) -> int:
    """The exit status of a worker. A worker that is stuck at a case, in code that no signal interrupts, is killed."""
    seen, since = at[:8], time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        if at[:8] != seen:
            seen, since = at[:8], time.monotonic()
        elif time.monotonic() - since > STUCK:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)


def fuzz(
    cases: int, state: Path | None = None, only: str | None = None, first: int = 0
) -> tuple[dict[str, int], list[dict[str, str]]]:
    """Run ``cases`` cases, and return how many each target had, and the failures."""
    from fuzz_targets import all_targets

    folder = Path(
        tempfile.mkdtemp(prefix="bitsparse-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    )
    os.environ["BITSPARSE_CACHE_DIR"] = str(folder / "cache")
    out = folder / "failures" if state is None else state.with_suffix(".failures")
    done: dict[str, int] = json.loads(state.read_text()) if state is not None and state.exists() else {}
    ran: dict[str, int] = {}
    try:
        targets = {name: target for name, target in all_targets(folder).items() if only in (None, name)}
        shares = sum(target.share for target in targets.values())
        wanted = {name: -(-cases * target.share // shares) for name, target in targets.items()}
        while any(wanted.values()):
            for name, target in targets.items():
                count = min(wanted[name], BATCH)
                start = max(done.get(name, 0), first)
                run_batch(name, target, start, start + count, folder, out)
                wanted[name] -= count
                done[name] = start + count
                ran[name] = ran.get(name, 0) + count
                if state is not None:
                    state.write_text(json.dumps(done))
        failures = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        return ran, failures
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Fuzz the readers of files.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case of each target")
    parser.add_argument("--target")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--case", help="TARGET:NUMBER, run here and now")
    args = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # the kernel cache warns of files that it ignores
    if args.case:
        from fuzz_targets import all_targets

        name, _, number = args.case.rpartition(":")
        with tempfile.TemporaryDirectory() as folder:
            os.environ["BITSPARSE_CACHE_DIR"] = folder
            target = all_targets(Path(folder))[name]
            print(target.draw(random.Random(f"{name}:{number}"))[:2000])
            run_case(name, target, int(number), Path(folder))
        return 0
    start = time.monotonic()
    ran, failures = fuzz(args.cases, args.state, args.target, args.first)
    for failure in failures[:20]:
        print(failure["case"], failure["error"], sep="\n", file=sys.stderr)
    print(json.dumps({"cases": ran, "failures": len(failures), "seconds": round(time.monotonic() - start, 1)}))
    return bool(failures)


if __name__ == "__main__":
    set_num_threads(1)  # workers are forked, and a forked child would wait for threads that only its parent has
    sys.exit(main())

"""Every run of the tests runs some cases of the fuzz harness, and checks that the harness notices failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import fuzz
import pytest

FUZZ = int(os.environ.get("BITSPARSE_FUZZ", "20000"))
#: How many cases to run, and the number of the first, far from those that tests/fuzz.py starts with.
CASES, FIRST = FUZZ // 4, 10_000_000

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


def test_damaged_files_give_right_results_or_named_errors(tmp_path):
    command = [sys.executable, fuzz.__file__, "--cases", str(CASES), "--first", str(FIRST)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    record = json.loads(done.stdout)
    assert record["failures"] == 0
    assert sum(record["cases"].values()) >= CASES
    assert min(record["cases"].values()) > 0


class Target:
    """A target whose third case in a process does harm."""

    def draw(self, rng):
        return b""

    def __init__(self, harm):
        self.harm, self.seen = harm, 0

    def check(self, content, folder):
        self.seen += 1
        if self.seen == 3:
            self.harm()


def forever():
    while True:
        pass


def asleep():
    time.sleep(60)


def hungry():
    bytearray(8 << 30)


def wrong():
    raise KeyError("raw")


abort = os.abort
NOTICED = {
    "abort": "the worker died",
    "asleep": "the worker died: status 9",
    "wrong": "KeyError",
    "hungry": "MemoryError",
    "forever": "TooSlow",
}
#: The harness forks, which is unsafe in a process with JAX's threads, so it runs in a process of its own.
BATCH = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import fuzz, test_fuzz
fuzz.SECONDS, fuzz.STUCK = 0.5, 3.0
folder = Path(sys.argv[3])
print(fuzz.run_batch("it", test_fuzz.Target(getattr(test_fuzz, sys.argv[2])), 0, 5, folder, folder / "failures"))
"""


@pytest.mark.parametrize(("harm", "said"), NOTICED.items())
def test_the_harness_notices_and_goes_on(tmp_path, harm, said):
    tests = str(Path(__file__).resolve().parent)
    command = [sys.executable, "-P", "-c", BATCH, tests, harm, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    failures = [json.loads(line) for line in (tmp_path / "failures").read_text().splitlines()]
    assert int(done.stdout) == (harm in ("abort", "asleep"))
    assert failures[0]["case"] == "it:2"
    assert said in failures[0]["error"]


def test_a_run_goes_on_where_it_ended(tmp_path):
    state = tmp_path / "state.json"
    for total in (40, 80):
        command = [sys.executable, fuzz.__file__, "--cases", "40", "--state", str(state), "--target", "read_edges"]
        assert subprocess.run(command, capture_output=True, check=False, cwd=tmp_path).returncode == 0
        assert json.loads(state.read_text()) == {"read_edges": total}


def test_a_case_is_made_from_its_number_alone(tmp_path):
    command = [sys.executable, fuzz.__file__, "--case", "read_mtx:17"]
    one, other = (subprocess.run(command, capture_output=True, check=False, cwd=Path.home()) for _ in range(2))
    assert one.stdout == other.stdout != b""

"""The benchmark tools: what they measure is not tested, how they report it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bitsparse import bench

RUN = Path(__file__).resolve().parent.parent / "benchmarks" / "run.py"
FIELDS = [
    "suite",
    "case",
    "params",
    "ours_ms",
    "peer",
    "peer_ms",
    "ratio",
    "floor_ms",
    "bytes",
    "device",
    "gpu",
    "driver",
    "cuda",
    "threads",
    "commit",
]
TINY = bench.Protocol(warmup=1, repetitions=3, seconds=1.0, sample_ms=0.01, pause=0.0)
HERE = bench.Machine(device="cpu", threads=2, commit=None)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True, check=False)


def one_record(ready: bench.Prepared) -> bench.Record:
    (record,) = bench.run_cases("host", [bench.Case("case", lambda: ready)], HERE, TINY)
    return record


def test_a_record_has_the_agreed_fields() -> None:
    calls = {"ours": 0, "peer": 0}

    def count(side: str) -> None:
        calls[side] += 1

    ready = bench.Prepared(lambda: count("ours"), lambda: count("peer"), "a peer", {"m": 1}, 8, floor_ms=0.5)
    record = json.loads(one_record(ready).to_json())
    assert list(record) == FIELDS
    assert record["ratio"] == record["peer_ms"] / record["ours_ms"]
    assert (record["params"], record["bytes"], record["gpu"]) == ({"m": 1}, 8, None)
    assert min(calls.values()) >= 5  # one to warm up, one to estimate, three rounds


def test_a_scaled_peer_says_so() -> None:
    record = one_record(bench.Prepared(lambda: None, lambda: None, "copy", {}, 8, peer_scale=0.5))
    assert record.peer_ms == 0.5 * record.params["peer_measured_ms"]
    assert record.params["peer_scale"] == 0.5


def test_a_case_without_a_peer() -> None:
    record = one_record(bench.Prepared(lambda: None, None, None, {}, 0))
    assert (record.peer_ms, record.ratio) == (None, None)
    table = bench.format_table(bench.HEADINGS, [bench.record_row(record)])
    assert table.splitlines()[0].split()[0] == "case"
    assert table.splitlines()[2].split()[2:] == ["-", "-", "-", "-"]


def test_timing_takes_turns() -> None:
    order: list[str] = []
    bench.time_interleaved([lambda: order.append("a"), lambda: order.append("b")], TINY._replace(sample_ms=0.0))
    assert order[-12:] == list("aabbbbaaaabb")  # one call to wake, one timed; the order turns


@pytest.mark.parametrize(("name", "words"), [("cluster", "not there yet"), ("nonsense", "does not exist")])
def test_a_suite_that_is_not_there(name: str, words: str) -> None:
    result = run("--suite", name)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.rstrip().endswith("the suites that exist: host, gemm")


def test_the_host_suite_has_its_cases() -> None:
    names = run("--suite", "host", "--list").stdout.split()
    promised = {
        "matmul-1x1-4096x4096x4096",
        "matmul-1x1-4096x4096x4096-avx2",
        "matmul-2x2-4096x4096x4096",
        "matmul-1x4-4096x4096x4096",
        "matmul-1x1-8192x8192x64",
        "matmul-blockdiag-16",
        "pack-8192x8192-f32-1bit",
        "import",
    }
    assert promised <= set(names)
    assert len(set(names)) == len(names)


def test_no_case_matches() -> None:
    result = run("--suite", "host", "--only", "nothing like this")
    assert result.returncode == 2
    assert "import" in result.stderr

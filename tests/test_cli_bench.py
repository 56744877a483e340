"""Every suite of ``bitsparse bench`` runs, compares the results of what it times, and prints its figures."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitsparse as bs
from bitsparse import _progress
from bitsparse.bench import Protocol
from bitsparse.cli import bench, common, main

GRAPH = ["--nodes", "300", "--entries", "2400", "--columns", "5"]
SMALL = [*GRAPH, "--bits", "4", "1", "--size", "70", "--width", "3"]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_PROTOCOL", Protocol(warmup=0, repetitions=3, seconds=0.0, sample_ms=0.0, pause=0.0))


def test_every_suite_has_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *SMALL, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["graph"], facts["nodes"], facts["entries"]) == ("power_law-300-2400", 300, 2400)
    assert facts["threads"] >= 1 and facts["versions"]["bitsparse"] == bs.__version__
    assert [one["suite"] for one in facts["results"]] == ["spmm"] * 3 + ["bspmm", "sddmm", "sampled"] + ["matmul"] * 2
    for one in facts["results"]:
        assert one["ours_ms"] > 0 and one["best_peer"] == min(one["peers"], key=one["peers"].get)
        assert one["ratio"] == pytest.approx(one["peers"][one["best_peer"]] / one["ours_ms"], rel=0.2)
        assert ("PyTorch" in one["peers"]) == (
            bool(find_spec("torch")) and one["suite"] in ("spmm", "bspmm", "sampled")
        )


def test_a_graph_from_a_file_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bs.save_npz(tmp_path / "ring.npz", bs.FRDC(np.roll(np.eye(40), 1, axis=1)))
    assert (
        main(["bench", "--suite", "spmm", "--graph", str(tmp_path / "ring.npz"), "--columns", "3", "--bits", "3"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ring: 40 nodes, 40 edges; cpu")
    assert [line.split("  ")[0] for line in lines[4:6]] == ["spmm", "spmm"] and "3-bit integers, 3 columns" in lines[5]


@pytest.mark.parametrize("terminal", [True, False])
def test_whoever_watches_a_terminal_is_told_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    class Late:
        """A timer that fires at once."""

        def __init__(self, seconds: float, say: Any, given: tuple[str, ...] = ()) -> None:
            self.start = lambda: say(*given)

        def cancel(self) -> None:
            pass

    monkeypatch.setattr(common.threading, "Timer", Late)
    monkeypatch.setattr(_progress, "PATIENCE", 0.0)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert main(["bench", *GRAPH, "--suite", "bspmm", "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["results"]) == 1
    told = ["bitsparse bench: making the graph", "bitsparse bench: making the operands", "", "1 of 1 cases", "\x1b[K"]
    assert err.replace("\r", "\n").split("\n") == (told if terminal else [""])


def test_steps_are_counted_where_there_is_no_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing must be printed in the first two seconds, then at most ten lines a second, and the last must be deleted."""
    times = iter([100.0, 101.9, 102.0, 102.05, 102.1, 150.0])
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(times))
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with _progress.progress(9, "step") as advance:
        for _ in range(5):
            advance()
    assert capsys.readouterr().err == "\r2 of 9 steps\r4 of 9 steps\r5 of 9 steps\r\x1b[K"


def test_results_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(*operands: Any) -> Any:
        return bs.spmm(*operands) + 1

    monkeypatch.setattr(bench, "spmm", wrong)
    assert main(["bench", *GRAPH, "--suite", "spmm"]) == 2
    assert "ours and SciPy are" in capsys.readouterr().err


def test_a_graph_without_edges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "none.npz", indptr=[0, 0, 0], indices=np.array([], np.int32))
    arguments = ["--suite", "spmm", "sddmm", "sampled", "bspmm", "--graph", str(tmp_path / "none.npz"), "--json"]
    assert main(["bench", *arguments]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [one["ratio"] is None for one in results if one["suite"] == "sddmm"] == [True, True]

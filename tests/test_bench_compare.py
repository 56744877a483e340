"""``benchmarks/compare.py`` compares the records of two commits from one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import compare

    return compare


def write(path: Path, suite: str, **times: float | None) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"suite": suite, "case": case, "ours_ms": ms}) for case, ms in times.items()]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_means_worst_cells_and_spreads(program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for run, (a, b) in enumerate(((1.0, 2.0), (1.1, 2.0), (1.2, 2.0))):
        write(old / str(run) / "gemm.jsonl", "gemm", a=a, b=b, counted=None)
        write(new / str(run) / "gemm.jsonl", "gemm", a=a * 1.1, b=b / 1.21)
    write(old / "spmm.jsonl", "spmm", c=1.0, gone=1.0)
    write(new / "spmm.jsonl", "spmm", c=1.0)
    assert program.main([str(old), str(new)]) == 0
    lines = capsys.readouterr().out.splitlines()
    # The median of a goes from 1.1 to 1.21 ms: it is slower, but the ranges of both sides' runs overlap.
    assert lines[1].split() == ["gemm", "2", "1.049", "0.909", "1.200", "1.200", "0", "a"]
    assert lines[2].split() == ["spmm", "1", "1.000", "1.000", "-", "-", "0", "c"]
    assert lines[3] == "only on the old side: gone"


def test_a_slower_cell_and_a_slower_suite(program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.jsonl", "gemm", a=1.0, b=1.0)
    once, again = (write(tmp_path / f"{i}.jsonl", "gemm", a=1.1 + i / 100, b=0.5) for i in range(2))
    assert program.main([old, f"{once},{again}"]) == 1
    assert "slower: gemm a: 0.905, 1 to 1 then 1.1 to 1.11 ms" in capsys.readouterr().out.splitlines()
    assert program.main([old, once, "--least", "0.9"]) == 0
    slow = write(tmp_path / "slow.jsonl", "gemm", a=1.04, b=1.04)
    assert program.main([old, slow]) == 1  # no cell is slow enough to fail, but the suite's mean is
    assert program.main([old, slow, "--mean", "0.95"]) == 0
    assert program.main([old, write(tmp_path / "other.jsonl", "spmm", a=1.0)]) == 2

"""``benchmarks/check_records.py`` refuses broken records, and the commit in a record comes from git or the environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bitsparse import bench

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, which sees a repository whose commits begin with abc, and whose records have versions unless the commit ends with 0."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import check_records

    monkeypatch.setattr(check_records, "complete_history", lambda: True)
    monkeypatch.setattr(check_records, "commit_exists", lambda commit: commit.startswith("abc"))
    monkeypatch.setattr(check_records, "records_versions", lambda commit: not commit.endswith("0"))
    return check_records


def record(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"suite": "gemm", "case": "one", "params": {"m": 1, "idle": 0.5}, "ours_ms": 1.0}
    fields |= {"floor_ms": 0.5, "estimate_ms": 2.0, "device": "cuda", "gpu": "a GPU", "driver": "580", "cuda": "13020"}
    return fields | {"commit": "abc123abc123", "date": "2026-11-22", "versions": {"cupy": "14.2.0"}} | changes


def complaints(checker: Any, folder: Path, *records: dict[str, Any]) -> list[str]:
    path = folder / "gemm.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return list(checker.check_file(path))


def test_good_records_pass(checker: Any, tmp_path: Path) -> None:
    on_cpu = record(case="two", gpu=None, driver=None, cuda=None, device="cpu: x")
    on_cpu["versions"] = {"compiler": "GCC: (Debian) 14.2.0", "blas": "scipy-openblas 0.3"}
    untimed = record(case="three", ours_ms=None, floor_ms=None)
    assert complaints(checker, tmp_path, record(), on_cpu, untimed) == []
    # Only records made before the field existed may lack it.
    assert complaints(checker, tmp_path, record(commit="abc123abc120", versions=None)) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"commit": "abc123"}, "not twelve hexadecimal digits"),
        ({"commit": "abc123abc123-dirty"}, "not twelve hexadecimal digits"),
        ({"commit": None}, "not twelve hexadecimal digits"),
        ({"commit": "def123abc123"}, "does not exist in this repository"),
        ({"date": None}, "date None is not a day"),
        ({"date": "yesterday"}, "date 'yesterday' is not a day"),
        ({"device": ""}, "no machine"),
        ({"driver": None}, "no driver"),
        ({"cuda": None}, "no cuda"),
        ({"versions": {"numpy": "2"}}, "no version of cupy"),
        ({"versions": None}, "no version of cupy"),
        ({"gpu": None}, "no version of compiler"),
        ({"gpu": None, "versions": {"compiler": "GCC"}}, "no version of blas"),
        ({"suite": "spmm"}, "suite 'spmm' in a file of suite 'gemm'"),
        ({"floor_ms": 1.01}, "beat the floor of 1.01 ms"),
        ({"params": {"computing": 1.27}}, "computing is 127.0 %"),
        ({"params": {"idle": -0.1}}, "idle is -10.0 %"),
        ({"params": {"bytes_share": 2}}, "bytes_share is 200.0 %"),
    ],
)
def test_a_broken_record_is_refused(checker: Any, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    found = complaints(checker, tmp_path, record(case="fine"), record(**changes))
    assert any(line.startswith("line 2: one: ") and words in line for line in found), found


def test_one_suite_has_one_commit_and_each_case_once(checker: Any, tmp_path: Path) -> None:
    other = record(case="two", commit="abc123abc124")
    (found,) = complaints(checker, tmp_path, record(), other)
    assert found == "line 2: two: commit abc123abc124, but line 1 of the suite is from abc123abc123"
    # The parts of a paper may have different commits, but all records of one part have the same.
    parts = [record(case=part, params={"part": part}, commit=f"abc123abc12{i}") for i, part in enumerate("ab", 1)]
    assert complaints(checker, tmp_path, *parts) == []
    again = record(case="c", params={"part": "b"})
    assert "line 2 of part b is from" in complaints(checker, tmp_path, *parts, again)[0]
    assert complaints(checker, tmp_path, record(), record())[0].endswith("the case stands in line 1 already")
    path = tmp_path / "gemm.jsonl"
    path.write_text('{"suite": "gemm"}\nnothing\n')
    assert [line.partition(" (")[0] for line in checker.check_file(path)] == [
        "line 1: not a record",
        "line 2: not a record",
    ]


def test_the_program_prints_and_fails(checker: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a-machine"
    folder.mkdir()
    complaints(checker, folder, record(), record(case="two", floor_ms=3.0))
    assert checker.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{folder / 'gemm.jsonl'}: line 2: two: 1 ms beat the floor")
    assert lines[-1] == "1 files, 1 complaints"
    complaints(checker, folder, record())
    assert checker.main([str(tmp_path)]) == 0
    assert checker.main([str(folder)]) == 1  # a folder without records fails


def test_a_shallow_clone_says_so(checker: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "complete_history", lambda: False)
    (tmp_path / "a-machine").mkdir()
    complaints(checker, tmp_path / "a-machine", record(commit="def123abc123"))
    assert checker.main([str(tmp_path)]) == 0
    assert "whether the commits exist was not checked" in capsys.readouterr().out


def test_the_committed_records_hold_up(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import check_records

    assert check_records.main([]) == 0, capsys.readouterr().out


def test_the_commit_comes_from_git_or_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITSPARSE_COMMIT", "0123456789abcdef0123456789abcdef01234567")
    assert bench.program_commit(tmp_path) == "0123456789ab"
    monkeypatch.setenv("BITSPARSE_COMMIT", "")
    assert bench.program_commit(tmp_path) is None

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "source.py").write_text("1\n")
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "gemm.jsonl").write_text("\n")
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD")[:12]
    assert bench.program_commit(tmp_path) == commit
    # The variable names the commit of the installed package, which the git of a copy may not know.
    monkeypatch.setenv("BITSPARSE_COMMIT", "f" * 12)
    assert bench.program_commit(tmp_path) == "f" * 12
    monkeypatch.delenv("BITSPARSE_COMMIT")
    (results / "gemm.jsonl").write_text("{}\n")  # the records that a suite writes are not part of the program
    assert bench.program_commit(tmp_path) == commit
    (tmp_path / "source.py").write_text("2\n")
    assert bench.program_commit(tmp_path) == f"{commit}-dirty"


def test_the_page_of_all_cells_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import distribution

    assert distribution.PAGE.read_text("utf-8") == distribution.page(distribution.RESULTS)
    (tmp_path / "card").mkdir()
    cells = [("spmm-fp32-a-D16", 2.0), ("spmm-fp32-b-D16", 8.0), ("spmm-fp32-c-D16", 0.5), ("rate", None)]
    lines = (json.dumps({"case": case, "ratio": ratio, "peer": "cuSPARSE ALG2 float32"}) for case, ratio in cells)
    (tmp_path / "card" / "spmm.jsonl").write_text("\n".join(lines))
    row = "| `spmm-fp32` | cuSPARSE float32 | 3 | 0.50 | 1.25 | 2.00 | 8.00 | 2.00 | `spmm-fp32-c-D16` |"
    assert distribution.page(tmp_path).splitlines()[-1] == row

"""The cases of suite ``scale`` run on a CPU, in one process and under torchrun, where the first rank writes the records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: A quick case of each kind.
SOME = [
    "link-allgather-16MB",
    "link-pairs-16MB",
    "binary-papers",
    "spmm-products",
    "inference-reddit-b1",
    "exchange-products",
    "overlap-products-b8",
]


def run(tmp_path: Path, *launcher: str) -> list[dict]:
    """The records of some cases."""
    out = tmp_path / "scale.jsonl"
    command = [
        sys.executable,
        *launcher,
        str(ROOT / "benchmarks" / "run.py"),
        "--suite",
        "scale",
        "--quick",
        "--threads",
        "1",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "RANK"} | {"GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, "--json", str(out), "--only", *SOME],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [1, 2])
def test_cases_run_on_ranks(ranks, tmp_path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if ranks == 2 else []
    records = run(tmp_path, *launcher)
    assert [record["case"] for record in records] == [
        "scale-link-allgather-16MB",
        "scale-link-pairs-16MB",
        "scale-binary-papers-strong",
        "scale-binary-papers-weak",
        "scale-spmm-products-b8",
        "scale-overlap-products-b8",
        "scale-exchange-products",
        "scale-inference-reddit-b1",
    ]
    assert all(record["params"]["ranks"] == ranks for record in records)
    assert all(record["params"]["engine"] == ("gloo" if ranks == 2 else "local") for record in records)
    assert all(record["peer"] is None or record["ratio"] > 0 for record in records)
    told = {record["case"]: record["params"] for record in records}
    assert told["scale-exchange-products"]["received_float32"] >= 2 * told["scale-exchange-products"]["received"] >= 0
    assert (told["scale-overlap-products-b8"]["outer_rows"] > 0) is (ranks == 2)


def record(case, ranks, ours, peer=None, size=0, **params):
    return {
        "suite": "scale",
        "case": f"scale-{case}",
        "params": {"ranks": ranks, "engine": "nccl", "device": "cuda"} | params,
        "ours_ms": ours,
        "peer": None if peer is None else "the peer",
        "peer_ms": peer,
        "ratio": None if peer is None else peer / ours,
        "bytes": size,
    }


RECORDS = [
    record("link-pairs-16MB", 2, 0.1, size=16e6),
    record("link-pairs-128MB", 2, 0.5, size=128e6),
    record("exchange-products", 2, 1.0, 3.5, received=72e6, received_float32=288e6),
    record("training-products", 2, 4.0, 6.0, received=72e6, received_float32=288e6),
    record("link-pairs-16MB", 1, 0.01, size=0),
    record("training-products", 1, 9.0, 9.0, received=0, received_float32=0),
]


def test_the_table_has_the_links_of_the_same_run_beside(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    from benchmarks import scale_table

    path = tmp_path / "scale.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in [record("training-products", 2, 1.0), *RECORDS]))
    assert scale_table.main([str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "1 ranks on nccl, links: not measured"
    assert said[1] == "2 ranks on nccl, links: pairs-16MB 160.0 GB/s, pairs-128MB 256.0 GB/s"
    rows = {tuple(line.split()[:2]): line.split() for line in said[3:]}
    # 72 MB are halfway between the measured sizes of 16 and 128 MB.
    assert rows["training-products", "2"][3:9] == ["4", "6", "1.5", "72", "0.3", "the"]
    assert rows["training-products", "1"][3:8] == ["9", "9", "1", "-", "-"]
    runs = scale_table.read([path])
    assert scale_table.link_ms(runs[2, "nccl"], "pairs", 256e6) == 1.0
    assert scale_table.link_ms(runs[2, "nccl"], "pairs", 8e6) == 0.05
    assert scale_table.link_ms(runs[2, "nccl"], "allgather", 8e6) is None


def test_the_figure_is_made_of_what_was_measured(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    from benchmarks.papers.tango import scaling

    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path, part in zip(paths, (RECORDS[4:], RECORDS[:4]), strict=True):
        path.write_text("".join(json.dumps(each) + "\n" for each in part))
    assert scaling.main(["--measured", *map(str, paths)]) == 0
    assert [line[:5] for line in capsys.readouterr().out.splitlines()[2:4]] == ["| 1 |", "| 2 |"]


def test_the_figure_puts_the_paper_beside(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    from benchmarks.papers.tango import scaling

    runs: dict = {}
    for each in RECORDS:
        runs.setdefault((each["params"]["ranks"], "nccl"), {})[each["case"]] = each
    lines = scaling.document(dict(sorted(runs.items()))).splitlines()
    assert lines[2].startswith("| 1 | 9.00 | 9.00 | 1.00x | - | - | 0.0 | 0.0 | nccl: not measured |")
    assert lines[3].startswith("| 2 | 4.00 | 6.00 | 1.50x | 1.1x | 3.50x | 72.0 | 288.0 | nccl: pairs-16MB 160.0 GB/s")

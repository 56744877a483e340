"""The benchmark tools report measurements as agreed; the measured times themselves are not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
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
    "estimate_ms",
    "bytes",
    "device",
    "gpu",
    "driver",
    "cuda",
    "threads",
    "commit",
    "date",
    "versions",
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

    ready = bench.Prepared(
        lambda: count("ours"), lambda: count("peer"), "a peer", {"m": 1}, 8, floor_ms=0.5, estimate_ms=0.75
    )
    record = json.loads(one_record(ready).to_json())
    assert list(record) == FIELDS
    assert record["ratio"] == record["peer_ms"] / record["ours_ms"]
    assert (record["params"], record["bytes"], record["gpu"]) == ({"m": 1}, 8, None)
    assert (record["floor_ms"], record["estimate_ms"]) == (0.5, 0.75)
    assert record["versions"]["numpy"] == np.__version__
    assert min(calls.values()) >= 5  # one call to warm up, one to estimate, three rounds


def test_a_scaled_peer_says_so() -> None:
    record = one_record(bench.Prepared(lambda: None, lambda: None, "copy", {}, 8, peer_scale=0.5))
    assert record.peer_ms == 0.5 * record.params["peer_measured_ms"]
    assert record.params["peer_scale"] == 0.5


def test_a_case_without_a_peer() -> None:
    record = one_record(bench.Prepared(lambda: None, None, None, {}, 0))
    assert (record.peer_ms, record.ratio) == (None, None)
    table = bench.format_table(bench.HEADINGS, [bench.record_row(record)])
    assert table.splitlines()[0].split()[0] == "case"
    assert table.splitlines()[2].split()[2:] == ["-", "-", "-", "-", "-"]


def test_timing_takes_turns() -> None:
    order: list[str] = []
    bench.time_interleaved([lambda: order.append("a"), lambda: order.append("b")], TINY._replace(sample_ms=0.0))
    assert order[-12:] == list("aabbbbaaaabb")  # each turn is one call to warm up and one timed; the order alternates


def test_a_suite_that_is_not_there() -> None:
    result = run("--suite", "nonsense")
    assert result.returncode == 2
    assert "--suite nonsense does not exist" in result.stderr
    assert result.stderr.rstrip().endswith(
        "the suites that exist: host, gemm, spmm, binary, sampled, cluster, training, minibatch, frameworks, "
        "manners, nearest, scale"
    )


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


def test_the_host_suite_runs_where_no_folder_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    names = run("--suite", "host", "--list").stdout.split()
    assert "translate-COLLAB" in names
    monkeypatch.syspath_prepend(str(RUN.parent.parent))
    from benchmarks.cases import host_build

    # Cases that measure memory start a separate process, which imports the cases again.
    assert host_build.growth_in_fresh_process("frdc", "pubmed") >= 0
    with pytest.raises(RuntimeError, match=r"the process whose memory is measured failed:(.|\n)*nowhere"):
        host_build.growth_in_fresh_process("frdc", "nowhere")


@pytest.mark.torch
def test_pytorch_s_own_kernels_are_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUN.parent.parent))
    import scipy.sparse
    import torch

    from benchmarks.cases import host_torch

    graph = scipy.sparse.random_array((50, 50), density=0.1, format="csr", dtype=np.float32, random_state=0)
    graph.data[:] = 1
    monkeypatch.setattr(host_torch, "artist", lambda: (graph, "made"))
    before = torch.get_num_threads()
    try:
        for ready in (
            host_torch.product(8, 8, (33, 64, 17), 1, lambda moved, threads: ((None, 1.0), "measured")),
            host_torch.product(1, 4, (33, 64, 17), 1, lambda moved, threads: ((None, None), "measured")),
            host_torch.sums(16, 1, lambda moved, threads: ((None, None), "measured")),
            host_torch.edge_products(16, 1, lambda moved, threads: ((None, None), "measured")),
        ):
            assert ready.peer is not None
            ready.peer()
            assert (ready.peer_name or "").startswith(f"torch {torch.__version__} ")
            assert torch.get_num_threads() == 1  # as many as our side has
    finally:
        torch.set_num_threads(before)


def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUN.parent.parent))
    from benchmarks.cases import host_torch

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(bench.Unavailable, match="the peer is PyTorch, which is not installed"):
        host_torch.sums(16, 2, lambda moved, threads: ((None, None), "measured"))


def test_no_case_matches() -> None:
    result = run("--suite", "host", "--only", "nothing like this")
    assert result.returncode == 2
    assert "import" in result.stderr


def test_the_gemm_suite_has_its_cases() -> None:
    names = run("--suite", "gemm", "--list").stdout.split()
    sizes = ["8192x8192x64", "4096x4096x4096"]
    pairs = ["1x3", "3x3", "3x5", "6x2", "2x8", "7x7", "12x4", "16x1", "16x16", "32x1"]
    promised = {f"matmul-{pair}-{size}" for pair in pairs for size in sizes}
    promised |= {f"matmul-1x1-{s}x{s}x64" for s in (2048, 4096, 8192, 16384, 32768)}
    promised |= {"matmul-1x1-blockdiag-65536x65536x64", "overhead-matmul", "overhead-plan"}
    assert promised <= set(names)
    assert len(set(names)) == len(names)


def qgtc_records() -> list[dict[str, Any]]:
    """Records of every part of QGTC's tables, as ``papers/qgtc/parts.py`` makes them, with made-up times."""
    sizes = {
        "table-3": [(n, d, bits) for d in (32, 64) for n in (2048, 4096, 8192) for bits in (1, 2, 3, 4)],
        "figure-7c": [(n, d, bits) for d in (16, 32, 64) for n in (1024, 2048, 4096) for bits in range(2, 8)],
        "figure-9": [(1 << e, d, 1) for e in range(7, 16) for d in (16, 32, 64, 128, 256, 512, 1024)],
        "figure-10": [(n, 1024, bits) for bits in (4, 8, 16) for n in (1024, 2048, 4096, 8192)],
    }
    found: list[dict[str, Any]] = []
    for part, cases in sizes.items():
        for n, d, bits in cases:
            for variant in ("", "reuse", "no-reuse") if part == "figure-10" else ("",):
                params = {"part": part, "n": n, "d": d, "bits": bits, "variant": variant, "kernel": "planes"}
                params |= {"tflops": 2000.0 + bits, "peer_tflops": 99.0}
                times = {"ours_ms": 0.5 if variant == "reuse" else 1.0, "peer_ms": 2.0, "ratio": 2.0}
                found.append(
                    {"case": part, "params": params, "gpu": "a GPU", "driver": "CUDA 13.0", "peer": "torch 2 _int_mm"}
                    | times
                )
    tiles = {"part": "figure-8", "graph": "artist", "source": "artist.npz", "nodes": 50515, "entries": 7, "parts": 1500}
    return [*found, {"case": "figure-8", "params": tiles | {"tiles": 100, "processed": 20, "zero_between": 75}}]


def test_qgtc_tables_have_the_axes_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUN.parent.parent))
    from benchmarks.papers.qgtc import tables as qgtc_tables

    records = qgtc_records()
    lines = qgtc_tables.document(records).splitlines()
    titles = [line.removeprefix("## ").partition(":")[0] for line in lines if line.startswith("## ")]
    assert titles == ["Table 3", "Figure 7c", "Figure 8", "Figure 9", "Figure 10"]
    first = "| 2048 | 32 | 10.36 | 99.0 | 32.65 | **2001** | 19.99 | **2002** | 14.40 | **2003** | 11.30 | **2004** |"
    assert first in lines
    assert "| 1024 | 16 | 99.0 | 2002 | 2003 | 2004 | 2005 | 2006 | 2007 | 2.00 - 2.00 | 0.55 | 3.93 | 2.49 |" in lines
    assert "| artist | 50,515 | 7 | 1,500 | 100 | 20 | 20.0% | 75.0% | 5.0% |" in lines
    assert sum(line.startswith("| 32768 | 2001 | 2001 |") for line in lines) == 1
    assert "| 16 | 8192 | 2016 | 2016 | 2.00x | 2016 (planes) | 99.0 | 2.00x |" in lines
    widths = [line.count("|") for line in lines if line.startswith("|")]
    assert set(widths) == {13, 14, 10, 9}
    # A part without measurements is left out, and nothing else changes.
    shorter = qgtc_tables.document(record for record in records if record["params"]["part"] == "figure-8")
    assert "Table 3" not in shorter
    assert "| artist |" in shorter


def test_qgtc_takes_only_its_own_parts(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(RUN.parent / "paper.py"),
        "qgtc",
        "--records",
        str(tmp_path / "r"),
        "--out",
        str(tmp_path / "o"),
    ]
    for arguments, words in ((("--only", "table-4"), "figure-7c"), (("--repetitions", "0"), "at least 1")):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_several_substrings_and_a_case_that_fails(tmp_path: Path) -> None:
    names = run("--suite", "gemm", "--only", "overhead", "blockdiag", "--list").stdout.split()
    assert names == ["matmul-1x1-blockdiag-65536x65536x64", "overhead-matmul", "overhead-plan"]
    suites = tmp_path / "benchmarks" / "suites"
    suites.mkdir(parents=True)
    (suites.parent / "__init__.py").touch()  # other distributions, such as PyArrow 17, install a package of this name
    (suites / "host.py").write_text(
        "from bitsparse.bench import Case, Machine, Prepared\n"
        "def machine(threads, commit): return Machine('cpu', threads, commit)\n"
        "def fine(): return Prepared(lambda: None, lambda: None, 'a peer', {}, 0)\n"
        "def broken(): raise ValueError('no such thing')\n"
        "def cases(threads): return [Case('broken', broken), Case('fine', fine)]\n"
    )
    (suites.parent / "run.py").write_text(RUN.read_text())
    command = [
        sys.executable,
        str(suites.parent / "run.py"),
        "--suite",
        "host",
        "--quick",
        "--json",
        str(tmp_path / "found"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "broken: failed" in done.stderr
    assert "ValueError: no such thing" in done.stderr
    assert [json.loads(line)["case"] for line in (tmp_path / "found").read_text().splitlines()] == ["fine"]
    assert done.stdout.splitlines()[-1].startswith("fine ")

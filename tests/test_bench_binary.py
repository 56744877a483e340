"""The parts of suite ``binary`` and of BitGNN's tables that need no peer: cases, bars, tables, and checks of results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitsparse as bs
from bitsparse.datasets import synthetic_csr

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent))


def test_the_suite_has_its_cases() -> None:
    from benchmarks.suites import binary as suite_binary

    names = [case.name for case in suite_binary.cases(2)]
    assert len(set(names)) == len(names)
    graphs = ["artist", "COLLAB", "soc_slashdot0902"]
    made = ["reddit-power_law", "reddit-communities"]
    promised = {f"bspmm-bbb-{g}-D{d}" for g in graphs + made for d in (64, 128, 256)}
    promised |= {f"bspmm-{v}-{g}-D{d}" for v in ("bbf", "fbf", "fbb") for g in graphs for d in (64, 128, 256)}
    promised |= {f"bspmm-{v}-{g}-D128" for v in ("bbf", "fbf", "fbb") for g in made}
    promised |= {f"bspmm-{v}-artist-D128" for v in ("bfb", "bff", "ffb", "fff")} | {"bspmm-bbb-frdc-COLLAB-D128"}
    promised |= {"bmm-fbb-232965x602x128", "frdc-COLLAB", "papers-bbb-int32-D128", "papers-bbb-int64-D128"}
    promised |= {f"gcn-{v}-{g}" for v in ("full", "bin", "bin-packed") for g in ("cora", "citeseer", "pubmed")}
    assert promised <= set(names)
    # Cases of the same graph and width are adjacent, so that their operands are made only once.
    cells = [name.partition("COLLAB-D")[2] for name in names if "COLLAB-D" in name]
    assert cells == sorted(cells, key=int)


# ---- the summary
def record(case: str, ours: float, peer: float | None, **params: Any) -> dict[str, Any]:
    facts = {"frdc": "frdc" in case, "weighted": False, "packed": "packed" in case} | params
    ratio = None if peer is None else peer / ours
    return {
        "suite": "binary",
        "case": case,
        "params": facts,
        "ours_ms": ours,
        "peer_ms": peer,
        "ratio": ratio,
        "floor_ms": 0.0001,
        "estimate_ms": facts.get("gather_ms", 0.001),
    }


RECORDS = [
    record("bspmm-bbb-a-D128", 0.02, 0.1, estimate="gather", gather_ms=0.014),
    record("bspmm-bbb-b-D128", 0.01, 0.2, estimate="gather", gather_ms=0.002),
    record("bspmm-bbb-frdc-b-D128", 1.0, 0.2),
    record("bspmm-bbb-reddit-power_law-D128", 1.0, 8.0, estimate="bytes"),
    record("bspmm-bbf-a-D128", 0.1, 0.4),
    record("bspmm-bbf-a-D64", 0.1, 0.2),
    record("bspmm-fbf-a-D64", 1.0, 0.98),
    record("bspmm-fbb-a-D64", 1.0, 1.05, packed_ms=1.2),
    record("bspmm-bff-a-D64", 1.0, 1.4, weighted=True),
    record("papers-bbb-int64-D128", 50.0, None),
    record("frdc-COLLAB", 4.0, 300.0),
    record("bmm-fbb-232965x602x128", 0.16, 0.32, x_bytes=562_500_000),
    record("bmm-fbb-10x10x10", 1.0, 3.0, x_bytes=1),
    record("gcn-bin-cora", 0.01, 0.03, packed=False),
    record("gcn-full-cora", 0.01, 0.02, packed=False),
    record("gcn-bin-packed-pubmed", 0.01, 0.05, peak_bytes=4, peer_bytes=40),
]


def test_the_bars() -> None:
    from benchmarks.suites import bars, binary_bars

    made = binary_bars.bars(RECORDS)
    found = {bar.title: bar for bar in made}
    assert len(found) == len(made)
    against = found["BBB, 128 columns, cuSPARSE fp32"]
    assert set(against.cells) == {"bspmm-bbb-a-D128", "bspmm-bbb-b-D128", "bspmm-bbb-reddit-power_law-D128"}
    assert bars.row(against)[1:5] == ["3", "9.28", "5.00", "10.00"]
    assert found["BBB, 64 columns, cuSPARSE fp32"].cells == {}
    # Cells with a limit as short as 2 us say nothing about a kernel, and cells that reuse rows have another limit.
    assert found["BBB without reuse, against the gather estimate"].cells == {"bspmm-bbb-a-D128": pytest.approx(0.7)}
    assert found["BBF, 128 columns, cuSPARSE fp32"].cells == {"bspmm-bbf-a-D128": pytest.approx(4.0)}
    assert bars.row(found["FBF, our float32 spmm"])[-1] == "NO"
    assert found["FBB, our spmm, then sign and pack"].cells == {"bspmm-fbb-a-D64": pytest.approx(1.2)}
    assert found["with weights, cuSPARSE fp32"].cells == {"bspmm-bff-a-D64": pytest.approx(1.4)}
    assert found["BBB reddit power law, 1.2 ms over ours"].cells == {"bspmm-bbb-reddit-power_law-D128": 1.2}
    assert found["BBB papers, 100 ms over ours"].cells == {"papers-bbb-int64-D128": 2.0}
    assert found["FRDC COLLAB, 10 ms over ours"].cells == {"frdc-COLLAB": 2.5}
    (reading,) = found["BMM FBB 232965x602x128, X at 90 % of the memory"].cells.values()
    assert reading == pytest.approx(0.1389 / 0.16, rel=1e-3)
    assert found["BMM, other shapes, TF32"].cells == {"bmm-fbb-10x10x10": 3.0}
    assert found["binary GCN, PyTorch Geometric"].cells == {
        "gcn-bin-cora": pytest.approx(3.0),
        "gcn-full-cora": pytest.approx(2.0),
    }
    assert found["memory of fp32 over a binary GCN's, pubmed"].cells == {"gcn-bin-packed-pubmed": 10.0}


def test_the_summary_prints_both_suites(tmp_path: Path) -> None:
    import json

    path = tmp_path / "found.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in RECORDS))
    command = [sys.executable, str(BENCHMARKS / "summary.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("binary GCN, PyTorch Geometric") for line in done.stdout.splitlines())


# ---- BitGNN's tables
def table_records() -> list[dict[str, Any]]:
    from benchmarks.papers.bitgnn import parts as bitgnn_parts
    from benchmarks.papers.bitgnn import tables as bitgnn_tables

    found = []
    for part, (models, graphs) in bitgnn_parts.PARTS.items():
        for model in models:
            for graph in graphs:
                for i, version in enumerate(bitgnn_tables.VERSIONS):
                    params = {"part": part, "model": model, "graph": graph, "version": version}
                    params |= {
                        "peak_bytes": 48_000_000 // (i + 1),
                        "source": "synthetic" if graph == "reddit" else "x.npz",
                    }
                    facts = {"case": f"{part}-{model}-{graph}-{version}", "params": params, "ours_ms": 1.0 / (i + 1)}
                    facts |= {"ratio": (i + 1) / 2, "gpu": "a GPU", "driver": "CUDA 13.0", "peer": "torch_geometric 1"}
                    found.append(facts)
    return found


def test_tables_have_the_axes_of_the_paper() -> None:
    from benchmarks.papers.bitgnn import tables as bitgnn_tables

    records = table_records()
    lines = bitgnn_tables.document(records).splitlines()
    titles = [line.removeprefix("## ").partition(":")[0] for line in lines if line.startswith("## ")]
    assert titles == ["Table 3", "Table 4", "Table 5"]
    row = "| pubmed | GCN | ours (bin) | 12.00M | 1 / 2.0 | 0.2500 | 2.00x | 2.65M | 0.44 | 4.02x | 78.1 |"
    assert row in lines
    assert any(line.startswith("| reddit * | GraphSAINT | ours (full) |") for line in lines)
    assert sum(line.startswith("| reddit * |") for line in lines) == 3 * 4
    assert all(bitgnn_tables.line_of(one) for one in records)
    assert "Table 4" not in bitgnn_tables.document(one for one in records if one["params"]["part"] == "table-3")


def test_tables_take_only_their_own_parts(tmp_path: Path) -> None:
    files = ["--records", str(tmp_path / "r"), "--out", str(tmp_path / "o")]
    for arguments, words in ((("--only", "table-2"), "table-3"), (("--repetitions", "0"), "at least 1")):
        command = [sys.executable, str(BENCHMARKS / "paper.py"), "bitgnn", *files, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert words in done.stderr
    assert not list(tmp_path.iterdir())


# ---- checks of results
@pytest.mark.gpu
@pytest.mark.parametrize("columns", [1, 31, 128, 200])
def test_bits_are_compared(columns: int) -> None:
    import cupy

    from benchmarks.cases import binary_gpu

    floats = cupy.asarray(np.random.default_rng(0).standard_normal((5, columns), dtype=np.float32))
    words: Any = bs.pack_bits(floats, encoding="bipolar").words
    np.testing.assert_array_equal(binary_gpu.packed(floats >= 0).get(), words.get())
    assert binary_gpu.check_bits("x", words, floats) == 0
    turned = words.copy()
    turned[2, 0, 0] ^= 1
    with pytest.raises(AssertionError, match="1 bits are wrong"):
        binary_gpu.check_bits("x", turned, floats)
    slack = cupy.full((5, 1), 100, np.float32)
    assert binary_gpu.check_bits("x", turned, floats, slack) == 1
    if columns % 128:
        turned[3, 0, -1] ^= np.uint32(1 << 31)
        with pytest.raises(AssertionError, match="1 bits are wrong"):
            binary_gpu.check_bits("x", turned, floats, slack)


@pytest.mark.gpu
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_sums_of_some_rows(index: str) -> None:
    import cupy

    from benchmarks.cases import large as cases_papers_gpu

    indptr, indices = (a.astype(index) for a in synthetic_csr((300, 2400), device="cuda"))
    x = np.random.default_rng(1).standard_normal((300, 128), dtype=np.float32)
    words = bs.pack_bits(cupy.asarray(x), encoding="bipolar").words
    rows = cases_papers_gpu.chosen_rows(indptr, 50)
    found = cases_papers_gpu.sums_of(indptr, indices, words, rows).get()
    signs = np.where(x >= 0, 1, -1)
    starts, columns = indptr.get(), indices.get()
    for row, sums in zip(rows.get(), found, strict=True):
        np.testing.assert_array_equal(sums, signs[columns[starts[row] : starts[row + 1]]].sum(axis=0))
    assert rows.size == 58


@pytest.mark.gpu
def test_a_network_of_the_tables() -> None:
    import cupy

    from benchmarks.cases import binary_models

    indptr, indices = synthetic_csr((300, 2400), device="cuda")
    x = cupy.asarray(np.random.default_rng(0).standard_normal((300, 100), dtype=np.float32))
    net = binary_models.Network("small", "synthetic", indptr, indices, x, 64, 7)
    graph = binary_models.adjacency(net, loops=True)
    dense = np.zeros((300, 300), np.int8)
    starts, columns = indptr.get(), indices.get()
    dense[np.repeat(np.arange(300), np.diff(starts)), columns] = 1
    np.testing.assert_array_equal(graph.with_scales().toarray().get(), dense + np.eye(300, dtype=np.int8))
    np.testing.assert_allclose(graph.row_scale.get(), (np.diff(starts) + 1) ** -0.5, rtol=1e-6)
    model = binary_models.binary_model("gcn", "bin", net)
    packed = model.packed(x)
    plan, out = model.plan(graph, packed), cupy.empty((300, 7), np.float32)
    plan(packed, out=out)
    binary_models.compare("small", model, graph, packed, out)
    assert [str(setting) for setting in plan.settings] == ["BBB+BBB", "BBF+FBF"]

"""The parts of AES-SpMM's and TANGO's figures that need no GPU: sampling rates, accuracies, the documents."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from bitsparse import nn
from bitsparse.datasets import GraphData

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent))


def test_rates_of_degrees_are_those_of_a_graph() -> None:
    from benchmarks.papers.aes import parts as aes_parts

    rng = np.random.default_rng(0)
    graph = sp.csr_array(rng.random((90, 90)) < np.linspace(0, 0.9, 90)[:, None])
    degrees = np.diff(graph.indptr).astype(np.int64)
    for strategy in ("aes", "sfs", "afs"):
        for width in (4, 16, 64, 1024):
            kept, cdf = aes_parts.rate_of_degrees(degrees, width, strategy)
            wanted = nn.sampling_rate(graph, width, strategy)
            assert kept == pytest.approx(wanted.kept)
            np.testing.assert_allclose(cdf, wanted.cdf, atol=1e-4)
    assert aes_parts.rate_of_degrees(np.zeros(3, np.int64), 4, "aes") == (0.0, [0.0] * 21)


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_accuracies_are_pooled_over_the_seeds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.papers.aes import parts as aes_parts
    from benchmarks.papers.aes import tables as aes_tables

    n, rng = 150, np.random.default_rng(1)
    labels = np.arange(n) % 3
    near = np.triu(rng.random((n, n)) < np.where(labels[:, None] == labels, 0.3, 0.05), 1)
    graph = sp.csr_array(near | near.T)
    x = (rng.random((n, 12)) + (np.arange(12) % 3 == labels[:, None])).astype(np.float32)
    data = GraphData(indptr=graph.indptr, indices=graph.indices, x=x, labels=labels, name=f"three-{kind}")
    monkeypatch.setattr(aes_parts, "graph", lambda name: (data, "three.npz"))
    for name, value in (("WIDTHS", (4, 32)), ("BITS", (32, 8, 4, 2)), ("STRATEGIES", ("aes", "sfs", "uniform"))):
        monkeypatch.setattr(aes_parts, name, value)
    monkeypatch.setattr(aes_tables, "WIDTHS", (4, 32))
    records = list(aes_parts.figure_6("three", kind, "abc"))
    assert [record["params"]["rescale"] for record in records] == [False, True]
    for record in records:
        params = record["params"]
        assert (params["seeds"], params["split"]) == (3, "random")
        cells = [dict(zip(params["fields"], cell, strict=True)) for cell in params["cells"]]
        assert len(cells) == (1 + 3 * 2) * 4
        assert cells[0]["accuracy"] > 70
        assert cells[0]["loss"] == 0
        assert aes_tables.line_of(record).startswith(f"figure-6-{kind}-three")
    text = aes_tables.document(records)
    assert "Sums rescaled" in text
    assert "`choose_bits`" in text
    assert text.count("from W = ") + text.count("No width measured") == 2


def aes_record(part: str, graph: str, width: int, ours: float, **params: Any) -> dict[str, Any]:
    source = params.pop("source", "synthetic")
    facts = {"part": part, "graph": graph, "source": source, "width": width, "bits": None, "strategy": "aes"} | params
    return {
        "case": f"{part}-{graph}-W{width}",
        "params": facts,
        "ours_ms": ours,
        "peer_ms": 4.0,
        "ratio": 4.0 / ours,
        "gpu": "GPU",
        "driver": "CUDA",
        "bytes": 8_000_000,
        "peer": "peer",
    }


def test_the_document_of_aes_puts_the_paper_beside() -> None:
    from benchmarks.papers.aes import tables as aes_tables

    widths = aes_tables.WIDTHS
    records = [aes_record("figure-7", "cora", w, 2.0, source="cora.npz") for w in widths]
    records += [aes_record("figure-7", "reddit", 16, 0.5, bits=8)]
    for bits, ms in ((None, 1.0), (8, 0.25)):
        records += [aes_record("table-3", "arxiv", w, ms, bits=bits, share=0.5) for w in widths]
    records += [
        aes_record("figure-5", "cora", w, 1.0, kept=0.9, cdf=[0.1] * 21, nodes=10, entries=40, source="cora.npz")
        for w in widths
    ]
    text = aes_tables.document(records)
    assert "| cora | 10 | 4.0 | 90.0 (90)" in text
    assert "| cora | AES | float32 | 4.0000 | 2.00x" in text
    assert "| reddit * | AES | 8 bits | 4.0000 | 8.00x | - |" in text
    assert "| arxiv * | 16 | 1.0000 | 0.2500 | 75.0 | 50.0 | 55.4 | 50.0 | 33.6 |" in text
    assert [aes_tables.line_of(record).split()[0] for record in records] == [record["case"] for record in records]


def test_the_document_of_tango_puts_the_paper_beside() -> None:
    from benchmarks.papers.tango import tables as tango_tables

    def one(part: str, **params: Any) -> dict[str, Any]:
        return aes_record(part, "arxiv", 0, 2.0, **({"D": 16} | params))

    dense = {"given_ms": 1.0, "fp32_ms": 8.0, "tf32_ms": 3.0, "fp16_ms": 2.0, "flops": 4e9}
    records = [one("figure-10"), one("figure-11", **dense), one("figure-13a")]
    records += [one("figure-13b", heads=4, int8_ms=1.5), one("figure-14", heads=2, D=1)]
    records += [one("figure-15", op="add", torch_ms=None), one("figure-16", op="dot", torch_ms=9.0)]
    records += [one("figure-16", **dense)]
    text = tango_tables.document(records)
    assert "| arxiv * | 16 | 4.0000 | 2.0000 | 2.00x |" in text
    assert "| arxiv * | 16 | 2.0000 | 1.0000 | 8.0000 | 3.0000 | 2.0000 | 4.00x | 1.50x | 1.00x |" in text
    assert "| arxiv * | 16 | 4.0 | 0.5 | 8 | 1 | 8.00x |" in text
    assert "| arxiv * | 16 | 2.0000 | 4.0000 | 2.00x | 4 | 2 | 344 | 41 |" in text
    assert "| arxiv * | 4 x 16 | 2.0000 | 1.5000 | 4.0000 | 2.00x |" in text
    assert "| arxiv * | add | 2.0000 | 4.0000 | 2.00x | - | - |" in text
    assert "| arxiv * | dot | 2.0000 | 4.0000 | 2.00x | 9.0000 | 4.50x |" in text
    for title, _ in tango_tables.SECTIONS.values():
        assert f"## {title}" in text
    assert tango_tables.line_of(records[0]).startswith("figure-10-arxiv")


def test_the_recorded_figures_are_drawn(tmp_path: Path) -> None:
    from benchmarks.papers.aes import plot as aes_plot

    assert aes_plot.main(["--out", str(tmp_path / "figures.png")]) == 0
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


def test_the_recorded_accuracies_hold_what_is_documented() -> None:
    lines = (BENCHMARKS / "results" / "h200" / "aes.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [one["params"] for one in map(json.loads, lines) if one["params"]["part"] == "figure-6"]
    assert len({(row["graph"], row["model"]) for row in rows}) == 10
    for row in rows:
        losses = {(s, w, b): loss for s, w, b, _, _, loss in row["cells"]}
        width = 32 if row["rescale"] else 64
        assert losses["aes", width, 32] < 1.0
        assert losses["aes", width, 8] - losses["aes", width, 32] < 0.3


@pytest.mark.parametrize("module", ["aes", "bitgnn", "qgtc", "tango", "tcgnn"])
def test_the_modules_of_a_paper_can_be_imported_without_a_gpu(module: str) -> None:
    names = importlib.import_module(f"benchmarks.papers.{module}.program").PARTS
    assert len(set(names)) == len(names)


def test_a_part_replaces_its_own_records(tmp_path: Path) -> None:
    records, out = tmp_path / "aes.jsonl", tmp_path / "aes.md"
    old = [
        aes_record("figure-5", "gone", 16, 1.0, kept=0.1, cdf=[0.0] * 21, nodes=1, entries=1),
        aes_record("figure-7", "cora", 16, 2.0, source="cora.npz"),
    ]
    records.write_text("".join(json.dumps(one) + "\n" for one in old), encoding="utf-8")
    code = (
        "import sys, bitsparse; sys.path.insert(0, sys.argv[1]); from benchmarks.papers.aes import parts, program;"
        "parts.LABELLED = (); parts.PAPERS = {'cora': (400, 2000)};"
        "raise SystemExit(program.main(['--only', 'figure-5', '--records', sys.argv[2], '--out', sys.argv[3]]))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(BENCHMARKS.parent), str(records), str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    assert {one["params"]["graph"] for one in kept} == {"cora"}
    assert {one["params"]["part"] for one in kept} == {"figure-5", "figure-7"}
    assert "Figure 7" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("paper", ["aes", "bitgnn", "qgtc", "tango", "tcgnn"])
def test_the_pages_are_what_their_records_make(paper: str) -> None:
    """Each page must be exactly what its records make, with no number changed by hand, and must begin with the summary."""
    from benchmarks.papers.program import recorded

    tables: Any = importlib.import_module(f"benchmarks.papers.{paper}.tables")
    page = (BENCHMARKS.parent / "docs" / f"{paper}-tables.md").read_text("utf-8")
    assert tables.document(recorded(paper)) == page
    assert page.index("**In short**") < page.index("## ")


@pytest.mark.parametrize("paper", ["aes", "bitgnn", "qgtc", "tango", "tcgnn"])
def test_no_part_is_recorded_on_two_machines(paper: str) -> None:
    parts = [
        {json.loads(line)["params"]["part"] for line in path.read_text("utf-8").splitlines()}
        for path in (BENCHMARKS / "results").glob(f"*/{paper}.jsonl")
    ]
    assert sum(map(len, parts)) == len(set().union(*parts))


def test_strategies_are_compared_by_their_means() -> None:
    from benchmarks.papers.aes import tables as aes_tables

    cells: list[list[Any]] = [[None, None, 32, 80.0, 0.0, 0.0]]
    cells += [["aes", 16, 32, 79.0, 0.0, 1.0], ["aes", 32, 32, 79.5, 0.0, 0.5], ["aes", 16, 8, 70.0, 0.0, 10.0]]
    cells += [["uniform", 16, 32, 80.0, 0.0, -0.001]]
    rows = [{"params": {"rescale": False, "cells": cells}}, {"params": {"rescale": True, "cells": []}}]
    assert aes_tables.losses(rows, rescale=False) == "AES 0.75, uniform 0.00"
    times = (("aes", 16, 1.0), ("afs", 16, 2.0), ("aes", 32, 1.0), ("afs", 32, 8.0))
    timed = [aes_record("figure-7", "cora", width, ms, strategy=name, bits=None) for name, width, ms in times]
    timed += [aes_record("figure-7", "cora", 16, 9.0, strategy="aes", bits=8)]
    assert aes_tables.speed(timed, "afs") == pytest.approx(4.0)

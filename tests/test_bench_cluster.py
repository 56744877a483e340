"""The parts of suite ``cluster`` and of QGTC's Figure 7 that need no GPU: problems, the peer on the CPU, cases, floors, bars, tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bitsparse as bs
from bitsparse import nn
from bitsparse.datasets import GraphData

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
GRAPHS = ("artist", "PROTEINS_full", "DD", "ppi", "blogcatalog", "arxiv", "products")


@pytest.fixture(autouse=True)
def _search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent))


def small(seed: int = 0, nodes: int = 60, parts: int = 7) -> Any:
    """A problem with self-loops, edges between parts, an empty part and a part of one node."""
    from benchmarks.cases import cluster_problems

    rng = np.random.default_rng(seed)
    dense = rng.random((nodes, nodes)) < 0.2
    dense |= dense.T
    indptr = np.concatenate([[0], np.cumsum(dense.sum(axis=1))]).astype(np.int32)
    data = GraphData(indptr=indptr, indices=np.nonzero(dense)[1].astype(np.int32), name="small")
    made = cluster_problems.Problem("small", data, "synthetic", 9, 5)
    labels = rng.integers(0, parts, nodes).astype(np.int32)
    labels[labels == 3] = 4
    labels[labels == 5] = 4
    labels[nodes // 2] = 5
    made.__dict__["labels"] = labels
    return made


def dense_of(problem: Any) -> np.ndarray:
    """The edges inside parts, without self-loops, as a dense array."""
    nodes, labels = problem.nodes, problem.labels
    full = np.zeros((nodes, nodes), bool)
    full[np.repeat(np.arange(nodes), np.diff(problem.data.indptr)), problem.data.indices] = True
    return full & (labels[:, None] == labels) & ~np.eye(nodes, dtype=bool)


def test_the_suite_has_its_cases() -> None:
    from benchmarks.suites import cluster as suite_cluster
    from benchmarks.suites import host as suite_host

    names = [case.name for case in suite_cluster.cases(2)]
    assert len(set(names)) == len(names)
    promised = [
        f"cluster-{kind}-{graph}-b{bits}" for graph in GRAPHS for kind in ("gcn", "gin") for bits in (1, 2, 4, 8)
    ]
    assert set(promised) | {"cluster-pack-products-b1", "cluster-pack-products-b8"} == set(names)
    # Cases of one graph and network are adjacent, so that the peer's batches are made once; the cases of packing use the last graph.
    cells = [name.rpartition("-")[0] for name in names]
    assert len(set(cells)) == sum(1 for one, other in zip(cells, [*cells[1:], ""], strict=True) if one != other)
    assert cells[-3] == "cluster-gin-products"
    here = {case.name for case in suite_host.cases(2)}
    assert {f"cluster-{kind}-artist-b{bits}" for kind in ("gcn", "gin") for bits in (1, 2, 4, 8)} <= here


# ---- problems
def test_batches_hold_the_edges_inside_parts() -> None:
    problem = small()
    dense, seen = dense_of(problem), []
    for batch in problem.batches(2):
        part = np.zeros((batch.nodes.size,) * 2, int)
        rows = np.repeat(np.arange(batch.nodes.size), np.diff(batch.indptr))
        np.add.at(part, (rows, batch.indices), 1)
        np.testing.assert_array_equal(part, dense[np.ix_(batch.nodes, batch.nodes)])
        loops = batch.with_loops()
        full = np.zeros(part.shape)
        full[np.repeat(np.arange(loops.nodes.size), np.diff(loops.indptr)), loops.indices] = loops.normalised()
        wanted = part + np.eye(len(part))
        factors = 1 / np.sqrt(wanted.sum(axis=1))
        np.testing.assert_allclose(full, factors[:, None] * wanted * factors, rtol=1e-6)
        seen.append(batch.nodes)
    assert len(seen) == 4
    assert problem.kept_edges == dense.sum()
    order = np.concatenate(seen)
    np.testing.assert_array_equal(np.sort(order), np.arange(problem.nodes))
    assert (np.diff(problem.labels[order]) >= 0).all()
    assert problem.facts()["kept_edges"] == dense.sum()
    few = problem.spread(3)
    assert set(problem.labels[few.nodes]) == {0, 3, 6} - {3}  # part 3 is empty
    part = np.zeros((few.nodes.size,) * 2, int)
    np.add.at(part, (np.repeat(np.arange(few.nodes.size), np.diff(few.indptr)), few.indices), 1)
    np.testing.assert_array_equal(part, dense[np.ix_(few.nodes, few.nodes)])
    assert problem.spread(100).nodes.size == problem.nodes
    assert problem.features.shape == (60, 9)
    assert not problem.own_features


def test_parts_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.cases import cluster_problems

    monkeypatch.setenv("BITSPARSE_PARTS", str(tmp_path))
    monkeypatch.setattr(cluster_problems, "PARTS", 5)
    data = small().data
    first = cluster_problems.labels_of("small", data)
    assert [path.name for path in tmp_path.iterdir()] == ["small-5.npz"]
    monkeypatch.setattr(cluster_problems, "partition", None)
    again = cluster_problems.labels_of("small", data)
    np.testing.assert_array_equal(first, again)
    assert again.dtype == np.int32
    other = small(seed=1).data
    with pytest.raises(TypeError):  # labels of another graph with the same name are not used
        cluster_problems.labels_of("small", other)


@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_the_peer_on_the_cpu_is_the_network(kind: Any) -> None:
    from scipy import sparse

    from benchmarks.cases import cluster_ours
    from benchmarks.peers import scipy_cluster as cluster_scipy

    problem = small()
    network: Any = nn.random_network(kind, problem.widths(kind), seed=0)
    epoch = cluster_scipy.Epoch(problem, kind, cluster_ours.weights_of(network), 2)
    out = epoch(np.full((problem.nodes, problem.classes), np.nan, np.float32))
    wanted = network(sparse.csr_array(dense_of(problem).astype(np.float32)), problem.features)
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5 * float(np.abs(wanted).max()))
    assert epoch.nbytes > problem.features.nbytes


@pytest.mark.parametrize(("kind", "bits"), [("gcn", 1), ("gin", 8)])
def test_an_epoch_on_the_cpu(kind: Any, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.cases import host_cluster as cases_cluster

    made = small(nodes=300)
    monkeypatch.setattr(cases_cluster, "problem", lambda name: made)
    monkeypatch.setattr(cases_cluster, "_held", {})
    prepared = cases_cluster.epoch(kind, "small", bits, 1, lambda moved, threads: ((None, moved / 1e6), "measured"))
    prepared.ours()
    assert prepared.peer is not None
    prepared.peer()
    params = json.loads(json.dumps(prepared.params))
    assert params["kept_edges"] == dense_of(made).sum()
    assert 0 <= params["same_class"] <= 1
    assert params["packed"]["batches"] == 1
    assert prepared.bytes > made.nodes * made.classes * 4


def test_wrong_logits_are_found() -> None:
    from benchmarks.cases import cluster_ours

    problem = small(nodes=100)
    model = cluster_ours.model_of(problem, "gcn", 4)
    runner = cluster_ours.runner_of(problem, model, "cpu")
    out = np.empty((problem.nodes, problem.classes), np.float32)
    runner.run_packed(runner.pack(problem.features), out=out)
    cluster_ours.checked("case", problem, model, out)
    wrong = out.copy()
    wrong[next(problem.batches()).nodes[1], 0] += 1
    with pytest.raises(AssertionError, match="case: 1 of the first batch's"):
        cluster_ours.checked("case", problem, model, wrong)
    wrong[0, 0] = np.nan
    with pytest.raises(AssertionError, match="case: 1 nodes have no logits"):
        cluster_ours.checked("case", problem, model, wrong)
    cluster_ours.same_classes("case", 4, out, -out)
    with pytest.raises(AssertionError, match="differ from full precision"):
        cluster_ours.same_classes("case", 8, out, -out)


def test_the_peer_gets_groups_and_graphs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.peers import pyg_cluster
    from benchmarks.suites import cluster as suite_cluster

    class Epoch:
        """Records how it is called; its capture is refused for gathers and scatters."""

        def __init__(self, problem: Any, kind: Any, weights: Any, way: str, parts: int) -> None:
            self.way, self.parts, self.nbytes = way, parts, 10 * parts

        def __call__(self, out: list[Any]) -> None:
            out.append((self.way, self.parts))

        def captured(self, out: list[Any]) -> Any:
            if self.way == "edges":
                raise RuntimeError("not permitted\nwhile capturing")
            return lambda: out.append((self.way, self.parts, "replayed"))

    monkeypatch.setattr(pyg_cluster, "Epoch", Epoch)
    out: list[Any] = []
    weights: Any = None
    variants = pyg_cluster.variants_of(small(), "gcn", weights, 2, 6, out)
    assert [variant.name for variant in variants] == [
        *("sparse", "sparse replayed", "sparse grouped", "sparse grouped replayed"),
        *("sparse32", "sparse32 replayed", "sparse32 grouped", "sparse32 grouped replayed"),
        *("edges", "edges grouped"),
    ]
    for variant in variants[2:4]:
        variant.call()
    assert out == [("sparse", 6), ("sparse", 6, "replayed")]
    assert variants[2].nbytes == 60
    assert capsys.readouterr().err.splitlines()[0] == "PyTorch Geometric, edges: not captured, not permitted"
    # If all batches form one group, there are no separate grouped variants.
    assert len(pyg_cluster.variants_of(small(), "gcn", weights, 2, 2, out)) == 5
    # 1500 parts are 75 batches: each of 19 groups has at most four batches, a single group has all.
    made: Any = SimpleNamespace(labels=np.arange(1500))
    assert [suite_cluster.parts_of_group(made, groups) for groups in (1, 19, 75)] == [1500, 80, 20]


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.suites import cluster as suite_cluster

    monkeypatch.setattr(suite_cluster, "link_rate", lambda: 50e9)
    made = small()
    edges = made.kept_edges + made.nodes
    limits, why = suite_cluster.bounds_of(made, "gcn", 1, 50_000_000)
    assert (limits.estimate_ms, why.startswith("measured: pinned copy at 50.0 GB/s")) == (pytest.approx(1.0), True)
    assert limits.floor_ms == pytest.approx(1e3 * 50e6 / 63.1e9)
    limits, why = suite_cluster.bounds_of(made, "gin", 8, 0)
    assert limits.floor_ms == 0.0
    assert limits.estimate_ms == pytest.approx(1e3 * edges * (2 / 155e9 + 64 / 9e12))  # 9, 64 and 5 columns
    assert "gathers" in why


def test_the_share_of_kernels_is_of_the_epoch_that_was_timed() -> None:
    from benchmarks.suites import cluster as suite_cluster

    report = SimpleNamespace(copy_ms=1.0, compute_ms=3.0, idle_share=0.2, seconds=0.004)
    found = suite_cluster.stages(report)
    assert found == {"copy_ms": 1.0, "compute_ms": 3.0, "idle": 0.2, "timed_ms": 4.0, "computing": 0.75}
    report.compute_ms = None
    assert suite_cluster.stages(report)["computing"] is None


# ---- the summary
def record(case: str, ours: float, peer: float | None, **params: Any) -> dict[str, Any]:
    found = {
        "suite": "cluster",
        "case": case,
        "params": params,
        "ours_ms": ours,
        "peer_ms": peer,
        "floor_ms": 0.05,
        "estimate_ms": 0.1,
    }
    found |= {"ratio": None if peer is None else peer / ours, "gpu": "a GPU", "driver": "CUDA 13.0"}
    return found | {"peer": "torch_geometric 1, torch 2, sparse"}


def epoch_record(kind: str, graph: str, bits: int, ours: float, peer: float, **more: Any) -> dict[str, Any]:
    params = {"kind": kind, "graph": graph, "bits": bits, "moved": 100 * bits, "plain_bytes": 2000, "peer_moved": 1600}
    params |= {"launched_ms": peer / 2, "idle": 0.1, "source": f"synthetic {graph}", "nodes": 10, "kept_edges": 20}
    return record(f"cluster-{kind}-{graph}-b{bits}", ours, peer, **(params | {"pack_ms": 1.0} | more))


RECORDS = [
    epoch_record("gcn", "ppi", 1, 1.0, 8.0, idle=0.5),
    epoch_record("gcn", "ppi", 8, 2.0, 8.0),
    epoch_record("gin", "products", 1, 4.0, 8.0, idle=0.0),
    epoch_record("gin", "products", 8, 8.0, 8.0, source="products.npz"),
    record("cluster-pack-products-b1", 1500.0, None, bits=1, graph="products"),
]


def test_the_bars() -> None:
    from benchmarks.suites import bars, cluster_bars

    made = cluster_bars.bars(RECORDS)
    found = {bar.title: bar for bar in made}
    assert len(found) == len(made)
    every = found["epochs of GCN and GIN, PyTorch Geometric"]
    assert bars.row(every)[1:] == [
        "4",
        "2.83",
        "3.00",
        "6.00",
        "1.00",
        "1.20",
        "2.00",
        "cluster-gin-products-b8",
        "NO",
    ]
    assert set(found["  gcn"].cells) == {"cluster-gcn-ppi-b1", "cluster-gcn-ppi-b8"}
    assert found["  8 bits"].cells == {"cluster-gcn-ppi-b8": 4.0, "cluster-gin-products-b8": 1.0}
    assert found["bytes moved, 1 bit, fewer than PyTorch Geometric"].cells["cluster-gcn-ppi-b1"] == 20.0
    assert bars.row(found["bytes moved, 8 bits, fewer than PyTorch Geometric"])[2] == "2.50"
    assert found["  8 bits, the way that counts"].cells["cluster-gcn-ppi-b8"] == 2.0
    assert found["packing products, 3 s over ours"].cells == {"cluster-pack-products-b1": 2.0}
    assert found["idle share, products, 20 % over ours"].cells == {
        "cluster-gin-products-b1": pytest.approx(20.0),
        "cluster-gin-products-b8": pytest.approx(2.0),
    }
    assert found["  its batches launched one by one"].cells["cluster-gcn-ppi-b1"] == 4.0


def test_the_summary_prints_the_suite(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in RECORDS))
    command = [sys.executable, str(BENCHMARKS / "summary.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("epochs of GCN and GIN, PyTorch Geometric") for line in done.stdout.splitlines())


# ---- QGTC's Figures 7 and 8
def test_figure_7_is_made_of_the_suite_s_records(tmp_path: Path) -> None:
    from benchmarks.papers.qgtc import parts as qgtc_parts
    from benchmarks.papers.qgtc import plot as qgtc_plot
    from benchmarks.papers.qgtc import program as qgtc
    from benchmarks.papers.qgtc import tables as qgtc_tables

    path = tmp_path / "cluster.jsonl"
    with pytest.raises(bs.bench.Unavailable, match="no records of suite cluster"):
        next(qgtc_parts.figure_7("figure-7a", path))
    path.write_text("".join(json.dumps(one) + "\n" for one in RECORDS))
    made = [one for part in ("figure-7a", "figure-7b") for one in qgtc_parts.figure_7(part, path)]
    assert [one["case"] for one in made] == [
        "figure-7a ppi 1", "figure-7a ppi 8", "figure-7b products 1", "figure-7b products 8",
    ]  # fmt: skip
    assert all(one["suite"] == "qgtc" and qgtc.line_of(one) for one in made)
    lines = qgtc_tables.document(made).splitlines()
    assert [line for line in lines if line.startswith("## ")] == [
        "## Figure 7a: Cluster GCN, 3 x 16",
        "## Figure 7b: batched GIN, 3 x 64",
    ]
    assert "| ppi * | 10 | 20 | 8.00 | 1.00 | 2.00 | 8.0x - 4.0x | 20.0x fewer | 2.5x fewer |" in lines
    assert any("5.7x" in line and "2.6x" in line for line in lines)
    tiles = {"case": "figure-8 ppi", "params": {"part": "figure-8", "graph": "ppi", "tiles": 200, "processed": 30}}
    assert qgtc_plot.panels([*made, tiles]) == {
        "figure-7a": {"ppi": {"1 bit": 8.0, "8 bits": 4.0}},
        "figure-7b": {"products": {"1 bit": 2.0, "8 bits": 1.0}},
        "figure-8": {"ppi": {"processed": 15.0}},
    }

"""The parts of suite ``training`` that need no GPU: its cases, and tiny epochs of both sides."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bitsparse as bs

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("gcn", "sage", "gin", "gat", "agnn")


@pytest.fixture(autouse=True)
def _search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def small(symmetric: bool = True, columns: int = 40) -> Any:
    """A problem on a graph with a self-loop and a node without edges."""
    import torch

    from benchmarks.cases import training_sides

    dense = np.random.default_rng(0).random((90, 90)) < 0.1
    dense[7] = dense[:, 7] = False
    dense[3, 3] = True
    dense |= dense.T if symmetric else False
    indptr = np.concatenate([[0], np.cumsum(dense.sum(axis=1))]).astype(np.int32)
    arrays = torch.from_numpy(indptr), torch.from_numpy(np.nonzero(dense)[1].astype(np.int32))
    return training_sides.problem(arrays, (columns, 5))


def test_the_suite_has_its_cases() -> None:
    from benchmarks.suites import frameworks, minibatch
    from benchmarks.suites import training as suite

    names = [case.name for case in suite.cases(2)]
    graphs = ["cora", "pubmed", "artist"]
    graphs += [f"{size}-{kind}" for size in ("reddit", "products") for kind in ("power_law", "communities")]
    want = {f"training-{kind}-{dtype}-{graph}" for kind in KINDS for dtype in ("fp32", "bf16") for graph in graphs}
    want |= {f"training-cpu-gcn-{graph}-{peer}" for graph in ("pubmed", "artist") for peer in ("pyg", "torch")}
    want |= {
        f"training-{kind}-{dtype}-{last}-{graph}{own}"
        for kind in KINDS[:4]
        for dtype in ("int8", "int4")
        for last in ("float32", "sums")
        for graph in graphs[3:]
        for own in ("", "-own")
    }
    want |= {
        f"training-{kind}-int8-kept{bits}-{graph}-own"
        for kind in ("gcn", "gat")
        for bits in (8, 4)
        for graph in graphs[5:]
    }
    want |= {f"training-{kind}-int8-{graph}-own" for kind in ("bigcn", "binary") for graph in graphs[3:]}
    want |= {f"training-{kind}-fp32-panels-{graph}" for kind in ("gcn", "sage") for graph in graphs[3:5]}
    want |= {"training-cpu-accelerate-cora", "training-accelerate-cora"}
    want |= {f"jax{place}-{kind}" for place in ("-cpu", "") for kind in ("host-layer", "gat-artist-segment")}
    want |= {
        f"jax{place}-gcn-{name}-{peer}"
        for place in ("-cpu", "")
        for name in ("artist", "COLLAB")
        for peer in ("segment", "bcoo")
    }
    want |= {f"jax-gcn-{name}-bcsr" for name in ("artist", "COLLAB")}
    assert len(names) == len(want)
    assert set(names) == want
    batches = {case.name for case in minibatch.cases(2)}
    both = {f"minibatch-{device}-sage-{graph}" for device in ("cpu", "cuda") for graph in ("pubmed", "artist")}
    assert batches == both | {f"minibatch-cuda-sage-{graph}" for graph in graphs[3:]}
    both = {case.name for case in frameworks.cases(2)}
    assert both == {"jax-cpu-gcn-artist-torch", *(f"jax-gcn-{graph}-torch" for graph in graphs[5:])}


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantised_epochs_have_the_gradients_of_the_peer(kind: str, precision: str) -> None:
    from benchmarks.cases import training_sides

    made = small()
    ours = training_sides.ours_of(kind, made, made.x, precision, "sums")
    weights = {name: part.detach().clone() for name, part in training_sides.named(ours).items()}
    peer = training_sides.peer_of(kind, made, made.x, precision, weights)
    facts = training_sides.compare("case", precision, ours, peer)
    assert 1e-4 < facts["gradient_difference"] < training_sides.TOLERANCE[precision][0]
    assert ours.network.quantization.bits == training_sides.BITS[precision]


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS[:3])
def test_gradients_in_16_bits_are_compared_with_those_in_32(kind: str) -> None:
    """The peer's own may be wrong, as here, where they are those of other weights."""
    import torch

    from benchmarks.cases import training_sides

    made = small()
    ours = training_sides.ours_of(kind, made, made.x.bfloat16(), "bf16")
    weights = {name: part.detach().clone() for name, part in training_sides.named(ours).items()}
    exact = training_sides.peer_of(kind, made, made.x, "bf16", weights)
    peer = training_sides.peer_of(kind, made, made.x, "bf16", {name: part * 1.1 for name, part in weights.items()})
    facts = training_sides.compare("case", "bf16", ours, peer, exact)
    assert all(part.dtype == torch.float32 for part in exact.network.parameters())
    assert 1e-4 < facts["gradient_difference"] < 0.02 < facts["peer_gradient_difference"]


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "bits"), [("gcn", 8), ("gcn", 4), ("gat", 4)])
def test_epochs_that_keep_few_bits(kind: str, bits: int) -> None:
    from benchmarks.cases import training_sides

    made = small()
    ours, peer = (
        training_sides.ours_of(kind, made, made.x, *how) for how in (("int8", "float32", None, bits), ("fp32",))
    )
    assert ours.network.quantization.config.activations == bits
    assert 0 < training_sides.kept_by(ours) < training_sides.kept_by(peer)
    training_sides.compare("case", "int8", ours, peer)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["bigcn", "binary"])
def test_epochs_on_signs_have_the_gradients_of_the_network_in_floats(kind: str) -> None:
    from benchmarks.cases import training, training_sides

    made = small()
    ours, peer = (training_sides.ours_of(kind, made, made.x, *how) for how in (("int8", "quantized"), ("fp32",)))
    with training_sides.without_dropout(ours, peer):
        facts = training_sides.compare("case", "int8", ours, peer)
    assert 1e-4 < facts["gradient_difference"] < training_sides.TOLERANCE["int8"][0]
    assert [layer.dropout for layer in ours.network.layers] == [training_sides.DROPOUT] * 2
    assert training_sides.kept_by(ours) < training_sides.kept_by(peer)
    entries, nodes = made.indices.numel(), 90
    # The product comes first even if it widens; signs are an eighth of a byte on the way there.
    moved = training.bounds_of(kind, made, [40, 64, 5], [1, 1], 1, 1.0)[1]
    there = 64 / 8 if kind == "binary" else 64
    assert moved == 4 * 4 * (entries + nodes) + 2 * nodes * (there + 64 + 2 * 5)


@pytest.mark.jax
@pytest.mark.parametrize("network", ["gcn", "gat"])
def test_sides_in_jax_have_equal_gradients(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy import sparse

    from benchmarks.cases import training_jax

    dense = np.random.default_rng(0).random((60, 60)) < 0.1
    A = sparse.csr_array((dense | dense.T | np.eye(60, dtype=bool)).astype(np.float32))
    monkeypatch.setattr(training_jax, "pattern", lambda name: (A, "made here"))
    for peer in ("segment", "bcoo", "bcsr"):
        made = training_jax.gradients("case", network, "artist", peer, "cpu")
        assert made.params["gradient_difference"] < 1e-5
        made.ours()
    assert training_jax.host_time("cpu").params["layers"] == 10


@pytest.mark.jax
@pytest.mark.torch
def test_jax_and_pytorch_have_equal_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.cases import training_cpu, training_jax

    monkeypatch.setattr(training_cpu, "problem_of", lambda name: (small(), "made here"))
    made = training_jax.against_torch("case", "artist", "cpu", 1)
    assert made.params["gradient_difference"] < 1e-5
    made.ours()
    made.peer()


@pytest.mark.torch
def test_problems_have_no_loops_and_labels_of_half_of_the_nodes() -> None:
    from benchmarks.cases import training_sides

    made = small()
    rows = np.repeat(np.arange(90), np.diff(made.indptr.numpy()))
    assert not (rows == made.indices.numpy()).any()
    assert int((made.labels != training_sides.IGNORED).sum()) == 45
    assert int(made.labels.max()) == 4


@pytest.mark.torch
@pytest.mark.parametrize(("symmetric", "columns"), [(True, 200), (False, 40)])
@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_train_alike(kind: str, symmetric: bool, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.cases import training_sides

    monkeypatch.setitem(training_sides.TOLERANCE, "fp32", (1e-5, 1e-5))
    made = small(symmetric, columns)
    ours = training_sides.ours_of(kind, made, made.x, "fp32")
    peer = training_sides.peer_of(kind, made, made.x, "fp32", dict(training_sides.named(ours)))
    facts = training_sides.compare(kind, "fp32", ours, peer)
    assert facts["losses"][-1] < facts["losses"][0]
    assert facts["worst_gradient_difference"] < 1e-4


@pytest.mark.torch
def test_sides_that_differ_are_found() -> None:
    from benchmarks.cases import training_sides

    made = small()
    ours = training_sides.ours_of("sage", made, made.x, "fp32")
    peer = training_sides.peer_of("sage", made, made.x, "fp32", dict(training_sides.named(ours)))
    peer.operand = type(peer.operand)(2 * peer.operand.matrix, 2 * peer.operand.turned)
    with pytest.raises(AssertionError, match="gradients differ"):
        training_sides.compare("sage", "fp32", ours, peer)


@pytest.mark.torch
def test_bounds_count_sums_there_and_back() -> None:
    from benchmarks.cases import training

    made = small()
    entries, nodes = made.indices.numel(), 90
    wide, narrow = (training.bounds_of("gcn", made, [first, 64, 5], [1, 1], 4, 1.0) for first in (100, 40))
    assert wide[1] == 2 * (8 * (entries + nodes) + 2 * nodes * 4 * (64 + 5))
    # If features are summed before the product, no gradient goes back through that sum.
    assert narrow[1] == 3 * 4 * (entries + nodes) + 2 * nodes * 4 * (40 + 2 * 5)
    assert 0 < wide[0].floor_ms < wide[0].estimate_ms


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["gcn", "gat", "bigcn", "binary"])
def test_a_case_without_what_a_gpu_measures(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.cases import training
    from bitsparse.bench import Protocol

    made = small()
    matrix = SimpleNamespace(facts=lambda: {"graph": "small", "entries": 0}, reuse=2.0)
    samples = iter([[0.5, 4.0, 4.0], [2.0, 36.0, 12.0]])

    def replay(launches: list[Any], repetitions: int) -> list[float]:
        for launch in launches:
            launch()
        return next(samples)

    monkeypatch.setattr(training.jit, "require_cupy", lambda caller: None)
    monkeypatch.setattr(training, "problem_of", lambda name: made)
    monkeypatch.setattr(training, "matrix_of", lambda name: matrix)
    monkeypatch.setattr(training, "warm", lambda dtype: None)
    monkeypatch.setattr(training, "weighed", lambda make: (make(), 7))
    monkeypatch.setattr(training, "replay", replay)
    how: Any = {"own": True, "last": "quantized"} if kind.startswith("bi") else {}
    prepared = training.epoch("case", kind, "small", "int8" if how else "fp32", captured=False, **how)
    assert prepared.measure is not None
    assert prepared.measure(Protocol()) == (0.5, 9.0)  # samples of four calls
    facts = prepared.params
    assert (facts["entries"], facts["features"], facts["classes"]) == (made.indices.numel(), 40, 5)
    assert facts["without_edges_ms"] == 3.0
    assert (facts["peak_bytes"], facts["peer_bytes"], facts["replayed"], facts["peer_replayed"]) == (7, 7, False, False)
    json.dumps(facts)


def test_without_a_gpu_the_suite_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.suites import training as suite

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(bs.DeviceError, match="suite training"):
        suite.epoch("gcn", "fp32", "cora")


@pytest.mark.torch
@pytest.mark.parametrize("peer", ["pyg", "torch", None])
def test_epochs_on_the_cpu(peer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from benchmarks.cases import training_cpu
    from bitsparse import bench

    if peer != "torch":
        pytest.importorskip("torch_geometric")
    threads, made = torch.get_num_threads(), small()
    monkeypatch.setattr(training_cpu, "problem_of", lambda name: (made, "a small graph"))
    try:
        prepared = training_cpu.epoch("epoch", "pubmed", peer, 1) if peer else training_cpu.step("step", "cora", 1)
    finally:
        torch.set_num_threads(threads)
    assert prepared.params["gradient_difference"] < 1e-5
    # Both sides have made the same number of steps here.
    assert float(prepared.ours()) == pytest.approx(float(prepared.peer()), rel=1e-3)
    machine = bench.Machine.of_cpu(1, None)
    case = bench.Case("training-cpu", lambda: prepared)
    (record,) = bench.run_cases("training", [case], machine, bench.Protocol(0, 1, 1.0, 1.0, 0.0))
    assert record.ratio > 0


def test_the_bars() -> None:
    from benchmarks.suites import bars, training_bars

    def record(case: str, ours: float, peer: float, **params: Any) -> dict[str, Any]:
        return {"case": case, "ours_ms": ours, "peer_ms": peer, "ratio": peer / ours, "params": params}

    sides = {"precision": "fp32", "peak_bytes": 50, "peer_bytes": 100, "without_edges_ms": 4.0}
    records = [
        record("training-gcn-fp32-reddit-power_law", 10.0, 20.0, network="gcn", **sides),
        record("training-gcn-fp32-reddit-communities", 10.0, 16.0, network="gcn", **sides),
        record("training-gat-fp32-cora", 1.0, 5.0, network="gat", **sides),
        record(
            "training-binary-int8-reddit-power_law-own",
            8.0,
            20.0,
            **{**sides, "network": "binary", "precision": "int8"},
        ),
        record("training-accelerate-cora", 2.0, 3.0, network="gcn", precision="fp32"),
    ]
    made = training_bars.bars(records)
    found = {bar.title: bar for bar in made if bar.cells and not bar.title.startswith(" ")}
    assert set(found) == {
        "reddit gcn fp32",
        "small gat fp32",
        "reddit gcn memory, the peer's over ours",
        "reddit binary int8, 9 ms over ours",
        "accelerate on cora, PyTorch Geometric",
    }
    assert bars.row(found["reddit gcn fp32"])[5:] == [
        "1.60", "1.70", "2.10", "training-gcn-fp32-reddit-communities", "NO",
    ]  # fmt: skip
    assert bars.row(found["reddit binary int8, 9 ms over ours"])[5:8] == ["1.12", "1.00", "1.29"]
    assert bars.row(found["reddit gcn memory, the peer's over ours"])[-1] == "yes"
    limit = next(bar for bar in made if bar.title.startswith("  if") and bar.cells)
    assert sorted(limit.cells.values()) == [4.0, 5.0]


@pytest.mark.torch
def test_a_problem_without_edges() -> None:
    from benchmarks.cases import training, training_sides

    made = training.without_edges(small())
    side = training_sides.ours_of("gcn", made, made.x, "fp32")
    assert made.nodes == 90
    assert float(side.step()) > 0

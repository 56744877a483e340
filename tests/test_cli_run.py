"""`bitsparse run`: it takes the whole graph or batches, and reports what each costs and how long each phase takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from bitsparse import _progress, nn
from bitsparse._progress import Stopwatch
from bitsparse.cli import common, main
from bitsparse.cli.run import whole
from bitsparse.cli.run.report import Report, page
from bitsparse.datasets import GraphData, read, synthetic


@pytest.fixture
def graph_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BITSPARSE_CACHE_DIR", str(tmp_path / "cache"))
    graph = synthetic((300, 2400), "communities").with_generated(features=24, classes=3).with_split(per_class=10)
    file = tmp_path / "made.npz"
    parts = {key: getattr(graph, key) for key in ("indptr", "indices", "labels", "train_mask", "val_mask", "test_mask")}
    np.savez(file, features=graph.x, **parts)
    return file


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = main(["run", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def record(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    code, out, err = run(capsys, "--json", *arguments)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


# ---- the whole graph or batches
def trained(file: Path, bits: int) -> tuple[GraphData, nn.Network, nn.LowBitNetwork, Any]:
    """The data, network, low-bit network and features that the command uses."""
    data = read(file)
    features = nn.Features(data.x)
    network = nn.train(nn.Graph(data.adjacency), features, data.targets, data.train_mask)
    return data, network, nn.quantize_network(network, data.adjacency, features.normalized, bits), features.normalized


def test_the_whole_graph_runs_where_it_fits(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = record(capsys, "--graph", graph_file, "--bits", 2, "--out", tmp_path / "y.npy")
    data, network, model, x = trained(graph_file, 2)
    logits = model(data.adjacency, x)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), logits)

    def accuracy(logits: Any) -> float:
        return 100 * float((logits.argmax(axis=1) == data.targets)[data.test_mask].mean())

    assert (found["mode"], found["batches"], found["edges"]) == ("whole", None, 2400)
    assert found["accuracy"] == found["whole_accuracy"] == pytest.approx(accuracy(logits), abs=1e-4)
    assert found["full_accuracy"] == pytest.approx(accuracy(network(data.adjacency, x)), abs=1e-4)
    assert found["loss_by_bits"] == pytest.approx(found["full_accuracy"] - found["whole_accuracy"], abs=1e-4)
    assert found["loss_by_cutting"] == 0
    assert not {"partitioning", "packing"} & set(found["phases"])


def test_what_cutting_costs_is_apart_from_what_bits_cost(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "--graph", graph_file, "--bits", 2
    one = record(capsys, *asked)
    cut = record(capsys, *asked, "--parts", 60, "--batch", 1, "--out", tmp_path / "y.npy")
    assert (cut["mode"], cut["batches"]["parts"], cut["batches"]["batches"]) == ("batches", 60, 60)
    assert cut["batches"]["dropped"] > 1000
    for key in ("whole_accuracy", "full_accuracy", "loss_by_bits"):
        assert cut[key] == one[key]
    assert cut["accuracy"] < cut["whole_accuracy"]
    assert cut["loss_by_cutting"] == pytest.approx(cut["whole_accuracy"] - cut["accuracy"], abs=1e-4)
    data, _, model, x = trained(graph_file, 2)
    runner = nn.ClusterRunner(data.adjacency, model, parts=60, parts_per_batch=1)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), runner.run(x))


def test_a_graph_that_does_not_fit_runs_in_batches(
    graph_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "available", lambda device: 1000)
    code, out, err = run(capsys, "--graph", graph_file, "--json")
    found = json.loads(out)
    assert (code, found["mode"], found["bytes_available"]) == (0, "batches", 1000)
    assert found["accuracy"] is not None
    assert all(found[key] is None for key in ("whole_accuracy", "full_accuracy", "loss_by_bits", "loss_by_cutting"))
    for said in (
        "more than half of the memory; running in batches",
        "what the cutting costs stays unknown",
        "what bits cost stays",
    ):
        assert said in err
    assert "not computed" in run(capsys, "--graph", graph_file)[1]


def test_options_of_batches_want_batches(graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--between"], ["--batch", 3], ["--resume", "--out", "y.npy"], ["--no-cache"]):
        code, out, err = run(capsys, "--graph", graph_file, *options)
        assert (code, out) == (2, "")
        assert f"{options[0]} goes with --parts" in err


def test_sizes_of_random_weights_want_random_weights(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nn.random_network("gin", [24, 4, 3]).save(tmp_path / "gin.npz")
    said = {"gcn": "a gcn is trained on the labels of made", tmp_path / "gin.npz": "gin.npz has its own"}
    for model, reason in said.items():
        for options in (["--layers", 3], ["--hidden", 16]):
            code, out, err = run(capsys, "--graph", graph_file, "--model", model, *options)
            assert (code, out) == (2, "")
            assert f"{options[0]} goes with random weights, but " in err and reason in err


def test_a_graph_without_labels_has_no_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = synthetic((60, 200))
    np.savez(tmp_path / "bare.npz", indptr=graph.indptr, indices=graph.indices, features=np.eye(60, 5))
    code, out, err = run(capsys, "--graph", tmp_path / "bare.npz", "--model", "gin")
    assert code == 0, err
    assert out.startswith("bare: 60 nodes, 200 edges; gin-5-64-64-2-b8 on cpu, the whole graph (at most ")
    assert "accuracy" not in out


# ---- memory
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
@pytest.mark.parametrize(("nodes", "edges", "widths"), [(5000, 60_000, [128, 64, 16]), (5000, 30_000, [500, 16, 3])])
def test_no_run_takes_more_than_is_counted(kind: str, nodes: int, edges: int, widths: list[int]) -> None:
    adjacency = synthetic((nodes, edges)).adjacency
    x = np.random.default_rng(0).random((nodes, widths[0]), dtype=np.float32)
    network = nn.random_network(kind, widths)
    data: Any = GraphData(indptr=adjacency.indptr, indices=adjacency.indices)
    for features in (x, sparse.csr_array(x * (x > 0.9))):
        for bits in (8, 1):
            model = nn.quantize_network(network, adjacency, features, bits)
            taken = peak(lambda model=model, features=features: whole.logits(model, data, features, "csr", "cpu"))
            counted = whole.low_bit_bytes(nodes, edges, model)
            assert taken < counted < 8 * taken
        taken = peak(lambda features=features: network(adjacency, features))
        assert taken < whole.float_bytes(nodes, edges, network) < 16 * taken  # GCNs do not copy their input, others do


def peak(work: Any) -> int:
    """Peak memory of a call in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_half_of_the_memory_is_enough_or_nothing_is_known() -> None:
    assert whole.Memory(50, 100).fits and whole.Memory(50, None).fits
    assert not whole.Memory(51, 100).fits


# ---- time
def test_a_stopwatch_is_in_one_phase_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([3, 10, 30, 70, 150, 310, 630, 1270, 2550])
    monkeypatch.setattr(_progress.time, "perf_counter_ns", lambda: next(ticks))
    watch = Stopwatch("a", 1)
    assert watch.enter("b") == "a"  # at 3
    with watch.during("c"):  # 10 to 30
        pass
    assert list(watch.each("d", "x")) == ["x"]  # the iterator is asked from 70 to 150 and from 310 to 630
    with pytest.raises(ZeroDivisionError), watch.during("c"):  # 1270 to 2550
        _ = 1 / 0
    assert watch.phases() == {"a": 2, "b": 7 + 40 + 160 + 640, "c": 20 + 1280, "d": 80 + 320}
    assert watch.total() == 2549 == sum(watch.phases().values())


def test_a_runner_tells_a_stopwatch_what_it_does() -> None:
    graph, x = synthetic((300, 2400)).adjacency, np.eye(300, 5, dtype=np.float32)
    model, watch = nn.quantize_network(nn.random_network("gcn", [5, 2]), graph, x, 8), Stopwatch("computing")
    runner = nn.ClusterRunner(graph, model, labels=np.arange(300) // 30, watch=watch)
    assert watch.phases() == {"computing": 0}
    runner.run(x)
    phases = watch.phases()
    assert list(phases) == ["computing", "packing", "results"] and all(phases.values())
    # The report and the stopwatch both time packing; the report's time lies within the stopwatch's.
    assert 0 < runner.report.pack_seconds <= phases["packing"] / 1e9


@pytest.mark.parametrize("options", [(), ("--parts", 40, "--batch", 4)])
def test_phases_add_up_to_what_the_clock_shows(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[Any, ...]
) -> None:
    begin = time.perf_counter_ns()
    found = record(capsys, "--graph", graph_file, "--out", tmp_path / "y.npy", *options)
    passed = time.perf_counter_ns() - begin
    phases = found["phases"]
    wanted = {"starting", "reading", "training", "quantising", "computing", "results", "comparing"}
    assert set(phases) == wanted | ({"partitioning", "packing"} if options else set())
    assert all(seconds > 0 for seconds in phases.values())
    # Whole nanoseconds were added: only their conversion to seconds rounds.
    assert sum(phases.values()) == pytest.approx(found["seconds"], abs=1e-9)
    assert found["seconds"] <= passed / 1e9


@pytest.mark.parametrize("terminal", [True, False])
def test_whoever_watches_a_terminal_is_told_what_takes_long(
    graph_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    waits: list[tuple[float, str]] = []

    class Late:
        """A timer that fires at once."""

        def __init__(self, seconds: float, say: Any, given: tuple[str, ...] = ()) -> None:
            self.work = lambda: (waits.append((seconds, *given)), say(*given))

        def start(self) -> None:
            self.work()

        def cancel(self) -> None:
            pass

    monkeypatch.setattr(common.threading, "Timer", Late)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    code, _, err = run(capsys, "--graph", graph_file, "--parts", 40)
    assert code == 0
    said = [line.removeprefix("bitsparse run: ") for line in err.splitlines()]
    told = ["reading", "training", "quantising", "partitioning", "packing", "computing", "comparing"]
    assert [line for line in said if line in told] == (told if terminal else [])
    assert all(seconds == 2 for seconds, _ in waits) and bool(waits) == terminal


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when a process began")
def test_a_process_knows_its_age() -> None:
    """A process must be older than its sleep and younger than its parent's clock, up to the system's ticks of 10 ms."""
    code = "import time; from bitsparse.cli import _age; time.sleep(0.1); print(_age())"
    begin = time.perf_counter_ns()
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert 10**8 < int(done.stdout) < time.perf_counter_ns() - begin + 10**7


def test_a_run_that_goes_on_reads_its_features_again(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "--graph", graph_file, "--parts", 40, "--out", tmp_path / "y.npy", "--resume"
    assert record(capsys, *asked)["phases"]["resuming"] > 0


def test_text_and_page_are_rounded(graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ((), ("--parts", 40)):
        code, out, _ = run(capsys, "--graph", graph_file, "--report", tmp_path / "r.html", *options)
        assert code == 0
        text = (tmp_path / "r.html").read_text("utf-8")
        assert text.startswith("<!doctype html>") and "<title>made: bitsparse run</title>" in text
        for shown in (out, text.partition("<body")[2] or text.partition("</style>")[2]):
            assert not re.findall(r"\d\.\d{5,}", shown)
            assert ("batches" in shown) == bool(options)
        last = out.splitlines()[-1].split()
        assert last[:2] == ["in", "all"] and last[-1] == "100"


def test_a_page_shows_markup_as_text() -> None:
    report = Report("<i>g</i>", "cpu", "gcn", 8, 3, 4, whole.Memory(1, None), phases={"reading": 10**9})
    assert "<i>" not in page(report) and "an unknown amount available" in page(report)

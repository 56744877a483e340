"""The parts of TC-GNN's tables and figures that need no GPU: counts of tiles, tiny epochs of both sides, block matrices, the document."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bitsparse.bench import Machine

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent))


# ---- the document
def one_record(part: str, case: str, ratio: float | None = 3.0, **params: Any) -> dict[str, Any]:
    facts = {"nodes": 1000, "entries": 5000, "source": "x.npz", "D": 16, "part": part}
    peer = {"peer": "a peer", "peer_ms": 3.0, "ratio": ratio}
    return {"case": f"{part}-{case}", "params": facts | params, "ours_ms": 1.0, "gpu": "a GPU", "driver": "CUDA"} | peer


def all_records() -> list[dict[str, Any]]:
    from benchmarks.papers.tcgnn import parts as tcgnn_parts
    from benchmarks.papers.tcgnn import tables
    from benchmarks.papers.tcgnn import tiles as tcgnn_tiles

    times: dict[str, Any] = {"fp32_ms": 2.0, "tf32_ms": 1.0, "vendor_ms": 3.0}
    times |= {"fp32_gflops": 10.0, "tf32_gflops": 20.0, "vendor_gflops": 5.0}
    blocks = {"blocked_ms": 4.0, "blocked_gflops": 2.5, "blocks_of_a_row": 1234, "blocked_share": 0.001}
    tiles = {"before": 100, "after": 40, "reduction": 0.6}
    found = []
    for name, data in tcgnn_tiles.GRAPHS.items():
        facts = {"graph": name, "kind": data.kind}
        found.append(one_record("figure-7", name, **facts, spmm=tiles, sddmm=tiles))
        more = {"translate_ms": 4.0, "share": 0.005, "epoch_ms": 2.0, "training_share": 0.0099}
        found.append(one_record("figure-8", name, **facts, **times, **more))
        shares = {"tiles_share": 0.05} | ({"blocked_missing": "it takes 99 GB"} if name == "artist" else blocks)
        found.append(one_record("figure-6c", name, **facts, **times, **shares))
        for part in ("figure-6a", "figure-6b"):
            for network in ("gcn", "agnn"):
                made = facts | {"network": network, "features": data.columns, "classes": data.classes}
                made |= {"peer_way": "sparse, captured", "without_edges_ms": 0.25}
                found.append(one_record(part, f"{network}-{name}", 2.0 if data.kind == "I" else 8.0, **made))
    for name in tcgnn_parts.TABLE_5:
        facts = times | {"graph": name, "D": tcgnn_tiles.GRAPHS[name].columns, "source": "synthetic"}
        found += [one_record(part, name, **facts) for part in ("table-5", "figure-10")]
        warps = {f"warps_{count}_ms": 0.001 * count for count in tables.WARPS_OF_A_BLOCK}
        found.append(one_record("figure-9", name, **facts, **warps, edges_of_a_window=190.4, tf32_kernel="csr"))
    for name in tcgnn_parts.TABLE_1:
        shares = {"update_ms": 0.5, "ours_share": 2 / 3, "vendor_share": 6 / 7}
        found.append(one_record("table-1", name, graph=name, **times, **shares))
        counts = {"side": "ours", "hits": 12.34, "occupancy": 50.0, "kernel": "spmm_csr"}
        found.append(one_record("table-1-counters", name, graph=name, **counts))
    for count in tcgnn_parts.BLOCKS:
        facts = times | blocks | {"graph": "table-6", "blocks": count, "sparsity": 1 - count / 256}
        found.append(one_record("table-6", str(count), None, **facts))
    return found


def test_the_tables_have_the_axes_of_the_paper() -> None:
    from benchmarks.papers.tcgnn import program, tables

    records = all_records()
    lines = tables.document(records).splitlines()
    titles = [line.removeprefix("## ").partition(":")[0].replace(",", "") for line in lines if line.startswith("## ")]
    assert [title.lower() for title in titles] == [part.replace("-", " ") for part in program.PARTS]
    assert "| cora | 16 | 0.5000 | 1.0000 | 67% | 3.0000 | 86% | 89% |" in lines
    assert "| cora | 16 | ours | 12.3% | 50.0% | 37.2% | 15.1% |" in lines
    assert lines.count("| ppi | I | 50 | 121 | 1.0000 | 3.0000 | 2.00x | sparse, captured | 0.2500 |") == 4
    means = [line for line in lines if line.endswith("by type 2.00x, 8.00x, 8.00x. The paper's average:")]
    assert len(means) == 4
    assert all("ratios: 5.38x;" in line for line in means)  # the mean of 4 graphs of type I and 10 others
    assert "| ppi | I | 1,234 | 0.100% | 5.00% | 4.0000 | 1.0000 | 4.00x | 3.0000 | - |" in lines
    assert "| artist | III | - | - | 5.00% | - | 1.0000 | - | 3.0000 | it takes 99 GB |" in lines
    assert "| artist | III | 1,000 | 5,000 | 100 | 40 | 60.0% | 100 | 40 | 60.0% |" in lines
    assert "| artist | 5,000 | 4.000 | 1.0000 | 2.0000 | 0.99% | 0.50% |" in lines
    assert "| artist * | 100 | 2.0000 | **1.0000** | 3.0000 | 3.00x | 9.15 | 12.86 | 3.06 |" in lines
    assert "| 1 | 99.61% | 10 | 20 | 5 | 2 | 1000.00 | 774 | 12,686 |" in lines
    assert "| 32 | 87.50% | 10 | 20 | 5 | 2 | 1000.00 | 26,062 | 16,629 |" in lines
    assert "| artist * | 190 | 5 | 1.0 | 2.0 | 4.0 | 8.0 | 16.0 | 32.0 | 1000.0 | csr |" in lines
    assert "| artist * | 100 | 10 | 20 | 5 | 3.00x |" in lines
    assert all(tables.line_of(one).startswith(one["case"]) for one in records)


def test_what_has_no_record_is_left_out() -> None:
    from benchmarks.papers.tcgnn import tables

    records = all_records()
    for part in ("table-6", "figure-6b"):
        text = tables.document(one for one in records if one["params"]["part"] == part)
        assert text.count("## ") == 1
    text = tables.document(one for one in records if one["params"]["part"] == "figure-6a" and "gcn" in one["case"])
    assert "GCN" in text
    assert "AGNN" not in text


def test_the_records_of_all_machines_make_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.papers import program

    for machine, parts in (("h100", ("figure-8", "table-6")), ("h200", ("table-6", "table-5"))):
        (tmp_path / machine).mkdir()
        lines = [json.dumps(one_record(part, machine)) + "\n" for part in parts]
        (tmp_path / machine / "tcgnn.jsonl").write_text("".join(lines), encoding="utf-8")
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    assert [one["case"] for one in program.recorded("tcgnn")] == ["figure-8-h100", "table-6-h100", "table-5-h200"]
    pages: list[list[Any]] = []

    def page(records: Any) -> str:
        pages.append([one["case"] for one in records])
        return ""

    def measure(part: str, commit: Any, repetitions: int) -> Any:
        yield "", lambda: [one_record(part, "new")]

    for file in ("h100/tcgnn.jsonl", "tcgnn.jsonl"):
        options = ["--records", str(tmp_path / file), "--out", str(tmp_path / "page")]
        assert program.run("TC-GNN", ["table-6"], measure, str, page, options) == 0
    assert pages == [["figure-8-h100", "table-6-new", "table-5-h200"], ["table-6-new"]]


def test_only_its_own_parts_are_taken(tmp_path: Path) -> None:
    script = [sys.executable, str(BENCHMARKS / "paper.py"), "tcgnn"]
    script += ["--records", str(tmp_path / "r"), "--out", str(tmp_path / "o")]
    for arguments, words in ((("--only", "table-4"), "figure-7"), (("--repetitions", "0"), "at least 1")):
        done = subprocess.run([*script, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert words in done.stderr
    assert not list(tmp_path.iterdir())


# ---- counts
def test_tiles_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from benchmarks.papers.tcgnn import tables, tiles

    np.savez(
        tmp_path / "artist.npz", indptr=np.array([0, 2, 3, 3]), indices=np.array([0, 2, 1]), num_nodes=3, meta="{}"
    )
    monkeypatch.setenv("BITSPARSE_DATA", str(tmp_path))
    monkeypatch.setattr(tiles, "GRAPHS", {"artist": tiles.GRAPHS["artist"]})
    ((name, measure),) = tiles.measurements("figure-7", None, 1)
    made = json.loads(json.dumps(measure()))
    assert (name, made["params"]["spmm"]["before"], made["params"]["sddmm"]["after"]) == ("figure-7-artist", 1, 1)
    assert "| artist | III | 3 | 3 | 1 | 1 | 0.0% |" in tables.document([made])


@pytest.mark.parametrize(("shape", "size"), [((70, 45), 16), (((64, 64)), 32), ((5, 90), 8), ((33, 20), 64)])
def test_a_pattern_in_blocks_is_the_pattern(shape: tuple[int, int], size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers import cusparse
    from bitsparse.bench import Unavailable

    monkeypatch.setattr(cusparse.jit, "require_cupy", lambda _: np)
    dense = np.random.default_rng(0).random(shape) < 0.05
    dense[3] = False
    indptr = np.concatenate([[0], np.cumsum(dense.sum(1))]).astype(np.int32)
    arrays = indptr, np.nonzero(dense)[1].astype(np.int32), shape
    made = cusparse.Blocks(*arrays, size, 1 << 20)
    whole = np.zeros(made.shape)
    for row, places in enumerate(made.columns):
        for slot, place in enumerate(places):
            block = made.values[row * size : (row + 1) * size, slot * size : (slot + 1) * size]
            if place < 0:
                assert not block.any()
            else:
                assert not whole[row * size : (row + 1) * size, place * size : (place + 1) * size].any()
                whole[row * size : (row + 1) * size, place * size : (place + 1) * size] = block
    assert np.array_equal(whole[: shape[0], : shape[1]], dense)
    assert whole.sum() == dense.sum()
    assert (made.columns >= 0).any(axis=0).all()  # every slot is used by some row
    with pytest.raises(Unavailable, match=rf"in blocks of {size} x {size}, .* it takes 0 GB"):
        cusparse.Blocks(*arrays, size, made.values.nbytes - 1)


def test_the_longest_kernel_of_each_call_is_read_from_the_profiler() -> None:
    from benchmarks.papers.tcgnn import counters

    kernels = [("spmm_csr", 9, 1, 1500), ("fill", 8, 2, 9999), ("spmm_join", 7, 3, 10)]
    kernels += [("void cusparse::one<float>()", 6, 4, 5), ("void cusparse::two()", 5, 5, 70), ("spmm_short", 4, 6, 2)]
    lines = ["==PROF== Connected", '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"']
    for number, (name, *values) in enumerate(kernels):
        for metric, value in zip(counters.METRICS.values(), values, strict=True):
            lines.append(f'"{number}","{name}","{metric}","x","{value:,}"')
    found = counters.calls_of(counters.kernels_of(lines))
    assert [(one["hits"], one["occupancy"], one["time"]) for one in found] == [(9, 1, 1500), (5, 5, 70), (4, 6, 2)]
    assert counters.kernels_of(["==ERROR== no permission"]) == []


# ---- epochs
@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with made-up times, and with a small problem on the CPU in place of the GPU's."""
    torch = pytest.importorskip("torch")
    from benchmarks.cases import training_sides
    from benchmarks.papers.tcgnn import epochs

    dense = np.triu(np.random.default_rng(0).random((90, 90)) < 0.1, 1)
    dense |= dense.T
    arrays = np.concatenate([[0], np.cumsum(dense.sum(1))]).astype(np.int32), np.nonzero(dense)[1].astype(np.int32)
    made = training_sides.problem(tuple(torch.from_numpy(array) for array in arrays), (40, 5))
    facts = {"graph": "cora", "source": "cora.npz", "nodes": 90, "entries": 9, "reuse": 1.0}
    monkeypatch.setattr(epochs, "problem_of", lambda name: made)
    monkeypatch.setattr(epochs, "matrix_of", lambda name: SimpleNamespace(facts=lambda: facts))
    monkeypatch.setattr(epochs, "machine", Machine.of_cpu)
    monkeypatch.setattr(epochs, "free", lambda: None)
    monkeypatch.setitem(training_sides.TOLERANCE, "tf32", (1e-5, 1e-5))
    return epochs


def fake_turns(launches: list[Any], repetitions: int, all_ms: float = 0.0) -> list[float]:
    """Call each launch once, and return made-up times that fall from one launch to the next."""
    for launch in launches:
        launch()
    return [float(len(launches) - i) for i in range(len(launches))]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("network", ["gcn", "agnn"])
@pytest.mark.parametrize("part", ["figure-6a", "figure-6b"])
def test_epochs_of_both_sides_are_compared(
    part: str, network: str, epochs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part == "figure-6b":
        pytest.importorskip("torch_geometric")
    monkeypatch.setattr(epochs, "in_turns", fake_turns)
    monkeypatch.setattr(epochs, "recorded", lambda name, step: lambda: step())
    monkeypatch.setattr(epochs, "GRAPHS", {"cora": epochs.GRAPHS["cora"]})
    cells = dict(epochs.measurements(part, "abc", 3))
    made = json.loads(json.dumps(cells[f"{part}-{network}-cora"]()))
    params = made["params"]
    paths = ["torch"] if part == "figure-6a" else ["sparse", "scatter"]
    assert list(params["ways_ms"]) == [
        way for who in ("ours", *paths, "without edges") for way in (who, f"{who}, captured")
    ]
    assert set(params["differences"]) == set(paths)
    assert (params["peer_way"], params["without_edges_ms"]) == (f"{paths[-1]}, captured", 1.0)
    assert made["ours_ms"] == params["ways_ms"]["ours, captured"]
    assert made["peer_ms"] == params["ways_ms"][params["peer_way"]]
    assert (params["features"], params["classes"], params["network"]) == (40, 5, network)


@pytest.mark.torch
def test_wrong_gradients_are_refused_and_peers_that_do_not_run_are_left_out(epochs: Any) -> None:
    import torch

    made = epochs.problem_of("cora")
    ours = epochs.our_side("gcn", made)

    def wrong(weights: dict[str, Any]) -> Any:
        side = epochs.torch_side("gcn", made, weights)
        with torch.no_grad():
            for part in side.network.parameters():
                part.mul_(1.1)
        return side

    def too_large(weights: dict[str, Any]) -> Any:
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(AssertionError, match="case, wrong: gradients differ"):
        epochs.compared("case", ours, {"wrong": wrong})
    ours = epochs.our_side("gcn", made)
    before = [part.detach().clone() for part in ours.network.parameters()]
    right = {"torch": lambda weights: epochs.torch_side("gcn", made, weights)}
    sides, facts = epochs.compared("case", ours, {"large": too_large, **right})
    assert list(sides) == list(facts) == ["torch"]
    for side in (ours, sides["torch"]):
        assert all(torch.equal(*pair) for pair in zip(side.network.parameters(), before, strict=True))


@pytest.mark.torch
def test_translation_is_set_against_the_training(epochs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = SimpleNamespace(matrix=SimpleNamespace(indptr=None, indices=None, shape=None))
    for name, made in (
        ("cell_of", lambda name, columns: cell),
        ("both", lambda case, cell, repetitions: {"fp32_ms": 0.5, "tf32_ms": 0.25}),
        ("wall_ms", lambda make, times: 50.0),
        ("timed", lambda case, sides, repetitions: {"ours": 4.0, "ours, captured": 2.0}),
        ("record", lambda part, case, cell, found, commit: found),
    ):
        monkeypatch.setattr(epochs, name, made)
    found = epochs.translation("figure-8", "cora", None, 3)
    assert (found["epoch_ms"], found["translate_ms"]) == (2.0, 50.0)
    assert (found["share"], found["training_share"]) == (50 / (50 + 200 * 4 * 0.25), 50 / (50 + 200 * 2))


@pytest.mark.torch
def test_long_epochs_are_not_captured(epochs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "in_turns", lambda launches, *_: [epochs.CAPTURED_MS + 1] * len(launches))
    monkeypatch.setattr(epochs, "recorded", lambda name, step: pytest.fail("captured"))
    assert list(epochs.timed("case", {"ours": SimpleNamespace(step=lambda: None)}, 3)) == ["ours"]


@pytest.mark.torch
def test_tf32_is_allowed_while_epochs_are_measured(epochs: Any) -> None:
    import torch

    assert not torch.backends.cuda.matmul.allow_tf32
    with epochs.tf32_allowed():
        assert torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32

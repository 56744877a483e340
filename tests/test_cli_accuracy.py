"""``bitsparse accuracy``: accuracies of networks in few bits, in pairs and tables, and records that a later run continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip("torch")

from bitsparse.cli import main
from bitsparse.datasets import GraphData

pytestmark = pytest.mark.torch


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A file with two communities, features that tell them apart, and a split."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 2
    dense = rng.random((80, 80)) < np.where(labels[:, None] == labels, 0.1, 0.02)
    csr = sp.csr_array(dense | dense.T)
    x = (rng.random((80, 10)) < np.where(labels[:, None] == np.arange(10) % 2, 0.5, 0.1)).astype(np.float32)
    order = rng.permutation(80)
    masks = [np.isin(np.arange(80), part) for part in (order[:20], order[20:40], order[40:])]
    path = tmp_path / "pair.npz"
    named = dict(zip(("train_mask", "val_mask", "test_mask"), masks, strict=True))
    np.savez(path, indptr=csr.indptr, indices=csr.indices, features=x, labels=labels, **named)
    return path


def runs_of(capsys: Any, *options: str) -> list[dict[str, Any]]:
    assert main(["accuracy", "--json", *options]) == 0
    made: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["runs"]
    return made


def test_pairs_and_records(graph: Path, tmp_path: Path, capsys: Any) -> None:
    records = tmp_path / "runs.jsonl"
    options = ["--table", "tango", "--graphs", str(graph), "--epochs", "30", "--records", str(records)]
    first = runs_of(capsys, *options, "--networks", "gcn", "--seeds", "1")
    assert [one["precision"] for one in first] == ["float32", "int8", "int4"]
    assert min(one["accuracy"] for one in first) > 70
    assert all(len(one["curve"]) == 6 and one["curve"][-1] == round(one["last"], 2) for one in first)
    lines = records.read_text().splitlines()
    both = runs_of(capsys, *options, "--networks", "gcn", "sage", "--seeds", "2")
    assert len(both) == 12
    assert records.read_text().splitlines()[:3] == lines
    assert len(records.read_text().splitlines()) == 12
    found = {(one["network"], one["precision"], one["seed"]): one["accuracy"] for one in both}
    assert all(found["gcn", one["precision"], 0] == one["accuracy"] for one in first)
    assert main(["accuracy", *options, "--networks", "gcn", "sage", "--seeds", "2"]) == 0
    text = capsys.readouterr().out
    assert "2 paired seeds" in text
    with pytest.raises(SystemExit, match="2"):
        main(["accuracy", *options[:-1], str(tmp_path)])  # a folder is no file to write to
    assert capsys.readouterr().err.count("\n") == 1
    loss = np.mean([found[n, "float32", s] - found[n, "int8", s] for n in ("gcn", "sage") for s in (0, 1)])
    assert f"int8: {loss:.2f} points lost on average" in text


def test_networks_on_signs(graph: Path, capsys: Any) -> None:
    made = runs_of(capsys, "--table", "bitgnn", "--graphs", str(graph), "--epochs", "40")
    assert [one["aggregation"] for one in made] == ["full", "binary"]
    assert made[0]["accuracy"] > 60


def test_networks_trained_with_their_roundings(graph: Path, capsys: Any) -> None:
    """Training with roundings must change the network, and must not lower its accuracy on the validation nodes."""
    options = ["--table", "qgtc", "--graphs", str(graph), "--epochs", "30", "--precisions", "4-bit", "1-bit"]
    made = runs_of(capsys, *options, "--networks", "gcn", "sage")
    names = ["float32", "4-bit-calibrated", "4-bit", "1-bit-calibrated", "1-bit"]
    assert [(one["network"], one["precision"]) for one in made] == [(n, p) for n in ("gcn", "sage") for p in names]
    pairs = list(zip(made[1::5] + made[3::5], made[2::5] + made[4::5], strict=True))
    assert all(end["validated"] >= start["validated"] for start, end in pairs)
    assert any(end["last"] != start["last"] for start, end in pairs)
    assert min(one["accuracy"] for one in made) > 60
    again = runs_of(capsys, *options, "--networks", "gcn", "sage")
    assert again == made
    plain = runs_of(capsys, "--table", "tango", "--graphs", str(graph), "--epochs", "30", "--networks", "gcn")
    assert plain[0]["accuracy"] == made[0]["accuracy"]


def test_sampled_edges(graph: Path, tmp_path: Path, capsys: Any) -> None:
    records = tmp_path / "aes.jsonl"
    options = ["--table", "aes", "--graphs", str(graph), "--epochs", "40", "--records", str(records)]
    made = runs_of(capsys, *options)
    assert len(made) == 2 * 2 * (1 + 4 * 4)
    assert made[0]["strategy"] is None
    assert min(one["accuracy"] for one in made if one["strategy"] is None) > 70
    # No node has 128 neighbours, so nothing is lost.
    assert {one["lost"] for one in made if one["width"] == 128 and one["bits"] == 32} == {0.0}
    assert runs_of(capsys, *options) == [json.loads(line) | {} for line in records.read_text().splitlines()]
    assert main(["accuracy", *options]) == 0
    assert "all edges" in capsys.readouterr().out


def test_links(graph: Path, capsys: Any) -> None:
    made = runs_of(capsys, "--table", "links", "--graphs", str(graph), "--epochs", "60", "--networks", "gcn")
    assert [one["precision"] for one in made] == ["float32", "int8", "int4"]
    assert min(one["accuracy"] for one in made) > 55


def test_links_are_split_without_telling() -> None:
    """The graph must contain test edges in neither direction, and negative pairs must have no edge."""
    import torch

    from bitsparse.torch import Graph
    from bitsparse.torch.link_accuracy import links_of

    rng = np.random.default_rng(0)
    dense = rng.random((40, 40)) < 0.2
    whole = dense | dense.T
    found = links_of(Graph(sp.csr_array(whole)), 0)
    left = torch.zeros(40, 40, dtype=torch.bool)
    left[found.graph.rows(), found.graph.indices.long()] = True
    assert torch.equal(left, left.T)
    for edges, apart in (found.validate, found.test):
        assert edges.shape == apart.shape
        assert not left[edges[0], edges[1]].any()
        assert whole[edges[0], edges[1]].all()
        assert not whole[apart[0], apart[1]].any()
    assert left[found.train[0], found.train[1]].all()
    count = 2 * (found.train.shape[1] + found.validate[0].shape[1] + found.test[0].shape[1])
    assert count == (whole & ~np.eye(40, dtype=bool)).sum()
    with pytest.raises(ValueError, match="every pair"):
        links_of(Graph(sp.csr_array(np.ones((5, 5)))), 0)


def test_a_graph_without_a_split_gets_one() -> None:
    from bitsparse.torch.accuracy import mean_and_error, task_of

    data = GraphData(indptr=np.arange(121), indices=np.arange(120), x=np.ones((120, 2)), labels=np.arange(120) % 2)
    task = task_of(data)
    assert [int(part.sum()) for part in (task.train, task.validate, task.test)] == [40, 60, 20]
    assert not (task.train & task.validate).any()
    assert np.isnan(mean_and_error([1.0])[1])


def test_refusals(graph: Path, capsys: Any) -> None:
    assert main(["accuracy", "--table", "tango", "--graphs", str(graph), "--networks", "gin"]) == 2
    assert "'gin' is none of gcn, sage, gat" in capsys.readouterr().err
    assert main(["accuracy", "--table", "tango", "--graphs", str(graph), "--precisions", "int3"]) == 2
    assert "'int3' is none of float32, int8" in capsys.readouterr().err

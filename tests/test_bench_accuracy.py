"""Accuracies of paired training: both sides learn from the same start, and the table says when they differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitsparse as bs

ROOT = Path(__file__).resolve().parent.parent
_QUIET = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:torch_geometric", "ignore:.*torch.jit:DeprecationWarning"
)


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import accuracy

    return accuracy


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the numbers of threads, which the program changes."""
    import torch

    before = torch.get_num_threads(), bs.get_num_threads()
    yield
    torch.set_num_threads(before[0])
    bs.set_num_threads(before[1])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A data set file: three communities, and directed edges that lead to nodes of lower or equal number."""
    n, rng = 90, np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], n // 3)
    rows, cols = np.nonzero((labels[:, None] == labels) & (rng.random((n, n)) < np.tri(n) * 0.3))
    x = rng.random((n, 24)) < np.where(np.arange(24) % 3 == labels[:, None], 0.4, 0.2)
    split = np.arange(n) % 4
    masks = {"train_mask": split == 0, "val_mask": split == 1, "test_mask": split >= 2}
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
    np.savez(
        tmp_path / "three.npz",
        indptr=indptr,
        indices=cols,
        num_nodes=n,
        features=x.astype(np.float32),
        labels=labels,
        **masks,
    )
    return tmp_path / "three.npz"


def test_the_page_of_accuracies_is_that_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import accuracy_page

    assert accuracy_page.PAGE.read_text("utf-8") == accuracy_page.page(accuracy_page.RESULTS)
    about = {"device": "cpu: made up", "gpu": None, "threads": 1, "commit": "0" * 12, "versions": {"torch": "2.13"}}
    pairs = [(80.0, 81.0), (80.0, 81.5), (81.0, 82.0)]
    params = [{"graph": "g", "model": "gcn", "seed": i, "theirs": a, "ours": b} for i, (a, b) in enumerate(pairs)]
    accuracies = [{"32": 80.0, "4": 79.0}, {"32": 81.0, "4": 78.5}]
    demo = [{"bits": 32, "accuracy": 80.25, "accuracy_std": 0.5}, {"bits": 1, "accuracy": 70.0, "accuracy_std": 2}]
    names = ("float32", "2-bit-calibrated", "2-bit")
    trained = [
        {"graph": "g", "network": "sage", "seed": seed, "precision": name, "accuracy": right}
        for seed, pair in enumerate([(80.0, 78.0, 80.5), (81.0, 77.0, 80.5)])
        for name, right in zip(names, pair, strict=True)
    ]
    runs = [
        {"case": "demo-g", "params": {"graph": "g", "seeds": 2, "results": demo}},
        {"case": "g-gin-3x64", "params": {"graph": "g", "network": "gin-3x64", "accuracies": accuracies}},
    ]
    kept = [{"case": "trained-g", "params": {"runs": trained, "note": "Kept."}}]
    pairs = [{"params": each} for each in params]
    of = {"graph": "g", "network": "gat", "seed": 0}
    integers = [of | {"precision": name, "accuracy": right} for name, right in (("float32", 80.0), ("int8", 79.5))]
    integers += [run | {"seed": 1} for run in integers]
    signs = [of | {"seed": i, "aggregation": way, "accuracy": 70.0 + i} for i in (0, 2) for way in ("full", "binary")]
    edges = [of | {"strategy": None, "width": None, "bits": 32, "accuracy": 80.0}]
    edges += [of | {"strategy": "aes", "width": 16, "bits": bits, "accuracy": 88.0 - bits / 4} for bits in (32, 8)]
    others = {"integers": integers, "links": integers, "sampled": edges, "binary": signs}
    every: list[tuple[str, list[Any]]] = [("accuracy", pairs), ("accuracy-bits", runs), ("accuracy-trained", kept)]
    every += [(f"accuracy-{kind}", [{"params": {"runs": found}}]) for kind, found in others.items()]
    for suite, records in every:
        (tmp_path / "machine").mkdir(exist_ok=True)
        (tmp_path / "machine" / f"{suite}.jsonl").write_text("\n".join(json.dumps(one | about) for one in records))
    rows = [line for line in accuracy_page.page(tmp_path).splitlines() if line.startswith("| g ")]
    assert rows == [
        "| g | gcn | 3 | 80.33 +- 0.58 | 81.50 +- 0.50 | +1.17 | 0.17 | differ |",
        "| g | 80.25 +- 0.50 | 70.00 +- 2.00 |",
        "| g | GIN 3 x 64 | 80.5 | 78.8 (2.5) |",
        "| g | GraphSAGE | 2 | 80.50 | -3.00 +- 1.00 | +0.00 +- 0.50 |",
        "| g | GAT | 2 | 80.00 | -0.50 +- 0.00 |",
        "| g | GAT | 2 | 80.00 | -0.50 +- 0.00 |",
        "| g | GAT | 16 | 1 | 80.00 | +0.00 (+6.00) |",
        "| g | 2 | 71.00 +- 1.41 | 71.00 +- 1.41 |",
    ]
    assert "\n\nKept.\n\n| graph |" in accuracy_page.page(tmp_path)
    assert "| graph | network | pairs | float32 | 2 bits, calibrated | 2 bits, trained |" in accuracy_page.page(
        tmp_path
    )


def test_readme_says_what_the_page_says() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    page = (ROOT / "docs" / "accuracy.md").read_text("utf-8")
    for row, said in (
        ("pubmed | GCN 3 x 16", "a GCN 3 x 16 on PubMed "),
        ("cora | GIN 3 x 64", "a GIN 3 x 64 on Cora "),
    ):
        (cells,) = (line.split(" | ")[2:] for line in page.splitlines() if line.startswith(f"| {row} |"))
        means = [cell.split()[0] for cell in cells]
        assert f"{said}{', '.join(means[:-1])} and {means[-1]}" in readme


def test_what_runs_print_becomes_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import accuracy_bits

    file = tmp_path / "accuracy-bits.jsonl"
    options = ["--data", str(tmp_path), "--records", str(file), "--seeds", "1", "--only"]
    accuracy_bits.main([*options, "demo-digits"])
    accuracy_bits.main([*options, "demo-digits"])  # the file has this record already
    (record,) = map(json.loads, file.read_text("utf-8").splitlines())
    assert (record["suite"], record["case"], record["params"]["seeds"]) == ("accuracy-bits", "demo-digits", 1)
    assert [one["bits"] for one in record["params"]["results"]] == [32, 8, 4, 2, 1]
    assert record["params"]["results"][0]["accuracy"] > 90
    printed = '{"graph": "g", "network": "gcn-2x16", "accuracies": [{"32": 80.0}]}'
    assert accuracy_bits.found("g-gcn-2x16", printed) == json.loads(printed)
    run = {"graph": "g", "network": "gcn", "seed": 0, "precision": "2-bit", "accuracy": 80.10000038}
    said = json.dumps({"table": "qgtc", "runs": [run | {"curve": [1]}]})
    assert accuracy_bits.found("trained-g", said) == {"runs": [run | {"accuracy": 80.1}]}
    run = {
        "graph": "g",
        "network": "gcn",
        "seed": 0,
        "strategy": None,
        "width": None,
        "bits": 8,
        "accuracy": 80.10000038,
    }
    said = json.dumps({"table": "aes", "runs": [run | {"lost": 0.0}]})
    assert accuracy_bits.found("sampled-g", said) == {"runs": [run | {"accuracy": 80.1}]}
    assert {name.partition("-")[0] for name, _ in accuracy_bits.commands(tmp_path, 1)} == {
        *("demo", "cora", "pubmed", "trained", "integers", "binary", "links", "sampled")
    }


@pytest.mark.pyg
@_QUIET
def test_a_stopped_run_goes_on_and_makes_a_table(
    accuracy: Any, path: Path, threads: None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = path.parent / "accuracy.jsonl"
    given = ["--data", str(path.parent), "--records", str(file), "--graphs", "three", "--epochs", "40", "--models"]
    accuracy.main([*given, "gcn", "gat", "--seeds", "1"])
    first = file.read_text(encoding="utf-8").splitlines()
    accuracy.main([*given, "gcn", "sage", "gin", "gat", "--seeds", "2"])
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[:2] == first
    records = [json.loads(line) for line in lines]
    assert sorted(record["case"] for record in records) == sorted(
        f"three-{model}-{seed}" for model in ("gcn", "sage", "gin", "gat") for seed in (0, 1)
    )
    for record in records:
        found = record["params"]
        assert min(found["theirs"], found["ours"]) > 60, found
        if found["model"] != "gat":  # both sides draw the same dropout, so that only the last bits of sums differ
            assert abs(found["theirs"] - found["ours"]) < 5
    capsys.readouterr()
    accuracy.main([*given, "gcn", "--only-table"])
    assert "three  gat          2" in capsys.readouterr().out


@pytest.mark.pyg
@_QUIET
@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_pairs_start_equal_and_drop_the_same(accuracy: Any, path: Path, model: str) -> None:
    import torch

    of = accuracy.task(path)
    theirs, ours = accuracy.pair(model, of, 3)
    for net in (theirs, ours):
        for layer in net.convs:
            layer.dropout = 0.0  # dropout of attention, which each side draws by itself
    logits = []
    for net, edges in ((theirs, of.edges), (ours, of.graph)):
        generator = torch.Generator().manual_seed(1)
        logits.append(net.train()(accuracy.Dropped(of.x).draw(0.5, generator), edges, generator))
    assert (logits[0] - logits[1]).abs().max() <= 1e-5 * logits[0].abs().max()
    again, _ = accuracy.pair(model, of, 3)
    other, _ = accuracy.pair(model, of, 4)
    same, changed = (
        [torch.equal(*weights) for weights in zip(theirs.parameters(), net.parameters(), strict=True)]
        for net in (again, other)
    )
    assert all(same)
    assert not all(changed)


@pytest.mark.pyg
@_QUIET
def test_dropout_keeps_the_mean_and_overwrites_its_last_draw(accuracy: Any) -> None:
    import torch

    x = torch.ones(50, 40) * (torch.arange(40) % 2)
    drawn = accuracy.Dropped(x)
    first = drawn.draw(0.25, torch.Generator().manual_seed(0)).clone()
    assert set(first.unique().tolist()) == {0.0, float(torch.tensor(1.0) / 0.75)}
    assert abs(float(first.mean()) - 0.5) < 0.03
    assert torch.equal(drawn.draw(0.0, torch.Generator()), x)
    assert torch.equal(drawn.draw(0.25, torch.Generator().manual_seed(0)), first)


@pytest.mark.pyg
@_QUIET
def test_a_difference_counts_beyond_half_a_point_and_two_standard_errors(accuracy: Any) -> None:
    def verdict(*differences: float) -> str:
        records = [
            {"params": {"graph": "g", "model": "gcn", "seed": i, "theirs": 80.0, "ours": 80 + difference}}
            for i, difference in enumerate(differences)
        ]
        return str(accuracy.table(records)).split()[-1]

    assert verdict(0.4, 0.5, 0.4) == "equal"
    assert verdict(1.0, 1.1, 0.9) == "differ"
    assert verdict(-1.0, -1.1, -0.9) == "differ"
    assert verdict(5.0, -3.0, 1.0) == "equal"


@pytest.mark.pyg
@_QUIET
def test_recipes_are_those_of_the_papers(accuracy: Any) -> None:
    assert accuracy.recipe("gat", "cora") == accuracy.Recipe((8,), 0.6, 0.005, 5e-4, False, 1000, True)
    assert accuracy.recipe("gat", "pubmed").decay == 1e-3
    assert accuracy.recipe("gcn", "cora") == accuracy.Recipe((16,), 0.5, 0.01, 5e-4, True, 200, False)
    assert accuracy.recipe("gin", "cora").widths == (64, 64)

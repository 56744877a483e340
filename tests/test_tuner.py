"""The tuner: what it tries, what it picks, what it remembers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from binary_networks import gcn, random_graph, saint

import bitsparse as bs
from bitsparse import nn, viz
from bitsparse.nn.binary import tuner


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BITSPARSE_CACHE_DIR", str(tmp_path))
    return tmp_path


def case(n: int = 60) -> tuple[nn.BinaryGCN, nn.Graph, np.ndarray, np.ndarray, np.ndarray]:
    """Return a network with random weights and the labels that it predicts, so that its own settings are right everywhere."""
    rng = np.random.default_rng(0)
    model, graph = gcn([33, 40, 4], rng), nn.Graph(random_graph(n, rng))
    x = rng.normal(size=(n, 33)).astype(np.float32)
    return model, graph, x, model(graph, x).argmax(axis=1), rng.random(n) < 0.5


def test_every_choice_is_measured_and_the_quickest_good_one_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph, x, labels, mask = case()
    monkeypatch.setattr(
        tuner, "milliseconds", lambda plan, x: 1.0 + sum(each.variant.count("F") for each in plan.settings)
    )
    tuned = bs.tune(model, graph, x, labels, mask, tolerance=0.0)
    assert len(tuned.candidates) == len(model.candidates()) == 18
    assert tuned.reference.settings == tuple(model.settings) and tuned.reference.accuracy == 1.0
    assert tuned.best.accuracy == 1.0
    assert tuned.best.milliseconds == min(c.milliseconds for c in tuned.candidates if c.accuracy == 1.0)
    anything = bs.tune(model, graph, x, labels, mask, tolerance=1.0)
    assert anything.best.milliseconds == min(c.milliseconds for c in tuned.candidates) < tuned.reference.milliseconds
    assert tuple(anything.model.settings) == anything.best.settings == tuple(anything.plan.settings)
    assert np.array_equal(anything.plan(x), model.with_settings(anything.best.settings)(graph, x))
    for each in tuned.candidates:
        found = model.with_settings(each.settings)(graph, x).argmax(axis=1)
        assert each.accuracy == (found == labels)[mask].mean()
        assert each.nbytes == model.with_settings(each.settings).plan(graph, x).peak_nbytes
        beaten = any(other.dominates(each) for other in tuned.candidates)
        assert (each in tuned.pareto) != beaten
    text = anything.table()
    assert text.count("->") == 1 and "18 choices" in text and repr(anything).startswith("<Tuned BinaryGCN")


def test_times_within_the_noise_are_equal() -> None:
    quick, right, small = (
        nn.Candidate((), a, ms, n) for a, ms, n in ((0.75, 1.0, 9), (0.77, 1.02, 9), (0.77, 1.025, 8))
    )
    slow = nn.Candidate((), 0.9, 1.04, 9)
    assert tuner.quickest([quick, right, small, slow]) == small
    assert tuner.pareto_set([quick, right, small, slow]) == [small, slow]
    # Two times that differ by more than the noise do not become equal because a third one is close to both.
    steps = [nn.Candidate((), 0.8, ms, 5) for ms in (1.0, 1.02, 1.04)]
    assert tuner.pareto_set(steps) == steps[:2]


def test_times_that_differ_by_more_than_the_noise_are_not_equal() -> None:
    """With the documented noise of 3 %, a setting slower by a twentieth must count as slower, even if all else is equal."""
    quick, slower = nn.Candidate((), 0.8, 1.0, 5), nn.Candidate((), 0.8, 1.05, 5)
    assert quick.dominates(slower) and tuner.pareto_set([slower, quick]) == [quick]
    assert not nn.Candidate((), 0.9, 1.05, 5).dominates(quick)
    assert tuner.quickest([nn.Candidate((), 0.9, 1.05, 5), quick]) == quick
    equal = nn.Candidate((), 0.9, 1.029, 5)
    assert equal.dominates(quick) and tuner.quickest([quick, equal]) == equal


def test_times_are_measured() -> None:
    model, graph, x, labels, mask = case()
    tuned = bs.tune(model, graph, x, labels, mask, candidates=["full", "binary"])
    assert len(tuned.candidates) == 2
    assert all(0 < each.milliseconds < 1e4 for each in tuned.candidates)


def test_figures_are_kept_for_the_same_question(folder: Path) -> None:
    model, graph, x, labels, mask = case()
    steps: list[int] = []

    def ask(**changes: object) -> nn.Tuned:
        asked = {"model": model, "graph": graph, "x": x, "labels": labels, "mask": mask} | changes
        return bs.tune(**asked, candidates=["full", "binary"], progress=lambda: steps.append(1))  # type: ignore[arg-type]

    first = ask()
    assert not first.from_cache and len(steps) == 2
    again = ask()
    assert again.from_cache and len(steps) == 2
    assert again.candidates == first.candidates and again.best == first.best
    assert np.array_equal(again.plan(x), first.plan(x))
    rng = np.random.default_rng(9)
    for changes in (
        {"x": x + np.float32(0.1)},
        {"labels": (labels + 1) % 4},
        {"mask": ~mask},
        {"graph": nn.Graph(random_graph(60, rng))},
        {"model": gcn([33, 40, 4], rng)},
        {"x": model.packed(x)},
    ):
        before = len(steps)
        assert not ask(**changes).from_cache and len(steps) == before + 2
    assert bs.tune(model, graph, x, labels, mask, candidates=["full", "binary"], cache=False).from_cache is False
    files = list((folder / "tune").glob("*.json"))
    assert len(files) == 7
    for file in files:  # damaged, or of another kind
        file.write_text(json.dumps([{"settings": 3}]))
    assert not ask().from_cache


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BITSPARSE_CACHE_DIR", str(tmp_path / "file"))
    model, graph, x, labels, mask = case()
    assert not bs.tune(model, graph, x, labels, mask, candidates=["full"]).from_cache


def test_deep_networks_are_varied_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    model, graph = gcn([33, 16, 16, 16, 4], rng), nn.Graph(random_graph(40, rng))
    x = rng.normal(size=(40, 33)).astype(np.float32)
    labels, mask = model(graph, x).argmax(axis=1), np.ones(40, bool)
    monkeypatch.setattr(tuner, "milliseconds", lambda plan, x: 1.0)
    steps: list[int] = []
    tuned = bs.tune(model, graph, x, labels, mask, progress=lambda: steps.append(1), cache=False)
    assert len(model.candidates()) > 200 > len(tuned.candidates) == len(steps) > 15
    for layer in range(4):
        assert len({each.settings[layer].variant[2] for each in tuned.candidates}) == 2
    wide = saint([33, 16, 16, 16], 4, rng)
    found = bs.tune(wide, graph.packed("frdc"), x, labels, mask, tolerance=1.0, cache=False)
    assert 15 < len(found.candidates) < len(wide.candidates()) == 128
    assert {each.settings[0].gives for each in found.candidates} == {"F", "B"}


def test_packed_features_are_tuned_with_letter_b() -> None:
    model, graph, x, labels, mask = case()
    packed = model.packed(x)
    tuned = bs.tune(model, graph, packed, labels, mask, tolerance=1.0, cache=False)
    assert {each.settings[0].reads for each in tuned.candidates} == {"B"}
    assert len(tuned.candidates) == 18
    assert tuned.plan(packed).shape == (60, 4)


def test_a_plot() -> None:
    model, graph, x, labels, mask = case()
    tuned = bs.tune(model, graph, x, labels, mask, cache=False)
    axes = viz.pareto(tuned)
    assert f"18 choices on cpu, {len(tuned.pareto)} in the Pareto set" == axes.get_title()
    assert viz.pareto(tuned, axes) is axes
    axes.figure.canvas.draw()


def test_what_is_refused() -> None:
    model, graph, x, labels, mask = case()
    for error, match, call in [
        (bs.DTypeError, "model must be a binary model", lambda: bs.tune(3, graph, x, labels, mask)),
        (
            ValueError,
            "tolerance must be a share in 0..1, got 5",
            lambda: bs.tune(model, graph, x, labels, mask, tolerance=5),
        ),
        (bs.ShapeError, r"labels has shape \(59,\)", lambda: bs.tune(model, graph, x, labels[1:], mask)),
        (bs.DTypeError, "mask has dtype int64", lambda: bs.tune(model, graph, x, labels, mask.astype(np.int64))),
        (bs.DTypeError, "labels has dtype float64", lambda: bs.tune(model, graph, x, labels / 2, mask)),
        (ValueError, "mask selects no node", lambda: bs.tune(model, graph, x, labels, mask & False)),
        (ValueError, "one variant for each", lambda: bs.tune(model, graph, x, labels, mask, candidates=["best"])),
    ]:
        with pytest.raises(error, match=match):
            call()

"""Pictures must have the graph's name in every title, and nothing may hide or overlap anything else."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bitsparse import nn, viz
from bitsparse._text import duration, size
from bitsparse.datasets import synthetic

pytest.importorskip("matplotlib")


def drawn(ax: Any) -> Any:
    """Draw the complete picture and return its renderer."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(ax.figure)
    canvas.draw()
    return canvas.get_renderer()


def tuned(count: int, milliseconds: Any) -> Any:
    rng = np.random.default_rng(3)
    settings = tuple(nn.Setting(name) for name in ("FBB+BBB", "BBB+BBF") * 4)
    made = [
        nn.Candidate(settings, float(rng.random()), float(milliseconds(rng)), int(1e6 * rng.random()))
        for _ in range(count)
    ]
    return SimpleNamespace(candidates=made, pareto=made[:5], reference=made[0], best=made[1], device="cpu")


@pytest.mark.parametrize(
    "milliseconds", [lambda rng: 10 ** rng.uniform(-2, 2), lambda rng: rng.uniform(1, 1.2), lambda rng: 1.89]
)
def test_labels_of_a_pareto_set_lie_beside_its_points(milliseconds: Any) -> None:
    ax = viz.pareto(tuned(18, milliseconds), name="cora")
    assert ax.get_title() == "cora: 18 choices on cpu, 5 in the Pareto set"
    renderer = drawn(ax)
    inside, whole = ax.get_window_extent(renderer), ax.figure.bbox
    legend = ax.get_legend().get_window_extent(renderer)
    assert not legend.overlaps(inside)
    assert whole.x0 <= legend.x0 and legend.x1 <= whole.x1 and whole.y0 <= legend.y0
    assert not legend.overlaps(ax.xaxis.label.get_window_extent(renderer))
    apart(ax, renderer)


def apart(ax: Any, renderer: Any) -> None:
    """Require at least two numbers along the axis, and that they do not touch."""
    labels = [label.get_window_extent(renderer) for label in ax.get_xticklabels() if label.get_text()]
    places = [box for box in labels if ax.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= ax.bbox.x1 + 1]
    assert len(places) >= 2
    assert all(one.x1 < other.x0 for one, other in pairwise(places))


def test_titles_name_the_graph_and_stay_within_the_picture() -> None:
    name = "a-graph-whose-file-has-quite-a-long-name-2026"
    report = nn.ClusterReport("cpu", "gcn-500-16-16-3-b8", nodes=10**6, bytes_moved=5 * 10**7, pack_seconds=0.5)
    whole = nn.QualityCell(None, None, 32, 81.0, 0.0, 0.0, 1.0, 1.0, 900)
    cells = whole, nn.QualityCell("aes", 16, 32, 80.5, 0.0, 0.5, 0.4, 2.5, 300)
    rate = nn.SamplingRate("aes", 16, 0.3, 0.3, (0.0,) * 20 + (1.0,))
    pictures = [
        viz.pareto(tuned(9, lambda rng: rng.random()), name=name),
        viz.stages(report, name=name),
        viz.spy(synthetic((900, 4000)).adjacency, name=name),
        *viz.quality(nn.Quality("GCN", "cpu", cells, (rate,), {8: 0.01}, 4), name=name),
    ]
    for ax in pictures:
        renderer = drawn(ax)
        title = ax.title.get_window_extent(renderer)
        assert ax.get_title().replace("\n", "").startswith(name)
        assert title.x0 >= 0 and title.x1 <= ax.figure.bbox.x1
    titles = [ax.title.get_window_extent(renderer) for ax in pictures[-3:]]
    assert titles[0].x1 < titles[1].x0 and titles[1].x1 < titles[2].x0


def test_a_graph_brings_its_name_to_its_picture() -> None:
    graph = synthetic((300, 900))
    assert viz.spy(graph).get_title().startswith(f"{graph.name}: 300 x 300, ")


def test_times_and_sizes_have_few_digits() -> None:
    assert [duration(each) for each in (0.0099996, 0.9996, 99.96, 1234.5)] == [
        "10.0 ms",
        "1000 ms",
        "100.0 s",
        "1234 s",
    ]
    assert [size(each) for each in (1000, 999_999, 12_345_678, 5e12)] == ["1 kB", "1e+03 kB", "12.3 MB", "5000 GB"]

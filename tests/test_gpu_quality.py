"""Sampled networks and their report on a GPU must agree with those on the CPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

from bitsparse import nn
from bitsparse.cli import main

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def task():
    n, rng = 160, np.random.default_rng(0)
    labels = np.arange(n) % 3
    near = np.triu(rng.random((n, n)) < np.where(labels[:, None] == labels, 0.25, 0.1), 1)
    adjacency = sp.csr_array(near | near.T)
    features = nn.Features((rng.random((n, 20)) < np.where(np.arange(20) % 3 == labels[:, None], 0.5, 0.2)) * 1.0)
    train = np.arange(n) % 5 == 0
    graphs = nn.Graph(adjacency), nn.Graph(adjacency, "mean")
    given = features, labels, train
    models = nn.train(graphs[0], *given, epochs=40), nn.train(graphs[1], *given, epochs=40)
    return models, graphs, features, labels, ~train


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("width", "bits"), [(None, 32), (None, 4), (8, 32), (8, 8), (8, 2)])
def test_sampled_networks_are_those_of_the_cpu(task, which, width, bits):
    models, graphs, features, _, _ = task
    options = {"bits": bits, "rescale": True} if width is not None else {"bits": bits}
    here, there = (
        nn.SampledNetwork(models[which], graphs[which], features, width, device=device, **options)
        for device in ("cpu", "cuda")
    )
    assert there.device.startswith("cuda")
    logits = there()
    assert logits.dtype == np.float32
    # Hidden units close to a rounding boundary may be rounded to the other side.
    tolerance = 1e-5 if bits == 32 else 0.05
    np.testing.assert_allclose(logits.get(), here(), rtol=tolerance, atol=tolerance * np.abs(here()).max())
    np.testing.assert_array_equal(logits.get(), there().get())
    assert [call().shape for call in there.aggregations()] == [(160, 16), (160, 3)]


def test_the_report_is_that_of_the_cpu(task):
    models, graphs, features, labels, mask = task
    options = {"widths": [8], "strategies": ["aes", "uniform"], "bits": [32, 8], "timed": False}
    here, there = (
        nn.sampling_quality(models[0], graphs[0], features, labels, mask, device=device, **options)
        for device in ("cpu", "cuda")
    )
    assert there.rates == here.rates
    assert there.chosen_bits == here.chosen_bits
    for bits, error in here.errors.items():
        assert there.errors[bits] == pytest.approx(error, rel=1e-5)
    for one, other in zip(here.cells, there.cells, strict=True):
        assert other[:3] == one[:3]
        assert other.accuracy == pytest.approx(one.accuracy, abs=1.6)  # two nodes of 128
        assert other.gathered == one.gathered


def test_sampling_rates_of_what_lies_there(task):
    from bitsparse.nn.sampled.network import operand_of

    graph = task[1][0]
    for strategy in ("aes", "sfs"):
        assert nn.sampling_rate(operand_of(graph, "cuda"), 8, strategy) == nn.sampling_rate(graph.pattern, 8, strategy)


def test_the_command(tmp_path, capsys):
    n, rng = 90, np.random.default_rng(2)
    labels = np.arange(n) % 2
    near = np.triu(rng.random((n, n)) < np.where(labels[:, None] == labels, 0.2, 0.05), 1)
    graph = sp.csr_array(near | near.T)
    x = (rng.random((n, 8)) + 3 * (np.arange(8) % 2 == labels[:, None])).astype(np.float32)
    np.savez(tmp_path / "two.npz", indptr=graph.indptr, indices=graph.indices, features=x, labels=labels)
    options = ["--widths", "4", "--strategies", "aes", "--bits", "8", "--epochs", "20", "--model", "gcn", "--json"]
    assert main(["quality", "--graph", str(tmp_path / "two.npz"), "--device", "cuda", *options]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert found["device"].startswith("cuda")
    assert [(one["width"], one["bits"]) for one in found["cells"]] == [(None, 32), (None, 8), (4, 32), (4, 8)]
    assert all(one["ms"] > 0 for one in found["cells"])

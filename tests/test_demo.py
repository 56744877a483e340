"""The main job, ``bitsparse demo``: a GCN in full precision and in bits, and its command line."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import nn, viz
from bitsparse.bench import Protocol
from bitsparse.cli import main
from bitsparse.cli.demo import large, report, sides
from bitsparse.errors import DeviceError, DTypeError, ShapeError
from bitsparse.nn.lowbit import calibration

SMALL = ("--only", "accuracy", "--graph")
LARGE = ("--only", "large", "--large", "640,6400")


def planted(n: int = 240, classes: int = 3, words: int = 40, seed: int = 0) -> dict[str, np.ndarray]:
    """A planted partition: dense inside classes, with bags of words in which each class has more frequent words of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % classes)
    same = labels[:, None] == labels[None, :]
    upper = np.triu(rng.random((n, n)) < np.where(same, 0.06, 0.008), 1)
    graph = sp.csr_array(upper | upper.T)
    own = np.arange(words)[None, :] % classes == labels[:, None]
    x = sp.csr_array((rng.random((n, words)) < np.where(own, 0.3, 0.12)).astype(np.float32))
    order = rng.permutation(n)
    masks = [np.isin(np.arange(n), part) for part in np.split(order, [30, 80])]
    return {
        "indptr": graph.indptr,
        "indices": graph.indices,
        "x_indptr": x.indptr,
        "x_indices": x.indices,
        "x_data": x.data,
        "x_shape": np.array(x.shape),
        "labels": labels.astype(np.int32),
        **dict(zip(("train_mask", "val_mask", "test_mask"), masks, strict=True)),
    }


@pytest.fixture(scope="session")
def graph_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("graphs") / "planted.npz"
    np.savez(file, **planted())
    return file


class Trained:
    """The planted graph and a model trained on it."""

    def __init__(self) -> None:
        parts = planted()
        n = parts["labels"].size
        self.pattern = sp.csr_array((np.ones(parts["indices"].size), parts["indices"], parts["indptr"]), shape=(n, n))
        self.raw = sp.csr_array((parts["x_data"], parts["x_indices"], parts["x_indptr"]), shape=tuple(parts["x_shape"]))
        self.graph, self.features = nn.Graph(self.pattern), nn.Features(self.raw)
        self.labels, self.train, self.test = parts["labels"], parts["train_mask"], parts["test_mask"]
        self.model = nn.train(self.graph, self.features, self.labels, self.train, seed=1)

    def accuracy(self, logits: np.ndarray) -> float:
        return float((logits.argmax(axis=1) == self.labels)[self.test].mean())

    def quantized(self, bits: int, **options: int) -> nn.LowBitNetwork:
        return nn.quantize_network(self.model, self.pattern, self.features, bits, **options)


def weights(model: nn.Network) -> np.ndarray:
    """The weights of the first layer."""
    return model.layers[0].updates[0].weight


@pytest.fixture(scope="module")
def trained():
    return Trained()


def test_the_accuracy_of_the_demo_is_that_of_the_test_nodes(tmp_path, capsys):
    """The accuracy must be high if the labels of validation nodes are wrong, and low if those of test nodes are."""
    parts = planted()
    for wrong, low, high in (("val_mask", 60, 100), ("test_mask", 0, 40)):
        labels = np.where(parts[wrong], (parts["labels"] + 1) % 3, parts["labels"]).astype(np.int32)
        np.savez(tmp_path / "wrong.npz", **(parts | {"labels": labels}))
        assert main(["demo", *SMALL, str(tmp_path / "wrong.npz"), "--bits", "8", "--json"]) == 0
        for result in json.loads(capsys.readouterr().out)["accuracy"]["results"]:
            assert low <= result["accuracy"] <= high


# ---- inputs
def test_a_graph_is_the_normalised_adjacency_in_both_forms():
    pattern = sp.coo_array(([5.0, 1.0, 2.0, 1.0], ([0, 1, 1, 1], [1, 0, 1, 2])), shape=(3, 3))
    graph = nn.Graph(pattern)
    with_loops = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 1]])
    np.testing.assert_array_equal(graph.packed("dense").toarray(), with_loops)
    arriving = with_loops.sum(axis=1)
    want = with_loops / np.sqrt(np.outer(arriving, arriving))
    np.testing.assert_allclose(graph.matrix.toarray(), want, rtol=1e-6)
    np.testing.assert_allclose(graph.row_scale[:, None] * with_loops * graph.col_scale, want, rtol=1e-6)


def test_a_graph_refuses_what_is_no_graph():
    with pytest.raises(ShapeError, match="as many rows as columns"):
        nn.Graph(sp.csr_array((2, 3)))
    with pytest.raises(DTypeError, match=r"scipy\.sparse"):
        nn.Graph(np.eye(3))


def test_binary_features_are_exact_in_one_bit_whatever_is_asked(trained):
    for bits in (1, 4, 8):
        q = trained.features.quantized(bits)
        assert q.bits == 1
        np.testing.assert_array_equal(q.toarray(), trained.raw.toarray())
        np.testing.assert_allclose(q.dequantize(), trained.features.csr.toarray(), rtol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_real_features_lose_at_most_half_a_step(sparse):
    x = np.random.default_rng(2).random((9, 300)).astype(np.float32)
    x[x < 0.6] = 0
    x[4] = 0
    features = nn.Features(sp.csr_array(x) if sparse else x)
    q = features.quantized(8)
    assert q.bits == 8
    error = np.abs(q.dequantize() - features.csr.toarray())
    assert (error <= 0.51 * q.scale + 1e-7).mean() > 0.98  # the remaining elements are clipped
    np.testing.assert_array_equal(q.toarray()[x == 0], 0)


def test_features_with_negative_values_use_an_offset():
    x = np.random.default_rng(3).standard_normal((6, 50)).astype(np.float32)
    features = nn.Features(x)
    np.testing.assert_allclose(np.abs(features.normalized).sum(axis=1), 1, rtol=1e-5)
    q = features.quantized(8)
    assert np.abs(q.dequantize() - features.normalized).max() <= 0.51 * q.scale.max()


def test_features_refuse_what_is_not_a_matrix_of_numbers():
    with pytest.raises(ValueError, match="NaN"):
        nn.Features(np.array([[np.nan]]))
    with pytest.raises(DTypeError, match="complex128"):
        nn.Features(np.ones((2, 2), complex))
    with pytest.raises(ShapeError, match="one row per node"):
        nn.Features(np.ones(3))


# ---- training
@pytest.mark.parametrize("own", [False, True])
def test_gradient_agrees_with_differences(trained, own):
    from bitsparse.nn.full.training import TwoLayers

    ids, matrix = np.flatnonzero(trained.train), trained.graph.matrix
    net = TwoLayers(matrix, trained.features.csr, ids, trained.labels[ids], 3, 0.0, own)
    rng = np.random.default_rng(4)
    inputs = trained.raw.shape[1]
    shapes = [(inputs, 4), (4,), (4, 3), (3,), *([(inputs, 4), (4, 3)] if own else [])]
    params = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def loss(given):
        w1, b1, w2, b2, *more = (part.astype(np.float64) for part in given)
        p, x = matrix.astype(np.float64), trained.features.csr.astype(np.float64)
        s1, s2 = more or (0 * w1, 0 * w2)
        hidden = np.maximum(p @ (x @ w1) + x @ s1 + b1, 0)
        logits = (p @ (hidden @ w2) + hidden @ s2 + b2)[ids]
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(ids.size), trained.labels[ids]]))

    gradients = net.gradients(params, rng)
    for which, gradient in enumerate(gradients):
        direction = rng.standard_normal(gradient.shape)
        ends = []
        for sign in (1, -1):
            moved = [part.astype(np.float64) for part in params]
            moved[which] = moved[which] + sign * 1e-5 * direction
            ends.append(loss(moved))
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(float((gradient * direction).sum()), rel=2e-3, abs=1e-5)


def test_training_is_seeded_and_learns(trained):
    again = nn.train(trained.graph, trained.features, trained.labels, trained.train, seed=1)
    np.testing.assert_array_equal(weights(trained.model), weights(again))
    other = nn.train(trained.graph, trained.features, trained.labels, trained.train, seed=2, epochs=3)
    assert (weights(other) != weights(again)).any()
    assert not trained.model.layers[0].updates[0].bias.any()
    assert trained.accuracy(trained.model(trained.graph, trained.features)) > 0.85


def test_training_with_biases(trained):
    model = nn.train(trained.graph, trained.features, trained.labels, trained.train, bias=True)
    assert all(layer.updates[0].bias.any() for layer in model.layers)
    quantized = nn.quantize_network(model, trained.pattern, trained.features, 8)
    assert trained.accuracy(quantized(trained.graph, quantized.quantize(trained.features))) > 0.85


def test_training_refuses_what_does_not_fit(trained):
    graph, features, labels, mask = trained.graph, trained.features, trained.labels, trained.train
    for error, message, arguments in (
        (
            ShapeError,
            r"features has shape \(3, 2\), but the graph has 240 nodes",
            (graph, nn.Features(np.ones((3, 2))), labels, mask),
        ),
        (ShapeError, r"labels has shape \(5,\)", (graph, features, labels[:5], mask)),
        (DTypeError, "labels has dtype float64", (graph, features, labels * 1.0, mask)),
        (DTypeError, "train_mask has dtype int64", (graph, features, labels, mask * 1)),
        (ValueError, "selects no node", (graph, features, labels, mask & False)),
        (
            ValueError,
            "node 3 has label 1099511627776, .* up to 65535 are believed",
            (graph, features, np.where(np.arange(len(labels)) == 3, np.int64(1 << 40), labels), mask),
        ),
        (ValueError, "whose label is -1", (graph, features, np.full_like(labels, -1), mask)),
    ):
        with pytest.raises(error, match=message):
            nn.train(*arguments)
    with pytest.raises(ValueError, match="dropout"):
        nn.train(graph, features, labels, mask, dropout=1.0)
    for recipe, said in (
        ({"dropout": "0.5"}, "dropout must be a finite number"),
        ({"hidden": 0}, "hidden must be at least 1, got 0"),
        ({"epochs": -1}, "epochs must be at least 0, got -1"),
        ({"epochs": 2.5}, "epochs must be an integer, got 2.5"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"learning_rate": np.nan}, "learning_rate must be a finite number"),
        ({"weight_decay": None}, "weight_decay must be a finite number"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"^train: {said}"):
            nn.train(graph, features, labels, mask, **recipe)


# ---- calibration and the quantised model
@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_grids_beat_the_plain_range(bits):
    x = np.random.default_rng(5).standard_normal((400, 6))

    def error(step, low):
        return ((x - low - step * calibration.nearest_codes(x, step, low, bits)) ** 2).sum(axis=0)

    plain = error((x.max(axis=0) - x.min(axis=0)) / (2**bits - 1), x.min(axis=0))
    assert (error(*calibration.uniform_grid(x, bits)) <= plain).all()


def test_grids_of_constant_and_empty_columns():
    step, low = calibration.uniform_grid(np.full((5, 1), 3.0), 2)
    assert step > 0
    assert low == 3
    step, low = calibration.uniform_grid(np.empty((0, 2)), 2)
    np.testing.assert_array_equal([step, low], [[1, 1], [0, 0]])


def test_refined_codes_never_do_worse():
    rng = np.random.default_rng(6)
    x = rng.random((80, 30)) * (rng.random((80, 30)) < 0.3)
    w = rng.standard_normal((30, 4))
    step, low = calibration.uniform_grid(w, 2)
    codes = calibration.nearest_codes(w, step, low, 2)
    before = ((x @ (w - low - step * codes)) ** 2).sum(axis=0)
    codes, step = calibration.refine_codes(x, w, codes, step, low, 2)
    assert set(np.unique(codes)) <= {0, 1, 2, 3}
    assert (((x @ (w - low - step * codes)) ** 2).sum(axis=0) < before).all()


@pytest.mark.parametrize(("bits", "loss"), [(16, 0.005), (8, 0.01), (4, 0.03), (2, 0.08), (1, 0.2)])
def test_quantised_accuracy(trained, bits, loss):
    quantized = trained.quantized(bits)
    logits = quantized(trained.graph, quantized.quantize(trained.features))
    assert logits.dtype == np.float32
    assert logits.shape == (240, 3)
    full = trained.model(trained.graph, trained.features)
    assert trained.accuracy(logits) >= trained.accuracy(full) - loss
    np.testing.assert_array_equal(logits, quantized(trained.graph, quantized.quantize(trained.features)))


def test_quantised_model_is_made_of_bits(trained):
    quantized = trained.quantized(4)
    codes = quantized.quantize(trained.features)
    assert [part.bits for part in (codes, *(step.weights for step in quantized.steps[::2]))] == [1, 4, 4]
    np.testing.assert_array_equal(codes.dequantize(), trained.features.quantized(4).dequantize())
    assert quantized.nbytes >= sum(step.weights.nbytes for step in quantized.steps[::2])


def test_sixteen_bits_are_full_precision(trained):
    full, quantized = trained.model(trained.graph, trained.features), trained.quantized(16)
    logits = quantized(trained.graph, quantized.quantize(trained.features))
    np.testing.assert_allclose(logits, full, atol=2e-3 * np.abs(full).max())


@pytest.mark.parametrize("bits", [0, 17, -1])
def test_quantised_bits_out_of_range(trained, bits):
    with pytest.raises(ValueError, match=rf"1\.\.16, got {bits}"):
        trained.quantized(bits)


def test_calibration_sees_a_sample_of_large_graphs(trained):
    quantized = trained.quantized(4, sample=50)
    assert trained.accuracy(quantized(trained.graph, quantized.quantize(trained.features))) > 0.8


# ---- pictures
@pytest.mark.parametrize("shape", [(1, 1), (8, 128), (20, 300), (17, 129)])
@pytest.mark.parametrize("axis", [-1, -2])
def test_tile_fill_counts_elements(shape, axis, monkeypatch):
    monkeypatch.setattr(viz, "_CHUNK_WORDS", 32)
    x = np.random.default_rng(7).integers(0, 4, shape) * (np.random.default_rng(8).random(shape) < 0.2)
    fill = viz.tile_fill(bs.BitTensor(x, 2, axis=axis))
    for row, col in np.ndindex(*fill.shape):
        tile = x[8 * row : 8 * row + 8, 128 * col : 128 * col + 128]
        assert fill[row, col] == pytest.approx((tile != 0).mean())


def test_pictures_refuse_what_cannot_be_drawn():
    with pytest.raises(DTypeError, match="BitTensor"):
        viz.spy(np.eye(3))
    with pytest.raises(ShapeError, match="two dimensions"):
        viz.spy(bs.BitTensor(np.ones((2, 3, 4), int)))
    with pytest.raises(ShapeError, match="nothing to draw"):
        viz.spy(bs.BitTensor((0, 5)))
    assert viz.spy(bs.BitTensor((5, 5))).get_title().endswith("0 of 1 tiles set, mean fill 0.00 %")


# ---- the command line
def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def _one_call_each(monkeypatch):
    """Time every side with a single call, which is as quick as possible."""
    monkeypatch.setattr(large, "_TIMING", Protocol(warmup=0, repetitions=1, seconds=0.0, sample_ms=0.0, pause=0.0))


def test_the_accuracies_as_json(graph_file, capsys):
    code, out, err = run(capsys, "demo", *SMALL, str(graph_file), "--seeds", "2", "--bits", "8", "1", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["device", "threads", "accuracy"]
    assert (found["device"], found["threads"]) == ("cpu", bs.get_num_threads())
    small = found["accuracy"]
    assert list(small) == ["graph", "nodes", "edges", "seeds", "results"]
    assert (small["graph"], small["nodes"], small["seeds"]) == ("planted", 240, 2)
    assert small["edges"] == planted()["indices"].size
    assert [result["bits"] for result in small["results"]] == [32, 8, 1]
    for result in small["results"]:
        assert list(result) == ["bits", "accuracy", "accuracy_std"]
        assert 60 < result["accuracy"] <= 100  # per cent
        assert 0 <= result["accuracy_std"] < 20


@pytest.mark.usefixtures("_one_call_each")
def test_the_large_graph_as_json(capsys, monkeypatch):
    monkeypatch.setattr(sides, "geometric", lambda *_: None)
    code, out, err = run(capsys, "demo", *LARGE, "--bits", "8", "1", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["device", "threads", "large"]
    assert {key: found["large"][key] for key in ("nodes", "edges", "widths")} == {
        "nodes": 640,
        "edges": 6400,
        "widths": [128, 64, 16],
    }
    scipy, ours, eight, one = results = found["large"]["results"]
    names = [result["name"] for result in results]
    assert names == ["SciPy float32", "bitsparse float32", "bitsparse 8 bits", "bitsparse 1 bit"]
    assert [result["threads"] for result in results] == [1] + 3 * [bs.get_num_threads()]
    assert [result["bits"] for result in results] == [32, 32, 8, 1]
    for result in results:
        assert list(result) == ["name", "bits", "threads", "ms", "speed", "bytes", "agreement"]
        assert result["ms"] > 0
        assert result["speed"] == pytest.approx(scipy["ms"] / result["ms"], rel=0.01, abs=1e-3)
    # 6400 edges and 640 loops in CSR, as indices and floats; 1-bit features in 32-bit words.
    pattern = 4 * (7040 + 641)
    assert (
        scipy["bytes"]
        == ours["bytes"]
        == {
            "graph": pattern + 4 * 7040,
            "features": 4 * 640 * 128,
            "weights": 4 * (128 * 64 + 64 + 64 * 16 + 16),
            "activations": 2 * 4 * 640 * 64,
        }
    )
    between = 640 * (64 + 64 + 16 + 4 * 16)
    assert eight["bytes"]["graph"] == one["bytes"]["graph"] == pattern + 2 * 4 * 640
    assert [one["bytes"][name] for name in ("features", "activations")] == [640 * 16, between + 640 * 128]
    assert [eight["bytes"][name] for name in ("features", "activations")] == [640 * 128, between]
    assert scipy["agreement"] == 100
    assert ours["agreement"] > 99
    assert 100 > eight["agreement"] > one["agreement"] > 100 / 16


def test_the_bytes_of_floats_are_those_that_are_alive_together():
    given = large.task(2000, 20_000)
    graph, network = nn.Graph(given.data.adjacency, form="csr"), nn.random_network("gcn", [128, 64, 16])
    for side in (sides.vendor(graph, given.x, network, "cpu"), sides.in_full(graph, given.x, network, "cpu")):
        side.call()
        tracemalloc.start()
        side.call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert side.bytes["activations"] == pytest.approx(peak, rel=0.1)
    assert sides.floats_alive(10, [128, 16, 64, 8]) == 40 * (16 + 64 + 64)


def test_every_side_computes_the_same_network():
    given = large.task(700, 7000)
    graph = nn.Graph(given.data.adjacency, form="csr")
    network = nn.train(
        graph, nn.Features(given.x), given.labels, np.ones(700, bool), hidden=8, epochs=3, bias=True, dropout=0.0
    )
    wanted = network(given.data.adjacency, given.x)
    about = graph, given.x, network, "cpu"
    for side in (sides.vendor(*about), sides.in_full(*about)):
        np.testing.assert_allclose(side.call(), wanted, atol=1e-5)
    eight = sides.in_bits(graph, given.x, nn.quantize_network(network, given.data.adjacency, given.x, 8), "cpu")
    np.testing.assert_allclose(eight.call(), wanted, atol=0.05 * np.abs(wanted).max())


def test_pytorch_geometric_computes_the_same_network():
    pytest.importorskip("torch_geometric")
    given = large.task(700, 7000)
    graph, network = nn.Graph(given.data.adjacency, form="csr"), nn.random_network("gcn", [128, 64, 16], seed=1)
    side = sides.geometric(graph, given.x, network, "cpu")
    assert side is not None
    assert (side.name, side.threads) == ("PyG float32", bs.get_num_threads())
    np.testing.assert_allclose(side.call().numpy(), network(given.data.adjacency, given.x), atol=1e-5)


def test_without_pytorch_geometric_there_is_no_such_side(monkeypatch):
    monkeypatch.setattr(sides, "find_spec", lambda name: None)
    assert sides.geometric(None, None, None, "cpu") is None


def test_the_planted_classes_hold_together():
    """Every class must have training nodes, and edges must stay inside a class far more often than by chance."""
    given = large.task(6400, 64_000)
    rows = np.repeat(np.arange(6400), np.diff(given.data.indptr))
    assert (given.labels[rows] == given.labels[given.data.indices]).mean() > 3 / 16
    assert np.bincount(given.labels[given.trained]).tolist() == 16 * [400]
    np.testing.assert_allclose(np.abs(given.x).sum(axis=1), 1, rtol=1e-5)
    most = large.task(16 * 600, 16 * 600)
    assert np.bincount(most.labels[most.trained]).tolist() == 16 * [500]


@pytest.mark.usefixtures("_one_call_each")
def test_tables_of_both_parts(graph_file, capsys, monkeypatch):
    monkeypatch.setattr(sides, "geometric", lambda *_: None)
    code, out, err = run(capsys, "demo", "--graph", str(graph_file), "--bits", "4", "--seeds", "2", *LARGE[2:])
    assert (code, err) == (0, "")
    first, second = out.split("\n\nsynthetic: ")
    lines = first.splitlines()
    assert lines[0].startswith("planted: 240 nodes, ")
    assert lines[1] == "two-layer GCN, 16 hidden units, 2 seeds, quantised without labels"
    assert [line.split()[0] for line in lines[5:]] == ["32", "4"]
    assert all("+-" in line for line in lines[5:])
    lines = second.splitlines()
    assert lines[0] == "640 nodes, 6400 edges"
    assert lines[1].startswith("GCN 128 -> 64 -> 16, the same weights on every side, cpu; ")
    assert [line.rpartition("  ")[2].strip() for line in lines[3:6]] == ["same class %", "-" * 12, "100.00"]
    assert [line[:17].strip() for line in lines[5:8]] == ["SciPy float32", "bitsparse float32", "bitsparse 4 bits"]


@pytest.mark.usefixtures("_one_call_each")
def test_the_picture_of_both_parts(graph_file, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sides, "geometric", lambda *_: None)
    file = tmp_path / "both.png"
    code, out, err = run(
        capsys, "demo", "--graph", str(graph_file), "--bits", "8", *LARGE[2:], "--json", "--save", str(file)
    )
    assert (code, err) == (0, f"bitsparse demo: wrote {file}\n")
    figure = report.picture(json.loads(out)).figure
    accuracy, time, memory = figure.axes
    assert accuracy.lines[0].get_ydata().tolist() == [one["accuracy"] for one in json.loads(out)["accuracy"]["results"]]
    results = json.loads(out)["large"]["results"]
    assert [bar.get_width() for bar in time.patches] == [one["ms"] for one in results]
    assert [bar.get_width() for bar in memory.patches] == [sum(one["bytes"].values()) / 1e6 for one in results]
    assert file.read_bytes().startswith(b"\x89PNG")
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "demo", *SMALL, str(graph_file), "--bits", "1", "--plot")[0] == 0
    assert (tmp_path / "demo.png").is_file()


def test_demo_splits_a_graph_without_masks(tmp_path, capsys):
    parts = {key: value for key, value in planted().items() if not key.endswith("mask")}
    np.savez(tmp_path / "bare.npz", **parts)
    code, out, err = run(capsys, "demo", *SMALL, str(tmp_path / "bare.npz"), "--bits", "8", "--json")
    assert code == 0
    assert "bare has no masks; split at random" in err
    assert json.loads(out)["accuracy"]["results"][0]["accuracy"] > 60


def test_demo_default_graph(capsys):
    code, out, _ = run(capsys, "demo", "--only", "accuracy", "--bits", "4", "--json")
    found = json.loads(out)["accuracy"]
    assert (code, found["graph"]) == (0, "digits")
    full, four = found["results"]
    assert full["accuracy"] > 92
    assert four["accuracy"] > full["accuracy"] - 2


def one_line(err: str) -> str:
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err


def test_demo_never_falls_back_to_another_device(graph_file, capsys, monkeypatch):
    def nothing() -> None:
        raise DeviceError("capability: there is no such thing here")

    monkeypatch.setattr("bitsparse.jit.capability", nothing)
    code, out, err = run(capsys, "demo", "--graph", str(graph_file), "--device", "cuda", "--json")
    assert (code, out) == (2, "")
    assert "device 'cuda' is not available: capability: there is no such thing here; or use --device cpu" in one_line(
        err
    )


@pytest.mark.gpu
@pytest.mark.parametrize(("bits", "form"), [(1, "dense"), (4, "frdc"), (8, "dense"), (8, "tiled"), (1, "frdc")])
def test_the_logits_on_a_gpu_are_those_of_the_cpu(trained, bits, form):
    quantized = trained.quantized(bits)
    codes, operand = quantized.quantize(trained.features), nn.Graph(trained.graph.pattern, form=form, device="cuda")
    found = quantized(operand, codes.to_device("cuda"))
    np.testing.assert_array_equal(found.get(), quantized(trained.graph, codes))


@pytest.mark.gpu
@pytest.mark.usefixtures("_one_call_each")
def test_demo_on_a_gpu(graph_file, capsys, monkeypatch):
    """The demo must give the CPU's results on a GPU; CuPy's own products are replaced by SciPy's."""
    scipy = sides.vendor
    monkeypatch.setattr(sides, "vendor", lambda graph, x, network, device: scipy(graph, x, network, "cpu"))
    monkeypatch.setattr(sides, "geometric", lambda *_: None)
    arguments = ("demo", "--graph", str(graph_file), "--bits", "8", "1", *LARGE[2:], "--json")
    code, out, err = run(capsys, *arguments, "--device", "cuda")
    assert (code, err) == (0, "")
    found, on_cpu = json.loads(out), json.loads(run(capsys, *arguments)[1])
    assert found["device"] == "cuda"
    assert found["accuracy"] == on_cpu["accuracy"]
    for here, there in zip(found["large"]["results"], on_cpu["large"]["results"], strict=True):
        assert here["name"] == there["name"]
        assert here["ms"] > 0
        assert here["threads"] == (1 if here is found["large"]["results"][0] else None)
        assert here["agreement"] == pytest.approx(there["agreement"], abs=0.5)


@pytest.mark.gpu
def test_cupy_computes_the_same_network():
    from cupyx.scipy import sparse as on_gpu

    if not hasattr(on_gpu.csr_matrix, "__matmul__"):
        pytest.skip("this CuPy has no products of sparse matrices: the emulator's")
    given = large.task(700, 7000)
    graph, network = nn.Graph(given.data.adjacency, form="csr"), nn.random_network("gcn", [128, 64, 16], seed=1)
    side = sides.vendor(graph, given.x, network, "cuda")
    assert (side.name, side.threads) == ("CuPy float32", None)
    np.testing.assert_allclose(side.call().get(), network(given.data.adjacency, given.x), atol=1e-4)


def test_demo_user_errors_are_one_line(tmp_path, capsys):
    parts = planted()
    broken = {
        "text": None,
        "plain": {key: parts[key] for key in ("indptr", "indices")},
        "unlabelled": {key: value for key, value in parts.items() if key.startswith(("ind", "x_"))},
        "single": {**parts, "labels": parts["labels"] * 0},
        "untrained": {**parts, "train_mask": parts["train_mask"] & False},
        "decreasing": {**parts, "indptr": parts["indptr"][::-1]},
    }
    for name, arrays in broken.items():
        file = tmp_path / f"{name}.npz"
        if arrays is None:
            file.write_text("text")
        else:
            np.savez(file, **arrays)
    for name, message in (
        ("missing", "there is no file"),
        ("text", "not a readable .npz file"),
        ("plain", "has no features"),
        ("unlabelled", "has no labels"),
        ("single", "labels of 1 classes"),
        ("untrained", "train_mask selects no node"),
        ("decreasing", "indptr decreases"),
    ):
        code, out, err = run(capsys, "demo", *SMALL, str(tmp_path / f"{name}.npz"))
        assert (code, out) == (2, ""), name
        assert message in one_line(err)
        assert err.startswith("bitsparse demo: ")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["demo", "--bits", "0"],
        ["demo", "--bits", "17"],
        ["demo", "--seeds", "none"],
        ["demo", "--device", "tpu"],
        ["demo", "--only", "both"],
        ["demo", "--large", "1000"],
        ["demo", "--large", "0,100"],
        ["demo", "--adjacency", "dense"],
    ],
)
def test_bad_arguments_exit_with_two(arguments, capsys):
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    said = capsys.readouterr()
    assert ("see bitsparse" if arguments else "usage: bitsparse") in said.err and not said.out
    assert arguments or "accuracy, time and memory of a GCN" in said.err  # without arguments, the commands are listed


@pytest.mark.usefixtures("_one_call_each")
def test_missing_extras_are_named(graph_file, capsys, monkeypatch):
    monkeypatch.setattr(sides, "geometric", lambda *_: None)
    for module in ("sklearn", "sklearn.datasets", "sklearn.neighbors"):
        monkeypatch.setitem(sys.modules, module, None)
    code, out, err = run(capsys, "demo", "--only", "accuracy")
    assert (code, out) == (2, "")
    assert "pip install 'bitsparse[data]'" in one_line(err)
    code, out, err = run(capsys, "demo", "--bits", "4", *LARGE[2:])  # the part that needs no extra still runs
    assert code == 0
    assert out.startswith("synthetic: 640 nodes, ")
    assert "pip install 'bitsparse[data]'; accuracies are left out, unless --graph names a graph" in one_line(err)

    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else real(name, *rest)
    )
    code, _, err = run(capsys, "demo", "--graph", str(graph_file), "--plot")
    assert code == 2
    assert "pip install 'bitsparse[viz]'" in one_line(err)


def test_info(capsys):
    code, out, err = run(capsys, "info", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["numpy"] == np.__version__
    assert facts["simd"] in facts["simd_levels"]
    assert facts["threads"] == bs.get_num_threads()
    assert isinstance(facts["openmp"], bool)
    assert facts["devices"][0] == "cpu"
    assert len(facts["devices"]) == 1 + len(facts["gpu"]["devices"])
    assert "matplotlib" in facts["optional"]
    code, out, err = run(capsys, "info")
    assert (code, err) == (0, "")
    assert f"numpy         {np.__version__}" in out.splitlines()


def test_as_a_module(tmp_path):
    command = [sys.executable, "-m", "bitsparse", "info", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)["bitsparse"] == bs.__version__

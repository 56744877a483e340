"""Low-bit graph networks must equal plain NumPy bit for bit in every form of the graph, and be close to full precision with many bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DATA
from lowbit_networks import KINDS, logits, network, operand, random_graph
from scipy import sparse

import bitsparse as bs
from bitsparse import datasets, interop, nn
from bitsparse.nn.lowbit import steps

BITS = (1, 2, 3, 4, 8, 16)


def setting(kind, seed=0, n=70, widths=(33, 16, 16, 5), **how):
    rng = np.random.default_rng(seed)
    return (
        random_graph(n, rng),
        network(kind, list(widths), rng, **how),
        rng.normal(size=(n, widths[0])).astype(np.float32),
    )


@pytest.mark.parametrize("bits", [1, 2, 8, 16, [8, 4]])
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
def test_saved_networks_are_the_same_to_the_bit(kind: Any, bits: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    graph, x = sparse.csr_array(rng.random((40, 40)) < 0.2), rng.normal(size=(40, 10)).astype(np.float32)
    for activation in ("relu", "leaky_relu", "tanh", None):
        made = nn.random_network(kind, [10, 6, 3], seed=1, batch_norm=activation == "relu")
        first = replace(
            made.layers[0], updates=tuple(replace(u, activation=activation) for u in made.layers[0].updates)
        )
        for features in (x, nn.Features(np.abs(x))):
            if kind != "gcn" and features is not x:
                continue
            low = nn.quantize_network(nn.Network(kind, [first, made.layers[1]]), graph, features, bits)
            low.save(tmp_path / "low.npz")
            again = nn.load_lowbit(tmp_path / "low.npz")
            assert (repr(again), again.fingerprint(), again.name) == (repr(low), low.fingerprint(), low.name)
            assert np.array_equal(again(graph, features), low(graph, features))


def test_files_whose_parts_contradict_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "low.npz"
    graph, x = sparse.csr_array(np.eye(5)), np.arange(20.0).reshape(5, 4)
    nn.quantize_network(nn.random_network("gcn", [4, 3, 2]), graph, x, 4).save(path)
    with pytest.raises(bs.FileFormatError, match="load_lowbit reads networks on bits"):
        nn.load_network(path)
    with np.load(path) as file:
        whole = dict(file)
    text = json.loads(str(whole["network"]))
    steps = text["steps"]

    def refused(message: str, **changes: Any) -> None:
        np.savez(path, **(whole | changes))
        with pytest.raises(bs.FileFormatError, match=rf"^load_lowbit: .*low\.npz: .*{message}.*LowBitNetwork\.save"):
            nn.load_lowbit(path)

    def told(**changes: Any) -> dict[str, Any]:
        return {"network": np.array(json.dumps(text | changes))}

    def step(number: int, **changes: Any) -> dict[str, Any]:
        return told(steps=[one | (changes if i == number else {}) for i, one in enumerate(steps)])

    refused("kind", **told(kind="gat"))
    refused("normalisation", **told(normalisation="max"))
    refused("bits are", **told(bits=[4, 17]))
    refused("bits are", **told(widths=[4, 3]))
    refused("KeyError", **told(steps=[{}]))
    refused("TypeError", **told(steps=3))
    refused("0 steps give 4 columns", **told(steps=[]))
    refused("step 0 gives None", **step(0, gives=None))
    refused("step 3 gives 4", **step(3, gives=4))
    refused("activation", **step(0, activation="exp"))
    refused("reads 3 columns, but 2", **told(steps=[*steps[:3], steps[1] | {"gives": None}]))
    refused("sums codes of 5 bits", **step(1, sums=[3, 5]))
    refused("beside codes", **step(1, own=True, gives=5))
    refused("but the logits have 7", **told(widths=[4, 3, 7]))
    refused("NaN", **{"0.bias": np.full(3, np.nan, np.float32)})
    refused("shape", **{"0.bias": np.zeros(4, np.float32)})
    refused("above 0", **{"input.step": np.zeros(4, np.float32)})
    refused("words", **{"0.words": whole["0.words"][:1]})


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_equals_plain_numpy(kind, bits, host):
    graph, full, x = setting(kind)
    model = nn.quantize_network(full, graph, x, bits)
    want = logits(model, graph, x)
    for form in ("csr", "dense", "frdc", "tiled"):
        got = model(operand(graph, model, form), model.quantize(x))
        assert got.dtype == np.float32
        assert np.array_equal(got, want)


@pytest.mark.parametrize("bits", [2, 8])
@pytest.mark.parametrize("activation", ["leaky_relu", "tanh", None])
@pytest.mark.parametrize("kind", KINDS)
def test_activations(kind, activation, bits):
    graph, full, x = setting(kind, 1, activation=activation, batch_norm=True)
    model = nn.quantize_network(full, graph, x, bits)
    assert np.array_equal(model(operand(graph, model), model.quantize(x)), logits(model, graph, x))


@pytest.mark.parametrize(
    "how", [{"perceptron": True}, {"eps": 0.5}, {"eps": 0.5, "perceptron": True}, {"batch_norm": True}]
)
def test_kinds_of_gin(how):
    graph, full, x = setting("gin", 2, **how)
    assert nn.quantize_network(full, graph, x).self_loops == ("eps" not in how)
    for bits in (1, 4, [8, 3, 5]):
        model = nn.quantize_network(full, graph, x, bits)
        assert np.array_equal(model(operand(graph, model, "dense"), model.quantize(x)), logits(model, graph, x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("widths", [(1, 1), (128, 130, 3), (31, 2, 2, 2, 7)])
def test_depths_and_widths(kind, widths):
    graph, full, x = setting(kind, 3, widths=widths)
    bits = [(8, 4, 2, 3)[i % 4] for i in range(len(widths) - 1)]
    model = nn.quantize_network(full, graph, x, bits)
    assert model.bits == tuple(bits)
    assert np.array_equal(model(operand(graph, model), model.quantize(x)), logits(model, graph, x))


@pytest.mark.parametrize("kind", KINDS)
def test_error_falls_with_the_bits(kind):
    graph, full, x = setting(kind, 4, n=200, batch_norm=True)
    exact = full(graph, x)
    errors = []
    for bits in (2, 4, 8, 12, 16):
        model = nn.quantize_network(full, graph, x, bits)
        got = model(operand(graph, model), model.quantize(x))
        errors.append(np.linalg.norm(got - exact) / np.linalg.norm(exact - exact.mean(axis=0)))
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < 0.05
    assert errors[-1] < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_full_precision_is_the_definition(kind):
    graph, full, x = setting(kind, 5, eps=0.5 if kind == "gin" else 0.0, batch_norm=True)
    a, h = graph.toarray().astype(np.float64), x.astype(np.float64)
    loops = a + np.eye(len(a))
    root = np.diag(loops.sum(axis=1) ** -0.5)
    for layer in full.layers:
        dense = layer.updates[0]
        if kind == "gcn":
            h = root @ loops @ root @ h @ dense.weight
        elif kind == "sage":
            h = (a / np.maximum(a.sum(axis=1, keepdims=True), 1)) @ h @ dense.weight + h @ layer.own
        else:
            h = ((1 + layer.eps) * h + a @ h) @ dense.weight
        h = h + dense.bias
        if dense.batch_norm is not None:
            mean, var, weight, bias, eps = dense.batch_norm
            h = (h - mean) / np.sqrt(var + eps) * weight + bias
        h = np.maximum(h, 0) if dense.activation else h
    assert np.allclose(full(graph, x), h, atol=1e-4)
    assert np.allclose(full(graph, sparse.csr_array(x)), h, atol=1e-4)


def test_integer_features_count_one_plus_eps_times():
    graph, full, x = setting("gin", 5, eps=0.5)
    counts = np.rint(4 * x)
    for dtype in (np.int8, np.int64):
        for given in (counts.astype(dtype), sparse.csr_array(counts.astype(dtype))):
            assert np.allclose(full(graph, given), full(graph, counts), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_block_diagonal_parts_equal_the_parts(kind):
    graph, full, x = setting(kind, 6)
    model = nn.quantize_network(full, graph, x, 4)
    again, more = (
        random_graph(40, np.random.default_rng(7)),
        np.random.default_rng(8).normal(size=(40, 33)).astype(np.float32),
    )
    both = sparse.block_diag((graph, again), format="csr")
    got = model(operand(both, model), model.quantize(np.vstack((x, more))))
    for part, rows, place in ((graph, x, slice(None, 70)), (again, more, slice(70, None))):
        assert np.array_equal(got[place], model(operand(part, model), model.quantize(rows)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_reads_its_operands_afresh(kind):
    graph, full, x = setting(kind, 9)
    model = nn.quantize_network(full, graph, x, 4)
    codes = model.quantize(x)
    plan = model.plan(operand(graph, model), codes)
    out = np.full(plan.shape, np.nan, np.float32)
    assert plan(out) is out
    assert np.array_equal(out, logits(model, graph, x))
    other = np.random.default_rng(10).normal(size=x.shape).astype(np.float32)
    codes.words[...] = model.quantize(other).words
    assert np.array_equal(plan(), logits(model, graph, other))


def test_codes_of_features_do_not_depend_on_the_chunk():
    graph, full, x = setting("gin", 11)
    for bits in (1, 3, 8):
        model = nn.quantize_network(full, graph, x, bits)
        whole = model.quantize(x)
        assert (whole.scale, whole.offset, whole.axis, whole.layout) == (None, None, -1, model.input_layout)
        parts = np.concatenate([model.quantize(x[i : i + 13]).words for i in range(0, 70, 13)])
        assert np.array_equal(parts, whole.words)
        assert np.array_equal(model.quantize(sparse.csr_array(x)).words, whole.words)
        assert np.array_equal(model.quantize(x.astype(np.float64)).words, whole.words)
        assert model.quantize(x[:0]).shape == (0, 33)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_and_one_node(kind):
    _, full, x = setting(kind, 12)
    graph = random_graph(70, np.random.default_rng(12))
    model = nn.quantize_network(full, graph, x, 2)
    for n in (0, 1, 2):
        empty = sparse.csr_array((n, n), dtype=np.int8)
        got = model(operand(empty, model), model.quantize(x[:n]))
        assert np.array_equal(got, logits(model, empty, x[:n]))
        assert got.shape == (n, 5)


def test_constant_and_empty_features_are_harmless():
    graph, full, x = setting("gcn", 13)
    x[:, :20] = 0
    x[:, 20] = 7
    model = nn.quantize_network(full, graph, x, 8)
    exact, got = full(graph, x), model(operand(graph, model), model.quantize(x))
    assert np.linalg.norm(got - exact) < 0.05 * np.linalg.norm(exact - exact.mean(axis=0))


@pytest.mark.parametrize("kind", ["gcn", "sage"])  # GIN's sums vary with the number of neighbours
def test_values_far_from_zero_behind_a_relu_use_their_whole_grid(kind):
    rng = np.random.default_rng(0)
    graph, x = random_graph(100, rng), rng.normal(size=(100, 6)).astype(np.float32)
    dense = [
        nn.Dense(rng.normal(size=(6, 9)) / 100, bias=np.full(9, 10.0), activation="relu"),
        nn.Dense(rng.normal(size=(9, 3))),
    ]
    own = [rng.normal(size=part.weight.shape) / 100 if kind == "sage" else None for part in dense]
    full = nn.Network(kind, [nn.Layer([part], own=mine) for part, mine in zip(dense, own, strict=True)])
    model = nn.quantize_network(full, graph, x, 8)
    exact = full(graph, x)
    error = np.abs(model(operand(graph, model), model.quantize(x)) - exact)
    assert error.max() < 0.1 * exact.std(axis=0).max()


@pytest.mark.parametrize(("graph", "x"), [("few edges", 1.0), ("few edges", 1e-5), ("no edges", None)])
def test_columns_that_are_all_constant_leave_the_others_their_share_of_the_weights_grid(graph, x):
    """Weights of neighbours and own features share a grid: if all of either are constant, steps of 1 must not drown the others."""
    rng = np.random.default_rng(5)
    edges = np.zeros((24, 24), np.int8)
    if graph == "few edges":  # means of constant features vary if some nodes have no neighbours
        edges[[0, 1, 2, 3], [1, 0, 3, 2]] = 1
    features = rng.normal(size=(24, 4)) if x is None else np.full((24, 4), x)
    for seed in range(4):
        full = nn.random_network("sage", [4, 8, 3], seed=seed)
        exact = full(sparse.csr_array(edges), features)
        got = nn.quantize_network(full, sparse.csr_array(edges), features, 16)(sparse.csr_array(edges), features)
        assert np.abs(got - exact).max() < 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize(("nodes", "columns"), [(0, 5), (0, 0), (9, 0)])
def test_a_calibration_on_nothing_warns_of_nothing(nodes, columns, bits):
    empty = sparse.csr_array((nodes, nodes), dtype=np.int8)
    for kind in KINDS:
        full = nn.random_network(kind, [columns, 3, 2])
        x = np.zeros((nodes, columns), np.float32)
        model = nn.quantize_network(full, empty, x, bits)
        assert np.allclose(model(empty, x), full(empty, x))


def test_a_sample_of_a_larger_graph_is_enough():
    rng = np.random.default_rng(14)
    graph = sparse.random_array((4000, 4000), density=0.001, rng=rng, format="csr")
    graph = ((graph + graph.T) != 0).tocsr()
    x, full = rng.normal(size=(4000, 20)).astype(np.float32), nn.random_network("gcn", [20, 16, 4])
    model = nn.quantize_network(full, graph, x, 8, sample=500)
    exact, got = full(graph, x), model(operand(graph, model), model.quantize(x))
    assert np.linalg.norm(got - exact) < 0.15 * np.linalg.norm(exact)
    again = nn.quantize_network(full, graph, x, 8, sample=500)
    assert model.fingerprint() == again.fingerprint()
    assert model.fingerprint() != nn.quantize_network(full, graph, x, 8, sample=500, seed=1).fingerprint()


def test_bits_chosen_by_error():
    graph, full, x = setting("sage", 15)
    model = nn.quantize_network(full, graph, x, "choose")
    assert all(2 <= bits <= 8 for bits in model.bits)
    sums = full.sums(graph)
    first = full.run_layer(full.layers[0], sums, x)
    assert model.bits[0] == bs.choose_bits(first)


def test_names_and_sizes():
    graph, full, x = setting("gin", 16)
    model = nn.quantize_network(full, graph, x, [8, 4, 4])
    assert (model.name, model.features, model.classes) == ("gin-33-16-16-5-b8-4-4", 33, 5)
    assert repr(full) == "<Network gin 33 -> 16 -> 16 -> 5>"
    assert model.nbytes == nn.quantize_network(full, graph, 2 * x, [8, 4, 4]).nbytes > 0
    assert "70 nodes on cpu" in repr(model.plan(operand(graph, model), model.quantize(x)))


def test_what_is_refused():
    graph, full, x = setting("gcn", 17)
    with pytest.raises(ValueError, match="bits has 2 numbers for 3 layers"):
        nn.quantize_network(full, graph, x, [8, 8])
    with pytest.raises(ValueError, match="17"):
        nn.quantize_network(full, graph, x, 17)
    with pytest.raises(bs.ShapeError, match=r"\(69, 33\)"):
        nn.quantize_network(full, graph, x[:69])
    with pytest.raises(bs.DTypeError, match="load_state_dict"):
        nn.quantize_network(object(), graph, x)
    x[3, 4] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        nn.quantize_network(full, graph, x)
    x[3, 4] = 0
    model = nn.quantize_network(full, graph, x, 4)
    with pytest.raises(bs.ShapeError, match=r"\(n, 33\)"):
        model.quantize(x[:, :5])
    codes = model.quantize(x)
    with pytest.raises(bs.ShapeError, match="pass network"):
        model.plan(operand(graph, model), codes[:30])
    with pytest.raises(bs.DTypeError, match="BitTensor"):
        model.plan(operand(graph, model), x)
    other = nn.quantize_network(setting("sage", 17)[1], graph, x, 4)
    with pytest.raises(ValueError, match="normalisation='mean'"):
        model.plan(operand(graph, other), codes)
    with pytest.raises(bs.ShapeError, match="out"):
        model.plan(operand(graph, model), codes)(np.empty((70, 4), np.float32))


def test_networks_that_do_not_fit_are_refused():
    one, two = nn.Dense(np.ones((3, 2))), nn.Dense(np.ones((4, 2)))
    with pytest.raises(bs.ShapeError, match="layer 0 gives 2 features but layer 1 takes 4"):
        nn.Network("gcn", [nn.Layer([one]), nn.Layer([two])])
    with pytest.raises(bs.ShapeError, match="update 0 gives 2 features but update 1 takes 4"):
        nn.Layer([one, two])
    with pytest.raises(ValueError, match="a gcn layer has one"):
        nn.Network("gcn", [nn.Layer([one, nn.Dense(np.ones((2, 2)))])])
    with pytest.raises(ValueError, match="lacks weights `own`"):
        nn.Network("sage", [nn.Layer([one])])
    with pytest.raises(ValueError, match="goes with kind 'gin'"):
        nn.Network("gcn", [nn.Layer([one], eps=0.5)])
    with pytest.raises(ValueError, match="kind"):
        nn.Network("gat", [nn.Layer([one])])
    with pytest.raises(bs.ShapeError, match=r"bias has shape \(3,\)"):
        nn.Dense(np.ones((3, 2)), np.ones(3))
    with pytest.raises(ValueError, match="weight"):
        nn.Dense(np.full((3, 2), np.inf))
    with pytest.raises(bs.DTypeError, match=r"scipy\.sparse"):
        nn.Network("gcn", [nn.Layer([one])])(np.eye(3), np.ones((3, 3)))


def test_bits_by_measuring():
    rng = np.random.default_rng(18)
    labels = np.repeat([0, 1, 2], 40)
    graph = sparse.csr_array(((labels[:, None] == labels) & (rng.random((120, 120)) < 0.2)).astype(np.int8))
    x = (np.eye(3)[labels] + 0.5 * rng.normal(size=(120, 3))).astype(np.float32)
    full = nn.Network("gcn", [nn.Layer([nn.Dense(np.eye(3), activation="relu")]), nn.Layer([nn.Dense(np.eye(3))])])
    tuned = nn.tune_bits(full, graph, x, labels, labels >= 0, tolerance=0.02)
    assert tuned.bits == tuned.model.bits
    assert tuned.accuracy == tuned.tried[tuned.bits] >= tuned.reference - 0.02
    assert sum(tuned.bits) < 16
    assert nn.tune_bits(full, graph, x, labels, labels >= 0, candidates=[3]).bits == (3, 3)
    for wrong, match in (
        ({"tolerance": 2}, "tolerance"),
        ({"candidates": []}, "candidates"),
        ({"candidates": [17]}, "17"),
    ):
        with pytest.raises(ValueError, match=match):
            nn.tune_bits(full, graph, x, labels, labels >= 0, **wrong)
    with pytest.raises(bs.ShapeError, match="mask"):
        nn.tune_bits(full, graph, x, labels, labels[1:] >= 0)
    with pytest.raises(ValueError, match="select at least one"):
        nn.tune_bits(full, graph, x, labels, labels < 0)


def points(full, data, x, bits, sample=8192):
    """Return the accuracy in per cent, in full precision and in low bits."""
    model = nn.quantize_network(full, data.adjacency, x, bits, sample=sample)
    found = full(data.adjacency, x), model(operand(data.adjacency, model), model.quantize(x))
    return [100 * float((y.argmax(axis=1) == data.targets)[data.test_mask].mean()) for y in found]


@pytest.mark.cora
def test_accuracy_on_cora():
    """A GCN with Kipf and Welling's recipe must lose at most half a point at 8 bits and two points at 4, with three seeds."""
    data = datasets.read(DATA / "cora.npz")
    graph, features = nn.Graph(data.adjacency), nn.Features(data.x)
    x, lost = features.csr.toarray(), {8: [], 4: []}
    for seed in range(3):
        full = nn.train(graph, features, data.targets, data.train_mask, seed=seed)
        for bits, losses in lost.items():
            exact, got = points(full, data, x, bits)
            assert exact > 79
            losses.append(exact - got)
    assert max(lost[8]) <= 0.5
    assert max(lost[4]) <= 2


@pytest.mark.pubmed
def test_accuracy_on_pubmed():
    """GCNs 3 x 16 trained with PyTorch, with three seeds, must lose at most half a point at 8 bits and two points at 4."""
    data = datasets.read(DATA / "pubmed.npz")
    x = nn.Features(data.x).csr.toarray()
    for path in sorted((Path(__file__).resolve().parent / "data").glob("gcn-pubmed-*.npz")):
        full = nn.load_network(path)
        assert full.widths == (500, 16, 16, 3)
        exact, got = points(full, data, x, 8)
        assert exact > 76
        assert exact - got <= 0.5
        assert exact - points(full, data, x, 4, sample=3000)[1] <= 2


@pytest.mark.parametrize("what", ["offset", "epilogue", "grid"])
def test_threads_that_ask_at_once_get_the_same(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent threads must get the same object: plans compare placed operands by identity, as nothing can be read while recording."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 6)).astype(np.float32)
    low = nn.quantize_network(network("gcn", (6, 5, 3), rng), random_graph(20, rng), x, 4)
    chain: Any = next(step.chain for step in low.steps if step.chain.bits)
    ask: Any = {
        "offset": lambda: low.placed("cpu", 0),
        "epilogue": chain.epilogue,
        "grid": lambda: chain.epilogue()._stored_grid("cpu", 2),
    }[what]
    place: Any = (steps, "Epilogue") if what == "epilogue" else (interop, "move")
    real, first = getattr(*place), []

    def another_thread_comes_between(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(*place, real)
        first.append(ask())
        return real(*arguments, **options)

    if what == "grid":
        chain.epilogue()
    monkeypatch.setattr(*place, another_thread_comes_between)
    assert ask() is first[0]

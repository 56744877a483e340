"""Binary networks: all mixtures of precisions agree with NumPy; plans, files and refusals; Bi-GCN's accuracy on Cora."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from binary_networks import expected, gcn, linear, random_graph, sage, saint
from conftest import DATA

import bitsparse as bs
from bitsparse import datasets, nn
from bitsparse.nn.binary import variants as binary_variants

TRAINED = sorted((Path(__file__).resolve().parent / "data").glob("bigcn-cora-*.npz"))


def networks(rng: np.random.Generator) -> dict[str, nn.BinaryModel]:
    return {
        "gcn": gcn([33, 40, 7], rng),
        "deep gcn": gcn([33, 20, 31, 5], rng),
        "sage": sage([33, 24, 5], rng),
        "saint": saint([33, 20, 20], 5, rng),
        "dense saint": saint([33, 20, 24], 5, rng, dense=True),
    }


def close(got: np.ndarray, want: np.ndarray) -> None:
    """Assert float64's logits up to rounding. A sign flipped by rounding would fail: it changes a sum by a whole weight or more."""
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(want).max())))


# ---- what is computed
@pytest.mark.parametrize("name", ["gcn", "deep gcn", "sage", "saint", "dense saint"])
def test_every_choice_of_letters(name: str) -> None:
    rng = np.random.default_rng(4)
    graph, x = random_graph(60, rng), rng.normal(size=(60, 33)).astype(np.float32)
    model = networks(rng)[name]
    choices = model.candidates()
    assert len(choices) == {"gcn": 18, "deep gcn": 108, "sage": 32, "saint": 32, "dense saint": 16}[name]
    assert len({tuple(each) for each in choices}) == len(choices)
    operand = nn.Graph(graph) if "gcn" in name else bs.FRDC(graph)
    for settings in choices[:: 5 if name == "deep gcn" else 1]:
        chosen = model.with_settings(settings)
        assert chosen.settings == settings
        close(chosen(operand, x), expected(chosen, graph, x))


@pytest.mark.parametrize("way", ["full", "binary"])
def test_named_settings(way: str) -> None:
    rng = np.random.default_rng(1)
    graph, x = random_graph(50, rng), rng.normal(size=(50, 33)).astype(np.float32)
    names = {"full": {"gcn": "FBF+FBF", "sage": "FBF+FBF+FFF"}, "binary": {"gcn": "FBB+BBB", "sage": "FBB+BBF+FFB"}}
    for name, model in networks(rng).items():
        chosen = model.with_settings(way)
        if name in ("gcn", "sage"):
            assert chosen.settings[0].variant == names[way][name]
        close(chosen(nn.Graph(graph) if "gcn" in name else bs.FRDC(graph), x), expected(chosen, graph, x))
    assert [each.scaled for each in gcn([4, 4, 2], rng).settings] == [True, True]
    assert [str(each) for each in gcn([4, 4, 4, 2], rng, "binary").settings] == ["FBB+BBB", "BBB+BBB", "BBF+FBF"]
    assert nn.BinaryGCN([linear(3, 2, rng)], "binary").settings[0].variant == "FBF+FBF"


def test_forms_of_a_graph_and_kinds_of_features() -> None:
    rng = np.random.default_rng(2)
    graph, x = random_graph(45, rng), rng.normal(size=(45, 33)).astype(np.float32)
    model, own = gcn([33, 40, 7], rng), sage([33, 24, 5], rng)
    want, means = model(graph, x), own(graph, x)
    close(want, expected(model, graph, x))
    close(means, expected(own, graph, x))
    propagation = nn.Graph(graph)
    scaled = propagation.packed("frdc").with_scales(propagation.row_scale, propagation.col_scale)
    tiled = bs.TCTiledCSR(propagation.pattern.astype(bool), pattern=True)
    for same in (propagation, scaled, tiled.with_scales(propagation.row_scale, propagation.col_scale)):
        assert np.array_equal(model(same, x), want)
    data = datasets.GraphData(indptr=graph.indptr, indices=graph.indices)
    assert np.array_equal(model(data, x), want)
    assert np.array_equal(own(data, x), means)
    # Packed features have the same signs and magnitudes as x.
    packed = model.packed(x)
    assert packed.shape == x.shape and packed.scale.shape == (45, 1)
    assert np.array_equal(model(propagation, packed), want)
    half = x.astype(np.float16)
    close(model(propagation, half), expected(model, graph, half))
    apart = np.asfortranarray(x)
    assert np.array_equal(model(propagation, apart), want)


def test_rows_are_standardized_in_front_of_every_sign(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    graph, x = random_graph(40, rng), (rng.normal(size=(40, 33)) + 2).astype(np.float32)
    for made in (gcn([33, 20, 5], rng), sage([33, 20, 5], rng), saint([33, 20, 20], 5, rng)):
        operand = nn.Graph(graph) if isinstance(made, nn.BinaryGCN) else bs.FRDC(graph)
        given = [made.layers, made.head] if isinstance(made, nn.BinarySAINT) else [made.layers]
        for way in ("full", "binary"):
            model = type(made)(*given, way, input_norm="rows")
            close(model(operand, x), expected(model, graph, x))
            assert np.array_equal(model(operand, model.packed(x)), model(operand, x))
            model.save(tmp_path / "model.npz")
            assert np.array_equal(nn.load_binary(tmp_path / "model.npz")(operand, x), model(operand, x))
    with pytest.raises(ValueError, match="input_norm must be a BatchNorm or 'rows', got 'columns'"):
        nn.BinaryGCN([linear(3, 2, rng)], input_norm="columns")


def test_nodes_without_neighbours_and_empty_graphs() -> None:
    rng = np.random.default_rng(3)
    for n in (0, 1, 5):
        graph, x = sp.csr_array((n, n), dtype=bool), rng.normal(size=(n, 33)).astype(np.float32)
        for way in ("full", "binary"):
            for model in (gcn([33, 8, 3], rng, way), sage([33, 8, 3], rng, way), saint([33, 8, 8], 3, rng, way)):
                got = model(graph, x)
                assert got.shape == (n, 3)
                close(got, expected(model, graph, x)) if n else None


def test_high_level_functions() -> None:
    rng = np.random.default_rng(11)
    graph, x = random_graph(40, rng), rng.normal(size=(40, 33)).astype(np.float32)
    one, two = linear(33, 40, rng), linear(33, 40, rng)
    operand, signs = bs.FRDC(graph), bs.pack_bits(x, encoding="bipolar")
    for variant in binary_variants.CHAIN_VARIANTS:
        given = x if variant[0] == "F" else signs
        got = nn.bmm_bspmm(operand, given, one, variant)
        messages = bs.bmm(
            given,
            one.signs,
            variant[:3],
            epilogue=bs.Epilogue(col_scale=one.scale, bias=one.bias),
            row_absmean=variant[0] == "F",
        )
        want = bs.bspmm(operand, messages, variant[4:])
        assert np.array_equal(*(each.toarray() if variant[-1] == "B" else each for each in (got, want)))
    for variant in binary_variants.ADD_VARIANTS:
        given = x if variant[0] == "F" else signs
        for reduce in ("sum", "mean"):
            got = nn.bmm_bspmm_add(operand, given, one, two, variant, reduce=reduce)
            parts = []
            for part, gives in ((two, variant[2]), (one, variant[6])):
                finish = bs.Epilogue(col_scale=part.scale, bias=part.bias)
                parts.append(
                    bs.bmm(given, part.signs, variant[:2] + gives, epilogue=finish, row_absmean=variant[0] == "F")
                )
            total = bs.bspmm(operand, parts[0], variant[4:7], reduce=reduce)
            want = bs.add(total.astype(np.float32) if variant[6] == "F" else total, parts[1], variant[8:])
            assert np.array_equal(*(each.toarray() if variant[-1] == "B" else each for each in (got, want))), variant
    with pytest.raises(bs.DTypeError, match=r"variant 'FBB.BBB' reads F, but x is a BitTensor"):
        nn.bmm_bspmm(operand, signs, one)
    with pytest.raises(ValueError, match="own has shape"):
        nn.bmm_bspmm_add(operand, x, one, linear(33, 3, rng))


# ---- plans
def test_a_plan_holds_everything() -> None:
    rng = np.random.default_rng(5)
    graph = random_graph(50, rng)
    for name, model in networks(rng).items():
        for way in ("full", "binary"):
            chosen = model.with_settings(way)
            operand = nn.Graph(graph) if "gcn" in name else bs.FRDC(graph)
            x = rng.normal(size=(2, 50, 33)).astype(np.float32)
            plan = chosen.plan(operand, x[0])
            assert plan.shape == (50, chosen.outputs) and plan.device == "cpu"
            for each in (*x, x[0]):
                out = np.full(plan.shape, np.nan, np.float32)
                assert plan(each, out=out) is out
                assert np.array_equal(out, plan(each))
                close(out, expected(chosen, graph, each))
            assert plan.nbytes < plan.peak_nbytes
            assert name.split()[-1][:3] in repr(plan).lower() or "BinaryS" in repr(plan)
    # A plan needs fewer bytes if less of the network is in full precision.
    model = gcn([33, 40, 7], rng)
    assert model.with_settings("binary").plan(graph, x[0]).nbytes < model.plan(graph, x[0]).nbytes


def test_a_kept_plan_serves_the_same_graph() -> None:
    rng = np.random.default_rng(6)
    one, two = (nn.Graph(random_graph(50, rng)) for _ in range(2))
    x, model = rng.normal(size=(50, 33)).astype(np.float32), gcn([33, 40, 7], rng)
    first = model(one, x)
    kept = model._kept
    assert np.array_equal(model(one, x + 0), first) and model._kept is kept
    assert not np.array_equal(model(two, x), first)
    assert np.array_equal(model(one, x.astype(np.float64)), model(one, x.astype(np.float64)))
    packed, other = model.packed(x), model.packed(2 * x)
    assert not np.allclose(model(one, packed), model(one, other))


@pytest.mark.torch
def test_results_are_of_the_callers_library() -> None:
    import torch

    rng = np.random.default_rng(13)
    graph, x = nn.Graph(random_graph(40, rng)), rng.normal(size=(40, 33)).astype(np.float32)
    model = gcn([33, 20, 5], rng, "binary")
    plan, tensor = model.plan(graph, torch.from_numpy(x)), torch.from_numpy(x)
    out = torch.empty(40, 5)
    for got in (model(graph, tensor), plan(tensor), plan(tensor, out=out), model(graph, model.packed(tensor))):
        assert isinstance(got, torch.Tensor)
        assert np.array_equal(got.numpy(), model(graph, x))


# ---- files
def test_models_in_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    graph, x = random_graph(40, rng), rng.normal(size=(40, 33)).astype(np.float32)
    for name, model in networks(rng).items():
        chosen = model.with_settings("binary")
        chosen.save(tmp_path / "model.npz")
        again = nn.load_binary(tmp_path / "model.npz")
        assert type(again) is type(chosen) and again.settings == chosen.settings, name
        operand = nn.Graph(graph) if "gcn" in name else bs.FRDC(graph)
        assert np.array_equal(again(operand, x), chosen(operand, x))
        assert again.nbytes == chosen.nbytes
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match=r"load_binary: .*other\.npz is not a binary model"):
        nn.load_binary(tmp_path / "other.npz")


# ---- refusals
def test_what_is_refused() -> None:
    rng = np.random.default_rng(8)
    graph, x = nn.Graph(random_graph(40, rng)), rng.normal(size=(40, 33)).astype(np.float32)
    model, own = gcn([33, 40, 7], rng), sage([33, 24, 5], rng)
    one, two = linear(33, 8, rng), linear(9, 3, rng)
    plan = model.plan(graph, x)
    for error, match, call in [
        (bs.DTypeError, "layers must be BinaryLinear", lambda: nn.BinaryGCN([])),
        (bs.ShapeError, "layer 0 gives 8 features but layer 1 takes 9", lambda: nn.BinaryGCN([one, two])),
        (
            ValueError,
            "'full', 'binary' or one variant for each of the 2 layers, got 'fast'",
            lambda: model.with_settings("fast"),
        ),
        (ValueError, r"one variant for each of the 2 layers", lambda: model.with_settings(["FBF+FBF"])),
        (ValueError, r"variants\[0\] must be one of FBF\+FBF", lambda: model.with_settings(["FBF", "FBF+FBF"])),
        (ValueError, r"layer 0 \(FBB\+BBB\) gives B", lambda: model.with_settings(["FBB+BBB", "FBF+FBF"])),
        (ValueError, "last layer gives 'B'", lambda: model.with_settings(["FBF+FBF", "FBB+BBB"])),
        (ValueError, "messages are one bit", lambda: model.with_settings([("FBB+BBB", True), "BBF+FBF"])),
        (ValueError, "has no scales", lambda: own.with_settings([("FBF+FBF+FFF", True)] * 2)),
        (ValueError, "last layer gives 'B'", lambda: own.with_settings(["FBF+FBF+FFF", "FBF+FBF+FFB"])),
        (ValueError, "layers must be pairs", lambda: nn.BinarySAGE([(one,)])),
        (bs.ShapeError, r"shape \(33, 8\), but those of the neighbours \(9, 3\)", lambda: nn.BinarySAGE([(one, two)])),
        (bs.ShapeError, "layers together are 8, but the head takes 9", lambda: nn.BinarySAINT([(one, one)], two)),
        (bs.DTypeError, "head must be a BinaryLinear", lambda: nn.BinarySAINT([(one, one)], 3)),
        (
            bs.ShapeError,
            r"head bias has shape \(2,\), but one value for each output makes \(3,\)",
            lambda: nn.BinarySAINT([(one, one)], (np.ones((8, 3)), np.ones(2))),
        ),
        (ValueError, "one letter from all", lambda: saint([33, 8], 3, rng, ["FBB+BBB+BBB"], dense=True)),
        (
            bs.ShapeError,
            r"x has shape \(40, 33\), but the first layer reads \(40, 9\)",
            lambda: nn.BinaryGCN([two])(graph, x),
        ),
        (bs.ShapeError, r"x has shape \(39, 33\), but the graph has 40 nodes", lambda: model(graph, x[1:])),
        (bs.ShapeError, "features are", lambda: model(graph, x[0])),
        (bs.DTypeError, "graph must be a Graph", lambda: model([[1, 0]], x)),
        (bs.DTypeError, "value per edge", lambda: own(bs.TCTiledCSR(graph.matrix), x)),
        (bs.ShapeError, "as many rows as columns", lambda: own(bs.FRDC((40, 41)), x)),
        (bs.DTypeError, "x holds float64, but the plan is for float32", lambda: plan(x.astype(np.float64))),
        (bs.DTypeError, "x holds bits, but the plan is for float32", lambda: plan(model.packed(x))),
        (bs.ShapeError, r"x has shape \(39, 33\)", lambda: plan(x[1:])),
        (bs.ShapeError, "out", lambda: plan(x, out=np.zeros((40, 6), np.float32))),
        (bs.DTypeError, "out", lambda: plan(x, out=np.zeros((40, 7)))),
        (ValueError, "x has no scale", lambda: model.plan(graph, model.packed(x))(model.packed(x).with_affine())),
        (bs.DTypeError, "one bipolar bit", lambda: nn.BinaryLinear(bs.pack_bits(np.ones((2, 2), int)))),
        (ValueError, "scale must be positive", lambda: nn.BinaryLinear(one.signs, -np.ones(8))),
        (
            bs.ShapeError,
            r"bias has shape \(9,\), but one value for each output makes \(8,\)",
            lambda: nn.BinaryLinear(one.signs, None, np.ones(9)),
        ),
        (bs.ShapeError, r"weights has shape \(3,\)", lambda: nn.BinaryLinear.from_weights(np.ones(3))),
        (ValueError, "weights", lambda: nn.BinaryLinear.from_weights(np.full((2, 2), np.nan))),
    ]:
        with pytest.raises(error, match=match):
            call()


def test_letters_that_meet() -> None:
    assert len(binary_variants.CHAIN_VARIANTS) == 8 and len(binary_variants.ADD_VARIANTS) == 16
    setting = nn.Setting("FBB+BBF+FFB")
    assert (setting.reads, setting.message, setting.aggregate, setting.gives) == ("F", "B", "F", "B")


# ---- accuracy
def reproduced() -> dict[str, list[float]]:
    assert DATA is not None
    data = datasets.read(DATA / "cora.npz")
    graph, x, test = nn.Graph(data.adjacency), data.x.toarray().astype(np.float32), data.test_mask
    found: dict[str, list[float]] = {"full": [], "binary": []}
    for path in TRAINED:
        model = nn.load_binary(path)
        for way, accuracies in found.items():
            classes = model.with_settings(way)(graph, x).argmax(axis=1)
            accuracies.append(100 * float((classes == data.targets)[test].mean()))
    return found


#: PyTorch's accuracies for the same weights, in per cent of the 1000 test nodes (recipe of examples/train_bigcn.py, seeds 0 to 5).
PYTORCH = {"full": [80.8, 79.9, 80.8, 81.6, 81.4, 81.4], "binary": [82.4, 79.3, 80.4, 80.8, 80.2, 80.7]}


def test_trained_weights_are_small_and_whole() -> None:
    assert len(TRAINED) == 6
    assert all(path.stat().st_size < 100_000 for path in TRAINED)
    model = nn.load_binary(TRAINED[0])
    assert (model.inputs, model.outputs, model.layers[0].shape) == (1433, 7, (1433, 64))


@pytest.mark.cora
def test_bigcn_on_cora_is_as_accurate_as_in_pytorch() -> None:
    found = reproduced()
    for way, accuracies in found.items():
        np.testing.assert_allclose(accuracies, PYTORCH[way], atol=0.21)  # two nodes
    assert abs(np.mean(found["full"]) - 81) < 1
    assert abs(np.mean(found["binary"]) - 80.5) < 1


# ---- several threads, and copies
def test_threads_that_share_a_model_or_its_plan_get_their_own_logits() -> None:
    rng = np.random.default_rng(8)
    graphs = [bs.FRDC(random_graph(2000, rng)) for _ in range(2)]
    xs = [rng.normal(size=(2000, 33)).astype(np.float32) for _ in range(4)]
    model = gcn([33, 40, 7], rng)
    plan = model.plan(graphs[0], xs[0])
    wanted = {(i, j): model(graph, x) for i, graph in enumerate(graphs) for j, x in enumerate(xs)}

    def call(number: int) -> bool:
        i, j = number // 2 % 2, number % 4
        same = bool((model(graphs[i], xs[j]) == wanted[i, j]).all())
        return same and bool((plan(xs[j]) == wanted[0, j]).all())

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(120)))


def test_a_plan_that_another_thread_keeps_meanwhile_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    graph, other = (bs.FRDC(random_graph(60, rng)) for _ in range(2))
    x = rng.normal(size=(60, 33)).astype(np.float32)
    model = gcn([33, 40, 7], rng)
    elsewhere, wanted = model.plan(other, x), model(graph, x)

    def fits(plan: nn.BinaryPlan, x: np.ndarray) -> bool:
        model._kept = other, elsewhere
        return True

    monkeypatch.setattr(nn.BinaryPlan, "fits", fits)
    assert np.array_equal(model(graph, x), wanted)


@pytest.mark.parametrize("copied", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy, copy.copy])
def test_models_are_copied_after_they_were_used(copied) -> None:
    rng = np.random.default_rng(10)
    graph, x = bs.FRDC(random_graph(60, rng)), rng.normal(size=(60, 33)).astype(np.float32)
    for model in networks(rng).values():
        wanted = model(graph, x)
        assert np.array_equal(copied(model)(graph, x), wanted)

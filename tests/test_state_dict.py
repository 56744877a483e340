"""Networks from the names and shapes that PyTorch Geometric gives its parameters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowbit_networks import KINDS, network, random_graph

from bitsparse import DTypeError, nn

RNG = np.random.default_rng(0)


def arrays(**shapes):
    return {name.replace("__", "."): RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def gcn(at, inputs, outputs):
    """Shapes of a GCNConv."""
    return {f"{at}.lin.weight".replace(".", "__"): (outputs, inputs), f"{at}.bias".replace(".", "__"): outputs}


def norm(at, n):
    state = {
        f"{at}.{part}": RNG.uniform(0.5, 1.5, n).astype(np.float32)
        for part in ("weight", "bias", "running_mean", "running_var")
    }
    return state | {f"{at}.num_batches_tracked": np.array(7)}


def test_gcn():
    state = arrays(conv1__bias=4, conv1__lin__weight=(4, 3), conv2__bias=2, conv2__lin__weight=(2, 4))
    found = nn.load_state_dict(state)
    assert (found.kind, found.widths) == ("gcn", (3, 4, 2))
    first, last = (layer.updates[0] for layer in found.layers)
    assert np.array_equal(first.weight, state["conv1.lin.weight"].T)
    assert np.array_equal(last.bias, state["conv2.bias"])
    assert (first.activation, last.activation) == ("relu", None)


def test_sage_with_norms_and_ten_layers():
    state = {}
    for i in range(11):
        state |= arrays(
            **{
                f"convs__{i}__lin_l__weight": (5, 5),
                f"convs__{i}__lin_l__bias": 5,
                f"convs__{i}__lin_r__weight": (5, 5),
            }
        )
    for i in range(10):
        state |= norm(f"norms.{i}.module", 5)
    found = nn.load_state_dict(dict(sorted(state.items())))
    assert (found.kind, len(found.layers)) == ("sage", 11)
    for i, layer in enumerate(found.layers):
        assert np.array_equal(layer.own, state[f"convs.{i}.lin_r.weight"].T)
        if i < 10:
            assert np.array_equal(layer.updates[0].batch_norm.mean, state[f"norms.{i}.module.running_mean"])
    assert found.layers[10].updates[0].batch_norm is None


@pytest.mark.parametrize("mlp", [False, True])
def test_gin_with_perceptrons(mlp):
    one, two, between = ("nn.lins.0", "nn.lins.1", "nn.norms.0.module") if mlp else ("nn.0", "nn.3", "nn.1")
    state = arrays(**{f"conv.{one}.weight".replace(".", "__"): (8, 3), f"conv.{two}.weight".replace(".", "__"): (2, 8)})
    state |= arrays(**{f"conv.{one}.bias".replace(".", "__"): 8, f"conv.{two}.bias".replace(".", "__"): 2}) | norm(
        f"conv.{between}", 8
    )
    state["conv.eps"] = np.array([0.25], np.float32)
    found = nn.load_state_dict(state, activation="tanh")
    (layer,) = found.layers
    assert (found.kind, found.self_loops, layer.eps, len(layer.updates)) == ("gin", False, 0.25, 2)
    assert [update.activation for update in layer.updates] == ["tanh", None]
    assert np.array_equal(layer.updates[0].batch_norm.var, state[f"conv.{between}.running_var"])
    assert layer.updates[1].batch_norm is None


def test_gin_of_one_linear_layer():
    found = nn.load_state_dict(arrays(a1__nn__weight=(6, 3), a1__nn__bias=6, a2__nn__weight=(2, 6), a2__nn__bias=2))
    assert (found.kind, found.widths, found.self_loops) == ("gin", (3, 6, 2), True)


@pytest.mark.parametrize("kind", KINDS)
def test_files(kind, tmp_path):
    rng = np.random.default_rng(1)
    graph, x = random_graph(30, rng), rng.normal(size=(30, 6)).astype(np.float32)
    for i, how in enumerate(
        ({}, {"batch_norm": True}, {"activation": "tanh"}, {"perceptron": kind == "gin", "eps": 0.5 * (kind == "gin")})
    ):
        made = network(kind, [6, 5, 5, 3], rng, **how)
        made.save(tmp_path / f"{i}.npz")
        again = nn.load_network(tmp_path / f"{i}.npz")
        assert repr(again) == repr(made)
        assert np.array_equal(again(graph, x), made(graph, x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normed", [(1,), (2,), (0, 2)])
def test_norms_stay_at_their_layers(kind, normed, tmp_path):
    rng = np.random.default_rng(2)
    graph, x = random_graph(30, rng), rng.normal(size=(30, 5)).astype(np.float32)
    with_norms, plain = (network(kind, [5, 5, 5, 5], np.random.default_rng(3), batch_norm=on) for on in (True, False))
    chosen = [(with_norms if i in normed else plain).layers[i] for i in range(3)]
    made = nn.Network(kind, chosen)
    made.save(tmp_path / "norms.npz")
    again = nn.load_network(tmp_path / "norms.npz")
    assert np.array_equal(again(graph, x), made(graph, x))
    for before, after in zip(made.layers, again.layers, strict=True):
        for ours, theirs in zip(before.updates[-1].norm, after.updates[-1].norm, strict=True):
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("weighted", [(True, False), (False, False)])
def test_files_tell_which_layers_read_weights(weighted, tmp_path):
    usual = nn.random_network("gcn", [3, 4, 2]).layers
    how = [nn.Neighbours("sum", gcn_norm=True, self_loop=1.0, weighted=one) for one in weighted]
    made = nn.Network("gcn", [nn.Layer(layer.updates, neighbours=one) for layer, one in zip(usual, how, strict=True)])
    made.save(tmp_path / "gcn.npz")
    assert [layer.neighbours for layer in nn.load_network(tmp_path / "gcn.npz").layers] == how


def test_what_no_file_holds_is_refused(tmp_path):
    layer = nn.Layer([nn.Dense(np.ones((2, 2)), activation="elu")], own=np.ones((2, 2)))
    for made, said in (
        (nn.Network("sage", [layer]), "layer 0 ends in elu"),
        (nn.Network("mixed", [nn.Layer([nn.Dense(np.ones((2, 2)))], kind="dense")]), "without neighbours"),
    ):
        with pytest.raises(ValueError, match=rf"Network\.save: .*{said}.*, which no file holds"):
            made.save(tmp_path / "none.npz")
        assert not (tmp_path / "none.npz").exists()


def test_files_that_are_none(tmp_path):
    array, empty, cut, text = (tmp_path / name for name in ("a.npy", "e.npz", "c.npz", "t.npz"))
    np.save(array, np.ones(3))
    empty.write_bytes(b"")
    nn.random_network("gin", [8, 64, 2]).save(cut)
    cut.write_bytes(cut.read_bytes()[:-40])
    text.write_text("weights")
    for path in (array, empty, cut, text):
        with pytest.raises(ValueError, match=r"load_network: .* is no \.npz of arrays .*; write it with Network\.save"):
            nn.load_network(path)
    with pytest.raises(FileNotFoundError):
        nn.load_network(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("state", "match"),
    [
        (arrays(conv__lin__weight=(4, 3), bn__running_mean=(4,)), "both running statistics are needed"),
        (arrays(a__weight=(3, 3)), "belongs to a GCNConv"),
        ({}, "no names"),
        (arrays(conv__lin__weight=(3, 3), head__weight=(2, 3)), "head.weight"),
        (arrays(conv__lin_l__weight=(3, 3)), "no lin_r.weight"),
        (arrays(conv__nn__0__weight=(3, 3, 3)), "neither a linear"),
        (arrays(conv__lin__weight=(4, 3)) | norm("a", 4) | norm("b", 4), "2 batch norms outside of 1 layers"),
        (arrays(**gcn("convs.0", 3, 4), **gcn("conv_last", 4, 2)), "'convs.0', 'conv_last', are no sequence"),
        (arrays(**gcn("a", 3, 4), **gcn("b", 4, 2)), "are no sequence"),
        (arrays(**gcn("a.0.b.0", 3, 4), **gcn("a.1.b.1", 4, 2)), "are no sequence"),
        (arrays(**gcn("convs.0", 3, 4), lin__weight=(2, 4)), "'convs.0', '', are no sequence"),
        (arrays(lin__weight=(2, 4)), "may be a GCNConv without bias or a linear layer"),
        (arrays(mylin__weight=(2, 4)), "belongs to a GCNConv"),
        (arrays(cnn__weight=(2, 4)), "belongs to a GCNConv"),
        (
            arrays(**gcn("conv", 3, 4), conv__att_src=(1, 1, 4), conv__att_dst=(1, 1, 4)),
            "conv.att_dst, conv.att_src, .* attention",
        ),
        (arrays(c__nn__first__weight=(4, 3), c__nn__second__weight=(2, 4)), "'nn.first', 'nn.second', are no sequence"),
        (
            arrays(**gcn("conv1", 3, 4), **gcn("conv2", 4, 4)) | norm("norms.0", 4),
            "not known behind which layer .* 'norms.0'",
        ),
        (arrays(**gcn("conv1", 3, 4), **gcn("conv2", 4, 4)) | norm("bn", 4), "not known behind which layer .* 'bn'"),
        (
            arrays(**gcn("conv1", 3, 4), **gcn("conv2", 4, 4)) | norm("bn", 4) | norm("bn1", 4),
            "'bn', 'bn1', are no sequence",
        ),
        (arrays(**gcn("conv", 3, 4)) | norm("bn", 4) | {"bn.scale": np.ones(4)}, "no gcn layer has bn.scale"),
        (arrays(**gcn("conv", 3, 4)) | {"other.num_batches_tracked": np.array(3)}, "other.num_batches_tracked"),
        (
            arrays(s__lin_l__weight=(3, 3), s__lin_r__weight=(3, 3), s__lin__weight=(3, 3)),
            "no sage layer has s.lin.weight",
        ),
    ],
)
def test_what_is_not_understood(state, match):
    with pytest.raises(ValueError, match=match):
        nn.load_state_dict(state)


def test_options():
    state = arrays(conv__lin__weight=(4, 3))
    assert nn.load_state_dict(state, activations=["tanh"]).layers[0].updates[0].activation == "tanh"
    with pytest.raises(ValueError, match="2 activations for 1 products"):
        nn.load_state_dict(state, activations=["tanh", None])
    with pytest.raises(ValueError, match="kind must be one of"):
        nn.load_state_dict(state, "gat")
    with pytest.raises(ValueError, match="no sage layer has conv"):
        nn.load_state_dict(state, "sage")


@pytest.mark.torch
def test_tensors_with_gradients():
    import torch

    state = {"conv.lin.weight": torch.nn.Parameter(torch.ones(2, 3)), "conv.bias": torch.nn.Parameter(torch.ones(2))}
    assert nn.load_state_dict(state).widths == (3, 2)


@pytest.mark.parametrize("given", [None, 3, "state", [1]])
def test_what_is_no_state_dict(given):
    with pytest.raises(
        DTypeError, match=r"load_state_dict: state must be a mapping .*, got \w+; pass model\.state_dict\(\)"
    ):
        nn.load_state_dict(given)


@given(
    st.permutations(range(6)),
    st.sampled_from(["convs.{}", "conv{}", "layers.{}.conv", "module_{}"]),
    st.sampled_from(["bns.{}", "norm{}", "norms.{}.module"]),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_the_order_is_that_of_the_numbers_and_not_of_the_dict(order, convs, norms, normed):
    rng = np.random.default_rng(0)
    numbers, parts, wanted = (2, 9, 11), [], {}
    for i, number in enumerate(numbers):
        weight, mean = rng.normal(size=(4, 4)), rng.normal(size=4)
        at, bn = convs.format(number), norms.format(number)
        wanted[i] = weight, mean if normed[i] else None
        parts.append({f"{at}.lin.weight": weight, f"{at}.bias": np.zeros(4)})
        parts.append({f"{bn}.running_mean": mean, f"{bn}.running_var": np.ones(4)} if normed[i] else {})
    state = {name: value for place in order for name, value in parts[place].items()}
    found = nn.load_state_dict(state)
    for i, layer in enumerate(found.layers):
        (dense,) = layer.updates
        assert np.array_equal(dense.weight, wanted[i][0].astype(np.float32).T)
        assert (dense.batch_norm is None) == (wanted[i][1] is None)
        if dense.batch_norm is not None:
            assert np.array_equal(dense.batch_norm.mean, wanted[i][1])


@given(st.integers(0, 3), st.sampled_from(["conv_last", "head", "out", "convs.x", "convs.1.2", "conv.3"]))
def test_one_name_beside_the_sequence_is_never_ordered_by_guess(which, name):
    places = [f"convs.{i}" for i in range(4)]
    places[which] = name
    state = {f"{at}.lin.weight": np.ones((4, 4)) for at in places} | {f"{at}.bias": np.ones(4) for at in places}
    with pytest.raises(ValueError, match="no sequence with one number that counts"):
        nn.load_state_dict(state)


def test_what_has_to_be_told():
    state = arrays(**gcn("conv1", 3, 4), **gcn("conv2", 4, 2)) | norm("bn1", 4)
    first = nn.load_state_dict(state, norm="after", activation="elu").layers[0].updates[0]
    assert (first.batch_norm, first.activation, len(first.then)) == (None, "elu", 1)
    assert nn.load_state_dict(state).layers[0].neighbours == nn.Neighbours("sum", True, 1.0, True)
    assert nn.load_state_dict(state, self_loops=False).layers[0].neighbours == nn.Neighbours("sum", True, None, True)
    assert nn.load_state_dict(state, aggregate="sum").layers[0].neighbours == nn.Neighbours("sum", False, None, True)
    for how, said in (
        ({"aggregate": "max"}, "aggregate must be one of 'gcn', 'sum'"),
        ({"norm": "behind"}, "norm must be one of 'before', 'after'"),
        ({"aggregate": "sum", "self_loops": True}, "self_loops=True goes with aggregate='gcn'"),
    ):
        with pytest.raises(ValueError, match=said):
            nn.load_state_dict(state, **how)
    sage = arrays(conv__lin_l__weight=(2, 3), conv__lin_r__weight=(2, 3))
    assert nn.load_state_dict(sage, aggregate="max").layers[0].neighbours == nn.Neighbours("max")
    with pytest.raises(ValueError, match="self_loops=False goes with GCNConv only"):
        nn.load_state_dict(sage, self_loops=False)


@pytest.mark.pyg
@pytest.mark.parametrize(
    ("kind", "how", "told"),
    [
        ("GCN", {}, {}),
        ("GCN", {"norm": "batch_norm", "act": "tanh"}, {"activation": "tanh"}),
        ("GCN", {"norm": "batch_norm", "act_first": True}, {"norm": "after"}),
        ("GCN", {"add_self_loops": False}, {"self_loops": False}),
        ("GCN", {"normalize": False}, {"aggregate": "sum"}),
        ("GraphSAGE", {"norm": "batch_norm"}, {}),
        ("GraphSAGE", {"aggr": "max", "act": "gelu"}, {"aggregate": "max", "activation": "gelu"}),
        ("GIN", {"norm": "batch_norm"}, {}),
        ("GIN", {"act": "elu"}, {"activation": "elu"}),
    ],
)
def test_what_is_told_gives_the_model(kind, how, told):
    import pyg_models

    model = pyg_models.basic(kind, 3, **how)
    rng = np.random.default_rng(3)
    graph, x = random_graph(30, rng), rng.normal(size=(30, 5))
    wanted = nn.from_pyg(model)(graph, x)
    assert np.abs(nn.load_state_dict(model.state_dict(), **told)(graph, x) - wanted).max() < 1e-5

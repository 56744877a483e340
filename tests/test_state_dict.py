"""Networks made from the names and shapes of PyTorch Geometric's parameters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowbit_networks import KINDS, network, random_graph

import bitsparse as bs
from bitsparse import DTypeError, nn

RNG = np.random.default_rng(0)


def arrays(**shapes):
    return {name.replace("__", "."): RNG.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def gcn(at, inputs, outputs):
    """Return the shapes of a GCNConv's parameters."""
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


def every_part():
    """Return networks that together have every field of a layer."""
    rng = np.random.default_rng(4)

    def dense(*shape, **how):
        return nn.Dense(rng.normal(size=shape), rng.normal(size=shape[1] // how.get("average", 1)), **how)

    norms = (bs.BatchNorm(*rng.uniform(0.5, 1, (4, 4))), nn.LayerNorm(np.ones(4), None, 0.1, "graph"))
    heads = nn.Attention(*rng.normal(size=(2, 2, 2)), negative_slope=0.3)
    second = nn.Attention(rng.normal(size=(2, 2)), None, dense(6, 4), rng.normal(size=4), negative_slope=0.3)
    no_loops = nn.Neighbours("softmax")
    front = nn.Layer([dense(6, 4, activation="gelu", then=(*norms, "tanh"))], kind="dense")
    gat = nn.Layer([dense(4, 4)], rng.normal(size=(4, 4)), kind="gat", attention=heads, neighbours=no_loops)
    mean = nn.Layer([dense(4, 4, average=2)], rng.normal(size=(4, 2)), kind="gat", attention=heads)
    agnn = nn.Layer([dense(4, 5), dense(5, 4)], kind="agnn", beta=-0.5)
    gin = nn.Layer([dense(4, 4, batch_norm=norms[0])], kind="gin", eps=0.5)
    sage = nn.Layer([dense(4, 4)], kind="sage", project=dense(4, 4), neighbours=nn.Neighbours("max"))
    return [
        nn.Network("mixed", [front, gat, agnn, gin, sage]),
        nn.Network("gat", [nn.Layer([dense(6, 4)], attention=heads), mean]),
        nn.Network("agnn", [nn.Layer([dense(6, 3)])]),
        nn.Network("gatv2", [nn.Layer([dense(6, 4)], rng.normal(size=(6, 4)), attention=second)]),
    ]


def test_files_hold_every_network(tmp_path):
    rng = np.random.default_rng(5)
    graph, x = random_graph(30, rng), rng.normal(size=(30, 6)).astype(np.float32)
    for made in every_part():
        made.save(tmp_path / "network.npz")
        again = nn.load_network(tmp_path / "network.npz")
        assert repr(again) == repr(made)
        assert again.nbytes == made.nbytes
        assert np.array_equal(again(graph, x), made(graph, x))


def test_names_of_pytorch_geometric_give_the_same_network():
    rng = np.random.default_rng(6)
    graph, x = random_graph(30, rng), rng.normal(size=(30, 6)).astype(np.float32)
    attention = every_part()[1:]
    for made in [network(kind, [6, 5, 5, 3], rng, batch_norm=True) for kind in KINDS] + attention:
        activations = [update.activation for layer in made.layers for update in layer.updates]
        how = {"negative_slope": 0.3} if made.kind in ("gat", "gatv2") else {}
        again = nn.load_state_dict(made.state_dict(), activations=activations, **how)
        assert repr(again) == repr(made)
        np.testing.assert_allclose(again(graph, x), made(graph, x), rtol=1e-5, atol=1e-5)
    dense = nn.Dense(np.ones((2, 2)))
    for layer in (
        nn.Layer([dense], kind="sage"),
        nn.Layer([dense], np.ones((2, 2)), kind="sage", project=dense),
        nn.Layer([nn.Dense(np.ones((2, 2)), then=("relu",))], kind="gcn"),
        nn.Layer([dense, dense], kind="gcn"),
    ):
        with pytest.raises(ValueError, match=rf"Network\.state_dict: layer 0 of kind '{layer.kind}' has what"):
            nn.Network(layer.kind, [layer]).state_dict()
    with pytest.raises(ValueError, match="layer 0 of kind 'dense'"):
        every_part()[0].state_dict()


@pytest.mark.parametrize("bias", [True, False])
def test_whether_heads_are_put_side_by_side_is_seen_from_sizes(bias):
    def conv(at, inputs, heads, channels, outputs, **more):
        shapes = {
            "lin__weight": (heads * channels, inputs),
            "att_src": (1, heads, channels),
            "att_dst": (1, heads, channels),
        }
        shapes |= ({"bias": outputs} if bias else {}) | more
        return {f"{at}__{name}": shape for name, shape in shapes.items()}

    for outputs in (4, 8):
        state = arrays(
            **conv("convs__0", 5, 2, 4, outputs), **conv("convs__1", outputs, 3, 2, 6, res__weight=(6, outputs))
        )
        found = nn.load_state_dict(state, activation="elu", self_loops=False)
        assert (found.kind, found.widths, found.self_loops) == ("gat", (5, outputs, 6), False)
        assert [layer.updates[0].average for layer in found.layers] == [8 // outputs, 1]
        assert found.layers[1].own.shape == (outputs, 6)
    flat = arrays(**conv("c", 5, 1, 4, 4)) | {"c.att_src": np.ones(4)}
    with pytest.raises(bs.ShapeError, match=r"att_src of shape \(4,\), but one of PyTorch Geometric has \(1, heads"):
        nn.load_state_dict(flat)
    with pytest.raises(ValueError, match=r"no gat layer has c\.att_edge"):
        nn.load_state_dict(arrays(**conv("c", 5, 1, 4, 4), c__att_edge=(1, 1, 4)))
    with pytest.raises(ValueError, match="no att_dst, which a gat layer needs"):
        nn.load_state_dict(arrays(c__lin__weight=(2, 3), c__att_src=(1, 1, 2)))


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[", "3", "[]", "[3]", "{}", "[" * 5000, '[{"part": "Layer"}]', '[{"part": "Other"}]', '[{"array": "none"}]',
        '[{"part": "Layer", "updates": 3}]', '[{"part": "Layer", "updates": [], "more": 1}]', '[{"part": ["Layer"]}]',
        '[{"part": "Neighbours"}]', '[{"part": "Layer", "updates": [{"part": "Dense", "weight": "many"}]}]',
    ],
)  # fmt: skip
def test_descriptions_that_are_damaged(text, tmp_path):
    nn.random_network("gcn", [3, 2]).save(tmp_path / "gcn.npz")
    with np.load(tmp_path / "gcn.npz") as file:
        held = dict(file)
    np.savez(tmp_path / "gcn.npz", **(held | {"layers": np.array(text)}))
    with pytest.raises(bs.FileFormatError, match=r"load_network: .*; write it with Network\.save"):
        nn.load_network(tmp_path / "gcn.npz")


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
        (
            arrays(**gcn("convs.0", 3, 4), **gcn("conv_last", 4, 2)),
            "'convs.0', 'conv_last', do not differ in exactly one number",
        ),
        (arrays(**gcn("a", 3, 4), **gcn("b", 4, 2)), "do not differ in exactly one number"),
        (arrays(**gcn("a.0.b.0", 3, 4), **gcn("a.1.b.1", 4, 2)), "do not differ in exactly one number"),
        (arrays(**gcn("convs.0", 3, 4), lin__weight=(2, 4)), "'convs.0', '', do not differ in exactly one number"),
        (arrays(lin__weight=(2, 4)), "may be a GCNConv without bias or a linear layer"),
        (arrays(mylin__weight=(2, 4)), "belongs to a GCNConv"),
        (arrays(cnn__weight=(2, 4)), "belongs to a GCNConv"),
        (
            arrays(c__nn__first__weight=(4, 3), c__nn__second__weight=(2, 4)),
            "'nn.first', 'nn.second', do not differ in exactly one number",
        ),
        (
            arrays(**gcn("conv1", 3, 4), **gcn("conv2", 4, 4)) | norm("norms.0", 4),
            "the batch norm 'norms.0' cannot be assigned to one of the layers",
        ),
        (
            arrays(**gcn("conv1", 3, 4), **gcn("conv2", 4, 4)) | norm("bn", 4),
            "the batch norm 'bn' cannot be assigned to one of the layers",
        ),
        (
            arrays(**gcn("conv1", 3, 4), **gcn("conv2", 4, 4)) | norm("bn", 4) | norm("bn1", 4),
            "'bn', 'bn1', do not differ in exactly one number",
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
        nn.load_state_dict(state, "pna")
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
    with pytest.raises(ValueError, match="do not differ in exactly one number"):
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
    with pytest.raises(ValueError, match="self_loops=False goes with GCNConv and attention"):
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

"""Networks read from PyTorch Geometric give the model's own output; models that cannot be read are refused by name."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import bitsparse as bs
from bitsparse import nn

pytestmark = pytest.mark.pyg


@pytest.fixture
def models():
    import pyg_models

    return pyg_models


def graph(rng, n=40, edges=160):
    """A directed graph with stored self-loops and isolated nodes, as an edge index and as an adjacency of ones."""
    ends = np.unique(np.hstack((rng.integers(0, n - 4, (2, edges)), [[3, 7], [3, 7]])), axis=1)
    return ends, sparse.csr_array((np.ones(ends.shape[1], np.float32), (ends[1], ends[0])), shape=(n, n))


def agree(model, weights=None, network=None):
    """Assert that the network read gives the model's output, on another graph than the one from_pyg checks it with."""
    import torch

    network = network or nn.from_pyg(model)
    rng = np.random.default_rng(7)
    ends, adjacency = graph(rng)
    x = rng.normal(size=(adjacency.shape[0], network.features)).astype(np.float32)
    given = [torch.from_numpy(x), torch.from_numpy(ends)]
    if weights:
        values = rng.uniform(0.3, 2.0, ends.shape[1]).astype(np.float32)
        adjacency = sparse.csr_array((values, (ends[1], ends[0])), shape=adjacency.shape)
        given.append(torch.from_numpy(values))
    with torch.no_grad():
        wanted = model(*given).numpy()
    got = network(adjacency, x)
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= 1e-5 * max(1.0, np.abs(wanted).max())
    return network


KINDS = ("GCN", "GraphSAGE", "GIN", "GAT")
ACTS = ("relu", "LeakyReLU", "elu", "tanh", "sigmoid", "gelu", "SiLU", None)
NORMS = (None, "batch_norm", "layer_norm")


@pytest.mark.parametrize(("kind", "depth", "norm"), list(product(KINDS, (1, 2, 4), NORMS)))
def test_models_of_any_depth_and_norm(models, kind, depth, norm):
    found = agree(models.basic(kind, depth, norm=norm, dropout=0.5))
    assert (found.kind, len(found.layers)) == (
        {"GCN": "gcn", "GraphSAGE": "sage", "GIN": "gin", "GAT": "gat"}[kind],
        depth,
    )


@pytest.mark.parametrize(("kind", "act"), list(product(KINDS, ACTS)))
def test_models_of_any_activation(models, kind, act):
    agree(models.basic(kind, 3, act=act))


@pytest.mark.parametrize(("kind", "norm"), list(product(KINDS, NORMS[1:])))
def test_norms_behind_the_activation(models, kind, norm):
    agree(models.basic(kind, 2, norm=norm, act_first=True, act="tanh"))


@pytest.mark.parametrize(
    "how",
    [
        {"bias": False},
        {"cached": True},
        {"improved": True},
        {"add_self_loops": False},
        {"normalize": False},
        {"normalize": False, "bias": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("depth", [1, 3])
def test_gcn_attributes(models, how, depth):
    agree(models.stack("GCNConv", depth, **how))


@pytest.mark.parametrize(
    "how",
    [
        {"aggr": aggr, "normalize": normalize, "root_weight": root, "project": project}
        for aggr, normalize, root, project in product(
            ("mean", "sum", "max"), (False, True), (False, True), (False, True)
        )
    ],
    ids=lambda how: "-".join(map(str, how.values())),
)
def test_sage_attributes(models, how):
    agree(models.stack("SAGEConv", 2, **how))


@pytest.mark.parametrize(
    "how", [{"eps": 0.3}, {"train_eps": True}, {"aggr": "max"}, {"aggr": "mean", "eps": -0.5}], ids=str
)
@pytest.mark.parametrize("depth", [1, 3])
def test_gin_attributes(models, how, depth):
    agree(models.stack("GINConv", depth, **how))


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("concat", [False, True])
@pytest.mark.parametrize(
    "how",
    [
        {"heads": 1},
        {"heads": 3, "dropout": 0.6},
        {"heads": 3, "residual": True},
        {"heads": 2, "bias": False, "negative_slope": 0.0},
        {"heads": 2, "residual": True, "bias": False, "negative_slope": 0.7},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv"])
def test_gat_attributes(models, kind, how, concat, loops):
    shared = {"share_weights": how["heads"] == 1} if kind == "GATv2Conv" else {}
    found = agree(models.heads(kind, concat=concat, add_self_loops=loops, **how, **shared))
    assert (found.kind, found.self_loops) == (kind[:-4].lower(), loops)
    assert found.layers[0].updates[0].average == (1 if concat else how["heads"])


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_heads_of_models(models, heads, v2):
    def model(**how):
        return models.basic("GAT", 3, heads=heads, norm="batch_norm", v2=v2, **how)

    told = {"add_self_loops": heads < 4, "negative_slope": 0.1}
    found = agree(model(act="elu", **told))
    assert [layer.updates[0].average for layer in found.layers] == [1, 1, heads]
    again = nn.load_state_dict(model().state_dict(), activation="elu", self_loops=heads < 4, negative_slope=0.1)
    agree(model(act="elu", **told), network=again)


@pytest.mark.parametrize("how", [{}, {"requires_grad": False}, {"add_self_loops": False}], ids=str)
def test_agnn_between_linear_layers(models, how):
    found = agree(models.propagated(**how))
    assert [layer.kind for layer in found.layers] == ["dense", "agnn", "agnn"]
    assert [layer.beta for layer in found.layers[1:]] == [1.0 if how.get("requires_grad") is False else 1.75] * 2


@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm"])
@pytest.mark.parametrize(
    ("depth", "how"), [(1, {}), (2, {"act": "elu"}), (4, {"act_first": True}), (2, {"plain_last": False})]
)
def test_perceptrons_of_gin(models, norm, depth, how):
    found = agree(models.gin(models.mlp(depth, norm=norm, **how)))
    assert len(found.layers[0].updates) == depth + 1


@pytest.mark.parametrize("kind", ["GCNConv", "SAGEConv", "GINConv"])
@pytest.mark.parametrize("norm", ["batch", "pyg batch", "layer", "node", "graph"])
@pytest.mark.parametrize("norm_last", [False, True])
def test_linear_layers_around_graph_layers(models, kind, norm, norm_last):
    found = agree(models.around(kind, norms=models.norms_of(norm), norm_last=norm_last))
    assert [layer.kind for layer in found.layers] == ["dense", *[kind[:-4].lower()] * 2]


def test_weights_of_edges(models):
    for model in (models.basic("GCN", 2), models.basic("GCN", 3, improved=True), models.seeded(models.Weighted)):
        assert agree(model, weights=True).weighted
    for how in ({"normalize": False}, {"add_self_loops": False}):
        agree(models.seeded(lambda how=how: models.Weighted(**how)), weights=True)


def test_weights_go_to_the_layers_that_the_model_gives_them(models):
    half = agree(models.seeded(lambda: models.Weighted(1)), weights=True)
    assert [layer.neighbours.weighted for layer in half.layers] == [True, False]
    none = nn.from_pyg(models.seeded(lambda: models.Weighted(0)))
    rng = np.random.default_rng(0)
    _, adjacency = graph(rng)
    with pytest.raises(ValueError, match=r"Network: adjacency holds 2, but no layer of this network reads weights"):
        none(2 * adjacency, rng.normal(size=(40, 5)))


def test_data_as_the_only_argument(models):
    from types import SimpleNamespace

    import torch

    model = models.seeded(models.FromData)
    network = nn.from_pyg(model)
    rng = np.random.default_rng(1)
    ends, adjacency = graph(rng)
    x = rng.normal(size=(40, 5)).astype(np.float32)
    with torch.no_grad():
        wanted = model(SimpleNamespace(x=torch.from_numpy(x), edge_index=torch.from_numpy(ends))).numpy()
    assert np.abs(network(adjacency, x) - wanted).max() < 1e-5


def test_kinds_may_be_mixed(models):
    import torch

    made = [
        (models.conv("GCNConv", 5, 8), "x, edge_index -> x"),
        torch.nn.ReLU(),
        (models.conv("SAGEConv", 8, 8), "x, edge_index -> x"),
        torch.nn.Linear(8, 6),
        (models.conv("GINConv", 6, 3), "x, edge_index -> x"),
    ]
    assert agree(models.sequential(*made)).kind == "mixed"


def test_the_model_is_left_as_it_is(models):
    model = models.basic("GCN", 2, norm="batch_norm", cached=True).double().train()
    before = copy.deepcopy(model.state_dict())
    nn.from_pyg(model)
    assert model.training
    assert all(bool((value == model.state_dict()[name]).all()) for name, value in before.items())
    assert all(conv._cached_edge_index is None for conv in model.convs)


def test_a_graph_of_ones_own_is_compared_too(models):
    import torch

    rng = np.random.default_rng(2)
    ends, adjacency = graph(rng, 100, 900)
    x = rng.normal(size=(100, 5)).astype(np.float32)
    model = models.basic("GraphSAGE", 2, aggr="max")
    agree(model, network=nn.from_pyg(model, x, ends))
    tensors = torch.from_numpy(x), torch.from_numpy(ends)
    assert np.array_equal(nn.from_pyg(model, *tensors)(adjacency, x), nn.from_pyg(model)(adjacency, x))

    def does(self, x, edge_index):
        return self.conv(x, edge_index) if x.shape[0] == 24 else 2 * self.conv(x, edge_index)

    with pytest.raises(ValueError, match="from_pyg: Free: "):
        nn.from_pyg(models.Free(does, conv=models.conv("GCNConv", 5, 3)), x, ends)
    with pytest.raises(bs.ShapeError, match=r"x has shape \(100, 4\), but the model reads \(n, 5\)"):
        nn.from_pyg(model, x[:, :4], ends)
    with pytest.raises(bs.ShapeError, match="but x has 20 rows"):
        nn.from_pyg(model, x[:20], ends)
    with pytest.raises(ValueError, match="pass both, or neither"):
        nn.from_pyg(model, x)


@pytest.mark.parametrize("kind", ["TransformerConv", "GraphConv", "SGConv", "ChebConv", "GCN2Conv"])
def test_other_graph_layers_are_refused_by_name(models, kind):
    how = {"ChebConv": {"K": 2}}.get(kind, {})
    outputs = () if kind == "GCN2Conv" else (3,)
    how = {"alpha": 0.1} if kind == "GCN2Conv" else how
    layer = getattr(models.pyg, kind)(5, *outputs, **how)
    model = models.Free(lambda self, x, edges: self.conv(x, edges), conv=layer)
    with pytest.raises(ValueError, match=f"from_pyg: Free: conv is a {kind}, which is not there yet"):
        nn.from_pyg(model)


def refusals(models):
    """(description, model, part of the error message) of every case."""
    pyg: Any = models.pyg
    torch, free, conv = models.torch, models.Free, models.conv

    class Mine(pyg.GCNConv):
        def forward(self, x, edge_index):
            return 2 * super().forward(x, edge_index)

    def plain(self, x, edges):
        return self.conv(x, edges)

    gcn, linear = conv("GCNConv", 5, 5), torch.nn.Linear(5, 5)
    functional = models.functional
    broken = conv("GCNConv", 5, 3)
    broken.bias.data[0] = float("nan")
    return [
        ("JumpingKnowledge", models.basic("GCN", 2, jk="cat"), "JumpingKnowledge"),
        ("GAT of features of edges", models.basic("GAT", 2, edge_dim=3), "edge_dim=3"),
        ("GAT of two sets", free(plain, conv=conv("GATConv", (5, 5), 3)), "in_channels=(5, 5)"),
        ("GATv2 of features of edges", models.basic("GAT", 2, edge_dim=3, v2=True), "edge_dim=3"),
        ("GAT's aggr", free(plain, conv=conv("GATConv", 5, 3, aggr="max")), "GATConv with aggr='max'"),
        (
            "AGNN's aggr",
            free(lambda s, x, e: s.b(s.a(x), e), a=linear, b=models.pyg.AGNNConv(aggr="mean")),
            "aggr='mean'",
        ),
        ("AGNN first", free(plain, conv=models.pyg.AGNNConv()), "its width is not known"),
        (
            "weights asked for",
            free(lambda s, x, e: s.conv(x, e, return_attention_weights=True)[0], conv=conv("GATConv", 5, 3)),
            "given return_attention_weights",
        ),
        ("features of edges", free(lambda s, x, e: s.conv(x, e, x), conv=conv("GATConv", 5, 3)), "given edge_attr"),
        ("PNA", models.basic("EdgeCNN", 2), "EdgeConv"),
        ("a layer of one's own", free(plain, conv=Mine(5, 3)), "Mine of its own, made from GCNConv"),
        ("residual", free(lambda s, x, e: x + s.conv(x, e), conv=gcn), "residual"),
        (
            "residual inside",
            free(lambda s, x, e: s.conv(s.conv(x, e), e).relu() + s.conv(x, e), conv=gcn),
            "step before",
        ),
        ("pooling", free(lambda s, x, e: pyg.global_mean_pool(s.conv(x, e), None), conv=gcn), "the forward calls"),
        ("a parameter", free(lambda s, x, e: s.conv(x, e) * s.w, conv=gcn, w=torch.nn.Parameter(torch.ones(5))), "w"),
        ("aggr", free(plain, conv=conv("SAGEConv", 5, 3, aggr="min")), "aggr='min'"),
        ("several", free(plain, conv=conv("SAGEConv", 5, 3, aggr=["mean", "max"])), "aggr="),
        ("softmax aggregation", free(plain, conv=conv("SAGEConv", 5, 3, aggr=pyg.SoftmaxAggregation())), "aggr="),
        ("gcn aggr", free(plain, conv=conv("GCNConv", 5, 3, aggr="max")), "GCNConv with aggr='max'"),
        ("flow", free(plain, conv=conv("GCNConv", 5, 3, flow="target_to_source")), "target_to_source"),
        ("slope", models.stack("GCNConv", 2, lambda x: functional.leaky_relu(x, 0.2)), "negative_slope=0.2"),
        ("alpha", models.stack("GCNConv", 2, torch.nn.ELU(2.0)), "alpha=2.0"),
        ("gelu", models.stack("GCNConv", 2, torch.nn.GELU("tanh")), "approximate=tanh"),
        ("prelu", models.basic("GCN", 2, act="prelu"), "PReLU"),
        ("graph norm", models.basic("GCN", 2, norm="graph_norm"), "GraphNorm"),
        ("pair norm", models.basic("GCN", 2, norm="pair_norm"), "PairNorm"),
        (
            "no statistics",
            models.basic("GCN", 2, norm="batch_norm", norm_kwargs={"track_running_stats": False}),
            "running",
        ),
        ("active dropout", models.stack("GCNConv", 2, lambda x: functional.dropout(x)), "stays active in inference"),
        ("softmax", free(lambda s, x, e: s.conv(x, e).softmax(-1), conv=gcn), "calls softmax"),
        ("log_softmax", free(lambda s, x, e: s.conv(x, e).log_softmax(0), conv=gcn), "dim=0"),
        ("dropout of edges", free(lambda s, x, e: s.conv(x, e[:, :9]), conv=gcn), "from_pyg: Free: "),
        ("data in control", free(lambda s, x, e: s.conv(x, e) if x.sum() > 0 else x, conv=gcn), "cannot be traced"),
        (
            "norm first",
            free(lambda s, x, e: s.conv(s.bn(x), e), conv=gcn, bn=torch.nn.BatchNorm1d(5)),
            "front of the first",
        ),
        ("no linear", free(plain, conv=pyg.GINConv(torch.nn.ReLU())), "front of the first product"),
        ("nothing in nn", free(plain, conv=pyg.GINConv(torch.nn.Identity())), "no Linear"),
        ("NaN", free(plain, conv=broken), "bias holds NaN"),
        ("two results", free(lambda s, x, e: (s.conv(x, e), x), conv=gcn), "one array"),
        ("no graph layer", free(lambda s, x, e: s.lin(x), lin=torch.nn.Linear(5, 3)), "no graph layer"),
        ("lazy", free(plain, conv=conv("GCNConv", -1, 3)), "without a size"),
        ("one argument", torch.nn.Sequential(torch.nn.Linear(5, 3)), "from_pyg: Sequential: "),
        ("more features", free(lambda s, x, e: s.a(x, e) @ s.w, a=gcn, w=torch.nn.Parameter(torch.ones(5, 2))), "w"),
    ]


def test_whatever_is_not_there_is_refused_by_name(models):
    for what, model, said in refusals(models):
        with pytest.raises(ValueError, match="from_pyg: ") as caught:
            nn.from_pyg(model)
        assert said in str(caught.value), f"{what}: {caught.value}"


def test_what_modules_do_not_say_is_noticed_by_the_comparison(models):
    torch = models.torch

    def hook(module, given, result):
        return 2 * result

    hooked = models.basic("GCN", 2)
    hooked.convs[0].register_forward_hook(hook)
    changed = models.Free(
        lambda s, x, e: (torch.relu_(s.conv(x, e)), s.conv(x, e))[1], conv=models.conv("GCNConv", 5, 3)
    )
    for model in (hooked, changed):
        with pytest.raises(ValueError, match=r"from_pyg: .*(is off by|step before)"):
            nn.from_pyg(model)


@pytest.mark.parametrize("model", [None, {}, 3, "model"])
def test_what_is_no_model(model):
    with pytest.raises(bs.DTypeError, match=r"from_pyg: model must be a torch\.nn\.Module, got"):
        nn.from_pyg(model)

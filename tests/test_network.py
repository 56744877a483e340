"""Networks in full precision against dense definitions in float64: weights, directions and self loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import bitsparse as bs
from bitsparse import nn

N = 9


@st.composite
def graphs(draw, weights=True):
    """Return a directed graph with self loops, nodes without edges and, perhaps, weights: as positions, values and a SciPy array."""
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    stored = rng.random((N, N)) < draw(st.sampled_from([0.0, 0.1, 0.3, 0.9]))
    values = rng.uniform(0.0, 3.0, (N, N)) if weights else np.ones((N, N))
    rows, cols = np.nonzero(stored)
    order = rng.permutation(rows.size)  # entries are unsorted
    made = sparse.coo_array((values[stored][order], (rows[order], cols[order])), shape=(N, N))
    form = draw(st.sampled_from(["csr", "csc", "coo"]))
    return stored, np.where(stored, values, 0.0), made.asformat(form)


def normed(stored, values, loop):
    """Return PyTorch Geometric's gcn_norm: remaining self loops, degrees by arriving edges, and 0 for nodes without any."""
    held = values.copy()
    if loop is not None:
        held[np.diag(~np.diag(stored))] += loop
    degrees = held.sum(axis=1)
    root = np.where(degrees > 0, 1 / np.sqrt(np.where(degrees > 0, degrees, 1)), 0)
    return root[:, None] * held * root


def close(got, wanted):
    assert np.abs(got - wanted).max(initial=0) <= 1e-5 * max(1.0, np.abs(wanted).max(initial=0))


X = np.random.default_rng(0).normal(size=(N, 3))
ONES = np.ones((1, 2))
GAT = nn.Attention(ONES, ONES)
W, OWN = np.random.default_rng(1).normal(size=(2, 3, 2)).astype(np.float32)


@given(graphs(), st.sampled_from([1.0, 2.0, None]))
def test_gcn_uses_weights_and_degrees_of_arriving_edges(graph, loop):
    stored, values, adjacency = graph
    how = nn.Neighbours("sum", gcn_norm=True, self_loop=loop, weighted=True)
    network = nn.Network("gcn", [nn.Layer([nn.Dense(W)], kind="gcn", neighbours=how)])
    close(network(adjacency, X), normed(stored, values, loop) @ X @ W)
    if loop == 1.0:
        close(nn.Network("gcn", [nn.Layer([nn.Dense(W)])])(adjacency, X), normed(stored, values, loop) @ X @ W)


@given(graphs(weights=False), st.sampled_from([0.0, 0.25]))
def test_gin_counts_its_own_term_once_beside_stored_self_loops(graph, eps):
    stored, _, adjacency = graph
    network = nn.Network("gin", [nn.Layer([nn.Dense(W)], eps=eps)])
    close(network(adjacency, X), (stored @ X + (1 + eps) * X) @ W)


@given(graphs(weights=False), st.sampled_from(["mean", "sum", "max"]))
def test_sage_takes_means_sums_and_maxima(graph, reduce):
    stored, _, adjacency = graph
    near = np.array(
        [
            {"mean": np.mean, "sum": np.sum, "max": np.max}[reduce](X[row], axis=0) if row.any() else 0 * X[0]
            for row in stored
        ]
    )
    layer = nn.Layer([nn.Dense(W)], own=OWN, kind="sage", neighbours=nn.Neighbours(reduce))
    close(nn.Network("sage", [layer])(adjacency, X), near @ W + X @ OWN)


@given(graphs())
def test_weights_are_never_ignored(graph):
    stored, values, adjacency = graph
    sage, gin = nn.Network("sage", [nn.Layer([nn.Dense(W)], own=OWN)]), nn.Network("gin", [nn.Layer([nn.Dense(W)])])
    for network in (sage, gin):
        if stored.any():
            with pytest.raises(
                ValueError, match=r"Network: adjacency holds .*, but no layer of this network reads weights"
            ):
                network(adjacency, X)
    doubled = normed(stored, 2 * values, 1.0) @ X @ W
    close(nn.Network("gcn", [nn.Layer([nn.Dense(W)])])(2 * adjacency, X), doubled)


def test_duplicates_are_summed_or_refused():
    twice = sparse.coo_array((np.ones(3), ([0, 0, 1], [1, 1, 0])), shape=(N, N))
    stored = np.zeros((N, N), bool)
    stored[[0, 1], [1, 0]] = True
    gcn = nn.Network("gcn", [nn.Layer([nn.Dense(W)])])
    close(gcn(twice, X), normed(stored, twice.toarray(), 1.0) @ X @ W)
    with pytest.raises(ValueError, match="adjacency holds 2"):
        nn.Network("gin", [nn.Layer([nn.Dense(W)])])(twice, X)


def heeded(stored, scores, loops, sent):
    """Return sums of (N, columns) weighted by the softmax over each row's edges, written out; rows without edges are 0."""
    stored = stored | np.eye(N, dtype=bool) if loops else stored
    weights = np.where(stored, np.exp(np.where(stored, scores, 0)), 0)
    total = weights.sum(axis=1, keepdims=True)
    return weights / np.where(total > 0, total, 1) @ sent


@given(graphs(weights=False), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.2, 1.5]))
def test_gat_heeds_the_nodes_in_its_row_by_head(graph, loops, mean, residual, slope):
    stored, _, adjacency = graph
    rng = np.random.default_rng(3)
    weight, (source, target) = rng.normal(size=(3, 8)).astype(np.float32), rng.normal(size=(2, 4, 2)).astype(np.float32)
    own, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 2 if mean else 8), 2 if mean else 8))
    how = nn.Neighbours("softmax", self_loop=1.0 if loops else None)
    first = nn.Dense(weight, bias, activation="elu", average=4 if mean else 1)
    layer = nn.Layer(
        [first, nn.Dense(np.eye(first.outputs)[:, :1])],
        own if residual else None,
        kind="gat",
        neighbours=how,
        attention=nn.Attention(source, target, negative_slope=slope),
    )
    got, heads = nn.Network("gat", [layer])(adjacency, X), []
    for head in range(4):
        h = X @ weight[:, 2 * head : 2 * head + 2]
        scores = (h @ target[head])[:, None] + h @ source[head]
        heads.append(heeded(stored, np.where(scores > 0, scores, slope * scores), loops, h))
    wanted = np.mean(heads, axis=0) if mean else np.concatenate(heads, axis=1)
    wanted = wanted + bias + (X @ own if residual else 0)
    close(got, np.where(wanted > 0, wanted, np.expm1(np.minimum(wanted, 0)))[:, :1])


@given(graphs(weights=False), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.2, 1.5]))
def test_gatv2_heeds_the_nodes_in_its_row_by_both_ends(graph, loops, mean, biased, slope):
    stored, _, adjacency = graph
    rng = np.random.default_rng(4)
    send, receive = rng.normal(size=(2, 3, 8)).astype(np.float32)
    vectors, own = rng.normal(size=(4, 2)).astype(np.float32), rng.normal(size=(3, 2 if mean else 8)).astype(np.float32)
    of_sent, of_received = rng.normal(size=(2, 8)).astype(np.float32) if biased else (None, None)
    layer = nn.Layer(
        [nn.Dense(send, average=4 if mean else 1)],
        own,
        neighbours=nn.Neighbours("softmax", self_loop=1.0 if loops else None),
        kind="gatv2",
        attention=nn.Attention(vectors, None, nn.Dense(receive, of_received), of_sent, slope),
    )
    h, g = X @ send + (of_sent if biased else 0), X @ receive + (of_received if biased else 0)
    heads = []
    for head in range(4):
        columns = slice(2 * head, 2 * head + 2)
        both = g[:, None, columns] + h[None, :, columns]
        scores = np.where(both > 0, both, slope * both) @ vectors[head]
        heads.append(heeded(stored, scores, loops, h[:, columns]))
    wanted = np.mean(heads, axis=0) if mean else np.concatenate(heads, axis=1)
    close(nn.Network("gatv2", [layer])(adjacency, X), wanted + X @ own)


@given(graphs(weights=False), st.booleans(), st.sampled_from([1.0, -2.5]))
def test_agnn_heeds_the_nodes_in_its_row_by_cosine(graph, loops, beta):
    stored, _, adjacency = graph
    how = nn.Neighbours("softmax", self_loop=1.0 if loops else None)
    layer = nn.Layer([nn.Dense(W, activation="tanh")], kind="agnn", neighbours=how, beta=beta)
    x = np.where(np.arange(N)[:, None] == 4, 0, X)  # the cosines of a node of zeros are 0
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    close(nn.Network("agnn", [layer])(adjacency, x), np.tanh(heeded(stored, beta * unit @ unit.T, loops, x) @ W))


def test_arguments_that_do_not_fit_are_named():
    gcn, ring = nn.Network("gcn", [nn.Layer([nn.Dense(W)])]), sparse.csr_array(np.roll(np.eye(N), 1, axis=1))
    for adjacency, x, error, said in (
        (ring, X[:, :2], bs.ShapeError, r"x has shape \(9, 2\), but the network reads \(n, 3\)"),
        (ring, X[0], bs.ShapeError, r"x has shape \(3,\)"),
        (ring, X[:5], bs.ShapeError, r"x has shape \(5, \d+\), but the graph has 9 nodes"),
        (ring[:4], X[:4], bs.ShapeError, r"adjacency has shape \(4, 9\)"),
        (ring.toarray(), X, bs.DTypeError, "adjacency must be a sparse array of SciPy or of bitsparse, got ndarray"),
        (ring * 1j, X, bs.DTypeError, "adjacency has dtype complex128"),
        (ring, X * 1j, bs.DTypeError, "x has dtype complex128"),
        (ring * np.nan, X, ValueError, "adjacency holds NaN"),
        (-3 * ring, X, ValueError, "the weights of the edges to node 0 sum to -2"),
    ):
        with pytest.raises(error, match="Network: " + said):
            gcn(adjacency, x)
    close(gcn(ring, X.tolist()), gcn(ring, X))
    close(gcn(ring, sparse.csr_array(X)), gcn(ring, X))
    close(gcn(ring, (4 * X).astype(np.int64)), gcn(ring, (4 * X).astype(np.int64).astype(float)))
    close(gcn(ring, X.astype(np.float16)), gcn(ring, X.astype(np.float16).astype(float)))
    gat = nn.Network("gat", [nn.Layer([nn.Dense(W)], attention=GAT)])
    close(gat(ring, sparse.csr_array(X)), gat(ring, X))
    with pytest.raises(ValueError, match="adjacency holds 2, but no layer of this network reads weights"):
        gat(2 * ring, X)
    largest = nn.Layer([nn.Dense(W)], kind="sage", neighbours=nn.Neighbours("max"))
    for layer in (largest, nn.Layer([nn.Dense(W)], kind="agnn")):
        with pytest.raises(bs.DTypeError, match=r"needs dense features, got csr_array; pass x\.toarray"):
            nn.Network(layer.kind, [layer])(ring, sparse.csr_array(X))


def test_descriptions_that_contradict_themselves_are_named():
    dense = nn.Dense(W)
    mixed = nn.Network("mixed", [nn.Layer([dense], kind="gin")])
    for make, said in (
        (lambda: nn.Network("gcn", [nn.Layer([dense], own=OWN)]), "own goes with kind 'sage' or 'gat' or 'gatv2' only"),
        (lambda: nn.Network("sage", [nn.Layer([dense])]), "lacks weights `own`"),
        (lambda: nn.Network("sage", [nn.Layer([dense], own=OWN, eps=0.5)]), "eps goes with kind 'gin' only"),
        (lambda: nn.Network("gcn", [nn.Layer([dense], kind="gin")]), "of kind 'gin' in a network of kind 'gcn'"),
        (lambda: nn.Network("mixed", [nn.Layer([dense])]), "layer 0 has no kind"),
        (lambda: mixed.self_loops, "a mixed network has no self_loops"),
        (lambda: nn.Layer([dense], kind="dense", neighbours=nn.Neighbours()), "got kind 'dense'"),
        (lambda: nn.Layer([dense], project=nn.Dense(W), kind="sage"), r"neighbours send \(3, 3\)"),
        (lambda: nn.Neighbours("max", weighted=True), "go with reduce='sum'"),
        (lambda: nn.Dense(W, activation="swish"), "activation must be one of"),
        (lambda: nn.Dense(W, then=["swish"]), "then must be one of"),
        (lambda: nn.Dense(W, then=[nn.LayerNorm(np.ones(3))]), r"LayerNorm.weight has shape \(3,\)"),
        (lambda: nn.Dense(W, then=[bs.BatchNorm(np.ones(3), np.ones(3))]), r"batch_norm has shape \(3,\)"),
        (lambda: nn.Dense(W * np.nan), "Dense: weight holds NaN"),
        (lambda: nn.Dense(W, average=3), r"2 columns, which 3 groups \(average\) cannot share"),
        (
            lambda: nn.Dense(W, np.ones(2), average=2),
            r"bias has shape \(2,\), but one value for each output makes \(1,\)",
        ),
        (lambda: nn.Attention(ONES), "pass either target, for a GAT, or receive, for a GATv2"),
        (lambda: nn.Attention(ONES, ONES, dense), "pass either target"),
        (lambda: nn.Attention(ONES, np.ones((2, 1))), r"shape \(1, 2\), but target \(2, 1\)"),
        (lambda: nn.Attention(ONES, ONES, bias=np.ones(2)), "bias goes with receive"),
        (lambda: nn.Attention(np.ones((1, 3)), None, dense), "receive gives 2;"),
        (lambda: nn.Attention(ONES, None, dense, np.ones(3)), r"bias has shape \(3,\)"),
        (lambda: nn.Attention(np.ones(2), np.ones(2)), r"source has shape \(2,\), but 2 dimension"),
        (lambda: nn.Attention(ONES, ONES, negative_slope=np.inf), "negative_slope must be a finite number"),
        (
            lambda: nn.Layer([nn.Dense(np.ones((3, 4)))], attention=GAT),
            "heads times channels are 2, but the weights' columns 4",
        ),
        (lambda: nn.Layer([dense], attention=nn.Attention(ONES, None, nn.Dense(np.ones((4, 2))))), "receive takes 4"),
        (lambda: nn.Layer([nn.Dense(W, average=2)], attention=GAT), "1 heads but the weights have average=2"),
        (lambda: nn.Network("gat", [nn.Layer([dense])]), "layer 0: Layer: kind 'gat' needs an attention with target"),
        (lambda: nn.Layer([dense], kind="gatv2", attention=GAT), "kind 'gatv2' needs an attention with receive"),
        (lambda: nn.Layer([dense], kind="gcn", attention=GAT), "attention goes with kind 'gat' or 'gatv2' only"),
        (lambda: nn.Layer([dense], kind="gat", attention=GAT, beta=2), "beta goes with kind 'agnn' only"),
        (lambda: nn.Layer([dense], kind="agnn", neighbours=nn.Neighbours()), "does not go with kind 'agnn'"),
        (lambda: nn.Layer([dense], kind="gcn", neighbours=nn.Neighbours("softmax")), "does not go with kind 'gcn'"),
        (lambda: nn.Neighbours("softmax", weighted=True), "go with reduce='sum'"),
    ):
        with pytest.raises(ValueError, match=said):
            make()
    for wrong, said in (
        (lambda: nn.Dense(W, then=[3]), "then holds int"),
        (lambda: nn.Attention(ONES, None, W), "receive must be a Dense, got ndarray"),
        (lambda: nn.Layer([dense], attention=ONES), "attention must be an Attention, got ndarray"),
        (lambda: nn.Layer([dense], kind="gin", neighbours="sum"), "neighbours must be Neighbours, got str"),
        (lambda: nn.Neighbours(self_loop="1"), "self_loop must be a finite number of float32, got '1'"),
    ):
        with pytest.raises(bs.DTypeError, match=said):
            wrong()


@pytest.mark.parametrize(
    ("activation", "wanted"),
    [
        ("elu", lambda y: np.where(y > 0, y, np.exp(np.minimum(y, 0)) - 1)),
        ("sigmoid", lambda y: 1 / (1 + np.exp(-y))),
        ("silu", lambda y: y / (1 + np.exp(-y))),
        ("log_softmax", lambda y: np.log(np.exp(y) / np.exp(y).sum(axis=1, keepdims=True))),
        ("l2_normalize", lambda y: y / np.linalg.norm(y, axis=1, keepdims=True)),
    ],
)
def test_activations(activation, wanted):
    for dtype in (np.float32, np.float64):
        y = nn.Dense(W, activation=activation)(X.astype(dtype))
        assert y.dtype == dtype
        close(y, wanted(X @ W))
    large = nn.Dense(np.eye(2), activation=activation)(np.array([[1e3, -1e3]], np.float32))
    assert np.isfinite(large).all()


def test_low_bit_networks_refuse_what_they_do_not_have():
    rng = np.random.default_rng(2)
    pattern = np.triu(rng.random((N, N)) < 0.5, 1)
    ring = sparse.csr_array((pattern | pattern.T).astype(np.int8))
    for layer, said in (
        (nn.Layer([nn.Dense(W, activation="gelu")], kind="gcn"), "layer 0 ends in gelu"),
        (nn.Layer([nn.Dense(W, then=["relu"])], kind="gcn"), "layer 0 has relu behind its activation"),
        (nn.Layer([nn.Dense(W), nn.Dense(np.eye(2))], kind="gcn"), "layer 0 is followed by 1 linear layer"),
        (nn.Layer([nn.Dense(W)], kind="sage"), "layer 0 has no weights for own features"),
        (nn.Layer([nn.Dense(W, average=2)], kind="gin"), "layer 0 averages 2 groups of columns"),
        (nn.Layer([nn.Dense(W)], kind="gat", attention=GAT), "layer 0 is an attention layer, 'gat'"),
        (nn.Layer([nn.Dense(W)], OWN, kind="sage", neighbours=nn.Neighbours("max")), "layer 0 gathers with Neighbours"),
    ):
        with pytest.raises(ValueError, match=f"quantize_network: {said}"):
            nn.quantize_network(nn.Network(layer.kind, [layer]), ring, X)
    plain = nn.Layer([nn.Dense(W)], kind="gcn", neighbours=nn.Neighbours("sum", True, 1.0, weighted=False))
    assert nn.quantize_network(nn.Network("gcn", [plain]), ring, X).kind == "gcn"


def test_a_network_over_a_graph_is_that_over_its_adjacency() -> None:
    rng = np.random.default_rng(0)
    adjacency = sparse.csr_array((rng.random((40, 40)) < 0.1).astype(np.float32))
    adjacency = ((adjacency + adjacency.T) > 0).astype(np.float32)
    adjacency.setdiag(0)
    adjacency.eliminate_zeros()
    x = rng.normal(size=(40, 9)).astype(np.float32)
    for kind, normalisation in (("gcn", "gcn"), ("sage", "mean"), ("gin", "sum")):
        network = nn.random_network(kind, [9, 8, 3])
        graph = nn.Graph(adjacency, normalisation)
        np.testing.assert_allclose(network(graph, x), network(adjacency, x), rtol=1e-4, atol=1e-5)
        features = nn.Features(np.abs(x))
        assert np.array_equal(network(graph, features), network(graph, features.normalized))
    with pytest.raises(ValueError, match="but the graph has normalisation='sum' and self_loops=False"):
        nn.random_network("gcn", [9, 3])(graph, x)
    with pytest.raises(ValueError, match="self_loops=True"):
        nn.random_network("sage", [9, 3])(nn.Graph(adjacency, "mean", self_loops=True), x)


def test_a_gcn_over_a_directed_graph_is_that_over_its_adjacency() -> None:
    rng = np.random.default_rng(5)
    adjacency = sparse.csr_array(np.triu(rng.random((40, 40)) < 0.15, -2).astype(np.float32))
    x = rng.normal(size=(40, 9)).astype(np.float32)
    graph = nn.Graph(adjacency)
    wanted = normed(adjacency.toarray() != 0, adjacency.toarray(), 1.0)
    np.testing.assert_allclose(graph.matrix.toarray(), wanted, rtol=1e-6)
    assert np.abs(wanted - normed(adjacency.toarray().T != 0, adjacency.toarray().T, 1.0).T).max() > 0.1
    network = nn.random_network("gcn", [9, 8, 3])
    np.testing.assert_allclose(network(graph, x), network(adjacency, x), rtol=1e-4, atol=1e-5)
    bare = nn.Graph(adjacency, self_loops=False).matrix.toarray()
    np.testing.assert_allclose(bare, normed(adjacency.toarray() != 0, adjacency.toarray(), None), rtol=1e-6)


def attention_networks() -> list[nn.Network]:
    """Return a GAT and an AGNN of two layers each and a GATv2 of one, for 9 features and 3 classes."""
    rng = np.random.default_rng(4)
    heads = [nn.Attention(*rng.normal(size=(2, 2, columns))) for columns in (4, 3)]
    first = nn.Layer([nn.Dense(rng.normal(size=(9, 8)), rng.normal(size=8), activation="elu")], attention=heads[0])
    last = nn.Layer([nn.Dense(rng.normal(size=(8, 6)), rng.normal(size=3), average=2)], attention=heads[1])
    agnn = [nn.Layer([nn.Dense(rng.normal(size=shape))], beta=1.5) for shape in ((9, 8), (8, 3))]
    receive = nn.Dense(rng.normal(size=(9, 6)), rng.normal(size=6))
    second = nn.Attention(rng.normal(size=(2, 3)), None, receive, rng.normal(size=6), 0.5)
    gatv2 = nn.Layer([nn.Dense(rng.normal(size=(9, 6)))], attention=second)
    return [nn.Network("gat", [first, last]), nn.Network("agnn", agnn), nn.Network("gatv2", [gatv2])]


def test_attention_over_a_directed_graph_is_that_over_its_adjacency() -> None:
    rng = np.random.default_rng(5)
    adjacency = sparse.csr_array(np.triu(rng.random((40, 40)) < 0.15, -2).astype(np.float32))
    x = rng.normal(size=(40, 9)).astype(np.float32)
    for network in attention_networks():
        wanted = network(adjacency, x)
        assert np.abs(network(sparse.csr_array(adjacency.T), x) - wanted).max() > 0.1
        for normalisation in ("gcn", "mean", "sum"):  # none of these changes the pattern
            assert np.array_equal(network(nn.Graph(adjacency, normalisation, self_loops=True), x), wanted)
        graph = nn.Graph(adjacency, network.normalisation, self_loops=network.self_loops)
        assert np.array_equal(network(graph, x), wanted)
        with pytest.raises(ValueError, match=r"has self_loops=False; pass nn\.Graph\(adjacency, self_loops=True\)"):
            network(nn.Graph(adjacency, "sum"), x)


def test_products_take_batch_norm_into_the_weights() -> None:
    rng = np.random.default_rng(1)
    adjacency = sparse.csr_array((rng.random((30, 30)) < 0.2).astype(np.float32))
    x = rng.normal(size=(30, 6)).astype(np.float32)
    for kind, normalisation in (("gcn", "gcn"), ("sage", "mean")):
        network = nn.random_network(kind, [6, 5, 4, 3], batch_norm=True)
        matrix, hidden = nn.Graph(adjacency, normalisation).matrix, x
        for i, (own, weight, bias) in enumerate(network.products("test")):
            z = matrix @ (hidden @ weight) + bias + (0 if own is None else hidden @ own)
            hidden = z if i == 2 else np.maximum(z, 0)
        np.testing.assert_allclose(hidden, network(nn.Graph(adjacency, normalisation), x), rtol=1e-4, atol=1e-5)
    for other, message in (("gin", "it is a gin"), ("tanh", "layer 0 ends in tanh")):
        first = nn.Dense(np.eye(6), activation="tanh")
        wrong = nn.random_network("gin", [6, 3]) if other == "gin" else nn.Network("gcn", [nn.Layer([first])] * 2)
        with pytest.raises(ValueError, match=message):
            wrong.products("test")


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
def test_a_network_leaves_what_it_is_given(kind: Any) -> None:
    rng = np.random.default_rng(0)
    a, x = sparse.csr_array(rng.random((30, 30)) < 0.2), rng.standard_normal((30, 6)).astype(np.float32)
    network, before = nn.random_network(kind, [6, 5, 4], seed=1), x.copy()
    first = network(a, x)
    assert np.array_equal(network(a, x), first) and np.array_equal(x, before)
    dense = network.layers[0].updates[0]
    y = rng.standard_normal((30, 5)).astype(np.float32)
    before = y.copy()
    after = dense.finish(y)
    assert np.array_equal(y, before) and not np.array_equal(after, y)
    assert np.array_equal(dense.finish(y, in_place=True), after)

"""Networks in full precision against their definitions, written out on dense arrays in float64: weights, directions and self loops."""

from __future__ import annotations

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
    """A directed graph with self loops, nodes without edges and, perhaps, weights: as positions, and as a scipy array."""
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    stored = rng.random((N, N)) < draw(st.sampled_from([0.0, 0.1, 0.3, 0.9]))
    values = rng.uniform(0.0, 3.0, (N, N)) if weights else np.ones((N, N))
    rows, cols = np.nonzero(stored)
    order = rng.permutation(rows.size)  # entries in any order
    made = sparse.coo_array((values[stored][order], (rows[order], cols[order])), shape=(N, N))
    form = draw(st.sampled_from(["csr", "csc", "coo"]))
    return stored, np.where(stored, values, 0.0), made.asformat(form)


def normed(stored, values, loop):
    """gcn_norm of PyTorch Geometric: remaining self loops, degrees of the edges that arrive, 0 where there are none."""
    held = values.copy()
    if loop is not None:
        held[np.diag(~np.diag(stored))] += loop
    degrees = held.sum(axis=1)
    root = np.where(degrees > 0, 1 / np.sqrt(np.where(degrees > 0, degrees, 1)), 0)
    return root[:, None] * held * root


def close(got, wanted):
    assert np.abs(got - wanted).max(initial=0) <= 1e-5 * max(1.0, np.abs(wanted).max(initial=0))


X = np.random.default_rng(0).normal(size=(N, 3))
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


def test_arguments_that_do_not_fit_are_named():
    gcn, ring = nn.Network("gcn", [nn.Layer([nn.Dense(W)])]), sparse.csr_array(np.roll(np.eye(N), 1, axis=1))
    for adjacency, x, error, said in (
        (ring, X[:, :2], bs.ShapeError, r"x has shape \(9, 2\), but the network reads \(n, 3\)"),
        (ring, X[0], bs.ShapeError, r"x has shape \(3,\)"),
        (ring, X[:5], bs.ShapeError, "adjacency has 9 nodes but x has 5 rows"),
        (ring[:4], X[:4], bs.ShapeError, r"adjacency has shape \(4, 9\)"),
        (ring.toarray(), X, bs.DTypeError, "adjacency must be a scipy.sparse array, got ndarray"),
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
    largest = nn.Network("sage", [nn.Layer([nn.Dense(W)], kind="sage", neighbours=nn.Neighbours("max"))])
    with pytest.raises(bs.DTypeError, match=r"needs dense features, got csr_array; pass x\.toarray"):
        largest(ring, sparse.csr_array(X))


def test_descriptions_that_contradict_themselves_are_named():
    dense = nn.Dense(W)
    mixed = nn.Network("mixed", [nn.Layer([dense], kind="gin")])
    for make, said in (
        (lambda: nn.Network("gcn", [nn.Layer([dense], own=OWN)]), "own goes with kind 'sage' only"),
        (lambda: nn.Network("sage", [nn.Layer([dense])]), "lacks weights `own`"),
        (lambda: nn.Network("sage", [nn.Layer([dense], own=OWN, eps=0.5)]), "eps goes with kind 'gin' only"),
        (lambda: nn.Network("gcn", [nn.Layer([dense], kind="gin")]), "of kind 'gin' in a network of kind 'gcn'"),
        (lambda: nn.Network("mixed", [nn.Layer([dense])]), "layer 0 has no kind"),
        (lambda: mixed.self_loops, "a mixed network has no self_loops"),
        (lambda: nn.Layer([dense], kind="dense", neighbours=nn.Neighbours()), "got kind 'dense'"),
        (lambda: nn.Layer([dense], project=nn.Dense(W), kind="sage"), "takes and gives 3 features"),
        (lambda: nn.Neighbours("max", weighted=True), "go with reduce='sum'"),
        (lambda: nn.Dense(W, activation="swish"), "activation must be one of"),
        (lambda: nn.Dense(W, then=["swish"]), "then must be one of"),
        (lambda: nn.Dense(W, then=[nn.LayerNorm(np.ones(3))]), "LayerNorm.weight has 3 values"),
        (lambda: nn.Dense(W, then=[bs.BatchNorm(np.ones(3), np.ones(3))]), r"batch_norm has shape \(3,\)"),
        (lambda: nn.Dense(W * np.nan), "Dense: weight holds NaN"),
    ):
        with pytest.raises(ValueError, match=said):
            make()
    with pytest.raises(bs.DTypeError, match="then holds int"):
        nn.Dense(W, then=[3])


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

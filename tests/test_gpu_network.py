"""Full-precision networks on a GPU must give the host's results, also over directed graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

import bitsparse as bs
from bitsparse import nn

pytestmark = pytest.mark.gpu
NODES = 70


def networks() -> dict[str, tuple[nn.Network, nn.Graph]]:
    """Return networks of 12 features and 3 classes, each with a directed graph; one row, one column and one node have no edges."""
    rng = np.random.default_rng(0)

    def dense(*shape: int, **how: Any) -> nn.Dense:
        return nn.Dense(rng.normal(size=shape), rng.normal(size=shape[1] // how.get("average", 1)), **how)

    def heads(count: int, channels: int, **how: Any) -> nn.Attention:
        return nn.Attention(*rng.normal(size=(2, count, channels)), **how)

    stored = rng.random((NODES, NODES)) < 0.08
    stored[3] = stored[:, 5] = stored[9] = stored[:, 9] = False
    pattern = sparse.csr_array(stored.astype(np.float32))
    own, plain = rng.normal(size=(12, 8)), nn.Neighbours("softmax")
    norms = bs.BatchNorm(*rng.uniform(0.5, 1.0, (4, 8))), nn.LayerNorm(np.ones(8), None, 1e-3, "graph"), nn.LayerNorm()
    acts = ("leaky_relu", "sigmoid", "silu", "gelu", "tanh", "elu", "l2_normalize", "log_softmax")
    gat = [
        nn.Layer([dense(12, 8, activation="elu")], own, attention=heads(4, 2)),
        nn.Layer([dense(8, 6, average=2)], rng.normal(size=(8, 3)), attention=heads(2, 3, negative_slope=0.5)),
    ]
    second = nn.Attention(rng.normal(size=(2, 3)), None, dense(12, 6), rng.normal(size=6))
    gatv2 = nn.Layer([dense(12, 6, average=2)], attention=second)
    mixed = [
        nn.Layer([dense(12, 8, activation="relu", then=norms)], kind="dense"),
        nn.Layer([nn.Dense(np.eye(8))], kind="agnn", beta=2.0),
        nn.Layer([dense(8, 8, activation="relu")], kind="gat", attention=heads(1, 8)),
        nn.Layer([dense(8, 3, then=acts)], kind="gcn"),
    ]
    plain_sum = nn.Layer([dense(12, 3)], kind="sage", neighbours=nn.Neighbours("sum"))
    kinds = {kind: nn.random_network(kind, [12, 8, 3], batch_norm=True) for kind in ("gcn", "sage", "gin")}
    alone = nn.Layer([dense(12, 3)], attention=heads(1, 3), kind="gat", neighbours=plain)
    return {
        **{kind: (network, nn.Graph(pattern, network.normalisation)) for kind, network in kinds.items()},
        "gat": (nn.Network("gat", gat), nn.Graph(pattern, "sum", self_loops=True)),
        "gatv2": (nn.Network("gatv2", [gatv2]), nn.Graph(pattern, "sum", self_loops=True)),
        "without loops": (nn.Network("gat", [alone]), nn.Graph(pattern, "sum")),
        "mixed": (nn.Network("mixed", mixed), nn.Graph(pattern)),
        "sum": (nn.Network("sage", [plain_sum]), nn.Graph(pattern, "sum")),
    }


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat", "gatv2", "without loops", "mixed", "sum"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
def test_results_are_the_hosts(name: str, dtype: Any) -> None:
    import cupy

    network, graph = networks()[name]
    x = (3 * np.random.default_rng(1).normal(size=(NODES, 12))).astype(dtype)
    wanted, there = network(graph, x), graph.to_device("cuda")
    for _ in range(2):
        got = network(there, cupy.asarray(x))
        assert isinstance(got, cupy.ndarray)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got.get(), wanted, rtol=1e-5, atol=2e-5 * max(1.0, float(np.abs(wanted).max())))
    assert np.array_equal(network(there, cupy.asarray(x)).get(), got.get())


def test_graph_and_features_lie_together() -> None:
    import cupy

    network, graph = networks()["gat"]
    x, there = np.ones((NODES, 12), np.float32), graph.to_device("cuda")
    for adjacency, features, said in (
        (there, x, "x is on cpu but the graph on cuda:0; pass x as it lies there"),
        (graph, cupy.asarray(x), "x is on cuda:0 but the graph on cpu; pass an nn.Graph with device='cuda:0'"),
        (graph.pattern, cupy.asarray(x), "x is on cuda:0 but the adjacency on cpu"),
    ):
        with pytest.raises(bs.DeviceError, match=f"Network: {said}"):
            network(adjacency, features)

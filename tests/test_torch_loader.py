"""Batches and sampled edges in PyTorch: features as they were, networks as on the whole graph, sums that are right on average."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

torch: Any = pytest.importorskip("torch")

import bitsparse as bs  # noqa: E402
import bitsparse.torch as bst  # noqa: E402
from bitsparse import graph as graphs  # noqa: E402
from bitsparse.errors import ShapeError  # noqa: E402

NODES, INPUTS = 90, 11


def adjacency(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    dense = rng.random((NODES, NODES)) < rng.random((NODES, 1)) ** 3 * 0.6
    dense[::9] = False
    return sp.csr_array((dense | dense.T) & ~np.eye(NODES, dtype=bool))


def features() -> Any:
    return torch.randn(NODES, INPUTS, generator=torch.Generator().manual_seed(0))


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([bst.SAGEConv(INPUTS, 8), bst.SAGEConv(8, 3)])

    def forward(self, x: Any, of: Any) -> Any:
        for number, layer in enumerate(self.layers):
            graph = of[number]
            x = layer((x, x[: graph.num_targets]), graph)
            x = x if number else x.relu()
        return x


def test_all_neighbours_give_what_the_whole_graph_gives() -> None:
    csr, x, labels = adjacency(), features(), torch.arange(NODES) % 3
    torch.manual_seed(0)
    net, whole = Network(), bst.Graph(csr)
    want = net(x, [whole, whole])
    torch.nn.functional.cross_entropy(want, labels, reduction="sum").backward()
    gradients = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    loader = bst.BatchLoader(graphs.NeighborSampler(csr, [-1, -1], batch_size=32), x, labels, threads=2)
    for batch in loader:
        made = net(batch.x, batch.graphs)
        torch.testing.assert_close(made, want[batch.targets])
        torch.testing.assert_close(batch.x, x[batch.nodes])
        torch.testing.assert_close(batch.labels, labels[batch.targets])
        torch.nn.functional.cross_entropy(made, batch.labels, reduction="sum").backward()
    for parameter, gradient in zip(net.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("granularity", ["tensor", "col", "row"])
@pytest.mark.parametrize("bits", [8, 4, 1])
def test_packed_features_arrive_as_what_they_stand_for(bits: int, granularity: Any) -> None:
    codes = bs.quantize(features(), bits, granularity=granularity, layout="rows")
    loader = bst.BatchLoader(graphs.NeighborSampler(adjacency(), [3], batch_size=40), codes, threads=0)
    whole = codes.dequantize()
    for batch in loader:
        assert torch.equal(batch.x, torch.as_tensor(whole)[batch.nodes])
    # What waits in memory and travels is packed.
    assert loader._features["x"].part.nbytes == codes.words.nbytes < NODES * INPUTS * 4 + 16 * NODES


def test_epochs_count_on_and_repeat() -> None:
    def run(threads: int, epoch: int) -> list[list[int]]:
        loader = bst.BatchLoader(graphs.NeighborSampler(adjacency(), [2, 2], batch_size=30, seed=1), threads=threads)
        loader.epoch = epoch
        first = [batch.nodes.tolist() for batch in loader]
        return first + [batch.nodes.tolist() for batch in loader]

    assert run(0, 0) == run(3, 0)
    assert run(1, 0)[3:] == run(2, 1)[:3]
    assert run(1, 0)[:3] != run(1, 0)[3:]


def test_subgraphs_have_their_weights() -> None:
    sampler = graphs.SaintSampler(adjacency(), "node", 30, seed=0)
    for made, batch in zip(bst.BatchLoader(sampler, features()), sampler, strict=True):
        (block,) = batch.blocks
        x = features()[made.nodes]
        want = torch.from_numpy(block.tocsr() @ x.numpy())
        torch.testing.assert_close(bst.spmm(made.graph(1), x), want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(made.weight, torch.from_numpy(batch.weight))


@pytest.mark.pyg
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch_geometric", "ignore:.*torch.jit:DeprecationWarning")
def test_batches_of_pytorch_geometric_are_graphs() -> None:
    from torch_geometric.data import Data

    csr = sp.coo_array(adjacency())
    part = Data(x=features(), edge_index=torch.from_numpy(np.stack([csr.col, csr.row]).astype(np.int64)))
    part.batch_size = 10
    made = bst.spmm(bst.Graph(part), part.x)
    torch.testing.assert_close(made, torch.from_numpy(adjacency() @ features().numpy()), rtol=1e-4, atol=1e-4)


def test_refusals() -> None:
    sampler = graphs.NeighborSampler(adjacency(), [2])
    with pytest.raises(ShapeError, match="has 90 nodes"):
        bst.BatchLoader(sampler, features()[:-1])
    with pytest.raises(ShapeError, match="has 90 nodes"):
        bst.BatchLoader(sampler, None, torch.arange(4))
    with pytest.raises(ValueError, match="repack"):
        bst.BatchLoader(sampler, bs.quantize(features(), 8))
    with pytest.raises(bs.DTypeError, match="a sampler"):
        bst.BatchLoader([1, 2])
    learns = features().requires_grad_()
    with pytest.raises(ValueError, match=r"x requires a gradient.*x\.detach\(\)"):
        bst.BatchLoader(sampler, learns)
    with torch.no_grad():
        assert not next(iter(bst.BatchLoader(sampler, learns))).x.requires_grad


# ---- sampled edges
def test_rows_of_lazy_negatives_and_conjugates() -> None:
    x = torch.arange(24.0).reshape(8, 3)
    sampler = bs.graph.NeighborSampler(np.eye(8), [1], batch_size=8, shuffle=False)
    for lazy in (torch._neg_view(x), torch.complex(x, x).conj()):
        (batch,) = pickle.loads(pickle.dumps(bst.BatchLoader(sampler, lazy)))
        assert torch.equal(batch.x, lazy)
    with pytest.raises(bs.DTypeError, match=r"BatchLoader: x is a torch\.sparse_coo tensor"):
        bst.BatchLoader(sampler, x.to_sparse())


def test_samples_are_numbered_by_integers_of_every_library() -> None:
    whole = bst.Graph(torch.randint(8, (2, 40), generator=torch.Generator().manual_seed(0)), 8)
    want = bst.SampledGraph(whole, 2, seed=3, step=5)
    for kind in (np.int64, np.uint8, torch.tensor):
        found = bst.SampledGraph(whole, kind(2), seed=kind(3), step=kind(5))
        assert torch.equal(found.indices, want.indices) and torch.equal(found.weight, want.weight)
    for name in ("seed", "step"):
        with pytest.raises(ValueError, match=f"SampledGraph: {name} must be in"):
            bst.SampledGraph(whole, 2, **{name: -1})


@pytest.mark.parametrize("form", ["plain", "weighted", "gcn"])
def test_sampled_sums_are_right_on_average(form: str) -> None:
    csr = adjacency().astype(np.float32)
    if form == "weighted":
        csr.data = np.random.default_rng(2).random(csr.nnz, dtype=np.float32) + 0.5
    full = bst.Graph(csr)
    full = full.normalized() if form == "gcn" else full
    x, steps = features().double(), 1000
    for reduce in ("sum", "mean") if form == "plain" else ("sum",):
        want = bst.spmm(full, x, reduce=reduce)
        found = torch.stack([bst.spmm(bst.SampledGraph(full, 3, step=i), x, reduce=reduce) for i in range(steps)])
        error = found.std(dim=0) / steps**0.5
        # 990 sums; five standard errors are beyond chance.
        assert ((found.mean(dim=0) - want).abs() <= 5 * error + 1e-6 * want.abs()).all()
        assert bool((error > 0).any())


def test_sampled_graphs_go_through_layers_as_whole_ones_do() -> None:
    full, x = bst.Graph(adjacency()), features()
    longest = int((full.indptr[1:] - full.indptr[:-1]).max())
    for layer in (bst.GCNConv(INPUTS, 4), bst.SAGEConv(INPUTS, 4), bst.GINConv(torch.nn.Linear(INPUTS, 4))):
        everything = bst.SampledGraph(full, longest + 1, step=1)
        torch.testing.assert_close(layer(x, everything), layer(x, full), rtol=1e-4, atol=1e-4)
        one, same = (layer(x, bst.SampledGraph(full, 2, seed=5, step=7)) for _ in range(2))
        assert torch.equal(one, same)
        assert not torch.equal(one, layer(x, bst.SampledGraph(full, 2, seed=5, step=8)))
    some = bst.SampledGraph(full, 2)
    for kind in (bst.GATConv, bst.GATv2Conv, lambda *_, **loops: bst.AGNNConv(**loops)):
        for loops in (True, False):
            with pytest.raises(ValueError, match="attention weighs edges"):
                kind(INPUTS, 4, add_self_loops=loops)(x, some)
    for reduce in ("max", "min"):
        with pytest.raises(ValueError, match="maxima and minima need every edge"):
            bst.SAGEConv(INPUTS, 4, aggr=reduce)(x, some)
    with pytest.raises(bs.DTypeError, match="SampledGraph: graph is a csr_array; pass a Graph"):
        bst.SampledGraph(adjacency(), 2)


def test_the_gradients_variance_is_reported_beside_the_exact_one() -> None:
    full, x = bst.Graph(adjacency()), features()
    weight = torch.randn(INPUTS, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def loss(graph: Any) -> Any:
        return (bst.spmm(graph, x @ weight) * torch.arange(3)).mean()

    found = {width: bst.sampled_gradient(loss, [weight], full, width, steps=200) for width in (1, 4, 1000)}
    exact = torch.autograd.grad(loss(full), weight)[0].norm()
    for one in found.values():
        assert one.exact == pytest.approx(float(exact), rel=1e-6)
        assert one.bias <= 4 * one.bias_error + 1e-6
    assert found[1].deviation > found[4].deviation > found[1000].deviation
    assert found[1000].deviation < 1e-6
    assert weight.grad is None


def test_training_on_sampled_edges_learns() -> None:
    """The clusters of a graph, from a few edges a step."""
    labels = torch.arange(NODES) % 3
    rng = np.random.default_rng(0)
    dense = rng.random((NODES, NODES)) < np.where(labels[:, None] == labels[None], 0.4, 0.02)
    full, x = bst.Graph(sp.csr_array(dense | dense.T)), torch.eye(NODES)
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([bst.GCNConv(NODES, 8), bst.GCNConv(8, 3)])
    optimiser = torch.optim.Adam(layers.parameters(), lr=0.05)
    for step in range(60):
        graph = bst.SampledGraph(full, 4, step=step)
        optimiser.zero_grad()
        y = layers[1](layers[0](x, graph).relu(), graph)
        torch.nn.functional.cross_entropy(y[::2], labels[::2]).backward()
        optimiser.step()
    y = layers[1](layers[0](x, full).relu(), full)
    assert (y.argmax(dim=1) == labels)[1::2].float().mean() > 0.9


def test_it_is_no_part_of_the_whole_graphs_state() -> None:
    full = bst.Graph(adjacency())
    before = set(full.state_dict())
    made = bst.SampledGraph(full, 2)
    made.normalized()
    assert {name for name in full.state_dict() if not name.startswith("gcn")} == before
    assert not any("_whole" in name for name in itertools.chain(made.state_dict(), dict(made.named_modules())))

"""Samplers against brute force: the bits of plain Python, the right distributions, and the same batches for any number of threads."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats

import bitsparse as bs
from bitsparse import errors, graph
from bitsparse.backends.host.sampling import subgraphs as host
from bitsparse.backends.reference.sampling import subgraphs as reference
from bitsparse.graph.samplers import made_ahead


def random_csr(rows: int, columns: int, seed: int = 0, dtype: Any = np.int32) -> Any:
    """Return a CSR pattern with rows of very different lengths, some empty and one full."""
    rng = np.random.default_rng(seed)
    dense = rng.random((rows, columns)) < rng.random((rows, 1)) ** 3
    dense[::5] = False
    dense[1 % rows] = True
    csr = sp.csr_array(dense)
    csr.sort_indices()
    return csr.indptr.astype(dtype), csr.indices.astype(dtype)


def place(columns: int) -> Any:
    return np.full(columns, -1, np.int32)


def same(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("width", [-1, 0, 1, 3, 33, 60])
@pytest.mark.parametrize("shape", [(40, 40), (40, 150), (30, 7), (1, 1)])
def test_a_hop_has_the_bits_of_plain_python(shape: tuple[int, int], width: int, dtype: Any) -> None:
    indptr, indices = random_csr(*shape, dtype=dtype)
    rng = np.random.default_rng(1)
    own = shape[0] == shape[1]
    for count, stream in ((0, 0), (1, 5), (shape[0], 2**32 - 1)):
        targets = rng.permutation(shape[0])[:count].astype(np.int64)
        scratch = place(shape[1])
        given = {"width": width, "own": own, "seed": 2**63 + 7, "stream": stream}
        found = host.hop(indptr, indices, shape[1], targets, place=scratch, **given)
        same(found, reference.hop(indptr, indices, shape[1], targets, place=scratch, **given))
        assert (scratch == -1).all()


def test_induced_walks_and_numbers_have_the_bits_of_plain_python() -> None:
    indptr, indices = random_csr(40, 40)
    for nodes in (np.arange(0), np.arange(40), np.arange(1, 40, 3)):
        found = host.induced(indptr, indices, 40, nodes.astype(np.int64), place=place(40))
        same(found, reference.induced(indptr, indices, 40, nodes.astype(np.int64), place=place(40)))
    roots = np.array([0, 1, 39, 1], np.int64)
    for length in (0, 1, 6):
        given: Any = {"seed": 3, "stream": 9}
        one = host.walks(indptr, indices, 40, roots, length, **given)
        np.testing.assert_array_equal(one, reference.walks(indptr, indices, 40, roots, length, **given))
    for limit in (1, 10, 2**62):
        one = host.below(limit, 101, seed=5, stream=1)
        np.testing.assert_array_equal(one, reference.below(limit, 101, seed=5, stream=1))


def test_every_set_of_neighbours_is_as_likely() -> None:
    """All 20 sets of 3 out of 6 neighbours must be equally likely; an error in Floyd's algorithm shows in pairs, not in single counts."""
    indptr, indices = np.array([0, 6]), np.arange(6)
    counts = dict.fromkeys(itertools.combinations(range(6), 3), 0)
    for seed in range(8000):
        given: Any = {"width": 3, "own": False, "seed": seed, "stream": 0, "place": place(6)}
        sources, _, columns, edges = host.hop(indptr, indices, 6, np.array([0]), **given)
        np.testing.assert_array_equal(sources[columns], indices[edges])
        counts[tuple(sorted(edges.tolist()))] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_many_neighbours_are_distinct_and_even() -> None:
    """Neighbours must be distinct and evenly drawn, also beyond the few that are compared one by one."""
    indptr, indices = np.array([0, 300]), np.arange(300)
    counts = np.zeros(300)
    for seed in range(600):
        given: Any = {"width": 100, "own": False, "seed": seed, "stream": 1, "place": place(300)}
        edges = host.hop(indptr, indices, 300, np.array([0]), **given)[3]
        assert np.unique(edges).size == 100
        counts[edges] += 1
    # Each count is binomial with n = 600 and p = 1/3, and the sum of all counts is fixed.
    assert stats.chi2.sf(((counts - 200) ** 2).sum() / (600 * 2 / 9) * 299 / 300, 299) > 1e-4


def ring_and_hub(nodes: int = 30) -> Any:
    """Return a graph with a ring, a node that all others lead to, and two nodes without edges."""
    dense = np.roll(np.eye(nodes), 1, axis=1)
    dense[3, : nodes - 2] = 1
    dense[-2:], dense[:, -2:] = 0, 0
    return sp.csr_array(dense)


def check_batch(adjacency: Any, batch: Any) -> None:
    """Require that blocks hold edges of the graph, and that their numbers lead back to it."""
    dense = adjacency.toarray()
    coo = sp.coo_array(adjacency.tocsr())
    targets = batch.targets
    for block in reversed(batch.blocks):
        assert block.shape[0] == targets.size
        rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
        sources = batch.nodes[: block.shape[1]]
        np.testing.assert_array_equal(sources[: targets.size], targets)
        assert (dense[targets[rows], sources[block.indices]] != 0).all()
        np.testing.assert_array_equal(coo.row[block.edges], targets[rows])
        np.testing.assert_array_equal(coo.col[block.edges], sources[block.indices])
        for start, end in itertools.pairwise(block.indptr):
            assert (np.diff(block.indices[start:end]) > 0).all()
        targets = sources
    assert targets.size == batch.nodes.size
    assert np.unique(batch.nodes).size == batch.nodes.size


def test_neighbours_of_a_graph() -> None:
    adjacency = ring_and_hub()
    sampler = graph.NeighborSampler(adjacency, [2, 3, -1], batch_size=7, seed=4)
    seen = []
    for epoch in (0, 1):
        batches = [sampler.batch(epoch, number) for number in range(len(sampler))]
        for batch in batches:
            check_batch(adjacency, batch)
            last = batch.blocks[-1]
            degrees = np.diff(adjacency.indptr)[batch.targets]
            np.testing.assert_array_equal(np.diff(last.indptr), np.minimum(degrees, 2))
        order = np.concatenate([batch.targets for batch in batches])
        np.testing.assert_array_equal(np.sort(order), np.arange(30))
        seen.append(order)
    assert (seen[0] != seen[1]).any()
    plain = graph.NeighborSampler(adjacency, [1], [5, 2, 9], batch_size=2, shuffle=False)
    assert [batch.targets.tolist() for batch in plain] == [[5, 2], [9]]


def test_orders_of_epochs_are_even() -> None:
    """All 24 orders of four nodes must be equally likely."""
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    sampler = graph.NeighborSampler(np.eye(4), [1], batch_size=4, seed=1)
    for epoch in range(6000):
        counts[tuple(sampler.batch(epoch, 0).targets.tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_a_bipartite_graph_is_sampled_once() -> None:
    adjacency = sp.csr_array(np.random.default_rng(0).random((9, 21)) < 0.4)
    (batch,) = graph.NeighborSampler(adjacency, [2], batch_size=9, shuffle=False)
    (block,) = batch.blocks
    rows = np.repeat(batch.targets, np.diff(block.indptr))
    assert adjacency.toarray()[rows, batch.nodes[block.indices]].all()
    assert block.shape == (9, batch.nodes.size)
    with pytest.raises(errors.ShapeError, match="as many rows as columns"):
        graph.NeighborSampler(adjacency, [2, 2])


@pytest.mark.parametrize("kind", ["node", "edge", "walk"])
def test_coverage_is_that_of_many_batches(kind: Any) -> None:
    """The coverage, known for nodes and edges and counted for walks, must agree within chance with batches that were not counted."""
    adjacency = ring_and_hub(16)
    sampler = graph.SaintSampler(adjacency, kind, 4, length=2, batches=4000, seed=2, counted=4000)
    node, edge = sampler.coverage()
    nodes, edges = np.zeros(16), np.zeros(adjacency.nnz)
    for batch in sampler:
        check_batch(adjacency, batch)
        nodes[batch.nodes] += 1
        edges[batch.blocks[0].edges] += 1
        if batch.nodes.size:
            np.testing.assert_allclose(batch.weight, 1 / (16 * node[batch.nodes]), rtol=1e-6)
    for known, counted in ((node, nodes), (edge, edges)):
        spread = np.sqrt(np.maximum(known * (1 - known), 1e-3) / 4000) * (2**0.5 if kind == "walk" else 1)
        assert (np.abs(counted / 4000 - known) < 5 * spread)[counted > 0].all()
        assert (known[counted == 0] < 0.004).all()


def test_saint_sums_are_right_on_average() -> None:
    """Sums over neighbours, in batches that contain the target, and the mean of losses must be right on average."""
    adjacency = ring_and_hub(12)
    x = np.random.default_rng(0).standard_normal(12)
    sampler = graph.SaintSampler(adjacency, "node", 6, batches=6000, seed=1)
    total, met, losses = np.zeros(12), np.zeros(12), []
    for batch in sampler:
        total[batch.nodes] += batch.blocks[0].tocsr() @ x[batch.nodes]
        met[batch.nodes] += 1
        losses.append(float((batch.weight * x[batch.nodes] ** 2).sum()))
    often = met > 300
    assert often.sum() >= 8
    np.testing.assert_allclose((total / np.maximum(met, 1))[often], (adjacency @ x)[often], atol=0.35)
    error = np.std(losses) / len(losses) ** 0.5
    seen = node_share(sampler) > 1e-6
    assert abs(np.mean(losses) - (x[seen] ** 2).sum() / 12) < 4 * error


def node_share(sampler: Any) -> Any:
    return sampler.coverage()[0]


def test_clusters_are_whole_and_every_one_comes_once() -> None:
    adjacency, labels = ring_and_hub(20), np.array([7, 1, 4, 1] * 5)
    sampler = graph.ClusterSampler(adjacency, labels, 2, seed=3)
    for epoch in (0, 1):
        batches = [sampler.batch(epoch, number) for number in range(len(sampler))]
        assert len(batches) == 2
        for batch in batches:
            check_batch(adjacency, batch)
            wanted = adjacency.toarray()[np.ix_(batch.nodes, batch.nodes)]
            np.testing.assert_array_equal(batch.blocks[0].tocsr().toarray(), wanted)
            for part in np.unique(labels[batch.nodes]):
                assert np.isin(np.flatnonzero(labels == part), batch.nodes).all()
        np.testing.assert_array_equal(np.sort(np.concatenate([batch.nodes for batch in batches])), np.arange(20))


@pytest.mark.parametrize("kind", ["neighbours", "node", "edge", "walk", "cluster"])
def test_any_number_of_threads_gives_the_same_batches(kind: Any) -> None:
    adjacency = ring_and_hub(60)

    def make() -> Any:
        if kind == "neighbours":
            return graph.NeighborSampler(adjacency, [3, 2], batch_size=8, seed=5)
        if kind == "cluster":
            return graph.ClusterSampler(adjacency, np.arange(60) % 9, 2, seed=5)
        return graph.SaintSampler(adjacency, kind, 9, seed=5)

    want = list(graph.ahead(make(), 3, threads=0))
    for threads, depth in ((1, 1), (4, 9)):
        found = list(graph.ahead(make(), 3, threads=threads, depth=depth))
        assert len(found) == len(want) > 1
        for one, other in zip(found, want, strict=True):
            np.testing.assert_array_equal(one.nodes, other.nodes)
            for block, wanted in zip(one.blocks, other.blocks, strict=True):
                np.testing.assert_array_equal(block.indices, wanted.indices)
                np.testing.assert_array_equal(block.edges, wanted.edges)
    other = list(
        graph.ahead(type(make())(adjacency, [3, 2], batch_size=8, seed=6) if kind == "neighbours" else make(), 4)
    )
    assert any(a.nodes.tolist() != b.nodes.tolist() for a, b in zip(other, want, strict=True))


@pytest.mark.parametrize("copied", [lambda made: pickle.loads(pickle.dumps(made)), copy.copy, copy.deepcopy])
def test_copies_make_the_same_batches(copied: Any) -> None:
    adjacency = ring_and_hub(60)
    for made in (
        graph.NeighborSampler(adjacency, [3, 2], batch_size=8, seed=5),
        graph.ClusterSampler(adjacency, np.arange(60) % 9, 2, seed=5),
        *(graph.SaintSampler(adjacency, kind, 9, seed=5) for kind in ("node", "edge", "walk")),
    ):
        want = [made.batch(1, number) for number in range(2)]  # now the sampler holds memory of this thread
        twin = copied(made)
        for number, batch in enumerate(want):
            found = twin.batch(1, number)
            np.testing.assert_array_equal(found.nodes, batch.nodes)
            same(*([block.indices for block in one.blocks] for one in (found, batch)))
            assert (found.weight is None) == (batch.weight is None)
            if batch.weight is not None:
                np.testing.assert_array_equal(found.weight, batch.weight)
        assert twin._place is not made._place


def test_threads_are_no_further_ahead_than_asked() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(50):
            taken.append(number)
            yield number

    made = made_ahead(str, items(), 1, 2)
    assert next(made) == "0" and taken == [0, 1, 2]
    assert next(made) == "1" and taken == [0, 1, 2, 3]
    made.close()
    assert len(taken) == 4


def test_threads_end_when_nobody_listens_and_errors_arrive() -> None:
    sampler = graph.NeighborSampler(np.eye(50), [1], batch_size=1)
    made: Any = graph.ahead(sampler, threads=2)
    next(made)
    made.close()

    def fail(batch: Any) -> None:
        raise RuntimeError("from a thread")

    with pytest.raises(RuntimeError, match="from a thread"):
        list(graph.ahead(sampler, threads=2, finish=fail))


@pytest.mark.parametrize("shape", [(0, 0), (5, 5)])
def test_graphs_without_edges_or_nodes(shape: tuple[int, int]) -> None:
    empty = sp.csr_array(shape, dtype=np.float32)
    (*batches,) = graph.NeighborSampler(empty, [2, 2], batch_size=3)
    assert len(batches) == -(-shape[0] // 3)
    for batch in batches:
        assert batch.nodes.tolist() == batch.targets.tolist()
        assert all(block.indices.size == 0 for block in batch.blocks)
    for kind in ("node", "edge", "walk"):
        for batch in graph.SaintSampler(empty, kind, 2):  # type: ignore[arg-type]
            assert batch.blocks[0].indices.size == 0
    assert sum(batch.nodes.size for batch in graph.ClusterSampler(empty, np.zeros(shape[0], int), 1)) == shape[0]


def test_a_batch_of_no_nodes_is_empty() -> None:
    nothing = sp.csr_array((0, 0), dtype=np.float32)
    for sampler in (
        graph.NeighborSampler(nothing, [2]),
        *(graph.SaintSampler(nothing, kind, 2) for kind in ("node", "edge", "walk")),  # type: ignore[arg-type]
        graph.ClusterSampler(nothing, np.empty(0, int)),
    ):
        batch = sampler.batch(0, 0)
        assert len(sampler) == batch.nodes.size == batch.targets.size == 0 and batch.blocks[0].shape == (0, 0)
    assert [part.size for part in graph.SaintSampler(nothing, "walk", 2).coverage()] == [0, 0]


def test_an_order_is_there_for_who_made_it_though_others_ask_for_other_epochs() -> None:
    class Forgetful(dict[int, Any]):
        """Kept orders that other threads discard at once."""

        def __setitem__(self, key: int, value: Any) -> None:
            """Store nothing, as if another thread had cleared it."""

    sampler = graph.NeighborSampler(np.eye(9), [1], batch_size=9, seed=1)
    wanted = sampler.batch(2, 0).targets
    sampler._orders = Forgetful()
    assert np.array_equal(sampler.batch(2, 0).targets, wanted)


def test_refusals() -> None:
    for wrong, said in (([], "fanouts must be"), ([3, 0], "fanouts must be"), ([-2], "fan-out")):
        with pytest.raises(ValueError, match=said):
            graph.NeighborSampler(np.eye(3), wrong)
    with pytest.raises(ValueError, match="repeated"):
        graph.NeighborSampler(np.eye(3), [1], [0, 0])
    with pytest.raises(ValueError, match="has 3"):
        graph.NeighborSampler(np.eye(3), [1], [3])
    with pytest.raises(ValueError, match="kind"):
        graph.SaintSampler(np.eye(3), "edges", 2)  # type: ignore[arg-type]
    with pytest.raises(errors.ShapeError, match="one part for each"):
        graph.ClusterSampler(np.eye(3), [0, 1])
    with pytest.raises(ValueError, match="number"):
        graph.NeighborSampler(np.eye(3), [1]).batch(0, 1)
    with pytest.raises(errors.DTypeError, match="fanouts must be numbers of neighbours, got int"):
        graph.NeighborSampler(np.eye(3), 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batches must be in"):
        graph.SaintSampler(np.eye(3), "node", 2, batches=0)


@pytest.mark.parametrize("edges", [[[0, 1, 2, 3], [1, 2, 3, 0]], [[0, 1], [1, 2]]])
def test_edge_lists_are_no_adjacencies(edges: list[list[int]]) -> None:
    for wrong in (edges, np.array(edges), np.array(edges, np.uint8)):
        with pytest.raises(ValueError, match=r"as edge lists are; pass TCTiledCSR\.from_edge_index"):
            graph.NeighborSampler(wrong, [2])
    if len(edges[0]) > 2:
        with pytest.raises(errors.ShapeError, match=r"pass TCTiledCSR\.from_edge_index"):
            graph.NeighborSampler(np.array(edges), [2, 2])
    for right in (np.array(edges, np.float32), sp.csr_array(np.array(edges)), bs.TCTiledCSR(edges)):
        assert graph.NeighborSampler(right, [2]).shape == (2, len(edges[0]))
    made = bs.TCTiledCSR.from_edge_index(np.array(edges), 4)
    assert graph.NeighborSampler(made, [2]).shape == (4, 4)


def test_bad_buffers_are_refused() -> None:
    indptr, indices = np.array([0, 2]), np.array([0, 5])
    given: Any = {"width": -1, "own": False, "seed": 0, "stream": 0}
    scratch = place(2)
    with pytest.raises(ValueError, match="pattern are not valid"):
        host.hop(indptr, indices, 2, np.array([0]), place=scratch, **given)
    assert (scratch == -1).all()
    with pytest.raises(ValueError, match="pattern are not valid"):
        host.induced(np.array([0, 1, 1]), np.array([1]), 2, np.array([1, 0]), place=scratch)
    with pytest.raises(ValueError, match="pattern are not valid"):
        host.walks(np.array([0, 1]), np.array([3]), 4, np.array([0]), 2, seed=0, stream=0)
    with pytest.raises(ValueError, match="place holds"):
        host.hop(indptr, np.array([0, 1]), 2, np.array([0]), place=place(1), **given)

"""Preparing graphs: partitions, batches, orders, incidence and tile statistics, against definitions written out here."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cases_sparse import PATTERNS, scipy_of

import bitsparse as bs
from bitsparse import graph

SQUARE = ["0x0", "1x1", "identity", "band"]


def two_cliques(size: int = 30) -> sp.csr_array:
    """Return two complete graphs with self loops, joined by one edge."""
    a = np.kron(np.eye(2, dtype=np.int8), np.ones((size, size), np.int8))
    a[0, size] = 1
    return sp.csr_array(a)


def random_graph(n: int = 90, seed: int = 0) -> sp.csr_array:
    rng = np.random.default_rng(seed)
    return sp.csr_array((rng.random((n, n)) < 0.06).astype(np.float32))


# ---- translate
def test_translate_is_the_constructor() -> None:
    a = random_graph()
    made = graph.translate(a, window=8, pattern=True, row_scale=np.ones(90))
    want = bs.TCTiledCSR(a, window=8, pattern=True)
    for name in made.component_names:
        assert np.array_equal(getattr(made, name), getattr(want, name))
    assert made.row_scale is not None


# ---- partition
def test_partition_finds_the_cliques() -> None:
    a = two_cliques()
    for given in (a, bs.FRDC(a), bs.TCTiledCSR(a), bs.BitTensor(a.toarray()), a.toarray()):
        labels = graph.partition(given, 2)
        assert labels.dtype == np.int32
        assert len(set(labels[:30])) == len(set(labels[30:])) == 1
        assert labels[0] != labels[-1]
    assert np.array_equal(graph.partition(a, 2, seed=3), graph.partition(a, 2, seed=3))


@pytest.mark.parametrize("parts", [1, 3, 10])
def test_partition_covers_and_balances(parts: int) -> None:
    labels = graph.partition(random_graph(200), parts)
    assert set(labels) == set(range(parts))
    assert np.bincount(labels).max() <= 1.2 * 200 / parts + 1


def test_partition_without_pymetis_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r"^partition: pymetis is not installed; run: pip install pymetis "):
        graph.partition(random_graph(20), 2)
    assert graph.partition(random_graph(20), 1).tolist() == [0] * 20  # one part needs no cut


def test_partition_without_edges_and_of_nothing() -> None:
    assert graph.partition(sp.csr_array((6, 6)), 3).tolist() == [0, 0, 1, 1, 2, 2]
    assert graph.partition(sp.eye_array(4), 2).tolist() == [0, 0, 1, 1]
    assert graph.partition(sp.csr_array((0, 0)), 1).size == 0
    with pytest.raises(ValueError, match=r"parts must be in 1\.\.6"):
        graph.partition(sp.csr_array((6, 6)), 7)
    with pytest.raises(bs.ShapeError, match="as many rows as columns"):
        graph.partition(sp.csr_array((6, 7)), 2)


# ---- batches
@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("per_batch", [1, 2, 7])
def test_batches_are_induced_subgraphs(between: bool, self_loops: bool, per_batch: int) -> None:
    a, rng = random_graph(), np.random.default_rng(1)
    dense = a.toarray() != 0
    labels = rng.integers(0, 6, 90) * 3  # parts with gaps between their numbers
    x = rng.standard_normal((90, 5)).astype(np.float32)
    batches = list(
        graph.batch(
            bs.FRDC(a, pattern=True), labels, x, parts_per_batch=per_batch, between=between, self_loops=self_loops
        )
    )
    assert len(batches) == -(-np.unique(labels).size // per_batch)
    assert np.array_equal(np.sort(np.concatenate([one.nodes for one in batches])), np.arange(90))
    for one in batches:
        want = dense[np.ix_(one.nodes, one.nodes)]
        if not between:
            want = want & (labels[one.nodes][:, None] == labels[one.nodes])
        assert one.dropped == dense[one.nodes].sum() - want.sum()
        if self_loops:
            want = want | np.eye(one.nodes.size, dtype=bool)
        assert np.array_equal(one.adjacency.toarray(), want)
        assert one.edges == want.sum()
        assert np.array_equal(one.features, x[one.nodes])
        assert np.array_equal(np.diff(one.starts), [np.sum(labels == part) for part in np.unique(labels[one.nodes])])
        assert np.array_equal(one.tile_bitmap, bs.BitTensor(want).tile_bitmap)


def test_a_batch_is_one_piece_of_memory() -> None:
    a = random_graph()
    q = bs.quantize(np.random.default_rng(0).random((90, 33)).astype(np.float32), 3)
    (one,) = graph.batch(a, graph.partition(a, 3), q)
    base = one.buffer.ctypes.data
    assert base % 128 == 0
    for name, words in (
        ("adjacency", one.adjacency.words),
        ("tile_bitmap", one.tile_bitmap),
        ("features", one.features.words),
    ):
        start, length = one.sections[name]
        assert start % 128 == 0
        assert (words.ctypes.data - base, words.nbytes) == (start, length)
        assert np.array_equal(one.buffer[start : start + length].view(np.uint32), words.reshape(-1))
    assert one.nbytes == one.buffer.nbytes >= sum(length for _, length in one.sections.values())
    assert (one.features.axis, one.features.bits, one.features.scale) == (-2, 3, q.scale)
    assert np.array_equal(one.features.toarray(), q.toarray()[one.nodes])
    want = (a.toarray()[np.ix_(one.nodes, one.nodes)] != 0) & np.equal.outer(
        *[np.repeat(np.arange(3), np.diff(one.starts))] * 2
    )
    assert np.array_equal(one.adjacency @ one.features, want.astype(np.int64) @ q.toarray()[one.nodes].astype(np.int64))


def test_a_batch_over_another_buffer() -> None:
    a = sp.random(50, 50, 0.1, "csr", random_state=1)
    values = np.random.default_rng(0).normal(size=(50, 7))
    for x in (None, values, bs.quantize(values, 3, granularity="col")):
        (one,) = graph.batch(a, np.zeros(50, int), x)
        assert one.to_device("cpu") is one
        assert one.device == "cpu"
        raw = np.zeros(one.nbytes + 128, np.uint8)
        other = one.placed(raw[-raw.ctypes.data % 128 :])
        assert other.adjacency.nnz == 0
        other.buffer[...] = one.buffer
        assert np.array_equal(other.adjacency.toarray(), one.adjacency.toarray())
        if x is not None:
            mine, theirs = (
                f.dequantize() if isinstance(f, bs.BitTensor) else f for f in (one.features, other.features)
            )
            assert np.array_equal(mine, theirs)
        with pytest.raises(bs.ShapeError, match=rf"shape \(4,\) and dtype uint8, but {one.nbytes} bytes are needed"):
            one.placed(raw[:4])


def test_batch_arguments() -> None:
    a = random_graph()
    labels = np.zeros(90, int)
    for arguments, error, match in (
        ((a, labels[1:]), bs.ShapeError, "89 labels for 90"),
        ((a, labels - 1), ValueError, "count from 0"),
        ((a, labels, np.zeros((89, 2))), bs.ShapeError, "features has shape"),
        ((a, labels, np.zeros((90, 2), object)), bs.DTypeError, "object"),
        (
            (a, labels, bs.quantize(np.random.default_rng(0).random((90, 4)), 2, granularity="row")),
            ValueError,
            "per row",
        ),
        ((sp.csr_array((3, 4)), labels), bs.ShapeError, "as many rows"),
    ):
        with pytest.raises(error, match=match):
            graph.batch(*arguments)
    assert list(graph.batch(sp.csr_array((0, 0)), [])) == []
    per_column = bs.quantize(np.random.default_rng(0).random((90, 4)), 2, granularity="col")
    (one,) = graph.batch(a, labels, per_column)
    assert one.features.scale.shape == (1, 4)


# ---- orders
@pytest.mark.parametrize("method", ["rcm", "degree", "partition"])
def test_orders_are_permutations(method: str) -> None:
    for a in (random_graph(), two_cliques(), sp.csr_array((0, 0)), sp.csr_array((5, 5))):
        order = graph.reorder(a, method)
        assert order.dtype == np.int64
        assert np.array_equal(np.sort(order), np.arange(a.shape[0]))


def test_orders_do_what_they_say() -> None:
    a = scipy_of(PATTERNS["band"]())
    shuffle = np.random.default_rng(0).permutation(45)
    mixed = sp.csr_array(a[shuffle][:, shuffle])
    narrow = graph.permute(mixed, graph.reorder(mixed, "rcm")).tocoo()
    assert np.abs(narrow.row - narrow.col).max() <= 4
    degrees = np.diff(random_graph().indptr)[graph.reorder(random_graph(), "degree")]
    assert np.all(degrees[:-1] >= degrees[1:])
    order = graph.reorder(two_cliques(), "partition", parts=2)
    assert len({int(node) // 30 for node in order[:30]}) == 1
    with pytest.raises(ValueError, match="parts goes with"):
        graph.reorder(a, "rcm", parts=3)
    with pytest.raises(ValueError, match="method must be one of"):
        graph.reorder(a, "rabbit")


def test_permute_moves_values_and_scales() -> None:
    a = random_graph()
    a.data[:] = np.arange(a.nnz)
    order = np.random.default_rng(0).permutation(90)
    want = a.toarray()[np.ix_(order, order)]
    row, col = np.arange(90.0), np.arange(90.0)[::-1]
    made = graph.permute(bs.TCTiledCSR(a, window=5, row_scale=row, col_scale=col), order)
    assert made.window == 5
    scaled = bs.TCTiledCSR(a, row_scale=row, col_scale=col).toarray()
    assert np.array_equal(made.toarray(), scaled[np.ix_(order, order)])
    bits = graph.permute(bs.FRDC(a, pattern=True, row_scale=row), order)
    assert np.array_equal(bits.with_scales().toarray(), want != 0)
    assert np.array_equal(bits.row_scale, row[order])
    assert np.array_equal(graph.permute(a, order).toarray(), want)
    for bad in ([0] * 90, order[1:], order - 1):
        with pytest.raises(ValueError, match=r"each of 0\.\.89 once"):
            graph.permute(a, bad)
    with pytest.raises(bs.DTypeError, match="sparse array"):
        graph.permute(a.toarray(), order)


# ---- incidence
@pytest.mark.parametrize("name", [name for name in PATTERNS if name != "spread"])
def test_incidence(name: str) -> None:
    a = scipy_of(PATTERNS[name]())
    edges = np.random.default_rng(0).integers(-9, 9, (a.nnz, 3))
    coo = a.tocoo()
    for side, nodes, length in (("rows", coo.row, a.shape[0]), ("cols", coo.col, a.shape[1])):
        plan = graph.incidence(a, side)
        want = np.zeros((length, 3), np.int64)
        np.add.at(want, nodes, edges)
        assert plan.shape == (length, a.nnz)
        assert np.array_equal(plan.tocsr().astype(np.int64) @ edges, want)
        assert plan.in_order == (side == "rows")
        assert plan.csr_arrays()[2] is None
        assert plan.edges.dtype == plan.indptr.dtype
    with pytest.raises(ValueError, match="side"):
        graph.incidence(a, "both")


# ---- statistics
@pytest.mark.parametrize("name", [name for name in PATTERNS if name not in ("spread", "panels")])
@pytest.mark.parametrize(("window", "width"), [(16, 8), (16, 16), (4, 4), (5, 2)])
def test_tile_statistics_count_tiles(name: str, window: int, width: int) -> None:
    a = scipy_of(PATTERNS[name]())
    dense = a.toarray() != 0
    before = after = columns = 0
    for top in range(0, a.shape[0], window):
        strip = dense[top : top + window]
        before += sum(bool(strip[:, left : left + width].any()) for left in range(0, a.shape[1], width))
        unique = int(strip.any(axis=0).sum())
        columns += unique
        after += -(-unique // width)
    found = graph.tile_statistics(bs.FRDC(a), window=window, width=width)
    assert (found.before, found.after, found.columns, found.nnz) == (before, after, columns, a.nnz)
    assert found.total == -(-a.shape[0] // window) * -(-a.shape[1] // width)
    assert found.reduction == (1 - after / before if before else 0)
    assert 0 <= found.fill_before <= found.fill_after <= 1
    assert 0 <= found.sharing < 1


def test_statistics_arguments() -> None:
    with pytest.raises(ValueError, match="power of two"):
        graph.tile_statistics(np.eye(3), width=12)
    with pytest.raises(ValueError, match="window"):
        graph.tile_statistics(np.eye(3), window=32)


def test_zero_tile_share() -> None:
    a = two_cliques(128)
    labels = np.repeat([0, 1], 128)
    together = list(graph.batch(a, labels, parts_per_batch=2))
    assert graph.zero_tile_share(together) == 0.5
    assert graph.zero_tile_share(together[0]) == 0.5
    assert graph.zero_tile_share(graph.batch(a, labels, parts_per_batch=1)) == 0.0
    assert graph.zero_tile_share(bs.BitTensor((0, 0))) == 0.0
    with pytest.raises(bs.DTypeError, match="SubgraphBatch"):
        graph.zero_tile_share([np.eye(3)])  # type: ignore[list-item]


def test_cora_end_to_end(cora: Any) -> None:
    a, _ = cora
    labels = graph.partition(a, 12)
    x = bs.quantize(np.random.default_rng(0).random((a.shape[0], 16)).astype(np.float32), 4)
    total = 0
    for one in graph.batch(a, labels, x, parts_per_batch=4):
        total += one.edges + one.dropped
        assert (one.adjacency @ one.features).shape == (one.nodes.size, 16)
    assert total == a.nnz
    found = graph.tile_statistics(a)
    assert 0.3 < found.reduction < 1

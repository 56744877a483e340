"""Results of ranks that share the rows of a graph have the bits of one device; the ranks are threads here."""

from __future__ import annotations

import threading
from functools import partial

import binary_networks
import lowbit_networks
import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import distributed as D
from bitsparse import nn
from bitsparse.distributed.exchange import METHODS
from bitsparse.distributed.transposed import transposed
from bitsparse.errors import CommunicationError, DTypeError, ShapeError

#: Number of ranks, method of distributing rows, and way of exchanging them.
WAYS = [(size, method, way) for size in (1, 2, 3, 4) for method in D.parts.METHODS for way in METHODS]
each_way = pytest.mark.parametrize(("size", "method", "way"), WAYS)


def graph(nodes=41, rng=None, dtype=np.float32):
    """A graph with rows of very different lengths, among them a hub and empty rows."""
    rng = rng or np.random.default_rng(nodes)
    dense = rng.random((nodes, nodes)) < 0.08
    dense[nodes // 2, :] = True
    dense[-5:] = False
    values = rng.integers(1, 5, (nodes, nodes)) if np.dtype(dtype).kind in "iu" else rng.standard_normal((nodes, nodes))
    return sp.csr_array((dense * values).astype(dtype))


def on_ranks(size, method, work, matrix, *arguments):
    """For every rank, the result of ``work(shard, part, *arguments)``, gathered from all ranks."""

    def rank(comm):
        part = D.partition(matrix, comm, method=method)
        return part.gather(work(D.shard(matrix, part), part, *arguments))

    return D.local(size, timeout=30).run(rank)


def same(results, wanted):
    for made in results:
        if isinstance(wanted, bs.BitTensor):
            assert (made.bits, made.encoding) == (wanted.bits, wanted.encoding)
            made, full = made.toarray(), wanted.toarray()
        else:
            full = wanted
        assert made.dtype == full.dtype and made.shape == full.shape
        assert np.array_equal(made, full)


@each_way
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8])
def test_integer_sums_have_the_bits_and_the_dtype_of_one_device(size, method, way, dtype):
    rng = np.random.default_rng(5)
    matrix, x = graph(dtype=np.int64 if dtype == np.int64 else np.int32), rng.integers(0, 90, (41, 7)).astype(dtype)
    same(on_ranks(size, method, lambda a, p: D.spmm(a, p.take(x), exchange=way), matrix), bs.spmm(matrix, x))
    pattern = matrix != 0
    planned = lambda a, p: D.plan_spmm(a, 7, dtype=dtype, exchange=way)(p.take(x))  # noqa: E731
    same(on_ranks(size, method, planned, pattern), bs.spmm(pattern, x))


@each_way
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_packed_features_travel_packed(size, method, way, bits):
    rng = np.random.default_rng(bits)
    pattern, x = graph() != 0, bs.BitTensor(rng.integers(0, 1 << bits, (41, 70)), bits)
    plans = []

    def work(a, part):
        plan = D.plan_spmm(a, 70, bits=bits, exchange=way)
        plans.append((plan.received_bytes, a.exchange(way).received))
        out = np.empty(plan.shape, plan.dtype)
        assert plan(part.take(x), out=out) is out
        assert np.array_equal(plan(part.take(x)), out)
        return out

    same(on_ranks(size, method, work, pattern), bs.spmm(pattern, x))
    words = x.repack(layout="rows") if bits != 3 else x
    assert all(received == rows * words.words[0].nbytes for received, rows in plans)


@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("size", [2, 3])
def test_floats_have_the_bits_of_one_device_where_nodes_keep_their_numbers(size, way):
    rng = np.random.default_rng(1)
    matrix = graph()
    for x in (rng.standard_normal((41, 9), dtype=np.float32), rng.standard_normal((41, 3, 5)), rng.standard_normal(41)):
        for reduce in ("sum", "mean", "max", "min"):
            work = lambda a, p, x=x, r=reduce: D.spmm(a, p.take(x), reduce=r, exchange=way)  # noqa: E731
            same(on_ranks(size, "blocks", work, matrix), bs.spmm(matrix, x, reduce=reduce))
    x = rng.standard_normal((41, 9), dtype=np.float32)
    moved = on_ranks(size, "metis", lambda a, p: D.spmm(a, p.take(x), exchange=way), matrix)
    assert np.allclose(moved[0], bs.spmm(matrix, x), atol=1e-4)
    scaled = bs.TCTiledCSR(matrix != 0, row_scale=rng.random(41), col_scale=rng.random(41))
    same(on_ranks(size, "blocks", lambda a, p: D.spmm(a, p.take(x), exchange=way), scaled), bs.spmm(scaled, x))


@each_way
@pytest.mark.parametrize("variant", ["BBB", "BBF", "FBF", "FBB", "BFF"])
def test_aggregation_of_bits(size, method, way, variant):
    rng = np.random.default_rng(2)
    matrix = graph() if variant[1] == "F" else graph() != 0
    # Values are multiples of 1/2, so that sums of floats are exact in any order.
    x = np.round(2 * rng.standard_normal((41, 33))).astype(np.float32) / 2
    given = bs.pack_bits(x, encoding="bipolar") if variant[0] == "B" else x
    if variant[1] == "F":
        matrix.data = np.round(matrix.data * 2).astype(np.float32) + np.float32(0.5)
    wanted = bs.bspmm(matrix, given, variant)
    same(on_ranks(size, method, lambda a, p: D.bspmm(a, p.take(given), variant, exchange=way), matrix), wanted)

    def planned(a, part):
        plan = D.plan_bspmm(a, 33, variant, exchange=way)
        assert plan.explain().startswith(f"exchange {way}") and plan.nbytes >= 0
        plan.check()
        return plan(part.take(given))

    same(on_ranks(size, method, planned, matrix), wanted)


@pytest.mark.parametrize("way", METHODS)
def test_aggregation_with_an_addend_a_mean_and_scales_of_rows(way):
    rng = np.random.default_rng(3)
    pattern, x = graph() != 0, rng.standard_normal((41, 20)).astype(np.float32)
    bits = bs.pack_bits(x, encoding="bipolar").with_affine(np.abs(x).mean(axis=1, keepdims=True))
    wanted = bs.bspmm(pattern, bits, "BBF", reduce="mean", add=x)
    work = lambda a, p: D.bspmm(a, p.take(bits), "BBF", reduce="mean", add=p.take(x), exchange=way)  # noqa: E731
    same(on_ranks(3, "blocks", work, pattern), wanted)
    planned = lambda a, p: D.plan_bspmm(a, 20, "BBF", reduce="mean", add=True, exchange=way)(p.take(bits), p.take(x))  # noqa: E731
    same(on_ranks(3, "blocks", planned, pattern), wanted)
    large = np.full((41, 20), (1 << 31) - 20)  # long rows need int64, others int32
    summed = lambda a, p: D.bspmm(a, p.take(bits.with_affine()), "BBF", add=p.take(large), exchange=way)  # noqa: E731
    same(on_ranks(3, "blocks", summed, pattern), bs.bspmm(pattern, bits.with_affine(), "BBF", add=large))
    refused = lambda a, p: D.plan_bspmm(a, 20, "BBF", add=True)(p.take(bits), p.take(large))  # noqa: E731
    with pytest.raises(DTypeError, match="may need 64 bits"):
        on_ranks(2, "blocks", refused, pattern)


@each_way
def test_scores_of_edges_attention_and_samples(size, method, way):
    rng = np.random.default_rng(4)
    matrix, x = graph(), rng.integers(-9, 9, (41, 6)).astype(np.int16)
    y = rng.integers(-9, 9, (41, 6)).astype(np.int16)
    wanted = sp.csr_array((bs.sddmm(matrix, x, y), matrix.indices, matrix.indptr), matrix.shape).toarray()

    def scores(a, part):
        made = D.sddmm(a, part.take(x), part.take(y), exchange=way)
        nodes = np.arange(41) if part.order is None else part.order
        rows = np.zeros((a.shape[0], 41), made.dtype)
        rows[np.repeat(np.arange(a.shape[0]), np.diff(a.indptr)), nodes[a.columns]] = made
        return rows

    same(on_ranks(size, method, scores, matrix), wanted)
    h, source, target = (rng.standard_normal(shape).astype(np.float32) for shape in ((41, 2, 3), (41, 2), (41, 2)))
    attended = lambda a, p: D.attention(a, p.take(h), p.take(source), p.take(target), exchange=way)  # noqa: E731
    made = on_ranks(size, method, attended, matrix)
    full = bs.attention(matrix, h, source, target)
    assert all(np.array_equal(one, full) if method == "blocks" else np.allclose(one, full, atol=1e-5) for one in made)
    if method == "blocks":  # samples depend on the order of columns, which blocks keep
        for strategy in ("afs", "sfs", "aes"):
            work = lambda a, p, s=strategy: D.sampled_spmm(a, p.take(h[:, 0]), 4, s, exchange=way)  # noqa: E731
            same(on_ranks(size, method, work, matrix), bs.sampled_spmm(matrix, h[:, 0], 4, strategy))
        softmax = on_ranks(
            size,
            method,
            lambda a, p: (
                np.add.reduceat(np.append(D.edge_softmax(a, a.values), 0), a.indptr[:-1]) * (np.diff(a.indptr) > 0)
            ),
            matrix,
        )
        assert np.allclose(softmax[0], np.diff(matrix.indptr) > 0, atol=1e-5)


@pytest.mark.parametrize("nodes", [0, 1, 2, 3])
@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("method", D.parts.METHODS)
def test_more_ranks_than_rows(nodes, way, method):
    matrix = sp.csr_array(np.ones((nodes, nodes), np.int32))
    x = np.arange(nodes * 3).reshape(nodes, 3)
    same(on_ranks(4, method, lambda a, p: D.spmm(a, p.take(x), exchange=way), matrix), matrix @ x)
    bits = bs.pack_bits(np.ones((nodes, 3)), encoding="bipolar")
    same(
        on_ranks(4, method, lambda a, p: D.bspmm(a, p.take(bits), exchange=way), matrix != 0),
        (matrix @ np.ones((nodes, 3), np.int32)).astype(np.int32),
    )


def test_rows_without_entries_everywhere():
    empty = sp.csr_array((12, 12), dtype=np.int32)
    for way in (*METHODS, "auto"):
        same(
            on_ranks(3, "blocks", lambda a, p, w=way: D.spmm(a, p.take(np.ones((12, 2), np.int32)), exchange=w), empty),
            bs.spmm(empty, np.ones((12, 2), np.int32)),
        )


def test_blocks_hold_about_as_many_entries():
    matrix = sp.csr_array(np.triu(np.ones((400, 400), np.int8)))
    costs = D.local(4).run(lambda comm: D.shard(matrix, D.partition(matrix, comm)).nnz)
    assert sum(costs) == matrix.nnz and max(costs) < 1.02 * matrix.nnz / 4
    cut = D.local(4).run(lambda comm: D.shard(matrix, D.partition(matrix, comm, method="metis")).nnz)
    assert sum(cut) == matrix.nnz and max(cut) < 1.2 * matrix.nnz / 4


def test_auto_takes_what_brings_fewer_bytes():
    ring, full = (sp.csr_array(each.astype(np.float32)) for each in (np.eye(400, k=1), np.ones((400, 400))))

    def chosen(matrix, comm):
        a = D.shard(matrix, D.partition(matrix, comm))
        plan = D.plan_spmm(a, 64)
        assert f"exchange {plan.exchange}: allgather" in plan.explain() and "local" in plan.explain()
        return plan.exchange, a.received_rows()

    assert D.local(4).run(partial(chosen, ring)) == [("halo", {"allgather": 300, "halo": 1})] * 4
    assert {way for way, _ in D.local(4).run(partial(chosen, full))} <= set(METHODS)


# -- networks ---------------------------------------------------------------------------------------------------------
@each_way
@pytest.mark.parametrize("kind", lowbit_networks.KINDS)
def test_low_bit_networks_over_shards(size, method, way, kind):
    rng = np.random.default_rng(6)
    pattern, x = lowbit_networks.random_graph(57, rng), rng.standard_normal((57, 12)).astype(np.float32)
    low = nn.quantize_network(nn.random_network(kind, [12, 9, 4], batch_norm=True), pattern, x, [4, 8])

    def work(a, part):
        shard = D.GraphShard(a, low.normalisation, self_loops=low.self_loops, exchange=way)
        plan = low.plan(shard, low.quantize(part.take(x)))
        assert np.array_equal(plan(), low(shard, part.take(x)))
        return plan()

    same(on_ranks(size, method, work, pattern), low(pattern, x))


@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("preset", ["full", "binary"])
@pytest.mark.parametrize("kind", ["gcn", "sage", "saint"])
def test_binary_networks_over_shards(way, preset, kind):
    rng = np.random.default_rng(7)
    pattern, x = binary_networks.random_graph(48, rng), rng.standard_normal((48, 24)).astype(np.float32)
    make = {"gcn": partial(binary_networks.gcn, [24, 16, 5]), "sage": partial(binary_networks.sage, [24, 16, 5])}
    model = make.get(kind, partial(binary_networks.saint, [24, 16, 8], 5))(rng, preset)
    normalisation = "gcn" if kind == "gcn" else "sum"
    whole = nn.Graph(pattern, normalisation)
    work = lambda a, p: model(D.GraphShard(a, normalisation, exchange=way), p.take(x))  # noqa: E731
    same(on_ranks(3, "blocks", work, pattern), model(whole, x))


@pytest.mark.parametrize("way", [*METHODS, "auto"])
@pytest.mark.parametrize("kind", lowbit_networks.KINDS)
def test_networks_in_full_precision_over_shards(way, kind):
    rng = np.random.default_rng(8)
    pattern, x = lowbit_networks.random_graph(50, rng), rng.standard_normal((50, 12)).astype(np.float32)
    network = nn.random_network(kind, [12, 16, 4])
    normalisation = {"gcn": "gcn", "sage": "mean", "gin": "sum"}[kind]
    whole = network(nn.Graph(pattern, normalisation), x)
    work = lambda a, p: network(D.GraphShard(a, normalisation, exchange=way), p.take(x))  # noqa: E731
    for made in on_ranks(3, "blocks", work, pattern):
        assert np.allclose(made, whole, rtol=1e-5, atol=1e-5)
    wrong = lambda a, p: network(D.GraphShard(a, "sum" if kind != "gin" else "gcn"), p.take(x))  # noqa: E731
    with pytest.raises(ValueError, match="make it for this network"):
        on_ranks(2, "blocks", wrong, pattern)


@pytest.mark.parametrize("loops", [True, False])
def test_a_directed_graph_is_normalised_by_its_arriving_edges(loops):
    pattern, x = graph(50), np.random.default_rng(9).integers(0, 16, (50, 12))
    pattern.data[:] = 1
    assert (pattern != pattern.T).nnz
    whole = nn.Graph(pattern, self_loops=loops)

    def factors(g):
        return np.stack((g.degrees.astype(np.float32), g.row_scale, g.col_scale), axis=1)

    same(on_ranks(3, "metis", lambda a, p: factors(D.GraphShard(a, self_loops=loops)), pattern), factors(whole))
    assert np.array_equal(whole.row_scale, whole.col_scale)
    low = nn.quantize_network(nn.random_network("gcn", [12, 8, 3]), pattern, x, 8)
    if loops:
        same(on_ranks(3, "blocks", lambda a, p: low(D.GraphShard(a), p.take(x)), pattern), low(whole, x))


# -- quantisation -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
@pytest.mark.parametrize("scheme", ["affine", "affine-pow2", "symmetric"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_quantised_on_the_range_of_all(granularity, scheme, dtype):
    x = np.random.default_rng(9).standard_normal((41, 13)).astype(dtype)
    wanted = bs.quantize(x, 5, scheme=scheme, granularity=granularity)
    affine = []

    def work(a, part):
        made = D.quantize(part.take(x), 5, part, scheme=scheme, granularity=granularity)
        affine.append((part.rows(), made.scale, made.offset))
        return made.with_affine()

    same(on_ranks(3, "blocks", work, graph()), wanted.with_affine())
    for rows, scale, offset in affine:
        for mine, full in ((scale, wanted.scale), (offset, wanted.offset)):
            assert (mine is None) == (full is None)
            assert mine is None or np.array_equal(mine, full[rows] if granularity == "row" else full)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("columns", [8, 13])
def test_stochastic_rounding_counts_by_the_index_among_all_rows(size, columns):
    x = np.random.default_rng(10).standard_normal((41, columns)).astype(np.float32)
    drawn = {"rounding": "stochastic", "seed": 12345678901234, "stream": 3}
    for scheme, granularity, dtype in (
        ("symmetric", "tensor", np.float32),
        ("affine", "col", np.float64),
        ("affine", "tensor", np.float16),
        ("symmetric", "row", np.float32),
    ):
        options = {"scheme": scheme, "granularity": granularity} | drawn
        for bits in (2, 5, 8):
            y = x.astype(dtype)
            wanted = bs.quantize(y, bits, **options)
            work = lambda a, p, b=bits, o=options, y=y: D.quantize(p.take(y), b, p, **o).with_affine()  # noqa: E731
            same(on_ranks(size, "blocks", work, graph()), wanted.with_affine())


def test_constant_and_unusable_rows_are_quantised_as_on_one_device():
    zeros = np.zeros((41, 2), np.float32)
    options = {"scheme": "symmetric", "rounding": "stochastic", "seed": 1}
    same(
        on_ranks(2, "blocks", lambda a, p: D.quantize(p.take(zeros), 8, p, **options), graph()),
        bs.quantize(zeros, 8, **options),
    )
    zeros[40] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        on_ranks(2, "blocks", lambda a, p: D.quantize(p.take(zeros), 8, p), graph())
    with pytest.raises(ValueError, match="by one seed"):
        on_ranks(2, "blocks", lambda a, p: D.quantize(p.take(zeros), 8, p, rounding="stochastic"), graph())


# -- what goes wrong --------------------------------------------------------------------------------------------------
def test_a_rank_that_does_not_come_is_named():
    def work(comm):
        if comm.rank != 2:
            comm.barrier()

    with pytest.raises(
        CommunicationError, match=r"barrier: rank \d of 3 waits in vain, as rank 2 did not come within 0.3 s"
    ):
        D.local(3, timeout=0.3).run(work)


def test_runs_of_one_group_at_once_do_not_meet():
    group, sums = D.local(3, timeout=20), {}

    def work(comm, number):
        found = set()
        for _ in range(20):
            total = np.array([100 * number + comm.rank])
            comm.all_reduce(total)
            found.add(int(total[0]))
        return found

    def run(number):
        sums[number] = group.run(work, number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {number: [{300 * number + 3}] * 3 for number in range(4)}


def test_ranks_that_an_interruption_leaves_behind_end_and_meet_nobody_of_the_next_run(monkeypatch):
    group, threads = D.local(2, timeout=20), []

    def endless(comm):
        threads.append(threading.current_thread())
        while True:
            comm.all_reduce(np.array([1000]))

    def interrupted(thread):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            group.run(endless)

    def total(comm):
        values = np.array([1])
        comm.all_reduce(values)
        return int(values[0])

    assert group.run(total) == [2, 2]
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_an_error_on_one_rank_ends_all():
    met = []

    def work(comm):
        if comm.rank == 1:
            raise ZeroDivisionError("of rank 1")
        try:
            comm.all_reduce(np.ones(3))
        except CommunicationError as error:
            met.append(str(error))
            raise

    with pytest.raises(ZeroDivisionError, match="of rank 1"):
        D.local(3).run(work)
    assert len(met) == 2 and all("rank 1 failed" in text for text in met)


def test_rows_that_a_rank_does_not_send_itself_stay():
    def work(comm):
        counts = [0 if rank == comm.rank else 2 for rank in range(3)]
        received = np.full((6, 2), -1)
        comm.all_to_all_v(np.full((4, 2), comm.rank), counts, received, [2, 2, 2])
        return received[:, 0].tolist()

    for rank, found in enumerate(D.local(3).run(work)):
        assert found == [-1 if sender == rank else sender for sender in (0, 0, 1, 1, 2, 2)]


def test_different_calls_shapes_and_dtypes_are_named():
    def calls(comm):
        comm.barrier() if comm.rank else comm.all_reduce(np.ones(1))

    def shapes(comm):
        comm.all_gather(np.ones(2 + comm.rank), np.ones((2, 2 + comm.rank)))

    def dtypes(comm):
        comm.all_reduce(np.ones(2, [np.int32, np.float32][comm.rank]))

    for work, text in ((calls, "in barrier|in all_reduce"), (shapes, r"sends \(\d,\)"), (dtypes, "float32|int32")):
        with pytest.raises(CommunicationError, match=text):
            D.local(2, timeout=5).run(work)
    with pytest.raises(ShapeError, match="3 rows are announced"):
        D.local(1).run(lambda comm: comm.all_to_all_v(np.ones((2, 1)), [3], np.ones((3, 1)), [3]))
    with pytest.raises(ShapeError, match="with gaps"):
        D.local(1).run(lambda comm: comm.all_to_all_v(np.ones((1, 4))[:, ::2], [1], np.ones((1, 2)), [1]))


def test_different_graphs_and_arguments_are_named_on_every_rank():
    some, other = graph(41), graph(41, np.random.default_rng(99))
    raised = []

    def work(comm):
        try:
            D.partition(other if comm.rank == 2 else some, comm)
        except CommunicationError as error:
            raised.append(str(error))

    D.local(3).run(work)
    assert len(raised) == 3 and all("hash of the graph is" in text and "on rank 2" in text for text in raised)
    x = np.ones((41, 4), np.float32)
    for call, text in (
        (lambda a, p: D.plan_spmm(a, 4 + p.comm.rank), "n is 4 on rank 0 but 5 on rank 1"),
        (lambda a, p: D.spmm(a, p.take(x)[:, : 3 + p.comm.rank]), "columns of x is"),
        (
            lambda a, p: D.spmm(a, p.take(x).astype([np.float32, np.float64][p.comm.rank])),
            "dtype of x is 'float32' on rank 0",
        ),
        (lambda a, p: D.plan_spmm(a, 4, exchange=["halo", "auto"][p.comm.rank]), "exchange is 'halo' on rank 0"),
        (
            lambda a, p: D.spmm(a, p.take(x), exchange=["halo", "allgather"][p.comm.rank]),
            "exchange is 'halo' on rank 0",
        ),
        (lambda a, p: D.spmm(a, p.take(x), reduce=["sum", "max"][p.comm.rank]), "reduce is 'sum' on rank 0 but 'max'"),
        (lambda a, p: D.bspmm(a, p.take(x), ["FBF", "FBB"][p.comm.rank]), "variant is 'FBF' on rank 0 but 'FBB'"),
        (lambda a, p: D.sampled_spmm(a, p.take(x), 2, rescale=p.comm.rank == 1), "rescale is False on rank 0 but True"),
        (lambda a, p: D.sddmm(a, p.take(x), op=["dot", "add"][p.comm.rank]), "op is 'dot' on rank 0 but 'add'"),
        (lambda a, p: p.gather(p.take(x)[:, p.comm.rank :]), "columns is \\[4\\] on rank 0 but \\[3\\] on rank 1"),
        (lambda a, p: D.partition(some, p.comm, seed=[1, 1.0][p.comm.rank]), "seed is 1 on rank 0 but 1.0 on rank 1"),
    ):
        with pytest.raises(CommunicationError, match=text):
            on_ranks(2, "blocks", call, some)


def test_numbers_of_numpy_are_agreed_on_as_pythons_are():
    def work(comm):
        part = D.partition(graph(), comm, seed=[np.int64, int][comm.rank](3))
        plan = D.plan_bspmm(D.shard(graph(), part), np.int32(4), "BBF", add=np.bool_(False))
        return D.quantize(np.ones((plan.shape[0], 2)), np.uint8(4), part, seed=np.int64(7), rounding="stochastic").bits

    assert D.local(2, timeout=20).run(work) == [4, 4]


@pytest.mark.parametrize("wrong", ["values", "x", "text", "source", "gather"])
def test_an_error_on_one_rank_alone_is_raised_there_and_named_on_the_others(wrong):
    texts = {}

    def call(a, more, bad):
        rows, ones = a.shape[0], np.ones((a.shape[0], 2, 2), np.float32)
        longer = np.ones((rows + more, 2), np.float32)
        if wrong == "values":
            D.spmm(a, ones[:, 0], values=np.ones(a.nnz + more, np.float32))
        elif wrong == "source":
            D.attention(a, ones, longer, ones[:, 0])
        elif wrong == "gather":
            a.part.gather(longer)
        else:
            D.spmm(a, "x" if bad and wrong == "text" else longer)

    def work(comm):
        a = D.shard(graph(), D.partition(graph(), comm))
        with pytest.raises((CommunicationError, ShapeError, DTypeError)) as caught:
            call(a, int(comm.rank == 1), comm.rank == 1)
        texts[comm.rank] = str(caught.value)

    D.local(3, timeout=20).run(work)
    assert "failed" not in texts[1] and all("failed on rank 1" in texts[rank] for rank in (0, 2))


def test_factors_are_float32_whatever_is_given(tmp_path):
    matrix = graph()

    def work(comm):
        a = D.shard(matrix, D.partition(matrix, comm))
        a = a.with_scales(np.arange(a.shape[0], dtype=np.float64), [2] * 41)
        D.save_shard(tmp_path, a)
        return a.row_scale.dtype, D.load_shard(tmp_path, comm).col_scale.dtype

    assert D.local(2, timeout=20).run(work) == [(np.float32, np.float32)] * 2


@pytest.mark.parametrize("method", ["blocks", "metis"])
def test_unsigned_arrays_of_a_pattern(method):
    a = graph()
    unsigned = a.indptr.astype(np.uint64), a.indices.astype(np.uint64)
    x = np.ones((41, 2), np.float32)
    pattern = sp.csr_array((np.ones(a.nnz, np.float32), a.indices, a.indptr), a.shape)

    def work(comm):
        part = D.partition(unsigned, comm, method=method)
        return part.gather(D.spmm(D.shard(unsigned, part), part.take(x)))

    assert all(np.array_equal(made, pattern @ x) for made in D.local(2, timeout=20).run(work))


def test_arguments_are_checked():
    matrix, x = graph(), np.ones((41, 4), np.float32)
    stochastic = bs.Epilogue(bits=4, out_scale=1.0, scheme="symmetric", rounding="stochastic", seed=1)
    for call, error, text in (
        (lambda a, p: D.spmm(matrix, p.take(x)), DTypeError, "A must be a Shard"),
        (lambda a, p: D.spmm(a, x), ShapeError, "own rows"),
        (lambda a, p: D.spmm(a, p.take(x), exchange="ring"), ValueError, "'ring'"),
        (lambda a, p: D.plan_spmm(a, 4)(p.take(x).astype(np.float64)), ShapeError, "the plan is for"),
        (lambda a, p: D.plan_spmm(a, 4, bits=2)(bs.quantize(p.take(x), 4)), ShapeError, "the plan is for"),
        (lambda a, p: D.spmm(a, p.take(x), epilogue=stochastic), ValueError, "rounds stochastically"),
        (lambda a, p: D.sampled_spmm(a, p.take(x), 4, "uniform"), ValueError, "draws by the number"),
        (lambda a, p: D.attention(a, p.take(x), x[:, 0], x[:, 0], dropout=0.5), DTypeError, "dropout"),
        (lambda a, p: p.take(x[:-1]), ShapeError, r"\(40, 4\)"),
        (lambda a, p: p.take([1.0, 2.0]), ShapeError, r"\(2,\)"),
        (lambda a, p: p.gather(x), ShapeError, "own rows"),
        (lambda a, p: p.gather([1.0, 2.0]), ShapeError, r"\(2,\).*own rows"),
        (lambda a, p: p.rows(-1), ValueError, "rank must be in 0..1, got -1"),
        (lambda a, p: p.nodes_of(2), ValueError, "rank must be in 0..1, got 2"),
        (lambda a, p: D.GraphShard(matrix), DTypeError, "A must be a Shard"),
        (lambda a, p: D.partition(matrix, p.comm, seed="one"), DTypeError, "partition: seed must be an integer"),
        (lambda a, p: a.with_values(x), ShapeError, "one for each"),
        (lambda a, p: a.with_values(np.ones((a.nnz, 1, 1))), ShapeError, "one for each"),
        (lambda a, p: a.with_values(np.ones(a.nnz, complex)), DTypeError, "complex128"),
        (lambda a, p: a.with_scales(np.ones(3)), ShapeError, "one scale for each"),
        (lambda a, p: D.quantize(x, 4, p), ShapeError, "pass \\(rows, features\\)"),
        (lambda a, p: D.shard(graph(40), p), ShapeError, "the graph that was cut"),
        (lambda a, p: D.partition(matrix, "comm"), DTypeError, "comm must be a communicator"),
        (lambda a, p: D.partition((np.array([0, 2]), np.array([0])), p.comm), ShapeError, "arrays of one CSR matrix"),
        (lambda a, p: D.partition((np.array([0, 5, 2]), np.array([0, 1])), p.comm), ValueError, "decreases"),
    ):
        with pytest.raises(error, match=text):
            on_ranks(2, "blocks", call, matrix)


def test_members_of_shards_and_partitions():
    matrix = graph()

    def work(comm):
        part = D.partition(matrix, comm, method="metis")
        a = D.shard(matrix, part)
        assert a.to_device("cpu") is a and a.nbytes > 0 and a.device == "cpu"
        assert (
            repr(a).startswith(f"<Shard of {comm.rank} / 2: rows ")
            and repr(comm) == f"<LocalCommunicator local, rank {comm.rank} of 2>"
        )
        mine = matrix[part.nodes_of()][:, part.order]
        assert np.array_equal(a.own_rows().toarray(), mine.toarray())
        doubled = a.with_values(2 * a.values)
        assert np.array_equal(doubled.own_rows().toarray(), 2 * mine.toarray())
        for way in METHODS:
            slots = a.exchange(way)(np.arange(part.rows().start, part.rows().stop)[:, None])
            assert np.array_equal(slots[a.matrix(way).indices, 0], a.columns)
        sparse = sp.csr_array(np.eye(41))
        assert np.array_equal(part.take(sparse).toarray(), np.eye(41)[part.nodes_of()])
        tensor = bs.pack_bits(np.eye(41, dtype=int))
        assert np.array_equal(part.gather(part.take(tensor)).toarray(), np.eye(41))
        return a

    shards = D.local(2).run(work)
    assert sum(a.nnz for a in shards) == matrix.nnz


@each_way
@pytest.mark.parametrize("scales", [(False, False), (True, False), (True, True)])
def test_each_rank_gets_its_rows_of_the_transpose(size, method, way, scales):
    matrix, rng = graph() != 0, np.random.default_rng(1)
    left, right = (rng.random(41, np.float32) if scaled else None for scaled in scales)

    def work(comm):
        part = D.partition(matrix, comm, method=method)
        factors = (
            None if left is None else left[part.order if part.order is not None else slice(None)][part.rows()],
            None if right is None else right[part.order if part.order is not None else slice(None)],
        )
        made = transposed(D.shard(matrix, part).with_scales(*factors))
        x = part.take(np.eye(41, dtype=np.float32))
        return part.gather(bs.spmm(made.matrix(way), made.exchange(way)(x)))

    wanted = matrix.toarray().astype(np.float32)
    wanted = wanted if left is None else wanted * left[:, None]
    wanted = wanted if right is None else wanted * right
    for made in D.local(size).run(work):
        assert np.allclose(made, wanted.T)


def test_ranks_agree_whether_a_graph_is_its_own_transpose():
    """The first half is undirected and the second is not: both ranks make the transpose, and its exchange together."""
    parts = [sum(np.roll(np.eye(20), shift, axis=1) for shift in shifts) for shifts in ((-1, 0, 1), (1, 2, 3))]
    matrix = sp.csr_array(sp.block_diag(parts)) != 0

    def work(comm):
        a = D.shard(matrix, D.partition(matrix, comm))
        made = transposed(a)
        assert a.part.rows().start in (0, 20) and made is not a
        return a.part.gather(
            bs.spmm(made.matrix("halo"), made.exchange("halo")(np.eye(40, dtype=np.float32)[a.part.rows()]))
        )

    assert all(np.array_equal(made, matrix.toarray().T) for made in D.local(2, timeout=30).run(work))


def test_an_undirected_graph_is_its_own_transpose():
    half = sp.csr_array(graph() != 0)
    matrix = (half + half.T).tocsr()

    def work(comm):
        a = D.shard(matrix, D.partition(matrix, comm))
        rows, factors = a.part.rows(), np.linspace(1, 2, 41, dtype=np.float32)
        whole, alike = a.with_scales(), a.with_scales(factors[rows], factors)
        assert transposed(whole) is whole and transposed(alike) is alike
        exchange, other = a.exchange("halo"), transposed(a.with_scales(factors[rows]))
        assert (
            other.exchange("halo") is exchange and other.row_scale is None and np.array_equal(other.col_scale, factors)
        )
        one_sided = graph() != 0
        directed = D.shard(one_sided, D.partition(one_sided, comm))
        return transposed(directed) is not directed

    assert all(D.local(3).run(work))


def test_buffers_of_blocks_have_no_padding_that_was_never_written():
    """In the whole blocks that ranks with fewer rows send, the padding must be zero, whatever the memory held before."""

    def work(comm):
        a = D.shard(graph(), D.partition(graph(), comm))
        exchange = a.exchange("allgather")
        mine = np.ones((a.shape[0], 3), np.float32)
        for _ in range(3):
            full = np.full((exchange.slots, 3), np.nan, np.float32)  # memory that the exchange will reuse
            del full
            buffer = exchange(mine)
            assert set(np.unique(buffer)) <= {0.0, 1.0} and buffer.sum() == 41 * 3

    D.local(4).run(work)


@pytest.mark.parametrize("timeout", [0, -1.0, 1e12])
def test_ranks_wait_for_a_time(timeout: float) -> None:
    with pytest.raises(ValueError, match="local: timeout="):
        D.local(2, timeout=timeout)


@pytest.mark.parametrize("method", D.parts.METHODS)
@pytest.mark.parametrize(
    ("wrong", "said"), [(-1, "holds the column -1"), (41, "holds the column 41"), (None, "decreases")]
)
def test_damaged_arrays_of_a_pattern_are_refused_by_every_way_of_dealing_rows(method, wrong, said):
    matrix = graph()
    indptr, indices = matrix.indptr.copy(), matrix.indices.copy()
    if wrong is None:
        indptr[[1, -2]] = indptr[[-2, 1]]
    else:
        indices[[0, -1]] = wrong

    def rank(comm):
        part = D.partition(matrix, comm, method=method)
        with pytest.raises(ValueError, match=said):
            D.shard((indptr, indices), part)

    D.local(1, timeout=20).run(rank)


def test_packed_rows_of_ranks_are_gathered_where_they_mean_the_same():
    matrix, x = sp.eye_array(8, format="csr"), np.arange(32.0, dtype=np.float32).reshape(8, 4)

    def rank(comm, make):
        part = D.partition(matrix, comm)
        return part.gather(make(part.take(x), comm.rank, part))

    run = D.local(2, timeout=20).run
    for make, differs in (
        (lambda rows, rank, part: bs.quantize(rows * (1 + rank), 4), "scale"),
        (lambda rows, rank, part: bs.quantize(rows, 4), "offset"),
        (lambda rows, rank, part: bs.pack_bits(rows - 9, encoding=("bipolar", "unsigned")[rank]), "encoding"),
        (lambda rows, rank, part: bs.pack_bits((rows > 9).astype(int), bits=1 + rank), "bits"),
        (lambda rows, rank, part: bs.pack_bits((rows > 9).astype(int), layout=("rows", "planes")[rank]), "layout"),
    ):
        with pytest.raises(CommunicationError, match=f"Partition.gather: {differs} is"):
            run(rank, make)
    with pytest.raises(ShapeError, match=r"scale for each of its rows.*x\.dequantize\(\)"):
        run(rank, lambda rows, rank, part: bs.quantize(rows, 4, granularity="row"))
    for granularity in ("tensor", "col"):
        whole = bs.quantize(x, 4, granularity=granularity)
        for made in run(rank, lambda rows, rank, part: D.quantize(rows, 4, part, granularity=granularity)):  # noqa: B023
            assert np.array_equal(made.dequantize(), whole.dequantize())


@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
def test_no_features_are_quantised_as_on_one_device(granularity):
    matrix, x = sp.eye_array(8, format="csr"), np.empty((8, 0), np.float32)

    def rank(comm):
        return D.quantize(np.empty((4, 0), np.float32), 4, D.partition(matrix, comm), granularity=granularity)

    wanted = bs.quantize(x, 4, granularity=granularity)
    for made in D.local(2, timeout=20).run(rank):
        assert made.shape == (4, 0) and np.array_equal(
            made.scale, wanted.scale[:4] if granularity == "row" else wanted.scale
        )


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("planned", ["spmm", "bspmm"])
def test_an_addend_that_was_not_planned_is_refused(planned, overlap):
    def work(a, part):
        addend = np.ones((a.shape[0], 4), np.float32)
        if planned == "spmm":
            return D.plan_spmm(a, 4, overlap=overlap)(part.take(np.ones((41, 4), np.float32)), addend)
        x = bs.pack_bits(part.take(np.ones((41, 4))), encoding="bipolar")
        return D.plan_bspmm(a.with_values(None), 4, "BBF", overlap=overlap)(x, addend)

    with pytest.raises(ValueError, match=f"plan_{planned}: .* calls without add.*this one comes with it"):
        on_ranks(2, "blocks", work, graph())

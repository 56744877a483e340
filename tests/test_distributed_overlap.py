"""Sums that overlap with the exchange have the bits of one device, whichever rows have neighbours on other ranks."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import distributed as D
from bitsparse.distributed.exchange import METHODS
from bitsparse.distributed.overlap import Estimate, estimate
from bitsparse.distributed.rates import LINKS, SUMS, Link, exchange_seconds
from bitsparse.errors import CommunicationError, ShapeError

NODES = 60


def graph(dtype=np.float32, seed=0):
    """A graph with communities of ten nodes, a few edges between them, a hub, and rows without entries."""
    rng = np.random.default_rng(seed)
    community = np.arange(NODES) // 10
    dense = (rng.random((NODES, NODES)) < 0.5) & (community[:, None] == community)
    dense |= rng.random((NODES, NODES)) < 0.004
    dense[33], dense[5:8] = True, False
    values = rng.integers(1, 5, dense.shape) if np.dtype(dtype).kind in "iu" else rng.standard_normal(dense.shape)
    return sp.csr_array((dense * values).astype(dtype))


def planned(size, make, matrix, x, method="blocks", add=None):
    """For every rank, the results of a plan with and without overlap, gathered from all ranks."""

    def rank(comm):
        part = D.partition(matrix, comm, method=method)
        a, mine = D.shard(matrix, part), part.take(x)
        rows, entries = a.outer()
        assert (rows, entries) == brute(a)
        results = []
        for overlap in (True, False):
            plan = make(a, overlap)
            assert plan.overlap is overlap
            assert f"{'' if overlap else 'not '}overlapped, as asked for" in plan.explain().replace(": as", ", as")
            made = plan(mine)
            target = made.copy()
            words = target.words if isinstance(target, bs.BitTensor) else target
            words[...] = 1
            assert plan(mine, out=target) is target
            plan.check()
            assert plan.nbytes >= 0 and plan.kernel
            for name in ("scale", "offset") if isinstance(target, bs.BitTensor) else ():
                assert np.array_equal(getattr(target, name), getattr(made, name))
            results += [made, target]
        first = results[0]
        for other in results[1:]:
            if isinstance(first, bs.BitTensor):
                assert np.array_equal(first.words, other.words)
            else:
                assert first.dtype == other.dtype and np.array_equal(first, other)
        if isinstance(first, bs.BitTensor):
            return part.gather(first.with_affine())
        return part.gather(first)

    return D.local(size, timeout=30).run(rank)


def brute(a):
    """The number of rows that have a column of another rank, and of these rows' entries, counted one by one."""
    own, rows, entries = a.part.rows(), 0, 0
    for start, stop in zip(a.indptr[:-1], a.indptr[1:], strict=True):
        mine = a.columns[start:stop]
        if any(not own.start <= column < own.stop for column in mine):
            rows, entries = rows + 1, entries + mine.size
    return rows, entries


def same(results, wanted):
    for made in results:
        assert made.dtype == wanted.dtype and made.shape == wanted.shape
        if isinstance(wanted, bs.BitTensor):
            made, full = made.toarray(), wanted.toarray()
        else:
            full = wanted
        assert np.array_equal(made, full)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("method", ["blocks", "metis"])
def test_integers_and_bits_are_those_of_one_device(size, way, method):
    rng = np.random.default_rng(1)
    matrix, pattern = graph(np.int32), graph() != 0
    x = rng.integers(-90, 90, (NODES, 7)).astype(np.int8)
    same(
        planned(size, lambda a, o: D.plan_spmm(a, 7, dtype=np.int8, exchange=way, overlap=o), matrix, x, method),
        bs.spmm(matrix, x),
    )
    codes = bs.BitTensor(rng.integers(0, 8, (NODES, 40)), 3)
    same(
        planned(size, lambda a, o: D.plan_spmm(a, 40, bits=3, exchange=way, overlap=o), pattern, codes, method),
        bs.spmm(pattern, codes),
    )
    signs = bs.pack_bits(rng.standard_normal((NODES, 33)), encoding="bipolar")
    for variant in ("BBB", "BBF"):
        same(
            planned(
                size, lambda a, o, v=variant: D.plan_bspmm(a, 33, v, exchange=way, overlap=o), pattern, signs, method
            ),
            bs.bspmm(pattern, signs, variant),
        )


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_floats_keep_their_order(size, reduce):
    rng = np.random.default_rng(2)
    matrix = graph()
    for x in (
        rng.standard_normal((NODES, 9), dtype=np.float32),
        rng.standard_normal((NODES, 3, 5)),
        rng.standard_normal((NODES, 6)).astype(np.float16),
    ):
        inner = {"n": x.shape[-1], "heads": x.shape[1] if x.ndim == 3 else None, "dtype": x.dtype}
        same(
            planned(size, lambda a, o, i=inner: D.plan_spmm(a, **i, reduce=reduce, overlap=o), matrix, x),
            bs.spmm(matrix, x, reduce=reduce),
        )
    scaled = bs.TCTiledCSR(matrix != 0, row_scale=rng.random(NODES), col_scale=rng.random(NODES))
    x = rng.standard_normal((NODES, 9), dtype=np.float32)
    if reduce in ("sum", "mean"):
        same(
            planned(size, lambda a, o: D.plan_spmm(a, 9, reduce=reduce, overlap=o), scaled, x),
            bs.spmm(scaled, x, reduce=reduce),
        )


@pytest.mark.parametrize("size", [2, 3])
def test_what_an_epilogue_has_for_rows_goes_with_them(size):
    rng = np.random.default_rng(3)
    pattern, codes = graph() != 0, bs.BitTensor(rng.integers(0, 16, (NODES, 12)), 4)
    rows, scales = rng.random(NODES).astype(np.float32), rng.uniform(0.1, 2, (NODES, 1)).astype(np.float32)

    def epilogue(take, **more):
        return bs.Epilogue(row_scale=take(rows), bias=np.arange(12.0), activation="relu", **more)

    def both(make):
        whole = bs.spmm(pattern, codes, epilogue=make(lambda x: x))
        whole = whole.with_affine() if isinstance(whole, bs.BitTensor) else whole
        same(
            planned(
                size, lambda a, o: D.plan_spmm(a, 12, bits=4, epilogue=make(a.part.take), overlap=o), pattern, codes
            ),
            whole,
        )

    both(epilogue)
    both(lambda take: epilogue(take, binarize=True))
    both(lambda take: epilogue(take, bits=4, out_scale=take(scales), out_offset=take(-scales), layout="rows"))


def test_ranks_without_rows_take_part():
    tiny = sp.csr_array(np.array([[0, 2], [3, 0]], np.int32))
    x = np.arange(6, dtype=np.int32).reshape(2, 3)

    def plan(a, overlap):
        return D.plan_spmm(a, 3, dtype=np.int32, overlap=overlap)

    same(planned(4, plan, tiny, x), bs.spmm(tiny, x))
    nothing = sp.csr_array((3, 3), dtype=np.int32)
    same(planned(2, plan, nothing, x[[0, 1, 1]]), bs.spmm(nothing, x[[0, 1, 1]]))


def test_rows_are_summed_while_the_exchange_waits(monkeypatch):
    """Inner rows must be summed before the exchange ends: here it ends only after them, and would block a plan that waits first."""
    matrix, x = graph(), np.ones((NODES, 4), np.float32)
    summed = threading.Event()

    def work(comm):
        part = D.partition(matrix, comm)
        plan = D.plan_spmm(D.shard(matrix, part), 4, exchange="halo", overlap=True)
        exchange, inner = comm.all_to_all_v, plan._plan._inner

        def after(*arguments):
            assert summed.wait(20), "the inner rows were not summed during the exchange"
            exchange(*arguments)

        def sums(*arguments, **options):
            result = inner(*arguments, **options)
            if comm.rank == 1:
                summed.set()
            return result

        comm.all_to_all_v, plan._plan._inner = after, sums
        sums.dtype = inner.dtype  # type: ignore[attr-defined]
        return part.gather(plan(part.take(x)))

    same(D.local(2, timeout=30).run(work), bs.spmm(matrix, x))


def test_a_failure_on_one_rank_leaves_no_exchange_behind():
    matrix, x = graph(), np.ones((NODES, 4), np.float32)

    def work(comm):
        part = D.partition(matrix, comm)
        plan = D.plan_spmm(D.shard(matrix, part), 4, overlap=True)
        rows = part.take(x)
        wrong = np.empty((3, 3), np.float32) if comm.rank else None
        with pytest.raises(ShapeError, match="out") if comm.rank else nullcontext():
            plan(rows, out=wrong)
        return part.gather(plan(rows))

    same(D.local(2, timeout=30).run(work), bs.spmm(matrix, x))

    def lost(comm):
        part = D.partition(matrix, comm)
        plan = D.plan_spmm(D.shard(matrix, part), 4, overlap=True)
        if comm.rank:
            return None
        with pytest.raises(CommunicationError, match="rank 1 did not come"):
            plan(part.take(x))
        raise KeyError

    with pytest.raises(KeyError):
        D.local(2, timeout=1).run(lost)


def test_the_estimate_decides(monkeypatch):
    pattern, matrix = graph() != 0, graph()

    def chosen(comm, matrix, **options):
        part = D.partition(matrix, comm)
        plan = D.plan_spmm(D.shard(matrix, part), 8, exchange="halo", **options)
        return plan.overlap, plan.explain().splitlines()[1]

    monkeypatch.setitem(SUMS, "cpu", SUMS["cpu"]._replace(entries=1e3, call=1e-6))
    slow = Link(1.0, ((1e6, 1e9),), ((1e6, 1e9),))
    for link, wanted in (
        (slow, True),
        (slow._replace(latency=1e-9, gather=((1e6, 1e15),), pairs=((1e6, 1e15),)), False),
    ):
        monkeypatch.setitem(LINKS, "local", link)
        if not wanted:
            monkeypatch.setitem(SUMS, "cpu", SUMS["cpu"]._replace(call=1.0))
        for overlap, told in D.local(2).run(chosen, pattern):
            assert overlap is wanted and told.startswith("overlapped" if wanted else "not overlapped")
            assert "us by estimate" in told
    monkeypatch.setitem(LINKS, "local", slow)
    monkeypatch.setitem(SUMS, "cpu", SUMS["cpu"]._replace(call=1e-6))
    assert all("values may change" in told for _, told in D.local(2).run(chosen, matrix))
    for options in ({"overlap": True}, {"frozen": True}):
        assert all(overlap for overlap, _ in D.local(2).run(lambda comm, o=options: chosen(comm, matrix, **o)))
    assert "no rows come" in D.local(1).run(chosen, pattern)[0][1]


def test_estimates_add_up():
    def work(comm):
        a = D.shard(graph(), D.partition(graph(), comm))
        return estimate(a, "halo", 16, 32), a.nnz, a.outer()

    for found, nnz, (rows, entries) in D.local(2).run(work):
        rate = SUMS["cpu"]
        assert np.isclose(found.inner, (nnz - entries) * max(1 / rate.entries, 16 / rate.gathered))
        assert np.isclose(found.outer * (nnz - entries), found.inner * entries)
        assert np.isclose(found.overhead, rate.call + 96 * rows / rate.copied)
        assert found.apart == found.exchange + found.inner + found.outer
        assert found.gain == min(found.exchange, found.inner) - found.overhead
        assert found.waits == entries / nnz
        together = max(found.exchange, found.inner) + found.outer + found.overhead
        assert f"{1e6 * together:.0f} us by estimate" in found.told()
        assert f"with {100 * found.waits:.0f} % of the entries" in found.told()


def test_sums_wait_for_the_exchange_where_nearly_every_entry_does():
    """Overlap must be estimated as a loss for communities in blocks on four H100 (which lost a third), and as a gain if cut well."""
    entries, rows, sent, written = 31e6, 0.612e6, 128, 512
    rate, received = SUMS["cuda"], 157e6

    def gain(outer_rows, outer_entries):
        entry = max(1 / rate.entries, sent / rate.gathered)
        beside = rate.call + 3 * outer_rows * rows * written / rate.copied
        exchange = exchange_seconds("nccl", "halo", received * outer_rows)
        inner, outer = (1 - outer_entries) * entries * entry, outer_entries * entries * entry
        return Estimate(exchange, inner, outer, beside, outer_entries).gain

    assert gain(0.93, 0.984) < -5e-4
    assert gain(0.05, 0.1) > 0


def test_what_cannot_overlap_is_refused():
    pattern = graph() != 0

    def call(comm, make):
        return make(D.shard(pattern, D.partition(pattern, comm)))

    packs = bs.Epilogue(binarize=True, axis=-2)
    for make, text in (
        (lambda a: D.plan_bspmm(a, 4, "BBF", add=True, overlap=True), "add=True"),
        (lambda a: D.plan_spmm(a, 4, bits=2, epilogue=packs, overlap=True), "axis=-1"),
    ):
        with pytest.raises(ValueError, match=text):
            D.local(2).run(call, make)
    for make in (
        lambda a: D.plan_bspmm(a, 4, "BBF", add=True),
        lambda a: D.plan_spmm(a, 4, bits=2, epilogue=packs),
    ):
        assert not any(plan.overlap for plan in D.local(2).run(call, make))
    with pytest.raises(TypeError, match="overlap"):
        D.local(2).run(call, lambda a: D.plan_spmm(a, 4, overlap="yes"))


@pytest.mark.torch
def test_tensors_come_back_as_tensors():
    import torch

    matrix, x = graph(), np.random.default_rng(4).standard_normal((NODES, 4)).astype(np.float32)

    def work(comm):
        part = D.partition(matrix, comm)
        plan = D.plan_spmm(D.shard(matrix, part), 4, overlap=True)
        mine = torch.tensor(part.take(x))
        out = torch.empty(mine.shape)
        assert plan(mine, out=out) is out and torch.equal(plan(mine), out)
        return part.gather(plan(mine)).numpy()

    same(D.local(3).run(work), bs.spmm(matrix, x))

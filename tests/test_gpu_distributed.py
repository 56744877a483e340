"""Results of shards in GPU memory have the bits of the CPU; the ranks are threads that share one GPU."""

from __future__ import annotations

import lowbit_networks
import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import distributed as D
from bitsparse import interop, nn
from bitsparse.distributed.exchange import METHODS

pytestmark = pytest.mark.gpu


def problem():
    rng = np.random.default_rng(0)
    dense = rng.random((45, 45)) < 0.15
    dense[20], dense[40:] = True, False
    return sp.csr_array(dense), rng.standard_normal((45, 12)).astype(np.float32)


def in_turn(size, work):
    """Run ``work`` on ranks that are threads and use the current device."""
    return D.local(size, timeout=300).run(work)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("way", METHODS)
def test_counters_and_codes_on_a_gpu_are_those_of_the_cpu(size, way) -> None:
    pattern, x = problem()
    bits = bs.pack_bits(x, encoding="bipolar")
    codes = bs.quantize(x, 8, layout="rows").with_affine()

    def work(comm):
        part = D.partition(pattern, comm, method="metis")
        a = D.shard(pattern, part, device="cuda:0")
        counted = D.plan_bspmm(a, 12, "BBB", exchange=way)(part.take(bits).to_device("cuda:0"))
        summed = D.plan_spmm(a, 12, bits=8, exchange=way)(part.take(codes).to_device("cuda:0"))
        return part.gather(counted), part.gather(summed)

    wanted = bs.bspmm(pattern, bits, "BBB").words, bs.spmm(pattern, codes)
    for counted, summed in in_turn(size, work):
        assert np.array_equal(counted.words.get(), wanted[0])
        assert summed.dtype == wanted[1].dtype and np.array_equal(summed.get(), wanted[1])


@pytest.mark.parametrize("way", METHODS)
def test_sums_on_a_gpu_overlap_with_the_exchange_of_another_stream(way) -> None:
    pattern, x = problem()
    community = np.arange(45) // 9
    pattern = sp.csr_array(pattern.toarray() & ((community[:, None] == community) | (np.arange(45) % 7 == 0)[:, None]))
    bits, codes = bs.pack_bits(x, encoding="bipolar"), bs.quantize(x, 8, layout="rows").with_affine()
    scales = np.random.default_rng(1).uniform(0.5, 2, (45, 1)).astype(np.float32)

    def epilogue(take):
        return bs.Epilogue(row_scale=take(scales[:, 0]), bits=4, out_scale=take(scales), scheme="symmetric")

    def work(comm):
        part = D.partition(pattern, comm)
        a = D.shard(pattern, part, device="cuda:0")
        options = {"exchange": way, "overlap": True}
        plans = (
            D.plan_bspmm(a, 12, "BBB", **options),
            D.plan_spmm(a, 12, bits=8, **options),
            D.plan_spmm(a, 12, bits=8, epilogue=epilogue(part.take), **options),
            D.plan_spmm(a, 12, **options),
        )
        assert 0 < a.outer()[0] < a.shape[0] and all(plan.overlap for plan in plans)
        made = []
        for plan, features in zip(plans, (bits, codes, codes, x), strict=True):
            rows = part.take(features)
            mine = rows.to_device("cuda:0") if isinstance(rows, bs.BitTensor) else interop.move(rows, "cuda:0")
            first = plan(mine)
            target = first.copy()
            (target.words if isinstance(target, bs.BitTensor) else target)[...] = 1
            assert plan(mine, out=target) is target
            plan.check()
            made.append(part.gather(target.with_affine() if isinstance(target, bs.BitTensor) else target))
        return made

    whole = bs.spmm(pattern, codes, epilogue=epilogue(lambda vector: vector))
    for counted, summed, coded, floats in in_turn(3, work):
        assert np.array_equal(counted.words.get(), bs.bspmm(pattern, bits, "BBB").words)
        assert np.array_equal(summed.get(), bs.spmm(pattern, codes))
        assert np.array_equal(coded.words.get(), whole.words)
        assert np.allclose(floats.get(), pattern.astype(np.float32) @ x, atol=1e-4)


def test_stochastic_rounding_on_a_gpu_counts_as_on_the_cpu() -> None:
    pattern, x = problem()
    options = {"scheme": "symmetric", "rounding": "stochastic", "seed": 77}

    def work(comm):
        part = D.partition(pattern, comm)
        return part.gather(D.quantize(interop.move(part.take(x), "cuda:0"), 8, part, **options).with_affine())

    wanted = bs.quantize(x, 8, **options).toarray()
    assert all(np.array_equal(made.toarray().get(), wanted) for made in in_turn(2, work))


def test_floats_are_gathered_and_streams_go_to_a_gpu() -> None:
    pattern, x = problem()

    def work(comm):
        part = D.partition(pattern, comm)
        a = D.shard(pattern, part, device="cuda:0")
        mine = interop.move(part.take(x), "cuda:0")
        scores = D.sddmm(a, mine)
        return part.gather(D.spmm(a, mine)), float(scores.sum())

    for made, _ in in_turn(2, work):
        assert np.allclose(made.get(), pattern.astype(np.float32) @ x, atol=1e-4)
    streamed = D.quantize_streamed(x, 4, device="cuda:0", piece_bytes=200)
    whole = bs.quantize(x, 4, granularity="row", layout="rows")
    streamed = streamed.get()
    assert np.array_equal(streamed.words, whole.words) and np.array_equal(streamed.scale, whole.scale)


@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("normalisation", ["sum", "mean", "gcn"])
@pytest.mark.parametrize(
    "how", [{"bits": 8}, {"bits": 4}, {"scales": "all"}, {"bits": 4, "scales": "all"}, {"bits": None}]
)
def test_sharded_sums_on_a_gpu_are_those_of_the_cpu(how, way, normalisation) -> None:
    """The module's sums and gradients must be those of the CPU; they work on arrays here, without PyTorch's own GPU tensors."""
    pytest.importorskip("torch")
    import bitsparse.torch as bst

    pattern, x = problem()

    def work(comm, device):
        part = D.partition(pattern, comm)
        graph = D.GraphShard(D.shard(pattern, part, device=device), normalisation, exchange=way)
        module = bst.ShardedSum(graph, seed=2, **how)
        mine, call = interop.move(part.take(x), device), module.next_call()
        made = [module.sums(mine, call), module.gradient(mine, call)]
        assert module.calls == 1
        again = module.sums(mine, 1), module.gradient(mine, 1)  # the same number, from the host
        assert all(bool((one == other).all()) for one, other in zip(made, again, strict=True))
        return [interop.move(each, "cpu") for each in made]

    made, wanted = (D.local(2, timeout=300).run(work, device) for device in ("cuda:0", "cpu"))
    exact = how.get("scales") == "all" and normalisation != "gcn"
    for mine, other in zip(made, wanted, strict=True):
        assert np.array_equal(mine[0], other[0]) if exact else np.allclose(mine[0], other[0], rtol=1e-5, atol=1e-5)
        assert np.allclose(mine[1], other[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_on_a_gpu_that_are_not_finite_are_named_on_every_rank(value) -> None:
    pytest.importorskip("torch")
    import bitsparse.torch as bst

    pattern, x = problem()

    def work(comm):
        part = D.partition(pattern, comm)
        module = bst.ShardedSum(D.GraphShard(D.shard(pattern, part, device="cuda:0"), "sum"), scales="all")
        mine = part.take(x).copy()
        if comm.rank == 1:
            mine[-1, -1] = value
        with pytest.raises(ValueError, match="NaN or infinity"):
            module.sums(interop.move(mine, "cuda:0"), 1)

    D.local(2, timeout=300).run(work)


@pytest.mark.parametrize("kind", lowbit_networks.KINDS)
def test_low_bit_networks_on_a_gpu_give_the_logits_of_the_cpu(kind) -> None:
    rng = np.random.default_rng(1)
    pattern, x = lowbit_networks.random_graph(40, rng), rng.standard_normal((40, 12)).astype(np.float32)
    low = nn.quantize_network(nn.random_network(kind, [12, 9, 4]), pattern, x, [4, 8])

    def work(comm):
        part = D.partition(pattern, comm)
        a = D.shard(pattern, part, device="cuda:0")
        graph = D.GraphShard(a, low.normalisation, self_loops=low.self_loops, exchange="halo")
        return part.gather(low.plan(graph, low.quantize(part.take(x)).to_device("cuda:0"))())

    wanted = low(pattern, x)
    assert all(np.array_equal(made.get(), wanted) for made in in_turn(2, work))


def test_batches_are_dealt_out_to_ranks_on_a_gpu() -> None:
    rng = np.random.default_rng(2)
    pattern, x = lowbit_networks.random_graph(60, rng), rng.standard_normal((60, 12)).astype(np.float32)
    low = nn.quantize_network(nn.random_network("gcn", [12, 8, 3]), pattern, x, 8)
    options = {"labels": np.arange(60) // 10, "parts_per_batch": 1, "group_nodes": 12}
    wanted = nn.ClusterRunner(pattern, low, **options).run(x)

    def work(comm):
        runner = nn.ClusterRunner(pattern, low, comm=comm, device="cuda:0", **options)
        return runner.share(runner.run(x))

    assert all(np.array_equal(made, wanted) for made in in_turn(2, work))


class Enqueuing(D.LocalCommunicator):
    """Exchanges like NCCL's, which are enqueued on streams that wait for each other; the ranks are threads that share one GPU."""

    engine = "nccl"

    def _enqueued(self, operation, send, receive, part):
        """Copy every rank's data, ``part(rank, theirs)`` = (source, rows of the target), to a new array, and this to `receive` last."""
        import cupy

        stream = cupy.cuda.get_current_stream()
        ready, arriving = stream.record(), receive.copy()
        for rank, (theirs, event) in enumerate(self._offer(operation, (send, ready), None)):
            stream.wait_event(event)
            source, rows = part(rank, theirs)
            if source.nbytes:
                cupy.cuda.runtime.memcpyAsync(arriving[rows].data.ptr, source.data.ptr, source.nbytes, 3, stream.ptr)
        self._leave(operation, None)
        for event in self._offer(operation, stream.record(), None):
            stream.wait_event(event)
        self._leave(operation, None)
        if receive.nbytes:
            cupy.cuda.runtime.memcpyAsync(receive.data.ptr, arriving.data.ptr, receive.nbytes, 3, stream.ptr)
        self.__dict__.setdefault("alive", []).append(arriving)

    def all_gather(self, send, receive):
        if isinstance(send, np.ndarray):
            super().all_gather(send, receive)
            return
        self._enqueued("all_gather", send, receive, lambda rank, theirs: (theirs, rank))

    def all_to_all_v(self, send, send_counts, receive, receive_counts):
        if isinstance(send, np.ndarray):
            super().all_to_all_v(send, send_counts, receive, receive_counts)
            return
        ends = np.concatenate([[0], np.cumsum(receive_counts)])

        def part(rank, offered):
            theirs, counts = offered
            start = sum(counts[: self.rank])
            return theirs[start : start + counts[self.rank]], slice(ends[rank], ends[rank + 1])

        self._enqueued("all_to_all_v", (send, tuple(send_counts)), receive, part)


@pytest.mark.parametrize("way", METHODS)
@pytest.mark.parametrize("overlap", [True, False])
def test_streams_wait_for_each_other_where_the_host_does_not(way, overlap) -> None:
    import cupy

    pattern, x = problem()
    wanted = pattern.astype(np.float32) @ x

    def work(comm):
        comm = Enqueuing(comm._group, comm.rank)
        part = D.partition(pattern, comm)
        plan = D.plan_spmm(D.shard(pattern, part, device="cuda:0"), 12, exchange=way, overlap=overlap)
        rows = part.take(x)
        sources = [interop.move(factor * rows, "cuda:0") for factor in (1, 2, 3)]
        stream, results = cupy.cuda.Stream(non_blocking=True), []
        cupy.cuda.Device().synchronize()
        with stream:
            mine = cupy.empty_like(sources[0])
            for source in sources:  # the input arrives late on the stream, and the next copy overwrites it
                cupy.cuda.runtime.memcpyAsync(mine.data.ptr, source.data.ptr, source.nbytes, 3, stream.ptr)
                results.append(plan(mine))
        stream.synchronize()
        return part.rows(), [result.get() for result in results]

    for rows, results in in_turn(3, work):
        for factor, result in enumerate(results, start=1):
            assert np.allclose(result, factor * wanted[rows], atol=1e-4)


@pytest.fixture
def nccl(tmp_path):
    """The communicator of one rank under NCCL."""
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield D.from_torch()
    dist.destroy_process_group()


@pytest.mark.torch
def test_collectives_of_pytorch_are_enqueued_on_cupys_stream(nccl) -> None:
    import cupy
    import torch

    array = cupy.arange(5, dtype=np.float32)
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.ptds):
        with stream, nccl._on_stream("all_reduce", array) as (tensor,):
            assert torch.cuda.current_stream().cuda_stream == stream.ptr
            assert tensor.data_ptr() == array.data.ptr
        with stream:
            nccl.all_reduce(array)
            assert array.get().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.torch
def test_rows_go_there_and_back_under_nccl(nccl) -> None:
    import cupy

    rows = cupy.arange(12, dtype=np.float32).reshape(4, 3)
    received = cupy.zeros_like(rows)
    nccl.all_to_all_v(rows, [4], received, [4])
    assert bool((received == rows).all())
    nccl.all_to_all_v(rows[:0], [0], received, [4])  # rows of one's own that are not sent stay unchanged
    assert bool((received == rows).all())


@pytest.mark.torch
@pytest.mark.parametrize("way", METHODS)
def test_a_call_under_nccl_is_recorded(nccl, way) -> None:
    pattern, x = problem()
    codes = bs.quantize(x, 8, layout="rows").with_affine()
    part = D.partition(pattern, nccl)
    plan = D.plan_spmm(D.shard(pattern, part, device="cuda:0"), 12, bits=8, exchange=way)
    mine = codes.to_device("cuda:0")
    wanted = plan(mine)
    out = wanted.copy()
    replay = plan.recorded(mine, out)
    words = mine.words.copy()
    for empty in (True, False):
        mine.words[...] = 0 if empty else words
        replay()
        assert bool((out == (0 if empty else wanted)).all())

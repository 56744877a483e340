"""One rank of a test with several processes. test_distributed_processes.py starts it: ``python distributed_ranks.py gloo|mpi WHAT``."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import distributed as D
from bitsparse import nn
from bitsparse.errors import CommunicationError

#: Seconds after which a rank gives up.
TIMEOUT = float(os.environ.get("RANKS_TIMEOUT", "60"))


def communicator(engine):
    if engine == "mpi":
        from mpi4py import MPI

        return D.from_mpi(MPI.COMM_WORLD, timeout=TIMEOUT)
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = datetime.timedelta(seconds=TIMEOUT)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['RANKS_STORE']}", rank=rank, world_size=size, timeout=limit
    )
    return D.from_torch(dist.group.WORLD)


def graph():
    rng = np.random.default_rng(0)
    dense = (rng.random((61, 61)) < 0.1) * rng.integers(1, 5, (61, 61))
    dense[30], dense[50:] = 1, 0
    return sp.csr_array(dense.astype(np.int32))


def products(comm):
    """All results have the same bits as on one device, whatever is exchanged."""
    rng, matrix = np.random.default_rng(1), graph()
    integers, floats = rng.integers(-9, 9, (61, 5)).astype(np.int16), rng.standard_normal((61, 20)).astype(np.float32)
    bits = bs.pack_bits(floats, encoding="bipolar")
    low = nn.quantize_network(nn.random_network("gcn", [20, 9, 4]), matrix != 0, floats, 8)
    for method in ("blocks", "metis"):
        part = D.partition(matrix, comm, method=method)
        a, pattern = D.shard(matrix, part), D.shard(matrix != 0, part)
        for way in ("allgather", "halo", "auto"):
            made = part.gather(D.spmm(a, part.take(integers), exchange=way))
            assert np.array_equal(made, bs.spmm(matrix, integers)), (method, way)
            counted = part.gather(D.plan_bspmm(pattern, 20, "BBB", exchange=way)(part.take(bits)))
            assert np.array_equal(counted.words, bs.bspmm(matrix != 0, bits, "BBB").words), (method, way)
            beside = D.plan_spmm(a, 5, dtype=np.int16, exchange=way, overlap=True)
            for _ in range(3):
                assert np.array_equal(part.gather(beside(part.take(integers))), bs.spmm(matrix, integers)), (
                    method,
                    way,
                )
            shard = D.GraphShard(pattern, exchange=way)
            assert np.array_equal(part.gather(low(shard, part.take(floats))), low(matrix != 0, floats)), (method, way)
        options = {"scheme": "symmetric", "rounding": "stochastic", "seed": 5}
        codes = part.gather(D.quantize(part.take(floats), 8, part, **options).with_affine())
        if method == "blocks":
            assert np.array_equal(codes.toarray(), bs.quantize(floats, 8, **options).toarray())
    if comm.engine == "gloo":
        not_finite(comm)
    for op, wanted in (("sum", comm.size * (comm.size - 1) // 2), ("max", comm.size - 1), ("min", 0)):
        for dtype in (np.int32, np.int64, np.float32, np.float64):
            value = np.array([comm.rank], dtype)
            comm.all_reduce(value, op)
            assert value[0] == wanted
    comm.barrier()


def not_finite(comm):
    """All ranks find the NaN of one rank, whichever of NaN and a number the engine's maximum returns."""
    import bitsparse.torch as bst

    part = D.partition(graph(), comm)
    module = bst.ShardedSum(D.GraphShard(D.shard(graph() != 0, part), "sum", exchange="halo"), scales="all")
    for bad in range(comm.size):
        mine = np.ones((part.rows().stop - part.rows().start, 3), np.float32)
        if comm.rank == bad:
            mine[0, 0] = np.nan
        with pytest.raises(ValueError, match="NaN or infinity"):
            module.sums(mine, 1)


def mismatch(comm):
    """If one rank has another graph, all ranks raise an error that names this rank."""
    matrix = graph()
    if comm.rank == comm.size - 1:
        matrix = sp.csr_array(matrix.toarray()[::-1])
    with pytest.raises(CommunicationError, match=f"on rank {comm.size - 1}"):
        D.partition(matrix, comm)


def lost(comm):
    """The last rank is killed between two calls; the others raise an error."""
    part = D.partition(graph(), comm)
    plan = D.plan_spmm(D.shard(graph(), part), 4, exchange="allgather", overlap=True)
    x = part.take(np.ones((61, 4), np.float32))
    plan(x)
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    expect_loss(comm, lambda: [plan(x) for _ in range(1000)])


def late(comm):
    """The last rank does not arrive in time; the others stop waiting with an error."""
    comm.barrier()
    if comm.rank == comm.size - 1:
        time.sleep(TIMEOUT + 4)
        return
    expect_loss(comm, lambda: comm.all_gather(np.ones(3), np.ones((comm.size, 3))))


def expect_loss(comm, call):
    begin = time.monotonic()
    with pytest.raises(CommunicationError, match=f"rank {comm.rank} of {comm.size}") as told:
        call()
    assert time.monotonic() - begin < TIMEOUT + 20
    print("told:", told.value)


if __name__ == "__main__":
    engine, what = sys.argv[1:]
    comm = communicator(engine)
    {"products": products, "mismatch": mismatch, "lost": lost, "late": late}[what](comm)
    print(f"rank {comm.rank} of {comm.size}: {what} holds", flush=True)
    if what in ("lost", "late"):  # a rank is missing, so that an orderly shutdown would hang
        os._exit(0)
    if engine == "gloo":
        import torch.distributed as dist

        comm.barrier()
        dist.destroy_process_group()
        with pytest.raises(CommunicationError, match=r"process group of rank \d of \d was destroyed"):
            comm.barrier()

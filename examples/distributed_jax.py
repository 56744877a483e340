"""One layer of a graph network over several JAX processes, one for each device; JAX multiplies, bitsparse exchanges codes and sums:

torchrun --nproc-per-node 2 examples/distributed_jax.py

Features are one `jax.Array` over all devices. Each process passes its own shard to bitsparse, which exchanges packed 8-bit codes over a
process group of PyTorch (an mpi4py communicator works as well), and gets its shard of the result back. JAX needs shards with equal numbers
of rows, whereas bitsparse balances the numbers of edges, so JAX's shards are padded with rows of zeros.
"""

import argparse
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch.distributed as dist
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import bitsparse as bs
from bitsparse import datasets

NODES, FEATURES, HIDDEN = 3000, 48, 32


class Rows:
    """Conversion between this rank's rows and a `jax.Array` of the rows of all ranks."""

    def __init__(self, part: Any) -> None:
        sizes = np.diff(part.bounds)
        self.mine, self.most, self.ranks = int(sizes[part.comm.rank]), int(sizes.max()), sizes.size
        self.sharding = NamedSharding(Mesh(np.array(jax.devices()), ("ranks",)), PartitionSpec("ranks"))

    def joined(self, rows: Any) -> jax.Array:
        """Join the rows of all ranks to one array; each rank passes its own."""
        full = jnp.pad(jnp.asarray(rows), ((0, self.most - self.mine), (0, 0)))
        shape = (self.ranks * self.most, full.shape[1])
        device = self.sharding.mesh.local_devices[0]
        return jax.make_array_from_single_device_arrays(shape, self.sharding, [jax.device_put(full, device)])

    def own(self, whole: jax.Array) -> jax.Array:
        """Return this rank's rows, on its own device."""
        return whole.addressable_shards[0].data[: self.mine]


def start_jax() -> None:
    """Start JAX on the ranks that torchrun has started."""
    with socket.socket() as free:
        free.bind((os.environ["MASTER_ADDR"], 0))
        place = [f"{os.environ['MASTER_ADDR']}:{free.getsockname()[1]}"]
    dist.broadcast_object_list(place)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(place[0], dist.get_world_size(), dist.get_rank())


def layer(comm: Any) -> bool:
    """Compute a layer; return whether the sums of all ranks equal those of one device bit for bit."""
    pattern = datasets.synthetic((NODES, 10 * NODES), "communities").adjacency
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape, dtype=np.float32) for shape in ((NODES, FEATURES), (FEATURES, HIDDEN)))

    part = bs.distributed.partition(pattern, comm)
    a, rows = bs.distributed.shard(pattern, part), Rows(part)
    features = rows.joined(part.take(x))
    sent = jax.jit(jnp.matmul)(features, weight)  # on all devices; nothing is exchanged

    codes = bs.distributed.quantize(rows.own(sent), 8, part, layout="rows")
    plan = bs.distributed.plan_spmm(a, HIDDEN, bits=8)
    sums = rows.joined(plan(codes))
    largest = jax.jit(jnp.max, out_shardings=NamedSharding(rows.sharding.mesh, PartitionSpec()))(sums)  # over all ranks

    alone = bs.spmm(pattern, part.gather(codes))
    same = bool((np.asarray(rows.own(sums)) == part.take(alone)).all()) and float(largest) == float(alone.max())
    if comm.rank == 0:
        print(
            f"{comm.size} processes, {jax.device_count()} devices; features {features.shape} of {features.sharding.spec}"
        )
        print(plan.explain().partition("\n")[0])
        print(f"the sums of one device, bit for bit: {same}")
    return same


def main(arguments: Sequence[str] | None = None) -> bool:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args(arguments)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)  # without torchrun this is the only rank
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    try:
        start_jax()
        same = layer(bs.distributed.from_torch(dist.group.WORLD))
        dist.barrier()
        jax.distributed.shutdown()
        return same
    finally:  # a process group whose threads outlive Python aborts the process
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Graphs on several GPUs or processes: the rows are dealt out to ranks, which exchange by a communicator that the caller has."""

from bitsparse._communicator import Communicator
from bitsparse.distributed.edges import attention, edge_softmax, sddmm
from bitsparse.distributed.exchange import Exchange
from bitsparse.distributed.files import load_shard, save_shard, synthetic_shard
from bitsparse.distributed.graphs import GraphShard
from bitsparse.distributed.local import LocalCommunicator, LocalGroup, local
from bitsparse.distributed.mpi_engine import MPICommunicator, from_mpi
from bitsparse.distributed.parts import Partition, partition
from bitsparse.distributed.plans import ShardPlan
from bitsparse.distributed.products import bspmm, plan_bspmm, plan_spmm, sampled_spmm, spmm
from bitsparse.distributed.rates import LINKS, Link
from bitsparse.distributed.rounding import quantize
from bitsparse.distributed.shards import Shard, shard
from bitsparse.distributed.streaming import quantize_streamed, streamed_range
from bitsparse.distributed.torch_engine import TorchCommunicator, from_torch

__all__ = [
    "LINKS",
    "Communicator",
    "Exchange",
    "GraphShard",
    "Link",
    "LocalCommunicator",
    "LocalGroup",
    "MPICommunicator",
    "Partition",
    "Shard",
    "ShardPlan",
    "TorchCommunicator",
    "attention",
    "bspmm",
    "edge_softmax",
    "from_mpi",
    "from_torch",
    "load_shard",
    "local",
    "partition",
    "plan_bspmm",
    "plan_spmm",
    "quantize",
    "quantize_streamed",
    "sampled_spmm",
    "save_shard",
    "sddmm",
    "shard",
    "spmm",
    "streamed_range",
    "synthetic_shard",
]

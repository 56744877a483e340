"""Suite ``scale``: one result made by several ranks, under ``torchrun``.

    torchrun --nproc-per-node 4 benchmarks/run.py --suite scale --json FILE
    python3 benchmarks/scale_table.py FILE [FILE ...]

With a GPU to each rank NCCL carries arrays; without one gloo does, over small graphs, to see that the cases run. Without ``torchrun`` there
is one rank. The first rank writes the records. Those of two and four H100 (``results/h100-x2`` and ``h100-x4``, with ``--quick``) are of
some of the cases: none of ``-weak``, ``scale-cluster-...``, ``scale-training-...`` and ``scale-memory-map-...``.

- Every call is made by all ranks together, as many in a row as last 20 ms, from idle devices and a barrier to idle devices; the slowest
  rank counts, and of its times the median of 9 (3 with ``--quick``) after two that are not timed. Of the records there a row is one call,
  to which the ranks' different ends of a barrier are added. ``params`` have the ranks, the engine, the exchange and whether sums overlap.
- ``scale-link-...``: an all-gather, or rows from all to all, in which each rank receives so many bytes: ``bytes / ours_ms`` is the rate of
  the run, beside which the others are to be read.
- ``scale-binary-papers-strong``: ``plan_bspmm(a, 128, "BBB")`` of one graph dealt out, against the same graph on the first rank's device
  alone. ``-weak``: a graph of this size to each rank with ends on all, against one such graph alone.
- ``scale-spmm-products-b8``: sums of 8-bit codes, 128 to a node, against one device.
- ``scale-cluster-products-b8``: an epoch of ``ClusterRunner`` over packets that are there, logits to an array on the device, against one
  device.
- ``scale-overlap-...``: sums of 128 columns over communities in blocks, with rows of own neighbours summed during the exchange or after it,
  as the plan chooses, against the other way; ``params`` say which it is, and which share of rows and entries waits. In records of before
  the choice is forced: with overlap, against without.
- ``scale-training-products``: an epoch of full-graph training of a GCN, forward, backward and the sum of the weights' gradients, with 8
  bits exchanged, against float32 exchanged.
- ``scale-exchange-products``: what that training exchanges in an epoch, both ways, with rounding, against float32.
- ``scale-inference-...``: sums of 128 columns in few bits with their exchange, against an all-gather of float32 and PyTorch's CSR product
  (cuSPARSE on a GPU) over the same shards.
- ``scale-memory-map-...``: quantising a file of ``SCALE_MAP_GB`` gigabytes from a memory map, against reading it; on both sides the cache
  of the system is as warm as the repetitions before have left it, so that a file has to exceed memory for the disk to count.

Under NCCL sums and layers, and those of PyTorch and of one device, are replayed as CUDA graphs; an epoch's exchanges, epochs and
``ClusterRunner`` are called, on both sides.
"""

from __future__ import annotations

from benchmarks import gpu_timing
from benchmarks.cases import ranks, scale
from bitsparse.bench import Case, Machine

__all__ = ["cases", "machine"]


def machine(threads: int, commit: str | None) -> Machine:
    """Describe this rank's machine for the records."""
    return Machine.of_cpu(threads, commit) if ranks.device() == "cpu" else gpu_timing.machine(threads, commit)


def cases(threads: int) -> list[Case]:
    """All cases of the suite."""
    return scale.cases()

"""Suite ``scale``: results that several ranks compute together, under ``torchrun``.

    torchrun --nproc-per-node 4 benchmarks/run.py --suite scale --json FILE
    python3 benchmarks/scale_table.py FILE [FILE ...]

If each rank has a GPU, NCCL exchanges arrays; without GPUs gloo does, over small graphs, to check that the cases run. Without ``torchrun``
there is one rank. The first rank writes the records. Those of two and four H100 (``results/h100-x2`` and ``h100-x4``, with ``--quick``)
cover only some cases: none of ``-weak``, ``scale-cluster-...``, ``scale-training-...`` and ``scale-memory-map-...``.

- All ranks make every call together. A sample is as many calls in a row as last 20 ms, from idle devices and a barrier to idle devices. The
  slowest rank counts, with the median of 9 samples (3 with ``--quick``) after two untimed ones. In the H100 records a sample is one call,
  so that its time includes the ranks' different ends of the barrier. ``params`` hold the ranks, the engine, the exchange and whether sums
  overlap.
- ``scale-link-...``: an all-gather, or an all-to-all exchange of rows, in which each rank receives this many bytes: ``bytes / ours_ms`` is
  the rate of the link in this run, with which the other cases should be compared.
- ``scale-binary-papers-strong``: ``plan_bspmm(a, 128, "BBB")`` of one graph divided among the ranks, against the same graph on the first
  rank's device alone. ``-weak``: each rank has a graph of this size with edges to all ranks, against one such graph alone.
- ``scale-spmm-products-b8``: sums of 8-bit codes, 128 per node, against one device.
- ``scale-cluster-products-b8``: an epoch of ``ClusterRunner`` over packets made beforehand, with logits into an array on the device,
  against one device.
- ``scale-overlap-...``: sums of 128 columns over communities in blocks. Rows with own neighbours only are summed during the exchange or
  after it, as the plan chooses; the peer is the other choice. ``params`` say which was chosen, and which share of rows and entries waits.
  In records from before plans could choose, overlap is compared with no overlap.
- ``scale-training-products``: an epoch of full-graph training of a GCN, forward, backward and the sum of the weights' gradients, which
  exchanges 8 bits, against float32.
- ``scale-exchange-products``: the exchanges of an epoch of that training in both passes, with rounding, against float32. In records from
  before gradients were summed over the transpose, the backward passes of both sides exchange and add partial sums.
- ``scale-inference-...``: sums of 128 columns in few bits with their exchange, against an all-gather of float32 and PyTorch's CSR product
  (cuSPARSE on a GPU) over the same shards.
- ``scale-memory-map-...``: quantising a file of ``SCALE_MAP_GB`` gigabytes from a memory map, against reading it. Earlier repetitions warm
  the system's cache for both sides, so the file must be larger than memory for the disk to matter.

Under NCCL, sums, layers, exchanges of an epoch and epochs, including those of PyTorch and of one device, are replayed as CUDA graphs;
``ClusterRunner`` is called directly, on both sides. In the H100 records, exchanges of an epoch and epochs are called directly too.
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

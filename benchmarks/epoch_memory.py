"""The memory of an epoch of training on the CPU: ``python benchmarks/epoch_memory.py [--nodes N] [gcn-fp32 gcn-int8 gat-int8-4 ...]``.

For each network of suite ``training`` (``-fp32``, or ``-int8`` and ``-int4``, followed by the bits of ``bst.Tango(activations=)`` if any),
it prints two numbers in units of one float32 per node: the memory that a forward pass keeps for the gradients, and the peak of an epoch
without the data, the graph and all that existed before. Linux counts the latter (``VmHWM``). Each network runs in its own process, so that
none reuses another's memory. Libraries' buffers of fixed size count too, so use enough nodes. The graph is random, with the columns,
classes and degree of ogbn-products.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
from pathlib import Path

#: Settings of malloc that return pages to the system as soon as they are free.
SETTINGS = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": "0"}
USUAL = ("gcn-fp32", "gcn-int8", "gcn-int8-8", "gcn-int8-4", "gat-fp32", "gat-int8", "gat-int8-8", "gat-int8-4")
COLUMNS, CLASSES, DEGREE = 100, 47, 50


def held(field: str) -> int:
    """Bytes that the process holds (``VmRSS``), or its peak since the last reset (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def of_one(case: str, nodes: int) -> str:
    """Measure a network; return the line with both numbers."""
    import torch

    from benchmarks.cases import training_sides

    network, precision, *activations = case.split("-")
    random = torch.Generator().manual_seed(0)
    ends = torch.randint(nodes, (2, nodes * DEGREE // 2), generator=random)
    entries = torch.cat([ends[0] * nodes + ends[1], ends[1] * nodes + ends[0]]).unique()
    indptr = torch.zeros(nodes + 1, dtype=torch.int32)
    indptr[1:] = torch.bincount(entries // nodes, minlength=nodes).cumsum(0)
    made = training_sides.problem((indptr, (entries % nodes).int()), (COLUMNS, CLASSES))
    side = training_sides.ours_of(
        network, made, made.x, precision, activations=int(activations[0]) if activations else None
    )
    side.step()
    kept = training_sides.kept_by(side)
    del ends, entries, made
    gc.collect()
    before = held("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    side.step()
    return (
        f"{case:12} kept {kept / nodes / 4:7.1f}   at most {(held('VmHWM') - before) / nodes / 4:7.1f}   float32 a node"
    )


def main() -> None:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("cases", nargs="*", default=USUAL)
    parser.add_argument("--nodes", type=int, default=200_000)
    options = parser.parse_args()
    if set(SETTINGS.items()) <= set(os.environ.items()):
        print(of_one(options.cases[0], options.nodes), flush=True)
        return
    for case in options.cases:
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, __file__, case, "--nodes", str(options.nodes)]
        subprocess.run(command, check=True, env={**os.environ, **SETTINGS, "PYTHONPATH": path})


if __name__ == "__main__":
    main()

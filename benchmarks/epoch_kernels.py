"""List the kernels of an epoch of suite ``training`` on both sides, as JSON lines, to see how much sums matter.

Times come from PyTorch's profiler over replays of the captured epoch (or over the epoch itself if it cannot be captured). ``kinds`` adds up
the microseconds of dense products, of kernels over edges, of the optimiser and of all others; ``idle_us`` is the rest of the epoch's time
by events, between kernels. ``bound`` is the speed-up over the peer that an epoch would have if our sums took no time.

    python benchmarks/epoch_kernels.py gcn-fp32-cora gat-fp32-artist gcn-int8-sums-reddit-power_law

The name of a quantised epoch includes the treatment of its last layer, like the names of the suite's cases.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.cases import training, training_sides
from benchmarks.gpu_timing import replay

REPLAYS = 20
#: Parts of kernel names, by kind; the first kind that matches counts.
KINDS = {
    "products": ("gemm", "cublas", "cutlass", "splitK", "nvjet"),
    "optimiser": ("adam", "multi_tensor"),
    "edges": (
        "csr",
        "spmm",
        "sddmm",
        "attention",
        "cosine",
        "gatv2",
        "cusparse",
        "index_select",
        "indexSelect",
        "gather",
        "edge",
    ),
}


def kind_of(kernel: str) -> str:
    """The kind of a kernel, from its name."""
    return next((kind for kind, parts in KINDS.items() if any(part in kernel for part in parts)), "others")


def kernels_of(launch: Callable[[], object]) -> list[tuple[str, float, float]]:
    """Kernels with their number of runs and total microseconds in an epoch, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(REPLAYS):
            launch()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(list)
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name].append(event.device_time)
    rows = [(name, len(times) / REPLAYS, sum(times) / REPLAYS) for name, times in found.items()]
    return sorted(rows, key=lambda row: -row[2])


def side_of(name: str, step: Callable[[], object]) -> dict[str, Any]:
    """The kernels and times of one side."""
    launch = training.recorded(name, step)
    ms = replay([launch], REPLAYS)[0]
    kernels = kernels_of(launch)
    kinds: dict[str, float] = defaultdict(float)
    for kernel, _, us in kernels:
        kinds[kind_of(kernel)] += us
    listed = [{"kernel": kernel[:120], "times": times, "us": round(us, 2)} for kernel, times, us in kernels]
    found = {"us": 1e3 * ms, "launches": sum(times for _, times, _ in kernels), "kinds": dict(kinds)}
    return found | {"idle_us": 1e3 * ms - sum(kinds.values()), "kernels": listed}


def parts_of(name: str) -> tuple[str, str, str, str]:
    """Split a name into the network, the precision, the treatment of the last layer in quantised epochs, and the graph.

    >>> parts_of("gcn-fp32-reddit-power_law"), parts_of("gcn-int8-sums-cora")
    (('gcn', 'fp32', 'float32', 'reddit-power_law'), ('gcn', 'int8', 'sums', 'cora'))
    """
    network, precision, graph = name.split("-", 2)
    last, graph = graph.split("-", 1) if precision in training_sides.BITS else ("float32", graph)
    return network, precision, last, graph


def main() -> None:
    """Print a line for every requested epoch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("epochs", nargs="+", metavar="NETWORK-PRECISION[-LAST]-GRAPH")
    for name in parser.parse_args().epochs:
        network, precision, last, graph = parts_of(name)
        made = training.problem_of(graph)
        x = made.x.to(training_sides.DTYPES[precision])
        ours = training_sides.ours_of(network, made, x, precision, last)
        peer = training_sides.peer_of(network, made, x, precision, dict(training_sides.named(ours)))
        sides = {who: side_of(f"{name}, {who}", side.step) for who, side in (("ours", ours), ("peer", peer))}
        bound = sides["peer"]["us"] / max(sides["ours"]["us"] - sides["ours"]["kinds"].get("edges", 0.0), 1e-9)
        print(json.dumps({"epoch": name, "bound": round(bound, 2), **sides}))
        del ours, peer
        training.free()


if __name__ == "__main__":
    main()

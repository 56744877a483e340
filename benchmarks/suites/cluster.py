"""Suite ``cluster``: whole epochs of inference over batches of METIS parts on a GPU, transfers included.

Where this suite differs from the protocol of ``run.py``:

- ``cluster-{gcn|gin}-{graph}-b{bits}`` is an epoch of ``bitsparse.nn.ClusterRunner``: each batch of 20 of the 1500 parts is copied from
  pinned memory, its three layers are computed, and its logits go to their rows of one array on the GPU, in the nodes' order. Weights,
  features and activations between layers have that many bits; only the last layer's results are float32. Packing happens beforehand and
  is recorded separately (``params.pack_ms``). Both sides leave out edges between parts. See ``cases/cluster_problems.py`` for graphs,
  widths and parts.
- The peer is PyTorch Geometric in float32 with the same weights on the same batches, which lie in pinned memory; a batch is copied while
  the previous one is computed (``peers/pyg_cluster.py``). It may use the same means as ours: batches in the same groups, and the whole
  epoch in one CUDA graph. The fastest variant counts, named in ``params.way``; ``params.ways_ms`` has the times of all.
  ``params.launched_ms`` is the fastest variant that launches batches one by one, as loaders do.
- Both sides are timed by the clock, from an idle GPU to an idle GPU, in turns; the median of 7 epochs counts (3 with ``--quick``).
- ``params.moved`` is the number of bytes that an epoch of ours copies to the GPU, ``params.peer_moved`` that of the peer's counted variant,
  and ``params.plain_bytes`` that of ``edge_index`` (int64) and float32 features alone; bytes are compared with the latter.
- Events in a separate epoch give ``params.idle``, the share of the time from the first kernel to the last in which the GPU neither computes
  nor copies, and ``params.computing``, the share of that same epoch's time (``timed_ms``) in which kernels run.
- Logits of the first batch must equal the CPU's bit for bit; all logits must be numbers; with 8 bits they must be near the peer's.
- ``estimate_ms`` is the larger of two times: that of copying the bytes at the rate measured here for a large pinned array, and that of
  fetching, in all layers, a row of the layer's narrower side for each edge at the card's measured rates. ``floor_ms`` is the time of
  copying the bytes at the rate of PCIe 5 with 16 lanes.
- ``cluster-pack-products-b{bits}`` is the time to pack an epoch on the host, without a peer. Pass ``--threads 16`` to use 16 cores.

``python3 benchmarks/summary.py FILE`` prints means and worst cells of the records.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases.cluster_ours import (
    checked,
    fingerprint,
    model_of,
    network_of,
    runner_of,
    same_classes,
    weights_of,
)
from benchmarks.cases.cluster_problems import BITS, GRAPHS, KINDS, PARTS_PER_BATCH, Kind, Problem, problem
from benchmarks.ceilings import LINK_PEAK, Bounds
from benchmarks.gpu_timing import machine, torch_module
from benchmarks.peers.pyg import version
from benchmarks.peers.pyg_cluster import WAYS, Variant, plain_bytes, variants_of
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol

__all__ = ["cases", "machine"]

EPOCHS, WAY_EPOCHS, PACKS = 7, 2, 3
PACKED = "products"
#: Rows per second and bytes per second that the card can gather; whichever is reached first limits it.
ROW_RATE, GATHER_RATE = 155e9, 9e12
_LINK_BYTES = 1 << 28
#: The largest number of edges for which the tiles of the packets are counted.
COUNTED = 5_000_000


def cases(threads: int) -> list[Case]:
    """All cases of the suite, grouped by graph and network, so that operands and peers are built once."""
    table = []
    for name in GRAPHS:
        for kind in KINDS:
            table += [Case(f"cluster-{kind}-{name}-b{bits}", partial(epoch, kind, name, bits)) for bits in BITS]
    return table + [Case(f"cluster-pack-{PACKED}-b{bits}", partial(packing, bits)) for bits in (BITS[0], BITS[-1])]


def epoch(kind: Kind, name: str, bits: int) -> Prepared:
    """An epoch of ours against one of PyTorch Geometric."""
    cupy = jit.require_cupy("suite cluster")
    case, made = f"cluster-{kind}-{name}-b{bits}", problem(name)
    model = model_of(made, kind, bits)
    runner = runner_of(made, model, "cuda")
    start = time.perf_counter()
    packed = runner.pack(made.features)
    params: dict[str, Any] = {"pack_ms": 1e3 * (time.perf_counter() - start)}
    peer = peer_of(made, kind, len(packed.packets))
    out = cupy.full((made.nodes, made.classes), np.nan, np.float32)
    runner.run_packed(packed, out=out)
    logits = out.get()
    checked(case, made, model, logits)
    params |= made.facts() | {"kind": kind, "bits": bits} | peer.facts
    params |= same_classes(case, bits, logits, peer.logits) | {"hash": fingerprint(logits)}
    params |= {
        "packed": packed.facts(),
        "moved": int(packed.nbytes),
        "way": peer.best.name,
        "peer_moved": peer.best.nbytes,
    }
    params["plain_bytes"] = plain_bytes(made.nodes, made.kept_edges, made.columns)
    runner.run_packed(packed, out=out, timed=True)
    params |= stages(runner.report)
    limits, params["estimate"] = bounds_of(made, kind, bits, int(packed.nbytes))

    def measure(protocol: Protocol) -> tuple[float, float]:
        ours, theirs = in_turns(
            [partial(runner.run_packed, packed, out=out), peer.best.call],
            min(protocol.repetitions, EPOCHS),
        )
        return ours, theirs

    return Prepared(
        lambda: None,
        None,
        f"{version()}, {peer.best.name}",
        params,
        int(packed.nbytes) + out.nbytes,
        *limits,
        measure=measure,
    )


def packing(bits: int) -> Prepared:
    """Packing of an epoch on the host."""
    made = problem(PACKED)
    release()
    runner = runner_of(made, model_of(made, "gcn", bits), "cuda")
    packed = runner.pack(made.features)
    params = made.facts() | {"bits": bits, "packed": packed_facts(made, packed), "moved": int(packed.nbytes)}
    read = made.features.nbytes + made.data.indptr.nbytes + made.data.indices.nbytes
    del packed

    def measure(protocol: Protocol) -> tuple[float, None]:
        samples = []
        for _ in range(min(protocol.repetitions, PACKS)):
            start = time.perf_counter()
            kept = runner.pack(made.features)
            samples.append(1e3 * (time.perf_counter() - start))
            del kept
        return median(samples), None

    return Prepared(lambda: None, None, None, params, int(read) + params["moved"], measure=measure)


class Peer:
    """PyTorch Geometric on a problem: its fastest variant, the logits, and the times of all variants for the record."""

    def __init__(self, made: Problem, kind: Kind, groups: int) -> None:
        torch = torch_module()
        self.key = (made.name, kind, groups)
        weights = weights_of(network_of(kind, tuple(made.widths(kind))))
        self.out = torch.empty((made.nodes, made.classes), device="cuda")
        variants = variants_of(made, kind, weights, PARTS_PER_BATCH, parts_of_group(made, groups), self.out)
        self.logits = self._logits(variants[0])
        for variant in variants[1:]:
            error = float(np.abs(self._logits(variant) - self.logits).max())
            if not error <= 1e-3 * max(float(self.logits.std()), 1e-30):
                raise AssertionError(f"PyTorch Geometric, {variant.name}: logits differ from {WAYS[0]} by {error:.1e}")
        times = fastest({variant.name: partial(timed, variant.call) for variant in variants}, WAY_EPOCHS)
        self.best = min(variants, key=lambda variant: times[variant.name])
        self.facts = {"ways_ms": times, "launched_ms": min(times[way] for way in WAYS), "groups": groups}

    def _logits(self, variant: Variant) -> NDArray[np.float32]:
        self.out.fill_(float("nan"))
        variant.call()
        found: NDArray[np.float32] = self.out.cpu().numpy()
        return found


def parts_of_group(made: Problem, groups: int) -> int:
    """The number of parts per group if whole batches are divided into `groups` groups."""
    batches = -(-(int(made.labels.max()) + 1) // PARTS_PER_BATCH)
    return PARTS_PER_BATCH * -(-batches // groups)


_held: list[Peer] = []


def peer_of(made: Problem, kind: Kind, groups: int) -> Peer:
    """The peer on a problem, with as many groups as ours; it is kept until another one is asked for."""
    if not _held or _held[0].key != (made.name, kind, groups):
        release()
        _held.append(Peer(made, kind, groups))
    return _held[0]


def release() -> None:
    """Drop the kept peer and free its memory, both pinned and on the GPU."""
    _held.clear()
    gc.collect()
    jit.require_cupy("suite cluster").get_default_memory_pool().free_all_blocks()
    torch = torch_module()
    torch.cuda.empty_cache()
    if hasattr(torch._C, "_host_emptyCache"):
        torch._C._host_emptyCache()


def timed(call: Callable[[], object]) -> float:
    """Milliseconds from an idle GPU to an idle GPU."""
    torch = torch_module()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def fastest(calls: dict[str, Callable[[], float]], times: int) -> dict[str, float]:
    """The shortest time of each call; the calls take turns."""
    samples = [{name: call() for name, call in calls.items()} for _ in range(times)]
    return {name: min(sample[name] for sample in samples) for name in calls}


def in_turns(calls: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
    """Median milliseconds of each call, timed in turns and in alternating order, after one untimed call of each."""
    samples: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    for i in order:
        timed(calls[i])
    for _ in range(repetitions):
        for i in order:
            samples[i].append(timed(calls[i]))
        order.reverse()
    return [median(sample) for sample in samples]


def packed_facts(made: Problem, packed: Any) -> dict[str, Any]:
    """Facts about packets for the record; counting tiles unpacks them, so large ones only report their number."""
    if made.kept_edges > COUNTED:
        return {"groups": len(packed.packets)}
    found: dict[str, Any] = packed.facts()
    return found


def stages(report: Any) -> dict[str, Any]:
    """The times and shares of a timed epoch's stages."""
    names = {"copy_ms": "copy_ms", "compute_ms": "compute_ms", "idle": "idle_share"}
    found = {name: getattr(report, attribute, None) for name, attribute in names.items()}
    computing = None if found["compute_ms"] is None else found["compute_ms"] / (1e3 * report.seconds)
    return found | {"timed_ms": 1e3 * report.seconds, "computing": computing}


def bounds_of(made: Problem, kind: Kind, bits: int, moved: int) -> tuple[Bounds, str]:
    """The bounds of an epoch, and whether the estimate rests on the bytes copied or on the gathers of sums."""
    copy = 1e3 * moved / link_rate()
    widths, entries = made.widths(kind), made.kept_edges + made.nodes
    gather = 0.0
    for before, after in pairwise(widths):
        row_bytes = -(-min(before, after) * bits // 8)
        gather += 1e3 * max(entries / ROW_RATE, entries * row_bytes / GATHER_RATE)
    rate = f"measured: pinned copy at {link_rate() / 1e9:.1f} GB/s"
    why = rate if copy >= gather else "measured: gathers of three layers"
    return Bounds(1e3 * moved / LINK_PEAK, max(copy, gather)), why


@cache
def link_rate() -> float:
    """Bytes per second of one large copy from pinned memory to the GPU."""
    torch = torch_module()
    source = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_LINK_BYTES, dtype=torch.uint8, device="cuda")
    ms = min(timed(partial(target.copy_, source, non_blocking=True)) for _ in range(5))
    return 1e3 * _LINK_BYTES / ms

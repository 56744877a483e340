"""The measurements and counts behind QGTC's tables, part by part; the protocol is in ``papers/qgtc/program.py``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.cluster_problems import PARTS_PER_BATCH, labels_of
from benchmarks.cases.graphs import graph
from benchmarks.ceilings import product_bounds
from benchmarks.gpu_timing import (
    Int8Product,
    accumulator,
    estimates_us,
    machine,
    ours_graph,
    random_words,
    replay,
    torch_graph,
    torch_module,
)
from bitsparse import jit
from bitsparse.backends.cuda.matmul import wgmma as gemm
from bitsparse.backends.cuda.matmul import wgmma_tilings
from bitsparse.backends.cuda.matmul.matmul import Product
from bitsparse.backends.cuda.matmul.passes import Sizes
from bitsparse.bench import Machine, Record, Unavailable
from bitsparse.datasets import synthetic
from bitsparse.graph import batch

__all__ = ["figure_7", "figure_8", "measured"]

#: The number of calls in a CUDA graph.
CALLS = 20
#: Figure 8: graphs of the paper without small public files, replaced by synthetic ones; then real graphs, the paper's two first.
STAND_INS = ("blogcatalog", "ppi", "arxiv", "products")
GRAPHS = (
    "PROTEINS_full",
    "artist",
    "pubmed",
    "coauthor_cs",
    "amazon_computers",
    "soc_slashdot0902",
    "DD",
    "web_notredame",
)


def table_3(where: Machine, repetitions: int) -> Iterator[dict[str, Any]]:
    """1 to 4 bits against int8; the paper's peer is CUTLASS int4."""
    for d in (32, 64):
        for n in (2048, 4096, 8192):
            yield from products("table-3", n, d, (1, 2, 3, 4), where, repetitions)


def figure_7c(where: Machine, repetitions: int) -> Iterator[dict[str, Any]]:
    """2 to 7 bits against int8."""
    for d in (16, 32, 64):
        for n in (1024, 2048, 4096):
            yield from products("figure-7c", n, d, (2, 3, 4, 5, 6, 7), where, repetitions)


def figure_9(where: Machine, repetitions: int) -> Iterator[dict[str, Any]]:
    """1 bit, over the sizes of adjacency and features."""
    for n in (1 << e for e in range(7, 16)):
        for d in (16, 32, 64, 128, 256, 512, 1024):
            yield from products("figure-9", n, d, (1,), where, repetitions)


def figure_10(where: Machine, repetitions: int) -> Iterator[dict[str, Any]]:
    """Tiles of A that are loaded once for several planes of X, against once for every plane; D is 1024."""
    if not jit.capability().has_wgmma:
        raise Unavailable(f"{where.gpu} has no warpgroup products, whose planes of X lie side by side")
    for bits in (4, 8, 16):
        for n in (1024, 2048, 4096, 8192):
            yield from products("figure-10", n, 1024, (bits,), where, repetitions, reuse=True)


def products(
    part: str, n: int, d: int, widths: Sequence[int], where: Machine, repetitions: int, *, reuse: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield records of one size at several bit widths, all timed in turns with one peer."""
    cupy, torch = jit.require_cupy("qgtc"), torch_module()
    a = adjacency(n)
    calls: list[Callable[[], object]] = []
    facts: list[dict[str, Any]] = []
    peer: Int8Product | None = None
    for bits in widths:
        b = random_words(d, bits, n)
        int8 = Int8Product(a, b, n, 1, bits)
        int8()
        peer = peer or int8
        estimates = estimates_us(n, n, d, 1, bits)
        kind: dict[str, Any] = {"k": n, "n": d, "a_bits": 1, "b_bits": bits, "a_encoding": "unsigned"}
        kind |= {"b_encoding": "signed" if bits == 8 else "unsigned", "acc_dtype": accumulator(n, 1, bits)}
        variants: dict[str, dict[str, Any]] = {"": {"kernel": min(estimates, key=estimates.__getitem__)}}
        if reuse:
            variants |= {name: {"kernel": "planes", "tiling": tiling} for name, tiling in tilings(n, d, bits).items()}
        for name, chosen in variants.items():
            prepared, out = Product(a, **kind, **chosen), cupy.empty((n, d), kind["acc_dtype"])
            prepared(b, out)
            cupy.cuda.runtime.deviceSynchronize()
            if not torch.equal(torch.from_dlpack(out), int8.out):
                raise AssertionError(f"{part} {n} x {n} x {d}, {bits} bits, {chosen}: the results differ")
            calls.append(partial(prepared, b, out))
            params = {"part": part, "n": n, "d": d, "bits": bits, "variant": name, "kernel": chosen["kernel"]}
            params["tiling"] = None if prepared.tiling is None else prepared.tiling._asdict()
            facts.append({"params": params, "bytes": int(a.nbytes + b.nbytes + out.nbytes)})
    assert peer is not None
    graphs = [ours_graph([call] * CALLS) for call in calls]
    times = [ms / CALLS for ms in replay([*graphs, torch_graph([peer] * CALLS)], repetitions)]
    peer_name = f"torch {torch.__version__} _int_mm"
    for ms, fact in zip(times, facts, strict=False):
        params = fact["params"]
        params |= {"tflops": 2e-9 * n * n * d / ms, "peer_tflops": 2e-9 * n * n * d / times[-1]}
        case = " ".join(f"{part} {n}x{n}x{d} {params['bits']} {params['variant']}".split())
        limits = product_bounds(params["kernel"], n, n, d, 1, params["bits"], fact["bytes"])._asdict()
        record = Record("qgtc", case, params, ms, peer_name, times[-1], fact["bytes"], where, **limits)
        yield record.flat()


@cache
def adjacency(n: int) -> Any:
    """Random bits; no tile is zero."""
    return random_words(n, 1, n)


def tilings(n: int, d: int, bits: int) -> dict[str, wgmma_tilings.Tiling]:
    """The best tilings of both kinds: those that load a tile of A once for several planes of X, and those that load it for each plane."""
    blocks = -(-n // 1024)
    found = wgmma_tilings.tilings(d, bits, masked=False, wide=False)

    def best(side_by_side: bool) -> wgmma_tilings.Tiling:
        return min(
            (t for t in found if (t.qb > 1) == side_by_side),
            key=lambda t: gemm.estimate_us(t, Sizes(n, d, blocks, 1, bits, 1)),
        )

    return {"reuse": best(True), "no-reuse": best(False)}


def figure_7(part: str, records: Path) -> Iterator[dict[str, Any]]:
    """Epochs of one network from the records of suite ``cluster``; nothing is measured."""
    kind = {"figure-7a": "gcn", "figure-7b": "gin"}[part]
    if not records.is_file():
        raise Unavailable(f"there are no records of suite cluster in {records}; write them with run.py --suite cluster")
    for line in records.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        facts = record["params"]
        if record["suite"] == "cluster" and facts.get("kind") == kind:
            names = ("graph", "source", "nodes", "kept_edges", "bits", "moved", "plain_bytes", "pack_ms")
            params = {"part": part} | {name: facts[name] for name in names}
            case = f"{part} {facts['graph']} {facts['bits']}"
            yield record | {"suite": "qgtc", "case": case, "params": params}


def figure_8(commit: str | None) -> Iterator[dict[str, Any]]:
    """Count tiles with and without edges in block-diagonal batches of 20 out of 1500 METIS parts."""
    for name in (*GRAPHS, *STAND_INS):
        if name in STAND_INS:
            data, source = synthetic(name, "communities"), f"synthetic, size of {name}"
        else:
            data, source = graph(name)
        labels = labels_of(name, data)
        total = processed = between = 0
        for one in batch(data.adjacency, labels, parts_per_batch=PARTS_PER_BATCH):
            rows, cols = -(-one.nodes.size // 8), -(-one.nodes.size // 128)
            possible = np.zeros((rows, cols), bool)
            for start, end in zip(one.starts[:-1], one.starts[1:], strict=True):
                possible[start // 8 : -(-end // 8), start // 128 : -(-end // 128)] = True
            total += possible.size
            between += possible.size - int(possible.sum())
            processed += int(np.bitwise_count(one.tile_bitmap).sum(dtype=np.int64))
        params = {"part": "figure-8", "graph": name, "source": source, "nodes": data.num_nodes}
        params |= {"parts": int(np.unique(labels).size), "entries": int(data.adjacency.nnz)}
        params |= {"tiles": total, "processed": processed, "zero_between": between}
        yield Record.counted("qgtc", f"figure-8 {name}", params, Machine.of_cpu(1, commit)).flat()


def measured(part: str, commit: str | None, repetitions: int) -> Iterator[dict[str, Any]]:
    """Yield the records of a timed part."""
    parts = {"table-3": table_3, "figure-7c": figure_7c, "figure-9": figure_9, "figure-10": figure_10}
    yield from parts[part](machine(1, commit), repetitions)

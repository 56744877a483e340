"""Cases of suite ``binary`` with a very large graph, and of building FRDC arrays.

``papers-bbb-{int32,int64}-D128`` aggregates 128 one-bit features over a synthetic power-law graph of the size of ogbn-papers100M
(111 059 956 nodes, 1 615 685 872 entries), made on the GPU. It has no peer of PyTorch or cuSPARSE: features and result in float32 would
take 114 GB. Several thousand rows, including the longest, are checked against sums computed by other means. ``params.make_s`` is the time
in seconds that making the graph took, and ``params.make_gb`` the peak of the memory pool in gigabytes.

``frdc-{graph}`` makes an ``FRDC`` from CSR arrays on the GPU, with all checks of its input. The time is wall-clock time from an idle GPU
until it is idle again, the median of several calls. The peer is the CPU on the same arrays, whose result must be equal.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.binary_gpu import check_bits, explained, function, poison
from benchmarks.cases.binary_gpu import let_go as let_go_of_features
from benchmarks.cases.sparse_gpu import Timed, drop_all, in_turns, matrix_of
from benchmarks.ceilings import bounds, gather_bounds
from benchmarks.gpu_timing import wall_ms
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol
from bitsparse.datasets import synthetic_csr

SIZE, WIDTH = "papers", 128
FRDC_GRAPHS = ("artist", "COLLAB", "reddit-power_law")
#: Repetitions of a conversion, and the largest number of edges that the CPU converts for comparison.
REPETITIONS, ON_CPU = 9, 30_000_000
_held: dict[str, Any] = {}


def cases() -> list[Case]:
    """The cases of this file; cases of one graph are next to each other."""
    found = [Case(f"frdc-{name}", partial(conversion, name)) for name in FRDC_GRAPHS]
    return found + [Case(f"papers-bbb-{index}-D{WIDTH}", partial(papers, index)) for index in ("int32", "int64")]


# ---- a graph that fills the memory
def graph(size: Any = SIZE) -> dict[str, Any]:
    """The graph with random bits for its nodes; it is kept until :func:`let_go`."""
    if not _held:
        cupy = jit.require_cupy("suite binary")
        let_go_of_features()
        drop_all()
        pool = cupy.get_default_memory_pool()
        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        indptr, indices = synthetic_csr(size, "power_law", device="cuda")
        cupy.cuda.runtime.deviceSynchronize()
        _held.update(make_s=time.perf_counter() - start, make_gb=pool.total_bytes() / 1e9)
        pool.free_all_blocks()
        words = cupy.random.default_rng(0).integers(0, 1 << 32, (indptr.size - 1, 1, WIDTH // 32), dtype=np.uint32)
        _held.update(indptr=indptr, indices=indices, words=words)
    return _held


def let_go() -> None:
    """Drop the graph and free its memory."""
    _held.clear()
    jit.require_cupy("suite binary").get_default_memory_pool().free_all_blocks()


def papers(index: str, size: Any = SIZE) -> Prepared:
    """The aggregation of one layer."""
    cupy = jit.require_cupy("suite binary")
    case, plan_of = f"papers-bbb-{index}-D{WIDTH}", function("plan_bspmm")
    held = graph(size)
    indptr, indices = (held[name].astype(index, copy=False) for name in ("indptr", "indices"))
    nodes, entries = int(indptr.size) - 1, int(indices.size)
    a = CSR(indptr, indices, (nodes, nodes))
    x = bs.BitTensor.from_words(held["words"], (nodes, WIDTH), 1, encoding="bipolar")
    plan = plan_of(a, WIDTH, "BBB")
    out = plan(x)
    poison(out)
    plan(x, out=out)
    rows = chosen_rows(indptr)
    exact = sums_of(indptr, indices, held["words"], rows)
    check_bits(case, out.words[rows], exact)
    params: dict[str, Any] = {"graph": "papers", "source": f"synthetic power_law graph of the size of {size}, seed 0"}
    params |= {"nodes": nodes, "entries": entries, "D": WIDTH, "index": index, "checked_rows": int(rows.size)}
    params |= {name: held[name] for name in ("make_s", "make_gb")} | explained(plan)
    ours = Timed(partial(plan, x, out=out), case)
    params["replayed"] = ours.replayed
    params["held_gb"] = cupy.get_default_memory_pool().used_bytes() / 1e9
    moved = int(indptr.nbytes + indices.nbytes + x.nbytes + out.nbytes)
    limits, more = gather_bounds(entries, WIDTH // 8, nodes, moved, reuse=1.0)
    params |= more

    def measure(protocol: Protocol) -> tuple[float, None]:
        (ms,) = in_turns([ours], protocol.repetitions)
        if index == "int64":
            let_go()
        return ms, None

    return Prepared(lambda: None, None, None, params, moved, *limits, measure=measure)


class CSR:
    """Plain CSR arrays: the library's own arrays would hold a second form in memory too."""

    def __init__(self, indptr: Any, indices: Any, shape: tuple[int, int]) -> None:
        self.indptr, self.indices, self.data, self.shape = indptr, indices, None, shape

    def csr_arrays(self) -> tuple[Any, Any, Any]:
        """The pattern without values."""
        return self.indptr, self.indices, None


def chosen_rows(indptr: Any, count: int = 4096) -> Any:
    """Rows spread over the graph, and the longest ones."""
    cupy = jit.require_cupy("suite binary")
    lengths = cupy.diff(indptr)
    step = max(1, lengths.size // count)
    longest = cupy.argpartition(lengths, -8)[-8:] if lengths.size > 8 else cupy.arange(lengths.size)
    return cupy.concatenate([cupy.arange(0, lengths.size, step), longest])


def sums_of(indptr: Any, indices: Any, words: Any, rows: Any) -> Any:
    """Sums of -1 and +1 over the edges of some rows, int32, from running totals."""
    cupy = jit.require_cupy("suite binary")
    starts, lengths = indptr[rows].astype(np.int64), cupy.diff(indptr)[rows].astype(np.int64)
    ends = cupy.cumsum(lengths)
    edge = cupy.arange(int(ends[-1]), dtype=np.int64)
    owner = cupy.searchsorted(ends, edge, side="right")
    at = indices[starts[owner] + edge - (ends - lengths)[owner]]
    bits = cupy.unpackbits(words[at].reshape(-1).view(np.uint8), bitorder="little").reshape(edge.size, -1)
    total = cupy.concatenate([cupy.zeros((1, bits.shape[1]), np.int32), cupy.cumsum(bits, axis=0, dtype=np.int32)])
    return 2 * (total[ends] - total[ends - lengths]) - lengths[:, None].astype(np.int32)


# ---- arrays
def conversion(name: str) -> Prepared:
    """Conversion of a graph to blocks of 4 x 4 bits."""
    jit.require_cupy("suite binary")
    matrix = matrix_of(name)
    made = bs.FRDC.from_csr_arrays(matrix.indptr, matrix.indices, matrix.shape)
    params, host_ms = matrix.facts() | {"tiles": int(made.tiles.size)}, None
    if matrix.nnz <= ON_CPU:
        indptr, indices = matrix.indptr.get(), matrix.indices.get()
        start = time.perf_counter()
        host = bs.FRDC.from_csr_arrays(indptr, indices, matrix.shape)
        host_ms = 1e3 * (time.perf_counter() - start)
        for part in ("indptr", "indices", "tiles"):
            if not np.array_equal(getattr(made, part).get(), getattr(host, part)):
                raise AssertionError(f"frdc-{name}: {part} differs from the CPU's")
    moved = int(matrix.pattern_bytes + made.indptr.nbytes + made.indices.nbytes + made.tiles.nbytes)
    params["frdc_bytes"] = moved - matrix.pattern_bytes

    build = partial(bs.FRDC.from_csr_arrays, matrix.indptr, matrix.indices, matrix.shape)

    def measure(protocol: Protocol) -> tuple[float, float | None]:
        return wall_ms(build, min(REPETITIONS, protocol.repetitions)), host_ms

    peer = None if host_ms is None else "bitsparse on the CPU"
    return Prepared(lambda: None, None, peer, params, moved, *bounds(moved), measure=measure)

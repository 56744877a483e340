"""Epochs of training with :mod:`bitsparse.torch` and with PyTorch alone, from equal weights: the cases of suite ``training``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.cases.graphs import file_of
from benchmarks.cases.sparse_gpu import matrix_of
from benchmarks.cases.training_sides import (
    BITS,
    DTYPES,
    ON_SIGNS,
    SIZES,
    Problem,
    Side,
    compare,
    kept_by,
    named,
    ours_of,
    peer_of,
    problem,
    widths_of,
    without_dropout,
)
from benchmarks.ceilings import Bounds, gather_bounds
from benchmarks.gpu_timing import replay, torch_graph
from benchmarks.peers import torch_gnn
from bitsparse import jit
from bitsparse.bench import Prepared, Protocol
from bitsparse.datasets import read_npz

__all__ = ["epoch", "problem_of"]

#: Epochs in a row that a sample has at least, as training does not wait for the end of each.
IN_A_ROW = 4
#: Milliseconds that a sample has at least, and all samples of a case at most.
FILL_MS, ALL_MS = 2.0, 1500.0


_held: dict[str, Problem] = {}


def problem_of(name: str) -> Problem:
    """The problem on a graph of suite ``spmm``; it is kept until another one is asked for."""
    if name not in _held:
        _held.clear()
        matrix, path = matrix_of(name), file_of(name)
        arrays = torch.from_dlpack(matrix.indptr), torch.from_dlpack(matrix.indices)
        data = None if path is None else read_npz(path)
        size = SIZES[name.partition("-")[0]]
        if data is None or data.x is None or data.labels is None:
            _held[name] = problem(arrays, size)
        else:
            x = data.x.toarray() if hasattr(data.x, "toarray") else data.x
            labels = np.where(data.labels < 0, -1, data.targets)
            _held[name] = problem(arrays, (x.shape[1], data.num_classes), x, labels)
    return _held[name]


def free() -> None:
    """Free all unused memory."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    jit.require_cupy("suite training").get_default_memory_pool().free_all_blocks()


def warm(dtype: torch.dtype) -> None:
    """Make cuBLAS allocate its permanent workspaces, which must not count for either side."""
    weight, bias = (torch.ones(size, device="cuda", dtype=dtype, requires_grad=True) for size in ((16, 16), (16,)))
    (torch.addmm(bias, weight, weight) @ weight).sum().backward()


def weighed(make: Callable[[], Side]) -> tuple[Side, int]:
    """Make a side and measure its peak in an epoch: matrices, weights, moments, activations, in PyTorch's and CuPy's memory."""
    pool = jit.require_cupy("suite training").get_default_memory_pool()
    free()
    before = torch.cuda.memory_allocated() + pool.total_bytes()
    side = make()
    side.step()
    free()
    torch.cuda.reset_peak_memory_stats()
    side.step()
    torch.cuda.synchronize()
    return side, int(torch.cuda.max_memory_allocated() + pool.total_bytes() - before)


def epoch(
    case: str,
    kind: str,
    name: str,
    precision: str,
    *,
    captured: bool,
    own: bool = False,
    last: Any = "float32",
    activations: int | None = None,
    sums: str | None = None,
) -> Prepared:
    """Epochs of both sides; with `own`, the peer is our own epoch in float32. `sums` is that of our graph."""
    jit.require_cupy("suite training")
    made = problem_of(name)
    x = made.x.to(DTYPES[precision])
    warm(x.dtype)
    ours, our_peak = weighed(partial(ours_of, kind, made, x, precision, last, activations=activations, sums=sums))
    if own:
        peer, peer_peak = weighed(partial(ours_of, kind, made, x, "fp32"))
    else:
        peer, peer_peak = weighed(lambda: peer_of(kind, made, x, precision, dict(named(ours))))
    # Make both sides equal again, with fresh moments, after the epochs in which memory was measured.
    with torch.no_grad():
        for name_, part in named(ours).items():
            named(peer)[name_].copy_(part)
    for side in (ours, peer):
        side.optimizer.state.clear()
    matrix = matrix_of(name)
    params: dict[str, Any] = matrix.facts() | {
        "network": kind,
        "precision": precision,
        "last": last if precision in BITS else "as others",
        "fixed_features": precision in BITS,
        "sums": sums,
        "entries": made.indices.numel(),
        "features": x.shape[1],
        "classes": made.classes,
        "peak_bytes": our_peak,
        "peer_bytes": peer_peak,
    }
    if own:
        params |= {"activations": activations, "kept_bytes": kept_by(ours), "peer_kept_bytes": kept_by(peer)}
    exact = peer_of(kind, made, made.x, precision, dict(named(ours))) if precision == "bf16" else None
    with without_dropout(ours, peer):
        params |= compare(case, precision, ours, peer, exact)
    del exact
    widths, heads = widths_of(kind, made, precision)
    item = BITS[precision] / 8 if precision in BITS else x.element_size()
    limits, moved = bounds_of(kind, made, widths, heads, item, matrix.reuse)
    rest = ours_of(kind, without_edges(made), x, precision, last, activations=activations, sums=sums)
    launches: list[Callable[[], object]] = [ours.step, peer.step, rest.step]
    if captured:
        names = ("ours", "peer", "without edges")
        launches = [recorded(f"{case}, {who}", step) for who, step in zip(names, launches, strict=True)]
    params |= {"replayed": launches[0] != ours.step, "peer_replayed": launches[1] != peer.step}

    version = "bitsparse in float32" if own else torch_gnn.version()

    def measure(protocol: Protocol) -> tuple[float, float]:
        ms, peer_ms, params["without_edges_ms"] = in_turns(launches, protocol.repetitions)
        return ms, peer_ms

    return Prepared(lambda: None, None, version, params, moved, *limits, measure=measure)


def without_edges(made: Problem) -> Problem:
    """The same problem on a graph without edges."""
    return made._replace(indptr=torch.zeros_like(made.indptr), indices=made.indices[:0])


def in_turns(launches: list[Callable[[], object]], repetitions: int, all_ms: float = ALL_MS) -> list[float]:
    """Milliseconds per call of each side, by events, in turns; with fewer samples if `all_ms` would not suffice."""
    once = replay(launches, 1)
    calls = [max(IN_A_ROW, int(FILL_MS / max(ms, 1e-3))) for ms in once]
    sample_ms = sum(ms * count for ms, count in zip(once, calls, strict=True))
    times = max(3, min(repetitions, int(all_ms / sample_ms)))
    found = replay([partial(repeated, *pair) for pair in zip(launches, calls, strict=True)], times)
    return [total / count for total, count in zip(found, calls, strict=True)]


def recorded(name: str, step: Callable[[], object]) -> Callable[[], object]:
    """A step as a CUDA graph, or the step itself if it cannot be captured."""
    try:
        return torch_graph([step])
    except RuntimeError as error:
        first = error.__context__ or error  # what invalidated the capture, rather than that it is invalid
        print(f"{name}: not captured, {first}".splitlines()[0], file=sys.stderr)
        torch.cuda.synchronize()
        return step


def repeated(call: Callable[[], object], times: int) -> None:
    """Make `times` calls in a row."""
    for _ in range(times):
        call()


def bounds_of(
    kind: str, made: Problem, widths: list[int], heads: list[int], item: float, reuse: float
) -> tuple[Bounds, int]:
    """Bounds of an epoch's sums in both passes, and the bytes that they must touch; dense products are not included."""
    floor = estimate = 0.0
    total, entries = 0, made.indices.numel()
    if kind == "agnn":  # the gradient of each sum fetches features and gradients
        moved = int(4 * (entries + made.nodes) + 2 * made.nodes * widths[1] * item)
        limits, sums = gather_bounds(entries, int(widths[1] * item), made.nodes, moved, reuse)[0], len(widths) - 3
        return Bounds(3 * sums * limits.floor_ms, 3 * sums * limits.estimate_ms), 3 * sums * moved

    def gathered(width: float, item: float) -> tuple[int, Bounds]:
        moved = int(4 * (entries + made.nodes) + 2 * made.nodes * width * item)
        return moved, gather_bounds(entries, max(1, int(width * item)), made.nodes, moved, reuse)[0]

    for i, outputs in enumerate(widths[1:]):
        inputs = widths[i] * (heads[i - 1] if i else 1)
        first = kind in ("gat", *ON_SIGNS) or outputs <= inputs  # the product comes before the sum
        width = outputs * heads[i] if first else inputs
        # Features of the first layer have no gradient; attention's gradients fetch two rows for every edge.
        back = 1 if i or first else 0
        moved_back, limits_back = gathered(width, item)
        on_bits = kind == "binary" and i < len(widths) - 2
        moved, limits = gathered(width, 1 / 8) if on_bits else (moved_back, limits_back)
        floor += limits.floor_ms + back * limits_back.floor_ms
        estimate += limits.estimate_ms + back * (2 if kind == "gat" else 1) * limits_back.estimate_ms
        total += moved + back * moved_back
    return Bounds(floor, estimate), total

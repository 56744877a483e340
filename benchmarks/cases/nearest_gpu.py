"""Cases of suite ``nearest`` on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.ceilings import BIT_RATE, READ_RATE
from benchmarks.gpu_timing import torch_module
from benchmarks.peers import faiss_binary
from bitsparse import jit
from bitsparse.bench import Case, Prepared, Protocol

#: Rows of the database that the peers search; their times are scaled up to the whole database.
PEER_ROWS = 1 << 17


def cases() -> list[Case]:
    """The cases of this file."""
    table = []
    for kind in ("uniform", "clustered"):
        table += [search(10_000, 10_000_000, 1024, k, kind) for k in (10, 100)]
    table += [search(10_000, 10_000_000, 1024, 10, "uniform", "jaccard")]
    table += [search(10_000, 10_000_000, length, 10, "uniform") for length in (256, 768, 2048)]
    table += [search(queries, 100_000_000, 1024, 10, "uniform") for queries in (1, 16, 128)]
    table.append(Case("pairs-1M-1024-tanimoto-0.7", partial(all_pairs, 1_000_000)))
    return table


def search(queries: int, n: int, length: int, k: int, kind: str, metric: str = "hamming") -> Case:
    """The case of a search."""
    name = f"nearest-{kind}-{queries}x{n}x{length}-k{k}-{metric}"
    return Case(name, partial(prepared, queries, n, length, k, kind, metric))


@cache
def database_of(n: int, length: int, kind: str) -> Any:
    """Words (n, length / 32) on the device: random, or around 4096 centres, every bit flipped with probability 1/8."""
    cupy = jit.require_cupy("suite nearest")
    database_of.cache_clear()
    width = -(-length // 128) * 4
    random = cupy.random.default_rng(0)
    words = cupy.empty((n, width), "uint32")
    centres = random.integers(0, 1 << 32, (4096, width), dtype="uint32")
    for start in range(0, n, 1 << 20):
        part = words[start : start + (1 << 20)]
        each = [random.integers(0, 1 << 32, part.shape, dtype="uint32") for _ in range(3 if kind == "clustered" else 1)]
        part[...] = each[0]
        if kind == "clustered":
            part &= each[1] & each[2]
            part ^= centres[random.integers(0, 4096, part.shape[0])]
    words[:, length // 32 :] = 0
    return words


def timed(call: Callable[[], object], repetitions: int) -> float:
    """Median milliseconds of a call."""
    cupy = jit.require_cupy("suite nearest")
    samples = []
    for _ in range(repetitions):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        call()
        end.record()
        end.synchronize()
        samples.append(cupy.cuda.get_elapsed_time(start, end))
    return float(np.median(samples))


def int8_topk(queries: Any, rows: Any, k: int) -> Callable[[], Any]:
    """``torch._int_mm`` of -1 and +1, then ``torch.topk``: the search with PyTorch's own functions."""
    torch = torch_module()

    def signs(words: Any) -> Any:
        bits = jit.require_cupy("suite nearest").unpackbits(words.view("uint8").reshape(-1)).reshape(words.shape[0], -1)
        return torch.from_dlpack(2 * bits.astype("int8") - 1)

    left, right = signs(queries), signs(rows).T
    return lambda: torch.topk(torch._int_mm(left, right), k, dim=1)


def prepared(queries: int, n: int, length: int, k: int, kind: str, metric: str) -> Prepared:
    """One search; peers search the first rows only, and their times are scaled up to all rows."""
    words = database_of(n, length, kind)
    rows = bs.BitTensor.from_words(words[:, None], (n, length), 1, check=False)
    asked_words = words[:: n // queries][:queries].copy()
    asked_words[:, 0] ^= 5
    asked = bs.BitTensor.from_words(asked_words[:, None], (queries, length), 1, check=False)
    plan = bs.plan_nearest(rows, queries, k, metric)
    out = plan(asked)
    part = bs.BitTensor.from_words(words[:PEER_ROWS, None], (PEER_ROWS, length), 1, check=False)
    peers: dict[str, Callable[[], object]] = {}
    if metric == "hamming":
        peers = {"faiss_method_ms": lambda: faiss_binary.least_distances(asked_words, words[:PEER_ROWS])}
        least = faiss_binary.least_distances(asked_words, words[:PEER_ROWS])
        if not bool((bs.nearest(asked, part, 1)[0][:, 0] == least).all()):
            raise AssertionError(f"nearest: least distances of {queries} queries are wrong")
    if queries >= 128 and metric == "hamming":
        fewer = min(queries, 2000)
        call = int8_topk(asked_words[:fewer], words[:PEER_ROWS], k)
        want = (32 * words.shape[1] - call()[0][:, -1]) // 2  # rows are padded with zeros
        peers["int8_ms"] = call
        if not np.array_equal(bs.nearest(asked, part, k)[0][:fewer, -1].get(), want.cpu().numpy()):
            raise AssertionError(f"nearest: the {k}-th distances are not those of torch.topk")
    floor = max(2e3 * queries * n * length / BIT_RATE, 1e3 * words.nbytes / READ_RATE)
    params: dict[str, Any] = {"queries": queries, "rows": n, "bits": length, "k": k, "kind": kind, "metric": metric}
    params |= {"kernel": plan.kernel}

    def measure(protocol: Protocol) -> tuple[float, float | None]:
        ms = timed(lambda: plan(asked, out=out), max(3, protocol.repetitions // 3))
        params["pairs_per_second"] = queries * n / ms * 1e3
        params["database_bytes_per_second"] = words.nbytes / ms * 1e3
        for name, call in peers.items():
            scale = n / PEER_ROWS * (queries / min(queries, 2000) if name == "int8_ms" else 1)
            call()
            params[name] = timed(call, 3) * scale
        return ms, params.get("int8_ms", params.get("faiss_method_ms"))

    name = "torch int8 + topk, scaled" if "int8_ms" in peers else f"{faiss_binary.NAME}, scaled" if peers else None
    return Prepared(lambda: None, None, name, params, words.nbytes, floor, measure=measure)


def all_pairs(n: int) -> Prepared:
    """All pairs among rows with the number of ones of molecular fingerprints: normal, with mean 48 and deviation 16."""
    cupy = jit.require_cupy("suite nearest")
    random = cupy.random.default_rng(0)
    words = cupy.zeros((n, 32), "uint32")
    ones = cupy.clip(random.standard_normal(n) * 16 + 48, 4, 200).astype("int32")
    for i in range(200):
        place = random.integers(0, 1024, n)
        chosen = cupy.flatnonzero(ones > i)
        words[chosen, place[chosen] >> 5] |= np.uint32(1) << (place[chosen] & 31).astype("uint32")
    rows = bs.BitTensor.from_words(words[:, None], (n, 1024), 1, check=False)
    found = bs.pairs(rows, threshold=0.7)
    params: dict[str, Any] = {"rows": n, "bits": 1024, "threshold": 0.7, "pairs": int(found[0].size)}

    def measure(protocol: Protocol) -> tuple[float, None]:
        ms = timed(lambda: bs.pairs(rows, threshold=0.7), max(3, protocol.repetitions // 3))
        params["pairs_per_second"] = n * (n - 1) / 2 / ms * 1e3
        return ms, None

    floor = 1e3 * n * n * 1024 / BIT_RATE
    return Prepared(lambda: None, None, None, params, words.nbytes, None, floor, measure=measure)

"""Cases of suite ``nearest`` on a CPU, against faiss-cpu and usearch with the same number of threads, if these are installed."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from bitsparse.bench import Case, Prepared, Unavailable


def cases(threads: int) -> list[Case]:
    """The cases of this file."""
    table = []
    for peer in ("faiss", "usearch"):
        for queries, n, length, k in (
            (1000, 1_000_000, 1024, 10),
            (1, 1_000_000, 1024, 10),
            (1000, 1_000_000, 256, 10),
        ):
            name = f"cpu-{queries}x{n}x{length}-k{k}-{peer}"
            table.append(Case(name, partial(prepared, queries, n, length, k, peer, threads)))
    table.append(Case("cpu-tanimoto-100x100000x2048-rdkit", partial(rdkit_similarities, 100, 100_000, 2048)))
    return table


def prepared(queries: int, n: int, length: int, k: int, peer: str, threads: int) -> Prepared:
    """A search of random rows; distances are compared before anything is timed."""
    if importlib.util.find_spec(peer) is None:
        raise Unavailable(f"{peer} is not installed")
    rng = np.random.default_rng(0)
    rows, asked = (rng.integers(0, 256, (size, length // 8), np.uint8) for size in (n, queries))
    plan = bs.plan_nearest(rows, queries, k)
    call: Any
    if peer == "faiss":
        import faiss

        faiss.omp_set_num_threads(threads)
        index = faiss.IndexBinaryFlat(length)
        index.add(rows)
        call, version = partial(index.search, asked, k), faiss.__version__
        theirs = call()[0]
    else:
        import usearch

        index_of: Any = importlib.import_module("usearch.index")
        call = partial(index_of.search, rows, asked, k, index_of.MetricKind.Hamming, exact=True, threads=threads)
        theirs, version = np.asarray(call().distances).reshape(queries, k), usearch.__version__
    if not np.array_equal(plan(asked)[0], theirs):
        raise AssertionError(f"{peer}: distances differ")
    params = {"queries": queries, "rows": n, "bits": length, "k": k, "kernel": plan.kernel}
    return Prepared(lambda: plan(asked), call, f"{peer} {version}", params, rows.nbytes)


def rdkit_similarities(queries: int, n: int, length: int) -> Prepared:
    """The most similar fingerprints among some with about 48 ones: ours against RDKit's bulk similarities and a partition of them."""
    if importlib.util.find_spec("rdkit") is None:
        raise Unavailable("rdkit is not installed")
    import rdkit

    DataStructs: Any = importlib.import_module("rdkit.DataStructs")
    rng = np.random.default_rng(0)
    bits = np.zeros((n, length), np.uint8)
    bits[np.arange(n)[:, None], rng.integers(0, length, (n, 48))] = 1
    prints = [DataStructs.CreateFromBinaryText(np.packbits(row, bitorder="little").tobytes()) for row in bits]
    rows = bs.from_rdkit(prints)
    plan = bs.plan_nearest(rows, queries, 10, "jaccard")
    asked = rows[:queries]

    def theirs() -> list[Any]:
        return [np.partition(DataStructs.BulkTanimotoSimilarity(prints[i], prints), -10)[-10:] for i in range(queries)]

    least = np.array([1 - one.min() for one in theirs()])
    if not np.allclose(plan(asked)[0].max(axis=1), least, atol=1e-6):
        raise AssertionError("rdkit: similarities differ")
    return Prepared(
        lambda: plan(asked), theirs, f"rdkit {rdkit.__version__}", {"queries": queries, "rows": n}, rows.nbytes
    )

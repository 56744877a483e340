"""The overhead of small calls on a CPU, part of the suite ``host``.

Calls are those that users write, on operands that were used before. Each allocates its result and uses the threads of the suite.

- ``once-spmv-cora``: ``A @ v`` of cora's adjacency with float32 values. The peer is ``scipy.sparse.csr_array @``.
- ``once-spmm-cora-D16``: ``A @ h`` of the same matrix and 16 float32 columns, against the same peer.
- ``once-dense-left-pubmed-D16``: ``x.T @ A`` of 16 columns and pubmed's adjacency, against the same peer.
- ``once-matmul-4x4-64``: ``a @ b`` of packed 4-bit integers, 64 x 64 x 64. The peer is NumPy's ``@`` of the same numbers as float32.
- ``once-matmul-8x8-2708x1433x16``: a product of the size of cora's first layer in 8 bits, against the same peer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.graphs import graph
from benchmarks.cases.host_spmm import BoundsOf, parameters
from bitsparse.bench import Case, Prepared

__all__ = ["cases"]

WIDTH = 16


def cases(threads: int, bounds_of: BoundsOf) -> list[Case]:
    """All cases."""
    table: list[tuple[str, Callable[[], Prepared]]] = [
        ("once-spmv-cora", partial(sparse_product, "cora", "vector", threads, bounds_of)),
        (f"once-spmm-cora-D{WIDTH}", partial(sparse_product, "cora", "right", threads, bounds_of)),
        (f"once-dense-left-pubmed-D{WIDTH}", partial(sparse_product, "pubmed", "left", threads, bounds_of)),
        ("once-matmul-4x4-64x64x64", partial(product, 4, (64, 64, 64), threads, bounds_of)),
        ("once-matmul-8x8-2708x1433x16", partial(product, 8, (2708, 1433, 16), threads, bounds_of)),
    ]
    return [Case(name, prepare) for name, prepare in table]


def sparse_product(name: str, side: str, threads: int, bounds_of: BoundsOf) -> Prepared:
    """A product with a graph's adjacency by ``@``."""
    import scipy

    data, source = graph(name)
    theirs = data.adjacency.astype(np.float32)
    a, rng = bs.TCTiledCSR(theirs), np.random.default_rng(0)
    x = rng.standard_normal((theirs.shape[0], WIDTH), dtype=np.float32)
    if side == "vector":
        x = x[:, 0].copy()
    calls: dict[str, Callable[[Any], Any]] = {"left": lambda of: x.T @ of}
    call = calls.get(side, lambda of: of @ x)
    ours, peer = partial(call, a), partial(call, theirs)
    if not np.allclose(ours(), peer(), rtol=1e-4, atol=1e-3):
        raise AssertionError("the product differs from SciPy's")
    moved = a.nbytes + 2 * x.nbytes
    limits, rates = bounds_of(moved, threads)
    params = parameters(theirs, source, rates, columns=WIDTH if x.ndim == 2 else 1)
    return Prepared(ours, peer, f"scipy {scipy.__version__} csr_array, one thread", params, moved, *limits)


def product(bits: int, shape: tuple[int, int, int], threads: int, bounds_of: BoundsOf) -> Prepared:
    """A product of packed integers by ``@``."""
    (m, k, n), rng = shape, np.random.default_rng(0)
    x, y = (rng.integers(0, 1 << bits, size) for size in ((m, k), (k, n)))
    a, b = bs.BitTensor(x, bits), bs.BitTensor(y, bits, axis=-2)
    left, right = x.astype(np.float32), y.astype(np.float32)

    def ours() -> Any:
        return a @ b

    def peer() -> Any:
        return left @ right

    if not np.array_equal(ours(), x @ y):
        raise AssertionError("matmul differs from NumPy")
    moved = a.words.nbytes + b.words.nbytes + 4 * m * n
    limits, rates = bounds_of(moved, threads)
    params = {"m": m, "k": k, "n": n, "a_bits": bits, "b_bits": bits, "estimate": rates}
    return Prepared(ours, peer, f"numpy {np.__version__} float32 @", params, moved, *limits)

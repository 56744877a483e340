"""Sparse products on the graph `artist` (50 515 nodes, 1 638 396 edges), part of the suite ``host``.

- ``spmm-f32-artist-D...``: a float32 adjacency of ones times float32 features with that many columns, into a preallocated result. The
  peer is ``scipy.sparse.csr_array @``, which allocates its result and runs on one thread.
- ``tiled-f32-artist-D16``: ``TCTiledCSR @ features`` with weights, which allocates its result. The peer is :func:`bitsparse.spmm` of the
  same SciPy array: holding a graph in our own type must cost nothing.
- ``codes-spmm-int...-artist-D128``: exact int32 sums of integers of that many bits over the pattern, into a preallocated result. The peer
  is our own product of the same pattern and float32 features.
- ``sddmm-f32-artist-D64``: the dot product of the features at both ends of every edge, into a preallocated result. The peer gathers both
  ends with NumPy, multiplies and sums, 65 536 edges at a time.
- ``attention-f32-artist-4x16``: graph attention with four heads of 16 columns. The peer calls our separate functions one after another.

The graph is read from ``artist.npz`` in the folder named by ``BITSPARSE_DATA`` or in ``../shared/data``; if it is missing, a seeded
synthetic graph of its size stands in, and the parameters say so. ``estimate_ms`` counts every array once, and rows that are gathered
repeatedly only once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.graphs import graph
from bitsparse.backends import host
from bitsparse.bench import Prepared

CHUNK = 1 << 16

#: Bytes and threads to ``(floor_ms, estimate_ms)`` and what the estimate rests on.
BoundsOf = Callable[[int, int], tuple[tuple[float | None, float | None], str]]


def table(threads: int, bounds_of: BoundsOf) -> list[tuple[str, Callable[[], Prepared]]]:
    """Names and preparations of the cases."""
    return [
        *((f"spmm-f32-artist-D{width}", partial(product, width, threads, bounds_of)) for width in (16, 64, 256)),
        ("tiled-f32-artist-D16", partial(tiled_product, 16, threads, bounds_of)),
        *(
            (f"codes-spmm-int{bits}-artist-D128", partial(codes, bits, 128, threads, bounds_of))
            for bits in (8, 4, 2, 1)
        ),
        ("sddmm-f32-artist-D64", partial(edge_products, 64, threads, bounds_of)),
        ("attention-f32-artist-4x16", partial(graph_attention, 4, 16, threads, bounds_of)),
    ]


@cache
def artist() -> tuple[Any, str]:
    """The adjacency as a SciPy array of float32 ones, and its source."""
    data, source = graph("artist")
    return data.adjacency.astype(np.float32), source


def parameters(graph: Any, source: str, estimate: str, **more: Any) -> dict[str, Any]:
    """Facts about the graph and the run for the record."""
    return {
        "nodes": graph.shape[0],
        "edges": int(graph.nnz),
        "graph": source,
        "simd": host.simd_level(),
        "estimate": estimate,
    } | more


def product(width: int, threads: int, bounds_of: BoundsOf) -> Prepared:
    """Sums of neighbours against SciPy."""
    import scipy

    adjacency, source = artist()
    x = np.random.default_rng(0).standard_normal((adjacency.shape[1], width), dtype=np.float32)
    out = np.empty((adjacency.shape[0], width), np.float32)

    def ours() -> None:
        bs.spmm(adjacency, x, out=out)

    def peer() -> Any:
        return adjacency @ x

    ours()
    if not np.allclose(out, peer(), rtol=1e-4, atol=1e-3):
        raise AssertionError("spmm differs from SciPy")
    moved = adjacency.indptr.nbytes + adjacency.indices.nbytes + adjacency.data.nbytes + x.nbytes + out.nbytes
    limits, rates = bounds_of(moved, threads)
    params = parameters(adjacency, source, rates, columns=width)
    return Prepared(ours, peer, f"scipy {scipy.__version__} csr_array @, one thread", params, moved, *limits)


def tiled_product(width: int, threads: int, bounds_of: BoundsOf) -> Prepared:
    """A product with our own sparse type, against one with the SciPy array from which it was made."""
    adjacency, source = artist()
    rng = np.random.default_rng(0)
    weighted = adjacency.copy()
    weighted.data = rng.random(weighted.nnz, dtype=np.float32)
    x = rng.standard_normal((weighted.shape[1], width), dtype=np.float32)
    tiled = bs.TCTiledCSR(weighted)
    if not np.shares_memory(tiled.indices, weighted.indices) or not np.shares_memory(tiled.data, weighted.data):
        raise AssertionError("TCTiledCSR copied what it was made of")
    if not np.array_equal(tiled @ x, bs.spmm(weighted, x)):
        raise AssertionError("the products differ")
    moved = (
        weighted.indptr.nbytes
        + weighted.indices.nbytes
        + weighted.data.nbytes
        + x.nbytes
        + 4 * weighted.shape[0] * width
    )
    limits, rates = bounds_of(moved, threads)
    params = parameters(weighted, source, rates, columns=width)
    return Prepared(
        lambda: tiled @ x, lambda: bs.spmm(weighted, x), "bitsparse.spmm of scipy.sparse", params, moved, *limits
    )


def codes(bits: int, width: int, threads: int, bounds_of: BoundsOf) -> Prepared:
    """Sums of packed integers against those of float32."""
    adjacency, source = artist()
    pattern = adjacency.astype(bool)
    numbers = np.random.default_rng(0).integers(0, 1 << bits, (pattern.shape[1], width), np.uint8)
    x, whole = bs.BitTensor(numbers, bits, layout="rows"), numbers.astype(np.float32)
    out, theirs = np.empty((pattern.shape[0], width), np.int32), np.empty((pattern.shape[0], width), np.float32)
    ours, peer = partial(bs.spmm, pattern, x, out=out), partial(bs.spmm, pattern, whole, out=theirs)
    ours()
    peer()
    if not np.array_equal(out, theirs):
        raise AssertionError("sums of integers differ from those of floats")
    moved = pattern.indptr.nbytes + pattern.indices.nbytes + x.nbytes + out.nbytes
    limits, rates = bounds_of(moved, threads)
    params = parameters(pattern, source, rates, columns=width, bits=bits)
    return Prepared(ours, peer, "bitsparse.spmm, float32 features", params, moved, *limits)


def edge_products(width: int, threads: int, bounds_of: BoundsOf) -> Prepared:
    """Dot products per edge against gathers in NumPy."""
    adjacency, source = artist()
    x = np.random.default_rng(0).standard_normal((adjacency.shape[0], width), dtype=np.float32)
    rows = np.repeat(np.arange(adjacency.shape[0]), np.diff(adjacency.indptr))
    out, theirs = np.empty((2, adjacency.nnz), np.float32)

    def ours() -> None:
        bs.sddmm(adjacency, x, out=out)

    def peer() -> None:
        for start in range(0, adjacency.nnz, CHUNK):
            part = slice(start, start + CHUNK)
            (x[rows[part]] * x[adjacency.indices[part]]).sum(axis=1, out=theirs[part])

    ours()
    peer()
    if not np.allclose(out, theirs, rtol=1e-4, atol=1e-3):
        raise AssertionError("sddmm differs from NumPy")
    moved = adjacency.indptr.nbytes + adjacency.indices.nbytes + 2 * x.nbytes + out.nbytes
    limits, rates = bounds_of(moved, threads)
    params = parameters(adjacency, source, rates, columns=width)
    return Prepared(ours, peer, f"numpy {np.__version__} gather, multiply, sum", params, moved, *limits)


def graph_attention(heads: int, width: int, threads: int, bounds_of: BoundsOf) -> Prepared:
    """Fused attention against its separate steps."""
    adjacency, source = artist()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((adjacency.shape[1], heads, width), dtype=np.float32)
    neighbour, target = rng.standard_normal((2, adjacency.shape[0], heads), dtype=np.float32)
    out = np.empty((adjacency.shape[0], heads, width), np.float32)
    pattern = adjacency.astype(bool)

    def ours() -> None:
        bs.attention(adjacency, x, neighbour, target, out=out)

    def peer() -> Any:
        scores = bs.sddmm(adjacency, target, neighbour, op="add")
        np.multiply(scores, np.float32(0.2), out=scores, where=scores < 0)
        return bs.spmm(pattern, x, values=bs.edge_softmax(adjacency, scores, out=scores))

    ours()
    if not np.array_equal(out, peer()):
        raise AssertionError("attention differs from its parts")
    moved = (
        adjacency.indptr.nbytes + adjacency.indices.nbytes + x.nbytes + neighbour.nbytes + target.nbytes + out.nbytes
    )
    limits, rates = bounds_of(moved, threads)
    params = parameters(adjacency, source, rates, heads=heads, columns=width)
    return Prepared(ours, peer, "bitsparse: sddmm, leaky relu, edge_softmax, spmm", params, moved, *limits)

"""Cases of suite ``host`` against PyTorch's own kernels on the CPU, with as many threads as ours.

- ``matmul-AxB-MxKxN-torch``: exact products of integers. The peer is ``torch._int_mm`` of the same integers as int8, into a preallocated
  result. Our operands are packed beforehand; 8-bit integers are signed.
- ``spmm-f32-artist-D...-torch``: the peer is ``torch.sparse.mm`` of a CSR tensor, which allocates its result (it uses Intel's MKL if
  PyTorch has it, as ``params.mkl`` says).
- ``sddmm-f32-artist-D64-torch``: the peer is ``torch.sparse.sampled_addmm`` with ``beta=0``.

If PyTorch is not installed, the cases are reported as not measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.host_spmm import BoundsOf, artist, parameters
from bitsparse.backends import host
from bitsparse.bench import Case, Prepared, Unavailable

__all__ = ["cases"]

PRODUCTS = (
    *((1, 1, 2048, 2048, 2048), (1, 4, 8192, 8192, 64)),
    *((bits, bits, size, size, size) for bits in (2, 4, 8) for size in (1024, 2048, 4096)),
)
WIDTHS = (16, 64, 256)


def cases(threads: int, bounds_of: BoundsOf) -> list[Case]:
    """All cases."""
    table: list[tuple[str, Callable[[], Prepared]]] = [
        (f"matmul-{a}x{b}-{m}x{k}x{n}-torch", partial(product, a, b, (m, k, n), threads, bounds_of))
        for a, b, m, k, n in PRODUCTS
    ]
    table += [(f"spmm-f32-artist-D{width}-torch", partial(sums, width, threads, bounds_of)) for width in WIDTHS]
    table.append(("sddmm-f32-artist-D64-torch", partial(edge_products, 64, threads, bounds_of)))
    return [Case(name, prepare) for name, prepare in table]


def torch_with(threads: int) -> Any:
    """Import PyTorch and set its threads; if it is missing, the case is unavailable."""
    try:
        import torch
    except ImportError as error:
        raise Unavailable(f"the peer is PyTorch, which is not installed ({error})") from error
    torch.set_num_threads(threads)
    return torch


def product(a_bits: int, b_bits: int, shape: tuple[int, int, int], threads: int, bounds_of: BoundsOf) -> Prepared:
    """A product of packed integers against one of int8."""
    torch = torch_with(threads)
    (m, k, n), rng = shape, np.random.default_rng(0)
    left, right = (
        rng.integers(-128 if bits == 8 else 0, 128 if bits == 8 else 1 << bits, size, dtype=np.int8)
        for bits, size in ((a_bits, (m, k)), (b_bits, (k, n)))
    )
    a, b = (
        bs.BitTensor(values, bits, axis=axis, encoding="signed" if bits == 8 else "unsigned")
        for values, bits, axis in ((left, a_bits, -1), (right, b_bits, -2))
    )
    out, theirs = np.empty((2, m, n), np.int32)
    operands, into = (torch.from_numpy(left), torch.from_numpy(right)), torch.from_numpy(theirs)

    def ours() -> None:
        bs.matmul(a, b, out=out)

    def peer() -> None:
        torch._int_mm(*operands, out=into)

    ours()
    peer()
    if not np.array_equal(out, theirs):
        raise AssertionError("matmul differs from torch._int_mm")
    moved = a.words.nbytes + b.words.nbytes + out.nbytes
    limits, rates = bounds_of(moved, threads)
    params = {"m": m, "k": k, "n": n, "a_bits": a_bits, "b_bits": b_bits, "simd": host.simd_level(), "estimate": rates}
    return Prepared(ours, peer, f"torch {torch.__version__} _int_mm", params, moved, *limits)


def csr_tensor(torch: Any, adjacency: Any) -> Any:
    """The same matrix in PyTorch, without a copy."""
    arrays = [torch.from_numpy(array) for array in (adjacency.indptr, adjacency.indices, adjacency.data)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CSR is called a beta feature
        return torch.sparse_csr_tensor(*arrays, size=adjacency.shape, check_invariants=False)


def sums(width: int, threads: int, bounds_of: BoundsOf) -> Prepared:
    """Sums of neighbours."""
    torch, (adjacency, source) = torch_with(threads), artist()
    x = np.random.default_rng(0).standard_normal((adjacency.shape[1], width), dtype=np.float32)
    out = np.empty((adjacency.shape[0], width), np.float32)
    matrix, features = csr_tensor(torch, adjacency), torch.from_numpy(x)

    def ours() -> None:
        bs.spmm(adjacency, x, out=out)

    def peer() -> Any:
        return torch.sparse.mm(matrix, features)

    ours()
    if not np.allclose(out, peer().numpy(), rtol=1e-4, atol=1e-3):
        raise AssertionError("spmm differs from torch.sparse.mm")
    moved = adjacency.indptr.nbytes + adjacency.indices.nbytes + adjacency.data.nbytes + x.nbytes + out.nbytes
    limits, rates = bounds_of(moved, threads)
    params = parameters(adjacency, source, rates, columns=width, mkl=torch.backends.mkl.is_available())
    return Prepared(ours, peer, f"torch {torch.__version__} sparse.mm", params, moved, *limits)


def edge_products(width: int, threads: int, bounds_of: BoundsOf) -> Prepared:
    """Dot products of both ends of every edge."""
    torch, (adjacency, source) = torch_with(threads), artist()
    x = np.random.default_rng(0).standard_normal((adjacency.shape[0], width), dtype=np.float32)
    out = np.empty(adjacency.nnz, np.float32)
    matrix, left = csr_tensor(torch, adjacency), torch.from_numpy(x)
    right = left.t()

    def ours() -> None:
        bs.sddmm(adjacency, x, out=out)

    def peer() -> Any:
        return torch.sparse.sampled_addmm(matrix, left, right, beta=0.0)

    ours()
    if not np.allclose(out, peer().values().numpy(), rtol=1e-4, atol=1e-3):
        raise AssertionError("sddmm differs from torch.sparse.sampled_addmm")
    moved = adjacency.indptr.nbytes + adjacency.indices.nbytes + 2 * x.nbytes + out.nbytes
    limits, rates = bounds_of(moved, threads)
    params = parameters(adjacency, source, rates, columns=width, mkl=torch.backends.mkl.is_available())
    return Prepared(ours, peer, f"torch {torch.__version__} sparse.sampled_addmm", params, moved, *limits)

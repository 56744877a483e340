"""Gradients of attention by cosines on the GPU agree with the CPU's in float64, for directed and symmetric patterns."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import dtype_of, graphs, pattern
from test_gpu_bits import raw, to_device, to_host

import bitsparse as bs
from bitsparse.arrays.inside import patterns_of, store_of
from bitsparse.backends.cuda.edges import cosine_vjp as cuda

pytestmark = pytest.mark.gpu

BOUNDS = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


def symmetric(A: sp.csr_array) -> sp.csr_array:
    """The graph with every edge in both directions."""
    both = sp.csr_array(A + A.T)
    both.data[:] = 1
    return both


#: Rows of more than one piece, empty rows, and single nodes; the first graph of each pair is not symmetric.
HUBS = pattern([2, 1025, 0, 2500, *(n % 3 for n in range(2596))], 2600)
GRAPHS = {
    "square": graphs()["square"],
    "symmetric": symmetric(graphs()["square"]),
    "hubs": HUBS,
    "symmetric hubs": symmetric(HUBS),
    "one": pattern([1], 1),
    "no edges": pattern([0] * 5, 5),
}


def check(A: sp.csr_array, columns: int, dtype: str = "float32", beta: float = 1.5, there: bool = False) -> None:
    """Check gradients with and without the forward pass's state, with beta as a number or on the device, and with rows of zeros."""
    rng = np.random.default_rng([columns, A.nnz])
    x, gradient = (rng.standard_normal((A.shape[0], columns)).astype(dtype_of(dtype)) for _ in range(2))
    x[::7] = 0
    wanted, ours = ("x", "beta"), bs.TCTiledCSR(A, pattern=True)
    exact = bs.cosine_attention_vjp(ours, x.astype(np.float64), gradient.astype(np.float64), beta=beta, wrt=wanted)
    on_gpu, at, direction = ours.to_device("cuda"), to_device(x), to_device(gradient)
    compute = np.float64 if dtype == "float64" else np.float32
    factor = to_device(np.array([beta], compute)) if there else beta
    result, lse = bs.cosine_attention(on_gpu, at, beta=factor, return_lse=True)
    found = [
        bs.cosine_attention_vjp(on_gpu, at, direction, beta=factor, wrt=wanted, **kept)
        for kept in ({}, {"result": result, "lse": lse}, {"result": result, "lse": lse})
    ]
    assert raw(found[1][0]).tobytes() == raw(found[2][0]).tobytes()
    for got in found:
        assert got[0].dtype == dtype_of(dtype)
        for one, right in zip(got, exact, strict=True):
            error = abs(to_host(one).astype(np.float64) - right).max(initial=0)
            # The gradient with respect to beta is a sum over all edges, whose terms have both signs and may cancel.
            assert error <= BOUNDS[dtype] * max(abs(right).max(initial=0), 1e-3 if right.ndim else A.nnz**0.5)


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    forward, backward, _ = patterns_of(bs.TCTiledCSR(GRAPHS[name], pattern=True))
    assert (store_of(forward) is store_of(backward)) == (name not in ("square", "hubs"))
    check(GRAPHS[name], 32)
    check(GRAPHS[name], 5, there=True)


@pytest.mark.parametrize("columns", [1, 2, 3, 16, 64, 100, 128, 130, 300, 512, 600])
def test_widths(columns: int) -> None:
    check(GRAPHS["square"], columns, there=True)
    check(GRAPHS["symmetric hubs"], columns, beta=-0.7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(dtype: str) -> None:
    for name, columns in (("symmetric", 32), ("hubs", 48), ("symmetric hubs", 7)):
        check(GRAPHS[name], columns, dtype)
        check(GRAPHS[name], columns, dtype, beta=4.0, there=True)


@pytest.mark.parametrize("beta", [1e5, 1e30, -1e30])
def test_a_factor_so_large_that_weights_cannot_be_computed_from_a_kept_sum(beta: float) -> None:
    check(GRAPHS["symmetric"], 16, beta=beta)


def test_wide_indices() -> None:
    A = HUBS.copy()
    A.indptr, A.indices = A.indptr.astype(np.int64), A.indices.astype(np.int64)
    check(A, 32)


def test_its_kernels_are_listed() -> None:
    listed = {(variant.function, variant.defines) for variant in cuda.VARIANTS}
    made = cuda.layout(np.float32, 16, 32) | {"BS_FORWARD": 1, "BS_TURNED": 1}
    assert ("cosine_vjp", tuple(sorted(made.items()))) in listed

"""Sums over short rows that are distributed by their length, on the GPU, against float64; results are poisoned before."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import graphs, pattern
from test_gpu_bits import empty, raw, to_device, to_host

import bitsparse as bs
from bitsparse.backends.cuda.spmm import short_rows as cuda

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(0)
#: Every length near those that one group, two, four or a warp handle; empty rows at both ends.
LENGTHS = [0, 0, *range(1, 36), 63, 64, 65, 127, 128, 129, 500, 0, 3]


def check(A: sp.csr_array, columns: int, weighted: bool = False, wide: bool = False) -> None:
    index = np.int64 if wide else np.int32
    x = RNG.standard_normal((A.shape[1], columns)).astype(np.float32)
    values = RNG.standard_normal(A.nnz).astype(np.float32) if weighted else np.ones(A.nnz, np.float32)
    scale = RNG.standard_normal(A.shape[0]).astype(np.float32) if weighted else None
    sums = cuda.ShortSum(
        to_device(A.indptr.astype(index)),
        to_device(A.indices.astype(index)),
        columns,
        values=to_device(values) if weighted else None,
        row_scale=None if scale is None else to_device(scale),
    )
    out = empty((A.shape[0], columns), np.float32)
    assert sums(to_device(x), out) is out
    weights = sp.csr_array((values, A.indices, A.indptr), shape=A.shape).astype(np.float64)
    weights = weights if scale is None else sp.csr_array(sp.diags_array(scale.astype(np.float64)) @ weights)
    want, size = weights @ x.astype(np.float64), abs(weights) @ abs(x.astype(np.float64))
    bound = (np.diff(A.indptr)[:, None] + 4) * 2.0**-24 * size
    assert (abs(to_host(out) - want) <= bound).all()


@pytest.mark.parametrize("columns", [4, 16, 24, 64])
def test_every_length_of_rows(columns: int) -> None:
    check(pattern(LENGTHS, 600), columns)


def test_weights_and_indices() -> None:
    A = pattern(LENGTHS, 600)
    check(A, 16, weighted=True)
    check(A, 16, wide=True)


def test_every_graph() -> None:
    for name, A in graphs().items():
        if A.nnz and np.diff(A.indptr).max() <= cuda.MOST_EDGES:
            check(A, 8, weighted=name == "square")
    none = cuda.ShortSum(to_device(np.zeros(4, np.int32)), to_device(np.zeros(0, np.int32)), 8)
    assert not to_host(none(to_device(np.ones((2, 8), np.float32)))).any()


def test_plans_of_samples() -> None:
    import cupy

    A = graphs()["hubs"]
    values = RNG.standard_normal(A.nnz).astype(np.float32)
    scales = {"row_scale": RNG.random(A.shape[0], np.float32), "col_scale": RNG.random(A.shape[1], np.float32)}
    weighted = bs.TCTiledCSR(sp.csr_array((values, A.indices, A.indptr), shape=A.shape), **scales)
    x = RNG.standard_normal((A.shape[1], 16)).astype(np.float32)
    for given in (bs.TCTiledCSR(A.astype(bool)), weighted):
        there, features = given.to_device("cuda"), to_device(x)
        for strategy in ("aes", "sfs"):
            plan = bs.plan_sampled_spmm(there, 16, 64, strategy, rescale=True, kernel="short")
            assert "short" in plan.explain()
            want = bs.plan_sampled_spmm(given, 16, 64, strategy, rescale=True)(x)
            got = to_host(plan(features))
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * abs(want).max())
            out = empty(got.shape, np.float32)
            stream = cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.Device().synchronize()
            with stream:
                stream.begin_capture()
                assert plan(features, out) is out
                graph = stream.end_capture()
                graph.launch(stream)
            stream.synchronize()
            assert np.array_equal(raw(out).get(), raw(to_device(got)).get())
        with pytest.raises(bs.KernelError, match="6 columns are no multiple of 4"):
            bs.plan_sampled_spmm(there, 6, 64, kernel="short")
        with pytest.raises(bs.KernelError, match="float64, not float32"):
            bs.plan_sampled_spmm(there, 16, 64, dtype=np.float64, kernel="short")


def test_samples_of_few_columns_take_it() -> None:
    A = graphs()["square"]
    there, x = bs.TCTiledCSR(A.astype(bool)).to_device("cuda"), RNG.standard_normal((81, 16)).astype(np.float32)
    plan = bs.plan_sampled_spmm(there, 16, 4, "aes")
    assert "kernel short" in plan.explain()
    np.testing.assert_allclose(to_host(plan(to_device(x))), bs.sampled_spmm(A, x, 4, "aes"), rtol=1e-4, atol=1e-4)
    assert "kernel short" in bs.plan_sampled_spmm(there, 64, 4, "aes").explain()
    for columns, dtype, kernel in ((128, np.float32, None), (16, np.float16, None), (16, np.float32, "csr")):
        assert "kernel csr" in bs.plan_sampled_spmm(there, columns, 4, "aes", dtype=dtype, kernel=kernel).explain()
    wide = pattern(np.ones((1 << 24) // 256 + 1, np.int64), 4)  # a result of more than 2**24 bytes
    assert "kernel csr" in bs.plan_sampled_spmm(bs.TCTiledCSR(wide).to_device("cuda"), 64, 4).explain()

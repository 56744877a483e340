"""Sums over windows of eight rows on the GPU must agree with float64 for every kind of pattern."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

pytestmark = pytest.mark.gpu


def pattern(kind: str) -> sparse.csr_array:
    rng = np.random.default_rng(3)
    if kind == "blocks":
        found = sparse.block_diag([sparse.coo_array(np.ones((n, n))) for n in (13, 1, 30, 8)], format="csr")
    elif kind == "hub":
        dense = rng.random((41, 700)) < 0.02
        dense[17], dense[18:] = True, dense[18:] & (rng.random((23, 700)) < 0.3)
        found = sparse.csr_array(dense)
    elif kind == "empty":
        found = sparse.csr_array((19, 7))
    else:
        found = sparse.random_array((67, 50), density=0.1, rng=rng, format="csr")
    found = sparse.csr_array(found.astype(np.float32))
    found.data[:] = rng.random(found.nnz, np.float32) - 0.5
    return found


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("d", [4, 12, 64, 132])
@pytest.mark.parametrize("kind", ["blocks", "hub", "empty", "random"])
def test_sums_of_windows(kind: str, d: int, wide: bool) -> None:
    import cupy

    from bitsparse.backends.cuda.spmm.windows import ROWS, Windows

    a = pattern(kind)
    index = np.int64 if wide else np.int32
    indptr, indices = cupy.asarray(a.indptr.astype(index)), cupy.asarray(a.indices.astype(index))
    made = Windows(indptr, indices, a.shape, part=64)
    windows = np.repeat(np.arange(a.shape[0]), np.diff(a.indptr)) // ROWS
    assert made.reuse == a.nnz / max(1, np.unique(np.stack([windows, a.indices]), axis=1).shape[1])
    rng = np.random.default_rng(d)
    x = rng.random((a.shape[1], d), np.float32) - np.float32(0.5)
    values, col, row = a.data, rng.random(a.shape[1], np.float32), rng.random(a.shape[0], np.float32)
    counts = np.maximum(np.diff(a.indptr), 1).astype(np.float32)
    ones = sparse.csr_array((np.ones_like(values), a.indices, a.indptr), shape=a.shape)
    on_gpu = cupy.asarray(x)
    weighed = {
        "pattern": (None, ones),
        "columns": (made.weigh(col_scale=cupy.asarray(col)), ones * col[None, :]),
        "values": (made.weigh(cupy.asarray(values)), a),
        "both": (made.weigh(cupy.asarray(values), cupy.asarray(col)), a * col[None, :]),
    }
    for weights, meant in weighed.values():
        for scale, mean in ((None, False), (row, True)):
            out = cupy.full((a.shape[0], d), np.nan, np.float32)
            made.run(
                on_gpu,
                out,
                weights=weights,
                row_scale=None if scale is None else cupy.asarray(scale),
                counts=cupy.asarray(counts) if mean else None,
            )
            again = cupy.full_like(out, np.nan)
            made.run(
                on_gpu,
                again,
                weights=weights,
                row_scale=None if scale is None else cupy.asarray(scale),
                counts=cupy.asarray(counts) if mean else None,
            )
            factor = np.ones(a.shape[0]) if scale is None else scale.astype(np.float64)
            factor = factor / (counts if mean else 1)
            exact = (meant.astype(np.float64) @ x.astype(np.float64)) * factor[:, None]
            size = (abs(meant.astype(np.float64)) @ np.abs(x).astype(np.float64)) * np.abs(factor)[:, None]
            assert (np.abs(out.get() - exact) <= (counts[:, None] + 6) * 2.0**-24 * size).all()
            assert np.array_equal(out.get().view(np.int32), again.get().view(np.int32))


def test_nothing_spreads_where_no_edge_is() -> None:
    import cupy

    from bitsparse.backends.cuda.spmm.windows import Windows

    a = pattern("random")
    x = np.ones((a.shape[1], 4), np.float32)
    x[7] = np.nan
    made = Windows(cupy.asarray(a.indptr), cupy.asarray(a.indices), a.shape)
    for weights in (None, made.weigh(cupy.asarray(a.data)), made.weigh(col_scale=cupy.ones(a.shape[1], np.float32))):
        out = cupy.empty((a.shape[0], 4), np.float32)
        made.run(cupy.asarray(x), out, weights=weights)
        touched = (a.toarray()[:, 7] != 0)[:, None].repeat(4, 1)
        assert np.array_equal(np.isnan(out.get()), touched)

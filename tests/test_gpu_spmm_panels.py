"""Sums by panels on the GPU: against float64 within their bound, the same bits in every run, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from test_gpu_bits import empty, raw, to_device

import bitsparse as bs
from bitsparse.arrays.inside import store_of
from bitsparse.backends.cuda.spmm import panels_build
from bitsparse.datasets import synthetic_csr
from bitsparse.ops.spmm.gpu import PANELS

pytestmark = pytest.mark.gpu


def graph(rows: int, edges: int, kind: str = "communities") -> sp.csr_array:
    indptr, indices = synthetic_csr((rows, edges), kind)
    return sp.csr_array((np.ones(indices.size, np.float32), indices, indptr), (rows, rows))


@pytest.mark.parametrize("columns", [128, 41])
def test_sums(columns: int) -> None:
    A, rng = graph(800, 36000), np.random.default_rng(columns)
    ours: Any = bs.TCTiledCSR(A, pattern=True).to_device("cuda")
    x = rng.standard_normal((800, columns)).astype(np.float32)
    plan = bs.plan_spmm(ours, columns, kernel="panels")
    print(plan.explain())
    got = plan(to_device(x)).get()
    want = A.astype(np.float64) @ x
    assert np.abs(got - want).max() < 1e-4

"""Gradients on a GPU: the CPU's up to rounding, on the device of the operands, with the same bits in every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_inputs import dtype_of, graphs
from test_gpu_bits import raw, to_device, to_host
from test_vjp import CALLS, away_from_zero

import bitsparse as bs

pytestmark = pytest.mark.gpu

GRAPHS = {name: graph for name, graph in graphs().items() if name in ("no edges", "wide", "square", "hubs")}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    ("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 3e-2)]
)
def test_gradients_are_those_of_the_cpu(name: str, graph: str, dtype: str, bound: float) -> None:
    rng = np.random.default_rng(7)
    A = bs.TCTiledCSR(GRAPHS[graph], row_scale=rng.random(GRAPHS[graph].shape[0]) + 0.5, pattern=True)
    shapes = [(A.shape[0], 5), (A.shape[1], 5), (A.nnz,), (A.shape[0], 5), (A.nnz,)]
    arrays = [away_from_zero(rng.standard_normal(shape)).astype(dtype_of(dtype)) for shape in shapes]
    want = CALLS[name](A, *(array.astype(np.float64) for array in arrays))
    there: list[Any] = [to_device(array) for array in arrays]
    on_gpu = A.to_device("cuda")
    first, second = CALLS[name](on_gpu, *there), CALLS[name](on_gpu, *there)
    for got, again, exact in zip(first, second, want, strict=True):
        assert not isinstance(got, np.ndarray)
        assert got.dtype == dtype_of(dtype)
        assert raw(got).tobytes() == raw(again).tobytes()
        error = abs(to_host(got).astype(np.float64) - exact)
        assert error.max(initial=0) <= bound * max(abs(exact).max(initial=0), 1e-3)

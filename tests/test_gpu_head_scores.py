"""Scores of nodes for graph attention, their gradients and column sums on the GPU, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from sparse_inputs import dtype_of
from test_gpu_bits import raw, to_device, to_host

from bitsparse.backends.cuda.edges import head_scores as cuda

pytestmark = pytest.mark.gpu

BOUNDS = {"float64": 1e-14, "float32": 3e-6, "float16": 2e-3, "bfloat16": 1e-2}
SHAPES = [(0, 2, 3), (5, 0, 3), (1, 1, 1), (70, 4, 32), (3000, 3, 5), (900, 1, 100), (40, 1, 1500), (517, 8, 16)]


def near(found: object, right: np.ndarray, bound: float) -> None:
    host = to_host(found).astype(np.float64)
    assert host.shape == right.shape
    assert abs(host - right).max(initial=0) <= bound * max(abs(right).max(initial=0), 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_scores_and_gradients(shape: tuple[int, ...], dtype: str) -> None:
    rng, compute = np.random.default_rng(shape), np.float64 if dtype == "float64" else np.float32
    x, dx = (rng.standard_normal(shape).astype(dtype_of(dtype)) for _ in range(2))
    vectors = [rng.standard_normal(shape[1:]).astype(compute) for _ in range(2)]
    slopes = [rng.standard_normal(shape[:2]).astype(compute) for _ in range(2)]
    exact, rounding = x.astype(np.float64), shape[2] * BOUNDS["float64" if dtype == "float64" else "float32"]
    at, there = to_device(x), [to_device(part) for part in vectors]
    for found, vector in zip(cuda.head_scores(at, *there), vectors, strict=True):
        near(found, np.einsum("nhd,hd->nh", exact, vector), rounding)
    given, runs = [to_device(part) for part in slopes], []
    for _ in range(2):
        into = to_device(dx)
        made = cuda.head_scores_vjp(at, *there, *given, into)
        runs.append([raw(part).tobytes() for part in (*made, into)])
    assert runs[0] == runs[1]
    for found, slope in zip(made, slopes, strict=True):
        near(found, np.einsum("nh,nhd->hd", slope, exact), rounding)
    added = sum(slope[..., None].astype(np.float64) * vector for slope, vector in zip(slopes, vectors, strict=True))
    near(into, dx.astype(np.float64) + added, BOUNDS[dtype])


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (1, 1), (2708, 7), (5000, 128), (333, 300), (20, 5000)])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_column_sums(shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(shape).standard_normal(shape).astype(dtype_of(dtype))
    at = to_device(x)
    made = cuda.column_sums(at)
    assert raw(made).tobytes() == raw(cuda.column_sums(at)).tobytes()
    near(made, x.astype(np.float64).sum(axis=0), 100 * BOUNDS["float64" if dtype == "float64" else "float32"])


def test_rows_that_are_not_aligned() -> None:
    x = np.random.default_rng(0).standard_normal(1 + 50 * 6).astype(np.float32)
    view = to_device(x)[1:].reshape(50, 6)
    near(cuda.column_sums(view), x[1:].reshape(50, 6).astype(np.float64).sum(axis=0), 1e-5)

"""Scores of nodes for graph attention, their gradients, and column sums on the GPU agree with NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from sparse_inputs import dtype_of
from test_gpu_bits import raw, to_device, to_host

from bitsparse.backends.cuda.counters import counters
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


@pytest.mark.parametrize("rows", [3, 5000])
def test_sums_made_in_float64(rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 1)).astype(np.float32)
    made = to_host(cuda.column_sums(to_device(x), wide=True))
    assert made.dtype == np.float32
    assert made[0] == np.float32(x.astype(np.float64).sum())


def test_captured_sums_are_repeated_beside_others() -> None:
    import cupy

    rng, stream = np.random.default_rng(1), cupy.cuda.Stream(non_blocking=True)
    one, other = (to_device(rng.standard_normal((3000, 40)).astype(np.float32)) for _ in range(2))
    pool = cupy.cuda.MemoryPool()  # keeps the graph's work memory alive, as PyTorch's allocator does
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        beside, out = raw(cuda.column_sums(other)).tobytes(), cupy.empty(40, np.float32)
        with cupy.cuda.using_allocator(pool.malloc):
            want = raw(cuda.column_sums(one)).tobytes()
            stream.begin_capture()
            cuda.column_sums(one, out)
            graph = stream.end_capture()
        for _ in range(3):
            out.fill(0)
            graph.launch(stream)
            assert raw(out).tobytes() == want
            assert raw(cuda.column_sums(other)).tobytes() == beside


def test_counters_of_streams_and_of_captures() -> None:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        mine, again = counters(3), counters(2)
        stream.begin_capture()
        captured = counters(3), counters(3)
        stream.end_capture()
        assert mine.data.ptr == again.data.ptr
        assert len({part.data.ptr for part in (mine, *captured)}) == 3
        assert not any(to_host(part).any() for part in (mine, *captured))

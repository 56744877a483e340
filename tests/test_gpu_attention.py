"""Attention on the GPU (scores, softmax and sums in one pass) agrees with float64; results are written into poisoned arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import dtype_of, graphs, pattern
from test_gpu_bits import empty, raw, to_device, to_host
from test_gpu_sddmm import UNITS, ends, scheduled

import bitsparse as bs
from bitsparse.backends.cuda.edges import attention as cuda
from bitsparse.backends.cuda.edges.attention_layout import layout, tuned

pytestmark = pytest.mark.gpu

GRAPHS = {name: graph for name, graph in graphs().items() if graph.nnz}
SLOPE = 0.2


def weighted(A: sp.csr_array, scores: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """In long double: the sums (rows, heads, width), the log-sum-exp of scores, and the size to which errors are relative."""
    heads = scores.shape[1]
    y = np.zeros((A.shape[0], heads, x.shape[1] // heads), np.longdouble)
    size, lse = np.zeros_like(y), np.full((A.shape[0], heads), -np.inf, np.longdouble)
    for i, (a, b) in enumerate(zip(A.indptr[:-1], A.indptr[1:], strict=True)):
        if a < b:
            part, found = scores[a:b], x[A.indices[a:b]].astype(np.longdouble).reshape(b - a, heads, -1)
            power = np.exp(part - part.max(axis=0))
            lse[i] = part.max(axis=0) + np.log(power.sum(axis=0))
            weight = (power / power.sum(axis=0))[:, :, None]
            # The error of a score is proportional to its own size and to that of the largest score.
            far = 2 * abs(part).max(axis=0)[:, None] + 4 * abs(part)[:, :, None]
            y[i], size[i] = (weight * found).sum(axis=0), (weight * abs(found) * (far + (b - a) / 2 + 40)).sum(axis=0)
    return y, lse, size


def check(got: Any, lse: Any, want: tuple[np.ndarray, np.ndarray, np.ndarray], dtype: str) -> None:
    y, logs, size = want
    unit = UNITS["float64" if dtype == "float64" else "float32"]
    got = to_host(got).astype(np.longdouble).reshape(y.shape)
    assert (abs(got - y) <= unit * size + UNITS[dtype] * abs(y) + 2.0**-24 * (dtype == "float16") + 1e-37).all()
    if lse is not None:
        found = to_host(lse)
        assert np.array_equal(np.isneginf(found), np.isneginf(logs))
        finite = np.isfinite(logs)
        np.testing.assert_allclose(found[finite], logs[finite].astype(found.dtype), rtol=unit * 200, atol=unit * 400)


def check_attention(
    A: sp.csr_array, heads: int, width: int, dtype: str, wide: bool = False, with_lse: bool = True, **variant: int
) -> None:
    rng = np.random.default_rng([heads, width])
    kind = dtype_of(dtype)
    compute = np.float64 if dtype == "float64" else np.float32
    x = rng.standard_normal((A.shape[1], heads * width)).astype(kind)
    source, target = ((rng.standard_normal((n, heads)) * 3).astype(compute) for n in A.shape[::-1])
    out = empty((A.shape[0], heads * width), kind)
    lse = empty((A.shape[0], heads), compute) if with_lse else None
    got = cuda.attention(
        scheduled(A, wide),
        *(to_device(part) for part in (x, source, target)),
        negative_slope=SLOPE,
        out=out,
        lse=lse,
        **variant,
    )
    assert got is out
    rows, cols = ends(A)
    scores = source[cols].astype(np.longdouble) + target[rows]
    scores = np.where(scores < 0, scores * compute(SLOPE), scores)
    check(out, lse, weighted(A, scores, x), dtype)


def check_cosines(A: sp.csr_array, width: int, dtype: str, beta: float, wide: bool = False, **variant: int) -> None:
    rng = np.random.default_rng([width])
    kind = dtype_of(dtype)
    x = rng.standard_normal((max(A.shape), width)).astype(kind)
    x[::7] = 0
    A = sp.csr_array((A.data, A.indices, np.append(A.indptr, [A.nnz] * (x.shape[0] - A.shape[0]))), shape=(len(x),) * 2)
    out, lse = empty(x.shape, kind), empty((len(x), 1), np.float64 if dtype == "float64" else np.float32)
    got = cuda.cosine_attention(scheduled(A, wide), to_device(x), beta=beta, out=out, lse=lse, **variant)
    assert got is out
    rows, cols = ends(A)
    exact = x.astype(np.longdouble)
    norms = np.sqrt((exact**2).sum(axis=1, keepdims=True))
    unit = exact / np.where(norms == 0, 1, norms)
    y, logs, size = weighted(A, beta * (unit[rows] * unit[cols]).sum(axis=1, keepdims=True), x)
    check(out, lse, (y, logs, size * (1 + abs(beta) * width / 64)), dtype)


@pytest.mark.parametrize("name", GRAPHS)
def test_attention(name: str) -> None:
    for heads, width in ((4, 32), (1, 16), (8, 8)):
        check_attention(GRAPHS[name], heads, width, "float32")


@pytest.mark.parametrize(
    ("heads", "width"),
    [(1, 1), (1, 3), (1, 100), (1, 300), (2, 64), (2, 256), (3, 20), (5, 7), (16, 2), (8, 64), (33, 1)],
)
def test_heads_and_widths(heads: int, width: int) -> None:
    check_attention(GRAPHS["hubs"], heads, width, "float32", with_lse=False)
    check_attention(GRAPHS["square"], heads, width, "float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes(dtype: str) -> None:
    for name, heads, width in (("square", 4, 32), ("hubs", 1, 48), ("hubs", 3, 5)):
        check_attention(GRAPHS[name], heads, width, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_heads_that_are_laid_out_as_whole_vectors(dtype: str) -> None:
    for name, heads, width in (("square", 1, 41), ("hubs", 3, 5), ("hubs", 4, 32), ("square", 2, 1)):
        check_attention(GRAPHS[name], heads, width, dtype, lay=True)
    for name, width in (("square", 41), ("hubs", 3), ("hubs", 150)):
        check_cosines(GRAPHS[name], width, dtype, 1.5, lay=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("heads", "width"), [(1, 24), (4, 32), (3, 200), (5, 7), (2, 600)])
def test_hundreds_of_pieces(heads: int, width: int, dtype: str) -> None:
    """Hundreds of pieces of a row must be joined rightly by many threads per column, by few, and by one."""
    check_attention(GRAPHS["hubs"], heads, width, dtype, longest=4, span=4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(("heads", "width"), [(1, 24), (4, 32), (5, 7)])
def test_few_pieces_are_joined_by_the_last_to_come(heads: int, width: int, dtype: str) -> None:
    """The block that finishes last must join the pieces, and reset its counter to zero for the next launch."""
    for _ in range(2):
        check_attention(GRAPHS["hubs"], heads, width, dtype, longest=512, span=512)
        check_cosines(GRAPHS["hubs"], heads * width, dtype, 1.5, longest=512, span=512)


def test_wide_indices() -> None:
    check_attention(GRAPHS["hubs"], 4, 32, "float32", wide=True, longest=512, span=512)
    check_attention(GRAPHS["hubs"], 4, 32, "float32", wide=True)


@pytest.mark.parametrize("name", GRAPHS)
def test_cosines(name: str) -> None:
    for width in (128, 16):
        check_cosines(GRAPHS[name], width, "float32", 1.5)


@pytest.mark.parametrize("width", [1, 2, 3, 8, 33, 64, 100, 256, 300, 512])
def test_cosines_of_every_width(width: int) -> None:
    check_cosines(GRAPHS["square"], width, "float32", -2.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_cosines_of_every_dtype(dtype: str) -> None:
    for name, width in (("square", 64), ("hubs", 24)):
        check_cosines(GRAPHS[name], width, dtype, 3.0)


def test_cosines_with_wide_indices_and_large_factors() -> None:
    check_cosines(GRAPHS["hubs"], 32, "float32", 1.0, wide=True)
    check_cosines(GRAPHS["square"], 32, "float32", 300.0)


def test_special_scores() -> None:
    A = pattern([3, 2, 4, 0, 2], 6)
    x = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)
    source, target = np.zeros((6, 2), np.float32), np.zeros((5, 2), np.float32)
    target[0, 0], target[1, 1], target[2, 0] = np.nan, -np.inf, np.inf
    source[A.indices[-1], 1] = -np.inf
    got = to_host(
        cuda.attention(scheduled(A), *(to_device(part) for part in (x, source, target)), negative_slope=SLOPE)
    ).reshape(5, 2, 4)
    assert np.isnan(got[0, 0]).all()
    assert np.isfinite(got[0, 1]).all() == (A.indices[-1] not in A.indices[:3] or True)
    assert np.isnan(got[1, 1]).all()
    assert np.isnan(got[2, 0]).all()
    assert not got[3].any()
    other = A.indices[-2]
    np.testing.assert_allclose(got[4, 1], x[other, 4:], rtol=1e-6)


def test_nothing_to_do() -> None:
    import cupy

    A = pattern([0, 0, 0], 4)
    lse = empty((3, 2), np.float32)
    x, source, target = cupy.ones((4, 6), np.float32), cupy.ones((4, 2), np.float32), cupy.ones((3, 2), np.float32)
    got = cuda.attention(scheduled(A), x, source, target, negative_slope=SLOPE, lse=lse)
    assert not got.get().any()
    assert np.isneginf(lse.get()).all()


def test_the_same_bits_every_time() -> None:
    A = GRAPHS["hubs"]
    schedule = scheduled(A)
    rng = np.random.default_rng(2)
    parts = [to_device(rng.standard_normal((n, 8)).astype(np.float32)) for n in (A.shape[1], A.shape[1], A.shape[0])]
    calls = [cuda.attention(each, *parts, negative_slope=SLOPE) for each in (schedule, scheduled(A), schedule)]
    assert np.array_equal(raw(calls[0]).get(), raw(calls[1]).get())
    assert np.array_equal(raw(calls[0]).get(), raw(calls[2]).get())


def test_rows_too_long_for_registers_go_step_by_step() -> None:
    check_cosines(GRAPHS["square"], 600, "float32", 2.0)
    check_cosines(GRAPHS["square"], 1030, "bfloat16", 2.0)


def test_public_functions() -> None:
    import cupy
    import cupyx.scipy.sparse as csp

    A = pattern([3, 0, 40, 2], 40)
    A = sp.csr_array((A.data, A.indices, np.append(A.indptr, [A.nnz] * 36)), shape=(40, 40))
    there = csp.csr_matrix((cupy.asarray(A.data), cupy.asarray(A.indices), cupy.asarray(A.indptr)), shape=A.shape)
    rng = np.random.default_rng(6)
    for dtype in (np.float16, np.float32, np.float64):
        x = rng.standard_normal((40, 2, 6)).astype(dtype)
        flat = np.ascontiguousarray(x[:, 0])
        source, target = rng.standard_normal((2, 40, 2)).astype(np.float64 if dtype == np.float64 else np.float32)
        eps = {2: 2e-3, 4: 2e-6, 8: 1e-12}[x.itemsize]
        calls = (
            (bs.attention, (x, source, target), {}),
            (bs.cosine_attention, (flat,), {"beta": 3.0}),
        )
        for function, operands, keywords in calls:
            wanted = function(A, *operands, **keywords, return_lse=True)
            device = [cupy.asarray(part) for part in operands]
            out = cupy.empty(operands[0].shape, dtype)
            got = function(there, *device, **keywords, out=out, return_lse=True)
            assert got[0] is out
            for one, other in zip(got, wanted, strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_allclose(one.get(), other, rtol=eps, atol=eps)
    with pytest.raises(bs.DeviceError, match="x is on cpu"):
        bs.cosine_attention(there, flat)


def test_usual_shapes_are_compiled_ahead() -> None:
    from bitsparse.backends.cuda import variants
    from bitsparse.backends.cuda.chips import chip_here
    from bitsparse.backends.cuda.csr.bounds import ATTENTION

    listed = {(found.function, found.defines) for found in variants()}
    for dtype, columns, heads, cosine in (
        *(
            ("float32", columns, heads, False)
            for columns, heads in ((64, 1), (128, 1), (64, 8), (128, 4), (128, 8), (256, 8))
        ),
        *((name, 128, heads, False) for name in ("float16", "bfloat16") for heads in (1, 4)),
        *(("float32", columns, 1, True) for columns in (16, 32, 64, 128, 256)),
        *((name, 128, 1, True) for name in ("float16", "bfloat16")),
    ):
        made = tuned(layout(dtype_of(dtype), 16, columns, heads, cosine).defines)
        made |= ATTENTION.blocks(made, chip_here())
        assert ("attention", tuple(sorted(made.items()))) in listed, (dtype, columns, heads, cosine)


def test_calls_in_place_allocate_nothing_and_are_captured() -> None:
    import cupy

    from bitsparse.backends.cuda.edges import sddmm

    counts = pytest.importorskip("emulator").counts if hasattr(cupy, "_is_emulated") else None
    A = GRAPHS["hubs"]
    n = max(A.shape)
    A = sp.csr_array((A.data, A.indices, np.append(A.indptr, [A.nnz] * (n - A.shape[0]))), shape=(n, n))
    schedule = scheduled(A)
    rng = np.random.default_rng(8)
    x, scores, ends, edges = (
        to_device(rng.standard_normal(shape).astype(np.float32)) for shape in ((n, 32), (n, 2), (n, 2), (A.nnz, 2))
    )
    outs = [empty(shape, np.float32) for shape in ((n, 32), (n, 32), (A.nnz, 2), (A.nnz, 2))]

    def calls() -> None:
        cuda.attention(schedule, x, scores, ends, negative_slope=SLOPE, out=outs[0])
        cuda.cosine_attention(schedule, x, beta=2.0, out=outs[1])
        sddmm.sddmm(schedule, x, x, op="dot", heads=2, out=outs[2])
        sddmm.edge_softmax(schedule, edges, out=outs[3], room=64)

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        calls()
        stream.synchronize()
        want = [out.get() for out in outs]
        for out in outs:
            out.fill(0)
        stream.synchronize()
        before = counts() if counts else {}
        stream.begin_capture()
        calls()
        captured = stream.end_capture()
        after = counts() if counts else {}
        captured.launch(stream)
        stream.synchronize()
    assert after.get("allocations") == before.get("allocations")
    for out, first in zip(outs, want, strict=True):
        assert out.get().tobytes() == first.tobytes()

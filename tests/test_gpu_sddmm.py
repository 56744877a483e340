"""Products per edge and row softmax on the GPU, against float64 or exact integers; results are written into poisoned arrays."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import dtype_of, features, graphs, pattern
from test_gpu_bits import empty, raw, to_device, to_host

from bitsparse.backends.cuda.csr import vectors as cuda_edges
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges import sddmm as cuda
from bitsparse.backends.cuda.edges.sddmm import DotWindows, window_defines
from bitsparse.backends.cuda.spmm.windows import Windows
from bitsparse.backends.host.edges import sddmm as host
from bitsparse.backends.params import Pattern

pytestmark = pytest.mark.gpu

GRAPHS = {name: graph for name, graph in graphs().items() if graph.nnz}
#: Unit roundoff of each dtype of results; sums use that of float32 or float64.
UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def on_device(A: sp.csr_array, wide: bool = False) -> tuple[Any, Any]:
    dtype = np.int64 if wide else np.int32
    return to_device(A.indptr.astype(dtype)), to_device(A.indices.astype(dtype))


def scheduled(A: sp.csr_array, wide: bool = False) -> Schedule:
    """Return the pattern in the form that functions over its edges take."""
    return Schedule(*on_device(A, wide), A.shape, A.nnz)


def ends(A: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)), A.indices


def check_products(
    A: sp.csr_array, width: int, heads: int, dtype: str, op: str, wide: bool = False, **variant: Any
) -> None:
    rng = np.random.default_rng([width, heads])
    kind = dtype_of(dtype)
    x, y = (features(rng, (n, heads * width), kind) for n in A.shape)
    if kind.kind == "i":
        x, y = x // (1 << 20), y // (1 << 20)
    if op == "div":
        y = (y.astype(np.float64) + np.copysign(0.5, y.astype(np.float64))).astype(kind)
    shape = (A.nnz, heads if op == "dot" else heads * width)
    out = empty(shape, kind)
    call = {"op": op, "heads": heads, **variant}
    assert cuda.sddmm(scheduled(A, wide), to_device(x), to_device(y), out=out, **call) is out
    got = to_host(out)
    exact = np.int64 if kind.kind == "i" else np.longdouble
    rows, cols = ends(A)
    left, right = x.astype(exact)[rows], y.astype(exact)[cols]
    terms = getattr(operator, {"dot": "mul", "div": "truediv"}.get(op, op))(left, right)
    if op == "dot":
        terms = terms.reshape(A.nnz, heads, width)
    want = terms.sum(axis=-1) if op == "dot" else terms
    if kind.kind == "i":
        assert np.array_equal(got, want)
        return
    unit = UNITS["float64" if dtype == "float64" else "float32"]
    bound = (-(-width // 8) + 8) * unit * abs(terms).sum(axis=-1) if op == "dot" else 0
    rounding = UNITS[dtype] * abs(want) + 2.0**-25 * (dtype == "float16")
    assert (abs(got.astype(np.longdouble) - want) <= bound + rounding).all()


@pytest.mark.parametrize("name", GRAPHS)
def test_dot_products(name: str) -> None:
    for width in (16, 128):
        check_products(GRAPHS[name], width, 1, "float32", "dot")


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 24, 33, 64, 100, 256, 301])
def test_dot_products_of_every_width(width: int) -> None:
    check_products(GRAPHS["square"], width, 1, "float32", "dot")


@pytest.mark.parametrize(("heads", "width"), [(2, 16), (3, 20), (4, 32), (8, 8), (5, 3), (16, 4), (33, 1)])
def test_heads(heads: int, width: int) -> None:
    for name in ("square", "hubs"):
        check_products(GRAPHS[name], width, heads, "float32", "dot")


@pytest.mark.parametrize("op", ["dot", "add", "sub", "mul", "div"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64"])
def test_dtypes(dtype: str, op: str) -> None:
    if op == "div" and dtype[0] == "i":
        return
    for width, heads in ((16, 1), (7, 1), (40, 2)):
        check_products(GRAPHS["hubs"], width, heads, dtype, op)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_sums_and_products_of_rows(op: str) -> None:
    for name, width in (("square", 4), ("square", 1), ("many empty rows", 50), ("hubs", 130), ("tall", 6)):
        check_products(GRAPHS[name], width, 1, "float32", op)


@pytest.mark.parametrize("op", ["dot", "add"])
def test_wide_indices(op: str) -> None:
    for name in ("many empty rows", "hubs"):
        check_products(GRAPHS[name], 12, 2, "float32", op, wide=True)


def test_variants_agree() -> None:
    for steps, blocks in ((1, 10), (2, 8), (8, 4)):
        for name, width in (("hubs", 64), ("many empty rows", 52), ("square", 301), ("hubs", 256)):
            check_products(GRAPHS[name], width, 1, "float32", "dot", steps=steps, blocks=blocks)


def test_many_rows_among_edges_that_lie_together() -> None:
    rng = np.random.default_rng(3)
    A = pattern(
        [int(n) for n in rng.choice([0, 0, 1, 1, 2, 40], 3000)] + [0] * 300 + [1] + [0] * 700 + [2, 1, 0, 9], 300
    )
    check_products(A, 8, 1, "float32", "dot")
    check_products(A, 8, 3, "float32", "dot")
    check_products(A, 8, 1, "float32", "mul")


def test_a_product_is_prepared_once_and_captured() -> None:
    import cupy

    A = GRAPHS["hubs"]
    rng = np.random.default_rng(8)
    x, y = (cupy.asarray(rng.standard_normal((n, 32), dtype=np.float32)) for n in A.shape)
    for op, shape in (("dot", (A.nnz, 2)), ("mul", (A.nnz, 32))):
        product = cuda.EdgeProduct(scheduled(A), op=op, dtype="float32", columns=32, heads=2)
        want = cuda.sddmm(scheduled(A), x, y, op=op, heads=2)
        out = empty(shape, np.float32)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            assert product(x, y, out) is out
            graph = stream.end_capture()
            graph.launch(stream)
        stream.synchronize()
        assert np.array_equal(raw(out).get(), raw(want).get())


def test_heads_numbered_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    A = GRAPHS["square"]
    schedule = Schedule(*on_device(A), A.shape, A.nnz)
    assert cuda_edges.widened(schedule, 1 << 20) is schedule
    wide = cuda_edges.widened(schedule, 1 << 27)
    assert wide.large
    assert wide.indices.dtype == np.int64


def test_edges_that_are_their_own_columns() -> None:
    A = GRAPHS["square"]
    incidence = Schedule(on_device(A)[0], None, (A.shape[0], A.nnz), A.nnz)
    assert np.array_equal(cuda_edges.widened(incidence, 1).indices.get(), np.arange(A.nnz))
    named = incidence.along(on_device(A)[1])
    assert named.indexed() is named
    assert np.array_equal(named.indices.get(), A.indices)
    assert incidence.indices is None


def test_nothing_to_do_and_unaligned_views() -> None:
    import cupy

    A = GRAPHS["square"]
    schedule, without = scheduled(A), scheduled(sp.csr_array(A.shape, dtype=np.float32))
    got = cuda.sddmm(schedule, *(cupy.empty((81, 0), np.float32) for _ in "xy"), op="dot", heads=1)
    assert not got.get().any()
    none = cuda.sddmm(without, *(cupy.zeros((81, 4)) for _ in "xy"), op="add", heads=1)
    assert none.shape == (0, 4)
    x = np.random.default_rng(4).standard_normal((81, 17)).astype(np.float32)
    room = cupy.asarray(np.concatenate([[0], x.ravel()]).astype(np.float32))[1:].reshape(81, 17)
    edges = Pattern(A.indptr, A.indices, A.shape)
    want = host.sddmm(edges, x[:, 1:], x[:, 1:], op="mul", heads=1)
    view = room[:, 1:]
    same_bits = cuda.sddmm(schedule, view, view, op="mul", heads=1)
    assert np.array_equal(same_bits.get(), want)
    got = cuda.sddmm(schedule, room, room, op="dot", heads=1).get()
    np.testing.assert_allclose(got, host.sddmm(edges, x, x, op="dot", heads=1), rtol=1e-5, atol=1e-5)


# ---- windows of eight rows
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("width", [4, 16, 20, 64, 100, 256])
def test_dot_products_of_windows(width: int, wide: bool) -> None:
    import cupy

    for A in (
        GRAPHS["hubs"],
        GRAPHS["many empty rows"],
        sp.block_diag([sp.coo_array(np.ones((n, n))) for n in (13, 1, 40, 8, 67)], format="csr"),
        pattern([300, 0, 5, 700, 1, 299, 299, 298, 41, 3], 900),
    ):
        indptr, indices = on_device(A, wide)
        rng = np.random.default_rng(width)
        x, y = (rng.standard_normal((n, width)).astype(np.float32) for n in A.shape)
        y[-1], x[0] = np.inf, np.nan  # affects only the edges of these rows
        product = DotWindows(Windows(indptr, indices, A.shape, part=64), indptr, width)
        out = empty((A.nnz,), np.float32)
        assert product(cupy.asarray(x), cupy.asarray(y), out) is out
        rows, cols = ends(A)
        with np.errstate(invalid="ignore"):
            terms = x.astype(np.float64)[rows] * y.astype(np.float64)[cols]
            want = terms.sum(axis=1)
            odd = ~np.isfinite(want)
            got, bound = to_host(out), (-(-width // 8) + 8) * UNITS["float32"] * abs(terms).sum(axis=1)
        assert np.array_equal(np.isfinite(got), ~odd)
        assert (abs(got[~odd] - want[~odd]) <= bound[~odd]).all()
        again = empty((A.nnz,), np.float32)
        product(cupy.asarray(x), cupy.asarray(y), again)
        assert np.array_equal(raw(again).get(), raw(out).get())


# ---- softmax
def check_softmax(
    A: sp.csr_array, heads: int, dtype: str, wide: bool = False, in_place: bool = False, **variant: int
) -> None:
    scores = (np.random.default_rng(heads).standard_normal((A.nnz, heads)) * 8).astype(dtype_of(dtype))
    given = to_device(scores)
    out = given if in_place else empty(scores.shape, scores.dtype)
    assert cuda.edge_softmax(scheduled(A, wide), given, out=out, **variant) is out
    got = to_host(out).astype(np.longdouble)
    unit = UNITS["float64" if dtype == "float64" else "float32"]
    for a, b in zip(A.indptr[:-1], A.indptr[1:], strict=True):
        if a < b:
            part = scores[a:b].astype(np.longdouble)
            far = part.max(axis=0) - part
            want = np.exp(-far) / np.exp(-far).sum(axis=0)
            bound = (far + -(-(b - a) // 4) + 16) * unit + (UNITS[dtype] if len(dtype) > 7 or dtype == "float16" else 0)
            assert (abs(got[a:b] - want) <= bound * want + 2.0**-24 * (dtype == "float16") + 1e-38).all()


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_softmax(name: str, heads: int) -> None:
    check_softmax(GRAPHS[name], heads, "float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_softmax_of_every_dtype(dtype: str) -> None:
    for name in ("square", "hubs"):
        check_softmax(GRAPHS[name], 4, dtype, in_place=True)


def test_softmax_of_many_heads_and_wide_indices() -> None:
    check_softmax(GRAPHS["hubs"], 40, "float32")
    check_softmax(GRAPHS["hubs"], 2, "float32", wide=True)
    check_softmax(pattern([600] * 5, 700), 1, "float32")


@pytest.mark.parametrize(("heads", "dtype"), [(1, "float32"), (5, "bfloat16"), (16, "float64"), (70, "float16")])
def test_softmax_in_blocks_of_every_size(heads: int, dtype: str) -> None:
    for room in (1, 1000):
        check_softmax(GRAPHS["hubs"], heads, dtype, room=room)
    check_softmax(pattern([3, 200, 0, 5, 700, 1, 90], 900), heads, dtype, in_place=True)


def test_softmax_of_unaligned_scores() -> None:
    import cupy

    A = GRAPHS["square"]
    scores = np.random.default_rng(6).standard_normal((A.nnz + 1, 1)).astype(np.float32)
    got = cuda.edge_softmax(scheduled(A), cupy.asarray(scores)[1:])
    np.testing.assert_allclose(
        got.get(), host.edge_softmax(Pattern(A.indptr, A.indices, A.shape), scores[1:]), rtol=1e-5
    )


def test_softmax_of_special_values() -> None:
    A = pattern([3, 2, 4, 70, 2500], 2600)
    scores = np.zeros((A.nnz, 2), np.float32)
    scores[1, 0] = np.nan
    scores[3:5, 1] = -np.inf
    scores[5, 0] = np.inf
    scores[6:8, 1] = -np.inf
    scores[100, 0] = np.nan
    scores[700:, 1] = -np.inf
    got = to_host(cuda.edge_softmax(scheduled(A), to_device(scores)))
    want = host.edge_softmax(Pattern(A.indptr, A.indices, A.shape), scores)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_the_same_bits_every_time_and_nothing_prepared_twice() -> None:
    A = GRAPHS["hubs"]
    schedule, fresh = scheduled(A), scheduled(A)
    x = to_device(np.random.default_rng(5).standard_normal((max(A.shape), 32)).astype(np.float32))
    rows, cols = x[: A.shape[0]], x[: A.shape[1]]
    first, second = (cuda.sddmm(each, rows, cols, op="dot", heads=4) for each in (schedule, fresh))
    assert np.array_equal(raw(first).get(), raw(second).get())
    tables = schedule.edge_rows()
    weights = [cuda.edge_softmax(each, first) for each in (schedule, fresh)]
    assert np.array_equal(raw(weights[0]).get(), raw(weights[1]).get())
    assert schedule.edge_rows() is tables


def test_usual_shapes_are_compiled_ahead() -> None:
    from bitsparse.backends.cuda import variants

    listed = {(found.function, found.defines) for found in variants()}
    for dtype, width, heads in (
        *(("float32", width, 1) for width in (16, 32, 64, 128, 256, 512)),
        *((name, width, 1) for name in ("float16", "bfloat16") for width in (64, 128, 256)),
        ("float32", 32, 4),
        ("float64", 128, 1),
    ):
        kind = dtype_of(dtype)
        defines = cuda.dot_defines(kind, 16, width * kind.itemsize // 16, heads)
        assert ("sddmm_edges", tuple(sorted(defines.items()))) in listed, (dtype, width, heads)
    for width in (16, 64, 128, 256, 100):
        assert ("sddmm_windows", tuple(sorted(window_defines(width // 4).items()))) in listed, width

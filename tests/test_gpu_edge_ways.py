"""Repeated calls per edge on a GPU: the second and later ones take a shorter path, which must give the caller the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import graphs
from test_gpu_bits import empty, raw, to_device, to_host

import bitsparse as bs
from bitsparse.arrays.inside import store_of
from bitsparse.ops.edges.products import EDGE_PRODUCTS
from bitsparse.ops.plan import CALLS

pytestmark = pytest.mark.gpu

A = graphs()["square"]
BLOCKS = sp.csr_array(sp.block_diag([sp.coo_array(np.ones((n, n))) for n in (21, 40, 13)], format="csr"))
Call = Callable[..., Any]


def on_gpu(graph: Any = A) -> bs.TCTiledCSR:
    return bs.TCTiledCSR(graph).to_device("cuda")


def calls(n: int, nnz: int) -> dict[str, tuple[Call, list[np.ndarray]]]:
    """Named functions of A and arrays, with arrays to call them with."""
    rng = np.random.default_rng(n)

    def made(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    x, y, scores = made(n, 16), made(n, 16), made(nnz, 2)
    return {
        "dot": (bs.sddmm, [x, y]),
        "dot with itself": (bs.sddmm, [x]),
        "dot of one column": (bs.sddmm, [made(n), made(n)]),
        "dot of heads": (bs.sddmm, [made(n, 4, 8), made(n, 4, 8)]),
        "product": (lambda a, *xy, **out: bs.sddmm(a, *xy, op="mul", **out), [x, y]),
        "softmax": (bs.edge_softmax, [scores]),
        "attention": (bs.attention, [made(n, 2, 8), made(n, 2), made(n, 2)]),
        "attention of one head": (
            lambda a, *xst, **out: bs.attention(a, *xst, negative_slope=0.1, **out),
            [x, made(n), made(n)],
        ),
        "weighted sum": (lambda a, x, v, **out: bs.spmm(a, x, values=v, **out), [x, scores[:, 0].copy()]),
        "weighted mean of heads": (
            lambda a, x, v, **out: bs.spmm(a, x, values=v, reduce="mean", **out),
            [made(n, 2, 8), scores],
        ),
        "cosines": (lambda a, x, **out: bs.cosine_attention(a, x, beta=0.5, **out), [x]),
    }


@pytest.mark.parametrize("name", list(calls(1, 1)))
def test_later_calls_give_the_same(name: str) -> None:
    a = on_gpu()
    call, arrays = calls(A.shape[0], A.nnz)[name]
    given = [to_device(array) for array in arrays]
    first = to_host(call(a, *given))
    np.testing.assert_allclose(first, call(A, *arrays), rtol=2e-5, atol=2e-5)
    for _ in range(2):
        assert np.array_equal(to_host(call(a, *given)), first)
        out = empty(first.shape, np.float32)
        assert call(a, *given, out=out) is out
        assert np.array_equal(to_host(out), first)
    # Calls with other arrays of the same kind, views with gaps, unaligned inputs and results, and another dtype.
    changed = [array[::-1].copy() for array in arrays]
    want = call(A, *changed)
    for again in (
        [to_device(array) for array in changed],
        [to_device(np.repeat(array, 2, axis=0))[::2] for array in changed],
        [_unaligned(array) for array in changed],
    ):
        np.testing.assert_allclose(to_host(call(a, *again)), want, rtol=2e-5, atol=2e-5)
        out = _unaligned(np.full(want.shape, np.nan, np.float32))
        assert call(a, *again, out=out) is out
        np.testing.assert_allclose(to_host(out), want, rtol=2e-5, atol=2e-5)
    wide = call(a, *(to_device(array.astype(np.float64)) for array in changed))
    assert wide.dtype == np.float64
    np.testing.assert_allclose(to_host(wide), want, rtol=2e-5, atol=2e-5)


def _unaligned(array: np.ndarray) -> Any:
    import cupy

    room = cupy.empty(array.size + 1, array.dtype)[1:].reshape(array.shape)
    room[...] = to_device(array)
    return room


def test_wrong_calls_are_refused_after_right_ones() -> None:
    a, n = on_gpu(), A.shape[0]
    x, y = (to_device(np.ones((n, 8), np.float32)) for _ in "xy")
    scores = to_device(np.ones(A.nnz, np.float32))
    for _ in range(2):
        bs.sddmm(a, x, y)
        bs.edge_softmax(a, scores)
        bs.attention(a, x, x[:, 0].copy(), y[:, 0].copy())
    with pytest.raises(bs.ShapeError, match="sddmm"):
        bs.sddmm(a, x, y[:-1])
    with pytest.raises(bs.ShapeError, match="sddmm"):
        bs.sddmm(a, x, y, out=empty((A.nnz + 1,), np.float32))
    with pytest.raises(ValueError, match="op"):
        bs.sddmm(a, x, y, op=["dot"])
    with pytest.raises(bs.DeviceError, match="sddmm"):
        bs.sddmm(a, x, np.ones((n, 8), np.float32))
    with pytest.raises(ValueError, match="negative_slope"):
        bs.attention(a, x, x[:, 0].copy(), y[:, 0].copy(), negative_slope=np.nan)
    want = to_host(bs.edge_softmax(a, scores))
    room = to_device(np.ones(A.nnz + 4, np.float32))
    beside = room[4:]
    assert bs.edge_softmax(a, room[:-4], out=beside) is beside
    assert np.array_equal(to_host(beside), want)
    assert bs.edge_softmax(a, scores, out=scores) is scores
    np.testing.assert_allclose(to_host(scores), bs.edge_softmax(A, np.ones(A.nnz, np.float32)), rtol=1e-5)


def test_rows_that_share_columns_go_through_windows() -> None:
    import cupy

    a = on_gpu(BLOCKS)
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((BLOCKS.shape[0], 64)).astype(np.float32) for _ in "xy")
    want = bs.sddmm(BLOCKS, x, y)
    x, y = to_device(x), to_device(y)
    got = bs.sddmm(a, x, y)
    kinds = {type(product).__name__ for product in EDGE_PRODUCTS.all(store_of(a))}
    assert kinds == {"DotWindows"}
    np.testing.assert_allclose(to_host(got), want, rtol=1e-4, atol=1e-4)
    out = empty(want.shape, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        bs.sddmm(a, x, y, out=out)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert np.array_equal(raw(out).get(), raw(got).get())
    # Sums, heads and other dtypes are computed edge by edge.
    np.testing.assert_allclose(to_host(bs.sddmm(a, x, y, op="add")), bs.sddmm(BLOCKS, to_host(x), to_host(y), op="add"))
    assert {type(product).__name__ for product in EDGE_PRODUCTS.all(store_of(a))} == {
        "DotWindows",
        "EdgeProduct",
    }


def test_no_more_calls_than_a_few_are_kept() -> None:
    a = on_gpu()
    for columns in range(1, 40):
        x = to_device(np.ones((A.shape[0], columns), np.float32))
        assert float(bs.sddmm(a, x)[0]) == columns
    assert len(CALLS.all(store_of(a))) <= 16
    assert len(EDGE_PRODUCTS.all(store_of(a))) <= 16


def test_containers_of_one_pattern_share_what_is_kept() -> None:
    a = on_gpu()
    x = to_device(np.ones((A.shape[0], 4), np.float32))
    bs.sddmm(a, x)
    scaled = a.with_values(to_device(np.full(A.nnz, 2, np.float32)))
    assert (to_host(bs.sddmm(scaled, x)) == 4).all()


def test_containers_of_one_pattern_have_their_own_scales() -> None:
    a = on_gpu()
    rng = np.random.default_rng(4)
    x, v = rng.standard_normal((A.shape[0], 4)).astype(np.float32), rng.random(A.nnz).astype(np.float32)
    plain, factor = sp.csr_array((v, A.indices, A.indptr), shape=A.shape), np.arange(A.shape[0], dtype=np.float32)
    scaled = a.with_scales(to_device(factor), None)
    for _ in range(2):
        for there, rows in ((a, 1), (scaled, factor[:, None])):
            got = to_host(bs.spmm(there, to_device(x), values=to_device(v)))
            np.testing.assert_allclose(got, (plain @ x) * rows, rtol=1e-4, atol=1e-3)


def test_first_products_are_prepared_and_kept_where_that_suffices() -> None:
    """A kept product must not serve containers of the same pattern whose values have another dtype."""
    from bitsparse.ops.plan import LongWay

    rng = np.random.default_rng(4)
    x, values = rng.standard_normal((81, 16)).astype(np.float32), rng.standard_normal(A.nnz)
    wide = bs.TCTiledCSR(sp.csr_array((values, A.indices, A.indptr), A.shape)).to_device("cuda")
    there, kept = to_device(x), store_of(wide)
    for _ in range(2):  # float32 times float64 gives float64, which needs a conversion
        assert bs.spmm(wide, there).dtype == np.float64
    ((key, long),) = kept[CALLS].items()
    assert isinstance(long, LongWay)
    single = wide.astype(np.float32)
    want = bs.spmm(sp.csr_array((values.astype(np.float32), A.indices, A.indptr), A.shape), x)
    np.testing.assert_allclose(to_host(bs.spmm(single, there)), want, rtol=1e-4, atol=1e-4)
    assert not isinstance(kept[CALLS][key], LongWay)
    assert bs.spmm(wide, there).dtype == np.float64
    assert isinstance(kept[CALLS][key], LongWay)


def test_first_products_are_refused_as_later_ones() -> None:
    import cupy

    x, there = cupy.ones((81, 4), np.float32), on_gpu()
    for _ in range(2):
        for wrong, message in (
            ({"x": x[:80]}, "A has 81 columns but x has 80 rows"),
            ({"x": cupy.ones((81, 4), np.complex64)}, "x has dtype complex64"),
            ({"x": cupy.ones((81, 1, 1, 4), np.float32)}, "features are \\(N,\\), \\(N, D\\) or \\(N, heads, D\\)"),
            ({"x": x, "out": cupy.ones((81, 5), np.float32)}, "out has shape"),
            ({"x": x, "out": x}, "out shares memory"),
            ({"x": x, "out": np.ones((81, 4), np.float32)}, "out is on cpu"),
            ({"x": x, "kernel": "quick"}, "kernel"),
            ({"x": x, "kernel": "codes"}, "kernel 'codes' cannot compute this"),
            ({"x": x, "reduce": ["sum"]}, "reduce"),
        ):
            with pytest.raises(
                (ValueError, bs.ShapeError, bs.DTypeError, bs.DeviceError, bs.KernelError), match=message
            ):
                bs.spmm(there, **wrong)  # type: ignore[arg-type]
        assert np.array_equal(to_host(bs.spmm(there, x)), bs.spmm(A.astype(bool), np.ones((81, 4), np.float32)))
    with pytest.raises(bs.DeviceError, match="A is on cpu but x is on cuda:0"):
        bs.spmm(bs.TCTiledCSR(A), x)


@pytest.mark.parametrize(("product", "entries", "back"), [("spmm", 12, 5), ("bspmm", 22, 10)])
def test_arguments_do_not_wander(product: str, entries: int, back: int) -> None:
    """In a cold call, traced in a fresh process, an argument must enter few modules, and return to few that it left."""
    import cupy

    script = Path(__file__).resolve().parent.parent / "benchmarks" / "route.py"
    emulated = ["--emulate"] if hasattr(cupy, "_is_emulated") else []
    done = subprocess.run(
        [sys.executable, str(script), product, "--list", *emulated], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["entries"] <= entries, found
    assert found["back"] <= back, found

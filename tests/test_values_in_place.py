"""Values of a sparse matrix that are changed in place must be read as they are by every product, on the CPU and on a GPU."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gpu_bits import to_device

import bitsparse as bs

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
_ROWS, _COLUMNS = 40, 16
Call = Callable[[Any, Any], Any]


def matrix(dtype: Any, seed: int = 0, shape: tuple[int, int] = (_ROWS, _ROWS)) -> Any:
    """Return a matrix with an empty row, whose neighbouring rows share columns, so that every kernel has something to share."""
    rng = np.random.default_rng(seed)
    dense = (rng.random(shape) < 0.1) | (np.add.outer(np.arange(shape[0]) // 8, -(np.arange(shape[1]) // 8)) == 0)
    dense[3] = False
    made = sp.csr_array(dense.astype(np.int8)).astype(dtype)
    made.data = numbers(dtype, made.nnz, seed)
    return made


def numbers(dtype: Any, count: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    drawn = rng.integers(0, 2 if kind == "b" else 5, count) if kind in "biu" else rng.standard_normal(count)
    return drawn.astype(dtype)


def features(dtype: Any = np.float32, columns: int = _COLUMNS) -> Any:
    rng = np.random.default_rng(7)
    if np.dtype(dtype).kind == "i":
        return rng.integers(-9, 9, (_ROWS, columns)).astype(dtype)
    return rng.standard_normal((_ROWS, columns)).astype(dtype)


def scaled(a: Any) -> Any:
    return a.with_scales(np.linspace(0.5, 2, _ROWS), np.linspace(3, 1, _ROWS))


def codes(bits: int = 4, **options: Any) -> Any:
    return bs.quantize(features(), bits, granularity="tensor", layout="rows", **options)


def integers() -> Any:
    return codes().with_affine()


def signs() -> Any:
    return bs.pack_bits(features(), encoding="bipolar")


def plain(a: Any) -> Any:
    return a


def to_host(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else x


_RELU = bs.Epilogue(activation="relu")
_OFFSET = bs.Epilogue(offset_correction=True)

#: Dtype of the values, a function applied to the matrix first, the features, one call, and a function that makes a plan.
CASES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[], Any], Call, Callable[[Any], Any] | None]] = {
    "A @ x": (np.float32, plain, features, lambda a, x: a @ x, lambda a: bs.plan_spmm(a, _COLUMNS)),
    "scaled": (np.float32, scaled, features, bs.spmm, lambda a: bs.plan_spmm(a, _COLUMNS)),
    "scaled mean": (
        np.float32,
        scaled,
        features,
        lambda a, x: bs.spmm(a, x, reduce="mean"),
        lambda a: bs.plan_spmm(a, _COLUMNS, reduce="mean"),
    ),
    "maximum": (
        np.float32,
        plain,
        features,
        lambda a, x: bs.spmm(a, x, reduce="max"),
        lambda a: bs.plan_spmm(a, _COLUMNS, reduce="max"),
    ),
    "float64 values": (np.float64, scaled, lambda: features(np.float64), bs.spmm, None),
    "integers for floats": (np.int16, scaled, features, bs.spmm, lambda a: bs.plan_spmm(a, _COLUMNS)),
    "float16": (np.float32, lambda a: a.astype(np.float16), lambda: features(np.float16), bs.spmm, None),
    "exact integers": (np.int32, plain, lambda: features(np.int16), bs.spmm, None),
    "booleans": (np.bool_, plain, lambda: features(np.int16), bs.spmm, None),
    "codes": (np.float32, scaled, integers, bs.spmm, None),
    "codes, exact": (np.int8, plain, integers, bs.spmm, None),
    "codes and an offset": (np.int8, plain, codes, lambda a, x: bs.spmm(a, x, epilogue=_OFFSET), None),
    "signs": (np.float32, plain, signs, bs.bspmm, lambda a: bs.plan_bspmm(a, _COLUMNS, "BFF")),
    "signs and an epilogue": (
        np.float32,
        scaled,
        signs,
        lambda a, x: bs.bspmm(a, x, "BFF", epilogue=_RELU),
        lambda a: bs.plan_bspmm(a, _COLUMNS, "BFF", epilogue=_RELU),
    ),
    "counted signs": (np.int8, plain, signs, lambda a, x: bs.bspmm(a, x, "BBF"), None),
    "floats and an epilogue": (
        np.float32,
        scaled,
        features,
        lambda a, x: bs.bspmm(a, x, "FFF", epilogue=_RELU),
        lambda a: bs.plan_bspmm(a, _COLUMNS, "FFF", epilogue=_RELU),
    ),
    "sampled": (
        np.float32,
        scaled,
        features,
        lambda a, x: bs.sampled_spmm(a, x, 3),
        lambda a: bs.plan_sampled_spmm(a, _COLUMNS, 3),
    ),
    "sampled integers": (
        np.int8,
        plain,
        features,
        lambda a, x: bs.sampled_spmm(a, x, 3, rescale=True),
        lambda a: bs.plan_sampled_spmm(a, _COLUMNS, 3, rescale=True),
    ),
}

#: Kernels that are forced on a GPU, with options and the dtype of the values.
FORCED: dict[str, tuple[str, dict[str, Any], Any]] = {
    "windows": ("windows", {}, np.float32),
    "windows, of integers": ("windows", {}, np.int16),
    "tiles": ("tiles", {"precision": "tf32"}, np.float32),
    "csr": ("csr", {}, np.float32),
}


def changes(a: Any, host: Any, rng: Any) -> None:
    """Change some values in place, in the container and in its model on the host."""
    places = np.flatnonzero(rng.random(host.nnz) < 0.5)
    new = numbers(host.dtype, places.size, int(rng.integers(1 << 30)))
    host.data[places] = new
    if a.device == "cpu":
        a.data[places] = new
    else:
        a.data[to_device(places)] = to_device(new)


def followed(device: str, call: Call, a: Any, host: Any, before: Callable[[Any], Any], x: Any) -> None:
    """Require each call to give the result of a new matrix with the same values, whatever is kept between calls."""
    rng = np.random.default_rng(3)
    for _ in range(3):
        fresh = before(bs.TCTiledCSR(host.copy())).to_device(device)
        np.testing.assert_array_equal(to_host(call(a, x)), to_host(call(fresh, x)))
        changes(a, host, rng)


def there(x: Any, device: str) -> Any:
    if device == "cpu":
        return x
    return x.to_device(device) if isinstance(x, bs.BitTensor) else to_device(x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_products_see_values_that_were_changed(name: str, device: str) -> None:
    dtype, before, brought, call, _ = CASES[name]
    host = matrix(dtype)
    a = before(bs.TCTiledCSR(host.copy())).to_device(device)
    followed(device, call, a, host, before, there(brought(), device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[4] is not None])
def test_plans_see_values_that_were_changed(name: str, device: str) -> None:
    dtype, before, brought, _, make = CASES[name]
    assert make is not None
    host, x = matrix(dtype), there(brought(), device)
    a = before(bs.TCTiledCSR(host.copy())).to_device(device)
    plan, rng = make(a), np.random.default_rng(4)
    for _ in range(3):
        fresh = before(bs.TCTiledCSR(host.copy())).to_device(device)
        np.testing.assert_array_equal(to_host(plan(x)), to_host(make(fresh)(x)))
        changes(a, host, rng)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORCED)
def test_every_kernel_sees_values_that_were_changed(name: str) -> None:
    kernel, options, dtype = FORCED[name]
    host, x = matrix(dtype), to_device(features())
    a = scaled(bs.TCTiledCSR(host.copy())).to_device("cuda")

    def call(a: Any, x: Any) -> Any:
        return bs.spmm(a, x, kernel=kernel, **options)

    followed("cuda", call, a, host, scaled, x)


@pytest.mark.gpu
def test_a_captured_product_sees_values_that_were_changed() -> None:
    cupy = pytest.importorskip("cupy")
    host, x = matrix(np.int16), to_device(features())
    a = scaled(bs.TCTiledCSR(host.copy())).to_device("cuda")
    plan, out = bs.plan_spmm(a, _COLUMNS), cupy.empty((_ROWS, _COLUMNS), np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(2):
            plan(x, out=out)
        stream.synchronize()
        stream.begin_capture()
        plan(x, out=out)
        graph = stream.end_capture()
    for seed in (5, 6):
        host.data[:] = numbers(np.int16, host.nnz, seed)
        a.data[...] = to_device(host.data)
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
        want = bs.spmm(scaled(bs.TCTiledCSR(host.copy())).to_device("cuda"), x)
        np.testing.assert_array_equal(to_host(out), to_host(want))


@pytest.mark.parametrize("device", DEVICES)
def test_scales_cannot_be_changed(device: str) -> None:
    rows, cols = (np.linspace(low, 2, _ROWS).astype(np.float32) for low in (0.5, 1.0))
    given = [there(rows.copy(), device), there(cols.copy(), device)]
    for make in (bs.TCTiledCSR, bs.FRDC):
        a = make(there_matrix(device), pattern=True, row_scale=given[0], col_scale=given[1])
        was = to_host(a @ there(features(), device))
        given[0][...] = 0
        a.row_scale[...] = 7
        a.col_scale[...] = 7
        for one in (a, a.T.T, copy.copy(a), a.with_scales(a.row_scale, a.col_scale)):
            np.testing.assert_array_equal(to_host(one.row_scale), rows)
            np.testing.assert_array_equal(to_host(one.col_scale), cols)
        np.testing.assert_array_equal(to_host(a @ there(features(), device)), was)
        given[0][...] = there(rows, device)


def there_matrix(device: str) -> Any:
    return bs.TCTiledCSR(matrix(np.float32)).to_device(device)


@pytest.mark.parametrize("device", DEVICES)
def test_vectors_of_an_epilogue_cannot_be_changed(device: str) -> None:
    bias, x = np.ones(_COLUMNS, np.float32), there(features(), device)
    epilogue, a = bs.Epilogue(bias=bias), there_matrix(device)
    was = to_host(bs.spmm(a, x, epilogue=epilogue))
    bias[:] = 100
    np.testing.assert_array_equal(to_host(bs.spmm(a, x, epilogue=epilogue)), was)


def test_values_are_shared_with_what_they_came_from() -> None:
    host = matrix(np.float32)
    a = bs.TCTiledCSR(host)
    assert np.shares_memory(a.data, host.data) and a.csr_arrays()[2] is a.data
    host.data[:] *= 2
    np.testing.assert_array_equal(a @ features(), host @ features())
    given = np.ones(host.nnz)
    assert not np.shares_memory(a.with_values(given).data, given)
    assert np.shares_memory(a.indices, host.indices) and np.shares_memory(a.indptr, host.indptr)
    np.testing.assert_array_equal(a.data, host.data)


@pytest.mark.parametrize("make", [bs.TCTiledCSR, lambda a: bs.FRDC(a, pattern=True)])
def test_matrices_and_copies_share_nothing_with_the_container(make: Any) -> None:
    a = make(matrix(np.float32))
    dense, parts = a.toarray(), a.csr_arrays()
    mine = a.copy()
    for one in mine.csr_arrays():
        assert one is None or not any(other is not None and np.shares_memory(one, other) for other in parts)
    for csr in (a.tocsr(), a.to_scipy()):
        assert not any(np.shares_memory(csr.indices, other) for other in parts[:2])
        csr.data[:] = 0
        csr.eliminate_zeros()
    np.testing.assert_array_equal(a.toarray(), dense)
    parts[1][:] = 0
    np.testing.assert_array_equal(mine.toarray(), dense)


@settings(max_examples=40)
@given(st.data())
def test_any_sequence_of_changes_and_views(data: st.DataObject) -> None:
    """Containers that share their values must see each other's changes; those with values of their own must not."""
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.int32]))
    model = matrix(dtype, data.draw(st.integers(0, 99)))
    made: list[tuple[Any, Any]] = [(bs.TCTiledCSR(model.copy()), model)]
    x = features()
    plans = []
    for step in data.draw(st.lists(st.sampled_from(["change", "share", "own", "use", "plan"]), max_size=10)):
        a, host = made[data.draw(st.integers(0, len(made) - 1))]
        if step == "change":
            changes(a, host, np.random.default_rng(data.draw(st.integers(0, 99))))
        elif step == "share":
            twin = data.draw(st.sampled_from([copy.copy, scaled, bs.TCTiledCSR]))(a)
            if twin.row_scale is None:
                made.append((twin, host))
        elif step == "own":
            own = data.draw(st.sampled_from(["copy", "pickle", "turned", "with_values"]))
            mine = {
                "copy": lambda a=a: a.copy(),
                "pickle": lambda a=a: pickle.loads(pickle.dumps(a)),
                "turned": lambda a=a: a.T.T,
                "with_values": lambda a=a: a.with_values(a.data),
            }[own]()
            made.append((mine, host.copy()))
        elif step == "plan":
            plans.append((bs.plan_spmm(a, _COLUMNS), host))
        else:
            np.testing.assert_allclose(a @ x, host @ x, rtol=1e-4, atol=1e-4)
    for product, host in [*((a.__matmul__, host) for a, host in made), *plans]:
        np.testing.assert_allclose(product(x), host @ x, rtol=1e-4, atol=1e-4)
    for a, host in made:
        np.testing.assert_array_equal(a.toarray(), host.toarray())


# ---- frozen plans
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", [None, "csr", "windows", "tiles"])
@pytest.mark.parametrize("scales", [plain, scaled], ids=["plain", "scaled"])
def test_a_frozen_plan_goes_on_with_the_values_that_it_met(device: str, kernel: str | None, scales: Any) -> None:
    if device == "cpu" and kernel is not None:
        kernel = "csr"
    a = scales(bs.TCTiledCSR(matrix(np.float32))).to_device(device)
    x = there(features(), device)
    precision = "tf32" if kernel == "tiles" else "fp32"
    frozen = bs.plan_spmm(a, _COLUMNS, kernel=kernel, precision=precision, frozen=True)
    live = bs.plan_spmm(a, _COLUMNS, kernel=kernel, precision=precision)
    before = to_host(frozen(x))
    assert np.array_equal(before, to_host(live(x)))
    a.data[...] = there(numbers(np.float32, a.nnz, 5), device)
    after = to_host(live(x))
    assert not np.array_equal(before, after)
    assert np.array_equal(before, to_host(frozen(x)))
    # The container keeps its current values for other plans, apart from those that a frozen plan keeps.
    again = bs.plan_spmm(a, _COLUMNS, kernel=kernel, precision=precision)
    assert np.array_equal(after, to_host(again(x)))
    given = there(numbers(np.float32, a.nnz, 6), device)
    assert np.array_equal(to_host(frozen(x, given)), to_host(live(x, given)))


def test_frozen_is_true_or_false() -> None:
    with pytest.raises(bs.DTypeError, match="plan_spmm: frozen must be True or False, got 'yes'"):
        bs.plan_spmm(matrix(np.float32), 4, frozen="yes")  # type: ignore[arg-type]

"""Sums over neighbours and the steps after them in one launch on the GPU: the bits of one after the other, or in 16 bits one rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sparse_inputs import dtype_of, graphs, same
from test_gpu_bits import empty, to_device, to_host

import bitsparse as bs
from bitsparse.arrays.inside import store_of
from bitsparse.backends.after_sums import AfterSums
from bitsparse.backends.cuda.spmm import spmm as spmm_kernel
from bitsparse.ops.plan import CALLS
from bitsparse.ops.spmm.gpu import GpuProducts
from bitsparse.ops.spmm.laid import laid_sums
from bitsparse.ops.spmm.spmm import spmm_and_after

pytestmark = pytest.mark.gpu

#: Elements in front of a node's own features, and from the beginning of its row to that of the next one.
APART: dict[str, Callable[[int], tuple[int, int]]] = {
    "side by side": lambda columns: (0, columns),
    "vectors": lambda columns: (8, -(-columns // 8) * 8 + 16),
    "anywhere": lambda columns: (3, columns + 5),
}
#: Which of bias, own features, their factor and relu follow the sums.
STEPS = [
    (True, False, False, False),
    (False, True, False, False),
    (False, True, True, False),
    (False, False, False, True),
]
STEPS += [(True, True, False, True), (True, True, True, True), (True, False, False, True), (False, False, False, False)]


def operands(columns: int, scaled: tuple[bool, bool]) -> tuple[Any, Any, list[Any]]:
    """A pattern with hubs and empty rows, with factors of its rows and columns or without, features and the factors, on the GPU."""
    A, rng = graphs()["hubs"], np.random.default_rng(columns)
    scales = [
        to_device(rng.random(size).astype(np.float32)) if there else None
        for there, size in zip(scaled, A.shape, strict=True)
    ]
    x = to_device(rng.standard_normal((A.shape[1], columns)).astype(np.float32))
    return bs.TCTiledCSR(A, pattern=True).to_device("cuda").with_scales(*scales), x, scales


def wide(x: np.ndarray, apart: str) -> Any:
    """Rows that are parts of wider ones, whose other elements are NaN."""
    before, pitch = APART[apart](x.shape[1])
    whole = np.full((x.shape[0], pitch), np.nan, x.dtype)
    whole[:, before : before + x.shape[1]] = x
    return to_device(whole)[:, before : before + x.shape[1]]


def steps(
    shape: tuple[int, int], which: tuple[bool, ...], apart: str, seed: int = 0, dtype: Any = np.float32
) -> AfterSums:
    """The steps of `which`, with the numbers of a seed; own features have a dtype."""
    rng = np.random.default_rng(seed)
    bias, own, scale = (rng.standard_normal(size).astype(np.float32) for size in (shape[1], shape, 1))
    return AfterSums(
        to_device(bias) if which[0] else None,
        wide(own.astype(dtype), apart) if which[1] else None,
        to_device(scale) if which[2] else None,
        which[3],
    )


def one_by_one(sums: Any, after: AfterSums) -> np.ndarray:
    """The steps after the sums, each for itself."""
    made = sums.get()
    if after.own is not None:
        made = made + after.own.get() * (np.float32(1) if after.own_scale is None else after.own_scale.get())
    if after.bias is not None:
        made = made + after.bias.get()
    if after.relu:
        made = np.where(made <= 0, np.float32(0), made)
    return np.asarray(made)


@pytest.mark.parametrize("columns", [1, 3, 7, 32, 47, 100, 128, 130])
@pytest.mark.parametrize("scaled", [(False, False), (True, True), (True, False)])
def test_steps_after_sums_and_means(columns: int, scaled: tuple[bool, bool]) -> None:
    """Every call passes its own arrays; their rows may lie anywhere."""
    ours, x, _ = operands(columns, scaled)
    shape = (ours.shape[0], columns)
    for reduce in ("sum", "mean"):
        sums = bs.spmm(ours, x, reduce=reduce)
        for seed, (which, apart) in enumerate(
            (one, two) for one in STEPS for two in APART if one[1] or two == "vectors"
        ):
            after, out = steps(shape, which, apart, seed), empty(shape, np.float32)
            spmm_and_after(ours, x, after, reduce=reduce, precision="fp32", out=out)
            same(out.get(), one_by_one(sums, after))
    assert any(key[0] == "spmm and after" for key in store_of(ours)[CALLS])


@pytest.mark.parametrize("columns", [3, 64])
def test_nan_and_zeros_of_both_signs_after_sums(columns: int) -> None:
    ours, x, _ = operands(columns, (False, False))
    shape = (ours.shape[0], columns)
    own = np.full(shape, -0.0, np.float32)
    own[0, 1], own[3, 0], own[2] = np.nan, np.inf, -1
    x *= 0
    x[:, 2] = np.float32(np.nan)
    sums, after = bs.spmm(ours, x), AfterSums(own=to_device(own), relu=True)
    assert np.isnan(sums.get()[0, 2])
    out = empty(shape, np.float32)
    spmm_and_after(ours, x, after, reduce="sum", precision="fp32", out=out)
    same(out.get(), one_by_one(sums, after))
    assert not np.signbit(out.get()[4, 0])


#: Half the distance from 1 to the next number, and the largest rounding of numbers near 0.
ROUNDING = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}


def check_rounded_once(got: Any, after: AfterSums, sums: np.ndarray, sizes: np.ndarray, lengths: np.ndarray) -> None:
    """Within one rounding to 16 bits of the exact steps after exact `sums`, beside the roundings to float32 of terms of these `sizes`."""
    exact, far = sums, sizes * (lengths[:, None] + 8)
    if after.own is not None:
        own = to_host(after.own).astype(np.float64) * (
            1 if after.own_scale is None else float(after.own_scale.get()[0])
        )
        exact, far = exact + own, far + 4 * (sizes + np.abs(own))
    if after.bias is not None:
        exact, far = exact + after.bias.get(), far + 4 * (sizes + np.abs(exact) + np.abs(after.bias.get()))
    if after.relu:
        exact = np.maximum(exact, 0)
    unit, least = ROUNDING[got.dtype.name]
    far = far * 2.0**-24
    made = to_host(got).astype(np.float64)
    assert np.all(np.abs(made - exact) <= far + unit * (np.abs(exact) + far) + least)


def empty_half(shape: tuple[int, int], dtype: Any) -> Any:
    """A poisoned array of 16 bits, which not every CuPy can allocate as bfloat16."""
    return empty(shape, np.uint16).view(dtype)


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize(("columns", "lay"), [(3, False), (47, True), (64, False), (130, False)])
@pytest.mark.parametrize(
    ("scaled", "reduce"),
    [((False, False), "sum"), ((True, True), "sum"), ((True, False), "sum"), ((False,) * 2, "mean")],
)
def test_steps_after_sums_in_16_bits_round_once(
    dtype: str, columns: int, lay: bool, scaled: tuple[bool, bool], reduce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of whole vectors and others, also copied; hubs are summed in pieces."""
    monkeypatch.setattr(spmm_kernel, "laying_pays", lambda *_: lay)
    ours, x, scales = operands(columns, scaled)
    kind, shape, A = dtype_of(dtype), (ours.shape[0], columns), graphs()["hubs"].astype(np.float64)
    x = to_device(x.get().astype(kind))
    A.data[:] = 1
    lengths, terms = np.diff(A.indptr), to_host(x).astype(np.float64)
    each, of_columns = (1.0 if scale is None else scale.get().astype(np.float64)[:, None] for scale in scales)
    each = each / np.maximum(lengths, 1)[:, None] if reduce == "mean" else each
    terms = of_columns * terms
    sums, sizes = each * (A @ terms), each * (A @ np.abs(terms))
    for seed, (which, apart) in enumerate(zip([*STEPS, *STEPS[1:]], [*APART] * len(STEPS), strict=False)):
        after, out = steps(shape, which, apart, seed, kind), empty_half(shape, kind)
        assert spmm_and_after(ours, x, after, reduce=reduce, precision="fp32", out=out)
        check_rounded_once(out, after, sums, sizes, lengths)


@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_nan_and_zeros_of_both_signs_after_sums_in_16_bits(dtype: str) -> None:
    ours, x, _ = operands(64, (False, False))
    kind, shape = dtype_of(dtype), (ours.shape[0], 64)
    own, zeros = np.full(shape, -0.0, np.float32), np.zeros(x.shape, np.float32)
    own[0, 1], own[3, 0], own[2], own[4, 5] = np.nan, np.inf, -1, 1e-30
    zeros[:, 2] = np.nan
    out, sums = empty_half(shape, kind), np.zeros(shape, np.float32)
    sums[np.diff(graphs()["hubs"].indptr) > 0, 2] = np.nan
    after = AfterSums(own=to_device(own.astype(kind)), relu=True)
    assert spmm_and_after(ours, to_device(zeros.astype(kind)), after, reduce="sum", precision="fp32", out=out)
    wide_own = own.astype(kind).astype(np.float32)
    same(to_host(out), np.where(sums + wide_own <= 0, np.float32(0), sums + wide_own).astype(kind))


@pytest.mark.parametrize("dtype", list(ROUNDING))
def test_sums_in_16_bits_of_kernels_without_steps(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix units, and arrays that no kernel takes, leave the steps to the caller; the index of tiles is made once."""
    made, make = [], GpuProducts._tiles
    monkeypatch.setattr(GpuProducts, "_tiles", lambda *given: made.append(given[0]) or make(*given))
    ours, x, _ = operands(64, (True, False))
    kind, shape = dtype_of(dtype), (ours.shape[0], 64)
    x = to_device(x.get().astype(kind))
    after = steps(shape, (True, True, True, True), "vectors", dtype=kind)
    own32 = after._replace(own=to_device(to_host(after.own).astype(np.float32)))
    cases: list[tuple[str, AfterSums]] = [("tiles", after), ("csr", own32)]
    for kernel, given in cases:
        out = empty_half(shape, kind)
        for _ in range(2):
            assert not spmm_and_after(ours, x, given, reduce="sum", precision="fp32", kernel=kernel, out=out)
            same(to_host(out), to_host(bs.spmm(ours, x, kernel=kernel)))
    assert len(made) == 1


@pytest.mark.parametrize("kernel", ["windows", "tiles"])
def test_steps_after_sums_of_kernels_without_them(kernel: str) -> None:
    """Kernels that cannot take the steps, and arrays that no kernel takes, give the same result."""
    ours, x, _ = operands(32, (True, False))
    shape, precision = (ours.shape[0], 32), "tf32" if kernel == "tiles" else "fp32"
    after = steps(shape, (True, True, True, True), "vectors")
    sums = bs.spmm(ours, x, kernel=kernel, precision=precision)
    for given in (after, after._replace(bias=after.bias.astype(np.float64))):
        out = empty(shape, np.float32)
        spmm_and_after(ours, x, given, reduce="sum", precision=precision, kernel=kernel, out=out)
        same(out.get(), one_by_one(sums, given).astype(np.float32))


@pytest.mark.parametrize("columns", [1, 7, 47, 48])
@pytest.mark.parametrize("scaled", [(False, False), (True, True), (True, False), (False, True)])
@pytest.mark.parametrize("after", [False, True])
def test_rows_that_their_maker_lays(
    columns: int, scaled: tuple[bool, bool], after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits of sums that lay the rows themselves, whatever stands behind the columns, also where the rows are parts of wider ones."""
    monkeypatch.setattr(spmm_kernel, "laying_pays", lambda *_: True)
    ours, x, scales = operands(columns, scaled)
    sums, laid = bs.spmm(ours, x), laid_sums(ours, columns, after)
    assert laid is not None
    assert (laid.columns, laid.scaled) == (-(-columns // 4) * 4, scaled[1])
    check_rows(laid, x.get() if scales[1] is None else x.get() * scales[1].get()[:, None], sums, after)


def check_rows(laid: Any, x: np.ndarray, sums: Any, after: bool) -> None:
    """Sums over rows of their own and over the left part of rows whose right part is added to sums."""
    columns, pitch = x.shape[1], -(-laid.columns // 4) * 4
    for width in (pitch, 2 * pitch, pitch):
        whole = np.full((x.shape[0], width), np.nan, np.float32)
        whole[:, :columns] = x
        rows = to_device(whole)
        for which in STEPS if after else STEPS[-1:]:
            given = steps(sums.shape, which, "vectors", width)
            if width > pitch and given.own is not None:
                rows[: sums.shape[0], pitch : pitch + columns] = given.own
                given = given._replace(own=rows[: sums.shape[0], pitch : pitch + columns])
            out = empty(sums.shape, np.float32)
            laid(rows[:, : laid.columns], out, given if after else None)
            same(out.get(), one_by_one(sums, given))


@pytest.mark.parametrize("columns", [3, 64, 128, 130])
@pytest.mark.parametrize("scaled", [(False, False), (True, False), (False, True)])
def test_parts_of_rows_that_need_no_copy(
    columns: int, scaled: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spmm_kernel, "laying_pays", lambda *_: False)
    ours, x, _ = operands(columns, scaled)
    assert laid_sums(ours, columns, True) is None
    laid = laid_sums(ours, columns, True, always=True)
    assert laid is not None
    assert (laid.columns, laid.scaled) == (columns, False)
    check_rows(laid, x.get(), bs.spmm(ours, x), True)


def test_sums_that_lay_no_rows() -> None:
    A: Any = bs.TCTiledCSR(graphs()["hubs"], pattern=True)
    assert laid_sums(A, 7) is None
    assert laid_sums(A.to_device("cuda"), 8) is None
    assert laid_sums(A.to_device("cuda"), 0) is None
    assert laid_sums(bs.TCTiledCSR(graphs()["hubs"].astype(np.float32) * 2).to_device("cuda"), 7) is None

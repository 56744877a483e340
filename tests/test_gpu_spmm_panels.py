"""Sums by panels on the GPU: against float64 within their bound, the same bits in every run, and what they refuse."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import graphs, pattern
from test_gpu_bits import empty, raw, to_device

import bitsparse as bs
from bitsparse import jit
from bitsparse.arrays.inside import store_of
from bitsparse.backends.after_sums import AfterSums
from bitsparse.backends.cuda.spmm import choice, panels, panels_build
from bitsparse.datasets import synthetic_csr
from bitsparse.errors import KernelError
from bitsparse.ops.spmm.laid import laid_sums
from bitsparse.ops.spmm.patterns import PANELS
from bitsparse.ops.spmm.spmm import spmm_and_after

pytestmark = [pytest.mark.gpu, pytest.mark.hopper]


def graph(rows: int, edges: int, kind: str = "communities") -> sp.csr_array:
    """A synthetic graph: rows of communities share neighbours, and a few rows of a power law have many."""
    indptr, indices = synthetic_csr((rows, edges), kind)
    return sp.csr_array((np.ones(indices.size, np.float32), indices, indptr), (rows, rows))


COMMUNITIES, HUBS = graph(400, 9000), graph(420, 10000, "power_law")
#: All rows have the same edges, so that each row of features is staged for all of them; and the other extreme.
FULL, ALONE = pattern([40] * 300, 40), sp.csr_array(sp.eye_array(300, dtype=np.float32))
RECTANGLES = {
    "wide": pattern([30, 0, 200, 100, *[50] * 20], 900),
    "tall": pattern([0, *np.random.default_rng(0).integers(0, 9, 700), 0, 0], 12),
}


def on_gpu(A: Any, scales: tuple[bool, bool] = (False, False)) -> tuple[Any, list[Any]]:
    """The pattern with random scales of rows and columns, and these as float64."""
    rng = np.random.default_rng(A.nnz)
    hosts = [
        rng.uniform(0.5, 2, size).astype(np.float32) if there else None
        for there, size in zip(scales, A.shape, strict=True)
    ]
    array = bs.TCTiledCSR(A, pattern=True).to_device("cuda")
    if any(scales):
        array = array.with_scales(*(None if host is None else to_device(host) for host in hosts))
    return array, [
        np.ones(n) if host is None else host.astype(np.float64) for host, n in zip(hosts, A.shape, strict=True)
    ]


def check(A: Any, columns: int, reduce: str = "sum", scales: tuple[bool, bool] = (False, False)) -> Any:
    """The plan of a product whose result lies within the bound, with the same bits twice, and in `out` as in a new array."""
    ours, (of_rows, of_columns) = on_gpu(A, scales)
    x = np.random.default_rng(columns).standard_normal((A.shape[1], columns)).astype(np.float32)
    plan = bs.plan_spmm(ours, columns, reduce=reduce, kernel="panels")
    assert plan.kernel == "panels" or 0 in (A.nnz, columns)
    degrees = np.diff(A.indptr)
    if reduce == "mean":
        of_rows = of_rows / np.maximum(degrees, 1)
    there, out = to_device(x), empty((A.shape[0], columns), np.float32)
    assert plan(there, out=out) is out
    again = plan(there)
    assert raw(out).get().tobytes() == raw(again).get().tobytes()
    wide = A.astype(np.float64)
    want = of_rows[:, None] * (wide @ (of_columns[:, None] * x))
    sizes = of_rows[:, None] * (wide @ (of_columns[:, None] * np.abs(x)))
    assert (np.abs(out.get() - want) <= (degrees[:, None] + 4) * 2.0**-24 * sizes).all()
    return plan


@pytest.mark.parametrize("columns", [1, 3, 16, 20, 41, 48, 64, 100, 128, 130, 300])
def test_any_number_of_columns(columns: int) -> None:
    for A in (COMMUNITIES, HUBS):
        check(A, columns)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("scales", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("columns", [41, 64])
def test_means_and_scales(reduce: str, scales: tuple[bool, bool], columns: int) -> None:
    for A in (COMMUNITIES, HUBS):
        check(A, columns, reduce, scales)
    check(HUBS, columns, "mean")


def test_all_or_no_edges_are_staged() -> None:
    for columns in (41, 128):
        assert "100% of the edges staged, 256" in check(pattern([40] * 256, 40), columns).explain()
        assert "100% of the edges staged" in check(FULL, columns).explain()
        assert "0% of the edges staged, 0.00" in check(ALONE, columns).explain()


@pytest.mark.parametrize("name", [*graphs(), *RECTANGLES])
def test_difficult_shapes(name: str) -> None:
    A = (graphs() | RECTANGLES)[name]
    for columns in (0, 5, 12) if name == "hubs" else (0, 5, 32):
        check(A, columns, "mean", (True, True))


@pytest.mark.parametrize("hubs", [0, 60, 1 << 30])
@pytest.mark.parametrize("stage_rows", [2, 37])
def test_stages_pieces_and_orders_of_rows(hubs: int, stage_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of chunks of any length, and panels in pieces; panels are taken even where they would not pay."""
    monkeypatch.setattr(panels_build, "_HUBS", (hubs,))
    monkeypatch.setattr(panels_build.Shape, "clocks_alone", lambda _, edges: edges * 1e9)
    of = panels_build.Shape.of
    monkeypatch.setattr(panels_build.Shape, "of", lambda *sizes: of(*sizes)._replace(stage_rows=stage_rows))
    for A, columns in itertools.product((COMMUNITIES, HUBS), (41, 128)):
        check(A, columns, "sum", (True, True))


def test_the_index() -> None:
    """Panels with many edges are cut into pieces, every other edge is left, and plans share the index of a width."""
    ours, _ = on_gpu(HUBS)
    plan = bs.plan_spmm(ours, 41, kernel="panels")
    index = PANELS.get(store_of(ours), 11)
    assert isinstance(index, panels.PanelIndex)
    assert index.pieces.shape[0] > 0
    assert index.slots >= 512
    assert round((1 - index.share) * HUBS.nnz) == index.left.nnz
    assert f"{index.share:.0%} of the edges staged, {index.reuse:.2f} of them to a staged row" in plan.explain()
    assert plan.nbytes >= index.nbytes >= sum(array.nbytes for array in index.arrays.values())
    bs.plan_spmm(ours, 44, reduce="mean", kernel="panels")
    assert PANELS.get(store_of(ours), 11) is index
    assert bs.plan_spmm(ours, 41).kernel != "panels"


def test_the_cheaper_order_of_rows() -> None:
    """Rows of a few columns that only hubs share are staged together if all rows are ordered by their number of edges."""
    rng = np.random.default_rng(3)
    rows = np.where(rng.permutation(2048) < 256, 60, 2)
    A = pattern([int(n) for n in rows], 3000)
    shape = panels_build.Shape.of(128, 6, 232_448)
    pattern_ = to_device(A.indptr), to_device(A.indices), A.shape, panels_build._mixed(3000), shape
    ordered, as_they_are = (panels_build._runs(*pattern_, hubs).saved for hubs in (0, 1000))
    assert ordered > as_they_are


def test_indices_of_64_bits() -> None:
    ours: Any = bs.TCTiledCSR.from_arrays(
        to_device(HUBS.indptr.astype(np.int64)), to_device(HUBS.indices.astype(np.int64)), HUBS.shape
    )
    x = to_device(np.random.default_rng(0).standard_normal((HUBS.shape[1], 24)).astype(np.float32))
    narrow = bs.spmm(on_gpu(HUBS)[0], x, kernel="panels")
    assert bs.spmm(ours, x, kernel="panels").get().tobytes() == narrow.get().tobytes()


@pytest.mark.parametrize("columns", [40, 41])
def test_arrays_of_any_layout(columns: int) -> None:
    """Features that are transposed, have gaps or lie at odd addresses, of heads or one column, and results at odd addresses."""
    import cupy

    ours, _ = on_gpu(COMMUNITIES)
    x = np.random.default_rng(1).standard_normal((400, columns)).astype(np.float32)
    want = bs.spmm(ours, to_device(x), kernel="panels")
    for view in (np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x[::-1].copy()[::-1]):
        assert bs.spmm(ours, to_device(view), kernel="panels").get().tobytes() == want.get().tobytes()
    room, out = cupy.empty(x.size + 1, np.float32), cupy.full(x.size + 9, 7.5, np.float32)
    room[1:] = to_device(x).ravel()
    into = out[1 : 1 + x.size].reshape(x.shape)
    bs.spmm(ours, room[1:].reshape(x.shape), kernel="panels", out=into)
    assert into.get().tobytes() == want.get().tobytes()
    assert float(out[0]) == 7.5
    assert (out[1 + x.size :].get() == 7.5).all()
    heads = to_device(x[:, :40].reshape(400, 4, 10).copy())
    flat = bs.spmm(ours, heads.reshape(400, 40), kernel="panels")
    assert bs.spmm(ours, heads, kernel="panels").reshape(400, 40).get().tobytes() == flat.get().tobytes()
    assert bs.spmm(ours, to_device(x[:, 0].copy()), kernel="panels").shape == (400,)


def test_numbers_that_are_not_finite_stay_in_their_rows() -> None:
    ours, _ = on_gpu(COMMUNITIES)
    x = np.ones((400, 41), np.float32)
    x[7, 3], x[8, 5] = np.inf, np.nan
    got = bs.spmm(ours, to_device(x), kernel="panels").get()
    with np.errstate(invalid="ignore"):
        want = COMMUNITIES @ x
    assert np.array_equal(got, want, equal_nan=True)


@pytest.mark.parametrize("columns", [41, 64])
@pytest.mark.parametrize("scales", [(False, False), (True, True)])
def test_steps_after_sums(columns: int, scales: tuple[bool, bool]) -> None:
    ours, _ = on_gpu(HUBS, scales)
    rng, (rows, cols) = np.random.default_rng(2), HUBS.shape
    x, bias, own, factor = (
        to_device(rng.standard_normal(n).astype(np.float32)) for n in ((cols, columns), columns, (rows, columns), 1)
    )
    sums = bs.spmm(ours, x, kernel="panels")
    for after in (AfterSums(bias), AfterSums(bias, own, factor, True), AfterSums(own=own), AfterSums(relu=True)):
        want, out = sums.copy(), empty(sums.shape, np.float32)
        after.take(want)
        spmm_and_after(ours, x, after, reduce="sum", precision="fp32", kernel="panels", out=out)
        assert np.allclose(out.get(), want.get(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("columns", [41, 64])
@pytest.mark.parametrize("scales", [(False, False), (True, True)])
def test_rows_that_their_maker_lays(columns: int, scales: tuple[bool, bool]) -> None:
    ours, (_, of_columns) = on_gpu(HUBS, scales)
    x = np.random.default_rng(4).standard_normal((HUBS.shape[1], columns)).astype(np.float32)
    laid = laid_sums(ours, columns, kernel="panels")
    if columns == 64 and not scales[1]:
        assert laid is None
    laid = laid_sums(ours, columns, kernel="panels", always=True)
    assert laid is not None
    assert (laid.columns, laid.scaled) == (-(-columns // 4) * 4, scales[1])
    for width in (laid.columns, laid.columns + 12):
        rows = np.full((HUBS.shape[1], width), np.nan, np.float32)
        rows[:, :columns] = x * of_columns.astype(np.float32)[:, None]
        out = empty((HUBS.shape[0], columns), np.float32)
        laid(to_device(rows)[:, : laid.columns], out)
        assert out.get().tobytes() == bs.spmm(ours, to_device(x), kernel="panels").get().tobytes()


@pytest.mark.parametrize("columns", [41, 64])
def test_streams_and_captures(columns: int) -> None:
    """Streams have their own memory for pieces and copies; a captured product runs again on new features."""
    import cupy

    ours, _ = on_gpu(HUBS, (False, columns == 41))
    rng = np.random.default_rng(5)
    many = [to_device(rng.standard_normal((HUBS.shape[1], columns)).astype(np.float32)) for _ in range(3)]
    plan = bs.plan_spmm(ours, columns, kernel="panels")
    want = [plan(x).get() for x in many]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in many]
    cupy.cuda.get_current_stream().synchronize()
    outs = []
    for stream, x in zip(streams, many, strict=True):
        with stream:
            outs.append(plan(x))
    for stream, out, right in zip(streams, outs, want, strict=True):
        stream.synchronize()
        assert out.get().tobytes() == right.tobytes()
    with streams[0]:
        x, out = many[0].copy(), empty(want[0].shape, np.float32)
        plan(x, out=out)
        streams[0].synchronize()
        streams[0].begin_capture()
        plan(x, out=out)
        captured = streams[0].end_capture()
        for other, right in zip(many, want, strict=True):
            x[...] = other
            out.fill(np.nan)
            captured.launch(streams[0])
            streams[0].synchronize()
            assert out.get().tobytes() == right.tobytes()


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = on_gpu(COMMUNITIES)
    weighted: Any = bs.TCTiledCSR(COMMUNITIES * 2).to_device("cuda")
    x = to_device(np.ones((400, 8), np.float32))
    for call, what in (
        (lambda: bs.plan_spmm(ours, 8, dtype=np.float16, kernel="panels"), "features of float32, not float16"),
        (lambda: bs.plan_spmm(ours, 8, dtype=np.int32, kernel="panels"), "features of float32, not int32"),
        (lambda: bs.plan_spmm(ours, 8, reduce="max", kernel="panels"), "reduce='sum' and 'mean', not 'max'"),
        (lambda: bs.plan_spmm(weighted, 8, kernel="panels"), "edges without values, not float32 values"),
    ):
        with pytest.raises(KernelError, match=f"plan_spmm: kernel 'panels' .* panels take {what}; pass kernel=None"):
            call()
    plan, out = bs.plan_spmm(ours, 8, kernel="panels"), empty((400, 8), np.float64)
    before = out.get().tobytes()
    with pytest.raises(KernelError, match="float32, not float64"):
        plan(x.astype(np.float64), out=out)
    assert out.get().tobytes() == before
    with pytest.raises(KernelError, match="edges without values"):
        plan(x, values=to_device(np.ones(COMMUNITIES.nnz, np.float32)))
    bits = bs.quantize(x, 4, granularity="tensor")
    with pytest.raises(KernelError, match="panels"):
        bs.spmm(ours, bits.with_affine(), kernel="panels")
    assert "31 bits" in str(choice.panels_refuse(choice.Kind(np.float32, 8), (1 << 31, 5), 9))
    assert "31 bits" in str(choice.panels_refuse(choice.Kind(np.float32, 8), (5, 5), 1 << 31))
    older = jit.capability()._replace(name="A100", major=8, minor=0)
    monkeypatch.setattr(jit, "capability", lambda *_: older)
    assert choice.panels_refuse(choice.Kind(np.float32, 8), (5, 5), 9) == (
        "panels need a GPU of compute capability 9.0, but A100 has 8.0"
    )


def test_an_epilogue_follows_the_sums() -> None:
    ours, _ = on_gpu(COMMUNITIES)
    x = to_device(np.random.default_rng(6).standard_normal((400, 32)).astype(np.float32))
    got = bs.spmm(ours, x, kernel="panels", epilogue=bs.Epilogue(activation="relu"))
    assert np.array_equal(got.get(), np.maximum(bs.spmm(ours, x, kernel="panels").get(), 0))

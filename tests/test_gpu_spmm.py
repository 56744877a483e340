"""Sparse products of the CUDA backend against the host's and the reference's: every kind of number, pattern, width and tuning."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from sparse_inputs import FLOATS, INTEGERS, dtype_of, features, graphs, pattern, same

from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.csr.units import group_lanes
from bitsparse.backends.host.spmm import spmm as host_spmm
from bitsparse.backends.params import Pattern
from bitsparse.errors import KernelError

pytestmark = pytest.mark.gpu

GRAPHS = graphs()
REDUCES = ["sum", "mean", "max", "min"]
#: Rounding of one step of the sums, and of the result.
UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def to_device(array: Any) -> Any:
    import cupy

    if array is None:
        return None
    if array.dtype.name == "bfloat16":
        return cupy.asarray(array.view(np.uint16)).view(array.dtype)
    return cupy.asarray(array)


def to_host(array: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return array.view(np.uint16).get().view(array.dtype)
    return array.get()


def close(got: np.ndarray, want: np.ndarray, sizes: np.ndarray, lengths: np.ndarray, acc: np.dtype) -> None:
    """Within the bound of sums taken in any order: `sizes` are the sums of the absolute values of the terms."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if got.dtype.kind in "biu":
        assert np.array_equal(got, want)
        return
    unit, result = UNITS[acc.name], UNITS[got.dtype.name]
    bound = (
        sizes * (2 * lengths[:, None] + 8) * unit
        + np.abs(want.astype(np.float64)) * 2 * result
        + 1e-7 * (result > 1e-4)
    )
    nan = np.isnan(want.astype(np.float64))
    assert np.array_equal(np.isnan(got.astype(np.float64)), nan)
    with np.errstate(invalid="ignore"):
        far = ~(np.abs(got.astype(np.float64) - want.astype(np.float64)) <= bound) & ~nan & (got != want)
    assert not far.any(), f"{int(far.sum())} of {far.size} are too far, the first at {np.argwhere(far)[0]}"


def pattern_of(graph: Any) -> Pattern:
    """The pattern as the host takes it."""
    return Pattern(graph.indptr, graph.indices, graph.shape)


def check(graph: Any, x: np.ndarray, index: str = "int32", direct: bool = False, **options: Any) -> np.ndarray:
    """The GPU's result, into a poisoned array, after it has been compared with the host's."""
    import cupy

    from bitsparse.backends.cuda.spmm import spmm as cuda_spmm

    device = {name: options.pop(name) for name in ("schedule", "tuning", "lay") if name in options}
    indptr = graph.indptr.astype(index)
    indices = None if direct else graph.indices.astype(index)
    shape = (graph.shape[0], graph.nnz) if direct else graph.shape
    edges = Pattern(indptr, indices, shape, graph.nnz)
    host = {"acc_dtype": "float32", **options}
    want = host_spmm.spmm(edges, x, **host)
    arrays = {name: to_device(options[name]) for name in ("values", "row_scale", "col_scale") if name in options}
    out = cupy.empty(want.shape, np.uint16 if want.dtype.name == "bfloat16" else want.dtype)
    out.view(np.uint8).fill(0xA5)
    out = out.view(want.dtype)
    schedule = device.pop("schedule", None) or Schedule(to_device(indptr), to_device(indices), shape, graph.nnz)
    result = cuda_spmm.spmm(schedule, to_device(x), **(host | arrays | device), out=out)
    assert result is out
    got = to_host(out)
    acc, floating = np.dtype(host["acc_dtype"]), {**host}
    if options.get("reduce") in ("max", "min") or acc.kind == "i":
        same(got, want)
        return got
    for name in ("values", "row_scale", "col_scale"):
        if name in floating:
            floating[name] = np.abs(floating[name]).astype(np.float64 if name == "values" else np.float32)
    with np.errstate(invalid="ignore"):
        floating["acc_dtype"] = "float64"
        sizes = host_spmm.spmm(edges, np.abs(x.astype(np.float64)), **floating)
    close(got, want, np.nan_to_num(sizes, nan=0.0, posinf=0.0), np.diff(graph.indptr), acc)
    return got


def factors(rng: np.random.Generator, graph: Any, acc: np.dtype, heads: int, kind: str) -> dict[str, np.ndarray]:
    """Values and scales of one kind: none, values alone, values per head, scales alone, everything."""
    given = {}
    if kind in ("values", "everything"):
        given["values"] = rng.integers(-2, 3, graph.nnz).astype(acc)
    if kind == "heads":
        given["values"] = rng.integers(-2, 3, (graph.nnz, heads)).astype(acc)
    if "values" in given and acc.kind == "f":
        given["values"] = given["values"] * acc.type(0.37)
    if kind in ("scales", "everything") and acc.kind == "f":
        given["row_scale"] = rng.standard_normal(graph.shape[0]).astype(np.float32)
        given["col_scale"] = rng.standard_normal(graph.shape[1]).astype(np.float32)
    return given


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_weight_and_reduction(name: str, reduce: str) -> None:
    graph = GRAPHS[name]
    rng = np.random.default_rng(4)
    for kind, (heads, width) in itertools.product(
        ("none", "values", "heads", "scales", "everything"), ((1, 20), (3, 8))
    ):
        x = features(rng, (graph.shape[1], heads * width), np.dtype(np.float32))
        check(graph, x, heads=heads, reduce=reduce, **factors(rng, graph, np.dtype(np.float32), heads, kind))


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 7, 16, 20, 32, 64, 100, 128, 160, 256, 602])
def test_every_width(columns: int) -> None:
    rng = np.random.default_rng(columns)
    for graph in (GRAPHS["square"], GRAPHS["hubs"]):
        for name in ("float32", "float16"):
            x = features(rng, (graph.shape[1], columns), dtype_of(name))
            check(graph, x)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("reduce", REDUCES)
def test_every_float(name: str, reduce: str) -> None:
    rng = np.random.default_rng(7)
    acc = np.dtype("float64" if name == "float64" else "float32")
    graph = GRAPHS["square"]
    for columns, kind in itertools.product((5, 24), ("none", "values", "everything")):
        x = features(rng, (graph.shape[1], columns), dtype_of(name))
        check(graph, x, acc_dtype=acc, reduce=reduce, **factors(rng, graph, acc, 1, kind))
    check(GRAPHS["hubs"], features(rng, (2600, 8), dtype_of(name)), acc_dtype=acc, reduce=reduce)


@pytest.mark.parametrize("name", INTEGERS)
def test_every_integer_is_exact(name: str) -> None:
    rng = np.random.default_rng(8)
    dtype = dtype_of(name)
    for acc in ("int32", "int64", "float32", "float64") if dtype.itemsize <= 2 else ("int64", "float64"):
        for graph, columns in ((GRAPHS["square"], 24), (GRAPHS["hubs"], 3)):
            x = features(rng, (graph.shape[1], columns), dtype)
            if dtype.kind in "iu":
                x //= dtype.type(max(1, np.iinfo(dtype).max // 1000))
            for reduce, kind in (("sum", "none"), ("sum", "values"), ("mean", "none"), ("max", "values")):
                check(graph, x, acc_dtype=acc, reduce=reduce, **factors(rng, graph, np.dtype(acc), 1, kind))


def test_large_indices() -> None:
    rng = np.random.default_rng(9)
    for name, kind in itertools.product(("square", "hubs", "no edges", "no rows"), ("none", "everything")):
        graph = GRAPHS[name]
        x = features(rng, (graph.shape[1], 32), np.dtype(np.float32))
        check(graph, x, "int64", **factors(rng, graph, np.dtype(np.float32), 1, kind))


def test_edges_in_place_of_columns() -> None:
    rng = np.random.default_rng(10)
    for name, reduce, index in itertools.product(("square", "hubs", "no edges"), REDUCES, ("int32", "int64")):
        graph = GRAPHS[name]
        x = features(rng, (graph.nnz, 12), np.dtype(np.float32))
        check(graph, x, index, direct=True, reduce=reduce)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_propagate(value: float) -> None:
    rng = np.random.default_rng(6)
    for name, reduce in itertools.product(("float32", "bfloat16", "float16"), REDUCES):
        graph = GRAPHS["hubs"]
        x = features(rng, (graph.shape[1], 20), dtype_of(name))
        x[rng.integers(0, graph.shape[1], 40), rng.integers(0, 20, 40)] = value
        check(graph, x, reduce=reduce)


@pytest.mark.parametrize("bytes_", [4, 8, 16])
@pytest.mark.parametrize("unroll", [4, 8])
def test_every_tuning(bytes_: int, unroll: int) -> None:
    from bitsparse.backends.cuda.spmm.spmm import Tuning

    rng = np.random.default_rng(11)
    graph = pattern([*rng.integers(0, 12, 60), 0, 0, 33, 100, 0, 500, *rng.integers(0, 3, 40)], 700, 1)
    x = features(rng, (700, 48), np.dtype(np.float32))
    values = rng.standard_normal(graph.nnz).astype(np.float32)
    kinds = ((1, 1, 128, 8, 32), (4, 2, 64, 12, 64), (32, 1, 32, 100, 416), (8, 3, 96, 64, 32), (16, 2, 128, 4, 4))
    for lanes, vectors, threads, span, longest in kinds:
        tuning = Tuning(bytes_, lanes, vectors, unroll, None, threads, span, longest)
        check(graph, x, tuning=tuning)
        check(graph, x, tuning=tuning, values=values)


def test_the_same_bits_every_time_and_in_a_graph() -> None:
    import cupy

    from bitsparse.backends.cuda.spmm.spmm import Spmm

    rng = np.random.default_rng(12)
    graph = GRAPHS["hubs"]
    indptr, indices = to_device(graph.indptr), to_device(graph.indices)
    x = to_device(features(rng, (graph.shape[1], 64), np.dtype(np.float32)))
    values = to_device(rng.standard_normal(graph.nnz).astype(np.float32))
    product = Spmm(
        Schedule(indptr, indices, graph.shape, graph.nnz),
        columns=64,
        x_dtype="float32",
        acc_dtype="float32",
        weights="edge",
    )
    want = product(x, values).get()
    assert product.cut.pieces > 0
    out = cupy.empty(product.shape, product.dtype)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        product(x, values, out)
        stream.synchronize()
        out.fill(0)
        stream.begin_capture()
        product(x, values, out)
        captured = stream.end_capture()
        for _ in range(2):
            captured.launch(stream)
        stream.synchronize()
    assert out.get().tobytes() == want.tobytes()
    assert product(x, values).get().tobytes() == want.tobytes()


def test_scales_are_folded_into_edges() -> None:
    from bitsparse.backends.cuda.spmm.spmm import Spmm

    rng = np.random.default_rng(13)
    graph = GRAPHS["square"]
    scales = factors(rng, graph, np.dtype(np.float32), 1, "scales")
    x = features(rng, (graph.shape[1], 40), np.dtype(np.float32))
    given = {name: to_device(scale) for name, scale in scales.items()}
    schedule = Schedule(to_device(graph.indptr), to_device(graph.indices), graph.shape, graph.nnz)
    apart, folded, both = (
        Spmm(schedule, columns=40, x_dtype="float32", acc_dtype="float32", fold=fold, **some)(to_device(x)).get()
        for fold, some in (
            (False, {"col_scale": given["col_scale"]}),
            (True, {"col_scale": given["col_scale"]}),
            (True, given),
        )
    )
    assert apart.tobytes() == folded.tobytes()
    want = check(graph, x, **scales)
    sizes = host_spmm.spmm(pattern_of(graph), np.abs(x).astype(np.float64), acc_dtype="float64")
    largest = max(np.abs(scale).max() for scale in scales.values()) ** 2
    close(both, want, sizes * largest, np.diff(graph.indptr), np.dtype(np.float32))


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64", "int8", "uint16", "int64"])
def test_rows_that_are_laid_out_as_whole_vectors(name: str, reduce: str) -> None:
    rng, dtype = np.random.default_rng(21), dtype_of(name)
    acc = np.dtype("int64" if dtype.kind in "biu" else "float64" if name == "float64" else "float32")
    for graph, columns in itertools.product((GRAPHS["square"], GRAPHS["hubs"]), (1, 3, 41, 64)):
        x = features(rng, (graph.shape[1], columns), dtype)
        for kind in ("none", "values", "everything"):
            check(graph, x, acc_dtype=acc, reduce=reduce, lay=True, **factors(rng, graph, acc, 1, kind))
    graph = GRAPHS["square"]
    for width in (3, 16):  # heads of other than whole vectors stay as they are
        x = features(rng, (graph.shape[1], 3 * width), dtype)
        check(graph, x, acc_dtype=acc, reduce=reduce, lay=True, heads=3, **factors(rng, graph, acc, 3, "heads"))


@pytest.mark.parametrize("columns", [40, 41])
@pytest.mark.parametrize("shift", [0, 1])
def test_scales_of_columns_are_taken_while_rows_are_laid_out(columns: int, shift: int) -> None:
    import cupy

    from bitsparse.backends.cuda.spmm.spmm import Spmm

    rng = np.random.default_rng(22)
    for graph, name, reduce in itertools.product((GRAPHS["square"], GRAPHS["hubs"]), ("float32", "float64"), REDUCES):
        dtype = np.dtype(name)
        scales = factors(rng, graph, dtype, 1, "scales")
        x = features(rng, (graph.shape[1], columns), dtype)
        room = cupy.empty(x.size + shift, dtype)
        room[shift:] = to_device(x).ravel()
        out = cupy.full(graph.shape[0] * columns + shift + 8, 7.5, dtype)
        schedule = Schedule(to_device(graph.indptr), to_device(graph.indices), graph.shape, graph.nnz)
        kind = {"columns": columns, "x_dtype": dtype, "acc_dtype": dtype, "reduce": reduce, "lay": True}
        given = {key: to_device(scale) for key, scale in scales.items()}
        product = Spmm(schedule, alignment=dtype.itemsize if shift else 16, **kind, **given)
        into = out[shift : shift + graph.shape[0] * columns].reshape(-1, columns)
        product(room[shift:].reshape(x.shape), None, into)
        want = host_spmm.spmm(pattern_of(graph), x, acc_dtype=name, reduce=reduce, **scales)
        sizes_of = {key: np.abs(scale) for key, scale in scales.items()}
        sizes = host_spmm.spmm(pattern_of(graph), np.abs(x), acc_dtype=name, **sizes_of)
        close(into.get(), want, sizes, np.diff(graph.indptr), dtype)
        assert (out[:shift] == 7.5).all() and (out[shift + graph.shape[0] * columns :] == 7.5).all()


def test_unaligned_arrays() -> None:
    import cupy

    from bitsparse.backends.cuda.spmm import spmm as cuda_spmm

    rng = np.random.default_rng(14)
    graph = GRAPHS["square"]
    for name, shift in itertools.product(("float32", "float16"), (1, 2)):
        x = features(rng, (graph.shape[1], 32), dtype_of(name))
        room = cupy.empty(x.size + shift, x.dtype)
        room[shift:] = to_device(x).ravel()
        indices = cupy.empty(graph.nnz + shift, np.int32)
        indices[shift:] = to_device(graph.indices)
        out = cupy.empty(graph.shape[0] * 32 + shift, x.dtype)
        schedule = Schedule(to_device(graph.indptr), indices[shift:], graph.shape, graph.nnz)
        given, room_for = room[shift:].reshape(x.shape), out[shift:].reshape(-1, 32)
        got = cuda_spmm.spmm(schedule, given, acc_dtype="float32", out=room_for)
        want = host_spmm.spmm(pattern_of(graph), x, acc_dtype="float32")
        assert np.allclose(got.get(), want, atol=1e-3)


def test_longest_row() -> None:
    from bitsparse.backends.cuda.spmm.spmm import longest_row

    for graph in GRAPHS.values():
        assert longest_row(to_device(graph.indptr), graph.nnz) == host_spmm.longest_row(graph.indptr, graph.nnz)
    for wrong in ([1, 2], [0, 3, 2], [0, 1]):
        with pytest.raises(ValueError, match="indptr must start at 0"):
            longest_row(to_device(np.array(wrong)), 2)


def test_strange_sums_are_refused() -> None:
    from bitsparse.backends.cuda.spmm.spmm import spmm

    graph = GRAPHS["one"]
    schedule = Schedule(to_device(graph.indptr), to_device(graph.indices), graph.shape, 1)
    with pytest.raises(KernelError, match="float32"):
        spmm(schedule, to_device(np.ones((1, 1), np.float32)), acc_dtype="int32")


@pytest.mark.parametrize("lanes", [1, 4, 16, 32])
def test_rows_that_warps_take(lanes: int) -> None:
    from bitsparse.backends.cuda.spmm.spmm import Tuning

    rng = np.random.default_rng(21)
    for name, limit, longest in (("hubs", 8, 32), ("square", 5, 64), ("wide", 0, 2048), ("one", 0, 4)):
        graph = GRAPHS[name]
        for index, reduce, dtype in (
            ("int32", "sum", "float32"),
            ("int64", "mean", "float32"),
            ("int32", "max", "float32"),
            ("int32", "sum", "int8"),
        ):
            acc = "int32" if dtype == "int8" else "float32"
            x = features(rng, (graph.shape[1], 40), np.dtype(dtype))
            values = rng.integers(-3, 4, graph.nnz).astype(acc)
            tuning = Tuning(8 if dtype == "int8" else 16, lanes, 1, 8, None, 64, 16, longest, limit)
            check(graph, x, index, acc_dtype=acc, reduce=reduce, values=values, tuning=tuning)
            check(graph, x, index, acc_dtype=acc, reduce=reduce, tuning=tuning)


def test_features_beyond_the_l2_are_summed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    import bitsparse as bs
    from bitsparse import jit
    from bitsparse.backends.cuda.spmm.spmm import Spmm

    small = jit.capability()._replace(l2_bytes=60 * 512 - 1)
    monkeypatch.setattr(jit, "capability", lambda: small)
    rng = np.random.default_rng(22)
    graph = pattern([0, *rng.integers(40, 60, 30), 25], 60)
    schedule = Schedule(to_device(graph.indptr), to_device(graph.indices), graph.shape, graph.nnz)

    def lanes(columns: int, weights: str = "none", dtype: str = "float32", of: Schedule = schedule) -> int:
        return Spmm(of, columns=columns, x_dtype=dtype, acc_dtype="float32", weights=weights).tuning.lanes

    assert [lanes(128), lanes(128, "edge"), lanes(256, dtype="float16")] == [8, 16, 16]
    # What the L2 holds, rows that are no whole slices, and patterns of few edges a row are taken as they are.
    assert [lanes(124), lanes(144)] == [32, group_lanes(36)]
    few = pattern([20] * 40, 60)
    assert lanes(128, of=Schedule(to_device(few.indptr), to_device(few.indices), few.shape, few.nnz)) == 32
    for dtype, columns in (("float32", 128), ("float32", 160), ("float16", 256)):
        x = features(rng, (60, columns), np.dtype(dtype))
        for reduce in REDUCES:
            check(graph, x, reduce=reduce)
            check(graph, x, reduce=reduce, values=rng.standard_normal(graph.nnz).astype(np.float32))
    # What stands behind the sums goes slice by slice.
    a, x = bs.FRDC(graph), rng.standard_normal((60, 128)).astype(np.float32)
    finish = bs.Epilogue(bias=rng.standard_normal(128).astype(np.float32), activation="relu")
    want = bs.spmm(a, x, epilogue=finish)
    got = bs.spmm(a.to_device("cuda"), to_device(x), epilogue=finish)
    assert np.abs(to_host(got) - want).max() <= 1e-4
    coarse = np.round(x * 8)
    signs = bs.bspmm(a.to_device("cuda"), to_device(coarse), "FBB")
    assert np.array_equal(signs.toarray().get(), bs.bspmm(a, coarse, "FBB").toarray())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("width", "lanes", "unroll", "columns"), [(16, 8, 8, 64), (8, 4, 4, 16), (2, 32, 8, 33)])
def test_values_of_sixteen_bits(width: int, lanes: int, unroll: int, columns: int, dtype: str) -> None:
    """Also with numbers that are not finite, which must not reach other rows."""
    from bitsparse.backends.cuda.spmm.spmm import Spmm, Tuning

    rng = np.random.default_rng(22)
    kind = dtype_of(dtype)
    for name, limit, longest in (("hubs", 8, 512), ("square", 3, 64), ("wide", 0, 2048)):
        graph = GRAPHS[name]
        for weighted, finite, reduce in ((True, True, "sum"), (True, False, "mean"), (False, False, "sum")):
            x = features(rng, (graph.shape[1], columns), kind)
            values = (rng.random(graph.nnz) + 0.5).astype(kind) if weighted else None
            if not finite:
                x[3, 1], x[7, columns - 1], x[11, 0] = np.inf, np.nan, -np.inf
                if values is not None:
                    values[5::40] = np.inf
            host = {"acc_dtype": "float32", "reduce": reduce}
            wide = None if values is None else values.astype(np.float32)
            want = host_spmm.spmm(pattern_of(graph), x, values=wide, **host)
            with np.errstate(invalid="ignore"):
                sizes = host_spmm.spmm(
                    pattern_of(graph),
                    np.abs(x.astype(np.float64)),
                    values=None if values is None else values.astype(np.float64),
                    **(host | {"acc_dtype": "float64"}),
                )
            product = Spmm(
                Schedule(to_device(graph.indptr), to_device(graph.indices), graph.shape, graph.nnz),
                columns=columns,
                x_dtype=kind,
                acc_dtype="float32",
                weights="edge" if weighted else "none",
                value_dtype=kind if weighted else None,
                reduce=reduce,
                tuning=Tuning(width, lanes, 1, unroll, None, 64, 16, longest, limit),
            )
            out = to_device(np.full(want.shape, 0xA5A5, np.uint16)).view(kind)
            for _ in range(2):
                product(to_device(x), to_device(values), out)
            close(
                to_host(out),
                want,
                np.nan_to_num(sizes, nan=0.0, posinf=0.0),
                np.diff(graph.indptr),
                np.dtype(np.float32),
            )


@pytest.mark.parametrize(("columns", "acc"), [(1, "float32"), (12, "float64"), (80, "float32")])
def test_pieces_are_added_up_sixteen_at_a_time(columns: int, acc: str) -> None:
    """Rows of one to four levels, whose last nodes have one child, some and all; sums of these numbers are exact in any order."""
    import cupy

    from bitsparse.backends.cuda.spmm.spmm import Spmm, Tuning

    longest = 4
    graph = pattern([longest * n + more for n in (1, 2, 15, 16, 17, 256, 257, 290, 4097) for more in (0, 1)], 16_500)
    x = np.random.default_rng(24).integers(-9, 9, (graph.shape[1], columns)).astype(acc)
    want = host_spmm.spmm(pattern_of(graph), x, acc_dtype=acc)
    schedule = Schedule(to_device(graph.indptr), to_device(graph.indices), graph.shape, graph.nnz)
    tuning = Tuning(16 if columns % 4 == 0 else 4, 4, longest=longest, limit=longest)
    product = Spmm(schedule, columns=columns, x_dtype=acc, acc_dtype=acc, tuning=tuning)
    for _ in range(3):  # counters go back to zero
        out = cupy.full(want.shape, np.nan, acc)
        product(to_device(x), out=out)
        np.testing.assert_array_equal(out.get(), want)


def test_pieces_are_counted_from_zero_whoever_comes_first_after_a_capture() -> None:
    import cupy

    from bitsparse.backends.cuda.spmm.spmm import Spmm, Tuning

    graph = GRAPHS["hubs"]
    rng = np.random.default_rng(23)
    x = rng.integers(-9, 9, (graph.shape[1], 8)).astype(np.float32)  # whose sums are exact in any order
    want = host_spmm.spmm(pattern_of(graph), x, acc_dtype="float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        there, out = to_device(x), cupy.full(want.shape, np.nan, np.float32)
        schedule = Schedule(to_device(graph.indptr), to_device(graph.indices), graph.shape, graph.nnz)
        product = Spmm(
            schedule,
            columns=8,
            x_dtype="float32",
            acc_dtype="float32",
            tuning=Tuning(16, 2, 1, 8, None, 64, 16, 32, 16),
        )
        stream.synchronize()
        # Memory that was used before, as pools hand it out.
        used = cupy.full(1 << 20, 7, np.int32)
        stream.synchronize()
        del used

        def captured() -> Any:
            stream.begin_capture()
            product(there, out=out)
            return stream.end_capture()

        first, second = captured(), captured()
        for call in (second.launch, lambda _: product(there, out=out), first.launch, second.launch):
            out.fill(np.nan)
            call(stream)
            stream.synchronize()
            np.testing.assert_array_equal(out.get(), want)

"""Products over condensed windows on the matrix units of a warp, within the promised bounds of float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp

pytestmark = pytest.mark.gpu

HEIGHTS = (16, 32, 64)
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
EPS = {"tf32": 2.0**-10 + 2.0**-11, "3xtf32": 2.0**-20, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def cliques(rng: np.random.Generator, sizes: list[int], density: float = 1.0) -> sp.csr_matrix:
    blocks = [sp.csr_matrix(rng.random((size, size)) < density) for size in sizes]
    return sp.csr_matrix(sp.block_diag(blocks))


def scattered(rng: np.random.Generator, shape: tuple[int, int], nnz: int) -> sp.csr_matrix:
    made = sp.coo_matrix((np.ones(nnz), (rng.integers(0, shape[0], nnz), rng.integers(0, shape[1], nnz))), shape)
    found = sp.csr_matrix(made)
    found.data[:] = 1
    return found


def graph(name: str) -> sp.csr_matrix:
    rng = np.random.default_rng(len(name))
    match name:
        case "cliques":
            return cliques(rng, [37, 20, 5, 70], 0.8)
        case "scattered":
            return scattered(rng, (75, 131), 300)
        case "hub":  # one full row, one full column, many empty rows
            a = scattered(rng, (50, 700), 20).tolil()
            a[17, :] = 1
            a[:, 3] = 1
            return sp.csr_matrix(a)
        case "tall":
            return scattered(rng, (131, 9), 200)
        case "nothing":
            return sp.csr_matrix((33, 5))
        case "one":
            return sp.csr_matrix(np.ones((1, 1)))
    raise AssertionError(name)


def plan(a: sp.csr_matrix, height: int, dtype: str, index: type = np.int32, **options: Any) -> Any:
    import cupy

    from bitsparse.backends.cuda.spmm.tiles import Tiles

    a.sort_indices()
    indptr, indices = (cupy.asarray(part.astype(index)) for part in (a.indptr, a.indices))
    return Tiles(indptr, indices, a.shape, a.nnz, height=height, k=8 if dtype == "float32" else 16, **options)


def check(
    a: sp.csr_matrix,
    columns: int,
    *,
    dtype: str = "float32",
    height: int = 16,
    values: str | None = None,
    heads: int = 0,
    arranged: bool = False,
    row: bool = False,
    col: bool = False,
    reduce: str = "sum",
    precision: str = "tf32",
    tiles: Any = None,
) -> None:
    """Compute one product into a poisoned array and require that it is within its precision's bound of the float64 result."""
    import cupy

    rng = np.random.default_rng(columns)
    x = rng.standard_normal((a.shape[1], columns)).astype(DTYPES[dtype])
    edge = rng.standard_normal((a.nnz, max(1, heads))).astype(np.float32) if values else None
    row_scale = rng.random(a.shape[0]).astype(np.float32) + 0.5 if row else None
    col_scale = rng.random(a.shape[1]).astype(np.float32) + 0.5 if col else None
    made = tiles or plan(a, height, dtype)
    given = None if edge is None else cupy.asarray(edge if heads else edge[:, 0])
    out = cupy.asarray(np.full((a.shape[0], columns), -7.0, DTYPES[dtype]))
    result = made.run(
        cupy.asarray(x),
        made.arrange(given) if arranged else given,
        None if row_scale is None else cupy.asarray(row_scale),
        None if col_scale is None else cupy.asarray(col_scale),
        reduce,
        precision,
        out,
    )
    assert result is out
    got = result.get().astype(np.float64)
    exact, size = np.empty(got.shape), np.empty(got.shape)
    wide = x.astype(np.float64)
    if col_scale is not None:
        wide = wide * col_scale.astype(np.float64)[:, None]
    for h in range(max(1, heads)):
        part = slice(h * columns // max(1, heads), (h + 1) * columns // max(1, heads))
        data = np.ones(a.nnz) if edge is None else edge[:, h].astype(np.float64)
        weighted = sp.csr_matrix((data, a.indices, a.indptr), a.shape)
        exact[:, part], size[:, part] = weighted @ wide[:, part], abs(weighted) @ abs(wide[:, part])
    count = np.diff(a.indptr)[:, None]
    factor = 1.0 / np.maximum(count, 1) if reduce == "mean" else np.ones((a.shape[0], 1))
    if row_scale is not None:
        factor = factor * row_scale.astype(np.float64)[:, None]
    weighted_too = values is not None or col
    eps = EPS[dtype if dtype != "float32" else precision]
    if dtype != "float32" and not weighted_too:
        eps = 0.0
    if precision == "3xtf32" and dtype == "float16":
        eps = 2.0**-20
    if dtype == "float32" and precision == "tf32" and not weighted_too:
        eps = 6.5e-4
    bound = (eps + 2.0**-22 * (count + 2)) * size * factor + 1e-30
    if dtype == "float16":
        bound += 2.0**-24 * (count + 1) * abs(wide).max(initial=0)
    if dtype != "float32":
        bound += EPS[dtype] * abs(exact * factor)
    error = np.abs(got - exact * factor)
    assert (error <= bound).all(), (np.argwhere(error > bound)[:5], error.max(), bound[error > bound][:5])


@pytest.mark.parametrize("height", HEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["cliques", "scattered", "hub", "tall", "nothing", "one"])
def test_patterns(name: str, dtype: str, height: int) -> None:
    a = graph(name)
    tiles = plan(a, height, dtype)
    check(a, 64, dtype=dtype, tiles=tiles)
    check(a, 16, dtype=dtype, tiles=tiles, values="edges")
    check(a, 16, dtype=dtype, tiles=tiles, values="edges", arranged=True, reduce="mean", row=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 2, 3, 7, 16, 17, 24, 32, 36, 50, 64, 100, 128, 134])
def test_widths(width: int, dtype: str) -> None:
    check(graph("cliques"), width, dtype=dtype)


@pytest.mark.parametrize("precision", ["tf32", "3xtf32"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("height", HEIGHTS)
def test_weights(height: int, dtype: str, precision: str) -> None:
    a = graph("cliques")
    tiles = plan(a, height, dtype)
    for width in (16, 64):
        kind: dict[str, Any] = {"dtype": dtype, "tiles": tiles, "precision": precision}
        check(a, width, col=True, **kind)
        check(a, width, col=True, row=True, reduce="mean", **kind)
        check(a, width, values="edges", col=True, **kind)
        check(a, width, values="edges", arranged=True, col=True, row=True, **kind)
        check(a, width, **kind)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads(dtype: str) -> None:
    a = graph("hub")
    tiles = plan(a, 32, dtype)
    for width, heads in ((12, 4), (64, 4), (96, 2), (6, 6)):
        for arranged in (False, True):
            check(a, width, dtype=dtype, tiles=tiles, values="edges", heads=heads, arranged=arranged)


@pytest.mark.parametrize("dtype", DTYPES)
def test_features_that_fit_are_summed_exactly(dtype: str) -> None:
    import cupy

    a = graph("cliques")
    x = np.random.default_rng(0).integers(-8, 9, (a.shape[1], 40))
    got = plan(a, 16, dtype).run(cupy.asarray(x.astype(DTYPES[dtype]))).get()
    assert np.array_equal(got, (a.astype(np.int64) @ x).astype(DTYPES[dtype]))


@pytest.mark.parametrize("height", [16, 64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("limit", [1, 3])
def test_windows_in_pieces(monkeypatch: pytest.MonkeyPatch, limit: int, dtype: str, height: int) -> None:
    from bitsparse.backends.cuda.spmm import tiles_build

    monkeypatch.setattr(tiles_build, "piece_limit", lambda tiles, multiprocessors: limit)
    for name in ("hub", "cliques", "nothing"):
        a = graph(name)
        tiles = plan(a, height, dtype)
        assert (tiles.slots > 0) == (name != "nothing")
        check(a, 36, dtype=dtype, tiles=tiles, row=True, reduce="mean")
        check(a, 16, dtype=dtype, tiles=tiles, values="edges")
        check(a, 16, dtype=dtype, tiles=tiles, values="edges", arranged=True)
        check(a, 12, dtype=dtype, tiles=tiles, values="edges", heads=4)


@pytest.mark.parametrize("arranged", [False, True])
@pytest.mark.parametrize("limit", [2, 64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("height", [16, 32])
def test_what_is_not_finite_stays_with_its_neighbours(
    monkeypatch: pytest.MonkeyPatch, height: int, dtype: str, limit: int, arranged: bool
) -> None:
    import cupy

    from bitsparse.backends.cuda.spmm import tiles_build

    monkeypatch.setattr(tiles_build, "piece_limit", lambda tiles, multiprocessors: limit)
    a = graph("cliques")
    x = np.random.default_rng(0).integers(-8, 9, (a.shape[1], 20)).astype(DTYPES[dtype])
    x[5, 3], x[6, 7], x[40, 0], x[41, 0] = np.inf, np.nan, np.inf, -np.inf
    values = np.random.default_rng(1).integers(1, 4, a.nnz).astype(np.float32)
    rows = np.repeat(np.arange(a.shape[0]), np.diff(a.indptr))
    tiles = plan(a, height, dtype)
    for edge in (None, values):
        exact = np.zeros((a.shape[0], 20))
        with np.errstate(all="ignore"):
            terms = x.astype(np.float64)[a.indices] * (1.0 if edge is None else edge[:, None])
            np.add.at(exact, rows, terms)
        given = None if edge is None else cupy.asarray(edge)
        got = tiles.run(cupy.asarray(x), tiles.arrange(given) if arranged and edge is not None else given).get()
        assert np.array_equal(got, exact.astype(DTYPES[dtype]), equal_nan=True)


def test_weights_beyond_float16() -> None:
    import cupy

    a = graph("cliques")
    x = np.full((a.shape[1], 16), 2.0**-10, np.float16)
    values = np.full(a.nnz, 1e5, np.float32)
    got = plan(a, 16, "float16").run(cupy.asarray(x), cupy.asarray(values)).get()
    exact = np.diff(a.indptr)[:, None] * (1e5 * 2.0**-10) * np.ones(16)
    assert np.allclose(got, exact, rtol=2**-10)


def test_int64_indices_and_the_same_bits() -> None:
    import cupy

    a = graph("scattered")
    x = cupy.asarray(np.random.default_rng(0).standard_normal((a.shape[1], 64)).astype(np.float32))
    small, large = plan(a, 16, "float32"), plan(a, 16, "float32", np.int64)
    first = small.run(x).get()
    assert first.tobytes() == large.run(x).get().tobytes() == small.run(x).get().tobytes()
    assert small.reuse == large.reuse == a.nnz / small.unique
    assert 1.0 <= small.reuse <= 16
    assert small.nbytes > 0


@pytest.mark.parametrize("warps", [1, 8, 32])
def test_any_number_of_warps_a_block_gives_the_same_bits(warps: int) -> None:
    import cupy

    a = graph("cliques")
    x = cupy.asarray(np.random.default_rng(0).standard_normal((a.shape[1], 40)).astype(np.float32))
    made = plan(a, 16, "float32", warps=warps)
    check(a, 40, tiles=made)
    assert (made.run(x) == plan(a, 16, "float32").run(x)).all()


def test_unaligned_features() -> None:
    import cupy

    a = graph("scattered")
    host = np.random.default_rng(0).standard_normal(a.shape[1] * 64 + 1).astype(np.float32)
    whole = cupy.asarray(host)
    x = whole[1:].reshape(a.shape[1], 64)
    got = plan(a, 16, "float32").run(x, precision="3xtf32").get()
    exact = a.astype(np.float64) @ host[1:].reshape(a.shape[1], 64).astype(np.float64)
    assert np.allclose(got, exact, rtol=1e-5, atol=1e-5)


def test_capture_and_streams() -> None:
    import cupy

    a = graph("hub")
    tiles = plan(a, 16, "float32")
    x = cupy.asarray(np.random.default_rng(0).standard_normal((a.shape[1], 32)).astype(np.float32))
    values = cupy.asarray(np.random.default_rng(1).standard_normal(a.nnz).astype(np.float32))
    expected = tiles.run(x, values).get()
    out = cupy.zeros((a.shape[0], 32), np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        tiles.run(x, values, out=out)
        captured = stream.end_capture()
        captured.launch(stream)
        stream.synchronize()
    assert out.get().tobytes() == expected.tobytes()
    with cupy.cuda.Stream(non_blocking=True) as other:
        again = tiles.run(x, values)
        other.synchronize()
    assert again.get().tobytes() == expected.tobytes()


def test_empty_shapes() -> None:
    import cupy

    for shape in ((0, 5), (5, 0), (0, 0)):
        tiles = plan(sp.csr_matrix(shape), 16, "float32")
        got = tiles.run(cupy.zeros((shape[1], 8), np.float32)).get()
        assert got.shape == (shape[0], 8)
        assert not got.any()
    tiles = plan(graph("scattered"), 16, "float32")
    assert tiles.run(cupy.zeros((131, 0), np.float32)).shape == (75, 0)


@pytest.mark.parametrize("weights", [0, 2])
@pytest.mark.parametrize("columns", [16, 64, 128])
@pytest.mark.parametrize("kind", range(3))
def test_what_is_built_ahead_is_what_is_chosen(kind: int, columns: int, weights: int) -> None:
    from bitsparse.backends.cuda import variants
    from bitsparse.backends.cuda.spmm.tiles import constants

    known = {variant.defines for variant in variants() if variant.source == "spmm/tiles.cu"}
    for height in (16, 32) if columns > 16 else (16,):
        chosen = constants(kind, height, columns, 8 if kind else 4, weights)
        assert tuple(sorted(chosen.items())) in known


@pytest.mark.parametrize("name", ["cliques", "hub", "nothing"])
def test_an_array_s_translation_is_taken_as_it_lies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles must be those of the pattern without another translation, also if positions take two bytes."""
    import cupy

    import bitsparse as bs
    from bitsparse.backends.cuda.sparse import build
    from bitsparse.backends.cuda.spmm.tiles import Tiles

    a = graph(name)
    want = plan(a, 16, "float32")
    there = bs.TCTiledCSR.from_csr_arrays(cupy.asarray(a.indptr), cupy.asarray(a.indices), a.shape)
    assert there.edge_col.dtype == (np.uint16 if name == "hub" else np.uint8)
    translation = there.translation
    monkeypatch.setattr(build, "translate", None)
    made = Tiles(there.indptr, there.indices, a.shape, a.nnz, height=16, k=8, translation=translation)
    assert there.translation is translation
    for part in ("cols", "bits", "pieces", "splits"):
        assert np.array_equal(getattr(made, part).get(), getattr(want, part).get())


def test_a_plan_takes_the_translation_of_its_array(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    import bitsparse as bs
    from bitsparse.backends.cuda.sparse import build
    from bitsparse.graph import translate

    a = graph("cliques")
    there = translate(bs.TCTiledCSR((None, cupy.asarray(a.indices), cupy.asarray(a.indptr)), shape=a.shape))
    x = np.random.default_rng(0).integers(-8, 9, (a.shape[1], 16)).astype(np.float32)
    monkeypatch.setattr(build, "translate", None)  # nothing is translated again
    planned = bs.plan_spmm(there, 16, kernel="tiles", precision="tf32")
    height = int(planned.explain().split(" rows, ")[0].split()[-1])
    assert height == there.window
    np.testing.assert_array_equal(planned(cupy.asarray(x)).get(), a @ x)

"""Dot products per edge on the matrix units, within the promised bounds of float64; results are written into poisoned arrays."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import graphs, pattern
from test_gpu_bits import empty, raw, to_device, to_host
from test_gpu_sddmm import ends

import bitsparse as bs
from bitsparse.backends.cuda.edges import sddmm_tiles
from bitsparse.backends.cuda.edges.sddmm_tiles import DotTiles, constants, heights, shared_bytes
from bitsparse.backends.cuda.spmm import tiles_build
from bitsparse.backends.cuda.spmm.tiles_build import Windows

pytestmark = pytest.mark.gpu

DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: Relative errors of rounding the factors; UNITS holds those of rounding the result.
ROUNDED = {"tf32": 1.3e-3, "3xtf32": 2.0**-20}
UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def cliques(*sizes: int, density: float = 1.0) -> sp.csr_array:
    rng = np.random.default_rng(len(sizes))
    blocks = [sp.coo_array(rng.random((size, size)) < density) for size in sizes]
    return sp.csr_array(sp.block_diag(blocks, format="csr"))


GRAPHS = {
    "cliques": cliques(37, 20, 5, 70, density=0.8),
    "hubs": graphs()["hubs"],
    "many empty rows": graphs()["many empty rows"],
    "one": graphs()["one"],
    "shared": pattern([300, 0, 5, 700, 1, 299, 299, 298, 41, 3], 900),
    "crowded": sp.csr_array(
        np.random.default_rng(6).random((40, 600)) < 0.9
    ),  # more results than a block holds at a time
}


def windows(A: sp.csr_array, height: int, dtype: str, wide: bool = False) -> Windows:
    index = np.int64 if wide else np.int32
    indptr, indices = (to_device(part.astype(index)) for part in (A.indptr, A.indices))
    return Windows(indptr, indices, A.shape, A.nnz, height=height, k=8 if dtype == "float32" else 16)


def check(
    A: sp.csr_array,
    width: int,
    height: int,
    *,
    dtype: str = "float32",
    heads: int = 1,
    precision: str = "tf32",
    **how: Any,
) -> None:
    rng = np.random.default_rng([width, height, heads])
    x, y = (rng.standard_normal((n, heads * width)).astype(DTYPES[dtype]) for n in A.shape)
    if width > 4:
        x[0, 1], y[-1, 2] = np.nan, np.inf  # affect only the edges of these rows
        y[-1, 3] = -np.inf
    product = DotTiles(
        windows(A, height, dtype, **how), dtype=dtype, columns=heads * width, heads=heads, precision=precision
    )
    found = []
    for _ in range(2):
        out = empty((A.nnz, heads), DTYPES[dtype])
        assert product(to_device(x), to_device(y), out) is out
        found.append(raw(out).get())
    assert np.array_equal(*found)
    rows, cols = ends(A)
    with np.errstate(invalid="ignore"):
        terms = (x.astype(np.float64)[rows] * y.astype(np.float64)[cols]).reshape(A.nnz, heads, width)
        want, got = terms.sum(axis=-1), to_host(out).astype(np.float64)
        odd = ~np.isfinite(want)
        assert np.array_equal(got[odd], want[odd], equal_nan=True)
        rounded = ROUNDED[precision] if dtype == "float32" else 0.0
        bound = (rounded + width * 2.0**-22) * abs(terms).sum(axis=-1) + UNITS[dtype] * abs(want) + 2.0**-25
        assert (abs(got - want)[~odd] <= bound[~odd]).all()


@pytest.mark.parametrize("height", [16, 32])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_kind_of_pattern(name: str, dtype: str, height: int) -> None:
    check(GRAPHS[name], 32, height, dtype=dtype)


@pytest.mark.parametrize("width", [4, 8, 16, 20, 100, 128, 132, 256, 512])
def test_every_width(width: int) -> None:
    for height in heights("dot", "float32", width, 1, 9):
        check(GRAPHS["cliques"], width, height)
        check(GRAPHS["cliques"], width, height, precision="3xtf32")
    if width % 8 == 0:
        check(GRAPHS["cliques"], width, 16, dtype="float16")


@pytest.mark.parametrize(("heads", "width"), [(2, 16), (3, 20), (8, 8), (5, 32)])
def test_heads(heads: int, width: int) -> None:
    check(GRAPHS["cliques"], width, 16, heads=heads)
    check(GRAPHS["crowded"], width, 32, heads=heads)
    check(GRAPHS["shared"], width - width % 8, 32, heads=heads, dtype="bfloat16")


@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_windows_in_pieces_and_wide_indices(monkeypatch: pytest.MonkeyPatch, dtype: str, limit: int) -> None:
    monkeypatch.setattr(tiles_build, "piece_limit", lambda tiles, multiprocessors: limit)
    for name in ("cliques", "hubs", "shared", "crowded"):
        for height in (16, 32):
            check(GRAPHS[name], 16, height, dtype=dtype, wide=True)


def test_what_rounding_would_make_infinite_is_made_again() -> None:
    A, most = GRAPHS["cliques"], np.finfo(np.float32).max
    x, y = np.zeros((A.shape[0], 8), np.float32), np.zeros((A.shape[1], 8), np.float32)
    x[:, 0], y[:, 0] = 1.0, most
    for precision in ("tf32", "3xtf32"):
        out = empty((A.nnz, 1), np.float32)
        product = DotTiles(windows(A, 16, "float32"), dtype="float32", columns=8, precision=precision)
        product(to_device(x), to_device(y), out)
        assert (to_host(out) == most).all()


def test_integers_are_exact() -> None:
    A, rng = GRAPHS["cliques"], np.random.default_rng(0)
    x, y = (rng.integers(-15, 16, (n, 40)) for n in A.shape)
    rows, cols = ends(A)
    for dtype, kind in DTYPES.items():
        out = empty((A.nnz, 1), kind)
        product = DotTiles(windows(A, 32, dtype), dtype=dtype, columns=40, precision="3xtf32")
        product(to_device(x.astype(kind)), to_device(y.astype(kind)), out)
        assert np.array_equal(to_host(out)[:, 0], (x[rows] * y[cols]).sum(axis=1).astype(kind))


def test_a_product_is_captured() -> None:
    import cupy

    A, rng = GRAPHS["shared"], np.random.default_rng(8)
    x, y = (cupy.asarray(rng.standard_normal((n, 32), dtype=np.float32)) for n in A.shape)
    product = DotTiles(windows(A, 16, "float32"), dtype="float32", columns=32)
    want, out = product(x, y, empty((A.nnz, 1), np.float32)).get(), empty((A.nnz, 1), np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        product(x, y, out)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert np.array_equal(raw(out).get(), want.view(np.uint32))


def test_a_container_takes_them_where_windows_share_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    made: list[tuple[int, str]] = []

    class Watched(DotTiles):
        def __init__(self, windows: Windows, **how: Any) -> None:
            made.append((windows.height, how["precision"]))
            super().__init__(windows, **how)

    monkeypatch.setattr(sddmm_tiles, "DotTiles", Watched)
    A, rng = cliques(*[400] * 6), np.random.default_rng(2)
    x = cupy.asarray(rng.standard_normal((A.shape[0], 128)).astype(np.float32))
    tiled = bs.TCTiledCSR(A).to_device("cuda")
    exact = bs.sddmm(A, x.get())
    assert not made
    assert np.allclose(bs.sddmm(tiled, x).get(), exact, atol=1e-4)
    assert not made
    first, again = (bs.sddmm(tiled, x, precision="tf32").get() for _ in range(2))
    assert made == [(32, "tf32")]
    assert np.array_equal(first, again)
    rows, cols = ends(A)
    size = (abs(x.get())[rows] * abs(x.get())[cols]).sum(axis=1)
    error = abs(first - exact)
    assert (error <= (1.3e-3 + 128 * 2.0**-22) * size).all()
    assert error.max() > 1e-4  # proves that the products were not made in float32
    bs.sddmm(tiled, x[:, :32], precision="tf32")  # these rows are too short for tiles
    bs.sddmm(tiled, x, op="add", precision="tf32")
    bs.sddmm(tiled, x.astype(np.float64), precision="tf32")
    assert len(made) == 1


def test_which_widths_tiles_take() -> None:
    assert heights("dot", "float32", 128, 2, 9) == (16, 32)
    assert not heights("add", "float32", 128, 1, 9)
    assert not heights("dot", "float64", 128, 1, 9)
    assert not heights("dot", "float32", 6, 1, 9)
    assert not heights("dot", "float32", 12, 2, 9)
    assert not heights("dot", "float32", 4096, 1, 9)
    assert constants("bfloat16", 16, 3)["BS_STEPS"] == 1
    assert 2 * shared_bytes("float32", 32, 33) == 3 * shared_bytes("float32", 32, 32)

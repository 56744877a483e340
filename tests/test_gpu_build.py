"""Builders on the GPU give the reference's arrays bit for bit, and refuse hostile input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cases_sparse import PATTERNS, as_int64, disordered, specs
from launches import launches
from test_gpu_entries import same, up
from test_sparse_build import HOSTILE, good, mutated, well_formed

import bitsparse as bs
from bitsparse import backends
from bitsparse.backends.reference.sparse import build as reference

pytestmark = pytest.mark.gpu


def gpu() -> Any:
    return backends.family("cuda:0", "sparse.build")


# The two functions left out are the CPU's: a GPU transposes entries by other functions, and tiles are counted only for statistics.
@pytest.mark.parametrize(
    "spec",
    [spec for spec in specs() if spec[0] == "sparse.build" and spec[1] not in ("transpose_both", "tile_starts")],
    ids=lambda spec: f"{spec[1]}-{spec[2]}",
)
def test_the_shared_table(spec: Any) -> None:
    _, name, _, make = spec
    args, kwargs = make()
    want = getattr(reference, name)(*args, **kwargs)
    same(getattr(gpu(), name)(*map(up, args), **kwargs), want)


# ---- full windows, tall windows
def grid(rows: int, cols: int, density: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """A pattern with a full row, a full column and empty rows, made quickly."""
    rng = np.random.default_rng(seed)
    dense = rng.random((rows, cols)) < density
    dense[rows // 2], dense[:, cols // 3], dense[3:5] = True, True, False
    return (
        np.concatenate([[0], np.cumsum(dense.sum(1))]).astype(np.int32),
        np.nonzero(dense)[1].astype(np.int32),
        dense.shape,
    )


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("most", [None, 40])
def test_windows_fuller_than_shared_memory(wide: bool, most: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from bitsparse.backends.cuda.sparse import windows as build_windows
    from bitsparse.backends.host.sparse import build as host

    if most is not None:  # fuller windows are ranked
        monkeypatch.setattr(build_windows, "_CLASSES", ((64, 24), (128, most)))
    pattern = as_int64(grid(70, 900, 0.05)) if wide else grid(70, 900, 0.05)
    device = tuple(map(up, pattern))
    for window in (1, 5, 16):
        same(gpu().translate(*device, window), host.translate(*pattern, window))
    same(gpu().frdc(*device), host.frdc(*pattern))


@pytest.mark.parametrize("window", [17, 32, 64, 256])
def test_tall_windows(window: int) -> None:
    for pattern in (grid(300, 90, 0.1), PATTERNS["hub"](), PATTERNS["tall"]()):
        want = reference.translate(*pattern, window)
        got = gpu().translate(*map(up, pattern), window)
        same(got, want)


def test_positions_take_as_many_bytes_as_they_need() -> None:
    for columns, kind in ((256, np.uint8), (257, np.uint16), (1 << 16, np.uint16), ((1 << 16) + 1, np.int32)):
        # Both rows are in one window and share all columns, so that there are twice as many entries as cells.
        indptr, indices = np.array([0, columns, 2 * columns], np.int32), np.tile(np.arange(columns, dtype=np.int32), 2)
        for checked in (False, True):
            starts, cols, positions = gpu().translate(up(indptr), up(indices), (2, columns), 16, checked=checked)
            assert positions.dtype == kind
            np.testing.assert_array_equal(positions.get(), indices)
            np.testing.assert_array_equal(cols.get(), indices[:columns])
            assert starts.get().tolist() == [0, columns]


def test_a_translation_takes_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CSR array and its translation must take few launches, which are most of the time on small graphs."""
    launched = launches(monkeypatch)
    indptr, indices, shape = PATTERNS["hub"]()
    a = bs.TCTiledCSR.from_csr_arrays(up(indptr), up(indices), shape)
    assert launched == ["check_csr"]
    _ = a.translation
    assert [name for name in launched if name != "order_windows"] == ["check_csr", "list_windows", "pack_cells"]
    assert launched.count("order_windows") <= 5
    launched.clear()
    _ = a.translation, a.with_values(up(np.ones(a.nnz, np.float32))).translation
    assert not launched


# ---- orders
@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("name", [name for name in PATTERNS if name != "spread"])
def test_orders(name: str, wide: bool) -> None:
    pattern = as_int64(PATTERNS[name]()) if wide else PATTERNS[name]()
    device = tuple(map(up, pattern))
    indices, order, repeated = gpu().canonical_csr(*device)
    assert indices is device[1]
    assert order is None
    assert not repeated
    mixed = disordered(pattern)
    indices, order, repeated = gpu().canonical_csr(*map(up, mixed))
    rows = np.repeat(np.arange(pattern[2][0]), np.diff(mixed[0]))
    want = np.lexsort((mixed[1], rows))
    np.testing.assert_array_equal(indices.get(), mixed[1][want])
    if order is not None:
        np.testing.assert_array_equal(order.get(), want)
    assert repeated == (mixed[1].size > pattern[1].size)
    starts, rows, order = gpu().transpose_csr(*device)
    numbered = sp.csr_array((np.arange(pattern[1].size), *pattern[1::-1]), shape=pattern[2]).tocsc()
    for got, expected in zip((starts, rows, order), (numbered.indptr, numbered.indices, numbered.data), strict=True):
        assert got.dtype == pattern[0].dtype
        np.testing.assert_array_equal(got.get(), expected)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("heads", [(), (3,)])
def test_sums_of_runs(dtype: str, heads: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(-90, 90, (200, *heads)).astype(dtype)
    if values.dtype.kind == "f":
        values = (rng.normal(size=values.shape) * 10).astype(dtype)
    starts = np.concatenate([[0], np.flatnonzero(rng.random(199) < 0.5) + 1])
    wanted = np.int64 if dtype == "bool" else np.float32 if dtype == "float16" else values.dtype
    want = np.add.reduceat(values.astype(wanted), starts, axis=0, dtype=wanted)
    got = gpu().sum_runs(up(values), up(starts))
    same(got, want if dtype == "bool" else want.astype(dtype))


# ---- hostile input
@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_csr_is_refused(what: str, wide: bool) -> None:
    indptr, indices, shape = as_int64(good()) if wide else good()
    indptr, indices = map(up, HOSTILE[what](indptr, indices))
    backend = gpu()
    for function, more in (
        (backend.validate_csr, ()),
        (backend.canonical_csr, ()),
        (backend.translate, (16,)),
        (backend.frdc, ()),
        (backend.csr_to_words, ()),
    ):
        with pytest.raises(ValueError, match=r"indptr|index|indices|entries"):
            function(indptr, indices, shape, *more)


def test_messages_name_the_place() -> None:
    indptr, indices, shape = good()
    backend, starts = gpu(), up(indptr)
    with pytest.raises(ValueError, match="row 1 holds a column index"):
        backend.frdc(starts, up(np.array([0, 4, 9, 1, 3], np.int32)), shape)
    with pytest.raises(ValueError, match="breaks at entry 2"):
        backend.frdc(up(np.array([0, 3, 2, 5], np.int32)), up(indices), shape)
    with pytest.raises(ValueError, match="row 2 holds the same column twice"):
        backend.translate(starts, up(np.array([0, 4, 2, 3, 3], np.int32)), shape, 16)
    with pytest.raises(ValueError, match="of row 2 are not ascending"):
        backend.translate(starts, up(np.array([0, 4, 2, 3, 1], np.int32)), shape, 16)
    with pytest.raises(ValueError, match="all be int32 or all int64"):
        backend.frdc(starts, up(indices.astype(np.int64)), shape)
    with pytest.raises(ValueError, match="window is 257"):
        backend.translate(starts, up(indices), shape, 257)


@pytest.mark.parametrize("what", ["csr", "frdc", "words"])
def test_damaged_arrays_are_refused_as_on_the_host(what: str) -> None:
    """Builders must give the host's arrays for damaged input, or raise ValueError as the host does."""
    from bitsparse.backends.host.sparse import build as host

    rng, backend = np.random.default_rng(7), gpu()
    patterns = [PATTERNS[name]() for name in ("corner", "full", "hub", "random-thin")]
    refused = 0
    for turn in range(60):
        pattern = as_int64(patterns[turn % 4]) if turn % 3 == 0 else patterns[turn % 4]
        window, shape = int(rng.integers(1, 17)), pattern[2]
        given = mutated(rng, well_formed(what, *pattern, window))
        name, more = {
            "csr": ("translate", (shape, window)),
            "frdc": ("frdc_to_csr", (shape,)),
            "words": ("words_to_csr", (shape, np.dtype(np.int32))),
        }[what]
        try:
            want = getattr(host, name)(*given, *more)
        except ValueError:
            refused += 1
            with pytest.raises(ValueError, match=r"."):
                getattr(backend, name)(*map(up, given), *more)
        else:
            same(getattr(backend, name)(*map(up, given), *more), want)
    assert refused > 20

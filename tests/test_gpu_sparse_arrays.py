"""Sparse arrays in a GPU's memory: every form of the constructors, conversions and parts, compared with the host's."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import graph

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(11)
DENSE = RNG.integers(-3, 4, (37, 53)) * (RNG.random((37, 53)) < 0.2)
BITS = (DENSE != 0).astype(np.uint8)
CSR = sp.csr_array(DENSE)
#: Unsorted coordinates, every fourth of them twice.
MIXED = RNG.permutation(np.concatenate([np.arange(CSR.nnz), np.arange(0, CSR.nnz, 4)]))
ROWS, COLS = (index[MIXED].astype(np.int32) for index in CSR.tocoo().coords)


def cp() -> Any:
    import cupy

    return cupy


def up(x: Any) -> Any:
    """Move to the GPU the NumPy and SciPy arrays that a form of input contains."""
    if isinstance(x, tuple):
        return tuple(map(up, x))
    if isinstance(x, list):
        return [up(part) for part in x]
    if isinstance(x, bs.TCTiledCSR | bs.FRDC | bs.BitTensor):
        return x.to_device("cuda")
    if sp.issparse(x):
        from cupyx.scipy import sparse as on_gpu

        return getattr(on_gpu, f"{x.format}_matrix")(x)
    return cp().asarray(x) if isinstance(x, np.ndarray) else x


def same_values(there: Any, here: Any) -> None:
    if here is None:
        assert there is None
        return
    assert isinstance(there, cp().ndarray), type(there)
    assert there.dtype == here.dtype
    assert there.shape == here.shape
    assert there.get().tobytes() == np.ascontiguousarray(here).tobytes()


def same(there: Any, here: Any) -> None:
    """Require that both arrays are equal and that the first one is on the GPU."""
    assert there.device == "cuda:0"
    assert here.device == "cpu"
    assert type(there) is type(here)
    for name in ("shape", "dtype", "nnz", "nbytes", "index_dtype", "had_duplicates", "window"):
        assert getattr(there, name, None) == getattr(here, name, None), name
    for name in (*here.component_names, "row_scale", "col_scale"):
        same_values(getattr(there, name), getattr(here, name))


FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dense int64": (DENSE, {}),
    "dense float32": (DENSE.astype(np.float32), {}),
    "dense float16": (DENSE.astype(np.float16), {}),
    "dense bool": (DENSE != 0, {}),
    "dense strided": (DENSE[::2, ::-1], {}),
    "dense empty": (DENSE[:0], {}),
    "csr": ((CSR.data, CSR.indices, CSR.indptr), {"shape": CSR.shape}),
    "csr of int64": ((CSR.data, CSR.indices.astype(np.int64), CSR.indptr.astype(np.int64)), {"shape": CSR.shape}),
    "csr kept as int64": ((None, CSR.indices, CSR.indptr), {"shape": CSR.shape, "index_dtype": "int64"}),
    "csr pattern": ((None, CSR.indices, CSR.indptr), {"shape": CSR.shape}),
    "csr unsorted": ((CSR.data, CSR.indices[::-1].copy(), CSR.indptr), {"shape": CSR.shape}),
    "csr heads": ((RNG.random((CSR.nnz, 3)), CSR.indices, CSR.indptr), {"shape": CSR.shape}),
    "coordinates": ((RNG.integers(-9, 9, ROWS.size), (ROWS, COLS)), {"shape": CSR.shape}),
    "coordinates float32": ((RNG.normal(size=ROWS.size).astype(np.float32), (ROWS, COLS)), {}),
    "coordinates heads": ((RNG.normal(size=(ROWS.size, 2)), (ROWS, COLS)), {}),
    "coordinates bool": ((RNG.random(ROWS.size) < 0.5, [ROWS, COLS]), {}),
    "coordinates pattern": ((None, (ROWS, COLS)), {}),
    "coordinates int64": ((None, (ROWS.astype(np.int64), COLS.astype(np.int64))), {}),
    "coordinates uint16": ((None, (ROWS.astype(np.uint16), COLS.astype(np.uint8))), {"shape": (40, 60)}),
    "coordinates none": ((None, (ROWS[:0], COLS[:0])), {"shape": (4, 6)}),
    "scipy csr": (CSR.astype(np.float32), {}),
    "scipy csc": (CSR.tocsc().astype(np.float64), {}),
    "scipy coo": (sp.coo_array((np.ones(ROWS.size, np.float32), (ROWS, COLS)), shape=CSR.shape), {}),
    "bits": (bs.BitTensor(BITS), {}),
    "bits along the columns": (bs.BitTensor(BITS, axis=-2), {}),
    "three bits": (bs.BitTensor(np.abs(DENSE), bits=3), {}),
    "blocks": (bs.FRDC(BITS, row_scale=RNG.random(37), col_scale=RNG.random(53)), {}),
    "translated": (bs.TCTiledCSR(DENSE, window=5), {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    arg, options = FORMS[name]
    for window in (None, 7):
        there, here = (bs.TCTiledCSR(x, window=window, **options) for x in (up(arg), arg))
        same(there, here)
        assert there.family == "cupy"
    scales = {"row_scale": RNG.random(here.shape[0]), "col_scale": RNG.random(here.shape[1]).tolist()}
    same(
        bs.TCTiledCSR(up(arg), pattern=True, **options, **scales), bs.TCTiledCSR(arg, pattern=True, **options, **scales)
    )
    if "heads" not in name:
        there, here = (bs.FRDC(x, pattern=True, **options) for x in (up(arg), arg))
        same(there, here)


def test_bits_must_be_bits() -> None:
    for arg in (DENSE, (DENSE[CSR.nonzero()], CSR.nonzero())):
        with pytest.raises(ValueError, match="bits hold only 0 and 1"):
            bs.FRDC(up(arg))
    zeros = (BITS[ROWS, COLS] * (ROWS % 2).astype(np.uint8), (ROWS, COLS))
    same(bs.FRDC(up(zeros)), bs.FRDC(zeros))
    same(bs.FRDC(up(BITS)), bs.FRDC(BITS))


@pytest.mark.parametrize("symmetric", [False, True])
def test_edge_lists(symmetric: bool) -> None:
    weights = RNG.integers(0, 5, (ROWS.size, 2))
    for values in (None, weights, weights[:, 0].astype(ml_dtypes.bfloat16)):
        if values is not None and values.dtype.name == "bfloat16":
            once = np.unique(ROWS.astype(np.int64) * 100 + COLS, return_index=True)[1]
            rows, cols, values = ROWS[once], COLS[once] + 60, values[once]  # unique coordinates, so nothing is summed
        else:
            rows, cols = ROWS, COLS
        there, here = (
            bs.TCTiledCSR.from_edges(r, c, values=v, symmetric=symmetric)
            for r, c, v in ((up(rows), up(cols), up(values)), (rows, cols, values))
        )
        same(there, here)
    same(bs.FRDC.from_edges(up(ROWS), up(COLS), 60), bs.FRDC.from_edges(ROWS, COLS, 60))


def arrays() -> dict[str, Any]:
    pattern = bs.TCTiledCSR(DENSE, pattern=True, window=7)
    return {
        "numbers": bs.TCTiledCSR(DENSE),
        "small numbers": bs.TCTiledCSR(DENSE.astype(np.int8), index_dtype="int64"),
        "float16": bs.TCTiledCSR(DENSE.astype(np.float16), col_scale=RNG.random(53)),
        "pattern": pattern.with_scales(RNG.random(37), RNG.random(53)),
        "heads": pattern.with_values(RNG.random((pattern.nnz, 3))),
        "bfloat16": pattern.astype(ml_dtypes.bfloat16),
        "blocks": bs.FRDC(BITS),
        "scaled blocks": bs.FRDC(BITS, row_scale=RNG.random(37)),
        "nothing": bs.TCTiledCSR((3, 5)),
        "no rows": bs.FRDC((0, 5)),
    }


@pytest.mark.parametrize("name", list(arrays()))
def test_what_an_array_does(name: str) -> None:
    here = arrays()[name]
    there = here.to_device("cuda")
    same(there, here)
    same(there.copy(), here)
    same(there.T, here.T)
    same(there.transpose().T, here)
    same(pickle.loads(pickle.dumps(there)), here)
    for one, other in zip(there.csr_arrays(), here.csr_arrays(), strict=True):
        same_values(one, other)
    first, again = there.csr_arrays(), there.with_scales().csr_arrays()
    assert first[0] is again[0]
    assert first[1] is again[1]
    assert there.copy()._prepared == {}
    scaled = here.with_scales(RNG.random(here.shape[0]), None)
    same(there.with_scales(up(scaled.row_scale), None), scaled)
    same(there.with_scales(scaled.row_scale, None), scaled)
    settings = there.settings()
    parts = {key: there.components()[key] for key in there.component_names}
    made = type(there).from_arrays(**parts, **settings, row_scale=there.row_scale, col_scale=there.col_scale)
    made.had_duplicates = here.had_duplicates
    same(made, here)
    back = there.get()
    assert back.device == "cpu"
    assert repr(there).replace("cuda:0", "cpu") == repr(here)
    tensor = there.to_bit_tensor(axis=-2)
    assert tensor.device == "cuda:0"
    np.testing.assert_array_equal(tensor.words.get(), here.to_bit_tensor(axis=-2).words)
    if isinstance(here, bs.TCTiledCSR):
        assert there.tile_count(8) == here.tile_count(8)
        same(there.astype("float32"), here.astype("float32"))
        same(there.with_values(None), here.with_values(None))
    if name == "heads":
        for method in (there.toarray, there.tocsr):
            with pytest.raises(bs.ShapeError, match="3 values each"):
                method()
        return
    same_values(there.toarray(), here.toarray())
    same_values(there.toarray("float64"), here.toarray("float64"))
    matrix, want = there.tocsr(), here.tocsr()
    kind = want.dtype if want.dtype.kind not in "iu" else np.float32 if want.dtype.itemsize <= 2 else np.float64
    assert (matrix.format, matrix.dtype, matrix.shape) == ("csr", kind, want.shape)
    np.testing.assert_array_equal(matrix.toarray().get(), want.toarray())
    assert there.tocoo().format == "coo"
    assert (there.to_scipy() != want).nnz == 0


def test_with_values() -> None:
    here = bs.TCTiledCSR(CSR, pattern=True)
    there = here.to_device("cuda")
    for values in (RNG.random(here.nnz), RNG.random((here.nnz, 4)).astype(np.float16), RNG.integers(0, 9, here.nnz)):
        same(there.with_values(up(values)), here.with_values(values))
        same(there.with_values(up(np.repeat(values, 2, axis=0))[::2]), here.with_values(values))
    with pytest.raises(bs.DeviceError, match="with_values: operands are on cuda:0 and cpu"):
        there.with_values(values)
    with pytest.raises(bs.DeviceError, match="with_values: operands are on cpu and cuda:0"):
        here.with_values(up(values))
    with pytest.raises(bs.ShapeError, match="data has shape"):
        there.with_values(up(values[1:]))
    twice = bs.TCTiledCSR.from_edges(up(ROWS), up(COLS))
    assert twice.had_duplicates
    with pytest.raises(ValueError, match="held entries twice"):
        twice.with_values(up(values))


MIXTURES: dict[str, tuple[Callable[[], Any], str]] = {
    "csr": (lambda: bs.TCTiledCSR((None, up(CSR.indices), CSR.indptr), shape=CSR.shape), "operands are on"),
    "values": (lambda: bs.TCTiledCSR((CSR.data, up(CSR.indices), up(CSR.indptr)), shape=CSR.shape), "operands are on"),
    "coordinates": (lambda: bs.FRDC((None, (up(ROWS), COLS))), "operands are on"),
    "edges": (lambda: bs.TCTiledCSR.from_edges(ROWS, up(COLS), symmetric=True), "operands are on"),
    "arithmetic": (lambda: bs.TCTiledCSR(up(DENSE)) + 1, "add: with 1 elements that are not stored would become 1"),
    "two arrays": (lambda: bs.FRDC(BITS) + bs.FRDC(up(BITS)), "operands are on"),
    "a graph": (lambda: graph.partition(bs.FRDC(up(BITS[:30, :30])), 3), "partition: the graph is on cuda:0"),
    "permuted": (lambda: graph.permute(bs.FRDC(up(BITS[:30, :30])), np.arange(30)), "the graph is on cuda:0"),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixed_devices(name: str) -> None:
    call, message = MIXTURES[name]
    with pytest.raises(bs.DeviceError, match=message):
        call()


def test_bad_input() -> None:
    indptr, indices = up(CSR.indptr), up(CSR.indices)
    with pytest.raises(ValueError, match="from_csr_arrays: CSR: indptr must start at 0"):
        bs.TCTiledCSR.from_csr_arrays(indptr[::-1], indices, CSR.shape)
    with pytest.raises(ValueError, match=r"row 0 holds the column [0-9]+, but there are 53 columns"):
        bs.FRDC.from_csr_arrays(indptr, indices + 53, CSR.shape)
    with pytest.raises(ValueError, match="indptr has 37 entries, but 38 are needed"):
        bs.FRDC.from_csr_arrays(indptr[:-1], indices, CSR.shape)
    with pytest.raises(ValueError, match="index is negative"):
        bs.TCTiledCSR((None, (up(ROWS - 1), up(COLS))))
    with pytest.raises(bs.ShapeError, match="outside of shape"):
        bs.TCTiledCSR((None, (up(ROWS), up(COLS))), shape=(30, 60))
    with pytest.raises(ValueError, match="row 0 holds the column 1099511"):
        bs.TCTiledCSR((None, up(CSR.indices.astype(np.int64) + (1 << 40)), indptr), shape=CSR.shape)
    with pytest.raises(bs.DTypeError, match="indices are integers"):
        bs.FRDC((None, (up(ROWS.astype(np.float32)), up(COLS))))
    there = bs.TCTiledCSR(up(DENSE))
    with pytest.raises(bs.ShapeError, match="there must be one scale for each of 37"):
        there.with_scales(up(np.ones(36)))
    with pytest.raises(ValueError, match="NaN or infinity"):
        there.with_scales(up(np.full(37, np.nan)))
    parts = {name: there.components()[name] for name in there.component_names}
    parts["indices"] = parts["indices"][::-1]
    with pytest.raises(ValueError, match=r"TCTiledCSR.from_arrays: columns must ascend in every row"):
        bs.TCTiledCSR.from_arrays(**parts, shape=there.shape)
    blocks = bs.FRDC(up(BITS))
    with pytest.raises(ValueError, match="empty tile"):
        bs.FRDC.from_arrays(blocks.indptr, blocks.indices, blocks.tiles * 0, blocks.shape)


@pytest.mark.parametrize("bits", [None, 1, 4])
@pytest.mark.parametrize("axis", [-1, -2])
def test_bit_tensors_of_sparse_arrays(bits: int | None, axis: int) -> None:
    for arg in (
        bs.FRDC(BITS),
        bs.TCTiledCSR(BITS.astype(np.int8), window=5),
        bs.TCTiledCSR(np.abs(DENSE)) if bits != 1 else bs.FRDC((4, 6)),
        sp.csr_array(BITS.astype(bool)),
        sp.coo_array((np.ones(ROWS.size, bool), (ROWS, COLS)), shape=CSR.shape),
    ):
        here = bs.BitTensor(arg, bits=bits, axis=axis)
        there = bs.BitTensor(up(arg), bits=bits, axis=axis)
        assert there.device == "cuda:0"
        assert (there.bits, there.shape, there.encoding) == (here.bits, here.shape, here.encoding)
        np.testing.assert_array_equal(cp().asnumpy(there.words), here.words)
    with pytest.raises(bs.DTypeError, match="dtype float32"):
        bs.BitTensor(up(CSR.astype(np.float32)))


def test_bfloat16_values() -> None:
    odd = np.array([0.0, -0.0, 1.00390625, 1.01171875, np.inf, -np.inf, np.nan, 3e38, 1e-40, -7.3], np.float32)
    here = bs.TCTiledCSR((odd, (np.arange(10), np.arange(10))))
    there = here.to_device("cuda")
    for made in (there.astype(ml_dtypes.bfloat16), here.astype(ml_dtypes.bfloat16).to_device("cuda")):
        want = here.astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(np.isnan(made.data.get()), np.isnan(want.data))
        kept = ~np.isnan(odd)
        assert made.data.get()[kept].tobytes() == want.data[kept].tobytes()
        np.testing.assert_array_equal(made.astype("float64").data.get(), want.astype("float64").data)
        np.testing.assert_array_equal(made.toarray("float32").get(), want.toarray("float32"))

"""Parts and representations of sparse containers: component arrays, copies, pickles, and files, damaged ones too."""

from __future__ import annotations

import copy
import io
import json
import pickle
import zipfile
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases_sparse import PATTERNS, components, equal, pattern_array, weighted

import bitsparse as bs

TYPES = [bs.TCTiledCSR, bs.FRDC]


# ---- components, copies, files
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("cls", TYPES)
def test_from_arrays_round_trip(cls: Any, name: str) -> None:
    for index in (np.int32, np.int64):
        a = cls(pattern_array(name, np.bool_), index_dtype=index, row_scale=np.ones(PATTERNS[name]()[2][0]))
        parts = {part: getattr(a, part) for part in cls.component_names}
        again = cls.from_arrays(**parts, **a.settings(), row_scale=a.row_scale)
        equal(again, a)
        assert again.index_dtype == index


def test_from_arrays_refuses_what_is_not_canonical() -> None:
    a = bs.TCTiledCSR(pattern_array("random"))
    parts = {part: getattr(a, part) for part in a.component_names}
    for name, at, value, match in (
        ("indices", 1, 200, "row 0"),
        ("indices", 1, -1, "row 0"),
        ("indices", 1, 0, "unsorted"),
        ("indices", 1, parts["indices"][0], "duplicates"),
        ("indptr", 1, -4, "indptr"),
        ("indptr", 1, 2**31 - 1, "indptr"),
    ):
        bad = parts[name].copy()
        bad[at] = value
        with pytest.raises(ValueError, match=match):
            bs.TCTiledCSR.from_arrays(**(parts | {name: bad}), shape=a.shape)
    with pytest.raises(bs.DTypeError, match="indices are integers"):
        bs.TCTiledCSR.from_arrays(**(parts | {"indices": a.indices.astype(np.float32)}), shape=a.shape)
    with pytest.raises(bs.ShapeError, match="data has shape"):
        bs.TCTiledCSR.from_arrays(**(parts | {"data": np.ones(3)}), shape=a.shape)
    f = bs.FRDC(pattern_array("random"))
    with pytest.raises(bs.DTypeError, match="uint16"):
        bs.FRDC.from_arrays(f.indptr, f.indices, f.tiles.astype(np.int32), f.shape)
    with pytest.raises(ValueError, match="empty tile"):
        bs.FRDC.from_arrays(
            f.indptr, f.indices, np.where(np.arange(f.tiles.size) == 4, 0, f.tiles).astype(np.uint16), f.shape
        )
    with pytest.raises(ValueError, match="beyond the shape"):
        bs.FRDC.from_arrays([0, 1], [0], np.array([0b10], np.uint16), (1, 1))


@pytest.mark.parametrize(
    "a",
    [
        bs.TCTiledCSR(weighted("random"), window=7, row_scale=np.arange(67.0)),
        bs.TCTiledCSR(pattern_array("hub"), pattern=True, index_dtype=np.int64),
        bs.TCTiledCSR((None, ([1, 1], [2, 2]))),
        bs.TCTiledCSR(pattern_array("hub")).with_values(np.ones((189, 2), np.float16)),
        bs.FRDC(pattern_array("random"), col_scale=np.arange(133.0)),
        bs.FRDC((0, 3)),
    ],
    ids=repr,
)
def test_copies_pickles_and_files(a: Any) -> None:
    file = io.BytesIO()
    bs.save_npz(file, a)
    file.seek(0)
    loaded = bs.load_npz(file)
    for made in (a.copy(), copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a)), loaded):
        equal(made, a)
        assert made.had_duplicates == a.had_duplicates
        assert repr(made) == repr(a)
    for one, other in zip(components(a.copy()), components(a), strict=True):
        assert one is None or one.size == 0 or not np.shares_memory(one, other)


@pytest.mark.parametrize("cls", [*TYPES, bs.BitTensor])
def test_an_array_of_a_derived_class_is_saved_as_what_it_is(cls: Any) -> None:
    file = io.BytesIO()
    bs.save_npz(file, type("Derived", (cls,), {})(np.eye(3, dtype=int)))
    file.seek(0)
    loaded = bs.load_npz(file)
    assert type(loaded) is cls and np.array_equal(loaded.toarray(), np.eye(3))


def test_bfloat16_values_are_not_written() -> None:
    with pytest.raises(bs.DTypeError, match="bfloat16"):
        bs.save_npz(io.BytesIO(), bs.FRDC(np.eye(2)).astype(ml_dtypes.bfloat16))


def edited(a: Any, change: Any, drop: str = "") -> io.BytesIO:
    """Return the file of `a` with a changed header, or without one of its members."""
    first, second = io.BytesIO(), io.BytesIO()
    bs.save_npz(first, a, compressed=False)
    with zipfile.ZipFile(first) as source, zipfile.ZipFile(second, "w") as target:
        for name in source.namelist():
            if name == "header.npy":
                with source.open(name) as stream:
                    header = json.loads(str(np.load(stream)))
                buffer = io.BytesIO()
                np.save(buffer, np.array(json.dumps(change(header))))
                target.writestr(name, buffer.getvalue())
            elif name != drop:
                target.writestr(name, source.read(name))
    second.seek(0)
    return second


def test_hostile_files() -> None:
    a, f = bs.TCTiledCSR(weighted("random")), bs.FRDC(pattern_array("random"))
    for made in (a, f):
        equal(bs.load_npz(edited(made, dict)), made)
    for made, change, drop in (
        (a, lambda h: h | {"type": "FRDC"}, ""),
        (f, lambda h: h | {"type": "TCTiledCSR", "window": 16}, ""),
        (f, lambda h: h | {"type": "BitTensor"}, ""),
        (f, lambda h: h | {"type": "Other"}, ""),
        (f, lambda h: h | {"type": ["FRDC"]}, ""),
        (a, lambda h: {k: v for k, v in h.items() if k != "window"}, ""),
        (a, lambda h: h | {"window": 400}, ""),
        (a, lambda h: h | {"shape": [1, 1]}, ""),
        (a, lambda h: h | {"shape": [10**30, 1]}, ""),
        (a, lambda h: h | {"shape": [67, 133, 1]}, ""),
        (a, lambda h: h | {"shape": None}, ""),
        (a, dict, "indices.npy"),
        (f, dict, "tiles.npy"),
    ):
        with pytest.raises((ValueError, bs.DTypeError)):
            bs.load_npz(edited(made, change, drop))


# ---- representations and sizes
def test_repr_and_html() -> None:
    a = bs.TCTiledCSR(pattern_array("random", np.float32), row_scale=np.ones(67))
    assert repr(a).startswith("<TCTiledCSR shape=(67, 133) nnz=")
    for part in ("float32 window=16", "row_scale", "device=cpu", "of float32", "of CSR"):
        assert part in repr(a)
    assert "pattern" in repr(bs.TCTiledCSR((2, 3)))
    assert "x 2" in repr(bs.TCTiledCSR(np.eye(2)).with_values(np.ones((2, 2))))
    for x in (a, bs.FRDC(a, pattern=True), bs.FRDC((0, 0))):
        html = x._repr_html_()
        assert html.count("<tr>") == html.count("</tr>") >= 8
        assert type(x).__name__ in html
    assert bs.FRDC(np.ones((400, 400))).nbytes < 400 * 400 * 4 / 8


def test_sizes_of_storage() -> None:
    a = bs.TCTiledCSR(pattern_array("band"))
    assert a.nbytes == sum(part.nbytes for part in components(a) if part is not None)
    alone = repr(a)
    index = a.cols_indptr, a.cols, a.edge_col
    assert a.nbytes == sum(part.nbytes for part in (*components(a), *index) if part is not None)
    assert " translated" in repr(a) and " translated" not in alone
    assert a.windows == 3
    assert a.tile_count(8) == sum(-(-int(n) // 8) for n in np.diff(a.cols_indptr))
    assert a.density == a.nnz / 45**2


@pytest.mark.parametrize("degree", [2, 8, 40])
def test_a_translated_pattern_takes_at_most_2_6_times_csr(degree: int) -> None:
    """The bound must hold even if windows share hardly any columns and positions take two bytes."""
    rng, nodes = np.random.default_rng(degree), 20_000
    a = bs.TCTiledCSR.from_edges(rng.integers(0, nodes, degree * nodes), rng.integers(0, nodes, degree * nodes), nodes)
    alone = a.nbytes
    assert alone == a.indptr.nbytes + a.indices.nbytes
    assert a.cols.size > 0.9 * a.nnz
    assert a.nbytes <= 2.6 * alone

"""Graphs and features shared by the tests of sparse products."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import scipy.sparse as sp

#: Rows longer than this are summed in pieces.
SEGMENT = 1024
FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
#: Widths: one column, less than a quarter vector, around the vector widths of every instruction set, several blocks, ragged ends.
WIDTHS = [1, 2, 4, 5, 8, 9, 16, 17, 33, 48, 64, 130]


def dtype_of(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def pattern(rows: list[int], cols: int, seed: int = 0) -> sp.csr_array:
    """CSR pattern with the given row lengths and distinct random columns, as float32 ones."""
    rng = np.random.default_rng([seed, cols, len(rows)])
    indptr = np.concatenate(([0], np.cumsum(rows))).astype(np.int32)
    parts = [np.sort(rng.choice(cols, n, replace=False)) for n in rows]
    indices = np.concatenate(parts).astype(np.int32) if parts else np.empty(0, np.int32)
    return sp.csr_array((np.ones(indices.size, np.float32), indices, indptr), shape=(len(rows), cols))


def graphs() -> dict[str, sp.csr_array]:
    """Difficult shapes: without rows, columns or edges, empty rows at both ends, rectangles, hubs around the segment length."""
    rng = np.random.default_rng(1)
    return {
        "no rows": pattern([], 5),
        "no columns": pattern([0, 0, 0], 0),
        "no edges": pattern([0] * 7, 4),
        "one": pattern([1], 1),
        "tall": pattern([0, *rng.integers(0, 3, 60), 0, 0], 2),
        "wide": pattern([3, 0, 200, 1], 900),
        "square": pattern([*rng.integers(0, 12, 80), 0], 81),
        "hubs": pattern([2, 1025, 0, 1024, 3, 2500, 0, 1], 2600),
        "many empty rows": pattern([0] * 2000 + [5] + [0] * 2000, 50),
    }


def features(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Numbers of moderate size; floats include zeros of both signs, and integers the extremes of small dtypes."""
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (
            (limits.min, limits.max) if dtype.itemsize <= 2 else (max(limits.min, -(2**31)), min(limits.max, 2**31 - 1))
        )
        return rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype)
    x = rng.standard_normal(shape)
    kind = rng.integers(0, 10, shape)
    return np.where(kind == 0, 0.0, np.where(kind == 1, -0.0, x)).astype(dtype)


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Assert equal dtype, shape and bits; any NaN equals any other."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype.kind in "biu":
        assert np.array_equal(got, want)
        return
    nan = np.isnan(got)
    assert np.array_equal(nan, np.isnan(want))
    as_bits = f"u{got.dtype.itemsize}"
    assert np.array_equal(got.view(as_bits)[~nan], want.view(as_bits)[~nan])

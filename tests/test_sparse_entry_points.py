"""The compiled sparse functions must answer hostile arguments with a clear error or a right result, and never crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_inputs import pattern

from bitsparse._ext import sddmm as sddmm_ext
from bitsparse._ext import spmm as spmm_ext

ROWS, COLS, WIDTH = 6, 9, 5
#: Enough rounds to combine every kind of damage with every other.
ROUNDS = 3000


RUN = (0, 2)  # level and threads


@pytest.fixture(params=(2, 4), ids=("avx2", "best"), autouse=True)
def _level(request) -> None:
    """Run every test at two SIMD levels, or at the next lower ones that the processor has."""
    global RUN
    RUN = (request.param, 2)


def flat(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def arrays(seed: int = 0, index: type = np.int32) -> tuple[np.ndarray, np.ndarray]:
    graph = pattern([2, 0, 5, 1, 9, 3], COLS, seed)
    return graph.indptr.astype(index), graph.indices.astype(index)


def call_spmm(indptr: np.ndarray, indices: np.ndarray | None, **changes) -> np.ndarray:
    wide = indptr.dtype.itemsize == 8
    nnz = 20
    given = {
        "shape": (ROWS, COLS),
        "nnz": nnz,
        "load": 0,
        "x": flat(np.ones((COLS, WIDTH), np.float32)),
        "layout": (WIDTH * 4, WIDTH * 4, WIDTH * 4, 1, WIDTH),
        "bits": 1,
        "encoding": 0,
        "values": None,
        "value_heads": 1,
        "row_scale": None,
        "col_scale": None,
        "affine": 0,
        "scale": None,
        "offset": None,
        "out": np.zeros(ROWS * WIDTH * 4, np.uint8),
    } | changes
    out: Any = given.pop("out")
    order = ("shape", "nnz", "load")
    head = [given.pop(name) for name in order]
    spmm_ext.spmm(
        RUN,
        flat(indptr),
        None if indices is None else flat(indices),
        wide,
        *head,
        0,
        *given.values(),
        out,
        0,
    )
    return out


ONE_COLUMN = [
    {
        "load": load,
        "x": flat(np.ones(COLS, dtype)),
        "layout": (dtype().itemsize, dtype().itemsize, dtype().itemsize, 1, 1),
        "values": values,
        "out": np.zeros(ROWS * dtype().itemsize, np.uint8),
    }
    for load, dtype in ((0, np.float32), (8, np.float64))
    for values in (None, flat(np.ones(20, dtype)))
]


def attempt(call, *args, **kwargs) -> bool:
    """Return whether the call ran; any exception but those that are expected fails the test."""
    try:
        call(*args, **kwargs)
    except (ValueError, OverflowError, TypeError, MemoryError):
        return False
    return True


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_damaged_csr_arrays_are_refused_or_harmless(index: type) -> None:
    """Kernels must notice nasty integers that overwrite random positions of indptr and indices."""
    rng = np.random.default_rng(1)
    limits = np.iinfo(index)
    nasty = np.array([0, 1, -1, 8, 9, 19, 20, 21, 2**31 - 1, -(2**31), limits.max, limits.min, limits.max - 1], index)
    ran = 0
    for seed in range(ROUNDS):
        indptr, indices = arrays(seed % 7, index)
        for damaged in rng.choice(2, 1 + seed % 2, replace=False):
            victim = (indptr, indices)[damaged]
            victim[rng.integers(0, victim.size, 1 + seed % 3)] = rng.choice(nasty)
        lengths = np.diff(indptr.astype(object))
        valid = indptr[0] == 0 and indptr[-1] == 20 and min(lengths) >= 0
        inside = bool(((indices >= 0) & (indices < COLS)).all())
        got = attempt(call_spmm, indptr, indices)
        assert got == (valid and inside)
        for changes in ONE_COLUMN:  # short rows have a kernel of their own
            assert attempt(call_spmm, indptr, indices, **changes) == got
        ran += got
        x, y = flat(np.ones((ROWS, WIDTH), np.float32)), flat(np.ones((COLS, WIDTH), np.float32))
        wide = index is np.int64
        out = np.zeros(20 * 4, np.uint8)
        head = (RUN, flat(indptr), flat(indices), wide, (ROWS, COLS), 20)
        assert attempt(sddmm_ext.sddmm, *head, 0, 0, x, y, 1, WIDTH, out) == (valid and inside)
        scores = flat(np.ones(20, np.float32))
        assert attempt(sddmm_ext.edge_softmax, RUN, flat(indptr), wide, ROWS, 20, False, scores, 1, out) == valid
        source, target = flat(np.ones(COLS, np.float32)), flat(np.ones(ROWS, np.float32))
        layout = (WIDTH * 4, WIDTH * 4, WIDTH * 4, 1, WIDTH)
        summed, each = (np.zeros(ROWS * n * 4, np.uint8) for n in (WIDTH, 1))
        for turned, drop in ((False, None), (False, (1 << 31, 2.0, 1)), (True, None), (True, (1 << 31, 2.0, 1))):
            ends = np.tile(source, 3) if turned else source
            how = (0.2, drop, turned, summed, None if turned else each.copy(), each, summed.copy(), 0)
            assert attempt(spmm_ext.attention, *head, 0, y, layout, ends, target, *how) == (valid and inside)
        assert attempt(spmm_ext.longest_row, flat(indptr), wide, ROWS, 20) == valid
    assert 0 < ran < ROUNDS


#: Arguments after the features: scores of three rows, slope, dropout, direction, result, sums (none), and columns at a time.
ATTENDED = (flat(np.ones(3, np.float32)), 0.2, None, False, np.zeros(12, np.uint8), None, None, None, 0)


def test_damaged_long_rows() -> None:
    """Bad columns must be found in long rows too, whose softmax reads columns in a pass of its own."""
    graph = pattern([3, 2200, 1], 2300)
    x = flat(np.ones((2300, 1), np.float32))
    for place in (0, 4, 1500, 2203):
        for value in (-1, 2300, 2**31 - 1):
            indices = graph.indices.copy()
            indices[place] = value
            head = (RUN, flat(graph.indptr), flat(indices), False, graph.shape, graph.nnz, 0)
            with pytest.raises(ValueError, match="column outside"):
                spmm_ext.attention(*head, x, (4, 4, 4, 1, 1), x, *ATTENDED)
            with pytest.raises(ValueError, match="column outside"):
                spmm_ext.attention(*head, x, (4, 4, 4, 1, 1), np.tile(x, 3), *ATTENDED[:3], True, *ATTENDED[4:])
            with pytest.raises(ValueError, match="column outside"):
                spmm_ext.spmm(
                    *head,
                    0,
                    x,
                    (4, 4, 4, 1, 1),
                    1,
                    0,
                    None,
                    1,
                    None,
                    None,
                    0,
                    None,
                    None,
                    np.zeros(12, np.uint8),
                    0,
                )


def test_one_column_of_wider_rows() -> None:
    x, out = np.arange(6, dtype=np.float32), np.zeros(2, np.float32)
    graph = flat(np.array([0, 2, 3], np.int32)), flat(np.array([0, 2, 1], np.int32)), False, (2, 3), 3
    layout = (8, 4, 4, 1, 1)
    spmm_ext.spmm(RUN, *graph, 0, 0, flat(x), layout, 1, 0, None, 1, None, None, 0, None, None, flat(out), 0)
    assert out.tolist() == [4, 2]


WRONG = [
    {"nnz": 19},
    {"nnz": -1},
    {"nnz": 2**62},
    {"shape": (ROWS + 1, COLS)},
    {"shape": (-1, COLS)},
    {"shape": (ROWS, 2**61)},
    {"shape": (ROWS, COLS + 1)},
    {"load": -1},
    {"load": 17},
    {"load": 8},
    {"load": 7, "bits": 3},
    {"encoding": 3},
    {"x": np.zeros(COLS * WIDTH * 4 - 1, np.uint8)},
    {"x": np.zeros(0, np.uint8)},
    {"layout": (WIDTH * 4, WIDTH * 4, WIDTH * 4, 2, WIDTH)},
    {"layout": (WIDTH * 4 - 1, WIDTH * 4, WIDTH * 4, 1, WIDTH)},
    {"layout": (WIDTH * 4, WIDTH * 4, WIDTH * 4 - 1, 1, WIDTH)},
    {"layout": (-4, WIDTH * 4, WIDTH * 4, 1, WIDTH)},
    {"layout": (2**59, 2**59, 2**59, 1, WIDTH)},
    {"layout": (WIDTH * 4, WIDTH * 4, WIDTH * 4, 2**40, 2**40)},
    {"layout": (WIDTH * 4, WIDTH * 4, WIDTH * 4)},
    {"values": np.zeros(20 * 4 - 4, np.uint8)},
    {"values": np.zeros(20 * 4, np.uint8), "value_heads": 2},
    {"values": np.zeros(20 * 4, np.uint8), "value_heads": 0},
    {"row_scale": np.zeros(ROWS * 4 + 4, np.uint8)},
    {"col_scale": np.zeros(ROWS * 4, np.uint8)},
    {"affine": 3},
    {"affine": 1, "scale": np.zeros(WIDTH * 4, np.uint8), "offset": np.zeros(COLS * 4, np.uint8)},
    {"affine": 2, "scale": np.zeros(WIDTH * 4, np.uint8), "offset": np.zeros(COLS * 4, np.uint8)},
    {"out": np.zeros(ROWS * WIDTH * 4 - 4, np.uint8)},
    {"out": np.zeros(ROWS * WIDTH * 4 + 1, np.uint8)[1:]},
]


@pytest.mark.parametrize("changes", WRONG, ids=lambda c: ", ".join(c))
def test_wrong_sizes_raise(changes: dict) -> None:
    indptr, indices = arrays()
    assert attempt(call_spmm, indptr, indices)
    assert not attempt(call_spmm, indptr, indices, **changes)


def test_edges_as_columns_must_fit() -> None:
    indptr, _ = arrays()
    assert not attempt(call_spmm, indptr, None)  # 20 edges, 9 columns


def test_unaligned_buffers_raise() -> None:
    _, indices = arrays()
    shifted = np.zeros(indices.nbytes + 1, np.uint8)[1:]
    shifted[:] = flat(indices)
    with pytest.raises(ValueError, match="not aligned"):
        spmm_ext.longest_row(shifted, False, 19, 20)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": 4},
        {"op": 3},
        {"heads": -1},
        {"width": WIDTH + 1},
        {"width": 2**50},
        {"out": 4},
        {"x": 4},
        {"indices": None},
    ],
    ids=lambda c: ", ".join(c),
)
def test_wrong_sddmm_arguments_raise(changes: dict) -> None:
    indptr, indices = arrays()

    def call(dtype=0, op=0, heads=1, width=WIDTH, out=80, x=ROWS * WIDTH * 4, **rest) -> None:
        columns = rest.get("indices", flat(indices))
        y = np.zeros(COLS * WIDTH * 4, np.uint8)
        sddmm_ext.sddmm(
            RUN,
            flat(indptr),
            columns,
            False,
            (ROWS, COLS),
            20,
            dtype,
            op,
            np.zeros(x, np.uint8),
            y,
            heads,
            width,
            np.zeros(out, np.uint8),
        )

    assert attempt(call)
    assert not attempt(call, **changes)

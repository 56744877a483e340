"""The builders beyond the shared table: one result on every path and thread count, errors for hostile input, bounded memory."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cases_sparse import PATTERNS, as_int64, disordered, random_pattern, scipy_of

from bitsparse._ext import build as ext
from bitsparse.backends.host.settings import get_num_threads, set_num_threads
from bitsparse.backends.host.sparse import build, entries
from bitsparse.backends.reference.sparse import build as reference

#: The total number of hostile inputs; continuous integration raises it.
FUZZ = int(os.environ.get("BITSPARSE_FUZZ", "20000"))


def raw(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


# ---- the same result on every path
@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("name", [*PATTERNS, "large"])
def test_threads_and_ways_to_the_cells_do_not_change_a_bit(name: str, wide: bool) -> None:
    pattern = random_pattern(3000, 2500, 0.007, 9) if name == "large" else PATTERNS[name]()
    indptr, indices, (m, n) = as_int64(pattern) if wide else pattern
    csr = (raw(indptr), raw(indices), wide, m, n)
    for entry, options in ((ext.translate, (16,)), (ext.translate, (5,)), (ext.frdc, ()), (ext.tile_starts, (16, 3))):
        answers = [
            entry(*csr, *options, spread, (level, threads))
            for spread in (-1, 0, 12, 62)
            for level in (0, 1, 3)
            for threads in (1, 2, 5)
        ]
        for other in answers[1:]:
            assert len(other) == len(answers[0])
            for got, want in zip(other, answers[0], strict=True):
                assert np.array_equal(got, want)


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("columns", [40, 5_000, 60_000, 2**24 - 1, 2**24])
def test_windows_of_few_and_of_many_entries(columns: int, wide: bool) -> None:
    """Windows must be right at and above each size that is sorted in registers, and for columns that do and do not fit into a sort key."""
    rng = np.random.default_rng(3)
    counts = (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 640, 3, 300)
    flat = []
    for window, count in enumerate(counts):
        size = min(count, 16 * columns)
        some = np.sort(rng.choice(16 * columns - 1, max(size - 1, 0), replace=False))
        flat.append(np.append(some, 16 * columns - 1)[:size] + 16 * columns * window)  # the last column as well
    shape = (16 * len(counts) - 5, columns)
    places = np.concatenate(flat)
    rows, cols = np.divmod(places[places < shape[0] * columns], columns)
    index = np.int64 if wide else np.int32
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))]).astype(index)
    indices = cols.astype(index)
    csr = (raw(indptr), raw(indices), wide, *shape)
    for entry, options, want in (
        (ext.translate, (16,), reference.translate(indptr, indices, shape, 16)),
        (ext.translate, (7,), reference.translate(indptr, indices, shape, 7)),
        (ext.frdc, (), reference.frdc(indptr, indices, shape)),
        (ext.tile_starts, (16, 3), (reference.tile_starts(indptr, indices, shape, 16, 8),)),
    ):
        for spread, level in itertools.product((-1, 12, 30), (0, 1, 3)):
            made = entry(*csr, *options, spread, (level, 2))
            for got, expected in zip(made if isinstance(made, tuple) else (made,), want, strict=True):
                assert got.dtype == expected.dtype
                assert np.array_equal(got, expected)


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("shape", [(900, 700), (700, 900), (3000, 80_000), (400, 400)], ids=str)
@pytest.mark.parametrize("symmetric", [False, True], ids=["any", "symmetric"])
def test_transposes_of_many_entries_are_those_of_scipy(shape: tuple[int, int], wide: bool, symmetric: bool) -> None:
    """Transposes must be right at once and by ranges of columns, on one thread and on several, with values and without."""
    rng = np.random.default_rng(4)
    if symmetric:
        shape = (shape[0], shape[0])
    flat = np.unique(rng.integers(0, shape[0] * shape[1], 40_000))
    graph = sp.csr_array((np.ones(flat.size), (flat // shape[1], flat % shape[1])), shape=shape)
    if symmetric:
        graph = (graph + graph.T).tocsr()
    index = np.int64 if wide else np.int32
    indptr, indices = graph.indptr.astype(index), graph.indices.astype(index)
    graph = sp.csr_array((np.arange(indices.size), indices, indptr), shape=shape)
    want = graph.T.tocsr()
    before = get_num_threads()
    try:
        for threads in (1, 2, 5):
            set_num_threads(threads)
            starts, rows, order = build.transpose_csr(indptr, indices, shape)
            assert (starts is indptr) == symmetric
            for got, expected in zip((starts, rows, order), (want.indptr, want.indices, want.data), strict=True):
                assert got.dtype == index
                assert np.array_equal(got, expected)
            for dtype, heads in (("i1", ()), ("u2", ()), ("f4", ()), ("f8", ()), ("f4", (3,)), ("f4", (0,))):
                values = rng.integers(0, 99, (indices.size, *heads)).astype(dtype)
                starts, rows, _, moved = build.transpose_both(indptr, indices, values, shape)
                assert moved is not None
                assert moved.dtype == values.dtype
                assert np.array_equal(moved, values[want.data])
                assert np.array_equal(starts, want.indptr)
                assert np.array_equal(rows, want.indices)
            assert build.transpose_both(indptr, indices, None, shape)[3] is None
    finally:
        set_num_threads(before)


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("columns", [300, 2_000_000])
def test_sums_of_many_entries_are_those_of_scipy(columns: int, wide: bool) -> None:
    """Sums must be right if counted by each column's last row and, if columns outnumber entries, by merging, on any number of threads."""
    rng = np.random.default_rng(7)
    pair = []
    for _ in range(2):
        rows, cols = rng.integers(0, 500, 40_000), rng.integers(0, columns, 40_000) // 3 * 3
        made = sp.csr_array((rng.integers(-2, 3, 40_000).astype(np.float32), (rows, cols)), shape=(500, columns))
        made.sum_duplicates()
        pair.append(made)
    index = np.int64 if wide else np.int32
    left, right = ((one.indptr.astype(index), one.indices.astype(index), one.data) for one in pair)
    before = get_num_threads()
    try:
        for subtract, want in ((False, pair[0] + pair[1]), (True, pair[0] - pair[1])):
            for threads in (1, 2, 5):
                set_num_threads(threads)
                starts, cols, values, zeros = entries.merge(left, right, columns, subtract)
                assert zeros == np.count_nonzero(values == 0)
                got = sp.csr_array((values, cols, starts), shape=want.shape)
                assert got.has_canonical_format
                got.eliminate_zeros()
                for part, expected in zip(
                    (got.indptr, got.indices, got.data), (want.indptr, want.indices, want.data), strict=True
                ):
                    assert np.array_equal(part, expected)
    finally:
        set_num_threads(before)


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("columns", [63, 300, 5_000_000])
def test_products_of_patterns_are_those_of_scipy(columns: int, wide: bool) -> None:
    """Products must be right with columns found in all bits or, if few are set, by the levels above them, on any number of threads."""
    rng = np.random.default_rng(8)
    pair = []
    for rows, cols, count in ((500, 400, 40_000), (400, columns, 5_000)):
        places = rng.integers(0, rows, count), rng.integers(0, cols, count)
        pair.append(sp.csr_array((np.ones(count, np.bool_), places), shape=(rows, cols)))
        pair[-1].sum_duplicates()
    want = (pair[0] @ pair[1]).sorted_indices()
    index = np.int64 if wide else np.int32
    left, right = ((one.indptr.astype(index), one.indices.astype(index)) for one in pair)
    before = get_num_threads()
    try:
        for threads in (1, 2, 5):
            set_num_threads(threads)
            starts, found = entries.product(left, right, columns)
            assert starts.dtype == found.dtype == index
            assert np.array_equal(starts, want.indptr) and np.array_equal(found, want.indices)
    finally:
        set_num_threads(before)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rows_that_are_picked_are_looked_at(dtype: Any) -> None:
    """Rows that would begin or end outside of the entries, or end before they begin, must be refused."""
    good, least = [0, 2, 3], np.iinfo(dtype).min
    for indptr in ([-1, 2, 3], [0, 2, 4], [3, 2, 3], [0, least, 3], [least, least, 3], [0, np.iinfo(dtype).max, 3]):
        with pytest.raises(ValueError, match="never fall"):
            entries.take_rows(np.array(indptr, dtype), np.zeros(3, dtype), None, np.array([1, 0]))
    assert entries.take_rows(np.array(good, dtype), np.arange(3, dtype=dtype), None, np.array([1, 0]))[1].tolist() == [
        2,
        0,
        1,
    ]


def test_results_do_not_depend_on_how_arrays_lie_in_memory() -> None:
    indptr, indices, shape = PATTERNS["random"]()
    want = build.translate(indptr, indices, shape, 16)
    spaced = np.zeros(2 * indices.size, np.int32)
    spaced[::2] = indices
    bytes_ = np.zeros(indptr.nbytes + 1, np.uint8)
    unaligned = bytes_[1:].view(np.int32)
    unaligned[...] = indptr
    indices.flags.writeable = False
    for got, expected in zip(build.translate(unaligned, spaced[::2], shape, 16), want, strict=True):
        assert np.array_equal(got, expected)
    for got, expected in zip(
        ext.frdc(unaligned.view(np.uint8), raw(indices), False, *shape, 12, (2, 1)),
        ext.frdc(raw(indptr), raw(indices), False, *shape, 12, (2, 1)),
        strict=True,
    ):
        assert np.array_equal(got, expected)
    shifted = np.zeros(indices.nbytes + 1, np.uint8)[1:]
    with pytest.raises(ValueError, match="not aligned"):
        ext.check_csr(raw(indptr), shifted, False, *shape, (0, 1))


@pytest.mark.parametrize("name", PATTERNS)
def test_tiles_are_those_of_scipy(name: str) -> None:
    pattern = PATTERNS[name]()
    shape = pattern[2]
    if shape[1] > 10_000 or 0 in shape:
        assert reference.frdc(*pattern)[2].size == build.frdc(*pattern)[2].size
        return
    dense = scipy_of(pattern).toarray()
    padded = np.zeros((-(-shape[0] // 4) * 4, -(-shape[1] // 4) * 4), np.int64)
    padded[: shape[0], : shape[1]] = dense
    blocks = padded.reshape(padded.shape[0] // 4, 4, -1, 4).transpose(0, 2, 1, 3).reshape(-1, 16) @ (1 << np.arange(16))
    tiles = build.frdc(*pattern)[2]
    assert np.array_equal(tiles, blocks[blocks != 0])


# ---- hostile CSR, by name
def good() -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    return np.array([0, 2, 3, 5], np.int32), np.array([0, 4, 2, 1, 3], np.int32), (3, 5)


HOSTILE = {
    "falls": lambda p, i: (np.array([0, 3, 2, 5], p.dtype), i),
    "starts late": lambda p, i: (np.array([1, 2, 3, 5], p.dtype), i),
    "negative": lambda p, i: (np.array([0, -2, 3, 5], p.dtype), i),
    "beyond the indices": lambda p, i: (np.array([0, 2, 3, 2**31 - 1], p.dtype), i),
    "overflows in the middle": lambda p, i: (np.array([0, 2**31 - 1, 3, 5], p.dtype), i),
    "ends early": lambda p, i: (np.array([0, 2, 3, 4], p.dtype), i),
    "too few rows": lambda p, i: (p[:-1], i),
    "too many rows": lambda p, i: (np.append(p, p[-1:]), i),
    "no indptr": lambda p, i: (p[:0], i),
    "indices truncated": lambda p, i: (p, i[:-1]),
    "no indices": lambda p, i: (p, i[:0]),
    "negative index": lambda p, i: (p, np.array([0, 4, -2, 1, 3], p.dtype)),
    "index too large": lambda p, i: (p, np.array([0, 5, 2, 1, 3], p.dtype)),
    "huge index": lambda p, i: (p, np.array([0, np.iinfo(p.dtype).max, 2, 1, 3], p.dtype)),
    "lowest index": lambda p, i: (p, np.array([np.iinfo(p.dtype).min, 4, 2, 1, 3], p.dtype)),
}


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_csr_is_refused(what: str, wide: bool) -> None:
    indptr, indices, shape = as_int64(good()) if wide else good()
    indptr, indices = HOSTILE[what](indptr, indices)
    for function, more in (
        (build.validate_csr, ()),
        (build.translate, (16,)),
        (build.frdc, ()),
        (build.csr_to_words, ()),
        (build.tile_starts, (16, 8)),
    ):
        with pytest.raises(ValueError, match=r"indptr|index|indices|entries"):
            function(indptr, indices, shape, *more)


def test_messages_name_the_place() -> None:
    indptr, indices, shape = good()
    with pytest.raises(ValueError, match="row 1 holds a column index"):
        build.frdc(indptr, np.array([0, 4, 9, 1, 3], np.int32), shape)
    with pytest.raises(ValueError, match="breaks at entry 2"):
        build.frdc(np.array([0, 3, 2, 5], np.int32), indices, shape)
    with pytest.raises(ValueError, match="row 2 holds the same column twice"):
        build.translate(indptr, np.array([0, 4, 2, 3, 3], np.int32), shape, 16)
    with pytest.raises(ValueError, match="of row 2 are not ascending"):
        build.translate(indptr, np.array([0, 4, 2, 3, 1], np.int32), shape, 16)
    with pytest.raises(ValueError, match="all be int32 or all int64"):
        build.frdc(indptr, indices.astype(np.int64), shape)
    with pytest.raises(ValueError, match="window is 17"):
        build.translate(indptr, indices, shape, 17)
    with pytest.raises(ValueError, match="power of two"):
        build.tile_starts(indptr, indices, shape, 16, 12)


def test_sizes_are_checked_before_they_are_used() -> None:
    indptr, indices, _ = good()
    csr = (raw(indptr), raw(indices))
    for sizes in ((-1, 5), (3, -1), (2**31, 5), (3, 2**31), (2**80, 5), (3, 2**80)):
        with pytest.raises(ValueError, match="number of"):
            ext.check_csr(*csr, False, *sizes, (0, 1))
    for threads in (0, -1, 4097, 2**40):
        with pytest.raises(ValueError, match="threads"):
            ext.check_csr(*csr, False, 3, 5, (0, threads))
    with pytest.raises(ValueError, match="no multiple"):
        ext.check_csr(csr[0][:-1], csr[1], False, 3, 5, (0, 1))
    with pytest.raises(ValueError, match="width"):
        ext.csr_to_words(*csr, False, 3, 5, 0, 1)
    with pytest.raises(ValueError, match="truncated"):
        ext.words_to_csr(np.zeros(4, np.uint8), False, 2**30, 5, 4, 1)
    with pytest.raises(ValueError, match="negative or beyond"):
        build.words_to_csr(np.array([[[0, 0, 1, 0]]], np.uint32), (1, 33), np.int32)


# ---- fuzzing
def mutated(rng: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays with one to three damages to their entries, lengths or order."""
    arrays = [array.copy() for array in arrays]
    for _ in range(int(rng.integers(1, 4))):
        k = int(rng.integers(len(arrays)))
        array = arrays[k]
        how = int(rng.integers(6))
        limits = np.iinfo(array.dtype)
        if how == 0 and array.size:
            array.flat[rng.integers(array.size)] = rng.integers(
                limits.min, limits.max, dtype=array.dtype, endpoint=True
            )
        elif how == 1 and array.size:
            at = rng.integers(array.size)
            array.flat[at] = min(max(int(array.flat[at]) + int(rng.integers(-3, 4)), int(limits.min)), int(limits.max))
        elif how == 2 and array.size:
            array.flat[rng.integers(array.size)] = rng.choice(np.array([limits.min, limits.max, 0, 1], array.dtype))
        elif how == 3:
            arrays[k] = array[: int(rng.integers(len(array) + 1))].copy()
        elif how == 4:
            arrays[k] = np.append(
                array, array[-1:] if array.size else np.zeros(1, array.dtype), axis=0 if array.size else None
            )
        else:
            rng.shuffle(array)
    return arrays


def read_back(
    cols_indptr: np.ndarray, cols: np.ndarray, edge_col: np.ndarray, indptr: np.ndarray, window: int
) -> list[np.ndarray]:
    """Return the pattern that a translation was made from."""
    rows = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
    at = cols_indptr[rows // window].astype(np.int64) + edge_col
    return [indptr, cols[at] if cols.size else cols]


def there_and_back(
    what: str, given: list[np.ndarray], shape: tuple[int, int], window: int
) -> Iterator[Callable[[], Any]]:
    """Yield calls that return arrays equal to `given`, or raise."""
    if what == "csr":
        yield lambda: build.frdc_to_csr(*build.frdc(*given, shape), shape)
        yield lambda: read_back(*build.translate(*given, shape, window), given[0], window)
        yield lambda: given if build.tile_starts(*given, shape, window, 8).size else []
        if shape[1] < 10_000:
            yield lambda: build.words_to_csr(build.csr_to_words(*given, shape), shape, given[0].dtype)
    elif what == "frdc":
        yield lambda: build.frdc(*build.frdc_to_csr(*given, shape), shape)
    else:
        yield lambda: [build.csr_to_words(*build.words_to_csr(given[0], shape, np.int32), shape)]


def well_formed(
    what: str, indptr: np.ndarray, indices: np.ndarray, shape: tuple[int, int], window: int
) -> list[np.ndarray]:
    """Return the arrays of a pattern in one format."""
    if what == "csr":
        return [indptr, indices]
    if what == "frdc":
        return list(build.frdc(indptr, indices, shape))
    return [build.csr_to_words(indptr, indices, shape)]


def hostile_inputs(what: str, count: int) -> tuple[int, int]:
    """Return the numbers of (refused, accepted) calls: each must raise ValueError, or its arrays must be canonical after all."""
    rng = np.random.default_rng(sum(map(ord, what)))
    refused = accepted = 0
    patterns = [PATTERNS[name]() for name in ("corner", "full", "identity", "hub", "random-thin", "wide", "panels")]
    for turn in range(count):
        pattern = patterns[turn % (6 if what == "words" else 7)]
        indptr, indices, shape = as_int64(pattern) if rng.random() < 0.5 else pattern
        window = int(rng.integers(1, 17))
        given = mutated(rng, well_formed(what, indptr, indices, shape, window))
        sizes = [int(max(0, size + rng.integers(-1, 2))) if rng.random() < 0.3 else size for size in shape]
        for call in there_and_back(what, given, (sizes[0], sizes[1]), window):
            try:
                back = call()
            except ValueError:
                refused += 1
            else:
                accepted += 1
                for one, other in zip(back, given, strict=True):
                    assert np.array_equal(one.reshape(-1), other.reshape(-1))
    return refused, accepted


@pytest.mark.parametrize("what", ["csr", "frdc", "words"])
def test_damaged_arrays_are_refused_or_harmless(what: str, host) -> None:
    calls = 0
    for threads, count in ((1, FUZZ // 4), (2, FUZZ // 100)):
        host.set_num_threads(threads)
        refused, accepted = hostile_inputs(what, count)
        assert refused > count // 2
        calls += refused + accepted
    assert calls >= FUZZ // 4


def test_random_bytes(host) -> None:
    """Random bytes, lengths, sizes and flags, not even of the right shape, must be harmless at every entry point."""
    rng = np.random.default_rng(5)
    calls = refused = 0
    for _ in range(FUZZ // 10):
        parts = [rng.integers(0, 256, 4 * int(rng.integers(0, 9)), np.uint8) for _ in range(6)]
        for part in parts:
            part[rng.random(part.size) < 0.8] = 0
        sizes = [int(rng.integers(0, 9)) for _ in range(2)]
        wide, window, threads = bool(rng.integers(2)), int(rng.integers(0, 18)), int(rng.integers(0, 4))
        spread, level = int(rng.integers(-2, 64)), int(rng.integers(0, 4))
        for entry, arguments in (
            (ext.check_csr, (*parts[:2], wide, *sizes, (level, threads))),
            (ext.translate, (*parts[:2], wide, *sizes, window, spread, (level, threads))),
            (ext.frdc, (*parts[:2], wide, *sizes, spread, (level, threads))),
            (ext.tile_starts, (*parts[:2], wide, *sizes, window, 3, spread, (level, threads))),
            (ext.unfrdc, (*parts[:3], wide, *sizes, threads)),
            (ext.csr_to_words, (*parts[:2], wide, *sizes, window, threads)),
            (ext.words_to_csr, (parts[0], wide, *sizes, window, threads)),
        ):
            calls += 1
            try:
                entry(*arguments)
            except ValueError:
                refused += 1
    assert calls == FUZZ // 10 * 7
    assert refused > calls // 4


def test_disordered_rows_are_recognised() -> None:
    for name in ("full", "hub", "random"):
        indptr, indices, shape = disordered(PATTERNS[name]())
        assert build.validate_csr(indptr, indices, shape) == "unsorted"
        order = np.concatenate([np.sort(indices[a:b]) for a, b in pairwise(indptr)])
        assert build.validate_csr(indptr, order, shape) == "duplicates"


# ---- memory
MEMORY = """
import resource, sys
import numpy as np
from bitsparse.backends.host.sparse import build
m, degree = 200_000, 30
rng = np.random.default_rng(0)
near = np.sort((np.arange(m)[:, None] + rng.integers(0, 4000, (m, degree))) % m, axis=1)
near = near.astype(np.int32)
kept = np.ones((m, degree), bool)
kept[:, 1:] = near[:, 1:] != near[:, :-1]
indices = near[kept]
indptr = np.concatenate([[0], np.cumsum(kept.sum(1))]).astype(np.int32)
del near, kept
build.validate_csr(indptr, indices, (m, m))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def now():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
# The peak counts for ever: hold memory up to it first, so that what follows shows.
fill = np.ones(max(peak() - now(), 0) + (8 << 20), np.uint8)
del fill
base, fill = now(), None
fill = np.ones(max(peak() - now(), 0), np.uint8)
before = peak()
if sys.argv[1] == "translate":
    made = build.translate(indptr, indices, (m, m), 16)
else:
    made = build.frdc(indptr, indices, (m, m))
output = sum(part.nbytes for part in made)
print(peak() - before, output, indices.nbytes + indptr.nbytes)
"""


@pytest.mark.parametrize("what", ["translate", "frdc"])
def test_peak_memory_stays_near_input_plus_output(what: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY, what], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    grown, output, given = map(int, done.stdout.split())
    assert grown <= output + 0.2 * (given + output), f"{grown:,} bytes more at the peak for an output of {output:,}"

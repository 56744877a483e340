"""Functions of entries of CSR arrays on the GPU give the reference's and the host's arrays bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cases_sparse import PATTERNS, as_int64, specs
from launches import launches

from bitsparse import backends
from bitsparse.backends.host.sparse import entries as host
from bitsparse.backends.reference.sparse import entries as reference

pytestmark = pytest.mark.gpu

INDICES = pytest.mark.parametrize("index", [np.int32, np.int64], ids=["int32", "int64"])
DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"]


def up(x: Any) -> Any:
    import cupy

    return cupy.asarray(x) if isinstance(x, np.ndarray) else x


def gpu(name: str = "sparse.entries") -> Any:
    return backends.family("cuda:0", name)


def same(got: Any, want: Any) -> None:
    """Assert equal bits, dtype and shape."""
    if want is None:
        assert got is None
    elif isinstance(want, tuple):
        for one, other in zip(got, want, strict=True):
            same(one, other)
    elif not isinstance(want, np.ndarray):
        assert got == want
    else:
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert got.get().tobytes() == np.ascontiguousarray(want).tobytes()


def ragged(lengths: list[int], cols: int, index: Any = np.int32, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A pattern with the given number of entries in each row."""
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    rows = [np.sort(rng.choice(cols, length, replace=False)) for length in lengths]
    return indptr, np.concatenate([*rows, np.empty(0)]).astype(index)


def numbers(count: int, dtype: str, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return (rng.normal(size=count) * np.exp(rng.normal(size=count) * 6)).astype(dtype)
    if dtype == "bool":
        return rng.random(count) < 0.5
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, count, dtype, endpoint=True)


# On a GPU, other functions merge and multiply two arrays.
@pytest.mark.parametrize(
    "spec",
    [spec for spec in specs() if spec[0] == "sparse.entries" and spec[1] not in ("merge", "product")],
    ids=lambda spec: f"{spec[1]}-{spec[2]}",
)
def test_the_shared_table(spec: Any) -> None:
    _, name, _, make = spec
    args, kwargs = make()
    want = getattr(reference, name)(*args, **kwargs)
    same(getattr(gpu(), name)(*map(up, args), **kwargs), want)
    if name != "gather" and len(args[0]):
        wide = tuple(x.astype(np.int64) if isinstance(x, np.ndarray) and x.dtype == np.int32 else x for x in args)
        same(getattr(gpu(), name)(*map(up, wide), **kwargs), getattr(reference, name)(*wide, **kwargs))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "float64"])
@pytest.mark.parametrize("width", [0, 1, 2, 4, 7, 12])
def test_items_are_gathered_whole_wherever_they_begin(dtype: str, width: int) -> None:
    """Items must be gathered whole; those that are multiples of eight bytes are moved in eights unless they are unaligned."""
    rows = numbers(9 * width + 1, dtype)
    order = np.array([8, 0, 0, 3, 7])
    for first in (0, 1):
        taken = (
            rows[first : first + 8 * width + width * (1 - first)].reshape(-1, width)
            if width
            else rows[:0].reshape(9, 0)
        )
        index = order % max(1, len(taken))
        on_device = up(rows)[first : first + taken.size].reshape(taken.shape)
        same(gpu().gather(on_device, up(index)), host.gather(np.ascontiguousarray(taken), index))


# ---- sums
#: Lengths below, at and above the one from which a whole block sums a row, rows of several chunks, and remainders of all sizes.
LENGTHS = [0, 1, 7, 8, 9, 511, 512, 513, 519, 0, 2047, 2048, 2049, 5000, *range(70)]


@INDICES
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_rows_are_the_hosts_bits(dtype: str, index: Any) -> None:
    indptr = np.concatenate([[0], np.cumsum(LENGTHS)]).astype(index)
    values = numbers(int(indptr[-1]), dtype)
    with np.errstate(over="ignore"):
        want = host.row_sums(indptr, values)
    same(gpu().row_sums(up(indptr), up(values)), want)
    same(gpu().row_sums(up(indptr), up(values)), want)
    same(gpu().row_sums(up(indptr[:1]), up(values)), want[:0])


def test_more_rows_than_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer blocks than rows, blocks must take several rows each."""
    from bitsparse.backends.cuda.sparse import entries, merge

    monkeypatch.setattr(entries, "_MOST_BLOCKS", 2)
    indptr, indices = ragged([*LENGTHS, 600, 3] * 3, 6000)
    values = numbers(indices.size, "float32")
    mask = numbers(indices.size, "bool")
    same(gpu().row_sums(up(indptr), up(values)), host.row_sums(indptr, values))
    device = tuple(map(up, (indptr, indices, values)))
    same(gpu().keep(*device, up(mask)), host.keep(indptr, indices, values, mask))
    same(gpu().take_columns(*device, 30, 1500), host.take_columns(indptr, indices, values, 30, 1500))
    got = merge.merge(device, device, "add", np.float32)
    same(got[:2], (indptr, indices))
    same(got[2], values + values)


# ---- single elements
@INDICES
@pytest.mark.parametrize("k", [0, 1, -1, 7, -40, 39, 200, -200])
def test_diagonals(k: int, index: Any) -> None:
    for shape, lengths in (((60, 45), [*range(30)] * 2), ((0, 5), []), ((5, 0), [0] * 5), ((3, 45), [45, 0, 1])):
        indptr, indices = ragged(lengths, shape[1], index)
        for dtype in ("bool", "int16", "float32", "float64"):
            values = numbers(indices.size, dtype)
            dense = np.zeros(shape, dtype)
            dense[np.repeat(np.arange(shape[0]), lengths), indices] = values
            inside = -shape[0] < k < shape[1]
            want = np.diagonal(dense, k) if inside else np.empty(0, dtype)
            same(gpu().diagonal(up(indptr), up(indices), up(values), shape, k), want)
        stored = np.zeros(shape, np.uint8)
        stored[np.repeat(np.arange(shape[0]), lengths), indices] = 1
        want = np.diagonal(stored, k) if inside else np.empty(0, np.uint8)
        same(gpu().diagonal(up(indptr), up(indices), None, shape, k), want)


def test_items_of_odd_sizes_and_views() -> None:
    """Values that begin in the middle of an allocation, and heads of any width, must be gathered right."""
    for dtype, heads in (("uint8", (3,)), ("uint16", (5,)), ("float32", (2, 3)), ("float64", (3,)), ("float32", (0,))):
        values = np.arange(11 * int(np.prod(heads))).astype(dtype).reshape(11, *heads)
        order = np.array([10, 0, 3, 3], np.int64)
        same(gpu().gather(up(values), up(order)), values[order])
        same(gpu().gather(up(values)[1:], up(order[1:])), values[1:][order[1:]])
        same(gpu().gather(up(values), up(order)[::2]), values[order[::2]])
        same(gpu().gather(up(values), up(order.astype(np.uint16))), values[order])
        indptr, indices = ragged([4, 0, 6], 20)
        picks = np.array([2, 2, 0])
        want = reference.take_rows(indptr, indices, values[1:], picks)
        same(gpu().take_rows(up(indptr), up(indices), up(values)[1:], up(picks)), want)


@INDICES
def test_a_range_of_rows(index: Any) -> None:
    indptr, _ = ragged([3, 0, 5, 1, 700, 2], 900, index)
    for start, stop in ((0, 6), (2, 5), (1, 2), (3, 3), (6, 6), (0, 0)):
        starts, first, last = gpu().row_range(up(indptr), start, stop)
        same(starts, indptr[start : stop + 1] - indptr[start])
        assert (first, last) == (indptr[start], indptr[stop])


def test_too_many_picked_for_int32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices must become int64 if int32 cannot count the entries that were picked."""
    from bitsparse.backends.cuda.sparse import entries

    monkeypatch.setattr(entries, "_largest", lambda index: 9 if index == np.int32 else 1 << 62)
    indptr, indices = ragged([3, 4], 9)
    got = gpu().take_rows(up(indptr), up(indices), None, up(np.array([1, 1, 1])))
    same(got[:2], (np.array([0, 4, 8, 12]), np.tile(indices[3:], 3).astype(np.int64)))


def test_rows_are_checked_while_they_are_counted() -> None:
    """Negative row numbers must count from the end, and rows out of range must be found, as all are in an array without rows."""
    indptr, indices = ragged([4, 0, 6], 20)
    values, picks = numbers(indices.size, "float32"), np.array([2, -1, -3, 1, 0])
    pick = gpu().pick_rows
    arrays = [*map(up, (indptr, indices, values))]
    same(pick(*arrays, up(picks)), reference.take_rows(indptr, indices, values, picks % 3))
    same(pick(*arrays, up(picks)[:0]), reference.take_rows(indptr, indices, values, picks[:0]))
    for wrong in (3, -4, 1 << 40, -(1 << 40)):
        assert pick(*arrays, up(np.array([0, wrong, 1]))) is None
    assert pick(up(indptr[:1]), up(indices[:0]), None, up(np.array([0]))) is None


@INDICES
@pytest.mark.parametrize("rows", [0, 1, 31, 8191, 8192, 8193, 33000])
def test_counts_become_starts(rows: int, index: Any) -> None:
    """Starts must be right for one tile and for several, the last nearly empty, and the sum even if it overflows the starts' dtype."""
    from bitsparse.backends.cuda.sparse.starts import room_for_counts, start_rows

    counts = np.random.default_rng(rows).integers(0, 9, rows)
    starts = room_for_counts(rows, index)
    starts[1:] = up(counts.astype(index))
    assert start_rows(starts) == [counts.sum()]
    same(starts, np.concatenate([[0], np.cumsum(counts)]).astype(index))
    starts[1:] = up(np.full(rows, np.iinfo(np.int32).max, index))
    found = up(np.array([5, 7]))
    assert start_rows(starts, found) == ([rows * np.iinfo(np.int32).max, 7] if rows else [0, 0])


# ---- two arrays
#: The reference: an operation of the dense arrays, or of NumPy's booleans.
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "less": np.less, "greater": np.greater, "not_equal": np.not_equal,
}  # fmt: skip


def dense(pattern: tuple[np.ndarray, np.ndarray], values: np.ndarray, cols: int) -> np.ndarray:
    return sp.csr_array((values, pattern[1], pattern[0]), shape=(pattern[0].size - 1, cols)).toarray()


@INDICES
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_of_two(name: str, dtype: str, index: Any) -> None:
    cols = 400
    one, two = (
        ragged([0, 5, 0, 9, 100, 300, 400, 1, 400], cols, index, 3),
        ragged([0, 0, 7, 9, 300, 90, 399, 400, 400], cols, index, 4),
    )
    left, right = (numbers(part[1].size, dtype, seed) % 3 if dtype[0] in "iu" else numbers(part[1].size, dtype, seed)
                   for part, seed in ((one, 5), (two, 6)))  # fmt: skip
    left, right = left.astype(dtype), right.astype(dtype)
    left[::7], right[::5] = 0, 0
    operation = OPERATIONS[name]
    if dtype == "bool":
        operation = {"subtract": np.not_equal}.get(name, operation)
    with np.errstate(all="ignore"):
        want = operation(dense(one, left, cols), dense(two, right, cols))
    rows, columns = np.nonzero(want)
    got = gpu("sparse.merge").merge((*map(up, one), up(left)), (*map(up, two), up(right)), name, np.dtype(dtype))
    starts = np.searchsorted(rows, np.arange(one[0].size)).astype(index)
    same(got, (starts, columns.astype(index), want[rows, columns]))


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
def test_any_number_of_lanes(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results must not depend on the number of lanes; most rows have several tiles."""
    from bitsparse.backends.cuda.sparse import entries, merge

    monkeypatch.setattr(merge, "_lanes", lambda entries, rows: lanes)
    monkeypatch.setattr(entries, "lanes_for", lambda entries, rows: lanes)
    one, two = ragged([0, 5, 131, 9, 40, 1, 300], 320, seed=3), ragged([7, 0, 140, 9, 300, 2, 0], 320, seed=4)
    left, right = (numbers(part[1].size, "int8", seed) % 3 for part, seed in ((one, 5), (two, 6)))
    want = sp.csr_array(dense(one, left, 320) - dense(two, right, 320))
    got = merge.merge((*map(up, one), up(left)), (*map(up, two), up(right)), "subtract", np.int8)
    same(got, (want.indptr, want.indices, want.data))
    mask, picks = numbers(left.size, "bool"), np.array([6, 2, 2, 0])
    same(gpu().keep(*map(up, (*one, left, mask))), reference.keep(*one, left, mask))
    same(gpu().take_rows(*map(up, (*one, left, picks))), reference.take_rows(*one, left, picks))


def test_rows_that_are_alike_here_and_there() -> None:
    """Windows that need no search must be right before, between and after others, up to the end of one row or of both."""
    rng, cols = np.random.default_rng(5), 2000
    marks = rng.random((40, cols)) < 0.3
    other = marks.copy()
    for row in range(1, 40):
        other[row, rng.integers(0, cols, row // 4)] ^= True
    other[2, 1000:], other[3, :1000], marks[4, 1990:] = False, False, False
    one, two = (sp.csr_array(part) for part in (marks, other))
    left, right = (np.arange(1, part.nnz + 1) % 5 for part in (one, two))
    want = sp.csr_array((left, one.indices, one.indptr), one.shape) - sp.csr_array(
        (right, two.indices, two.indptr), two.shape
    )
    want.eliminate_zeros()
    pair = [(up(part.indptr.astype(np.int32)), up(part.indices.astype(np.int32)), up(values))
            for part, values in ((one, left), (two, right))]  # fmt: skip
    same(gpu("sparse.merge").merge(*pair, "subtract", np.int64), (want.indptr, want.indices, want.data))


def test_booleans_of_a_product_are_looked_at_while_it_is_counted() -> None:
    multiply = gpu("sparse.products").multiply
    one, two = ragged([3, 0, 8, 1], 30, seed=1), ragged([2] * 30, 50, seed=2)
    true, other = up(np.ones(one[1].size, np.bool_)), up(np.ones(two[1].size, np.bool_))
    left, right = (tuple(map(up, part)) for part in (one, two))
    got = multiply((*left, true), (*right, other), 50)
    want = sp.csr_array(dense(one, true.get().astype(int), 30) @ dense(two, other.get().astype(int), 50))
    same(got, (want.indptr, want.indices, np.ones(want.nnz, np.bool_)))
    for values in (true, other):
        for at in (0, values.size - 1):
            values[at] = False
            assert multiply((*left, true), (*right, other), 50) is None
            values[at] = True


def test_operations_of_patterns_and_of_nothing() -> None:
    merge = gpu("sparse.merge").merge
    for one, two in (([3, 0, 8], [0, 2, 8]), ([], []), ([0, 0], [0, 0]), ([40] * 3, [0] * 3)):
        a, b = ragged(one, 50, seed=1), ragged(two, 50, seed=2)
        ones = [np.ones(part[1].size, np.int32) for part in (a, b)]
        want = np.add(dense(a, ones[0], 50), dense(b, ones[1], 50))
        got = merge((*map(up, a), None), (*map(up, b), None), "add", np.int32)
        made = sp.csr_array(want)
        same(got[:2], (made.indptr.astype(np.int32), made.indices.astype(np.int32)))
        same(got[2], made.data)
        both = merge((*map(up, a), None), (*map(up, b), None), "multiply", np.bool_)
        assert both[2].dtype == np.bool_
        assert both[1].size == int((want == 2).sum())


def test_integers_wrap_and_not_a_number_goes_through_as_in_scipy() -> None:
    merge = gpu("sparse.merge").merge
    indptr, indices = np.array([0, 3], np.int32), np.array([0, 1, 2], np.int32)
    pattern = up(indptr), up(indices)
    low = np.array([-128, 127, 64], np.int8)
    got = merge((*pattern, up(low)), (*pattern, up(low)), "add", np.int8)
    assert got[1].get().tolist() == [1, 2] and got[2].get().tolist() == [-2, -128]
    odd, other = np.array([np.nan, 1.0, -0.0]), np.array([1.0, np.nan, 0.0])
    for name in ("maximum", "minimum", "add", "multiply", "less", "not_equal"):
        with np.errstate(all="ignore"):
            x, y = (sp.csr_array((values, indices, indptr), shape=(1, 3)) for values in (odd, other))
            want = {"less": x < y, "not_equal": x != y, "add": x + y, "multiply": x.multiply(y)}.get(name)
            want = getattr(x, name)(y) if want is None else want
        made = merge((*pattern, up(odd)), (*pattern, up(other)), name, np.float64)
        assert made[1].get().tolist() == want.indices.tolist()
        np.testing.assert_array_equal(made[2].get(), want.data)


# ---- transposes
@INDICES
@pytest.mark.parametrize("cols", [1, 200, 300, 70_000])
def test_columns_in_stable_order(cols: int, index: Any) -> None:
    """The transpose must be stable for several blocks of keys, keys of one to three digits, and crowded and empty columns."""
    rng = np.random.default_rng(7)
    lengths = [min(cols, int(n)) for n in rng.integers(0, 60, 350)]
    lengths[3], lengths[200] = min(cols, 5000), 0
    indptr, indices = ragged(lengths, cols, index)
    numbered = sp.csr_array((np.arange(indices.size), indices, indptr), shape=(indptr.size - 1, cols)).tocsc()
    want = tuple(part.astype(index) for part in (numbered.indptr, numbered.indices, numbered.data))
    same(gpu("sparse.build").transpose_csr(up(indptr), up(indices), (indptr.size - 1, cols)), want)


@INDICES
@pytest.mark.parametrize("broken", ["nowhere", "in the last row", "between others"])
def test_symmetric_patterns_keep_their_arrays(broken: str, index: Any) -> None:
    rng = np.random.default_rng(8)
    marks = rng.random((150, 150)) < 0.2
    marks |= marks.T
    if broken == "in the last row":
        marks[140:], marks[:, 140:] = False, False
        marks[149, 3] = True
    elif broken == "between others":  # row 20 has entries on both sides of the missing mirror image
        marks[20, 9] = marks[9, 20] = marks[20, 11] = marks[11, 20] = marks[10, 20] = True
        marks[20, 10] = False
    made = sp.csr_array(marks)
    indptr, indices = up(made.indptr.astype(index)), up(made.indices.astype(index))
    starts, columns, order = gpu("sparse.build").transpose_csr(indptr, indices, (150, 150))
    assert (starts is indptr) == (columns is indices) == (broken == "nowhere")
    numbered = sp.csr_array((np.arange(made.nnz), made.indices, made.indptr), shape=made.shape).tocsc()
    for got, want in zip((starts, columns, order), (numbered.indptr, numbered.indices, numbered.data), strict=True):
        same(got, want.astype(index))


@pytest.mark.parametrize("dtype", [*DTYPES, "heads"])
def test_values_move_with_their_entries(dtype: str) -> None:
    """Values must move with their entries, in symmetric patterns and in others."""
    rng = np.random.default_rng(9)
    for turned in (True, False):
        marks = rng.random((90, 90)) < 0.2
        made = sp.csr_array(marks | marks.T if turned else marks)
        values = rng.random((made.nnz, 3)) if dtype == "heads" else numbers(made.nnz, dtype)
        numbered = sp.csr_array((np.arange(made.nnz), made.indices, made.indptr), shape=made.shape).tocsc()
        order = numbered.data
        got = gpu("sparse.build").transpose_both(up(made.indptr), up(made.indices), up(values), made.shape)
        same(got, (numbered.indptr, numbered.indices, order.astype(np.int32), values[order]))


# ---- what it costs
def test_launches_and_waits_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls must launch few kernels: each costs the host some microseconds, which is most of the time for small arrays."""
    launched = launches(monkeypatch)
    indptr, indices, shape = PATTERNS["full"]()
    device = up(indptr), up(indices), up(numbers(indices.size, "float32"))
    calls: dict[str, Callable[[], Any]] = {
        "sum_rows": lambda: gpu().row_sums(device[0], device[2]),
        "find_entries": lambda: gpu().diagonal(*device, shape, 0),
        "shift_starts": lambda: gpu().row_range(device[0], 2, 5),
        "gather_items": lambda: gpu().gather(device[2], device[1]),
        "count_rows start_rows copy_rows": lambda: gpu().take_columns(*device, 1, 3),
        "count_kept start_rows copy_kept": lambda: gpu().keep(*device, device[2] > 0),
        "count_merged start_rows fill_merged": lambda: gpu("sparse.merge").merge(device, device, "add", np.float32),
    }
    for names, call in calls.items():
        launched.clear()
        call()
        assert " ".join(launched) == names
    square = as_int64(PATTERNS["identity"]())
    launched.clear()
    gpu("sparse.build").transpose_csr(up(square[0]), up(square[1]), square[2])
    assert launched == ["find_mirrors"]

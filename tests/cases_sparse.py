"""Cases of the sparse builders for the shared table, and the sparsity patterns that other tests use too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from bitsparse.backends.reference.sparse import build

Pattern = tuple[np.ndarray, np.ndarray, tuple[int, int]]


def random_pattern(m: int, n: int, density: float, seed: int = 0) -> Pattern:
    """Canonical CSR of about ``density * m * n`` entries, made without an array of m * n elements."""
    rng = np.random.default_rng(seed)
    count = int(density * m * n)
    entries = {
        (int(r), int(c))
        for r, c in zip(rng.integers(0, max(m, 1), count), rng.integers(0, max(n, 1), count), strict=True)
    }
    return of_entries(sorted(entries), (m, n))


def of_entries(entries: list[tuple[int, int]], shape: tuple[int, int]) -> Pattern:
    indptr = np.zeros(shape[0] + 1, np.int32)
    for row, _ in entries:
        indptr[row + 1] += 1
    return np.cumsum(indptr, dtype=np.int32), np.array([col for _, col in entries], np.int32), shape


def hub_pattern() -> Pattern:
    """A full row, and a column that is full down to a tail of empty rows."""
    return of_entries(sorted({(7, c) for c in range(150)} | {(r, 3) for r in range(40)}), (61, 150))


#: name -> canonical CSR pattern: all kinds of empty, sizes not divisible by 4 or 16, hubs, full, banded, spread over millions of columns
PATTERNS: dict[str, Callable[[], Pattern]] = {
    "0x0": lambda: of_entries([], (0, 0)),
    "0x7": lambda: of_entries([], (0, 7)),
    "7x0": lambda: of_entries([], (7, 0)),
    "no-entries": lambda: of_entries([], (37, 41)),
    "1x1": lambda: of_entries([(0, 0)], (1, 1)),
    "corner": lambda: of_entries([(32, 65)], (33, 66)),
    "full": lambda: of_entries(list(itertools.product(range(19), range(23))), (19, 23)),
    "identity": lambda: of_entries([(i, i) for i in range(50)], (50, 50)),
    "band": lambda: of_entries([(i, j) for i in range(45) for j in range(max(0, i - 2), min(45, i + 3))], (45, 45)),
    "hub": hub_pattern,
    "random-thin": lambda: random_pattern(70, 90, 0.01, 1),
    "random": lambda: random_pattern(67, 133, 0.1, 2),
    "random-dense": lambda: random_pattern(33, 31, 0.7, 3),
    "tall": lambda: random_pattern(300, 5, 0.2, 4),
    "wide": lambda: random_pattern(5, 700, 0.2, 5),
    "panels": lambda: of_entries(
        sorted({(r, (r * 7919 + k * 104729) % 3_000_000) for r in range(20) for k in range(9)}), (20, 3_000_000)
    ),
    "spread": lambda: of_entries([(0, 0), (0, 2**31 - 2), (3, 5), (17, 2**30)], (18, 2**31 - 1)),
}


def as_int64(pattern: Pattern) -> Pattern:
    return pattern[0].astype(np.int64), pattern[1].astype(np.int64), pattern[2]


def scipy_of(pattern: Pattern, dtype: Any = np.int64) -> Any:
    indptr, indices, shape = pattern
    return sp.csr_array((np.ones(indices.size, dtype), indices, indptr), shape=shape)


def disordered(pattern: Pattern, seed: int = 0) -> Pattern:
    """The same entries, with each row shuffled and every third entry repeated."""
    indptr, indices, shape = pattern
    rng = np.random.default_rng(seed)
    rows = [indices[indptr[r] : indptr[r + 1]] for r in range(shape[0])]
    rows = [rng.permutation(np.concatenate([row, row[::3]])) for row in rows]
    starts = np.cumsum([0, *(row.size for row in rows)], dtype=indptr.dtype)
    return starts, np.concatenate([*rows, np.zeros(0, np.int32)]).astype(indices.dtype), shape


def pattern_array(name: str, dtype: Any = np.uint8) -> sp.csr_array:
    return scipy_of(PATTERNS[name](), dtype)


def weighted(name: str, dtype: Any = np.float32) -> sp.csr_array:
    a = pattern_array(name, dtype)
    a.data[:] = np.random.default_rng(0).integers(-4, 5, a.nnz)  # some explicit zeros
    return a


def components(x: Any) -> list[np.ndarray | None]:
    return [getattr(x, name) for name in x.component_names]


def equal(x: Any, y: Any) -> None:
    """Assert that two arrays are the same, component by component."""
    assert type(x) is type(y)
    assert x.shape == y.shape
    for one, other in zip(
        [*components(x), x.row_scale, x.col_scale], [*components(y), y.row_scale, y.col_scale], strict=True
    ):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            assert np.array_equal(one, other)


def with_values(pattern: Pattern, kind: str | None, heads: tuple[int, ...]) -> tuple[Any, ...]:
    """(indptr, indices, values, shape) of a pattern, with random values of dtype ``kind``, or None as values."""
    indptr, indices, shape = pattern
    if kind is None:
        return indptr, indices, None, shape
    return indptr, indices, np.random.default_rng(5).integers(0, 99, (indices.size, *heads)).astype(kind), shape


Spec = tuple[str, str, str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]


def specs() -> Iterator[Spec]:
    """(module, function, name, make) of every case."""
    for (name, make), wide in itertools.product(PATTERNS.items(), (False, True)):
        get = (lambda make=make: as_int64(make())) if wide else make
        label = f"{name}-{'int64' if wide else 'int32'}"
        dtype = np.int64 if wide else np.int32
        yield "sparse.build", "validate_csr", label, lambda get=get: (get(), {})
        yield "sparse.build", "validate_csr", f"{label}-disordered", lambda get=get: (disordered(get()), {})
        yield "sparse.build", "frdc", label, lambda get=get: (get(), {})
        if make()[2][1] < 10_000:  # the result has a row start for every column
            yield "sparse.build", "transpose_csr", label, lambda get=get: (get(), {})
            for kind, heads in (("f4", ()), ("i8", ()), ("?", ()), ("u2", (3,)), (None, ())):
                yield (
                    "sparse.build",
                    "transpose_both",
                    f"{label}-{kind}",
                    lambda get=get, kind=kind, heads=heads: (with_values(get(), kind, heads), {}),
                )
        yield from entry_specs(label, get)
        yield "sparse.build", "frdc_to_csr", label, lambda get=get: ((*build.frdc(*get()), get()[2]), {})
        for window in (1, 3, 8, 16):
            yield (
                "sparse.build",
                "translate",
                f"{label}-w{window}",
                lambda get=get, window=window: ((*get(), window), {}),
            )
        for window, width in ((16, 1), (16, 8), (16, 16), (4, 4), (7, 128), (8, 1 << 20)):
            yield (
                "sparse.build",
                "tile_starts",
                f"{label}-{window}x{width}",
                lambda get=get, window=window, width=width: ((*get(), window, width), {}),
            )
        if make()[2][1] < 10_000:  # makes a dense array
            yield "sparse.build", "csr_to_words", label, lambda get=get: (get(), {})
            yield (
                "sparse.build",
                "words_to_csr",
                label,
                lambda get=get, dtype=dtype: ((build.csr_to_words(*get()), get()[2], np.dtype(dtype)), {}),
            )


def distinct(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """CSR arrays (indptr, indices) without repeated columns; the rows given are sorted."""
    rows = rows_of(indptr)
    first = np.ones(indices.size, np.bool_)
    first[1:] = (indices[1:] != indices[:-1]) | (rows[1:] != rows[:-1])
    before = np.concatenate([[0], np.cumsum(first)]).astype(indptr.dtype)
    return before[indptr], indices[first]


def entry_specs(label: str, get: Callable[[], Pattern]) -> Iterator[Spec]:
    """Cases of the functions that work on entries and their values."""

    def values(count: int, dtype: Any, seed: int = 0, shape: tuple[int, ...] = ()) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, 5, (count, *shape)).astype(dtype)

    def valued(dtype: Any, shape: tuple[int, ...] = ()) -> tuple[Any, ...]:
        indptr, indices, _ = get()
        return indptr, indices, values(indices.size, dtype, 1, shape)

    kinds: tuple[tuple[Any, tuple[int, ...]], ...] = ((np.float32, ()), (np.int8, ()), (np.float64, (3,)))
    for dtype, shape in kinds:
        name = f"{label}-{np.dtype(dtype)}{shape or ''}"

        def kept(dtype: Any = dtype, shape: tuple[int, ...] = shape) -> Any:
            entries = valued(dtype, shape)
            return (*entries, values(entries[1].size, np.int64, 2) < 3), {}

        def rows(dtype: Any = dtype, shape: tuple[int, ...] = shape) -> Any:
            size = get()[2][0]
            picks = np.random.default_rng(3).integers(0, max(size, 1), 2 * size if size else 0)
            return (*valued(dtype, shape), picks), {}

        def columns(dtype: Any = dtype, shape: tuple[int, ...] = shape) -> Any:
            width = get()[2][1]
            return (*valued(dtype, shape), width // 3, width - width // 4), {}

        yield "sparse.entries", "keep", name, kept
        yield "sparse.entries", "take_rows", name, rows
        yield "sparse.entries", "take_columns", name, columns

        def gathered(dtype: Any = dtype, shape: tuple[int, ...] = shape) -> Any:
            indptr, _, numbers = valued(dtype, shape)
            return (numbers, np.random.default_rng(4).permutation(len(numbers)).astype(indptr.dtype)), {}

        yield "sparse.entries", "gather", name, gathered

    def found() -> Any:
        indptr, indices, (m, n) = get()
        places = (np.random.default_rng(5).integers(0, size, 50 if m and n else 0) for size in (max(m, 1), max(n, 1)))
        rows, cols = (
            np.concatenate([given, own]) for given, own in zip(places, (rows_of(indptr), indices), strict=True)
        )
        return (indptr, indices, rows.astype(np.int64), cols.astype(np.int64)), {}

    yield "sparse.entries", "find", label, found
    for dtype in (np.float32, np.uint8, None):
        for shift in (-3, 0, 2):

            def lines(dtype: Any = dtype, shift: int = shift) -> Any:
                indptr, indices, shape = get()
                return (indptr, indices, None if dtype is None else values(indices.size, dtype), shape, shift), {}

            yield "sparse.entries", "diagonal", f"{label}-{dtype and np.dtype(dtype)}{shift}", lines

    for dtype, subtract in itertools.product((np.float32, np.float64, np.int32, np.uint64), (False, True)):

        def pair(dtype: Any = dtype, subtract: bool = subtract) -> Any:
            indptr, indices, (_, n) = get()
            left = values(indices.size, dtype, 6)
            kept = values(indices.size, np.int64, 7) < 3
            before = np.concatenate([[0], np.cumsum(kept)])
            starts, columns = distinct(before[indptr].astype(indptr.dtype), indices[kept] // 2 * 2)
            return ((indptr, indices, left), (starts, columns, values(columns.size, dtype, 8)), n, subtract), {}

        yield "sparse.entries", "merge", f"{label}-{np.dtype(dtype)}-{subtract}", pair

    def squared() -> Any:
        indptr, indices, (m, n) = get()
        turned = sp.csr_array((np.ones(indices.size), indices, indptr), shape=(m, n)).T.tocsr()
        right = tuple(part.astype(indptr.dtype) for part in (turned.indptr, turned.indices))
        return ((indptr, indices), right, m), {}

    if get()[2][1] < 10_000:  # the transposed operand has a row for every column
        yield "sparse.entries", "product", label, squared
    for dtype in (np.float32, np.float64, np.int8, np.uint16, np.bool_, np.int64):
        yield (
            "sparse.entries",
            "row_sums",
            f"{label}-{np.dtype(dtype)}",
            lambda dtype=dtype: (valued(dtype)[::2], {}),
        )


def rows_of(indptr: np.ndarray) -> np.ndarray:
    """The row index of every entry."""
    return np.repeat(np.arange(indptr.size - 1), np.diff(indptr))

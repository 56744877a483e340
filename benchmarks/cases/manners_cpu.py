"""Cases of suite ``manners`` on the CPU: everyday calls on `artist` against SciPy (always one thread), constructing, short calls.

- ``transpose``: ``A.T`` of an array that was not transposed before, and its arrays, against ``A.T.tocsr()``.
- ``slice-...``, ``pick-...``: rows, columns and elements. ``sum-1``, ``add``, ``times``, ``diagonal``, ``compare``: as their names say.
- ``and-bits``: ``A & B`` of two FRDC arrays, against SciPy's element-wise product of booleans.
- ``square-bool-...``: ``A @ A`` of booleans. ``vector``: ``A @ v``.
- ``construct-...-pubmed``: a TCTiledCSR with its translation, or an FRDC, from SciPy's array; against its ``tocsc()``.
- ``short-...``: calls of public functions on small data, with all their checks. Against SciPy: ``A @ v`` and ``A @ h`` of 16 columns on
  cora, the latter also of an FRDC, and ``x.T @ A`` of 16 columns on pubmed. Against NumPy's float32: 64 x 64 x 64 products of 4 x 4 bits,
  and ``quantized_matmul``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

import bitsparse as bs
from benchmarks.cases.graphs import graph
from bitsparse.arrays.inside import with_fields
from bitsparse.bench import Case, Prepared

__all__ = ["cases"]


def cases() -> list[Case]:
    """The cases of this file."""
    everyday: dict[str, Callable[[Any, Any], Any]] = {
        "slice-2:5": lambda a, b: a[2:5],
        "slice-rows": lambda a, b: a[1000:20000],
        "slice-columns": lambda a, b: a[:, 1000:20000],
        "pick-mask": lambda a, b: a[mask(a.shape[0])],
        "pick-rows": lambda a, b: a[some_rows(a.shape[0])],
        "pick-element": lambda a, b: a[5, 7],
        "sum-1": lambda a, b: a.sum(axis=1),
        "add": operator.add,
        "times": lambda a, b: a * 2,
        "diagonal": lambda a, b: a.diagonal(),
        "compare": lambda a, b: a > 0.5,
        "vector": lambda a, b: a @ vector(a.shape[1]),
    }
    return [
        Case("transpose-artist", transpose),
        *(Case(f"{name}-artist", partial(of_artist, call)) for name, call in everyday.items()),
        Case("and-bits-artist", and_bits),
        *(Case(f"square-bool-{name}", partial(square, name)) for name in ("cora", "pubmed")),
        Case("construct-translated-pubmed", partial(construct, lambda a: bs.TCTiledCSR(a).translation)),
        Case("construct-frdc-pubmed", partial(construct, bs.FRDC)),
        Case("short-vector-cora", partial(short, "cora", bs.TCTiledCSR, None)),
        Case("short-features-cora", partial(short, "cora", bs.TCTiledCSR, 16)),
        Case("short-frdc-features-cora", partial(short, "cora", bs.FRDC, 16)),
        Case("short-left-pubmed", short_left),
        Case("short-product-64", short_product),
        Case("short-quantized-64", short_quantized),
    ]


@cache
def matrix(name: str) -> tuple[Any, str]:
    """A graph as a sorted SciPy array with random float32 values, and its source."""
    data, source = graph(name)
    made = data.adjacency.astype(np.float32)
    made.sum_duplicates()
    made.data[:] = np.random.default_rng(0).random(made.nnz, dtype=np.float32)
    return made, source


@cache
def mask(size: int) -> Any:
    """A random mask of about half of the rows."""
    return np.random.default_rng(1).random(size) < 0.5


@cache
def some_rows(size: int) -> Any:
    """The numbers of five thousand random rows."""
    return np.random.default_rng(2).integers(0, size, 5000)


@cache
def vector(size: int) -> Any:
    """A random float32 vector."""
    return np.random.default_rng(3).random(size, dtype=np.float32)


def scipy_name() -> str:
    """SciPy with its version."""
    import scipy

    return f"scipy {scipy.__version__}"


def agreeing(
    ours: Callable[[], Any],
    peer: Callable[[], Any],
    peer_name: str,
    params: dict[str, Any],
    nbytes: int,
    rtol: float = 1e-5,
) -> Prepared:
    """Check that both sides return the same numbers, and prepare them."""
    got, want = ours(), peer()
    if hasattr(want, "tocsr"):
        want, got = want.tocsr(), (got if not hasattr(got, "to_scipy") else got.to_scipy())
        want.sum_duplicates()
        same = np.array_equal(got.indices, want.indices) and np.allclose(got.data, want.data, rtol=rtol)
    else:
        same = np.shape(got) == np.shape(want) and np.allclose(np.asarray(got), np.asarray(want), rtol=rtol, atol=1e-3)
    if not same:
        raise AssertionError(f"{peer_name} gives something else")
    return Prepared(ours, peer, peer_name, params, nbytes)


def of_artist(call: Callable[[Any, Any], Any]) -> Prepared:
    """An everyday call of two arrays; the second is the first with its rows in reverse order."""
    theirs, source = matrix("artist")
    other = theirs[::-1].tocsr()
    other.sum_duplicates()
    pair = bs.TCTiledCSR(theirs), bs.TCTiledCSR(other)
    params = {"graph": source, "nnz": int(theirs.nnz)}
    return agreeing(lambda: call(*pair), lambda: call(theirs, other), scipy_name(), params, pair[0].nbytes)


def transpose() -> Prepared:
    """The transpose and its arrays, of an array that has nothing cached."""
    theirs, source = matrix("artist")
    ours = bs.TCTiledCSR(theirs)

    def turned() -> Any:
        made = with_fields(ours, prepared={}).T
        assert made.data is not None
        return made

    params = {"graph": source, "nnz": int(theirs.nnz)}
    return agreeing(turned, lambda: theirs.T.tocsr(), scipy_name(), params, 2 * ours.nbytes)


def and_bits() -> Prepared:
    """The intersection of two patterns of bits."""
    theirs, source = matrix("artist")
    one = theirs.astype(bool)
    two = one[::-1].tocsr()
    two.sum_duplicates()
    pair = bs.FRDC(one), bs.FRDC(two)
    params = {"graph": source, "nnz": int(theirs.nnz)}
    return agreeing(lambda: pair[0] & pair[1], lambda: one.multiply(two), scipy_name(), params, pair[0].nbytes)


def square(name: str) -> Prepared:
    """The square of a boolean matrix: paths of two edges."""
    theirs, source = matrix(name)
    one = theirs.astype(bool)
    ours = bs.TCTiledCSR(one).astype(bool)
    params = {"graph": source, "nnz": int(one.nnz)}
    return agreeing(lambda: ours @ ours, lambda: one @ one, scipy_name(), params, ours.nbytes)


def construct(build: Callable[[Any], Any]) -> Prepared:
    """Construction of one of our arrays from SciPy's."""
    theirs, source = matrix("pubmed")
    pattern = theirs.astype(bool)
    theirs.has_canonical_format  # noqa: B018  # known from now on, as of arrays that are used
    pattern.has_canonical_format = True
    params = {"graph": source, "nnz": int(theirs.nnz)}
    return Prepared(lambda: build(pattern), theirs.tocsc, f"{scipy_name()} tocsc", params, theirs.data.nbytes)


def short(name: str, kind: Any, columns: int | None) -> Prepared:
    """A product on a small graph."""
    theirs, source = matrix(name)
    theirs = theirs.copy()
    theirs.data[:] = 1
    ours, size = kind(theirs, pattern=True), theirs.shape[1]
    x = vector(size) if columns is None else np.random.default_rng(4).random((size, columns), dtype=np.float32)
    params = {"graph": source, "nnz": int(theirs.nnz), "columns": columns}
    return agreeing(lambda: ours @ x, lambda: theirs @ x, scipy_name(), params, ours.nbytes + 2 * x.nbytes)


def short_left() -> Prepared:
    """Dense rows times a sparse matrix."""
    theirs, source = matrix("pubmed")
    ours = bs.TCTiledCSR(theirs)
    x = np.random.default_rng(4).random((theirs.shape[0], 16), dtype=np.float32)
    params = {"graph": source, "nnz": int(theirs.nnz), "columns": 16}
    return agreeing(lambda: x.T @ ours, lambda: x.T @ theirs, scipy_name(), params, ours.nbytes + 2 * x.nbytes)


def short_product() -> Prepared:
    """A small product of packed integers."""
    rng = np.random.default_rng(5)
    left, right = (rng.integers(0, 16, (64, 64)) for _ in range(2))
    a, b = bs.BitTensor(left, 4, axis=-1), bs.BitTensor(right, 4, axis=-2)
    x, y = left.astype(np.float32), right.astype(np.float32)
    params = {"m": 64, "k": 64, "n": 64, "a_bits": 4, "b_bits": 4}
    return agreeing(lambda: a @ b, lambda: x @ y, f"numpy {np.__version__} float32 @", params, a.nbytes + b.nbytes)


def short_quantized() -> Prepared:
    """A small product that quantises both operands; the peer is the float product that it approximates."""
    rng = np.random.default_rng(6)
    x, y = (rng.standard_normal((64, 64), dtype=np.float32) for _ in range(2))
    params = {"m": 64, "k": 64, "n": 64}
    return Prepared(
        lambda: bs.quantized_matmul(x, y), lambda: x @ y, f"numpy {np.__version__} float32 @", params, 2 * x.nbytes
    )

"""Searches among rows of bits on a GPU must equal the host's results to the bit, with every available kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_nearest import METRICS, bits_of, equal, right

import bitsparse as bs
from bitsparse.backends.cuda.search import nearest as backend
from bitsparse.backends.cuda.search import scan
from bitsparse.backends.host.search import nearest as host
from bitsparse.backends.params import PairTest
from bitsparse.jit import capability
from bitsparse.ops.search import nearest as public

pytestmark = pytest.mark.gpu


def cp() -> Any:
    import cupy

    return cupy


def kernels() -> list[str]:
    return list(scan.KERNELS) if capability().has_wgmma else list(scan.KERNELS[1:])


def packed(bits: np.ndarray) -> np.ndarray:
    return bs.pack_bits(bits, 1).words[:, 0]


SIZES = [
    (3, 50, 128, 5),
    (130, 700, 300, 10),
    (70, 1500, 1024, 40),
    (1, 1000, 1030, 3),
    (9, 300, 5000, 7),
    (5, 3, 64, 4),
]


@pytest.mark.parametrize("kernel", scan.KERNELS)
@pytest.mark.parametrize("jaccard", [False, True])
@pytest.mark.parametrize(("queries", "n", "length", "k"), SIZES)
def test_candidates(kernel: str, jaccard: bool, queries: int, n: int, length: int, k: int) -> None:
    if kernel not in kernels():
        pytest.skip("only Hopper has wgmma")
    for density, masked in ((0.5, False), (0.05, True)):
        asked, rows = packed(bits_of(queries, queries, length, density)), packed(bits_of(n, n, length, density))
        ones = host.ones_of(rows)
        ones[::3] = -1 if masked else ones[::3]
        search = backend.Search(cp().asarray(rows), cp().asarray(ones), queries, k, jaccard, kernel)
        want = host.nearest(asked, rows, ones, k, jaccard)
        for _ in range(2):  # the state that a search leaves behind must not affect the next one
            keys, found = search.run(cp().asarray(asked))
            equal((keys.get(), found.get()), want)
        metric = "jaccard" if jaccard else "dot"
        got = backend.distances(keys, found, metric, length).get()
        equal((got,), (host.distances(*want, metric, length),))


@pytest.mark.parametrize("kernel", scan.KERNELS)
def test_all_rows_equal(kernel: str) -> None:
    """If all rows are equal, and so pass every test, those with the lowest indices must be returned."""
    if kernel not in kernels():
        pytest.skip("only Hopper has wgmma")
    rows = cp().ones((2000, 130), bool)
    values, indices = bs.nearest(rows[:40], rows, 50, "jaccard", kernel=kernel)
    assert not values.any()
    assert np.array_equal(indices.get(), np.tile(np.arange(50), (40, 1)))


@pytest.mark.parametrize("kernel", scan.KERNELS)
@pytest.mark.parametrize("metric", METRICS)
def test_a_query_without_bits_is_as_far_from_all_rows_as_from_the_lowest(kernel: str, metric: str) -> None:
    if kernel not in kernels():
        pytest.skip("only Hopper has wgmma")
    asked, rows = np.zeros((1, 200), bool), np.ones((700, 200), bool)
    rows[[30, 600]] = False
    got = bs.nearest(cp().asarray(asked), cp().asarray(rows), 10, metric, kernel=kernel)
    equal(tuple(x.get() for x in got), right(asked, rows, 10, metric))


@pytest.mark.parametrize("kernel", scan.KERNELS)
@pytest.mark.parametrize("test", [PairTest(2, 1, -40), PairTest(17, 7, 0), PairTest(1, 0, 0)])
def test_pairs(kernel: str, test: PairTest, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel not in kernels():
        pytest.skip("only Hopper has wgmma")
    monkeypatch.setattr(backend, "chosen", lambda forced: scan.KINDS[kernel])
    monkeypatch.setattr(backend, "_FIRST_ROOM", 100)
    for length in (100, 1100):
        rows = packed(bits_of(1, 300, length, 0.2))
        rows = rows[np.argsort(host.ones_of(rows), kind="stable")]
        ones = host.ones_of(rows)
        for part, triangle in ((slice(None), True), (slice(70, 210), False)):
            arguments = rows[part], ones[part], rows, ones
            want = host.pairs(*arguments, test, triangle)
            got = backend.pairs(*map(cp().asarray, arguments), test, triangle)
            assert got is not None
            assert want is not None
            order = np.lexsort((got[1].get(), got[0].get()))
            equal(tuple(one.get()[order] for one in got), want)
            assert backend.pairs(*map(cp().asarray, arguments), test, triangle, want[0].size - 1) is None


@pytest.mark.parametrize("metric", METRICS)
def test_public_functions(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = bits_of(2, 5, 200, 0.2), bits_of(3, 600, 200, 0.2)
    mask = np.arange(600) % 5 > 1
    there, rows = cp().asarray(a), cp().asarray(np.packbits(b, axis=-1))
    equal(
        tuple(x.get() for x in bs.nearest(there, rows, 12, metric, mask=cp().asarray(mask))),
        right(a, b, 12, metric, mask),
    )
    plan = bs.plan_nearest(bs.pack_bits(cp().asarray(b), 1), 5, 12, metric)
    out = cp().empty((5, 12), plan.dtype), cp().empty((5, 12), np.int64)
    assert plan(there, out=out) is out
    equal(tuple(x.get() for x in out), right(a, b, 12, metric))
    assert "tiles of 128 queries" in plan.explain()
    assert plan.nbytes > 0
    # A database in host memory is searched in pieces; one with too many rows on the GPU is searched in parts.
    monkeypatch.setattr(public, "PIECE_BYTES", 200 * 32)
    equal(tuple(x.get() for x in bs.nearest(there, b, 12, metric, mask=mask)), right(a, b, 12, metric, mask))
    monkeypatch.setattr(backend, "MOST_ROWS", 250)
    monkeypatch.setattr(backend, "_MOST_QUERIES", 2)
    equal(tuple(x.get() for x in bs.nearest(there, cp().asarray(b), 12, metric)), right(a, b, 12, metric))
    threshold = {"jaccard": 0.3, "hamming": 50, "dot": 100}[metric]
    found, want = (
        bs.pairs(cp().asarray(b), threshold=threshold, metric=metric),
        bs.pairs(b, threshold=threshold, metric=metric),
    )
    equal(tuple(x.get() for x in found), want)


def test_nothing_to_find() -> None:
    none, some = cp().zeros((0, 64), bool), cp().zeros((3, 64), bool)
    values, indices = bs.nearest(some, none, 2)
    assert values.tolist() == [[2**31 - 1] * 2] * 3
    assert indices.tolist() == [[-1, -1]] * 3
    assert bs.nearest(none, some, 2)[0].shape == (0, 2)
    assert bs.nearest(cp().zeros((2, 0), bool), cp().zeros((4, 0), bool), 3)[1].tolist() == [[0, 1, 2]] * 2
    assert bs.pairs(none, threshold=0.5)[0].size == 0
    assert bs.pairs(cp().zeros((3, 0), bool), threshold=1.0)[1].tolist() == [1, 2, 2]
    assert bs.from_packbits(cp().zeros((2, 3), np.uint8), 20).shape == (2, 20)

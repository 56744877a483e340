"""Nearest rows of bits and pairs of rows, through the public functions, against distances computed from the bits and other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bitsparse as bs
from bitsparse.backends import host
from bitsparse.ops.plan import Plan
from bitsparse.ops.search import nearest as nearest_module
from bitsparse.ops.search.pairs import test_of as pair_test

LARGEST = {"hamming": 2**31 - 1, "jaccard": np.inf, "dot": -(2**31)}
METRICS = tuple(LARGEST)


def bits_of(seed: int, n: int, length: int, density: float = 0.5) -> np.ndarray:
    """Return rows of bits; some are empty and some are equal."""
    rng = np.random.default_rng(seed)
    bits = rng.random((n, length)) < density
    bits[1::9] = False
    bits[2::5] = bits[:1]
    return bits


def tables(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for all pairs of rows, the numbers of ones in both and in either."""
    common = a.astype(np.int64) @ b.T.astype(np.int64)
    return common, a.sum(1)[:, None] + b.sum(1) - common


def distances(a: np.ndarray, b: np.ndarray, metric: str) -> np.ndarray:
    common, union = tables(a, b)
    if metric == "jaccard":
        return np.where(union == 0, 0, union - common) / np.maximum(
            union, 1
        )  # fractions with terms below 2^16 stay distinct in float64
    apart = union - common
    return apart if metric == "hamming" else a.shape[1] - 2 * apart


def right(
    a: np.ndarray, b: np.ndarray, k: int, metric: str, mask: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and indices by sorting all rows."""
    table = distances(a, b, metric)
    order = np.argsort(-table if metric == "dot" else table, axis=1, kind="stable")
    if mask is not None:
        order = np.array([row[mask[row]] for row in order]).reshape(len(a), int(mask.sum()))
    found = min(k, order.shape[1])
    indices = np.full((len(a), k), -1)
    indices[:, :found] = order[:, :k]
    values = np.full((len(a), k), LARGEST[metric], np.float32 if metric == "jaccard" else np.int32)
    values[:, :found] = np.take_along_axis(table, order[:, :k], axis=1)
    return values, indices


def equal(got: tuple[Any, ...], want: tuple[np.ndarray, ...]) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("length", [1, 7, 128, 129, 300, 1024])
@pytest.mark.parametrize(
    ("queries", "n", "k"), [(1, 1, 1), (3, 5, 9), (2, 1000, 10), (20, 700, 100), (600, 40, 3), (0, 4, 2), (4, 0, 2)]
)
def test_nearest(metric: str, length: int, queries: int, n: int, k: int) -> None:
    a, b = bits_of(1, queries, length), bits_of(2, n, length)
    want = right(a, b, k, metric)
    equal(bs.nearest(a, b, k, metric), want)
    equal(bs.nearest(bs.pack_bits(a, 1), bs.pack_bits(b, 1, axis=-2), k, metric), want)
    equal(bs.plan_nearest(b, queries, k, metric)(a), want)


@pytest.mark.parametrize("metric", METRICS)
def test_rows_of_no_bits(metric: str) -> None:
    empty = np.zeros((3, 0), bool)
    values, indices = bs.nearest(empty, empty, 2, metric)
    assert values.tolist() == [[0, 0]] * 3
    assert indices.tolist() == [[0, 1]] * 3
    i, j, s = bs.pairs(empty, threshold=0, metric=metric)
    assert (i.tolist(), j.tolist()) == ([0, 0, 1], [1, 2, 2])
    assert s.tolist() == [1 if metric == "jaccard" else 0] * 3


def test_equal_rows_come_in_their_order() -> None:
    rows = np.ones((3000, 130), bool)
    values, indices = bs.nearest(rows[:5], rows, 700, "jaccard")
    assert not values.any()
    assert np.array_equal(indices, np.tile(np.arange(700), (5, 1)))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_mask(metric: str, share: float) -> None:
    a, b = bits_of(3, 6, 200, 0.1), bits_of(4, 900, 200, 0.1)
    mask = np.random.default_rng(5).random(900) < share
    equal(bs.nearest(a, b, 12, metric, mask=mask), right(a, b, 12, metric, mask))
    equal(bs.plan_nearest(b, 6, 12, metric, mask=mask)(a), right(a, b, 12, metric, mask))


def test_threads_and_parts_do_not_change_answers(host: Any) -> None:
    a, b = bits_of(6, 9, 256), bits_of(7, 30_000, 256)
    answers = []
    for threads in (1, 2, 5):
        host.set_num_threads(threads)
        answers.append([bs.nearest(a, b, 20, metric) for metric in METRICS])
    for other in answers[1:]:
        for got, want in zip(other, answers[0], strict=True):
            equal(got, want)
    equal(answers[0][1], right(a, b, 20, "jaccard"))


def test_pieces_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database with more rows than a kernel takes must be searched in parts."""
    from bitsparse.backends.host.search import nearest as backend

    monkeypatch.setattr(backend, "MOST_ROWS", 64)
    a, b = bits_of(8, 5, 90), bits_of(9, 300, 90)
    for metric in METRICS:
        for k in (3, 100, 400):
            equal(bs.nearest(a, b, k, metric), right(a, b, k, metric))
    mask = np.arange(300) >= 200
    equal(bs.nearest(a, b, 30, mask=mask), right(a, b, 30, "hamming", mask))


@pytest.mark.parametrize("level", host.simd_levels())
def test_every_level_explains_itself(level: str) -> None:
    host.set_simd(level)
    try:
        assert "popcount, by " in bs.plan_nearest(bits_of(11, 50, 64), 4, 3).explain()
    finally:
        host.set_simd(None)


def test_out() -> None:
    a, b = bits_of(10, 4, 64), bits_of(11, 50, 64)
    plan = bs.plan_nearest(b, 4, 3, "jaccard")
    out = np.empty((4, 3), np.float32), np.empty((4, 3), np.int64)
    assert plan(a, out=out) is out
    equal(out, right(a, b, 3, "jaccard"))
    assert isinstance(plan, Plan)
    assert plan.shape == (4, 3)
    assert (plan.dtype, plan.device, plan.nbytes) == (np.float32, "cpu", 200)
    assert "popcount" in plan.explain()
    for wrong in (out[0], (out[0], out[0]), (out[0].T, out[1]), (out[0].astype(int), out[1])):
        with pytest.raises((bs.ShapeError, bs.DTypeError)):
            plan(a, out=wrong)
    with pytest.raises(bs.ShapeError, match="there are 3 queries, but the plan is for 4"):
        plan(a[:3])


# ---- pairs
@pytest.mark.parametrize("threshold", [0, 0.1, 0.35, 0.5, 0.7, 1.0, np.float32(0.6)])
@pytest.mark.parametrize("length", [1, 60, 300])
def test_pairs_by_similarity(threshold: float, length: int) -> None:
    a, b = bits_of(12, 300, length, 0.2), bits_of(13, 170, length, 0.3)
    for one, other in ((a, None), (a, b)):
        common, union = tables(one, one if other is None else other)
        similar = np.where(union == 0, 1, common) / np.maximum(union, 1)
        passes = similar >= threshold
        i, j = np.nonzero(np.triu(passes, 1) if other is None else passes)
        equal(bs.pairs(one, other, threshold=threshold), (i, j, similar[i, j].astype(np.float32)))


@pytest.mark.parametrize(
    ("metric", "threshold"),
    [("hamming", 0), ("hamming", 20.9), ("hamming", 1e9), ("dot", 100), ("dot", -5), ("dot", 131)],
)
def test_pairs_by_distance(metric: str, threshold: float) -> None:
    a = bits_of(14, 400, 130, 0.3)
    table = distances(a, a, metric)
    passes = table <= threshold if metric == "hamming" else table >= threshold
    i, j = np.nonzero(np.triu(passes, 1))
    equal(bs.pairs(a, threshold=threshold, metric=metric), (i, j, table[i, j].astype(np.int32)))


@pytest.mark.parametrize("other", [False, True])
def test_pairs_in_pieces_are_the_same(other: bool) -> None:
    a = bits_of(15, 500, 80, 0.2)
    b = bits_of(16, 90, 80, 0.2) if other else None
    whole = bs.pairs(a, b, threshold=0.5)
    pieces = list(bs.pairs_iter(a, b, threshold=0.5, rows=33))
    assert len(pieces) > 1
    for i, j, _ in pieces:
        assert np.array_equal(np.lexsort((j, i)), np.arange(i.size))
    i, j, s = (np.concatenate([piece[part] for piece in pieces]) for part in range(3))
    order = np.lexsort((j, i))
    equal((i[order], j[order], s[order]), whole)


def test_limit() -> None:
    rows = np.ones((40, 64), bool)
    assert bs.pairs(rows, threshold=1, limit=780)[0].size == 780
    with pytest.raises(ValueError, match="more than limit=779 pairs"):
        bs.pairs(rows, threshold=1, limit=779)
    assert bs.pairs(rows[:1], threshold=0, limit=0)[0].size == 0


@pytest.mark.parametrize("length", [1, 2, 10, 64, 1024])
def test_a_threshold_is_compared_as_a_quotient_of_floats(length: int) -> None:
    union = np.arange(1, length + 1)[:, None]
    common = np.arange(length + 1)
    fits = common <= union
    for threshold in (1e-9, 0.1, 1 / 3, 0.3, 0.7, 0.9999, 1.0, *np.random.default_rng(0).random(20)):
        test = pair_test("pairs", "jaccard", threshold, length)
        passes = test.weight * common >= test.share * (union + common) + test.bound
        assert np.array_equal(passes & fits, (common / union >= threshold) & fits)


# ---- inputs of other libraries
def test_bytes_of_numpy_faiss_and_sentence_transformers() -> None:
    a, b = bits_of(17, 5, 384), bits_of(18, 60, 384)
    want = right(a, b, 4, "hamming")
    ubinary_a, ubinary_b = np.packbits(a, axis=-1), np.packbits(b, axis=-1)
    binary = (ubinary_b.astype(np.int16) - 128).astype(np.int8)
    equal(bs.nearest(ubinary_a, ubinary_b, 4), want)
    equal(bs.nearest(ubinary_a, binary, 4), want)
    equal(bs.nearest(a, ubinary_b, 4), want)
    equal(bs.nearest(bs.pack_bits(a, 1), binary, 4), want)
    little = np.packbits(b, axis=-1, bitorder="little")
    for made in (bs.from_packbits(ubinary_b), bs.from_packbits(binary), bs.from_packbits(little, bitorder="little")):
        assert np.array_equal(made.toarray(), b)
        equal(bs.nearest(ubinary_a, made, 4), want)


def test_bytes_of_a_length_that_is_no_multiple_of_eight() -> None:
    a, b = bits_of(19, 5, 77), bits_of(20, 60, 77)
    for metric in METRICS:
        equal(bs.nearest(bs.pack_bits(a, 1), np.packbits(b, axis=-1), 4, metric), right(a, b, 4, metric))
    assert bs.from_packbits(np.packbits(b, axis=-1), 77).shape == (60, 77)
    assert bs.from_packbits(np.packbits(b, axis=-1), 77, encoding="bipolar").encoding == "bipolar"
    with pytest.raises(ValueError, match="pad"):
        bs.from_packbits(np.full((2, 10), 255, np.uint8), 77)
    with pytest.raises(ValueError, match=r"length must be in 73\.\.80"):
        bs.from_packbits(np.packbits(b, axis=-1), 72)


def test_bytes_are_taken_where_they_lie() -> None:
    rows = np.zeros((3, 32), np.uint8)
    made = bs.from_packbits(rows, bitorder="little")
    assert np.shares_memory(made.words, rows) or rows.ctypes.data % 16


def test_fingerprints_of_rdkit() -> None:
    DataStructs = pytest.importorskip("rdkit.DataStructs")
    bits = bits_of(21, 40, 2048, 0.03)
    prints = [DataStructs.CreateFromBitString("".join(map(str, row.astype(int)))) for row in bits]
    made = bs.from_rdkit(prints)
    assert np.array_equal(made.toarray(), bits)
    i, j, s = bs.pairs(made, threshold=0.3)
    found = {(int(x), int(y)): v for x, y, v in zip(i, j, s, strict=True)}
    for x, one in enumerate(prints):
        if one.GetNumOnBits():
            theirs = DataStructs.BulkTanimotoSimilarity(one, prints)
            for y in range(x + 1, len(prints)):
                assert (theirs[y] >= 0.3) == ((x, y) in found)
                assert theirs[y] < 0.3 or np.float32(theirs[y]) == found[x, y]
    with pytest.raises(bs.DTypeError, match="ExplicitBitVect"):
        bs.from_rdkit([b"no"])
    with pytest.raises(bs.ShapeError, match="8 to 2048 bits"):
        bs.from_rdkit([prints[0], DataStructs.CreateFromBitString("1" * 8)])
    assert bs.from_rdkit([]).shape == (0, 0)


class _Print:
    """Stands in for an ExplicitBitVect if RDKit is not installed."""

    def __init__(self, bits: np.ndarray) -> None:
        self.bits = bits

    def GetNumBits(self) -> int:
        return len(self.bits)

    def GetNumOnBits(self) -> int:
        return int(self.bits.sum())


def test_fingerprints_by_their_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    def text(one: _Print) -> bytes:
        return np.packbits(one.bits, bitorder="little").tobytes()

    monkeypatch.setitem(
        __import__("sys").modules, "rdkit.DataStructs.cDataStructs", SimpleNamespace(BitVectToBinaryText=text)
    )
    bits = bits_of(22, 9, 100)
    assert np.array_equal(bs.from_rdkit([_Print(row) for row in bits]).toarray(), bits)


@pytest.mark.parametrize("length", [8, 64, 256, 1024])
def test_the_answers_of_faiss(length: int) -> None:
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(23)
    b, a = (rng.integers(0, 256, (n, length // 8), np.uint8) for n in (3000, 20))
    index = faiss.IndexBinaryFlat(length)
    index.add(b)
    for k in (1, 10, 200):
        theirs, places = index.search(a, k)
        values, indices = bs.nearest(a, b, k)
        assert np.array_equal(values, theirs)
        for row in range(20):  # the order of equal distances is free, and the last ones may be other rows
            inside = theirs[row] < theirs[row, -1]
            assert set(places[row][inside]) == set(indices[row][inside])
    few = faiss.IndexBinaryFlat(length)
    few.add(b[:3])
    theirs, places = few.search(a, 5)
    values, indices = bs.nearest(a, b[:3], 5)
    assert np.array_equal(values, theirs)
    assert np.array_equal(indices < 0, places < 0)


def test_pytorch_gets_its_own_arrays() -> None:
    torch = pytest.importorskip("torch")
    a, b = bits_of(24, 3, 100), bits_of(25, 30, 100)
    values, indices = bs.nearest(torch.from_numpy(a), torch.from_numpy(np.packbits(b, axis=-1)), 2, "jaccard")
    assert (values.dtype, indices.dtype) == (torch.float32, torch.int64)
    equal((values.numpy(), indices.numpy()), right(a, b, 2, "jaccard"))


# ---- refusals
@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (
            bs.ShapeError,
            "rows of queries have 5 bits but those of database have 6",
            lambda: bs.nearest(bits_of(0, 2, 5), bits_of(0, 2, 6)),
        ),
        (bs.DTypeError, "queries has dtype float64", lambda: bs.nearest(np.zeros((2, 3)), bits_of(0, 2, 3))),
        (bs.ShapeError, r"queries has shape \(3,\)", lambda: bs.nearest(np.zeros(3, bool), bits_of(0, 2, 3))),
        (bs.ShapeError, r"queries has shape \(3,\)", lambda: bs.nearest(np.zeros(3, np.uint8), bits_of(0, 2, 3))),
        (bs.ShapeError, "3 bits", lambda: bs.nearest(bs.pack_bits([[5, 1]], 3), bits_of(0, 2, 2))),
        (
            bs.ShapeError,
            "searches take 65536",
            lambda: bs.nearest(np.zeros((1, 65537), bool), np.zeros((1, 65537), bool)),
        ),
        (ValueError, "k must be in 1..1024, got 1025", lambda: bs.nearest(bits_of(0, 2, 5), bits_of(0, 2, 5), 1025)),
        (ValueError, "metric must be one of", lambda: bs.nearest(bits_of(0, 2, 5), bits_of(0, 2, 5), metric="cosine")),
        (bs.KernelError, "kernel", lambda: bs.nearest(bits_of(0, 2, 5), bits_of(0, 2, 5), kernel="wgmma")),
        (
            bs.DTypeError,
            "mask has dtype int64",
            lambda: bs.nearest(bits_of(0, 2, 5), bits_of(0, 2, 5), mask=np.array([0, 1])),
        ),
        (
            bs.ShapeError,
            r"mask has shape \(3,\)",
            lambda: bs.nearest(bits_of(0, 2, 5), bits_of(0, 2, 5), mask=np.ones(3, bool)),
        ),
        (ValueError, "0..1, got 1.5", lambda: bs.pairs(bits_of(0, 2, 5), threshold=1.5)),
        (ValueError, "at least 0, got -1", lambda: bs.pairs(bits_of(0, 2, 5), threshold=-1, metric="hamming")),
        (ValueError, "threshold must be a finite number", lambda: bs.pairs(bits_of(0, 2, 5), threshold=np.nan)),
        (bs.DTypeError, "threshold must be a finite number", lambda: bs.pairs(bits_of(0, 2, 5), threshold="near")),
        (ValueError, "limit must be at least 0", lambda: bs.pairs(bits_of(0, 2, 5), threshold=1, limit=-1)),
        (ValueError, "rows must be at least 1", lambda: bs.pairs_iter(bits_of(0, 2, 5), threshold=1, rows=0)),
        (bs.DTypeError, "x has dtype int32", lambda: bs.from_packbits(np.zeros((2, 3), np.int32))),
        (ValueError, "bitorder must be one of", lambda: bs.from_packbits(np.zeros((2, 3), np.uint8), bitorder="up")),
    ],
)
def test_refused(error: type[Exception], match: str, call: Any) -> None:
    with pytest.raises(error, match=match):
        call()


def test_the_longest_rows() -> None:
    a, b = bits_of(26, 2, 65536), bits_of(27, 20, 65536)
    for metric in METRICS:
        equal(bs.nearest(a, b, 5, metric), right(a, b, 5, metric))
    assert nearest_module.MOST_NEIGHBOURS == 1024

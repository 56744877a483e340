"""Edge sampling against AES-SpMM's table and equation, and sums over sampled edges."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import bitsparse as bs
from bitsparse.backends import host as host_backend
from bitsparse.backends.host import settings
from bitsparse.backends.host.sampling import sample as compiled
from bitsparse.backends.params import CodeFeatures, Sampling
from bitsparse.backends.reference.bits.pack import codes_to_words
from bitsparse.backends.reference.sampling import sample as oracle

LEVELS = host_backend.simd_levels()


@pytest.fixture(autouse=True)
def _threads_for_small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "work_per_thread", 0)


def row_of(nnz: int) -> sp.csr_array:
    return sp.csr_array(np.ones((1, nnz), bool))


def drawn(nnz: int, width: int, strategy: str = "aes", **options: Any) -> list[int]:
    return bs.edge_sample(row_of(nnz), width, strategy, **options).edges.tolist()


# ---- Table 1 and Eq. 3
#: (row_nnz, width) -> (N, sample_cnt), copied from the table for R = 1, 2, 36 and 54 and one beyond each
TABLE = {
    (64, 64): (64, 1),
    (63, 64): (63, 1),
    (65, 64): (16, 4),
    (128, 64): (16, 4),
    (129, 64): (8, 8),
    (64 * 36, 64): (8, 8),
    (64 * 36 + 1, 64): (4, 16),
    (64 * 54, 64): (4, 16),
    (64 * 54 + 1, 64): (2, 32),
    (64 * 900, 64): (2, 32),
    # widths that do not divide, and widths below the number of samples
    (45, 30): (7, 4),
    (60, 30): (7, 4),
    (61, 30): (3, 8),
    (30 * 36 + 1, 30): (1, 16),
    (30 * 54, 30): (1, 16),
    (30 * 54 + 1, 30): (1, 30),
    (5, 3): (1, 3),
    (6, 3): (1, 3),
    (7, 3): (1, 3),
    (3 * 54 + 1, 3): (1, 3),
    (2, 1): (1, 1),
    (100, 1): (1, 1),
    (1, 1): (1, 1),
    (0, 8): (0, 0),
}


@pytest.mark.parametrize(("sizes", "plan"), list(TABLE.items()), ids=str)
def test_the_boundaries_of_table_1(sizes: tuple[int, int], plan: tuple[int, int]) -> None:
    (nnz, width), (run, count) = sizes, plan
    want = [(k * 1429) % (nnz - run + 1) + j for k in range(count) for j in range(run)]
    assert drawn(nnz, width) == want
    assert len(want) <= min(nnz, width)
    sample = bs.edge_sample(row_of(nnz), width, "aes")
    assert sample.factors[0] == (np.float32(nnz) / np.float32(len(want)) if nnz else 1)


def test_values_worked_out_by_hand() -> None:
    # R = 2.5: N = max(1, 4 // 8) = 1, count = min(8, 4) = 4, starts 0, 1429, 2858, 4287 mod 10
    assert drawn(10, 4) == [0, 9, 8, 7]
    # R = 1.5: N = 2, four runs, starts 0, 1429, 2858, 4287 mod 11
    assert drawn(12, 8) == [0, 1, 10, 11, 9, 10, 8, 9]
    assert drawn(10, 4, "afs") == [0, 7, 4, 1]
    assert drawn(10, 4, "sfs") == [0, 1, 2, 3]
    assert drawn(3, 8, "afs") == [0, 1, 2]


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("strategy", compiled.STRATEGIES)
def test_host_against_reference(strategy: str, index: Any, host: Any) -> None:
    rng = np.random.default_rng(0)
    lengths = np.concatenate([[0, 1, 2, 577, 1154, 6000], rng.integers(0, 300, 60), [0]])
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    for width, seed, threads in itertools.product((1, 2, 3, 7, 16, 33, 64, 100_000), (0, 2**64 - 1), (1, 2, 7)):
        host.set_num_threads(threads)
        got = compiled.sample_edges(indptr, width=width, strategy=strategy, seed=seed, stream=3)
        want = oracle.sample_edges(indptr, width=width, strategy=strategy, seed=seed, stream=3)
        for one, two in zip(got, want, strict=True):
            assert one.dtype == two.dtype == np.int64
            assert np.array_equal(one, two)


@given(st.integers(1, 5000), st.integers(1, 600), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_uniform_draws_one_edge_a_stratum(nnz: int, width: int, seed: int, stream: int) -> None:
    got = drawn(nnz, width, "uniform", seed=seed, stream=stream)
    w = min(nnz, width)
    assert len(got) == w
    assert all(k * nnz // w <= edge < (k + 1) * nnz // w for k, edge in enumerate(got))
    assert got == drawn(nnz, width, "uniform", seed=seed, stream=stream)


def test_uniform_is_uniform_and_seeded() -> None:
    A = sp.csr_array(np.ones((4000, 12), bool))
    sample = bs.edge_sample(A, 3, "uniform", seed=5)
    counts = np.bincount(sample.indices, minlength=12)
    assert counts.sum() == 12_000
    assert np.abs(counts - 1000).max() < 150  # about five standard deviations
    assert not np.array_equal(sample.edges, bs.edge_sample(A, 3, "uniform", seed=6).edges)
    assert not np.array_equal(sample.edges, bs.edge_sample(A, 3, "uniform", seed=5, stream=1).edges)
    assert not np.array_equal(bs.edge_sample(A, 3, "uniform").edges, bs.edge_sample(A, 3, "uniform").edges)


@given(st.integers(0, 700), st.integers(1, 700), st.sampled_from(["aes", "afs", "sfs", "uniform"]))
def test_every_sample_lies_in_its_row(nnz: int, width: int, strategy: str) -> None:
    got = drawn(nnz, width, strategy)
    assert len(got) <= min(nnz, width)
    assert all(0 <= edge < nnz for edge in got)
    if nnz <= width and strategy != "afs":
        assert got == list(range(nnz))


# ---- the sampled matrix
def weighted(rng: np.random.Generator) -> sp.csr_array:
    A = sp.random_array((50, 400), density=0.3, rng=rng, format="csr", dtype=np.float32)
    A.data = rng.standard_normal(A.nnz).astype(np.float32)
    return A


def test_the_sample_as_a_matrix() -> None:
    rng = np.random.default_rng(1)
    A = weighted(rng)
    sample = bs.edge_sample(A, 20)
    assert sample.shape == A.shape
    assert np.array_equal(sample.indices, A.indices[sample.edges])
    assert sample.distinct == np.unique(sample.edges).size
    want = np.zeros(A.shape, np.float32)
    np.add.at(want, (np.repeat(np.arange(50), np.diff(sample.indptr)), sample.indices), A.data[sample.edges])
    assert np.allclose(sample.tocsr().toarray(), want, atol=1e-6)
    assert np.allclose(sample.tocsr(rescale=True).toarray(), want * sample.factors[:, None], atol=1e-5)
    counts = bs.edge_sample(A.astype(bool), 20).tocsr()
    assert counts.dtype == np.int32
    assert counts.sum() == sample.nnz
    assert "of" in repr(sample)


class Factored:
    """A container with factorised weights."""

    def __init__(self, matrix: Any, row_scale: Any, col_scale: Any) -> None:
        self.matrix, self.row_scale, self.col_scale, self.shape = matrix, row_scale, col_scale, matrix.shape

    def csr_arrays(self) -> tuple[Any, Any, Any]:
        return self.matrix.indptr, self.matrix.indices, None


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("strategy", ["aes", "afs", "sfs", "uniform"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums_are_those_of_the_sampled_matrix(dtype: Any, strategy: str, rescale: bool) -> None:
    rng = np.random.default_rng(2)
    A, x = weighted(rng), rng.standard_normal((400, 37)).astype(dtype)
    seed = {"seed": 9} if strategy == "uniform" else {}
    row, col = rng.random(50).astype(np.float32), rng.random(400).astype(np.float32)
    for operand in (A, A.astype(bool), Factored(A, row, col)):
        got = bs.sampled_spmm(operand, x, 16, strategy, rescale=rescale, **seed)
        matrix = bs.edge_sample(operand, 16, strategy, **seed).tocsr(rescale).astype(np.float64)
        want, size = matrix @ x.astype(np.float64), abs(matrix) @ np.abs(x.astype(np.float64))
        assert got.dtype == (np.result_type(dtype, np.float32) if operand is A else dtype)
        # the matrix itself is float32, so float64 sums are compared at its precision too
        last = 2.0**-11 * size if got.dtype == np.float16 else 0
        assert (np.abs(got - want) <= 24 * 2.0**-23 * size + last + 1e-7).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("d", [1, 15, 16, 63, 64, 65, 100, 200])
def test_gather_against_the_reference_bit_for_bit(d: int, level: str, host: Any) -> None:
    rng = np.random.default_rng(d)
    host.set_simd(level)
    lengths = np.array([0, 1, 5, 40, 0, 300, 9])
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32 if d % 2 else np.int64)
    indices = rng.integers(0, 60, indptr[-1]).astype(indptr.dtype)
    row, col = rng.standard_normal(7), rng.standard_normal(60)
    values = rng.standard_normal(indptr[-1])
    inputs: list[Any] = [rng.standard_normal((60, d)).astype(t) for t in (np.float32, np.float64)]
    for bits, encoding in [(1, "bipolar"), *itertools.product((1, 2, 4, 8), ("unsigned", "signed"))]:
        words = codes_to_words(rng.integers(0, 1 << bits, (60, d)), bits, "rows")
        scale, offset = rng.standard_normal((60, 1)).astype(np.float32), rng.standard_normal((1, d)).astype(np.float32)
        inputs += [
            CodeFeatures(words, d, bits, encoding),
            CodeFeatures(words, d, bits, encoding, scale, offset),
            CodeFeatures(words, d, bits, encoding, np.float32(0.25).reshape(()), np.float32(-3).reshape(())),
        ]
    for x in inputs:
        dtype = np.float64 if isinstance(x, np.ndarray) and x.dtype == np.float64 else np.float32
        full = {"values": values.astype(dtype), "col_scale": col.astype(dtype), "row_scale": row.astype(dtype)}
        for options in ({}, full, {"rescale": True, "mean": True, "col_scale": full["col_scale"]}):
            for strategy in ("all", "aes"):
                got = compiled.gather(indptr, indices, x, Sampling(10, strategy), **options)
                want = oracle.gather(indptr, indices, x, Sampling(10, strategy), **options)
                assert got.dtype == want.dtype == dtype
                assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(("axis", "layout"), list(itertools.product((-1, -2), ("planes", "rows"))))
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_quantised_features_are_dequantised_on_the_way(bits: int, axis: int, layout: str) -> None:
    """Sums must have the same bits as with features that are dequantised first, for every granularity."""
    rng = np.random.default_rng(bits)
    A, x = weighted(rng), rng.standard_normal((400, 70)).astype(np.float32)
    for granularity in ("tensor", "row", "col"):
        q = bs.quantize(x, bits, granularity=granularity, axis=axis, layout=layout)
        got = bs.sampled_spmm(A, q, 16)
        assert np.array_equal(got, bs.sampled_spmm(A, q.dequantize(), 16))
    signed = bs.BitTensor(
        rng.integers(-(1 << bits - 1), 1 << bits - 1, (400, 9)), bits, encoding="signed", axis=axis, layout=layout
    )
    assert np.array_equal(bs.sampled_spmm(A, signed, 16), bs.sampled_spmm(A, signed.toarray().astype(np.float32), 16))


def test_same_bits_for_every_level_and_thread_count(host: Any) -> None:
    rng = np.random.default_rng(3)
    A = sp.random_array((900, 300), density=0.2, rng=rng, format="csr", dtype=np.float32)
    x = rng.standard_normal((300, 83)).astype(np.float32)
    q = bs.quantize(x, 4, layout="rows")
    results = set()
    for level, threads in itertools.product(LEVELS, (1, 2, 5)):
        host.set_simd(level)
        host.set_num_threads(threads)
        parts = [bs.sampled_spmm(A, y, 12, "uniform", seed=1, rescale=True) for y in (x, q)]
        results.add(b"".join(part.tobytes() for part in parts))
    assert len(results) == 1


def test_out_and_empty_matrices() -> None:
    A = sp.csr_array((3, 5), dtype=np.float32)
    out = np.full((3, 4), np.nan, np.float32)
    assert bs.sampled_spmm(A, np.ones((5, 4), np.float32), 8, out=out) is out
    assert (out == 0).all()
    assert bs.sampled_spmm(sp.csr_array((0, 5), dtype=bool), np.ones((5, 4)), 8).shape == (0, 4)
    assert bs.sampled_spmm(A, np.ones((5, 0)), 8).shape == (3, 0)
    empty = bs.edge_sample(A, 8)
    assert (empty.nnz, empty.rate) == (0, 1.0)
    assert empty.tocsr().nnz == 0


def test_a_plan_draws_the_same_sample_in_every_call() -> None:
    rng = np.random.default_rng(4)
    A, x = weighted(rng), rng.standard_normal((400, 9)).astype(np.float32)
    for strategy, rescale in itertools.product(("aes", "uniform"), (False, True)):
        seed = {"seed": 3} if strategy == "uniform" else {}
        plan = bs.plan_sampled_spmm(A, 9, 16, strategy, rescale=rescale, **seed)
        out = np.full((50, 9), np.nan, np.float32)
        assert plan(x, out) is out
        assert np.array_equal(out, bs.sampled_spmm(A, x, 16, strategy, rescale=rescale, **seed))
        assert np.array_equal(plan(x), out)
    q = bs.quantize(x, 4)
    assert np.array_equal(bs.plan_sampled_spmm(A, 9, 16)(q), bs.sampled_spmm(A, q, 16))
    entropy = bs.plan_sampled_spmm(A, 9, 3, "uniform")
    assert np.array_equal(entropy(x), entropy(x))
    assert (plan.device, plan.stored, plan.shape) == ("cpu", False, (50, 9))
    assert "uniform of width 16" in plan.explain()
    with pytest.raises(bs.ShapeError, match="the plan is for"):
        plan(x[:, :8])
    with pytest.raises(bs.KernelError, match="is for a GPU"):
        bs.plan_sampled_spmm(A, 9, 16, kernel="csr")


def test_errors_say_what_to_do() -> None:
    A, x = row_of(9), np.ones((9, 2), np.float32)
    cases: list[tuple[type[Exception], str, Any]] = [
        (ValueError, "width must be at least 1|width must be in 1", lambda: bs.edge_sample(A, 0)),
        (bs.DTypeError, "width must be an integer", lambda: bs.edge_sample(A, 2.5)),
        (ValueError, "strategy must be one of", lambda: bs.edge_sample(A, 2, "best")),
        (ValueError, "has no effect with strategy", lambda: bs.edge_sample(A, 2, seed=1)),
        (ValueError, "seed", lambda: bs.edge_sample(A, 2, "uniform", seed=-1)),
        (bs.DTypeError, "must be sparse", lambda: bs.edge_sample(np.ones((2, 2)), 2)),
        (bs.ShapeError, "9 columns but x has 8 rows", lambda: bs.sampled_spmm(A, x[:8], 2)),
        (bs.ShapeError, "2 dimensions", lambda: bs.sampled_spmm(A, x[0], 2)),
        (bs.DTypeError, "int64", lambda: bs.sampled_spmm(A, x.astype(np.int64), 2)),
        (bs.DTypeError, "x has 3 bits", lambda: bs.sampled_spmm(A, bs.quantize(x + x[::-1], 3), 2)),
        (bs.DTypeError, "out has dtype float64", lambda: bs.sampled_spmm(A, x, 2, out=np.empty((1, 2)))),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()

"""The steps after float sums in sparse GPU kernels, and sums of one-bit features, agree with NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from bitsparse.backends.params import EpilogueParams
from bitsparse.backends.reference.bits.pack import codes_to_words

pytestmark = pytest.mark.gpu

M, N = 60, 50


def cp() -> Any:
    import cupy

    return cupy


def graph() -> Any:
    """A graph with empty rows, rows of all lengths and a full row, which is summed in pieces."""
    rng = np.random.default_rng(0)
    dense = rng.random((M, N)) < rng.random((M, 1)) * 0.4
    dense[::7] = False
    dense[-1] = False
    dense[3] = True
    return sp.csr_array(dense)


def schedule_of(A: Any, index: Any = np.int32) -> Any:
    from bitsparse.backends.cuda.csr.schedule import Schedule

    indptr, indices = (cp().asarray(part.astype(index)) for part in (A.indptr, A.indices))
    return Schedule(indptr, indices, A.shape, A.nnz)


def chains(d: int) -> dict[str, EpilogueParams]:
    rng = np.random.default_rng(d)
    rows, *columns = (rng.standard_normal(size).astype(np.float32) for size in (M, d, d, d, d))
    return {
        "nothing": EpilogueParams(),
        "bias": EpilogueParams(bias=columns[0], activation="relu"),
        "all": EpilogueParams(
            row_scale=rows, col_scale=columns[0], bias=columns[1], bn_scale=columns[2], bn_shift=columns[3], activation="tanh"
        ),
    }  # fmt: skip


class Case:
    """A finish, with or without the scales and addend that operands contribute, and a check of its results."""

    def __init__(self, d: int, name: str, bits: bool, more: bool, addend: str = "floats") -> None:
        from bitsparse.backends.cuda.finish.floats import Behind, Finish, padded_columns

        cupy, rng = cp(), np.random.default_rng(1)
        self.d, self.more = d, more
        self.params = chains(d)[name]._replace(out="bits" if bits else "float", binarize=bits)
        self.theirs, self.scale = rng.standard_normal(M).astype(np.float32), rng.standard_normal(d).astype(np.float32)
        self.add = rng.standard_normal((M, d)).astype(np.float32)
        self.behind = None
        encoding = None if addend == "floats" else addend
        if more:
            given = cupy.asarray(self.add)
            if encoding is not None:
                codes = rng.integers(0, 2, (M, d))
                self.add = (2 * codes - 1 if encoding == "bipolar" else codes).astype(np.float32)
                given = cupy.asarray(codes_to_words(codes.astype(np.uint64), 1, "planes")).reshape(M, -1)
            scale = cupy.full(padded_columns(d), np.nan, np.float32)
            scale[:d] = cupy.asarray(self.scale)
            self.behind = Behind(given, encoding, scale)
        row_scale = cupy.asarray(self.theirs) if more else None
        self.finish = Finish(
            self.params,
            (M, d),
            row_scale=row_scale,
            added=("floats" if encoding is None else "bits") if more else None,
            scaled=more,
        )

    def chained(self, v: np.ndarray, sizes: bool = False) -> np.ndarray:
        """The chain in float64, or with `sizes` a bound of the magnitudes in it."""
        p = self.params
        size = np.abs if sizes else np.asarray
        if self.more:
            v = v * size(self.theirs)[:, None] * size(self.scale) + size(self.add)
        for factor, term in ((p.row_scale, None), (p.col_scale, p.bias), (p.bn_scale, p.bn_shift)):
            if factor is not None:
                v = v * (size(factor)[:, None] if factor is p.row_scale else size(factor))
            if term is not None:
                v = v + size(term)
        if sizes or p.activation is None:
            return v
        return np.tanh(v) if p.activation == "tanh" else np.maximum(v, 0)

    def check(self, got: Any, A: Any, x: np.ndarray, mean: bool = False) -> None:
        counts = np.maximum(np.diff(A.indptr), 1)[:, None] if mean else 1
        want = self.chained(A @ x / counts)
        bound = 1e-5 * self.chained(abs(A) @ np.abs(x) / counts, sizes=True) + 1e-6
        found = got.get()
        if self.params.out == "float":
            assert (np.abs(found - want) <= bound).all()
            return
        bits = np.unpackbits(found.reshape(M, -1).view(np.uint8), axis=1, bitorder="little")
        assert not bits[:, self.d :].any(), "a pad bit is set"
        differ = bits[:, : self.d].astype(bool) != (want >= 0)
        assert not (differ & (np.abs(want) > bound)).any()


def poisoned(finish: Any) -> Any:
    out = cp().empty(finish.out_shape, finish.out_dtype)
    out.view(np.uint8).fill(0xA5)
    return out


ALL = [(name, bits, more) for name in ("nothing", "bias", "all") for bits in (False, True) for more in (False, True)]


@pytest.mark.parametrize("d", [1, 6, 16, 36, 64, 100, 128, 160, 300])
def test_edge_by_edge(d: int) -> None:
    from bitsparse.backends.cuda.spmm.spmm import Spmm

    rng = np.random.default_rng(d)
    A, x = graph(), rng.standard_normal((N, d)).astype(np.float32)
    values = rng.standard_normal(A.nnz).astype(np.float32)
    weighted = sp.csr_array((values, A.indices, A.indptr), A.shape)
    for i, (name, bits, more) in enumerate(ALL):
        case = Case(d, name, bits, more, ("floats", "bipolar", "unsigned")[i % 3])
        index, brought, reduce = (
            (np.int32, np.int64)[d == 36],
            ("none", "edge")[i // 2 % 2],
            ("sum", "mean")[i // 3 % 2],
        )
        product = Spmm(
            schedule_of(A, index), columns=d, x_dtype=np.float32, acc_dtype=np.float32, weights=brought, reduce=reduce,
            finish=case.finish,
        )  # fmt: skip
        out = poisoned(case.finish)
        given = cp().asarray(values) if brought == "edge" else None
        product(cp().asarray(x), given, out, case.behind)
        matrix = weighted if brought == "edge" else A.astype(np.float64)
        case.check(out, matrix.astype(np.float64), x.astype(np.float64), reduce == "mean")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("d", [3, 8, 40, 72, 264])
def test_sixteen_bits_come_out_as_float32_or_signs(d: int, dtype: str) -> None:
    from bitsparse.backends.cuda.spmm.spmm import Spmm

    element = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    A, x = graph(), np.random.default_rng(d).standard_normal((N, d)).astype(element)
    there = cp().asarray(x.view(np.uint16)).view(x.dtype)
    for name, bits, more in ALL[::3]:
        case = Case(d, name, bits, more)
        kind = {"columns": d, "x_dtype": x.dtype, "acc_dtype": np.float32}
        product = Spmm(schedule_of(A), finish=case.finish, **kind)
        out = poisoned(case.finish)
        product(there, None, out, case.behind)
        case.check(out, A.astype(np.float64), x.astype(np.float64))


@pytest.mark.parametrize("d", [4, 32, 64, 100, 132])
@pytest.mark.parametrize("part", [8, None])
def test_windows(d: int, part: int | None) -> None:
    from bitsparse.backends.cuda.spmm.windows import Windows

    rng = np.random.default_rng(d)
    A, x = graph(), rng.standard_normal((N, d)).astype(np.float32)
    values = rng.standard_normal(A.nnz).astype(np.float32)
    windows = Windows(cp().asarray(A.indptr), cp().asarray(A.indices), A.shape, part=part)
    counts = cp().asarray(np.maximum(np.diff(A.indptr), 1).astype(np.float32))
    for i, (name, bits, more) in enumerate(ALL):
        case, mean, weighted = Case(d, name, bits, more), i % 4 == 3, i % 3 == 1
        out = poisoned(case.finish)
        weights = windows.weigh(cp().asarray(values)) if weighted else None
        windows.run(
            cp().asarray(x), out, weights=weights, counts=counts if mean else None, finish=case.finish, behind=case.behind
        )  # fmt: skip
        matrix = sp.csr_array((values if weighted else np.ones(A.nnz), A.indices, A.indptr), A.shape)
        case.check(out, matrix.astype(np.float64), x.astype(np.float64), mean)


@pytest.mark.parametrize("encoding", ["bipolar", "unsigned"])
@pytest.mark.parametrize("d", [1, 31, 64, 100, 128, 260])
def test_one_bit_features(d: int, encoding: str) -> None:
    from bitsparse.backends.cuda.spmm.codes import PackedSum, packed_tuning

    rng = np.random.default_rng(d)
    A = graph()
    values, scale = rng.standard_normal(A.nnz).astype(np.float32), rng.standard_normal(N).astype(np.float32)
    codes = rng.integers(0, 2, (N, d))
    words = cp().asarray(codes_to_words(codes.astype(np.uint64), 1, "planes"))
    x = 2 * codes - 1 if encoding == "bipolar" else codes
    for i, (name, signs, more) in enumerate(ALL):
        case, weights, mean = Case(d, name, signs, more), ("edge", "general", "none")[i % 3], i % 4 == 1
        tuning = packed_tuning(d)._replace(longest=(None, 8)[i % 2])
        if i == 4:
            tuning = tuning._replace(load=(8, 16, 32)[d % 3], lanes=4)
        sums = PackedSum(
            schedule_of(A, (np.int32, np.int64)[i == 5]), features=d, encoding=encoding, finish=case.finish,
            values=None if weights == "none" else cp().asarray(values), weights=weights, mean=mean, tuning=tuning,
        )  # fmt: skip
        out = poisoned(case.finish)
        sums(words, None, cp().asarray(scale) if weights == "general" else None, out, case.behind)
        matrix = sp.csr_array((values if weights != "none" else np.ones(A.nnz), A.indices, A.indptr), A.shape)
        real = x * scale[:, None].astype(np.float64) if weights == "general" else x.astype(np.float64)
        case.check(out, matrix.astype(np.float64), real, mean)

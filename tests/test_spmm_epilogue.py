"""Epilogues of sparse products on the CPU must equal the same chain on NumPy's sums, bit for bit; unsuitable ones are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs

M, N, D = 40, 30, 19


def graph() -> Any:
    rng = np.random.default_rng(0)
    dense = rng.random((M, N)) < rng.random((M, 1)) * 0.6
    dense[::7] = False
    return sp.csr_array(dense)


def features(bits: int, encoding: str, size: tuple[int, ...] | None = ()) -> bs.BitTensor:
    rng = np.random.default_rng(bits)
    low = -(1 << bits - 1) if encoding == "signed" else 0
    codes = rng.integers(low, low + (1 << bits), (N, D))
    x = bs.BitTensor(2 * codes - 1 if encoding == "bipolar" else codes, bits, encoding=encoding)  # type: ignore[arg-type]
    if size is None:
        return x
    return x.with_affine(*(rng.random(size).astype(np.float32) + 0.5 for _ in range(2)))


def chained(sums: np.ndarray, epilogue: bs.Epilogue, row: Any, col: Any, term: Any) -> Any:
    """Apply the same chain to sums in memory, with the operands' factors and corrections inserted by hand."""
    v = sums.astype(np.float32)
    if row is not None:
        v = v * row[:, None]
    if col is not None:
        v = v * col
    if term is not None:
        v = v + term[0].astype(np.float32)[:, None] * term[1].astype(np.float32)
    return epilogue(v)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize(
    ("bits", "encoding"),
    [(1, "unsigned"), (1, "bipolar"), (2, "signed"), (3, "unsigned"), (8, "unsigned"), (16, "signed")],
)
def test_scales_belong_to_the_chain(bits: int, encoding: str, reduce: Any) -> None:
    A, rng = graph(), np.random.default_rng(1)
    degrees = np.diff(A.indptr)
    row = rng.random(M).astype(np.float32)
    plain: dict[str, Any] = {"bias": rng.standard_normal(D).astype(np.float32), "activation": "relu"}
    for size, row_scale in ((None, None), ((), None), ((1, D), row)):
        x = features(bits, encoding, size)
        there = bs.TCTiledCSR(A, row_scale=row_scale)
        sums = A.astype(np.int64) @ x.toarray().astype(np.int64)
        times = degrees.astype(np.float64)
        if reduce == "mean":
            sums = sums.astype(np.float32) / np.maximum(degrees, 1).astype(np.float32)[:, None]
            times = (degrees > 0).astype(np.float64)
        term = None
        if x.offset is not None:
            factor = 1 if row_scale is None else row_scale.astype(np.float64)
            term = times * factor, np.broadcast_to(x.offset.reshape(-1), D)
        for more in ({}, {"bits": 4, "out_scale": 0.5, "axis": -2}, {"bits": 8, "out_scale": 0.1, "layout": "rows"}):
            epilogue = bs.Epilogue(**plain, **more, offset_correction=True)
            scale = None if x.scale is None else x.scale.reshape(-1)
            want = chained(sums, epilogue, row_scale, scale, term)
            for got in (
                bs.spmm(there, x, reduce=reduce, epilogue=epilogue),
                bs.plan_spmm(there, D, bits=bits, encoding=encoding, reduce=reduce, epilogue=epilogue)(x),  # type: ignore[arg-type]
            ):
                if epilogue.gives_bits:
                    np.testing.assert_array_equal(got.words, want.words)
                    assert (got.axis, got.layout, got.bits) == (want.axis, want.layout, want.bits)
                else:
                    np.testing.assert_array_equal(got, want)


def test_what_stays_in_the_sum() -> None:
    """With factors that differ by neighbour, maxima and ordinary features, the chain must be that of spmm's result without it."""
    A, rng = graph(), np.random.default_rng(2)
    epilogue = bs.Epilogue(bits=6, out_scale=0.3, bias=np.ones(D, np.float32), offset_correction=True)
    scaled = bs.TCTiledCSR(A, row_scale=rng.random(M), col_scale=rng.random(N))
    weighted = sp.csr_array((rng.standard_normal(A.nnz), A.indices, A.indptr), A.shape)
    x = features(4, "unsigned")
    cases: list[tuple[Any, Any, Any]] = [
        (scaled, x, "sum"),
        (weighted, x, "sum"),
        (A, features(4, "unsigned", (N, 1)), "mean"),
        (A, x, "max"),
        (A, rng.standard_normal((N, D)), "sum"),
        (A, rng.integers(-5, 5, (N, D)), "mean"),
        (scaled, rng.standard_normal((N, D)).astype(np.float16), "sum"),
    ]
    for matrix, given, reduce in cases:
        want = epilogue(bs.spmm(matrix, given, reduce=reduce).astype(np.float32))
        np.testing.assert_array_equal(bs.spmm(matrix, given, reduce=reduce, epilogue=epilogue).words, want.words)
    values = rng.integers(-3, 4, A.nnz).astype(np.int8)
    whole = sp.csr_array((values, A.indices, A.indptr), A.shape)
    term = (whole.astype(np.float64) @ np.ones(N), np.broadcast_to(x.offset.reshape(-1), D))
    want = chained(whole.astype(int) @ x.toarray().astype(int), epilogue, None, np.broadcast_to(x.scale, D), term)
    for got in (bs.spmm(whole, x, epilogue=epilogue), bs.spmm(A, x, values=values, epilogue=epilogue)):
        np.testing.assert_array_equal(got.words, want.words)


def test_results_in_place_and_empty() -> None:
    A, x = bs.TCTiledCSR(graph()), features(8, "unsigned", None)
    for epilogue in (bs.Epilogue(), bs.Epilogue(bits=3, out_scale=1.0), bs.Epilogue(binarize=True, axis=-2)):
        plan = bs.plan_spmm(A, D, bits=8, epilogue=epilogue)
        want = plan(x)
        out = want.copy()
        (out.words if isinstance(out, bs.BitTensor) else out).view(np.uint8).fill(0xA5)
        assert plan(x, out=out) is out
        if isinstance(out, bs.BitTensor):
            np.testing.assert_array_equal(out.words, want.words)
        else:
            np.testing.assert_array_equal(out, want)
        plan.check()
    for rows, columns in ((0, D), (3, 0)):
        none = bs.spmm(
            sp.csr_array((rows, N), dtype=bool), bs.BitTensor(np.zeros((N, columns), int), 2), epilogue=bs.Epilogue()
        )
        assert none.shape == (rows, columns) and none.dtype == np.float32


def test_refusals() -> None:
    A, x = graph(), features(4, "unsigned")
    plan = bs.plan_spmm(A, D, bits=4)
    for wrong in (features(8, "unsigned", None), features(4, "signed", None), np.zeros((N, D))):
        with pytest.raises(bs.DTypeError, match="the plan is for 4 unsigned bits"):
            plan(wrong)
    with pytest.raises(ValueError, match="not both"):
        bs.plan_spmm(A, D, bits=4, dtype=np.float32)
    with pytest.raises(bs.DTypeError, match="epilogue must be an Epilogue, got dict"):
        bs.spmm(A, x, epilogue={})  # type: ignore[arg-type]
    with pytest.raises(bs.ShapeError, match="takes rows and columns"):
        bs.plan_spmm(A, D, heads=2, epilogue=bs.Epilogue())
    with pytest.raises(bs.ShapeError, match="bias"):
        bs.plan_spmm(A, D, epilogue=bs.Epilogue(bias=np.ones(D + 1)))
    with pytest.raises(ValueError, match="offset_correction"):
        bs.spmm(A, x, epilogue=bs.Epilogue())
    with pytest.raises(bs.DTypeError, match="out must be a BitTensor"):
        bs.spmm(A, x.with_affine(), epilogue=bs.Epilogue(bits=2, out_scale=1.0), out=np.empty((M, D), np.float32))
    with pytest.raises(bs.KernelError, match="runs on a GPU"):
        bs.spmm(A, x, kernel="codes")
    broken = np.full((N, D), np.nan, np.float32)
    with pytest.raises(ValueError, match="NaN"):
        bs.spmm(A, broken, epilogue=bs.Epilogue(bits=2, out_scale=1.0))

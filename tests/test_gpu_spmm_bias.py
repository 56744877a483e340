"""Sums over neighbours with a bias in one launch on the GPU: the bits of one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_inputs import graphs
from test_gpu_bits import empty, raw, to_device

import bitsparse as bs
from bitsparse.arrays.inside import store_of
from bitsparse.backends.cuda.spmm import spmm as spmm_kernel
from bitsparse.ops.plan import CALLS
from bitsparse.ops.spmm.laid import laid_sums
from bitsparse.ops.spmm.spmm import spmm_with_bias

pytestmark = pytest.mark.gpu


def operands(columns: int, scaled: tuple[bool, bool]) -> tuple[Any, Any, Any, list[Any]]:
    """A pattern with hubs, with factors of its rows and columns or without, features, a bias and the factors, on the GPU."""
    A, rng = graphs()["hubs"], np.random.default_rng(columns)
    scales = [
        to_device(rng.random(size).astype(np.float32)) if there else None
        for there, size in zip(scaled, A.shape, strict=True)
    ]
    x, bias = (to_device(rng.standard_normal(n).astype(np.float32)) for n in ((A.shape[1], columns), columns))
    return bs.TCTiledCSR(A, pattern=True).to_device("cuda").with_scales(*scales), x, bias, scales


@pytest.mark.parametrize("columns", [1, 7, 32, 41, 128])
@pytest.mark.parametrize("scaled", [(False, False), (True, True), (True, False)])
def test_a_bias_behind_sums_and_means(columns: int, scaled: tuple[bool, bool]) -> None:
    ours, x, bias, _ = operands(columns, scaled)
    for reduce in ("sum", "mean"):
        want = bs.spmm(ours, x, reduce=reduce) + bias
        for _ in range(2):
            out = empty((ours.shape[0], columns), np.float32)
            spmm_with_bias(ours, x, bias, reduce=reduce, precision="fp32", out=out)
            assert raw(out).tobytes() == raw(want).tobytes()
    assert any(key[0] == "spmm with a bias" for key in store_of(ours)[CALLS])


@pytest.mark.parametrize("columns", [1, 7, 41, 48])
@pytest.mark.parametrize("scaled", [(False, False), (True, True), (True, False), (False, True)])
@pytest.mark.parametrize("biased", [False, True])
def test_rows_that_their_maker_lays(
    columns: int, scaled: tuple[bool, bool], biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits of sums that lay the rows themselves, whatever stands behind the columns; lent memory comes back."""
    monkeypatch.setattr(spmm_kernel, "laying_pays", lambda *_: True)
    ours, x, bias, scales = operands(columns, scaled)
    want = bs.spmm(ours, x)
    want = want + bias if biased else want
    laid = laid_sums(ours, columns, biased)
    assert laid is not None
    assert (laid.columns, laid.scaled) == (-(-columns // 4) * 4, scaled[1])
    rows = np.full((ours.shape[1], laid.columns), np.nan, np.float32)
    rows[:, :columns] = x.get()
    if scales[1] is not None:
        rows *= scales[1].get()[:, None]
    for _ in range(2):
        out = empty((ours.shape[0], columns), np.float32)
        laid(to_device(rows), out, bias if biased else None)
        assert raw(out).tobytes() == raw(want).tobytes()


def test_sums_that_lay_no_rows() -> None:
    A: Any = bs.TCTiledCSR(graphs()["hubs"], pattern=True)
    assert laid_sums(A, 7) is None
    assert laid_sums(A.to_device("cuda"), 8) is None
    assert laid_sums(A.to_device("cuda"), 0) is None
    assert laid_sums(bs.TCTiledCSR(graphs()["hubs"].astype(np.float32) * 2).to_device("cuda"), 7) is None

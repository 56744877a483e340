"""Plans of dense products and of aggregations of signs follow the protocol of plans: shape, dtype, device, kernel, memory, ``out``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse.ops.plan import Plan

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 70)).astype(np.float32)
W = RNG.standard_normal((70, 5)).astype(np.float32)
GRAPH = sp.csr_array(RNG.random((9, 6)) < 0.4)
SIGNS = bs.pack_bits(X, encoding="bipolar")
SMALL = bs.pack_bits(RNG.integers(0, 4, (6, 70)))
BITS = bs.Epilogue(bits=3, out_scale=20.0)

#: A function that makes a plan, and the operand of its calls.
PLANS: dict[str, tuple[Callable[[], Any], Any]] = {
    "matmul": (lambda: bs.plan_matmul(SMALL, 5), bs.pack_bits(W, axis=-2)),
    "matmul with floats": (lambda: bs.plan_matmul(SMALL, 5, epilogue=bs.Epilogue(bias=1.0)), bs.pack_bits(W, axis=-2)),
    "matmul with bits": (lambda: bs.plan_matmul(SMALL, 5, epilogue=BITS), bs.pack_bits(W, axis=-2)),
    "bmm": (lambda: bs.plan_bmm(W, 6, "FFB"), X),
    "bmm with sums": (lambda: bs.plan_bmm(bs.pack_bits(W, encoding="bipolar", axis=-2), 6), X),
    "bmm scaled": (lambda: bs.plan_bmm(bs.pack_bits(W, encoding="bipolar", axis=-2), 6, row_absmean=True), X),
    "quantized": (lambda: bs.plan_quantized_matmul(W, 6), X),
    "bspmm": (lambda: bs.plan_bspmm(GRAPH, 70), SIGNS),
    "bspmm with bits": (lambda: bs.plan_bspmm(GRAPH, 70, "BBB"), SIGNS),
    "bspmm of floats": (lambda: bs.plan_bspmm(GRAPH, 70, dtype=np.float32), X),
    "bspmm mean": (lambda: bs.plan_bspmm(GRAPH, 70, reduce="mean"), SIGNS),
}


@pytest.mark.parametrize("name", PLANS)
def test_protocol(name: str) -> None:
    make, operand = PLANS[name]
    plan = make()
    assert isinstance(plan, Plan)
    result = plan(operand)
    assert plan.shape == result.shape
    assert plan.dtype == result.dtype
    assert plan.device == "cpu"
    assert isinstance(plan.kernel, str)
    assert plan.kernel
    assert plan.nbytes >= 0
    assert plan.explain()
    plan.check()
    out = plan(operand)
    assert plan(operand, out=out) is out

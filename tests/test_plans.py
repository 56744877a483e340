"""Attributes that every plan must have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bitsparse as bs
from bitsparse.ops.plan import Plan

A = sp.csr_array(np.array([[0, 1, 1], [1, 0, 0]], bool))
X = np.ones((3, 4), np.float32)
PLANS: dict[str, tuple[Any, Any]] = {
    "spmm": (bs.plan_spmm(A, 4), X),
    "spmm of integers": (bs.plan_spmm(A, 4, dtype=np.int8), X.astype(np.int8)),
    "mean of integers": (bs.plan_spmm(A, 4, dtype=np.int8, reduce="mean"), X.astype(np.int8)),
    "spmm of bits": (bs.plan_spmm(A, 4, bits=2), bs.BitTensor(X.astype(int), 2)),
    "spmm to bits": (bs.plan_spmm(A, 4, epilogue=bs.Epilogue(bits=2, out_scale=1.0)), X),
    "sampled spmm": (bs.plan_sampled_spmm(A, 4, 2), X),
    "sampled spmm, float64": (bs.plan_sampled_spmm(A, 4, 2, dtype=np.float64), X.astype(np.float64)),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_says_what_it_does(name: str) -> None:
    plan, x = PLANS[name]
    assert isinstance(plan, Plan)
    result = plan(x)
    plan.check()
    assert result.shape == plan.shape
    assert result.dtype == plan.dtype
    assert plan.device == "cpu"
    assert plan.nbytes == 0
    assert plan.kernel
    assert plan.explain()

"""Sparse products on the CPU: sums of one-bit integers by counters, and how the work is divided."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends
from bitsparse.backends.params import SEGMENT
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features

__all__ = ["counted", "explain", "explain_packed", "is_counted"]

Array = NDArray[Any]


def is_counted(operand: CSROperand, x: Features, weights: Array | None, acc: np.dtype[Any], reduce: str) -> bool:
    """Whether vertical counters, an eighth of the work, give the sums before an epilogue."""
    if x.packed is None or x.packed.bits != 1 or x.packed.affine is not None or x.packed.encoding == "signed":
        return False  # a bit counts as 0 and 1 or as -1 and 1, while one signed bit means 0 or -1
    return weights is None and acc == np.int32 and not REDUCTIONS[reduce].selects and operand.indices is not None


def counted(operand: CSROperand, x: Features, reduce: str) -> Array:
    """Sums or means of one-bit integers by counters."""
    assert x.packed is not None
    bipolar = x.packed.encoding == "bipolar"
    family = backends.family("cpu", "binary.bspmm")
    sums: Array = family.count(operand.indptr, operand.indices, x.data, x.packed.width, bipolar=bipolar)
    if reduce == "sum":
        return sums
    counts = np.maximum(np.diff(operand.indptr), 1).astype(np.float32)[:, None]
    means: Array = sums.astype(np.float32) / counts
    return means


def explain(operand: CSROperand) -> str:
    """How the rows are shared out, in a line."""
    units = -(-(operand.shape[0] + operand.nnz) // SEGMENT)
    long_rows = int(np.count_nonzero(np.diff(operand.indptr) > SEGMENT))
    shared = f"{long_rows} longer rows are shared out" if long_rows else "no row is shared out"
    return f"rows in {units} unit{'s' if units != 1 else ''} of about {SEGMENT} edges, {shared}"


def explain_packed(x: Features, acc: np.dtype[Any], by_counters: bool) -> str:
    """How integers of few bits are summed, in a few words."""
    if by_counters:
        return "vertical counters, the epilogue behind them"
    gathered = x.packed is not None and acc.name in ("int32", "float32")
    return f"{'gathered packed' if gathered else f'unpacked to {x.dtype} first'}, summed in {acc}"

"""The sums of one sparse product, described by operands and dtypes, and their computation on the CPU, by edges or by bit counters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import backends, interop
from bitsparse.backends.params import SEGMENT, Array
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features
from bitsparse.ops.plan import KeptCall


class Sums(NamedTuple):
    """Sums, means, maxima or minima of features over the rows of a sparse operand.

    Attributes
    ----------
    operand : CSROperand
    x : Features
    weights : array (nnz,) or (nnz, heads), or None
        Values of the edges.
    reduce : str
        One of `REDUCTIONS`.
    dtype, acc, result_dtype : dtype
        Dtypes of floating features when they are summed, of the accumulators, and of the result.
    heads : int
        Number of heads that the kernels must distinguish.
    """

    operand: CSROperand
    x: Features
    weights: Array | None
    reduce: str
    dtype: np.dtype[Any]
    acc: np.dtype[Any]
    result_dtype: np.dtype[Any]
    heads: int

    @property
    def is_counted(self) -> bool:
        """Whether vertical counters on the CPU, with an eighth of the work, can compute the sums before an epilogue."""
        packed = self.x.packed
        if packed is None or packed.bits != 1 or packed.affine is not None or packed.encoding == "signed":
            return False  # counters take a bit as 0 and 1 or as -1 and 1, but one signed bit means 0 or -1
        plain = self.weights is None and self.acc == np.int32 and self.operand.indices is not None
        return plain and not REDUCTIONS[self.reduce].selects

    def counted(self) -> Array:
        """Sums or means of one-bit integers, computed by vertical counters."""
        packed, operand = self.x.packed, self.operand
        assert packed is not None
        count = backends.family("cpu", "binary.bspmm").count
        sums: Array = count(
            operand.indptr, operand.indices, self.x.data, packed.width, bipolar=packed.encoding == "bipolar"
        )
        if self.reduce == "sum":
            return sums
        counts = np.maximum(np.diff(operand.indptr), 1).astype(np.float32)[:, None]
        return sums.astype(np.float32) / counts

    def by_edges(self, data: Array, out: Array | None) -> Array:
        """The sums of packed features, or of rows of numbers, computed edge by edge on the CPU."""
        operand = self.operand
        return backends.family("cpu", "spmm.spmm").spmm(
            operand.pattern,
            data,
            acc_dtype=self.acc,
            heads=self.heads,
            values=self.weights,
            row_scale=operand.row_scale,
            col_scale=operand.col_scale,
            reduce=self.reduce,
            packed=self.x.packed,
            out=out,
        )

    def explain(self, by_counters: bool) -> str:
        """Describe in a few words how integers of few bits are summed on the CPU."""
        if by_counters:
            return "vertical counters, the epilogue behind them"
        gathered = self.x.packed is not None and self.acc.name in ("int32", "float32")
        return f"{'gathered packed' if gathered else f'unpacked to {self.x.dtype} first'}, summed in {self.acc}"


def kept_on_host(
    operand: CSROperand, family: interop.Family, x: Array, values: Array | None, acc: np.dtype[Any], reduce: str
) -> KeptCall | None:
    """A kept call on the CPU for floats like `x`, with values like `values` or the operand's own; None if these must be converted."""
    own = operand.values if values is None else None
    weights = own if values is None else values
    if weights is not None and not (weights.dtype == acc and weights.flags.c_contiguous and weights.flags.aligned):
        return None
    run = backends.family("cpu", "spmm.spmm").Sums(
        operand.pattern,
        dtype=x.dtype,
        columns=x.size // x.shape[0],
        heads=x.shape[1] if weights is not None and weights.ndim == 2 else 1,
        values=weights,
        row_scale=operand.row_scale,
        col_scale=operand.col_scale,
        reduce=reduce,
    )
    kinds, result = [(x.shape, x.dtype)], ((operand.shape[0], *x.shape[1:]), x.dtype)
    if values is not None:
        kinds.append((values.shape, values.dtype))
    product = run if values is not None else run.over(own)
    return KeptCall(product, kinds, result, "cpu", family=family, owner=operand.factors, beside=operand.factors[:1])


def division_on_host(operand: CSROperand) -> str:
    """Describe in a line how the rows are divided among threads on the CPU."""
    units = -(-(operand.shape[0] + operand.nnz) // SEGMENT)
    long_rows = int(np.count_nonzero(np.diff(operand.indptr) > SEGMENT))
    shared = f"{long_rows} longer rows are shared out" if long_rows else "no row is shared out"
    return f"rows in {units} unit{'s' if units != 1 else ''} of about {SEGMENT} edges, {shared}"

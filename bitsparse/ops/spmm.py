"""Sparse times dense: sums, means and maxima of neighbours' features, with values or scales on the edges."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.backends.params import SEGMENT
from bitsparse.errors import ShapeError
from bitsparse.ops.features import Features, as_features, native, sum_dtypes
from bitsparse.ops.operands import CSROperand, as_csr, incidence_csr

__all__ = ["SpmmPlan", "aggregate_edges", "plan_spmm", "spmm"]

Array = NDArray[Any]
Reduce = Literal["sum", "mean", "max"]
REDUCES = ("sum", "mean", "max")


def spmm(A: Any, x: Any, *, values: Any = None, reduce: Reduce = "sum", out: Any = None) -> Any:
    """Product of a sparse matrix with dense features, ``y[i] = reduce over j of A[i, j] * x[j]``; ``A @ x``.

    Parameters
    ----------
    A : TCTiledCSR, FRDC, BitTensor of one bit or scipy.sparse array, (M, N)
        The adjacency: row i holds what node i aggregates. A pattern (no values, or all True) counts as ones; `row_scale` and `col_scale`
        of a container are factors per row and column. Duplicates are summed, as SciPy does.
    x : array (N,), (N, D) or (N, H, D), or BitTensor (N, D) or (N, H, D)
        Features: bool, integers, float16, bfloat16, float32 or float64, from any array library. A BitTensor without scale and offset
        stands for its integers; with them its values are dequantised while they are gathered, to the same float32 values as
        ``x.dequantize()``. Gathered packed at 1, 2, 4, 8 and 16 bits; ``layout="rows"`` saves a conversion.
    values : array (nnz,) or (nnz, H), optional
        Weights of the edges instead of A's own, in the order of A's CSR arrays; one per head for features (N, H, D).
    reduce : {"sum", "mean", "max"}
        The mean divides by the number of edges of the row, whatever their weights. Rows without edges give 0.
    out : array, optional
        Where to write; of exactly the result's shape and dtype. Also returned.

    Returns
    -------
    array (M,), (M, D) or (M, H, D)
        In the family of `x`. Floating features and values follow NumPy's promotion. Integers without a floating factor give exact sums,
        int32 if ``longest row * max|A| * max|x| < 2**31`` by dtype or bits, else int64; their mean is float32, the quotient of sum and
        count, each rounded to float32. Integers with a floating factor give float32, beyond 16 bits float64.

    Raises
    ------
    ShapeError
        `A` and `x` do not fit, or values or `out` have another shape than the result asks for.
    ValueError
        An integer sum might exceed int64, or A's arrays are not those of a matrix.
    DTypeError, DeviceError
        An operand is not numeric, not sparse or not on the CPU.

    Notes
    -----
    Rows of up to 1024 edges are summed in the order of their columns, longer ones in pieces of 1024, which are then added in order; each
    step is rounded once. The bits of a result depend neither on the number of threads nor on the processor. With u = 2**-24 (2**-53 for
    float64, and one rounding more, of 2**-11 or 2**-8, for 16-bit features, which are summed in float32) the error of a row of n edges is
    at most ``(min(n, 1024) + ceil(n / 1024) + 3) * u * sum |a x|``, three roundings being those of the weights and scales. NaN propagates
    through all three reductions.

    TANGO (Tang et al., SC 2023, section 3.3) splits products with a weight per edge and head into one product per head; here each head is
    a pass over a row's edges while they are in cache. Work is shared out by edges, and long rows are shared out as well.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0, 2, 1], [0, 0, 0], [3, 0, 0]], dtype=np.float32))
    >>> x = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32)
    >>> bs.spmm(A, x)
    array([[11., 14.],
           [ 0.,  0.],
           [ 3.,  6.]], dtype=float32)
    >>> bs.spmm(A != 0, x, reduce="mean")
    array([[4., 5.],
           [0., 0.],
           [1., 2.]], dtype=float32)
    """
    features = as_features("spmm", "x", x)
    plan = SpmmPlan("spmm", as_csr("spmm", A), features.shape[1:], reduce)
    return plan._run(features, values, out)


def plan_spmm(A: Any, n: int, *, heads: int | None = None, reduce: Reduce = "sum") -> SpmmPlan:
    """Prepare products of one sparse matrix with many features of the same width.

    Parameters
    ----------
    A : sparse (M, N)
        As in :func:`spmm`.
    n : int
        Columns of the features, of one head if there are several.
    heads : int, optional
        Heads of features (N, heads, n); by default they are (N, n).
    reduce : {"sum", "mean", "max"}

    Returns
    -------
    SpmmPlan

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> plan = bs.plan_spmm(sp.eye_array(3, format="csr", dtype=np.float32), 2)
    >>> plan(np.ones((3, 2), np.float32)).sum()
    np.float32(6.0)
    >>> print(plan.explain())
    3 x 3, 3 edges, longest row 1: sum of 2 columns
    rows in 1 unit of about 1024 edges, no row is shared out
    """
    function = "plan_spmm"
    inner: tuple[int, ...] = (_check.integer(function, "n", n, 0),)
    if heads is not None:
        inner = (_check.integer(function, "heads", heads, 0), *inner)
    return SpmmPlan(function, as_csr(function, A), inner, reduce)


def aggregate_edges(
    A: Any, edges: Any, *, reduce: Reduce = "sum", side: Literal["rows", "cols"] = "rows", out: Any = None
) -> Any:
    """Reduce features of edges to their nodes: the product of the incidence matrix with the edges' features.

    The incidence form of edge aggregation (TANGO, Tang et al., SC 2023, section 3.3): no matrix of ones in place of node features, and by
    rows no gather at all, since the edges of a row lie side by side. In training it makes the gradients of node scores from those of
    edge scores, by rows for one end and by columns for the other.

    Parameters
    ----------
    A : sparse (M, N)
        Only its pattern counts.
    edges : array (nnz,), (nnz, D) or (nnz, H, D), or BitTensor
        One row per edge, in the order of A's CSR arrays; dtypes as for :func:`spmm`.
    reduce : {"sum", "mean", "max"}
    side : {"rows", "cols"}
        Which end of an edge receives it. Edges of a column are taken in the order of their rows.
    out : array, optional

    Returns
    -------
    array (M, ...) or, by columns, (N, ...)
        dtypes, errors and bounds as for :func:`spmm`.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0, 1, 1], [0, 0, 1]]))
    >>> bs.aggregate_edges(A, np.array([1.0, 10.0, 100.0]))
    array([ 11., 100.])
    >>> bs.aggregate_edges(A, np.array([1.0, 10.0, 100.0]), side="cols")
    array([  0.,   1., 110.])
    """
    function = "aggregate_edges"
    side = _check.choice(function, "side", side, ("rows", "cols"))  # type: ignore[assignment]
    features = as_features(function, "edges", edges)
    operand = incidence_csr(function, A, side)
    if features.shape[0] != operand.nnz:
        raise ShapeError(
            f"{function}: A has {operand.nnz} edges but edges has {features.shape[0]} rows (shape {features.shape}); pass one per edge"
        )
    return SpmmPlan(function, operand, features.shape[1:], reduce)._run(features, None, out)


class SpmmPlan:
    """A prepared product ``plan(x, values=None, out=None)``; made by :func:`plan_spmm`.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    longest_row : int
        Most edges in a row of A.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> bs.plan_spmm(sp.csr_array(np.array([[0, 1], [1, 1]])), 8)
    <SpmmPlan shape=(2, 8) reduce=sum edges=3>
    """

    def __init__(self, function: str, operand: CSROperand, inner: tuple[int, ...], reduce: str) -> None:
        self._function, self._operand, self._inner = function, operand, inner
        self._reduce = _check.choice(function, "reduce", reduce, REDUCES)
        self.shape = (operand.shape[0], *inner)
        self.longest_row = operand.longest_row

    def explain(self) -> str:
        """How the work is divided, in a few lines."""
        (rows, cols), edges = self._operand.shape, self._operand.nnz
        units = -(-(rows + edges) // SEGMENT)
        long_rows = int(np.count_nonzero(np.diff(self._operand.indptr) > SEGMENT))
        width = " x ".join(map(str, self._inner)) or "1"
        shared = f"{long_rows} longer rows are shared out" if long_rows else "no row is shared out"
        return (
            f"{rows} x {cols}, {edges} edges, longest row {self.longest_row}: {self._reduce} of {width} columns\n"
            f"rows in {units} unit{'s' if units != 1 else ''} of about {SEGMENT} edges, {shared}"
        )

    def __repr__(self) -> str:
        return f"<SpmmPlan shape={self.shape} reduce={self._reduce} edges={self._operand.nnz}>"

    def __call__(self, x: Any, values: Any = None, out: Any = None) -> Any:
        """The product with features of the planned width; see :func:`spmm`."""
        features = as_features(self._function, "x", x)
        if features.shape[1:] != self._inner:
            raise ShapeError(
                f"{self._function}: x has shape {features.shape}, but the plan is for {(self._operand.shape[1], *self._inner)}; "
                f"make another plan"
            )
        return self._run(features, values, out)

    def _run(self, x: Features, values: Any, out: Any) -> Any:
        function, operand = self._function, self._operand
        if x.shape[0] != operand.shape[1]:
            raise ShapeError(
                f"{function}: A has {operand.shape[1]} columns but x has {x.shape[0]} rows (shapes {operand.shape} and {x.shape}); "
                f"transpose A, or check which graph x belongs to"
            )
        weights, per_head = self._weights(values, x)
        scaled = operand.row_scale is not None or operand.col_scale is not None
        longest = min(self.longest_row, 1) if self._reduce == "max" else self.longest_row
        dtype, acc = sum_dtypes(function, x, weights, scaled, longest)
        mean_of_integers = self._reduce == "mean" and acc.kind == "i"
        result_dtype = np.dtype(np.float32) if mean_of_integers else dtype
        target = None
        if out is not None:
            target = interop.writable_numpy(out, function)
            _check.out_array(function, target, self.shape, result_dtype)
            _check.no_overlap(function, target, x.data, *(() if weights is None else (weights,)))
        heads = x.shape[1] if len(x.shape) == 3 and (per_head or x.packed is not None) else 1
        result = self._call(x, weights, dtype, acc, result_dtype, heads, target)
        return out if out is not None else interop.from_numpy(result, x.family, function)

    def _weights(self, values: Any, x: Features) -> tuple[Array | None, bool]:
        """Values per edge in canonical order, and whether each head has its own."""
        function, operand = self._function, self._operand
        if values is None:
            return operand.values, False
        given = interop.as_numpy(values, function, "values")[0]
        _check.numeric(function, "values", given)
        weights = native(operand.edge_values(function, "values", given))
        per_head = weights.ndim == 2
        if weights.ndim > 2 or (per_head and (len(x.shape) != 3 or weights.shape[1] != x.shape[1])):
            wanted = f"({operand.nnz},) or ({operand.nnz}, {x.shape[1]})" if len(x.shape) == 3 else f"({operand.nnz},)"
            raise ShapeError(
                f"{function}: values have shape {given.shape}, but x of shape {x.shape} takes {wanted}; reshape one of them"
            )
        return weights, per_head

    def _call(
        self,
        x: Features,
        weights: Array | None,
        dtype: np.dtype[Any],
        acc: np.dtype[Any],
        result_dtype: np.dtype[Any],
        heads: int,
        target: Array | None,
    ) -> Array:
        operand = self._operand
        if 0 in self.shape:
            return np.empty(self.shape, result_dtype) if target is None else target
        data, packed = x.data, x.packed
        if packed is None:
            data = data.reshape(x.shape[0], x.columns)
            if data.dtype.kind not in "biu" and data.dtype != dtype:
                data = data.astype(dtype)
        result: Array = backends.family("cpu", "spmm").spmm(
            operand.indptr,
            operand.indices,
            operand.shape,
            data,
            nnz=operand.nnz,
            acc_dtype=acc,
            heads=heads,
            values=weights,
            row_scale=operand.row_scale,
            col_scale=operand.col_scale,
            reduce=self._reduce,
            packed=packed,
            out=None if target is None else target.reshape(self.shape[0], x.columns),
        )
        return result.reshape(self.shape)

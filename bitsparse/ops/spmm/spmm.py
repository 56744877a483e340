"""Products of sparse matrices with features: sums, means, maxima and minima over neighbours, with values or scales on the edges."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.arrays.packed import Encoding
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.backends.after_sums import AfterSums
from bitsparse.backends.params import SIXTEEN
from bitsparse.backends.reductions import REDUCTIONS, Reduce
from bitsparse.errors import ShapeError
from bitsparse.interop import ArrayLike, SparseLike
from bitsparse.ops.finish.epilogue import Epilogue
from bitsparse.ops.operands.dense import as_features
from bitsparse.ops.operands.places import device_of_sparse, working_with
from bitsparse.ops.operands.sparse import incidence_csr, sparse_operand
from bitsparse.ops.plan import KeptCall, learn_floats, repeated
from bitsparse.ops.spmm.plan import SpmmPlan

Precision = Literal["fp32", "tf32", "3xtf32"]


def spmm(
    A: SparseLike,
    x: ArrayLike,
    *,
    values: ArrayLike | None = None,
    reduce: Reduce = "sum",
    precision: Precision = "fp32",
    kernel: str | None = None,
    epilogue: Epilogue | None = None,
    out: Any = None,
) -> Any:
    """Product of a sparse matrix with dense features, ``y[i] = reduce over j of A[i, j] * x[j]``; ``A @ x``.

    Parameters
    ----------
    A : TCTiledCSR, FRDC, BitTensor of one bit, scipy.sparse array or cupyx.scipy.sparse matrix, (M, N)
        The adjacency: row i holds the nodes that node i aggregates. A pattern (no values, or all True) counts as ones; values of shape
        (nnz, H) are one per head for features (N, H, D); `row_scale` and `col_scale` of a container are factors per row and column.
        Duplicates are summed, as in SciPy. The product is computed on A's device, where all other arrays must be too; containers on a GPU
        keep what was prepared for their pattern.
    x : array (N,), (N, D) or (N, H, D), or BitTensor (N, D) or (N, H, D)
        Features: bool, integers, float16, bfloat16, float32 or float64, from any array library. A BitTensor without scale and offset
        stands for its integers; with them, its values are dequantised while they are gathered, to the same float32 values as
        ``x.dequantize()``. It is gathered packed at 1, 2, 4, 8 and 16 bits; ``layout="rows"`` saves a conversion. On a GPU this holds for
        integers summed in int32 and for float weights, without scale and offset (see Notes for those with); others are unpacked first.
    values : array (nnz,) or (nnz, H), optional
        Weights of the edges instead of A's own, in the order of A's CSR arrays; one per head for features (N, H, D).
    reduce : {"sum", "mean", "max", "min"}
        The mean divides by the number of edges of the row, whatever their weights. Rows without edges give 0.
    precision : {"fp32", "tf32", "3xtf32"}
        Precision that products of float32 features may have. "tf32" allows tensor cores, which take 10 bits of each factor's fraction and
        sum in float32; "3xtf32" splits every factor in two and comes close to float32. It is only a permission: a CPU, and kernels without
        tensor cores, compute in float32 anyway.
    kernel : {"csr", "windows", "tiles", "panels", "nonzero", "codes"}, optional
        On a GPU: one edge at a time, windows of eight rows that share the features that they read, windows on tensor cores, or features
        gathered packed. By default, containers, which keep what is prepared, use the kernel with the lowest estimated cost. "panels" is
        only used if it is named: sums and means of float32 without edge values, on Hopper, that pass rows of `x`
        which 256 rows of A share through shared memory. It needs an index of some 5 bytes an edge more, for each width of features.
        "nonzero", too: sums and means of float32 without edge values that do not fetch rows of zeros, as gradients have at nodes without a
        label. It copies the features, finds these rows in every call, and needs a bit for each edge.
    epilogue : Epilogue, optional
        Chain applied to the sums of features (N, D); it gives float32, or a BitTensor if it makes bits. The scales of a BitTensor (one for
        all, or one per column) and the `row_scale` of A then belong to the chain, as in :func:`matmul`, so that integers are summed
        exactly and the result has the same bits on every device; offsets are refused unless it has ``offset_correction=True``. If a factor
        differs by neighbour (`col_scale`, floating values, one scale per node), and for a maximum or minimum, the chain is applied to the
        ordinary sums, rounded to float32.
    out : array or BitTensor, optional
        Where to write; of exactly the result's shape and dtype. Also returned.

    Returns
    -------
    array (M,), (M, D) or (M, H, D), or BitTensor (M, D)
        In the family of `x`. Floating features and values follow NumPy's promotion. Integers without a floating factor give exact sums,
        int32 if ``longest row * max|A| * max|x| < 2**31`` by dtype or bits, else int64; their mean is float32, the quotient of sum and
        count, each rounded to float32. Integers with a floating factor give float32, or float64 beyond 16 bits.

    Raises
    ------
    ShapeError
        `A` and `x` do not fit, or values or `out` do not have the required shape.
    ValueError
        An integer sum might exceed int64, or A's arrays are not those of a matrix.
    DTypeError, DeviceError
        An operand is not numeric or not sparse, or they are on several devices.
    KernelError
        `kernel` cannot compute this.

    Notes
    -----
    Rows of up to 1024 edges are summed in the order of their columns, longer ones in pieces of 1024, which are then added in order; each
    step is rounded once. The bits of a result depend neither on the number of threads nor on the processor. With u = 2**-24 (2**-53 for
    float64), the error of a row of n edges is at most ``(min(n, 1024) + ceil(n / 1024) + 3) * u * sum |a x|``, where three roundings are
    those of the weights and scales. 16-bit features are summed in float32, which adds one rounding of the result, by 2**-11 or 2**-8. NaN
    propagates through all reductions.

    On a GPU the pieces have some L edges, from 32 to 1024 depending on the size of `A` and the chip, and L replaces 1024 in this bound. For
    "panels" it is ``(n + 4) * u * sum |a x|``.
    Integers, maxima and minima have the same bits as on the CPU; floating sums have the same bits in every run. On tensor cores, which
    16-bit features may use without a permission, the bound is ``(e + n * 2**-22) * sum |a x|`` with e = 1.2e-3 for "tf32" and 2**-20 for
    "3xtf32"; for 16-bit features, before the result is rounded, e = 0 with values of their dtype and 2**-20 with a `col_scale` (for
    float16, also 2**-25 for each edge with a factor below 2**-14).

    If a BitTensor (N, D) has a scale and an offset for all or per column, and A has neither values nor a `col_scale`, a GPU sums the
    integers exactly. It computes the real values from the sums with six roundings, so that the error is at most
    ``6 * u * sum (|q * scale| + |offset|)`` times the row's scale. With values or a `col_scale`, integers of 2 to 16 bits without scale
    and offset are summed in float32 while they are gathered.

    TANGO (Chen et al., SC 2023, section 3.3) splits products with a weight per edge and head into one product per head; here each head is
    a pass over a row's edges while they are in cache. Work is divided by edges, and long rows are divided as well.

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
    >>> q = bs.quantize(x, 4, granularity="tensor")
    >>> bs.spmm(A != 0, q, epilogue=bs.Epilogue(offset_correction=True, activation="relu"))
    array([[ 8., 10.],
           [ 0.,  0.],
           [ 1.,  2.]], dtype=float32)
    """
    function, given = "spmm", (x,) if values is None else (x, values)
    options = (reduce, precision, kernel) if epilogue is None else None
    known = repeated(A, function, options, given, out, _first_call if values is None else None)
    if known is not None:
        return known
    # Long preparations for a pattern pay only if a container keeps them.
    keep = isinstance(A, SparseArray)
    with sparse_operand(function, A, x, values, out) as operand:
        features = as_features(function, "x", x)
        plan = SpmmPlan(function, operand, features.shape[1:], reduce, precision, kernel, keep, epilogue)
        result = plan.run(features, values, out)
        plan.check()
        if values is not None or operand.device == "cpu":
            learn_floats(A, function, options, given, plan.as_they_lie, on_host=True)
        return result


def _first_call(
    A: SparseArray,
    reduce: Reduce,
    precision: Precision,
    kernel: str | None,
    shape: tuple[int, ...],
    dtype: Any,
    after: bool = False,
) -> KeptCall | None:
    """A kept call of a container with features of this shape and dtype; None if such products must be checked every time."""
    function = "spmm"
    _check.numeric_dtype(function, "x", dtype)
    if A.device == "cpu" or not 1 <= len(shape) <= 3:
        return None
    half = dtype.name in SIXTEEN
    if after and (len(shape) != 2 or not (half or dtype == np.float32) or REDUCTIONS[reduce].selects):
        return None
    with sparse_operand(function, A) as operand:
        operand.check_features(function, shape)
        plan = SpmmPlan(function, operand, shape[1:], reduce, precision, kernel)
        prepared = plan.prepare(dtype, after)
        # Only this kernel takes steps before it rounds to 16 bits.
        return None if after and half and plan.kernel != "csr" else prepared


#: The same for sums or means of float32, float16 or bfloat16 features and steps after them.
_first_with_steps = partial(_first_call, after=True)


def spmm_and_after(
    A: SparseArray,
    x: Any,
    after: AfterSums,
    *,
    reduce: Reduce,
    precision: Precision,
    kernel: str | None = None,
    out: Any,
) -> bool:
    """Write :func:`spmm` of a container on a GPU with CuPy features (N, D), and the steps `after` it, to `out`, apart from what is read.

    For float32 features the bits are those of separate steps, except of panels, which add own features and a bias before the edges that
    they stage. For 16-bit features the steps are taken in float32, and their result is rounded once, if the kernel of the sums can; else
    `out` holds the sums alone, and the result is False.
    """
    known = None
    if _fit(after, out):
        known = repeated(A, "spmm and after", (reduce, precision, kernel), (x,), out, _first_with_steps, (after,))
    if known is None:
        spmm(A, x, reduce=reduce, precision=precision, kernel=kernel, out=out)
        if out.dtype.name in SIXTEEN:
            return False
        after.take(out)
    return True


def _fit(after: AfterSums, out: Any) -> bool:
    """Whether kernels take these steps as they are, for a result like `out`."""
    bias, own, scale = after.bias, after.own, after.own_scale
    if any(part is not None and part.dtype != np.float32 for part in (bias, scale)):
        return False
    if bias is not None and not (bias.shape == out.shape[1:] and bias.flags.c_contiguous):
        return False
    if own is not None:
        item = out.dtype.itemsize
        if own.dtype != out.dtype or own.shape != out.shape or own.strides[-1] != item:
            return False
        if own.strides[0] < item * own.shape[-1]:
            return False
    return scale is None or scale.size == 1


def kernel_of_gradient(A: SparseArray, x: Any, precision: Precision = "fp32") -> str | None:
    """The kernel that :func:`spmm` of a gradient without edge values should take, as many of its rows may be zeros; None: any.

    Only shape and dtype of `x` matter.
    """
    if A.device == "cpu" or len(x.shape) != 2:
        return None
    choice = backends.family(A.device, "spmm.choice")
    kind = choice.Kind(x.dtype, x.shape[1], precision=precision)
    return "nonzero" if choice.nonzero_pays(kind, A.shape, A.nnz) else None


def call_of(A: SparseArray, x: Any, values: Any, reduce: Reduce, kernel: str | None = None) -> KeptCall | None:
    """A kept call of a container on a GPU with features like `x` and values like `values`; None if there is no such call.

    Only shapes and dtypes of these arrays matter.
    """
    if values is None:
        return _first_call(A, reduce, "fp32", kernel, x.shape, x.dtype)
    with sparse_operand("spmm", A) as operand:
        operand.check_features("spmm", x.shape)
        if operand.order is not None:
            return None
        plan = SpmmPlan("spmm", operand, x.shape[1:], reduce, kernel=kernel)
        return plan.as_they_lie(operand, interop.CUPY, x, values)


def plan_spmm(
    A: SparseLike,
    n: int,
    *,
    heads: int | None = None,
    reduce: Reduce = "sum",
    dtype: Any = None,
    bits: int | None = None,
    encoding: Encoding = "unsigned",
    epilogue: Epilogue | None = None,
    precision: Precision = "fp32",
    kernel: str | None = None,
    frozen: bool = False,
) -> SpmmPlan:
    """Prepare products of one sparse matrix with many features of the same width.

    Parameters
    ----------
    A : sparse (M, N)
        As in :func:`spmm`.
    n : int
        Columns of the features, or of one head if there are several.
    heads : int, optional
        Heads of features (N, heads, n); without it features are (N, n).
    reduce : {"sum", "mean", "max", "min"}
    dtype : dtype, default float32
        Dtype of the features. On a GPU, the kernel for it is chosen and compiled now, and those for other dtypes at their first product.
    bits : int, optional
        The features are BitTensors of this many bits, instead of arrays.
    encoding : {"unsigned", "signed", "bipolar"}
        Encoding of these BitTensors.
    epilogue : Epilogue, optional
        As in :func:`spmm`. On a GPU, sums of a BitTensor of 2, 4, 8 or 16 bits and the epilogue may share one launch if the result is
        floats or bits packed along the features (``axis=-1``); otherwise they take two. Results are not checked: see ``plan.check()``.
    precision, kernel
        As in :func:`spmm`.
    frozen : bool, default False
        Multiply with A's current values, of which the plan makes a copy. Otherwise every call reads A's own values, so that changes in
        place take effect, and kernels that need another order rearrange the values every time.

    Returns
    -------
    SpmmPlan
        On a GPU ``plan(x, out=y)`` with C-contiguous `x` of the planned dtype allocates, compiles and waits for nothing from its second
        call on, so that it can be captured into a CUDA graph. The same holds for a BitTensor of the planned bits in the layout "rows" whose
        scale and offset the plan has met before. 64-bit integers are the exception: their bounds are checked every time.

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
    if bits is not None:
        if dtype is not None:
            raise ValueError(f"{function}: features have bits={bits} or dtype={dtype}, not both; leave one out")
        bits = _check.bit_count(function, bits)
        encoding = _check.encoding(function, encoding, bits)  # type: ignore[assignment]
    inner: tuple[int, ...] = (_check.integer(function, "n", n, 0),)
    if heads is not None:
        inner = (_check.integer(function, "heads", heads, 0), *inner)
    with sparse_operand(function, A) as operand:
        if _check.flag(function, "frozen", frozen):
            operand = operand.with_frozen_values()
        plan = SpmmPlan(function, operand, inner, reduce, precision, kernel, epilogue=epilogue)
        if bits is None:
            plan.prepare(dtype)
        else:
            plan.plan_bits(bits, encoding)
        return plan


def aggregate_edges(
    A: SparseLike, edges: ArrayLike, *, reduce: Reduce = "sum", side: Literal["rows", "cols"] = "rows", out: Any = None
) -> Any:
    """Reduce features of edges to their nodes: the product of the incidence matrix with the edges' features.

    This is the incidence form of edge aggregation (TANGO, Chen et al., SC 2023, section 3.3). It needs no matrix of ones in place of node
    features, and by rows no gather at all, since the edges of a row lie side by side. In training it computes the gradients of node scores
    from those of edge scores, by rows for one end and by columns for the other.

    Parameters
    ----------
    A : sparse (M, N)
        Only its pattern counts.
    edges : array (nnz,), (nnz, D) or (nnz, H, D), or BitTensor
        One row per edge, in the order of A's CSR arrays; dtypes as for :func:`spmm`.
    reduce : {"sum", "mean", "max", "min"}
    side : {"rows", "cols"}
        Which end of an edge receives its features. Edges of a column are taken in the order of their rows.
    out : array, optional

    Returns
    -------
    array (M, ...) or, by columns, (N, ...)
        Dtypes, errors and bounds are as for :func:`spmm`.

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
    with working_with(device_of_sparse(A), edges, out):
        features = as_features(function, "edges", edges)
        operand = incidence_csr(function, A, side)
        if features.shape[0] != operand.nnz:
            raise ShapeError(
                f"{function}: A has {operand.nnz} edges but edges has {features.shape[0]} rows (shape {features.shape}); pass one per edge"
            )
        return SpmmPlan(function, operand, features.shape[1:], reduce, keep=False).run(features, None, out)

"""Products of node features per edge, and the softmax over the edges of a row."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, cast, get_args

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import ArrayLike, SparseLike, converted
from bitsparse.ops.edges.products import code_pair, edge_product, is_kept, learn_codes, repeated_codes
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features, compute_dtype, exact_accumulator, native, plain_features, promoted
from bitsparse.ops.operands.places import same_place
from bitsparse.ops.operands.sparse import sparse_operand
from bitsparse.ops.operands.target import target_array, written
from bitsparse.ops.plan import KeptCall, edge_call, learn_floats, repeated
from bitsparse.ops.spmm.plan import PRECISIONS
from bitsparse.ops.spmm.spmm import Precision

Op = Literal["dot", "add", "sub", "mul", "div"]
OPS = get_args(Op)


def sddmm(
    A: SparseLike,
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    op: Op = "dot",
    precision: Precision = "fp32",
    out: Any = None,
) -> Any:
    """Combine the features of both ends of every edge: ``e[i, j] = x[i] op y[j]`` where A has an entry.

    Parameters
    ----------
    A : TCTiledCSR, FRDC, BitTensor of one bit or scipy.sparse array, (M, N)
        Only its pattern counts.
    x : array (M,), (M, D) or (M, H, D), or BitTensor
        Features of the rows: integers, float16, bfloat16, float32 or float64. A BitTensor stands for its integers, or for real values if
        it has a scale or an offset (TANGO section 3.3 dequantises on the fly for the same reason: sums of differently scaled integers mean
        nothing). On a GPU, two BitTensors of up to 8 bits are gathered in packed form (``layout="rows"`` needs no copy).
    y : array (N,), (N, D) or (N, H, D), or BitTensor, optional
        Features of the columns; `x` by default.
    op : {"dot", "add", "sub", "mul", "div"}
        ``"dot"`` gives one number per edge and head; the others work element by element. ``sddmm(A, target, source, op="add")`` computes
        the scores of graph attention. ``"div"`` needs a floating operand.
    precision : {"fp32", "tf32", "3xtf32"}
        Precision that dot products of floats may have on a GPU. If the lower precisions are allowed, matrix units are used when they are
        estimated to be quicker (TC-GNN, Algorithm 3). ``"tf32"`` rounds float32 factors to 11 significant bits; ``"3xtf32"`` also adds the
        products of the remainders. 16-bit floats lose nothing by either. Foreign matrices, other dtypes and a CPU keep float32.
    out : array, optional
        Where to write; also returned.

    Returns
    -------
    array (nnz,) or (nnz, H) for dot products, else (nnz,), (nnz, D) or (nnz, H, D)
        In the order of A's CSR arrays as the caller holds them (for other formats, the order of ``A.tocsr()`` with sorted indices).
        Floating dtypes follow NumPy's promotion; integers give exact int32 or int64, chosen by the bounds of their dtypes.

    Raises
    ------
    ShapeError
        `A`, `x`, `y` or `out` do not fit.
    ValueError
        `A` holds duplicates, an option is unknown, or an integer result might exceed int64.
    DTypeError, DeviceError
        An operand is not numeric or not sparse, quotients of integers are asked for, or operands are on several devices.

    Notes
    -----
    A dot product of D terms is summed in 16 interleaved lanes (8 for float64), which are then folded in halves; every step is rounded once.
    The bits depend neither on threads nor on the processor, and with u = 2**-24 (2**-53) the error is at most
    ``(ceil(D / 16) + 5) * u * sum |x y|`` (with 8 in place of 16 for float64). A GPU distributes elements differently and fuses steps, so
    that the bound is ``(ceil(D / 8) + 8) * u * sum |x y|``. The kernel on a GPU, and so the last bits, may differ between graphs, and
    between a container, which keeps what is prepared for it, and a foreign matrix; for the same matrix it is always the same.
    16-bit floats are computed in float32 and rounded once. On the matrix units the bounds are, with s the sum of ``|x y|``,
    ``(1.3e-3 + D 2**-22) s`` for ``"tf32"``, ``(2**-20 + D 2**-22) s`` for ``"3xtf32"``, and ``D 2**-22 s`` for 16-bit floats before
    the result is rounded.

    For two BitTensors on a GPU, integer results, sums and products have the same bits as on the host. Dot products of real values come from
    exact integer sums: if the ends have the real values ``s q + o`` and ``t r + p``, the error is at most
    ``8 * u * sum (|s q| + |o|) (|t r| + |p|)``. BitTensors are dequantised first if they have more than 8 bits or, for dot products, if
    their scale or offset depends on the column, since integer sums then do not suffice.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]]))
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> bs.sddmm(A, x)
    array([11., 17., 39.])
    >>> q = bs.quantize(x, 8, scheme="symmetric", layout="rows")
    >>> bs.sddmm(A, q).round(1)
    array([11. , 16.9, 39.2], dtype=float32)
    """
    function, given, name = "sddmm", (x,) if y is None else (x, y), cast(Any, op)
    options = (name, precision) if isinstance(name, str) and isinstance(precision, str) else None
    known = repeated(A, function, options, given, out)
    if known is None:
        known = repeated_codes(A, x, y, op, out)
    if known is not None:
        return known
    _check.choice(function, "op", op, OPS)
    _check.choice(function, "precision", precision, PRECISIONS)
    with sparse_operand(function, A, x, y, out) as operand:
        operand.has_edges(function)
        codes = code_pair(x, y, op)
        left = plain_features(function, "x", x) if codes is None else codes.left
        right = left if y is None else plain_features(function, "y", y) if codes is None else codes.right
        device = same_place(function, [("A", operand.device), ("x", left.device), ("y", right.device)])
        for name, side, rows, what in (
            ("x", left, operand.shape[0], "rows"),
            ("y", right, operand.shape[1], "columns"),
        ):
            if side.shape[0] != rows:
                raise ShapeError(
                    f"{function}: A has {rows} {what} but {name if y is not None else 'x (as y)' if name == 'y' else 'x'} has "
                    f"{side.shape[0]} rows (shapes {operand.shape} and {side.shape}); pass x for A's rows and y for its columns"
                )
        if left.shape[1:] != right.shape[1:]:
            raise ShapeError(
                f"{function}: x has shape {left.shape} and y {right.shape}; make all but the first size equal"
            )
        dtype, compute = _dtypes(left, right, op)
        inner = left.shape[1:]
        heads = inner[0] if len(inner) == 2 else 1
        shape = (operand.nnz, *(inner[:-1] if op == "dot" else inner))
        if device != "cpu" and dtype.itemsize == 2:
            compute = dtype  # these kernels widen 16-bit floats and round the results themselves
        target = None if out is None else target_array(function, out, shape, dtype, device, (left.data, right.data))
        direct = target if operand.order is None and compute == dtype else None
        columns = heads if op == "dot" else left.columns
        if 0 in shape:
            result = interop.namespace(left.data).empty(shape, dtype)
        elif codes is not None:
            kept = is_kept(A, operand, heads)
            of_codes, ends = codes.product(operand, kept), (codes.x, codes.y)
            result = written(lambda target: of_codes(*ends, target), direct, operand.indptr, shape, dtype)
            if kept:
                learn_codes(A, operand, (x, y), codes, (shape, dtype))
        else:
            a, b = (converted(side.data.reshape(side.shape[0], left.columns), compute) for side in (left, right))
            if left.columns and is_kept(A, operand, heads):
                product = edge_product(operand, op, compute, left.columns, heads, precision)
                a, b = interop.aligned(a), interop.aligned(b)
                result = converted(written(lambda target: product(a, b, target), direct, a, shape, compute), dtype)
            else:
                into = None if direct is None else direct.reshape(operand.nnz, columns)
                with operand.walked(function) as pattern:
                    flat = backends.family(device, "edges.sddmm").sddmm(pattern, a, b, op=op, heads=heads, out=into)
                result = converted(flat.reshape(shape), dtype)
        result = operand.to_caller(result, None if direct is not None else target)
        learn_floats(A, function, options, given, partial(call_of, A, op, precision))
        if out is not None:
            return out
        return interop.from_array(result, interop.common_family((left.family, right.family)), function)


def call_of(
    A: Any, op: str, precision: str, operand: CSROperand, family: interop.Family, x: Any, y: Any = None
) -> KeptCall | None:
    """A kept call of the kernel itself, for features of one floating dtype; None if the pattern keeps no products."""
    columns, heads = int(np.prod(x.shape[1:], dtype=np.int64)), x.shape[1] if x.ndim == 3 else 1
    if (y is not None and y.dtype != x.dtype) or not is_kept(A, operand, heads):
        return None
    product = edge_product(operand, op, x.dtype, columns, heads, precision)
    shape = (operand.nnz, *(x.shape[1:-1] if op == "dot" else x.shape[1:]))
    if y is not None:
        return edge_call(operand, product, (x, y), shape, x.dtype)
    return edge_call(operand, lambda x, out: product(x, x, out), (x,), shape, x.dtype)


def _dtypes(x: Features, y: Features, op: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """The dtype of the result, and the dtype in which it is computed."""
    if x.dtype.kind in "biu" and y.dtype.kind in "biu":
        if op == "div":
            raise DTypeError(
                f"sddmm: x is {x.dtype} and y is {y.dtype}, but op='div' divides floats; convert one with astype, or a BitTensor with "
                f"dequantize"
            )
        width = x.shape[-1] if op == "dot" and len(x.shape) > 1 else 1

        def factors(by_data: bool) -> tuple[int, int]:
            a, b = x.largest(by_data), y.largest(by_data)
            return (a + b, 1) if op in ("add", "sub") else (a, b)

        acc = exact_accumulator("sddmm", width, (x.dtype, y.dtype), factors)
        return acc, acc
    dtype = promoted("sddmm", x=x.dtype, y=y.dtype)
    return dtype, compute_dtype(dtype)


def edge_softmax(A: SparseLike, scores: ArrayLike, *, out: Any = None) -> Any:
    """Softmax of the edges' scores over each row of A: ``exp(s) / sum of exp(s) over the row``, shifted by the row's largest score.

    Parameters
    ----------
    A : sparse (M, N)
        Only its pattern counts.
    scores : array (nnz,) or (nnz, H)
        float16, bfloat16, float32 or float64, one per edge and head, in the order of A's CSR arrays.
    out : array, optional
        Where to write; also returned. `scores` itself is allowed.

    Returns
    -------
    array of the shape and dtype of `scores`
        A NaN makes its whole row and head NaN. A row whose scores are all minus infinity, or a row with plus infinity, gives NaN.

    Raises
    ------
    ShapeError, DTypeError
        `scores` do not fit `A` or are not floating.
    ValueError
        `A` holds duplicates.

    Notes
    -----
    float32 uses its own exp (relative error below 2e-7) and sums in a fixed order, so that the bits depend neither on threads nor on the
    processor; float64 uses the C library's exp. With u = 2**-24 (2**-53) the relative error of a weight above 2**-126 is at most
    ``(|s - max| + ceil(n / 16) + 16) * u`` in a row of n <= 1024 edges (with 8 in place of 16 for float64); 16-bit floats are computed in
    float32. On a GPU the bound has ``ceil(n / 4)`` in place of ``ceil(n / 16)``, whatever the dtype. TANGO (Chen et al., SC 2023, section
    3.2) keeps this step in full precision.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0, 1, 1], [0, 0, 1]]))
    >>> bs.edge_softmax(A, np.array([0.0, 0.0, 5.0]))
    array([0.5, 0.5, 1. ])
    """
    function = "edge_softmax"
    known = repeated(A, function, (), (scores,), out)
    if known is not None:
        return known
    with sparse_operand(function, A, scores, out) as operand:
        given, family = interop.as_array(scores, function, "scores")
        device = same_place(function, [("A", operand.device), ("scores", interop.device_of(given))])
        _check.numeric(function, "scores", given, "f")
        if given.ndim not in (1, 2):
            raise ShapeError(
                f"{function}: scores have shape {given.shape}, but edges take (nnz,) or (nnz, heads); reshape them"
            )
        dtype = native(given[:0]).dtype
        compute = compute_dtype(dtype) if device == "cpu" else dtype  # GPU kernels widen 16-bit floats themselves
        target = None if out is None else target_array(function, out, given.shape, dtype, device, ())
        canonical = interop.contiguous(converted(operand.edge_values(function, "scores", native(given)), compute))
        # GPU kernels may overwrite exactly their scores, but `out` must not overlap them in part.
        direct = None
        if device != "cpu" and operand.order is None and target is not None:
            start, other = (cast(Any, array).data.ptr for array in (target, canonical))
            apart = start >= other + canonical.nbytes or start + target.nbytes <= other
            direct = target if apart or start == other else None
        if given.size:
            flat = canonical.reshape(operand.nnz, -1)
            into = None if direct is None else direct.reshape(flat.shape)
            with operand.walked(function) as pattern:
                made = backends.family(device, "edges.sddmm").edge_softmax(pattern, flat, out=into)
            canonical = made.reshape(given.shape)
        result = operand.to_caller(converted(canonical, dtype), None if direct is not None else target)
        learn_floats(A, function, (), (scores,), softmax_call)
        return out if out is not None else interop.from_array(result, family, function)


def softmax_call(operand: CSROperand, family: interop.Family, scores: Any) -> KeptCall | None:
    """A kept call of the softmax kernel itself."""
    heads = scores.size // operand.nnz
    run = backends.family(operand.device, "edges.sddmm").EdgeSoftmax(operand.schedule, dtype=scores.dtype, heads=heads)
    return edge_call(operand, run, (scores,), scores.shape, scores.dtype, in_place=True)

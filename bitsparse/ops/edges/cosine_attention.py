"""Attention by cosines in one pass: scores, softmax and weighted sum from one gather."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.errors import ShapeError
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import converted, plain_features
from bitsparse.ops.operands.places import device_of_sparse, same_place, working_with
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.operands.target import target_array
from bitsparse.ops.plan import KeptCall, edge_call, learn_floats, repeated

__all__ = ["cosine_attention"]


def cosine_attention(A: Any, x: Any, *, beta: float = 1.0, out: Any = None, return_lse: bool = False) -> Any:
    """Aggregation of an attention-based graph network (AGNN): ``y[i] = sum over j of softmax_j(beta * cos(x[i], x[j])) * x[j]``.

    On a GPU a row of `x` is gathered once for its score and its part of the sum, and nothing is stored per edge.

    Parameters
    ----------
    A : TCTiledCSR, FRDC, BitTensor of one bit, scipy.sparse or cupyx.scipy.sparse array, (N, N)
        Row i holds the nodes that node i attends to. Only its pattern counts.
    x : array (N, D), or BitTensor
        Features: float16, bfloat16, float32 or float64. A BitTensor is unpacked, and dequantised if it has a scale or an offset.
    beta : float
        The layer's learnt factor.
    out : array, optional
        Where to write; also returned.
    return_lse : bool
        Also return the logarithms of the sums that the softmax divides by, from which a backward pass recovers the weights.

    Returns
    -------
    array (N, D)
        dtype of `x` (float32 for integers), family of `x`. Rows without edges give 0.
    array (N,), if `return_lse`
        float32, or float64 for float64 features; minus infinity for rows without edges.

    Raises
    ------
    ShapeError
        `A` is not square, or `x` does not fit it.
    DTypeError, DeviceError
        An operand is not numeric or not sparse, or they are on several devices.
    ValueError
        `beta` is not finite in float32, or A's arrays are not those of a matrix.

    Notes
    -----
    A row of zeros has the cosine 0 with every other. Cosines are computed in float32, in float64 for float64 features; on a GPU sums of
    squares of a row must be numbers of that type that are neither infinite nor below its smallest normal number. With u = 2**-24
    (2**-53) the error of a cosine is at most ``(ceil(D / 16) + 16) * u``, and errors of weights and sums are those of
    :func:`edge_softmax` and :func:`spmm`. The layer is that of Thekumparampil et al., "Attention-based graph neural network for
    semi-supervised learning" (2018), equation 7; TC-GNN (Wang et al., ATC 2023) accelerates its parts one by one.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[1, 1], [0, 1]]))
    >>> x = np.array([[2.0, 0.0], [0.0, 1.0]])
    >>> bs.cosine_attention(A, x, beta=np.log(3)).round(3)
    array([[1.5 , 0.25],
           [0.  , 1.  ]])
    """
    factor = cast(Any, beta)
    options = (factor,) if isinstance(factor, (int, float)) and not return_lse else None
    known = repeated(A, "cosine_attention", options, (x,), out)
    if known is not None:
        return known
    with working_with(device_of_sparse(A), x, out):
        result = _cosine_attention("cosine_attention", A, x, beta, out, return_lse)
        learn_floats(A, "cosine_attention", options, (x,), partial(_call, factor))
        return result


def _call(factor: float, operand: CSROperand, x: Any) -> KeptCall | None:
    """The kernel itself."""
    backend, (dtype, columns) = backends.family(operand.device, "edges.attention"), (x.dtype, x.shape[1])
    if not backend.fits_registers(dtype, columns):
        return None
    product = backend.AttentionProduct(
        operand.schedule, operand.columns, dtype=dtype, columns=columns, factor=float(factor), cosine=True
    )
    return edge_call(operand, lambda x, out: product(x, None, None, out), (x,), x.shape, dtype)


def _cosine_attention(function: str, A: Any, x: Any, beta: float, out: Any, return_lse: bool) -> Any:
    operand = as_csr(function, A)
    features = plain_features(function, "x", x)
    if operand.shape[0] != operand.shape[1]:
        raise ShapeError(
            f"{function}: A has shape {operand.shape}, but the nodes that attend are the nodes attended to; pass a square A"
        )
    if len(features.shape) != 2:
        raise ShapeError(f"{function}: x has shape {features.shape}, but features are (N, D); reshape them")
    if features.shape[0] != operand.shape[1]:
        raise ShapeError(
            f"{function}: A has {operand.shape[1]} columns but x has {features.shape[0]} rows (shapes {operand.shape} and "
            f"{features.shape}); check which graph x belongs to"
        )
    factor = _check.number(function, "beta", beta)
    dtype = np.dtype(np.float32) if features.dtype.kind in "biu" else features.dtype
    device = same_place(function, [("A", operand.device), ("x", features.device)])
    into = None if out is None else target_array(function, out, features.shape, dtype, device, (features.data,))
    space = interop.namespace(features.data)
    lse = None
    if return_lse:
        lse = space.empty((operand.shape[0], 1), np.float64 if dtype == np.float64 else np.float32)
    if 0 in features.shape:
        result = space.empty(features.shape, dtype)
        if lse is not None:
            # cosines of rows without elements are 0
            lengths = operand.indptr[1:] - operand.indptr[:-1]
            with np.errstate(divide="ignore"):
                lse[...] = space.log(lengths.astype(lse.dtype))[:, None]
    else:
        with operand.division(function) as how:
            result = backends.family(device, "edges.attention").cosine_attention(
                operand.indptr,
                operand.columns,
                operand.shape,
                converted(features.data, dtype),
                beta=factor,
                out=into,
                lse=lse,
                **how,
            )
    made = out if out is not None else interop.from_array(result, features.family, function)
    return (made, interop.from_array(lse[:, 0], features.family, function)) if lse is not None else made

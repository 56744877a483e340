"""Graph attention in one pass: scores, leaky relu, softmax and weighted sum, without a value per edge in memory."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import converted, native, plain_features
from bitsparse.ops.operands.places import device_of_sparse, same_place, working_with
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.operands.target import target_array
from bitsparse.ops.plan import KeptCall, edge_call, learn_floats, repeated

__all__ = ["attention"]


def attention(
    A: Any,
    x: Any,
    source: Any,
    target: Any,
    *,
    negative_slope: float = 0.2,
    out: Any = None,
    return_lse: bool = False,
) -> Any:
    """Aggregation of a graph attention layer (GAT): ``y[i] = sum over j of softmax_j(leaky_relu(source[j] + target[i])) * x[j]``.

    Nothing is stored per edge. On the CPU the same bits as :func:`sddmm` with ``op="add"``, leaky relu, :func:`edge_softmax` and
    :func:`spmm` one after another; on a GPU a row of `x` is gathered once while its weight is made, and weights are divided by their sum
    at the end.

    Parameters
    ----------
    A : TCTiledCSR, FRDC, BitTensor of one bit or scipy.sparse array, (M, N)
        Row i holds the nodes that node i attends to. Only its pattern counts.
    x : array (N, D) or (N, H, D), or BitTensor
        Projected features, float16, bfloat16, float32 or float64. A BitTensor is unpacked, and dequantised if it has a scale or an offset.
    source : array (N,) or (N, H)
        Score of a node as neighbour: ``x @ a_source`` for each head.
    target : array (M,) or (M, H)
        Score of a node as the one that attends.
    negative_slope : float
        Of the leaky relu.
    out : array, optional
        Where to write; also returned.
    return_lse : bool
        Also return the logarithms of the sums that the softmax divides by, from which a backward pass recovers the weights.

    Returns
    -------
    array (M, D) or (M, H, D)
        dtype of `x` (float32 for integers), family of `x`. Rows without edges give 0. Weights are computed in float32, or in float64 for
        float64 features.
    array (M,) or (M, H), if `return_lse`
        float32, or float64 for float64 features, family of `x`; minus infinity for rows without edges.

    Raises
    ------
    ShapeError
        The operands do not fit.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or they are on several devices.
    ValueError
        `negative_slope` is not finite in float32, or A's arrays are not those of a matrix.

    Notes
    -----
    Errors add up as in :func:`edge_softmax` and :func:`spmm`; on a GPU that of a weight is at most
    ``(2 * |s - max| + 2 * max |s| + ceil(n / 2) + 40) * u`` in a row of n edges. The layer is that of Velickovic et al. (ICLR 2018);
    TANGO (Chen et al., SC 2023, section 2.1) splits it into the same steps.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]]))
    >>> x = np.array([[1.0], [2.0], [4.0]])
    >>> bs.attention(A, x, np.zeros(3), np.zeros(3))
    array([[3.],
           [4.],
           [0.]])
    """
    given, slope = (x, source, target), cast(Any, negative_slope)
    options = (slope,) if isinstance(slope, (int, float)) and not return_lse else None
    known = repeated(A, "attention", options, given, out)
    if known is not None:
        return known
    with working_with(device_of_sparse(A), x, source, target, out):
        result = _attention("attention", A, x, source, target, negative_slope, out, return_lse)
        learn_floats(A, "attention", options, given, partial(_call, slope))
        return result


def _attention(
    function: str, A: Any, x: Any, source: Any, target: Any, negative_slope: float, out: Any, return_lse: bool
) -> Any:
    operand = as_csr(function, A)
    features = plain_features(function, "x", x)
    if len(features.shape) < 2:
        raise ShapeError(
            f"{function}: x has shape {features.shape}, but features are (N, D) or (N, heads, D); pass x[:, None]"
        )
    if features.shape[0] != operand.shape[1]:
        raise ShapeError(
            f"{function}: A has {operand.shape[1]} columns but x has {features.shape[0]} rows (shapes {operand.shape} and "
            f"{features.shape}); transpose A, or check which graph x belongs to"
        )
    slope = _check.number(function, "negative_slope", negative_slope)
    dtype = np.dtype(np.float32) if features.dtype.kind in "biu" else features.dtype
    compute = np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)
    heads = features.shape[1] if len(features.shape) == 3 else 1
    scores: list[Any] = []
    places = [("A", operand.device), ("x", features.device)]
    for name, given, rows in (("source", source, operand.shape[1]), ("target", target, operand.shape[0])):
        array = interop.as_array(given, function, name)[0]
        _check.numeric(function, name, array, "f")
        if array.dtype == np.float64 and compute != np.float64:
            raise DTypeError(
                f"{function}: {name} is float64 but x is {dtype}, so that scores would lose precision; convert one with astype"
            )
        wanted = (rows, heads) if len(features.shape) == 3 else (rows,)
        if array.shape != wanted:
            raise ShapeError(
                f"{function}: {name} has shape {array.shape}, but A of shape {operand.shape} and x of shape {features.shape} take "
                f"{wanted}; pass one score per node and head"
            )
        places.append((name, interop.device_of(array)))
        scores.append(interop.contiguous(converted(native(array).reshape(rows, heads), compute)))
    device = same_place(function, places)
    shape = (operand.shape[0], *features.shape[1:])
    into = None if out is None else target_array(function, out, shape, dtype, device, (features.data, *scores))
    space = interop.namespace(features.data)
    lse = space.empty((operand.shape[0], heads), compute) if return_lse else None
    gathered = features.data.reshape(features.shape[0], features.columns)
    if 0 in shape:
        empty = out if out is not None else interop.from_array(space.empty(shape, dtype), features.family, function)
        if lse is None:
            return empty
        gathered = space.zeros((features.shape[0], heads), dtype)  # scores have sums all the same
        out, into, shape = empty, None, (shape[0], heads)
    with operand.division(function) as how:
        result = backends.family(device, "edges.attention").attention(
            operand.indptr,
            operand.columns,
            operand.shape,
            converted(gathered, dtype),
            *scores,
            negative_slope=slope,
            out=None if into is None else into.reshape(shape[0], gathered.shape[1]),
            lse=lse,
            **how,
        )
    made = out if out is not None else interop.from_array(result.reshape(shape), features.family, function)
    if lse is None:
        return made
    return made, interop.from_array(lse.reshape(operand.shape[0], *features.shape[1:-1]), features.family, function)


def _call(slope: float, operand: CSROperand, x: Any, source: Any, target: Any) -> KeptCall | None:
    """The kernel itself, for features and scores of one floating dtype that it takes as they are."""
    dtype, scores = x.dtype, np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    if (source.dtype, target.dtype) != (scores, scores):
        return None
    heads, columns = x.shape[1] if x.ndim == 3 else 1, int(np.prod(x.shape[1:], dtype=np.int64))
    product = backends.family(operand.device, "edges.attention").AttentionProduct(
        operand.schedule, operand.columns, dtype=dtype, columns=columns, heads=heads, factor=float(slope)
    )
    return edge_call(operand, product, (x, source, target), (operand.shape[0], *x.shape[1:]), dtype)

"""Graph attention in one pass: scores, leaky relu, softmax and weighted sum, without a value per edge in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.features import converted, native, plain_features
from bitsparse.ops.operands import as_csr
from bitsparse.ops.places import device_of_sparse, same_place, target_array, working_with

__all__ = ["attention"]


def attention(A: Any, x: Any, source: Any, target: Any, *, negative_slope: float = 0.2, out: Any = None) -> Any:
    """Aggregation of a graph attention layer (GAT): ``y[i] = sum over j of softmax_j(leaky_relu(source[j] + target[i])) * x[j]``.

    The same bits as :func:`sddmm` with ``op="add"``, leaky relu, :func:`edge_softmax` and :func:`spmm` one after another, with nothing
    stored per edge.

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

    Returns
    -------
    array (M, D) or (M, H, D)
        dtype of `x` (float32 for integers), family of `x`. Rows without edges give 0. Weights are computed in float32, or in float64 for
        float64 features.

    Raises
    ------
    ShapeError
        The operands do not fit.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or they are on several devices.
    ValueError
        `negative_slope` is not finite, or A's arrays are not those of a matrix.

    Notes
    -----
    Errors add up as in :func:`edge_softmax` and :func:`spmm`. The layer is that of Velickovic et al. (ICLR 2018); TANGO (Tang et al., SC
    2023, section 2.1) splits it into the same steps.

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
    with working_with(device_of_sparse(A), A, x, source, target, out):
        return _attention("attention", A, x, source, target, negative_slope, out)


def _attention(function: str, A: Any, x: Any, source: Any, target: Any, negative_slope: float, out: Any) -> Any:
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
    slope = float(negative_slope)
    if not np.isfinite(slope):
        raise ValueError(f"{function}: negative_slope must be a finite number, got {negative_slope!r}")
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
    if 0 in shape:
        if out is not None:
            return out
        empty = interop.namespace(features.data).empty(shape, dtype)
        return interop.from_array(empty, features.family, function)
    with operand.division() as how:
        result = backends.family(device, "spmm").attention(
            operand.indptr,
            operand.columns,
            operand.shape,
            converted(features.data.reshape(features.shape[0], features.columns), dtype),
            *scores,
            negative_slope=slope,
            out=None if into is None else into.reshape(shape[0], features.columns),
            **how,
        )
    return out if out is not None else interop.from_array(result.reshape(shape), features.family, function)

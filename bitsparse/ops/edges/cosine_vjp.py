"""Gradients of attention by cosines."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.ops.edges.attention import attending, beta_of, is_number
from bitsparse.ops.edges.sddmm import edge_softmax, sddmm
from bitsparse.ops.edges.vjp import edge_softmax_vjp
from bitsparse.ops.operands.both_ways import as_asked, computed_in, of_shape, operands_of, returned, wanted
from bitsparse.ops.operands.dense import converted
from bitsparse.ops.operands.places import device_of_sparse, working_with
from bitsparse.ops.spmm.spmm import spmm

Array = NDArray[Any]


def cosine_attention_vjp(A: Any, x: Any, gradient: Any, *, beta: Any = 1.0, wrt: str | tuple[str, ...] = "x") -> Any:
    """Gradients of :func:`cosine_attention` by the features and by the factor of the cosines.

    Parameters
    ----------
    A, x, beta
        As in :func:`cosine_attention`; `x` is float16, bfloat16, float32 or float64.
    gradient : array (N, D)
        Of the shape of the result.
    wrt : {"x", "beta"} or tuple of these
        Whose gradients to compute.

    Returns
    -------
    array, or tuple of arrays in the order of `wrt`
        That of `x` of its shape, dtype and family; that of `beta` of its shape, dtype and family if it is an array, else () in what is
        computed in, family of `x`. Through the cosines of a row of zeros, which has no direction, no gradient goes.

    Raises
    ------
    ShapeError
        `gradient` is not of the shape of `x`, or the operands do not fit.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or they are on several devices.
    ValueError
        `beta` is not finite in float32.

    Notes
    -----
    Computed in float32, or in float64 if an operand is float64: weights from the cosines once more, their gradients as dot products per
    edge, the softmax's, and sums over both directions, through which the directions ``x / |x|`` hand theirs to `x`. These steps store
    numbers per edge, never features. Same input, same bits.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[1, 1], [0, 1]]))
    >>> x = np.array([[2.0, 0.0], [0.0, 1.0]])
    >>> dx, dbeta = bs.cosine_attention_vjp(A, x, np.ones((2, 2)), beta=np.log(3), wrt=("x", "beta"))
    >>> dx.round(3), float(dbeta)
    (array([[0.75 , 0.647],
           [1.044, 1.25 ]]), 0.1875)
    """
    function = "cosine_attention_vjp"
    names = wanted(function, wrt, ("x", "beta"))
    with working_with(device_of_sparse(A), x, beta, gradient):
        ways, parts = operands_of(function, A, x=x, gradient=gradient)
        attending(function, ways.operand, parts["x"])
        of_shape(function, "gradient", parts["gradient"], parts["x"].shape, "the result")
        compute = computed_in(*(part.dtype for part in parts.values()))
        factor = beta_of(function, beta, ways.operand.device, compute)
        features, grad = (converted(part.data, compute) for part in parts.values())
        inverse, unit = _directions(features)
        cosines = sddmm(ways.forward, unit)
        weights = edge_softmax(ways.forward, cosines * factor)
        slopes = edge_softmax_vjp(ways.forward, weights, sddmm(ways.forward, grad, features))
        made: dict[str, Any] = {}
        if "beta" in names:
            by_beta = (slopes * cosines).sum(dtype=np.float64)
            shape, dtype, family = (), compute, parts["x"].family
            if not is_number(beta):
                given, family = interop.as_array(beta, function, "beta")
                shape, dtype = given.shape, given.dtype
            result = converted(interop.namespace(features).asarray(by_beta).reshape(shape), dtype)
            made["beta"] = interop.from_array(result, family, function)
        if "x" in names:
            slopes = slopes * factor
            turned = ways.turned(slopes)
            by_unit = spmm(ways.forward, unit, values=slopes) + spmm(ways.backward, unit, values=turned)
            by_unit -= unit * (by_unit * unit).sum(axis=1, keepdims=True)
            summed = spmm(ways.backward, grad, values=ways.turned(weights))
            made["x"] = returned(function, summed + by_unit * inverse, parts["x"])
        return as_asked(wrt, made)


def _directions(x: Array) -> tuple[Array, Array]:
    """Inverses of the norms of rows (rows, 1), and rows of norm 1; zeros for rows of zeros."""
    space: Any = interop.namespace(x)
    # Brought near 1 by its largest element, no row has squares that overflow or vanish.
    largest = abs(x).max(axis=1, keepdims=True) if x.size else space.zeros((len(x), 1), x.dtype)
    largest = largest + (largest == 0)
    scaled = x / largest
    norms = space.sqrt((scaled * scaled).sum(axis=1, keepdims=True))
    inverse = (norms != 0) / (norms + (norms == 0))
    return inverse / largest, scaled * inverse

"""Gradients of attention by cosines."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import backends, interop
from bitsparse.arrays.indices import gather
from bitsparse.arrays.inside import patterns_of, store_of
from bitsparse.backends.params import Array
from bitsparse.interop import ArrayLike, SparseLike, converted
from bitsparse.ops.edges.attention import attending, beta_of, cosine_attention, is_number
from bitsparse.ops.edges.sddmm import edge_softmax, sddmm
from bitsparse.ops.edges.vjp import edge_softmax_vjp
from bitsparse.ops.operands.both_ways import BothWays, Floats, as_asked, operands_of, taken_in, wanted
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.spmm.spmm import spmm

#: The largest relative error of the weights that a pass computes from `lse`. A score is off by about `beta` times the unit of rounding, and
#: its weight by the exponential of that; for a larger factor weights are normalised again, as on a CPU.
_WEIGHT_ERROR = 2.0**-10


def cosine_attention_vjp(
    A: SparseLike,
    x: ArrayLike,
    gradient: ArrayLike,
    *,
    beta: Any = 1.0,
    result: Any = None,
    lse: Any = None,
    wrt: str | tuple[str, ...] = "x",
) -> Any:
    """Gradients of :func:`cosine_attention` by the features and by the factor of the cosines.

    Parameters
    ----------
    A, x, beta
        As in :func:`cosine_attention`; `x` is float16, bfloat16, float32 or float64.
    gradient : array (N, D)
        Gradient by the result, in the result's shape.
    result, lse : array (N, D) and (N,), optional
        The results of :func:`cosine_attention` for these operands with ``return_lse=True``; without them they are computed again.
    wrt : {"x", "beta"} or tuple of these
        Operands whose gradients are computed.

    Returns
    -------
    array, or tuple of arrays in the order of `wrt`
        The gradient by `x` has the shape, dtype and family of `x`. That by `beta` has those of `beta` if it is an array; else its shape is
        (), its dtype that of the computation, its family that of `x`. A row of zeros has no direction, so its cosines pass on no gradient.

    Raises
    ------
    ShapeError
        `gradient` or `result` is not of the shape of `x`, or the operands do not fit.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or they are on several devices.
    ValueError
        `beta` is not finite in float32.

    Notes
    -----
    Let u be the rows of x divided by their norms, ``a[i, j] = exp(beta * <u[i], u[j]> - lse[i])`` the weights, and
    ``s[i, j] = a[i, j] * (<g[i], x[j]> - <g[i], y[i]>)`` the gradients by the scores. Row i sums
    ``Q = sum_j s[i, j] * u[j] + sum_j s[j, i] * u[j]`` and ``R = sum_j a[j, i] * g[j]``. Then
    ``dx[i] = R + beta / |x[i]| * (Q - <u[i], Q> * u[i])``, and half of the sum of ``<u[i], Q>`` is the gradient by beta. A GPU needs one
    pass over the edges if the pattern is symmetric, else one per direction, and stores nothing per edge. The CPU, and rows that do not fit
    into the registers of a warp, take the steps one by one, with numbers per edge. The computation is in float32, or in float64 if an
    operand is float64. The same input gives the same bits.

    The passes compute weights from `lse`, with a relative error of about ``|beta| * 2**-23`` (float64: ``2**-52``). A number for which that
    is more than 1/1024 takes the single steps on a GPU too. An array on a GPU is not read: one so large gives gradients far off, or NaN.

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
    with operands_of(function, A, beta, x=x, gradient=gradient) as (ways, parts):
        attending(function, ways.operand, parts["x"])
        made = _gradients(ways, parts, beta, (result, lse), names)
        return as_asked(wrt, made)


def cosine_attention_vjp_of_both(
    forward: Any, backward: Any, x: Any, gradient: Any, beta: Any, result: Any, lse: Any
) -> Any:
    """Both gradients of :func:`cosine_attention_vjp`, for a caller that has the pattern and its transpose."""
    function = "cosine_attention_vjp"
    with working_with(forward.device, x, beta, gradient):
        operand = as_csr(function, forward)
        parts = Floats(function, operand, x=x, gradient=gradient)
        ways = BothWays(operand, forward, backward, None)
        made = _gradients(ways, parts, beta, (result, lse), ("x", "beta"))
        return made["x"], made["beta"]


def _gradients(
    ways: BothWays, parts: Floats, beta: Any, known: tuple[Any, Any], names: tuple[str, ...]
) -> dict[str, Any]:
    parts.of_shape("gradient", parts["x"].shape, "the result")
    function, device, compute = parts.function, ways.operand.device, parts.compute
    factor = beta_of(function, beta, device, compute)
    columns = parts["x"].columns
    if device != "cpu" and _passes_serve(device, np.dtype(compute), columns, factor):
        by_x, by_beta = _in_passes(ways, parts, factor, known)
    else:
        features, grad = (converted(part.data, compute) for part in parts.parts.values())
        by_x, by_beta = _step_by_step(ways, features, grad, factor, names)
    made = {}
    if "x" in names:
        made["x"] = parts.returned("x", by_x)
    if "beta" in names:
        shape, dtype, family = (), compute, parts["x"].family
        if not is_number(beta):
            given, family = interop.as_array(beta, function, "beta")
            shape, dtype = given.shape, given.dtype
        made["beta"] = interop.from_array(converted(by_beta.reshape(shape), dtype), family, function)
    return made


def _passes_serve(device: str, compute: np.dtype[Any], columns: int, factor: Any) -> bool:
    """Whether passes over the edges can take these rows, and compute weights that are right for this factor as far as it is known."""
    fits = backends.family(device, "edges.attention_layout").fits_registers(compute, columns)
    return fits and not (is_number(factor) and abs(factor) * np.finfo(compute).eps > _WEIGHT_ERROR)


def _in_passes(ways: BothWays, parts: Floats, factor: Any, known: tuple[Any, Any]) -> tuple[Any, Any]:
    """Both gradients on a GPU, with one pass over each direction."""
    function, compute = parts.function, parts.compute
    if known[0] is None or known[1] is None:
        x = converted(parts["x"].data, compute)
        known = cosine_attention(ways.forward, x, beta=factor, return_lse=True)
    forward = Floats(function, ways.operand, result=known[0], lse=known[1])
    forward.of_shape("result", parts["x"].shape, "x")
    forward.of_shape("lse", parts["x"].shape[:1], "the logarithm of a sum for each node")
    dense, lse = (parts["x"], parts["gradient"], forward["result"]), forward["lse"]
    dtype = taken_in(compute, *dense)
    x, gradient, outcome = (converted(part.data, dtype) for part in dense)
    space: Any = interop.namespace(x)
    if not ways.operand.nnz or 0 in x.shape:
        return space.zeros(x.shape, dtype), space.zeros(1, compute)
    symmetric = store_of(ways.forward) is store_of(ways.backward)
    turned = None if symmetric else as_csr(function, ways.backward)
    with ways.operand.walked(function) as pattern, (turned or ways.operand).walked(function) as backward:
        schedules = pattern, None if symmetric else backward
        gradients = backends.family(ways.operand.device, "edges.cosine_vjp").cosine_attention_vjp
        made: tuple[Any, Any] = gradients(schedules, x, gradient, outcome, converted(lse.data, compute), beta=factor)
    return made


def _step_by_step(ways: BothWays, features: Array, grad: Array, factor: Any, names: tuple[str, ...]) -> tuple[Any, Any]:
    """Both gradients in single steps: cosines and weights again, their gradients per edge, and sums over both directions."""
    inverse, unit = _directions(features)
    cosines = sddmm(ways.forward, unit)
    weights = edge_softmax(ways.forward, cosines * factor)
    slopes = edge_softmax_vjp(ways.forward, weights, sddmm(ways.forward, grad, features))
    space: Any = interop.namespace(features)
    by_beta = space.asarray((slopes * cosines).sum(dtype=np.float64))
    if "x" not in names:
        return None, by_beta
    slopes = slopes * factor
    order = patterns_of(ways.forward)[2] if ways.order is None else ways.order
    by_unit = spmm(ways.forward, unit, values=slopes) + spmm(ways.backward, unit, values=gather(slopes, order))
    by_unit -= unit * (by_unit * unit).sum(axis=1, keepdims=True)
    summed = spmm(ways.backward, grad, values=gather(weights, order))
    return summed + by_unit * inverse, by_beta


def _directions(x: Array) -> tuple[Array, Array]:
    """The inverse norms of rows (rows, 1), and the rows scaled to norm 1; both are zero for rows of zeros."""
    space: Any = interop.namespace(x)
    # Each row is divided by its largest element first, so that its squares neither overflow nor vanish.
    largest = abs(x).max(axis=1, keepdims=True) if x.size else space.zeros((len(x), 1), x.dtype)
    largest = largest + (largest == 0)
    scaled = x / largest
    norms = space.sqrt((scaled * scaled).sum(axis=1, keepdims=True))
    inverse = (norms != 0) / (norms + (norms == 0))
    return inverse / largest, scaled * inverse

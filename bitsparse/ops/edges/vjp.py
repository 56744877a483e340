"""Gradients of products per edge and of the softmax over rows, as vector-Jacobian products."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.backends.params import Array
from bitsparse.interop import ArrayLike, SparseLike, converted
from bitsparse.ops.edges.sddmm import OPS, Op, sddmm
from bitsparse.ops.operands.both_ways import BothWays, as_asked, operands_of, wanted
from bitsparse.ops.spmm.spmm import aggregate_edges, spmm


def sddmm_vjp(
    A: SparseLike,
    x: ArrayLike,
    y: ArrayLike,
    gradient: ArrayLike,
    *,
    op: Op = "dot",
    wrt: str | tuple[str, ...] = ("x", "y"),
) -> Any:
    """Gradients of :func:`sddmm`: how a loss changes with `x` and `y`, if its gradient by the results of the edges is `gradient`.

    Parameters
    ----------
    A, op
        As in :func:`sddmm`.
    x, y : array (M,), (M, D) or (M, H, D) and (N,), (N, D) or (N, H, D)
        float16, bfloat16, float32 or float64. If one array was passed as both, its gradient is the sum of the two gradients.
    gradient : array of the shape of the result
        One entry, row or several rows per edge, in the order of A's CSR arrays.
    wrt : {"x", "y"} or tuple of these
        Operands whose gradients are computed.

    Returns
    -------
    array, or tuple of arrays in the order of `wrt`
        Each has the shape, dtype and family of its operand.

    Raises
    ------
    ShapeError
        `gradient` is not of the result's shape, or the operands do not fit.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or they are on several devices.

    Notes
    -----
    With ``op="dot"`` these are the sums ``dx[i] = sum over j of g[i, j] * y[j]``, and over the transpose for `y` (TC-GNN, Wang et al., ATC
    2023, section 3; TANGO, Chen et al., SC 2023, section 2.1). Their errors have the bounds of :func:`spmm`. The same input gives the same
    bits.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[1, 1], [0, 1]]))
    >>> x, y = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, 6.0], [7.0, 8.0]])
    >>> dx, dy = bs.sddmm_vjp(A, x, y, np.ones(3))
    >>> dx
    array([[12., 14.],
           [ 7.,  8.]])
    """
    function = "sddmm_vjp"
    _check.choice(function, "op", op, OPS)
    names = wanted(function, wrt, ("x", "y"))
    with operands_of(function, A, x=x, y=y, gradient=gradient) as (ways, parts):
        rows, columns = ways.operand.shape
        inner = parts["x"].shape[1:]
        for name, size in (("x", rows), ("y", columns)):
            parts.of_shape(name, (size, *inner), f"the side {name} of A")
        shape = (ways.operand.nnz, *(inner[:-1] if op == "dot" else inner))
        parts.of_shape("gradient", shape, f"sddmm of x of shape {parts['x'].shape}")
        edges = parts.edges("gradient")
        ends = {name: converted(parts[name].data, parts.compute) for name in ("x", "y")}
        return as_asked(wrt, {name: parts.returned(name, _by_end(ways, edges, ends, name, op)) for name in names})


def _by_end(ways: BothWays, edges: Array, ends: dict[str, Array], name: str, op: str) -> Any:
    """The gradient by the features of one end, computed from `edges`, the gradient by the results of the edges."""
    own, other = ends[name], ends["x" if name == "y" else "y"]
    if op in ("add", "sub"):
        made = aggregate_edges(ways.forward, edges, side="rows" if name == "x" else "cols")
        return -made if op == "sub" and name == "y" else made
    pattern, weights = (ways.forward, edges) if name == "x" else (ways.backward, ways.turned(edges))
    if op != "div":
        return _gathered(pattern, weights, other, op)
    with np.errstate(all="ignore"):
        if name == "x":
            return _gathered(pattern, weights, 1 / other, op)
        made = _gathered(pattern, weights, other, op).reshape(own.shape)
        return interop.namespace(made).where(made == 0, made, made / own / -own)


def _gathered(pattern: Any, weights: Array, features: Array, op: str) -> Any:
    """Sums of neighbours' features, with one weight per edge and head, or per edge and element."""
    if features.ndim == 1:
        features = features[:, None]
    if op != "dot":  # every element becomes a head
        columns = int(np.prod(features.shape[1:]))
        features, weights = features.reshape(len(features), columns, 1), weights.reshape(len(weights), columns)
    return spmm(pattern, features, values=weights)


def edge_softmax_vjp(A: SparseLike, weights: ArrayLike, gradient: ArrayLike) -> Any:
    """Gradient of :func:`edge_softmax` by the scores, from its result and the gradient by its result.

    Parameters
    ----------
    A : sparse (M, N)
        Only its pattern counts.
    weights : array (nnz,) or (nnz, H)
        The result of :func:`edge_softmax`.
    gradient : array of the shape of `weights`

    Returns
    -------
    array of the shape, dtype and family of `weights`
        ``w * (g - sum over the row of w * g)``, computed in float32, or in float64 if an operand is float64.

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        As in :func:`edge_softmax`.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[1, 1], [0, 1]]))
    >>> bs.edge_softmax_vjp(A, bs.edge_softmax(A, np.zeros(3)), np.array([1.0, 0.0, 5.0]))
    array([ 0.25, -0.25,  0.  ])
    """
    function = "edge_softmax_vjp"
    with operands_of(function, A, weights=weights, gradient=gradient) as (ways, parts):
        parts.of_shape("gradient", parts["weights"].shape, "weights")
        w, g = (parts.edges(name) for name in ("weights", "gradient"))
        product = w * g
        made = product - w * to_edges(ways, aggregate_edges(ways.forward, product))
        return parts.returned("weights", made, of_edges=True)


def to_edges(ways: BothWays, nodes: Array, side: str = "rows") -> Array:
    """Features of nodes (M, ...) or (N, ...) as features of edges (nnz, ...): each edge gets those of its row, or of its column."""
    rows, columns = ways.operand.shape
    nothing = interop.namespace(nodes).zeros((columns if side == "rows" else rows, *nodes.shape[1:]), nodes.dtype)
    ends = (nodes, nothing) if side == "rows" else (nothing, nodes)
    return sddmm(ways.forward, *ends, op="add")

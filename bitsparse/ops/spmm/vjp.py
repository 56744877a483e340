"""Gradients of sparse products and of sums over edges, as vector-Jacobian products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from bitsparse import _check, interop
from bitsparse.backends.params import Array
from bitsparse.backends.reductions import REDUCTIONS, Reduce
from bitsparse.errors import ShapeError
from bitsparse.interop import ArrayLike, SparseLike, converted
from bitsparse.ops.edges.sddmm import sddmm
from bitsparse.ops.edges.vjp import to_edges
from bitsparse.ops.operands.both_ways import BothWays, as_asked, computed_in, operands_of, wanted
from bitsparse.ops.operands.csr import fits_heads
from bitsparse.ops.operands.dense import Features
from bitsparse.ops.spmm.spmm import Precision, aggregate_edges, kernel_of_gradient, spmm

#: The most bytes of one array of edge features. Gradients of maxima and minima need such arrays, so they take a few columns at a time.
_PIECE_BYTES = 1 << 28


def spmm_vjp(
    A: SparseLike,
    x: ArrayLike,
    gradient: ArrayLike,
    *,
    values: ArrayLike | None = None,
    reduce: Reduce = "sum",
    precision: Precision = "fp32",
    wrt: str | tuple[str, ...] = "x",
) -> Any:
    """Gradients of :func:`spmm`: how a loss changes with `x` or the edge values, if its gradient by the product is `gradient`.

    Parameters
    ----------
    A, x, values, reduce, precision
        As in :func:`spmm`; `x` and the values are float16, bfloat16, float32 or float64. A container keeps its transpose and what is
        prepared for it, so that the next call finds both.
    gradient : array (M,), (M, D) or (M, H, D)
        Gradient by the product, in the product's shape.
    wrt : {"x", "values"} or tuple of these
        Operands whose gradients are computed. "values" are `values`, else those of `A`, else the ones for which a pattern stands.

    Returns
    -------
    array, or tuple of arrays in the order of `wrt`
        The gradient by `x` has the shape, dtype and family of `x`. The gradient by the values has shape (nnz,), or (nnz, H) for values per
        head, in the order of A's CSR arrays, and the dtype of the values (that of `x` for a pattern).

    Raises
    ------
    ShapeError
        `gradient` is not of the product's shape, or the operands do not fit.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or they are on several devices.
    ValueError
        `A` holds duplicates.

    Notes
    -----
    The gradient of a sum by `x` is the product of the transpose with `gradient`, and the gradient by the values is an :func:`sddmm`
    (TC-GNN, Wang et al., ATC 2023, section 3; TANGO, Chen et al., SC 2023, section 2.1), with the bounds of these functions. The gradient
    of a maximum or minimum goes in equal parts to the edges that attain it; this takes features of edges for some columns at a time, of
    256 MiB at most. The same input gives the same bits in every run.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0.0, 2.0], [1.0, 3.0]]))
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> dx, dvalues = bs.spmm_vjp(A, x, np.ones((2, 2)), wrt=("x", "values"))
    >>> dx
    array([[1., 1.],
           [5., 5.]])
    >>> dvalues
    array([7., 3., 7.])
    """
    function = "spmm_vjp"
    _check.choice(function, "reduce", reduce, tuple(REDUCTIONS))
    names = wanted(function, wrt, ("x", "values"))
    given = {"x": x, "gradient": gradient} | ({} if values is None else {"values": values})
    with operands_of(function, A, **given) as (ways, parts):
        operand, features, grad = ways.operand, parts["x"], parts["gradient"]
        rows, columns = operand.shape
        parts.of_shape("x", (columns, *features.shape[1:]), f"a product with A of shape {operand.shape}")
        parts.of_shape("gradient", (rows, *features.shape[1:]), "the product")
        weights, family = operand.values, features.family
        if values is not None:
            weights, family = operand.edge_values(function, "values", parts["values"].data), parts["values"].family
        if weights is not None and not fits_heads(weights, features.shape[1:]):
            raise ShapeError(
                f"{function}: values have shape {weights.shape} but x has {features.shape}; pass one value per edge, or one per head"
            )
        kind = features.dtype if weights is None or weights.dtype.kind != "f" else weights.dtype
        made = {}
        if REDUCTIONS[reduce].selects:
            made = _of_selected(ways, features, grad, weights, reduce, names)
        else:
            factor = _row_factor(ways, reduce, computed_in(features.dtype, grad.dtype, kind))
            if "x" in names:
                made["x"] = _by_features(ways, grad, weights, factor, precision)
            if "values" in names:
                made["values"] = _by_values(ways, features, grad, weights, factor)
        results = {}
        if "x" in names:
            results["x"] = parts.returned("x", made["x"])
        if "values" in names:
            result = operand.to_caller(converted(made["values"], kind), None)
            results["values"] = interop.from_array(result, family, function)
        return as_asked(wrt, results)


def _row_factor(ways: BothWays, reduce: str, dtype: np.dtype[Any]) -> Array | None:
    """The factor of each row of the product: the row's scale, divided by the number of its edges for a mean."""
    scale = ways.operand.row_scale
    if reduce != "mean":
        return scale
    inverse = 1 / ways.degrees().astype(dtype)
    return inverse if scale is None else inverse * scale


def _by_features(
    ways: BothWays, grad: Features, weights: Array | None, factor: Array | None, precision: Precision
) -> Array:
    """The transpose times the gradient; float32 row factors are applied in the gather, and float64 ones before it."""
    data = grad.data
    if factor is not None and factor.dtype == np.float64:
        data, factor = converted(data, factor.dtype) * factor.reshape(-1, *(1,) * (data.ndim - 1)), None
    pattern = ways.backward.with_scales(ways.operand.col_scale, factor)
    turned = None if weights is None else ways.turned(weights)
    kernel = kernel_of_gradient(pattern, data, precision) if turned is None else None
    return spmm(pattern, data, values=turned, precision=precision, kernel=kernel)


def _by_values(ways: BothWays, x: Features, grad: Features, weights: Array | None, factor: Array | None) -> Array:
    """Dot products of the gradient's rows with the features' rows, over all heads together unless each head has its own values."""
    compute = computed_in(x.dtype, grad.dtype)
    inner = x.shape[1:] if weights is not None and weights.ndim == 2 else (x.columns,)
    left, right = (converted(part.data.reshape(part.shape[0], *inner), compute) for part in (grad, x))
    made: Array = sddmm(ways.forward, left, right)
    scale = _edge_factor(ways, factor, compute)
    return made if scale is None else made * scale.reshape(-1, *(1,) * (made.ndim - 1))


def _edge_factor(ways: BothWays, factor: Array | None, dtype: np.dtype[Any]) -> Array | None:
    """The row's factor times the column's factor, for every edge; None if there are none."""
    columns = ways.operand.col_scale
    if factor is None and columns is None:
        return None
    ones = interop.namespace(ways.order).ones
    left, right = (
        ones(size, dtype) if part is None else part.astype(dtype, copy=False)
        for part, size in zip((factor, columns), ways.operand.shape, strict=True)
    )
    return sddmm(ways.forward, left, right, op="mul")


def _of_selected(
    ways: BothWays, x: Features, grad: Features, weights: Array | None, reduce: Reduce, names: tuple[str, ...]
) -> dict[str, Array]:
    """Gradients of maxima or minima, which go in equal parts to all edges that attain one."""
    compute = computed_in(
        x.dtype, grad.dtype, *(() if weights is None or weights.dtype.kind != "f" else (weights.dtype,))
    )
    space: Any = interop.namespace(grad.data)
    nnz, heads = ways.operand.nnz, x.shape[1] if len(x.shape) == 3 else 1
    scale = _edge_factor(ways, ways.operand.row_scale, compute)
    features, gradient = (converted(part.data.reshape(part.shape[0], part.columns), compute) for part in (x, grad))
    by_features = space.zeros(features.shape, compute)
    by_values = space.zeros((nnz, 1 if weights is None or weights.ndim == 1 else heads), compute)
    ones = space.ones((ways.operand.shape[0], 1), compute)
    for head, part in _pieces(x.columns, heads, nnz * compute.itemsize):
        own = 0 if by_values.shape[1] == 1 else head
        factor = space.ones((nnz, 1), compute)
        if weights is not None:
            factor *= converted(weights.reshape(nnz, by_values.shape[1])[:, own : own + 1], compute)
        if scale is not None:
            factor *= scale[:, None]
        gathered = to_edges(ways, features[:, part], "cols")
        terms = gathered * factor
        extreme = to_edges(ways, aggregate_edges(ways.forward, terms, reduce=reduce))
        attained = ((terms == extreme) | (terms != terms)).astype(compute)
        shares = gradient[:, part] / space.maximum(aggregate_edges(ways.forward, attained), ones)
        attained *= to_edges(ways, shares)
        if "x" in names:
            by_features[:, part] = aggregate_edges(ways.forward, attained * factor, side="cols")
        if "values" in names:
            by_values[:, own] += (attained * gathered).sum(axis=1)
    if scale is not None:
        by_values *= scale[:, None]
    single = weights is None or weights.ndim == 1
    return {"x": by_features, "values": by_values[:, 0] if single else by_values}


def _pieces(columns: int, heads: int, column_bytes: int) -> Iterator[tuple[int, slice]]:
    """Slices of a few columns at a time, each within one head, with the number of that head."""
    width, step = columns // max(heads, 1), max(1, _PIECE_BYTES // max(column_bytes, 1))
    for head in range(heads):
        for first in range(head * width, (head + 1) * width, step):
            yield head, slice(first, min(first + step, (head + 1) * width))


def aggregate_edges_vjp(
    A: SparseLike,
    edges: ArrayLike,
    gradient: ArrayLike,
    *,
    reduce: Reduce = "sum",
    side: Literal["rows", "cols"] = "rows",
) -> Any:
    """Gradient of :func:`aggregate_edges` by the features of the edges.

    Parameters
    ----------
    A, edges, reduce, side
        As in :func:`aggregate_edges`; `edges` are float16, bfloat16, float32 or float64.
    gradient : array (M, ...) or, by columns, (N, ...)
        Gradient by the result, in the result's shape.

    Returns
    -------
    array of the shape, dtype and family of `edges`
        Every edge gets the gradient at its node: all of it for a sum, and this divided by the number of the node's edges for a mean. For
        a maximum or minimum, the edges that attain it get equal parts, and the others 0.

    Raises
    ------
    ShapeError, DTypeError, DeviceError, ValueError
        As in :func:`aggregate_edges`.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0, 1, 1], [0, 0, 1]]))
    >>> bs.aggregate_edges_vjp(A, np.array([1.0, 10.0, 100.0]), np.array([2.0, 3.0]), reduce="mean")
    array([1., 1., 3.])
    """
    function = "aggregate_edges_vjp"
    _check.choice(function, "reduce", reduce, tuple(REDUCTIONS))
    _check.choice(function, "side", side, ("rows", "cols"))
    with operands_of(function, A, edges=edges, gradient=gradient) as (ways, parts):
        features, grad = parts["edges"], parts["gradient"]
        nodes = ways.operand.shape[side == "cols"]
        parts.of_shape("gradient", (nodes, *features.shape[1:]), "the result")
        compute, terms = parts.compute, parts.edges("edges")
        shares = converted(grad.data, compute)
        attained = None
        if reduce == "mean":
            shares = shares / ways.degrees(side).astype(compute).reshape(-1, *(1,) * (shares.ndim - 1))
        elif reduce != "sum":
            extreme = to_edges(ways, aggregate_edges(ways.forward, terms, reduce=reduce, side=side), side)
            attained = ((terms == extreme) | (terms != terms)).astype(compute)
            count = aggregate_edges(ways.forward, attained, side=side)
            shares = shares / interop.namespace(count).maximum(count, 1)
        made = to_edges(ways, shares, side)
        return parts.returned("edges", made if attained is None else made * attained, of_edges=True)

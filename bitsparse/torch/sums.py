"""Sums, means, maxima and minima over a graph, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from bitsparse.errors import DeviceError, DTypeError, ShapeError
from bitsparse.torch import operators
from bitsparse.torch.dense import check_dense, is_autocast
from bitsparse.torch.graph import Graph, checked


def spmm(graph: Graph, x: Tensor, values: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """Reduce the features of neighbours: ``y[i] = reduce over j of v[i, j] * x[j]``; differentiable with respect to `x` and `values`.

    Parameters
    ----------
    graph : Graph
    x : Tensor (sources,), (sources, D) or (sources, H, D)
        float16, bfloat16, float32 or float64.
    values : Tensor (edges,) or (edges, H), optional
        One value for each edge, in the order of the graph's CSR arrays (:meth:`Graph.edge_values`). By default the weights of the graph
        or, if it has none, how often each edge occurs, in the dtype of `x`. Under autocast, `x` and `values` are converted to autocast's
        dtype unless they are float64.
    reduce : {"sum", "mean", "max", "min"}
        A mean divides by the number of edges. Targets without edges get 0.

    Returns
    -------
    Tensor (targets, ...)
        Results as of :func:`bitsparse.spmm`, in the dtype to which PyTorch promotes `x` and `values`. Sums and means have gradients of any
        order and work with ``torch.func`` transforms, except forward mode (``jvp``, ``jacfwd``), which this library does not support.
        Maxima and minima have a first gradient only, shared equally among the edges that attain the extreme.

    Raises
    ------
    ShapeError
        `x` does not have one row for each source, or has more than three axes.
    DTypeError
        `x` is not floating.
    DeviceError
        `x` and the graph are on different devices.
    ValueError
        `reduce` is unknown, or a maximum or minimum is asked of a sampled graph.

    Notes
    -----
    On a GPU, float32 sums, means and their gradients may use TF32 if PyTorch may use it for its own matrix products, as after
    ``torch.set_float32_matmul_precision("high")``. The error bounds of :func:`bitsparse.spmm` and :func:`bitsparse.sddmm` then hold.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1, 2], [2, 2, 0]]))
    >>> bst.spmm(g, torch.tensor([[1.0], [3.0], [5.0]]), reduce="mean").flatten().tolist()
    [5.0, 0.0, 2.0]
    """
    checked("spmm", graph)
    check_dense("spmm", x=x, values=values)
    if x.is_meta and not graph.indptr.is_meta:
        raise DeviceError(f"spmm: x is on meta, but the graph is on {graph.indptr.device}; move both, graph.to('meta')")
    if x.shape[:1] != (graph.num_sources,) or x.ndim > 3:
        raise ShapeError(
            f"spmm: the graph has {graph.num_sources} sources but x has shape {tuple(x.shape)}; pass (sources, D) or (sources, H, D)"
        )
    if not x.is_floating_point():
        raise DTypeError(f"spmm: x is {x.dtype}; pass floats, or call bitsparse.spmm for integers")
    if reduce not in ("sum", "mean", "max", "min"):
        raise ValueError(f"spmm: reduce must be 'sum', 'mean', 'max' or 'min', got {reduce!r}")
    if is_autocast(x):
        narrow = torch.get_autocast_dtype(x.device.type)
        x, values = (part if part is None or part.dtype == torch.float64 else part.to(narrow) for part in (x, values))
    extreme = reduce in ("max", "min")
    if values is not None:
        dtype = torch.promote_types(x.dtype, values.dtype)
        x, values = x.to(dtype), values.to(dtype)
    elif graph.weight is not None or not extreme:
        values = graph.multiplicity if graph.weight is None else graph.weight
        values = None if values is None else values.to(x.dtype)
    rows, columns = graph.factors(reduce == "mean", x.dtype)
    if extreme:
        graph.with_all_edges("maxima and minima need every edge")
        if rows is not None and columns is not None:
            factor = (rows[graph.rows()] * columns[graph.indices.long()]).to(x.dtype)
            values = factor if values is None else values * _along(factor, values)
        return operators.spmm_extreme(graph.pattern(values is not None), values, x, reduce)
    pattern = graph.pattern(values is not None)
    if x.dtype != torch.float64:
        return operators.spmm(pattern, values, rows, columns, x)
    # The factors that sums apply themselves are float32, so those of float64 features are applied here.
    sums = operators.spmm(pattern, values, None, None, x if columns is None else x * _along(columns, x))
    return sums if rows is None else sums * _along(rows, sums)


def _along(factor: Tensor, x: Tensor) -> Tensor:
    """A factor for each row of `x`, shaped to be multiplied with `x`."""
    return factor.reshape(-1, *(1,) * (x.ndim - 1))

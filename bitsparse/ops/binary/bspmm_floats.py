"""Aggregation of float features on a GPU with an epilogue or an addend: the kernels of :func:`spmm`, with the chain in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import backends, interop
from bitsparse.backends.params import EpilogueParams
from bitsparse.ops.binary.bspmm_operands import Features
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import converted
from bitsparse.ops.operands.edge_weights import EdgeWeights
from bitsparse.ops.spmm.gpu import GpuProducts, by_alignment, counts_of, run_windows, windows_of

__all__ = ["float_product", "weights_of"]

Array = NDArray[Any]
#: ``run(x, behind, out)`` of features and what a call brings along for the finish.
_Run = Callable[[Array, Any, Array | None], Array]


def float_product(
    function: str,
    operand: CSROperand,
    x: Features,
    shape: tuple[int, int],
    mean: bool,
    params: EpilogueParams,
    plain: bool,
    added: str | None,
    forced: str | None,
) -> tuple[_Run, str, str, Callable[[], bool]]:
    """The product, its kernel, what an explanation says of it, and whether NaN was to become a bit.

    Features of 16 bits are summed, and come out, in float32; kernels on the matrix units would round them to 16 bits first.
    """
    dtype, reduce = x.data.dtype, "mean" if mean else "sum"
    weights = operand.values
    products = GpuProducts.kept(function, operand, shape[1], reduce, "fp32", "csr" if dtype.itemsize == 2 else forced)
    if plain and dtype == np.float32:
        made = products.product(operand, dtype, np.dtype(np.float32), weights, 1, True)
        return lambda x, behind, out: made.run(x, None, out), made.explain.split()[1], made.explain, lambda: False
    choice, finishing = (backends.family(operand.device, name) for name in ("spmm.choice", "finish.floats"))
    kind = choice.Kind(
        dtype,
        shape[1],
        reduce,
        "fp32",
        None if weights is None else np.dtype(np.float32),
        weights is not None,
        False,
        operand.col_scale is not None,
        operand.indices is not None,
    )
    kernel, _, why = products.chosen(operand, kind, True)
    factors = None
    if kernel == "windows" and weights is None and operand.col_scale is not None:
        factors, values, row_scale = (
            operand.col_scale,
            None,
            operand.row_scale,
        )  # a factor to a column, not one to an edge
    else:
        values, row_scale = weights_of(operand, mean)
    finish = finishing.Finish(params, shape, row_scale=row_scale, added=added)
    run = (
        _in_windows(operand, kind, values, factors, finish)
        if kernel == "windows"
        else _by_edges(operand, kind, values, finish)
    )
    result = "float32" if params.out == "float" else "signs"
    return run, kernel, f"kernel {kernel} ({why}), then the chain and {result} in the same kernel", finish.nan_seen


def weights_of(operand: CSROperand, mean: bool) -> tuple[EdgeWeights | None, Array | None]:
    """Float32 weights of the edges with the factors of the columns, and of the rows of sums, in them; factors of rows that remain."""
    row_scale = None if operand.row_scale is None else interop.contiguous(converted(operand.row_scale, np.float32))
    if operand.values is None and operand.col_scale is None:
        return None, row_scale
    within, behind = (None, row_scale) if mean else (row_scale, None)
    return EdgeWeights(operand, operand.values, np.float32, operand.col_scale, within), behind


def _by_edges(operand: CSROperand, kind: Any, values: EdgeWeights | None, finish: Any) -> _Run:
    """An edge at a time. Arrays of an unusual alignment have products of their own, made when they first come."""
    backend, choice = (backends.family(operand.device, name) for name in ("spmm.spmm", "spmm.choice"))
    schedule, indices, ready = operand.schedule, operand.indices, operand.ready
    at = by_alignment(
        ready,
        lambda alignment: backend.Spmm(
            schedule,
            indices,
            columns=kind.columns,
            x_dtype=kind.dtype,
            acc_dtype=np.dtype(np.float32),
            weights="none" if values is None else "edge",
            reduce=kind.reduce,
            alignment=alignment,
            finish=finish,
        ),
    )
    at(16)

    def run(x: Array, behind: Any, out: Array | None) -> Array:
        floats = None if finish.out_dtype != np.float32 else out
        now = None if values is None else values.now()
        result: Array = at(choice.alignment_of(x, floats, np.float32))(x, now, out, behind)
        return result

    return run


def _in_windows(
    operand: CSROperand, kind: Any, values: EdgeWeights | None, col_scale: Array | None, finish: Any
) -> _Run:
    """Windows of eight rows on the CUDA cores; arrays of an unusual alignment are copied."""
    windows = windows_of(operand)
    factors = None
    if values is not None or col_scale is not None:
        factors = windows.weigh(None if values is None else values.now(), col_scale)
    counts = counts_of(operand) if kind.reduce == "mean" else None

    def run(x: Array, behind: Any, out: Array | None) -> Array:
        if values is not None:
            windows.weigh(values.now(), col_scale, out=factors)
        how = {"weights": factors, "counts": counts, "finish": finish, "behind": behind}
        return run_windows(windows, x, out, finish.out_shape, finish.out_dtype, how)

    return run

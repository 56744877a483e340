"""Float sums of an aggregation on a GPU, by the kernels of :func:`spmm`, which also apply the epilogue and the addend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bitsparse import backends, interop
from bitsparse.backends.params import Array, EpilogueParams
from bitsparse.interop import converted
from bitsparse.ops.binary.bspmm_operands import Addend, Aggregation
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features
from bitsparse.ops.operands.edge_weights import EdgeWeights
from bitsparse.ops.spmm.gpu import GpuProducts, ProductKey, edge_sums, run_windows
from bitsparse.ops.spmm.patterns import counts_of, windows_of

#: ``run(x, behind, out)`` takes features, the further operands of the finish, and an array for the result or None.
_Run = Callable[[Array, Any, Array | None], Array]


class Made(NamedTuple):
    """One aggregation, ready to run.

    Attributes
    ----------
    kernel : str
    run : callable
        ``run(x, addend, out)`` returns numbers, or words packed along the features.
    explain : str
    nan_seen : callable
        Whether NaN was to become a bit since the last such question; waits for the GPU.
    """

    kernel: str
    run: Callable[[Features, Addend | None, Array | None], Array]
    explain: str
    nan_seen: Callable[[], bool]


def float_sums(
    operand: CSROperand, x: Features, wanted: Aggregation, params: EpilogueParams, added: str | None
) -> Made:
    """Sums of floats, or of one-bit features that need floats: with weights, with column scales, or with an addend before a chain."""
    if x.encoding is None:
        return _float_product(operand, x, wanted, params, added)
    packed, finishing = (backends.family(operand.device, name) for name in ("spmm.codes", "finish.floats"))
    shape, schedule = (operand.shape[0], wanted.columns), operand.schedule
    values, row_scale = weights_of(operand, wanted.mean)
    finish = finishing.Finish(params, shape, row_scale=row_scale, added=added, scaled=x.feature_scale is not None)
    sums = packed.PackedSum(
        schedule,
        features=wanted.columns,
        encoding=x.encoding,
        finish=finish,
        values=values.now(),
        weights="general" if x.node_scale is not None else "none" if values.now() is None else "edge",
        mean=wanted.mean,
    )

    def run(x: Features, addend: Addend | None, out: Array | None) -> Array:
        node = None if x.node_scale is None else interop.contiguous(x.node_scale)
        return sums(x.data, values.now(), node, out, _behind(finishing, schedule, x, addend))

    lanes = f"{sums.tuning.load} features a lane, {sums.tuning.lanes} lanes a row"
    return Made("csr", run, f"kernel csr, weights times signs, {lanes}", finish.nan_seen)


def _behind(finishing: Any, schedule: Any, x: Features, addend: Addend | None) -> Any:
    """The addend and the scale of one call, for the finish of float sums."""
    scale = x.feature_scale
    if scale is not None:
        room = schedule.workspace("factors", (finishing.padded_columns(x.shape[1]),), np.float32)
        room[: x.shape[1]] = scale
        scale = room
    if addend is None:
        return finishing.Behind(None, None, scale)
    data = interop.contiguous(converted(addend.data, np.float32)) if addend.encoding is None else addend.data
    return finishing.Behind(data, addend.encoding, scale)


def _float_product(
    operand: CSROperand, x: Features, wanted: Aggregation, params: EpilogueParams, added: str | None
) -> Made:
    """Sums of float features by the kernels of :func:`spmm`.

    Features of 16 bits give float32 sums, without the matrix units, whose kernels would round the sums to 16 bits first.
    """
    dtype, columns, reduce, weights = x.data.dtype, wanted.columns, wanted.reduce, operand.values
    forced = wanted.kernel if wanted.kernel in ("csr", "windows") else None
    key = ProductKey(wanted.function, columns, reduce, "fp32", "csr" if dtype.itemsize == 2 else forced)
    products = GpuProducts.kept(operand, key)
    if wanted.epilogue is None and added is None and dtype == np.float32:
        plain = products.product(operand, dtype, np.dtype(np.float32), weights, True)
        return Made(
            plain.explain.split()[1], lambda x, addend, out: plain.run(x.data, None, out), plain.explain, lambda: False
        )
    choice, finishing = (backends.family(operand.device, name) for name in ("spmm.choice", "finish.floats"))
    values_dtype = None if weights is None else np.dtype(np.float32)
    scaled, indexed = operand.col_scale is not None, operand.indices is not None
    kind = choice.Kind(dtype, columns, reduce, "fp32", values_dtype, weights is not None, False, scaled, indexed)
    kernel, _, why = products.chosen(operand, kind, True)
    factors = None
    if kernel == "windows" and weights is None and operand.col_scale is not None:
        # windows take one factor per column, which replaces one per edge
        factors, values, row_scale = operand.col_scale, EdgeWeights(operand, None, np.float32), operand.row_scale
    else:
        values, row_scale = weights_of(operand, wanted.mean)
    schedule = operand.schedule
    finish = finishing.Finish(params, (operand.shape[0], columns), row_scale=row_scale, added=added)
    in_windows = kernel == "windows"
    run = (
        _in_windows(operand, kind, values, factors, finish) if in_windows else _by_edges(operand, kind, values, finish)
    )

    def whole(x: Features, addend: Addend | None, out: Array | None) -> Array:
        return run(x.data, None if addend is None else _behind(finishing, schedule, x, addend), out)

    result = "float32" if params.out == "float" else "signs"
    explain = f"kernel {kernel} ({why}), then the chain and {result} in the same kernel"
    return Made(kernel, whole, explain, finish.nan_seen)


def weights_of(operand: CSROperand, mean: bool) -> tuple[EdgeWeights, Array | None]:
    """Float32 edge weights that include the column scale and, for weighted sums, the row scale; and the row scale if it remains."""
    row_scale = None if operand.row_scale is None else interop.contiguous(converted(operand.row_scale, np.float32))
    plain = operand.values is None and operand.col_scale is None
    within, behind = (None, row_scale) if mean or plain else (row_scale, None)
    return EdgeWeights(operand, operand.values, np.float32, operand.col_scale, within), behind


def _by_edges(operand: CSROperand, kind: Any, values: EdgeWeights, finish: Any) -> _Run:
    """The kernel that takes one edge at a time."""
    weights = "none" if values.now() is None else "edge"
    sums, _ = edge_sums(operand, kind, np.dtype(np.float32), weights=weights, finish=finish)
    return lambda x, behind, out: sums(x, values.now(), out, behind)


def _in_windows(operand: CSROperand, kind: Any, values: EdgeWeights, col_scale: Array | None, finish: Any) -> _Run:
    """The kernel with windows of eight rows on the CUDA cores; arrays of an unusual alignment are copied."""
    windows, now = windows_of(operand), values.now()
    factors = None if now is None and col_scale is None else windows.weigh(now, col_scale)
    counts = counts_of(operand) if kind.reduce == "mean" else None

    def run(x: Array, behind: Any, out: Array | None) -> Array:
        if now is not None:
            windows.weigh(values.now(), col_scale, out=factors)
        how = {"weights": factors, "counts": counts, "finish": finish, "behind": behind}
        return run_windows(windows, x, out, finish.out_shape, finish.out_dtype, how)

    return run

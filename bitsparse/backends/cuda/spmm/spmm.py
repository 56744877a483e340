"""Sparse times dense on the CUDA cores: rows of features gathered and reduced along streams of edges."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from bitsparse import jit
from bitsparse._records import replace
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.chips import RELEASED, chip_here
from bitsparse.backends.cuda.csr.bounds import CSR
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.csr.units import edges_of_a_warp, units_of
from bitsparse.backends.cuda.finish.floats import ADDED, BIAS, NORM, RELU, TANH, Behind, Finish, finish_constants
from bitsparse.backends.cuda.sparse.checks import rows_of
from bitsparse.backends.cuda.spmm.tuning import EDGES, GENERAL, NONE, SIXTEEN, Tuning, fitted, tuning_of, value_dtype_of
from bitsparse.backends.cuda.workspaces import Workspaces
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.errors import KernelError

__all__ = ["Spmm", "Tuning", "longest_row", "spmm", "tuning_of", "value_dtype_of"]

_SOURCE = "spmm/csr.cu"
_ACCS = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}
_KINDS = {"float16": 4, "float32": 5, "float64": 6, "bfloat16": 7} | {
    f"{sign}int{8 << kind}": kind for sign in ("", "u") for kind in range(4)
}
#: Columns of the grid along y; the slices beyond them go along z.
_GRID_Y = 65535


SpmmParams = jit.struct("spmm/csr.cuh", "SpmmParams")
FinishedParams = jit.struct("spmm/csr.cuh", "SpmmParams", optional=True)


def longest_row(indptr: Any, nnz: int) -> int:
    """Most edges in a row; ValueError if `indptr` is not one of `nnz` edges. Waits for the stream."""
    cupy = jit.require_cupy("spmm")
    lengths = indptr[1:] - indptr[:-1]
    ends = [indptr[0], indptr[-1], *((lengths.max(), lengths.min()) if lengths.size else (indptr[0], indptr[0]))]
    first, last, longest, shortest = (int(n) for n in cupy.stack(ends).get())
    if first != 0 or last != nnz or shortest < 0:
        raise ValueError(f"indptr must start at 0, never decrease and end at nnz = {nnz}; rebuild the sparse array")
    return longest


def constants(
    tuning: Tuning,
    kind: str = "float32",
    acc: str = "float32",
    weights: int = NONE,
    reduce: str = "sum",
    *,
    row_scale: bool = False,
    direct: bool = False,
    value16: bool = False,
) -> dict[str, int]:
    """What ``spmm/csr.cu`` is compiled with for int32 indices.

    Parameters
    ----------
    kind, acc : str
        Names of the dtypes of features and sums.
    row_scale : bool
        Rows of the result have factors.
    direct : bool
        An edge is its own column.
    value16 : bool
        Values of edges have 16 bits, as the features.
    """
    found = {"BS_KIND": _KINDS[kind], "BS_ACC": _ACCS[acc], "BS_BYTES": tuning.bytes, "BS_U": tuning.unroll}
    found |= {"BS_V": tuning.vectors, "BS_WEIGHTS": weights, "BS_REDUCE": REDUCTIONS[reduce].number}
    found |= {"BS_ROW_SCALE": int(row_scale)} | ({} if tuning.blocks is None else {"BS_BLOCKS": tuning.blocks})
    return found | ({"BS_DIRECT": 1} if direct else {}) | ({"BS_VALUE16": 1} if value16 else {})


class Spmm:
    """A product prepared for one pattern and features of one kind: ``product(x, values=None, out=None)``.

    Building it compiles the kernel and cuts the pattern. The first call on a stream allocates what such calls work in; later ones allocate
    nothing but the result. It may be shared by threads and streams.

    Parameters
    ----------
    schedule : Schedule
        Of the pattern.
    indices : cupy.ndarray or None
        As `indptr` of the schedule; None if edge e belongs to row e of the features.
    columns : int
        Of the features, all heads together.
    x_dtype, acc_dtype, heads, row_scale, col_scale, reduce
        As for :func:`spmm`.
    weights : "none", "edge" or "head"
        What calls bring as `values`: nothing, an array (nnz,), or (nnz, heads).
    value_dtype : dtype, optional
        Of values per edge: `acc_dtype` unless given, or the features' own where that has 16 bits.
    alignment : int
        Bytes of which the addresses of features and results are multiples, at most 16.
    fold : bool
        Keep the scales of the columns, and those of the rows of a sum with them, as weights of the edges (calls without `values`): no
        second gather, and nothing to fetch at the end of a row.
    tuning : Tuning, optional
    finish : Finish, optional
        What becomes of the sums; scales of the rows are its own matter.

    Attributes
    ----------
    tuning : Tuning
    cut : Units
    dtype : numpy.dtype
        Of the result.
    """

    def __init__(
        self,
        schedule: Schedule,
        indices: Any,
        *,
        columns: int,
        x_dtype: Any,
        acc_dtype: Any,
        heads: int = 1,
        weights: str = "none",
        value_dtype: Any = None,
        row_scale: Any = None,
        col_scale: Any = None,
        reduce: str = "sum",
        alignment: int = 16,
        fold: bool = True,
        tuning: Tuning | None = None,
        finish: Finish | None = None,
    ) -> None:
        cupy = self._cupy = jit.require_cupy("spmm")
        self.schedule, self.columns, self.heads = schedule, columns, heads
        self._x_dtype, self._acc = np.dtype(x_dtype), np.dtype(acc_dtype)
        self._reduce, self._weights = reduce, weights
        self._value_dtype = self._acc if value_dtype is None else np.dtype(value_dtype)
        half = self._x_dtype.name in SIXTEEN
        self.dtype = self._x_dtype if half else self._acc
        if reduce == "mean" and self._acc.kind == "i":
            self.dtype = np.dtype(np.float32)
        if self._acc.name not in _ACCS or self._kind_name not in _KINDS:
            raise KernelError(f"spmm: there is no kernel for {self._x_dtype} summed in {self._acc} on the GPU")
        self.shape: tuple[int, ...] = (schedule.shape[0], columns)
        self._finish = finish
        if finish is not None:
            self.shape, self.dtype = finish.out_shape, finish.out_dtype
        self._stream = cupy.cuda.get_current_stream
        self._lock = threading.Lock()
        self._kernel: Any = None
        if 0 in (schedule.shape[0], columns):
            return
        self._indices = None if indices is None else _aligned(indices)
        self._row_scale, self._col_scale = (
            None if scale is None else geometry.contiguous(scale.astype(np.float32, copy=False))
            for scale in (row_scale, col_scale)
        )
        kind = {"none": NONE, "edge": EDGES, "head": GENERAL}[weights]
        self._folded = None
        if (
            kind == NONE
            and self._col_scale is not None
            and fold
            and not (REDUCTIONS[reduce].selects and row_scale is not None)
        ):
            columns_of = self._indices if self._indices is not None else slice(0, schedule.nnz)
            self._folded, self._col_scale = self._col_scale[columns_of].astype(self._acc, copy=False), None
            if self._row_scale is not None and reduce == "sum":
                scales = self._row_scale.astype(self._acc, copy=False)
                self._folded, self._row_scale = self._folded * scales[rows_of(schedule.indptr, schedule.nnz)], None
            kind = EDGES
        if self._col_scale is not None or (REDUCTIONS[reduce].selects and self._row_scale is not None):
            kind = GENERAL
        if tuning is None:
            head_width = columns // heads if weights == "head" else None
            tuning = tuning_of(columns, self._x_dtype.itemsize, alignment, self._acc.itemsize, head_width)
            sixteen = kind == EDGES and self._folded is None and self._value_dtype != self._acc
            tuning = fitted(tuning, kind, edges_of_a_warp(schedule.nnz), half, sixteen)
        self.tuning = tuning
        self._prepare(kind)

    @property
    def _kind_name(self) -> str:
        return "uint8" if self._x_dtype == np.bool_ else self._x_dtype.name

    def _prepare(self, weights: int) -> None:
        tuning, schedule = self.tuning, self.schedule
        self.cut = units_of(schedule, tuning.lanes, span=tuning.span, limit=tuning.limit, longest=tuning.longest)
        each = tuning.bytes // self._x_dtype.itemsize
        vectors = self.columns // each
        self._slices = -(-vectors // (tuning.lanes * tuning.vectors))
        self._each, self._slot = each, self._slices * tuning.vectors * tuning.lanes
        finish = self._finish
        params = self._params = (SpmmParams if finish is None else FinishedParams)(
            schedule.walk_params(self._indices, tuning.lanes, self.cut.longest), self.cut.params()
        )
        params.row_scale = None if self._row_scale is None else self._row_scale.data.ptr
        params.col_scale = None if self._col_scale is None else self._col_scale.data.ptr
        params.values = None if self._folded is None else self._folded.data.ptr
        params.vectors, params.row_bytes = vectors, self.columns * self._x_dtype.itemsize
        params.out_bytes = self.columns * self.dtype.itemsize
        params.slices, params.is_signed = self._slices, int(self._x_dtype.kind == "i")
        params.heads, params.width = (self.heads, self.columns // self.heads) if self._weights == "head" else (1, 1)
        defines = schedule.defines | constants(
            tuning,
            self._kind_name,
            self._acc.name,
            weights,
            self._reduce,
            row_scale=self._row_scale is not None and not REDUCTIONS[self._reduce].selects,
            direct=self._indices is None,
            value16=weights == EDGES and self._folded is None and self._value_dtype != self._acc,
        )
        if finish is not None:
            params.finish, params.out_bytes = finish.struct, finish.struct.row_bytes
            defines |= finish.defines | finish.pads(tuning.lanes, self._slices * tuning.vectors, each)
        blocks = -(-self.cut.warps(tuning.lanes) * 32 // tuning.threads)
        across = -(-self._slices // _GRID_Y)
        defines |= CSR.blocks(defines, chip_here())
        self._kernel = jit.kernel(_SOURCE, "spmm_csr", defines).launch(
            (blocks, -(-self._slices // across), across), tuning.threads, params
        )
        self._workspaces = Workspaces(
            self.cut.pieces * self._slot * self._each, self._acc, self.cut.pieces * self._slices * tuning.lanes
        )

    def __call__(self, x: Any, values: Any = None, out: Any = None, behind: Behind | None = None) -> Any:
        """The product with `x` (columns of the pattern, columns), C-contiguous and of the kind prepared for."""
        if out is None:
            out = self._cupy.empty(self.shape, self.dtype)
        if self._kernel is None:
            return out
        x = geometry.contiguous(x)
        if values is not None:
            values = _aligned(values if values.dtype == self._value_dtype else values.astype(self._value_dtype))
        with self._lock:
            stream = self._stream().ptr
            work = self._workspaces.on(stream)
            params = self._params
            params.x, params.out = x.data.ptr, out.data.ptr
            if values is not None:
                params.values = values.data.ptr
            params.partial, params.arrived = work.partial.data.ptr, work.arrived.data.ptr
            if self._finish is not None:
                self._finish.aim(params.finish, behind)
            self._kernel(stream)
        return out


def _aligned(array: Any) -> Any:
    """The array, C-contiguous and aligned to 16 bytes."""
    array = geometry.contiguous(array)
    return array if array.data.ptr % 16 == 0 else array.copy()


def spmm(
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    x: Any,
    *,
    nnz: int,
    acc_dtype: Any,
    heads: int = 1,
    values: Any = None,
    row_scale: Any = None,
    col_scale: Any = None,
    reduce: str = "sum",
    packed: Any = None,
    out: Any = None,
    schedule: Schedule | None = None,
    tuning: Tuning | None = None,
) -> Any:
    """Reduce rows of `x` over the edges of each row of a CSR pattern; see the host's function of the same name.

    Rows are summed edge by edge; those longer than the pieces that `schedule` makes of them in such pieces, whose sums are added in order.
    So a result is the same on every run, and integers are the host's. The indices must be within the shape: they are not checked.

    Parameters
    ----------
    schedule : Schedule, optional
        Of this pattern; made anew if not given.
    tuning : Tuning, optional
    """
    if packed is not None:
        raise KernelError("spmm: packed features are not gathered on the GPU; unpack them first")
    x = geometry.contiguous(x)
    acc = np.dtype(acc_dtype)
    if x.dtype.kind == "f" and acc.kind == "i":
        raise KernelError(f"spmm: {x.dtype} cannot be summed in {acc}")
    item = max(1, x.dtype.itemsize)
    address = math.gcd(16, x.data.ptr)
    result_item = item if x.dtype.name in SIXTEEN else acc.itemsize
    if out is not None:  # a vector of results is as many elements
        address = min(address, math.gcd(16, out.data.ptr) * item // result_item if out.data.ptr % 16 else 16)
    product = Spmm(
        schedule if schedule is not None else Schedule(indptr, shape, nnz),
        indices,
        columns=x.shape[1],
        x_dtype=x.dtype,
        acc_dtype=acc,
        heads=heads,
        weights="none" if values is None else "edge" if values.ndim == 1 else "head",
        value_dtype=None if values is None else value_dtype_of(values.dtype, x.dtype, values.ndim),
        row_scale=row_scale,
        col_scale=col_scale,
        reduce=reduce,
        alignment=max(address, 1),
        fold=False,
        tuning=tuning,
    )
    return product(x, values, out)


def _variants() -> list[jit.Variant]:
    """Rows of 16-byte vectors without and with weights and scales of rows, for floats; then what else is usual, and chains and signs."""
    wide, few, narrow = Tuning(16, 32), Tuning(16, 4, unroll=4), Tuning(8, 4)
    floats, halves = ("float32", "float16", "bfloat16"), ("float16", "bfloat16")
    large = {"BS_LARGE": 1}
    found = [
        constants(wide, kind, weights=weights, row_scale=scaled)
        for kind in floats
        for weights in (NONE, EDGES)
        for scaled in (False, True)
    ]
    found += [constants(few, weights=EDGES)]
    found += [
        constants(tuning, kind, weights=EDGES, value16=True)
        for kind in halves
        for tuning in (wide, few, replace(narrow, unroll=4))
    ]
    found += [
        each
        for kind in floats
        for each in (constants(wide, kind, weights=GENERAL), constants(wide, kind, reduce="mean"))
    ]
    found += [constants(wide, reduce=name) for name, reduction in REDUCTIONS.items() if reduction.selects]
    found += [constants(wide, direct=True), constants(Tuning(4, 4))]
    found += [constants(narrow, kind) for kind in floats]
    found += [large | constants(wide, weights=weights) for weights in (NONE, EDGES)]
    found += [constants(wide, "float64", "float64"), constants(narrow, "int8", "int32")]
    found += [constants(wide, weights=weights) | finish_constants(2, pads=0) for weights in (NONE, EDGES)]
    found += [constants(wide, weights=weights) | finish_constants(3, pads=0) for weights in (NONE, EDGES)]
    found += [constants(wide, weights=weights) | finish_constants(1, BIAS | RELU) for weights in (NONE, EDGES)]
    found += [constants(wide, reduce="mean") | finish_constants(1, BIAS | RELU)]
    found += [
        constants(wide) | finish_constants(3, ADDED, 0),
        constants(wide) | finish_constants(1, BIAS | NORM | TANH),
    ]
    found += [
        constants(narrow, "float16") | finish_constants(2, pads=0),
        large | constants(wide) | finish_constants(2, pads=0),
    ]
    return [
        variant
        for arch, chip in RELEASED.items()
        for variant in jit.variants_of(_SOURCE, "spmm_csr", [one | CSR.blocks(one, chip) for one in found], arch)
    ]


VARIANTS = _variants()

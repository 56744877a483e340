"""Sparse times dense on the CUDA cores: rows of features are gathered and reduced along streams of edges."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse._records import replace
from bitsparse.backends.after_sums import AfterSums
from bitsparse.backends.cuda.chips import chip_here
from bitsparse.backends.cuda.csr.bounds import CSR
from bitsparse.backends.cuda.csr.factors import edge_factors
from bitsparse.backends.cuda.csr.fetched import FetchedEdges
from bitsparse.backends.cuda.csr.rows import WIDEST, LaidRows, copy_us, laid_columns, worth_laying
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.csr.sums import StreamedSum, Tuning
from bitsparse.backends.cuda.csr.units import edges_of_a_warp, group_lanes
from bitsparse.backends.cuda.csr.vectors import vector_bytes
from bitsparse.backends.cuda.finish.floats import ADDED, BIAS, NORM, RELU, TANH, Behind, Finish, finish_constants
from bitsparse.backends.cuda.geometry import KINDS_APART
from bitsparse.backends.cuda.spmm.after import set_after
from bitsparse.backends.cuda.spmm.choice import alignment_of
from bitsparse.backends.params import SIXTEEN
from bitsparse.backends.reductions import REDUCTIONS
from bitsparse.errors import KernelError
from bitsparse.jit import cupy

_SOURCE = "spmm/csr.cu"
_ACCS = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}
#: Values of BS_WEIGHTS, the kind of weights of edges.
NONE, EDGES, GENERAL = range(3)

SpmmParams = jit.struct("spmm/csr.cuh", "SpmmParams")
FinishedParams = jit.struct("spmm/csr.cuh", "SpmmParams", optional=True)


def longest_row(indptr: Any, nnz: int) -> int:
    """The most edges in a row; raises ValueError unless `indptr` is valid for `nnz` edges. Waits for the stream."""
    lengths = indptr[1:] - indptr[:-1]
    ends = [indptr[0], indptr[-1], *((lengths.max(), lengths.min()) if lengths.size else (indptr[0], indptr[0]))]
    first, last, longest, shortest = (int(n) for n in cupy.stack(ends).get())
    if first != 0 or last != nnz or shortest < 0:
        raise ValueError(f"indptr must start at 0, never decrease and end at nnz = {nnz}; rebuild the sparse array")
    return longest


def tuning_of(columns: int, itemsize: int, alignment: int, acc_itemsize: int, head_width: int | None = None) -> Tuning:
    """The tuning for rows of `columns` elements whose addresses are multiples of `alignment`.

    With `head_width`, no vector may span two heads, since their weights differ.

    Examples
    --------
    >>> tuning_of(128, 4, 16, 4).lanes, tuning_of(100, 2, 16, 4)[:4], tuning_of(3, 4, 16, 4).load
    (32, (8, 32, 1, 8), 4)
    """
    parts = columns * itemsize | alignment | (0 if head_width is None else head_width * itemsize)
    width = max(itemsize, min(vector_bytes(parts, itemsize, ()), 32 // acc_itemsize * itemsize))
    return Tuning(width, group_lanes(columns * itemsize // width))


def fitted(tuning: Tuning, kind: int, share: float, halves: bool = False, sixteen: bool = False) -> Tuning:
    """Adjust a tuning to what was fastest on an H200.

    That is small blocks, and few edges in flight if groups are narrow and there is work for all warps.

    Parameters
    ----------
    kind : int
        Kind of the weights.
    share : float
        Edges per warp.
    halves, sixteen : bool
        Whether features have 16 bits, and whether values do too.

    Examples
    --------
    >>> [fitted(Tuning(16, lanes), EDGES, share).unroll for lanes, share in ((4, 24), (4, 443), (8, 443))]
    [8, 4, 8]
    >>> fitted(Tuning(16, 2), EDGES, 133, True, True)[:4], fitted(Tuning(16, 16), EDGES, 443, True, True)[:4]
    ((8, 4, 1, 4), (16, 16, 1, 4))
    """
    tuning = replace(tuning, threads=64)
    if halves and tuning[:2] == (16, 2) and not (sixteen and share >= 200):
        tuning = replace(tuning, load=8, lanes=4)  # fewer groups per warp, since rows of groups end at different edges
    most = 16 if sixteen and share < 2000 else 4
    if kind != NONE and (tuning.lanes <= 2 or (tuning.lanes <= most and share >= 64)):
        tuning = replace(tuning, unroll=4)
    return tuning


def is_sliced(schedule: Schedule, row_bytes: int, part: int) -> bool:
    """Whether columns are summed in slices of `part` bytes, one after another, for features with rows of `row_bytes`.

    Every slice walks all edges. In return, a row that many edges fetch is found in the L2 more often, since only its part of one slice has
    to stay there. Rows that are not a multiple of `part` are not sliced, since the last slice would walk all edges for few columns.
    """
    rows, columns = schedule.shape
    if row_bytes % part or columns * row_bytes <= jit.capability().l2_bytes:
        return False
    return bool(schedule.nnz >= chip_here().rows.sliced_edges * rows)


def laying_pays(
    schedule: Schedule, columns: int, itemsize: int, acc_itemsize: int, alignment: int, scalable: bool
) -> bool:
    """Whether it pays to copy features first, so that rows are whole vectors.

    If the factors of the columns are `scalable`, the copy applies them too, which saves a factor for each edge.
    """
    chip, rows, row_bytes = chip_here(), schedule.shape[1], columns * itemsize
    fetched = tuning_of(columns, itemsize, alignment, acc_itemsize).load
    whole = tuning_of(laid_columns(columns, itemsize), itemsize, WIDEST, acc_itemsize).load
    if worth_laying(chip, schedule.nnz, rows, row_bytes, fetched, whole):
        return True
    return scalable and copy_us(chip, rows, row_bytes) < schedule.nnz * acc_itemsize / chip.memory_bytes_per_us


def value_dtype_of(values: Any, features: Any, dimensions: int = 1) -> Any:
    """The dtype in which values are passed, or None for the dtype of the sums; 16-bit values are kept if features have their dtype.

    Examples
    --------
    >>> value_dtype_of(np.float16, np.float16), value_dtype_of(np.float32, np.float16)
    (dtype('float16'), None)
    """
    same = np.dtype(values) == np.dtype(features) and dimensions == 1
    return np.dtype(values) if same and np.dtype(features).name in SIXTEEN else None


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
    ragged: bool = False,
    after: bool = False,
    fetched: bool = False,
) -> dict[str, int]:
    """Compile-time constants of ``spmm/csr.cu`` for int32 indices.

    Parameters
    ----------
    kind, acc : str
        Names of the dtypes of features and sums.
    row_scale : bool
        Whether rows of the result have factors.
    direct : bool
        Whether every edge is its own column.
    value16 : bool
        Whether values of edges have 16 bits, like the features.
    ragged : bool
        Whether rows of the features, but not of the result, are padded with zeros to whole vectors.
    after : bool
        Whether calls may pass steps behind the sums.
    fetched : bool
        Whether edges to rows of zeros are left out if there are many.
    """
    found = tuning.defines | {"BS_KIND": KINDS_APART[kind], "BS_ACC": _ACCS[acc], "BS_BYTES": tuning.load}
    found |= {"BS_V": tuning.vectors, "BS_WEIGHTS": weights, "BS_REDUCE": REDUCTIONS[reduce].number}
    flags = {"direct": direct, "value16": value16, "ragged": ragged, "after": after, "fetched": fetched}
    return found | {"BS_ROW_SCALE": int(row_scale)} | jit.flags(**flags)


class Spmm(StreamedSum):
    """A product prepared for one pattern and features of one kind: ``product(x, values=None, out=None)``.

    Parameters
    ----------
    schedule : Schedule
        Schedule of the pattern.
    indices : cupy.ndarray or None
        As `indptr` of the schedule; None if edge e belongs to row e of the features.
    columns : int
        Columns of the features, all heads together.
    x_dtype, acc_dtype, heads, row_scale, col_scale, reduce
        As for the host's ``spmm``.
    weights : "none", "edge" or "head"
        What calls pass as `values`: nothing, an array (nnz,), or an array (nnz, heads).
    value_dtype : dtype, optional
        Dtype of values per edge: `acc_dtype` by default, or the dtype of the features if that has 16 bits.
    alignment : int
        Alignment in bytes of features and results, at most 16.
    fold : bool
        In calls without `values`, turn the scales of the columns, and for a sum also those of the rows, into weights of the edges. This
        saves a second gather, and a fetch at the end of each row.
    tuning : Tuning, optional
    finish : Finish, optional
        The finish of the sums, which applies the scales of the rows itself.
    lay : bool, optional
        First copy the features so that their rows are whole vectors, multiplied by the scales of the columns if `fold` would use these;
        by default if that is estimated to be faster.
    after : bool
        Whether calls may pass steps `after` the sums, for sums and means in float32 without a finish.
    nonzero : bool
        Copy the features, and do not fetch rows that are zeros if there are many: for sums and means of at least 17 columns of
        float32, by index and without values. Scales of the columns must be folded.
    """

    def __init__(
        self,
        schedule: Schedule,
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
        lay: bool | None = None,
        after: bool = False,
        nonzero: bool = False,
    ) -> None:
        x_dtype, acc = np.dtype(x_dtype), np.dtype(acc_dtype)
        selects, half = REDUCTIONS[reduce].selects, x_dtype.name in SIXTEEN
        dtype = x_dtype if half else np.dtype(np.float32) if reduce == "mean" and acc.kind == "i" else acc
        shape: tuple[int, ...] = (schedule.shape[0], columns)
        super().__init__(*((shape, dtype) if finish is None else (finish.out_shape, finish.out_dtype)))
        self._finish, self._after = finish, after
        self._value_dtype = acc if value_dtype is None else np.dtype(value_dtype)
        if 0 in shape:
            return
        row_scale, col_scale = (
            None if scale is None else interop.contiguous(scale.astype(np.float32, copy=False))
            for scale in (row_scale, col_scale)
        )
        kind = {"none": NONE, "edge": EDGES, "head": GENERAL}[weights]
        head_width = columns // heads if weights == "head" else None
        scalable = kind == NONE and col_scale is not None and fold and x_dtype == acc
        whole_heads = head_width is None or head_width * x_dtype.itemsize % WIDEST == 0
        if not (schedule.shape[1] and whole_heads and (finish is None or finish.mode == 1)):
            lay = False
        elif nonzero:
            lay = True
        elif lay is None:
            sizes = columns, x_dtype.itemsize, acc.itemsize
            lay = tuning is None and laying_pays(schedule, *sizes, alignment, scalable)
        taken = None
        if lay and scalable:
            taken, col_scale = col_scale, None
        folded = None
        if kind == NONE and col_scale is not None and fold and not (selects and row_scale is not None):
            whole = reduce == "sum"
            folded, col_scale = edge_factors(schedule, col_scale, row_scale if whole else None, acc), None
            if whole:
                row_scale = None
            kind = EDGES
        if col_scale is not None or (selects and row_scale is not None):
            kind = GENERAL
        value16 = kind == EDGES and folded is None and self._value_dtype != acc
        #: Columns of the rows that are gathered: those of the features, or of their copy.
        self.width = width = laid_columns(columns, x_dtype.itemsize) if lay else columns
        if tuning is None:
            tuning = tuning_of(width, x_dtype.itemsize, 16 if lay else alignment, acc.itemsize, head_width)
            part = chip_here().rows.slice_bytes[kind != NONE or x_dtype != np.float32]
            if is_sliced(schedule, width * x_dtype.itemsize, part):
                tuning = replace(tuning, lanes=min(tuning.lanes, max(1, part // tuning.load)))
            tuning = fitted(tuning, kind, edges_of_a_warp(schedule.nnz), half, value16)
        #: Keeps the arrays alive whose addresses the launch holds.
        self._kept, each = (row_scale, col_scale, folded), tuning.load // x_dtype.itemsize
        vectors, slice_vectors = -(-columns // each), tuning.lanes * tuning.vectors
        slices = -(-vectors // slice_vectors)
        params = self._walk(SpmmParams if finish is None else FinishedParams, schedule, tuning)
        values = None if folded is None else folded.edges
        jit.filled(params, row_scale=row_scale, col_scale=col_scale, values=values, vectors=vectors, slices=slices)
        self._row_bytes = params.row_bytes = width * x_dtype.itemsize
        params.out_bytes = columns * self.dtype.itemsize
        params.columns = columns
        sizes = schedule.shape[1], columns, x_dtype.itemsize
        scaled, direct = row_scale is not None and not selects, schedule.indices is None
        nonzero = nonzero and lay
        self._laid = LaidRows(schedule, *sizes, taken, nonzero) if lay else None
        self._edges = FetchedEdges(schedule) if nonzero else None
        self._ragged = ragged = lay and (width != columns or alignment < 16)
        params.is_signed = int(x_dtype.kind == "i")
        params.heads, params.width = (heads, columns // heads) if weights == "head" else (1, 1)
        kinds = (x_dtype.name, acc.name, kind, reduce)
        defines = schedule.defines | constants(
            tuning,
            *kinds,
            row_scale=scaled,
            direct=direct,
            value16=value16,
            ragged=ragged,
            after=after,
            fetched=nonzero,
        )
        if finish is not None:
            params.finish, params.out_bytes = finish.struct, finish.struct.row_bytes
            defines |= finish.defines | finish.pads(tuning.lanes, slices * tuning.vectors, each)
        kernel = CSR.kernel(_SOURCE, "spmm_csr", defines)
        self._prepare(kernel, params, slices, (slices * slice_vectors * each, acc), slices * tuning.lanes)

    #: Whether rows of the result and of what is added to them need not be whole vectors.
    _ragged = False
    #: The copy of the features, if they are copied first.
    _laid: LaidRows | None = None
    #: Which edges fetch rows of zeros, if that is looked at.
    _edges: FetchedEdges | None = None

    @property
    def index_nbytes(self) -> int:
        """Bytes of what is kept about the edges."""
        return 0 if self._edges is None else self._edges.nbytes

    @property
    def is_plain(self) -> bool:
        """Whether features are read without a copy."""
        return self._laid is None

    def laid(self, x: Any) -> Any:
        """The rows that :meth:`of_laid` takes, of a product that copies features; ``schedule.order`` is held until they are read."""
        assert self._laid is not None
        return self._laid(interop.contiguous(x))

    def of_laid(self, rows: Any, out: Any, after: AfterSums | None = None, apart: int | None = None) -> None:
        """The product with features that already lie as the copy, if there is one, would: float32 `rows` (columns of the pattern, `width`).

        Each row is multiplied with its scale already; what stands in the columns behind those of the features does not matter. If rows
        are parts of wider ones, `apart` is the number of bytes from one to the next, a multiple of 16. `out` is aligned to 16 bytes.
        """
        self._launched(rows, None, out, None, after, apart)

    def __call__(
        self, x: Any, values: Any = None, out: Any = None, behind: Behind | None = None, after: AfterSums | None = None
    ) -> Any:
        """The product with `x` (columns of the pattern, columns), of the prepared kind."""
        if out is None:
            out = self._empty(self.shape, self.dtype)
        if self._kernel is None:
            return out
        if not x.flags.c_contiguous:
            x = interop.contiguous(x)
        if values is not None:
            values = interop.aligned(values if values.dtype == self._value_dtype else values.astype(self._value_dtype))
        if self._laid is None:
            return self._launched(x, values, out, behind, after)
        with self.schedule.order:
            marks = None if self._edges is None else self._edges.marks()
            rows = self._laid(x, marks)
            fetched = None if self._edges is None else self._edges(marks)
            return self._launched(rows, values, out, behind, after, fetched=fetched)

    def _launched(
        self,
        x: Any,
        values: Any,
        out: Any,
        behind: Any,
        after: AfterSums | None,
        apart: Any = None,
        fetched: tuple[int, int] | None = None,
    ) -> Any:
        with self._lock:
            self._params.fetching, self._params.fetched = fetched or (None, None)
            self._params.row_bytes = apart or self._row_bytes
            # What a copy holds is needed until the launch is enqueued.
            held = set_after(self._params, after, 1 if self._ragged else self.tuning.load) if self._after else None
            if values is not None:
                self._params.values = values.data.ptr
            if self._finish is not None:
                self._finish.aim(self._params.finish, behind)
            self._enqueue(x, out)
        del held
        return out


def spmm(schedule: Schedule, x: Any, *, acc_dtype: Any, values: Any = None, out: Any = None, **kind: Any) -> Any:
    """Reduce rows of `x` over the edges of each row of a pattern; see the host's function of the same name.

    Rows are summed edge by edge. `schedule` cuts long rows into pieces, and the sums of pieces are added in order, sixteen at a time, then
    those sums likewise. So a result is the same in every run, and integer results equal the host's. The indices must be within the shape,
    which is not checked.

    Parameters
    ----------
    schedule : Schedule
        Schedule of the pattern.
    kind : optional
        `heads`, `row_scale`, `col_scale`, `reduce` and `tuning`, as for :class:`Spmm`.
    """
    x = interop.contiguous(x)
    acc = np.dtype(acc_dtype)
    if x.dtype.kind == "f" and acc.kind == "i":
        raise KernelError(f"spmm: {x.dtype} cannot be summed in {acc}")
    if values is not None:
        kind |= {"weights": "edge" if values.ndim == 1 else "head"}
        kind |= {"value_dtype": value_dtype_of(values.dtype, x.dtype, values.ndim)}
    kind |= {"columns": x.shape[1], "x_dtype": x.dtype, "acc_dtype": acc, "fold": False}
    result, place = x.dtype if x.dtype.name in SIXTEEN else acc, 0 if out is None else out.data.ptr
    alignment = alignment_of(x.data.ptr, x.dtype.itemsize, place, result.itemsize)
    product = Spmm(schedule, alignment=alignment, **kind)
    return product(x, values, out)


def _variants() -> list[jit.Variant]:
    """Variants for floats in 16-byte vectors, with and without weights and row scales; then other usual kinds, chains and signs."""
    wide, few, narrow = Tuning(16, 32), Tuning(16, 4, unroll=4), Tuning(8, 4)
    floats, weighted, large = ("float32", "float16", "bfloat16"), (NONE, EDGES), {"BS_LARGE": 1}
    found = [constants(few, weights=EDGES), constants(Tuning(4, 4)), constants(wide, direct=True)]
    for kind in floats:
        found += [
            constants(wide, kind, weights=weights, row_scale=one) for weights in weighted for one in (False, True)
        ]
        found += [constants(wide, kind, weights=GENERAL), constants(wide, kind, reduce="mean"), constants(narrow, kind)]
    for kind in floats[1:]:
        found += [constants(one, kind, weights=EDGES, value16=True) for one in (wide, few, Tuning(8, 4, unroll=4))]
        for how in ({}, {"weights": EDGES}, {"row_scale": True}, {"ragged": True}, {"ragged": True, "weights": EDGES}):
            found.append(constants(wide, kind, after=True, **how))
        found += [constants(narrow, kind, after=True), constants(few, kind, weights=EDGES, after=True)]
    found += [constants(tuning, row_scale=one, after=True) for tuning in (wide, narrow) for one in (False, True)]
    found += [constants(tuning, weights=EDGES, after=True) for tuning in (wide, few, Tuning(4, 4))]
    found.append(constants(wide, ragged=True, after=True))
    found += [constants(wide, row_scale=one, ragged=True, fetched=True) for one in (False, True)]
    found += [constants(wide, reduce=name) for name, reduction in REDUCTIONS.items() if reduction.selects]
    found += [constants(wide, "float64", "float64"), constants(narrow, "int8", "int32")]
    found += [constants(wide, kind, weights=weights, ragged=True) for kind in floats for weights in weighted]
    signs, chain = finish_constants(2, pads=0), finish_constants(1, BIAS | RELU)
    for weights in weighted:
        one = constants(wide, weights=weights)
        found += [large | one, one | signs, one | finish_constants(3, pads=0), one | chain]
    found += [constants(wide, reduce="mean") | chain, constants(wide) | finish_constants(3, ADDED, 0)]
    found += [constants(wide) | finish_constants(1, BIAS | NORM | TANH), constants(narrow, "float16") | signs]
    return CSR.variants(_SOURCE, "spmm_csr", [*found, large | constants(wide) | signs])


VARIANTS = _variants()

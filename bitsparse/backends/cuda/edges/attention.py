"""Attention over the edges of each row in one pass, on the GPU. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges.sddmm import edge_softmax, sddmm
from bitsparse.backends.cuda.spmm.spmm import spmm
from bitsparse.backends.params import Dropout

#: Edges of a row at a time, vectors of a row to a lane at most, lanes of a row's norm.
_STEPS, _MOST_PARTS, _NORM_LANES = 8, 4, 32
_THREADS = 256
#: Below this, weights relative to the largest possible score do not vanish.
_SAFE_BETA = 40.0

AttentionParams = jit.struct("edges/attention.cu", "AttentionParams")
AttentionRowsParams = jit.struct("edges/attention_rows.cu", "AttentionRowsParams")
AttentionEndsParams = jit.struct("edges/attention_rows.cu", "AttentionEndsParams")


class Layout(NamedTuple):
    """How rows lie on lanes: constants of the kernel, and what goes into its argument."""

    defines: dict[str, int]
    vectors: int
    head_vectors: int
    slices: int

    @property
    def lanes(self) -> int:
        """Lanes of a group."""
        return self.defines["BS_LANES"]


def layout(dtype: Any, vector: int, columns: int, heads: int, cosine: bool, *, large: bool = False) -> Layout:
    """The layout for rows of `columns` elements that are moved `vector` bytes at a time, with 64-bit indices if they are `large`.

    Examples
    --------
    >>> made = layout(np.float32, 16, 128, 4, False)
    >>> made.lanes, made.defines["BS_TOGETHER"], made.slices
    (32, 8, 1)
    """
    itemsize = np.dtype(dtype).itemsize
    vectors = columns * itemsize // vector
    head_vectors = vectors // heads
    lanes = min(32, edges.power_of_two(vectors))
    parts = edges.power_of_two(-(-vectors // lanes)) if cosine else 1
    many = cosine and vector // itemsize > 4  # sums to a lane, and elements of the row that attends
    steps = max(2, (_STEPS // 2 if many else _STEPS) // parts)
    few = cosine and parts == 1 and not many and itemsize == 4  # more warps were quicker than more gathers for each
    together = 1  # lanes of one head
    if heads == 1 or head_vectors % lanes == 0:
        together = lanes
    elif head_vectors & (head_vectors - 1) == 0:
        together = head_vectors
    defines = {"BS_TYPE": edges.element_type(dtype), "BS_VECTOR": vector, "BS_LANES": lanes, "BS_PARTS": parts}
    defines |= {"BS_STEPS": _STEPS // 2 if few else steps, "BS_TOGETHER": together, "BS_THREADS": _THREADS}
    flags = {"BS_BLOCKS": 4 * few, "BS_LARGE": int(large), "BS_COSINE": int(cosine)}
    defines |= {name: value for name, value in flags.items() if value}
    return Layout(defines, vectors, head_vectors, 1 if cosine else -(-vectors // lanes))


def join_defines(dtype: Any) -> dict[str, int]:
    """Constants of ``join_pieces`` for int32 indices."""
    return {"BS_TYPE": edges.element_type(dtype), "BS_VECTOR": np.dtype(dtype).itemsize, "BS_LANES": 1}


def attention(
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    x: Any,
    source: Any,
    target: Any,
    *,
    negative_slope: float,
    dropout: Dropout | None = None,
    out: Any = None,
    lse: Any = None,
    state: tuple[Any, Any] | None = None,
    schedule: Schedule | None = None,
    **cut: int | None,
) -> Any:
    """Softmax-weighted sums of rows of `x` (cols, heads * width), without storing a value per edge.

    Parameters
    ----------
    x : cupy.ndarray
        float32, float16, bfloat16 or float64, summed in float32 or float64 and rounded once.
    source, target : cupy.ndarray (cols, heads), (rows, heads)
        float64 for float64 features, else float32. The score of an edge is ``leaky_relu(source[column] + target[row])``.
    lse : cupy.ndarray (rows, heads), optional
        Receives the logarithm of the sum of ``exp(score)`` over each row, in the dtype of `source`; minus infinity for a row without edges.
    dropout, state : optional
        As the host's function has them.
    schedule : Schedule, optional
        Of this pattern, so that nothing is prepared for this call.
    cut : optional
        `span` and `longest`: how the rows are cut up, see :meth:`Schedule.cut`.
    """
    x, source, target = (geometry.contiguous(part) for part in (x, source, target))
    schedule = edges.schedule_of(schedule, indptr, indices, shape, int(indices.size))
    kind: dict[str, Any] = {"heads": source.shape[1], "factor": negative_slope, "dropout": dropout, **cut}
    return _once(schedule, (x, source, target), out, lse, state, **kind)


def attention_vjp(
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    x: Any,
    source: Any,
    target: Any,
    gradient: Any,
    state: tuple[Any, Any, Any, Any],
    *,
    negative_slope: float,
    dropout: Dropout | None = None,
    wrt: tuple[str, ...] = ("x", "source", "target"),
    schedule: Schedule | None = None,
    **cut: int | None,
) -> dict[str, Any]:
    """Gradients of :func:`attention` over the transpose of its pattern; see the host's function of the same name."""
    cupy = jit.require_cupy("attention_vjp")
    x, source, target, gradient, *kept = (geometry.contiguous(part) for part in (x, source, target, gradient, *state))
    (result, lse, share, above), sums, heads = kept, source.dtype, source.shape[1]
    made = {"target": cupy.empty(target.shape, sums)} if "target" in wrt else {}
    ends = None if wrt == ("target",) else cupy.empty((*target.shape, 4), sums)
    slanted = above if "target" in wrt else None
    rows = {
        "share": share,
        "lse": lse,
        "target": target,
        "ends": ends,
        "out": made.get("target"),
        "slope": negative_slope,
    }
    head_products(gradient, result, slanted, heads, False, rows)
    if ends is None:
        return made
    schedule = edges.schedule_of(schedule, indptr, indices, shape, int(indices.size))
    kind: dict[str, Any] = {"heads": heads, "factor": negative_slope, "dropout": dropout, "turned": True, **cut}
    second = None
    if "source" in wrt:
        made["source"] = cupy.empty(source.shape, sums)
        second = cupy.empty(source.shape, sums), cupy.empty(x.shape, sums)
    made["x"] = _once(schedule, (gradient, ends, source), cupy.empty(x.shape, x.dtype), None, second, **kind)
    if second is not None:
        head_products(x, x, second[1], heads, True, {"share": second[0], "out": made["source"]})
    return made


def head_products(x: Any, y: Any, above: Any, heads: int, turned: bool, fields: dict[str, Any]) -> None:
    """Dot products of the heads of rows, see ``head_products`` in ``edges/attention_rows.cu``."""
    items, itemsize = x.shape[0] * heads, x.dtype.itemsize
    if not items:
        return
    head_bytes = x.shape[1] // heads * itemsize
    vector = edges.vector_bytes(head_bytes, itemsize, [part for part in (x, y, above) if part is not None])
    lanes = min(_NORM_LANES, edges.power_of_two(head_bytes // vector))
    params = jit.filled(
        AttentionEndsParams(), x=x, y=y, above=above, items=items, vectors=head_bytes // vector, **fields
    )
    defines = {"BS_TYPE": edges.element_type(x.dtype), "BS_VECTOR": vector, "BS_LANES": lanes} | _modes(False, turned)
    blocks = -(-items * lanes // _THREADS)
    jit.kernel("edges/attention_rows.cu", "head_products", defines).launch(blocks, _THREADS, params)()


def _modes(above: bool, turned: bool, dropout: bool = False) -> dict[str, int]:
    """Constants of the kernels for gradients and what they need."""
    flags = {"BS_ABOVE": above, "BS_TURNED": turned, "BS_DROPOUT": dropout}
    return {name: 1 for name, value in flags.items() if value}


def cosine_attention(
    indptr: Any,
    indices: Any,
    shape: tuple[int, int],
    x: Any,
    *,
    beta: Any,
    out: Any = None,
    lse: Any = None,
    schedule: Schedule | None = None,
    **cut: int | None,
) -> Any:
    """Sums of rows of `x` (n, width) with weights ``softmax(beta * cos(x[row], x[column]))`` over each row; see :func:`attention`.

    `beta` is a number, or a cupy.ndarray (1,) in what `x` is summed in. A row of zeros has the cosine 0 with every other. Rows of more than
    2 KiB go through :func:`sddmm`, :func:`edge_softmax` and ``spmm``.
    """
    x = geometry.contiguous(x)
    schedule = edges.schedule_of(schedule, indptr, indices, shape, int(indices.size))
    if not fits_registers(x.dtype, x.shape[1], edges.vector_bytes(16, 1, (x,))):
        return _composed(schedule.indexed(), x, beta, out, lse)
    kind: dict[str, Any] = {"factor": beta if isinstance(beta, float) else None, "cosine": True, **cut}
    return _once(schedule, (x, beta, None), out, lse, **kind)


def _once(
    schedule: Schedule, operands: tuple[Any, Any, Any], out: Any, lse: Any, state: Any = None, **kind: Any
) -> Any:
    """A single call of a product of this kind."""
    x = operands[0]
    share, above = (None, None) if state is None else state
    result = jit.require_cupy("attention").empty((schedule.shape[0], x.shape[1]), x.dtype) if out is None else out
    if schedule.nnz == 0 or 0 in result.shape:
        edges.fill(result, 0)
        if lse is not None:
            lse.fill(-np.inf)
        for part in state or ():
            edges.fill(part, 0)
        return result
    alignment = edges.vector_bytes(16, 1, (x, result))
    kind |= {"above": state is not None, "alignment": alignment}
    product = AttentionProduct(schedule, dtype=x.dtype, columns=x.shape[1], **kind)
    return product(*operands, result, lse, share, above)


def fits_registers(dtype: Any, columns: int, alignment: int = 16) -> bool:
    """Whether rows of so many columns fit into the registers of a warp, so that cosines are computed in one pass.

    Examples
    --------
    >>> fits_registers(np.float32, 512), fits_registers(np.float32, 516)
    (True, False)
    """
    row_bytes, itemsize = columns * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize
    return bool(row_bytes // edges.vector_bytes(row_bytes | alignment, itemsize, ()) <= 32 * _MOST_PARTS)


class AttentionProduct:
    """Attention in one pass, prepared for one pattern and features of one kind: ``product(x, source, target, out)``.

    Building it compiles the kernels and cuts the pattern up; the first call on a stream allocates what such calls work in, later ones
    allocate nothing. It may be shared by threads and streams.

    Parameters
    ----------
    schedule : Schedule
        Of a pattern with edges.
    dtype : dtype
    columns, heads : int
        Of the features, all heads together; not 0.
    factor : float or None
        The negative slope, or beta if `cosine`; None for a beta that calls bring in place of `source`.
    cosine : bool
        Scores are cosines of the features (see :func:`cosine_attention`), so that calls bring none.
    alignment : int
        Bytes of which the addresses of features and results are multiples, at most 16.
    dropout : Dropout, optional
        Of the weights.
    above : bool
        Calls bring two more arrays, `share` and `above`: the state that :func:`attention` fills, or what its gradient sums.
    turned : bool
        The gradient over the transpose: `x` is the gradient by the result, `source` (cols, heads, 4) has what ``head_products`` makes of
        the columns' nodes.
    span, longest : int, optional
        How the rows are cut up, see :meth:`Schedule.cut`.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        dtype: Any,
        columns: int,
        factor: float | None,
        heads: int = 1,
        cosine: bool = False,
        dropout: Dropout | None = None,
        above: bool = False,
        turned: bool = False,
        alignment: int = 16,
        span: int | None = None,
        longest: int | None = None,
    ) -> None:
        schedule = self._schedule = schedule.indexed()
        self._cosine = cosine
        self._sums, self._lock = edges.sum_dtype(dtype), threading.Lock()
        part_bytes, itemsize = columns // heads * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize
        vector = edges.vector_bytes(part_bytes | alignment, itemsize, ())
        made = layout(dtype, vector, columns, heads, cosine, large=schedule.large)
        cut = schedule.cut(made.lanes, span=span, longest=longest)
        self._brought, known = factor is None, 1.0 if factor is None else factor
        params = self._params = AttentionParams(schedule.params(cut, made.lanes), factor=known)
        bounded = turned or (cosine and factor is not None and abs(factor) <= _SAFE_BETA)
        largest = 0.0 if turned else abs(known)
        params.lowest, params.bounded = largest if bounded else np.finfo(self._sums).min, int(bounded)
        if dropout is not None:
            params.threshold, params.kept_scale = dropout.threshold, dropout.scale
            self._seed = dropout.seed  # kept where the kernel reads it
            if hasattr(self._seed, "data"):
                params.seed_at = self._seed.data.ptr
            else:
                params.seed = self._seed
        modes = _modes(above, turned)
        params.heads, params.vectors, params.head_vectors = heads, made.vectors, made.head_vectors
        grid = (-(-cut.units * made.lanes // _THREADS), made.slices, 1)
        defines = made.defines | modes | _modes(False, False, dropout is not None)
        self._launch = jit.kernel("edges/attention.cu", "attention", defines).launch(grid, _THREADS, params)
        self._partial = (cut.pieces, (1 + above) * (2 * heads + columns))
        self._join: Any = None
        if cut.pieces:
            rows = self._rows = AttentionRowsParams(schedule.params(cut, made.lanes))
            rows.heads, rows.vectors, rows.head_elements = heads, columns, columns // heads
            defines = join_defines(dtype) | schedule.defines | modes
            threads = min(256, -(-columns // 32) * 32)
            self._join = jit.kernel("edges/attention_rows.cu", "join_pieces", defines).launch(cut.pieces, threads, rows)

    def __call__(
        self, x: Any, source: Any, target: Any, out: Any, lse: Any = None, share: Any = None, above: Any = None
    ) -> Any:
        """The weighted sums of C-contiguous features, in `out`; `source` and `target` do not count for cosines, but for a beta."""
        if self._cosine:
            beta, target = source, x
            source = inverse = inverse_norms(x, self._schedule.workspace("norms", x.shape[:1], self._sums))
            if self._brought:
                inverse = inverse * beta  # which the cosine's row brings along
        partial = None if self._join is None else self._schedule.workspace("attention", self._partial, self._sums)
        with self._lock:
            params = self._params
            params.x, params.out, params.lse = x.data.ptr, out.data.ptr, None if lse is None else lse.data.ptr
            params.source, params.target = source.data.ptr, target.data.ptr
            params.inverse = inverse.data.ptr if self._cosine else None
            if above is not None:
                params.share, params.above = share.data.ptr, above.data.ptr
            params.partial = None if partial is None else partial.data.ptr
            self._launch()
            if partial is not None:
                rows = self._rows
                rows.out, rows.lse, rows.partial = params.out, params.lse, params.partial
                rows.share, rows.above = params.share, params.above
                self._join()
        return out


def inverse_norms(x: Any, out: Any = None) -> Any:
    """Inverses of the Euclidean norms of the rows of `x`, in what `x` is summed in; 0 for rows of zeros."""
    cupy = jit.require_cupy("cosine_attention")
    result = cupy.empty(x.shape[0], edges.sum_dtype(x.dtype)) if out is None else out
    if 0 in x.shape:
        result.fill(0)
        return result
    x = geometry.contiguous(x)
    row_bytes = x.shape[1] * x.dtype.itemsize
    vector = edges.vector_bytes(row_bytes, x.dtype.itemsize, (x,))
    lanes = min(_NORM_LANES, edges.power_of_two(row_bytes // vector))
    params = jit.filled(AttentionRowsParams(), x=x, out=result, rows=x.shape[0], vectors=row_bytes // vector)
    defines = {"BS_TYPE": edges.element_type(x.dtype), "BS_VECTOR": vector, "BS_LANES": lanes}
    blocks = -(-x.shape[0] * lanes // _THREADS)
    jit.kernel("edges/attention_rows.cu", "inverse_norms", defines).launch(blocks, _THREADS, params)()
    return result


def _composed(schedule: Schedule, x: Any, beta: Any, out: Any, lse: Any) -> Any:
    """Step by step, with values per edge in memory: for rows that do not fit into the registers of a warp."""
    cupy, indptr, indices = jit.require_cupy("cosine_attention"), schedule.indptr, schedule.indices
    shape = schedule.shape
    sums, nnz = edges.sum_dtype(x.dtype), schedule.nnz
    inverse = inverse_norms(x, schedule.workspace("norms", x.shape[:1], sums))
    unit = edges.widened_features(x) * inverse[:, None]
    scores = sddmm(indptr, indices, shape, unit, unit, op="dot", heads=1, schedule=schedule)
    scores *= sums.type(beta) if isinstance(beta, float) else beta
    weights = edge_softmax(indptr, scores, schedule=schedule)
    result = spmm(
        indptr, indices, shape, x, nnz=nnz, acc_dtype=sums, values=weights.ravel(), out=out, schedule=schedule
    )
    if lse is not None:
        # Of every edge, score minus log(weight) is what is wanted; its mean by weight leaves out those whose weight has vanished.
        each = cupy.where(weights > 0, weights * (scores - cupy.log(weights)), sums.type(0))
        spmm(indptr, None, (shape[0], nnz), each, nnz=nnz, acc_dtype=sums, out=lse, schedule=schedule.along(None))
        lse[indptr[1:] == indptr[:-1]] = -np.inf
    return result


def _variants() -> list[jit.Variant]:
    """Scores and cosines of rows of the usual widths and heads, for every kind of floats; pieces of long rows."""
    large, bfloat16 = {"BS_LARGE": 1}, {"BS_TYPE": edges.element_type("bfloat16")}
    usual = ((64, 1), (64, 8), (128, 1), (128, 4), (128, 8), (128, 16))
    rows = [layout("float32", 16, columns, heads, False).defines for columns, heads in usual]
    rows += [layout("float32", 16, columns, 1, True).defines for columns in (16, 32, 64, 128, 256)]
    half = [layout("float16", 16, 128, heads, cosine).defines for heads, cosine in ((1, False), (4, False), (1, True))]
    rows += [*half, *(one | bfloat16 for one in half), layout("float64", 16, 64, 1, False).defines]
    rows += [layout("float32", 16, 128, 4, False, large=True).defines]
    trained = [layout("float32", 16, columns, heads, False).defines for columns, heads in usual]
    trained += [half[1], half[1] | bfloat16, layout("float64", 16, 64, 1, False).defines]
    modes = [_modes(True, turned) for turned in (False, True)]
    rows += [one | mode | drop for one in trained for mode in modes for drop in ({}, _modes(False, False, True))]
    pieces = [join_defines(dtype) for dtype in ("float32", "float16", "float64")]
    pieces += [pieces[1] | bfloat16, pieces[0] | large]
    pieces += [one | mode for one in pieces[:4] for mode in modes]
    products = [one | _modes(False, turned) for one in pieces[:4] for turned in (False, True)]
    products = [one | {"BS_VECTOR": 16, "BS_LANES": 8} for one in products]
    return [
        *jit.variants_of("edges/attention_rows.cu", "head_products", products),
        *jit.variants_of("edges/attention.cu", "attention", rows),
        *jit.variants_of("edges/attention_rows.cu", "join_pieces", pieces),
    ]


VARIANTS = _variants()

"""Attention over the edges of each row in one pass, on the GPU. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse._records import replace
from bitsparse.backends.cuda.chips import chip_here
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges.attention_codes import Codes, CodesAttention, tiles
from bitsparse.backends.cuda.edges.attention_layout import fits_registers
from bitsparse.backends.cuda.edges.attention_product import Attending, AttentionProduct, Completion
from bitsparse.backends.cuda.edges.attention_rows import (
    head_products,
    inverse_norms,
)
from bitsparse.backends.cuda.edges.head_scores import head_scores, head_scores_vjp
from bitsparse.backends.cuda.edges.node_ends import node_ends
from bitsparse.backends.cuda.edges.node_rows import most_columns
from bitsparse.backends.cuda.edges.sddmm import edge_softmax, sddmm
from bitsparse.backends.cuda.spmm.spmm import spmm
from bitsparse.backends.params import Dropout
from bitsparse.backends.row_pieces import RowPieces

#: The most products that a schedule keeps.
_MOST_KEPT = 32


def attention(
    schedule: Schedule,
    x: Any,
    source: Any,
    target: Any,
    *,
    negative_slope: float,
    dropout: Dropout | None = None,
    out: Any = None,
    lse: Any = None,
    state: tuple[Any, Any] | None = None,
    codes: Codes | None = None,
    vectors: tuple[Any, Any] | None = None,
    bias: Any = None,
    **cut: Any,
) -> Any:
    """Softmax-weighted sums of rows of `x` (cols, heads * width), without storing a value per edge.

    Parameters
    ----------
    schedule : Schedule
        Schedule of the pattern.
    x : cupy.ndarray
        float32, float16, bfloat16 or float64, summed in float32 or float64 and rounded once.
    source, target : cupy.ndarray (cols, heads), (rows, heads)
        float64 for float64 features, else float32. The score of an edge is ``leaky_relu(source[column] + target[row])``.
    lse : cupy.ndarray (rows, heads), optional
        Receives the logarithm of the sum of ``exp(score)`` over each row, in the dtype of `source`; minus infinity for a row without edges.
    dropout, state : optional
        As in the host's function.
    codes : Codes, optional
        Codes of the features, which are gathered in place of the features; `x` may then be None.
    vectors : tuple of cupy.ndarray (heads, width), optional
        Two vectors, for a square pattern: their products with the heads of `x` are the scores, which are written to `source` and `target`.
    bias : cupy.ndarray (heads * width,), optional
        Added to the result, in the dtype of `source`; not with codes.
    cut : optional
        `span` and `longest`: how the rows are cut up; see :meth:`Schedule.cut`.
    """
    source, target = (interop.contiguous(part) for part in (source, target))
    x = interop.contiguous(x) if codes is None else None
    how = Attending(source.shape[1], negative_slope, dropout=dropout, above=state is not None)
    laid = None
    if vectors is not None:
        out = jit.cupy.empty((schedule.shape[0], x.shape[1]), x.dtype) if out is None else out
        laid = _product_of(schedule, how, (x, out), **cut).room_for_rows() if schedule.nnz else None
        head_scores(x.reshape(len(x), *vectors[0].shape), *vectors, (source, target), laid=laid)
    return _product_once(schedule, how, (x, source, target), out, lse, state, codes, laid=laid, bias=bias, **cut)


def attention_vjp(
    schedule: Schedule,
    x: Any,
    source: Any,
    target: Any,
    gradient: Any,
    state: tuple[Any, Any, Any, Any],
    *,
    negative_slope: float,
    dropout: Dropout | None = None,
    wrt: tuple[str, ...] = ("x", "source", "target"),
    codes: Codes | None = None,
    out: Mapping[str, Any] | None = None,
    vectors: tuple[Any, Any] | None = None,
    bias: Any = None,
    completed: bool | None = None,
    **cut: Any,
) -> dict[str, Any]:
    """Gradients of :func:`attention` over the transpose of its pattern; see the host's function of the same name.

    `codes` are codes of `gradient`, which are gathered in its place. `out` maps names to arrays for the gradients. With `vectors`, the
    gradient by x includes what the scores contribute, and the gradients by both vectors are "vectors" (2, heads, width). A `bias` is part
    of the result, and its gradient is "bias" in `out`; its heads must fit in a warp. `completed` says whether the kernel that sums over
    edges completes the gradient of a node; by default it does where that is quicker.
    """
    empty, into = jit.require_cupy("attention_vjp").empty, {} if out is None else out

    def target_of(name: str, like: Any, dtype: Any) -> Any:
        return into[name] if name in into else empty(like.shape, dtype)

    result, lse, share, above = state
    x = x if isinstance(x, RowPieces) else interop.contiguous(x)
    source, target, gradient, lse, share = map(interop.contiguous, (source, target, gradient, lse, share))
    sums, heads = source.dtype, source.shape[1]
    gradients = {"target": target_of("target", target, sums)} if "target" in wrt else {}
    ends = None if wrt == ("target",) else jit.scratch((*target.shape, 4), sums, target)
    if completed is None:
        completed = schedule.nnz <= chip_here().rows.completed_edges * schedule.shape[0]
    complete = completed and "source" in wrt and codes is None and not isinstance(x, RowPieces)
    how = Attending(heads, negative_slope, False, dropout, "source" in wrt, turned=True, completed=complete)
    by_x, product, laid = None, None, None
    at_once = not isinstance(result, RowPieces) and 0 < gradient.shape[1] <= heads * most_columns(gradient.dtype)
    if ends is not None:
        by_x = gradients["x"] = target_of("x", x, x.dtype)
        if codes is None and schedule.nnz and x.shape[1]:
            product = _product_of(schedule, how, (gradient, by_x, *((x,) if complete else ())), **cut)
            laid = product.room_for_rows() if at_once else None
    of_rows: dict[str, Any] = {
        "share": share,
        "lse": lse,
        "target": target,
        "ends": ends,
        "out": gradients.get("target"),
    }
    slanted = above if "target" in wrt else None
    if at_once:
        result, slanted = (None if part is None else interop.contiguous(part) for part in (result, slanted))
        numbers = {**of_rows, "slope": negative_slope, "bias": bias}
        node_ends(gradient, result, slanted, heads, numbers, column_sums=into.get("bias"), laid=laid)
    else:
        for (by_result, y, steep), fields in _pieces((gradient, result, slanted), of_rows):
            head_products(by_result, y, steep, heads, False, {**fields, "slope": negative_slope})
    if ends is None:
        return gradients
    second: tuple[Any, Any] | None = None
    completion: Completion | None = None
    if "source" in wrt:
        by_source = gradients["source"] = target_of("source", source, sums)
        if product is not None and product.completes:
            first, other = (None, None) if vectors is None else vectors
            completion = Completion(x, by_source, gradients.get("target"), first, other)
        else:
            second = jit.scratch(source.shape, sums, source), jit.scratch(x.shape, sums, x)
    more: dict[str, Any] = {"laid": laid, "completion": completion, "product": product} | cut
    _product_once(schedule, how, (gradient, ends, source), by_x, None, second, codes, **more)
    if second is not None:
        for (of_x, slanted, _), fields in _pieces((x, second[1], None), {"share": second[0], "out": by_source}):
            head_products(of_x, of_x, slanted, heads, True, fields)
    if vectors is not None:
        rows, dx = x.reshape(len(x), *vectors[0].shape), None
        if completion is None:
            dx = gradients["x"].reshape(rows.shape)
        out_of = into.get("vectors")
        gradients["vectors"] = head_scores_vjp(rows, *vectors, by_source, gradients["target"], dx, out_of)
    return gradients


def _pieces(wide: tuple[Any, Any, Any], of_rows: dict[str, Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arrays with a row for each node: all rows at once or, if some arrays are made in pieces, piece by piece."""
    given = next((part for part in wide if isinstance(part, RowPieces)), None)
    if given is None:
        yield [None if part is None else interop.contiguous(part) for part in wide], of_rows
        return
    for i, rows in enumerate(given.pieces):
        parts = [part.make(i) if isinstance(part, RowPieces) else None if part is None else part[rows] for part in wide]
        yield parts, {name: None if part is None else part[rows] for name, part in of_rows.items()}


def cosine_attention(
    schedule: Schedule,
    x: Any,
    *,
    beta: Any,
    out: Any = None,
    lse: Any = None,
    **cut: Any,
) -> Any:
    """Sums of rows of `x` (n, width) with weights ``softmax(beta * cos(x[row], x[column]))`` over each row; see :func:`attention`.

    `beta` is a number, or a cupy.ndarray (1,) of the dtype in which `x` is summed. A row of zeros has the cosine 0 with every row. Rows of
    more than 2 KiB are computed by :func:`sddmm`, :func:`edge_softmax` and ``spmm``.
    """
    x = interop.contiguous(x)
    if not fits_registers(x.dtype, x.shape[1], edges.vector_bytes(16, 1, (x,))):
        return _composed(schedule.indexed(), x, beta, out, lse)
    how = Attending(factor=beta if isinstance(beta, float) else None, cosine=True)
    return _product_once(schedule, how, (x, beta, None), out, lse, None, None, **cut)


def _product_once(
    schedule: Schedule,
    how: Attending,
    operands: tuple[Any, Any, Any],
    out: Any,
    lse: Any,
    state: tuple[Any, Any] | None = None,
    codes: Codes | None = None,
    *,
    laid: Any = None,
    bias: Any = None,
    completion: Completion | None = None,
    product: AttentionProduct | None = None,
    **cut: Any,
) -> Any:
    """Call a product of this kind once."""
    x = operands[0]
    columns, dtype = (x.shape[1], x.dtype) if codes is None else (codes.columns, np.float32)
    result = jit.require_cupy("attention").empty((schedule.shape[0], columns), dtype) if out is None else out
    if schedule.nnz == 0 or 0 in result.shape:
        edges.fill(result, 0)
        if bias is not None:
            result += bias
        if lse is not None:
            lse.fill(-np.inf)
        for part in state or ():
            edges.fill(part, 0)
        return result
    share, above = (None, None) if state is None else state
    width = columns // how.heads
    if codes is not None and how.above and how.factor is not None and tiles(how.heads, width) is not None:
        by_tiles = CodesAttention(schedule, how.heads, width, how.factor, how.dropout, how.turned, **cut)
        return by_tiles(codes.words, *operands[1:], result, lse, share, above, codes.scale)
    seed = None if how.dropout is None else how.dropout.seed
    if codes is not None:
        product = _kept(schedule, how, dtype=np.dtype(np.int8), columns=columns, **cut)
        return product(codes.words, *operands[1:], result, lse, share, above, codes.scale, seed)
    product = _product_of(schedule, how, (x, result), **cut) if product is None else product
    return product(*operands, result, lse, share, above, seed=seed, laid=laid, bias=bias, completion=completion)


def _product_of(schedule: Schedule, how: Attending, arrays: tuple[Any, ...], **cut: Any) -> AttentionProduct:
    """The product for float features, the first of the arrays, and for the alignment of all of them."""
    x, alignment = arrays[0], edges.vector_bytes(16, 1, arrays)
    return _kept(schedule, how, dtype=x.dtype, columns=x.shape[1], alignment=alignment, **cut)


def _kept(schedule: Schedule, how: Attending, **kind: Any) -> AttentionProduct:
    """The product for calls of this kind, which the schedule keeps; one product serves all seeds of dropout."""
    drawn = None if how.dropout is None else replace(how.dropout, seed=0)
    how, kept = replace(how, dropout=drawn), schedule.products
    key = (how, *kind.items())
    found: AttentionProduct | None = kept.get(key)
    if found is None:
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        found = kept[key] = AttentionProduct(schedule, how, **kind)
    return found


def _composed(schedule: Schedule, x: Any, beta: Any, out: Any, lse: Any) -> Any:
    """Cosine attention step by step, with values per edge in memory, for rows that do not fit in the registers of a warp."""
    cupy, indptr, sums = jit.require_cupy("cosine_attention"), schedule.indptr, edges.sum_dtype(x.dtype)
    inverse = inverse_norms(x, schedule.workspace("norms", x.shape[:1], sums))
    unit = edges.widened_features(x) * inverse[:, None]
    scores = sddmm(schedule, unit, unit, op="dot", heads=1)
    scores *= sums.type(beta) if isinstance(beta, float) else beta
    weights = edge_softmax(schedule, scores)
    result = spmm(schedule, x, acc_dtype=sums, values=weights.ravel(), out=out)
    if lse is not None:
        # For every edge, score - log(weight) is the log-sum-exp; its mean by weight excludes edges whose weight has vanished.
        each = cupy.where(weights > 0, weights * (scores - cupy.log(weights)), sums.type(0))
        spmm(schedule.along(None), each, acc_dtype=sums, out=lse)
        lse[indptr[1:] == indptr[:-1]] = -np.inf
    return result

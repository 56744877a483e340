"""Attention's pass over the edges on the GPU, prepared for one pattern: the constants and the launches of its kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda.chips import chip_here
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.bounds import ATTENTION
from bitsparse.backends.cuda.csr.rows import WIDEST, LaidRows, laid_columns, worth_laying
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges.attention_layout import CODES_VECTOR, layout, tuned
from bitsparse.backends.cuda.edges.attention_rows import inverse_norms, join_behind, joining, joins_itself
from bitsparse.backends.params import Dropout

#: For beta up to this, weights relative to the largest possible score do not vanish.
_SAFE_BETA = 40.0

AttentionParams = jit.struct("edges/attention.cu", "AttentionParams")


class Attending(NamedTuple):
    """How nodes attend to their neighbours.

    Attributes
    ----------
    heads : int
    factor : float or None
        The negative slope, or beta if `cosine`; None if calls pass beta in place of `source`.
    cosine : bool
        Scores are cosines of the features (see :func:`cosine_attention`), so calls pass no scores.
    dropout : Dropout, optional
        Dropout of the weights.
    above : bool
        Calls pass two more arrays, `share` and `above`: the state that :func:`attention` fills, or the sums of its gradient.
    turned : bool
        Compute the gradient over the transpose: `x` is the gradient of the result, and `source` (cols, heads, 4) is the output of
        ``head_products`` for the nodes of the columns.
    completed : bool
        With `above` and `turned`: calls pass a :class:`Completion` in place of the two arrays, if :attr:`AttentionProduct.completes`.
    """

    heads: int = 1
    factor: float | None = None
    cosine: bool = False
    dropout: Dropout | None = None
    above: bool = False
    turned: bool = False
    completed: bool = False


class Completion(NamedTuple):
    """What completes the gradients of a node once its edges are summed, so that the second sums need not be stored.

    Attributes
    ----------
    features : cupy.ndarray (nodes, columns)
    share : cupy.ndarray (nodes, heads)
        Receives the gradient by the scores of the nodes attended to.
    by_target : cupy.ndarray (nodes, heads), optional
        The gradient by the scores of the attending nodes, if both scores are products of the features with two vectors.
    first, second : cupy.ndarray (heads, width), optional
        These vectors: what they contribute is added to the gradient by the features.
    """

    features: Any
    share: Any
    by_target: Any = None
    first: Any = None
    second: Any = None


class AttentionProduct:
    """Attention in one pass, prepared for one pattern and features of one kind: ``product(x, source, target, out)``.

    Building it compiles the kernels and cuts up the pattern. The first call on a stream allocates workspace; later calls allocate nothing.
    It may be shared by threads and streams.

    Parameters
    ----------
    schedule : Schedule
        Schedule of a pattern with edges.
    dtype : dtype
        Dtype of the features; int8 for codes of features or gradients, with float32 results.
    how : Attending
    columns : int
        Columns of the features, all heads together; not 0.
    alignment : int
        Alignment in bytes of features and results, at most 16.
    span, longest : int, optional
        How the rows are cut up; see :meth:`Schedule.cut`.
    lay : bool, optional
        First copy the features to memory in which every head is a whole number of vectors; by default if that is estimated to be faster.
    """

    def __init__(
        self,
        schedule: Schedule,
        how: Attending,
        *,
        dtype: Any,
        columns: int,
        alignment: int = 16,
        span: int | None = None,
        longest: int | None = None,
        lay: bool | None = None,
    ) -> None:
        schedule = schedule.indexed()
        self._rooms, self._order = schedule.rooms, schedule.order
        heads, factor, cosine, dropout, above, turned, completed = how
        self._cosine = cosine
        codes = np.dtype(dtype) == np.int8
        of_results = np.dtype(np.float32) if codes else np.dtype(dtype)
        self._sums = edges.sum_dtype(of_results)
        head_columns, itemsize = columns // heads, np.dtype(dtype).itemsize
        part_bytes, parts = head_columns * itemsize, schedule.shape[1] * heads
        vector = edges.vector_bytes(part_bytes | alignment, itemsize, ())
        if codes:  # they are already padded
            lay = False
        elif lay is None:
            lay = worth_laying(chip_here(), schedule.nnz * heads, parts, part_bytes, vector, WIDEST)
        width = heads * laid_columns(head_columns, itemsize) if lay or codes else columns
        self._laid = LaidRows(schedule, parts, head_columns, itemsize) if lay else None
        ragged = lay or width != columns
        vector = CODES_VECTOR if codes else WIDEST if lay else vector
        warp = layout(dtype, vector, width, heads, cosine, large=schedule.large)
        cut = schedule.cut(warp.lanes, span=span, longest=longest)
        self._pattern = schedule.indptr, schedule.indices, cut  # kept alive, since launches hold their addresses
        self._calls_bring_beta, known = factor is None, 1.0 if factor is None else factor
        params = self._params = AttentionParams(schedule.params(cut, warp.lanes), factor=known)
        bounded = turned or (cosine and factor is not None and abs(factor) <= _SAFE_BETA)
        largest = 0.0 if turned else abs(known)
        params.lowest, params.bounded = largest if bounded else np.finfo(self._sums).min, int(bounded)
        if dropout is not None:
            params.threshold, params.kept_scale = dropout.threshold, dropout.scale
        whole = warp.slices == 1 and (heads == 1 or warp.defines["BS_TOGETHER"] == warp.head_vectors)
        #: Whether calls pass a :class:`Completion`: they may where the lanes of a head are those of one group, and exchange sums.
        self.completes = completed and whole and not codes
        modes = jit.flags(above=above, turned=turned, completed=self.completes)
        params.heads, params.vectors, params.head_vectors = heads, warp.vectors, warp.head_vectors
        params.head_columns = head_columns
        joined = joins_itself(cut) and warp.slices == 1 and not codes  # slices cannot see each other's progress
        defines = tuned(warp.defines | modes | jit.flags(dropout=dropout is not None, ragged=ragged, joined=joined))
        defines |= ATTENTION.blocks(defines, chip_here())
        threads = defines["BS_THREADS"]
        grid = (-(-cut.units * warp.lanes // threads), warp.slices, 1)
        self._launch = jit.kernel("edges/attention.cu", "attention", defines).launch(grid, threads, params)
        self._partial = (cut.pieces, (1 + above) * (2 * heads + width))
        self._join: Any = None
        self._counters = cut.pieces if joined else 0
        if cut.pieces and not joined:
            streams, modes = schedule.params(cut, warp.lanes), schedule.defines | modes
            self._join = joining(streams, of_results, heads, head_columns, width // heads, modes)

    def room_for_rows(self) -> Any:
        """Memory for a copy of the features whose heads are whole vectors; None if the kernel gathers the features as they lie."""
        return None if self._laid is None else self._laid.room()

    def __call__(
        self,
        x: Any,
        source: Any,
        target: Any,
        out: Any,
        lse: Any = None,
        share: Any = None,
        above: Any = None,
        scale: Any = None,
        seed: Any = None,
        *,
        laid: Any = None,
        bias: Any = None,
        completion: Completion | None = None,
    ) -> Any:
        """Write the weighted sums of C-contiguous features to `out`. Cosines ignore `target`, and `source` unless it holds beta.

        `scale` (float32, ()) is the real value of the code 1. `seed`, the seed of dropout, is a number or an array that the kernel reads.
        `laid` is memory of :meth:`room_for_rows` that already holds the features. `bias` (columns,) is added to the result.
        """
        inverse = None
        if self._cosine:
            beta = source
            source = inverse = inverse_norms(x, self._rooms.on_stream("norms", x.shape[:1], self._sums).partial)
        with self._order:  # the launches' arguments are shared
            if self._laid is not None:
                x = self._laid(x) if laid is None else laid
            target = x if self._cosine else target
            params = self._params
            jit.filled(params, bias=bias, **({} if completion is None else completion._asdict()))
            if self._partial[0]:
                room = self._rooms.on_stream("attention", self._partial, self._sums, self._counters)
                params.partial = room.partial.data.ptr
                params.arrived = room.arrived.data.ptr if self._counters else None
            params.x, params.out, params.lse = x.data.ptr, out.data.ptr, None if lse is None else lse.data.ptr
            params.source, params.target = source.data.ptr, target.data.ptr
            params.inverse = None if inverse is None else inverse.data.ptr
            params.scale = None if scale is None else scale.data.ptr
            if above is not None:
                params.share, params.above = share.data.ptr, above.data.ptr
            if hasattr(seed, "data"):
                params.seed_at = seed.data.ptr
            elif seed is not None:
                params.seed, params.seed_at = seed, None
            if self._calls_bring_beta:
                params.beta = beta.data.ptr
            self._launch()
            join_behind(self._join, params)
        return out


def _variants() -> list[jit.Variant]:
    """Variants for scores and cosines of rows of the usual widths and heads, for every kind of floats and for codes; and gradients."""
    bfloat16 = {"BS_TYPE": edges.element_type("bfloat16")}
    usual = ((64, 1), (64, 8), (128, 1), (128, 4), (128, 8), (128, 16))
    rows = [layout("float32", 16, columns, heads, False).defines for columns, heads in usual]
    rows += [layout("float32", 16, columns, 1, True).defines for columns in (16, 32, 64, 128, 256)]
    rows += [one | {"BS_JOINED": 1} for one in rows]
    half = [layout("float16", 16, 128, heads, cosine).defines for heads, cosine in ((1, False), (4, False), (1, True))]
    rows += [*half, *(one | bfloat16 for one in half), layout("float64", 16, 64, 1, False).defines]
    rows += [layout("float32", 16, 128, 4, False, large=True).defines]
    codes = [layout(np.int8, CODES_VECTOR, columns, heads, False).defines for columns, heads in ((128, 4), (48, 1))]
    modes = [jit.flags(above=True, turned=turned) for turned in (False, True)]
    rows += [one | mode | jit.flags(ragged=ragged) for one in codes for mode in modes for ragged in (False, True)]
    trained = [layout("float32", 16, columns, heads, False).defines for columns, heads in usual]
    trained += [one | {"BS_JOINED": 1} for one in trained]
    trained += [half[1], half[1] | bfloat16, layout("float64", 16, 64, 1, False).defines]
    modes.append({**modes[1], "BS_COMPLETED": 1})
    rows += [one | mode | jit.flags(dropout=drop) for one in trained for mode in modes for drop in (False, True)]
    ragged = [layout(dtype, WIDEST, 48, 1, False).defines | jit.flags(ragged=True) for dtype in ("float32", "float16")]
    rows += [one | mode for one in (*ragged, ragged[1] | bfloat16) for mode in ({}, *modes)]
    return ATTENTION.variants("edges/attention.cu", "attention", map(tuned, rows))


VARIANTS = _variants()

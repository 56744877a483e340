"""The steps before and after attention's pass over the edges on the GPU: norms and products of rows, and joining pieces of long rows."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.schedule import Cut

_SOURCE = "edges/attention_rows.cu"
_THREADS = 256
#: Lanes of a row's norm.
_NORM_LANES = 32
#: The most threads of a block that joins pieces, if sums have four bytes, and the pieces that each thread takes at once.
_JOIN_THREADS, _LEAST_PIECES = 1024, 4
#: The most pieces of a pattern for which blocks are that large. With more pieces, most blocks have nothing to join and only start and end,
#: which took reddit's 68 thousand blocks of 1024 threads nine times as long as blocks of 128. With fewer pieces, and at most the second
#: number in the longest row, the last of a row's pieces joins them, since a separate launch takes half as long as a small graph's sums.
_FEW_PIECES, _FEW_IN_ROW = 2048, 16

AttentionRowsParams = jit.struct(_SOURCE, "AttentionRowsParams")
AttentionEndsParams = jit.struct(_SOURCE, "AttentionEndsParams")


def join_defines(dtype: Any) -> dict[str, int]:
    """Constants of ``join_pieces`` for int32 indices."""
    return {"BS_TYPE": edges.element_type(dtype), "BS_VECTOR": np.dtype(dtype).itemsize, "BS_LANES": 1}


def join_threads(columns: int, pieces: int, itemsize: int = 4) -> tuple[int, int]:
    """The threads of a block that joins the pieces of a row, and how many of them share the pieces of a column.

    Examples
    --------
    >>> join_threads(64, 300), join_threads(128, 9), join_threads(1000, 300), join_threads(5, 2), join_threads(128, 68_119)
    ((1024, 16), (384, 3), (1024, 1), (32, 1), (128, 1))
    """
    most = _JOIN_THREADS * 4 // itemsize
    if pieces > _FEW_PIECES:
        most = _THREADS
    width = min(most, -(-columns // 32) * 32)
    parts = 1 if pieces > _FEW_PIECES else max(1, min(most // width, -(-pieces // _LEAST_PIECES)))
    return width * parts, parts


def joins_itself(cut: Cut) -> bool:
    """Whether the last of a row's pieces to finish joins them, which saves a separate launch.

    Examples
    --------
    >>> made = Cut(None, None, None, streams=9, pieces=12, long_rows=4, most=5, span=8, longest=32)
    >>> joins_itself(made), joins_itself(made._replace(most=300)), joins_itself(made._replace(pieces=0))
    (True, False, False)
    """
    return 0 < cut.pieces <= _FEW_PIECES and cut.most <= _FEW_IN_ROW


def joining(
    streams: ctypes.Structure, dtype: Any, heads: int, head_columns: int, head_elements: int, modes: dict[str, int]
) -> jit.Launch:
    """The launch that joins the pieces of long rows into results of `dtype`; it stores `head_columns` of a head's `head_elements` sums."""
    columns = heads * head_elements
    params = AttentionRowsParams(streams, heads=heads, vectors=columns)
    params.head_elements, params.head_columns = head_elements, head_columns
    threads, params.parts = join_threads(columns, streams.pieces, edges.sum_dtype(dtype).itemsize)
    kernel = jit.kernel(_SOURCE, "join_pieces", join_defines(dtype) | modes)
    return kernel.launch(streams.pieces, threads, params)


#: What attention over codes does not have: a bias, and what completes gradients.
_COMPLETES = ("bias", "features", "by_target", "first", "second")


def join_behind(join: jit.Launch | None, params: Any) -> None:
    """Join the pieces of long rows that a launch with these parameters wrote; does nothing if `join` is None."""
    if join is not None:
        rows = join.params
        rows.out, rows.lse, rows.partial = params.out, params.lse, params.partial
        rows.share, rows.above = params.share, params.above
        for name in _COMPLETES:
            setattr(rows, name, getattr(params, name, None))
        join()


def head_products(x: Any, y: Any, above: Any, heads: int, turned: bool, fields: dict[str, Any]) -> None:
    """Dot products of rows of x and y for each head; see ``head_products`` in ``edges/attention_rows.cu``."""
    items, itemsize = x.shape[0] * heads, x.dtype.itemsize
    if not items:
        return
    head_bytes = x.shape[1] // heads * itemsize
    normed = fields.get("normed")
    vector = edges.vector_bytes(head_bytes, itemsize, [part for part in (x, y, above, normed) if part is not None])
    params = jit.filled(
        AttentionEndsParams(), x=x, y=y, above=above, items=items, vectors=head_bytes // vector, **fields
    )
    defines = edges.rows_defines(x.dtype, vector, head_bytes // vector, _NORM_LANES) | jit.flags(
        turned=turned, norms=normed is not None
    )
    blocks = -(-items * defines["BS_LANES"] // _THREADS)
    jit.kernel(_SOURCE, "head_products", defines).run(blocks, _THREADS, params)


def inverse_norms(x: Any, out: Any = None) -> Any:
    """Inverses of the Euclidean norms of the rows of `x`, in the dtype in which `x` is summed; 0 for rows of zeros."""
    cupy = jit.require_cupy("cosine_attention")
    result = cupy.empty(x.shape[0], edges.sum_dtype(x.dtype)) if out is None else out
    if 0 in x.shape:
        result.fill(0)
        return result
    x = interop.contiguous(x)
    row_bytes = x.shape[1] * x.dtype.itemsize
    vector = edges.vector_bytes(row_bytes, x.dtype.itemsize, (x,))
    params = jit.filled(AttentionRowsParams(), x=x, out=result, rows=x.shape[0], vectors=row_bytes // vector)
    defines = edges.rows_defines(x.dtype, vector, row_bytes // vector, _NORM_LANES)
    blocks = -(-x.shape[0] * defines["BS_LANES"] // _THREADS)
    jit.kernel(_SOURCE, "inverse_norms", defines).run(blocks, _THREADS, params)
    return result


def _variants() -> list[jit.Variant]:
    """Variants for joining pieces of sums and gradients of every kind, and for dot products of rows."""
    pieces = [join_defines(dtype) for dtype in ("float32", "float16", "float64")]
    pieces.insert(3, pieces[1] | {"BS_TYPE": edges.element_type("bfloat16")})
    directions = [jit.flags(turned=turned) for turned in (False, True)]
    joined = [*pieces, pieces[0] | {"BS_LARGE": 1}]
    joined += [one | mode | jit.flags(above=True) for one in pieces for mode in directions]
    joined += [one | jit.flags(above=True, turned=True, completed=True) for one in pieces]
    products = [one | {"BS_VECTOR": 16, "BS_LANES": 8} | mode for one in pieces for mode in directions]
    products += [one | jit.flags(norms=True) for one in products[::2]]
    return [
        *jit.variants_of(_SOURCE, "head_products", products),
        *jit.variants_of(_SOURCE, "join_pieces", joined),
    ]


VARIANTS = _variants()

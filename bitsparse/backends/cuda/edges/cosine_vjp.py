"""Gradients of cosine attention on the GPU, in one pass over the edges in each direction. Arguments are validated in ``ops``."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.csr import vectors as edges
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.edges.attention_rows import head_products, joins_itself
from bitsparse.backends.cuda.edges.head_scores import column_sums

_THREADS = 256
#: Threads of a block and blocks that share a multiprocessor if lanes have few elements: a thread then takes 96 registers, with which two
#: blocks of 256 threads are 16 warps, and ten of 64 are 20.
_SMALL_BLOCKS = {"BS_THREADS": 64, "BS_BLOCKS": 10}
#: Edges of a row that are processed at a time.
_STEPS = 4
_SOURCE = "edges/cosine_vjp.cu"

CosineVjpParams = jit.struct(_SOURCE, "CosineVjpParams")


def cosine_attention_vjp(
    schedules: tuple[Schedule, Schedule | None],
    x: Any,
    gradient: Any,
    result: Any,
    lse: Any,
    *,
    beta: Any,
    out: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """Gradients with respect to the features and to the factor `beta` of the cosines.

    Parameters
    ----------
    schedules : tuple of Schedule
        Schedules of a square pattern with edges and of its transpose; the second is None if the pattern is symmetric.
    x, gradient, result : cupy.ndarray (nodes, columns)
        Features, the gradient of the result, and the result, of one floating dtype. The columns fit in the registers of a warp
        (``attention_layout.fits_registers``).
    lse : cupy.ndarray (nodes,)
        The logarithm of each node's softmax denominator as :func:`cosine_attention` gives it, in the dtype in which `x` is summed.
    beta : float, or cupy.ndarray (1,) of the dtype of `lse`
    out : tuple of cupy.ndarray, optional
        Where to write the two results.

    Returns
    -------
    cupy.ndarray (nodes, columns), cupy.ndarray (1,)
        In the dtypes of `x` and of `lse`; the second is summed in float64.
    """
    cupy = jit.require_cupy("cosine_attention_vjp")
    x, gradient, result = (interop.contiguous(part) for part in (x, gradient, result))
    forward, sums = schedules[0], lse.dtype
    nodes = cupy.empty((len(x), 4), sums)
    head_products(gradient, result, None, 1, False, {"lse": lse, "normed": x, "ends": nodes})
    made, total = (cupy.empty_like(x), cupy.empty(1, sums)) if out is None else out
    by_beta = cupy.empty(len(x), sums)
    fields = {"x": x, "g": gradient, "nodes": nodes, "out": made, "by_beta": by_beta, "toward": None}
    fields |= {"factor": beta} if isinstance(beta, float) else {"beta": beta}
    if schedules[1] is None:
        _pass(forward, x, sums, fields, forward=True, turned=True)
    else:
        fields["toward"] = cupy.empty(x.shape, sums)
        _pass(forward, x, sums, fields, forward=True)
        _pass(schedules[1], x, sums, fields, turned=True)
    return made, column_sums(by_beta[:, None], total, wide=True)


def _pass(
    schedule: Schedule, x: Any, sums: Any, fields: dict[str, Any], *, forward: bool = False, turned: bool = False
) -> None:
    """Make one pass over the edges, and join the pieces of long rows."""
    schedule = schedule.indexed()
    columns, itemsize = x.shape[1], x.dtype.itemsize
    vector = edges.vector_bytes(columns * itemsize, itemsize, (x, fields["g"], fields["out"]))
    defines = layout(x.dtype, vector, columns) | schedule.defines | jit.flags(forward=forward, turned=turned)
    lanes, threads = defines["BS_LANES"], defines["BS_THREADS"]
    cut = schedule.cut(lanes)
    params = CosineVjpParams(schedule.params(cut, lanes))
    jit.filled(params, **fields, vectors=columns * itemsize // vector)
    joined = joins_itself(cut)
    if cut.pieces:
        counters = cut.pieces if joined else 0
        room = schedule.rooms.on_stream("cosine_vjp", (cut.pieces, (1 + turned) * columns), sums, counters)
        jit.filled(params, partial=room.partial, arrived=room.arrived if joined else None)
    kernel = jit.kernel(_SOURCE, "cosine_vjp", defines | jit.flags(joined=joined))
    kernel.run(-(-cut.units * lanes // threads), threads, params)
    if cut.pieces and not joined:
        params.vectors = columns
        jit.kernel(_SOURCE, "cosine_vjp_pieces", pieces_of(defines, x.dtype)).run(cut.pieces, _THREADS, params)


def layout(dtype: Any, vector: int, columns: int) -> dict[str, int]:
    """The kernel constants that say how rows of `columns` elements, loaded `vector` bytes at a time, are spread over the lanes of a warp.

    Examples
    --------
    >>> made = layout(np.float32, 16, 32)
    >>> made["BS_LANES"], made["BS_PARTS"], made["BS_STEPS"]
    (8, 1, 4)
    """
    vectors = columns * np.dtype(dtype).itemsize // vector
    defines = edges.rows_defines(dtype, vector, vectors)
    parts = edges.power_of_two(-(-vectors // defines["BS_LANES"]))
    # Elements per lane; a lane holds four sets of this many in registers.
    width = parts * vector // np.dtype(dtype).itemsize
    defines |= {"BS_PARTS": parts, "BS_STEPS": _STEPS if width <= 4 else _STEPS // 2}
    if width <= 4 and np.dtype(dtype).itemsize == 4:
        return defines | _SMALL_BLOCKS
    return defines | {"BS_THREADS": _THREADS, "BS_BLOCKS": 1 if width >= 16 else 2}


def pieces_of(defines: dict[str, int], dtype: Any) -> dict[str, int]:
    """The constants of the kernel that joins the pieces of long rows, one element at a time."""
    return defines | {"BS_VECTOR": np.dtype(dtype).itemsize, "BS_LANES": 1, "BS_PARTS": 1, "BS_STEPS": 1}


def _variants() -> list[jit.Variant]:
    """Variants for rows of the usual widths, over symmetric patterns and over both directions of others."""
    rows = [layout("float32", 16, columns) for columns in (16, 32, 64, 128, 256)]
    rows += [
        layout("float16", 16, 128),
        layout("float16", 16, 32) | {"BS_TYPE": edges.element_type("bfloat16")},
        layout("float64", 16, 64),
    ]
    modes = [jit.flags(forward=forward, turned=turned) for forward, turned in ((1, 1), (1, 0), (0, 1))]
    found = [one | mode | jit.flags(joined=joined) for one in rows for mode in modes for joined in (False, True)]
    found.append(rows[1] | modes[0] | {"BS_LARGE": 1})
    pieces = [
        pieces_of(one, dtype) | mode for one, dtype in ((rows[0], "float32"), (rows[-1], "float64")) for mode in modes
    ]
    return [*jit.variants_of(_SOURCE, "cosine_vjp", found), *jit.variants_of(_SOURCE, "cosine_vjp_pieces", pieces)]


VARIANTS = _variants()

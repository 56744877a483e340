"""A dot product for each edge on the matrix units of the GPU, over condensed windows of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bitsparse import jit
from bitsparse.backends.cuda.csr.vectors import element_type
from bitsparse.backends.cuda.edges.sddmm import EdgeCalls
from bitsparse.backends.cuda.spmm.choice import Estimate
from bitsparse.backends.cuda.spmm.tiles_build import Windows

#: Bytes of an element, by dtype.
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_SOURCE = "edges/sddmm_tiles.cu"
_LANES = 4
#: Vectors that a lane gathers at a time from one column, by kind of element: it gathers one column of float32, two of 16-bit floats.
_STEPS = (4, 2, 2)
#: Tiles multiplied at a time, warps that share the rows of x, and blocks that share a multiprocessor.
TUNED = {"BS_JOIN": 2, "BS_TEAM": 4, "BS_BLOCKS": 4}
#: Bytes of shared memory for rows of x up to which several blocks fit on a multiprocessor; what a block may take of it on every GPU.
_WELCOME, _MOST_SHARED = 72 << 10, 99 << 10
#: The most results of a row that each warp holds in shared memory, with those that keep rows in different banks.
_HELD = 36

DotTilesParams = jit.struct(_SOURCE, "DotTilesParams")


#: Bytes of a row from which tiles pay, since a window's rows of x have to be loaded before any product, however short they are. On an H100,
#: with 64 columns of float32, COLLAB and ss_pkustk04 took 255 and 61 us, and without tiles, in windows, 384 and 80 us. Shorter rows of
#: 16-bit floats have not been timed since.
LEAST_BYTES = {"float32": 256, "float16": 512, "bfloat16": 512}


def constants(dtype: str, height: int, vectors: int, precision: str = "tf32") -> dict[str, int]:
    """The constants of ``edges/sddmm_tiles.cu`` for rows whose part for one head is `vectors` vectors of 16 bytes.

    Examples
    --------
    >>> found = constants("float32", 32, 32)
    >>> found["BS_M"], found["BS_STEPS"], found["BS_BLOCKS"], "BS_FULL" in found
    (2, 4, 4, True)
    """
    kind = element_type(dtype)
    steps = min(_STEPS[kind], -(-vectors // _LANES))
    found = {"BS_TYPE": kind, "BS_M": height // 16, "BS_STEPS": steps} | TUNED
    found["BS_SPLIT"] = int(precision == "3xtf32" and kind == 0)
    return found | jit.flags(full=vectors % (steps * _LANES) == 0)


def shared_bytes(dtype: str, height: int, vectors: int) -> int:
    """Bytes of shared memory of a block, which holds the rows of x of its window.

    Examples
    --------
    >>> shared_bytes("float32", 32, 32), shared_bytes("float16", 16, 5)
    (16384, 2048)
    """
    steps = constants(dtype, height, vectors)["BS_STEPS"]
    return -(-vectors // (_LANES * steps)) * steps * _LANES * 16 * height


def held_bytes(dtype: str, height: int) -> int:
    """The most bytes of shared memory that a block needs besides: results, and counts of edges.

    Examples
    --------
    >>> held_bytes("float32", 32), held_bytes("float16", 16)
    (18944, 4864)
    """
    return TUNED["BS_TEAM"] * height * (_HELD * _BYTES[dtype] + 4)


def heights(op: str, dtype: str, columns: int, heads: int, cols: int) -> tuple[int, ...]:
    """Heights of the windows in which tiles can compute products of `columns` elements, all heads together, for a pattern of `cols`.

    Windows of 32 rows are among them only if their rows of x leave room for several blocks on a multiprocessor.

    Examples
    --------
    >>> heights("dot", "float32", 128, 1, 9), heights("dot", "float32", 256, 1, 9), heights("dot", "float32", 30, 1, 9)
    ((16, 32), (16, 32), ())
    """
    part = columns // heads * _BYTES.get(dtype, 0)
    if op != "dot" or part % 16 or not part or cols > 1 << 32:
        return ()
    if shared_bytes(dtype, 16, part // 16) + held_bytes(dtype, 16) > _MOST_SHARED:
        return ()
    return (16, 32) if shared_bytes(dtype, 32, part // 16) <= _WELCOME else (16,)


def taken(possible: Collection[int], dtype: str, row_bytes: int, estimates: Iterable[Estimate]) -> int:
    """The height of windows to take, or 0 for another kernel, given the estimates of the kernels of the sparse product, quickest first.

    That product gathers the same rows of `row_bytes` bytes, so its estimates serve here too. Tiles are taken if they are estimated to be
    quicker than one edge at a time. Windows of 8 rows on the CUDA cores are skipped: on an H100 dot products in them took longer in 20 of
    21 cells, and as long in the last (``benchmarks/fit/run.py edges --only dots``).

    Examples
    --------
    >>> estimates = [Estimate("windows", 8, 1.5), Estimate("tiles", 32, 2.0), Estimate("tiles", 16, 3.0), Estimate("csr", 0, 4.0)]
    >>> taken((16,), "float32", 256, estimates), taken((16,), "float16", 256, estimates)
    (16, 0)
    """
    for found in estimates if row_bytes >= LEAST_BYTES[dtype] else ():
        if found.kernel == "csr":
            return 0
        if found.height in possible:
            return found.height
    return 0


class DotTiles(EdgeCalls):
    """Dot products of features of one width over condensed windows: each column of a window is gathered once for all of its rows.

    Parameters
    ----------
    windows : Windows
        Windows of a canonical pattern with edges, in groups of 8 columns for float32 and of 16 for 16-bit floats.
    dtype : float32, float16 or bfloat16
        Dtype of features and results.
    columns : int
        Columns of the features, all heads together; the part of each head is a multiple of 16 bytes (see :func:`heights`), and rows are
        aligned to 16 bytes.
    heads : int
    precision : "tf32" or "3xtf32"

    Notes
    -----
    Sums are held in float32; the same input gives the same bits in every run. Let s be the sum of ``|x| |y|`` over the D elements. Then a
    product is within ``(1.3e-3 + D 2^-22) s`` of the exact one for "tf32", within ``(2^-20 + D 2^-22) s`` for "3xtf32", and, for 16-bit
    features, within ``D 2^-22 s`` before it is rounded. A product that is not finite is computed again in float32.
    """

    def __init__(self, windows: Windows, *, dtype: str, columns: int, heads: int = 1, precision: str = "tf32") -> None:
        item = _BYTES[dtype]
        vectors = columns // heads * item // 16
        defines = constants(dtype, windows.height, vectors, precision)
        rounds = -(-vectors // (_LANES * defines["BS_STEPS"]))
        params = DotTilesParams(
            rows=windows.shape[0], row_bytes=columns * item, vectors=vectors, rounds=rounds, heads=heads
        )
        row_offsets = windows.row_offsets()
        jit.filled(params, cols=windows.cols, bits=windows.bits, row_offsets=row_offsets, pieces=windows.pieces)
        params.piece_count = windows.count
        kernel, grid = jit.kernel(_SOURCE, "sddmm_tiles", defines), (windows.count, heads, 1)
        shared = shared_bytes(dtype, windows.height, vectors)
        super().__init__(kernel.launch(grid, 32 * TUNED["BS_TEAM"], params, shared=shared), windows, row_offsets)


def _variants() -> list[jit.Variant]:
    """Variants for 128 columns of every dtype in windows of 16 and 32 rows, and for 16 and 20 columns of float32, 32 and 40 of float16."""
    found = [constants(dtype, height, 32 if dtype == "float32" else 16) for dtype in _BYTES for height in (16, 32)]
    found += [constants("float32", height, 32, "3xtf32") for height in (16, 32)]
    found += [constants(dtype, 16, vectors) for dtype in ("float32", "float16") for vectors in (4, 5)]
    return jit.variants_of(_SOURCE, "sddmm_tiles", found)


VARIANTS = _variants()

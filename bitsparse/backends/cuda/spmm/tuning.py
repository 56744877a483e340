"""What may be chosen about sparse products on the CUDA cores, and what is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse._records import replace

__all__ = ["EDGES", "GENERAL", "NONE", "SIXTEEN", "Tuning", "fitted", "tuning_of", "value_dtype_of"]

SIXTEEN = ("float16", "bfloat16")
#: Weights of edges, as BS_WEIGHTS has them.
NONE, EDGES, GENERAL = range(3)
#: Threads of a block at most.
THREADS = 128


class Tuning(NamedTuple):
    """What may be chosen about a product; every choice gives the same sums but for the pieces of long rows.

    Attributes
    ----------
    bytes : int
        A lane loads so many at once: 16, 8, 4, 2 or 1. Rows and addresses must be multiples.
    lanes : int
        Of a group, which walks a stream: a power of two up to 32.
    vectors : int
        Of a lane: a slice of the columns has ``vectors * lanes`` vectors.
    unroll : int
        Edges in flight, a multiple of 4.
    blocks : int or None
        Blocks of 128 threads that a multiprocessor must hold, which bounds the registers; None for as many as can be.
    threads : int
        Of a block, 32 to 128.
    span, limit, longest : int or None
        Edges and rows of a stream, edges of a row from which a warp takes it, edges of a piece of a long row (a multiple of 4); None for
        what suits the pattern.
    """

    bytes: int
    lanes: int
    vectors: int = 1
    unroll: int = 8
    blocks: int | None = None
    threads: int = THREADS
    span: int | None = None
    longest: int | None = None
    limit: int | None = None


def _lanes_of(vectors: int) -> int:
    """Lanes of a group for rows of so many vectors: as many as there are, unless a quarter of them would have nothing to do.

    Examples
    --------
    >>> [_lanes_of(n) for n in (1, 4, 16, 25, 32, 33, 40, 64)]
    [1, 4, 16, 32, 32, 8, 16, 32]
    """
    lanes = min(32, 1 << (vectors - 1).bit_length())
    while lanes > 8 and vectors > 32 and -(-vectors // lanes) * lanes * 3 > vectors * 4:
        lanes //= 2
    return lanes


def tuning_of(columns: int, itemsize: int, alignment: int, acc_itemsize: int, head_width: int | None = None) -> Tuning:
    """The tuning for rows of `columns` elements whose addresses are multiples of `alignment`.

    With `head_width` no vector may reach into two heads, as their weights differ.

    Examples
    --------
    >>> tuning_of(128, 4, 16, 4).lanes, tuning_of(100, 2, 16, 4), tuning_of(3, 4, 16, 4).bytes
    (32, Tuning(bytes=8, lanes=32, vectors=1, unroll=8, blocks=None, threads=128, span=None, longest=None, limit=None), 4)
    """
    width = 16
    while (
        columns * itemsize % width
        or alignment % width
        or width // itemsize * acc_itemsize > 32
        or (head_width is not None and head_width * itemsize % width)
    ) and width > itemsize:
        width //= 2
    return Tuning(width, _lanes_of(columns * itemsize // width))


def fitted(tuning: Tuning, kind: int, share: float, halves: bool = False, sixteen: bool = False) -> Tuning:
    """What an H200 was quickest with: small blocks, and few edges in flight where groups are narrow and there is work for all warps.

    Parameters
    ----------
    kind : int
        Of the weights.
    share : float
        Edges for each warp.
    halves, sixteen : bool
        Features have 16 bits; so have the values.

    Examples
    --------
    >>> [fitted(Tuning(16, lanes), EDGES, share).unroll for lanes, share in ((4, 24), (4, 443), (8, 443))]
    [8, 4, 8]
    >>> fitted(Tuning(16, 2), EDGES, 133, True, True)[:4], fitted(Tuning(16, 16), EDGES, 443, True, True)[:4]
    ((8, 4, 1, 4), (16, 16, 1, 4))
    """
    tuning = replace(tuning, threads=64)
    if halves and tuning[:2] == (16, 2) and not (sixteen and share >= 200):
        tuning = replace(tuning, bytes=8, lanes=4)  # fewer groups in a warp, whose rows end at different edges
    most = 16 if sixteen and share < 2000 else 4
    if kind != NONE and (tuning.lanes <= 2 or (tuning.lanes <= most and share >= 64)):
        tuning = replace(tuning, unroll=4)
    return tuning


def value_dtype_of(values: Any, features: Any, dimensions: int = 1) -> Any:
    """What values are brought in, or None for the dtype of the sums: those of features of 16 bits are taken as they are.

    Examples
    --------
    >>> value_dtype_of(np.float16, np.float16), value_dtype_of(np.float32, np.float16)
    (dtype('float16'), None)
    """
    same = np.dtype(values) == np.dtype(features) and dimensions == 1
    return np.dtype(values) if same and np.dtype(features).name in SIXTEEN else None

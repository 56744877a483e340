"""The order in which pairs of planes are multiplied, and the tables of it that the kernels read."""

from __future__ import annotations

import ctypes
from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np

from bitsparse import jit

__all__ = ["BLOCK_BYTES", "BLOCK_WORDS", "passes_of", "put_passes", "runs_of", "wide_passes_of"]

#: Contraction bytes, and so words, of one stage: one block of the contraction axis.
BLOCK_BYTES, BLOCK_WORDS = 128, 32
#: Bits that the registers beside the accumulators hold.
_MOVED_BITS = 32


@lru_cache(maxsize=512)
def passes_of(
    a_planes: int,
    b_planes: int,
    qb: int,
    blocks: int,
    step: int,
    a_negative: bool,
    b_negative: bool,
    weight: int,
    wide: bool,
) -> Any:
    """The table of passes, heaviest first (see ``struct Pass``), as an int32 array of 16 columns.

    With ``wide`` (an int64 result of ``matmul/mma.cu``) every pass is flushed, so its sums must stay below 2**32: bytes are cut along the
    contraction axis.
    """
    order = sorted(
        ((p, q) for p in range(a_planes) for q in range(0, b_planes, qb)), key=lambda pq: pq[0] + pq[1], reverse=True
    )

    def sign(p: int, q: int) -> int:
        return (-1 if a_negative and p == a_planes - 1 else 1) * (-1 if b_negative and q == b_planes - 1 else 1)

    rows = []
    longest = 512 if wide and step == 8 else blocks
    previous: tuple[int, int] | None = None
    for p, q in order:
        ratios, weights = [], []
        for j in range(4):
            s = sign(p, q + j)
            weights.append(_wrap(s * weight << step * (p + q + j)))
            if previous is None:
                ratios.append(1)
            else:
                drop = step * (previous[0] + previous[1] - p - q)
                ratios.append(_wrap(sign(previous[0], previous[1] + j) * s << drop))
        previous = (p, q)
        if wide:
            shift = step * (p + q) + weight.bit_length() - 1
            weights[0] = shift | (64 if sign(p, q) < 0 else 0)
        rows += [
            (p, q, k0, min(blocks, k0 + longest), *ratios, *weights, 0, 0, 0, 0)
            for k0 in range(0, max(blocks, 1), longest)
        ]
    return np.array(rows, np.int32)


def _wrap(value: int) -> int:
    """``value`` modulo 2**32 as a signed number."""
    return (value + 2**31) % 2**32 - 2**31


def _pairs(a_planes: int, b_planes: int, pa: int, qb: int) -> list[tuple[int, int]]:
    """First planes of the passes of an int64 result, lightest first."""
    return sorted(((p, q) for p in range(0, a_planes, pa) for q in range(0, b_planes, qb)), key=sum)


def _longest(pairs: list[tuple[int, int]], step: int, carries: bool) -> int:
    """Blocks of the contraction axis that may be added up in signed 32 bits, with what passes leave to the next ones."""
    together = max(Counter(map(sum, pairs)).values()) if carries else 1
    largest = together * ((1 << step) - 1) ** 2
    # A pass starts from less than 2**-step of what the one before it ends with: a geometric series.
    elements = ((1 << 31) - (1 << 16)) * ((1 << step) - 1) // (largest << step)
    return max(1, elements * step // (8 * BLOCK_BYTES))


def _runs(pairs: list[tuple[int, int]], step: int, carries: bool) -> list[list[tuple[int, int]]]:
    """Passes whose sums reach the result together."""
    runs: list[list[tuple[int, int]]] = []
    for pair in pairs:
        if runs and carries and step * (sum(pair) - sum(runs[-1][0])) <= _MOVED_BITS:
            runs[-1].append(pair)
        else:
            runs.append([pair])
    return runs


@lru_cache(maxsize=4096)
def runs_of(a_planes: int, b_planes: int, pa: int, qb: int, blocks: int, step: int, carries: bool) -> int:
    """How often the elements of an int64 result are written.

    Examples
    --------
    >>> runs_of(2, 2, 1, 1, 32, 8, True), runs_of(2, 2, 2, 2, 32, 8, False), runs_of(4, 1, 2, 1, 32, 8, False)
    (1, 1, 2)
    """
    pairs = _pairs(a_planes, b_planes, pa, qb)
    return len(_runs(pairs, step, carries)) * -(-max(blocks, 1) // _longest(pairs, step, carries))


@lru_cache(maxsize=512)
def wide_passes_of(
    a_planes: int,
    b_planes: int,
    pa: int,
    qb: int,
    blocks: int,
    step: int,
    a_negative: bool,
    b_negative: bool,
    weight: int,
    carries: bool,
) -> Any:
    """The table of passes of an int64 result, lightest first (see ``struct WidePass``), as an int32 array of 16 columns.

    ``weight`` is a power of two. With ``carries`` the kernel goes on from one weight to the next in its registers; else every pass is
    added to the result.
    """
    pairs = _pairs(a_planes, b_planes, pa, qb)
    longest = _longest(pairs, step, carries)

    def signs(p: int, q: int) -> int:
        negative = (
            4 * i + j
            for i in range(pa)
            for j in range(qb)
            if (a_negative and p + i == a_planes - 1) != (b_negative and q + j == b_planes - 1)
        )
        return sum(1 << bit for bit in negative)

    rows = []
    for k0 in range(0, max(blocks, 1), longest):
        k1 = min(blocks, k0 + longest)
        for run in _runs(pairs, step, carries):
            base = sum(run[0])
            before = run[0]
            for i, (p, q) in enumerate(run):
                opens, closes = int(i == 0), int(i == len(run) - 1)
                done, span = step * (sum(before) - base), step * (p + q - base)
                drop = span - done
                shift = step * base + weight.bit_length() - 1
                done = done if drop else 0
                kinds = (opens, closes, drop, done, signs(*before), signs(p, q), shift, span)
                rows.append((p, q, k0, k1, *kinds, 0, 0, 0, 0))
                before = (p, q)
    return np.array(rows, np.int32)


def put_passes(params: ctypes.Structure, table: Any) -> Any:
    """Write a table of passes into a product's parameters where they have room, else to the device; gives the array to be kept."""
    params.n_passes = len(table)
    if len(table) <= len(params.inline_passes):
        ctypes.memmove(params.inline_passes, table.ctypes.data, table.nbytes)
        return None
    kept = jit.require_cupy("matmul").asarray(table)
    params.passes = kept.data.ptr
    return kept

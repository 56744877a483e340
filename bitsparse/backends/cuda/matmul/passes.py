"""What the kernels of products share: operands, and the tables of passes, the order in which pairs of planes are multiplied."""

from __future__ import annotations

import ctypes
from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bitsparse.backends.cuda.bits.words import coarse_bitmap
from bitsparse.backends.cuda.finish.epilogue import DeviceEpilogue
from bitsparse.backends.cuda.tables import on_device

#: Bytes and words of one block of the contraction axis, which a stage holds.
BLOCK_BYTES, BLOCK_WORDS = 128, 32
#: Finished bits that the registers beside the accumulators can hold.
_MOVED_BITS = 32


class Operand(NamedTuple):
    """One packed operand (batches, outer, planes, words) and what its planes mean.

    The integer of a code is ``weight * (sum of 2**shift[p] * plane p) + constant``; the last plane is negative if ``negative_top``.
    """

    words: Any
    outer: int
    planes: int
    batches: int
    step: int  # bits of one plane: 1, or 8 for bytes
    weight: int = 1
    constant: int = 0
    negative_top: bool = False


class Sizes(NamedTuple):
    """The sizes of a product."""

    m: int
    n: int
    blocks: int  # blocks of 128 bytes of the contraction axis
    a_planes: int
    b_planes: int
    batches: int
    row_bytes: int = 0  # bytes of a plane of a row, or of a row stored in bytes; 0: whole blocks

    @property
    def short_bytes(self) -> int:
        """Bytes of a row in memory, without padding to whole blocks."""
        return self.row_bytes or self.blocks * BLOCK_BYTES


#: Whether the last plane of `a` and of `b` is negative, and the power of two by which every product is weighted.
Signs = tuple[bool, bool, int]


class Multiplication(NamedTuple):
    """The product that a kernel is prepared for."""

    a: Operand
    b: Operand  # without words, which calls pass
    batches: int
    batch_indices: Any  # the batch of each operand for every batch of the result, or None
    bitmap: Any  # zero tiles of `a`, or None
    is_wide: bool  # an int64 result
    epilogue: DeviceEpilogue | None

    @property
    def sizes(self) -> Sizes:
        """The sizes of the product."""
        a, b, blocks = self.a, self.b, -(-int(self.a.words.shape[-1]) // BLOCK_WORDS)
        return Sizes(a.outer, b.outer, blocks, a.planes, b.planes, self.batches, 4 * int(self.a.words.shape[-1]))

    @property
    def signs(self) -> Signs:
        """The signs and the weight of the products of planes."""
        return self.a.negative_top, self.b.negative_top, self.a.weight * self.b.weight


@lru_cache(maxsize=64)
def batch_indices(a_batch: tuple[int, ...], b_batch: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
    """The broadcast batch shape, and the batch of each operand for every batch of the result; ``None`` if they are all the same."""
    shape = np.broadcast_shapes(a_batch, b_batch)
    a_count, b_count = int(np.prod(a_batch, dtype=np.int64)), int(np.prod(b_batch, dtype=np.int64))
    count = int(np.prod(shape, dtype=np.int64))
    if a_count == b_count == count:
        return shape, None
    each = [
        np.broadcast_to(np.arange(size, dtype=np.int32).reshape(batch), shape).ravel()
        for size, batch in ((a_count, a_batch), (b_count, b_batch))
    ]
    return shape, np.stack(each, axis=-1)


def left_out(bits: int, encoding: str, digits: bool) -> int:
    """The constant of every integer that kernels leave out, since they add only weighted planes or unsigned bytes."""
    if encoding == "bipolar":
        return -1
    return -(1 << (bits - 1)) if digits and encoding == "signed" else 0


def signed_bytes(a: tuple[int, str], b: tuple[int, str]) -> int:
    """Which operands are multiplied as signed bytes: 1 for the left one plus 2 for the right one.

    These are signed integers of up to eight bits. If one operand is signed, an unsigned one that fits is also multiplied as signed bytes,
    so that there are fewer kinds of kernels.

    Examples
    --------
    >>> [signed_bytes((8, "signed"), b) for b in ((7, "unsigned"), (8, "unsigned"), (8, "signed"))]
    [3, 1, 3]
    >>> signed_bytes((7, "unsigned"), (7, "unsigned")), signed_bytes((12, "signed"), (3, "signed"))
    (0, 2)
    """
    kinds = (a, b)
    signed = [bits <= 8 and encoding == "signed" for bits, encoding in kinds]
    fits = [one or bits <= 7 for one, (bits, _) in zip(signed, kinds, strict=True)]
    return (3 if all(fits) else signed[0] + 2 * signed[1]) if any(signed) else 0


@lru_cache(maxsize=512)
def passes_of(a_planes: int, b_planes: int, qb: int, blocks: int, step: int, signs: Signs, wide: bool) -> Any:
    """The table of passes, heaviest first (see ``struct Pass``), as an int32 array of 16 columns.

    With ``wide`` (an int64 result of ``matmul/mma.cu``), every pass is added to the result in memory. Its sums must stay below 2**32, so
    passes of bytes are cut along the contraction axis.
    """
    a_negative, b_negative, weight = signs
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
        for j in range(8):
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
            (p, q, k0, min(blocks, k0 + longest), *ratios[:4], *weights) for k0 in range(0, max(blocks, 1), longest)
        ]
    return np.array(rows, np.int32)


def _wrap(value: int) -> int:
    """``value`` modulo 2**32, as a signed number."""
    return (value + 2**31) % 2**32 - 2**31


def _pairs(a_planes: int, b_planes: int, pa: int, qb: int) -> list[tuple[int, int]]:
    """The first planes of each pass of an int64 result, lightest pass first."""
    return sorted(((p, q) for p in range(0, a_planes, pa) for q in range(0, b_planes, qb)), key=sum)


def _longest(pairs: list[tuple[int, int]], step: int, carries: bool) -> int:
    """The most blocks of the contraction axis whose sums fit signed 32 bits, including what passes carry to the next ones."""
    together = max(Counter(map(sum, pairs)).values()) if carries else 1
    largest = together * ((1 << step) - 1) ** 2
    # A pass starts with less than 2**-step of the sums at the end of the previous pass: a geometric series.
    elements = ((1 << 31) - (1 << 16)) * ((1 << step) - 1) // (largest << step)
    return max(1, elements * step // (8 * BLOCK_BYTES))


def _runs(pairs: list[tuple[int, int]], step: int, carries: bool) -> list[list[tuple[int, int]]]:
    """Groups of passes whose sums are added to the result together."""
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
    a_planes: int, b_planes: int, pa: int, qb: int, blocks: int, step: int, signs: Signs, carries: bool
) -> Any:
    """The table of passes of an int64 result, lightest first (see ``struct WidePass``), as an int32 array of 16 columns.

    With ``carries``, the kernel continues from one weight to the next in its registers; else every pass is added to the result in memory.
    """
    a_negative, b_negative, weight = signs
    pairs = _pairs(a_planes, b_planes, pa, qb)
    longest = _longest(pairs, step, carries)

    def negatives(p: int, q: int) -> int:
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
                kinds = (opens, closes, drop, done, negatives(*before), negatives(p, q), shift, span)
                rows.append((p, q, k0, k1, *kinds, 0, 0, 0, 0))
                before = (p, q)
    return np.array(rows, np.int32)


def put_operands(params: ctypes.Structure, what: Multiplication, tile_rows: int, table: Any) -> list[Any]:
    """Fill the parameters that both kernels of products share; returns the arrays that must be kept alive.

    The table of passes is stored in the parameters if it fits, else on the device.
    """
    params.m, params.n, params.batches, params.n_passes = what.a.outer, what.b.outer, what.batches, len(table)
    mask = passes = None
    if len(table) <= len(params.inline_passes):
        ctypes.memmove(params.inline_passes, table.ctypes.data, table.nbytes)
    else:
        passes = on_device("matmul", table)
        params.passes = passes.data.ptr
    if what.bitmap is not None:
        mask = coarse_bitmap(what.bitmap, what.a.outer, what.sizes.blocks, tile_rows)
        params.blocks, params.block_words = mask.data.ptr, mask.shape[-1]
    if what.batch_indices is not None:
        params.batch_indices = what.batch_indices.data.ptr
    return [what.a.words, what.batch_indices, mask, passes]

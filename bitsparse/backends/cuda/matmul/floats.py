"""Products of tall matrices of float32 with small ones on matrix units: layers' products, and their gradients by the weights."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from bitsparse import jit
from bitsparse.backends.cuda.chips import FloatProducts, chip_of
from bitsparse.jit import cupy

_SOURCE, _OVER_ROWS, _ENDS = "matmul/floats.cu", "matmul/floats_over_rows.cu", "matmul/floats_ends.cu"
#: The architecture whose warpgroups multiply TF32 with the first factor in registers.
ARCH = "sm_90a"
_THREADS = 256
#: Rows of a tile of a product; words of 16 of them in a stage; columns of x, or rows of a product over rows, in a stage.
_ROWS, _RING_WORDS, _DEPTH = 128, 16 * 40, 32
#: The most columns of a tile, and rows of a tile of a product over rows for each warpgroup that has its own.
_WIDEST, _HALF = 128, 64
#: Stages of the ring, and the bytes of shared memory that a block may take, after those that align it.
_STAGES, _ALIGNED, _SHARED = 4, 1024, (227 << 10) - 1024
#: What is added to a product: nothing, a bias, or what the result's memory holds.
_NOTHING, _BIAS, _RESULT = 0, 1, 2

Factors = jit.struct(_SOURCE, "Factors")
FloatsParams = jit.struct(_SOURCE, "FloatsParams")
FloatsOverRowsParams = jit.struct(_OVER_ROWS, "FloatsOverRowsParams")
SmallMatrix = jit.struct(_ENDS, "SmallMatrix")
SplitWeightsParams = jit.struct(_ENDS, "SplitWeightsParams")
AddPiecesParams = jit.struct(_ENDS, "AddPiecesParams")


def is_quicker(rows: int, depth: int, columns: int, device: int | None = None) -> bool:
    """Whether :func:`product` is quicker than cuBLAS on a GPU, by default the current one."""
    gpu = jit.capability(device)
    return gpu.arch == ARCH and wins(chip_of(gpu).float_products, rows, depth, columns)


def is_quicker_over_rows(rows: int, m: int, n: int, device: int | None = None) -> bool:
    """Whether :func:`product_over_rows`, in the better order, is quicker than cuBLAS on a GPU, by default the current one."""
    gpu = jit.capability(device)
    return gpu.arch == ARCH and wins_over_rows(chip_of(gpu).float_products, rows, m, n)


def wins(limits: FloatProducts, rows: int, depth: int, columns: int) -> bool:
    """Whether the product is within the limits of what is quicker than cuBLAS.

    Examples
    --------
    >>> wins(FloatProducts(), 232_965, 602, 128), wins(FloatProducts(), 232_965, 602, 32), wins(FloatProducts(), 1000, 100, 128)
    (True, False, False)
    """
    enough = rows >= limits.least_rows and rows * depth * columns >= limits.least_steps
    return enough and (columns > limits.narrow or depth <= limits.shallow)


def wins_over_rows(limits: FloatProducts, rows: int, m: int, n: int) -> bool:
    """The same for a product over rows.

    Examples
    --------
    >>> [wins_over_rows(FloatProducts(), 232_965, *sizes) for sizes in ((128, 41), (41, 128), (32, 16))]
    [True, True, False]
    """
    return rows >= limits.least_rows and max(m, n) > limits.over_rows_narrow


def is_better_exchanged(m: int, n: int) -> bool:
    """Whether a product over rows is better computed as ``b.T @ a``: its tiles are smaller, or as large with a wider first factor.

    Examples
    --------
    >>> is_better_exchanged(47, 128), is_better_exchanged(128, 47), is_better_exchanged(188, 128)
    (True, False, True)
    """
    own, other = over_rows_tiling(m, n).area, over_rows_tiling(n, m).area
    return other < own or (other == own and n > m)


def product(
    x: Any,
    weight: Any,
    out: Any,
    bias: Any = None,
    *,
    added: bool = False,
    scale: Any = None,
    relu: bool = False,
    second: tuple[Any, Any] | None = None,
) -> None:
    """Write ``x @ weight.T``, plus a bias or, with `added`, plus what `out` holds, into `out`.

    Parameters
    ----------
    x, out : cupy.ndarray of float32 (rows, depth) and (rows, columns)
        The elements of a row lie next to each other; rows may be further apart than that.
    weight : cupy.ndarray of float32 (columns, depth)
        With any strides.
    bias : cupy.ndarray of float32 (columns,), optional
    added : bool
    scale : cupy.ndarray of float32 (rows,), optional
        C-contiguous. Each row of the product is multiplied by its number before anything is added to it.
    relu : bool
        Write 0 in place of results that are not positive, in the end. No number (NaN) stays one.
    second : (cupy.ndarray, cupy.ndarray) of float32 (rows, depth2) and (columns, depth2), optional
        A second `x` and `weight`, whose product is added to the first one before it is scaled.

    Notes
    -----
    Let s be the sum of ``|x| |weight|`` over the `depth` elements. A product is within ``(2^-20 + depth 2^-24) s`` of the exact one, where
    `depth` and s are those of both products if there are two. Scaling and adding round it once each. The same input gives the same bits in
    every run.
    """
    both = [part for part in ((x, weight), *((second,) if second else ())) if part[0].shape[1]]
    (rows, columns), relu = out.shape, bool(relu)
    if not (rows and columns and both):
        if not added:
            out[...] = 0 if bias is None else bias
        if relu:
            cupy.maximum(out, 0, out=out)
        return
    factors = [Factors(x=one.data.ptr, pitch=_pitch(one), weights=_weights(other)) for one, other in both]
    at = -(-both[0][0].shape[1] // 4) * 4
    first, other = (*factors, Factors())[:2]
    tiles = tiling(columns, at + other.weights.depth)
    parts = _split(first.weights, other.weights, at, columns, tiles)
    params = FloatsParams(first=first, second=other, second_at=at, rows=rows, columns=columns, relu=relu)
    jit.filled(params, parts=parts, scale=scale, bias=bias, out=out, out_pitch=_pitch(out))
    behind = _RESULT if added else _NOTHING if bias is None else _BIAS
    kernel = jit.kernel(_SOURCE, "float_products", constants(tiles, all(_is_whole(one) for one, _ in both), behind))
    blocks = max(1, min(-(-rows // _ROWS), jit.capability().multiprocessors // tiles.across))
    kernel.run((blocks, tiles.across, 1), _THREADS, params, shared=tiles.shared)


class Tiling(NamedTuple):
    """Tiles across the result of a product, their sixteens of columns, whether weights stay in shared memory, and bytes of it."""

    across: int
    sixteens: int
    resident: bool
    shared: int


@functools.lru_cache(maxsize=256)
def tiling(columns: int, depth: int) -> Tiling:
    """The tiling of a product of `depth` columns of x, or of two, with `columns` rows of weights.

    Examples
    --------
    >>> tiling(128, 100)[:3], tiling(188, 128)[:3], tiling(128, 602)[:3], tiling(128, 100 + 100)[:3]
    ((1, 8, True), (2, 6, True), (1, 8, False), (1, 8, False))
    """
    count = -(-columns // _WIDEST)
    sixteens = -(-columns // (16 * count))
    stage, rings = 2 * 16 * sixteens * _DEPTH * 4, _THREADS // 32 * _STAGES * _RING_WORDS * 4
    weights = -(-depth // _DEPTH) * stage
    resident = weights + rings <= _SHARED
    return Tiling(count, sixteens, resident, _ALIGNED + rings + (weights if resident else _STAGES * stage))


def constants(tiles: Tiling, whole: bool, behind: int) -> dict[str, int]:
    """The constants of ``float_products``; `whole` if all rows begin at multiples of 16 bytes."""
    found = {"BS_SIXTEENS": tiles.sixteens, "BS_STAGES": _STAGES, "BS_WHOLE": int(whole), "BS_BEHIND": behind}
    return found | jit.flags(resident=tiles.resident)


def _weights(weight: Any) -> Any:
    across, along = (stride // 4 for stride in weight.strides)
    return SmallMatrix(w=weight.data.ptr, across=across, along=along, depth=weight.shape[1])


def _split(first: Any, second: Any, second_at: int, columns: int, tiles: Tiling) -> Any:
    """The parts of the weights of both products as ``float_products`` takes them."""
    width, stages = 16 * tiles.sixteens, -(-(second_at + second.depth) // _DEPTH)
    count = tiles.across * stages * width * (_DEPTH // 4)
    parts = cupy.empty(8 * count, "uint32")
    params = SplitWeightsParams(first=first, second=second, second_at=second_at, columns=columns, stages=stages)
    jit.filled(params, parts=parts, width=width, count=count)
    jit.kernel(_ENDS, "split_weights").run(-(-count // _THREADS), _THREADS, params)
    return parts


def _pitch(x: Any) -> int:
    return int(x.strides[0]) // 4 if x.shape[0] > 1 else int(x.shape[1])


def _is_whole(x: Any) -> bool:
    """Whether all rows begin at multiples of 16 bytes."""
    return x.data.ptr % 16 == 0 and _pitch(x) % 4 == 0


def product_over_rows(a: Any, b: Any, out: Any, sums: Any = None, mask: Any = None) -> None:
    """Write ``a.T @ b`` into `out`, and the sums of the columns of `a` into `sums` if given.

    Parameters
    ----------
    a, b : cupy.ndarray of float32 (rows, m) and (rows, n)
        The elements of a row lie next to each other.
    out, sums : cupy.ndarray of float32 (m, n) and (m,)
        C-contiguous.
    mask : cupy.ndarray of float32 (rows, m), optional
        Elements of `a` count as 0 where those of `mask` are 0 or less, whatever they are: `a` is the gradient of relu's result, and `mask`
        that result. Only `a` has a mask, so such a product cannot be exchanged (see :func:`is_better_exchanged`). That loses
        nothing where m is 64 or 128 and n is at most 128.

    Notes
    -----
    The bound is that of :func:`product` for up to 2^15 rows for each multiprocessor. The same input gives the same bits in every run on
    GPUs with as many multiprocessors.
    """
    (rows, m), n = a.shape, b.shape[1]
    if not (rows and m and n):
        out.fill(0)
        if sums is not None:
            (a if mask is None else cupy.where(mask <= 0, cupy.float32(0), a)).sum(axis=0, out=sums)
        return
    tiles = over_rows_tiling(m, n, mask is not None)
    each = max(1, jit.capability().multiprocessors // (tiles.along * tiles.across))
    piece = -(-rows // (each * _DEPTH)) * _DEPTH
    pieces, columns = -(-rows // piece), n + (sums is not None)
    count = pieces * tiles.groups
    partial = cupy.empty(count * m * columns, "float32")
    params = FloatsOverRowsParams(rows=rows, piece=piece, m=m, n=n, a_pitch=_pitch(a), b_pitch=_pitch(b))
    jit.filled(params, a=a, b=b, mask=mask, mask_pitch=0 if mask is None else _pitch(mask), pieces=partial)
    whole = _is_whole(a) and (mask is None or _is_whole(mask))
    how = over_rows_constants(tiles, whole, _is_whole(b), sums is not None)
    kernel = jit.kernel(_OVER_ROWS, "floats_over_rows", how)
    kernel.run((pieces, tiles.along, tiles.across), _THREADS, params, shared=tiles.shared)
    together = jit.filled(AddPiecesParams(rows=m, columns=n, count=count), pieces=partial, out=out, sums=sums)
    jit.kernel(_ENDS, "add_pieces").run(-(-m * columns // 32), _THREADS, together)


class OverRowsTiling(NamedTuple):
    """Tiles of a product over rows along and across the result, halves of 64 rows of a tile, its sixteens of columns, and its mask."""

    along: int
    across: int
    halves: int
    sixteens: int
    masked: bool

    @property
    def groups(self) -> int:
        """Warpgroups that take turns at the rows."""
        return 2 // self.halves

    @property
    def area(self) -> int:
        """Rows times columns of all tiles."""
        return self.along * _HALF * self.halves * self.across * 16 * self.sixteens

    @property
    def stages(self) -> int:
        """Stages of the ring, one less where they would not fit into shared memory."""
        return _STAGES - (self._bytes(_STAGES) > _ALIGNED + _SHARED)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: a ring of stages, and the turned columns of two stages."""
        return self._bytes(self.stages)

    def _bytes(self, stages: int) -> int:
        height, width = _HALF * self.halves, 16 * self.sixteens
        return _ALIGNED + 4 * _DEPTH * (stages * ((height + 4) * (1 + self.masked) + width) + 4 * width)


@functools.lru_cache(maxsize=256)
def over_rows_tiling(m: int, n: int, masked: bool = False) -> OverRowsTiling:
    """The tiling of a result of m by n.

    Examples
    --------
    >>> over_rows_tiling(128, 100)[:4], over_rows_tiling(47, 128)[:3]
    ((1, 1, 2, 7), (1, 1, 1))
    >>> over_rows_tiling(128, 100).stages, over_rows_tiling(128, 100, True).stages, over_rows_tiling(64, 100, True).stages
    (4, 3, 4)
    """
    halves, across = -(-m // _HALF), -(-n // _WIDEST)
    along = -(-halves // 2)
    return OverRowsTiling(along, across, -(-halves // along), -(-n // (16 * across)), masked)


def over_rows_constants(tiles: OverRowsTiling, whole_a: bool, whole_b: bool, sums: bool) -> dict[str, int]:
    """The constants of ``floats_over_rows``; `whole_a` and `whole_b` if all rows, also of the mask, begin at multiples of 16 bytes."""
    found = {"BS_HALVES": tiles.halves, "BS_SIXTEENS": tiles.sixteens, "BS_STAGES": tiles.stages}
    return found | {"BS_WHOLE_A": int(whole_a), "BS_WHOLE_B": int(whole_b)} | jit.flags(sums=sums, masked=tiles.masked)


def _variants() -> list[jit.Variant]:
    """Products of 100, 128 and 602 columns, or two times 100, with 128, 94, 47 and 16, as they lie and not, and their gradients."""
    hows = [tiling(columns, depth) for columns, depth in ((128, 100), (47, 128), (94, 128), (16, 602), (128, 602))]
    ends = ((True, _NOTHING), (True, _BIAS), (False, _RESULT))
    found = [constants(how, whole, behind) for how in hows for whole, behind in ends]
    over = [
        over_rows_constants(over_rows_tiling(m, n, masked), whole, True, whole)
        for m, n in ((128, 128), (128, 100), (47, 128), (16, 16))
        for whole in (True, False)
        for masked in (False, True)
    ]
    return [
        *(one for name in ("split_weights", "add_pieces") for one in jit.variants_of(_ENDS, name, only=ARCH)),
        *jit.variants_of(_SOURCE, "float_products", found, ARCH),
        *jit.variants_of(_OVER_ROWS, "floats_over_rows", over, ARCH),
    ]


VARIANTS = _variants()

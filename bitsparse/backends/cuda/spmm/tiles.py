"""Sparse times dense on the matrix units of the GPU, over condensed windows of rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.csr.schedule import Workspaces
from bitsparse.backends.cuda.csr.vectors import element_type, vector_bytes
from bitsparse.backends.cuda.spmm.tiles_build import Arranged, Windows
from bitsparse.backends.params import Translation
from bitsparse.jit import cupy

_SOURCE = "spmm/tiles.cu"
_ONES, _SCALES, _TILED, _CSR = range(4)
#: Warps of a block. Each takes its own pieces of windows, and they share nothing.
_WARPS = 4
#: Registers of a multiprocessor; the most per thread, with a reserve; and the number of blocks beyond which nothing is gained.
_REGISTERS, _MOST_REGISTERS, _MOST_BLOCKS = 65536, 248, 8

TilesParams = jit.struct("spmm/tiles.cuh", "TilesParams")


def registers_of(width: int, height: int, rows: int, stages: int, weights: int, scaled: bool) -> int:
    """The approximate number of registers of a thread; a lane holds `rows` rows of features at once (2, or 4 of 16-bit floats).

    Examples
    --------
    >>> registers_of(8, 16, 2, 3, 0, False), registers_of(8, 32, 4, 2, 2, True)
    (121, 217)
    """
    sums, windows = 4 * width * height // 16, height // 16
    stage = 2 * width + (5 if rows == 2 else 7) + (rows + 1 if scaled else 0)
    if weights >= _TILED:
        stage += (2 * rows + 1) * windows
    shared = 2 * width + 5 * (windows - 1) if windows > 1 else 0
    return 26 + sums + stages * stage + shared + (14 if weights >= _TILED else 0)


def constants(
    kind: int,
    height: int,
    head_width: int,
    vector: int,
    weights: int,
    precision: str = "tf32",
    scaled: bool = False,
    warps: int = _WARPS,
) -> dict[str, int]:
    """Compile-time constants of ``spmm/tiles.cu``.

    Examples
    --------
    >>> found = constants(0, 16, 64, 4, 0)
    >>> found["BS_WIDTH"], found["BS_STAGES"], found["BS_BLOCKS"]
    (8, 3, 4)
    """
    scaled = scaled or weights == _SCALES
    width = 2 if head_width < 32 else 4 if head_width < 64 else 8  # a warp computes 8 * width columns
    while True:
        # Tiles of features in flight: enough bytes in flight within the available registers.
        deep = 3 if weights >= _TILED or width * height > 64 or width > 2 else 4
        stages = 2 if width * height > 128 else deep
        registers = registers_of(width, height, 2 if kind == 0 else 4, stages, weights, scaled)
        if registers <= _MOST_REGISTERS or width == 2:
            break
        width //= 2
    blocks = _REGISTERS // (32 * warps * -(-registers // 8 * 8))
    found = {"BS_TYPE": kind, "BS_M": height // 16, "BS_WIDTH": width, "BS_VEC": min(vector, width)}
    found |= {
        "BS_WARPS": warps,
        "BS_WEIGHTS": weights,
        "BS_STAGES": stages,
        "BS_BLOCKS": max(1, min(_MOST_BLOCKS, blocks)),
    }
    split = precision == "3xtf32" and (kind == 0 or weights != _ONES)
    return found | {"BS_SCALED": int(scaled), "BS_SPLIT": int(split), "BS_NARROW": int(head_width < 8 * width)}


class _Prepared(NamedTuple):
    launches: tuple[jit.Launch, ...]
    partial: Workspaces  # sums of pieces of windows


class Tiles(Windows):
    """Condensed windows of a canonical CSR pattern, and products with them.

    The columns of a window of `height` rows are renumbered and cut into groups of `k`. A group is one step of the matrix unit, so each row
    of features is read once for all rows of a window that need it. This pays if the rows of windows share neighbours (:attr:`reuse`).

    Parameters
    ----------
    indptr, indices : cupy.ndarray of int32 or int64
        A valid canonical CSR pattern, which must not change.
    shape : tuple of int
    nnz : int
    height : int, default 16
        16, 32 or 64.
    k : int, default 8
        8 for float32 features, 16 for 16-bit ones.
    translation : Translation, optional
        Translation of the pattern. It is used if its windows have `height` rows; otherwise the pattern is translated here.
    warps : int, default 4
        Warps of a block, 1 to 32. No bits depend on it.

    Notes
    -----
    Sums are held in float32; the same input gives the same bits in every run. Let s be the sum of ``|a| |x|`` over a row's n edges. Then a
    sum is within ``(1.3e-3 + n 2^-22) s`` of the exact one for "tf32", ``(6.5e-4 + n 2^-22) s`` without weights, and ``(2^-20 + n 2^-22)
    s`` for "3xtf32". For 16-bit features, weights are rounded to the type of the features: the sum is within ``(2^-11 + n 2^-22) s``
    (float16, plus 2^-25 for each edge if weights are below 2^-14) or ``(2^-8 + n 2^-22) s`` (bfloat16) before the result is rounded;
    "3xtf32" keeps twice as many digits of weights. A row is affected by values that are not finite only if one of its neighbours has them.
    """

    def __init__(
        self,
        indptr: Any,
        indices: Any,
        shape: tuple[int, int],
        nnz: int,
        *,
        height: int = 16,
        k: int = 8,
        translation: Translation | None = None,
        warps: int = _WARPS,
    ) -> None:
        super().__init__(indptr, indices, shape, nnz, height=height, k=k, translation=translation)
        self._warps = warps
        self._prepared: dict[tuple[Any, ...], _Prepared] = {}
        self._stream = cupy.cuda.get_current_stream
        self._made = cupy.cuda.Event(disable_timing=True)  # recorded after all preparation
        self._made.record()

    def run(
        self,
        x: Any,
        values: Any = None,
        row_scale: Any = None,
        col_scale: Any = None,
        reduce: str = "sum",
        precision: str = "tf32",
        out: Any = None,
    ) -> Any:
        """Reduce rows of `x` over the edges of each row.

        The first call of a kind (width, dtype, present operands) compiles and allocates. Later calls allocate nothing but the result, and
        may be captured.

        Parameters
        ----------
        x : cupy.ndarray (cols, D) of float32, float16 or bfloat16, C-contiguous
        values : cupy.ndarray of float32 (nnz,) or (nnz, heads), or what :meth:`arrange` made of them, optional
            With several heads, the values of head h weight columns ``h D / heads`` to ``(h + 1) D / heads``.
        row_scale, col_scale : cupy.ndarray of float32, optional
        reduce : "sum" or "mean"
        precision : "tf32" or "3xtf32"
        out : cupy.ndarray (rows, D) of the dtype of `x`, optional
        """
        kind, arranged = element_type(x.dtype), isinstance(values, Arranged)
        heads = 1 if values is None else len(values.array) if arranged else 1 if values.ndim == 1 else values.shape[1]
        x = interop.contiguous(x)
        y = geometry.output("tiles", out, (self.shape[0], x.shape[1]), x.dtype, x.dtype.itemsize)
        if y.size == 0:
            return y
        weights = _TILED if arranged else _CSR if values is not None else _SCALES if col_scale is not None else _ONES
        item = x.dtype.itemsize
        vector = vector_bytes(x.shape[1] // heads * item, item, (x, y)) // item  # elements that are loaded together
        key = (x.shape[1], heads, kind, weights, vector, reduce, precision, col_scale is not None)
        factors = [_floats(one) for one in (values.array if arranged else values, row_scale, col_scale)]
        with self._lock:  # the launches' arguments are shared
            prepared = self._prepared.get(key)
            if prepared is None:
                prepared = self._prepared[key] = self._prepare(key)
            stream = self._stream().ptr
            room = prepared.partial.on(stream)  # held until the kernels are enqueued
            for launch in prepared.launches:
                params: Any = launch.params
                params.x, params.y, params.partial = x.data.ptr, y.data.ptr, room.partial.data.ptr
                params.values, params.row_scale, params.col_scale = (
                    None if one is None else one.data.ptr for one in factors
                )
                launch(stream)
        return y

    def _prepare(self, key: tuple[Any, ...]) -> _Prepared:
        columns, heads, kind, weights, vector, reduce, precision, scaled = key
        if not cupy.cuda.runtime.streamIsCapturing(self._stream().ptr):
            self._stream().wait_event(self._made)
        head_width = columns // heads
        defines = constants(kind, self.height, head_width, vector, weights, precision, scaled, self._warps)
        width, narrow = defines["BS_WIDTH"], bool(defines["BS_NARROW"])
        head_slices = 1 if narrow else -(-head_width // (8 * width))
        params = TilesParams(rows=self.shape[0], columns=columns, width=head_width, head_slices=head_slices)
        jit.filled(params, cols=self.cols, bits=self.bits, pieces=self.pieces, piece_count=self.count)
        params.row_bytes, params.slices = columns * (4 if kind == 0 else 2), head_slices * heads
        if reduce == "mean":
            params.counts = self.counts().data.ptr
        if weights == _TILED:
            jit.filled(params, offsets=self.offsets(), value_head=self.nnz, value_bytes=4)
        elif weights == _CSR:
            jit.filled(params, row_offsets=self.row_offsets(), value_head=1, value_bytes=4 * heads)
        kernel = jit.kernel(_SOURCE, "spmm_tiles", defines)
        launches = [kernel.launch(-(-self.count // self._warps) * params.slices, 32 * self._warps, params)]
        if self.slots:
            later = jit.filled(TilesParams.from_buffer_copy(params), pieces=self.splits)
            add = jit.kernel(_SOURCE, "add_slots", defines)
            launches.append(add.launch(self.splits.shape[0] * self.height, 128, later))
        prepared = _Prepared(tuple(launches), Workspaces(self.slots * self.height * columns, np.float32))
        if not cupy.cuda.runtime.streamIsCapturing(self._stream().ptr):
            self._made.record()
        return prepared


def _floats(array: Any) -> Any:
    return None if array is None else interop.contiguous(array.astype(np.float32, copy=False))


def _variants() -> list[jit.Variant]:
    """Variants for every kind of floats, windows of 16 and 32 rows, 64 columns per warp, and 16 columns; with and without weights."""
    found = [
        constants(kind, height, 64, 8 if kind else 4, weights)
        for kind in range(3)
        for weights in (_ONES, _TILED, _CSR)
        for height in (16, 32)
    ]
    found += [constants(kind, 16, 16, 8 if kind else 4, weights) for kind in range(3) for weights in (_ONES, _TILED)]
    return jit.variants_of(_SOURCE, "spmm_tiles", found)


VARIANTS = _variants()

"""Sparse times dense on the matrix units of the GPU, over condensed windows of rows."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.spmm.tiles_build import Arranged, TileStats, Windows
from bitsparse.backends.params import Translation
from bitsparse.errors import DTypeError, KernelError, ShapeError

__all__ = ["PRECISIONS", "Arranged", "TileStats", "Tiles", "Tuning"]

#: How float32 features are multiplied: as TF32, or in three products whose error is about that of float32.
PRECISIONS = ("tf32", "3xtf32")

_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
_ONES, _SCALES, _TILED, _CSR = range(4)
_WARPS = 4
#: Registers of a multiprocessor and, with some to spare, of a thread; blocks beyond which nothing is gained.
_REGISTERS, _MOST_REGISTERS, _MOST_BLOCKS = 65536, 248, 8


TilesParams = jit.struct("spmm/tiles.cuh", "TilesParams")


class Tuning(NamedTuple):
    """What may be chosen freely; None leaves it to the library.

    Attributes
    ----------
    width : int, optional
        Eighths of the columns that a warp makes: 2, 4, 8 or 16.
    stages : int, optional
        Tiles of features in flight.
    blocks : int, optional
        Blocks of four warps that registers must suffice for.
    outer : bool
        All rows of one slice of the features, then the next: for features beyond the L2 without neighbours in common.
    rounding : int
        Of float32 features to TF32: 0 cut off, 1 right on average, 2 to nearest.
    """

    width: int | None = None
    stages: int | None = None
    blocks: int | None = None
    outer: bool = False
    rounding: int = 1


_DEFAULT = Tuning()


def choose_width(head_width: int) -> int:
    """Eighths of the columns that a warp makes.

    Examples
    --------
    >>> [choose_width(n) for n in (3, 16, 40, 64, 602)]
    [2, 2, 4, 8, 8]
    """
    return 2 if head_width < 32 else 4 if head_width < 64 else 8


def choose_stages(width: int, height: int, weighted: bool) -> int:
    """Tiles of features in flight, so that there are enough bytes on their way in the registers that there are.

    Examples
    --------
    >>> choose_stages(8, 16, False), choose_stages(8, 32, True)
    (3, 2)
    """
    if width * height > 128:
        return 2
    return 3 if weighted or width * height > 64 or width > 2 else 4


def registers_of(width: int, height: int, rows: int, stages: int, weights: int, scaled: bool) -> int:
    """About how many registers a thread needs; `rows` of features are in a lane at once (2, or 4 of 16-bit floats).

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


def _vector(item: int, width: int, head_width: int, address: int) -> int:
    """Elements that are loaded together."""
    vector = min(16 // item, width)
    while vector > 1 and (head_width % vector or address % (vector * item)):
        vector //= 2
    return vector


def constants(
    kind: int,
    height: int,
    head_width: int,
    vector: int,
    weights: int,
    precision: str = "tf32",
    tuning: Tuning = _DEFAULT,
    scaled: bool = False,
) -> dict[str, int]:
    """With what ``spmm/tiles.cu`` is compiled.

    Examples
    --------
    >>> found = constants(0, 16, 64, 4, 0)
    >>> found["BS_WIDTH"], found["BS_STAGES"], found["BS_BLOCKS"]
    (8, 3, 4)
    """
    scaled = scaled or weights == _SCALES
    width = min(tuning.width or choose_width(head_width), 1 << max(head_width, 16).bit_length() - 4)
    while True:
        stages = tuning.stages or choose_stages(width, height, weights >= _TILED)
        registers = registers_of(width, height, 2 if kind == 0 else 4, stages, weights, scaled)
        if registers <= _MOST_REGISTERS or width == 2:
            break
        width //= 2
    blocks = _REGISTERS // (32 * _WARPS * -(-registers // 8 * 8))
    return {
        "BS_TYPE": kind,
        "BS_M": height // 16,
        "BS_WIDTH": width,
        "BS_VEC": min(vector, width),
        "BS_WEIGHTS": weights,
        "BS_STAGES": stages,
        "BS_BLOCKS": tuning.blocks or max(1, min(_MOST_BLOCKS, blocks)),
        "BS_SCALED": int(scaled),
        "BS_SPLIT": int(precision == "3xtf32" and (kind == 0 or weights != _ONES)),
        "BS_ROUND": tuning.rounding if kind == 0 else 0,
        "BS_NARROW": int(head_width < 8 * width),
    }


class _Prepared(NamedTuple):
    launch: jit.Launch
    add: jit.Launch | None


class Tiles:
    """Condensed windows of a canonical CSR pattern, and products with them.

    A window of `rows` rows has its columns numbered anew and cut into groups of `k`; a group is one step of the matrix unit, so that each
    row of features is read once for all the rows of a window that it is a neighbour of. It pays where windows share neighbours
    (:attr:`stats` has ``reuse``).

    Parameters
    ----------
    indptr, indices : cupy.ndarray of int32 or int64
        A valid canonical CSR pattern, which must not change.
    shape : tuple of int
    nnz : int
    rows : int, default 16
        16, 32 or 64.
    k : int, default 8
        8 for float32 features, 16 for 16-bit ones.
    translation : Translation, optional
        Of the pattern: taken as it lies if its windows have `rows` rows, else the pattern is translated here.

    Notes
    -----
    Sums are held in float32; the same input gives the same bits every run. With s the sum of ``|a| |x|`` over a row's n edges, a sum of
    "tf32" is within ``(1.3e-3 + n 2^-22) s`` of the exact one, without weights ``(6.5e-4 + n 2^-22) s``; of "3xtf32" within
    ``(2^-20 + n 2^-22) s``. For 16-bit features weights are rounded to the features' type: within ``(2^-11 + n 2^-22) s`` (float16, beside
    2^-25 for each edge where weights are below 2^-14) or ``(2^-8 + n 2^-22) s`` (bfloat16) before the result is rounded; "3xtf32" keeps
    twice the digits of weights. A row is affected by what is not finite only if it has such a neighbour.
    """

    def __init__(
        self,
        indptr: Any,
        indices: Any,
        shape: tuple[int, int],
        nnz: int,
        *,
        rows: int = 16,
        k: int = 8,
        translation: Translation | None = None,
    ) -> None:
        cupy = self._cupy = jit.require_cupy("tiles")
        self.shape, self.nnz = (int(shape[0]), int(shape[1])), int(nnz)
        self.windows = Windows(indptr, indices, self.shape, self.nnz, height=rows, k=k, translation=translation)
        self._lock = threading.Lock()
        self._prepared: dict[tuple[Any, ...], _Prepared] = {}
        self._room: dict[int, Any] = {}
        self._stream = cupy.cuda.get_current_stream
        self._made = cupy.cuda.Event(disable_timing=True)
        self._ready: set[int] = set()  # streams that are behind everything made so far
        self._made_on(self._stream().ptr)

    @property
    def stats(self) -> TileStats:
        """Sizes and reuse."""
        return self.windows.stats

    @property
    def nbytes(self) -> int:
        """Bytes on the device, without the pattern itself."""
        return self.windows.nbytes

    def arrange(self, values: Any, into: Arranged | None = None) -> Arranged:
        """Values of the edges in the order in which the tiles read them, for several products with the same ones."""
        return self.windows.arrange(values, into)

    def run(
        self,
        x: Any,
        values: Any = None,
        row_scale: Any = None,
        col_scale: Any = None,
        reduce: str = "sum",
        precision: str = "tf32",
        out: Any = None,
        *,
        tuning: Tuning = _DEFAULT,
    ) -> Any:
        """Reduce rows of `x` over the edges of each row.

        The first call of a kind (width, dtype, operands that are there) compiles and allocates; later ones allocate nothing but the
        result, and may be captured.

        Parameters
        ----------
        x : cupy.ndarray (cols, D) of float32, float16 or bfloat16, C-contiguous
        values : cupy.ndarray of float32 (nnz,) or (nnz, heads), or what :meth:`arrange` made of them, optional
            With several heads, head h weighs columns ``h D / heads`` to ``(h + 1) D / heads``.
        row_scale, col_scale : cupy.ndarray of float32, optional
        reduce : "sum" or "mean"
        precision : "tf32" or "3xtf32"
        out : cupy.ndarray (rows, D) of the dtype of `x`, optional
        tuning : Tuning, optional

        Raises
        ------
        DTypeError, ShapeError, KernelError
            What these kernels cannot compute.
        """
        kind = _TYPES.get(x.dtype.name)
        if kind is None or (kind > 0) != (self.windows.k == 16):
            raise DTypeError(f"tiles: features of {x.dtype} do not go with groups of {self.windows.k} columns")
        if reduce not in ("sum", "mean") or precision not in PRECISIONS:
            raise KernelError(f"tiles: no kernel for reduce={reduce!r}, precision={precision!r}")
        if x.ndim != 2 or x.shape[0] != self.shape[1]:
            raise ShapeError(f"tiles: A has {self.shape[1]} columns but X has shape {x.shape}")
        arranged = isinstance(values, Arranged)
        if arranged and values.key != self.windows.key:
            raise ValueError(f"tiles: values were arranged for tiles {values.key}, these are {self.windows.key}")
        heads = 1 if values is None else values.heads if arranged else 1 if values.ndim == 1 else int(values.shape[1])
        if heads < 1 or x.shape[1] % heads:
            raise ShapeError(f"tiles: {x.shape[1]} columns of X cannot be shared by {heads} heads")
        x = geometry.contiguous(x)
        y = geometry.output("tiles", out, (self.shape[0], x.shape[1]), x.dtype, x.dtype.itemsize)
        if y.size == 0:
            return y
        weights = _TILED if arranged else _CSR if values is not None else _SCALES if col_scale is not None else _ONES
        vector = _vector(x.dtype.itemsize, 16, x.shape[1] // heads, x.data.ptr | y.data.ptr)
        key = (x.shape[1], heads, kind, weights, vector, reduce, precision, tuning, col_scale is not None)
        given = [
            _floats(values.array if isinstance(values, Arranged) else values),
            _floats(row_scale),
            _floats(col_scale),
        ]
        with self._lock:  # what a launch points to is set here
            stream = self._stream().ptr
            if stream not in self._ready:
                self._on_stream(stream)
            found = self._prepared.get(key)
            if found is None:
                found = self._prepared[key] = self._prepare(*key)
                self._made_on(stream)
            for launch in found:
                if launch is not None:
                    params: Any = launch.params
                    params.x, params.y, params.partial = x.data.ptr, y.data.ptr, self._partial(stream, x.shape[1])
                    params.values, params.row_scale, params.col_scale = (
                        None if one is None else one.data.ptr for one in given
                    )
                    launch(stream)
        return y

    def _partial(self, stream: int, columns: int) -> int | None:
        """Where pieces of windows leave their sums, in memory of the stream."""
        need = self.windows.slots * self.windows.height * columns
        if not need:
            return None
        if stream not in self._room or self._room[stream].size < need:
            self._room[stream] = self._cupy.empty(need, np.float32)
        return int(self._room[stream].data.ptr)

    def _made_on(self, stream: int) -> None:
        """Something was made on a stream that others have to wait for."""
        if not self._cupy.cuda.runtime.streamIsCapturing(stream):
            self._made.record()
        self._ready = {stream}

    def _on_stream(self, stream: int) -> None:
        if not self._cupy.cuda.runtime.streamIsCapturing(stream):
            self._cupy.cuda.get_current_stream().wait_event(self._made)
        elif stream not in self._room and self._room:
            # A capture begins after a synchronisation and cannot allocate: it takes over what calls have worked in before.
            self._room[stream] = self._room.pop(next(iter(self._room)))
        self._ready.add(stream)

    def _prepare(
        self,
        columns: int,
        heads: int,
        kind: int,
        weights: int,
        vector: int,
        reduce: str,
        precision: str,
        tuning: Tuning,
        scaled: bool,
    ) -> _Prepared:
        made, head_width = self.windows, columns // heads
        defines = constants(kind, made.height, head_width, vector, weights, precision, tuning, scaled)
        width, narrow = defines["BS_WIDTH"], bool(defines["BS_NARROW"])
        head_slices = 1 if narrow else -(-head_width // (8 * width))
        params = TilesParams(
            cols=made.cols.data.ptr,
            bits=made.bits.data.ptr,
            pieces=made.pieces.data.ptr,
            counts=made.counts().data.ptr if reduce == "mean" else None,
            rows=self.shape[0],
            piece_count=made.count,
            row_bytes=columns * (4 if kind == 0 else 2),
            columns=columns,
            width=head_width,
            head_slices=head_slices,
            slices=head_slices * heads,
            outer=int(tuning.outer),
            groups=-(-made.count // _WARPS),
        )
        if weights == _TILED:
            params.offsets, params.value_head, params.value_bytes = made.offsets().data.ptr, self.nnz, 4
        elif weights == _CSR:
            params.row_offsets, params.value_head, params.value_bytes = made.row_offsets().data.ptr, 1, 4 * heads
        source = "spmm/tiles.cu"
        kernel = jit.kernel(source, "spmm_tiles", defines)
        launch = kernel.launch(params.groups * params.slices, 32 * _WARPS, params)
        if not made.slots:
            return _Prepared(launch, None)
        later = TilesParams.from_buffer_copy(params)
        later.pieces = made.splits.data.ptr
        add = jit.kernel(source, "add_slots", defines)
        return _Prepared(launch, add.launch(made.splits.shape[0] * made.height, 128, later))


def _floats(array: Any) -> Any:
    return None if array is None else geometry.contiguous(array.astype(np.float32, copy=False))


def _variants() -> list[jit.Variant]:
    """Every kind of floats in windows of 16 and 32 rows, 64 columns a warp, and 16 columns; without weights and with them."""
    found = [
        constants(kind, height, 64, 8 if kind else 4, weights)
        for kind in range(3)
        for weights in (_ONES, _TILED, _CSR)
        for height in (16, 32)
    ]
    found += [constants(kind, 16, 16, 8 if kind else 4, weights) for kind in range(3) for weights in (_ONES, _TILED)]
    return jit.variants_of("spmm/tiles.cu", "spmm_tiles", found)


VARIANTS = _variants()

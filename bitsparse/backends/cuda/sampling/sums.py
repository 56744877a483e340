"""Sums over sampled edges on the GPU, drawn while they are gathered."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.csr.units import group_lanes, units_of
from bitsparse.backends.cuda.sampling.drawing import Drawing
from bitsparse.backends.cuda.workspaces import Workspaces
from bitsparse.backends.params import CodeFeatures, packed_words
from bitsparse.errors import KernelError

__all__ = ["Codes", "SampledSum", "Tuning", "tuning_of"]

_KINDS = {"float16": 4, "float32": 5, "float64": 6, "bfloat16": 7}


CodeMap = jit.struct("sampling/sums.cuh", "CodeMap")
SumParams = jit.struct("sampling/spmm.cuh", "SampleSpmmParams")


class Codes(NamedTuple):
    """A kind of packed features: `bits` in {1, 2, 4, 8} side by side, and whether scale or offset belong to the gathered rows."""

    bits: int
    encoding: str
    by_row: bool

    @classmethod
    def of(cls, x: CodeFeatures) -> Codes:
        """The kind of given features."""
        return cls(x.bits, x.encoding, any(_step(part) < 0 for part in (x.scale, x.offset)))

    @property
    def map(self) -> ctypes.Structure:
        """The argument of a kernel, but for scale and offset."""
        half = 1 << (self.bits - 1)
        flip = half * (0xFFFFFFFF // ((1 << self.bits) - 1)) if self.encoding == "signed" else 0
        times, plus = {"unsigned": (1, 0), "signed": (1, -half), "bipolar": (2, -1)}[self.encoding]
        return CodeMap(None, None, 0, 0, flip, times, plus, times, plus - times * 32768)


def _step(part: Any) -> int:
    """0 for a scale or offset of all features, 1 for one to a column, -1 for one to a row."""
    return 0 if part is None or part.size == 1 else -1 if part.shape[1] == 1 else 1


class Tuning(NamedTuple):
    """What may be chosen about a sum; every choice gives the same sums but for the pieces of long rows.

    Attributes
    ----------
    bytes : int
        A lane loads so many at once: 16, 8, 4 or 2. Rows and addresses must be multiples.
    lanes : int
        Of a group: a power of two up to 32. A slice of the columns has so many vectors.
    unroll : int
        Edges in flight.
    blocks : int or None
        Blocks that a multiprocessor must hold, which bounds the registers; None for as many as can be.
    threads : int
        Of a block, 32 to 128.
    span, limit, longest : int or None
        Samples and rows of a stream, samples of a row from which a warp takes it, samples of a piece of a long row (a multiple of 4); None
        for what suits the pattern.
    chunk : int or None
        Samples that a group draws at once: a multiple of lanes and unroll up to 32; None for the least.
    """

    bytes: int
    lanes: int
    unroll: int = 8
    blocks: int | None = None
    threads: int = 128
    span: int | None = None
    limit: int | None = None
    longest: int | None = None
    chunk: int | None = None


def tuning_of(columns: int, itemsize: int, alignment: int, bits: int | None = None) -> Tuning:
    """The tuning for rows of `columns` elements whose addresses are multiples of `alignment`, or of codes, eight to a lane.

    Examples
    --------
    >>> tuning_of(128, 4, 16).lanes, tuning_of(100, 2, 16), tuning_of(3, 4, 16).bytes
    (32, Tuning(bytes=8, lanes=32, unroll=8, blocks=None, threads=128, span=None, limit=None, longest=None, chunk=None), 4)
    """
    if bits is not None:
        return Tuning(bits, group_lanes(-(-columns // 8)))
    width = 16
    while (columns * itemsize % width or alignment % width) and width > itemsize:
        width //= 2
    if itemsize == 2 and width == 16 and 16 <= columns * itemsize // 8 <= 32:
        width = 8  # wider groups: fewer of them in a warp, whose rows end at different samples
    return Tuning(width, group_lanes(columns * itemsize // width))


def constants(tuning: Tuning, kind: str | int, weights: int = 0, random: bool = False) -> dict[str, int]:
    """What ``sampling/spmm.cu`` is compiled with for int32 indices, for features of a dtype's name or codes of so many bits.

    `weights` are 0 for none (sums of codes are integers then), 1 for values or factors, 2 for scales of gathered rows of codes.
    """
    found = {"BS_BYTES": tuning.bytes, "BS_LANES": tuning.lanes, "BS_U": tuning.unroll, "BS_THREADS": tuning.threads}
    found |= {"BS_RANDOM": int(random), "BS_WEIGHTS": weights}
    if isinstance(kind, str):
        found |= {"BS_KIND": _KINDS[kind], "BS_ACC": int(kind == "float64")}
    else:
        found |= {"BS_KIND": 0, "BS_ACC": 0 if weights else 2, "BS_CODES": kind}
    found |= {} if tuning.blocks is None else {"BS_BLOCKS": tuning.blocks}
    return found | ({} if tuning.chunk is None else {"BS_CHUNK": tuning.chunk})


class SampledSum:
    """Sums over sampled edges, prepared for one pattern and features of one kind: ``product(x, out=None)``; the sample is not stored.

    Building it compiles the kernel and cuts the sample. The first call on a stream allocates what such calls work in; later ones allocate
    nothing but the result. It may be shared by threads and streams.

    Parameters
    ----------
    drawing : Drawing
    indices : cupy.ndarray or None
        As `indptr` of the drawing; None if edge e lies in column e.
    columns : int
        Of the features.
    x_dtype : dtype, or Codes
        float16, bfloat16 or float32, summed in float32, or float64; packed codes are summed as they are, and become real in float32 when
        a row is complete.
    values, col_scale, row_scale : cupy.ndarray, optional
        ``(nnz,)``, ``(n,)`` and ``(m,)``.
    rescale : bool
        Multiply the sum of a row by ``row_nnz / samples``.
    alignment : int
        Bytes of which the addresses of features and results are multiples, at most 16.
    tuning : Tuning, optional

    Attributes
    ----------
    dtype : numpy.dtype
        Of the result.
    """

    def __init__(
        self,
        drawing: Drawing,
        indices: Any,
        *,
        columns: int,
        x_dtype: Any,
        values: Any = None,
        col_scale: Any = None,
        row_scale: Any = None,
        rescale: bool = False,
        alignment: int = 16,
        tuning: Tuning | None = None,
    ) -> None:
        cupy = self._cupy = jit.require_cupy("sampled_spmm")
        self._drawing, self.columns = drawing, columns
        self._codes = x_dtype if isinstance(x_dtype, Codes) else None
        self.dtype = np.dtype(x_dtype if self._codes is None else np.float32)
        if self.dtype.name not in _KINDS:
            raise KernelError(f"sampled_spmm: there is no kernel for {self.dtype} on the GPU")
        self._acc = np.dtype(np.float64 if self.dtype == np.float64 else np.float32)
        self.shape = (drawing.shape[0], columns)
        self._lock, self._stream = threading.Lock(), cupy.cuda.get_current_stream
        self._kernel: Any = None
        if 0 in self.shape:
            return
        bits = None if self._codes is None else self._codes.bits
        self.tuning = tuning or tuning_of(columns, self.dtype.itemsize, alignment, bits)
        factors = drawing.factors(self._acc) if rescale else None
        scales = (
            None if part is None else geometry.contiguous(part.astype(self._acc, copy=False))
            for part in (values, col_scale, row_scale)
        )
        self._kept = (None if indices is None else geometry.contiguous(indices), *scales, factors)
        self._prepare()

    def _prepare(self) -> None:
        tuning, drawing = self.tuning, self._drawing
        schedule = drawing.schedule
        self.cut = units_of(schedule, tuning.lanes, span=tuning.span, limit=tuning.limit, longest=tuning.longest)
        codes, weights = self._codes, int(self._kept[1] is not None or self._kept[2] is not None)
        each = tuning.bytes // self.dtype.itemsize if codes is None else tuning.bytes * 8 // codes.bits
        vectors = -(-self.columns // each)
        slices = -(-vectors // tuning.lanes)
        params = self._params = SumParams(
            schedule.walk_params(None, tuning.lanes, self.cut.longest), self.cut.params(), drawing.sampler(0, 0)
        )
        params.indptr = drawing.indptr.data.ptr
        names = ("indices", "values", "col_scale", "row_scale", "factors")
        for name, array in zip(names, self._kept, strict=True):
            setattr(params, name, None if array is None else array.data.ptr)
        params.vectors, params.slices, params.features = vectors, slices, self.columns
        params.row_bytes = params.out_bytes = self.columns * self.dtype.itemsize
        if codes is None:
            self._slot = (slices * tuning.lanes, each * self._acc.itemsize)
        else:
            params.codes, params.row_bytes = codes.map, packed_words(self.columns, codes.bits, "rows") * 4
            # Sums of codes without weights are integers, where 31 bits hold them.
            exact = drawing.longest << codes.bits < 1 << 31
            weights = 2 if codes.by_row else 1 if weights or not exact else 0
            self._slot = (slices * tuning.lanes, each * 4 + (16 if weights else 0))
        self._whole = self.columns % each == 0
        kind: str | int = self.dtype.name if codes is None else codes.bits
        defines = schedule.defines | constants(tuning, kind, weights, drawing.strategy == "uniform")
        grid = self.cut.grid(tuning.lanes, tuning.threads, slices)
        self._kernel = jit.kernel("sampling/spmm.cu", "sample_spmm", defines).launch(grid, tuning.threads, params)
        self._workspaces = Workspaces((self.cut.pieces, *self._slot), np.uint8, self.cut.pieces * self._slot[0])

    def __call__(self, x: Any, out: Any = None, *, seed: int = 0, stream: int = 0) -> Any:
        """Sums of the rows of `x` (columns of the pattern, columns), C-contiguous and of the kind prepared for, or of its codes."""
        if out is None:
            out = self._cupy.empty(self.shape, self.dtype)
        if self._kernel is None:
            return out
        data = geometry.contiguous(x.words if self._codes is not None else x)
        with self._lock:
            where = self._stream().ptr
            work = self._workspaces.on(where)
            params = self._params
            params.sampler.seed, params.sampler.stream = seed, stream
            params.x, params.out = data.data.ptr, out.data.ptr
            params.partial, params.arrived = (part.data.ptr for part in work)
            if self._codes is not None:
                params.whole = self._whole and out.data.ptr % 16 == 0
                for name in ("scale", "offset"):
                    part = getattr(x, name)
                    setattr(params.codes, name, None if part is None else part.data.ptr)
                    setattr(params.codes, f"{name}_step", _step(part))
            self._kernel(where)
        return out


def _variants() -> list[jit.Variant]:
    """Narrow and wide rows of floats without and with weights, drawn by rule or at random; codes of 8 and 4 bits; int64 indices."""
    large, wide, half = {"BS_LARGE": 1}, Tuning(16, 32), Tuning(8, 32)
    found = [constants(Tuning(16, lanes), "float32", weights) for lanes in (4, 32) for weights in (0, 1)]
    found += [constants(wide, "float32", random=True), large | constants(wide, "float32")]
    found += [large | constants(wide, "float32", 1, True), constants(wide, "float64", 1)]
    found += [constants(half, kind, 1) for kind in ("float16", "bfloat16")]
    found += [constants(Tuning(8, 16), 8), constants(Tuning(4, 16), 4), constants(Tuning(8, 16), 8, 2)]
    return jit.variants_of("sampling/spmm.cu", "sample_spmm", found)


VARIANTS = _variants()

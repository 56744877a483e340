"""Edge sampling and sums over sampled edges on the GPU. Arguments are validated by the callers in ``ops``."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop, jit
from bitsparse.backends.cuda.csr.bounds import SAMPLED
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.csr.sums import StreamedSum, Tuning
from bitsparse.backends.cuda.csr.units import group_lanes
from bitsparse.backends.cuda.csr.vectors import vector_bytes
from bitsparse.backends.cuda.geometry import KINDS_APART
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES, THREADS, launch
from bitsparse.backends.params import STRATEGIES, CodeFeatures, packed_words
from bitsparse.errors import KernelError
from bitsparse.jit import cupy

#: AES-SpMM, Table 1: for R = edges / W up to 2, 36, 54 and above, the number of parts into which W is cut.
_LIMITS, _PARTS = (2, 36, 54), (4, 8, 16, 32)

SamplerParams = jit.struct("sampling/draw.cuh", "Sampler")
EdgesParams = jit.struct("sampling/edges.cu", "SampleEdgesParams")
CodeMap = jit.struct("sampling/sums.cuh", "CodeMap")
SumParams = jit.struct("sampling/spmm.cuh", "SampleSpmmParams")


def sampler_params(indptr: Any, nnz: int, width: int, strategy: str, seed: int, stream: int) -> ctypes.Structure:
    """The sampler's argument of a kernel. No row is longer than the limit of the index dtype, so larger widths are clipped to it."""
    limit = int(np.iinfo(indptr.dtype).max)
    if strategy == "uniform" and 2**31 <= width < nnz:
        raise KernelError(
            f"sample_edges: width={width} asks a GPU to draw more than {2**31 - 1} edges of a row; draw fewer, or take strategy='sfs'"
        )
    width = min(width, limit)
    found = SamplerParams(width, seed)
    found.most[:] = [min(most * width, limit) for most in _LIMITS]
    found.run[:] = [max(1, width // parts) for parts in _PARTS]
    found.inverse[:] = [1 / max(1, width // parts) for parts in _PARTS]
    found.samples[:] = [min(parts, width) for parts in _PARTS]
    found.stream, found.strategy = stream, STRATEGIES.index(strategy)
    return found


class Drawing:
    """How many edges of each row of a pattern are sampled, and how kernels walk the sample; built once per width and strategy.

    Parameters
    ----------
    indptr : cupy.ndarray of int32 or int64
        Must be valid: from 0 to `nnz`, never decreasing.
    shape : tuple of int
    nnz, width : int
    strategy : {"aes", "afs", "sfs", "uniform"}

    Attributes
    ----------
    starts : cupy.ndarray (rows + 1,), dtype of `indptr`
        The start of each row's samples.
    total, longest : int
        The number of samples of all rows, and of the row with the most samples; repeats count.
    schedule : Schedule
        Schedule of the samples.
    """

    def __init__(self, indptr: Any, shape: tuple[int, int], nnz: int, *, width: int, strategy: str) -> None:
        self.indptr, self.shape, self.nnz = indptr, (int(shape[0]), int(shape[1])), int(nnz)
        self.width, self.strategy = width, strategy
        rows = self.shape[0]
        self.starts = cupy.zeros(rows + 1, indptr.dtype)
        self.total = self.longest = 0
        if rows:
            counts = cupy.empty(rows, indptr.dtype)
            self._launch("sample_counts", rows, 0, 0, counts=counts)
            cupy.cumsum(counts, out=self.starts[1:])
            self.total, self.longest = (int(n) for n in cupy.stack([self.starts[-1], counts.max()]).get())
        self.schedule = Schedule(self.starts, None, self.shape, self.total)
        self._factors: dict[str, Any] = {}

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.starts.nbytes) + self.schedule.nbytes + sum(int(made.nbytes) for made in self._factors.values())

    def factors(self, dtype: Any) -> Any:
        """``row_nnz / samples`` of each row in `dtype`, 1 for empty rows; made once."""
        name = np.dtype(dtype).name
        if name not in self._factors:
            samples, edges = (part[1:] - part[:-1] for part in (self.starts, self.indptr))
            quotient = edges.astype(dtype) / cupy.maximum(samples, 1).astype(dtype)
            self._factors[name] = cupy.where(samples > 0, quotient, np.dtype(dtype).type(1))
        return self._factors[name]

    def sampler(self, seed: int, stream: int) -> ctypes.Structure:
        """The sampler's argument of a kernel."""
        return sampler_params(self.indptr, self.nnz, self.width, self.strategy, seed, stream)

    def edges(self, seed: int = 0, stream: int = 0, indices: Any = None, columns: bool = True) -> tuple[Any, Any]:
        """The numbers of the sampled edges (int64) and, with `columns`, their columns. Without `indices`, edge e lies in column e."""
        edges = cupy.empty(self.total, np.int64)
        found = cupy.empty(self.total, self.indptr.dtype) if columns else None
        if self.total:
            self._launch("sample_edges", self.total, seed, stream, indices=indices, edges=edges, columns=found)
        return edges, found

    def _launch(self, name: str, items: int, seed: int, stream: int, **arrays: Any) -> None:
        params = EdgesParams(self.sampler(seed, stream), rows=self.shape[0], total=items)
        jit.filled(params, indptr=self.indptr, starts=self.starts, **arrays)
        launch("sampling/edges.cu", name, self.indptr.dtype, -(-items // THREADS), params)


class Codes(NamedTuple):
    """A kind of packed features: adjacent codes of 1, 2, 4 or 8 bits, and whether scale or offset vary by gathered row."""

    bits: int
    encoding: str
    by_row: bool

    @classmethod
    def of(cls, x: CodeFeatures) -> Codes:
        """The kind of given features."""
        return cls(x.bits, x.encoding, any(_step(part) < 0 for part in (x.scale, x.offset)))

    @property
    def map(self) -> ctypes.Structure:
        """The argument of a kernel, without scale and offset."""
        half = 1 << (self.bits - 1)
        flip = half * (0xFFFFFFFF // ((1 << self.bits) - 1)) if self.encoding == "signed" else 0
        times, plus = {"unsigned": (1, 0), "signed": (1, -half), "bipolar": (2, -1)}[self.encoding]
        return CodeMap(None, None, 0, 0, flip, times, plus, times, plus - times * 32768)


def _step(part: Any) -> int:
    """The step of a scale or offset: 0 if all features share it, 1 if each column has one, -1 if each row has one."""
    return 0 if part is None or part.size == 1 else -1 if part.shape[1] == 1 else 1


def tuning_of(columns: int, itemsize: int, alignment: int, bits: int | None = None) -> Tuning:
    """The tuning for rows of `columns` elements whose addresses are multiples of `alignment`, or for codes, eight per lane.

    Examples
    --------
    >>> tuning_of(128, 4, 16).lanes, tuning_of(100, 2, 16)[:4], tuning_of(3, 4, 16).load
    (32, (8, 32, 1, 8), 4)
    """
    if bits is not None:
        return Tuning(bits, group_lanes(-(-columns // 8)))
    width = vector_bytes(columns * itemsize | alignment, itemsize, ())
    if itemsize == 2 and width == 16 and 16 <= columns * itemsize // 8 <= 32:
        width = 8  # wider groups, so fewer per warp, since rows of groups end at different samples
    return Tuning(width, group_lanes(columns * itemsize // width))


def constants(tuning: Tuning, kind: str | int, weights: int = 0, random: bool = False) -> dict[str, int]:
    """Constants of ``sampling/spmm.cu`` for int32 indices; `kind` is the dtype's name of features, or the bits of codes.

    `weights` is 0 for none (sums of codes are then integers), 1 for values or factors, 2 for scales of gathered rows of codes.
    """
    found = tuning.defines | {"BS_BYTES": tuning.load, "BS_LANES": tuning.lanes, "BS_THREADS": tuning.threads}
    found |= {"BS_RANDOM": int(random), "BS_WEIGHTS": weights}
    if isinstance(kind, str):
        found |= {"BS_KIND": KINDS_APART[kind], "BS_ACC": int(kind == "float64")}
    else:
        found |= {"BS_KIND": 0, "BS_ACC": 0 if weights else 2, "BS_CODES": kind}
    return found | jit.flags(chunk=tuning.chunk or 0)


class SampledSum(StreamedSum):
    """Sums over sampled edges, prepared for one pattern and features of one kind: ``product(x, out=None)``. The sample is not stored.

    Parameters
    ----------
    drawing : Drawing
    indices : cupy.ndarray or None
        As `indptr` of the drawing; None if edge e lies in column e.
    columns : int
        Columns of the features.
    x_dtype : dtype, or Codes
        float16, bfloat16 or float32, which are summed in float32, or float64. Packed codes are summed as codes, and the sum of a complete
        row is converted to its real value in float32.
    values, col_scale, row_scale : cupy.ndarray, optional
        Arrays ``(nnz,)``, ``(n,)`` and ``(m,)``.
    rescale : bool
        Multiply the sum of a row by ``row_nnz / samples``.
    alignment : int
        Alignment in bytes of features and results, at most 16.
    tuning : Tuning, optional
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
        codes = self._codes = x_dtype if isinstance(x_dtype, Codes) else None
        dtype = np.dtype(x_dtype if codes is None else np.float32)
        super().__init__((drawing.shape[0], columns), dtype)
        acc, schedule = np.dtype(np.float64 if dtype == np.float64 else np.float32), drawing.schedule
        if 0 in self.shape:
            return
        tuning = tuning or tuning_of(columns, dtype.itemsize, alignment, None if codes is None else codes.bits)
        arrays: dict[str, Any] = {"values": values, "col_scale": col_scale, "row_scale": row_scale}
        for name, part in arrays.items():
            arrays[name] = None if part is None else interop.contiguous(part.astype(acc, copy=False))
        arrays["indices"] = None if indices is None else interop.contiguous(indices)
        arrays["factors"] = drawing.factors(acc) if rescale else None
        #: Keeps the arrays alive whose addresses the launch holds.
        self._kept = arrays
        weights = int(values is not None or col_scale is not None)
        each = tuning.load // dtype.itemsize if codes is None else tuning.load * 8 // codes.bits
        vectors = -(-columns // each)
        slices = -(-vectors // tuning.lanes)
        params = self._walk(SumParams, schedule, tuning)
        jit.filled(params, **arrays, sampler=drawing.sampler(0, 0), indptr=drawing.indptr)
        params.vectors, params.slices, params.features = vectors, slices, columns
        params.row_bytes = params.out_bytes = columns * dtype.itemsize
        slot, kind = each * acc.itemsize, dtype.name if codes is None else codes.bits
        if codes is not None:
            params.codes, params.row_bytes = codes.map, packed_words(columns, codes.bits, "rows") * 4
            # Sums of codes without weights are integers if 31 bits can hold them.
            exact = drawing.longest << codes.bits < 1 << 31
            weights = 2 if codes.by_row else 1 if weights or not exact else 0
            slot += 16 if weights else 0
        self._whole = columns % each == 0
        defines = schedule.defines | constants(tuning, kind, weights, drawing.strategy == "uniform")
        kernel, lanes = SAMPLED.kernel("sampling/spmm.cu", "sample_spmm", defines), slices * tuning.lanes
        self._prepare(kernel, params, slices, (lanes * slot, np.uint8), lanes)

    def __call__(self, x: Any, out: Any = None, *, seed: int = 0, stream: int = 0) -> Any:
        """Sums of the rows of `x` (columns of the pattern, columns), of the prepared kind, or of codes."""
        if out is None:
            out = self._empty(self.shape, self.dtype)
        if self._kernel is None:
            return out
        data = interop.contiguous(x.words if self._codes is not None else x)
        with self._lock:
            params = self._params
            params.sampler.seed, params.sampler.stream = seed, stream
            if self._codes is not None:
                params.whole = self._whole and out.data.ptr % 16 == 0
                for name in ("scale", "offset"):
                    part = getattr(x, name)
                    setattr(params.codes, name, None if part is None else part.data.ptr)
                    setattr(params.codes, f"{name}_step", _step(part))
            self._enqueue(data, out)
        return out


def _variants() -> list[jit.Variant]:
    """Variants for narrow and wide rows of floats with and without weights, sampled by rule or at random, codes and int64 indices."""
    large, wide, half = {"BS_LARGE": 1}, Tuning(16, 32), Tuning(8, 32)
    found = [constants(Tuning(16, lanes), "float32", weights) for lanes in (4, 32) for weights in (0, 1)]
    found += [constants(wide, "float32", random=True), large | constants(wide, "float32")]
    found += [large | constants(wide, "float32", 1, True), constants(wide, "float64", 1)]
    found += [constants(half, kind, 1) for kind in ("float16", "bfloat16")]
    found += [constants(Tuning(8, 16), 8), constants(Tuning(4, 16), 4), constants(Tuning(8, 16), 8, 2)]
    drawn = jit.variants_of("sampling/edges.cu", "sample_edges", BOTH_INDICES)
    return drawn + SAMPLED.variants("sampling/spmm.cu", "sample_spmm", found)


VARIANTS = _variants()

"""Sums of one-bit features over 0/1 patterns on the GPU: as integers, as bits by thresholds, or through the chain of an epilogue."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import bits as cuda_bits
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.epilogue import DeviceEpilogue, EpilogueStruct
from bitsparse.backends.cuda.schedule import Schedule, StreamsParams
from bitsparse.backends.params import EpilogueParams, OperandParams, Thresholds, packed_words
from bitsparse.errors import KernelError

__all__ = ["KERNELS", "BinarySum", "CountTuning", "chained", "count", "sign", "tuning_of"]

KERNELS = ("twice-plus", "plus-minus", "select")

_SOURCE = "bspmm_count.cu"
_OUTPUTS = {"int32": 0, "bits": 1, "float32": 2}
_CHAIN = 2
#: Threads of a block at most, and warps of a multiprocessor with the registers that the kernel takes.
_THREADS, _WARPS = 128, 16
_WARP = 32


class _CountParams(ctypes.Structure):
    """``CountParams`` of ``bspmm_count.cuh``, field by field."""

    _fields_ = (
        ("streams", StreamsParams),
        *((name, ctypes.c_void_p) for name in ("words", "out", "limits", "flips", "class_of", "partial", "arrived")),
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_int) for name in ("width", "features", "across", "slices", "bipolar", "mean")),
        *((name, ctypes.c_int) for name in ("limit_planes", "base", "limit", "flip", "aligned")),
    )


class _ChainParams(ctypes.Structure):
    """The same with an epilogue."""

    _fields_ = (*_CountParams._fields_, ("epilogue", EpilogueStruct))


class CountTuning(NamedTuple):
    """What may be chosen about a sum; every choice gives the same bits.

    Attributes
    ----------
    team : int
        Lanes that take edges of a row at the same time: 4, 8, 16 or 32.
    unroll : int
        Edges in flight of a lane: 4, 8 or 16.
    planes : int
        Of a lane's counters, 4 to 8: a row, or a piece of one, has fewer than ``team << planes`` edges.
    blocks : int
        Blocks of 128 threads that a multiprocessor must hold, which bounds the registers.
    threads : int
        Of a block, 32 to 128.
    few : int
        Planes of a lane's counters that most rows need.
    span, longest : int or None
        Edges and rows of a stream, edges of a piece of a long row; None for what suits the pattern.
    """

    team: int = 4
    unroll: int = 8
    planes: int = 8
    blocks: int = 4
    threads: int = _THREADS
    few: int = 4
    span: int | None = None
    longest: int | None = None

    @property
    def most(self) -> int:
        """Edges of a piece at most: a lane takes them in fours, so that one lane may have a few more than its share.

        Examples
        --------
        >>> CountTuning().most
        1008
        """
        return ((1 << self.planes) - 4) * self.team


def tuning_of(rows: int, nnz: int, features: int) -> CountTuning:
    """What an H200 was quickest with.

    Examples
    --------
    >>> tuning_of(50_515, 1_638_396, 128).team
    4
    """
    return CountTuning()


def _shape_of_row(features: int, team: int) -> tuple[int, int, int]:
    """(words of a lane, log2 of the lanes beside each other, slices) for rows of so many bits.

    Examples
    --------
    >>> [_shape_of_row(n, 4) for n in (1, 33, 128, 129, 512, 5000)]
    [(1, 0, 1), (2, 0, 1), (4, 0, 1), (4, 1, 1), (4, 2, 1), (4, 3, 5)]
    """
    if features <= 64:
        return (1 if features <= 32 else 2), 0, 1
    vectors = packed_words(features, 1, "planes") // 4
    across = min((vectors - 1).bit_length(), (_WARP // team).bit_length() - 1)
    return 4, across, -(-vectors >> across)


def constants(tuning: CountTuning, output: int, words: int) -> dict[str, int]:
    """What ``bspmm_count.cu`` is compiled with, for int32 indices."""
    return {
        "BS_OUT": output,
        "BS_WORDS": words,
        "BS_TEAM": tuning.team,
        "BS_U": tuning.unroll,
        "BS_PLANES": tuning.planes,
        "BS_FEW": tuning.few,
        "BS_BLOCKS": tuning.blocks,
    }


class _Workspace(NamedTuple):
    """Memory of a sum's calls on one stream; a captured graph holds its addresses."""

    partial: Any
    arrived: Any


class BinarySum:
    """Sums of one-bit features over a pattern, prepared: ``sums(words, out=None)``.

    Building it compiles the kernel and cuts the pattern. The first call on a stream allocates what such calls work in; later ones allocate
    nothing but the result. It may be shared by threads and streams.

    Parameters
    ----------
    schedule : Schedule
        Of the pattern.
    indices : cupy.ndarray
        As `indptr` of the schedule.
    features : int
        Of a node.
    bipolar : bool
        Bits stand for -1 and +1, else for 0 and 1.
    kernel : {"twice-plus", "plus-minus", "select"}
    output : {"int32", "float32", "bits"}
        Sums (m, features); the chain's floats (m, features); or words (m, 1, W), by `thresholds` or else by the chain.
    thresholds : Thresholds, optional
        Arrays of the host or of the device.
    params : EpilogueParams, optional
        The chain of `output` "float32", and of "bits" without thresholds (then it binarises). Vectors of the host, or of the device.
    operand : OperandParams, optional
        More factors and terms of the chain, float32 arrays of the device.
    mean : bool
        The chain starts from sums divided by the lengths of the rows (0 for an empty one).
    tuning : CountTuning, optional

    Attributes
    ----------
    shape, dtype
        Of the result.
    cut : Cut
    """

    def __init__(
        self,
        schedule: Schedule,
        indices: Any,
        *,
        features: int,
        bipolar: bool,
        kernel: str = "twice-plus",
        output: str = "int32",
        thresholds: Thresholds | None = None,
        params: EpilogueParams | None = None,
        operand: OperandParams | None = None,
        mean: bool = False,
        tuning: CountTuning | None = None,
    ) -> None:
        cupy = self._cupy = jit.require_cupy("bspmm")
        rows = schedule.shape[0]
        self.schedule, self.features, self.output = schedule, features, output
        self._width = packed_words(features, 1, "planes")
        words = output == "bits"
        self.shape = (rows, 1, self._width) if words else (rows, features)
        self.dtype = np.dtype("uint32" if words else output)
        self._stream = cupy.cuda.get_current_stream
        self._lock = threading.Lock()
        self._workspaces: dict[int, _Workspace] = {}
        self._kernel: Any = None
        self._chain: DeviceEpilogue | None = None
        chained = output == "float32" or (words and thresholds is None)
        if kernel not in KERNELS:
            raise KernelError(f"bspmm: there is no kernel {kernel!r}; choose among {', '.join(KERNELS)}")
        if mean and not chained:
            raise KernelError("bspmm: a mean is a float; give its thresholds for the sums, or ask for float32")
        if 0 in self.shape:
            return
        self._indices = geometry.contiguous(indices)
        if self._indices.data.ptr % 16:
            self._indices = self._indices.copy()
        if chained:
            self._chain = _device_chain(params, operand, (rows, features), words)
        self.tuning = tuning or tuning_of(rows, schedule.nnz, features)
        raw = self._params = _ChainParams() if self._chain is not None else _CountParams()
        raw.bipolar, raw.mean = int(bipolar), int(mean)
        self._keep = None if thresholds is None or chained else _set_thresholds(raw, thresholds, features, bipolar)
        self._prepare(_CHAIN if chained else _OUTPUTS[output], kernel)

    def _prepare(self, output: int, kernel: str) -> None:
        tuning, schedule, raw = self.tuning, self.schedule, self._params
        words, across, slices = _shape_of_row(self.features, tuning.team)
        lanes = tuning.team << across
        self.cut = _cut(schedule, lanes, tuning)
        raw.streams = schedule.params(self.cut, self._indices, lanes)
        raw.rows, raw.width, raw.features = self.shape[0], self._width, self.features
        raw.across, raw.slices = across, slices
        total = tuning.planes + tuning.team.bit_length() - 1
        self._slot = slices * (words << across) * total
        defines = constants(tuning, output, words) | schedule.defines
        grid, source, function = (-(-self.cut.units * lanes // tuning.threads), slices, 1), _SOURCE, "bspmm_count"
        if kernel != KERNELS[0]:
            defines = {"BS_OUT": output, "BS_METHOD": KERNELS.index(kernel)} | schedule.defines
            grid, source, function = (
                (-(-raw.rows * _WARP // _THREADS), self._width, 1),
                "bspmm_methods.cu",
                "bspmm_methods",
            )
        threads = tuning.threads if kernel == KERNELS[0] else _THREADS
        self._kernel = jit.kernel(source, function, defines).launch(grid, threads, raw)
        self._made_on = self._stream().ptr
        self._made = self._cupy.cuda.Event(disable_timing=True)
        self._made.record()

    def __call__(self, words: Any, out: Any = None) -> Any:
        """The sums of `words`, uint32 (n, 1, W) or (n, W), C-contiguous and aligned to 16 bytes, with pad bits of zero."""
        if out is None:
            out = self._cupy.empty(self.shape, self.dtype)
        if self._kernel is None:
            return out
        words = geometry.contiguous(words)
        if words.data.ptr % 16:
            words = words.copy()
        with self._lock:
            stream = self._stream().ptr
            work = self._workspaces.get(stream) or self._on_stream(stream)
            raw = self._params
            raw.words, raw.out = words.data.ptr, out.data.ptr
            raw.aligned = int(self.features % 4 == 0 and out.data.ptr % 16 == 0)
            raw.partial, raw.arrived = work.partial.data.ptr, work.arrived.data.ptr
            if self._chain is not None:
                raw.epilogue = self._chain.aim(out)
            self._kernel(stream)
        return out

    def nan_seen(self) -> bool:
        """Whether a call since the last question met NaN on its way to a bit; waits for the current stream."""
        return self._chain is not None and self._chain.nan_seen()

    def _on_stream(self, stream: int) -> _Workspace:
        """What calls on one stream work in, and their waiting for what was prepared on another stream."""
        cupy = self._cupy
        if cupy.cuda.runtime.streamIsCapturing(stream):
            # A capture begins after a synchronisation and cannot allocate: it takes over what calls have worked in before.
            if self._workspaces:
                work = self._workspaces[stream] = self._workspaces.pop(next(iter(self._workspaces)))
                return work
        elif stream != self._made_on:
            cupy.cuda.get_current_stream().wait_event(self._made)
        pieces = self.cut.pieces
        work = self._workspaces[stream] = _Workspace(
            cupy.empty(pieces * self._slot, np.uint32), cupy.zeros(pieces * self._params.slices, np.int32)
        )
        return work


def _cut(schedule: Schedule, lanes: int, tuning: CountTuning) -> Any:
    """The pattern in streams and pieces, the pieces short enough for the counters."""
    cut = schedule.cut(lanes, warps=_WARPS, span=tuning.span, longest=tuning.longest)
    if cut.longest > tuning.most:
        cut = schedule.cut(lanes, warps=_WARPS, span=tuning.span, longest=tuning.most // 4 * 4)
    return cut


def _device_chain(
    params: EpilogueParams | None, operand: OperandParams | None, shape: tuple[int, int], words: bool
) -> DeviceEpilogue:
    """The chain on the device; vectors that are there already stay there where they can."""
    params = params or (EpilogueParams(out="bits", binarize=True) if words else EpilogueParams())
    if words and not (params.out == "bits" and params.binarize and params.bits == 1 and params.axis == -1):
        raise KernelError("bspmm: the chain must binarise along the features to give bits; binarise, then repack")
    if not words:
        params = params._replace(out="float", binarize=False)
    given = operand or OperandParams()
    on_device = {
        name: getattr(params, name)
        for name in ("row_scale", "col_scale", "row_term", "col_term")
        if _is_on_device(getattr(params, name)) and getattr(given, name) is None
    }
    given = given._replace(**on_device)
    without: dict[str, Any] = dict.fromkeys(on_device)
    chain = DeviceEpilogue(_on_host(params._replace(**without)), shape, 2.0**31)
    return chain.with_operand(**given._asdict())


def _is_on_device(part: Any) -> bool:
    if isinstance(part, tuple):
        return all(_is_on_device(one) for one in part)
    return hasattr(part, "__cuda_array_interface__")


def _on_host(params: EpilogueParams) -> EpilogueParams:
    """The parameters with every vector on the host; waits for those that are not."""

    def fetched(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(fetched(one) for one in part)
        return part.get() if hasattr(part, "__cuda_array_interface__") else part

    return EpilogueParams(*(fetched(part) for part in params))


def _set_thresholds(raw: Any, thresholds: Thresholds, features: int, bipolar: bool) -> Any:
    """Fills in one threshold as a number, or many bit-sliced; gives what must be kept on the device."""
    cupy = jit.require_cupy("bspmm")
    values, flips, longest = thresholds.values, thresholds.flips, int(thresholds.longest)
    if values.size == 1 or _all_the_same(values, flips):
        raw.limit = min(max(int(values.reshape(-1)[0]), -longest - 1), longest + 1, (1 << 31) - 1)
        raw.flip = int(bool(flips.reshape(-1)[0]))
        return None
    base = longest if bipolar else 0
    shape = (values.shape[0], features)
    raised = cupy.clip(cupy.asarray(values), -base, longest + 1) + base
    planes = max(1, (base + longest + 1).bit_length())
    words = cuda_bits.pack(
        cupy.broadcast_to(raised, shape), planes, axis=-1, layout="planes", encoding="unsigned", check=False
    )
    turned = cuda_bits.pack(
        cupy.broadcast_to(cupy.asarray(flips), shape),
        1,
        axis=-1,
        layout="planes",
        encoding="unsigned",
        check=False,
    )
    class_of = None if thresholds.class_of is None else cupy.asarray(thresholds.class_of, np.int32)
    raw.limits, raw.flips, raw.limit_planes, raw.base = words.data.ptr, turned.data.ptr, planes, base
    raw.class_of = None if class_of is None else class_of.data.ptr
    return words, turned, class_of


def _all_the_same(values: Any, flips: Any) -> bool:
    return bool(values.size) and bool((values == values.reshape(-1)[0]).all() & (flips == flips.reshape(-1)[0]).all())


def _prepared(indptr: Any, indices: Any, words: Any, schedule: Schedule | None, **given: Any) -> BinarySum:
    if schedule is None:
        schedule = Schedule(indptr, (int(indptr.size) - 1, int(words.shape[0])), int(indices.size))
    return BinarySum(schedule, indices, **given)


def count(
    indptr: Any,
    indices: Any,
    words: Any,
    features: int,
    *,
    bipolar: bool,
    kernel: str = "twice-plus",
    out: Any = None,
    schedule: Schedule | None = None,
) -> Any:
    """Sum of the one-bit features of each row's neighbours, int32 (m, features); see the host's function of the same name.

    The indices must be within `words`: they are not checked. `schedule` is that of the pattern, made anew if not given.
    """
    return _prepared(indptr, indices, words, schedule, features=features, bipolar=bipolar, kernel=kernel)(words, out)


def sign(
    indptr: Any,
    indices: Any,
    words: Any,
    features: int,
    thresholds: Thresholds,
    *,
    bipolar: bool,
    kernel: str = "twice-plus",
    out: Any = None,
    schedule: Schedule | None = None,
) -> Any:
    """Bits ``(sum >= threshold) ^ flip`` of :func:`count`'s sums, which are never stored: uint32 (m, 1, W)."""
    given = {"features": features, "bipolar": bipolar, "kernel": kernel}
    return _prepared(indptr, indices, words, schedule, output="bits", thresholds=thresholds, **given)(words, out)


def chained(
    indptr: Any,
    indices: Any,
    words: Any,
    features: int,
    params: EpilogueParams,
    *,
    bipolar: bool,
    mean: bool = False,
    kernel: str = "twice-plus",
    out: Any = None,
    schedule: Schedule | None = None,
    operand: OperandParams | None = None,
) -> Any:
    """The chain of an epilogue over :func:`count`'s sums (or means), float32 (m, features) or its signs, uint32 (m, 1, W)."""
    output = "bits" if params.out == "bits" else "float32"
    given = {"features": features, "bipolar": bipolar, "kernel": kernel, "output": output, "mean": mean}
    return _prepared(indptr, indices, words, schedule, params=params, operand=operand, **given)(words, out)

"""Float32 sums of one-bit features on the GPU, gathered as they are along streams of edges."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

from bitsparse import jit
from bitsparse.backends.cuda import geometry
from bitsparse.backends.cuda.chips import chip_here
from bitsparse.backends.cuda.csr.bounds import PACKED
from bitsparse.backends.cuda.csr.schedule import Schedule
from bitsparse.backends.cuda.csr.units import units_of
from bitsparse.backends.cuda.finish.floats import Behind, Finish, finish_constants
from bitsparse.backends.cuda.workspaces import Workspaces
from bitsparse.backends.params import packed_words

__all__ = ["PackedSum", "PackedTuning", "packed_tuning"]

_THREADS = 128
_WEIGHTS = {"none": 0, "edge": 1, "general": 2}
#: Features from which a lane holds eight, not four: fewer instructions an edge against more groups in a warp.
_WIDE = 64


PackedParams = jit.struct("spmm/packed.cu", "PackedParams")


class PackedTuning(NamedTuple):
    """What may be chosen about a sum; every choice gives the same sums but for the pieces of long rows.

    Attributes
    ----------
    lane : int
        Features of a lane: 4, 8, 16 or 32.
    lanes : int
        Of a group, which walks a stream: a power of two up to 32.
    unroll : int
        Edges in flight, a multiple of 4.
    blocks : int or None
        Blocks of 128 threads that a multiprocessor must hold, which bounds the registers; None for as many as can be.
    span, limit, longest : int or None
        Edges and rows of a stream, edges of a row from which a warp takes it, edges of a piece of a long row (a multiple of 4); None for
        what suits the pattern.
    """

    lane: int
    lanes: int
    unroll: int = 8
    blocks: int | None = None
    span: int | None = None
    longest: int | None = None
    limit: int | None = None


def packed_tuning(features: int, general: bool = False) -> PackedTuning:
    """The tuning for rows of so many features, with factors of columns or without.

    Examples
    --------
    >>> packed_tuning(128)[:2], packed_tuning(256, True)[:2], packed_tuning(3)[:2]
    ((8, 16), (4, 32), (4, 1))
    """
    lane = 8 if features >= _WIDE and not general else 4
    return PackedTuning(lane, min(32, 1 << (-(-features // lane) - 1).bit_length()))


def constants(tuning: PackedTuning, weights: str = "none", *, bipolar: bool = True) -> dict[str, int]:
    """What ``spmm/packed.cu`` is compiled with for int32 indices, beside what its finish adds."""
    found = {"BS_LANE": tuning.lane, "BS_U": tuning.unroll, "BS_WEIGHTS": _WEIGHTS[weights], "BS_BIPOLAR": int(bipolar)}
    return found | ({} if tuning.blocks is None else {"BS_BLOCKS": tuning.blocks})


class PackedSum:
    """Sums of packed features prepared for one pattern: ``sums(words, values=None, col_scale=None, out=None, behind=None)``.

    Building it compiles the kernel and cuts the pattern. The first call on a stream allocates what such calls work in; later ones allocate
    nothing but the result. It may be shared by threads and streams.

    Parameters
    ----------
    schedule : Schedule
        Of the pattern.
    indices : cupy.ndarray
        As `indptr` of the schedule.
    features : int
        Of a node, a bit each.
    encoding : {"unsigned", "bipolar"}
    finish : Finish
        What becomes of the sums, or means.
    values : cupy.ndarray of float32 (nnz,), optional
        Weights of the edges, unless calls bring some.
    weights : {"none", "edge", "general"}
        Whether there are values of edges, or factors of columns (``col_scale`` of the calls, (columns,) float32) as well.
    mean : bool
    tuning : PackedTuning, optional

    Notes
    -----
    Edges are added in order, a rounding for each product that is not exact and for each sum; rows longer than the pieces that `schedule`
    makes of them in such pieces, whose sums are added in order. The same bits on every run.
    """

    def __init__(
        self,
        schedule: Schedule,
        indices: Any,
        *,
        features: int,
        encoding: str,
        finish: Finish,
        values: Any = None,
        weights: str = "none",
        mean: bool = False,
        tuning: PackedTuning | None = None,
    ) -> None:
        cupy = self._cupy = jit.require_cupy("bspmm")
        self.schedule, self.finish = schedule, finish
        self.tuning = tuning = packed_tuning(features, weights == "general") if tuning is None else tuning
        self._stream = cupy.cuda.get_current_stream
        self._lock = threading.Lock()
        self._kernel: Any = None
        self._features = features
        if 0 in (schedule.shape[0], features):
            return
        vectors = -(-features // tuning.lane)
        self._slices = -(-vectors // tuning.lanes)
        self._indices = geometry.aligned(indices)
        self._values = values
        self.cut = units_of(schedule, tuning.lanes, span=tuning.span, limit=tuning.limit, longest=tuning.longest)
        params = self._params = PackedParams(
            schedule.walk_params(self._indices, tuning.lanes, self.cut.longest), self.cut.params()
        )
        params.row_bytes, params.vectors, params.slices = (
            4 * packed_words(features, 1, "planes"),
            vectors,
            self._slices,
        )
        defines = schedule.defines | constants(tuning, weights, bipolar=encoding == "bipolar")
        defines |= finish.defines | finish.pads(tuning.lanes, self._slices, tuning.lane)
        if mean and finish.mode != 2:  # the sign of a mean is that of the sum
            defines["BS_MEAN"] = 1
        params.finish = finish.struct
        defines |= PACKED.blocks(defines, chip_here())
        self._kernel = jit.kernel("spmm/packed.cu", "spmm_packed", defines).launch(
            self.cut.grid(tuning.lanes, _THREADS, self._slices), _THREADS, params
        )
        slots = self.cut.pieces * self._slices
        self._workspaces = Workspaces(slots * tuning.lanes * tuning.lane, np.float32, slots)

    def __call__(
        self, words: Any, values: Any = None, col_scale: Any = None, out: Any = None, behind: Behind | None = None
    ) -> Any:
        """The sums of the features in `words`, (columns, W) or (columns, 1, W), C-contiguous."""
        if out is None:
            out = self._cupy.empty(self.finish.out_shape, self.finish.out_dtype)
        if self._kernel is None:
            return out
        words = geometry.contiguous(words)
        values = self._values if values is None else values
        with self._lock:
            stream = self._stream().ptr
            partial, arrived = self._workspaces.on(stream)
            params = self._params
            params.x, params.out = words.data.ptr, out.data.ptr
            params.values = None if values is None else values.data.ptr
            params.col_scale = None if col_scale is None else col_scale.data.ptr
            params.partial, params.arrived = partial.data.ptr, arrived.data.ptr
            params.aligned = int(self._features % 4 == 0 and out.data.ptr % 16 == 0)
            self.finish.aim(params.finish, behind)
            self._kernel(stream)
        return out


def _variants() -> list[jit.Variant]:
    """Weighted sums with floats or signs behind them, for narrow and wide rows; signs of plain sums; factors of columns; int64 indices."""
    narrow, wide = packed_tuning(32), packed_tuning(128)
    found = [constants(tuning, "edge") | finish_constants(1) for tuning in (narrow, wide)]
    found += [constants(tuning, "edge") | finish_constants(2, pads=pads) for tuning, pads in ((narrow, 2), (wide, 0))]
    found += [constants(narrow) | finish for finish in (finish_constants(1), finish_constants(3, pads=2))]
    found += [constants(packed_tuning(128, True), "general") | finish_constants(1)]
    found += [constants(narrow, "edge") | finish_constants(1) | {"BS_LARGE": 1}]
    return PACKED.variants("spmm/packed.cu", "spmm_packed", found)


VARIANTS = _variants()

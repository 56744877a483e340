"""Sums along streams of edges: their tuning, their single launch, and the workspace of calls on each stream."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bitsparse import jit
from bitsparse.backends.cuda.csr.schedule import Schedule, Workspaces
from bitsparse.backends.cuda.csr.units import Units, units_of, units_of_a_warp
from bitsparse.jit import cupy


class Tuning(NamedTuple):
    """The tunable parameters of a sum; only the pieces of long rows affect the result's rounding.

    Attributes
    ----------
    load : int
        How much of a neighbour a lane loads at once: bytes of floats or of sampled rows, words of codes, features of one bit.
    lanes : int
        Lanes of a group, which walks a stream: a power of two up to 32.
    vectors : int
        Loads of a lane, for floats: a slice of the columns has ``vectors * lanes`` vectors.
    unroll : int
        Edges in flight, a multiple of 4; for codes a multiple of 8.
    blocks : int or None
        Blocks of 128 threads that a multiprocessor must hold, which bounds the registers; None for as many as possible.
    threads : int
        Threads of a block, 32 to 128.
    span, longest, limit : int or None
        Edges and rows of a stream, edges of a piece of a long row (a multiple of 4), and edges of a row above which a warp takes it; None
        to choose by the pattern.
    each : int or None
        For integers: pieces and rows that a warp takes one after the other; None to choose by the pattern.
    chunk : int or None
        Samples that a group draws at once: a multiple of lanes and unroll up to 32; None for the smallest.
    """

    load: int
    lanes: int
    vectors: int = 1
    unroll: int = 8
    blocks: int | None = None
    threads: int = 128
    span: int | None = None
    longest: int | None = None
    limit: int | None = None
    each: int | None = None
    chunk: int | None = None

    @property
    def defines(self) -> dict[str, int]:
        """The compile-time constants that all kernels share."""
        return {"BS_U": self.unroll} | jit.flags(blocks=self.blocks or 0)


class StreamedSum:
    """Base class of sums along streams of edges, prepared for one pattern: a call enqueues one launch.

    Building one compiles the kernel and cuts up the pattern. The first call on a stream allocates workspace; later calls allocate nothing
    but the result. It may be shared by threads and streams.

    Attributes
    ----------
    shape, dtype
        Shape and dtype of the result.
    tuning : Tuning
    cut : Units
    """

    tuning: Tuning
    cut: Units

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self._lock, self._stream, self._empty = threading.Lock(), cupy.cuda.get_current_stream, cupy.empty
        #: None if there is nothing to sum.
        self._kernel: Any = None

    def _walk(self, argument: type[ctypes.Structure], schedule: Schedule, tuning: Tuning, several: bool = False) -> Any:
        """Cut up the pattern, and return a kernel argument that holds it; `several`: warps can take several pieces and rows."""
        self.schedule, self.tuning = schedule, tuning
        self.cut = units_of(schedule, tuning.lanes, span=tuning.span, limit=tuning.limit, longest=tuning.longest)
        self._each = (tuning.each or units_of_a_warp(self.cut.pieces + self.cut.whole)) if several else 1
        return argument(schedule.walk_params(tuning.lanes, self.cut.longest), self.cut.params(self._each))

    def _prepare(
        self,
        kernel: jit.Kernel,
        params: Any,
        slices: int,
        partial: tuple[int, DTypeLike],
        counters: int,
    ) -> None:
        """Prepare the launch. A piece of a long row needs `partial` workspace (elements, dtype) and `counters` arrival counters."""
        tuning, pieces, (elements, dtype) = self.tuning, self.cut.pieces, partial
        self._params = params
        self._kernel = kernel.launch(
            self.cut.grid(tuning.lanes, tuning.threads, slices, self._each), tuning.threads, params
        )
        self._workspaces, self._at = Workspaces(pieces * elements, dtype, pieces * counters), None

    def _enqueue(self, x: Any, out: Any) -> None:
        """Launch on the current stream. The caller holds the lock and has set the rest of the argument."""
        params, stream = self._params, self._stream().ptr
        if stream != self._at or jit.recorder() is not None:
            work = self._workspaces.on(stream)
            params.partial, params.arrived = work.partial.data.ptr, work.arrived.data.ptr
            self._at = stream if jit.recorder() is None and self._workspaces.is_settled(stream) else None
        params.x, params.out = x.data.ptr, out.data.ptr
        self._kernel(stream)

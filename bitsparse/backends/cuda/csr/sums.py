"""Sums along streams of edges: what may be chosen about them, their one launch, and the memory that calls work in on each stream."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bitsparse import jit
from bitsparse.backends.cuda.csr.schedule import Schedule, Workspaces
from bitsparse.backends.cuda.csr.units import Units, units_of
from bitsparse.jit import cupy


class Tuning(NamedTuple):
    """What may be chosen about a sum; every choice gives the same sums but for the pieces of long rows.

    Attributes
    ----------
    load : int
        What a lane loads of a neighbour at once: bytes of floats or of sampled rows, words of codes, features of one bit.
    lanes : int
        Of a group, which walks a stream: a power of two up to 32.
    vectors : int
        Loads of a lane, for floats: a slice of the columns has ``vectors * lanes`` of them.
    unroll : int
        Edges in flight, a multiple of 4; of 8 for codes.
    blocks : int or None
        Blocks of 128 threads that a multiprocessor must hold, which bounds the registers; None for as many as can be.
    threads : int
        Of a block, 32 to 128.
    span, longest, limit : int or None
        Edges and rows of a stream, edges of a piece of a long row (a multiple of 4), edges of a row from which a warp takes it; None for
        what suits the pattern.
    chunk : int or None
        Samples that a group draws at once: a multiple of lanes and unroll up to 32; None for the least.
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
    chunk: int | None = None

    @property
    def defines(self) -> dict[str, int]:
        """What all kernels are compiled with."""
        return {"BS_U": self.unroll} | jit.flags(blocks=self.blocks or 0)


class StreamedSum:
    """Sums prepared for one pattern, as every kernel that walks streams of edges has them: calls enqueue one launch.

    Building one compiles the kernel and cuts the pattern. The first call on a stream allocates what such calls work in; later ones allocate
    nothing but the result. It may be shared by threads and streams.

    Attributes
    ----------
    shape, dtype
        Of the result.
    tuning : Tuning
    cut : Units
    """

    tuning: Tuning
    cut: Units

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self._lock, self._stream, self._empty = threading.Lock(), cupy.cuda.get_current_stream, cupy.empty
        #: Where nothing is to be summed there is no kernel.
        self._kernel: Any = None

    def _walk(self, argument: type[ctypes.Structure], schedule: Schedule, tuning: Tuning) -> Any:
        """The kernel's argument with the pattern in it, cut up."""
        self.schedule, self.tuning = schedule, tuning
        self.cut = units_of(schedule, tuning.lanes, span=tuning.span, limit=tuning.limit, longest=tuning.longest)
        return argument(schedule.walk_params(tuning.lanes, self.cut.longest), self.cut.params())

    def _prepare(
        self,
        kernel: jit.Kernel,
        params: Any,
        slices: int,
        partial: tuple[int, DTypeLike],
        counters: int,
    ) -> None:
        """Prepare the launch. A piece of a long row leaves so many elements of a dtype, and counts arrivals with so many counters."""
        tuning, pieces, (elements, dtype) = self.tuning, self.cut.pieces, partial
        self._params = params
        self._kernel = kernel.launch(self.cut.grid(tuning.lanes, tuning.threads, slices), tuning.threads, params)
        self._workspaces, self._at = Workspaces(pieces * elements, dtype, pieces * counters), None

    def _enqueue(self, x: Any, out: Any) -> None:
        """Launch on the current stream; the lock is held, and the rest of the argument is as this call needs it."""
        params, stream = self._params, self._stream().ptr
        if stream != self._at or jit.recorder() is not None:
            work = self._workspaces.on(stream)
            params.partial, params.arrived = work.partial.data.ptr, work.arrived.data.ptr
            self._at = stream if jit.recorder() is None and self._workspaces.is_settled(stream) else None
        params.x, params.out = x.data.ptr, out.data.ptr
        self._kernel(stream)

"""Which edges of a pattern fetch rows of features that are not zeros, on the GPU; see ``csr/fetched.cu``."""

from __future__ import annotations

import ctypes
from typing import Any

from bitsparse import jit
from bitsparse.backends.cuda.csr.schedule import Rooms, Schedule
from bitsparse.backends.cuda.sparse.checks import BOTH_INDICES

_SOURCE = "csr/fetched.cu"
_KERNELS = "compare_marks", "mark_edges"
_BLOCKS = 8  # of a multiprocessor

FetchedParams = jit.struct(_SOURCE, "FetchedParams")
Fetching = jit.struct("csr/fetched.cuh", "Fetching")


class FetchedEdges:
    """Finds the edges of a pattern whose rows of features have a number that is not 0, from marks of these rows.

    What was found is kept for each stream until other rows are zeros. Kernels that read it must be enqueued before ``schedule.order`` is
    released.

    Parameters
    ----------
    schedule : Schedule
        With indices.

    Attributes
    ----------
    nbytes : int
        Bytes that are kept for a stream.
    """

    def __init__(self, schedule: Schedule) -> None:
        rows, nnz = schedule.shape[1], schedule.nnz
        # Not the schedule's, which patterns with the same rows and other columns share.
        self._rooms, self._words = Rooms(), -(-rows // 32)
        self._head = ctypes.sizeof(Fetching) // 4
        self._size = self._head + self._words + -(-nnz // 32)
        self.nbytes = 4 * (self._size + self._words)
        self._params = jit.filled(FetchedParams(), indices=schedule.indices, rows=rows, words=self._words, nnz=nnz)
        compare, mark = (jit.kernel(_SOURCE, name, schedule.defines) for name in _KERNELS)
        self._compare = compare.launch(1, 1024, self._params)
        self._mark = mark.launch(_BLOCKS * jit.capability().multiprocessors, 256, self._params)

    def marks(self) -> Any:
        """Memory for the marks of a call."""
        return self._rooms.on_stream("marks of rows", (self._words,), "uint32").partial

    def __call__(self, marks: Any) -> tuple[int, int]:
        """Addresses of a ``Fetching`` and of a bit for each edge."""
        # Zeros at first: no row has a mark, and no edge is fetched.
        state = self._rooms.on_stream("edges that are fetched", (0,), "uint32", self._size).arrived.data.ptr
        params = self._params
        params.marks, params.fetching, params.kept = marks.data.ptr, state, state + 4 * self._head
        params.edges = state + 4 * (self._head + self._words)
        self._compare()
        self._mark()
        return state, params.edges


VARIANTS = [variant for name in _KERNELS for variant in jit.variants_of(_SOURCE, name, BOTH_INDICES)]

"""Sums that overlap with the exchange: rows that need only features of their own rank are summed while those of other ranks travel.

Each row is still summed as a whole, in one order, so that results have the same bits with and without overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.arrays.inside import words_to_overwrite
from bitsparse.distributed.operands import Gathering, widened
from bitsparse.distributed.rates import SUMS, exchange_seconds
from bitsparse.distributed.shards import Shard, outer_rows
from bitsparse.interop import streams


class SplitRows(NamedTuple):
    """A shard's rows in two matrices.

    Attributes
    ----------
    inner : TCTiledCSR (rows, rows)
        The rows that need only features of this rank. The other rows are empty in it.
    outer : TCTiledCSR (count, slots)
        The rows that need features of other ranks, with the slots of an exchange as columns.
    rows : array (count,)
        The numbers of the rows of `outer`.
    """

    inner: TCTiledCSR
    outer: TCTiledCSR
    rows: Any


def split(a: Shard, method: str) -> SplitRows:
    """Split the rows of a shard into two matrices, with copies of its values."""
    space: Any = interop.namespace(a.columns)
    own, exchange, dtype = a.part.rows(), a.exchange(method), a.index_dtype(method)
    rows = outer_rows(a.indptr, a.columns, own)
    lengths = a.indptr[1:] - a.indptr[:-1]
    is_outer = space.zeros(a.shape[0], np.bool_)
    is_outer[rows] = True
    # whether each entry lies in an outer row
    if space is np:
        outer = np.repeat(is_outer, lengths)
    else:  # CuPy can only repeat all elements equally often
        outer = is_outer[space.searchsorted(a.indptr[1:], space.arange(a.nnz, dtype=a.indptr.dtype), side="right")]

    def matrix(entries: Any, counts: Any, columns: Any, width: int, row_scale: Any, col_scale: Any) -> TCTiledCSR:
        indptr = space.zeros(counts.size + 1, dtype)
        space.cumsum(counts, out=indptr[1:])
        values = None if a.values is None else a.values[entries]
        return TCTiledCSR.from_arrays(
            indptr,
            interop.contiguous(columns.astype(dtype, copy=False)),
            (counts.size, width),
            data=values,
            row_scale=row_scale,
            col_scale=col_scale,
        )

    inner_scale, outer_scale = (None, None) if a.col_scale is None else (a.col_scale[own], exchange.spread(a.col_scale))
    inner_lengths, inner_columns = space.where(is_outer, 0, lengths), a.columns[~outer] - own.start
    inner = matrix(~outer, inner_lengths, inner_columns, exchange.rows, a.row_scale, inner_scale)
    outer_row_scale = None if a.row_scale is None else a.row_scale[rows]
    slots = exchange.slots_of(a.columns[outer])
    return SplitRows(inner, matrix(outer, lengths[rows], slots, exchange.slots, outer_row_scale, outer_scale), rows)


class Estimate(NamedTuple):
    """Estimated seconds of the parts of a call, by the rates of :mod:`bitsparse.distributed.rates`.

    Overlapping saves the shorter of the exchange and the inner rows' sums, and costs `overhead`; it pays if :attr:`gain` is above zero. If
    nearly all entries have to wait for other ranks, the inner sums take next to no time, and it cannot pay.

    Attributes
    ----------
    exchange, inner, outer : float
        The exchange, the sums of the inner rows and those of the outer rows.
    overhead : float
        What overlapping costs: the outer rows are written twice, and there is a second call.
    waits : float
        The share of the entries that lie in outer rows, and so wait for the exchange.
    """

    exchange: float
    inner: float
    outer: float
    overhead: float
    waits: float

    @property
    def gain(self) -> float:
        """Seconds that overlapping saves."""
        return min(self.exchange, self.inner) - self.overhead

    @property
    def apart(self) -> float:
        """Seconds of a call without overlap."""
        return self.exchange + self.inner + self.outer

    def told(self) -> str:
        """The estimate as a sentence, in microseconds."""
        times = (*self[:4], self.apart, self.apart - self.gain)
        exchange, inner, outer, overhead, apart, together = (f"{1e6 * seconds:.0f}" for seconds in times)
        waits = f"{100 * self.waits:.0f} % of the entries"
        return (
            f"{together} us by estimate (exchange {exchange}, rows of own neighbours {inner} during it, other rows, with {waits}, "
            f"{outer} after it, {overhead} for writing these twice), {apart} us without overlap"
        )


def estimate(a: Shard, method: str, row_bytes: int, result_bytes: int) -> Estimate:
    """Estimate a call whose feature rows have `row_bytes` bytes and whose result rows have `result_bytes`."""
    rows, outer = a.outer()
    rate = SUMS[a.device.partition(":")[0]]
    entry = max(1 / rate.entries, row_bytes / rate.gathered)
    return Estimate(
        exchange_seconds(a.comm.engine, method, a.exchange(method).received * row_bytes),
        (a.nnz - outer) * entry,
        outer * entry,
        rate.call + 3 * rows * result_bytes / rate.copied,
        outer / max(a.nnz, 1),
    )


class OverlappedSums:
    """A product whose inner rows are summed while a thread, and on a GPU a second stream, fetches the rows of other ranks.

    Parameters
    ----------
    function : str
        The public function, for errors.
    shard : Shard
    method : str
        How rows are exchanged.
    make : callable
        ``make(matrix, rows)`` plans the sums of a matrix that holds the rows with the numbers `rows`, or all rows (None).
    """

    def __init__(self, function: str, shard: Shard, method: str, make: Callable[[Any, Any], Any]) -> None:
        self._function, self.device = function, shard.device
        with interop.working_on(shard.device, interop.CUPY):
            parts = split(shard, method)
            self._rows = parts.rows
            host = interop.move(parts.rows, "cpu")
            self._inner, self._outer = make(parts.inner, None), make(parts.outer, host)
        self.shape = self._inner.shape
        self.dtype = np.result_type(self._inner.dtype, self._outer.dtype)
        kernels = dict.fromkeys((self._inner.kernel, self._outer.kernel))
        self.kernel = ", ".join(str(kernel) for kernel in kernels)
        # NCCL only enqueues an exchange; with other engines the host waits for it.
        self._enqueues = shard.comm.engine == "nccl"
        self._thread: ThreadPoolExecutor | None = None
        self._stream: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes that the plans of the two sums keep."""
        return int(self._inner.nbytes) + int(self._outer.nbytes)

    def explain(self) -> str:
        """Tell which kernels compute the two sums, and why."""
        return f"rows of own neighbours: {self._inner.explain()}\nother rows: {self._outer.explain()}"

    def check(self) -> None:
        """Raise errors that the two sums found on the GPU after their calls had returned."""
        self._inner.check()
        self._outer.check()

    def __call__(self, x: Any, gather: Gathering, dtype: Any, out: Any) -> Any:
        """The result of this rank's rows, in `dtype`, which is the same on all ranks."""
        ready = gather.ready("x", x)
        with ready.on, self._meanwhile(lambda: gather("x", ready.x)) as wait:
            if self._inner.dtype == dtype:
                made = self._inner(ready.x, out=out)
            else:
                made = widened(self._inner(ready.x), dtype, out, self._function)
            _put(made, self._rows, self._outer(wait()), self._function)
            if out is not None or isinstance(made, BitTensor):
                return made
            return interop.from_array(interop.as_array(made, self._function)[0], ready.family, self._function)

    @contextmanager
    def _meanwhile(self, bring: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
        """Start an exchange and yield a function that waits for its result. The exchange has ended on exit, even after an error."""
        if self.device == "cpu":
            waiting = self._pool().submit(bring)
            try:
                yield waiting.result
            finally:
                waiting.exception()
            return
        cupy = interop.require_cupy(self._function)
        caller = cupy.cuda.get_current_stream()
        self._stream = self._stream or cupy.cuda.Stream(non_blocking=True)
        ready = streams.recorded(caller)

        def on_stream() -> tuple[Any, Any]:
            with interop.working_on(self.device, interop.CUPY), streams.use_stream(self._stream):
                self._stream.wait_event(ready)
                brought = bring()
                return brought, streams.recorded(self._stream)

        waiting = Future()
        if self._enqueues:
            waiting.set_result(on_stream())
        else:
            waiting = self._pool().submit(on_stream)

        def wait() -> Any:
            brought, arrived = waiting.result()
            caller.wait_event(arrived)
            return brought

        try:
            yield wait
        finally:
            if waiting.exception() is None:
                caller.wait_event(waiting.result()[1])

    def _pool(self) -> ThreadPoolExecutor:
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="bitsparse-exchange")
        return self._thread


def _put(whole: Any, rows: Any, part: Any, function: str) -> None:
    """Write `part` into these rows of `whole`; bfloat16 as bits, since CuPy cannot index it."""
    if isinstance(whole, BitTensor):
        words_to_overwrite(whole)[rows] = part.words
        return
    target = interop.writable_array(whole, function)
    source = interop.as_array(part, function)[0].astype(target.dtype, copy=False)
    if target.dtype.name == "bfloat16":
        target, source = target.view(np.uint16), source.view(np.uint16)
    target[rows] = source


def rows_of_epilogue(epilogue: Any, rows: Any) -> Any:
    """An epilogue for some rows of a matrix: whatever it holds for each row is reduced to these rows.

    Examples
    --------
    >>> rows_of_epilogue(bs.Epilogue(row_scale=[1.0, 2.0, 3.0], bias=0.5), np.array([2])).row_scale
    array([3.])
    """
    if epilogue is None:
        return None
    parts = {}
    for name, axis in (("row_scale", -1), ("out_scale", -2), ("out_offset", -2)):
        value = getattr(epilogue, name)
        if value is None:
            continue
        array = interop.as_array(value, "rows_of_epilogue")[0]
        if array.ndim >= -axis and array.shape[axis] > 1:
            parts[name] = array.take(interop.move(rows, interop.device_of(array)), axis=axis)
    return replace(epilogue, **parts) if parts else epilogue

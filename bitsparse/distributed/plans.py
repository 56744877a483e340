"""Plans over shards, and what all functions over shards do before and behind a sum on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from bitsparse import _check, interop
from bitsparse._communicator import agree, gathered_text, together, who
from bitsparse.arrays import BitTensor
from bitsparse.distributed.operands import Gathering, checked_kind, is_shard, row_bytes, widened
from bitsparse.distributed.overlap import OverlappedSums, estimate, rows_of_epilogue
from bitsparse.distributed.shards import Shard
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import streams
from bitsparse.ops.operands.target import target_of
from bitsparse.ops.recorded import Recorded

Way = Literal["allgather", "halo", "auto"]


class ShardPlan:
    """A product prepared for one rank's rows: ``plan(x, out=None)`` brings the rows that it asks for, and sums. All ranks call it together.

    It has the members of every plan of bitsparse. Buffers belong to one call at a time.

    Attributes
    ----------
    shape : tuple of int
        Of this rank's result.
    dtype : dtype
        Of the result, the same on every rank.
    device : str
    kernel : str
        What sums on this rank.
    exchange : {"allgather", "halo"}
    overlap : bool
        Whether rows of own neighbours are summed while the others' rows travel.
    received_bytes : int
        What one call brings from other ranks.
    """

    def __init__(self, function: str, shard: Shard, plan: Any, exchange: tuple[str, str], kind: dict[str, Any]) -> None:
        self._function, self._shard, self._plan, self._kind = function, shard, plan, kind
        self.exchange, self._why = exchange
        self.overlap = isinstance(plan, OverlappedSums)
        way = shard.exchange(self.exchange)
        self.received_bytes = way.received * kind["row_bytes"]
        self._gather = Gathering(function, shard, way)
        self.shape, self.device, self.kernel = plan.shape, plan.device, plan.kernel
        self.dtype = common_dtype(shard, plan.dtype)

    def __repr__(self) -> str:
        return f"<ShardPlan of {self._function.removeprefix('plan_')} {self.shape}, {who(self._shard.comm)}, {self.exchange}>"

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers for gathered rows, and of what the plan of the sum keeps."""
        return int(self._plan.nbytes) + self._gather.nbytes

    def explain(self) -> str:
        """Which exchange, whether sums overlap with it, by which estimate, and which kernel, and why."""
        return f"{self._why}\n{self._plan.explain()}"

    def check(self) -> None:
        """What a call on a GPU did not wait to find out, raised on every rank if on one; all ranks call it together."""
        with together(self._shard.comm, self._function):
            self._plan.check()

    def __call__(self, x: Any, add: Any = None, out: Any = None) -> Any:
        """The result of this rank's rows.

        Parameters
        ----------
        x : array (rows, ...) or BitTensor (rows, d)
            Features of this rank's rows, of the planned kind. A scale or an offset that is no row's own is the same on every rank, as
            :func:`quantize` makes it.
        add : array or BitTensor, optional
            Of a plan of bspmm with ``add=True``: float32, integers of up to 16 bits, or one bit.
        out : array or BitTensor, optional
            Where to write; of exactly the result's kind.
        """
        function = self._function
        self._check_kind(x)
        if (add is not None) != self._kind["add"]:
            planned, made = ("with", "without") if self._kind["add"] else ("without", "with")
            raise ValueError(
                f"{function}: the plan is for calls {planned} add, but this one comes {made} it; make another plan, of bspmm, with "
                f"add={add is not None}"
            )
        if add is not None and not isinstance(add, BitTensor):
            dtype = interop.as_array(add, function, "add")[0].dtype
            if dtype.kind in "iu" and dtype.itemsize > 2:
                raise DTypeError(
                    f"{function}: add is {dtype}, whose sums may need 64 bits on one rank alone; pass float32, or call distributed.bspmm"
                )
        if isinstance(self._plan, OverlappedSums):
            return self._plan(x, self._gather, self.dtype, out)
        gathered = self._gather("x", x)
        more = {} if add is None else {"add": add}
        if self.dtype == self._plan.dtype:
            return self._plan(gathered, out=out, **more)
        return widened(self._plan(gathered, **more), self.dtype, out, function)

    def recorded(self, x: Any, out: Any, add: Any = None) -> Callable[[], None]:
        """The call ``plan(x, add, out)`` as a CUDA graph, exchange and sums, which all ranks record together and replay together.

        A replay reads and writes the memory of these very arrays, on CuPy's current stream, and takes the host some microseconds.

        Parameters
        ----------
        x, out, add : array or BitTensor
            As in a call.

        Returns
        -------
        callable
            Without arguments. It has to go before the process group does, whose end waits for it.

        Raises
        ------
        ValueError
            Another engine than NCCL, whose exchanges the host waits for.

        Examples
        --------
        Under ``torchrun``, with a GPU to each rank::

            layer = plan.recorded(x_mine, out)
            for _ in range(100):
                layer()

        >>> import scipy.sparse as sp
        >>> from bitsparse import distributed
        >>> def mine(comm):
        ...     part = distributed.partition(sp.eye_array(4, format="csr"), comm)
        ...     plan = distributed.plan_spmm(distributed.shard(sp.eye_array(4, format="csr"), part), 1)
        ...     plan.recorded(np.ones((2, 1), np.float32), None)
        >>> distributed.local(2).run(mine)
        Traceback (most recent call last):
            ...
        ValueError: plan_spmm: exchanges of local are not recorded in a CUDA graph; call the plan, or use NCCL
        """
        engine = self._shard.comm.engine
        if engine != "nccl":
            raise ValueError(
                f"{self._function}: exchanges of {engine} are not recorded in a CUDA graph; call the plan, or use NCCL"
            )

        def call() -> None:
            # The stream that records, whatever library the arrays are from.
            with streams.use_stream(interop.require_cupy(self._function).cuda.get_current_stream()):
                self(x, add, out)

        with interop.working_on(self.device, interop.CUPY):
            return Recorded(call)

    def _check_kind(self, x: Any) -> None:
        """Refuse features of another kind than the planned one: other bits, encoding, dtype or columns."""
        kind, function = self._kind, self._function
        if isinstance(x, BitTensor):
            found: tuple[Any, ...] = (x.bits, x.encoding, tuple(x.shape[1:]))
        else:
            array = interop.as_array(x, function, "x")[0]
            found = (str(array.dtype), tuple(array.shape[1:]))
        if found not in kind["accepts"]:
            raise ShapeError(
                f"{function}: x is {found}, but the plan is for {kind['accepts'][0]}, on every rank alike; make another plan"
            )


def common_dtype(shard: Shard, dtype: Any) -> np.dtype[Any]:
    """The dtype that holds the results of all ranks: of integers, some ranks may need 64 bits for their longest row and others not."""
    names = gathered_text(shard.comm, np.dtype(dtype).name)
    return np.dtype(dtype) if len(set(names)) == 1 else np.result_type(*(np.dtype(name) for name in names))


class Width(NamedTuple):
    """Bytes of a row of the features as it is sent, and of a row of the result."""

    sent: int
    result: int


def planned(
    function: str,
    A: Any,
    exchange: str,
    size: Width,
    make: Callable[..., Any],
    accepts: list[tuple[Any, ...]],
    overlap: bool | None,
    epilogue: Any = None,
    **facts: Any,
) -> ShardPlan:
    """Agree on the arguments, choose the exchange and whether sums overlap with it, and plan on every rank: ``make(matrix, epilogue=)``."""
    shard = is_shard(function, A)
    agree(shard.comm, function, exchange=exchange, **facts)
    method, why = shard.choose(function, exchange, size.sent)
    shard.exchange(method)

    def of_rows(matrix: Any, rows: Any = None) -> Any:
        return make(matrix, epilogue=epilogue if rows is None else rows_of_epilogue(epilogue, rows))

    with together(shard.comm, function):
        fixed = shard.values is None or bool(facts.get("frozen"))
        overlapped, how = overlaps(
            function, shard, method, size, overlap, overlap_obstacle(shard, epilogue, facts), fixed
        )
        plan = OverlappedSums(function, shard, method, of_rows) if overlapped else of_rows(shard.matrix(method))
    kind = {"row_bytes": size.sent, "accepts": accepts, "add": bool(facts.get("add"))}
    return ShardPlan(function, shard, plan, (method, f"{why}\n{how}"), kind)


def overlap_obstacle(shard: Shard, epilogue: Any, facts: dict[str, Any]) -> str | None:
    """Why rows of a result cannot be summed apart from each other, if so."""
    if facts.get("add"):
        return "add=True takes one call for all rows"
    if epilogue is not None and (epilogue.bits is not None or epilogue.binarize) and epilogue.axis != -1:
        return "the epilogue packs along rows; pack along features (axis=-1)"
    if not getattr(shard.comm, "any_thread", True):
        return "MPI was started for one thread; start it with MPI_THREAD_MULTIPLE"
    return None


def overlaps(
    function: str, shard: Shard, method: str, size: Width, wanted: bool | None, obstacle: str | None, fixed: bool
) -> tuple[bool, str]:
    """Whether the inner rows are summed during the exchange, and why; each rank for itself, as the exchange is the same.

    Values that are not `fixed` are copied only where it is asked for.
    """
    if wanted is not None:
        _check.flag(function, "overlap", wanted)
    if obstacle is not None and wanted:
        raise ValueError(f"{function}: overlap=True, but {obstacle}; or pass overlap=None")
    if wanted is None and obstacle is None:
        if not shard.exchange(method).received:
            obstacle = "no rows come from other ranks"
        elif not fixed:
            obstacle = "values may change between calls, and overlapping copies them; pass frozen=True if they do not"
    if obstacle is not None or wanted is False:
        return False, f"not overlapped: {obstacle or 'as asked for'}"
    found = estimate(shard, method, *size)
    overlapped = bool(wanted) or found.gain > 0
    asked = ", as asked for" if wanted else ""
    return overlapped, f"{'overlapped' if overlapped else 'not overlapped'}{asked}: {found.told()}"


def gathering(
    function: str, A: Any, exchange: str, options: dict[str, Any], **operands: Any
) -> tuple[Shard, Any, Gathering]:
    """The shard, its matrix over the slots of an exchange, and what gathers these operands; all ranks agree on them and on `options`."""
    shard = is_shard(function, A)
    checked_kind(function, shard, {"exchange": exchange, **options}, **operands)
    size = 0
    for x in operands.values():
        if isinstance(x, BitTensor):
            size += row_bytes(int(x.shape[-1]), bits=x.bits)
        else:
            array = interop.as_array(x, function, "x")[0]
            size += row_bytes(int(np.prod(array.shape[1:])), dtype=array.dtype)
    method, _ = shard.choose(function, exchange, size)
    return shard, shard.matrix(method), Gathering(function, shard, shard.exchange(method))


def summed(
    function: str, A: Any, x: Any, exchange: str, multiply: Callable[[Any, Any], Any], out: Any, **options: Any
) -> Any:
    """``multiply(matrix, rows)`` of the rows that an exchange brings, in the dtype of all ranks, into `out` if it is given.

    All ranks agree on `options`.
    """
    shard, matrix, gather = gathering(function, A, exchange, options, x=x)
    gathered = gather("x", x)
    with together(shard.comm, function):
        result = multiply(matrix, gathered)
    return in_common_dtype(function, shard, result, out)


def in_common_dtype(function: str, shard: Shard, result: Any, out: Any) -> Any:
    """A result in the dtype of all ranks, into `out` if it is given."""
    if isinstance(result, BitTensor):
        if out is not None:
            target = target_of(function, out, result.shape, result.dtype, result.device, [], result, "an array")
            target[...] = result.words.reshape(target.shape)
            return out
        return result
    dtype = common_dtype(shard, interop.as_array(result, function)[0].dtype)
    return widened(result, dtype, out, function)

"""Plans over shards, and the steps that all functions over shards take before and after a sum on one device."""

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
    """A product prepared for one rank's rows: ``plan(x, out=None)`` exchanges rows and sums them. All ranks call it together.

    It has the members that all plans of bitsparse have. Only one call at a time may use its buffers.

    Attributes
    ----------
    shape : tuple of int
        The shape of this rank's result.
    dtype : dtype
        The dtype of the result, the same on every rank.
    device : str
    kernel : str
        The kernel that sums on this rank.
    exchange : {"allgather", "halo"}
    overlap : bool
        Whether rows whose neighbours are all on this rank are summed during the exchange.
    received_bytes : int
        Bytes that one call receives from other ranks.
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
        """Bytes of the buffers for gathered rows, and those that the plan of the sum keeps."""
        return int(self._plan.nbytes) + self._gather.nbytes

    def explain(self) -> str:
        """Tell which exchange and which kernel the plan uses and whether sums overlap with the exchange, each with the reason."""
        return f"{self._why}\n{self._plan.explain()}"

    def check(self) -> None:
        """Raise errors that a GPU found after a call had returned. All ranks call it together, and all raise if one does."""
        with together(self._shard.comm, self._function):
            self._plan.check()

    def __call__(self, x: Any, add: Any = None, out: Any = None) -> Any:
        """The result of this rank's rows.

        Parameters
        ----------
        x : array (rows, ...) or BitTensor (rows, d)
            Features of this rank's rows, of the planned kind. A scale or an offset that holds for all rows has to be the same on every
            rank, as from :func:`quantize`.
        add : array or BitTensor, optional
            For a plan of bspmm with ``add=True``: float32, integers of up to 16 bits, or one bit.
        out : array or BitTensor, optional
            Where to write the result; it has exactly the result's kind.
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
        """Record the call ``plan(x, add, out)``, exchange included, as a CUDA graph. All ranks record and replay it together.

        A replay reads and writes the memory of these very arrays, on CuPy's current stream, and takes the host a few microseconds.

        Parameters
        ----------
        x, out, add : array or BitTensor
            As in a call.

        Returns
        -------
        callable
            It takes no arguments and replays the graph. Delete it before the process group, which otherwise waits for it at its end.

        Raises
        ------
        ValueError
            The engine is not NCCL; the host waits for the exchanges of other engines, so they cannot be recorded.

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
            # Arrays of other libraries have to use the recording stream as well.
            with streams.use_stream(interop.require_cupy(self._function).cuda.get_current_stream()):
                self(x, add, out)

        with interop.working_on(self.device, interop.CUPY):
            return Recorded(call, held=call)

    def _check_kind(self, x: Any) -> None:
        """Raise if the bits, encoding, dtype or columns of the features are not the planned ones."""
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
    """The dtype that holds the results of all ranks. For integers, some ranks may need 64 bits for their longest row and others not."""
    names = gathered_text(shard.comm, np.dtype(dtype).name)
    return np.dtype(dtype) if len(set(names)) == 1 else np.result_type(*(np.dtype(name) for name in names))


class Width(NamedTuple):
    """The bytes of a feature row as it is sent, and of a row of the result."""

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
    """Why the rows of a result cannot be summed in two parts, None if they can."""
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
    """Whether the inner rows are summed during the exchange, and why. Each rank decides for itself: the exchange is the same either way.

    Overlapping copies values. If they are not `fixed`, that happens only if overlap is asked for.
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
    """The shard, its matrix over the slots of an exchange, and the gathering of operands; all ranks agree on these and on `options`."""
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
    """Exchange rows and return ``multiply(matrix, rows)`` in the dtype of all ranks, written into `out` if it is given.

    All ranks agree on `options`.
    """
    shard, matrix, gather = gathering(function, A, exchange, options, x=x)
    gathered = gather("x", x)
    with together(shard.comm, function):
        result = multiply(matrix, gathered)
    return in_common_dtype(function, shard, result, out)


def in_common_dtype(function: str, shard: Shard, result: Any, out: Any) -> Any:
    """Convert a result to the dtype of all ranks, written into `out` if it is given."""
    if isinstance(result, BitTensor):
        if out is not None:
            target = target_of(function, out, result.shape, result.dtype, result.device, [], result, "an array")
            target[...] = result.words.reshape(target.shape)
            return out
        return result
    dtype = common_dtype(shard, interop.as_array(result, function)[0].dtype)
    return widened(result, dtype, out, function)

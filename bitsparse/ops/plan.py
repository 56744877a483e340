"""What all plans have in common, and the one mechanism by which a call like an earlier one goes straight to its kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.arrays.inside import store_of, values_and_scales
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.sparse import as_csr

__all__ = ["CALLS", "CallKey", "KeptCall", "Plan", "edge_call", "learn", "learn_floats", "repeated"]

Array = NDArray[Any]
#: Shape and dtype of an array.
ArrayKind = tuple[tuple[int, ...], np.dtype[Any]]
#: Dtypes of arrays that kernels take as they are.
_FLOATS = ("float32", "float64", "float16", "bfloat16")


@runtime_checkable
class Plan(Protocol):
    """A product prepared for one operand; what every ``plan_*`` returns.

    With ``out=`` a call of a plan on a GPU allocates, compiles and waits for nothing from its second time on.

    Attributes
    ----------
    shape : tuple of int
        Of the result.
    dtype : dtype
        Of the result for what was planned; of the values that a BitTensor holds, if one comes out.
    device : str
        Where the operand is and all others must be.
    kernel : str
        Which kernel computes what was planned.
    nbytes : int
        Bytes of memory that are kept for the operand beside its own arrays.
    """

    shape: tuple[int, ...]
    device: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the result."""
        ...

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes kept beside the operand."""
        ...

    def __call__(self, x: Any, /, *, out: Any = None) -> Any:
        """The product with `x`, in `out` if it is given."""

    def check(self) -> None:
        """Raise what a call on a GPU did not wait to find out; waits."""

    def explain(self) -> str:
        """What runs and why, in a few lines."""


class CallKey(NamedTuple):
    """What makes two calls alike, before their arrays are looked at: the function, its options, and what it was given."""

    function: str
    options: tuple[Hashable, ...]
    shape: tuple[int, ...]
    dtype: Hashable
    arrays: int = 1


class KeptCall:
    """A call with CuPy arrays of certain shapes and dtypes, without gaps, on one GPU: nothing is left to be decided.

    Whatever does not fit goes through the function itself, which then says what is wrong with it.

    Parameters
    ----------
    run : callable
        ``run(*arguments, out)``
    inputs : sequence of (shape, dtype)
        Of the arrays that a call brings.
    result : (shape, dtype)
    device : str
    ready : Ready, optional
        When what was prepared on another stream may be read.
    owner : tuple
        Arrays that the kernel reads besides, compared by identity: arrays over one pattern may differ in values and scales.
    beside : sequence of arrays
        Arrays that the kernel reads besides and that the result must not share memory with.
    alignment : int
        Bytes to which all arrays are aligned.
    in_place : bool
        The result may lie where the first array does.
    """

    __slots__ = (
        "_alignment",
        "_beside",
        "_current_gpu",
        "_gpu",
        "_in_place",
        "_inputs",
        "_ndarray",
        "_ready",
        "_result",
        "_run",
        "_space",
        "owner",
    )

    def __init__(
        self,
        run: Callable[..., Any],
        inputs: Sequence[ArrayKind],
        result: ArrayKind,
        device: str,
        *,
        ready: interop.Ready | None = None,
        owner: tuple[Any, ...] = (),
        beside: Sequence[Any] = (),
        alignment: int = 1,
        in_place: bool = False,
    ) -> None:
        self._run, self._ready, self.owner = run, ready, owner
        self._inputs, self._result = tuple(inputs), (result[0], np.dtype(result[1]))
        self._beside = tuple((array.data.ptr, array.data.ptr + array.nbytes) for array in beside)
        self._alignment, self._in_place = alignment, in_place
        self._space = interop.require_cupy("plan")
        self._ndarray = self._space.ndarray
        self._gpu, self._current_gpu = int(device[5:]), interop.current_gpu()

    def belongs_to(self, owner: tuple[Any, ...]) -> bool:
        """Whether the kernel reads these very arrays."""
        return all(mine is theirs for mine, theirs in zip(self.owner, owner, strict=True))

    def fits(self, arrays: tuple[Any, ...], out: Any) -> bool:
        """Whether these are such arrays."""
        if self._current_gpu() != self._gpu:
            return False
        for array, kind in zip(arrays, self._inputs, strict=True):
            if not self._is(array, kind):
                return False
        return out is None or self._takes(out, arrays)

    def _is(self, array: Any, kind: ArrayKind) -> bool:
        if array.__class__ is not self._ndarray or array.shape != kind[0] or array.dtype != kind[1]:
            return False
        memory = array.data
        aligned = self._alignment == 1 or memory.ptr % self._alignment == 0
        return bool(aligned and array.flags.c_contiguous and memory.device_id == self._gpu)

    def _takes(self, out: Any, arrays: tuple[Any, ...]) -> bool:
        """Whether a result can be written to `out`, which shares no memory with what is read."""
        if not self._is(out, self._result):
            return False
        start = out.data.ptr
        stop = start + out.nbytes
        for array in arrays:
            other = array.data.ptr
            if start < other + array.nbytes and stop > other and not (self._in_place and other == start):
                return False
        return all(start >= end or stop <= begin for begin, end in self._beside)

    def __call__(self, arguments: Sequence[Any], out: Any) -> Any:
        """The result, in `out` if it is given."""
        if self._ready is not None:
            self._ready.wait()
        result = self._space.empty(*self._result) if out is None else out
        self._run(*arguments, result)
        return result


#: Calls that a pattern keeps.
CALLS: Slot[KeptCall] = Slot("calls", most=16)


def repeated(A: Any, function: str, options: tuple[Hashable, ...] | None, arrays: tuple[Any, ...], out: Any) -> Any:
    """The result of a call that is like an earlier one over the pattern of `A`; None for all others, and where `options` is None."""
    if options is None or not isinstance(A, SparseArray):
        return None
    first, calls = arrays[0], store_of(A).get(CALLS)
    if calls is None or interop.namespace(first) is np:
        return None
    call: KeptCall | None = calls.get(CallKey(function, options, first.shape, first.dtype, len(arrays)))
    if call is None or (call.owner and not call.belongs_to(values_and_scales(A))) or not call.fits(arrays, out):
        return None
    return call(arrays, out)


def learn(
    A: Any, function: str, options: tuple[Hashable, ...] | None, arrays: tuple[Any, ...], call: KeptCall | None
) -> None:
    """Keep a call that was right with the pattern of `A`, if there is one."""
    if call is not None and options is not None:
        first = arrays[0]
        CALLS.keep(store_of(A), call, CallKey(function, options, first.shape, first.dtype, len(arrays)))


def learn_floats(
    A: Any,
    function: str,
    options: tuple[Hashable, ...] | None,
    arrays: tuple[Any, ...],
    make: Callable[..., KeptCall | None],
) -> None:
    """:func:`learn` what ``make(operand, *arrays)`` gives, for a container and floating CuPy arrays that kernels take as they lie."""
    if options is None or not isinstance(A, SparseArray) or A.device == "cpu":
        return
    ndarray = interop.require_cupy(function).ndarray
    for one in arrays:
        if one.__class__ is not ndarray or one.dtype.name not in _FLOATS or not one.size:
            return
        if not one.flags.c_contiguous or one.data.ptr % 16:
            return
    operand = as_csr(function, A)
    if operand.order is None and operand.nnz:
        with operand.division(function):
            call = make(operand, *arrays)
        learn(A, function, options, arrays, call)


def edge_call(
    operand: CSROperand,
    run: Callable[..., Any],
    arrays: tuple[Any, ...],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    owner: tuple[Any, ...] = (),
    in_place: bool = False,
) -> KeptCall:
    """A call over one pattern with arrays like these, aligned to 16 bytes, and a result of this shape and dtype."""
    kinds = [(array.shape, array.dtype) for array in arrays]
    return KeptCall(
        run,
        kinds,
        (shape, dtype),
        operand.device,
        ready=operand.ready,
        owner=owner,
        alignment=16,
        in_place=in_place,
    )

"""What all plans have in common, and the one mechanism by which a call like an earlier one goes straight to its kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.interop.kept import Slot

__all__ = ["CALLS", "CallKey", "KeptCall", "Plan", "kind_of"]

Array = NDArray[Any]
#: Shape and dtype of an array.
ArrayKind = tuple[tuple[int, ...], np.dtype[Any]]


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


def kind_of(array: Any) -> ArrayKind:
    """Shape and dtype of an array."""
    return array.shape, array.dtype


#: Calls that a pattern keeps.
CALLS: Slot[KeptCall] = Slot("calls", most=32)

"""What all plans have in common, and the one mechanism by which a call like an earlier one goes straight to its kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bitsparse import interop
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.inside import store_of, values_and_scales
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.csr import CSROperand, same_arrays
from bitsparse.ops.operands.sparse import as_csr

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
    dtype: np.dtype[Any]
    device: str
    kernel: str
    nbytes: int

    def __call__(self, x: Any, /, *, out: Any = None) -> Any:
        """The product with `x`, in `out` if it is given."""

    def check(self) -> None:
        """Raise what a call on a GPU did not wait to find out; waits."""

    def explain(self) -> str:
        """What runs and why, in a few lines."""


#: What makes two calls alike, before arrays are looked at: the function, its options, shape and dtype of the first array that it was given,
#: how many it was given, and whether the matrix has values, factors of rows and factors of columns.
CallKey = tuple[str, tuple[Hashable, ...], tuple[int, ...], Hashable, int, bool, bool, bool]


class KeptCall:
    """A call with arrays of certain shapes and dtypes, without gaps, on one device: nothing is left to be decided.

    Whatever does not fit goes through the function itself, which then says what is wrong with it.

    Parameters
    ----------
    run : callable
        ``run(*arguments, out)``; of the CPU with NumPy arrays or addresses.
    inputs : sequence of (shape, dtype)
        Of the arrays that a call brings.
    result : (shape, dtype)
    device : str
    family : Family
        Of the arrays: CuPy's on a GPU, on the CPU NumPy's or PyTorch's.
    ready : Ready, optional
        When what was prepared on another stream may be read.
    owner : tuple
        Arrays that the kernel reads besides, compared by identity: arrays over one pattern may differ in values and scales.
    beside : sequence of NumPy or CuPy arrays or None
        Arrays that the kernel reads besides and that the result must not share memory with.
    alignment : int
        Bytes to which all arrays on a GPU are aligned.
    in_place : bool
        The result may lie where the first array does.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        inputs: Sequence[interop.ArrayKind],
        result: interop.ArrayKind,
        device: str,
        *,
        family: interop.Family = interop.CUPY,
        ready: interop.Ready | None = None,
        owner: tuple[Any, ...] = (),
        beside: Sequence[Any] = (),
        alignment: int = 1,
        in_place: bool = False,
    ) -> None:
        self._run, self._ready, self.owner = run, ready, owner
        self._arrays = interop.arrays_on(device, family)
        self._inputs = tuple(self._arrays.kind(shape, np.dtype(dtype)) for shape, dtype in inputs)
        self._result = self._arrays.kind(result[0], np.dtype(result[1]))
        spans = tuple(interop.span(array) for array in beside if array is not None)
        self._about = interop.Bounds(alignment, spans, in_place)

    def fits(self, arrays: tuple[Any, ...], out: Any) -> bool:
        """Whether these are such arrays, and a result can be written to `out`, which shares no memory with what is read."""
        arrays_of = self._arrays
        return arrays_of.here() and arrays_of.takes(arrays, self._inputs, out, self._result, self._about)

    def __call__(self, arguments: Sequence[Any], out: Any) -> Any:
        """The result, in `out` if it is given."""
        if self._ready is not None:
            self._ready.wait()
        result, address = self._arrays.empty(self._result) if out is None else out, self._arrays.address
        if address is None:
            self._run(*arguments, result)
        else:
            self._run(*map(address, arguments), address(result))
        return result


class LongWay(KeptCall):
    """Stands for calls that are looked at every time: nothing fits."""

    def __init__(self, owner: tuple[Any, ...]) -> None:
        self.owner = owner

    def fits(self, arrays: tuple[Any, ...], out: Any) -> bool:
        """Never."""
        return False


#: Calls that a pattern keeps.
CALLS: Slot[KeptCall] = Slot("calls", most=16)


def repeated(
    A: Any,
    function: str,
    options: tuple[Hashable, ...] | None,
    arrays: tuple[Any, ...],
    out: Any,
    first: Callable[..., KeptCall | None] | None = None,
) -> Any:
    """The result of a call that is like an earlier one over the pattern of `A`; None for all others.

    Parameters
    ----------
    options : tuple or None
        None for calls that are never kept.
    first : callable, optional
        ``first(A, *options, shape, dtype)`` prepares a call with CuPy arrays for which there is no earlier one from the kind of its first
        array; None where that does not suffice.
    """
    if options is None:
        return None
    x = arrays[0]
    try:
        calls, factors = store_of(A).get(CALLS), values_and_scales(A)
        key = _key(factors, function, options, arrays)
        call: KeptCall | None = None if calls is None else calls.get(key)
    except (AttributeError, TypeError):
        return None  # no container, no array, or an option of no kind that there is, which the long way refuses
    if call is None or (call.owner and not same_arrays(call.owner, factors)):
        if first is None or not isinstance(x, interop.cupy_arrays()):
            return None
        call = first(A, *options, x.shape, x.dtype) or LongWay(factors)
        CALLS.keep(store_of(A), call, key)
    if not call.fits(arrays, out):
        return None
    try:
        return call(arrays, out)
    except ValueError:  # what a kernel of the CPU finds in a pattern, the function says in full
        return None


def _key(factors: tuple[Any, Any, Any], function: str, options: Any, arrays: tuple[Any, ...]) -> CallKey:
    x, (values, rows, columns) = arrays[0], factors
    return function, options, x.shape, x.dtype, len(arrays), values is not None, rows is not None, columns is not None


def learn_floats(
    A: Any,
    function: str,
    options: tuple[Hashable, ...] | None,
    arrays: tuple[Any, ...],
    make: Callable[..., KeptCall | None],
    *,
    on_host: bool = False,
) -> None:
    """Keep what ``make(operand, family, *arrays)`` gives for a container and floating arrays that kernels take as they lie.

    On a GPU these are CuPy's; where kernels of the CPU know such calls they are NumPy's or PyTorch's, and `make` gets NumPy's views.
    """
    if options is None or not isinstance(A, SparseArray) or (A.device == "cpu" and not on_host):
        return
    family, views = (_views(function, arrays) if A.device == "cpu" else _as_they_lie(function, arrays)) or (None, ())
    if family is None or any(view.dtype.name not in _FLOATS or not view.size for view in views):
        return
    operand = as_csr(function, A)
    if operand.order is None and operand.nnz:
        with operand.walked(function):
            call = make(operand, family, *views)
        if call is not None:
            CALLS.keep(store_of(A), call, _key(values_and_scales(A), function, options, arrays))


def _as_they_lie(function: str, arrays: tuple[Any, ...]) -> tuple[interop.Family, tuple[Any, ...]] | None:
    """Arrays of CuPy's that kernels take as they are."""
    ndarray = interop.require_cupy(function).ndarray
    fit = all(one.__class__ is ndarray and one.flags.c_contiguous and one.data.ptr % 16 == 0 for one in arrays)
    return (interop.CUPY, arrays) if fit else None


def _views(function: str, arrays: tuple[Any, ...]) -> tuple[interop.Family, tuple[Any, ...]] | None:
    """NumPy's views of arrays that are all NumPy's, or all PyTorch's, and that kernels of the CPU take as they are."""
    if any(isinstance(one, BitArray) for one in arrays):
        return None
    found = [interop.as_array(one, function) for one in arrays]
    family, views = found[0][1], tuple(view for view, _ in found)
    if family == interop.NUMPY:
        known = all(one is view for one, view in zip(arrays, views, strict=True))
    else:
        known = family == interop.TORCH and all(one == family for _, one in found)
    return (family, views) if known and all(v.flags.c_contiguous and v.flags.aligned for v in views) else None


def edge_call(
    operand: CSROperand,
    run: Callable[..., Any],
    arrays: tuple[Any, ...],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    in_place: bool = False,
) -> KeptCall:
    """A call over one pattern on a GPU with arrays like these, aligned to 16 bytes, and a result of this shape and dtype."""
    kinds, device = [(array.shape, array.dtype) for array in arrays], operand.device
    return KeptCall(run, kinds, (shape, dtype), device, ready=operand.ready, alignment=16, in_place=in_place)

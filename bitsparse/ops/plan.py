"""The interface of all plans, and the mechanism by which a call that is like an earlier one goes straight to its kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bitsparse import interop
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.inside import store_of, values_and_scales
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.sparse import as_csr

#: Dtypes of arrays that kernels take as they are.
_FLOATS = ("float32", "float64", "float16", "bfloat16")


@runtime_checkable
class Plan(Protocol):
    """A product prepared for one operand; every ``plan_*`` function returns one.

    From its second call on, a plan on a GPU that gets ``out=`` allocates nothing, compiles nothing and waits for nothing.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result.
    dtype : dtype
        Dtype of the result; if the result is a BitTensor, of the values that it holds.
    device : str
        Device of the operand; all other arrays must be there too.
    kernel : str
        Name of the kernel that computes the product.
    nbytes : int
        Bytes that the plan keeps for the operand, in addition to the operand's own arrays.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: str
    kernel: str
    nbytes: int

    def __call__(self, x: Any, /, *, out: Any = None) -> Any:
        """Return the product with `x`, in `out` if it is given."""

    def check(self) -> None:
        """Wait for the GPU, and raise the errors for which earlier calls did not wait."""

    def explain(self) -> str:
        """Say in a few lines what runs and why."""


#: What two alike calls share, before arrays are compared in full: the function, its options, shape and dtype of its first array, the number
#: of arrays, and whether the matrix has values, row scales and column scales.
CallKey = tuple[str, tuple[Hashable, ...], tuple[int, ...], Hashable, int, bool, bool, bool]


class KeptCall:
    """A call with contiguous arrays of certain shapes and dtypes on one device, for which every decision has been made.

    A call that does not fit goes through the function itself, which reports what is wrong, if anything is.

    Parameters
    ----------
    run : callable
        ``run(*arguments, out)``; on the CPU it takes NumPy arrays or addresses.
    inputs : sequence of (shape, dtype)
        Shapes and dtypes of the arrays that a call passes.
    result : (shape, dtype)
    device : str
    family : Family
        Family of the arrays: CuPy's on a GPU, NumPy's or PyTorch's on the CPU.
    ready : Ready, optional
        Tells when this stream may read what was prepared on another one.
    owner : tuple
        Values, row scales and column scales that the kernel reads, compared by identity: matrices with the same pattern may differ in
        them. Empty if it reads none of a matrix.
    beside : sequence of NumPy or CuPy arrays or None
        Further arrays that the kernel reads and with which the result must not share memory.
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

    def reads(self, factors: tuple[Any, Any, Any]) -> bool:
        """Whether a matrix with these values, row scales and column scales is the one that the kernel reads."""
        own = self.owner
        return not own or (own[0] is factors[0] and own[1] is factors[1] and own[2] is factors[2])

    def fits(self, arrays: tuple[Any, ...], out: Any) -> bool:
        """Whether `arrays` have these shapes and dtypes, and `out` can take the result and shares no memory with what is read."""
        arrays_of = self._arrays
        return arrays_of.here() and arrays_of.takes(arrays, self._inputs, out, self._result, self._about)

    def __call__(self, arguments: Sequence[Any], out: Any) -> Any:
        """Return the result, in `out` if it is given."""
        if self._ready is not None:
            self._ready.wait()
        result, address = self._arrays.empty(self._result) if out is None else out, self._arrays.address
        if address is None:
            self._run(*arguments, result)
        else:
            self._run(*map(address, arguments), address(result))
        return result


class LongWay(KeptCall):
    """Marks calls that the function itself must check every time: no arrays fit it."""

    def __init__(self, owner: tuple[Any, ...]) -> None:
        self.owner = owner

    def fits(self, arrays: tuple[Any, ...], out: Any) -> bool:
        """Always False."""
        return False


#: The slot in which a pattern keeps its calls.
CALLS: Slot[KeptCall] = Slot("calls", most=16)


def repeated(
    A: Any,
    function: str,
    options: tuple[Hashable, ...] | None,
    arrays: tuple[Any, ...],
    out: Any,
    first: Callable[..., KeptCall | None] | None = None,
    beside: tuple[Any, ...] = (),
) -> Any:
    """The result of a call that is like an earlier one over the pattern of `A`; None for any other call.

    Parameters
    ----------
    options : tuple or None
        None for calls that are never kept.
    first : callable, optional
        ``first(A, *options, shape, dtype)`` prepares the first such call with CuPy arrays from shape and dtype of its first array; it
        returns None if these do not suffice.
    beside : tuple
        Further arguments of this call, which nothing checks.
    """
    if options is None:
        return None
    x = arrays[0]
    try:
        calls, factors = store_of(A).get(CALLS), values_and_scales(A)
        key = _key(factors, function, options, arrays)
        call: KeptCall | None = None if calls is None else calls.get(key)
    except (AttributeError, TypeError):
        return None  # A is no container, x is no array, or an option has an impossible type, which the function itself refuses
    if call is None or not call.reads(factors):
        if first is None or not isinstance(x, interop.cupy_arrays()):
            return None
        call = first(A, *options, x.shape, x.dtype) or LongWay(factors)
        CALLS.keep(store_of(A), call, key)
    if not call.fits(arrays, out):
        return None
    try:
        return call((*arrays, *beside), out)
    except ValueError:  # a CPU kernel found a fault in the pattern; the function itself raises the full message
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
    """Keep the call that ``make(operand, family, *arrays)`` returns, for a container and floating arrays that kernels can take as they are.

    On a GPU these are CuPy arrays. With `on_host` they may also be NumPy arrays or PyTorch tensors on the CPU; `make` gets NumPy views.
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
    """The arrays and their family, if all are CuPy arrays that kernels can take as they are; else None."""
    ndarray = interop.require_cupy(function).ndarray
    fit = all(one.__class__ is ndarray and one.flags.c_contiguous and one.data.ptr % 16 == 0 for one in arrays)
    return (interop.CUPY, arrays) if fit else None


def _views(function: str, arrays: tuple[Any, ...]) -> tuple[interop.Family, tuple[Any, ...]] | None:
    """NumPy views of the arrays, if all are NumPy's or all PyTorch's and CPU kernels can take them as they are; else None."""
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
    """A kept call over one pattern on a GPU, for arrays like these, aligned to 16 bytes, and a result of this shape and dtype."""
    kinds, device = [(array.shape, array.dtype) for array in arrays], operand.device
    return KeptCall(run, kinds, (shape, dtype), device, ready=operand.ready, alignment=16, in_place=in_place)

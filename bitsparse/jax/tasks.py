"""What a call of XLA's is to compute, read from its text, and the functions that compute it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _records, interop
from bitsparse._ext import xla
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.interop import as_bits
from bitsparse.jax.memory import Placed, pattern_at
from bitsparse.jax.ways import Known, Side, graph_called


class Call(NamedTuple):
    """One call of a foreign function.

    Attributes
    ----------
    text : bytes
        What to compute.
    digest : bytes
        How launches that were recorded for it are found.
    arguments, results : list of int
        Addresses of the memory.
    gpu : int
        -1: the CPU.
    stream : int
        The address of the CUDA stream on which to enqueue its work.
    """

    text: bytes
    digest: bytes
    arguments: list[int]
    results: list[int]
    gpu: int
    stream: int


class Device(NamedTuple):
    """Where a call computes.

    Attributes
    ----------
    name : str
    view : callable
        ``view(kind, address)`` is the array there.
    result : callable
        The same of one that is about to be written.
    """

    name: str
    view: Callable[[interop.ArraysAt, int], Any]
    result: Callable[[interop.ArraysAt, int], Any]


def _result_on_host(kind: interop.ArraysAt, address: int) -> Any:
    """Memory of XLA's is new in every run, and what writes it first waits for its pages."""
    xla.large_pages(address, kind.nbytes)
    return kind.on_host(address)


HOST = Device("cpu", lambda kind, address: kind.on_host(address), _result_on_host)


@functools.cache
def gpu_device(number: int) -> Device:
    """A GPU by its number."""

    def view(kind: interop.ArraysAt, address: int) -> Any:
        return kind.on_gpu(address, number)

    return Device(f"cuda:{number}", view, view)


class Task:
    """What the text of a call says."""

    def __init__(self, text: bytes) -> None:
        told = json.loads(text)
        self.function, self.options = told["function"], told["options"]
        self.compute = _FUNCTIONS[self.function]
        #: Bytes of the buffers behind the results in which launches work; None where no launches are recorded ahead of a call.
        self.spaces: list[int] | None = told.pop("spaces", None)
        #: What to compute, without them.
        self.plain = json.dumps(told)
        self.operands, self.results = (
            [interop.ArraysAt(tuple(shape), np.dtype(dtype)) for shape, dtype in told[name]]
            for name in ("operands", "results")
        )
        self.arrays = told["arrays"]
        self.ways = told["ways"]
        if self.ways is not None:
            self.shape, self.nnz = tuple(self.ways["shape"]), self.ways["nnz"]
            self.forward, self.backward = (Side(*self.ways[name]) for name in ("forward", "backward"))

    def run(self, call: Call, device: Device) -> None:
        """Compute the results of a call."""
        arrays = [
            None if number is None else device.view(self.operands[number], call.arguments[number])
            for number in self.arrays
        ]
        out = [device.result(kind, address) for kind, address in zip(self.results, call.results, strict=False)]
        directions = None if self.ways is None else Directions(self, call, device)
        made = self.compute(directions, out, *arrays, **self.options)
        for part, place in zip(made if isinstance(made, tuple) else (made,), out, strict=True):
            if part is not place:
                as_bits(place)[...] = as_bits(part.reshape(place.shape))


class Directions:
    """The pattern of a call and its transpose, as arrays of this library."""

    __slots__ = ("_call", "_device", "_known", "_task")

    def __init__(self, task: Task, call: Call, device: Device) -> None:
        self._task, self._call, self._device = task, call, device
        known = task.ways["known"]
        self._known: Known | None = None if known is None else graph_called(known)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        shape: tuple[int, int] = self._task.shape
        return shape

    @property
    def forward(self) -> TCTiledCSR:
        """The pattern with factors of rows and columns."""
        return self._array(self._task.forward, self._task.backward.rows, self._task.shape)

    @property
    def backward(self) -> TCTiledCSR:
        """The transpose with the same factors."""
        return self._array(self._task.backward, self._task.forward.rows, self._task.shape[::-1])

    @property
    def weights(self) -> Any:
        """Weights of the edges of the pattern, or None."""
        return self._part(self._task.forward.weights)

    @property
    def order(self) -> Any:
        """Which edge of the pattern each edge of the transpose is."""
        return self._part(self._task.backward.order)

    def _part(self, place: Any) -> Any:
        if self._known is not None:
            return self._known.array(place, self._device.name)
        return None if place is None else self._device.view(self._task.operands[place], self._call.arguments[place])

    def _array(self, side: Side, columns: Any, shape: tuple[int, int]) -> TCTiledCSR:
        if self._known is not None:
            return self._known.pattern(
                _records.replace(side, weights=None, order=None), shape, columns, self._device.name
            )
        operands, arguments = self._task.operands, self._call.arguments
        places = (side.indptr, side.indices, side.rows, columns)
        kinds = tuple(None if place is None else operands[place] for place in places)
        addresses = tuple(0 if place is None else arguments[place] for place in places)
        return pattern_at(Placed(shape, kinds, addresses), self._device.view, self._device is HOST)


#: Memory for the results of a call.
Outs = list[Any]
_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_PREPARED: dict[str, Callable[..., Callable[[], Any] | None]] = {}
_TASKS: dict[bytes, Task] = {}


def computes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register what computes the calls of its name.

    ``function(directions, outs, *arrays, **options)`` gives the results, which are brought into the memory in `outs` if they are not there.
    """
    _FUNCTIONS[function.__name__] = function
    return function


def prepares(function: Callable[..., Callable[[], Any] | None]) -> Callable[..., Callable[[], Any] | None]:
    """Register what prepares the calls of its name on a GPU.

    ``function(directions, *arrays, *results, **options)`` gets stand-ins for the arrays and results of a call, and gives what launches the
    call's kernels, or None.
    """
    _PREPARED[function.__name__] = function
    return function


def task_of(text: bytes) -> Task:
    """What a text says."""
    task = _TASKS.get(text)
    if task is None:
        task = _TASKS[text] = Task(text)
    return task


def prepared(task: Task, call: Call, arrays: list[Any], results: list[Any]) -> Callable[[], Any] | None:
    """What launches the kernels of a call, whose pattern is there and whose arrays stand for those to come."""
    function = _PREPARED.get(task.function)
    directions = None if task.ways is None else Directions(task, call, gpu_device(call.gpu))
    return None if function is None else function(directions, *arrays, *results, **task.options)

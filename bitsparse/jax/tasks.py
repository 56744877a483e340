"""Tasks: what a foreign call from XLA is to compute, parsed from the call's text, and the functions that compute it."""

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
    """One foreign call from XLA.

    Attributes
    ----------
    text : bytes
        What to compute, as JSON; see :class:`Task`.
    digest : bytes
        The key under which launches recorded for the call are kept.
    arguments, results : list of int
        Addresses of the buffers.
    gpu : int
        The number of the GPU, or -1 for the CPU.
    stream : int
        The address of the CUDA stream on which to enqueue the work.
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
        ``view(kind, address)`` makes an array over the memory at an address.
    result : callable
        The same for memory that is about to be written.
    """

    name: str
    view: Callable[[interop.ArraysAt, int], Any]
    result: Callable[[interop.ArraysAt, int], Any]


def _result_on_host(kind: interop.ArraysAt, address: int) -> Any:
    """An array over a result's memory.

    XLA allocates it anew for every run, and the first write to each page waits for the system; large pages make fewer of these waits.
    """
    xla.large_pages(address, kind.nbytes)
    return kind.on_host(address)


HOST = Device("cpu", lambda kind, address: kind.on_host(address), _result_on_host)


@functools.cache
def gpu_device(number: int) -> Device:
    """The GPU with this number."""

    def view(kind: interop.ArraysAt, address: int) -> Any:
        return kind.on_gpu(address, number)

    return Device(f"cuda:{number}", view, view)


class Task:
    """A parsed text: the function, its options, the kinds of its operands and results, and where its graph is."""

    def __init__(self, text: bytes) -> None:
        fields = json.loads(text)
        self.function, self.options = fields["function"], fields["options"]
        self.compute = _FUNCTIONS[self.function]
        #: Bytes of the scratch buffers that follow the results; None if no launches are recorded ahead of the call.
        self.spaces: list[int] | None = fields.pop("spaces", None)
        #: The text without `spaces`.
        self.plain = json.dumps(fields)
        self.operands, self.results = (
            [interop.ArraysAt(tuple(shape), np.dtype(dtype)) for shape, dtype in fields[name]]
            for name in ("operands", "results")
        )
        #: For each array argument of the function, the number of its operand, or None.
        self.arrays = fields["arrays"]
        #: Where both directions of the graph are, or None if the function takes no graph.
        self.ways = fields["ways"]
        if self.ways is not None:
            self.shape, self.nnz = tuple(self.ways["shape"]), self.ways["nnz"]
            self.forward, self.backward = (Side(*self.ways[name]) for name in ("forward", "backward"))

    def run(self, call: Call, device: Device) -> None:
        """Compute the results of a call and write them to its buffers."""
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
    """The graph of a call as arrays of this library, in both directions."""

    __slots__ = ("_call", "_device", "_known", "_task")

    def __init__(self, task: Task, call: Call, device: Device) -> None:
        self._task, self._call, self._device = task, call, device
        known = task.ways["known"]
        self._known: Known | None = None if known is None else graph_called(known)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the pattern."""
        shape: tuple[int, int] = self._task.shape
        return shape

    @property
    def forward(self) -> TCTiledCSR:
        """The pattern, with its factors of rows and columns."""
        return self._array(self._task.forward, self._task.backward.rows, self._task.shape)

    @property
    def backward(self) -> TCTiledCSR:
        """The transpose of the pattern, with the same factors."""
        return self._array(self._task.backward, self._task.forward.rows, self._task.shape[::-1])

    @property
    def weights(self) -> Any:
        """Weights of the edges in the pattern's order, or None."""
        return self._part(self._task.forward.weights)

    @property
    def order(self) -> Any:
        """For each edge of the transpose, its number in the pattern."""
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


#: The arrays into which the results of a call go.
Outs = list[Any]
_FUNCTIONS: dict[str, Callable[..., Any]] = {}
_PREPARED: dict[str, Callable[..., Callable[[], Any] | None]] = {}
_TASKS: dict[bytes, Task] = {}


def computes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function, under its own name, as the one that computes such calls.

    ``function(directions, outs, *arrays, **options)`` returns the results; those that are not in `outs` already are copied there.
    """
    _FUNCTIONS[function.__name__] = function
    return function


def prepares(function: Callable[..., Callable[[], Any] | None]) -> Callable[..., Callable[[], Any] | None]:
    """Register a function, under its own name, as the one that prepares such calls on a GPU.

    ``function(directions, *arrays, *results, **options)`` gets stand-ins for the arrays and results of a call, and returns a function that
    launches the call's kernels, or None if they cannot be recorded.
    """
    _PREPARED[function.__name__] = function
    return function


def task_of(text: bytes) -> Task:
    """The parsed text; each text is parsed once."""
    task = _TASKS.get(text)
    if task is None:
        task = _TASKS[text] = Task(text)
    return task


def prepared(task: Task, call: Call, arrays: list[Any], results: list[Any]) -> Callable[[], Any] | None:
    """A function that launches the kernels of a call, or None; the pattern's arrays exist, all others are stand-ins for later ones."""
    function = _PREPARED.get(task.function)
    directions = None if task.ways is None else Directions(task, call, gpu_device(call.gpu))
    return None if function is None else function(directions, *arrays, *results, **task.options)

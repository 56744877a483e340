"""Binary networks prepared for one graph: all buffers and planned products, replayed as one CUDA graph on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, interop
from bitsparse._fork import fresh_in_children
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import assembled, family_of, kind_of
from bitsparse.errors import DTypeError, KernelError, ShapeError
from bitsparse.nn.binary.variants import Setting
from bitsparse.nn.checks import agree
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.operands.target import target_array
from bitsparse.ops.plan import KeptCall
from bitsparse.ops.recorded import Recorded
from bitsparse.ops.steps import words_shape

#: Recorded graphs kept per plan, each for one pair of input and output addresses.
_KEPT = 4


class Activation(NamedTuple):
    """The kind of a layer's input: letter, sizes, device, the dtype of full-precision features, and whether packed ones have a scale."""

    letter: str
    rows: int
    columns: int
    device: str
    dtype: Any = np.float32
    scaled: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of such an activation."""
        if self.letter == "B":
            return self.rows * (-(-self.columns // 128) * 16 + (4 if self.scaled else 0))
        return int(self.rows * self.columns * np.dtype(self.dtype).itemsize)


def activation_of(x: Any, function: str) -> Activation:
    """The kind of an array or of a BitTensor."""
    if isinstance(x, BitTensor):
        return Activation("B", x.shape[0], x.shape[1], x.device, None, x.scale is not None)
    array, _ = interop.as_array(x, function, "x")
    return Activation("F", array.shape[0], array.shape[1], interop.device_of(array), array.dtype)


def checked_features(function: str, x: Any, inputs: int) -> Activation:
    """The kind of the features `x`, which must have `inputs` columns."""
    shape = x.shape if hasattr(x, "shape") else np.shape(x)
    if len(shape) != 2:
        raise ShapeError(f"{function}: x has shape {tuple(shape)}, but features are (nodes, features); reshape them")
    kind = activation_of(x, function)
    trained_on = "pass the features it was trained on"
    agree(function, "x has shape", tuple(shape), "the first layer reads", (kind.rows, inputs), trained_on)
    return kind


def _view(memory: Any, kind: Activation) -> Any:
    """View the first bytes of a buffer as an activation of a kind."""
    if kind.letter == "B":
        words = memory[: kind.nbytes].view(np.uint32).reshape(kind.rows, 1, -(-kind.columns // 128) * 4)
        family = interop.NUMPY if kind.device == "cpu" else interop.CUPY
        return assembled(BitTensor, words, (kind.rows, kind.columns), 1, -1, "planes", "bipolar", family)
    return memory[: kind.nbytes].view(np.float32).reshape(kind.rows, kind.columns)


class Workspace:
    """The buffers and products that the steps of a plan share. Each named buffer has the size of its largest activation."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._memory: dict[str, Any] = {}
        #: The plans of all products, which record whether they met NaN.
        self.products: list[Any] = []
        #: Whether a CUDA graph can record the steps; CuPy cannot record calls of cuBLAS.
        self.recordable = True

    def reserve(self, name: str, kind: Activation) -> Callable[[], Any]:
        """Reserve a buffer for activations of a kind. The returned function gives its view once :meth:`allocate` has been called."""
        self._sizes[name] = max(self._sizes.get(name, 0), -(-kind.nbytes // 512) * 512)  # so that all are aligned
        return lambda: _view(self._memory[name], kind)

    def allocate(self, device: str) -> None:
        """Allocate the buffers."""
        space: Any = np if device == "cpu" else interop.require_cupy("plan")
        self._memory = {name: space.zeros(size, np.uint8) for name, size in self._sizes.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(self._sizes.values())


class BinaryPlan:
    """A prepared binary network ``plan(x, out=None)``; made by the models' ``plan``.

    Attributes
    ----------
    shape : tuple of int
        Shape of the result, float32.
    device : str
        The device on which `x` must be.
    settings : list of Setting
        How each layer computes.
    nbytes : int
        Bytes of graph, weights and buffers, without `x` and the result.

    Notes
    -----
    Only one call at a time may use the buffers: threads take turns, and calls on several streams of a GPU must wait for each other.
    """

    _turn: threading.Lock

    def __init__(
        self,
        name: str,
        x: Activation,
        settings: list[Setting],
        build: Callable[[Activation, Workspace], tuple[Callable[[Any, Any], None], tuple[int, int]]],
        neighbours: Any,
        weights: int,
    ) -> None:
        self._name, self._x, self.settings, self.device = name, x, settings, x.device
        self._workspace = Workspace()
        fresh_in_children(self, _turn=threading.Lock)
        with working_with(self.device, None):
            self._steps, self.shape = build(x, self._workspace)
            self._workspace.allocate(self.device)
        self._neighbours, self._weights = neighbours, weights
        self._recorded: dict[tuple[int, ...], Any] = {}
        self._own: Any = None
        #: The kind of packed features for which a recorded graph, which is found by addresses, can be replayed without further checks.
        self._kind = (x.rows, x.columns), 1, -1, "planes", "bipolar", self.device, interop.CUPY
        self._call: KeptCall | None = None
        if self.device != "cpu":
            read: Any = (x.rows, x.columns), x.dtype
            if x.letter == "B":
                read = words_shape(read[0], 1, -1, "planes"), np.dtype(np.uint32)
            self._call = KeptCall(self._steps, (read,), (self.shape, np.dtype(np.float32)), self.device)

    @property
    def nbytes(self) -> int:
        """Bytes of graph, weights and buffers."""
        return int(self._neighbours.scaled.nbytes) + self._weights + self._workspace.nbytes

    @property
    def peak_nbytes(self) -> int:
        """Bytes of everything that a call needs: graph, weights, buffers, `x` and the result."""
        return self.nbytes + self._x.nbytes + 4 * self.shape[0] * self.shape[1]

    def __repr__(self) -> str:
        return f"<BinaryPlan of {self._name} {', '.join(map(str, self.settings))} on {self.device}>"

    def graph_arrays(self) -> dict[str, Any]:
        """The arrays of the graph operand, by name."""
        return self._neighbours.scaled.components()

    def check(self) -> None:
        """Raise if a call since the last check met NaN, which has no sign. It waits for calls on a GPU; calls on a CPU raise by themselves.

        Raises
        ------
        ValueError
        """
        if self.device != "cpu":
            for each in self._workspace.products:
                each.check()

    def fits(self, x: Any) -> bool:
        """Whether `x` has the planned kind."""
        return activation_of(x, self._name) == self._x

    def __call__(self, x: Any, out: Any = None) -> Any:
        """Logits of every node, ``(n, classes)`` float32, for features of the planned shape, dtype and precision.

        On a GPU the first call for a pair of arrays `x` and `out` records a CUDA graph, which later calls replay. With a head in full
        precision, which cuBLAS multiplies, every call launches its kernels instead.

        Parameters
        ----------
        x : array (n, features), or BitTensor
        out : array (n, classes) of float32, optional
            Where to write the result; C-contiguous, and also returned.

        Raises
        ------
        ShapeError, DTypeError, DeviceError, ValueError
            `x` or `out` is not of the planned kind.
        KernelError
            The model's head is in full precision, and the current stream records a graph.
        """
        if out is not None and self._recorded:
            again = self._known(x, out)
            if again is not None:
                again()
                return out
        with working_with(self.device, x, out):
            data, family = self._input(x)
            target = self._target(out, data)
            with self._turn:
                if self.device == "cpu":
                    self._steps(data, target)
                else:
                    # Bits with another packing have just been copied to new memory, for which no graph is recorded.
                    moved = isinstance(x, BitTensor) and data.words is not x.words
                    self._on_gpu(data, target, out is None, moved)
            if out is not None:
                return out
            return interop.from_array(target, family, self._name)

    def _known(self, x: Any, out: Any) -> Any:
        """The graph recorded for these very CuPy arrays, if they need no further checks; None leads to the full checks."""
        read: tuple[Any, ...] = (x,)
        if x.__class__ is BitTensor:
            if kind_of(x) != self._kind:
                return None
            read = (x.words, x.scale)
        if self._call is None or not self._call.fits(read[:1], out) or interop.is_capturing(self.device):
            return None
        return self._recorded.get(_addresses(read, out))

    def _input(self, x: Any) -> tuple[Any, interop.Family]:
        """Check `x`, and return its words or its array, and its family."""
        name, kind = self._name, activation_of(x, self._name)
        _check.same_device(name, (self.device, kind.device))
        mine = self._x
        if kind.letter != mine.letter or (kind.letter == "F" and kind.dtype != mine.dtype):
            given, wanted = ("bits" if each.letter == "B" else str(each.dtype) for each in (kind, mine))
            raise DTypeError(f"{name}: x holds {given}, but the plan is for {wanted}; make another plan")
        _check.planned(name, "x has shape", (kind.rows, kind.columns), (mine.rows, mine.columns))
        if kind.letter == "F":
            return interop.as_array(x, name, "x")
        if kind.scaled != mine.scaled:
            raise ValueError(
                f"{name}: x has {'a' if kind.scaled else 'no'} scale, but the plan is for bits {'without' if kind.scaled else 'with'} one; "
                f"make another plan"
            )
        bits = x.repack(axis=-1, layout="planes")
        family = interop.NUMPY if self.device == "cpu" else interop.CUPY  # the steps work on its stream
        return assembled(BitTensor, bits.words, x.shape, 1, -1, "planes", "bipolar", family, x.scale), family_of(x)

    def _target(self, out: Any, data: Any) -> Any:
        if out is None:
            space: Any = np if self.device == "cpu" else interop.require_cupy(self._name)
            return space.empty(self.shape, np.float32)
        read = data.words if isinstance(data, BitTensor) else data
        return target_array(self._name, out, self.shape, np.dtype(np.float32), self.device, (read,))

    def _on_gpu(self, data: Any, target: Any, fresh: bool, moved: bool) -> None:
        """Replay a recorded graph, or run the steps directly if the caller records a graph or an array had to be copied."""
        if not isinstance(data, BitTensor) and not data.flags.c_contiguous:
            self._steps(interop.contiguous(data), target)
            return
        capturing, recordable = interop.is_capturing(self.device), self._workspace.recordable
        if capturing and not recordable:
            raise KernelError(
                f"{self._name}: the head in full precision is multiplied by cuBLAS, which CuPy does not record in a CUDA graph; call the "
                f"plan outside of the capture, or give the model a BinaryLinear head"
            )
        if moved or capturing or not recordable:
            self._steps(data, target)
            return
        into = target
        if fresh:  # every call returns a new result, but a graph always writes to the same array
            if self._own is None:
                self._own = interop.namespace(target).empty_like(target)
            into = self._own
        read = (data.words, data.scale) if isinstance(data, BitTensor) else (data,)
        key = _addresses(read, into)
        replay = self._recorded.get(key)
        if replay is None:
            if len(self._recorded) >= _KEPT:
                self._recorded.pop(next(iter(self._recorded)))
            replay = self._recorded[key] = Recorded(lambda: self._steps(data, into))
        replay()
        if fresh:
            target[...] = into


def _addresses(read: tuple[Any, ...], out: Any) -> tuple[int, ...]:
    """The key of a recorded graph: the addresses that it reads and writes."""
    return tuple(0 if array is None else int(array.data.ptr) for array in (*read, out))

"""State shared by the layers of a network that trains in integers of a few bits: settings, the counter of random draws, and codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from bitsparse import _check, backends, interop
from bitsparse.backends.signs import Drop
from bitsparse.errors import DTypeError
from bitsparse.ops.bits.pack import Coding
from bitsparse.torch import coded
from bitsparse.torch.buffers import writes_of
from bitsparse.torch.graph import Graph

#: Bits of products, and of the values of edges.
PRODUCT_BITS = 8
#: The number of streams of random numbers that a seed has.
_STREAMS = 1 << 32


@dataclass(frozen=True)
class Tango:
    """Settings of :func:`quantize_`: what is rounded to how many bits, and how (TANGO, Chen et al., SC 2023, section 3).

    Attributes
    ----------
    bits : {8, 4, 2, "auto"}
        Bits of the features and gradients that sums over neighbours gather; products with weights always use 8 bits. With 8 bits a
        tensor has one scale; with fewer bits each node has one, a multiple of a common step. ``"auto"`` computes in floats until the
        first layer's first output, then chooses 4 bits if their error on it is at most `threshold`, else 8 (section 3.2, Eq. 4,
        :func:`bitsparse.choose_bits`).
    rounding : {"stochastic", "nearest"}
        The rounding in training. Stochastic rounding makes gradients unbiased. Tensors that need no gradient (features of the data), and
        all tensors in ``eval()``, are rounded to nearest.
    seed : int
        Seed of the random draws, which depend only on it and on the number of earlier draws: the same seed gives the same bits on the
        CPU and on GPUs. The draws repeat after 2**32 tensors.
    last : {"float32", "sums", "quantized"}
        How the network's last layer, before the softmax, computes: in float32 (the paper's third rule), with quantised sums but float
        products, or quantised altogether.
    exact : tuple of str
        Names of further modules that stay in float32, together with their submodules.
    threshold : float
        The largest error at which ``bits="auto"`` chooses 4 bits.
    activations : {8, 4, 2}, optional
        Bits in which training keeps what gradients need, rounded without bias: inputs of linear layers, and outputs of attention and
        elu; relu and dropout keep one bit. By default, products keep their codes, and PyTorch's functions keep what they always keep.
        Only activation functions called within the network's own `forward` are affected.

    Examples
    --------
    >>> import bitsparse.torch as bst
    >>> bst.Tango(bits=4).last
    'float32'
    """

    bits: int | Literal["auto"] = 8
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    seed: int = 0
    last: Literal["float32", "sums", "quantized"] = "float32"
    exact: tuple[str, ...] = ()
    threshold: float = 0.3
    activations: int | None = None

    def __post_init__(self) -> None:
        if self.bits != "auto" and not _is_width(self.bits):
            raise ValueError(f"Tango: bits must be 8, 4, 2 or 'auto', got {_check.shown(self.bits)}")
        _check.choice("Tango", "rounding", self.rounding, ("stochastic", "nearest"))
        _check.choice("Tango", "last", self.last, ("float32", "sums", "quantized"))
        if self.activations is not None and not _is_width(self.activations):
            raise ValueError(f"Tango: activations must be 8, 4, 2 or None, got {_check.shown(self.activations)}")
        _check.integer("Tango", "seed", self.seed, 0, (1 << 63) - 1)
        _check.number("Tango", "threshold", self.threshold)
        exact: Any = self.exact
        if isinstance(exact, str):
            raise DTypeError(f"Tango: exact is the word {exact!r}; pass the names of modules, exact=({exact!r},)")


def _is_width(bits: object) -> bool:
    return isinstance(bits, SupportsIndex) and bits in (8, 4, 2)


class _Fixed(NamedTuple):
    """A tensor that is said never to change, how often it had been written to then, and its codes and signs by their keys."""

    tensor: Tensor
    writes: int
    made: dict[Any, Any]


class _Counter(NamedTuple):
    """The number of the last draw, a uint32 held as one int32 on a GPU, and the array over its memory."""

    number: Tensor
    array: Any


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _last_of(draws: int) -> int:
    """The number of the last of `draws` draws, a uint32, as the int32 with the same bits."""
    return draws - 1 if draws <= _STREAMS // 2 else draws - 1 - _STREAMS


class Quantization(nn.Module):
    """State shared by a network's quantised layers: the number of draws, the bits, and codes, so that each tensor is quantised once.

    The network holds it as ``quantization``; with its part of ``state_dict``, resumed training is the same to the bit.

    Attributes
    ----------
    config : Tango
    bits : int or None
        Bits of sums; None until ``"auto"`` has chosen.
    draws : int
        The number of tensors rounded stochastically so far, modulo 2**32. A GPU keeps its own count, so that a captured step draws anew
        in every replay; reading the number then waits for the GPU.
    hits, misses : int
        Requests for codes of a tensor that already had them, and of a tensor that did not.
    """

    def __init__(self, config: Tango) -> None:
        super().__init__()
        self.config = config
        self.bits: int | None = None if config.bits == "auto" else config.bits
        self.hits = self.misses = self._draws = 0
        #: The counter of draws since the first draw on a GPU; captured steps advance it too.
        self._counter: _Counter | None = None
        #: Whether a pass was ever captured.
        self._recorded = False
        #: Tensors that never change, by their ids. Captured steps read their codes, so nothing that was here is freed.
        self._fixed: dict[int, _Fixed] = {}
        self._fixed_before: list[_Fixed] = []
        #: By the number of a layer, whether its input was data when it last trained; of its first time only the input is known, or its
        #: contents behind a loaded state.
        self._read: dict[int, bool | str | TensorWeakRef] = {}
        self._forget()

    def _forget(self) -> None:
        self._edges: Any = WeakTensorKeyDictionary()
        self._known: dict[bool, Any] = {nearest: WeakTensorKeyDictionary() for nearest in (False, True)}
        #: Tensors of which an earlier pass had codes rounded to nearest: data.
        self._met: Any = WeakTensorKeyDictionary()
        #: What layers read before the state was loaded, for this pass and for the next one: their input is taken for data if it was, or if
        #: it has the contents of the input that they had once.
        self._reading: dict[int, Any] = {}
        self._to_read = dict(self._read)

    def begin(self) -> None:
        """Forget all drawn codes: the next forward pass draws anew, even for tensors that did not change.

        Codes of parameters are forgotten too: PyTorch does not count writes through their `data`, which averaging of weights makes.

        A captured step computes all codes itself, because its replays must work on what its tensors hold then. After a capture, no codes
        outlive a pass: a replay writes to its tensors without advancing PyTorch's counter of writes.
        """
        self._met.update(dict.fromkeys(self._known[True], True))
        if self.training:
            self._reading, self._to_read = self._to_read, {}
        self._recorded |= _is_capturing()
        if self._recorded:
            self._known[True] = WeakTensorKeyDictionary()
            self._edges = WeakTensorKeyDictionary()
        self._known[False] = WeakTensorKeyDictionary()
        for part in [part for part in self._known[True] if isinstance(part, nn.Parameter)]:
            del self._known[True][part]

    def fix(self, x: Tensor) -> None:
        """Say that a tensor, such as the features of the data, never changes: its codes are computed once and kept.

        A captured step computes all codes itself, as its replays must work on what its tensors hold then. For a fixed tensor it reads the
        codes of the uncaptured steps before it: they are constants of the CUDA graph. Results have the same bits as without this call,
        since what needs no gradient is rounded to nearest anyway: the error of the features' rounding is the same in every step and does
        not average out.

        The state keeps the tensor and its codes as long as it lives itself; copies of the network, and what is loaded, know nothing of it.

        Parameters
        ----------
        x : Tensor
            The tensor that layers are called with, not a view or a copy of it. After writing to it, call this method again, and capture
            steps anew: those captured before go on with the codes of the earlier contents.

        Raises
        ------
        ValueError
            `x` needs a gradient, so that its codes are drawn anew in every pass.
        RuntimeError
            Raised by later passes, if `x` was written to since. Writes that PyTorch does not count are not noticed: those of replays, of
            NumPy, through ``x.data``, and to tensors made in inference mode.

        Examples
        --------
        >>> import torch
        >>> import bitsparse.torch as bst
        >>> net = bst.quantize_(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)))
        >>> x = torch.ones(3, 2)
        >>> net.quantization.fix(x)
        >>> net(x).shape
        torch.Size([3, 2])
        """
        if x.requires_grad:
            raise ValueError(
                "quantize_: fix is for tensors that never change, but x needs a gradient, so that its codes are drawn anew in every pass; "
                "pass x.detach() to the network and to fix"
            )
        found = self._fixed.get(id(x))
        if found is not None and found.writes == writes_of(x):
            return
        if found is not None:
            self._fixed_before.append(found)
        # Codes that a capture made are there only after a replay, and change with it.
        known = {} if self._recorded else self._known[True].get(x, {})
        made = {key: kept for key, kept in known.items() if kept[0] == writes_of(x)}
        self._fixed[id(x)] = _Fixed(x, writes_of(x), made)

    def is_fixed(self, x: Tensor) -> bool:
        """Whether a tensor is said never to change."""
        return id(x) in self._fixed

    def _fixed_codes(self, x: Tensor) -> dict[Any, Any] | None:
        """What is kept of a tensor that never changes, by keys; None for other tensors."""
        found = self._fixed.get(id(x))
        if found is None:
            return None
        if found.writes != writes_of(x):
            raise RuntimeError(
                f"quantize_: a tensor of shape {tuple(x.shape)} was fixed, but has been written to since; call quantization.fix(x) again "
                "and capture steps anew, or pass another tensor"
            )
        return found.made

    @property
    def draws(self) -> int:
        """The number of tensors rounded stochastically so far."""
        if self._counter is not None:
            self._draws = (int(self._counter.number) + 1) % _STREAMS
        return self._draws

    def forward(self, x: Any) -> Any:
        """Return `x` unchanged: a Sequential calls all its modules, and this one is the last."""
        return x

    def get_extra_state(self) -> dict[str, Any]:
        """Return bits, draws and what layers read, for ``state_dict``."""
        return {"bits": self.bits, "draws": self.draws, "read": self._has_read()}

    def _has_read(self) -> dict[int, bool | str]:
        """Whether the layers' inputs are data; the contents of an input that was read once, which is data if it is read again."""

        def seen(data: Any) -> bool | str:
            x = data() if isinstance(data, TensorWeakRef) else data
            return _contents_of(x) if isinstance(x, Tensor) else x is not None and x

        return {layer: seen(data) for layer, data in self._read.items()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Continue after the draws of another run, with the bits that it has chosen if this one is to choose them.

        Replays of steps captured before continue there as well.
        """
        self.bits = state["bits"] if self.config.bits == "auto" else self.config.bits
        self._draws, self._read = state["draws"], dict(state.get("read", {}))
        self._forget()
        if self._counter is not None:
            self._counter.number.fill_(_last_of(self._draws))

    def __getstate__(self) -> dict[str, Any]:
        own = {"_draws": self.draws, "_read": self._has_read(), "_counter": None, "_recorded": False}
        return {**self.__dict__, **own, "_known": {}, "_edges": None, "_met": None, "_fixed": {}, "_fixed_before": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> Quantization:
        made = Quantization(self.config)
        memo[id(self)] = made
        made.training = self.training
        made.set_extra_state(self.get_extra_state())
        return made

    def extra_repr(self) -> str:
        """The settings, for ``repr``."""
        return f"bits={self.bits or 'auto'}, {self.config.rounding}, {self.draws} draws"

    # ---- codes
    def coding(self, device: torch.device, bits: int, fixed: bool = False) -> Coding:
        """The settings for quantising a tensor on a device, with a stream of random draws of its own."""
        if fixed or not self.training or self.config.rounding == "nearest":
            return Coding(bits, "nearest", 0, 0, -1, "rows")
        return Coding(bits, "stochastic", self.config.seed, self._next(device), -1, "rows")

    def drop(self, device: torch.device, rate: float) -> Drop:
        """Which elements of a matrix to drop, by a stream of random draws of its own; the rate is rounded to a multiple of 2**-16."""
        share = max(round((1 - rate) * 65536), 1) / 65536
        return Drop(share, self.config.seed, self._next(device))

    def _next(self, device: torch.device) -> Any:
        """The number of the next draw, in a place where the device can read it."""
        if device.type == "cpu":
            draw = self.draws
            self._draws, self._counter = (draw + 1) % _STREAMS, None
            return draw
        if self._counter is None or self._counter.number.device != device:
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    f"quantize_: draws are counted on {device}, which begins with the first step, but that step is being captured; run one "
                    "step before capturing"
                )
            number = torch.full((1,), _last_of(self.draws), dtype=torch.int32, device=device)
            self._counter = _Counter(number, interop.as_array(number, "quantize_")[0])
        self._counter.number.add_(1)  # wraps around to the smallest number
        return self._counter.array

    def known(self, x: Tensor, key: Any) -> Any:
        """The codes or signs that a tensor has already, unless it was written to since.

        The last part of `key` says if they are made without draws, so that they may outlive a pass.
        """
        constants = self._fixed_codes(x) if key[-1] else None
        found = (
            self._known[key[-1]].get(x, {}).get(key) if constants is None or key not in constants else constants[key]
        )
        if found is None or found[0] != writes_of(x):
            self.misses += 1
            return None
        self.hits += 1
        return found[1]

    def is_data(self, x: Tensor, layer: int | None) -> bool:
        """Whether an earlier pass had codes of a tensor rounded to nearest; it does not matter if the tensor was written to since.

        The first pass after a state was loaded goes by what the layer read before.
        """
        found = x in self._met or self.is_fixed(x)
        if not found and layer in self._reading:
            before = self._reading[layer]
            # A capture may not look at contents.
            found = before if isinstance(before, bool) else not self._recorded and _contents_of(x) == before
        if self.training and layer is not None:
            self._read[layer] = found if found or layer in self._read else TensorWeakRef(x)
        return found

    def keep(self, x: Tensor, key: Any, made: Any) -> None:
        """Remember codes, signs or a largest magnitude as long as the tensor lives."""
        constants = self._fixed_codes(x) if key[-1] else None
        if constants is not None and not _is_capturing():
            constants[key] = writes_of(x), made
        elif not x.is_inference():
            self._known[key[-1]].setdefault(x, {})[key] = writes_of(x), made

    def of_pass(self, x: Tensor, key: tuple[str, bool]) -> Any:
        """What was kept of a tensor in this pass; None if nothing was, or if the tensor was written to since."""
        written, found = self._known[False].get(x, {}).get(key, (None, None))
        return found if written == writes_of(x) else None

    def edge_values(self, graph: Graph, values: Tensor) -> tuple[Any, Any, Any]:
        """Weights of edges as 8-bit integers, in the order of the pattern and in that of its transpose, and their scale; cached."""
        version, found = writes_of(values), self._edges.get(values)
        if found is None or found[0] != version:
            given = values.detach().float().reshape(1, -1)
            codes = coded.coded(given, Coding(PRODUCT_BITS, "nearest", 0, 0, -1, "rows"), "tensor").codes
            with coded.working(given):
                ints = interop.as_array(codes.with_affine().toarray(), "quantize_")[0].reshape(-1)
                order = interop.as_array(graph.pattern(values=True).order, "quantize_")[0]
                found = self._edges[values] = version, (ints, ints[order], codes.scale)
        return found[1]


def _contents_of(x: Tensor) -> str:
    """A tensor's dtype, shape and fingerprint, the same on every device."""
    with coded.working(x) as array:
        total = backends.family(interop.device_of(array), "bits.pack").content_sum(array)
    return f"{x.dtype} {tuple(x.shape)} {total}"

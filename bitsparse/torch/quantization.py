"""What the layers of a network that trains in integers of a few bits share: settings, draws, and codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from bitsparse import _check, interop
from bitsparse.errors import DTypeError
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.quantized.scaled import ScaledCodes
from bitsparse.torch import coded
from bitsparse.torch.buffers import writes_of
from bitsparse.torch.graph import Graph

#: Bits of products and of values of edges.
PRODUCT_BITS = 8
#: Streams of draws that a seed has.
_STREAMS = 1 << 32
#: Under what largest magnitudes, and what gradients need of a tensor, are kept until the next pass, as codes that were drawn are.
_LARGEST, _KEPT = ("largest", False), ("kept", False)


@dataclass(frozen=True)
class Tango:
    """How :func:`quantize_` lets a network train: what is rounded to how many bits, and how (TANGO, Chen et al., SC 2023, section 3).

    Attributes
    ----------
    bits : {8, 4, 2, "auto"}
        Of what is gathered in sums over neighbours, features and gradients; products with weights are of 8 bits always. With 8 bits
        there is one scale to a tensor, below that one to a node, a multiple of a step that all share. ``"auto"`` trains in floats until
        the first layer has given its first output, and takes 4 bits if that has an error of at most `threshold` then, else 8 (section
        3.2, Eq. 4, :func:`bitsparse.choose_bits`).
    rounding : {"stochastic", "nearest"}
        While training. Stochastic rounding makes gradients that are right on average. What needs no gradient (features of the data), and
        all in ``eval()``, is rounded to nearest.
    seed : int
        Of the draws, which follow from it and from how many there were before: same seed, same bits, on the CPU and on GPUs. After 2**32
        tensors they begin again.
    last : {"float32", "sums", "quantized"}
        What becomes of the layer in front of the softmax, the network's last: nothing (the paper's third rule); its sums are quantised,
        its products are not; all of it is.
    exact : tuple of str
        Names of further modules that are left in float32, with all within them.
    threshold : float
        Of ``bits="auto"``.
    activations : {8, 4, 2}, optional
        Bits in which what gradients need is kept while training: what linear layers read, what attention and elu gave; of relu and dropout
        a bit. Unbiased. By default products keep their codes, and PyTorch's functions what they always keep. Activations are those called
        in the network's own `forward`.

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


class _Counter(NamedTuple):
    """The number of the last draw on a GPU, one int32 whose bits are those of a uint32, and the array over its memory."""

    number: Tensor
    array: Any


def _last_of(draws: int) -> int:
    """The number of the last of so many draws, as an int32 of the same bits."""
    return draws - 1 if draws <= _STREAMS // 2 else draws - 1 - _STREAMS


class Quantization(nn.Module):
    """What the quantised layers of a network share: draws so far, bits, and the codes of tensors, quantised once, whoever asks first.

    It stands in the network as ``quantization``; its part of ``state_dict`` makes training that is resumed the same to the bit.

    Attributes
    ----------
    config : Tango
    bits : int or None
        Of sums; None until ``"auto"`` has chosen.
    draws : int
        Tensors that were rounded stochastically, modulo 2**32. On a GPU they are counted there, so that a captured step draws anew in every
        replay; to read the number is to wait for the GPU.
    hits, misses : int
        Requests for codes of a tensor that had them already, and that had not.
    """

    def __init__(self, config: Tango) -> None:
        super().__init__()
        self.config = config
        self.bits: int | None = None if config.bits == "auto" else config.bits
        self.hits = self.misses = self._draws = 0
        #: What counts them since the first draw on a GPU; captured steps count there as well.
        self._counter: _Counter | None = None
        #: Whether a pass was ever captured.
        self._recorded = False
        self._forget()

    def _forget(self) -> None:
        self._edges: Any = WeakTensorKeyDictionary()
        self._known: dict[bool, Any] = {nearest: WeakTensorKeyDictionary() for nearest in (False, True)}

    def begin(self) -> None:
        """Forget codes that were drawn: the next forward pass draws anew, also for tensors that did not change.

        Codes of parameters are forgotten too: PyTorch counts no writes through their `data`, as averages of weights are written.

        A captured step makes all codes itself: replays work on what its tensors hold then, and nothing is there before the first. From then
        on no codes outlive a pass: a replay writes to its tensors without a trace in PyTorch's counter of writes.
        """
        self._recorded |= torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if self._recorded:
            self._known[True] = WeakTensorKeyDictionary()
            self._edges = WeakTensorKeyDictionary()
        self._known[False] = WeakTensorKeyDictionary()
        for part in [part for part in self._known[True] if isinstance(part, nn.Parameter)]:
            del self._known[True][part]

    @property
    def draws(self) -> int:
        """How many tensors were rounded stochastically."""
        if self._counter is not None:
            self._draws = (int(self._counter.number) + 1) % _STREAMS
        return self._draws

    def forward(self, x: Any) -> Any:
        """What it is given: a Sequential calls all its modules, this one last."""
        return x

    def get_extra_state(self) -> dict[str, Any]:
        """Bits and draws, for ``state_dict``."""
        return {"bits": self.bits, "draws": self.draws}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on behind the draws of another run; so do the replays of steps that were captured before."""
        self.bits, self._draws = state["bits"], state["draws"]
        self._forget()
        if self._counter is not None:
            self._counter.number.fill_(_last_of(self._draws))

    def __getstate__(self) -> dict[str, Any]:
        own = {"_draws": self.draws, "_known": {}, "_edges": None, "_counter": None, "_recorded": False}
        return {**self.__dict__, **own}

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
        """How a tensor on a device is quantised, with draws that nobody else has."""
        if fixed or not self.training or self.config.rounding == "nearest":
            return Coding(bits, "nearest", 0, 0, -1, "rows")
        return Coding(bits, "stochastic", self.config.seed, self._next(device), -1, "rows")

    def _next(self, device: torch.device) -> Any:
        """The number of the next draw, where the device reads it."""
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
        self._counter.number.add_(1)  # behind its largest number it goes on with its smallest
        return self._counter.array

    def known(self, x: Tensor, key: Any) -> ScaledCodes | None:
        """Codes that a tensor has, unless it was written to since; `key` ends in whether they are to nearest."""
        found = self._known[key[-1]].get(x, {}).get(key)
        if found is None or found[0] != writes_of(x):
            self.misses += 1
            return None
        self.hits += 1
        return found[1]

    def keep(self, x: Tensor, key: Any, made: Any) -> None:
        """Remember codes, or a largest magnitude, while the tensor is there."""
        if not x.is_inference():
            self._known[key[-1]].setdefault(x, {})[key] = writes_of(x), made

    def of_pass(self, x: Tensor, key: tuple[str, bool]) -> Any:
        """What was kept of a tensor in this pass, unless it was written to since; None where nobody kept it."""
        written, found = self._known[False].get(x, {}).get(key, (None, None))
        return found if written == writes_of(x) else None

    def edge_values(self, graph: Graph, values: Tensor) -> tuple[Any, Any, Any]:
        """Weights of edges as integers of 8 bits: in the order of the pattern and of its transpose, and their scale; made once."""
        version, found = writes_of(values), self._edges.get(values)
        if found is None or found[0] != version:
            given = values.detach().float().reshape(1, -1)
            codes = coded.coded(given, Coding(PRODUCT_BITS, "nearest", 0, 0, -1, "rows"), "tensor").codes
            with coded.working(given):
                ints = interop.as_array(codes.with_affine().toarray(), "quantize_")[0].reshape(-1)
                order = interop.as_array(graph.pattern(values=True).order, "quantize_")[0]
                found = self._edges[values] = version, (ints, ints[order], codes.scale)
        return found[1]


class CodeSource:
    """Codes of one layer's tensors, from what all layers share."""

    def __init__(self, state: Quantization, fixed: bool) -> None:
        self._state, self._fixed = state, fixed

    def _key(self, bits: int, granularity: str, fixed: bool) -> tuple[Any, ...]:
        return bits, granularity, fixed or not self._state.training or self._state.config.rounding == "nearest"

    def known(self, x: Tensor, bits: int) -> ScaledCodes | None:
        """Codes that a tensor has with one scale."""
        return self._state.known(x, self._key(bits, "tensor", self._fixed))

    def coding(self, x: Tensor, bits: int) -> Coding:
        """How a tensor is to be quantised."""
        return self._state.coding(x.device, bits, self._fixed)

    def keep(self, x: Tensor, bits: int, made: ScaledCodes) -> None:
        """Remember codes with one scale."""
        self._state.keep(x, self._key(bits, "tensor", self._fixed), made)

    def largest(self, x: Tensor) -> Any:
        """The largest magnitude that a tensor is known to have."""
        return self._state.of_pass(x, _LARGEST)

    def keep_largest(self, x: Tensor, found: Any) -> None:
        """Remember the largest magnitude of a tensor."""
        self._state.keep(x, _LARGEST, found)

    def kept(self, x: Tensor) -> Any:
        """What is kept of a tensor for gradients."""
        return self._state.of_pass(x, _KEPT)

    def keep_kept(self, x: Tensor, made: Any) -> None:
        """Remember what is kept of a tensor for gradients."""
        self._state.keep(x, _KEPT, made)

    def codes(
        self,
        x: Tensor,
        bits: int,
        granularity: str = "tensor",
        fixed: bool = False,
        factors: Tensor | None = None,
    ) -> ScaledCodes:
        """Codes that a tensor has, or that it gets here; those of its rows times factors are nobody else's."""
        state, key = self._state, self._key(bits, granularity, fixed)
        if factors is not None:
            state.misses += 1
            return coded.coded(x, state.coding(x.device, bits, fixed), granularity, factors)
        found = state.known(x, key)
        if found is None:
            found = coded.coded(x, state.coding(x.device, bits, fixed), granularity, largest=state.of_pass(x, _LARGEST))
            state.keep(x, key, found)
        return found

"""What the layers of a network that trains in integers of a few bits share: settings, draws, codes, and products and sums of these."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex

import torch
from torch import Tensor, nn
from torch._C import _current_graph_task_id
from torch.utils.weak import WeakTensorKeyDictionary

from bitsparse import _check, interop
from bitsparse.errors import DTypeError
from bitsparse.ops.bits.pack import Coding
from bitsparse.ops.quantized.attention import Settings
from bitsparse.ops.quantized.scaled import ScaledCodes
from bitsparse.torch import coded
from bitsparse.torch.attention_kinds import once_each
from bitsparse.torch.bias import biased
from bitsparse.torch.buffers import writes_of
from bitsparse.torch.graph import Graph
from bitsparse.torch.kept import exact_linear, kept_codes
from bitsparse.torch.quantizer import Floats

#: Bits of products and of values of edges.
_PRODUCT_BITS = 8
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
            codes = coded.coded(given, Coding(_PRODUCT_BITS, "nearest", 0, 0, -1, "rows"), "tensor").codes
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


def _joins(bias: Tensor, x: Tensor, weight: Tensor) -> bool:
    """Whether a bias is one float32 to a column, beside float32 features, so that the kernel of their product may read it."""
    alike = bias.shape == weight.shape[:1] and bias.device == x.device
    return alike and bias.dtype == x.dtype == torch.float32


class LayerQuantizer(Floats):
    """Products and sums of one layer in integers; either may be left to floats."""

    def __init__(self, state: Quantization, products: bool, sums: bool) -> None:
        self._state, self._products, self._sums = state, products, sums

    def _source(self, x: Tensor) -> CodeSource:
        state = self._state
        if state.training and state.config.rounding == "stochastic" and _current_graph_task_id() >= 0:
            raise RuntimeError(
                "quantize_: a layer is computed again on the way back, as torch.utils.checkpoint does, but stochastic rounding would not "
                "draw the same again; pass Tango(rounding='nearest'), or leave the layer, which keeps codes alone, out of the checkpoint"
            )
        return CodeSource(state, not x.requires_grad)

    def _grid(self, x: Tensor) -> coded.Grid:
        """How what is gathered is rounded."""
        bits = self._state.bits or 8
        return coded.Grid(bits, "tensor" if bits == 8 else "node", self._source(x))

    @property
    def _sums_floats(self) -> bool:
        return not self._sums or self._state.bits is None

    def linear(self, x: Tensor, weight: Tensor, behind: Tensor | None = None) -> Tensor:
        """``x @ weight.T``, and a bias."""
        products = self._products and self._state.bits is not None
        if behind is not None and not (products and x.ndim == 2 and _joins(behind, x, weight)):
            return biased(self.linear(x, weight), behind)
        if not products:
            keep = self._keep(x) if x.ndim == 2 and x.requires_grad else None
            return nn.functional.linear(x, weight) if keep is None else exact_linear(x, weight, keep)
        flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        keep = self._keep(flat, _PRODUCT_BITS)
        made = coded.linear(flat, weight, _PRODUCT_BITS, self._source(x), behind, keep=keep).to(x.dtype)
        return made if x.ndim == 2 else made.reshape(*x.shape[:-1], weight.shape[0])

    def added(self, out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """``out + x @ weight.T``, of integers in the memory of `out`."""
        if not self._products or self._state.bits is None:
            exact = self._state.config.activations is None
            return super().added(out, x, weight) if exact else out + self.linear(x, weight)
        alike = x.ndim == 2 and out.shape == (len(x), len(weight)) and out.device == x.device
        if not (alike and out.dtype == x.dtype == torch.float32 and out.is_contiguous()):
            return out + self.linear(x, weight)
        keep = self._keep(x, _PRODUCT_BITS)
        return coded.linear(x, weight, _PRODUCT_BITS, self._source(x), None, out, keep)

    def spmm(self, graph: Graph, x: Tensor, reduce: str, behind: Tensor | None = None) -> Tensor:
        """Sums or means over neighbours, and a bias."""
        if self._sums_floats or reduce in ("max", "min"):
            return super().spmm(graph, x, reduce, behind)
        return self._summed(graph, x, reduce, None, behind)

    def spmm_and_own(
        self, graph: Graph, x: Tensor, own: Tensor, factor: Tensor, behind: Tensor | None = None
    ) -> Tensor:
        """Sums over neighbours, plus `factor` times what the targets have themselves, in one pass where that is the same tensor."""
        alone = own is x and x.ndim == 2 and x.dtype == factor.dtype == torch.float32
        if self._sums_floats or not alone or factor.requires_grad:
            return super().spmm_and_own(graph, x, own, factor, behind)
        return self._summed(graph, x, "sum", factor, behind)

    def _summed(self, graph: Graph, x: Tensor, reduce: str, own: Tensor | None, behind: Tensor | None = None) -> Tensor:
        if behind is not None and not (x.ndim == 2 and x.dtype == behind.dtype == torch.float32):
            return biased(self._summed(graph, x, reduce, own), behind)
        weight = graph.multiplicity if graph.weight is None else graph.weight
        values = None if weight is None else self._state.edge_values(graph, weight)
        factors = graph.factors(reduce == "mean", torch.float32)
        return coded.spmm(x, graph.pattern(), factors, self._grid(x), values, own, behind).to(x.dtype)

    def attention(
        self, graph: Graph, x: Tensor, source: Tensor, target: Tensor, slope: float, dropout: float
    ) -> Tensor:
        """Attention to neighbours by scores of both ends."""
        grid, keep = None if self._sums_floats else self._grid(x), self._keep(x)
        if grid is None and keep is None:
            return super().attention(graph, x, source, target, slope, dropout)
        how = self._settings(graph, x, slope, dropout)
        return coded.attention(x, (source, target), graph.pattern(), how, grid, keep).to(x.dtype)

    def scored_attention(
        self, graph: Graph, x: Tensor, first: Tensor, second: Tensor, slope: float, dropout: float
    ) -> Tensor:
        """Attention of nodes to each other by dot products of heads with two vectors."""
        grid, keep = None if self._sums_floats else self._grid(x), self._keep(x)
        if grid is None and keep is None:
            return super().scored_attention(graph, x, first, second, slope, dropout)
        how = self._settings(graph, x, slope, dropout)
        return coded.scored_attention(x, first, second, graph.pattern(), how, grid, keep).to(x.dtype)

    def _keep(self, x: Tensor, at_hand: int | None = None) -> coded.Keep | None:
        """What keeps float32 matrices in few bits for the gradients of a layer that is given `x`; in fewer than codes `at_hand` have.

        None where these matrices are kept as they are, or as these codes.
        """
        bits = self._state.config.activations
        if bits is None or (at_hand is not None and bits >= at_hand):
            return None
        if not (self._state.training and torch.is_grad_enabled() and x.dtype == torch.float32):
            return None
        source = CodeSource(self._state, False)
        return functools.partial(kept_codes, bits=bits, source=source)

    @staticmethod
    def _settings(graph: Graph, x: Tensor, slope: float, dropout: float) -> Settings:
        """The slope and the dropout of a call, with the number that decides whom it meets."""
        once_each("attention", graph)
        return Settings(slope, dropout, torch.randint(2**62, (1,), device=x.device) if dropout else None)

    def cosine_attention(self, graph: Graph, x: Tensor, beta: Tensor) -> Tensor:
        """Attention by cosines that gathers features, and the gradient of its sums, as their codes stand for them."""
        if self._sums_floats:
            return super().cosine_attention(graph, x, beta)
        y = super().cosine_attention(graph, coded.on_grid(x, self._grid(x)), beta)
        return coded.gradient_on_grid(y, self._grid(y))

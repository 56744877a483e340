"""Training of a GCN that ends in a network on bits: every forward pass is that network's, gradients pass its roundings straight through."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bitsparse import _check
from bitsparse import nn as networks
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.errors import DeviceError, DTypeError, ShapeError
from bitsparse.nn.lowbit.host import step_results
from bitsparse.nn.lowbit.steps import Aggregate, Chain, Grid, Update
from bitsparse.torch.buffers import writes_of
from bitsparse.torch.graph import Graph, checked
from bitsparse.torch.ranges import CodeRange
from bitsparse.torch.registration import once
from bitsparse.torch.sums import spmm

_Array = np.ndarray[Any, np.dtype[np.float64]]


class _Exactly(torch.autograd.Function):
    """Other values of the same numbers; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor) -> Tensor:
        return values

    @staticmethod
    @once("LowBitGCN")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, None


class LowBitGCN(nn.Module):
    """A GCN that trains with the roundings of a :class:`bitsparse.nn.LowBitNetwork` and is exported to it (quantisation-aware training).

    Parameters
    ----------
    widths : sequence of int
        Columns of the input and behind each layer.
    bits : int or sequence of int
        1 to 8, for all layers or for each: bits of its input, of its weights and of what it hands on inside (QGTC, Table 2). Weights of
        one bit are -1 and 1.
    momentum : float
        Of the ranges of messages and activations that follow those of each training step.
    ranges : {"followed", "learned"}
        Ranges are found in the first training step: all values, with up to 3 bits those with the least squared error of the rounding.
        After that they follow the training, or they are parameters (:meth:`range_parameters`) that gradients reach (LSQ, Esser et al.,
        ICLR 2020).
    protect : tuple of float, optional
        Degree-Quant (Tailor et al., ICLR 2021, section 3.1): in each training step some nodes keep their real numbers, those of lowest
        degree with the first probability, those of highest degree with the second, the others with one in between by their rank.
    warm_up : int
        Training steps in float32 before ranges are found and rounding begins. Few bits learn better from weights that have learned.

    Notes
    -----
    Every forward pass makes the network on bits of the current weights and ranges and runs it: what is trained is what is exported, and
    logits are equal to the bit (with `protect` in ``eval()``). Gradients are those of the same layers in float32 at the rounded values;
    they pass a rounding where its input lies within the range. Messages and what lies
    between layers have a range for each column, which costs the network nothing.
    The grid of the features is found in the first training step. The layers multiply before they sum, with ReLU between. It trains on the
    CPU; what is exported runs anywhere.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> net, graph = bst.LowBitGCN((3, 8, 2), bits=4), bst.Graph(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    >>> logits = net(torch.eye(3), graph)
    >>> net.export()
    <LowBitNetwork gcn 3 -> 8 -> 2, bits 4, 4, 904 B>
    """

    known: Tensor
    steps: Tensor
    of_rows: Tensor

    def __init__(
        self,
        widths: Sequence[int],
        bits: int | Sequence[int] = 8,
        momentum: float = 0.1,
        *,
        ranges: Literal["followed", "learned"] = "followed",
        protect: tuple[float, float] | None = None,
        warm_up: int = 0,
    ) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        if not pairs:
            raise ValueError(
                f"LowBitGCN: widths must hold inputs and outputs, got {tuple(widths)}; pass for example (1433, 16, 7)"
            )
        self.bits = (bits,) * len(pairs) if isinstance(bits, int) else tuple(bits)
        if len(self.bits) != len(pairs) or not all(1 <= each <= 8 for each in self.bits):
            raise ValueError(
                f"LowBitGCN: bits must be 1 to 8, one number or one for each of {len(pairs)} layers, got {bits}"
            )
        _check.choice("LowBitGCN", "ranges", ranges, ("followed", "learned"))
        if protect is not None and not 0 <= protect[0] <= protect[1] <= 1:
            raise ValueError(
                f"LowBitGCN: protect must be two probabilities, the first no larger than the second, got {protect}; pass "
                f"for example (0.0, 0.1)"
            )
        self.widths, self.momentum, self.learned, self.protect = tuple(widths), momentum, ranges == "learned", protect
        self.warm_up = _check.integer("LowBitGCN", "warm_up", warm_up, 0, 1 << 40)
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(pair)) for pair in pairs)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(pair[1])) for pair in pairs)
        # Of each layer: its input, its weights and its messages. The grid of the features stays, as their codes are kept.
        self.input_ranges, self.weight_ranges, self.message_ranges = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for i, (each, (_, columns)) in enumerate(zip(self.bits, pairs, strict=True)):
            self.input_ranges.append(
                CodeRange(pairs[i][0] if i else 1, each, "positive" if i else "any", bool(i) and self.learned)
            )
            self.weight_ranges.append(CodeRange(columns, each, "signs" if each == 1 else "weights", self.learned))
            self.message_ranges.append(CodeRange(columns, each, "any", self.learned))
        self.register_buffer("known", torch.zeros((), dtype=torch.bool))
        self.register_buffer(
            "of_rows", torch.zeros((), dtype=torch.bool)
        )  # whether rows of features have scales of their own
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))  # in float32, so far
        self._prepared: tuple[Any, ...] = (None, None)
        self._codes: tuple[Any, ...] = (None, None)
        self._floats: tuple[Any, ...] = (None, None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """New weights, uniform as Glorot and Bengio have them; biases of zeros; ranges are found anew."""
        self.known.fill_(False)
        self.steps.zero_()
        for weight, bias in zip(self.weights, self.biases, strict=True):
            nn.init.xavier_uniform_(weight)
            nn.init.zeros_(bias)

    def range_parameters(self) -> list[nn.Parameter]:
        """Parameters of learned ranges, which take no weight decay; none where ranges follow.

        Examples
        --------
        >>> import bitsparse.torch as bst
        >>> len(bst.LowBitGCN((3, 8, 2), ranges="learned").range_parameters())
        7
        """
        kinds = (self.input_ranges, self.weight_ranges, self.message_ranges)
        return [parameter for kind in kinds for parameter in kind.parameters()]

    # ---- the network on bits
    def export(self) -> networks.LowBitNetwork:
        """The network on bits of the weights and ranges as they are, :class:`bitsparse.nn.LowBitNetwork`.

        Raises
        ------
        ValueError
            It has not trained yet, so that no range is known.
        """
        if not bool(self.known):
            raise ValueError(
                "LowBitGCN: ranges are not known before the first training step; call the network on the features first"
            )
        steps: list[Update | Aggregate] = []
        inputs, of_weights, of_messages = (
            [_grid(each) for each in kind] for kind in (self.input_ranges, self.weight_ranges, self.message_ranges)
        )
        for i, bits in enumerate(self.bits):
            (step, low), (scale, _), (size, start) = inputs[i], of_weights[i], of_messages[i]
            codes = self._range(self.weight_ranges, i).codes(self._of_codes(i)).numpy()
            step = np.ones(1) if i else step  # which the weights hold
            base = (low[:, None] * codes * scale).sum(axis=0)
            bias = self.biases[i].detach().double().numpy()
            packed = BitTensor(codes.astype(np.int32), max(bits, 2), encoding="signed", axis=-2)
            chain = _chain(step * scale / size, -start / size, None, bits)
            steps.append(Update(packed, chain, True, (base / size).astype(np.float32)))
            if i + 1 < len(self.bits):
                following = inputs[i + 1][0]
                chain = _chain(size / following, bias / following, "relu", self.bits[i + 1])
            else:
                chain = _chain(size, bias, None, None)
            steps.append(Aggregate(codes.shape[1], bits, chain, (start / size).astype(np.float32)))
        grid = None
        if not bool(self.of_rows):
            grid = Grid(*(np.full(self.widths[0], each[0], np.float32) for each in inputs[0]))
        return networks.LowBitNetwork("gcn", "gcn", True, self.bits, self.widths, grid, tuple(steps))

    def _range(self, kind: nn.ModuleList, layer: int) -> CodeRange:
        found = kind[layer]
        assert isinstance(found, CodeRange)
        return found

    def _of_codes(self, layer: int) -> Tensor:
        """Weights by which codes of a layer's input are multiplied: behind the first layer they hold the steps of its columns."""
        weight = self.weights[layer]
        return self._range(self.input_ranges, layer).step.to(weight.dtype)[:, None] * weight if layer else weight

    # ---- training
    def _operand(self, graph: Graph) -> tuple[networks.Graph, Graph]:
        """The graph for the network on bits, and for sums of floats."""
        plain = checked("LowBitGCN", graph).unweighted()
        edges = plain.indptr, plain.indices
        state = [(id(part), writes_of(part)) for part in edges]
        if self._prepared[0] != state:
            operand = networks.Graph.from_csr(*(part.numpy() for part in edges))
            self._prepared = state, operand, plain.with_self_loops(), edges
        return self._prepared[1], self._prepared[2]

    def forward(self, x: Tensor | networks.Features, graph: Graph) -> Tensor:
        """Logits (nodes, classes) of the network on bits, in float32 while it warms up; ranges follow while training.

        Features of :class:`bitsparse.nn.Features` have a scale for each row, and the network that is exported reads such features.
        """
        if isinstance(x, Tensor) and x.is_cuda:
            raise DeviceError(
                "LowBitGCN: x is on a GPU, but networks train in few bits with their exact roundings on the CPU; pass x.cpu()"
            )
        if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "LowBitGCN: x requires a gradient, but features are rounded to codes that are kept, and have none; pass x.detach()"
            )
        if any(part.dtype != torch.float32 for part in (*self.weights, *self.biases)):
            raise DTypeError(
                f"LowBitGCN: the weights are {self.weights[0].dtype}, but codes are rounded from float32 as in the exported network; call "
                f"net.float()"
            )
        operand, loops = self._operand(graph)
        if x.shape[:1] != (graph.num_sources,):
            raise ShapeError(
                f"LowBitGCN: the graph has {graph.num_sources} nodes but x has shape {tuple(x.shape)}; pass (nodes, {self.widths[0]})"
            )
        if not bool(self.known) and (int(self.steps) < self.warm_up if self.training else self.warm_up > 0):
            self.steps += int(self.training)
            return self._in_floats(self._real(x), operand, loops)
        if self.training:
            self._find_ranges(x, operand, loops)
        network = self.export()
        codes, h = self._features(network, x)
        if self.training and self.protect is not None:
            return self._layers(h, operand, loops, kept=self._protected(loops))
        return self._layers(h, operand, loops, step_results(network, operand, codes))

    def _layers(
        self,
        h: Tensor,
        operand: networks.Graph,
        loops: Graph,
        made: list[Any] | None = None,
        kept: Tensor | None = None,
        share: float = 0.0,
    ) -> Tensor:
        """The layers in float32, rounded to the codes that the network on bits `made`, or to their own; rows `kept` are not rounded.

        With a share ranges move so far towards what they round.
        """
        left, right = _factors(operand)
        for i in range(len(self.bits)):
            if i:
                h = h / self._range(self.input_ranges, i).step.to(h.dtype)
            if share:
                self._range(self.weight_ranges, i).follow(self._of_codes(i))
            messages = right * (h @ self._range(self.weight_ranges, i).through(self._of_codes(i)))
            of_messages = self._range(self.message_ranges, i)
            if share:
                of_messages.follow(messages, share)
            messages = of_messages.through(messages, None if made is None else made[2 * i], kept)
            y = left * spmm(loops, messages) + self.biases[i]
            if i + 1 == len(self.bits):
                return y if made is None else _Exactly.apply(y, torch.from_numpy(np.asarray(made[-1], np.float32)))
            h, of_inputs = y.relu(), self._range(self.input_ranges, i + 1)
            if share:
                of_inputs.follow(h, share)
            h = of_inputs.through(h, None if made is None else made[2 * i + 1], kept)
        raise AssertionError("a network has layers")

    def _in_floats(self, h: Tensor, operand: networks.Graph, loops: Graph) -> Tensor:
        """The layers without rounding."""
        left, right = _factors(operand)
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = left * spmm(loops, right * (h @ weight)) + bias
            h = h if i + 1 == len(self.bits) else h.relu()
        return h

    def _real(self, x: Tensor | networks.Features) -> Tensor:
        """Features in float32."""
        if isinstance(x, Tensor):
            return x.float()
        if self._floats[0] is not x:
            self._floats = x, torch.from_numpy(x.csr.toarray())
        return self._floats[1]

    def _features(self, network: networks.LowBitNetwork, x: Tensor | networks.Features) -> tuple[BitTensor, Tensor]:
        """Codes of the features, and what they stand for; kept while neither these nor their grid change."""
        if isinstance(x, networks.Features) != bool(self.of_rows):
            kinds = ("a tensor", "nn.Features")
            raise DTypeError(
                f"LowBitGCN: x is {kinds[isinstance(x, networks.Features)]}, but ranges were found for {kinds[bool(self.of_rows)]}; pass "
                f"these, or reset_parameters()"
            )
        if isinstance(x, networks.Features):
            if self._codes[0] is not x:
                packed = x.quantized(self.bits[0])
                if packed.offset is not None:
                    raise ValueError(
                        "LowBitGCN: features have negative values, so that rows have lower ends; pass them as a tensor"
                    )
                self._codes = x, packed, torch.from_numpy(np.ascontiguousarray(packed.dequantize()))
            return self._codes[1], self._codes[2]
        step, low = _grid(self.input_ranges[0])
        key = x.data_ptr(), writes_of(x), tuple(x.shape), x.stride(), x.dtype, float(step[0]), float(low[0])
        if self._codes[0] != key or x.is_inference():  # whether that was written to, nobody counts
            # NumPy has no bfloat16, and float32 holds it.
            codes = network.quantize((x.float() if x.dtype == torch.bfloat16 else x).detach().numpy())
            real = torch.from_numpy((codes.toarray() * step + low).astype(np.float32))
            self._codes = key, codes, real, x
        return self._codes[1], self._codes[2]

    @torch.no_grad()
    def _find_ranges(self, x: Tensor | networks.Features, operand: networks.Graph, loops: Graph) -> None:
        """Find the ranges in the first step; let those that are not learned follow in the others."""
        share = self.momentum if bool(self.known) else 1.0
        if share == 1:
            self.of_rows.fill_(not isinstance(x, Tensor))
            if isinstance(x, Tensor):
                self._range(self.input_ranges, 0).follow(x.reshape(-1, 1))
        elif self.learned:
            return
        self.known.fill_(True)
        self._layers(self._features(self.export(), x)[1], operand, loops, share=share)

    def _protected(self, loops: Graph) -> Tensor:
        """Nodes that keep their real numbers in this step."""
        assert self.protect is not None
        degrees = (loops.indptr[1:] - loops.indptr[:-1]).double()
        rank = degrees.argsort(stable=True).argsort(stable=True).double() / max(len(degrees) - 1, 1)
        low, high = self.protect
        return torch.rand(len(degrees), dtype=torch.float64) < low + (high - low) * rank

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": (None, None), "_codes": (None, None), "_floats": (None, None)}

    def extra_repr(self) -> str:
        """Sizes and bits, for ``repr``."""
        return f"{' -> '.join(map(str, self.widths))}, bits={self.bits}"


def _factors(operand: networks.Graph) -> tuple[Tensor, Tensor]:
    """Left-hand and right-hand factors of a graph's normalisation, one for each node."""
    ones = np.ones(operand.nodes, np.float32)
    left, right = (
        torch.from_numpy(ones if part is None else part)[:, None] for part in (operand.row_scale, operand.col_scale)
    )
    return left, right


def _grid(of: Any) -> tuple[_Array, _Array]:
    """Step and lower end, float64 (columns,)."""
    return of.step.detach().numpy(), of.low.detach().numpy()


def _chain(col: _Array, bias: _Array, activation: str | None, bits: int | None) -> Chain:
    return Chain(np.asarray(col).astype(np.float32), np.asarray(bias).astype(np.float32), activation, bits)

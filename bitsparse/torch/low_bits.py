"""Training of networks on bits: every forward pass is that of the network, gradients pass its roundings straight through."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bitsparse import _check
from bitsparse import nn as networks
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.errors import DeviceError, ShapeError
from bitsparse.nn.lowbit.host import step_params
from bitsparse.nn.lowbit.inputs import check_codes
from bitsparse.nn.lowbit.steps import Aggregate, Chain, Update
from bitsparse.ops.steps import GROUP_BITS, finished
from bitsparse.torch.buffers import writes_of
from bitsparse.torch.graph import Graph, checked
from bitsparse.torch.registration import once
from bitsparse.torch.sums import spmm

#: Sums of integers up to this are exact in float32.
_EXACT = 1 << 24
_ACTIVATIONS = {"relu": torch.relu, "leaky_relu": nn.functional.leaky_relu, "tanh": torch.tanh, None: torch.clone}


class _Rounded(torch.autograd.Function):
    """Gives `rounded` for `x`; the gradient passes straight through to `x`, where there is a mask only inside of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor, inside: Tensor | None) -> Tensor:
        ctx.save_for_backward(inside)
        return rounded

    @staticmethod
    @once("LowBitModule")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inside,) = ctx.saved_tensors
        return gradient if inside is None else gradient * inside, None, None


class LowBitModule(nn.Module):
    """A :class:`bitsparse.nn.LowBitNetwork` that trains with its roundings and is exported to such a network (quantisation-aware training).

    Parameters
    ----------
    network : LowBitNetwork
        Where training starts: what :func:`bitsparse.nn.quantize_network` made of a network that was trained in floating point.

    Attributes
    ----------
    network : LowBitNetwork
    weights : ParameterList
        One for each product with weights, in codes: training moves them from the codes of `network`, and they are rounded to the nearest.
    scales : ParameterList
        Logarithms of what the factor of each column of each step is multiplied by; zeros at first.
    biases : ParameterList
        What each step adds to its columns, in units of its codes (in front of tanh as it is).
    offsets : ParameterDict
        By number of the step: what sums over neighbours add to every code, and products to every row, times the graph's factor of it.

    Notes
    -----
    Every forward pass makes the network of the parameters as they are and runs it in integers: what is trained is what is exported, and
    logits are equal to the bit. Gradients are those of the same steps in float32 at the rounded values; they pass a rounding where its
    input lies within the range of the codes (Bengio et al. 2013; for steps and ends of grids, which are factors and biases here, LSQ, Esser
    et al., ICLR 2020). As every parameter is measured in codes or is a logarithm, one learning rate serves all, about 0.05 for Adam; no
    weight decay. Before the first step logits are those of `network`.

    Few labelled nodes teach few bits little. What does is the network in floating point: the classes that it predicts, of many nodes. That
    is how ``bitsparse accuracy --table qgtc`` trains.

    It trains on the CPU; what is exported runs anywhere. A state dict belongs to the network that the module was made of, which
    :meth:`~bitsparse.nn.LowBitNetwork.save` keeps.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> from bitsparse import nn
    >>> from scipy import sparse
    >>> adjacency, x = sparse.csr_array([[0, 1, 0], [0, 0, 1], [1, 0, 0]]), torch.eye(3)
    >>> full = nn.random_network("gcn", [3, 8, 2])
    >>> low = bst.LowBitModule(nn.quantize_network(full, adjacency, x.numpy(), bits=4))
    >>> torch.nn.functional.cross_entropy(low(x, bst.Graph(adjacency)), torch.tensor([0, 1, 1])).backward()
    >>> low.export()
    <LowBitNetwork gcn 3 -> 8 -> 2, bits 4, 4, 904 B>
    """

    def __init__(self, network: networks.LowBitNetwork) -> None:
        super().__init__()
        _check.instance(
            "LowBitModule", "network", network, networks.LowBitNetwork, "an nn.LowBitNetwork", "see nn.quantize_network"
        )
        self.network = network
        self.weights, self.scales, self.biases = (nn.ParameterList() for _ in range(3))
        self.offsets = nn.ParameterDict()
        for number, step in enumerate(network.steps):
            offset = step.constant if isinstance(step, Update) else step.offset
            self.scales.append(nn.Parameter(torch.zeros(step.chain.col_scale.size)))
            self.biases.append(nn.Parameter(torch.from_numpy(step.chain.bias.copy())))
            if offset is not None:
                self.offsets[str(number)] = nn.Parameter(torch.from_numpy(offset.copy()))
            if isinstance(step, Update):
                self.weights.append(nn.Parameter(_weight_codes(step)))
        self._prepared: tuple[Any, ...] = (None,)
        self._codes: tuple[Any, ...] = (None,)

    def export(self) -> networks.LowBitNetwork:
        """The network on bits of the parameters as they are, :class:`bitsparse.nn.LowBitNetwork`."""
        network, weights = self.network, iter(self.weights)
        steps: list[Update | Aggregate] = []
        for number, step in enumerate(network.steps):
            old, offset = step.chain, self._offset(number)
            extra = None if offset is None else _array(offset)
            scale = old.col_scale * np.exp(_array(self.scales[number]))
            chain = Chain(scale, _array(self.biases[number]), old.activation, old.bits, old.grid)
            if isinstance(step, Update):
                # Codes of weights have as many bits as those that they multiply.
                bits = network.steps[number - 1].chain.bits if number else network.input_bits
                least, gap, top = _levels(step, bits or 1)
                codes = np.clip(np.rint((_array(next(weights)) - least) / gap), 0, top) * gap + least
                packed = BitTensor(codes.astype(np.int32), step.weights.bits, encoding="signed", axis=-2)
                steps.append(Update(packed, chain, step.scaled, extra))
            else:
                steps.append(Aggregate(step.columns, step.bits, chain, extra, step.own))
        about = (
            network.kind,
            network.normalisation,
            network.self_loops,
            network.bits,
            network.widths,
            network.input_grid,
        )
        return networks.LowBitNetwork(*about, tuple(steps))

    def forward(self, x: Any, graph: Graph) -> Tensor:
        """Logits (nodes, classes) of :meth:`export`; `x` is what that network takes: a tensor, or :class:`bitsparse.nn.Features`."""
        if isinstance(x, Tensor) and x.is_cuda:
            raise DeviceError(
                "LowBitModule: x is on a GPU, but networks train in few bits with their exact roundings on the CPU; pass x.cpu()"
            )
        if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "LowBitModule: x requires a gradient, but features are rounded to codes that are kept, and have none; pass x.detach()"
            )
        operand, sums = self._operand(graph)
        if x.shape[:1] != (graph.num_sources,):
            raise ShapeError(
                f"LowBitModule: the graph has {graph.num_sources} nodes but x has shape {tuple(x.shape)}; pass "
                f"(nodes, {self.network.features})"
            )
        row_scale, h = self._features(x)
        of_rows = operand.row_scale, operand.col_scale, operand.degrees, row_scale
        left, right, degrees, first = (_column(part, operand.nodes) for part in of_rows)
        weights = iter(self.weights)
        for number, step in enumerate(self.export().steps):
            scale, bias, offset = self._scale(number), self.biases[number], self._offset(number)
            if isinstance(step, Update):
                codes = _Rounded.apply(next(weights), _weight_codes(step), None)
                total = exact_product(h, codes)
                factor = right if step.scaled else torch.ones(1)
                y = total.float() * (factor if number else factor * first) * scale + bias
                y = y if offset is None else y + factor * offset
            else:
                total = spmm(sums, h.double())
                terms = total.float() if offset is None else total.float() + degrees * offset
                y = left * terms * scale + bias
            params = step_params(step, operand, row_scale if number == 0 else None)
            found = finished(total.detach().numpy().astype(np.int64), params)
            y, bits, grid = _ACTIVATIONS[step.chain.activation](y), step.chain.bits, step.chain.grid
            if bits is None:
                return _Rounded.apply(y, torch.from_numpy(found), None)
            if grid is not None:
                y = (y - torch.from_numpy(grid.low)) / torch.from_numpy(grid.step)
            codes = torch.from_numpy(BitTensor.from_words(found, y.shape, bits).toarray().astype(np.float32))
            # What is no more than half a step beyond is rounded no worse than what lies between.
            before, h = h, _Rounded.apply(y, codes, (y >= -0.5) & (y <= 2**bits - 0.5))
            if isinstance(step, Aggregate) and step.own:
                h = torch.cat([h, h.new_zeros(len(h), -h.shape[1] % GROUP_BITS), before], dim=1)
        raise AssertionError("a network ends with logits")

    def _scale(self, number: int) -> Tensor:
        """Factors of a step's columns."""
        return torch.from_numpy(self.network.steps[number].chain.col_scale) * self.scales[number].exp()

    def _offset(self, number: int) -> Tensor | None:
        """What a step adds in front of its sums, or None."""
        return self.offsets.get(str(number))

    def _operand(self, graph: Graph) -> tuple[networks.Graph, Graph]:
        """The graph for the network on bits, and for sums with gradients; kept while it stays the same."""
        plain = checked("LowBitModule", graph).unweighted()
        edges = plain.indptr, plain.indices
        state = [(id(part), writes_of(part)) for part in edges]
        if self._prepared[0] != state:
            how: Any = {"normalisation": self.network.normalisation, "self_loops": self.network.self_loops}
            operand = networks.Graph.from_csr(*(part.numpy() for part in edges), **how)
            self._prepared = state, operand, Graph(operand.pattern).unweighted(), edges
        return self._prepared[1], self._prepared[2]

    def _features(self, x: Any) -> tuple[Any, Tensor]:
        """Scales of the rows or None, and the codes of the features; kept while these stay the same."""
        if isinstance(x, Tensor):
            key: Any = x.data_ptr(), writes_of(x), tuple(x.shape), x.stride(), x.dtype
            counted = not x.is_inference()
        else:
            key, counted = id(x), isinstance(x, networks.Features)  # which do not change
        # Nobody counts writes to arrays, nor to tensors made in inference mode: their codes may be out of date at every call.
        if self._codes[0] != key or not counted:
            codes = self.network.quantize(_numbers(x) if isinstance(x, Tensor) else x)
            check_codes("LowBitModule", self.network, len(codes), codes)
            with torch.inference_mode(False):  # what an evaluation keeps serves training as well
                self._codes = key, codes.scale, torch.from_numpy(codes.toarray().astype(np.float32)), x
        return self._codes[1], self._codes[2]

    def get_extra_state(self) -> str:
        """The fingerprint of the network that the module was made of, for its state dict."""
        return self.network.fingerprint()

    def set_extra_state(self, state: str) -> None:
        """Refuse the state dict of a module that was made of another network."""
        mine = self.network.fingerprint()
        if state != mine:
            raise ValueError(
                f"LowBitModule: the state is of a module made of network {state[:8]}, this one was made of {mine[:8]}; make it of the "
                f"same network, see nn.load_lowbit"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": (None,), "_codes": (None,)}

    def extra_repr(self) -> str:
        """The network, for ``repr``."""
        return repr(self.network)


def _array(parameter: Tensor) -> Any:
    """A parameter in float32, as the network keeps its numbers."""
    return parameter.detach().float().numpy().copy()


def _numbers(x: Tensor) -> Any:
    """Features as NumPy holds them, which knows no bfloat16."""
    rows = x.detach()
    return (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()


def _column(part: Any, nodes: int) -> Tensor:
    """One number for each node; ones where there are none."""
    return torch.ones(nodes, 1) if part is None else torch.from_numpy(np.asarray(part, np.float32).reshape(-1, 1))


def _weight_codes(step: Update) -> Tensor:
    """The codes of a step's weights, in float32, which holds them exactly."""
    return torch.from_numpy(step.weights.toarray().astype(np.float32))


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """The product of integers in float32, exactly: in float64 where sums may be too large for float32."""
    with torch.no_grad():
        most = (
            float(left.abs().amax()) * float(right.abs().amax()) * left.shape[1]
            if left.numel() and right.numel()
            else 0
        )
    with torch.autocast(left.device.type, enabled=False):  # which would round them
        return left @ right if most <= _EXACT else left.double() @ right.double()


def _levels(step: Any, bits: int) -> tuple[Any, Any, int]:
    """Of the weights of a step: the least code of each column, how far codes lie apart, and how many steps there are.

    Those of one bit are two of -1, 0 and 1, the same two in a column.
    """
    if bits > 1:
        return -(2 ** (bits - 1)), 1, 2**bits - 1
    codes = step.weights.toarray()
    least, most = codes.min(axis=0), codes.max(axis=0)
    least = np.where(least == most, np.minimum(least, 0), least)  # a column of one code gets a neighbour as its second
    return least, np.maximum(most - least, 1), 1

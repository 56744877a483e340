"""Training of networks on bits: the forward pass is that of the exported network, and gradients pass straight through its rounding."""

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
    """Return `rounded` in place of `x`; the gradient passes straight through to `x`, multiplied by the mask `inside` if there is one."""

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
    """Quantisation-aware training of a :class:`bitsparse.nn.LowBitNetwork`: it trains with its rounding and is exported as such a network.

    Parameters
    ----------
    network : LowBitNetwork
        The network from which training starts: :func:`bitsparse.nn.quantize_network` makes it from one trained in floating point.

    Attributes
    ----------
    network : LowBitNetwork
    weights : ParameterList
        The weights of each product, in units of codes: they start at the codes of `network` and are rounded to nearest in each pass.
    scales : ParameterList
        For each step, the logarithm of a multiplier of each column's factor; zeros at first.
    biases : ParameterList
        What each step adds to its columns, in units of its codes (before tanh, in plain units).
    offsets : ParameterDict
        By step number: what a sum adds to every neighbour's code, or a product to every row, times the graph's factor of the row.

    Notes
    -----
    Every forward pass builds the network from the present parameters and runs it in integers, so the logits equal those of the exported
    network to the bit. Gradients are those of the same steps in float32 at the rounded values; they pass a rounding if its input lies
    within the range of the codes (Bengio et al. 2013; for steps and ends of grids, which are factors and biases here, LSQ, Esser et al.,
    ICLR 2020). Since every parameter is a logarithm or is measured in codes, one learning rate suits all, about 0.05 for Adam, without
    weight decay. Before the first step, logits are those of `network`.

    A few labelled nodes are too few to train on. Train on the classes that the floating-point network predicts for many nodes instead, as
    ``bitsparse accuracy --table qgtc`` does.

    The module trains on the CPU; the exported network runs anywhere. A state dict belongs to the network from which the module was made,
    which :meth:`~bitsparse.nn.LowBitNetwork.save` stores.

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
        """Return the network on bits with the present parameters, a :class:`bitsparse.nn.LowBitNetwork`."""
        network, weights = self.network, iter(self.weights)
        steps: list[Update | Aggregate] = []
        for number, step in enumerate(network.steps):
            old, offset = step.chain, self._offset(number)
            extra = None if offset is None else _array(offset)
            scale = old.col_scale * np.exp(_array(self.scales[number]))
            chain = Chain(scale, _array(self.biases[number]), old.activation, old.bits, old.grid)
            if isinstance(step, Update):
                # Codes of weights have as many bits as the codes that they multiply.
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
        """Compute the logits (nodes, classes) of the :meth:`export`; `x` is a tensor or a :class:`bitsparse.nn.Features`."""
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
            # Values up to half a step outside the range round with no larger error than values inside it.
            before, h = h, _Rounded.apply(y, codes, (y >= -0.5) & (y <= 2**bits - 0.5))
            if isinstance(step, Aggregate) and step.own:
                h = torch.cat([h, h.new_zeros(len(h), -h.shape[1] % GROUP_BITS), before], dim=1)
        raise AssertionError("a network ends with logits")

    def _scale(self, number: int) -> Tensor:
        """The factors of a step's columns."""
        return torch.from_numpy(self.network.steps[number].chain.col_scale) * self.scales[number].exp()

    def _offset(self, number: int) -> Tensor | None:
        """The offset of a step, or None."""
        return self.offsets.get(str(number))

    def _operand(self, graph: Graph) -> tuple[networks.Graph, Graph]:
        """The graph in two forms, for the network on bits and for sums with gradients; cached until the graph changes."""
        plain = checked("LowBitModule", graph).unweighted()
        edges = plain.indptr, plain.indices
        state = [(id(part), writes_of(part)) for part in edges]
        if self._prepared[0] != state:
            how: Any = {"normalisation": self.network.normalisation, "self_loops": self.network.self_loops}
            operand = networks.Graph.from_csr(*(part.numpy() for part in edges), **how)
            self._prepared = state, operand, Graph(operand.pattern).unweighted(), edges
        return self._prepared[1], self._prepared[2]

    def _features(self, x: Any) -> tuple[Any, Tensor]:
        """The rows' scales or None, and the codes of the features; cached until the features change."""
        # Another tensor over the same memory counts its own writes: what `torch.from_numpy` returns for an array has none at every call.
        key: Any = id(x)
        if isinstance(x, Tensor):
            key, counted = (key, x.data_ptr(), writes_of(x), tuple(x.shape), x.stride(), x.dtype), not x.is_inference()
        else:
            counted = isinstance(x, networks.Features)  # which do not change
        # Writes to arrays and to tensors of inference mode are not counted, so their codes may be out of date at every call.
        if self._codes[0] != key or not counted:
            codes = self.network.quantize(_numbers(x) if isinstance(x, Tensor) else x)
            check_codes("LowBitModule", self.network, len(codes), codes)
            with torch.inference_mode(False):  # training may reuse what an evaluation caches
                self._codes = key, codes.scale, torch.from_numpy(codes.toarray().astype(np.float32)), x
        return self._codes[1], self._codes[2]

    def get_extra_state(self) -> str:
        """Return the fingerprint of the network from which the module was made, for the state dict."""
        return self.network.fingerprint()

    def set_extra_state(self, state: str) -> None:
        """Refuse the state dict of a module that was made from another network."""
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
    """Copy a parameter to a float32 array, the form in which the network keeps its numbers."""
    return parameter.detach().float().numpy().copy()


def _numbers(x: Tensor) -> Any:
    """Features as a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    rows = x.detach()
    return (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()


def _column(part: Any, nodes: int) -> Tensor:
    """A column with one number for each node; ones if `part` is None."""
    return torch.ones(nodes, 1) if part is None else torch.from_numpy(np.asarray(part, np.float32).reshape(-1, 1))


def _weight_codes(step: Update) -> Tensor:
    """The codes of a step's weights, in float32, which holds them exactly."""
    return torch.from_numpy(step.weights.toarray().astype(np.float32))


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """The exact product of integers held in float32; it is computed in float64 if sums may be too large for float32."""
    with torch.no_grad():
        most = (
            float(left.abs().amax()) * float(right.abs().amax()) * left.shape[1]
            if left.numel() and right.numel()
            else 0
        )
    with torch.autocast(left.device.type, enabled=False):  # which would round them
        return left @ right if most <= _EXACT else left.double() @ right.double()


def _levels(step: Any, bits: int) -> tuple[Any, Any, int]:
    """For a step's weights: the least code of each column, the distance between codes, and the number of steps.

    With one bit, each column uses two of the codes -1, 0 and 1.
    """
    if bits > 1:
        return -(2 ** (bits - 1)), 1, 2**bits - 1
    codes = step.weights.toarray()
    least, most = codes.min(axis=0), codes.max(axis=0)
    least = np.where(least == most, np.minimum(least, 0), least)  # a single code gets a neighbour as the second
    return least, np.maximum(most - least, 1), 1

"""The walk through a network that quantises it layer by layer, computing in full precision and in codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse.arrays import BitTensor
from bitsparse.graph.operand import Graph
from bitsparse.nn.dense import Dense, activated
from bitsparse.nn.full.network import Network
from bitsparse.nn.layers import Layer
from bitsparse.nn.lowbit.calibration import (
    column_match,
    grid_through,
    nearest_codes,
    refine_codes,
    refit,
    signed_grid,
    uniform_grid,
)
from bitsparse.nn.lowbit.classes import grid_for_classes, match_classes
from bitsparse.nn.lowbit.network import LowBitNetwork
from bitsparse.nn.lowbit.steps import Aggregate, Chain, Grid, Update
from bitsparse.ops.steps import GROUP_BITS

_Array = NDArray[np.float64]
#: The most bits for which codes are chosen together, and grids chosen for the steps that read them.
_FEW_BITS = 4
#: The most bits for which the last layer is matched by class probabilities, because errors matter only near borders between classes.
_COARSE_BITS = 2
#: Weights are fitted again to codes if there are at least this many rows per input.
_ROWS_PER_INPUT = 8
#: Shares of a column's extremes from which the searches for grids of features start, and the iterations of each search.
_INPUT_STARTS, _INPUT_STEPS = (1.0, 0.6, 0.3), 6


class _Codes(NamedTuple):
    """Codes, and the grid of each of their columns."""

    codes: _Array
    step: _Array
    low: _Array


class _Reader(NamedTuple):
    """What reads a product's result: the bits of its codes (None for logits), and whether the codes are summed next."""

    bits: int | None
    sums: bool


class Walk:
    """One walk through the network, in full precision and in codes, both in float64.

    `rounded` are features quantised with a grid for each row. They take the place of codes; their scales are row factors of the first
    product.
    """

    def __init__(
        self, network: Network, graph: Any, features: _Array, bits: Sequence[int], rounded: _Array | None = None
    ) -> None:
        self.network, self.bits = network, list(bits)
        operand = Graph(graph, network.normalisation, self_loops=network.self_loops, form="csr")
        self.pattern = operand.pattern.astype(np.float64)
        ones, scales = np.ones(operand.nodes, np.float32), (operand.row_scale, operand.col_scale)
        self.left, self.right = ((ones if part is None else part).astype(np.float64)[:, None] for part in scales)
        self.full = features
        self.steps: list[Update | Aggregate] = []
        self.input_grid: Grid | None = None
        if rounded is not None:
            columns = features.shape[1]
            self.grid, self.codes = Grid(np.ones(columns, np.float32), np.zeros(columns, np.float32)), rounded
            return
        step, low = _input_grid(features, self.bits[0])
        step = _like_others(step, features, _end_to_end(features, self.bits[0]))
        self.grid = self.input_grid = Grid(step.astype(np.float32), low.astype(np.float32))
        self.codes = nearest_codes(features, *_wide(self.grid), self.bits[0])

    def run(self) -> LowBitNetwork:
        """Walk through all layers and return the low-bit network."""
        network = self.network
        for i, (layer, bits) in enumerate(zip(network.layers, self.bits, strict=True)):
            following = self.bits[i + 1] if i + 1 < len(self.bits) else None
            first, *others = *(_Reader(bits, False) for _ in layer.updates[1:]), _Reader(following, True)
            begin = self.propagate if network.multiplies_first(layer) else self.collect
            begin(layer, bits, first)
            for update, reader in zip(layer.updates[1:], others, strict=True):
                weight = update.weight.astype(np.float64)
                read = _Codes(self.codes, *_wide(self.grid))
                self.product(update, read, weight, self.full @ weight, bits, reader)
        about = network.kind, network.normalisation, network.self_loops
        return LowBitNetwork(*about, tuple(self.bits), network.widths, self.input_grid, tuple(self.steps))

    def sums(self, values: _Array) -> _Array:
        """Sums over neighbours with the row's factor."""
        return np.asarray(self.left * (self.pattern @ values))

    def weighted(self, values: _Array) -> _Array:
        """Sums over neighbours with the factors of both ends."""
        return self.sums(self.right * values)

    def propagate(self, layer: Layer, bits: int, reader: _Reader) -> None:
        """Quantise a layer that multiplies before it sums: of a GCN, or of a GIN if that makes it no wider."""
        update = layer.updates[0]
        step, low = _wide(self.grid)
        weight = update.weight.astype(np.float64)
        full = self.full @ weight
        inputs = self.weighted(self.codes) if bits <= _FEW_BITS else None
        reference = self.weighted(full)
        codes, scale = self.weights(step[:, None] * weight, bits, inputs, reference)
        base = low @ weight
        measured = (self.codes @ codes) * scale + base
        slope, shift = column_match(full, measured)
        messages = self.right * (slope * measured + shift)
        if reader.bits is None and bits <= _COARSE_BITS:
            size, start = grid_for_classes(messages, bits, self.sums, update.finish(reference))
        else:
            size, start = grid_through(messages, bits, self.sums, reference, then=update.finish)
        constant, bias = (slope * base + shift) / size, -start / size
        scaled = self.network.normalisation == "gcn"
        if not scaled:  # without row factors the constant is part of the addend
            bias = bias + constant
        chain = _chain(slope * scale / size, bias, None, bits)
        self.steps.append(Update(_packed(codes, bits), chain, scaled, constant.astype(np.float32) if scaled else None))
        received = self.sums(size * nearest_codes(messages, size, start, bits) + start)
        offset = (start / size).astype(np.float32)
        chain = self.finish(update, received, reference, size, np.zeros(size.size), reader)
        self.steps.append(Aggregate(size.size, bits, chain, offset))

    def collect(self, layer: Layer, bits: int, reader: _Reader) -> None:
        """Quantise a layer of a GraphSAGE or GIN that sums before it multiplies."""
        step, low = _wide(self.grid)
        own = layer.own
        if self.network.kind == "gin" and not self.network.self_loops:
            own = layer.updates[0].weight * np.float32(1 + layer.eps)
        near = self.sums(self.full)
        received = self.sums(step * self.codes + low)
        slope, shift = column_match(near, received)
        received = slope * received + shift
        size, start = uniform_grid(received, bits)
        size = _like_others(size, received, _end_to_end(received, bits) if own is None else step.max(initial=0.0))
        chain = _chain(slope * step / size, (shift - start) / size, None, bits)
        offset = (low / step).astype(np.float32) if low.any() else None
        self.steps.append(Aggregate(step.size, bits, chain, offset, own is not None))
        read = _Codes(nearest_codes(received, size, start, bits), size, start)
        weight, full = layer.updates[0].weight.astype(np.float64), near @ layer.updates[0].weight
        if own is not None:
            pad = -step.size % GROUP_BITS
            full = full + self.full @ own
            read = _Codes(
                np.hstack((read.codes, np.zeros((len(near), pad)), self.codes)),
                np.concatenate((size, np.zeros(pad), step)),
                np.concatenate((start, np.zeros(pad), low)),
            )
            weight = np.vstack((weight, np.zeros((pad, weight.shape[1])), own))
        self.product(layer.updates[0], read, weight, full, bits, reader)

    def product(self, update: Dense, read: _Codes, weight: _Array, full: _Array, bits: int, reader: _Reader) -> None:
        """Quantise a product of codes with weights, and everything that follows it."""
        few = bits <= _FEW_BITS
        codes, scale = self.weights(read.step[:, None] * weight, bits, read.codes if few else None, full)
        base = read.low @ weight
        chain = self.finish(update, (read.codes @ codes) * scale + base, full, scale, base, reader)
        self.steps.append(Update(_packed(codes, bits), chain))

    def weights(self, weight: _Array, bits: int, inputs: Any, targets: Any) -> tuple[_Array, _Array]:
        """Signed codes of weights and one scale per column. With ``inputs`` the codes are chosen together for the product with them."""
        if inputs is not None and len(inputs) >= _ROWS_PER_INPUT * len(weight):
            weight = refit(inputs, targets, weight)
        if bits == 1:
            step, low = uniform_grid(weight, 1)
            codes, step = refine_codes(inputs, weight, nearest_codes(weight, step, low, 1), step, low, 1)
            return _signs(codes, step, inputs, inputs @ weight)
        scale = signed_grid(weight, bits)
        lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        codes = np.clip(np.rint(weight / scale), lowest, highest)
        if inputs is not None and len(inputs):
            codes, scale = refine_codes(inputs, weight, codes, scale, np.zeros_like(scale), bits, lowest=lowest)
        return codes, scale

    def grid_of_result(self, values: _Array, full: _Array, reader: _Reader, from_zero: bool) -> tuple[_Array, _Array]:
        """The grid of a product's result, chosen for the sums over neighbours that read it, or else for its own values."""
        bits = reader.bits
        assert bits is not None
        if reader.sums:
            return grid_through(values, bits, self.weighted, self.weighted(full), from_zero=from_zero)
        return uniform_grid(values, bits, from_zero=from_zero)

    def finish(
        self, dense: Dense, measured: _Array, full: _Array, factor: _Array, base: _Array, reader: _Reader
    ) -> Chain:
        """Add bias, norm, activation and the grid of the result to a product; ``measured`` is ``integers * factor + base``."""
        slope, shift = column_match(full, measured)
        scale, added = dense.norm
        bias = shift + (0 if dense.bias is None else dense.bias.astype(np.float64))
        slope, shift = slope * scale, bias * scale + added
        self.full = dense.finish(full)
        bits = reader.bits
        if bits is None and self.bits[-1] <= _COARSE_BITS and dense.activation is None:
            slope, shift = match_classes(self.full, measured, slope, shift)
        values = activated(slope * measured + shift, dense.activation)
        col, addend = factor * slope, slope * base + shift
        if bits is None:
            return _chain(col, addend, dense.activation, None)
        rises = dense.activation == "relu"
        size, start = self.grid_of_result(values, self.full, reader, rises)
        far = values.min(axis=0, initial=np.inf) > values.max(axis=0, initial=0.0) / 2
        if rises and far.any():  # a grid from zero would waste steps; relu has no effect there
            size[far], start[far] = self.grid_of_result(values[:, far], self.full[:, far], reader, False)
        size = _like_others(size, values, _end_to_end(values, bits))
        self.grid = Grid(size.astype(np.float32), start.astype(np.float32))
        self.codes = nearest_codes(values, size, start, bits)
        if dense.activation == "tanh":
            return _chain(col, addend, "tanh", bits, self.grid)
        if dense.activation == "leaky_relu":
            return _chain(col / size, addend / size, "leaky_relu", bits, (np.ones_like(size), start / size))
        # Positive factors can move through relu, and the lower end, which is not below relu's zero, becomes part of the addend.
        return _chain(col / size, (addend - start) / size, dense.activation, bits)


def _chain(col: _Array, bias: _Array, activation: str | None, bits: int | None, grid: Any = None) -> Chain:
    single = None if grid is None else Grid(*(np.ascontiguousarray(part, np.float32) for part in grid))
    return Chain(col.astype(np.float32), bias.astype(np.float32), activation, bits, single)


def _wide(grid: Grid) -> tuple[_Array, _Array]:
    return grid.step.astype(np.float64), grid.low.astype(np.float64)


def _input_grid(features: _Array, bits: int) -> tuple[_Array, _Array]:
    """The grid of the features: from the lowest to the highest value with more than 4 bits, else with the least squared error."""
    if bits <= _FEW_BITS:
        return uniform_grid(features, bits, starts=_INPUT_STARTS, iterations=_INPUT_STEPS)
    if not len(features):
        return np.ones(features.shape[1]), np.zeros(features.shape[1])
    low, high = features.min(axis=0), features.max(axis=0)
    step = (high - low) / (2**bits - 1)
    return np.where(step > 1e-30, step, 1.0), low


def _like_others(step: _Array, values: _Array, alone: float) -> _Array:
    """Replace the steps of constant columns by the largest other one, or by `alone` if all are constant: they scale one grid of weights."""
    if not len(values):
        return step
    varies = values.max(axis=0) > values.min(axis=0)
    return np.where(varies, step, step[varies].max(initial=1e-30) if varies.any() else alone)


def _end_to_end(values: _Array, bits: int) -> float:
    """The step of a grid from zero to the largest magnitude, about what sums over neighbours need, which are 0 for lone nodes."""
    step = float(np.abs(values).max(initial=0.0)) / (2**bits - 1)
    return step if step > 1e-30 else 1.0


def _signs(codes: _Array, step: _Array, inputs: _Array, targets: _Array) -> tuple[_Array, _Array]:
    """For each column, map codes 0 and 1 to -1 and +1, 0 and +1, or -1 and 0, whichever a linear map brings closest to the targets."""
    least, best, scale = np.full(step.size, np.inf), codes, step
    for signs, size in ((2 * codes - 1, step / 2), (codes, step), (codes - 1, step)):
        slope, shift = column_match(targets, inputs @ signs)
        error = ((slope * (inputs @ signs) + shift - targets) ** 2).sum(axis=0)
        best, scale = np.where(error < least, signs, best), np.where(error < least, size, scale)
        least = np.minimum(error, least)
    return best, scale


def _packed(codes: _Array, bits: int) -> BitTensor:
    return BitTensor(codes.astype(np.int32), max(bits, 2), encoding="signed", axis=-2)

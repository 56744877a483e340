"""Making a low-bit network from one in full precision: grids, weights and corrections from a sample of the graph, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.arrays import BitTensor
from bitsparse.backends.params import GROUP_BITS
from bitsparse.errors import ShapeError
from bitsparse.graph.adjacency import refuse_weights, square_sparse
from bitsparse.graph.operand import Graph
from bitsparse.nn.dense import Dense, activated
from bitsparse.nn.features import Features
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
from bitsparse.nn.lowbit.network import LowBitNetwork
from bitsparse.nn.lowbit.steps import Aggregate, Chain, Grid, Update
from bitsparse.ops import choose_bits

_Array = NDArray[np.float64]
#: Up to so many bits it pays to choose codes together, and grids for what reads them.
_FEW_BITS = 4
#: Up to so many bits the last sums' grid is for class probabilities: near a threshold between classes it matters, far from it nothing does.
_COARSE_BITS = 2
#: Weights are fitted again to codes if there are so many rows for each input.
_ROWS_PER_INPUT = 8
#: Shares of a column's extremes from which the grids of features are looked for, and steps of each search.
_INPUT_STARTS, _INPUT_STEPS = (1.0, 0.6, 0.3), 6
MAX_BITS = 16


def quantize_network(
    network: Network,
    graph: Any,
    features: Any,
    bits: int | Sequence[int] | str = 8,
    *,
    sample: int = 8192,
    seed: int = 0,
) -> LowBitNetwork:
    """Quantise a trained network after its training, with nothing but its own full-precision outputs as a guide.

    The network is walked through once on a sample of the graph, product by product, in full precision and in bits side by
    side. Every grid has one step to a column, which the product that reads the codes takes into its weights. Grids have the
    least squared error, with up to 4 bits after the sums over neighbours. With up to 4 bits weights are fitted again to the
    codes that they multiply and their own codes chosen together (:func:`~bitsparse.nn.lowbit.calibration.refine_codes`). A slope
    and a shift per column match each product to full precision (Nagel et al. 2019, section 4). With 1 and 2 bits the grid of what a
    last layer sums is chosen for the class probabilities instead of the logits. Neither labels nor masks are looked at.

    Parameters
    ----------
    network : Network
    graph : scipy.sparse array (n, n) or GraphData
        The graph that it will run on, or one like it. Edge weights other than 1 are refused.
    features : array (n, features), SciPy sparse array or Features
        Of its nodes; memory-mapped arrays are read at the sampled rows only. :class:`Features` without negative values keep a scale for
        each row where the first layer multiplies before it sums, as a GCN's does; the network then reads such features only.
    bits : int, sequence of int, or "choose", default 8
        1..16, for all layers or for each: bits of its input, of its weights and of what it hands on inside. ``"choose"``
        takes for each layer the fewest bits in 2..8 that hold its full-precision output well enough
        (:func:`bitsparse.choose_bits`); :func:`tune_bits` measures instead.
    sample : int, default 8192
        Nodes to calibrate on: all, or neighbourhoods grown around random nodes, and the edges among them. Where sums are not
        divided (GIN) the sample should have about the degrees of what the network will run on: larger sums are clipped.
    seed : int, default 0
        Of the sample.

    Returns
    -------
    LowBitNetwork

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Graph, features and network do not fit together, the graph has edge weights, the features hold NaN, `bits` is out of
        range, or the network has what low-bit networks have not (:meth:`Network.unusual`).

    Notes
    -----
    Of a directed graph, the right-hand factors of a low-bit GCN are made from the edges that leave a node, where :class:`Network` takes
    those that arrive, as PyTorch Geometric; of stored self loops a low-bit GIN with ``eps=0`` counts one in all, a Network one more.
    On symmetric graphs without self loops both are the same.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = sparse.csr_array(np.kron(np.eye(2), np.ones((4, 4))))
    >>> network = nn.Network("gin", [nn.Layer([nn.Dense([[1.0, -1.0], [-1.0, 1.0]])])])
    >>> nn.quantize_network(network, graph, np.kron(np.eye(2), np.ones((4, 1))), bits=4)
    <LowBitNetwork gin 2 -> 2, bits 4, 184 B>
    """
    function = "quantize_network"
    _check.instance(function, "network", network, Network, "an nn.Network", "see nn.load_state_dict")
    of_rows = features if isinstance(features, Features) else None
    graph, features = graph_and_features(function, graph, features)
    if tuple(features.shape) != (graph.shape[0], network.features):
        raise ShapeError(
            f"{function}: features have shape {tuple(features.shape)}, but graph and network ask for {(graph.shape[0], network.features)}"
        )
    why = network.unusual()
    if why:
        raise ValueError(f"{function}: {why}, which low-bit networks do not have yet; run it in full precision")
    nodes = sample_nodes(graph, _check.integer(function, "sample", sample, 1), seed)
    values = _rows_of(features, nodes)
    _check.finite(function, "features", bool(np.isfinite(values).all()))
    near = graph.tocsr() if nodes is None else graph.tocsr()[nodes][:, nodes]
    of_layers, rounded = layer_bits(network, near, values, bits), None
    if of_rows is not None and network.multiplies_first(network.layers[0]):
        negative = of_rows.quantized(of_layers[0]).offset is not None
        rounded = None if negative else _rows_of(of_rows.rounded(of_layers[0]), nodes)
    return _Walk(network, near, values, of_layers, rounded).run()


def _rows_of(features: Any, nodes: NDArray[np.int64] | None) -> _Array:
    """Features of some nodes (None: of all) as a dense array."""
    rows = features if nodes is None else features[nodes]
    return np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype=np.float64)


def graph_and_features(function: str, graph: Any, features: Any) -> tuple[Any, Any]:
    """A graph without weights as a SciPy sparse array, and features whose rows can be taken: an array or a SciPy sparse array.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        The graph is neither a sparse array nor a GraphData, not square, or has edge weights; the features are no numbers.
    """
    from scipy import sparse

    adjacency = square_sparse(function, getattr(graph, "adjacency", graph), "the graph")
    refuse_weights(function, graph)
    if isinstance(features, Features):
        features = features.csr
    if sparse.issparse(features):
        features = features.tocsr()
    elif not isinstance(features, np.ndarray):  # a memory-mapped array stays one
        features = interop.as_host(features, function, "features")
    _check.numeric(function, "features", features)
    return adjacency, features


def layer_bits(network: Network, graph: Any, features: Any, bits: int | Sequence[int] | str) -> list[int]:
    """Bits of each layer: as given, or chosen from its output in full precision."""
    function, depth = "quantize_network", len(network.layers)
    if isinstance(bits, str):
        _check.choice(function, "bits", bits, ("choose",))
        graph_sums = network.sums(graph)
        x, found = np.asarray(features, np.float32), []
        for layer in network.layers:
            x = np.asarray(network.run_layer(layer, graph_sums, x), np.float32)
            found.append(choose_bits(x) if x.size else 8)
        return found
    given = [bits] * depth if np.ndim(bits) == 0 else list(bits)  # type: ignore[arg-type]
    if len(given) != depth:
        raise ValueError(
            f"{function}: bits has {len(given)} numbers for {depth} layers; pass one number, or one for each layer"
        )
    return [_check.integer(function, "bits", one, 1, MAX_BITS) for one in given]


def sample_nodes(graph: Any, count: int, seed: int = 0) -> NDArray[np.int64] | None:
    """Neighbourhoods around random nodes, ``count`` nodes together, ascending; None if there are no more.

    >>> from scipy import sparse
    >>> ring = sparse.csr_array(np.roll(np.eye(100), 1, axis=1))
    >>> sample_nodes(ring, 10).size, sample_nodes(ring, 100)
    (10, None)
    """
    n = graph.shape[0]
    if n <= count:
        return None
    csr = graph.tocsr()
    rng = np.random.default_rng(seed)
    taken = np.zeros(n, np.bool_)
    left = count
    while left:
        front = rng.choice(np.flatnonzero(~taken), min(left, max(1, count // 64)), replace=False)
        for _ in range(3):
            front = np.unique(front[~taken[front]])
            front = front if front.size <= left else np.sort(rng.choice(front, left, replace=False))
            taken[front] = True
            left -= front.size
            if not left or not front.size:
                break
            near = csr[front].indices
            front = near if near.size <= 8 * count else rng.choice(near, 8 * count, replace=False)
    return np.flatnonzero(taken)


class _Codes(NamedTuple):
    """Codes, and the grid of each of their columns."""

    codes: _Array
    step: _Array
    low: _Array


class _Reader(NamedTuple):
    """What reads the result of a product: codes of so many bits, None where it is the logits; and whether these are summed next."""

    bits: int | None
    sums: bool


class _Walk:
    """One walk through the network, in full precision and in codes, both in float64.

    With `rounded`, features on grids of their rows, these stand for the codes: their scales are factors of the rows of the first product.
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
        step = _like_others(step, features)
        self.grid = self.input_grid = Grid(step.astype(np.float32), low.astype(np.float32))
        self.codes = nearest_codes(features, *_wide(self.grid), self.bits[0])

    def run(self) -> LowBitNetwork:
        """All layers."""
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
        """Sums over neighbours with the factor of their row."""
        return np.asarray(self.left * (self.pattern @ values))

    def weighted(self, values: _Array) -> _Array:
        """Sums over neighbours with the factors of both ends."""
        return self.sums(self.right * values)

    def propagate(self, layer: Layer, bits: int, reader: _Reader) -> None:
        """A layer that multiplies first, then sums: a GCN's, and a GIN's that becomes narrower."""
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
        target = _softmax(update.finish(reference)) if reader.bits is None and bits <= _COARSE_BITS else reference
        size, start = grid_through(messages, bits, self.sums, target)
        constant, bias = (slope * base + shift) / size, -start / size
        scaled = self.network.normalisation == "gcn"
        if not scaled:  # no factors of the rows, so the constant is part of the addend
            bias = bias + constant
        chain = _chain(slope * scale / size, bias, None, bits)
        self.steps.append(Update(_packed(codes, bits), chain, scaled, constant.astype(np.float32) if scaled else None))
        received = self.sums(size * nearest_codes(messages, size, start, bits) + start)
        offset = (start / size).astype(np.float32)
        chain = self.finish(update, received, reference, size, np.zeros(size.size), reader)
        self.steps.append(Aggregate(size.size, bits, chain, offset))

    def collect(self, layer: Layer, bits: int, reader: _Reader) -> None:
        """A GraphSAGE's or GIN's layer: sums, then products."""
        step, low = _wide(self.grid)
        own = layer.own
        if self.network.kind == "gin" and not self.network.self_loops:
            own = layer.updates[0].weight * np.float32(1 + layer.eps)
        near = self.sums(self.full)
        received = self.sums(step * self.codes + low)
        slope, shift = column_match(near, received)
        received = slope * received + shift
        size, start = uniform_grid(received, bits)
        size = _like_others(size, received)
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
        """Codes times weights, with everything behind it."""
        few = bits <= _FEW_BITS
        codes, scale = self.weights(read.step[:, None] * weight, bits, read.codes if few else None, full)
        base = read.low @ weight
        chain = self.finish(update, (read.codes @ codes) * scale + base, full, scale, base, reader)
        self.steps.append(Update(_packed(codes, bits), chain))

    def weights(self, weight: _Array, bits: int, inputs: Any, targets: Any) -> tuple[_Array, _Array]:
        """Signed codes and one scale per column; with ``inputs`` the codes are chosen together for the product with these."""
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

    def finish(
        self, dense: Dense, measured: _Array, full: _Array, factor: _Array, base: _Array, reader: _Reader
    ) -> Chain:
        """Bias, norm, activation and the grid of what comes out; ``measured`` is ``integers * factor + base``."""
        slope, shift = column_match(full, measured)
        scale, added = dense.norm
        bias = shift + (0 if dense.bias is None else dense.bias.astype(np.float64))
        values = activated((slope * measured + bias) * scale + added, dense.activation)
        self.full = dense.finish(full)
        col, addend = factor * slope * scale, (slope * base + bias) * scale + added
        bits = reader.bits
        if bits is None:
            return _chain(col, addend, dense.activation, None)
        rises = dense.activation == "relu"
        if reader.sums:
            size, start = grid_through(values, bits, self.weighted, self.weighted(self.full), from_zero=rises)
        else:
            size, start = uniform_grid(values, bits, from_zero=rises)
        size = _like_others(size, values)
        self.grid = Grid(size.astype(np.float32), start.astype(np.float32))
        self.codes = nearest_codes(values, size, start, bits)
        if dense.activation == "tanh":
            return _chain(col, addend, "tanh", bits, self.grid)
        if dense.activation == "leaky_relu":
            return _chain(col / size, addend / size, "leaky_relu", bits, (np.ones_like(size), start / size))
        # relu lets positive factors pass, and without an activation the lower end goes into the addend.
        return _chain(col / size, (addend - start) / size, dense.activation, bits)


def _chain(col: _Array, bias: _Array, activation: str | None, bits: int | None, grid: Any = None) -> Chain:
    single = None if grid is None else Grid(*(np.ascontiguousarray(part, np.float32) for part in grid))
    return Chain(col.astype(np.float32), bias.astype(np.float32), activation, bits, single)


def _wide(grid: Grid) -> tuple[_Array, _Array]:
    return grid.step.astype(np.float64), grid.low.astype(np.float64)


def _input_grid(features: _Array, bits: int) -> tuple[_Array, _Array]:
    """Grid of the features: from end to end with more than 4 bits, else with the least squared error."""
    if bits <= _FEW_BITS:
        return uniform_grid(features, bits, starts=_INPUT_STARTS, iterations=_INPUT_STEPS)
    if not len(features):
        return np.ones(features.shape[1]), np.zeros(features.shape[1])
    low, high = features.min(axis=0), features.max(axis=0)
    step = (high - low) / (2**bits - 1)
    return np.where(step > 1e-30, step, 1.0), low


def _like_others(step: _Array, values: _Array) -> _Array:
    """Steps with those of constant columns replaced by the largest other one: they scale weights, which share a grid."""
    if not len(values):
        return step
    varies = values.max(axis=0) > values.min(axis=0)
    return np.where(varies, step, step[varies].max(initial=1e-30) if varies.any() else 1.0)


def _signs(codes: _Array, step: _Array, inputs: _Array, targets: _Array) -> tuple[_Array, _Array]:
    """Codes 0 and 1 as -1 and +1, 0 and +1 or -1 and 0, whichever a slope and a shift bring closest to the targets, column by column."""
    least, best, scale = np.full(step.size, np.inf), codes, step
    for signs, size in ((2 * codes - 1, step / 2), (codes, step), (codes - 1, step)):
        slope, shift = column_match(targets, inputs @ signs)
        error = ((slope * (inputs @ signs) + shift - targets) ** 2).sum(axis=0)
        best, scale = np.where(error < least, signs, best), np.where(error < least, size, scale)
        least = np.minimum(error, least)
    return best, scale


def _softmax(logits: _Array) -> _Array:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _packed(codes: _Array, bits: int) -> BitTensor:
    return BitTensor(codes.astype(np.int32), max(bits, 2), encoding="signed", axis=-2)

"""Trained networks that run over sampled edges and on features of few bits (AES-SpMM), and otherwise in full precision."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays import TCTiledCSR
from bitsparse.graph.operand import Graph
from bitsparse.nn.checks import agree
from bitsparse.nn.features import Features
from bitsparse.nn.full.network import Network, Product
from bitsparse.nn.lowbit.calibration import uniform_grid
from bitsparse.ops import plan_sampled_spmm, plan_spmm, quantize
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.sampling.sample import DEFAULT, Strategy
from bitsparse.ops.sampling.spmm import CODE_BITS

#: The number of bits that means float32.
FULL = 32
#: The most nodes whose messages determine the grids; larger graphs are sampled with a seed.
_SAMPLE = 4096


def operand_of(graph: Graph, device: str = "cpu") -> TCTiledCSR:
    """The translated pattern of a graph with its factors per row and column, on a device.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> operand_of(nn.Graph(sparse.csr_array([[0, 1, 1], [1, 0, 0], [0, 0, 0]]), "mean")).toarray()
    array([[0. , 0.5, 0.5],
           [1. , 0. , 0. ],
           [0. , 0. , 0. ]], dtype=float32)
    """
    return graph.packed("tiled").with_scales(graph.row_scale, graph.col_scale).to_device(device)


def plans_of(
    function: str,
    model: Network,
    operand: TCTiledCSR,
    width: int | None,
    strategy: Strategy,
    *,
    rescale: bool = False,
    seed: int | None = None,
) -> list[Any]:
    """Plan the aggregations of a model's layers, over a sample or, without a width, over all edges."""
    make: Callable[..., Any] = partial(plan_spmm, operand)
    if width is not None:
        size = _check.integer(function, "width", width, 1)
        if strategy == "uniform" and seed is None:
            seed = secrets.randbits(64)  # one seed for all layers
        make = partial(plan_sampled_spmm, operand, width=size, strategy=strategy, rescale=rescale, seed=seed)
    return [make(n=columns) for columns in model.widths[1:]]


class Layers:
    """A trained network with its features in some number of bits, on a device: everything except the aggregations.

    Attributes
    ----------
    model : Network
    bits : int
        Bits of the features, 32 for float32.
    device : str
        The device on which the layers run.
    plans : sequence
        The aggregations of a network over one sample, for :meth:`aggregations`.
    """

    plans: Sequence[Any]

    def __init__(self, function: str, model: Network, graph: Graph, features: Features, bits: int, device: str) -> None:
        _check.instance(function, "model", model, Network, "an nn.Network", "see nn.train")
        _check.instance(function, "graph", graph, Graph, "an nn.Graph", "pass nn.Graph(adjacency)")
        self._products = model.products(function)
        if graph.normalisation != model.normalisation:
            raise ValueError(
                f"{function}: a {model.kind} needs a graph with normalisation {model.normalisation!r}, got {graph.normalisation!r}; "
                f"pass nn.Graph(adjacency, {model.normalisation!r})"
            )
        what = "nn.Features, which it quantises itself"
        _check.instance(function, "features", features, Features, what, "pass nn.Features(x)")
        wanted = graph.nodes, model.features
        agree(function, "features have shape", features.shape, "graph and model take", wanted)
        if bits != FULL and bits not in CODE_BITS:
            raise ValueError(
                f"{function}: bits must be {FULL}, {', '.join(map(str, CODE_BITS[::-1]))}, got {_check.shown(bits)}"
            )
        self.model, self.bits, self.device = model, int(bits), device
        x = features.normalized if bits == FULL else features.rounded(self.bits)
        self._ranges = [] if bits == FULL else self._calibrated(graph, features.normalized)
        own, weights, bias = self._products[0]
        #: The messages that the first layer aggregates, and the addend of its aggregate.
        with working_with(device):
            self._first = self._stored(interop.move(x @ weights, device), 0)
            self._more = interop.move(bias if own is None else x @ own + bias, device)
            self._rest = [Product(*(interop.move(part, device) for part in each)) for each in self._products[1:]]

    def run(self, plans: Sequence[Any]) -> list[Any]:
        """Run all layers; return the stored messages of each layer, and the logits."""
        stored = [self._first]
        z = plans[0](self._first) + self._more
        for layer, (own, weights, bias) in enumerate(self._rest, 1):
            hidden = z * (z > 0)
            stored.append(self._stored(hidden @ weights, layer))
            z = plans[layer](stored[-1]) + bias
            if own is not None:
                z = z + hidden @ own
        return [*stored, z]

    def logits(self, plans: Sequence[Any]) -> Any:
        """The logits of every node."""
        with working_with(self.device):
            return self.run(plans)[-1]

    def aggregations(self, plans: Sequence[Any] | None = None) -> list[Callable[[], Any]]:
        """Calls for timing that run each layer's aggregation, by default the network's own, from stored messages into an existing array."""
        plans = self.plans if plans is None else plans
        with working_with(self.device):
            stored = self.run(plans)[:-1]
            return [partial(plan, each, out=plan(each)) for plan, each in zip(plans, stored, strict=True)]

    def _calibrated(self, graph: Graph, x: Any) -> list[Any]:
        """The ranges ``(low, high)`` of each layer's messages, of shape (1, columns), found in full precision."""
        matrix, ranges, hidden = graph.matrix, [], x
        sample = np.random.default_rng(0).permutation(matrix.shape[0])[:_SAMPLE]
        for own, weights, bias in self._products:
            messages = hidden @ weights
            step, low = uniform_grid(messages[sample].astype(np.float64), self.bits)
            high = low + step * (2**self.bits - 1)
            ranges.append(tuple(interop.move(end.astype(np.float32)[None], self.device) for end in (low, high)))
            z = matrix @ messages + bias
            hidden = np.maximum(z if own is None else z + hidden @ own, 0)
        return ranges

    def _stored(self, messages: Any, layer: int) -> Any:
        if self.bits == FULL:
            return messages
        return quantize(
            messages, self.bits, rounding="nearest", granularity="col", layout="rows", range=self._ranges[layer]
        )


class SampledNetwork(Layers):
    """A trained GCN or GraphSAGE whose aggregations run over sampled edges on features of few bits; calling it gives the logits.

    The messages of a layer, ``X W``, are rounded to nearest codes and packed side by side. :func:`sampled_spmm` reads these codes and
    restores the real values while it adds (AES-SpMM section 3.1). The input features have the same number of bits. Each column has its own
    range, the one with the least squared error on the messages of the network in full precision; the paper's single range from the smallest
    to the largest value makes 2 bits useless. Dense products, biases and relu stay in float32.

    Parameters
    ----------
    model : Network
        A GCN or GraphSAGE with relu between the layers.
    graph : Graph
        A graph with the network's normalisation: "gcn" or "mean".
    features : Features
    width : int, optional
        Edges per node, as in :func:`edge_sample`; None takes all of them.
    strategy, rescale, seed
        As in :func:`sampled_spmm`; all layers share one sample.
    bits : {32, 8, 4, 2, 1}
        Bits of features; 32 keeps them in float32.
    device : str, default "cpu"
        The device on which layers run. The first dense product, of the input features, is computed once, on the CPU.

    Raises
    ------
    DTypeError, ShapeError, ValueError
        Model and graph do not fit each other, the model is of another kind, or options are refused as in :func:`sampled_spmm`.

    Notes
    -----
    On five public graphs a width of 32 with ``rescale=True`` kept both kinds of networks within 0.3 points of all edges, and a width of 64
    without it within 0.5 points; 8 bits cost at most 0.4 more (docs/aes-tables.md; :func:`sampling_quality` measures it for another graph).
    A GraphSAGE takes the mean of the sampled neighbours only with ``rescale=True``; without it, their sum is divided by the number of all
    neighbours.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = nn.Graph(sparse.csr_array(np.kron(np.eye(2), np.ones((40, 40)))))
    >>> x, labels = nn.Features(np.eye(80)), np.repeat([0, 1], 40)
    >>> model = nn.train(graph, x, labels, np.arange(80) % 2 == 0, epochs=50)
    >>> few = nn.SampledNetwork(model, graph, x, 16, bits=8)
    >>> few
    <SampledNetwork GCN afs of width 16, 8 bits, cpu>
    >>> bool((few().argmax(axis=1) == labels).all())
    True
    """

    def __init__(
        self,
        model: Network,
        graph: Graph,
        features: Features,
        width: int | None = None,
        strategy: Strategy = DEFAULT,
        *,
        bits: int = FULL,
        rescale: bool = False,
        seed: int | None = None,
        device: str = "cpu",
    ) -> None:
        name = "SampledNetwork"
        super().__init__(name, model, graph, features, bits, interop.parse_device(device, name))
        self.width, self.strategy = width, strategy
        self.operand = operand_of(graph, self.device)
        self.plans = plans_of(name, model, self.operand, width, strategy, rescale=rescale, seed=seed)

    def __call__(self) -> Any:
        """Compute the logits of every node, ``(n, classes)`` float32, on the device of the network."""
        return self.logits(self.plans)

    def __repr__(self) -> str:
        edges = "all edges" if self.width is None else f"{self.strategy} of width {self.width}"
        bits = "float32" if self.bits == FULL else f"{self.bits} bits"
        return f"<SampledNetwork {self.model.kind.upper()} {edges}, {bits}, {self.device}>"

"""A trained GCN run on low-bit integers: quantise, multiply exactly, scale and requantise in the epilogue (QGTC sections 3 and 4.5)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse._check import shown
from bitsparse.arrays import FRDC, BitTensor, TCTiledCSR
from bitsparse.errors import DTypeError
from bitsparse.graph.host_sums import message_form
from bitsparse.graph.operand import Form, Graph, form_for
from bitsparse.nn.features import Features
from bitsparse.nn.full.network import Network
from bitsparse.nn.lowbit.calibration import column_match, grid_through, nearest_codes, refine_codes, refit, uniform_grid
from bitsparse.ops import Epilogue, matmul, plan_matmul, plan_spmm

__all__ = ["ADJACENCIES", "QuantizedGCN", "aggregation", "chosen_adjacency", "quantized_gcn"]

_Array = NDArray[np.float64]
#: Nodes whose outputs guide the calibration; a seeded sample of larger graphs.
_SAMPLE = 4096
ADJACENCIES = ("dense", "frdc", "tiled", "auto")


def chosen_adjacency(asked: str, nodes: int, edges: int, device: str = "cpu") -> Form:
    """The form to use: what is asked for, or for ``"auto"`` FRDC where dense bits are large or slower.

    Examples
    --------
    >>> chosen_adjacency("auto", 500_000, 10**6), chosen_adjacency("auto", 100, 900), chosen_adjacency("tiled", 100, 900)
    ('frdc', 'dense', 'tiled')
    """
    form = form_for(_check.choice("quantized_gcn", "adjacency", asked, ADJACENCIES), nodes, edges, device)
    return "frdc" if form == "csr" else form


def aggregation(
    adjacency: BitTensor | FRDC | TCTiledCSR, columns: int, bits: int, epilogue: Epilogue
) -> Callable[[BitTensor], Any]:
    """``A @ messages`` with an epilogue as a function of messages of unsigned integers, for a 1-bit A without scales and values.

    The sparse forms add up the messages' codes edge by edge, in integers (:func:`spmm`), and send the sums through the same epilogue as the
    dense product with the same corrections for offsets: equal sums, equal steps, equal results, on a CPU and on a GPU.

    Examples
    --------
    >>> pattern = np.array([[1, 1, 0], [0, 1, 0], [1, 1, 1]], dtype=bool)
    >>> messages, plain = bs.quantize(np.array([[0.0], [1.0], [3.0]]), 2), bs.Epilogue(offset_correction=True)
    >>> [aggregation(form(pattern), 1, 2, plain)(messages).ravel().tolist() for form in (bs.BitTensor, bs.FRDC, bs.TCTiledCSR)]
    [[1.0, 1.0, 4.0], [1.0, 1.0, 4.0], [1.0, 1.0, 4.0]]
    """
    if isinstance(adjacency, BitTensor):
        return plan_matmul(adjacency, columns, bits=bits, epilogue=epilogue)
    return plan_spmm(adjacency, columns, bits=bits, epilogue=epilogue)


class QuantizedGCN:
    """A two-layer GCN on bits; made by :func:`quantized_gcn`. Calling it gives the logits.

    Four exact integer products, each with its epilogue, in the order ``A (X W)``:

    =========  ====================  ===============================================  ==============================
    product    left, right           epilogue                                         result
    =========  ====================  ===============================================  ==============================
    update     features, `w1`        right ``D^-1/2``, column match                   codes, packed for `adjacency`
    aggregate  1-bit ``A + I``       left ``D^-1/2``, bias, relu                      codes, packed along the units
    update     hidden units, `w2`    right ``D^-1/2``, column match                   codes, packed for `adjacency`
    aggregate  1-bit ``A + I``       left ``D^-1/2``, bias                            float32 logits
    =========  ====================  ===============================================  ==============================

    Attributes
    ----------
    bits : int
        Of weights and of everything handed from one product to the next.
    adjacency : BitTensor, FRDC or TCTiledCSR
        ``A + I``, one bit each; all three give the same logits, bit for bit.
    features, w1, w2 : BitTensor
        The other operands as stored.
    epilogues : tuple of four Epilogue
    """

    def __init__(
        self,
        bits: int,
        graph: Graph,
        adjacency: BitTensor | FRDC | TCTiledCSR,
        features: BitTensor,
        w1: BitTensor,
        w2: BitTensor,
        epilogues: tuple[Epilogue, ...],
    ) -> None:
        self.bits, self.features, self.w1, self.w2, self.epilogues = bits, features, w1, w2, epilogues
        self.adjacency, self._graph = adjacency, graph
        self._plans: tuple[Callable[[BitTensor], Any], ...] | None = None

    @property
    def device(self) -> str:
        """Where the operands are and the products run."""
        return self.adjacency.device

    def to_device(self, device: str) -> QuantizedGCN:
        """The same model with every operand on ``device``; itself if it is there already. The logits are equal, bit for bit.

        Raises
        ------
        DeviceError
            There is no such device.
        """
        if device == self.device:
            return self
        adjacency, *parts = (part.to_device(device) for part in (self.adjacency, self.features, self.w1, self.w2))
        features, w1, w2 = (cast(BitTensor, part) for part in parts)
        return QuantizedGCN(self.bits, self._graph, adjacency, features, w1, w2, self.epilogues)

    def __call__(self) -> Any:
        """Logits of every node, ``(n, classes)`` float32: a NumPy array, or one on the operands' device."""
        if self._plans is None:
            self._plans = self._planned()
        update, aggregate1, aggregate2 = self._plans
        hidden = aggregate1(update(self.w1))
        return aggregate2(matmul(hidden, self.w2, epilogue=self.epilogues[2]))

    def _planned(self) -> tuple[Callable[[BitTensor], Any], ...]:
        """The three products whose left operand stays the same, prepared."""
        update1, aggregate1, _, aggregate2 = self.epilogues
        return (
            plan_matmul(self.features, self.w1.shape[1], bits=self.w1.bits, epilogue=update1),
            aggregation(self.adjacency, self.w1.shape[1], self.bits, aggregate1),
            aggregation(self.adjacency, self.w2.shape[1], self.bits, aggregate2),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of adjacency, features and weights, with their scales, offsets and biases."""
        vectors = 4 * 3 * sum(weights.shape[1] for weights in (self.w1, self.w2))  # matched slope and shift, bias
        scales = 4 * 2 * self._graph.nodes
        return self.adjacency.nbytes + scales + self.features.nbytes + self.w1.nbytes + self.w2.nbytes + vectors


def quantized_gcn(
    model: Network, graph: Graph, features: Features, bits: int, *, adjacency: str = "dense"
) -> QuantizedGCN:
    """Quantise a trained GCN for one graph, with nothing but its own full-precision outputs as a guide.

    The adjacency is one bit with ``D^-1/2`` as scales outside the bits; features, weights and hidden units have `bits` bits. The right-hand
    ``D^-1/2`` is the row scale of the product before, so that what is aggregated is requantised after scaling; the left-hand one is the
    row scale of the aggregation. All grids have one step per column; the hidden units' steps are divided out of the second weights,
    whose rows they multiply (relu lets positive factors pass; Nagel et al. 2019, section 4.1).

    Ranges and codes are calibrated layer by layer, each on the quantised output of the one before, for the least squared
    error *after* aggregation (:mod:`bitsparse.nn.lowbit.calibration`): grids of what is aggregated, codes of the weights by
    coordinate descent, the second weights refitted to the quantised hidden units, and a slope and shift per column that
    match each product to full precision. At 1 and 2 bits the grid of what the last aggregation reads is chosen for the
    class probabilities of the full-precision model instead of its logits: where nodes are assigned to classes a threshold
    matters, in the range of logits far from it nothing does. Neither labels nor masks are looked at.

    Parameters
    ----------
    model : Network
        A GCN of two layers, such as :func:`train` gives.
    graph : Graph (n, n)
        With the normalisation "gcn".
    features : Features (n, features)
    bits : int
        1..16.
    adjacency : {"dense", "frdc", "tiled", "auto"}
        The form of ``A + I``: dense bits, :class:`bitsparse.FRDC` or :class:`bitsparse.TCTiledCSR`; ``"auto"`` takes FRDC where dense bits
        are large or slower. The logits are the same.

    Returns
    -------
    QuantizedGCN

    Raises
    ------
    ValueError
        `bits` out of range, or the network or the graph is another one.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = nn.Graph(sparse.csr_array(np.kron(np.eye(2), np.ones((4, 4)))))
    >>> x = nn.Features(np.eye(8))
    >>> model = nn.train(graph, x, np.repeat([0, 1], 4), np.arange(8) % 4 == 0, epochs=100)
    >>> nn.quantized_gcn(model, graph, x, bits=4)().argmax(axis=1)
    array([0, 0, 0, 0, 1, 1, 1, 1])
    """
    if not 1 <= operator.index(bits) <= 16:
        raise ValueError(f"quantized_gcn: bits must be an integer in 1..16, got {shown(bits)}")
    if not isinstance(model, Network):
        raise DTypeError(f"quantized_gcn: model must be an nn.Network, got {type(model).__name__}; see nn.train")
    if (model.kind, len(model.layers)) != ("gcn", 2):
        raise ValueError(f"quantized_gcn: the model must be a GCN of two layers, got {model!r}; see quantize_network")
    if graph.normalisation != "gcn":
        raise ValueError(
            f"quantized_gcn: a GCN needs a graph with normalisation 'gcn', got {graph.normalisation!r}; pass nn.Graph(adjacency)"
        )
    return _Calibration(model, graph, features, int(bits), adjacency).run()


class _Calibration:
    """Walks the quantised network once, product by product, beside the full-precision one."""

    def __init__(self, model: Network, graph: Graph, features: Features, bits: int, adjacency: str) -> None:
        form = chosen_adjacency(adjacency, graph.nodes, graph.edges)
        self.adjacency: BitTensor | FRDC | TCTiledCSR = graph.packed(form)
        self.message_form = message_form(form, bits)
        self.graph, self.features, self.bits = graph, features, bits
        (_, w1, b1), (_, w2, b2) = model.products("quantized_gcn")
        self.w1, self.b1, self.w2, self.b2 = (part.astype(np.float64) for part in (w1, b1, w2, b2))
        # A constant added to all of a node's logits changes no probability, so none is spent bits on.
        self.w2, self.b2 = self.w2 - self.w2.mean(axis=1, keepdims=True), self.b2 - self.b2.mean()
        n = graph.nodes
        rows = np.arange(n) if n <= _SAMPLE else np.sort(np.random.default_rng(0).choice(n, _SAMPLE, replace=False))
        near = graph.pattern[rows]
        self.near = np.unique(near.indices)
        self.rows, self.left, self.right = (
            rows,
            _column(graph.row_scale),
            _column(graph.col_scale),
        )
        self.pattern = near[:, self.near].astype(np.float64)
        self.sampled = graph.matrix[rows].astype(np.float64)

    def aggregate(self, messages: _Array) -> _Array:
        """Sums of messages of the nodes in `near`, at the sampled rows."""
        return np.asarray(self.left[self.rows] * (self.pattern @ messages))

    def run(self) -> QuantizedGCN:
        """All four products."""
        graph, bits = self.graph, self.bits
        x = self.features.csr.astype(np.float64)
        full1 = (x @ self.w1) * self.right
        full2 = np.maximum(self.left * (graph.pattern @ full1) + self.b1, 0)
        full3 = (full2 @ self.w2) * self.right
        full4 = self.aggregate(full3[self.near]) + self.b2

        codes_x = self.features.quantized(bits)
        w1 = self.weights((self.sampled @ x).tocsc(), self.w1)
        update1, messages = self.update(codes_x, w1, full1, self.aggregate(full1[self.near]))
        aggregate1, hidden = self.hidden(messages, full1, full2)

        codes = hidden.toarray(np.float32).astype(np.float64)
        inputs = self.sampled @ codes
        w2 = self.weights(inputs, refit(inputs, self.sampled @ (full2 @ self.w2), self.w2 * self.hidden_step[:, None]))
        update2, messages = self.update(hidden, w2, full3, _softmax(full4) if self.bits <= 2 else full4)
        aggregate2 = self.logits(messages, full3)
        return QuantizedGCN(bits, graph, self.adjacency, codes_x, w1, w2, (update1, aggregate1, update2, aggregate2))

    def weights(self, inputs: Any, weights: _Array) -> BitTensor:
        """Codes of a layer's weights, one step and offset per column."""
        step, low = uniform_grid(weights, self.bits)
        codes, step = refine_codes(inputs, weights, nearest_codes(weights, step, low, self.bits), step, low, self.bits)
        return BitTensor(codes.astype(np.uint16), self.bits, axis=-2, scale=step[None, :], offset=low[None, :])

    def update(
        self, left: BitTensor, weights: BitTensor, full: _Array, reference: _Array
    ) -> tuple[Epilogue, BitTensor]:
        """Product with the weights: matched to ``full``, requantised for the aggregation that is to give ``reference``."""
        plain = Epilogue(row_scale=self.graph.col_scale, offset_correction=True)
        measured = matmul(left, weights, epilogue=plain).astype(np.float64)
        slope, shift = column_match(full, measured)
        messages = (slope * measured + shift)[self.near]
        step, low = grid_through(messages, self.bits, self.aggregate, reference)
        epilogue = Epilogue(
            row_scale=self.graph.col_scale,
            col_scale=slope,
            bias=shift,
            bits=self.bits,
            out_scale=step[None, :],
            out_offset=low[None, :],
            rounding="nearest",
            offset_correction=True,
            **self.message_form,
        )
        return epilogue, matmul(left, weights, epilogue=epilogue)

    def hidden(self, messages: BitTensor, full1: _Array, full2: _Array) -> tuple[Epilogue, BitTensor]:
        """First aggregation: bias, relu, requantised in units of each column's step."""
        measured = self.aggregated(messages)
        slope, shift = column_match(self.left * (self.graph.pattern @ full1), measured)
        active = np.maximum(slope * measured + shift + self.b1, 0)
        reference = self.aggregate((self.right * full2)[self.near])
        scaled = self.right[self.near]
        step, _ = grid_through(
            active[self.near], self.bits, lambda values: self.aggregate(scaled * values), reference, from_zero=True
        )
        self.hidden_step = step
        epilogue = Epilogue(
            row_scale=self.graph.row_scale,
            col_scale=slope / step,
            bias=(shift + self.b1) / step,
            activation="relu",
            bits=self.bits,
            out_scale=1.0,
            rounding="nearest",
            offset_correction=True,
        )
        return epilogue, self.through(messages, epilogue)

    def logits(self, messages: BitTensor, full3: _Array) -> Epilogue:
        """Second aggregation: float32, as the softmax needs precision (QGTC section 4.5)."""
        slope, shift = column_match(self.left * (self.graph.pattern @ full3), self.aggregated(messages))
        return Epilogue(row_scale=self.graph.row_scale, col_scale=slope, bias=shift + self.b2, offset_correction=True)

    def aggregated(self, messages: BitTensor) -> _Array:
        plain = Epilogue(row_scale=self.graph.row_scale, offset_correction=True)
        return np.asarray(self.through(messages, plain), dtype=np.float64)

    def through(self, messages: BitTensor, epilogue: Epilogue) -> Any:
        """Sums of codes over neighbours, through an epilogue."""
        return aggregation(self.adjacency, messages.shape[1], self.bits, epilogue)(messages)


def _column(scale: Any) -> _Array:
    return np.asarray(scale, np.float64)[:, None]


def _softmax(logits: _Array) -> _Array:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))

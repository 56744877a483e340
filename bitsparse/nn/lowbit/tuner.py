"""Measuring how many bits each layer of a network needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from bitsparse import _check
from bitsparse.graph.operand import Graph
from bitsparse.nn.full.network import Network
from bitsparse.nn.labels import check_tolerance, labels_and_mask
from bitsparse.nn.lowbit.calibrate import MAX_BITS, graph_and_features, quantize_network
from bitsparse.nn.lowbit.network import LowBitNetwork


class TunedBits(NamedTuple):
    """The result of :func:`tune_bits`.

    Attributes
    ----------
    model : LowBitNetwork
    bits : tuple of int
        The bits of each layer.
    accuracy, reference : float
        The share of the masked nodes that the model, and the network in full precision, classify correctly.
    tried : dict of tuple to float
        The accuracy of every setting that was measured.
    """

    model: LowBitNetwork
    bits: tuple[int, ...]
    accuracy: float
    reference: float
    tried: dict[tuple[int, ...], float]


def tune_bits(
    network: Network,
    graph: Any,
    features: Any,
    labels: Any,
    mask: Any,
    *,
    tolerance: float = 0.01,
    candidates: Iterable[int] = (1, 2, 4, 8),
    sample: int = 8192,
    seed: int = 0,
) -> TunedBits:
    """Lower the bits of a network layer by layer, as long as it stays accurate enough.

    All layers begin with the most bits. The first layer, which reads the most columns, takes the fewest bits for which the accuracy on the
    mask stays within the tolerance. Then the next layer does, while the layers before it keep their bits. Runs on the CPU, over the whole
    graph.

    Parameters
    ----------
    network, graph, features, sample, seed
        As for :func:`quantize_network`.
    labels : array_like (n,) of int
    mask : array_like (n,) of bool
        Nodes to judge by: a validation set, not the test set.
    tolerance : float, default 0.01
        The largest loss of accuracy against full precision.
    candidates : iterable of int, default (1, 2, 4, 8)
        Bits that a layer may have.

    Returns
    -------
    TunedBits
        It has the most bits if even these miss the tolerance.

    Raises
    ------
    ShapeError, ValueError
        Labels or mask do not fit the graph, the mask selects no node, or bits or tolerance are out of range.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph, labels = sparse.csr_array(np.kron(np.eye(2), np.ones((4, 4)))), np.repeat([0, 1], 4)
    >>> network = nn.Network("sage", [nn.Layer([nn.Dense(np.eye(2))], own=np.eye(2))])
    >>> nn.tune_bits(network, graph, np.kron(np.eye(2), np.ones((4, 1))), labels, labels >= 0).bits
    (1,)
    """
    function = "tune_bits"
    graph, features = graph_and_features(function, graph, features)
    judged = labels_and_mask(function, graph.shape[0], labels, mask, "mask", "at least one")
    check_tolerance(function, tolerance)
    allowed = sorted({_check.integer(function, "candidates", one, 1, MAX_BITS) for one in candidates})
    if not allowed:
        raise ValueError(f"{function}: candidates holds no number of bits; pass for example (2, 4, 8)")

    csr = graph.tocsr()
    operand = Graph(csr, network.normalisation, self_loops=network.self_loops)
    tried: dict[tuple[int, ...], float] = {}
    made: dict[tuple[int, ...], LowBitNetwork] = {}

    def accuracy(bits: tuple[int, ...]) -> float:
        if bits not in tried:
            model = made[bits] = quantize_network(network, csr, features, bits, sample=sample, seed=seed)
            tried[bits] = judged.accuracy(model(operand, model.quantize(features)))
        return tried[bits]

    reference = judged.accuracy(network(csr, features))
    bits = (allowed[-1],) * len(network.layers)
    accuracy(bits)
    for i in range(len(bits)):
        for fewer in allowed[:-1]:
            lower = (*bits[:i], fewer, *bits[i + 1 :])
            if accuracy(lower) >= reference - tolerance - 1e-12:
                bits = lower
                break
    return TunedBits(made[bits], bits, tried[bits], reference, tried)

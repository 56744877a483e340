"""A run over a whole graph at once: the memory that it needs, the memory that is available, and its logits."""

from __future__ import annotations

from typing import Any, NamedTuple

from bitsparse import interop, nn
from bitsparse.cli.memory import available
from bitsparse.datasets import GraphData

__all__ = ["Memory", "available", "float_bytes", "logits", "low_bit_bytes"]

#: Bytes for each edge or loop while loops are inserted: its column in every pattern alive at that time, and temporary arrays.
_EDGE = 32
#: Most bytes that quantising takes for the piece of the features that is in floats at one time, temporary arrays included.
_QUANTISED_BYTES = 80 << 20


class Memory(NamedTuple):
    """The most bytes that a computation needs, and the bytes that are available; None if the system does not report them.

    Examples
    --------
    >>> Memory(3, 8).fits, Memory(5, 8).fits, Memory(5, None).fits
    (True, False, True)
    """

    needed: int
    available: int | None

    @property
    def fits(self) -> bool:
        """Whether half of the available memory is enough; the rest is left to other processes. True if the amount is unknown."""
        return self.available is None or 2 * self.needed <= self.available


def low_bit_bytes(nodes: int, edges: int, model: nn.LowBitNetwork) -> int:
    """An upper bound of the bytes that a low-bit network takes for a whole graph, beside the features and the adjacency as read.

    It counts the pattern with its loops; the packed features, which are quantised piece by piece; and for the widest step of the network
    integers of 32 bits and codes, three times over.
    """
    bits = max(model.bits)
    codes = nodes * -(-model.features // 128) * 16 * model.input_bits
    columns = max(step.columns if hasattr(step, "columns") else step.chain.col_scale.size for step in model.steps)
    quantising = 2 * codes + min(5 * nodes * model.features, _QUANTISED_BYTES)
    computing = codes + nodes * columns * (4 + 3 * bits // 2 + 1)
    return _EDGE * (edges + nodes) + max(quantising, computing) + 8 * nodes * model.classes


def float_bytes(nodes: int, edges: int, network: nn.Network) -> int:
    """Bytes that a network in full precision takes for a whole graph: the weighted adjacency, and three arrays of the widest layer."""
    return _EDGE * (edges + nodes) + 12 * nodes * max(network.widths)


def logits(model: nn.LowBitNetwork, data: GraphData, x: Any, form: str, device: str) -> Any:
    """The logits of all nodes over all edges, in host memory."""
    options: Any = {"self_loops": model.self_loops, "form": form, "device": device}
    graph = nn.Graph(data.adjacency, model.normalisation, **options)
    return interop.move(model(graph, model.quantize(x).to_device(device)), "cpu")

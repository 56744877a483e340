"""A whole graph at once: the memory that it takes and that there is, and the logits."""

from __future__ import annotations

from typing import Any, NamedTuple

from bitsparse import interop, nn
from bitsparse.cli.memory import available
from bitsparse.datasets import GraphData

__all__ = ["Memory", "available", "float_bytes", "logits", "low_bit_bytes"]

#: Bytes for an edge or loop: its column, once in each of the patterns that are there while loops are put in, and what puts them in.
_EDGE = 32
#: Features that are in floats at one time while they are quantised, with what that takes on the way.
_QUANTISED_BYTES = 80 << 20


class Memory(NamedTuple):
    """Bytes that a computation works in at most, and bytes that are to be had; None where the system does not tell.

    Examples
    --------
    >>> Memory(3, 8).fits, Memory(5, 8).fits, Memory(5, None).fits
    (True, False, True)
    """

    needed: int
    available: int | None

    @property
    def fits(self) -> bool:
        """Whether half of what is to be had is enough: the rest is for whatever else runs. Where nobody knows it is tried."""
        return self.available is None or 2 * self.needed <= self.available


def low_bit_bytes(nodes: int, edges: int, model: nn.LowBitNetwork) -> int:
    """What a low-bit network takes for a whole graph, beside features and adjacency as they were read; no less than it takes.

    The pattern with its loops; the packed features, which are quantised piece by piece; and for the widest step of the network integers
    of 32 bits and codes, three times over.
    """
    bits = max(model.bits)
    codes = nodes * -(-model.features // 128) * 16 * model.input_bits
    columns = max(step.columns if hasattr(step, "columns") else step.chain.col_scale.size for step in model.steps)
    quantising = 2 * codes + min(5 * nodes * model.features, _QUANTISED_BYTES)
    computing = codes + nodes * columns * (4 + 3 * bits // 2 + 1)
    return _EDGE * (edges + nodes) + max(quantising, computing) + 8 * nodes * model.classes


def float_bytes(nodes: int, edges: int, network: nn.Network) -> int:
    """What a network in full precision takes for a whole graph: the weighted adjacency, and of the widest layer three arrays."""
    return _EDGE * (edges + nodes) + 12 * nodes * max(network.widths)


def logits(model: nn.LowBitNetwork, data: GraphData, x: Any, form: str, device: str) -> Any:
    """Those of all nodes over all edges, in host memory."""
    options: Any = {"self_loops": model.self_loops, "form": form, "device": device}
    graph = nn.Graph(data.adjacency, model.normalisation, **options)
    return interop.move(model(graph, model.quantize(x).to_device(device)), "cpu")

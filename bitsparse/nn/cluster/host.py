"""Runs over batches on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import assembled
from bitsparse.graph.operand import Graph, form_for
from bitsparse.graph.packets import FeatureForm, Group, Packet, Packets
from bitsparse.nn.cluster.report import ClusterReport
from bitsparse.nn.lowbit.host import layers_in_bytes
from bitsparse.nn.lowbit.network import LowBitNetwork
from bitsparse.ops import steps as on_codes

_Array = NDArray[Any]
Layers = tuple[on_codes.Layer, ...]
#: A piece of at most this many nodes is computed by one thread, whose caches hold its data; a larger one by all threads, row by row.
_PIECE_NODES = 1 << 14


def host_layers(model: Any, form: str, packets: Packets) -> Layers | None:
    """The layers of a network that can process a packet piece by piece, on bytes; None if it cannot."""
    largest = int(np.diff(packets.blocks).max(initial=0))
    fits = form in ("auto", "csr") and isinstance(model, LowBitNetwork) and largest <= _PIECE_NODES
    return layers_in_bytes(model) if fits else None


class HostEngine:
    """Computes each packet when it arrives: piece by piece if the network's steps can work on bytes, else step by step."""

    def __init__(
        self, model: Any, form: str, layers: Layers | None, order: NDArray[np.int32], features: FeatureForm
    ) -> None:
        self._model, self._form, self._layers, self._order, self._features = model, form, layers, order, features
        self._put: Callable[[Group, _Array | None], None] = lambda group, logits: None
        self._seconds = 0.0
        self._rows: _Array = np.empty((0, 0), np.float32)

    @contextmanager
    def running(self, put: Callable[[Group, _Array | None], None], out: _Array, timed: bool) -> Iterator[HostEngine]:
        """Begin a run. Logits are written to the rows of `out` in node order, or passed to `put`, which is called for every group."""
        self._put, self._rows, self._seconds = put, out, 0.0
        yield self

    def submit(self, packet: Packet) -> str:
        """Compute the logits of a packet, and return the form of its adjacency."""
        begin = time.perf_counter()
        model, group, form = self._model, packet.group, self._features
        logits, used = None, "csr"
        if self._layers is not None:
            places = self._order[group.low : group.high]
            features = form.columns, form.bits, form.layout == "planes", form.used
            data = packet.buffer[: packet.nbytes]
            on_codes.network(data, group.entries, model.normalisation, features, self._layers, places, self._rows)
        else:
            chosen = form_for(self._form, group.nodes, group.entries)
            operand = Graph.of_pattern(*packet.pattern(), model.normalisation, packet.loops, chosen)
            words, shape = packet.features(form), (group.nodes, form.columns)
            x = assembled(BitTensor, words, shape, form.bits, -1, form.layout, form.encoding, interop.NUMPY)
            logits, used = model.plan(operand, x)(), operand.form
        self._seconds += time.perf_counter() - begin
        self._put(group, logits)
        return used

    def finish(self, report: ClusterReport) -> None:
        """End the run after all packets were submitted."""
        report.compute_ms = 1000 * self._seconds

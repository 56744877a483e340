"""The steps of a run over batches on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.arrays import BitTensor
from bitsparse.graph.packets import FeatureForm, Group, Packet
from bitsparse.nn.cluster_report import ClusterReport
from bitsparse.nn.operand import GraphOperand, form_for

__all__ = ["HostEngine", "operand_of"]

_Array = NDArray[Any]


class HostEngine:
    """Computes each packet when it comes."""

    def __init__(self, model: Any, form: str) -> None:
        self._model, self._form = model, form
        self._put: Callable[[Group, _Array], None] = lambda group, logits: None
        self._seconds = 0.0

    @contextmanager
    def running(self, put: Callable[[Group, _Array], None], device_out: Any, timed: bool) -> Iterator[HostEngine]:
        """One run, whose results go to `put`."""
        self._put, self._seconds = put, 0.0
        yield self

    def submit(self, packet: Packet) -> str:
        """The logits of a packet; gives the form of its adjacency."""
        begin = time.perf_counter()
        model, nodes = self._model, packet.group.nodes
        operand = operand_of(packet, model.normalisation, self._form)
        form = FeatureForm(model.features, model.input_bits, model.input_encoding, model.input_layout)
        words = packet.features(form)
        x = BitTensor._make(words, (nodes, form.columns), form.bits, -1, form.layout, form.encoding, interop.NUMPY)
        logits = model.plan(operand, x)()
        self._seconds += time.perf_counter() - begin
        self._put(packet.group, logits)
        return operand.form

    def finish(self, report: ClusterReport) -> None:
        """All packets were submitted."""
        report.compute_ms = 1000 * self._seconds


def operand_of(packet: Packet, normalisation: str, form: str) -> GraphOperand:
    """What a network aggregates over, from a packet."""
    indptr, indices = packet.pattern()
    chosen = form_for(form, packet.group.nodes, packet.group.entries)
    if packet.loops and chosen in ("frdc", "tiled"):  # those want ascending columns, and loops come first
        indices = _ascending(indptr, indices)
    longest = int(np.diff(indptr).max(initial=0))
    return GraphOperand(indptr, indices, normalisation, packet.loops, chosen, longest)


def _ascending(indptr: _Array, indices: _Array) -> _Array:
    from scipy import sparse

    nodes = indptr.size - 1
    made = sparse.csr_array((np.ones(indices.size, np.bool_), indices.copy(), indptr), shape=(nodes, nodes))
    made.sort_indices()
    return np.asarray(made.indices)

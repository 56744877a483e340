"""Runs over batches on a GPU: one stream copies a packet while another runs the kernels of the packet before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import interop
from bitsparse.graph.operand import Form, Graph, factors, form_for
from bitsparse.graph.packets import FeatureForm, Group, Packet, Packets
from bitsparse.interop.streams import recorded
from bitsparse.nn.cluster.report import ClusterReport
from bitsparse.ops import steps
from bitsparse.ops.recorded import Recorded

_Array = NDArray[Any]
#: Packets on the device at a time: one is copied while another is computed.
_SLOTS = 2


class _Sizes:
    """The largest sizes of any group, so that every group fits into one slot; nodes are rounded up to tiles of 128."""

    def __init__(self, packets: Packets, groups: tuple[Group, ...], form: FeatureForm) -> None:
        self.nodes = -(-max((group.nodes for group in groups), default=0) // 128) * 128
        self.entries = max((group.entries for group in groups), default=0)
        self.chunks = max((group.last_chunk - group.first_chunk for group in groups), default=0)
        self.nbytes = max((packets.nbytes(group, form.row_bytes) for group in groups), default=0)


class _Slot:
    """Arrays into which a packet is unpacked, and the network planned over them; both are recorded as one CUDA graph."""

    def __init__(self, model: Any, form: FeatureForm, sizes: _Sizes, loops: bool, chosen: Form, longest: int) -> None:
        cupy = interop.require_cupy("ClusterRunner")
        nodes, shape = sizes.nodes, (sizes.nodes, form.columns)
        self._x = steps.blank(cupy, shape, form.bits, -1, form.layout, interop.CUPY, form.encoding)
        table = factors(model.normalisation, np.arange(nodes + 1))[0]
        sides = {"sum": 0, "mean": 1, "gcn": 2}[model.normalisation]
        features = self._x.words, form.runs, form.used, form.stride
        self.arrays = steps.PacketArrays(nodes, sizes.entries, sizes.chunks, table, sides, *features)
        self._loops, self._chosen, self._model, self._longest = loops, chosen, model, longest
        self.logits = cupy.empty((nodes, model.classes), np.float32)
        self._scatter = self.arrays.scatter(model.classes)
        self._plan: Any = None
        self._recorded: dict[int, Recorded] = {}

    def run(self, packet: Any) -> None:
        """Enqueue all work from the packet to the logits. For CSR it is recorded the first time and replayed afterwards."""
        if self._chosen != "csr":
            self.arrays.open(packet)
            self._network()(out=self.logits)
            return
        address = int(packet.data.ptr)
        if address not in self._recorded:
            if self._plan is None:
                self.arrays.open(packet)
                self._plan = self._network()
            plan = self._plan

            def work() -> None:
                self.arrays.open(packet)
                plan(out=self.logits)

            self._recorded = {address: Recorded(work)}
        self._recorded[address]()

    def _network(self) -> Any:
        operand = Graph.of_arrays(
            self.arrays,
            self._model.normalisation,
            self._loops,
            self._chosen,
            min(self.arrays.nodes, self._longest),
        )
        return self._model.plan(operand, self._x)

    def scatter(self, packet: Any, order: Any, group: Group, out: Any) -> None:
        """Write the logits into the rows of their nodes in an array on the device."""
        self._scatter(packet, order, group.low, self.logits, out)


class GpuEngine:
    """Uploads packet i + 1, then enqueues the work on packet i. The host waits only for memory that is still in use.

    Parameters
    ----------
    model, form, device
        Those of the runner.
    packets : Packets
    features : FeatureForm
    """

    def __init__(self, model: Any, form: str, device: str, packets: Packets, features: FeatureForm) -> None:
        self._model, self._device, self._packets, self._features = model, device, packets, features
        self._sizes = _Sizes(packets, packets.groups, features)
        # No edge leaves its block, so no row has more entries than a block has nodes.
        self._longest = int(np.diff(packets.blocks).max(initial=0))
        # Only CSR is read as it arrives, so that recorded graphs serve all groups; other forms are prepared for each group.
        self._form: Form = "csr" if form == "auto" else form_for(form, 0, 0)
        self._slots: list[_Slot | None] = [None] * _SLOTS
        self._cupy = interop.require_cupy("ClusterRunner")
        with interop.working_on(device, interop.CUPY):
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            self._copies = self._cupy.cuda.Stream(non_blocking=True)
            self._uploader = interop.Uploader(device, slots=_SLOTS, capacity=self._sizes.nbytes, stream=self._copies)
            self._downloader = interop.Downloader(device, slots=_SLOTS)
            self._order = interop.move(packets.order, device)
        self._pending: tuple[Packet, Any] | None = None
        self._coming: deque[tuple[Group, Any, _Array]] = deque()
        self._events: list[tuple[str, Any, Any]] = []
        self._put: Callable[[Group, _Array | None], None] = lambda group, logits: None
        self._out: Any = None
        self._timed = False

    def staging(self, nbytes: int) -> _Array:
        """Page-locked memory for a packet; this waits while all of it is in use."""
        return self._uploader.staging(nbytes)

    @contextmanager
    def running(self, put: Callable[[Group, _Array | None], None], device_out: Any, timed: bool) -> Iterator[GpuEngine]:
        """Begin a run, ordered with the caller's current stream. Its logits go to `put`, or to an array on the device."""
        self._put, self._out, self._timed, self._events = put, device_out, timed, []
        self._uploader.timed = timed
        with interop.working_on(self._device, interop.CUPY):
            caller = self._cupy.cuda.get_current_stream()
            self._stream.wait_event(recorded(caller))
            try:
                with self._stream:
                    yield self
                caller.wait_event(recorded(self._stream))
            except BaseException:
                self._drop()
                raise

    def _drop(self) -> None:
        """Wait for pending work and discard it; the engine is not used for another run."""
        self._pending = None
        self._coming.clear()
        self._copies.synchronize()
        self._stream.synchronize()

    def submit(self, packet: Packet) -> str:
        """Enqueue the copy of a packet and the work on the one before, and return the form of the adjacency."""
        upload = self._uploader.upload(packet.buffer[: packet.nbytes])
        if upload.events is not None:  # events of the copy alone, without the wait for kernels that read the slot
            self._events.append(("copy", *upload.events))
        before, self._pending = self._pending, (packet, upload)
        if before is not None:
            self._compute(*before)
        return self._form

    def finish(self, report: ClusterReport) -> None:
        """Compute the last packet. Afterwards all logits are in place, on a device as soon as its enqueued work has ended."""
        last, self._pending = self._pending, None
        if last is not None:
            self._compute(*last)
        while self._coming:
            self._collect()
        if self._out is not None:
            # Nothing else waits for the copies here, but the caller may free packets whose page-locked memory they still read.
            self._copies.synchronize()
        if self._timed:
            self._measure(report)

    def _compute(self, packet: Packet, upload: Any) -> None:
        group = packet.group
        slot = self._slots[upload.slot]
        if slot is None or self._form != "csr":
            # A slot in another form serves only one group, with exactly its number of nodes.
            sizes = self._sizes if self._form == "csr" else _Sizes(self._packets, (group,), self._features)
            slot = _Slot(self._model, self._features, sizes, packet.loops, self._form, self._longest)
            self._slots[upload.slot] = slot
        data = upload.wait()
        begin = recorded(self._stream, timed=True) if self._timed else None
        slot.run(data)
        if self._out is not None:
            slot.scatter(data, self._order, group, self._out)
        if begin is not None:
            self._events.append(("compute", begin, recorded(self._stream, timed=True)))
        upload.release()
        if self._out is not None:
            self._put(group, None)
            return
        if len(self._coming) >= _SLOTS:
            self._collect()
        rows = np.empty((group.nodes, self._model.classes), np.float32)
        download = self._downloader.download(slot.logits[: group.nodes], rows)
        download.hold()
        self._coming.append((group, download, rows))

    def _collect(self) -> None:
        group, download, rows = self._coming.popleft()
        download.wait()
        self._put(group, rows)

    # -- times ----------------------------------------------------------------------------------------------------------
    def _measure(self, report: ClusterReport) -> None:
        self._stream.synchronize()
        elapsed = self._cupy.cuda.get_elapsed_time
        first = self._events[0][1] if self._events else None
        spans = [(what, float(elapsed(first, begin)), float(elapsed(first, end))) for what, begin, end in self._events]
        report.copy_ms = sum(end - begin for what, begin, end in spans if what == "copy")
        report.compute_ms = sum(end - begin for what, begin, end in spans if what == "compute")
        report.idle_share = idle_share(spans)


def idle_share(spans: list[tuple[str, float, float]]) -> float:
    """The share of the time between the start of the first "compute" and the end of the last that no span covers.

    Examples
    --------
    >>> idle_share([("copy", 0.0, 2.0), ("compute", 2.0, 3.0), ("copy", 4.0, 5.0), ("compute", 5.0, 6.0)])
    0.25
    """
    computed = [span for span in spans if span[0] == "compute"]
    if not computed:
        return 0.0
    first, last = min(span[1] for span in computed), max(span[2] for span in computed)
    covered, reached = 0.0, first
    for _, begin, end in sorted(spans, key=lambda span: span[1]):
        begin, end = max(begin, reached), min(end, last)
        if end > begin:
            covered, reached = covered + end - begin, end
    return 1.0 - covered / (last - first) if last > first else 0.0

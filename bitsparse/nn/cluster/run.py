"""Low-bit networks over graphs that are larger than a device: batches are packed, copied and computed one after another."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._communicator import Communicator
from bitsparse._progress import Stopwatch
from bitsparse.arrays import BitTensor
from bitsparse.errors import DTypeError
from bitsparse.graph.adjacency import refuse_weights, square_pattern
from bitsparse.graph.operand import FORMS
from bitsparse.graph.packets import FeatureForm, Group, PackedEpoch, Packet, Packets, tiles_in
from bitsparse.graph.samplers import made_ahead
from bitsparse.nn.checks import agree
from bitsparse.nn.cluster.host import HostEngine, host_layers
from bitsparse.nn.cluster.journal import ArraySink, FileSink, run_key
from bitsparse.nn.cluster.lock import Turn
from bitsparse.nn.cluster.ranks import SharedSink, agree_on, dealt, parts_of, shared
from bitsparse.nn.cluster.report import ClusterReport
from bitsparse.nn.features import pieces, rows_of
from bitsparse.nn.lowbit.network import LowBitNetwork

_Array = NDArray[Any]

#: The most nodes of a group, in general and as dense bits. Large groups keep a GPU busy, but dense bits grow with the square of the nodes.
_GROUP_NODES, _DENSE_NODES = 1 << 17, 1 << 13


class ClusterRunner:
    """A low-bit network over a graph in batches of parts (Cluster-GCN; QGTC sections 4.1 and 4.6).

    METIS cuts the graph into parts (kept on disk), which are joined into batches. Each batch is packed: its edges as gaps of half a byte or
    a byte, its features in the bits that the network reads. On a GPU a separate stream copies a packet while the kernels of the one before
    run, and groups in CSR replay CUDA graphs. Edges that leave their part (or batch) are dropped, and degrees are counted within the
    batch. A CPU takes the same steps. The logits are equal, bit for bit, on every device and for every form.

    Parameters
    ----------
    graph : sparse array (n, n), GraphData, tuple, TCTiledCSR, FRDC or BitTensor
        It must be on the CPU. Every stored entry is an edge; edge weights other than 1 are refused.
    model : LowBitNetwork
        The network, or another object with its attributes whose codes have its `input_layout`.
    parts : int, default 1500
        Number of parts, at most the number of nodes.
    labels : array_like of int (n,), optional
        The part of each node, instead of METIS's.
    parts_per_batch : int, default 20
    between : bool, default False
        Keep the edges between parts of one batch, as Cluster-GCN does; QGTC's batches are block-diagonal.
    seed : int, default 0
        The seed of METIS.
    form : {"auto", "csr", "dense", "frdc", "tiled"}
        How the adjacency of a group is stored: CSR, dense bits with zero tiles skipped, or a block format. "auto" is CSR, with one
        exception: on a CPU a group has dense bits if at least one in 64 positions holds an edge, and if the network has more than 8 bits or
        is a GraphSAGE, or parts (with `between`, batches) have more than 16384 nodes. On a GPU only CSR replays a CUDA graph.
    device : str, default "cpu"
    group_nodes : int, optional
        The most nodes of batches that are copied together, by default 131072, or 8192 as dense bits. Results do not depend on it.
    cache : bool or path, default True
        Keep the partition on disk, in the cache folder or in the folder given.
    progress : callable, optional
        Called after each group with the number of finished groups and the number of all.
    watch : Stopwatch, optional
        A stopwatch of the caller. "packing" is the time in which the run waits for a packet, "results" the time of putting logits into node
        order and into their file, and "resuming" the time of reading all features beforehand. The rest counts for the current phase.
    comm : Communicator, optional
        From :mod:`bitsparse.distributed`. Its ranks share the batches and exchange nothing while they compute. Each rank takes the whole
        graph and all features (memory maps will do), and writes the rows of its own batches: into its own array, which :meth:`share`
        completes, or into one file that all ranks of one machine write.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = sparse.csr_array(np.kron(np.eye(4), np.ones((3, 3))))
    >>> x = np.arange(48, dtype=np.float32).reshape(12, 4)
    >>> model = nn.quantize_network(nn.random_network("gcn", [4, 8, 2]), graph, x, 8)
    >>> runner = nn.ClusterRunner(graph, model, labels=np.arange(12) // 3, parts_per_batch=2)
    >>> runner.run(x).shape, runner.report.batches, runner.report.groups
    ((12, 2), 2, 1)
    """

    def __init__(
        self,
        graph: Any,
        model: LowBitNetwork,
        *,
        parts: int = 1500,
        labels: Any = None,
        parts_per_batch: int = 20,
        between: bool = False,
        seed: int = 0,
        form: Literal["auto", "csr", "dense", "frdc", "tiled"] = "auto",
        device: str = "cpu",
        group_nodes: int | None = None,
        cache: bool | str | Path = True,
        progress: Callable[[int, int], object] | None = None,
        watch: Stopwatch | None = None,
        comm: Communicator | None = None,
    ) -> None:
        function = "ClusterRunner"
        self.model, self.form = model, _check.choice(function, "form", form, FORMS)
        self.device = interop.parse_device(device, function)
        refuse_weights(function, graph)
        graph = getattr(graph, "adjacency", graph)
        self._progress, self._watch = progress, Stopwatch("computing") if watch is None else watch
        if labels is None:
            nodes = square_pattern(function, graph).shape[0]
            wanted = min(_check.integer(function, "parts", parts, 1), max(nodes, 1))
            labels = parts_of(function, graph, wanted, seed, cache, comm)
        most = (_DENSE_NODES if form == "dense" else _GROUP_NODES) if group_nodes is None else group_nodes
        self.packets = Packets(
            graph,
            labels,
            parts_per_batch=parts_per_batch,
            between=between,
            self_loops=model.self_loops,
            group_nodes=most,
            function=function,
        )
        self._layers = host_layers(model, form, self.packets) if self.device == "cpu" else None
        self._graph, self._comm, self._mine = graph, comm, list(self.packets.groups)
        if comm is not None:
            agree_on(function, comm, graph, self.packets, model)
            self._mine = dealt(self.packets.groups, comm.size)[comm.rank]
        #: The report of the last run.
        self.report = ClusterReport(self.device, model.name)
        self._engine: Any = None
        self._turn = Turn()  # engine and report serve one run at a time

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickles and copies, without the engine and the lock of a current run."""
        return {**self.__dict__, "_engine": None, "_turn": Turn()}

    def tiles(self) -> tuple[int, int]:
        """Count the 8 x 128 tiles of the groups' dense adjacency, and those that hold an edge, in a pass over the edges."""
        return tiles_in(map(self.packets.pack, self.packets.groups))

    # -- packing ------------------------------------------------------------------------------------------------------
    @property
    def feature_form(self) -> FeatureForm:
        """The form of features in packets: the one that the first product reads, or the one that a CPU unpacks fastest."""
        model = self.model
        layout = "rows" if self._layers is not None and model.input_bits in (2, 4, 8) else model.input_layout
        return FeatureForm(model.features, model.input_bits, model.input_encoding, layout)

    def _checked(self, features: Any) -> Any:
        """Check features and convert them to an array (a memmap stays one) or a SciPy CSR array, whose rows can be taken."""
        if isinstance(features, BitTensor) and not (features.scale is features.offset is None):
            raise DTypeError(
                "ClusterRunner: features are codes with a scale or an offset, which their integers leave out; pass x.dequantize()"
            )
        features = rows_of("ClusterRunner", features)
        wanted = self.packets.nodes, self.model.features
        agree("ClusterRunner", "features have shape", tuple(features.shape), "graph and model take", wanted)
        return features

    def _pack(self, group: Group, features: Any, form: FeatureForm, buffer: _Array | None) -> Packet:
        """Pack the edges of a group and its features, which are quantised in pieces."""
        packet = self.packets.pack(group, form.row_bytes, buffer)
        layout: Any = {} if form.layout == self.model.input_layout else {"layout": form.layout}
        for part in pieces(group.nodes, form.columns):
            nodes = self.packets.order[group.low : group.high][part]
            rows = features[nodes] if not isinstance(features, np.ndarray) else np.take(features, nodes, axis=0)
            codes = self.model.quantize(rows, **layout)
            if codes.scale is not None or codes.offset is not None:  # packets carry words alone
                raise ValueError(
                    f"ClusterRunner: {self.model.name} quantised rows to codes with a scale or an offset, which packets do not carry; "
                    f"give codes of one grid, as x.with_affine()"
                )
            self.packets.put_features(packet, part.start, codes.words, form)
        return packet

    def pack(self, features: Any, *, into: PackedEpoch | None = None) -> PackedEpoch:
        """Pack one epoch on the host, in page-locked memory if the device is a GPU.

        Parameters
        ----------
        features : array (n, features) or SciPy sparse array
            A ``numpy.memmap`` works too; its rows are read when they are needed.
        into : PackedEpoch, optional
            An epoch of this runner that is neither running nor needed any more. Its memory is reused, because page-locking new memory takes
            longer than filling it.
        """
        rows, form = self._checked(features), self.feature_form
        if into is not None:
            into.check_owner("ClusterRunner.pack", self.packets)
        begin = time.perf_counter()
        packets = []
        for i, group in enumerate(self._mine):
            size = self.packets.nbytes(group, form.row_bytes)
            buffer: _Array | None = None
            if into is not None and into.packets[i].buffer.size >= size:
                buffer = into.packets[i].buffer
            elif self.device != "cpu":
                buffer = interop.pinned_empty(size)
            packets.append(self._pack(group, rows, form, buffer))
        return PackedEpoch(tuple(packets), form, time.perf_counter() - begin, self.packets)

    # -- running ------------------------------------------------------------------------------------------------------
    def run_packed(self, packed: PackedEpoch, out: Any = None, *, timed: bool = False) -> Any:
        """Run one epoch over packed batches, and return the logits in node order.

        Parameters
        ----------
        packed : PackedEpoch
            From this runner's :meth:`pack`.
        out : array (n, classes) of float32, optional
            A NumPy array, or an array on the runner's GPU, where the logits then stay. By default a new NumPy array.
        timed : bool, default False
            Measure the stages by events on a GPU; see :attr:`report`.

        Raises
        ------
        ValueError, ShapeError, DTypeError, DeviceError
            Another runner packed the epoch, or `out` does not fit.
        LockError
            This runner is in the middle of another run.
        """
        _check.flag("ClusterRunner.run_packed", "timed", timed)
        packed.check_owner("ClusterRunner.run_packed", self.packets)
        with self._turn.taken("ClusterRunner.run_packed"):
            self._begin(packed.form)
            self.report.pack_seconds = packed.seconds
            result = self._drive(iter(packed.packets), self._sink(out), timed)
        return result if out is None else out

    def run(self, features: Any, out: Any = None, *, resume: bool = False, timed: bool = False) -> Any:
        """Pack, copy and compute group after group; the memory that this needs does not grow with the graph.

        Parameters
        ----------
        features : array (n, features) or SciPy sparse array
            A ``numpy.memmap`` works too.
        out : array (n, classes) of float32, str or Path, optional
            Where the logits are written, in node order; by default a new array. An array (NumPy, memmap, or on the runner's GPU) is written
            group by group. A path names a ``.npy`` file, which appears only when it is complete: after an error or an interruption there is
            none. Only one run at a time writes to a path, which is locked (``PATH.lock``) meanwhile.
        resume : bool, default False
            With a path: note finished groups in ``PATH.journal`` and keep ``PATH.partial`` if the run ends early, even if it is killed, and
            continue from there the next time. All features and the finished rows are first read once more, to check that they are the same.
        timed : bool, default False
            As in :meth:`run_packed`.

        Raises
        ------
        ShapeError, DTypeError, ValueError
            Features or `out` do not fit, or the journal belongs to another run.
        LockError
            Another run is writing to the path, or this runner is in the middle of another run.
        FileFormatError
            ``PATH.journal`` is damaged, or ``PATH.partial`` does not hold the rows that it notes. Nothing was changed.
        """
        _check.flag("ClusterRunner.run", "timed", timed)
        _check.flag("ClusterRunner.run", "resume", resume)
        rows, form = self._checked(features), self.feature_form
        if resume and not isinstance(out, (str, Path)):
            raise ValueError("ClusterRunner.run: resume=True goes with out as a path; pass the name of a .npy file")
        with self._turn.taken("ClusterRunner.run"):
            result = self._run(rows, form, out, resume, timed)
        return result if out is None or isinstance(out, (str, Path)) else out

    def _run(self, rows: Any, form: FeatureForm, out: Any, resume: bool, timed: bool) -> Any:
        self._begin(form)  # before the file is made, which an error here would leave behind
        if isinstance(out, (str, Path)):
            key, path, groups = "", Path(out), list(self.packets.groups)
            if resume:
                with self._watch.during("resuming"):
                    key = run_key(self._graph, self.packets, self.model, rows)
            places = self._shape, self.packets.order, key, resume
            sink: ArraySink = FileSink(path, *places) if self._comm is None else SharedSink(self._comm, path, *places)
        else:
            sink, groups = self._sink(out), self._mine
        try:
            todo = sink.missing(groups)
        except BaseException:
            sink.abandon()
            raise
        self.report.resumed = sink.resumed
        with closing(self._packed(todo, rows, form)) as packets:
            return self._drive(packets, sink, timed)

    def share(self, logits: Any) -> Any:
        """Copy the rows of other ranks' batches into this rank's array, in place. All ranks call it together.

        Parameters
        ----------
        logits : array (n, classes) of float32
            The result of :meth:`run` or :meth:`run_packed`, or the array passed as `out`.
        """
        if self._comm is not None:
            target = interop.writable_array(logits, "ClusterRunner.share")
            _check.out_array("ClusterRunner.share", target, self._shape, np.dtype(np.float32))
            with interop.working_on(interop.device_of(target), interop.CUPY):
                shared(self._comm, self.mine, target)
        return logits

    @property
    def mine(self) -> NDArray[np.int32]:
        """The nodes of this rank's batches; all nodes without a communicator."""
        parts = [self.packets.order[group.low : group.high] for group in self._mine]
        return np.concatenate([*parts, np.empty(0, np.int32)])

    def _packed(self, todo: list[Group], features: Any, form: FeatureForm) -> Generator[Packet]:
        """Pack groups one after another. With a GPU a thread packs them while the GPU works on earlier ones."""

        def pack(group: Group) -> Packet:
            begin = time.perf_counter()
            size = self.packets.nbytes(group, form.row_bytes)
            buffer = None if self.device == "cpu" else self._engine.staging(size)
            packet = self._pack(group, features, form, buffer)
            self.report.pack_seconds += time.perf_counter() - begin
            return packet

        return made_ahead(pack, todo, threads=0 if self.device == "cpu" else 1, depth=1)

    def _begin(self, form: FeatureForm) -> None:
        packets = self.packets
        facts: dict[str, Any] = packets.facts(form.row_bytes)
        edges = facts["edges"] - (packets.nodes if packets.loops else 0)
        self.report = ClusterReport(
            self.device,
            self.model.name,
            parts=packets.parts,
            bytes_moved=facts["adjacency_bytes"] + facts["feature_bytes"],
            float_bytes=16 * edges + 4 * form.columns * packets.nodes,
            **facts,
        )
        if self._engine is None:
            if self.device == "cpu":
                self._engine = HostEngine(self.model, self.form, self._layers, packets.order, form)
            else:
                from bitsparse.nn.cluster.gpu import GpuEngine  # imported only if there is a GPU

                self._engine = GpuEngine(self.model, self.form, self.device, packets, form)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.packets.nodes, self.model.classes

    def _sink(self, out: Any) -> ArraySink:
        """A sink for the caller's array, in host memory or on the runner's GPU, or for a new NumPy array."""
        if out is None:
            return ArraySink(
                (np.empty if self._comm is None else np.zeros)(self._shape, np.float32), self.packets.order
            )
        target = out if isinstance(out, np.ndarray) else interop.writable_array(out, "ClusterRunner")
        _check.out_array("ClusterRunner", target, self._shape, np.dtype(np.float32))
        place = interop.device_of(target)
        if place != "cpu":
            _check.same_device("ClusterRunner", (self.device, place))
        return ArraySink(target, self.packets.order)

    def _drive(self, packets: Iterable[Packet], sink: ArraySink, timed: bool) -> Any:
        """Pass every packet through the engine. After any error the sink is closed before the error is raised again."""
        report, done = self.report, self.report.resumed
        forms: Counter[str] = Counter()
        begin = time.perf_counter()

        def put(group: Group, logits: _Array | None) -> None:
            nonlocal done
            start = time.perf_counter()
            with self._watch.during("results"):
                sink.put(group, logits)
            report.gather_seconds += time.perf_counter() - start
            done += 1
            if self._progress is not None:
                self._progress(done, report.groups)

        try:
            in_place = sink.rows if interop.device_of(sink.rows) == self.device else None
            with self._engine.running(put, in_place, timed) as engine:
                for packet in self._watch.each("packing", packets):
                    forms[engine.submit(packet)] += 1
                engine.finish(report)
            with self._watch.during("results"):
                result = sink.finish()
        except BaseException:
            self._engine = None  # it was interrupted, so it must not be used again
            sink.abandon()
            raise
        report.forms, report.seconds = dict(forms), time.perf_counter() - begin
        return result

"""One rank's rows of a graph, with columns renumbered for the exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._communicator import agree, gathered_values, together, who
from bitsparse.arrays import TCTiledCSR
from bitsparse.arrays.indices import outside
from bitsparse.arrays.sparse_forms import scale_vector
from bitsparse.distributed.exchange import METHODS, AllGather, Exchange, Halo, ids_asked
from bitsparse.distributed.parts import Partition, check_ascending, csr_of
from bitsparse.distributed.rates import exchange_seconds
from bitsparse.errors import ShapeError
from bitsparse.ops.operands.sparse import as_csr

Array = NDArray[Any]
#: Accepted values of ``exchange=``.
WAYS = (*METHODS, "auto")


@dataclass(frozen=True, eq=False)
class Shard:
    """One rank's rows of a sparse matrix (nodes, nodes): the operand of functions over shards; made by :func:`shard`.

    Attributes
    ----------
    part : Partition
    indptr, columns : array
        CSR arrays of the rows. Columns are row numbers over all ranks (``part.order`` maps them to nodes) and ascend in every row.
    values : array (nnz,) or (nnz, heads), or None
        Values of the entries, in the order of ``columns``. All arguments and results for edges have this order.
    row_scale : array (rows,) of float32 or None
        Factors of this rank's rows.
    col_scale : array (nodes,) of float32 or None
        Factors of the columns, which are the rows of all ranks.
    """

    part: Partition
    indptr: Array
    columns: Array
    values: Array | None = None
    row_scale: Array | None = None
    col_scale: Array | None = None
    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        rows = self.part.rows()
        return (
            f"<Shard of {self.comm.rank} / {self.comm.size}: rows {rows.start}..{rows.stop} of {self.nodes}, {self.nnz} entries on "
            f"{self.device}>"
        )

    @property
    def comm(self) -> Any:
        """The communicator."""
        return self.part.comm

    @property
    def nodes(self) -> int:
        """Number of rows of all ranks."""
        return self.part.nodes

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of own rows and of columns; the columns are the rows of all ranks."""
        return int(self.indptr.size) - 1, self.nodes

    @property
    def nnz(self) -> int:
        """Number of own entries."""
        return int(self.columns.size)

    @property
    def device(self) -> str:
        """The device of the arrays."""
        return interop.device_of(self.indptr)

    @property
    def _arrays(self) -> tuple[Any, ...]:
        return self.indptr, self.columns, self.values, self.row_scale, self.col_scale

    @property
    def nbytes(self) -> int:
        """Bytes of the shard's own arrays, without those prepared for exchanges."""
        return sum(int(array.nbytes) for array in self._arrays if array is not None)

    def to_device(self, device: str) -> Shard:
        """The same rows on a device; the shard itself if they are there already."""
        target = interop.parse_device(device, "Shard.to_device")
        if target == self.device:
            return self
        return Shard(self.part, *(interop.move(array, target) for array in self._arrays))

    def with_values(self, values: Any) -> Shard:
        """The same pattern with other values, or with none; what was prepared for exchanges is shared."""
        if values is not None:
            values = interop.as_array(values, "Shard.with_values", "values")[0]
            _check.numeric("Shard.with_values", "values", values)
            if values.shape[:1] != (self.nnz,) or values.ndim > 2 or interop.device_of(values) != self.device:
                raise ShapeError(
                    f"Shard.with_values: values have shape {values.shape} on {interop.device_of(values)}, but there are {self.nnz} entries "
                    f"on {self.device}; pass one for each, or one for each and head"
                )
        return self._with(values, self.row_scale, self.col_scale)

    def with_scales(self, row_scale: Any = None, col_scale: Any = None) -> Shard:
        """The same entries with other factors of the own rows and of the columns."""
        function = "Shard.with_scales"
        with interop.working_on(self.device, interop.CUPY):
            rows = scale_vector(function, "row_scale", row_scale, self.shape[0], self.device)
            columns = scale_vector(function, "col_scale", col_scale, self.nodes, self.device)
        return self._with(self.values, rows, columns)

    def _with(self, values: Any, row_scale: Any, col_scale: Any) -> Shard:
        kept = {key: thing for key, thing in self._kept.items() if key[0] != "matrix"}
        return Shard(self.part, self.indptr, self.columns, values, row_scale, col_scale, kept)

    # -- exchanges ----------------------------------------------------------------------------------------------------
    def exchange(self, method: str) -> Exchange:
        """The exchange of this method. All ranks make it together the first time, after which it is kept."""
        key = ("exchange", method)
        if key not in self._kept:
            bounds, rows = self.part.bounds, self.part.rows()
            with interop.working_on(self.device, interop.CUPY):
                self._kept[key] = (
                    AllGather(self.comm, bounds)
                    if method == "allgather"
                    else Halo(self.comm, bounds, ids_asked(self.columns, rows, self.nodes))
                )
        return self._kept[key]

    def matrix(self, method: str) -> TCTiledCSR:
        """The own rows with the slots of an exchange as columns, (rows, slots), for products on one device. It is kept."""
        key = ("matrix", method)
        if key not in self._kept:
            exchange = self.exchange(method)
            with interop.working_on(self.device, interop.CUPY):
                dtype = self.index_dtype(method)
                slots = exchange.slots_of(self.columns).astype(dtype, copy=False)
                columns = None if self.col_scale is None else exchange.spread(self.col_scale)
                self._kept[key] = TCTiledCSR.from_arrays(
                    self.indptr.astype(dtype, copy=False),
                    slots,
                    (self.shape[0], exchange.slots),
                    data=self.values,
                    row_scale=self.row_scale,
                    col_scale=columns,
                )
        return self._kept[key]

    def index_dtype(self, method: str) -> Any:
        """The index dtype of matrices over the slots of an exchange."""
        wide = max(self.exchange(method).slots, self.nnz) >= 1 << 31
        return np.int64 if wide or self.indptr.dtype == np.int64 else np.int32

    def outer(self) -> tuple[int, int]:
        """The number of own rows with an entry in another rank's columns, and the number of entries of these rows. They are kept."""
        key = ("outer",)
        if key not in self._kept:
            with interop.working_on(self.device, interop.CUPY):
                rows = outer_rows(self.indptr, self.columns, self.part.rows())
                self._kept[key] = int(rows.size), int((self.indptr[1:] - self.indptr[:-1])[rows].sum())
        return self._kept[key]

    def own_rows(self) -> TCTiledCSR:
        """The own rows as a matrix (rows, nodes), for functions that need their entries but no exchange. It is kept."""
        key = ("matrix", "own rows")
        if key not in self._kept:
            bare = TCTiledCSR.from_arrays(self.indptr, self.columns, self.shape, data=self.values)
            self._kept[key] = bare.with_scales(self.row_scale, self.col_scale)
        return self._kept[key]

    def received_rows(self) -> dict[str, int]:
        """For each method of exchange, the rows that come from other ranks, on the rank that receives most."""
        key = ("received",)
        if key not in self._kept:
            most = {method: self.exchange(method).received for method in METHODS}
            counts = gathered_values(self.comm, list(most.values())).max(axis=0)
            self._kept[key] = dict(zip(most, counts.tolist(), strict=True))
        return dict(self._kept[key])

    def choose(self, function: str, way: str, row_bytes: int) -> tuple[str, str]:
        """The exchange to use for rows of `row_bytes` bytes, the same on every rank, and the reason."""
        _check.choice(function, "exchange", way, WAYS)
        if way != "auto":
            return way, f"exchange {way}, as asked for"
        sizes = {method: count * row_bytes for method, count in self.received_rows().items()}
        seconds = {name: exchange_seconds(self.comm.engine, name, size) for name, size in sizes.items()}
        method = "halo" if seconds["halo"] < seconds["allgather"] else "allgather"
        told = ", ".join(f"{name} {sizes[name]} bytes in {1e6 * seconds[name]:.0f} us" for name in METHODS)
        return method, f"exchange {method}: {told}, by the rates of {self.comm.engine}"

    @property
    def longest(self) -> int:
        """Most entries of a row on any rank. All ranks find it together the first time."""
        # Not a cached_property, which Python 3.11 locks for all objects, and so for all ranks in one process.
        key = ("longest",)
        if key not in self._kept:
            mine = int((self.indptr[1:] - self.indptr[:-1]).max()) if self.shape[0] else 0
            self._kept[key] = int(gathered_values(self.comm, [mine]).max())
        return int(self._kept[key])


def outer_rows(indptr: Any, columns: Any, own: slice) -> Any:
    """The rows that have an entry outside the columns `own`.

    Examples
    --------
    >>> outer_rows(np.array([0, 1, 3, 3]), np.array([4, 0, 2]), slice(2, 5))
    array([1])
    """
    space: Any = interop.namespace(columns)
    before = space.zeros(columns.size + 1, np.int64)
    space.cumsum((columns < own.start) | (columns >= own.stop), out=before[1:])
    return space.flatnonzero(before[indptr[1:]] > before[indptr[:-1]])


def shard(graph: Any, part: Partition, *, device: str = "cpu") -> Shard:
    """Make the shard with this rank's rows of a graph.

    Parameters
    ----------
    graph : sparse array (n, n), GraphData, TCTiledCSR, FRDC, or tuple (indptr, indices)
        The graph that was given to :func:`partition`, on the CPU; its values and scales, if any, are kept. Of memory maps in a tuple only
        the own rows are read.
    part : Partition
    device : str, default "cpu"
        The device of the shard, for example ``"cuda"``.

    Returns
    -------
    Shard

    Raises
    ------
    CommunicationError
        The call failed on another rank, or the ranks have different kinds of graphs.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from bitsparse import distributed
    >>> ring = sp.csr_array(np.roll(np.eye(6, dtype=int), 1, axis=1))
    >>> def mine(comm):
    ...     return distributed.shard(ring, distributed.partition(ring, comm))
    >>> distributed.local(2).run(mine)[1]
    <Shard of 1 / 2: rows 3..6 of 6, 3 entries on cpu>
    """
    function, comm = "shard", part.comm
    with together(comm, function):
        target = interop.parse_device(device, function)
        made = _rows_of(function, graph, part)
        made = made.to_device(target) if target != "cpu" else made
    facts = {
        name: None if (array := getattr(made, name)) is None else str(array.dtype) for name in ("values", "col_scale")
    }
    heads = None if made.values is None else list(made.values.shape[1:])
    agree(comm, function, **facts, heads=heads, device=made.device.partition(":")[0], hash=part.graph_hash)
    return made


def _rows_of(function: str, graph: Any, part: Partition) -> Shard:
    """Read this rank's rows from the graph."""
    values = row_scale = col_scale = None
    if isinstance(graph, tuple):
        indptr, indices = csr_of(function, graph)
    else:
        operand = as_csr(function, getattr(graph, "adjacency", graph))
        _check.on_cpu(function, "the graph", operand.device)
        indptr, indices, values = operand.indptr, operand.columns, operand.values
        row_scale, col_scale = operand.row_scale, operand.col_scale
    if indptr.size - 1 != part.nodes:
        raise ShapeError(
            f"{function}: the graph has {indptr.size - 1} rows but the partition {part.nodes}; pass the graph that was cut"
        )
    rows, nodes = part.rows(), part.nodes_of()
    if part.order is None:
        starts = np.asarray(indptr[rows.start : rows.stop + 1])
        check_ascending(function, starts)
        entries: Any = slice(int(starts[0]), int(starts[-1]))
        starts = starts - starts[0]
        columns = _columns_of(part, starts, np.array(indices[entries]))
    else:
        indptr = np.asarray(indptr, np.int64)
        check_ascending(function, indptr)
        lengths = np.diff(indptr)[nodes]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        entries = np.arange(starts[-1]) + np.repeat(indptr[nodes] - starts[:-1], lengths)
        place = np.empty(part.nodes, np.int64)
        place[part.order] = np.arange(part.nodes)
        columns = place[_columns_of(part, starts, indices[entries])]
        # Sort each row again, by the new numbers of its columns.
        sort = np.lexsort((columns, np.repeat(np.arange(nodes.size), lengths)))
        columns, entries = columns[sort], entries[sort]
        col_scale = None if col_scale is None else col_scale[part.order]
    wide = max(part.nodes, columns.size) >= 1 << 31
    dtype = np.int64 if wide else np.int32
    return Shard(
        part,
        starts.astype(dtype),
        columns.astype(dtype, copy=False),
        None if values is None else np.array(values[entries]),
        None if row_scale is None else np.array(row_scale[nodes]),
        col_scale,
    )


def _columns_of(part: Partition, starts: Array, columns: Array) -> Array:
    """Return the columns of this rank's entries, or raise if one is not the number of a node."""
    if wrong := outside(starts, columns, part.nodes):
        raise ValueError(f"shard: of {who(part.comm)} {wrong}; rebuild the graph")
    return columns

"""A sharded graph for networks: the counterpart of :class:`bitsparse.nn.Graph` on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._communicator import agree
from bitsparse.arrays import BitTensor
from bitsparse.arrays.packed import Encoding
from bitsparse.distributed.operands import is_shard
from bitsparse.distributed.plans import ShardPlan, Way
from bitsparse.distributed.products import plan_bspmm, plan_spmm
from bitsparse.distributed.shards import WAYS, Shard
from bitsparse.errors import ShapeError
from bitsparse.graph.operand import NORMALISATIONS, Normalisation, factors
from bitsparse.graph.sums import message_form
from bitsparse.nn import Neighbours

Array = NDArray[Any]


class GraphShard:
    """One rank's rows of a graph; networks take it instead of a :class:`bitsparse.nn.Graph`: ``network(graph_shard, x_mine)``.

    All ranks run the network together. Each layer exchanges rows in the form that it sums: a :class:`bitsparse.nn.LowBitNetwork` exchanges
    codes, a binary network packed words, and a :class:`bitsparse.nn.Network` floats.

    Parameters
    ----------
    shard : Shard
        Only its pattern is used; values and scales are ignored.
    normalisation : {"gcn", "mean", "sum"}
    self_loops : bool, optional
        Add an edge from each node to itself if it has none; by default only for "gcn".
    exchange : {"auto", "allgather", "halo"}

    Attributes
    ----------
    shard : Shard
        With the loops and the factors of the normalisation.
    nodes : int
        Rows of this rank.
    way : str
        The exchange asked for.
    degrees, row_scale, col_scale
        As in :class:`bitsparse.nn.Graph`, for this rank's rows.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from bitsparse import distributed, nn
    >>> ring = sp.csr_array(np.roll(np.eye(4, dtype=int), 1, axis=1))
    >>> x = np.arange(12, dtype=np.float32).reshape(4, 3)
    >>> low = nn.quantize_network(nn.random_network("gcn", [3, 2]), ring, x, 8)
    >>> def mine(comm):
    ...     part = distributed.partition(ring, comm)
    ...     graph = distributed.GraphShard(distributed.shard(ring, part))
    ...     return part.gather(low(graph, part.take(x)))
    >>> bool((distributed.local(2).run(mine)[1] == low(ring, x)).all())
    True
    """

    #: The form of the pattern that sums read.
    form = "csr"

    def __init__(
        self,
        shard: Shard,
        normalisation: Normalisation = "gcn",
        *,
        self_loops: bool | None = None,
        exchange: Way = "auto",
    ) -> None:
        function = "GraphShard"
        comm = is_shard(function, shard).comm
        self.normalisation = _check.choice(function, "normalisation", normalisation, NORMALISATIONS)
        self.self_loops = (
            normalisation == "gcn" if self_loops is None else _check.flag(function, "self_loops", self_loops)
        )
        _check.choice(function, "exchange", exchange, WAYS)
        self.way = exchange
        agree(comm, function, normalisation=normalisation, self_loops=self.self_loops, exchange=exchange)
        indptr, columns = (interop.move(array, "cpu") for array in (shard.indptr, shard.columns))
        if self.self_loops:
            indptr, columns = with_loops(indptr, columns, shard.part.rows())
        degrees = np.diff(indptr).astype(np.int64)
        left, right = factors(normalisation, degrees)
        if normalisation == "gcn":
            everywhere = np.zeros(shard.nodes, np.int64)
            everywhere[shard.part.rows()] = degrees
            comm.all_reduce(everywhere)
            right = factors(normalisation, everywhere)[1]
        bare = Shard(shard.part, indptr, columns, None, left, right).to_device(shard.device)
        self.shard, self.device = bare, bare.device
        self.nodes, self.edges, self.longest = bare.shape[0], bare.nnz, bare.longest
        self.degrees = interop.move(degrees, self.device)
        self.row_scale = bare.row_scale
        self.col_scale = None if bare.col_scale is None else interop.contiguous(bare.col_scale[shard.part.rows()])
        #: Objects that networks prepared for this graph and keep here.
        self.prepared: dict[Any, Any] = {}

    def __repr__(self) -> str:
        loops = " with loops" if self.self_loops else ""
        return f"<GraphShard {self.shard!r}{loops}, {self.normalisation}>"

    # -- codes --------------------------------------------------------------------------------------------------------
    def message_form(self, bits: int) -> dict[str, Any]:
        """The packed axis and layout of codes that :meth:`aggregate` exchanges without converting them."""
        return message_form("csr", bits)

    def aggregate(
        self, columns: int, bits: int, *, encoding: Encoding = "unsigned", epilogue: Any, scaled: bool = True
    ) -> Callable[..., Any]:
        """Plan sums of codes over neighbours on all ranks, followed by an epilogue; see :meth:`bitsparse.nn.Graph.aggregate`."""
        function, shape = "aggregate", (self.nodes, columns)
        left = self.row_scale if scaled else None
        pattern = self.shard.with_scales(left, None)
        plan = plan_spmm(pattern, columns, bits=bits, encoding=encoding, exchange=self.way, epilogue=epilogue)

        def run(x: BitTensor, out: Any = None) -> Any:
            if (x.shape, x.bits, x.encoding) != (shape, bits, encoding):
                raise ShapeError(
                    f"{function}: x is (shape, bits, encoding) {(x.shape, x.bits, x.encoding)}, but planned was {(shape, bits, encoding)}"
                )
            return plan(x, out=out)

        return run

    # -- bits ---------------------------------------------------------------------------------------------------------
    def binary_operands(self) -> tuple[Any, Any]:
        """The operands over which binary networks aggregate: the pattern without and with its factors."""
        if "binary" not in self.prepared:
            plain = self.shard.with_scales(None, None)
            self.prepared["binary"] = tuple(_BinaryOperand(each, self.way) for each in (plain, self.shard))
        return self.prepared["binary"]

    # -- floats -------------------------------------------------------------------------------------------------------
    def neighbour_sums(self, function: str, dtype: Any) -> ShardSums:
        """The sums over neighbours for layers in full precision."""
        key = "floats", np.dtype(dtype)
        if key not in self.prepared:
            self.prepared[key] = ShardSums(function, self, np.dtype(dtype), self.way)
        return self.prepared[key]


class _BinaryOperand:
    """The operand over which a layer of a binary network aggregates; its plans are those of a shard."""

    #: False because exchanges are not recorded in CUDA graphs.
    recordable = False

    def __init__(self, shard: Shard, way: Way) -> None:
        self._shard, self._way = shard, way
        self.shape, self.nbytes = (shard.shape[0], shard.shape[0]), shard.nbytes

    def plan_bspmm(self, n: int, variant: str, **options: Any) -> Any:
        """See :func:`bitsparse.distributed.plan_bspmm`."""
        return plan_bspmm(self._shard, n, variant, exchange=self._way, **options)


class ShardSums:
    """Sums over neighbours on all ranks for layers in full precision; see :class:`bitsparse.nn.neighbours.NeighbourSums`."""

    def __init__(self, function: str, graph: GraphShard, dtype: np.dtype[Any], way: Way) -> None:
        self._function, self._graph, self._way = function, graph, way
        self.nodes, self._dtype = graph.nodes, dtype
        self._weighted = self._with_factors()
        self._plans: dict[tuple[int, Any], ShardPlan] = {}

    def reduce(self, how: Neighbours, x: Any) -> Any:
        """The sums over the neighbours' rows of ``x`` for every node of this rank, as `how` describes them."""
        graph = self._graph
        graph_of_layers = {
            "gcn": Neighbours("sum", gcn_norm=True, self_loop=1.0),
            "mean": Neighbours("mean"),
            "sum": Neighbours("sum"),
        }
        wanted = graph_of_layers[graph.normalisation]
        if (how.reduce, how.gcn_norm) != (wanted.reduce, wanted.gcn_norm) or graph.self_loops != how.gcn_norm:
            raise ValueError(
                f"{self._function}: a layer gathers with {how}, but the GraphShard has normalisation={graph.normalisation!r} and "
                f"self_loops={graph.self_loops}; make it for this network (attention and maxima are not summed over shards)"
            )
        key = int(x.shape[1]), x.dtype
        if key not in self._plans:
            self._plans[key] = plan_spmm(
                self._weighted, key[0], dtype=key[1], exchange=self._way, frozen=self._weighted.values is not None
            )
        return self._plans[key](interop.contiguous(x))

    def matrix(self, how: Neighbours) -> Any:
        """Refuse layers that weigh edges by features, which are the ones that need the matrix."""
        raise ValueError(
            f"{self._function}: a layer gathers with {how}, but attention is not summed over shards by networks; use distributed.attention"
        )

    def dense(self, x: Any) -> Any:
        """The features in the form that :meth:`matrix` would take."""
        return x

    def _with_factors(self) -> Shard:
        """On a CPU, multiply the factors into values as a Graph does, so that sums have the same bits."""
        a = self._graph.shard
        if a.device != "cpu" or a.row_scale is None:
            return a
        values = np.repeat(a.row_scale, np.diff(a.indptr))
        if a.col_scale is not None:
            values *= a.col_scale[a.columns]
        return a.with_scales().with_values(values.astype(self._dtype))


def with_loops(indptr: Array, columns: Array, rows: slice) -> tuple[Array, Array]:
    """Add the missing entries whose row and column have the same number to CSR arrays with ascending columns.

    Examples
    --------
    >>> with_loops(np.array([0, 1, 3]), np.array([4, 1, 3]), slice(2, 4))
    (array([0, 2, 4]), array([2, 4, 1, 3]))
    """
    own = np.arange(rows.start, rows.stop, dtype=columns.dtype)
    lengths = np.diff(indptr)
    row = np.repeat(np.arange(own.size), lengths)
    has = np.zeros(own.size, np.bool_)
    has[row[columns == own[row]]] = True
    before = np.bincount(row[columns < own[row]], minlength=own.size)
    missing = np.flatnonzero(~has)
    made = np.insert(columns, (indptr[:-1] + before)[missing], own[missing])
    lengths = lengths + ~has
    return np.concatenate([[0], np.cumsum(lengths)]).astype(indptr.dtype), made

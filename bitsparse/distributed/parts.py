"""Which rank has which rows: blocks with about equally many entries, in the order of the nodes or of METIS's parts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._communicator import Communicator, agree, gathered_values, is_communicator, together, who
from bitsparse.arrays import BitTensor
from bitsparse.arrays.inside import with_words
from bitsparse.errors import ShapeError
from bitsparse.graph import parts as of_metis
from bitsparse.graph.adjacency import square_pattern

Array = NDArray[Any]
Method = Literal["blocks", "metis"]
METHODS = ("blocks", "metis")
#: Entries that are hashed at a time.
_PIECE = 1 << 24


@dataclass(frozen=True, eq=False)
class Partition:
    """Which rank has which rows of a graph; made by :func:`partition`.

    Rows are numbered rank after rank: rank r has ``bounds[r] .. bounds[r + 1] - 1``.

    Attributes
    ----------
    comm : Communicator
    bounds : ndarray of int64, shape (size + 1,)
    order : ndarray of int64, shape (nodes,), or None
        The node with each row number; None if nodes and rows have the same numbers.
    graph_hash : str
        The hash of the pattern that was cut.
    method : {"blocks", "metis"}
    """

    comm: Communicator = field(repr=False)
    bounds: NDArray[np.int64]
    order: NDArray[np.int64] | None
    graph_hash: str
    method: str

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.bounds[-1])

    def rows(self, rank: int | None = None) -> slice:
        """The row numbers of a rank, by default of this one."""
        rank = self.comm.rank if rank is None else _check.integer("Partition", "rank", rank, 0, self.comm.size - 1)
        return slice(int(self.bounds[rank]), int(self.bounds[rank + 1]))

    def nodes_of(self, rank: int | None = None) -> NDArray[np.int64]:
        """The nodes of a rank, by default of this one, in the order of its rows and by the caller's numbers."""
        rows = self.rows(rank)
        return np.arange(rows.start, rows.stop) if self.order is None else self.order[rows]

    def take(self, x: Any) -> Any:
        """The rows of this rank of an array (nodes, ...): of NumPy (also a memory map) or CuPy, a sparse array of SciPy, or a BitTensor.

        Examples
        --------
        >>> import scipy.sparse as sp
        >>> from bitsparse import distributed
        >>> ring = sp.csr_array(np.roll(np.eye(4, dtype=int), 1, axis=1))
        >>> distributed.local(2).run(lambda comm: distributed.partition(ring, comm).take(np.arange(4.0)).tolist())
        [[0.0, 1.0], [2.0, 3.0]]
        """
        shape = tuple(x.shape) if hasattr(x, "shape") else np.shape(x)
        if shape[:1] != (self.nodes,):
            raise ShapeError(
                f"Partition.take: x has shape {shape} but the graph {self.nodes} nodes; pass one row for each node"
            )
        rows = self.rows()
        if self.order is None:
            return x[rows]
        mine: Any = self.order[rows]
        if isinstance(x, (BitTensor, np.ndarray)) or hasattr(x, "tocsr"):
            return x[mine]
        return x[interop.move(mine, interop.device_of(interop.as_array(x, "Partition.take", "x")[0]))]

    def gather(self, mine: Any) -> Any:
        """Gather the rows of all ranks on every rank, in the caller's order of the nodes.

        Parameters
        ----------
        mine : array (rows, ...) or BitTensor (rows, d)
            This rank's rows, with the same dtype and columns on all ranks. A BitTensor is packed along its features; its scale and its
            offset, if any, hold for all rows of all ranks.

        Returns
        -------
        array (nodes, ...) or BitTensor (nodes, d), of the kind of `mine`
        """
        function = "Partition.gather"
        packed = isinstance(mine, BitTensor)
        array, family = (mine.words, None) if packed else interop.as_array(mine, function, "mine")
        sizes = np.diff(self.bounds)
        rows, most = int(sizes[self.comm.rank]), int(sizes.max(initial=0))
        with together(self.comm, function):
            if array.shape[:1] != (rows,) or (packed and mine.axis != -1):
                raise ShapeError(
                    f"{function}: mine has shape {array.shape}, but {who(self.comm)} has {rows} rows, packed along the features if at all; "
                    f"pass its own rows"
                )
            facts = _facts_of_bits(function, mine) if packed else {}
        columns = list((mine if packed else array).shape[1:])
        agree(self.comm, function, dtype=str(array.dtype), columns=columns, **facts)
        space: Any = interop.namespace(array)
        blocks = space.empty((self.comm.size, most, *array.shape[1:]), array.dtype)
        blocks[self.comm.rank, :rows] = array
        self.comm.all_gather(blocks[self.comm.rank], blocks)
        whole = space.concatenate([block[:size] for block, size in zip(blocks, sizes.tolist(), strict=True)])
        if self.order is not None:
            placed = space.empty_like(whole)
            placed[space.asarray(self.order)] = whole
            whole = placed
        if family is None:
            return with_words(mine, whole, (self.nodes, mine.shape[1]), mine.axis, mine.layout)
        return interop.from_array(whole, family, function)


def _facts_of_bits(function: str, mine: BitTensor) -> dict[str, Any]:
    """The properties that packed rows of all ranks must share to form one array."""
    affine = {"scale": mine.scale, "offset": mine.offset}
    for name, part in affine.items():
        if part is not None and part.ndim == 2 and part.shape[0] != 1:
            raise ShapeError(
                f"{function}: mine has a {name} for each of its rows, which one array for all rows does not take over; gather "
                f"x.dequantize(), or the integers and the {name} apart"
            )
    values = {name: None if part is None else part.tolist() for name, part in affine.items()}
    return {"bits": mine.bits, "encoding": mine.encoding, "layout": mine.layout, **values}


def balanced_bounds(indptr: Array, size: int) -> NDArray[np.int64]:
    """The starts of `size` blocks of rows, and the end. Blocks have about equally many entries plus rows.

    Examples
    --------
    >>> balanced_bounds(np.array([0, 6, 7, 8, 8]), 2), balanced_bounds(np.array([0, 1]), 3)
    (array([0, 1, 4]), array([0, 0, 1, 1]))
    """
    rows = indptr.size - 1
    cost = indptr.astype(np.int64) + np.arange(rows + 1)
    aims = cost[-1] * np.arange(1, size) / size
    inner = np.searchsorted(cost, aims, side="left")
    # Take the nearer of the two row boundaries around each aim.
    nearer = (inner > 0) & (aims - cost[np.maximum(inner - 1, 0)] < cost[inner] - aims)
    return np.concatenate([[0], inner - nearer, [rows]]).astype(np.int64)


def csr_of(function: str, graph: Any) -> tuple[Any, Any]:
    """The CSR arrays of a square pattern. A tuple ``(indptr, indices)``, also of memory maps, is returned without reading it."""
    if isinstance(graph, tuple) and len(graph) == 2 and all(getattr(part, "ndim", 0) == 1 for part in graph):
        for name, part in zip(("indptr", "indices"), graph, strict=True):
            _check.numeric(function, name, part, "iu")
        indptr, indices = graph
        if not indptr.size or int(indptr[-1]) != indices.size or int(indptr[0]) != 0:
            raise ShapeError(
                f"{function}: indptr has {indptr.size} numbers and ends at {indptr[-1:]} but there are {indices.size} indices; pass the "
                f"arrays of one CSR matrix"
            )
        return indptr, indices
    pattern = square_pattern(function, getattr(graph, "adjacency", graph))
    return pattern.indptr, pattern.indices


def check_ascending(function: str, indptr: Any) -> None:
    """Raise if the starts of rows decrease.

    Examples
    --------
    >>> check_ascending("f", np.array([0, 5, 2]))
    Traceback (most recent call last):
        ...
    ValueError: f: indptr decreases from 5 to 2; rebuild the graph
    """
    steps = indptr[1:] < indptr[:-1]
    if steps.any():
        row = int(np.argmax(steps))
        raise ValueError(
            f"{function}: indptr decreases from {int(indptr[row])} to {int(indptr[row + 1])}; rebuild the graph"
        )


def streamed_hash(indptr: Any, indices: Any) -> str:
    """A hash of a pattern that does not depend on its index dtype; the arrays are read a piece at a time.

    Examples
    --------
    >>> one, other = (streamed_hash(np.array([0, 1]), np.zeros(1, dtype)) for dtype in (np.int32, np.int64))
    >>> one == other, one == streamed_hash(np.array([0, 1]), np.ones(1, np.int32))
    (True, False)
    """
    digest = hashlib.blake2b(f"{indptr.size} {indices.size}".encode(), digest_size=16)
    for array in (indptr, indices):
        for start in range(0, array.size, _PIECE):
            piece: Any = np.ascontiguousarray(array[start : start + _PIECE], dtype="<i8")
            digest.update(piece)
    return digest.hexdigest()


def partition(graph: Any, comm: Communicator, *, method: Method = "blocks", seed: int = 0) -> Partition:
    """Deal the rows of a graph out to ranks so that each has about as many entries.

    Parameters
    ----------
    graph : sparse array (n, n), GraphData, TCTiledCSR, FRDC, or tuple (indptr, indices)
        The same graph on every rank, on the CPU. Arrays of a tuple may be memory maps, which "blocks" reads a piece at a time.
    comm : Communicator
    method : {"blocks", "metis"}
        "blocks": blocks of rows in the order of the nodes; :func:`bitsparse.graph.reorder` renumbers them so that fewer rows are exchanged.
        "metis": METIS's parts, with few edges between them, which rank 0 cuts and sends to all.
    seed : int, default 0
        The seed of METIS.

    Returns
    -------
    Partition

    Raises
    ------
    CommunicationError
        The ranks have different graphs, arguments or versions of bitsparse.
    ImportError
        pymetis is not installed.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> from bitsparse import distributed
    >>> ring = sp.csr_array(np.roll(np.eye(6, dtype=int), 1, axis=1))
    >>> distributed.local(2).run(lambda comm: distributed.partition(ring, comm).bounds.tolist())
    [[0, 3, 6], [0, 3, 6]]
    """
    from importlib.metadata import version

    function = "partition"
    is_communicator(function, comm)
    _check.choice(function, "method", method, METHODS)
    with together(comm, function):
        indptr, indices = csr_of(function, graph)
        _check.on_cpu(function, "the graph", interop.device_of(indptr))
        check_ascending(function, indptr)
        name = streamed_hash(indptr, indices)
    facts = {"version of bitsparse": version("bitsparse"), "method": method, "seed": seed}
    agree(comm, function, **facts, **{"hash of the graph": name})
    _check.integer(function, "seed", seed, 0, 2**31 - 1)
    if method == "blocks":
        return Partition(comm, balanced_bounds(indptr, comm.size), None, name, method)
    labels = np.zeros(indptr.size - 1, np.int32)
    with together(comm, function):
        if comm.rank == 0:
            labels = cut(indptr, indices, comm.size, seed)
    labels = gathered_values(comm, labels)[0]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=comm.size))]).astype(np.int64)
    return Partition(comm, bounds, np.argsort(labels, kind="stable").astype(np.int64), name, method)


def cut(indptr: Array, indices: Array, size: int, seed: int) -> NDArray[np.int32]:
    """METIS's part of each node, balanced by entries."""
    from scipy import sparse

    nodes = indptr.size - 1
    pattern = sparse.csr_array((np.ones(indices.size, np.int8), indices, indptr), shape=(nodes, nodes))
    if nodes < size:
        return np.arange(nodes, dtype=np.int32)
    return of_metis.partition(pattern, size, seed=seed, balance="edges")

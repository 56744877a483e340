"""Conversion of sparse arrays from edge lists and tables, and to the sparse arrays and graphs of other libraries."""

from __future__ import annotations

import importlib
import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays import sparse_convert, sparse_forms
from bitsparse.arrays.base import BitArray
from bitsparse.arrays.indices import rows_of
from bitsparse.arrays.inside import family_of, values_and_scales, working
from bitsparse.errors import DTypeError

if TYPE_CHECKING:
    from bitsparse.arrays.sparse_base import SparseArray


class Exchange(BitArray):
    """Base class with the conversions between a sparse array and other libraries."""

    __slots__ = ()

    holds_bits: ClassVar[bool]

    @abstractmethod
    def __init__(self, arg: Any, **options: Any) -> None: ...

    # -- in ---------------------------------------------------------------------------------------------------------
    @classmethod
    def from_edges(
        cls,
        rows: Any,
        cols: Any,
        shape: tuple[int, int] | int | None = None,
        *,
        values: Any = None,
        symmetric: bool = False,
        index_dtype: Any = None,
        **options: Any,
    ) -> Self:
        """Build the array from an edge list, with an element ``(rows[e], cols[e])`` for every edge e.

        Parameters
        ----------
        rows, cols : array_like of int, shape (E,)
            In ``A @ X``, row i of the result sums the rows j of ``X`` for all edges (i, j).
        shape : tuple of int or int, optional
            By default square, up to the largest index.
        values : array_like, shape (E,) or (E, H), optional
            Summed over repeated edges; without values repeated edges are merged.
        symmetric : bool, default False
            Add every edge reversed.
        index_dtype, **options
            As in the constructor.

        Examples
        --------
        >>> bs.TCTiledCSR.from_edges([0, 1, 1], [2, 0, 0], symmetric=True).toarray()
        array([[0, 1, 1],
               [1, 0, 0],
               [1, 0, 0]], dtype=uint8)
        >>> bs.FRDC.from_edges([0, 1, 1], [2, 0, 0], (2, 3)).toarray()
        array([[0, 0, 1],
               [1, 0, 0]], dtype=uint8)
        """
        entries = sparse_forms.from_edges("from_edges", rows, cols, shape, values, symmetric, index_dtype)
        return cls(entries, **options)

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Any,
        num_nodes: int | tuple[int, int] | None = None,
        edge_weight: Any = None,
        **options: Any,
    ) -> Self:
        """Build the array from the edges of a PyTorch Geometric graph; row i lists the nodes that send messages to node i.

        Parameters
        ----------
        edge_index : array_like of int, shape (2, E)
            Sources, then targets: element ``(edge_index[1, e], edge_index[0, e])`` for every edge.
        num_nodes : int or pair of int, optional
            Number of nodes, or the numbers of sources and of targets; by default as many as the largest index needs.
        edge_weight : array_like, shape (E,) or (E, H), optional
            Summed over repeated edges; without weights repeated edges are merged.
        **options
            As in the constructor.

        Examples
        --------
        >>> bs.TCTiledCSR.from_edge_index([[0, 0], [1, 2]], edge_weight=[5, 7]).toarray()
        array([[0, 0, 0],
               [5, 0, 0],
               [7, 0, 0]])
        """
        function = "from_edge_index"
        edges = interop.edges_of(edge_index, num_nodes, edge_weight, function)
        wanted = sparse_forms.Wanted(options.get("index_dtype"), cls.holds_bits, bool(options.get("pattern", False)))
        return cls(sparse_forms.from_graph(function, edges, wanted), **options)

    @classmethod
    def from_table(
        cls,
        table: Any,
        rows: str = "source",
        cols: str = "target",
        values: str | None = None,
        shape: tuple[int, int] | int | None = None,
        **options: Any,
    ) -> Self:
        """Build the array from a table with one edge per line: an element ``(table[rows][e], table[cols][e])`` for line e.

        Parameters
        ----------
        table : mapping
            Any object whose columns are accessible by name: a table of pandas, Arrow, Polars or cuDF, or a dict of arrays.
        rows, cols : str
            Names of the columns that hold the node numbers.
        values : str, optional
            Name of the column that holds the values.
        shape, **options
            As in :meth:`from_edges`.

        Raises
        ------
        DTypeError, ValueError
            The columns hold names instead of numbers, or there is no such column.

        Examples
        --------
        >>> bs.TCTiledCSR.from_table({"source": [0, 1], "target": [1, 2], "weight": [5, 7]}, values="weight").toarray()
        array([[0, 5, 0],
               [0, 0, 7],
               [0, 0, 0]])
        """
        ends = [_column(table, name) for name in (rows, cols)]
        for name, end in zip((rows, cols), ends, strict=True):
            if getattr(end, "dtype", np.dtype(int)).kind not in "iu" and end.size:
                raise DTypeError(
                    f"from_table: column {name!r} has dtype {end.dtype}, but nodes are numbers from 0; number them, as with "
                    f"pandas.factorize"
                )
        weights = None if values is None else _column(table, values)
        return cls.from_edges(ends[0], ends[1], shape, values=weights, **options)

    # -- out --------------------------------------------------------------------------------------------------------
    def toarray(self: Any, dtype: Any = None, *, order: str | None = None, out: Any = None) -> Any:
        """The dense array, with scales applied.

        Parameters
        ----------
        dtype : dtype, optional
            By default the dtype of the array.
        order : {"C", "F"}, optional
            Memory order of the result: by rows (the default) or by columns.
        out : array, optional
            Where to write the result; it has the same shape and dtype, and any strides.

        Examples
        --------
        >>> out = np.empty((2, 2), np.uint8)
        >>> bs.FRDC(np.eye(2, dtype=int)).toarray(out=out) is out, out
        (True, array([[1, 0],
               [0, 1]], dtype=uint8))
        """
        wanted = self.dtype if dtype is None else _check.dtype("toarray", dtype)
        if order is not None:
            _check.choice("toarray", "order", order, ("C", "F"))
        with working(self):
            if out is None:
                dense = interop.converted(sparse_convert.to_dense(self, order), wanted)
                return interop.from_array(dense, family_of(self), "toarray")
            if order is not None:
                raise ValueError(f"toarray: order={order!r} says how a new array lies, but out is there; leave one out")
            target = interop.writable_array(out, "toarray")
            _check.same_device("toarray", (self.device, interop.device_of(target)))
            _check.out_like("toarray", target, self.shape, wanted)
            target[...] = interop.converted(sparse_convert.to_dense(self), wanted)
            return out

    def decoded(self: Any) -> Any:
        """:meth:`toarray`; a dense bitsparse array calls this for arithmetic with a sparse one."""
        return self.toarray()

    def to_scipy(self: Any) -> Any:
        """:meth:`tocsr`, after moving the array to the CPU if need be."""
        return self.to_device("cpu").tocsr()

    def to_cupy(self: Any) -> Any:
        """:meth:`tocsr` as a :class:`cupyx.scipy.sparse.csr_matrix`, after moving the array to a GPU if need be."""
        return (self.to_device("cuda") if self.device == "cpu" else self).tocsr()

    def to_torch(self: Any) -> Any:
        """The array as a sparse CSR tensor of PyTorch on the same device, with scales applied.

        Indices and values are shared, not copied; the ones of a pattern are float32, since PyTorch cannot multiply sparse integers.
        """
        with _check.extra("to_torch", "torch", "PyTorch", "torch"):
            torch = importlib.import_module("torch")
        with working(self):
            indptr, indices, values = _parts(self, "to_torch")
            parts = [interop.from_array(part, interop.TORCH, "to_torch") for part in (indptr, indices, values)]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Sparse CSR tensor support", category=UserWarning)
                return torch.sparse_csr_tensor(*parts, size=self.shape, check_invariants=False)

    def to_jax(self: Any) -> Any:
        """The array as :class:`jax.experimental.sparse.BCSR` on the same device, with scales applied; ones of a pattern are float32."""
        with _check.extra("to_jax", "jax", "JAX", "jax"):
            sparse = importlib.import_module("jax.experimental.sparse")
        with working(self):
            indptr, indices, values = (
                interop.from_array(part, interop.JAX, "to_jax") for part in _parts(self, "to_jax")
            )
            return sparse.BCSR((values, indices, indptr), shape=self.shape, indices_sorted=True, unique_indices=True)

    def to_edge_index(self: Any) -> tuple[Any, Any]:
        """``(edge_index, edge_weight)`` for PyTorch Geometric, in the order of rows; the inverse of :meth:`from_edge_index`.

        Returns
        -------
        edge_index : array of int64, shape (2, E)
            Columns (sources), then rows (targets), in the array's :attr:`family`.
        edge_weight : array or None
            With scales applied; None for a pattern.

        Examples
        --------
        >>> bs.FRDC(np.array([[0, 1], [0, 0]])).to_edge_index()
        (array([[1],
               [0]]), None)
        """
        with working(self):
            indptr, indices, values = _parts(self, "to_edge_index")
            ends = interop.namespace(indices).stack([indices, rows_of(indptr)]).astype(np.int64)
            is_pattern = all(part is None for part in values_and_scales(self))
            edge_index = interop.from_array(ends, family_of(self), "to_edge_index")
            return edge_index, None if is_pattern else interop.from_array(values, family_of(self), "to_edge_index")

    def to_networkx(self: Any, create_using: Any = None) -> Any:
        """The array as a networkx graph with an edge from row to column for every entry, whose value is its "weight".

        Parameters
        ----------
        create_using : optional
            The same argument as in networkx; by default a ``DiGraph``.
        """
        try:
            networkx = importlib.import_module("networkx")
        except ModuleNotFoundError:
            raise ImportError("to_networkx: networkx is not installed; run: pip install networkx") from None
        kind = networkx.DiGraph if create_using is None else create_using
        return networkx.from_scipy_sparse_array(self.to_scipy(), create_using=kind)


def _parts(x: SparseArray, function: str) -> tuple[Any, Any, Any]:
    """CSR arrays with one value per entry and scales applied; the ones of a pattern are float32."""
    scaled = sparse_convert.scaled(x, function)
    is_pattern = all(part is None for part in values_and_scales(x))
    values: Any = scaled.values
    return scaled.indptr, scaled.indices, values.astype(np.float32) if is_pattern else values


def _column(table: Any, name: str) -> Any:
    try:
        found = table[name]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"from_table: the table has no column {name!r} ({type(error).__name__})") from None
    if hasattr(found, "to_cupy"):  # a column of cuDF
        return found.to_cupy()
    # Chunked columns of Arrow, and pandas columns backed by Arrow, convert themselves to one NumPy array.
    return found.to_numpy() if hasattr(found, "to_numpy") else interop.as_array(found, "from_table", name)[0]

"""The graph for JAX: a pattern, its transpose and the factors of normalisations as one pytree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bitsparse import _records, interop
from bitsparse.arrays.indices import rows_of
from bitsparse.arrays.inside import patterns_of
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.graph.edge_lists import Edges, asked_for, degrees, of_adjacency, of_list, of_sparse, with_loops
from bitsparse.jax.memory import watch
from bitsparse.jax.ways import Name, Side, Ways, name_of

#: The arrays of a graph, of which some may be None.
ARRAYS = (
    "indptr",
    "indices",
    "t_indptr",
    "t_indices",
    "order",
    "t_order",
    "weight",
    "t_weight",
    "counts",
    "t_counts",
    "inverse_degree",
    "symmetric_scale",
    "gcn_scale",
    "alone",
)


def graph(
    edges: Any,
    indices: Any = None,
    *,
    num_nodes: int | tuple[int, int] | None = None,
    weight: Any = None,
    self_loops: bool = False,
) -> Graph:
    """Build a graph, over which JAX functions sum, from edges in any format.

    Row i of the adjacency holds the edges into node i; the first row of an edge list holds the sources and the second the targets.

    Parameters
    ----------
    edges : array (2, E), array (targets + 1,), BCOO, BCSR, scipy.sparse array, TCTiledCSR, FRDC, or what has an ``edge_index``
        An edge list, or an object that has one as ``edge_index``; the row starts of a CSR array; or an adjacency (targets, sources).
    indices : array (E,), optional
        The column indices of a CSR array.
    num_nodes : int or tuple of int, optional
        For an edge list or CSR arrays, the number of nodes, or (sources, targets) of a bipartite graph; by default the largest index
        plus 1, or for CSR arrays the number of rows.
    weight : array (E,), optional
        Weights of an edge list or of CSR arrays. They are constants in gradients: to differentiate, pass `values` to :func:`spmm`.
        Repeated edges add up in sums and means. The weights of an adjacency are its values and scales, unless all are 1.
    self_loops : bool
        Whether every node that has no edge to itself gets one, of weight 1.

    Returns
    -------
    Graph
        A graph on the device of the edges; edges in host memory go to JAX's default device.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        `edges` is neither an edge list nor an adjacency with one value per edge, or an index is out of range.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> bsj.graph(jnp.array([[0, 1, 2], [1, 2, 1]]))
    Graph(3 x 3, 3 edges)
    """
    found = _read("graph", edges, indices, num_nodes, weight)
    return _graph_of(with_loops(found) if self_loops else found)


@jax.tree_util.register_pytree_with_keys_class
class Graph:
    """A graph made by :func:`graph`: a pytree, which a jitted function can take as an argument or close over.

    As an argument it is data like any other: another graph with the same numbers of nodes and edges needs no new compilation. If a
    function closes over a graph, the compiled code does not contain its arrays.

    Attributes
    ----------
    num_targets, num_sources, num_edges : int
        Rows, columns and entries of the adjacency, in which a repeated edge is one entry.
    indptr, indices : array
        The canonical CSR arrays of the adjacency.
    weight : array (num_edges,) or None
    """

    indptr: Any
    indices: Any
    weight: Any
    counts: Any
    alone: Any
    gcn_scale: Any

    def __init__(self, arrays: tuple[Any, ...], shape: tuple[int, int], num_edges: int) -> None:
        self._arrays, self._shape, self.num_edges = arrays, shape, num_edges
        for name, part in zip(ARRAYS, arrays, strict=True):
            setattr(self, name, part)
        self._name: Name | None = None
        self._looped: Graph | None = None

    # -- a pytree ---------------------------------------------------------------------------------------------------
    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Split into the arrays by name, and the sizes."""
        self._tell()
        return [(jax.tree_util.GetAttrKey(n), part) for n, part in zip(ARRAYS, self._arrays, strict=True)], self._sizes

    def tree_flatten(self) -> tuple[Any, Any]:
        """Split into the arrays, and the sizes."""
        self._tell()
        return self._arrays, self._sizes

    @classmethod
    def tree_unflatten(cls, sizes: Any, arrays: Any) -> Graph:
        """Build a graph from other arrays."""
        return cls(tuple(arrays), *sizes)

    @property
    def _sizes(self) -> tuple[tuple[int, int], int]:
        return self._shape, self.num_edges

    def _tell(self) -> None:
        """Register the memory of the arrays, which are about to enter a computation."""
        if self.is_concrete:
            for part in self._arrays:
                if part is not None:
                    watch(part)

    @property
    def is_concrete(self) -> bool:
        """Whether the arrays hold data and are not traced."""
        return isinstance(self.indptr, jax.Array) and not isinstance(self.indptr, jax.core.Tracer)

    def __repr__(self) -> str:
        return f"Graph({self.num_targets} x {self.num_sources}, {self.num_edges} edges)"

    # -- what it is -------------------------------------------------------------------------------------------------
    @property
    def num_targets(self) -> int:
        """The number of rows of the adjacency."""
        return self._shape[0]

    @property
    def num_sources(self) -> int:
        """The number of columns of the adjacency."""
        return self._shape[1]

    def with_self_loops(self) -> Graph:
        """The same graph without weights and with one edge from every node to itself; built once and cached.

        Raises
        ------
        ValueError
            The graph is traced, so that no edges can be added.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> import bitsparse.jax as bsj
        >>> bsj.graph(jnp.array([[0, 1], [1, 0]])).with_self_loops()
        Graph(2 x 2, 4 edges)
        """
        if self.alone is None:
            return self.unweighted()
        if self._looped is None:
            if not self.is_concrete:
                raise ValueError(
                    "with_self_loops: the graph is an argument of a traced function, where no edges can be added; make it with "
                    "bsj.graph(..., self_loops=True), or close over it"
                )
            self._looped = _graph_of(with_loops(_records.replace(self._edges(), weight=None)))
        return self._looped

    def unweighted(self) -> Graph:
        """The same graph without its weights, for layers that ignore weights."""
        if self.weight is None:
            return self
        arrays = dict(zip(ARRAYS, self._arrays, strict=True)) | {"weight": None, "t_weight": None}
        return Graph(tuple(arrays.values()), *self._sizes)

    def _edges(self) -> Edges:
        weight, counts = (
            None if part is None else interop.as_array(part, "Graph")[0] for part in (self.weight, self.counts)
        )
        return Edges(TCTiledCSR.from_arrays(self.indptr, self.indices, self._shape), weight, counts)

    def edge_values(self, edge_index: Any, values: Any) -> Any:
        """Put the values of an edge list in the order in which :func:`spmm` takes them; differentiable.

        Parameters
        ----------
        edge_index : array (2, E)
            The edges of the graph in any order, each exactly once; not traced.
        values : array (E,) or (E, H)

        Raises
        ------
        ValueError
            The edges are not those of the graph, or the graph is traced.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> import bitsparse.jax as bsj
        >>> edges = jnp.array([[1, 0], [0, 1]])
        >>> bsj.graph(edges).edge_values(edges, jnp.array([3.0, 5.0])).tolist()
        [3.0, 5.0]
        """
        if not self.is_concrete or isinstance(edge_index, jax.core.Tracer):
            raise ValueError(
                "edge_values: the graph or its edges are traced; order the values before, or close over both"
            )
        edges = np.asarray(edge_index).astype(np.int64)
        targets = np.repeat(np.arange(self.num_targets), np.diff(np.asarray(self.indptr)))
        keys, own = edges[1] * self.num_sources + edges[0], targets * self.num_sources + np.asarray(self.indices)
        order = keys.argsort(kind="stable")
        if keys.size != own.size or not np.array_equal(keys[order], own):
            raise ValueError(
                f"edge_values: the graph has {self.num_edges} edges, and the {keys.size} of edge_index are others or repeated; pass those "
                f"that it was made of, each once"
            )
        return jnp.asarray(values)[order]

    # -- what operators read ----------------------------------------------------------------------------------------
    def ways(self, arrays: tuple[Any, ...], *, weights: str = "", rows: str = "", columns: str = "") -> Ways:
        """Both directions, with the weights of edges and the factors of rows and columns that have these names.

        If a function is being traced, which `arrays` show, and closes over the graph, the result holds names instead of arrays.
        """
        closed = self.is_concrete and any(isinstance(part, jax.core.Tracer) for part in arrays)

        def part(name: str) -> Any:
            array = getattr(self, name, None) if name else None
            return name if closed and array is not None else array

        if closed and self._name is None:
            held = {name: array for name, array in zip(ARRAYS, self._arrays, strict=True) if array is not None}
            self._name = name_of(held, self._shape)
        forward = Side(*map(part, ("indptr", "indices", weights, rows, "t_order")))
        turned = f"t_{weights}" if weights else ""
        backward = Side(*map(part, ("t_indptr", "t_indices", turned, columns, "order")))
        return Ways(forward, backward, self._shape, self.num_edges, self._name if closed else None)


def checked(function: str, graph: Any) -> Graph:
    """Return `graph`, or raise if it is no :class:`Graph`."""
    if not isinstance(graph, Graph):
        raise DTypeError(f"{function}: graph is a {type(graph).__name__}; pass a Graph, bitsparse.jax.graph(...)")
    return graph


def _graph_of(edges: Edges) -> Graph:
    forward, backward, order = patterns_of(edges.adjacency)
    shape = edges.adjacency.shape
    indptr, indices, _ = forward.csr_arrays()
    space: Any = interop.namespace(indices)
    symmetric = edges.adjacency.has_symmetric_pattern
    arrays: dict[str, Any] = {"indptr": indptr, "indices": indices, "order": order}
    if symmetric:
        arrays["t_order"] = order
    else:
        arrays["t_indptr"], arrays["t_indices"], _ = backward.csr_arrays()
        arrays["t_order"] = space.empty_like(order)
        arrays["t_order"][order] = space.arange(order.size, dtype=order.dtype)
    for name, part in (("weight", edges.weight), ("counts", edges.counts)):
        if part is not None:
            arrays[name], arrays[f"t_{name}"] = part, part[order]
    arrays["inverse_degree"] = (1 / space.maximum(degrees(edges, weighted=False), 1)).astype(np.float32)
    if shape[0] == shape[1]:
        weighted = degrees(edges, weighted=True)
        arrays["symmetric_scale"], alone = _inverse_root(weighted), space.ones(shape[0], np.float32)
        alone[indices[rows_of(indptr) == indices]] = 0
        arrays["gcn_scale"] = _inverse_root(weighted + alone)
        if bool(alone.any()):
            arrays["alone"] = alone
    return Graph(tuple(_of_jax(arrays.get(name)) for name in ARRAYS), shape, int(indices.size))


def _inverse_root(sums: Any) -> Any:
    """``1 / sqrt(d)`` in float32, and 0 for sums d that are not positive."""
    space: Any = interop.namespace(sums)
    return space.where(sums > 0, 1 / space.sqrt(space.where(sums > 0, sums, 1)), 0).astype(np.float32)


def factors_of(norm: str | None, mean: bool) -> tuple[str, str]:
    """The names of the factors of rows and columns in a sum or mean; empty if there is no factor."""
    factor = {"gcn": "gcn_scale", "symmetric": "symmetric_scale"}.get(norm or "", "")
    return factor or ("inverse_degree" if mean else ""), factor


def _of_jax(array: Any) -> Any:
    """Convert to a JAX array that shares no host memory; float64 becomes float32 unless JAX is set to 64 bits."""
    if array is None:
        return None
    if array.dtype == np.float64 and not jax.config.jax_enable_x64:
        array = array.astype(np.float32)
    if array.dtype == np.int64 and not jax.config.jax_enable_x64:
        raise DTypeError(
            f"graph: {array.size} numbers need 64-bit indices, which JAX holds after jax.config.update('jax_enable_x64', True) alone"
        )
    if isinstance(array, np.ndarray):
        # A layer may add self loops while a function is traced; even then the graph needs arrays, not tracers.
        with jax.ensure_compile_time_eval():
            return jnp.array(array)  # a copy, as JAX's arrays must not change
    return interop.from_array(array, interop.JAX, "graph")


# ---- reading of input
def _read(function: str, edges: Any, indices: Any, num_nodes: Any, weight: Any) -> Edges:
    if any(isinstance(part, jax.core.Tracer) for part in (edges, indices, weight)):
        raise DTypeError(
            f"{function}: the edges are traced, and how many a node has must be known; make the graph outside of jit, and pass it as an "
            f"argument"
        )
    asked = asked_for(function, edges, num_nodes, weight)
    edges, shape, weight = asked
    if indices is not None:
        if np.ndim(edges) != 1 or np.ndim(indices) != 1:
            raise ShapeError(
                f"{function}: indices go with the row starts of a CSR array, but these have shapes {np.shape(edges)} and "
                f"{np.shape(indices)}; pass graph(indptr, indices), or the number of an edge list's nodes by name, num_nodes="
            )
        rows = len(edges) - 1
        given = TCTiledCSR.from_csr_arrays(edges, indices, (rows, rows) if shape is None else shape, weight)
        return of_adjacency(function, given)
    sparse = isinstance(edges, SparseArray) or hasattr(edges, "nse") or hasattr(edges, "nnz")
    return of_sparse(function, asked) if sparse else of_list(function, edges, shape, weight)

"""Sparse matrices and graphs of other libraries as index arrays; they are recognised by their attributes, without an import.

In PyTorch Geometric and DGL, messages go from the source of an edge to its target. In ``A @ x``, row i gathers from the columns j, so these
graphs become ``A[target, source]``. Graphs of networkx and igraph become what these libraries call their adjacency matrix,
``A[source, target]``. An undirected edge becomes two entries, one in each direction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop.arrays import as_array, gpu_of
from bitsparse.interop.devices import NUMPY, Family, namespace

#: Name of the edge attribute in networkx and igraph that holds the value of an edge.
_WEIGHT = "weight"


class Compressed(NamedTuple):
    """A graph in compressed form, by rows (CSR) or by columns (CSC)."""

    indptr: Any
    indices: Any
    values: Any
    shape: tuple[int, int]
    by_columns: bool = False


class Coordinates(NamedTuple):
    """A graph with an entry at every (rows[e], cols[e]); `family` is the library of the indices if they were viewed already."""

    rows: Any
    cols: Any
    values: Any
    shape: tuple[int, int]
    family: Family = NUMPY


def read_graph(x: Any, function: str) -> Compressed | Coordinates | None:
    """The entries of a sparse matrix or graph of another library; None for everything else.

    It reads PyTorch's sparse tensors (CSR, CSC, COO), JAX's BCSR and BCOO, ``SparseTensor`` of torch_sparse, ``Data`` and ``EdgeIndex`` of
    PyTorch Geometric (with ``edge_weight``, or ``adj_t`` if there is no ``edge_index``), graphs of DGL with one kind of edges, and graphs
    of networkx and igraph (with the edge attribute "weight").

    Raises
    ------
    DTypeError, ShapeError
        The object is of one of these types, but is not a two-dimensional matrix; the message names the form to convert to.
    """
    layout = str(getattr(x, "layout", ""))
    if layout.startswith("torch.sparse"):
        return _of_torch(x, layout, function)
    kind, module = type(x).__name__, type(x).__module__
    if kind in ("BCSR", "BCOO") and module.partition(".")[0] == "jax":
        return _of_jax(x, kind, function)
    if kind == "EdgeIndex" and hasattr(x, "sparse_size"):
        return _of_edge_index(x, x.sparse_size(), function)
    if hasattr(x, "csr") and hasattr(x, "sparse_sizes"):
        indptr, indices, values = x.csr()
        return Compressed(indptr, indices, values, tuple(x.sparse_sizes()))
    if hasattr(x, "edge_index") or hasattr(x, "adj_t"):
        return _of_data(x, function)
    if hasattr(x, "canonical_etypes") and callable(getattr(x, "edges", None)):
        return _of_dgl(x, function)
    if hasattr(x, "adjacency") and hasattr(x, "is_multigraph"):
        return _of_networkx(x)
    if hasattr(x, "get_edgelist") and hasattr(x, "vcount"):
        return _of_igraph(x)
    return None


def device_of_graph(x: Any) -> str:
    """The device of a sparse matrix or graph of another library, ``"cpu"`` or ``"cuda:0"`` and so on, without reading its data."""
    parts = (getattr(x, name, None) for name in ("edge_index", "adj_t", "data"))
    found = gpu_of(next((part for part in parts if part is not None), x))
    return "cpu" if found is None else found[0]


def _of_torch(x: Any, layout: str, function: str) -> Compressed | Coordinates:
    if x.ndim < 2 or (x.ndim > 2 and layout != "torch.sparse_coo"):
        raise ShapeError(f"{function}: the tensor has shape {tuple(x.shape)}, but a sparse array has 2 dimensions")
    shape = int(x.shape[0]), int(x.shape[1])
    if layout == "torch.sparse_csr":
        return Compressed(x.crow_indices(), x.col_indices(), x.values(), shape)
    if layout == "torch.sparse_csc":
        return Compressed(x.ccol_indices(), x.row_indices(), x.values(), shape, by_columns=True)
    if layout != "torch.sparse_coo":
        raise DTypeError(f"{function}: a {layout} tensor is not read as it is; pass A.to_sparse_csr()")
    if x.sparse_dim() != 2:
        raise ShapeError(f"{function}: the tensor has {x.sparse_dim()} sparse dimensions, but 2 are needed")
    # The indices as they are stored, since repeated entries are summed here anyway.
    rows, cols = x._indices()
    return Coordinates(rows, cols, x._values(), shape)


def _of_jax(x: Any, kind: str, function: str) -> Compressed | Coordinates:
    if x.n_batch or x.n_sparse != 2:
        raise ShapeError(
            f"{function}: a {kind} of shape {tuple(x.shape)} with {x.n_batch} batch and {x.n_sparse} sparse dimensions is no "
            f"matrix; take one of a batch"
        )
    shape = int(x.shape[0]), int(x.shape[1])
    if kind == "BCSR":
        nnz = int(x.indptr[-1])  # JAX may leave spare room after these entries
        if nnz == x.indices.shape[0]:
            return Compressed(x.indptr, x.indices, x.data, shape)
        return Compressed(x.indptr, x.indices[:nnz], x.data[:nnz], shape)
    indices, family = as_array(x.indices, function, "the indices")
    # Entries outside the shape are padding that JAX adds.
    kept = (indices[:, 0] < shape[0]) & (indices[:, 1] < shape[1])
    if bool(kept.all()):
        return Coordinates(indices[:, 0], indices[:, 1], x.data, shape, family)
    at = namespace(indices).flatnonzero(kept)
    return Coordinates(indices[at, 0], indices[at, 1], x.data[at], shape, family)


def _of_edge_index(edge_index: Any, sizes: Any, function: str, weight: Any = None) -> Coordinates:
    """Edges in the orientation of PyTorch Geometric: row 0 holds their sources, row 1 their targets."""
    ends, family = as_array(edge_index, function, "edge_index")
    if ends.ndim != 2 or ends.shape[0] != 2:
        raise ShapeError(f"{function}: edge_index has shape {ends.shape}, but (2, E) is needed: sources, then targets")
    if ends.dtype.kind not in "iu" and ends.size:
        raise DTypeError(f"{function}: edge_index has dtype {ends.dtype}, but the numbers of nodes are integers")
    reach = int(ends.max()) + 1 if ends.size else 0
    sources, targets = (reach if size is None else int(size) for size in sizes)
    return Coordinates(ends[1], ends[0], weight, (targets, sources), family)


def edges_of(edge_index: Any, num_nodes: Any, weight: Any, function: str) -> Coordinates:
    """Edges (2, E) from sources to targets; `num_nodes` is one number, or a pair for two kinds of nodes.

    Examples
    --------
    >>> rows, cols, _, shape, _ = edges_of(np.array([[0, 1], [2, 2]]), None, None, "example")
    >>> rows, cols, shape
    (array([2, 2]), array([0, 1]), (3, 3))
    """
    sizes = num_nodes if isinstance(num_nodes, (tuple, list)) else (num_nodes, num_nodes)
    if len(sizes) != 2:
        raise ShapeError(f"{function}: num_nodes is {num_nodes}; pass a number, or those of sources and of targets")
    return _of_edge_index(edge_index, sizes, function, weight)


def _of_data(x: Any, function: str) -> Compressed | Coordinates | None:
    edge_index = getattr(x, "edge_index", None)
    if edge_index is None:
        turned = getattr(x, "adj_t", None)
        if turned is None:
            raise DTypeError(f"{function}: the {type(x).__name__} has neither edge_index nor adj_t")
        return read_graph(turned, function)
    sizes = nodes_of_data(x) or (None, None)
    return _of_edge_index(edge_index, sizes, function, getattr(x, "edge_weight", None))


def nodes_of_data(x: Any) -> tuple[int | None, int | None] | None:
    """Numbers of sources and targets of PyTorch Geometric data or of one edge type of a HeteroData; None if they are unknown."""
    nodes = getattr(x, "num_nodes", None)
    if nodes is not None:
        return nodes, nodes
    return x.size() if callable(getattr(x, "size", None)) else None


def _of_dgl(x: Any, function: str) -> Coordinates:
    if len(x.canonical_etypes) != 1:
        raise DTypeError(
            f"{function}: the graph has {len(x.canonical_etypes)} kinds of edges; pick one, as in graph[etype]"
        )
    sources, targets = x.edges()
    return Coordinates(targets, sources, None, (int(x.num_dst_nodes()), int(x.num_src_nodes())))


def _of_networkx(x: Any) -> Coordinates:
    number = {node: at for at, node in enumerate(x)}
    edges = [(number[u], number[v], weight) for u, v, weight in x.edges(data=_WEIGHT)]
    # A pair of nodes may have several edges, whose weights the matrix sums.
    weights = [1 if weight is None else weight for *_, weight in edges]
    weighted = x.is_multigraph() or any(weight is not None for *_, weight in edges)
    return _both_ways([edge[:2] for edge in edges], weights if weighted else None, len(number), x.is_directed())


def _of_igraph(x: Any) -> Coordinates:
    weights = x.es[_WEIGHT] if _WEIGHT in x.es.attributes() else [1] * x.ecount() if x.has_multiple() else None
    return _both_ways(x.get_edgelist(), weights, x.vcount(), x.is_directed())


def _both_ways(edges: Iterable[tuple[int, int]], weights: Any, nodes: int, directed: bool) -> Coordinates:
    """The edges; in an undirected graph also their reverses, except for loops."""
    ends = np.array(list(edges), np.int64).reshape(-1, 2)
    values = None if weights is None else np.asarray(weights)
    if not directed:
        others = ends[:, 0] != ends[:, 1]
        ends = np.concatenate([ends, ends[others, ::-1]])
        values = None if values is None else np.concatenate([values, values[others]])
    return Coordinates(ends[:, 0], ends[:, 1], values, (nodes, nodes))

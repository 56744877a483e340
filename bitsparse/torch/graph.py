"""The graph of PyTorch's layers: a pattern and its transpose as buffers of a module, and sums over it with gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from bitsparse.arrays.inside import patterns_of
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.torch import operators
from bitsparse.torch.buffers import Precise
from bitsparse.torch.edges import Edges, edges_of, on_stream_of, read, tensor, with_loops
from bitsparse.torch.pattern import Pattern, take_panels
from bitsparse.torch.registration import torch_memory


class Graph(Precise):
    """A graph that layers sum over: CSR arrays of both directions, built once, as buffers that move with the module.

    Row i of the adjacency holds the edges into node i. As in PyTorch Geometric, the first row of `edge_index` holds the sources and the
    second the targets. Sums and their gradients are computed on the buffers' device, and every run gives the same bits.

    Parameters
    ----------
    edges : Tensor (2, E), sparse Tensor, torch_geometric.data.Data, scipy.sparse array, TCTiledCSR or FRDC
        An edge list, an object that has one as ``edge_index``, or the adjacency itself, (targets, sources).
    num_nodes : int or tuple of int, optional
        For an edge list, the number of nodes, or (sources, targets) of a bipartite graph; by default the largest index plus 1.
    edge_weight : Tensor (E,), optional
        Weights of an edge list, which :class:`GCNConv` uses. Repeated edges add up in sums and means. The weights of an adjacency are its
        values and scales, unless all are 1. float64 weights stay float64; all others are kept in float32 if that is exact.
    sums : {None, "panels"}
        "panels": float32 sums and means without weights and their gradients, also those of normalised graphs, take ``kernel="panels"`` of
        :func:`bitsparse.spmm` on GPUs that have it. This is quicker where the neighbours of many nodes are the same, but needs some 5
        bytes an edge more for each width of features, and time to prepare. Everything else on the graph is as without it.

    Attributes
    ----------
    num_targets, num_sources, num_edges : int
        Rows, columns and entries of the adjacency, in which a repeated edge is one entry.
    sums : str or None

    Notes
    -----
    ``state_dict`` holds only the edges and weights, not `sums`, and loads into a graph with the same numbers of nodes and edges. Weights
    and factors keep their dtype under ``.half()`` and similar conversions. With ``DistributedDataParallel``, pass
    ``broadcast_buffers=False``. For ``torch.export``, a network must hold its graph as a submodule, but not as ``graph``: exported modules
    use that name themselves.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        `edges` is neither an edge list nor an adjacency with one value per edge, an index is out of range, or weights require a
        gradient; for a gradient, pass them as values of :func:`spmm`.

    Examples
    --------
    >>> import torch
    >>> import bitsparse.torch as bst
    >>> g = bst.Graph(torch.tensor([[0, 1, 2], [1, 2, 1]]))
    >>> x = torch.tensor([[1.0], [2.0], [4.0]], requires_grad=True)
    >>> y = bst.spmm(g, x)
    >>> y.sum().backward()
    >>> y.flatten().tolist(), x.grad.flatten().tolist()
    ([0.0, 5.0, 2.0], [1.0, 1.0, 1.0])
    """

    indptr: Tensor
    indices: Tensor
    t_indptr: Tensor | None
    t_indices: Tensor | None
    order: Tensor | None
    t_order: Tensor | None
    weight: Tensor | None
    multiplicity: Tensor | None
    inverse_degree: Tensor
    scale: Tensor | None

    #: Also of graphs that were pickled before there was a choice.
    sums: str | None = None

    def __init__(
        self,
        edges: Any,
        num_nodes: int | tuple[int, int] | None = None,
        *,
        edge_weight: Tensor | None = None,
        sums: str | None = None,
    ) -> None:
        super().__init__()
        if sums not in (None, "panels"):
            raise ValueError(f"Graph: sums must be None or 'panels', got {sums!r}")
        self.sums = sums
        self.derived = False  # whether another graph made this one from itself; it is then not saved
        recorded = torch.is_grad_enabled()
        with for_training(), torch.set_grad_enabled(recorded), on_stream_of(edges):
            self._keep(read(edges, num_nodes, edge_weight))

    def _keep(self, given: Edges) -> None:
        forward, backward, order = patterns_of(given.adjacency)
        symmetric = given.adjacency.has_symmetric_pattern
        indptr, indices, _ = forward.csr_arrays()
        turned = (None, None) if symmetric else backward.csr_arrays()[:2]
        self.num_targets, self.num_sources = given.adjacency.shape
        kept = {
            "indptr": tensor(indptr),
            "indices": tensor(indices),
            "weight": given.weight,
            "multiplicity": given.counts,
        }
        kept["sizes"] = torch.tensor(given.adjacency.shape, device=kept["indptr"].device)
        for name, part in kept.items():
            self.register_buffer(name, part)
        # The rest follows from those buffers. The permutations of the edges are only needed if edges have values.
        for name, array in (("t_indptr", turned[0]), ("t_indices", turned[1]), ("order", None), ("t_order", None)):
            self.register_buffer(name, None if array is None else tensor(array), persistent=False)
        if given.weight is not None or given.counts is not None:
            self._number(tensor(order))
        self.register_buffer("inverse_degree", self.inverse_of_degrees().float(), persistent=False)
        self.register_buffer("scale", None, persistent=False)  # factors of rows and columns, set by normalized()
        self._take_panels()

    def _take_panels(self) -> None:
        """Tell the operators, which know the graph by its tensors, that sums take panels; whenever the tensors are others."""
        if self.sums == "panels":
            take_panels(self.indptr, self.t_indptr)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        self._take_panels()

    def _apply(self, function: Any, recurse: bool = True) -> Self:
        """Convert or move the buffers; the twin graph without weights shares them afterwards as before."""
        twin = self._modules.pop("unweighted_graph", None)
        super()._apply(function, recurse)
        self._take_panels()
        if twin is not None:
            self.add_module("unweighted_graph", self._without_weights(twin))
        return self

    def _without_weights(self, twin: Graph) -> Graph:
        twin._buffers = {**self._buffers, "weight": None, "scale": None}
        return twin

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if not self.derived:
            super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take the edges and weights of a graph of the same size; if they are new, drop the graphs derived from the old ones."""
        if self.derived:
            return
        names = [name for name in self._buffers if name not in self._non_persistent_buffers_set]
        # With assign=True, a module takes the tensors of the state on their present device.
        assigned, device = local_metadata.get("assign_to_params_buffers", False), self.indptr.device
        parts = {n: state_dict.get(prefix + n) for n in names}
        if not assigned:
            parts = {name: None if part is None else part.to(device) for name, part in parts.items()}
        needed = ("sizes", "indptr", "indices")
        missing_keys += [prefix + name for name in needed if parts[name] is None]
        unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key[len(prefix) :] not in names]
        lists, _, indices = (parts[name] for name in needed)
        if lists is None or indices is None or parts["indptr"] is None:
            return
        if lists.is_meta:
            error_msgs.append(
                f"{prefix[:-1] or 'Graph'}: its edges would be on meta, where nobody knows them; pass assign=True, and a state in memory"
            )
            return
        sizes, edges = tuple(lists.tolist()), len(indices)
        lengths = {len(part) for name in ("weight", "multiplicity") if (part := parts[name]) is not None}
        if (*sizes, edges) != (self.num_targets, self.num_sources, self.num_edges) or lengths - {edges}:
            error_msgs.append(
                f"{prefix[:-1] or 'Graph'}: the state is of a graph of {sizes[0]} x {sizes[1]} nodes and {edges} edges, but this one is "
                f"{self.extra_repr()}; make it of the edges that the saved one was made of"
            )
            return
        kept = ((self._buffers[name], part) for name, part in parts.items())
        if device == lists.device and all(
            torch.equal(one, other) if one is not None is not other else one is other for one, other in kept
        ):
            return
        parts = {name: None if part is None else part.clone() for name, part in parts.items()}
        try:
            adjacency = TCTiledCSR.from_arrays(parts["indptr"], parts["indices"], sizes)
        except ValueError as error:
            error_msgs.append(f"{prefix[:-1] or 'Graph'}: {error}")
            return
        self._modules.clear()
        with for_training():
            self._keep(Edges(adjacency, parts["weight"], parts["multiplicity"]))

    @property
    def num_edges(self) -> int:
        """The number of entries of the adjacency."""
        return len(self.indices)

    def _number(self, order: Tensor) -> None:
        t_order = torch.empty_like(order)
        t_order[order.long()] = torch.arange(len(order), dtype=order.dtype, device=order.device)
        self.t_order, self.order = t_order, order  # another thread takes both once there is an order

    def _sums(self, values: Tensor | None) -> Tensor:
        """The sum of each target's values, or its number of edges if there are no values, in float64."""
        if values is None:
            return (self.indptr[1:] - self.indptr[:-1]).double()
        ones = torch.ones((self.num_sources, 1), dtype=torch.float64, device=values.device)
        return operators.spmm(self.pattern(values=True), values.double(), None, None, ones)[:, 0]

    def inverse_of_degrees(self) -> Tensor:
        """1 / the number of each target's edges, counting repetitions, in float64; 1 for targets without edges."""
        return 1 / self._sums(self.multiplicity).clamp(min=1)

    def root_scale(self) -> Tensor:
        """1 / sqrt of the sum of each node's weights, in float64; 0 for nodes without edges."""
        degree = self._sums(self.multiplicity if self.weight is None else self.weight)
        return torch.where(degree > 0, degree.rsqrt(), 0)

    def factors(self, mean: bool, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """Factors of rows and columns, for a mean divided by degrees: stored ones in float32, or new ones for sums in float64."""
        wide = dtype == torch.float64
        rows = columns = self.root_scale() if wide and self.scale is not None else self.scale
        if mean:
            inverse = self.inverse_of_degrees() if wide else self.inverse_degree
            rows = inverse if rows is None else rows * inverse
        return rows, columns

    def pattern(self, values: bool = False) -> Pattern:
        """Both directions in the form that operators take; with the permutations of the edges if edges have `values`."""
        # The dictionary is read directly: every call comes here, and attributes of modules are slow to look up.
        buffers = self._buffers
        indptr, indices, order = buffers["indptr"], buffers["indices"], buffers["order"]
        if values and order is None:
            with torch.inference_mode(False), torch.no_grad():
                self._number(indices.argsort(stable=True).to(indices.dtype))
            order = buffers["order"]
        turned = (indptr, indices) if buffers["t_indptr"] is None else (buffers["t_indptr"], buffers["t_indices"])
        # Without values the permutations are never read, so any tensors will do.
        orders = (indices, indices) if order is None else (order, buffers["t_order"])
        return Pattern(indptr, indices, *turned, *orders)

    def rows(self) -> Tensor:
        """The target of every edge, int64."""
        nodes = torch.arange(self.num_targets, device=self.indptr.device)
        return torch.repeat_interleave(nodes, (self.indptr[1:] - self.indptr[:-1]).long(), output_size=self.num_edges)

    def _derive(self, name: str, graph: Graph) -> None:
        graph.derived = True
        self.add_module(name, graph)

    def normalized(self, self_loops: bool = True, loop_weight: float = 1.0) -> Graph:
        """``D^-1/2 (A + I) D^-1/2`` (Kipf and Welling, ICLR 2017, Eq. 2) of a square graph, built once per choice and cached.

        Parameters
        ----------
        self_loops : bool
            Give every node that has no edge to itself such an edge, with weight `loop_weight`.

        Examples
        --------
        >>> import torch
        >>> import bitsparse.torch as bst
        >>> g = bst.Graph(torch.tensor([[0, 1], [1, 0]])).normalized()
        >>> bst.spmm(g, torch.eye(2))
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
        """
        name = f"gcn_{self_loops:d}_{float(loop_weight)!r}".replace(".", "_")
        if name not in self._modules:
            with for_training():
                self._derive(name, _normalized(self, self_loops, loop_weight))
        return self._modules[name]

    def with_self_loops(self) -> Graph:
        """The same graph without weights and with one edge from every node to itself; built once and cached.

        As in PyTorch Geometric, a bipartite graph gets an edge from source i to target i if both exist. Other edges keep their
        repetitions.
        """
        if "looped" not in self._modules:
            with for_training():
                plain = self.unweighted()
                edges, counts = with_loops(plain, *edges_of(plain), 1.0)
                if counts is not None:
                    edges = edges.repeat_interleave(counts.long(), dim=1)
                self._derive("looped", Graph(edges, (self.num_sources, self.num_targets), sums=self.sums))
        return self._modules["looped"]

    def with_all_edges(self, why: str) -> Graph:
        """Return the graph, for operations that need all its edges; a sample of a graph raises an error that says `why`."""
        return self

    def unweighted(self) -> Graph:
        """The same graph without its weights and factors, for layers that ignore weights."""
        if self.weight is None and self.scale is None:
            return self
        if "unweighted_graph" not in self._modules:
            twin = Graph.__new__(Graph)  # not a copy, which would have this graph's hooks
            Precise.__init__(twin)
            twin.num_targets, twin.num_sources, twin.sums = self.num_targets, self.num_sources, self.sums
            self._derive("unweighted_graph", self._without_weights(twin))
        return self._modules["unweighted_graph"]

    def extra_repr(self) -> str:
        """The sizes, for ``repr``, and how sums are computed if that was chosen."""
        sizes = f"{self.num_targets} x {self.num_sources}, {self.num_edges} edges"
        return sizes if self.sums is None else f"{sizes}, sums={self.sums!r}"

    def edge_values(self, edge_index: Tensor, values: Tensor) -> Tensor:
        """Put the values of an edge list in the order in which :func:`spmm` takes them; differentiable.

        Parameters
        ----------
        edge_index : Tensor (2, E)
            The edges of the graph in any order, each exactly once.
        values : Tensor (E,) or (E, H)

        Raises
        ------
        ShapeError, ValueError
            The edges are not those of the graph, or there is not one value for each.

        Examples
        --------
        >>> import torch
        >>> import bitsparse.torch as bst
        >>> edges, weights = torch.tensor([[1, 0], [0, 1]]), torch.tensor([3.0, 5.0], requires_grad=True)
        >>> g = bst.Graph(edges)
        >>> y = bst.spmm(g, torch.tensor([[1.0], [10.0]]), g.edge_values(edges, weights))
        >>> y.sum().backward()
        >>> y.flatten().tolist(), weights.grad.tolist()
        ([30.0, 5.0], [10.0, 1.0])
        """
        if values.shape[:1] != edge_index.shape[1:]:
            raise ShapeError(
                f"edge_values: values have shape {tuple(values.shape)}, but edge_index has {edge_index.shape[1]} edges; pass one for each"
            )
        sources, targets = edge_index.long()
        order = (targets * self.num_sources + sources).argsort()
        if len(order) != self.num_edges or not (
            torch.equal(targets[order], self.rows()) and torch.equal(sources[order], self.indices.long())
        ):
            raise ValueError(
                f"edge_values: the graph has {self.num_edges} edges, and the {len(order)} of edge_index are others or repeated; pass those "
                f"that it was made of, each once"
            )
        return values[order]


@contextlib.contextmanager
def for_training() -> Iterator[None]:
    """Make tensors that training can use later, even if they are made and cached under inference_mode()."""
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "Graph: torch.compile and torch.export cannot make graphs; make them before, and those that layers derive by calling the layer "
            "once as it is"
        )
    with torch.inference_mode(False), torch.no_grad(), torch_memory():
        yield


def checked(function: str, graph: Any) -> Graph:
    """Return `graph`, or raise if it is no :class:`Graph`."""
    if not isinstance(graph, Graph):
        raise DTypeError(f"{function}: graph is a {type(graph).__name__}; pass a Graph, bitsparse.torch.Graph(...)")
    return graph


def _normalized(graph: Graph, self_loops: bool, loop_weight: float) -> Graph:
    if graph.num_targets != graph.num_sources:
        raise ShapeError(
            f"normalized: the graph is {graph.num_targets} x {graph.num_sources}, but this normalisation is for square ones; use mean sums"
        )
    edges, weight = edges_of(graph)
    if self_loops:
        edges, weight = with_loops(graph, edges, weight, loop_weight)
    made = Graph(edges, graph.num_targets, edge_weight=weight, sums=graph.sums)
    made.scale = made.root_scale().float()
    return made

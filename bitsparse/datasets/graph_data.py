"""A graph with what a node classifier needs, checked as a whole before anything computes with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.errors import DTypeError, ShapeError

__all__ = ["GraphData"]

_MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True, kw_only=True)
class GraphData:
    """A graph in CSR form with node features, labels and a split; every part is checked on construction.

    Parameters
    ----------
    indptr : ndarray (n + 1,) of int
    indices : ndarray (nnz,) of int
        Columns of the adjacency pattern, row by row.
    x : csr_array or ndarray (n, features), optional
        Real, finite node features.
    labels : ndarray (n,) of int, optional
        Any integers; -1 for nodes without a label.
    train_mask, val_mask, test_mask : ndarray (n,) of bool, optional
        A split: disjoint, of labelled nodes; all three or none.
    weights : ndarray (nnz,) of real numbers, optional
        One for each entry of `indices`; :attr:`adjacency` leaves them out.
    name : str, default "graph"

    Raises
    ------
    ShapeError, DTypeError, ValueError
        A part has the wrong dimensions or length, the wrong dtype, or impossible values.

    Examples
    --------
    >>> from bitsparse.datasets import GraphData
    >>> pair = GraphData(indptr=np.array([0, 1, 2]), indices=np.array([1, 0]), labels=np.array([5, 9]), name="pair")
    >>> pair
    GraphData(pair: 2 nodes, 2 edges, 2 classes)
    >>> pair.targets
    array([0, 1])
    """

    indptr: NDArray[Any]
    indices: NDArray[Any]
    x: Any = None
    labels: NDArray[Any] | None = None
    train_mask: NDArray[np.bool_] | None = None
    val_mask: NDArray[np.bool_] | None = None
    test_mask: NDArray[np.bool_] | None = None
    weights: NDArray[Any] | None = None
    name: str = field(default="graph")

    def __post_init__(self) -> None:
        _check_pattern(self.indptr, self.indices)
        n = self.num_nodes
        if self.x is not None:
            _check_features(self.x, n)
        if self.labels is not None:
            _one_value_per_node("labels", self.labels, n, "iu", "integers")
        if self.weights is not None:
            _check_weights(self.weights, self.num_edges)
        _check_split(self)

    def __repr__(self) -> str:
        parts = [f"{self.num_nodes} nodes", f"{self.num_edges} edges"]
        if self.x is not None:
            parts.append(f"{self.x.shape[1]} features")
        if self.labels is not None:
            parts.append(f"{self.num_classes} classes")
        return f"GraphData({self.name}: {', '.join(parts)})"

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.indptr.size - 1)

    @property
    def num_edges(self) -> int:
        """Number of stored positions; an undirected edge counts twice."""
        return int(self.indices.size)

    @property
    def adjacency(self) -> Any:
        """The pattern as a csr_array of bool (duplicates, if any, remain)."""
        return self._csr(np.ones(self.indices.size, np.bool_))

    @property
    def weighted(self) -> Any:
        """The adjacency with its weights, a csr_array; :attr:`adjacency` if there are none."""
        return self.adjacency if self.weights is None else self._csr(self.weights)

    def _csr(self, values: NDArray[Any]) -> Any:
        from scipy import sparse

        return sparse.csr_array((values, self.indices, self.indptr), shape=(self.num_nodes, self.num_nodes))

    @property
    def classes(self) -> NDArray[Any]:
        """The labels that occur, ascending, without negative ones."""
        if self.labels is None:
            return np.empty(0, np.int64)
        return np.unique(self.labels[self.labels >= 0])

    @property
    def num_classes(self) -> int:
        """Number of different labels."""
        return int(self.classes.size)

    @property
    def targets(self) -> NDArray[np.int64]:
        """Labels renumbered 0, 1, ... in ascending order, -1 where there is none."""
        if self.labels is None:
            return np.full(self.num_nodes, -1, np.int64)
        return np.where(self.labels >= 0, np.searchsorted(self.classes, self.labels), -1).astype(np.int64)

    def with_split(self, *, per_class: int = 20, val: int = 500, test: int = 1000, seed: int = 0) -> GraphData:
        """The same graph with a random split of the Planetoid kind (Yang et al. 2016, section 5).

        Parameters
        ----------
        per_class : int, default 20
            Training nodes of each class (at most half of the class).
        val, test : int
            Validation and test nodes among the remaining labelled ones; scaled down in proportion where there are too few.
        seed : int, default 0

        Examples
        --------
        >>> from bitsparse.datasets import GraphData
        >>> bare = GraphData(indptr=np.zeros(11, int), indices=np.array([], int), labels=np.arange(10) % 2)
        >>> split = bare.with_split(per_class=1, val=2, test=6)
        >>> split.train_mask.sum(), split.val_mask.sum(), split.test_mask.sum()
        (np.int64(2), np.int64(2), np.int64(6))
        """
        if self.labels is None:
            raise ValueError(f"with_split: {self.name} has no labels to split by; give labels=")
        _check_positive("with_split", per_class=per_class, val=val, test=test)
        rng = np.random.default_rng(seed)
        targets = self.targets
        order = rng.permutation(np.flatnonzero(targets >= 0))
        taken = np.zeros(self.num_nodes, np.bool_)
        for label in range(self.num_classes):
            members = order[targets[order] == label]
            taken[members[: min(per_class, (members.size + 1) // 2)]] = True
        rest = order[~taken[order]]
        if rest.size < val + test:
            val = val * rest.size // (val + test)
            test = rest.size - val
        chosen = [np.zeros(self.num_nodes, np.bool_) for _ in range(2)]
        chosen[0][rest[:val]] = True
        chosen[1][rest[val : val + test]] = True
        return replace(self, train_mask=taken, val_mask=chosen[0], test_mask=chosen[1])

    def with_generated(self, *, features: int = 64, classes: int = 8, seed: int = 0) -> GraphData:
        """The same graph with made-up labels and features that a graph network can learn, for graphs that have none.

        Labels are the parts of :func:`bitsparse.graph.partition`. Features are 0/1 words: a twentieth of all at random, and of
        those that belong to the node's class a quarter.

        Parameters
        ----------
        features : int, default 64
        classes : int, default 8
        seed : int, default 0

        Examples
        --------
        >>> from bitsparse.datasets import synthetic
        >>> synthetic((200, 1600), seed=1).with_generated(features=16, classes=2)
        GraphData(power_law-200-1600: 200 nodes, 1600 edges, 16 features, 2 classes)
        """
        from bitsparse.graph import partition

        _check_positive("with_generated", features=features, classes=classes)
        labels = np.asarray(partition(self.adjacency, min(classes, max(self.num_nodes, 1)), seed=seed), np.int32)
        rng = np.random.default_rng(seed)
        own = np.arange(features) % classes == labels[:, None]
        x = rng.random((self.num_nodes, features), dtype=np.float32) < np.where(own, np.float32(0.25), np.float32(0.05))
        return replace(self, x=x.astype(np.float32), labels=labels, train_mask=None, val_mask=None, test_mask=None)


def _check_positive(function: str, **sizes: int) -> None:
    for key, value in sizes.items():
        if value < 1:
            raise ValueError(f"{function}: {key} must be at least 1, got {value}")


def _check_pattern(indptr: Any, indices: Any) -> None:
    for name, array in (("indptr", indptr), ("indices", indices)):
        if not isinstance(array, np.ndarray) or array.ndim != 1:
            raise ShapeError(
                f"GraphData: {name} must be a one-dimensional array, got shape {np.shape(array)}; use the CSR form"
            )
        if array.dtype.kind not in "iu":
            raise DTypeError(
                f"GraphData: {name} has dtype {array.dtype}, but integers are needed; convert it with astype"
            )
    if not indptr.size:
        raise ShapeError("GraphData: indptr is empty, but n nodes need n + 1 entries; pass [0] for no node")
    steps = indptr[1:] < indptr[:-1]
    if steps.any():
        row = int(np.argmax(steps))
        raise ValueError(
            f"GraphData: indptr decreases from {int(indptr[row])} to {int(indptr[row + 1])} at node {row}; "
            f"each entry counts on from the one before"
        )
    if int(indptr[0]) != 0 or int(indptr[-1]) != indices.size:
        raise ShapeError(
            f"GraphData: indptr runs from {int(indptr[0])} to {int(indptr[-1])}, but indices has {indices.size} entries; "
            f"it must run from 0 to that number"
        )
    n = indptr.size - 1
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= n):
        wrong = int(indices.min()) if int(indices.min()) < 0 else int(indices.max())
        raise ValueError(
            f"GraphData: indices holds {wrong}, but the nodes are 0..{n - 1}; indptr and indices must be of the same graph"
        )


def _check_features(x: Any, n: int) -> None:
    shape: tuple[int, ...] = getattr(x, "shape", ())
    dtype = getattr(x, "dtype", None)
    if len(shape) != 2 or shape[0] != n:
        raise ShapeError(f"GraphData: x has shape {tuple(shape)}, but the graph has {n} nodes; give one row per node")
    _check_real("x", dtype, x if isinstance(x, np.ndarray) else getattr(x, "data", None))


def _check_weights(weights: Any, entries: int) -> None:
    if not isinstance(weights, np.ndarray) or weights.shape != (entries,):
        raise ShapeError(
            f"GraphData: weights has shape {np.shape(weights)}, but there are {entries} entries; give one value for each"
        )
    _check_real("weights", weights.dtype, weights)


def _check_real(name: str, dtype: Any, values: Any) -> None:
    if dtype is None or dtype.kind not in "biuf":
        raise DTypeError(f"GraphData: {name} has dtype {dtype}, but real numbers are needed; convert it with astype")
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(f"GraphData: {name} holds NaN or infinity; replace them, as with numpy.nan_to_num")


def _one_value_per_node(name: str, array: Any, n: int, kinds: str, kind: str) -> None:
    if not isinstance(array, np.ndarray) or array.shape != (n,):
        raise ShapeError(
            f"GraphData: {name} has shape {np.shape(array)}, but the graph has {n} nodes; give one value per node"
        )
    if array.dtype.kind not in kinds:
        raise DTypeError(f"GraphData: {name} has dtype {array.dtype}, but {kind} is needed; convert it with astype")


def _check_split(graph: GraphData) -> None:
    masks = {name: getattr(graph, name) for name in _MASKS}
    missing = [name for name, mask in masks.items() if mask is None]
    if len(missing) == len(masks):
        return
    if missing:
        raise ValueError(
            f"GraphData: {', '.join(missing)} missing, but the other masks are there; give all three or none"
        )
    if graph.labels is None:
        raise ValueError("GraphData: there are masks, but no labels to use them on; give labels")
    for name, mask in masks.items():
        _one_value_per_node(name, mask, graph.num_nodes, "b", "bool")
        bare = mask & (graph.labels < 0)
        if bare.any():
            node = int(np.argmax(bare))
            label = int(graph.labels[node])
            raise ValueError(
                f"GraphData: {name} selects node {node}, whose label is {label}; select labelled nodes only"
            )
    for one, other in ((0, 1), (0, 2), (1, 2)):
        common = int((masks[_MASKS[one]] & masks[_MASKS[other]]).sum())
        if common:
            both = f"{_MASKS[one]} and {_MASKS[other]}"
            raise ValueError(f"GraphData: {both} share {common} nodes, which would leak labels; make them disjoint")

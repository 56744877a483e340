"""A graph with the features, labels and split that a node classifier needs, all checked together on construction."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse._files import replacing
from bitsparse.arrays import BitTensor
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.graph.adjacency import per_node

MASKS = ("train_mask", "val_mask", "test_mask")


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
        A split into disjoint sets of labelled nodes; all three masks or none.
    weights : ndarray (nnz,) of real numbers, optional
        One weight for each entry of `indices`; :attr:`adjacency` leaves them out.
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
    name: str = "graph"

    def __post_init__(self) -> None:
        check_csr("GraphData: ", "", self.indptr, self.indices)
        n = self.num_nodes
        if self.x is not None:
            shape: tuple[int, ...] = getattr(self.x, "shape", ())
            per_node("GraphData", "x", shape, n)
            if isinstance(self.x, BitTensor) or not (isinstance(self.x, np.ndarray) or hasattr(self.x, "tocsr")):
                raise DTypeError(
                    f"GraphData: x must be an array of NumPy or a sparse one, got {type(self.x).__name__}; convert it with numpy.asarray"
                )
            _check_real("x", self.x if isinstance(self.x, np.ndarray) else self.x.tocsr().data)
        if self.labels is not None:
            _check_values("labels", self.labels, n, "nodes", "iu", "integers")
        if self.weights is not None:
            _check_values("weights", self.weights, self.num_edges, "entries", "biuf", "real numbers")
            _check_real("weights", self.weights)
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
        """The pattern as a csr_array of bool; repeated entries, if any, stay."""
        return self._csr(np.ones(self.indices.size, np.bool_))

    @property
    def weighted(self) -> Any:
        """The adjacency with its weights as a csr_array; :attr:`adjacency` if there are no weights."""
        return self.adjacency if self.weights is None else self._csr(self.weights)

    def _csr(self, values: NDArray[Any]) -> Any:
        from scipy import sparse

        return sparse.csr_array((values, self.indices, self.indptr), shape=(self.num_nodes, self.num_nodes))

    @property
    def classes(self) -> NDArray[Any]:
        """The labels that occur, in ascending order and without negative ones."""
        if self.labels is None:
            return np.empty(0, np.int64)
        return np.unique(self.labels[self.labels >= 0])

    @property
    def num_classes(self) -> int:
        """Number of different labels."""
        return int(self.classes.size)

    @property
    def targets(self) -> NDArray[np.int64]:
        """Labels renumbered 0, 1, ... in ascending order; -1 for nodes without a label."""
        if self.labels is None:
            return np.full(self.num_nodes, -1, np.int64)
        return np.where(self.labels >= 0, np.searchsorted(self.classes, self.labels), -1).astype(np.int64)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph with all its parts to a ``.npz`` file; :func:`bitsparse.datasets.read` reads it and names it after the file.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from bitsparse import datasets
        >>> graph = datasets.synthetic((200, 1600), seed=1).with_generated(features=16, classes=2).with_split()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graph.save(pathlib.Path(folder, "small.npz"))
        ...     datasets.read(pathlib.Path(folder, "small.npz"))
        GraphData(small: 200 nodes, 1600 edges, 16 features, 2 classes)
        """
        with replacing(path) as file:
            np.savez_compressed(file, **arrays_of(self))

    def with_split(self, *, per_class: int = 20, val: int = 500, test: int = 1000, seed: int = 0) -> GraphData:
        """The same graph with a random split of the Planetoid kind (Yang et al. 2016, section 5).

        Parameters
        ----------
        per_class : int, default 20
            Training nodes of each class (at most half of the class).
        val, test : int
            Validation and test nodes among the remaining labelled ones; scaled down in proportion if there are too few.
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
        for name, value in (("per_class", per_class), ("val", val), ("test", test)):
            _check.integer("with_split", name, value, 1)
        _check.integer("with_split", "seed", seed, 0)
        rng = np.random.default_rng(seed)
        targets = self.targets
        order = rng.permutation(np.flatnonzero(targets >= 0))
        train_mask, val_mask, test_mask = np.zeros((3, self.num_nodes), np.bool_)
        for label in range(self.num_classes):
            members = order[targets[order] == label]
            train_mask[members[: min(per_class, (members.size + 1) // 2)]] = True
        rest = order[~train_mask[order]]
        if rest.size < val + test:
            val = val * rest.size // (val + test)
            test = rest.size - val
        val_mask[rest[:val]] = test_mask[rest[val : val + test]] = True
        return replace(self, train_mask=train_mask, val_mask=val_mask, test_mask=test_mask)

    def with_generated(
        self, *, features: int = 64, classes: int = 8, seed: int = 0, labels: NDArray[Any] | None = None
    ) -> GraphData:
        """The same graph with made-up labels and features that a graph network can learn from, for graphs that have none.

        Labels are the parts of :func:`bitsparse.graph.partition`, unless they are given. Features are 0 or 1: a feature is 1 with
        probability 1/4 if it belongs to the node's class, and 1/20 otherwise.

        Parameters
        ----------
        features : int, default 64
        classes : int, default 8
        seed : int, default 0
        labels : ndarray (n,) of int, optional
            The class of each node, 0 to `classes` - 1, or -1 for none.

        Examples
        --------
        >>> from bitsparse.datasets import synthetic
        >>> synthetic((200, 1600), seed=1).with_generated(features=16, classes=2)
        GraphData(power_law-200-1600: 200 nodes, 1600 edges, 16 features, 2 classes)
        """
        from bitsparse.graph import partition

        for name, value in (("features", features), ("classes", classes)):
            _check.integer("with_generated", name, value, 1)
        _check.integer("with_generated", "seed", seed, 0)
        if labels is None:
            labels = partition(self.adjacency, min(classes, max(self.num_nodes, 1)), seed=seed)
        graph = replace(self, labels=labels, train_mask=None, val_mask=None, test_mask=None)
        if labels.size and not -1 <= labels.min() <= labels.max() < classes:
            raise ValueError(
                f"with_generated: labels lie in {labels.min()}..{labels.max()}, but must in -1..{classes - 1}; pass classes="
            )
        rng = np.random.default_rng(seed)
        own = np.arange(features) % classes == labels[:, None]
        x = rng.random((self.num_nodes, features), dtype=np.float32) < np.where(own, np.float32(0.25), np.float32(0.05))
        return replace(graph, x=x.astype(np.float32))


def arrays_of(graph: GraphData) -> dict[str, Any]:
    """The arrays of a graph, under their names in ``.npz`` files.

    Examples
    --------
    >>> list(arrays_of(GraphData(indptr=np.array([0, 1]), indices=np.array([0]), labels=np.array([3]))))
    ['indptr', 'indices', 'labels']
    """
    parts = {name: getattr(graph, name) for name in ("indptr", "indices", "labels", "weights", *MASKS)}
    if hasattr(graph.x, "tocsr"):
        x = graph.x.tocsr()
        parts |= {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data, "x_shape": np.array(x.shape)}
    else:
        parts["features"] = graph.x
    return {name: part for name, part in parts.items() if part is not None}


def check_numbers(where: str, name: str, array: Any, kinds: str = "iu", kind: str = "integers") -> None:
    """Refuse anything but a one-dimensional array whose dtype is of these kinds."""
    if not isinstance(array, np.ndarray) or array.ndim != 1:
        raise ShapeError(f"{where}{name} has shape {np.shape(array)}, but it must be one-dimensional")
    if array.dtype.kind not in kinds:
        raise DTypeError(f"{where}{name} has dtype {array.dtype}, but {kind} are needed; convert it with astype")


def check_csr(
    where: str, prefix: str, indptr: Any, indices: Any, shape: tuple[int, int] | None = None, data: Any = None
) -> None:
    """Refuse arrays that are not the CSR form of a matrix, or of a graph if no shape is given; errors put `prefix` before their names."""
    for name, array in (("indptr", indptr), ("indices", indices)):
        check_numbers(where, f"{prefix}{name}", array)
    row, column = ("node", "nodes") if shape is None else ("row", "columns")
    if not indptr.size:
        raise ShapeError(f"{where}{prefix}indptr is empty, but n {row}s need n + 1 entries; pass [0] for no {row}")
    rows, cols = shape or (indptr.size - 1, indptr.size - 1)
    if indptr.size != rows + 1:
        raise ShapeError(f"{where}{prefix}indptr has {indptr.size} entries, but shape {shape} needs {rows + 1}")
    steps = indptr[1:] < indptr[:-1]
    if steps.any():
        i = int(np.argmax(steps))
        raise ValueError(
            f"{where}{prefix}indptr decreases from {int(indptr[i])} to {int(indptr[i + 1])} at {row} {i}; "
            f"each entry counts on from the one before"
        )
    if int(indptr[0]) != 0 or int(indptr[-1]) != indices.size:
        raise ShapeError(
            f"{where}{prefix}indptr runs from {int(indptr[0])} to {int(indptr[-1])}, but {prefix}indices has {indices.size} entries; "
            f"it must run from 0 to that number"
        )
    if data is not None and data.shape != indices.shape:
        raise ShapeError(
            f"{where}{prefix}data has {data.size} entries, but {prefix}indices has {indices.size}; each value needs its column"
        )
    low, high = (int(indices.min()), int(indices.max())) if indices.size else (0, -1)
    if low < 0 or high >= cols:
        raise ValueError(
            f"{where}{prefix}indices holds {low if low < 0 else high}, but the {column} are 0..{cols - 1}; "
            f"indptr and indices must belong together"
        )


def _check_real(name: str, values: Any) -> None:
    _check.numeric("GraphData", name, values)
    _check.finite("GraphData", name, values.dtype.kind != "f" or bool(np.isfinite(values).all()))


def _check_values(name: str, array: Any, count: int, things: str, kinds: str, kind: str) -> None:
    if not isinstance(array, np.ndarray) or array.shape != (count,):
        raise ShapeError(
            f"GraphData: {name} has shape {np.shape(array)}, but the graph has {count} {things}; give one value for each"
        )
    check_numbers("GraphData: ", name, array, kinds, kind)


def _check_split(graph: GraphData) -> None:
    masks = {name: getattr(graph, name) for name in MASKS}
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
        _check_values(name, mask, graph.num_nodes, "nodes", "b", "bools")
        bare = mask & (graph.labels < 0)
        if bare.any():
            node = int(np.argmax(bare))
            label = int(graph.labels[node])
            raise ValueError(
                f"GraphData: {name} selects node {node}, whose label is {label}; select labelled nodes only"
            )
    for one, other in combinations(MASKS, 2):
        common = int((masks[one] & masks[other]).sum())
        if common:
            raise ValueError(
                f"GraphData: {one} and {other} share {common} nodes, which would leak labels; make them disjoint"
            )

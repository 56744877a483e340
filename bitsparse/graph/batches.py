"""Batches of subgraphs: block-diagonal 1-bit adjacency and features in one piece of memory (QGTC sections 4.1 and 4.6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import BitTensor
from bitsparse.arrays.construct import words_shape
from bitsparse.arrays.indices import index_array
from bitsparse.arrays.inside import derived_of, with_words
from bitsparse.backends.params import tile_bitmap_shape
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.graph.adjacency import square_pattern

__all__ = ["SubgraphBatch", "batch"]

#: Where the parts of a buffer start: a multiple of a memory transaction on every device.
_ALIGNMENT = 128


@dataclass(frozen=True)
class SubgraphBatch:
    """Some parts of a graph as one block-diagonal graph, ready to move in a single copy.

    Attributes
    ----------
    nodes : ndarray of int64, shape (N,)
        The nodes' numbers in the whole graph, part after part.
    starts : ndarray of int64, shape (parts + 1,)
        Where each part starts in `nodes`.
    adjacency : BitTensor, shape (N, N), 1 bit
        Packed along the columns, a left operand; its `tile_bitmap` is there already.
    features : BitTensor or ndarray, shape (N, D), or None
        Rows of the features that belong to `nodes`; a BitTensor is packed along axis -2 in planes, a right operand.
    edges : int
        Edges in the batch.
    dropped : int
        Edges that left the batch or, unless kept, their part.
    buffer : ndarray of uint8
        The memory of adjacency, bitmap, features and their scale and offset, one after the other at multiples of 128 bytes.
    sections : dict
        The (start, bytes) of each part of `buffer`.

    Examples
    --------
    >>> from bitsparse import graph
    >>> one = next(graph.batch(np.eye(3, dtype=int), [0, 0, 0], bs.quantize(np.eye(3), 2)))
    >>> there = one.to_device("cpu")  # or "cuda": a single copy
    >>> there.features.shape, sorted(there.sections)
    ((3, 3), ['adjacency', 'features', 'offset', 'scale', 'tile_bitmap'])
    """

    nodes: NDArray[np.int64]
    starts: NDArray[np.int64]
    adjacency: BitTensor
    features: Any
    edges: int
    dropped: int
    buffer: NDArray[np.uint8] = field(repr=False)
    sections: dict[str, tuple[int, int]] = field(repr=False)

    @property
    def tile_bitmap(self) -> NDArray[np.uint32]:
        """Which 8 x 128 tiles of the adjacency hold an edge."""
        return self.adjacency.tile_bitmap

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer: what a copy to a device moves."""
        return int(self.buffer.nbytes)

    @property
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:0"`` and so on: where the buffer is."""
        return interop.device_of(self.buffer)

    def to_device(self, device: Any, *, stream: Any = None) -> SubgraphBatch:
        """The same batch on ``device``, in a single copy; itself if it is there already. `nodes` and `starts` stay on the host.

        Parameters
        ----------
        device : str
        stream : optional
            A CUDA stream to copy on, as in :meth:`bitsparse.BitTensor.to_device`. An :class:`bitsparse.interop.Uploader` and
            :meth:`placed` overlap the copies of many batches with work without such care.
        """
        target = interop.parse_device(device, "to_device")
        if target == self.device:
            return self
        with interop.moving(self.device if target == "cpu" else target, interop.NUMPY, stream):
            return self.placed(interop.move(self.buffer, target, later=stream is not None))

    def placed(self, buffer: Any) -> SubgraphBatch:
        """The same batch over another buffer that holds, or will hold, the same bytes; nothing is copied.

        Parameters
        ----------
        buffer : ndarray of uint8
            NumPy's or CuPy's, at least `nbytes` long, at an address that is a multiple of 16.
        """
        if buffer.dtype != np.uint8 or buffer.ndim != 1 or buffer.size < self.nbytes:
            raise ShapeError(
                f"placed: the buffer has shape {buffer.shape} and dtype {buffer.dtype}, but {self.nbytes} bytes are needed"
            )

        def part(name: str, like: Any) -> Any:
            return None if like is None else interop.view(buffer, self.sections[name][0], like.shape, like.dtype)

        adjacency = with_words(
            self.adjacency, part("adjacency", self.adjacency.words), self.adjacency.shape, -1, "planes"
        )
        derived_of(adjacency).bitmap = part("tile_bitmap", self.tile_bitmap)
        features = self.features
        if isinstance(features, BitTensor):
            words = part("features", features.words)
            moved = with_words(features, words, features.shape, features.axis, features.layout)
            moved._scale, moved._offset = part("scale", features.scale), part("offset", features.offset)
            features = moved
        elif features is not None:
            features = part("features", features)
        return replace(self, adjacency=adjacency, features=features, buffer=buffer[: self.nbytes])


def batch(
    graph: Any,
    labels: Any,
    features: Any = None,
    *,
    parts_per_batch: int = 20,
    between: bool = False,
    self_loops: bool = False,
) -> Iterator[SubgraphBatch]:
    """Gather parts of a graph into batches, one after the other (QGTC section 4.1; Cluster-GCN).

    Parameters
    ----------
    graph : sparse array of shape (n, n), tuple, TCTiledCSR, FRDC, BitTensor
        Every stored entry is an edge.
    labels : array_like of int, shape (n,)
        The part of each node, from :func:`partition` or a data set's graph numbers. Empty parts are left out.
    features : BitTensor or array_like, shape (n, D), optional
        Quantised features travel as they are; ordinary arrays keep their dtype.
    parts_per_batch : int, default 20
        Parts in a batch (the paper's setting).
    between : bool, default False
        Keep the edges between parts of one batch, as Cluster-GCN does; QGTC's batches are block-diagonal.
    self_loops : bool, default False
        Add an edge from each node to itself.

    Yields
    ------
    SubgraphBatch
        In ascending order of parts; nothing but the batch at hand is held.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        The graph is not square, labels or features have other lengths, or labels are negative.

    Examples
    --------
    >>> from bitsparse import graph
    >>> a = np.array([[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 1, 0]])
    >>> one, two = graph.batch(a, [0, 0, 1, 1], bs.quantize(np.eye(4), 2), parts_per_batch=1)
    >>> two.nodes, two.adjacency.toarray().tolist(), two.features.shape, two.dropped
    (array([2, 3]), [[0, 1], [1, 0]], (2, 4), 1)
    """
    made = square_pattern("batch", graph)
    nodes = made.shape[0]
    part = index_array("batch", "labels", labels)
    if part.size != nodes:
        raise ShapeError(f"batch: there are {part.size} labels for {nodes} nodes; pass one part for each")
    if part.size and int(part.min()) < 0:
        raise ValueError(f"batch: labels reach {int(part.min())}, but parts count from 0")
    per_batch = _check.integer("batch", "parts_per_batch", parts_per_batch, 1)
    if features is not None:
        features = _features(features, nodes)
    return _batches(made.indptr, made.indices, part, features, per_batch, between, self_loops)


def _features(features: Any, nodes: int) -> Any:
    if not isinstance(features, BitTensor):
        features, _ = interop.as_numpy(features, "batch", "features")
        if features.dtype.hasobject:
            raise DTypeError(f"batch: features have dtype {features.dtype}, but numbers are needed")
    else:
        _check.on_cpu("batch", "features", features.device)
    if len(features.shape) != 2 or features.shape[0] != nodes:
        raise ShapeError(
            f"batch: features have shape {features.shape}, but the graph has {nodes} nodes; pass ({nodes}, D)"
        )
    if not isinstance(features, BitTensor):
        return features
    for name, affine in (("scale", features.scale), ("offset", features.offset)):
        if affine is not None and affine.size > 1 and affine.shape[-2] == nodes and nodes > 1:
            raise ValueError(
                f"batch: features have one {name} per row, which a product contracts over and cannot take out; quantise "
                f"them with granularity='tensor' or 'col'"
            )
    return features.repack(axis=-1)


def _batches(
    indptr: NDArray[Any],
    indices: NDArray[Any],
    part: NDArray[Any],
    features: Any,
    per_batch: int,
    between: bool,
    self_loops: bool,
) -> Iterator[SubgraphBatch]:
    order = np.argsort(part, kind="stable").astype(np.int64)
    used, sizes = np.unique(part, return_counts=True)
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    place = np.empty(order.size, np.int64)  # the new number of each node
    place[order] = np.arange(order.size)
    group_start = np.repeat(bounds[:-1], sizes)  # of the part of each new node
    group_end = np.repeat(bounds[1:], sizes)
    for first in range(0, used.size, per_batch):
        last = min(first + per_batch, used.size)
        low, high = int(bounds[first]), int(bounds[last])
        chosen = order[low:high]
        counts = indptr[chosen + 1] - indptr[chosen]
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1]) if ends.size else 0
        entries = np.arange(total) + np.repeat(indptr[chosen] - ends + counts, counts)
        rows = np.repeat(np.arange(chosen.size), counts)
        cols = place[indices[entries]]
        inside = (cols >= low) & (cols < high)
        if not between:
            inside &= (cols >= group_start[low + rows]) & (cols < group_end[low + rows])
        rows, cols = rows[inside], cols[inside] - low
        dropped = total - rows.size
        if self_loops:
            rows = np.concatenate([rows, np.arange(chosen.size)])
            cols = np.concatenate([cols, np.arange(chosen.size)])
        yield _packed(chosen, bounds[first : last + 1] - low, rows, cols, dropped, features)


def _packed(
    nodes: NDArray[np.int64],
    starts: NDArray[np.int64],
    rows: NDArray[np.int64],
    cols: NDArray[np.int64],
    dropped: int,
    features: Any,
) -> SubgraphBatch:
    """One buffer with everything, and the arrays as views of it."""
    size = nodes.size
    shape = (size, size)
    wanted: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
        "adjacency": (words_shape(shape, 1, -1, "planes"), np.dtype(np.uint32)),
        "tile_bitmap": (tile_bitmap_shape(size, size), np.dtype(np.uint32)),
    }
    own: Any = None
    if isinstance(features, BitTensor):
        own = features[nodes].repack(axis=-2, layout="planes")
        wanted["features"] = (own.words.shape, np.dtype(np.uint32))
        for name, affine in (("scale", own.scale), ("offset", own.offset)):
            if affine is not None:
                wanted[name] = (affine.shape, affine.dtype)
    elif features is not None:
        wanted["features"] = ((size, features.shape[1]), features.dtype)
    buffer, views, sections = _allocate(wanted)
    build = backends.family("cpu", "sparse.build")
    views["adjacency"][...] = build.pack_coo(
        rows, cols, np.ones(rows.size, np.uint8), shape, 1, axis=-1, layout="planes"
    )
    adjacency = BitTensor.from_words(views["adjacency"], shape, 1, check=False)
    views["tile_bitmap"][...] = adjacency.tile_bitmap
    derived_of(adjacency).bitmap = views["tile_bitmap"]
    if own is not None:
        words, scale, offset = own.words, own.scale, own.offset
        own = with_words(own, views["features"], own.shape, -2, "planes")
        views["features"][...] = words
        own._scale, own._offset = (views.get(name) for name in ("scale", "offset"))
        for view, affine in ((own._scale, scale), (own._offset, offset)):
            if affine is not None:
                view[...] = affine
    elif features is not None:
        own = views["features"]
        np.take(features, nodes, axis=0, out=own)
    return SubgraphBatch(nodes, starts, adjacency, own, adjacency.nnz, dropped, buffer, sections)


def _allocate(
    wanted: dict[str, tuple[tuple[int, ...], np.dtype[Any]]],
) -> tuple[NDArray[np.uint8], dict[str, NDArray[Any]], dict[str, tuple[int, int]]]:
    sections: dict[str, tuple[int, int]] = {}
    end = 0
    for name, (shape, dtype) in wanted.items():
        length = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        sections[name] = (end, length)
        end += -(-length // _ALIGNMENT) * _ALIGNMENT
    raw = np.zeros(end + _ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    buffer = raw[offset : offset + end]
    views = {
        name: buffer[start : start + length].view(wanted[name][1]).reshape(wanted[name][0])
        for name, (start, length) in sections.items()
    }
    return buffer, views, sections

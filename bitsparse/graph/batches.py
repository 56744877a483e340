"""Batches of subgraphs: block-diagonal 1-bit adjacency and features in one buffer (QGTC sections 4.1 and 4.6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays import BitTensor
from bitsparse.arrays.indices import rows_of
from bitsparse.arrays.inside import assembled, derived_of, family_of
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.graph.adjacency import per_node
from bitsparse.graph.packets import Group, Packets
from bitsparse.interop import offsets_of


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
        Packed along the columns, as a left operand; its `tile_bitmap` is computed already.
    features : BitTensor or ndarray, shape (N, D), or None
        The rows of the features for `nodes`; a BitTensor is packed along axis -2 in planes, as a right operand.
    edges : int
        Number of edges in the batch.
    dropped : int
        Number of edges left out because they lead out of the batch or, unless `between` was set, out of their part.
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
        """Bitmap of the 8 x 128 tiles of the adjacency that hold an edge."""
        return self.adjacency.tile_bitmap

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer, all of which a copy to a device moves."""
        return int(self.buffer.nbytes)

    @property
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:0"`` and so on: where the buffer is."""
        return interop.device_of(self.buffer)

    def to_device(self, device: Any, *, stream: Any = None) -> SubgraphBatch:
        """The same batch on ``device``, moved in a single copy; itself if it is there already. `nodes` and `starts` stay on the host.

        Parameters
        ----------
        device : str
        stream : optional
            A CUDA stream to copy on, with the same duties as in :meth:`bitsparse.BitTensor.to_device`. To overlap the copies of many
            batches with work, an :class:`bitsparse.interop.Uploader` with :meth:`placed` is simpler.
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
            An array of NumPy or CuPy, at least `nbytes` long, at an address that is a multiple of 16.
        """
        if buffer.dtype != np.uint8 or buffer.ndim != 1 or buffer.size < self.nbytes:
            raise ShapeError(
                f"placed: the buffer has shape {buffer.shape} and dtype {buffer.dtype}, but {self.nbytes} bytes are needed"
            )

        def part(name: str, like: Any) -> Any:
            return None if like is None else interop.view(buffer, self.sections[name][0], like.shape, like.dtype)

        adjacency = _over(self.adjacency, part("adjacency", self.adjacency.words))
        derived_of(adjacency).bitmap = part("tile_bitmap", self.tile_bitmap)
        features = self.features
        if isinstance(features, BitTensor):
            scale, offset = part("scale", features.scale), part("offset", features.offset)
            features = _over(features, part("features", features.words), scale, offset)
        elif features is not None:
            features = part("features", features)
        return replace(self, adjacency=adjacency, features=features, buffer=buffer[: self.nbytes])


def _over(x: BitTensor, words: Any, scale: Any = None, offset: Any = None) -> BitTensor:
    """A BitTensor like `x` over other arrays for its words, scale and offset."""
    kind = (x.shape, x.bits, x.axis, x.layout, x.encoding, family_of(x))
    return assembled(BitTensor, words, *kind, scale, offset)


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
        Quantised features are copied as they are; ordinary arrays keep their dtype.
    parts_per_batch : int, default 20
        Number of parts in a batch (the default is the paper's setting).
    between : bool, default False
        Keep the edges between parts of one batch, as Cluster-GCN does; QGTC's batches are block-diagonal.
    self_loops : bool, default False
        Add an edge from each node to itself.

    Yields
    ------
    SubgraphBatch
        In ascending order of parts; only the current batch is in memory.

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
    options: Any = {"between": between, "self_loops": self_loops, "group_nodes": 1, "function": "batch"}
    packets = Packets(graph, labels, parts_per_batch=parts_per_batch, **options)
    if features is not None:
        features = _features(features, packets.nodes)
    return (_packed(packets, group, features) for group in packets.groups)


def _features(features: Any, nodes: int) -> Any:
    if isinstance(features, BitTensor):
        _check.on_cpu("batch", "features", features.device)
    else:
        features, _ = interop.as_numpy(features, "batch", "features")
        if features.dtype.hasobject:
            raise DTypeError(f"batch: features have dtype {features.dtype}, but numbers are needed")
    per_node("batch", "features", features.shape, nodes)
    if not isinstance(features, BitTensor):
        return features
    for name, affine in (("scale", features.scale), ("offset", features.offset)):
        if affine is not None and affine.size > 1 and affine.shape[-2] == nodes and nodes > 1:
            raise ValueError(
                f"batch: features have one {name} per row, which a product contracts over and cannot take out; quantise "
                f"them with granularity='tensor' or 'col'"
            )
    return features.repack(axis=-1)


def _packed(packets: Packets, group: Group, features: Any) -> SubgraphBatch:
    """Pack a batch into one buffer; its arrays are views of that buffer."""
    nodes = packets.order[group.low : group.high].astype(np.int64)
    low, high = np.searchsorted(packets.bounds, (group.low, group.high))
    indptr, cols = packets.pack(group).pattern()
    shape = (nodes.size, nodes.size)
    pack = backends.family("cpu", "sparse.build").pack_coo
    words = pack(rows_of(indptr), cols, np.ones(cols.size, np.uint8), shape, 1, axis=-1, layout="planes")
    adjacency = BitTensor.from_words(words, shape, 1, check=False)
    arrays = {"adjacency": words, "tile_bitmap": adjacency.tile_bitmap}
    if isinstance(features, BitTensor):
        features = features[nodes].repack(axis=-2, layout="planes")
        arrays |= {"features": features.words, "scale": features.scale, "offset": features.offset}
    elif features is not None:
        features = arrays["features"] = np.take(features, nodes, axis=0)
    arrays = {name: array for name, array in arrays.items() if array is not None}
    places, nbytes = offsets_of([array.nbytes for array in arrays.values()])
    sections = {name: (at, arrays[name].nbytes) for name, at in zip(arrays, places, strict=True)}
    buffer = interop.aligned_bytes(nbytes, 128)
    for name, array in arrays.items():
        interop.view(buffer, sections[name][0], array.shape, array.dtype)[...] = array
    starts = packets.bounds[low : high + 1] - group.low
    filled = SubgraphBatch(nodes, starts, adjacency, features, adjacency.nnz, group.dropped, buffer, sections)
    return filled.placed(buffer)

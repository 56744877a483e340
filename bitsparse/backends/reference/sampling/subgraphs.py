"""Parts of a graph for training in batches, in plain Python: sampled neighbours, edges among nodes, and walks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bitsparse.backends.params import Array
from bitsparse.backends.reference.scalar import philox4x32_10

Nodes = NDArray[np.int64]
#: The purpose of a draw, stored in the upper bits of the last word of its counter.
_NEIGHBOURS, _WALKS, _NUMBERS = 2, 3, 4


def _draw(purpose: int, item: int, k: int, seed: int, stream: int) -> int:
    """Draw number `k` of an item, 64 bits."""
    counter = item & 0xFFFFFFFF, item >> 32, stream, purpose << 28 | k >> 1
    words = philox4x32_10(counter, (seed & 0xFFFFFFFF, seed >> 32))
    low, high = (int(word) for word in (words[2:] if k & 1 else words[:2]))
    return high << 32 | low


def _chosen(degree: int, k: int, row: int, seed: int, stream: int) -> list[int]:
    """Positions within a row, by Floyd's algorithm, ascending."""
    if k < 0 or degree <= k:
        return list(range(degree))
    found: set[int] = set()
    for i in range(k):
        last = degree - k + i
        position = _draw(_NEIGHBOURS, row, i, seed, stream) * (last + 1) >> 64
        found.add(last if position in found else position)
    return sorted(found)


def hop(
    indptr: Array,
    indices: Array,
    columns: int,
    targets: Nodes,
    *,
    width: int,
    own: bool,
    seed: int,
    stream: int,
    place: NDArray[np.int32],
) -> tuple[Nodes, Nodes, NDArray[np.int32], Nodes]:
    """Some neighbours of each target, with columns renumbered; `place` is not used."""
    numbers: dict[int, int] = {int(node): i for i, node in enumerate(targets)} if own else {}
    starts, made, edges = [0], [], []
    for row in targets.tolist():
        first, degree = int(indptr[row]), int(indptr[row + 1] - indptr[row])
        picks = []
        for position in _chosen(degree, width, row, seed, stream):
            column = int(indices[first + position])
            assert 0 <= column < columns
            picks.append((numbers.setdefault(column, len(numbers)), first + position))
        for number, edge in sorted(picks):
            made.append(number)
            edges.append(edge)
        starts.append(len(made))
    nodes, begins, kept = (np.array([*part], np.int64) for part in (numbers, starts, edges))
    return nodes, begins, np.array(made, np.int32), kept


def induced(
    indptr: Array, indices: Array, columns: int, nodes: Nodes, *, place: NDArray[np.int32]
) -> tuple[Nodes, NDArray[np.int32], Nodes]:
    """The edges among ascending nodes; `place` is not used."""
    numbers = {int(node): i for i, node in enumerate(nodes)}
    starts, made, edges = [0], [], []
    for row in nodes.tolist():
        for edge in range(int(indptr[row]), int(indptr[row + 1])):
            assert 0 <= indices[edge] < columns
            if int(indices[edge]) in numbers:
                made.append(numbers[int(indices[edge])])
                edges.append(edge)
        starts.append(len(made))
    return np.array(starts, np.int64), np.array(made, np.int32), np.array(edges, np.int64)


def walks(
    indptr: Array, indices: Array, columns: int, roots: Nodes, length: int, *, seed: int, stream: int
) -> NDArray[np.int64]:
    """Walks of `length` steps; a walk stays at a node without neighbours."""
    out = np.empty((roots.size, length + 1), np.int64)
    for i, root in enumerate(roots.tolist()):
        out[i, 0] = node = root
        for k in range(length):
            first, degree = int(indptr[node]), int(indptr[node + 1] - indptr[node])
            if degree:
                node = int(indices[first + (_draw(_WALKS, i, k, seed, stream) * degree >> 64)])
                assert 0 <= node < columns
            out[i, k + 1] = node
    return out


def below(limit: int, count: int, *, seed: int, stream: int) -> Nodes:
    """`count` uniformly drawn integers below `limit`."""
    return np.array([_draw(_NUMBERS, i >> 1, i & 1, seed, stream) * limit >> 64 for i in range(count)], np.int64)

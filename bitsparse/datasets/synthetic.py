"""Seeded synthetic graphs with the sizes of published ones, drawn in integers only, so that every device makes the same graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse._check import shown
from bitsparse.datasets.graph_data import GraphData
from bitsparse.errors import DTypeError

#: Nodes and stored entries (both directions of every edge) of the published graphs.
SIZES = {
    "arxiv": (169_343, 2_332_486),
    "ppi": (56_944, 1_637_432),
    "blogcatalog": (88_784, 4_186_390),
    "proteins": (132_534, 79_122_504),
    "reddit": (232_965, 114_615_892),
    "products": (2_449_029, 123_718_280),
    "papers": (111_059_956, 1_615_685_872),
}
KINDS = ("power_law", "communities")
_EXPONENT = 2.1
_HIGHEST_DEGREE = 30_000
_COMMUNITY = 500
#: Entries of the inverse distribution table of degrees.
_TABLE = 1 << 16
#: Streams of the generator: degrees, community sizes, edges anywhere, edges inside a community.
_DEGREES, _SIZES, _OUTSIDE, _INSIDE = range(4)
#: Number of pairs drawn at a time: few enough to fit into a CPU's caches, and enough to keep a GPU busy.
_CHUNK, _GPU_CHUNK = 1 << 20, 1 << 24
_MOST_ROUNDS = 400
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)

#: An array of NumPy or CuPy; ``xp`` is the module that it belongs to.
_Array = Any


def synthetic(
    size: str | tuple[int, int], kind: Literal["power_law", "communities"] = "power_law", *, seed: int = 0
) -> GraphData:
    """A random undirected graph with power-law degrees and exactly the requested number of stored entries.

    ``"power_law"``: degrees follow a power law of exponent 2.1 up to ``min(n / 8, 30000)``, and the two ends of an edge are independent,
    each node being chosen in proportion to its degree. ``"communities"``: the degrees are the same, and nodes are numbered by community.
    Communities have 251 to 750 nodes; 80 % of a node's edges stay inside its community, but no more than half the community's size.

    No edge occurs twice and no node is its own neighbour: such pairs are drawn again until the count is exact. All random choices are
    integers of the Philox generator looked up in integer tables, so that the same seed gives the same graph on every device.

    Parameters
    ----------
    size : str or tuple
        A key of :data:`SIZES`, or (nodes, stored entries); the entries must be even, since each edge has two.
    kind : {"power_law", "communities"}
    seed : int, default 0

    Returns
    -------
    GraphData
        Symmetric, with ascending columns. Making it takes about four times the memory of its arrays.

    Raises
    ------
    ValueError, DTypeError
        A size is not known or impossible, `kind` is not known, or `seed` is not in 0..2**64 - 1.

    Examples
    --------
    >>> from bitsparse.datasets import synthetic
    >>> graph = synthetic((1000, 8000))
    >>> graph, int(np.diff(graph.indptr).max()) <= 125
    (GraphData(power_law-1000-8000: 1000 nodes, 8000 edges), True)
    """
    indptr, indices = synthetic_csr(size, kind, seed=seed)
    return GraphData(indptr=indptr, indices=indices, name=_checked_size(size, kind)[2])


def synthetic_csr(
    size: str | tuple[int, int],
    kind: Literal["power_law", "communities"] = "power_law",
    *,
    seed: int = 0,
    device: Any = "cpu",
) -> tuple[Any, Any]:
    """The CSR arrays of :func:`synthetic`, made on any device with the same result.

    Parameters
    ----------
    size, kind, seed
        As in :func:`synthetic`.
    device : str, default "cpu"
        Where to make them. On "cuda", ``"power_law"`` with the size of papers (1.6 billion entries) takes 2.3 s and 62 GB on an H200, nine
        times the memory of the arrays.

    Returns
    -------
    indptr, indices : ndarray
        NumPy or CuPy arrays; int32, or int64 from 2**31 entries on.

    Raises
    ------
    ValueError, DTypeError, DeviceError
        As for :func:`synthetic`, or there is no such device.

    Examples
    --------
    >>> from bitsparse.datasets import synthetic_csr
    >>> indptr, indices = synthetic_csr((1000, 8000), "communities")
    >>> indptr.shape, indices.shape, indices.dtype
    ((1001,), (8000,), dtype('int32'))
    """
    _check.choice("synthetic", "kind", kind, KINDS)
    nodes, entries, _ = _checked_size(size, kind)
    seed = _check.integer("synthetic", "seed", seed, 0, (1 << 64) - 1)
    highest = max(1, min(nodes // 8, _HIGHEST_DEGREE))
    if entries > nodes * highest // 2:
        raise ValueError(
            f"synthetic: {entries} entries over {nodes} nodes of at most {highest} neighbours are too many; {nodes * highest // 4 * 2} fit"
        )
    where = interop.parse_device(device, "synthetic")
    xp = np if where == "cpu" else interop.require_cupy("synthetic")
    with interop.working_on(where, interop.CUPY):
        return _csr(xp, nodes, entries, kind, highest, int(seed))


def _csr(xp: Any, nodes: int, entries: int, kind: str, highest: int, seed: int) -> tuple[_Array, _Array]:
    """The CSR arrays, computed with NumPy or CuPy (`xp`)."""
    degrees = _degrees(xp, nodes, entries, highest, seed)
    if kind == "power_law":
        pools = [_Pool(degrees, [0, nodes], entries // 2, _OUTSIDE)]
    else:
        bounds = _communities(nodes, seed)
        sizes = np.diff(bounds)
        inside = xp.minimum(4 * degrees // 5, xp.asarray(np.repeat(sizes // 2, sizes).astype(np.int32)))
        total = int(degrees.sum(dtype=np.int64))
        within = int(inside.sum(dtype=np.int64)) * (entries // 2) // max(total, 1)
        pools = [
            _Pool(inside, bounds, within, _INSIDE),
            _Pool(degrees - inside, [0, nodes], entries // 2 - within, _OUTSIDE),
        ]
    del degrees
    keys = [_distinct_pairs(xp, pools, nodes, highest, seed)]
    del pools
    # Popped, so that no other reference remains and the last step can free the keys as soon as it has read them.
    return _both_directions(keys.pop(), nodes) if xp is np else _both_sorted(xp, keys.pop(), nodes)


def _checked_size(size: str | tuple[int, int], kind: str) -> tuple[int, int, str]:
    if isinstance(size, str):
        if size not in SIZES:
            raise ValueError(
                f"synthetic: size {shown(size)} is not known; take one of {', '.join(SIZES)}, or (nodes, entries)"
            )
        return (*SIZES[size], f"{kind}-{size}")
    try:
        nodes, entries = (operator.index(part) for part in size)
    except (TypeError, ValueError):
        raise DTypeError(
            f"synthetic: size must be a name or a tuple (nodes, entries) of integers, got {shown(size)}"
        ) from None
    if not 0 <= nodes < 1 << 31 or entries < 0 or entries % 2:
        raise ValueError(
            f"synthetic: size is {size}, but nodes lie in 0..2**31 - 1 and entries are an even number from 0"
        )
    return nodes, entries, f"{kind}-{nodes}-{entries}"


# -- random integers --------------------------------------------------------------------------------------------------
def _words(xp: Any, first: int, count: int, stream: int, seed: int) -> tuple[_Array, ...]:
    """Four random 32-bit words, as uint64, for each of `count` draws from number `first` on: Philox4x32-10 of (draw, stream, 0)."""
    draw = xp.arange(first, first + count, dtype=np.uint64)
    c0, c1 = draw & _LOW, draw >> _32
    c2, c3 = xp.full_like(draw, stream), xp.zeros_like(draw)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (p1 >> _32) ^ c1 ^ np.uint64(k0), p1 & _LOW
        c2, c3 = (p0 >> _32) ^ c3 ^ np.uint64(k1), p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _below(high: _Array, low: _Array, limit: Any) -> _Array:
    """Integers in [0, limit), with limit < 2**32: the high bits of the product of 64 random bits and `limit`."""
    return ((high * limit + ((low * limit) >> _32)) >> _32).astype(np.int64)


def _chunk(xp: Any) -> int:
    return _CHUNK if xp is np else _GPU_CHUNK


# -- degrees and communities ------------------------------------------------------------------------------------------
def _degrees(xp: Any, nodes: int, entries: int, highest: int, seed: int) -> _Array:
    """A degree for every node: the entry of the table at an index of 16 random bits."""
    table = xp.asarray(_degree_table(entries / max(nodes, 1), highest))
    result = xp.empty(nodes, np.int32)
    for start in range(0, nodes, 8 * _CHUNK):
        count = min(8 * _CHUNK, nodes - start)
        words = xp.stack(_words(xp, start // 8, -(-count // 8), _DEGREES, seed), axis=1)
        result[start : start + count] = table[words.astype("<u4").view("<u2").reshape(-1)[:count].astype(np.int64)]
    return result


def _degree_table(mean: float, highest: int) -> NDArray[np.int32]:
    """Quantiles of a power law up to `highest`, whose lowest degree is found by bisection so that the mean fits."""
    share = (np.arange(_TABLE) + 0.5) / _TABLE

    def quantiles(lowest: float) -> NDArray[np.float64]:
        power = 1.0 - _EXPONENT
        top = float(highest) ** power
        return np.asarray((lowest**power + share * (top - lowest**power)) ** (1.0 / power))

    low, high = 1e-3, float(highest)
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if float(quantiles(middle).mean()) < mean else (low, middle)
    return np.clip(np.rint(quantiles(low)), 1, highest).astype(np.int32)


def _communities(nodes: int, seed: int) -> NDArray[np.int64]:
    """Where each community starts, and the end: each has 251 to 750 nodes, and the last has the rest."""
    most = nodes // (_COMMUNITY // 2) + 1
    (word, *_) = _words(np, 0, most, _SIZES, seed)
    sizes = _COMMUNITY // 2 + 1 + _below(word, np.zeros_like(word), np.uint64(_COMMUNITY))
    ends = np.cumsum(sizes)
    return np.concatenate([[0], ends[ends < nodes], [nodes] if nodes else []]).astype(np.int64)


# -- edges ------------------------------------------------------------------------------------------------------------
class _Pool:
    """Ends of edges to draw from, with each node as often as its share of edges; both ends of a pair lie in the same group of nodes."""

    def __init__(self, share: _Array, bounds: Any, wanted: int, stream: int) -> None:
        xp = interop.namespace(share)
        self.wanted, self.stream, self.drawn = wanted, stream, 0
        after = xp.cumsum(share, dtype=np.int64)
        before = xp.concatenate([xp.zeros(1, np.int64), after])
        if xp is np:
            self.ends = np.repeat(np.arange(share.size, dtype=np.int32), share)
        else:  # CuPy cannot repeat each element by its own number
            self.ends = xp.empty(int(before[-1]), np.int32)
            for start in range(0, self.ends.size, 4 * _GPU_CHUNK):
                places = xp.arange(start, min(start + 4 * _GPU_CHUNK, self.ends.size), dtype=np.int64)
                self.ends[start : start + places.size] = xp.searchsorted(after, places, side="right")
        self.starts = before[xp.asarray(bounds)]

    def pairs(self, count: int, nodes: int, seed: int) -> Iterator[_Array]:
        """The next `count` pairs as keys ``smaller * nodes + larger``, in pieces; pairs of a node with itself are left out."""
        xp = interop.namespace(self.ends)
        for start in range(self.drawn, self.drawn + count, _chunk(xp)):
            words = _words(xp, start, min(_chunk(xp), self.drawn + count - start), self.stream, seed)
            first = _below(words[0], words[1], np.uint64(self.ends.size))
            if self.starts.size == 2:
                second = _below(words[2], words[3], np.uint64(self.ends.size))
            else:
                group = xp.searchsorted(self.starts, first, side="right") - 1
                low, high = self.starts[group], self.starts[group + 1]
                second = low + _below(words[2], words[3], (high - low).astype(np.uint64))
            one, other = self.ends[first].astype(np.int64), self.ends[second].astype(np.int64)
            keep = one != other
            yield xp.minimum(one, other)[keep] * nodes + xp.maximum(one, other)[keep]
        self.drawn += count


def _distinct_pairs(xp: Any, pools: list[_Pool], nodes: int, highest: int, seed: int) -> _Array:
    """As many distinct pairs as the pools want, in ascending order, with no node in more than `highest` of them."""
    target = sum(pool.wanted for pool in pools)
    runs: list[_Array] = []  # pairs found so far: each array is ascending, and at least twice as long as the next
    degree = xp.zeros(nodes, np.int32)
    for _ in range(_MOST_ROUNDS):
        if not any(pool.wanted for pool in pools):
            break
        for pool in pools:
            if not pool.wanted or not pool.ends.size:
                continue
            new = _distinct(pool, pool.wanted, runs, nodes, seed)
            new = _within_degrees(new, degree, nodes, highest)
            pool.wanted -= new.size
            runs.append(new)
            del new
            while len(runs) > 1 and runs[-2].size < 2 * runs[-1].size:
                _merge_last(xp, runs, 2)
    if lacking := sum(pool.wanted for pool in pools):
        raise ValueError(
            f"synthetic: {lacking} of {target} edges found no free pair of nodes; ask for fewer entries or more nodes"
        )
    for pool in pools:
        pool.ends = xp.empty(0, np.int32)  # frees the pool's memory for the last step
    _merge_last(xp, runs, len(runs))
    return runs.pop()


def _merge_last(xp: Any, runs: list[_Array], count: int) -> None:
    """Merge the last `count` ascending arrays into one."""
    merged = xp.concatenate(runs[len(runs) - count :]) if count else xp.empty(0, np.int64)
    del runs[len(runs) - count :]
    if count > 1:
        # NumPy's stable sort merges ascending runs, unlike its default sort; CuPy has only one sort.
        merged.sort(**({"kind": "stable"} if xp is np else {}))
    runs.append(merged)


def _distinct(pool: _Pool, count: int, runs: list[_Array], nodes: int, seed: int) -> _Array:
    """The next pairs of the pool in ascending order, without those that were found already."""
    xp = interop.namespace(pool.ends)
    new = xp.empty(count, np.int64)
    filled = 0
    for piece in pool.pairs(count, nodes, seed):
        new[filled : filled + piece.size] = piece
        filled += piece.size
    new = new[:filled]
    new.sort()
    keep = xp.ones(new.size, np.bool_)
    keep[1:] = new[1:] != new[:-1]
    for start in range(0, new.size if runs else 0, _chunk(xp)):
        part = new[start : start + _chunk(xp)]
        for keys in runs:
            if keys.size:
                at = xp.minimum(xp.searchsorted(keys, part), keys.size - 1)
                keep[start : start + _chunk(xp)] &= keys[at] != part
    return new[keep]


def _within_degrees(new: _Array, degree: _Array, nodes: int, highest: int) -> _Array:
    """The new pairs, in ascending order, that keep every node within `highest`; `degree` is updated."""
    xp = interop.namespace(new)

    def counted(keys: _Array) -> _Array:
        total = xp.zeros(nodes, np.int32)
        for start in range(0, keys.size, 16 * _CHUNK):
            part = keys[start : start + 16 * _CHUNK]
            if xp is np and part.size * 4 < nodes:
                np.add.at(total, np.concatenate([part // nodes, part % nodes]), 1)
            else:
                total += xp.bincount(part // nodes, minlength=nodes).astype(np.int32)
                total += xp.bincount(part % nodes, minlength=nodes).astype(np.int32)
        return total

    more = counted(new)
    full = degree + more > highest
    if full.any():
        keep = xp.ones(new.size, np.bool_)
        for side, end in enumerate((new // nodes, new % nodes)):
            at = xp.flatnonzero(full[end])
            order = at[xp.argsort(end[at], kind="stable")]
            owner = end[order]
            rank = xp.arange(owner.size) - xp.searchsorted(owner, owner)
            # Each of the two sides may use half of the remaining room, so that together they cannot exceed it.
            room = xp.maximum(highest - degree[owner], 0)
            keep[order[rank >= (room + 1 - side) // 2]] = False
        new = new[keep]
        more = counted(new)
    degree += more
    return new


def _both_sorted(xp: Any, keys: _Array, nodes: int) -> tuple[_Array, _Array]:
    """CSR arrays of a symmetric pattern from its ascending upper half, by one more sort (used on a GPU)."""
    dtype = np.int32 if 2 * keys.size < 1 << 31 else np.int64
    most = max(nodes, 1)
    both = xp.empty(2 * keys.size, np.int64)
    both[: keys.size] = keys
    # In parts, because each array takes gigabytes for the largest graphs.
    for start in range(0, keys.size, 16 * _CHUNK):
        part = keys[start : start + 16 * _CHUNK]
        both[keys.size + start : keys.size + start + part.size] = part % most * most + part // most
    del keys
    both.sort()
    indptr = xp.empty(nodes + 1, dtype)
    indices = xp.empty(both.size, dtype)
    for start in range(0, nodes + 1, 16 * _CHUNK):
        rows = xp.arange(start, min(start + 16 * _CHUNK, nodes + 1), dtype=np.int64)
        indptr[start : start + rows.size] = xp.searchsorted(both, rows * most)
    for start in range(0, both.size, 16 * _CHUNK):
        indices[start : start + 16 * _CHUNK] = both[start : start + 16 * _CHUNK] % most
    return indptr, indices


def _both_directions(keys: NDArray[np.int64], nodes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """CSR arrays of a symmetric pattern from its ascending upper half, by SciPy (used on the CPU)."""
    from scipy import sparse

    dtype = np.int32 if 2 * keys.size < 1 << 31 else np.int64
    upper = np.empty(keys.size, dtype)
    for start in range(0, keys.size, _CHUNK):
        upper[start : start + _CHUNK] = keys[start : start + _CHUNK] % max(nodes, 1)
    starts = np.searchsorted(keys, np.arange(nodes + 1, dtype=np.int64) * nodes).astype(dtype)
    del keys
    half = sparse.csr_array((np.ones(upper.size, np.int8), upper, starts), shape=(nodes, nodes))
    whole = half.T.tocsr() + half
    return whole.indptr.astype(dtype, copy=False), whole.indices.astype(dtype, copy=False)

"""The k nearest rows of bits to each query, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse._records import replace
from bitsparse.backends.params import Array
from bitsparse.errors import ShapeError
from bitsparse.ops.operands.target import target_array
from bitsparse.ops.search.codes import METRICS, MOST_NEIGHBOURS, Codes, allowed, as_codes, ones_of, same_length

#: The most bytes of a database in host memory that are on a GPU at a time.
PIECE_BYTES = 1 << 30


class NearestPlan:
    """A prepared search ``plan(queries)``; made by :func:`plan_nearest`.

    Attributes
    ----------
    shape : tuple of int
        Shape of distances and indices: queries, k.
    dtype : dtype
        Dtype of distances.
    device : str
        Device of the database, on which queries must be too.
    kernel : str
        Name of the kernel that computes the counts.
    nbytes : int
        Bytes that are kept in addition to the database.

    Examples
    --------
    >>> plan = bs.plan_nearest(np.eye(4, dtype=bool), 2, k=1)
    >>> isinstance(plan, bs.NearestPlan), plan.shape
    (True, (2, 1))
    """

    def __init__(
        self, function: str, database: Codes, queries: int, k: Any, metric: Any, mask: Any, kernel: str | None
    ) -> None:
        self._function, self._database = function, database
        self.k = _check.integer(function, "k", k, 1, MOST_NEIGHBOURS)
        self.metric = _check.choice(function, "metric", metric, METRICS)
        self.device, self.shape = database.device, (queries, self.k)
        self.dtype = np.dtype(np.float32 if self.metric == "jaccard" else np.int32)
        backend = backends.family(self.device, "search.nearest")
        forced = _check.kernel(function, kernel, backend.KERNELS)
        with interop.working_on(self.device, database.family):
            ones = allowed(function, ones_of(database), mask, self.device)
            most, n = backend.MOST_ROWS, database.words.shape[0]
            jaccard = self.metric == "jaccard"
            #: First row and prepared search of each part of the database.
            self._parts: list[tuple[int, Any]] = []
            for start in range(0, max(1, n), most):
                part = slice(start, start + most)
                search = backend.Search(database.words[part], ones[part], queries, self.k, jaccard, forced)
                self._parts.append((start, search))
            self._distances = backend.distances
        self.kernel = str(self._parts[0][1].kernel)

    @property
    def nbytes(self) -> int:
        """Bytes that the plan keeps in addition to the database."""
        return sum(int(search.nbytes) for _, search in self._parts)

    def check(self) -> None:
        """Do nothing: every call reports its errors itself."""

    def explain(self) -> str:
        """Say in a few lines what runs and why."""
        n, length = self._database.words.shape[0], self._database.length
        first = (
            f"nearest: {self.shape[0]} queries x {n} rows of {length} bits, k={self.k}, {self.metric}, on {self.device}"
        )
        order = {
            "hamming": "|a| + |b| - 2 |a AND b|, as integers",
            "dot": "length - 2 Hamming, as integers",
            "jaccard": "1 - |a AND b| / |a OR b|, compared as integers",
        }[self.metric]
        return "\n".join((first, f"distances: {order}; equal ones by the lower row", *self._parts[0][1].explain()))

    def __call__(self, queries: Any, *, out: Any = None) -> tuple[Any, Any]:
        """Distances and indices of the nearest rows to each of `queries`.

        Parameters
        ----------
        queries
            Rows as in :func:`nearest`, as many as were planned.
        out : tuple of two arrays, optional
            Where to write distances, of :attr:`dtype`, and indices, of int64, both of :attr:`shape`. On a GPU such a call allocates and
            waits for nothing.
        """
        return self.run(as_codes(self._function, "queries", queries), out)

    def run(self, queries: Codes, out: Any = None) -> tuple[Any, Any]:
        """Run a call whose queries are codes already."""
        function, database = self._function, self._database
        _check.same_device(function, (queries.device, database.device))
        length = same_length(function, ("queries", "database"), queries, database)
        if queries.words.shape[0] != self.shape[0]:
            raise ShapeError(
                f"{function}: there are {queries.words.shape[0]} queries, but the plan is for {self.shape[0]}; plan for that many"
            )
        family = interop.common_family((queries.family, database.family))
        targets = self.targets(out, queries)
        with interop.working_on(self.device, family):
            best = self.best(queries.like(database).words, targets[1])
            return self.answers(best, length, targets, out, family)

    def targets(self, out: Any, queries: Codes) -> tuple[Any, Any]:
        """The arrays behind `out` for distances and rows, checked; two None if `out` is None."""
        if out is None:
            return None, None
        function = self._function
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise ShapeError(f"{function}: out must be two arrays, got {type(out).__name__}; pass (distances, indices)")
        read = queries.words, self._database.words
        distances = target_array(function, out[0], self.shape, self.dtype, self.device, read)
        rows = target_array(function, out[1], self.shape, np.dtype(np.int64), self.device, read)
        _check.no_overlap(function, distances, rows)
        return distances, rows

    def best(self, words: Array, rows: Any = None) -> tuple[Array, Array]:
        """Keys and rows of the nearest in all parts of the database; if there is only one part, the rows are written to `rows`."""
        best: tuple[Array, Array] = self._parts[0][1].run(words, rows if len(self._parts) == 1 else None)
        for start, search in self._parts[1:]:
            best = merged(best, search.run(words), start)
        return best

    def answers(
        self, best: tuple[Array, Array], length: int, targets: tuple[Any, Any], out: Any, family: interop.Family
    ) -> tuple[Any, Any]:
        """Distances and rows in the form that a caller gets, from keys and rows."""
        keys, found = best
        distances, rows = targets
        if rows is not None and found is not rows:
            rows[...] = found
        result = self._distances(keys, found, self.metric, length, distances)
        if out is not None:
            return out
        return interop.from_array(result, family, self._function), interop.from_array(found, family, self._function)


def plan_nearest(
    database: Any,
    queries: int,
    k: int = 10,
    metric: str = "hamming",
    *,
    mask: Any = None,
    kernel: str | None = None,
) -> NearestPlan:
    """Prepare searches of one database: ``plan(queries, out=None)``.

    The ones of every row are counted here, once; on a GPU the kernel is compiled and its memory is allocated here, too.

    Parameters
    ----------
    database, k, metric, mask, kernel
        As in :func:`nearest`.
    queries : int
        Number of queries in a call.

    Returns
    -------
    NearestPlan
        ``plan(queries)`` gives the same result as ``nearest(queries, database, ...)``. Every call reads the rows of the database itself,
        not a copy. Plan again after writing to them, since the counts of their ones have changed.

    Examples
    --------
    >>> rows = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]], bool)
    >>> plan = bs.plan_nearest(rows, 1, k=2, metric="jaccard")
    >>> plan(rows[1:2])
    (array([[0.        , 0.33333334]], dtype=float32), array([[1, 0]]))
    """
    function = "plan_nearest"
    count = _check.integer(function, "queries", queries, 0)
    return NearestPlan(function, as_codes(function, "database", database), count, k, metric, mask, kernel)


def nearest(
    queries: Any,
    database: Any,
    k: int = 10,
    metric: str = "hamming",
    *,
    mask: Any = None,
    kernel: str | None = None,
    out: Any = None,
) -> tuple[Any, Any]:
    """The `k` nearest rows of a database of bits to each query, exactly.

    All metrics follow from the number of ones that two rows have in common, which one-bit matrix instructions count. Every row is compared
    with every query, so no answer is missed.

    Parameters
    ----------
    queries : BitTensor (Q, length) of one bit, bool (Q, length), or uint8 or int8 (Q, length / 8)
        Bytes are as in :func:`from_packbits`. If both sides are bytes, the order of bits within a byte does not matter; beside a BitTensor
        or booleans, bytes have the order of :func:`numpy.packbits`. Padding bits at the end that the other side does not have must be zero.
    database : as `queries`, (N, length)
        On the device of the queries, or in host memory for queries on a GPU: it is then copied to the GPU in pieces. Any N; at most
        65 536 bits.
    k : int, default 10
        1..1024.
    metric : {"hamming", "jaccard", "dot"}
        ``"hamming"``: bits that differ. ``"jaccard"``: one minus the bits in common over those set in either row; of two empty rows 0.
        ``"dot"``: the product of the rows as -1 and +1, ``length - 2 * hamming``; the largest is nearest.
    mask : bool array (N,), optional
        True for rows that may be found.
    kernel : str, optional
        Force a kernel; all give the same answers: ``"popcount"`` on a CPU, ``"mma"`` on a GPU, and also ``"wgmma"`` on Hopper.
    out : tuple of two arrays, optional
        Where to write distances and indices; also returned.

    Returns
    -------
    distances : array (Q, k) of int32, or float32 for "jaccard"
        Nearest first. Jaccard distances are compared exactly, as fractions, and are rounded only once, for this result.
    indices : array (Q, k) of int64
        Rows of the database. Of equal distances the lower row comes first. If fewer than `k` rows may be found, the remaining indices are
        -1 and the distances are the farthest possible: 2147483647, infinity, or -2147483648 for "dot".

    Raises
    ------
    ShapeError, DTypeError, ValueError, DeviceError
        Operands that do not fit each other, or options out of range.

    Examples
    --------
    >>> rows = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]], bool)
    >>> bs.nearest(rows[:1], rows, k=2)
    (array([[0, 1]], dtype=int32), array([[0, 1]]))
    >>> bs.nearest(np.packbits(rows[:1], axis=-1), bs.pack_bits(rows, 1), k=1, metric="dot", mask=np.array([False, True, True]))
    (array([[2]], dtype=int32), array([[1]]))
    """
    function = "nearest"
    asked, rows = as_codes(function, "queries", queries), as_codes(function, "database", database)
    if asked.device != "cpu" and rows.device == "cpu":
        return _in_pieces(function, asked, rows, (k, metric, mask, kernel), out)
    _check.same_device(function, (asked.device, rows.device))
    plan = NearestPlan(function, rows, asked.words.shape[0], k, metric, mask, kernel)
    return plan.run(asked, out)


def _in_pieces(function: str, queries: Codes, database: Codes, options: Any, out: Any) -> tuple[Any, Any]:
    """Search a database in host memory on a GPU, piece by piece."""
    k, metric, mask, kernel = options
    length = same_length(function, ("queries", "database"), queries, database)
    n, width = database.words.shape
    step = max(1, PIECE_BYTES // max(16, 4 * width))
    if mask is not None:
        mask, _ = interop.as_numpy(mask, function, "mask")
        allowed(function, np.empty(n, np.int32), mask, "cpu")
    with interop.working_on(queries.device, queries.family):
        words = queries.like(database).words
        best, plan = None, None
        for start in range(0, max(1, n), step):
            piece = replace(
                database,
                words=interop.move(database.words[start : start + step], queries.device),
                device=queries.device,
                family=queries.family,
            )
            part = None if mask is None else interop.move(mask[start : start + step], queries.device)
            plan = NearestPlan(function, piece, words.shape[0], k, metric, part, kernel)
            found = plan.best(words)
            best = found if best is None else merged(best, found, start)
        assert plan is not None
        assert best is not None
        return plan.answers(best, length, plan.targets(out, queries), out, queries.family)


def merged(first: tuple[Array, Array], second: tuple[Array, Array], start: int) -> tuple[Array, Array]:
    """The k best of the keys and rows (Q, k) of two parts; rows of the second part start at `start`, behind those of the first.

    Examples
    --------
    >>> merged((np.array([[1, 4]], "u4"), np.array([[7, 2]])), (np.array([[1, 9]], "u4"), np.array([[0, -1]])), 10)
    (array([[1, 1]], dtype=uint32), array([[ 7, 10]]))
    """
    space: Any = interop.namespace(first[0])
    k = first[0].shape[1]
    keys = space.concatenate((first[0], second[0]), axis=1)
    rows = space.concatenate((first[1], space.where(second[1] < 0, -1, second[1] + start)), axis=1)
    # The number to sort by: missing rows come behind every key, and equal keys keep their order, as both parts are sorted.
    order = space.where(rows < 0, np.uint64(1 << 32), keys.astype(np.uint64))
    order = (order << np.uint64(12)) | space.arange(2 * k, dtype=np.uint64)
    places = (space.sort(order, axis=1)[:, :k] & np.uint64(4095)).astype(np.int64)
    return space.take_along_axis(keys, places, axis=1), space.take_along_axis(rows, places, axis=1)

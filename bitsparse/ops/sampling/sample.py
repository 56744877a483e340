"""Sampling of edges (AES-SpMM, ES-SpMM)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse._records import as_dict
from bitsparse.arrays.indices import gather, rows_of
from bitsparse.backends.params import Array, Sampling
from bitsparse.interop import SparseLike, converted
from bitsparse.interop.kept import Slot
from bitsparse.ops.finish import schemes
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.sparse import single_values, sparse_operand

Strategy = Literal["aes", "afs", "sfs", "uniform"]
STRATEGIES = ("aes", "afs", "sfs", "uniform")
#: Among strategies without a seed, this one loses the least accuracy if sums are not rescaled, in the same time (docs/aes-tables.md).
DEFAULT: Strategy = "afs"


#: Slot for the samplings that a pattern keeps on a GPU, by width and strategy.
DRAWINGS: Slot[Any] = Slot("drawings", most=8)


@dataclass(frozen=True)
class EdgeSample:
    """Edges drawn from the rows of a sparse matrix; made by :func:`edge_sample`.

    Attributes
    ----------
    indptr : array of int64, shape (m + 1,)
        Where each row's samples start. All arrays are on the device of the matrix.
    edges : array of int64, shape (indptr[-1],)
        Positions of the sampled edges in the matrix's sorted CSR, in sampling order. An edge drawn twice appears twice.
    indices : array of int32 or int64
        Columns of the sampled edges.
    factors : array of float32, shape (m,)
        ``row_nnz / samples`` of each row, for optional rescaling; 1 for empty rows.
    shape : tuple of int
        Shape of the matrix.
    strategy, width
        As passed to :func:`edge_sample`.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> bs.edge_sample(csr_array(np.ones((2, 9), dtype=bool)), 4)
    <EdgeSample shape=(2, 9) strategy=afs width=4: 8 of 18 edges (44.4 %), 8 distinct>
    """

    indptr: Array
    edges: Array
    indices: Array
    factors: Array
    shape: tuple[int, int]
    strategy: str
    width: int
    _csr: CSROperand = field(repr=False, compare=False)

    @property
    def nnz(self) -> int:
        """The number of sampled edges, with repeats."""
        return int(self.edges.size)

    @property
    def device(self) -> str:
        """The device of the arrays."""
        return self._csr.device

    @property
    def all_indptr(self) -> Any:
        """Where the rows of the whole matrix start, with all edges."""
        return self._csr.indptr

    @property
    def distinct(self) -> int:
        """The number of different sampled edges."""
        space = interop.namespace(self.edges)
        seen = space.zeros(self._csr.nnz, bool)
        seen[self.edges] = True
        return int(space.count_nonzero(seen))

    @property
    def rate(self) -> float:
        """The number of sampled edges (with repeats) divided by that of all edges; 1 for a matrix without edges."""
        return self.nnz / self._csr.nnz if self._csr.nnz else 1.0

    def tocsr(self, rescale: bool = False) -> Any:
        """The sampled matrix as :class:`scipy.sparse.csr_array`: repeats summed, the matrix's row and column scales multiplied in.

        Without values, scales and rescaling, the entries count how often an edge was drawn (int32); otherwise they are float32, or have
        the matrix's own floating dtype. On a GPU the result is a ``cupyx.scipy.sparse.csr_matrix``, which holds only float32 and float64,
        so that counts are float32 there.

        Parameters
        ----------
        rescale : bool, default False
            Multiply each row by `factors`.

        Examples
        --------
        >>> from scipy.sparse import csr_array
        >>> bs.edge_sample(csr_array(np.ones((1, 9), dtype=bool)), 4).tocsr(rescale=True).data
        array([2.25, 2.25, 2.25, 2.25], dtype=float32)
        """
        rescale = _check.flag("tocsr", "rescale", rescale)
        csr, factors = single_values("tocsr", self._csr), self.factors if rescale else None
        plain, on_gpu = not csr.is_scaled and not rescale, self.device != "cpu"
        # SciPy sums repeated entries one after another; on a GPU each edge appears once, with its count.
        starts, edges, counts = distinct_edges(self.indptr, self.edges) if on_gpu else (self.indptr, self.edges, None)
        indices, rows, space = csr.columns[edges], rows_of(starts), interop.namespace(edges)
        if csr.values is None:
            data: Any = space.ones(edges.size, np.int32 if plain and not on_gpu else np.float32)
        else:
            data = gather(csr.values, edges)
            if on_gpu:
                data = converted(data, np.float64 if data.dtype.itemsize == 8 else np.float32)
            elif not plain and data.dtype.kind != "f":
                data = data.astype(np.float32)
        for scale, at in ((counts, slice(None)), (csr.col_scale, indices), (factors, rows), (csr.row_scale, rows)):
            data = data if scale is None else data * scale[at]
        if on_gpu:
            from cupyx.scipy.sparse import csr_matrix

            return csr_matrix((data, indices, starts.astype(indices.dtype)), shape=self.shape)
        from scipy.sparse import csr_array

        result = csr_array((data, indices, starts.copy()), shape=self.shape)
        result.sum_duplicates()
        return result

    def __repr__(self) -> str:
        return (
            f"<EdgeSample shape={self.shape} strategy={self.strategy} width={self.width}: {self.nnz} of {self._csr.nnz} edges "
            f"({100 * self.rate:.1f} %), {self.distinct} distinct>"
        )


def edge_sample(
    A: SparseLike, width: int, strategy: Strategy = DEFAULT, *, seed: int | None = None, stream: int = 0
) -> EdgeSample:
    """Choose at most `width` edges of each row.

    Edges are numbered within a row by their sorted columns; ``W = min(row_nnz, width)``.

    ``"aes"`` (AES-SpMM section 3.3) takes `count` runs of N neighbouring edges; N and `count` follow from ``R = row_nnz / W`` by Table 1
    (N at least 1, `count` at most W), and run k starts at ``(k * 1429) mod (row_nnz - N + 1)`` (Eq. 3). If N does not divide W, fewer than
    W edges are taken; runs may overlap, and repeats count. ``"afs"`` and ``"sfs"`` are ES-SpMM's accuracy-first and speed-first strategies:
    ``"afs"`` takes edges ``(577 * k) mod row_nnz`` for ``k < W``, and ``"sfs"`` the first W. ``"uniform"`` draws one edge from each of W
    strata ``[k * row_nnz / W, (k + 1) * row_nnz / W)``, by 64 bits of Philox4x32-10 with key `seed` and counter
    ``(row * width + k, stream)``, so that the sample depends neither on threads nor on the device.

    Parameters
    ----------
    A : sparse (m, n)
        TCTiledCSR, FRDC, a one-bit BitTensor, any :mod:`scipy.sparse` array, or a matrix of ``cupyx.scipy.sparse``. It is sampled on its
        own device, with the same edges on every device.
    width : int
        At least 1. AES-SpMM calls it the shared memory width and uses 16 to 1024.
    strategy : {"aes", "afs", "sfs", "uniform"}
        By default "afs", which on average lost less accuracy than "aes" in the same time (docs/aes-tables.md).
    seed : int, optional
        Seed of "uniform", 64 bits; fresh entropy by default.
    stream : int, default 0
        Number of the random sequence for this seed, 32 bits.

    Returns
    -------
    EdgeSample

    Raises
    ------
    ValueError
        A width below 1, an unknown strategy, or a seed for a strategy that draws nothing at random.
    DTypeError
        `A` is not sparse.
    KernelError
        "uniform" on a GPU for a row of more than 2**31 - 1 edges.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> A = csr_array(np.ones((1, 10), dtype=bool))
    >>> bs.edge_sample(A, 4, "aes").edges, bs.edge_sample(A, 4, "afs").edges, bs.edge_sample(A, 4, "sfs").edges
    (array([0, 9, 8, 7]), array([0, 7, 4, 1]), array([0, 1, 2, 3]))
    """
    function = "edge_sample"
    sampling = sampling_of(function, width, strategy, seed, stream)
    with sparse_operand(function, A) as csr:
        return sample_of(function, csr, sampling)


def sample_of(function: str, csr: CSROperand, sampling: Sampling) -> EdgeSample:
    """The sample of an operand, drawn on its device."""
    if csr.device != "cpu":
        drawing = drawing_of(csr, sampling)
        csr.ready.wait()
        edges, columns = drawing.edges(sampling.seed, sampling.stream, csr.indices)
        indptr, factors = drawing.starts.astype(np.int64), drawing.factors(np.float32)
        csr.ready.renew()
    else:
        indptr, edges = backends.family("cpu", "sampling.sample").sample_edges(csr.indptr, **as_dict(sampling))
        lengths, samples = (np.diff(starts).astype(np.float32) for starts in (csr.indptr, indptr))
        factors = np.where(samples > 0, lengths / np.maximum(samples, 1), np.float32(1))
        columns = csr.columns[edges]
        csr.check_columns(function, columns)
    return EdgeSample(indptr, edges, columns, factors, csr.shape, sampling.strategy, sampling.width, csr)


def distinct_edges(starts: Array, edges: Array) -> tuple[Array, Array, Array | None]:
    """A sample sorted by edge, without repeats: starts of the rows, edges, and how often each was drawn (float32), or None if all once.

    Examples
    --------
    >>> distinct_edges(np.array([0, 4, 5]), np.array([3, 0, 3, 1, 4]))
    (array([0, 3, 4]), array([0, 1, 3, 4]), array([1., 1., 2., 1.], dtype=float32))
    """
    space: Any = interop.namespace(edges)
    edges = space.sort(edges)  # edges are numbered by rows, so every row keeps its place
    first = space.ones(edges.size, np.bool_)
    first[1:] = edges[1:] != edges[:-1]
    if bool(first.all()):
        return starts, edges, None
    at, before = space.flatnonzero(first), space.zeros(edges.size + 1, starts.dtype)
    before[1:] = space.cumsum(first, dtype=starts.dtype)
    ends = space.full(at.size + 1, edges.size, np.int64)
    ends[:-1] = at
    return before[starts], edges[at], (ends[1:] - ends[:-1]).astype(np.float32)


def drawing_of(csr: CSROperand, sampling: Sampling) -> Any:
    """The object that draws samples of an operand on a GPU, with the number of samples per row; kept with the pattern."""
    family, (width, strategy) = backends.family(csr.device, "sampling.sample"), sampling[:2]
    make = partial(family.Drawing, csr.indptr, csr.shape, csr.nnz, width=width, strategy=strategy)
    return csr.kept(DRAWINGS, make, (width, strategy))


def sampling_of(function: str, width: Any, strategy: Any, seed: Any, stream: Any) -> Sampling:
    """The checked options of a sampling; "uniform" without a seed gets one from fresh entropy."""
    name = _check.choice(function, "strategy", strategy, STRATEGIES)
    size = _check.integer(function, "width", width, 1, 1 << 48)
    return Sampling(size, name, *schemes.checked_seed(function, name, seed, stream, "strategy", "uniform"))

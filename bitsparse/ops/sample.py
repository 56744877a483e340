"""Edge sampling (AES-SpMM, ES-SpMM) and sums over sampled edges."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, backends, interop
from bitsparse.arrays.bit_tensor import BitTensor
from bitsparse.backends.params import CodeFeatures
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.ops.features import Features, sum_dtypes
from bitsparse.ops.csr_operand import CSROperand
from bitsparse.ops.operands import host_csr

__all__ = ["EdgeSample", "edge_sample", "sampled_spmm"]

Strategy = Literal["aes", "afs", "sfs", "uniform"]
STRATEGIES = ("aes", "afs", "sfs", "uniform")
#: Codes of these widths lie whole in a word and are dequantised on the fly.
CODE_BITS = (1, 2, 4, 8)


@dataclass(frozen=True)
class EdgeSample:
    """Edges drawn from the rows of a sparse matrix; made by :func:`edge_sample`.

    Attributes
    ----------
    indptr : ndarray of int64, shape (m + 1,)
        Where each row's samples start.
    edges : ndarray of int64, shape (indptr[-1],)
        Positions of the sampled edges in the matrix's sorted CSR, in sampling order. An edge drawn twice stands twice.
    indices : ndarray of int32 or int64
        Their columns.
    factors : ndarray of float32, shape (m,)
        ``row_nnz / samples`` of each row, the optional rescaling; 1 for empty rows.
    shape : tuple of int
        Shape of the matrix.
    strategy, width
        As asked for.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> bs.edge_sample(csr_array(np.ones((2, 9), dtype=bool)), 4)
    <EdgeSample shape=(2, 9) strategy=aes width=4: 8 of 18 edges (44.4 %), 8 distinct>
    """

    indptr: NDArray[np.int64]
    edges: NDArray[np.int64]
    indices: NDArray[Any]
    factors: NDArray[np.float32]
    shape: tuple[int, int]
    strategy: str
    width: int
    _csr: CSROperand = field(repr=False, compare=False)

    @property
    def nnz(self) -> int:
        """Sampled edges, repeats counted."""
        return int(self.edges.size)

    @property
    def distinct(self) -> int:
        """Sampled edges, each counted once."""
        seen = np.zeros(self._csr.nnz, bool)
        seen[self.edges] = True
        return int(np.count_nonzero(seen))

    @property
    def rate(self) -> float:
        """Sampled edges (repeats counted) over all edges; 1 for a matrix without edges."""
        return self.nnz / self._csr.nnz if self._csr.nnz else 1.0

    def tocsr(self, rescale: bool = False) -> Any:
        """The sampled matrix as :class:`scipy.sparse.csr_array`: repeats summed, the matrix's row and column scales multiplied in.

        Without values, scales and rescaling the entries count how often an edge was drawn (int32); else they are float32, or of the
        matrix's own floating dtype.

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
        from scipy.sparse import csr_array

        csr = self._csr
        lengths = np.diff(self.indptr)
        plain = csr.row_scale is None and csr.col_scale is None and not rescale
        if csr.values is None:
            data: NDArray[Any] = np.ones(self.nnz, np.int32 if plain else np.float32)
        else:
            data = csr.values[self.edges]
            data = data if plain or data.dtype.kind == "f" else data.astype(np.float32)
        if csr.col_scale is not None:
            data = data * csr.col_scale[self.indices]
        if rescale:
            data = data * np.repeat(self.factors, lengths)
        if csr.row_scale is not None:
            data = data * np.repeat(csr.row_scale, lengths)
        result = csr_array((data, self.indices.copy(), self.indptr.copy()), shape=self.shape)
        result.sum_duplicates()
        return result

    def __repr__(self) -> str:
        return (
            f"<EdgeSample shape={self.shape} strategy={self.strategy} width={self.width}: {self.nnz} of {self._csr.nnz} edges "
            f"({100 * self.rate:.1f} %), {self.distinct} distinct>"
        )


def edge_sample(
    A: Any, width: int, strategy: Strategy = "aes", *, seed: int | None = None, stream: int = 0
) -> EdgeSample:
    """Choose at most `width` edges of each row.

    Positions are those within a row's sorted columns; ``W = min(row_nnz, width)``.

    ``"aes"`` (AES-SpMM section 3.3) takes `count` runs of N neighbouring edges; N and `count` follow from ``R = row_nnz / W`` by Table 1
    (N at least 1, `count` at most W), and run k starts at ``(k * 1429) mod (row_nnz - N + 1)`` (Eq. 3). ``"afs"`` and ``"sfs"`` are
    ES-SpMM's accuracy-first and speed-first strategies: edges ``(577 * k) mod row_nnz`` for ``k < W``, and the first W. ``"uniform"`` draws
    one edge from each of W strata ``[k * row_nnz / W, (k + 1) * row_nnz / W)``, from 64 bits of Philox4x32-10 with key `seed` and counter
    ``(row * width + k, stream)``, so that neither threads nor devices change it. Where N does not divide W fewer than W edges are taken;
    runs may overlap, and repeats count.

    Parameters
    ----------
    A : sparse (m, n)
        TCTiledCSR, FRDC, any :mod:`scipy.sparse` array or a one-bit BitTensor.
    width : int
        At least 1. AES-SpMM calls it the shared memory width and uses 16 to 1024.
    strategy : {"aes", "afs", "sfs", "uniform"}
    seed : int, optional
        Of "uniform", 64 bits; fresh entropy by default.
    stream : int, default 0
        Another sequence of the same seed, 32 bits.

    Returns
    -------
    EdgeSample

    Raises
    ------
    ValueError
        A width below 1, an unknown strategy, or a seed for a strategy without chance.
    DTypeError
        `A` is not sparse.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> A = csr_array(np.ones((1, 10), dtype=bool))
    >>> bs.edge_sample(A, 4).edges, bs.edge_sample(A, 4, "afs").edges, bs.edge_sample(A, 4, "sfs").edges
    (array([0, 9, 8, 7]), array([0, 7, 4, 1]), array([0, 1, 2, 3]))
    """
    function = "edge_sample"
    csr = host_csr(function, A)
    plan = _plan(function, width, strategy, seed, stream)
    indptr, edges = backends.family("cpu", "sample").sample_edges(csr.indptr, **plan)
    indices: Any = csr.indices
    lengths, samples = np.diff(csr.indptr), np.diff(indptr)
    factors = np.where(samples > 0, lengths.astype(np.float32) / np.maximum(samples, 1).astype(np.float32), 1)
    return EdgeSample(
        indptr, edges, indices[edges], factors.astype(np.float32), csr.shape, plan["strategy"], plan["width"], csr
    )


def sampled_spmm(
    A: Any,
    x: Any,
    width: int,
    strategy: Strategy = "aes",
    *,
    rescale: bool = False,
    seed: int | None = None,
    stream: int = 0,
    out: Any = None,
) -> Any:
    """Sum of sampled neighbours' features: ``edge_sample(A, width, strategy).tocsr(rescale) @ x`` without storing the sample.

    AES-SpMM's kernel (Algorithm 1), with its quantised features (section 3.1): codes of 8 bits or fewer are read packed and dequantised on
    the way (Eq. 2).

    Parameters
    ----------
    A : sparse (m, n)
        As in :func:`edge_sample`; its values and its row and column scales are applied.
    x : array (n, d) of float16, bfloat16, float32 or float64, or BitTensor (n, d)
        A BitTensor of 1, 2, 4 or 8 bits stands for its real values (scale and offset applied), fastest in ``layout="rows"``, ``axis=-1``.
    width, strategy, seed, stream
        As in :func:`edge_sample`.
    rescale : bool, default False
        Multiply each row's sum by ``row_nnz / samples``, which undoes the loss of mass (the paper leaves it out).
    out : array (m, d), optional
        Where to write; C-contiguous, of the result's dtype. Also returned.

    Returns
    -------
    array (m, d)
        In the family of `x` and, as for :func:`spmm`, of the common dtype of `x` and A's values: float64 is summed in float64, everything
        else in float32 (16-bit results are rounded once at the end). Float32 for a BitTensor.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Operands that do not fit, or options as in :func:`edge_sample`.

    Notes
    -----
    Terms are added in sampling order, one rounding a product and a sum, the same bits for any number of threads: |error| <=
    (samples + 4) u sum |a x| with u = 2^-24, or 2^-53 for float64.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> A = csr_array(np.ones((1, 8), dtype=bool))
    >>> x = np.arange(8, dtype=np.float32)[:, None]
    >>> bs.sampled_spmm(A, x, 4, "sfs"), bs.sampled_spmm(A, x, 4, "sfs", rescale=True)
    (array([[6.]], dtype=float32), array([[12.]], dtype=float32))
    """
    function = "sampled_spmm"
    csr = host_csr(function, A)
    plan = _plan(function, width, strategy, seed, stream)
    data, family, dtype, acc = _features(function, csr, x)
    result = (
        backends.family("cpu", "sample")
        .gather(
            csr.indptr,
            csr.indices,
            data,
            **plan,
            **{name: _as(getattr(csr, name), acc) for name in ("values", "col_scale", "row_scale")},
            rescale=bool(rescale),
        )
        .astype(dtype, copy=False)
    )
    if out is None:
        return interop.from_numpy(result, family, function)
    target = interop.writable_numpy(out, function)
    _check.out_array(function, target, result.shape, result.dtype)
    target[...] = result
    return out


def _plan(function: str, width: Any, strategy: Any, seed: Any, stream: Any) -> dict[str, Any]:
    name = _check.choice(function, "strategy", strategy, STRATEGIES)
    size = _check.integer(function, "width", width, 1, 1 << 48)
    stream = _check.integer(function, "stream", stream, 0, (1 << 32) - 1)
    if seed is None:
        number = secrets.randbits(64) if name == "uniform" else 0
    else:
        number = _check.integer(function, "seed", seed, 0, (1 << 64) - 1)
        if name != "uniform":
            raise ValueError(
                f"{function}: seed={number} has no meaning with strategy={name!r}, which leaves nothing to chance; pass "
                f"strategy='uniform' or seed=None"
            )
    return {"width": size, "strategy": name, "seed": number, "stream": stream}


def _features(function: str, csr: CSROperand, x: Any) -> tuple[Any, interop.Family, np.dtype[Any], np.dtype[Any]]:
    """Float rows, or codes with their affine map; the family of the result, its dtype and that of its sums."""
    single = np.dtype(np.float32)
    if not isinstance(x, BitTensor):
        array, family = interop.as_numpy(x, function, "x")
        _check.numeric(function, "x", array, "f")
        _fits(function, csr, array.shape)
        plain = Features(array, array.shape, array.dtype, None, family)
        dtype, acc = sum_dtypes(function, plain, csr.values, csr.row_scale is not None or csr.col_scale is not None, 0)
        return np.ascontiguousarray(array, acc), family, dtype, acc
    _check.on_cpu(function, "x", x.device)
    _fits(function, csr, x.shape)
    if x.bits not in CODE_BITS:
        raise DTypeError(
            f"{function}: x has {x.bits} bits, but codes of {', '.join(map(str, CODE_BITS))} bits are dequantised on the fly; "
            f"quantize to one of these, or pass x.dequantize()"
        )
    packed = x.repack(axis=-1, layout="rows")
    scale, offset = x.scale, x.offset
    if scale is not None or offset is not None:
        # both, as dequantize applies them: fl(fl(q * scale) + offset)
        scale = np.ones((), np.float32) if scale is None else scale
        offset = np.zeros((), np.float32) if offset is None else offset
    return CodeFeatures(packed.words, x.shape[1], x.bits, x.encoding, scale, offset), x._family, single, single


def _fits(function: str, csr: CSROperand, shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise ShapeError(
            f"{function}: x has shape {shape}, but features have 2 dimensions (nodes, features); aggregate batches one by one"
        )
    if csr.shape[1] != shape[0]:
        raise ShapeError(
            f"{function}: A has {csr.shape[1]} columns but x has {shape[0]} rows; pass one row of features per column of A"
        )


def _as(part: NDArray[Any] | None, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    return None if part is None else np.ascontiguousarray(part, dtype)

"""Gradients of sums over sampled edges, for the sample that the forward pass drew."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, interop
from bitsparse.arrays.indices import gather, rows_of
from bitsparse.arrays.tc_tiled_csr import TCTiledCSR
from bitsparse.backends.params import Array, Sampling
from bitsparse.interop import ArrayLike, SparseLike, converted
from bitsparse.interop.kept import Slot
from bitsparse.ops.operands.both_ways import Floats, as_asked, computed_in, wanted
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import matrix
from bitsparse.ops.operands.sparse import single_values, sparse_operand
from bitsparse.ops.sampling.sample import DEFAULT, Strategy, distinct_edges, sample_of, sampling_of
from bitsparse.ops.spmm.vjp import spmm_vjp


class _Drawn(NamedTuple):
    """A sample as a sparse matrix.

    Attributes
    ----------
    pattern : TCTiledCSR
    edges : array of int64
        For each edge of the sample, its number in the whole matrix.
    counts, rescaled : array of float64
        How often each edge was drawn, and this number times the factor that rescales its row.
    """

    pattern: Any
    edges: Array
    counts: Array
    rescaled: Array


#: The last samples of a pattern; each holds what is prepared for its sums in both directions.
_DRAWN: Slot[_Drawn] = Slot("samples", most=4)


def sampled_spmm_vjp(
    A: SparseLike,
    x: ArrayLike,
    gradient: ArrayLike,
    width: int,
    strategy: Strategy = DEFAULT,
    *,
    rescale: bool = False,
    seed: int | None = None,
    stream: int = 0,
    wrt: str | tuple[str, ...] = "x",
) -> Any:
    """Gradients of :func:`sampled_spmm` with respect to features and edge values, for the sample that the forward pass drew.

    Parameters
    ----------
    A, x, width, strategy, rescale, stream
        As in :func:`sampled_spmm`; `x` is float16, bfloat16, float32 or float64. If `A` is an array of this library, it keeps the last
        samples in both directions.
    gradient : array (m, d)
        The gradient of the result.
    seed : int, optional
        The seed of the forward pass; required for "uniform".
    wrt : {"x", "values"} or tuple of these
        Operands whose gradients are computed. For a pattern, each of the "values" is 1.

    Returns
    -------
    array, or tuple of arrays in the order of `wrt`
        The gradient of `x` has the shape, dtype and family of `x`. The gradient of the values has shape (nnz,), in the order of A's CSR
        arrays, the dtype of the values (of `x` for a pattern) and the family of `x`; it is 0 for edges that were not drawn.

    Raises
    ------
    ShapeError
        `gradient` does not have the shape of the result, or the operands do not match.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or operands are on different devices.
    ValueError
        An option is refused by :func:`edge_sample`, or "uniform" has no seed.

    Notes
    -----
    The result is :func:`spmm_vjp` of the sample as a matrix, in which an edge counts as often as it was drawn. (AES-SpMM samples only for
    inference.) The same sample gives the same bits.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> A = csr_array(np.ones((1, 8), dtype=bool))
    >>> bs.sampled_spmm_vjp(A, np.ones((8, 1)), np.ones((1, 1)), 4, "sfs", rescale=True).ravel()
    array([2., 2., 2., 2., 0., 0., 0., 0.])
    """
    function = "sampled_spmm_vjp"
    names = wanted(function, wrt, ("x", "values"))
    if strategy == "uniform" and seed is None:
        raise ValueError(
            f"{function}: seed is None, but strategy='uniform' draws edges by the seed; pass the seed of the forward pass"
        )
    sampling, rescaled = sampling_of(function, width, strategy, seed, stream), _check.flag(function, "rescale", rescale)
    with sparse_operand(function, A, x, gradient) as operand:
        csr = single_values(function, operand)
        if "values" in names:
            csr.has_edges(function)
        parts = Floats(function, csr, x=x, gradient=gradient)
        features, grad = parts["x"], parts["gradient"]
        csr.check_features(function, matrix(function, features))
        parts.of_shape("gradient", (csr.shape[0], features.columns), "the result")
        drawn = csr.kept(_DRAWN, lambda: _drawn(function, csr, sampling), sampling)
        own = csr.values if csr.values is not None and csr.values.dtype.kind == "f" else None
        kind = features.dtype if own is None else own.dtype
        compute = computed_in(features.dtype, grad.dtype, kind)
        factors = converted(drawn.rescaled if rescaled else drawn.counts, compute)
        weights = factors
        if csr.values is not None:
            weights = factors * converted(gather(csr.values, drawn.edges), compute)
        pattern = drawn.pattern.with_scales(csr.row_scale, csr.col_scale)
        made = dict(zip(names, spmm_vjp(pattern, features.data, grad.data, values=weights, wrt=names), strict=True))
        if "x" in made:
            made["x"] = parts.returned("x", made["x"])
        if "values" in made:
            every = interop.namespace(factors).zeros(csr.nnz, compute)
            every[drawn.edges] = made["values"] * factors
            result = csr.to_caller(converted(every, kind), None)
            made["values"] = interop.from_array(result, features.family, function)
        return as_asked(wrt, made)


def _drawn(function: str, csr: CSROperand, sampling: Sampling) -> _Drawn:
    sample = sample_of(function, csr, sampling)
    starts, edges, counts = distinct_edges(sample.indptr, sample.edges)
    space: Any = interop.namespace(edges)
    ones = space.ones(edges.size, np.float64)
    times = ones if counts is None else counts.astype(np.float64)
    lengths, samples = (each[1:] - each[:-1] for each in (sample.all_indptr, sample.indptr))
    factors = lengths / space.maximum(samples, 1)
    pattern = TCTiledCSR.from_csr_arrays(starts, csr.columns[edges], csr.shape, pattern=True)
    return _Drawn(pattern, edges, times, times * factors[rows_of(starts)])

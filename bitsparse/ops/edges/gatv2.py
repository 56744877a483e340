"""GATv2 attention scores and their gradients, without an array of edges times features."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.backends.params import Array
from bitsparse.errors import ShapeError
from bitsparse.interop import ArrayLike, SparseLike, converted
from bitsparse.ops.operands.both_ways import Floats, as_asked, operands_of, wanted
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import compute_dtype, promoted
from bitsparse.ops.operands.sparse import as_csr, sparse_operand


def gatv2_scores(
    A: SparseLike, source: ArrayLike, target: ArrayLike, a: ArrayLike, *, negative_slope: float = 0.2
) -> Any:
    """Scores of graph attention of the second kind (GATv2): ``e[i, j] = a @ leaky_relu(source[j] + target[i])`` where A has an entry.

    Together with :func:`edge_softmax` and :func:`spmm` it makes the layer: ``spmm(A, source, values=edge_softmax(A, gatv2_scores(A, source,
    target, a)))``. No array of edges times features is stored.

    Parameters
    ----------
    A : TCTiledCSR, FRDC, BitTensor of one bit or scipy.sparse array, (M, N)
        Row i holds the nodes that node i attends to. Only its pattern counts.
    source : array (N, D) or (N, H, D)
        Projected features of nodes as neighbours: float16, bfloat16, float32 or float64.
    target : array (M, D) or (M, H, D)
        Projected features of nodes that attend.
    a : array (D,) or (H, D)
        The vector of each head.
    negative_slope : float
        Slope of the leaky relu.

    Returns
    -------
    array (nnz,) or (nnz, H)
        Scores in the order of A's CSR arrays, in NumPy's promotion of the three dtypes and in the family of `source`.

    Raises
    ------
    ShapeError
        The operands do not fit.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or they are on several devices.
    ValueError
        `negative_slope` is not finite in float32, or A holds duplicates.

    Notes
    -----
    Brody et al., "How attentive are graph attention networks?" (ICLR 2022), equation 7. On a CPU the terms of a score are summed like those
    of a dot product in :func:`sddmm`, each with two more roundings. 16-bit floats are computed in float32 and rounded once.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[1, 1], [0, 1]]))
    >>> source, target = np.array([[1.0, 2.0], [3.0, -4.0]]), np.array([[0.0, 0.0], [1.0, 1.0]])
    >>> bs.gatv2_scores(A, source, target, np.array([1.0, 10.0]), negative_slope=0.5)
    array([ 21., -17., -11.])
    """
    function = "gatv2_scores"
    with sparse_operand(function, A, source, target, a) as operand:
        operand.has_edges(function)
        parts = Floats(function, operand, source=source, target=target, a=a)
        slope = _slope_and_shapes(parts, negative_slope)
        dtype = promoted(function, **{name: part.dtype for name, part in parts.parts.items()})
        neighbours, own, vectors = _laid_out(parts, compute_dtype(dtype))
        made = _run(function, operand, "gatv2_scores", own, neighbours, vectors, slope)
        result = converted(made.reshape(operand.nnz, *parts["a"].shape[:-1]), dtype)
        return interop.from_array(operand.to_caller(result, None), parts["source"].family, function)


def gatv2_scores_vjp(
    A: SparseLike,
    source: ArrayLike,
    target: ArrayLike,
    a: ArrayLike,
    gradient: ArrayLike,
    *,
    negative_slope: float = 0.2,
    wrt: str | tuple[str, ...] = ("source", "target", "a"),
) -> Any:
    """Gradients of :func:`gatv2_scores` by the features of both ends of the edges and by the vectors of the heads.

    Parameters
    ----------
    A, source, target, a, negative_slope
        As in :func:`gatv2_scores`.
    gradient : array of the shape of the result
    wrt : {"source", "target", "a"} or tuple of these
        Operands whose gradients are computed.

    Returns
    -------
    array, or tuple of arrays in the order of `wrt`
        Each has the shape, dtype and family of its operand. Where the sum of both ends is exactly 0, the slope for negative sums is used.

    Raises
    ------
    ShapeError
        `gradient` is not of the result's shape, or the operands do not fit.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or they are on several devices.

    Notes
    -----
    Let g be the gradient and l' the slope of the leaky relu. Everything follows from ``T[i] = sum over j of g[i, j] * l'(source[j] +
    target[i])`` and the same sums S over the transpose: the gradients are ``a * S``, ``a * T`` and, since ``leaky_relu(z) = l'(z) * z``,
    ``sum of source * S + sum of target * T``, which is summed in float64. All else is computed in float32, or in float64 if an operand is
    float64. The same input gives the same bits.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[1, 1], [0, 1]]))
    >>> source, target = np.array([[1.0, 2.0], [3.0, -4.0]]), np.array([[0.0, 0.0], [1.0, 1.0]])
    >>> bs.gatv2_scores_vjp(A, source, target, np.array([1.0, 10.0]), np.ones(3), negative_slope=0.5, wrt=("source", "a"))
    (array([[ 1., 10.],
           [ 2., 10.]]), array([ 8. , -1.5]))
    """
    function = "gatv2_scores_vjp"
    names = wanted(function, wrt, ("source", "target", "a"))
    with operands_of(function, A, source=source, target=target, a=a, gradient=gradient) as (ways, parts):
        slope = _slope_and_shapes(parts, negative_slope)
        shape = (ways.operand.nnz, *parts["a"].shape[:-1])
        parts.of_shape("gradient", shape, "the scores")
        neighbours, own, vectors = _laid_out(parts, parts.compute)
        edges = parts.edges("gradient").reshape(shape[0], len(vectors))
        sums = {}
        if names != ("source",):
            forward = as_csr(function, ways.forward)
            sums["target"] = _run(function, forward, "steep_sums", own, neighbours, edges, slope)
        if names != ("target",):
            backward = as_csr(function, ways.backward)
            sums["source"] = _run(function, backward, "steep_sums", neighbours, own, ways.turned(edges), slope)
        made = {}
        for name in names:
            if name == "a":
                pairs = ((neighbours, sums["source"]), (own, sums["target"]))
                made[name] = sum(cast(Any, nodes * each).sum(axis=0, dtype=np.float64) for nodes, each in pairs)
            else:
                made[name] = sums[name] * vectors.reshape(-1)
        return as_asked(wrt, {name: parts.returned(name, made[name]) for name in names})


def _slope_and_shapes(parts: Floats, slope: Any) -> float:
    """The checked slope; refuses operands whose shapes do not fit."""
    function, shape, inner = parts.function, parts.operand.shape, parts["source"].shape[1:]
    if len(inner) not in (1, 2):
        raise ShapeError(
            f"{function}: source has shape {parts['source'].shape}, but features are (N, D) or (N, heads, D); reshape them"
        )
    for name, rows in (("source", (shape[1],)), ("target", (shape[0],)), ("a", ())):
        parts.of_shape(name, (*rows, *inner), f"{name} over A of shape {shape} and heads {inner}")
    return _check.number(function, "negative_slope", slope)


def _laid_out(parts: Floats, dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    """Features of the neighbours and of the nodes that attend, (nodes, heads * width), and vectors (heads, width), in one dtype."""
    heads, width = parts["a"].shape if len(parts["a"].shape) == 2 else (1, *parts["a"].shape)
    source, target, a = (interop.contiguous(converted(parts[name].data, dtype)) for name in ("source", "target", "a"))
    columns = heads * width
    return source.reshape(len(source), columns), target.reshape(len(target), columns), a.reshape(heads, width)


def _run(function: str, operand: CSROperand, what: str, x: Array, y: Array, weights: Array, slope: float) -> Array:
    """The result of the backend's function `what` over a pattern."""
    with operand.walked(function) as pattern:
        compute = getattr(backends.family(operand.device, "edges.gatv2"), what)
        made: Array = compute(pattern, x, y, weights, negative_slope=slope)
    return made

"""Graph attention in one pass: one gather yields scores, softmax and weighted sum, and no value per edge is stored."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from bitsparse import _check, backends, interop
from bitsparse.backends.params import Dropout
from bitsparse.errors import DTypeError, ShapeError
from bitsparse.interop import ArrayLike, SparseLike, converted
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import Features, compute_dtype, native, plain_features
from bitsparse.ops.operands.places import same_place
from bitsparse.ops.operands.sparse import sparse_operand
from bitsparse.ops.operands.target import target_array
from bitsparse.ops.plan import KeptCall, edge_call, learn_floats, repeated


class AttentionState(NamedTuple):
    """What :func:`attention` keeps so that :func:`attention_vjp` can compute every weight again; it holds nothing per edge.

    Attributes
    ----------
    result : array (M, D) or (M, H, D)
    lse : array (M,) or (M, H)
        Logarithms of the sums by which the softmax divides.
    share : array of the shape of `lse`
        Sums of the weights, before dropout, of edges whose score is above 0.
    above : array of the shape of `result`
        The part of the result that comes from these edges.

    Examples
    --------
    >>> A, scores = bs.TCTiledCSR(np.array([[1, 1]])), np.log([1.0, 3.0])
    >>> y, state = bs.attention(A, np.array([[2.0], [6.0]]), scores, np.zeros(1), return_state=True)
    >>> y.tolist(), np.exp(state.lse).tolist(), state.share.tolist(), state.above.tolist()
    ([[5.0]], [4.0], [0.75], [[4.5]])
    """

    result: Any
    lse: Any
    share: Any
    above: Any


def attention(
    A: SparseLike,
    x: ArrayLike,
    source: ArrayLike,
    target: ArrayLike,
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: Any = None,
    out: Any = None,
    return_lse: bool = False,
    return_state: bool = False,
) -> Any:
    """Aggregation of a graph attention layer (GAT): ``y[i] = sum over j of softmax_j(leaky_relu(source[j] + target[i])) * x[j]``.

    Nothing is stored per edge. On the CPU the result has the same bits as :func:`sddmm` with ``op="add"``, leaky relu,
    :func:`edge_softmax` and :func:`spmm` one after another. A GPU gathers a row of `x` once while it computes the row's weight, and
    divides by the sum of the weights at the end.

    Parameters
    ----------
    A : TCTiledCSR, FRDC, BitTensor of one bit or scipy.sparse array, (M, N)
        Row i holds the nodes that node i attends to. Only its pattern counts.
    x : array (N, D) or (N, H, D), or BitTensor
        Projected features, float16, bfloat16, float32 or float64. A BitTensor is unpacked, and dequantised if it has a scale or an offset.
    source : array (N,) or (N, H)
        Score of a node as neighbour: ``x @ a_source`` for each head.
    target : array (M,) or (M, H)
        Score of a node that attends.
    negative_slope : float
        Slope of the leaky relu.
    dropout : float
        Probability from 0 to 1 with which the weight of an edge and head is set to 0; the others are divided by ``1 - dropout``.
    seed : int, or integer array of one element on the device of A
        Seed of the dropout, required with dropout, as the gradient needs the same seed. Whether an edge is kept depends only on seed, row,
        column and head (Philox4x32-10), so that all devices keep the same edges. An array on a GPU is read when the kernel runs.
    out : array, optional
        Where to write; also returned.
    return_lse : bool
        Also return the logarithms of the sums by which the softmax divides.
    return_state : bool
        Also return the `state` of :func:`attention_vjp`, which includes these logarithms.

    Returns
    -------
    array (M, D) or (M, H, D)
        The result, with the dtype of `x` (float32 for integers) and its family. Rows without edges give 0. Weights are computed in
        float32, or in float64 for float64 features.
    array (M,) or (M, H), if `return_lse`
        float32, or float64 for float64 features, in the family of `x`; minus infinity for rows without edges.
    AttentionState, if `return_state`
        Its `result` is the first array, and `above` is like it; `lse` and `share` are like the array of `return_lse`.

    Raises
    ------
    ShapeError
        The operands do not fit.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or they are on several devices.
    ValueError
        `negative_slope` is not finite in float32, `dropout` is not a probability or comes without `seed`, or A's arrays are not those
        of a matrix.

    Notes
    -----
    Errors add up as in :func:`edge_softmax` and :func:`spmm`; on a GPU the error of a weight is at most
    ``(2 * |s - max| + 2 * max |s| + ceil(n / 2) + 40) * u`` in a row of n edges. The layer is that of Velickovic et al. (ICLR 2018);
    TANGO (Chen et al., SC 2023, section 2.1) splits it into the same steps.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]]))
    >>> x = np.array([[1.0], [2.0], [4.0]])
    >>> bs.attention(A, x, np.zeros(3), np.zeros(3))
    array([[3.],
           [4.],
           [0.]])
    """
    function, given, slope = "attention", (x, source, target), cast(Any, negative_slope)
    kept = return_lse is False and return_state is False and not dropout
    options = (slope,) if isinstance(slope, (int, float)) and kept else None
    known = repeated(A, function, options, given, out)
    if known is not None:
        return known
    _check.flag(function, "return_lse", return_lse)
    _check.flag(function, "return_state", return_state)
    with sparse_operand(function, A, x, source, target, out) as operand:
        features = plain_features(function, "x", x)
        scores = checked_scores(function, operand, features.shape, _dtype_of(features), source, target)
        option: dict[str, Any] = {"negative_slope": _check.number(function, "negative_slope", negative_slope)}
        option["dropout"] = checked_dropout(function, dropout, seed, operand.device)
        result = _weighted(function, operand, features, scores, option, out, return_lse, return_state)
        learn_floats(A, function, options, given, partial(_call, slope))
        return result


def cosine_attention(A: SparseLike, x: ArrayLike, *, beta: Any = 1.0, out: Any = None, return_lse: bool = False) -> Any:
    """Aggregation of an attention-based graph network (AGNN): ``y[i] = sum over j of softmax_j(beta * cos(x[i], x[j])) * x[j]``.

    On a GPU a row of `x` is gathered once for both its score and its part of the sum, and nothing is stored per edge.

    Parameters
    ----------
    A : TCTiledCSR, FRDC, BitTensor of one bit, scipy.sparse or cupyx.scipy.sparse array, (N, N)
        Row i holds the nodes that node i attends to. Only its pattern counts.
    x : array (N, D), or BitTensor
        Features: float16, bfloat16, float32 or float64. A BitTensor is unpacked, and dequantised if it has a scale or an offset.
    beta : float, or floating array of one element
        The layer's learnt factor. On a GPU the kernels read an array themselves, so that no call waits for it.
    out : array, optional
        Where to write; also returned.
    return_lse : bool
        Also return the logarithms of the sums by which the softmax divides; a backward pass recovers the weights from them.

    Returns
    -------
    array (N, D)
        The result, with the dtype of `x` (float32 for integers) and its family. Rows without edges give 0.
    array (N,), if `return_lse`
        float32, or float64 for float64 features; minus infinity for rows without edges.

    Raises
    ------
    ShapeError
        `A` is not square, `x` does not fit it, or `beta` has several elements.
    DTypeError, DeviceError
        An operand is not numeric or not sparse, or they are on several devices.
    ValueError
        `beta` is not finite in float32, or A's arrays are not those of a matrix.

    Notes
    -----
    A row of zeros has the cosine 0 with every other row. Cosines are computed in float32, or in float64 for float64 features. On a GPU the
    sum of squares of a row, in that type, must be neither infinite nor below the smallest normal number. With u = 2**-24
    (2**-53) the error of a cosine is at most ``(ceil(D / 16) + 16) * u``, and errors of weights and sums are those of
    :func:`edge_softmax` and :func:`spmm`. The layer is that of Thekumparampil et al., "Attention-based graph neural network for
    semi-supervised learning" (2018), equation 7; TC-GNN (Wang et al., ATC 2023) accelerates its parts one by one.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[1, 1], [0, 1]]))
    >>> x = np.array([[2.0, 0.0], [0.0, 1.0]])
    >>> bs.cosine_attention(A, x, beta=np.log(3)).round(3)
    array([[1.5 , 0.25],
           [0.  , 1.  ]])
    """
    function = "cosine_attention"
    options = (beta,) if isinstance(beta, (int, float)) and return_lse is False else None
    known = repeated(A, function, options, (x,), out)
    if known is not None:
        return known
    _check.flag(function, "return_lse", return_lse)
    with sparse_operand(function, A, x, out, beta) as operand:
        features = plain_features(function, "x", x)
        attending(function, operand, features)
        option = {"beta": beta_of(function, beta, operand.device, compute_dtype(_dtype_of(features)))}
        result = _weighted(function, operand, features, [], option, out, return_lse)
        learn_floats(A, function, options, (x,), partial(_call, beta))
        return result


def checked_dropout(function: str, rate: Any, seed: Any, device: str) -> Dropout | None:
    """The dropout of a rate, or None for 0; a seed on a GPU stays there.

    Examples
    --------
    >>> checked_dropout("example", 0.5, np.array([7]), "cpu")
    Dropout(rate=0.5, seed=7)
    """
    rate = _check.number(function, "dropout", rate)
    if not 0 <= rate <= 1:
        raise ValueError(f"{function}: dropout must lie between 0 and 1, got {rate}; pass the share of weights to drop")
    if not rate:
        return None
    if seed is None:
        raise ValueError(f"{function}: dropout={rate} needs a seed, which its gradient must know as well; pass seed=")
    if is_number(seed):
        return Dropout(rate, _check.integer(function, "seed", seed, 0, (1 << 64) - 1))
    array = _single(function, "seed", seed, device, "iu")
    if device == "cpu":
        return Dropout(rate, int(array.reshape(())) & (1 << 64) - 1)
    return Dropout(rate, array.astype(np.int64, copy=False))


def attending(function: str, operand: CSROperand, features: Features) -> None:
    """Refuse a matrix that is not square, or features that do not fit it, as nodes attend to each other by their features."""
    if operand.shape[0] != operand.shape[1]:
        raise ShapeError(
            f"{function}: A has shape {operand.shape}, but the nodes that attend are the nodes attended to; pass a square A"
        )
    if len(features.shape) != 2:
        raise ShapeError(f"{function}: x has shape {features.shape}, but features are (N, D); reshape them")
    operand.check_features(function, features.shape, "check")


def is_number(beta: Any) -> bool:
    """Whether a factor or a seed is a number rather than an array.

    Examples
    --------
    >>> is_number(2), is_number(np.float32(0.5)), is_number(np.ones(1))
    (True, True, False)
    """
    return not hasattr(beta, "shape") or isinstance(beta, np.generic)


def beta_of(function: str, beta: Any, device: str, dtype: np.dtype[Any]) -> Any:
    """The factor of cosines as a number; an array on a GPU is not read but returned as one element of `dtype`."""
    if is_number(beta):
        return _check.number(function, "beta", beta)
    array = converted(_single(function, "beta", beta, device, "f").reshape(1), dtype)
    return _check.number(function, "beta", float(array[0])) if device == "cpu" else array


def _single(function: str, name: str, given: Any, device: str, kinds: str) -> Any:
    """The checked array of one number, which must be on the device of A."""
    array = interop.as_array(given, function, name, kinds=kinds)[0]
    if array.size != 1:
        raise ShapeError(f"{function}: {name} has shape {array.shape}, but all edges have one; pass one element")
    same_place(function, [("A", device), (name, interop.device_of(array))])
    return native(array)


def checked_scores(
    function: str, operand: CSROperand, shape: tuple[int, ...], dtype: np.dtype[Any], source: Any, target: Any
) -> list[Any]:
    """Scores of the neighbours and of the nodes that attend, one per node and head, in the dtype of the weights.

    `shape` is that of the features, and `dtype` that of their sums; refuses features and scores that do not fit `operand`.
    """
    inner = shape[1:]
    if not inner:
        raise ShapeError(f"{function}: x has shape {shape}, but features are (N, D) or (N, heads, D); pass x[:, None]")
    operand.check_features(function, shape)
    compute, heads, scores = compute_dtype(dtype), inner[0] if len(inner) == 2 else 1, []
    for name, given, rows in (("source", source, operand.shape[1]), ("target", target, operand.shape[0])):
        array = interop.as_array(given, function, name, kinds="f")[0]
        if array.dtype == np.float64 and compute != np.float64:
            raise DTypeError(
                f"{function}: {name} is float64 but x is {dtype}, so that scores would lose precision; convert one with "
                f"astype"
            )
        if array.shape != (rows, *inner[:-1]):
            raise ShapeError(
                f"{function}: {name} has shape {array.shape}, but A of shape {operand.shape} and x of shape {shape} take "
                f"{(rows, *inner[:-1])}; pass one score per node and head"
            )
        same_place(function, [("A", operand.device), (name, interop.device_of(array))])
        scores.append(interop.contiguous(converted(native(array).reshape(rows, heads), compute)))
    return scores


def _weighted(
    function: str,
    operand: CSROperand,
    features: Features,
    scores: list[Any],
    option: dict[str, Any],
    out: Any,
    return_lse: bool,
    return_state: bool = False,
) -> Any:
    """Sums of features weighted by the softmax over the edges of each row, with its logarithms or the state if they are asked for."""
    device, inner = same_place(function, [("A", operand.device), ("x", features.device)]), features.shape[1:]
    dtype, shape, space = _dtype_of(features), (operand.shape[0], *inner), interop.namespace(features.data)
    heads = inner[0] if len(inner) == 2 else 1
    into = None if out is None else target_array(function, out, shape, dtype, device, (features.data, *scores))
    lse = space.empty((shape[0], heads), compute_dtype(dtype)) if return_lse or return_state else None
    gathered, result = features.data.reshape(features.shape[0], features.columns), None
    if 0 in shape:
        result, into = space.empty(shape, dtype), None
        gathered = space.zeros((features.shape[0], heads), dtype)  # the softmax's sums exist even without features
    if return_state:
        option["state"] = space.empty_like(lse), space.empty((shape[0], gathered.shape[1]), dtype)
    if result is None or lse is not None:
        flat = None if into is None else into.reshape(shape[0], gathered.shape[1])
        with operand.walked(function) as pattern:
            weigh = getattr(backends.family(device, "edges.attention"), function)
            weighted = weigh(pattern, converted(gathered, dtype), *scores, **option, out=flat, lse=lse)
        result = weighted.reshape(shape) if result is None else result
    made = out if out is not None else interop.from_array(result, features.family, function)
    if lse is None:
        return made
    sums: list[Any] = [lse.reshape(shape[:-1])]
    if return_state:
        share, above = option["state"]
        sums += [share.reshape(shape[:-1]), above.reshape(shape) if 0 not in shape else space.empty(shape, dtype)]
    found = [interop.from_array(part, features.family, function) for part in sums]
    return made, AttentionState(made, *found) if return_state else found[0]


def _dtype_of(features: Features) -> np.dtype[Any]:
    """Dtype of the result: that of floating features, or float32 for integers."""
    return np.dtype(np.float32) if features.dtype.kind in "biu" else features.dtype


def _call(factor: float, operand: CSROperand, family: interop.Family, x: Any, *scores: Any) -> KeptCall | None:
    """A kept call of the kernel itself, with scores or by cosines, for floating features that it takes as they are; else None."""
    backend, dtype, cosine = backends.family(operand.device, "edges.attention"), x.dtype, not scores
    heads, columns = x.shape[1] if x.ndim == 3 else 1, int(np.prod(x.shape[1:], dtype=np.int64))
    if cosine and not backends.family(operand.device, "edges.attention_layout").fits_registers(dtype, columns):
        return None
    if any(score.dtype != compute_dtype(dtype) for score in scores):
        return None
    how = backend.Attending(heads, float(factor), cosine)
    product = backend.AttentionProduct(operand.schedule, how, dtype=dtype, columns=columns)
    run = (lambda x, out: product(x, None, None, out)) if cosine else product
    return edge_call(operand, run, (x, *scores), (operand.shape[0], *x.shape[1:]), dtype)

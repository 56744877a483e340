"""Gradients of graph attention from one gather over the transpose; no value per edge is stored."""

from __future__ import annotations

from typing import Any

from bitsparse import _check, backends, interop
from bitsparse._records import as_dict
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.backends.params import Dropout
from bitsparse.backends.row_pieces import RowPieces
from bitsparse.interop import ArrayLike, SparseLike, converted
from bitsparse.ops.edges.attention import AttentionState, attention, checked_dropout
from bitsparse.ops.operands.both_ways import Floats, as_asked, computed_in, operands_of, taken_in, wanted
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.operands.sparse import as_csr

_NAMES = ("x", "source", "target")


def attention_vjp(
    A: SparseLike,
    x: ArrayLike,
    source: ArrayLike,
    target: ArrayLike,
    gradient: ArrayLike,
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    seed: Any = None,
    state: AttentionState | None = None,
    wrt: str | tuple[str, ...] = ("x", "source", "target"),
) -> Any:
    """Gradients of :func:`attention` by the features and by the scores of both ends of the edges.

    Parameters
    ----------
    A, x, source, target, negative_slope, dropout, seed
        As in :func:`attention`; `x` is float16, bfloat16, float32 or float64.
    gradient : array of the shape of the result
    state : AttentionState, optional
        The state from :func:`attention` for these operands; without it, it is computed again.
    wrt : {"x", "source", "target"} or tuple of these
        Operands whose gradients are computed.

    Returns
    -------
    array, or tuple of arrays in the order of `wrt`
        Each has the shape, dtype and family of its operand. At a score of exactly 0, the slope for negative scores is used.

    Raises
    ------
    ShapeError
        `gradient` is not of the result's shape, or the operands do not fit.
    DTypeError, DeviceError
        An operand is not floating or not sparse, or they are on several devices.

    Notes
    -----
    Let z = source[j] + target[i], weights a = softmax(leaky_relu(z)), c = 0 or 1 / (1 - dropout) for each edge, and D[i] = <g[i], y[i]>.
    Let Y+ and P+ be the parts of y and of the sum of a that come from edges with z > 0. The gradients by the leaky relu's values,
    ``a * (c * <g[i], x[j]> - D[i])``, add up to 0 in each row. Hence

    - ``dtarget[i] = (1 - negative_slope) * (<g[i], Y+[i]> - D[i] * P+[i])``, which takes no pass over the edges,
    - ``dx[j] = sum over i of a * c * g[i]`` and ``dsource[j] = <x[j], G[j]> - sum over i of a * slope * D[i]``, where G is the sum dx with
      each term times the slope at z: one gather of g over the transpose serves both.

    The computation is in float32, or in float64 if an operand is float64. Operands of one dtype are gathered as they are, even with 16
    bits; D then belongs to the rounded result. The same input gives the same bits. The fused steps are those of TANGO (Chen et al., SC
    2023, section 2.1); computing weights again from logarithms of sums is due to FlashAttention (Dao et al., NeurIPS 2022, section 3.1 and
    appendix B.4).

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> A = sp.csr_array(np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]]))
    >>> x = np.array([[1.0], [2.0], [4.0]])
    >>> dx, dsource, dtarget = bs.attention_vjp(A, x, np.zeros(3), np.zeros(3), np.ones((3, 1)), negative_slope=1.0)
    >>> dx.ravel(), dsource
    (array([0. , 0.5, 1.5]), array([ 0. , -0.5,  0.5]))
    """
    function = "attention_vjp"
    names = wanted(function, wrt, _NAMES)
    if state is not None:
        _check.instance(
            function,
            "state",
            state,
            AttentionState,
            "an AttentionState",
            "take it from attention(..., return_state=True)",
        )
    with operands_of(function, A, x=x, source=source, target=target, gradient=gradient) as (ways, parts):
        drop = checked_dropout(function, dropout, seed, ways.operand.device)
        if state is None:
            _fits(parts, ways.operand.shape)
            compute = parts.compute
            dtypes = (taken_in(compute, parts["x"], parts["gradient"]), compute, compute)
            operands = (converted(parts[name].data, dtype) for name, dtype in zip(_NAMES, dtypes, strict=True))
            how = {"negative_slope": negative_slope, "dropout": dropout, "seed": seed}
            state = attention(ways.forward, *operands, **how, return_state=True)[1]
        made = _over_transpose(parts, as_csr(function, ways.backward), state, negative_slope, drop, names)
        return as_asked(wrt, {name: interop.from_array(made[name], parts[name].family, function) for name in names})


def attention_vjp_of_transpose(
    turned: SparseArray,
    x: Any,
    source: Any,
    target: Any,
    gradient: Any,
    state: AttentionState,
    negative_slope: float,
    dropout: float,
    seed: Any,
) -> tuple[Any, ...]:
    """All gradients of :func:`attention_vjp`, for a caller that has the transpose of A."""
    function = "attention_vjp"
    in_pieces = isinstance(x, RowPieces)
    features = {} if in_pieces else {"x": x}
    with working_with(turned.device, *features.values(), source, target, gradient):
        operand = as_csr(function, turned)
        parts = Floats(function, operand, **features, source=source, target=target, gradient=gradient)
        drop = checked_dropout(function, dropout, seed, turned.device)
        made = _over_transpose(parts, operand, state, negative_slope, drop, x=x if in_pieces else None)
        family = parts["gradient"].family
        return tuple(interop.from_array(made[name], family, function) for name in _NAMES)


def _over_transpose(
    parts: Floats,
    operand: CSROperand,
    state: AttentionState,
    negative_slope: float,
    dropout: Dropout | None,
    wrt: tuple[str, ...] = _NAMES,
    x: RowPieces | None = None,
) -> dict[str, Any]:
    """Gradients of :func:`attention` over the transpose of its pattern, as NumPy or CuPy arrays; `x` is given if it is not in `parts`."""
    (columns, rows), function = operand.shape, parts.function
    _fits(parts, (rows, columns))
    inner = parts["gradient" if x else "x"].shape[1:]
    in_pieces: dict[str, Any] = {"x": x} if x else {}
    in_pieces |= {name: part for name, part in as_dict(state).items() if isinstance(part, RowPieces)}
    kept = Floats(
        function,
        operand,
        **{f"state.{name}": part for name, part in as_dict(state).items() if name not in in_pieces},
    )
    for name in kept.parts:
        kept.of_shape(name, (rows, *(inner if name in ("state.result", "state.above") else inner[:-1])), "it")
    slope = _check.number(function, "negative_slope", negative_slope)
    compute = computed_in(parts.compute, kept.compute)
    dense = {name: parts[name] for name in ("x", "gradient") if name not in in_pieces}
    dense |= {name: kept[f"state.{name}"] for name in ("result", "above") if name not in in_pieces}
    dtype = taken_in(compute, *dense.values())
    heads = inner[0] if len(inner) == 2 else 1
    wide: dict[str, Any] = in_pieces | {
        name: converted(part.data, dtype).reshape(part.shape[0], part.columns) for name, part in dense.items()
    }
    features, gradient, result, above = (wide[name] for name in ("x", "gradient", "result", "above"))
    source, target, lse, share = (
        converted(part.data.reshape(part.shape[0], heads), compute)
        for part in (parts["source"], parts["target"], kept["state.lse"], kept["state.share"])
    )
    like = {name: (parts[name].shape, parts[name].dtype) for name in wrt if name in parts.parts}
    like.setdefault("x", ((columns, *inner), features.dtype))
    if 0 in features.shape or 0 in result.shape:
        space: Any = interop.namespace(gradient)
        return {name: space.zeros(*like[name]) for name in wrt}
    given = features, source, target, gradient, (result, lse, share, above)
    with operand.walked(function) as pattern:
        gradients = backends.family(operand.device, "edges.attention").attention_vjp
        made = gradients(pattern, *given, negative_slope=slope, dropout=dropout, wrt=wrt)
    return {name: converted(made[name].reshape(like[name][0]), like[name][1]) for name in wrt}


def _fits(parts: Floats, shape: tuple[int, int]) -> None:
    """Refuse operands that do not fit a pattern of this shape."""
    inner = parts["x" if "x" in parts.parts else "gradient"].shape[1:]
    for name, size in (
        ("x", (shape[1], *inner)),
        ("source", (shape[1], *inner[:-1])),
        ("target", (shape[0], *inner[:-1])),
    ):
        if name in parts.parts:
            parts.of_shape(name, size, f"attention over A of shape {shape}")
    parts.of_shape("gradient", (shape[0], *inner), "the result")

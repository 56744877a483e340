"""Attention on a GPU and its gradients, prepared as functions without arguments that read and write the same arrays every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bitsparse import backends
from bitsparse.arrays.inside import store_of
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.backends.params import Dropout
from bitsparse.ops.operands.csr import CSROperand
from bitsparse.ops.operands.dense import compute_dtype
from bitsparse.ops.operands.sparse import as_csr

Run = Callable[[], Any]


def attention_run(
    A: SparseArray,
    arrays: tuple[Any, Any, Any],
    out: Any,
    state: tuple[Any, ...],
    slope: float,
    dropout: Dropout | None,
    vectors: tuple[Any, Any] | None = None,
    bias: Any = None,
) -> Run | None:
    """A function that writes attention with `arrays` (x, source, target) into `out`, and its state (lse, share, above) into `state`.

    An empty `state` leaves the state out. With `vectors` (H, D), whose products with the features are the scores, it writes `source` and
    `target` too. A `bias` (H * D,) in the dtype of sums is added to the result. The result is None if kernels cannot take the arrays as
    they are.
    """
    operand = as_csr("attention", A)
    x, scores = arrays[0], arrays[1:]
    if not _fits(operand, x, (*scores, *(vectors or ()), *(() if bias is None else (bias,)))):
        return None
    heads = _heads(x)
    lse, parts = None, None
    if state:
        lse, parts = _ends(state[0], heads), (_ends(state[1], heads), _wide(state[2]))
    flat, ends, into = _wide(x), [_ends(score, heads) for score in scores], _wide(out)
    weigh = backends.family(operand.device, "edges.attention").attention
    more: dict[str, Any] = {"negative_slope": slope, "dropout": dropout, "vectors": vectors, "bias": bias}

    def run() -> None:
        with operand.walked("attention") as schedule:
            weigh(schedule, flat, *ends, out=into, lse=lse, state=parts, **more)

    return run


def attention_vjp_run(
    turned: SparseArray,
    arrays: tuple[Any, ...],
    state: tuple[Any, ...],
    outs: tuple[Any, Any, Any],
    slope: float,
    dropout: Dropout | None,
    vectors: tuple[Any, Any] | None = None,
    by_vectors: Any = None,
    bias: Any = None,
    by_bias: Any = None,
) -> Run | None:
    """A function that writes the gradients of attention by x, source and target into `outs`; None if kernels cannot take the arrays.

    Parameters
    ----------
    turned : SparseArray
        The transpose of the pattern.
    arrays : (x, source, target, gradient by the result)
    state : (result, lse, share, above)
        The arrays that :func:`attention_run` wrote.
    vectors, by_vectors : optional
        The vectors of the scores, whose gradients go to `by_vectors` (2, H, D). The gradient by x then includes that by the scores.
    bias, by_bias : optional
        The bias that is part of the result, and where its gradient is written.
    """
    operand = as_csr("attention_vjp", turned)
    x, scores, gradient = arrays[0], arrays[1:3], arrays[3]
    result, lse, share, above = state
    numbers = (*scores, lse, share, *(vectors or ()), *(() if bias is None else (bias,)))
    if not _fits(operand, x, numbers) or any(part.dtype != x.dtype for part in (gradient, result, above)):
        return None
    heads = _heads(x)
    kept = _wide(result), _ends(lse, heads), _ends(share, heads), _wide(above)
    given = _wide(x), *(_ends(score, heads) for score in scores), _wide(gradient), kept
    into = {"x": _wide(outs[0]), "source": _ends(outs[1], heads), "target": _ends(outs[2], heads)}
    into |= {} if vectors is None else {"vectors": by_vectors}
    into |= {} if bias is None else {"bias": by_bias}
    gradients = backends.family(operand.device, "edges.attention").attention_vjp
    more: dict[str, Any] = {"negative_slope": slope, "dropout": dropout, "vectors": vectors, "bias": bias}

    def run() -> None:
        with operand.walked("attention_vjp") as schedule:
            gradients(schedule, *given, out=into, **more)

    return run


def cosine_run(A: SparseArray, x: Any, beta: Any, out: Any, lse: Any) -> Run | None:
    """A function that writes attention by cosines into `out`, and logarithms of the softmax's sums into `lse`; None if kernels cannot."""
    operand = as_csr("cosine_attention", A)
    if not _fits(operand, x, (beta, lse)) or not _in_registers(operand, x.dtype, x.shape[1]):
        return None
    weigh = backends.family(operand.device, "edges.attention").cosine_attention

    def run() -> None:
        with operand.walked("cosine_attention") as schedule:
            weigh(schedule, x, beta=beta.reshape(1), out=out, lse=_ends(lse, 1))

    return run


def cosine_vjp_run(
    ways: tuple[SparseArray, SparseArray], arrays: tuple[Any, ...], outs: tuple[Any, Any], beta: Any
) -> Run | None:
    """A function that writes the gradients of attention by cosines, by features and factor, into `outs`; None if kernels cannot.

    Parameters
    ----------
    ways : tuple of SparseArray
        The pattern and its transpose, which are the same if it is symmetric.
    arrays : (x, gradient by the result, result, lse)
    """
    operand, turned = (as_csr("cosine_attention_vjp", way) for way in ways)
    x, gradient, result, lse = arrays
    if not _fits(operand, x, (beta, lse)) or any(part.dtype != x.dtype for part in (gradient, result)):
        return None
    if not _in_registers(operand, compute_dtype(np.dtype(x.dtype)), x.shape[1]):
        return None
    symmetric = store_of(ways[0]) is store_of(ways[1])
    gradients = backends.family(operand.device, "edges.cosine_vjp").cosine_attention_vjp
    into = outs[0], outs[1].reshape(1)

    def run() -> None:
        with operand.walked("cosine_attention_vjp") as forward, turned.walked("cosine_attention_vjp") as backward:
            schedules = forward, None if symmetric else backward
            gradients(schedules, x, gradient, result, lse, beta=beta.reshape(1), out=into)

    return run


def _in_registers(operand: CSROperand, dtype: Any, columns: int) -> bool:
    """Whether rows of features are short enough for one pass, as they must fit into registers."""
    fits: Callable[..., bool] = backends.family(operand.device, "edges.attention_layout").fits_registers
    return fits(dtype, columns)


def _heads(x: Any) -> int:
    return x.shape[1] if x.ndim == 3 else 1


def _wide(part: Any) -> Any:
    """The array as a matrix, with all heads of a row side by side."""
    return part.reshape(len(part), part.size // len(part))


def _ends(part: Any, heads: int) -> Any:
    """The array as a matrix of nodes and heads."""
    return part.reshape(len(part), heads)


def _fits(operand: CSROperand, x: Any, scores: tuple[Any, ...]) -> bool:
    """Whether there is something to compute, and in the dtypes that kernels take."""
    wanted = compute_dtype(np.dtype(x.dtype))
    return bool(
        operand.nnz and operand.order is None and x.size and all(one.size and one.dtype == wanted for one in scores)
    )

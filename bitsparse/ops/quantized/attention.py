"""Graph attention that gathers codes of features, and codes of gradients in its gradient; scores, softmax and sums are float32."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from bitsparse import backends, interop
from bitsparse.arrays.sparse_base import SparseArray
from bitsparse.backends.row_pieces import RowPieces
from bitsparse.ops.edges.attention import AttentionState, attention, checked_dropout, checked_scores
from bitsparse.ops.edges.attention_vjp import attention_vjp_of_transpose
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.quantized.scaled import ScaledCodes


class Settings(NamedTuple):
    """Slope of the leaky relu, and dropout of the attention weights with its seed."""

    slope: float
    dropout: float
    seed: Any


def _codes(x: ScaledCodes) -> Any:
    """The codes that a GPU kernel gathers, or None if real values must be gathered; with heads (N, H, D), each head is padded."""
    q = x.codes
    if q.device == "cpu" or q.bits != 8 or x.multiples is not None or q.size == 0:
        return None
    words = q.repack(axis=-1, layout="rows").words
    columns = int(np.prod(q.shape[1:], dtype=np.int64))
    scale: Any = q.scale
    return backends.family(q.device, "edges.attention").Codes(words, scale.reshape(()), columns)


def attention_of_codes(A: SparseArray, x: ScaledCodes, source: Any, target: Any, how: Settings) -> AttentionState:
    """The state of :func:`bitsparse.attention`, with its result, for features (N, H, D) given as codes.

    On a GPU, codes of 8 bits with one scale are gathered themselves, a quarter of the bytes; others are dequantised first.
    """
    function = "attention"
    with working_with(A.device, source):
        codes, operand = _codes(x), as_csr(function, A)
        nodes, *inner = x.codes.shape
        shape = nodes, source.shape[1], math.prod(inner) // source.shape[1]
        if codes is None or operand.nnz == 0 or 0 in A.shape:
            return attention_of_floats(A, x.dequantize().reshape(shape), source, target, how)
        scores = checked_scores(function, operand, shape, np.dtype(np.float32), source, target)
        family = interop.as_array(source, function)[1]
        (rows, heads), space = scores[1].shape, interop.namespace(scores[0])
        lse, share = space.empty((rows, heads), np.float32), space.empty((rows, heads), np.float32)
        above = space.empty((rows, codes.columns), np.float32)
        drop = checked_dropout(function, how.dropout, how.seed, A.device)
        options = {"negative_slope": how.slope, "dropout": drop, "codes": codes}
        with operand.walked(function) as pattern:
            attend = backends.family(A.device, "edges.attention").attention
            result = attend(pattern, None, *scores, **options, lse=lse, state=(share, above))
        parts = result.reshape(rows, *shape[1:]), lse, share, above.reshape(rows, *shape[1:])
        return AttentionState(*(interop.from_array(part, family, function) for part in parts))


def attention_of_floats(A: SparseArray, x: Any, source: Any, target: Any, how: Settings) -> AttentionState:
    """The state of :func:`bitsparse.attention`, with its result, for features (N, H, D) as they are."""
    made: tuple[Any, AttentionState] = attention(
        A, x, source, target, negative_slope=how.slope, dropout=how.dropout, seed=how.seed, return_state=True
    )
    return made[1]


def attention_of_codes_vjp(
    turned: SparseArray,
    features: Any,
    ends: tuple[Any, Any],
    gradient: Any,
    codes_of_gradient: ScaledCodes | None,
    state: AttentionState,
    how: Settings,
) -> tuple[Any, ...]:
    """Gradients of :func:`attention_of_codes` by features and both scores, computed over the transpose with the gradient's codes.

    `features` (N, H, D) are the float32 values of the features' codes. `gradient` is not rounded; on a GPU only gathered rows are
    read as codes, so that products of a node's own rows use real values. Without codes the gradient is gathered as it is.
    The features, and in `state` the result and the second sums, may be :class:`~bitsparse.backends.row_pieces.RowPieces`.
    """
    function = "attention_vjp"
    with working_with(turned.device, gradient):
        codes, operand = codes_of_gradient and _codes(codes_of_gradient), as_csr(function, turned)
        if codes is None or operand.nnz == 0 or 0 in turned.shape:
            rounded = gradient
            if codes_of_gradient is not None:
                rounded = codes_of_gradient.dequantize().reshape(gradient.shape)
            return attention_vjp_of_transpose(turned, features, *ends, rounded, state, how.slope, how.dropout, how.seed)
        given = (features, *ends, gradient, *state)
        arrays = [part if isinstance(part, RowPieces) else interop.as_array(part, function)[0] for part in given]
        family, shape = interop.as_array(gradient, function)[1], (arrays[0].shape[0], *gradient.shape[1:])
        flat, source, target, grad, result, lse, share, above = arrays
        flat, grad, result, above = (
            part if isinstance(part, RowPieces) else part.reshape(part.shape[0], codes.columns)
            for part in (flat, grad, result, above)
        )
        drop = checked_dropout(function, how.dropout, how.seed, turned.device)
        options = {"negative_slope": how.slope, "dropout": drop, "codes": codes}
        with operand.walked(function) as pattern:
            gradients = backends.family(turned.device, "edges.attention").attention_vjp
            made = gradients(pattern, flat, source, target, grad, (result, lse, share, above), **options)
        parts = made["x"].reshape(shape), made["source"], made["target"]
        return tuple(interop.from_array(part, family, function) for part in parts)

"""Preparation of calls on a GPU whose launches are recorded: functions of stand-ins for the arrays of a call."""

from __future__ import annotations

from functools import partial
from typing import Any

from bitsparse import interop
from bitsparse.arrays.inside import scales_of
from bitsparse.backends.params import Dropout
from bitsparse.jax.computing import seed_of, weights_of
from bitsparse.jax.tasks import Directions, prepares
from bitsparse.ops.edges.prepared import Run, attention_run, attention_vjp_run
from bitsparse.ops.edges.sddmm import call_of as edge_call_of
from bitsparse.ops.edges.sddmm import softmax_call
from bitsparse.ops.operands.places import working_with
from bitsparse.ops.operands.sparse import as_csr
from bitsparse.ops.plan import KeptCall
from bitsparse.ops.spmm.spmm import call_of, kernel_of_gradient


def _run(call: KeptCall | None, arrays: tuple[Any, ...], out: Any) -> Run | None:
    return None if call is None else partial(call, arrays, out)


@prepares
def spmm(ways: Directions, values: Any, x: Any, out: Any, *, reduce: Any, is_gradient: bool = False) -> Run | None:
    """Sums, means, maxima and minima over neighbours."""
    weights = weights_of(ways, values, x.dtype)
    if weights is not None:
        return _run(call_of(ways.forward, x, weights, reduce), (x, weights), out)
    kernel = kernel_of_gradient(ways.forward, x) if is_gradient else None
    return _run(call_of(ways.forward, x, None, reduce, kernel=kernel), (x,), out)


@prepares
def sddmm(ways: Directions, x: Any, y: Any, out: Any, *, op: Any) -> Run | None:
    """Products of both ends of every edge, without factors of rows and columns."""
    pattern = ways.forward
    if any(scale is not None for scale in scales_of(pattern)) or not (x.size and y.size):
        return None
    with working_with(pattern.device):
        operand = as_csr("sddmm", pattern)
        return (
            _run(edge_call_of(pattern, op, "fp32", operand, interop.CUPY, x, y), (x, y), out) if operand.nnz else None
        )


@prepares
def edge_softmax(ways: Directions, scores: Any, out: Any) -> Run | None:
    """The softmax over the edges of each row."""
    with working_with(ways.forward.device):
        operand = as_csr("edge_softmax", ways.forward)
        return _run(softmax_call(operand, interop.CUPY, scores), (scores,), out) if scores.size else None


def _dropout(rate: float, seed: Any) -> Dropout | None:
    return Dropout(rate, seed_of(seed)) if rate else None


@prepares
def attention(
    ways: Directions, x: Any, source: Any, target: Any, seed: Any, out: Any, *state: Any, slope: float, dropout: float
) -> Run | None:
    """Attention, and the state that its gradient needs if the call has results for it."""
    with working_with(ways.forward.device):
        return attention_run(ways.forward, (x, source, target), out, state, slope, _dropout(dropout, seed))


@prepares
def attention_vjp(ways: Directions, *given: Any, slope: float, dropout: float) -> Run | None:
    """Gradients of attention by the features and by the scores of both ends."""
    (*nodes, seed), state, gradient, outs = given[:4], given[4:8], given[8], given[9:]
    with working_with(ways.backward.device):
        drop = _dropout(dropout, seed)
        return attention_vjp_run(ways.backward, (*nodes, gradient), state, outs, slope, drop)

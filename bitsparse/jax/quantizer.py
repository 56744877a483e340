"""The arithmetic of graph layers: in floats, or in integers within a function changed by :func:`bitsparse.jax.tango`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Literal

import jax.numpy as jnp

from bitsparse.jax.attention_kinds import attention
from bitsparse.jax.graphs import Graph
from bitsparse.jax.sums import spmm

Norm = Literal["gcn", "symmetric"] | None
Reduce = Literal["sum", "mean", "max", "min"]


class Floats:
    """The products, sums and attention of layers in floats; derived classes may compute in integers."""

    def layer(self) -> AbstractContextManager[None]:
        """The context of a layer, within which the other methods are called; floats need none."""
        return nullcontext()

    def linear(self, x: Any, kernel: Any) -> Any:
        """``x @ kernel``."""
        return x @ kernel

    def spmm(self, graph: Graph, x: Any, reduce: Reduce, norm: Norm) -> Any:
        """:func:`bitsparse.jax.spmm`."""
        return spmm(graph, x, reduce=reduce, norm=norm)

    def attention(self, graph: Graph, x: Any, vectors: tuple[Any, Any], slope: float, dropout: float, key: Any) -> Any:
        """Attention of heads (N, H, D) whose scores are dot products with two vectors (H, D)."""
        source, target = (jnp.einsum("nhd,hd->nh", x, vector) for vector in vectors)
        return attention(graph, x, source, target, slope, dropout, key)


FLOATS = Floats()
_CURRENT: ContextVar[Floats] = ContextVar("quantizer", default=FLOATS)


@contextmanager
def using(quantizer: Floats) -> Iterator[None]:
    """Within this context, layers multiply and sum with a quantizer."""
    before = _CURRENT.set(quantizer)
    try:
        yield
    finally:
        _CURRENT.reset(before)


@contextmanager
def layer() -> Iterator[Floats]:
    """Begin a layer, or a part of the layer that is active already, and yield the present quantizer."""
    current = _CURRENT.get()
    with current.layer():
        yield current

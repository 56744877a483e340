"""How graph layers multiply and sum: in floats, or in integers within a function that :func:`bitsparse.jax.tango` changed."""

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
    """What multiplies and sums in layers: in floats, unless a class derived of it does otherwise."""

    def layer(self) -> AbstractContextManager[None]:
        """A layer, within which all else is called; of floats nobody counts them."""
        return nullcontext()

    def linear(self, x: Any, kernel: Any) -> Any:
        """``x @ kernel``."""
        return x @ kernel

    def spmm(self, graph: Graph, x: Any, reduce: Reduce, norm: Norm) -> Any:
        """As :func:`bitsparse.jax.spmm`."""
        return spmm(graph, x, reduce=reduce, norm=norm)

    def attention(self, graph: Graph, x: Any, vectors: tuple[Any, Any], slope: float, dropout: float, key: Any) -> Any:
        """Attention of heads (N, H, D) by scores that are their dot products with two vectors (H, D)."""
        source, target = (jnp.einsum("nhd,hd->nh", x, vector) for vector in vectors)
        return attention(graph, x, source, target, slope, dropout, key)


FLOATS = Floats()
_CURRENT: ContextVar[Floats] = ContextVar("quantizer", default=FLOATS)


@contextmanager
def using(quantizer: Floats) -> Iterator[None]:
    """Let layers multiply and sum by a quantizer."""
    before = _CURRENT.set(quantizer)
    try:
        yield
    finally:
        _CURRENT.reset(before)


@contextmanager
def layer() -> Iterator[Floats]:
    """A layer, or a part of the one that it is called in: what multiplies and sums in it."""
    current = _CURRENT.get()
    with current.layer():
        yield current

"""Sums over neighbours and graph attention in JAX alone: with its sparse matrices, and with gathers and sums of segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse as jax_sparse

__all__ = ["SUMS", "Matrix", "attention", "matrix", "version"]

SLOPE = 0.2


def version() -> str:
    """The name of the peer in records."""
    return f"jax {jax.__version__}"


class Matrix(NamedTuple):
    """A square matrix of normalised weights: row starts, and the row, column and weight of every edge."""

    indptr: Any
    rows: Any
    columns: Any
    weights: Any

    @property
    def nodes(self) -> int:
        """The number of rows."""
        return int(self.indptr.shape[0]) - 1


def matrix(adjacency: Any) -> Matrix:
    """``D^-1/2 A D^-1/2`` of a pattern with loops, a csr_array with sorted columns."""
    rows = np.repeat(np.arange(adjacency.shape[0], dtype=np.int32), np.diff(adjacency.indptr))
    scale = np.diff(adjacency.indptr) ** -0.5
    weights = (scale[rows] * scale[adjacency.indices]).astype(np.float32)
    indptr, columns = (jnp.asarray(part, jnp.int32) for part in (adjacency.indptr, adjacency.indices))
    return Matrix(indptr, jnp.asarray(rows), columns, jnp.asarray(weights))


def _of_segments(a: Matrix, x: Any) -> Any:
    return jax.ops.segment_sum(x[a.columns] * a.weights[:, None], a.rows, a.nodes, indices_are_sorted=True)


def _of_bcoo(a: Matrix, x: Any) -> Any:
    both = jnp.stack([a.rows, a.columns], 1)
    return jax_sparse.BCOO((a.weights, both), shape=(a.nodes,) * 2, indices_sorted=True, unique_indices=True) @ x


def _of_bcsr(a: Matrix, x: Any) -> Any:
    return jax_sparse.BCSR((a.weights, a.columns, a.indptr), shape=(a.nodes,) * 2) @ x


#: Products with a matrix, by the method of computation.
SUMS: dict[str, Callable[[Matrix, Any], Any]] = {"segment": _of_segments, "bcoo": _of_bcoo, "bcsr": _of_bcsr}


def attention(a: Matrix, x: Any, source: Any, target: Any) -> Any:
    """Graph attention of heads (nodes, H, D)."""
    scores = jax.nn.leaky_relu(source[a.columns] + target[a.rows], SLOPE)
    largest = jax.ops.segment_max(scores, a.rows, a.nodes, indices_are_sorted=True)
    weights = jnp.exp(scores - jax.lax.stop_gradient(largest)[a.rows])
    sums = jax.ops.segment_sum(weights, a.rows, a.nodes, indices_are_sorted=True)
    gathered = x[a.columns] * weights[..., None]
    return jax.ops.segment_sum(gathered, a.rows, a.nodes, indices_are_sorted=True) / sums[..., None]

"""Graph layers as functions of arrays: the modules for Flax and Equinox call them, and :func:`tango` quantises them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bitsparse.jax.graphs import Graph, checked
from bitsparse.jax.quantizer import Norm, Reduce, layer

__all__ = ["Heads", "gat", "gcn", "gin", "linear", "sage"]


class Heads(NamedTuple):
    """Settings of graph attention.

    Attributes
    ----------
    concat : bool
        Whether the heads are concatenated; otherwise the layer returns their mean.
    negative_slope : float
        The slope of the leaky relu below 0.
    dropout : float
        The share of attention weights that is dropped in calls with a key.
    add_self_loops : bool

    Examples
    --------
    >>> from bitsparse.jax.layers import Heads
    >>> Heads(concat=False).negative_slope
    0.2
    """

    concat: bool = True
    negative_slope: float = 0.2
    dropout: float = 0.0
    add_self_loops: bool = True


def _uniform(key: Any, shape: tuple[int, ...], limit: float) -> Any:
    return jax.random.uniform(key, shape, jnp.float32, -limit, limit)


def glorot(key: Any, shape: tuple[int, ...], fans: int) -> Any:
    """Draw weights from Glorot and Bengio's uniform distribution; `fans` is the sum of both fans."""
    return _uniform(key, shape, (6 / fans) ** 0.5)


def gcn_weights(key: Any, inputs: int, outputs: int, use_bias: bool) -> tuple[Any, Any]:
    """Initial kernel and bias of a graph convolution; the bias may be None."""
    return glorot(key, (inputs, outputs), inputs + outputs), jnp.zeros(outputs) if use_bias else None


def sage_weights(
    keys: Sequence[Any], inputs: int | tuple[int, int], outputs: int, root_weight: bool, use_bias: bool
) -> tuple[Any, Any, Any]:
    """Initial kernel, bias and root weights of GraphSAGE, uniform up to 1 / sqrt of the number of inputs."""
    each = (inputs, inputs) if isinstance(inputs, int) else inputs
    kernel, root = (_uniform(key, (n, outputs), max(n, 1) ** -0.5) for key, n in zip(keys, each, strict=True))
    return kernel, jnp.zeros(outputs) if use_bias else None, root if root_weight else None


def gat_weights(
    keys: Sequence[Any], inputs: int, heads: int, outputs: int, concat: bool, use_bias: bool
) -> tuple[Any, Any, Any, Any]:
    """Initial kernel, score vectors of both ends and bias of graph attention."""
    kernel = glorot(keys[0], (inputs, heads, outputs), inputs + heads * outputs)
    source, target = (glorot(key, (heads, outputs), heads + outputs) for key in keys[1:])
    return kernel, source, target, jnp.zeros(outputs * (heads if concat else 1)) if use_bias else None


def norm_of(layer: str, normalize: bool, add_self_loops: bool | None) -> Norm:
    """The normalisation that the arguments of a graph convolution ask for."""
    loops = normalize if add_self_loops is None else add_self_loops
    if loops and not normalize:
        raise ValueError(f"{layer}: add_self_loops=True needs normalize=True; make the graph with self_loops=True")
    return None if not normalize else "gcn" if loops else "symmetric"


def linear(x: Any, kernel: Any, bias: Any = None) -> Any:
    """A linear layer, ``x @ kernel + bias``; called within another layer, it counts as part of that one.

    Parameters
    ----------
    x : array (..., inputs)
    kernel : array (inputs, outputs)
    bias : array (outputs,), optional

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bitsparse.jax import layers
    >>> layers.linear(jnp.ones((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)
    """
    with layer() as steps:
        y = steps.linear(x, kernel)
    return y if bias is None else y + bias


def gcn(graph: Graph, x: Any, kernel: Any, bias: Any = None, norm: Norm = "gcn") -> Any:
    """Graph convolution (Kipf and Welling, ICLR 2017, Eq. 2); it sums the features or their product, whichever is narrower.

    Parameters
    ----------
    graph : Graph
    x : array (nodes, inputs)
    kernel : array (inputs, outputs)
    bias : array (outputs,), optional
    norm : {"gcn", "symmetric"}, optional
        As in :func:`bitsparse.jax.spmm`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax import layers
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> layers.gcn(g, jnp.eye(2), jnp.ones((2, 1))).round(4).ravel().tolist()
    [1.0, 1.0]
    """
    inputs, outputs = kernel.shape
    with layer() as steps:
        if outputs <= inputs:
            y = steps.spmm(graph, steps.linear(x, kernel), "sum", norm)
        else:
            y = steps.linear(steps.spmm(graph, x, "sum", norm), kernel)
    return y if bias is None else y + bias


def sage(graph: Graph, x: Any, kernel: Any, bias: Any = None, root: Any = None, aggregation: Reduce = "mean") -> Any:
    """GraphSAGE (Hamilton et al., NeurIPS 2017), ``reduce(neighbours) @ kernel + bias + x @ root``.

    Parameters
    ----------
    graph : Graph
        A graph; its weights are ignored.
    x : array (nodes, inputs), or tuple of arrays
        Features of all nodes, or a pair for (sources, targets).
    kernel : array (inputs, outputs)
    bias : array (outputs,), optional
    root : array (inputs of targets, outputs), optional
    aggregation : {"mean", "sum", "max", "min"}

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax import layers
    >>> g = bsj.graph(jnp.array([[0, 1, 2], [2, 2, 0]]))
    >>> layers.sage(g, jnp.array([[1.0], [3.0], [5.0]]), jnp.ones((1, 1))).ravel().tolist()
    [5.0, 0.0, 2.0]
    """
    sources, targets = x if isinstance(x, tuple) else (x, x)
    graph, (inputs, outputs) = checked("sage", graph).unweighted(), kernel.shape
    with layer() as steps:
        if outputs < inputs and aggregation in ("sum", "mean"):  # then the product may come first
            y = steps.spmm(graph, steps.linear(sources, kernel), aggregation, None)
        else:
            y = steps.linear(steps.spmm(graph, sources, aggregation, None), kernel)
        y = y if bias is None else y + bias
        return y if root is None else y + steps.linear(targets, root)


def gin(graph: Graph, x: Any, network: Callable[[Any], Any], eps: Any = 0.0) -> Any:
    """Graph isomorphism network (Xu et al., ICLR 2019), ``network((1 + eps) x + sum of neighbours)``.

    Parameters
    ----------
    graph : Graph
        A graph; its weights are ignored.
    x : array (nodes, inputs), or tuple of arrays
        Features of all nodes, or a pair for (sources, targets).
    network : callable
        A function of the features of all nodes. Products that it computes by :func:`linear` count as part of this layer.
    eps : float or array ()

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax import layers
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> layers.gin(g, jnp.ones((2, 3)), lambda x: 2 * x)[0].tolist()
    [4.0, 4.0, 4.0]
    """
    sources, targets = x if isinstance(x, tuple) else (x, x)
    with layer() as steps:
        return network((1 + eps) * targets + steps.spmm(checked("gin", graph).unweighted(), sources, "sum", None))


def gat(
    graph: Graph, x: Any, weights: tuple[Any, Any, Any, Any], settings: Heads | None = None, key: Any = None
) -> Any:
    """Graph attention (Velickovic et al., ICLR 2018).

    Parameters
    ----------
    graph : Graph
    x : array (nodes, inputs)
    weights : tuple of arrays
        The kernel of the heads' features (inputs, H, D), two vectors for the scores of both ends (H, D), and a bias or None.
    settings : Heads, optional
    key : key of jax.random, optional
        Decides which weights are dropped; without a key none are.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax import layers
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> layers.gat(g, jnp.ones((2, 3)), (jnp.ones((3, 4, 2)), jnp.ones((4, 2)), jnp.ones((4, 2)), None)).shape
    (2, 8)
    """
    settings = Heads() if settings is None else settings
    kernel, source, target, bias = weights
    rate = 0.0 if key is None else settings.dropout
    graph = checked("gat", graph).with_self_loops() if settings.add_self_loops else graph
    with layer() as steps:
        heads = steps.linear(x, kernel.reshape(len(kernel), -1)).reshape(-1, *kernel.shape[1:])
        y = steps.attention(graph, heads, (source, target), settings.negative_slope, rate, key)
    y = y.reshape(len(y), math.prod(y.shape[1:])) if settings.concat else y.mean(axis=1)
    return y if bias is None else y + bias

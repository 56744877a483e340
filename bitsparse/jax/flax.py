"""Graph layers as modules of Flax (NNX), over a :class:`bitsparse.jax.Graph`. ``import bitsparse.jax.flax`` needs Flax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx

from bitsparse.jax import layers
from bitsparse.jax.graphs import Graph
from bitsparse.jax.quantizer import Reduce

__all__ = ["GATConv", "GCNConv", "GINConv", "SAGEConv"]


def _param(weights: Any) -> Any:
    return None if weights is None else nnx.Param(weights)


def _value(param: Any) -> Any:
    return None if param is None else param[...]


class GCNConv(nnx.Module):
    """Graph convolution, ``D^-1/2 (A + I) D^-1/2 x W + b`` (Kipf and Welling, ICLR 2017).

    Parameters
    ----------
    in_features, out_features : int
    add_self_loops : bool, optional
        Whether missing self loops are added; by default the value of `normalize`.
    normalize, use_bias : bool
    rngs : flax.nnx.Rngs

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax.flax import GCNConv
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> GCNConv(3, 2, rngs=nnx.Rngs(0))(jnp.ones((2, 3)), g).shape
    (2, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        use_bias: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        self.norm = layers.norm_of("GCNConv", normalize, add_self_loops)
        self.kernel, self.bias = map(_param, layers.gcn_weights(rngs.params(), in_features, out_features, use_bias))

    def __call__(self, x: Any, graph: Graph) -> Any:
        """Map features (nodes, in_features) to (nodes, out_features)."""
        return layers.gcn(graph, x, self.kernel[...], _value(self.bias), self.norm)


class SAGEConv(nnx.Module):
    """GraphSAGE (Hamilton et al., NeurIPS 2017): ``reduce(neighbours) W + b + x R``.

    Parameters
    ----------
    in_features : int or tuple of int
        Columns of the features of sources and targets.
    out_features : int
    aggregation : {"mean", "sum", "max", "min"}
    root_weight, use_bias : bool
        Whether the target's own features are added, and whether a bias is added.
    rngs : flax.nnx.Rngs

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax.flax import SAGEConv
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> SAGEConv(3, 2, rngs=nnx.Rngs(0))(jnp.ones((2, 3)), g).shape
    (2, 2)
    """

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        aggregation: Reduce = "mean",
        root_weight: bool = True,
        use_bias: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        self.aggregation = aggregation
        keys = [rngs.params() for _ in range(2)]
        weights = layers.sage_weights(keys, in_features, out_features, root_weight, use_bias)
        self.kernel, self.bias, self.root = map(_param, weights)

    def __call__(self, x: Any, graph: Graph) -> Any:
        """Compute features of the targets from those of all nodes, or from a pair (sources, targets)."""
        bias, root = _value(self.bias), _value(self.root)
        return layers.sage(graph, x, self.kernel[...], bias, root, self.aggregation)


class GINConv(nnx.Module):
    """Graph isomorphism network (Xu et al., ICLR 2019): ``network((1 + eps) x + sum of neighbours)``.

    Parameters
    ----------
    network : callable
        A module or function of the features of all nodes.
    eps : float
    train_eps : bool
        Whether `eps` is learnt.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax.flax import GINConv
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> GINConv(lambda x: 2 * x)(jnp.ones((2, 3)), g)[0].tolist()
    [4.0, 4.0, 4.0]
    """

    def __init__(self, network: Callable[[Any], Any], eps: float = 0.0, train_eps: bool = False) -> None:
        self.network = network
        self.eps = _param(jnp.asarray(float(eps))) if train_eps else float(eps)

    def __call__(self, x: Any, graph: Graph) -> Any:
        """Compute features of the targets from those of all nodes, or from a pair (sources, targets)."""
        return layers.gin(graph, x, self.network, self.eps if isinstance(self.eps, float) else self.eps[...])


class GATConv(nnx.Module):
    """Graph attention (Velickovic et al., ICLR 2018).

    Parameters
    ----------
    in_features, out_features : int
        Columns of the input, and columns of each head's output.
    heads : int
    concat : bool
        Whether the heads are concatenated; otherwise the layer returns their mean.
    negative_slope : float
        The slope of the leaky relu below 0.
    dropout : float
        The share of attention weights that is dropped in calls with a key.
    add_self_loops, use_bias : bool
        Whether nodes attend to themselves, and whether a bias is added.
    rngs : flax.nnx.Rngs

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax.flax import GATConv
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> GATConv(3, 2, heads=4, rngs=nnx.Rngs(0))(jnp.ones((2, 3)), g).shape
    (2, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int = 1,
        *,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        use_bias: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        keys = [rngs.params() for _ in range(3)]
        weights = layers.gat_weights(keys, in_features, heads, out_features, concat, use_bias)
        self.kernel, self.source, self.target, self.bias = map(_param, weights)
        self.settings = layers.Heads(concat, negative_slope, dropout, add_self_loops)

    def __call__(self, x: Any, graph: Graph, *, key: Any = None) -> Any:
        """Compute features of the nodes; a key of jax.random decides which weights are dropped, and without one none are."""
        weights = tuple(map(_value, (self.kernel, self.source, self.target, self.bias)))
        return layers.gat(graph, x, weights, self.settings, key)

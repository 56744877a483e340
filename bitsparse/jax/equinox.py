"""Graph layers as modules of Equinox, over a :class:`bitsparse.jax.Graph`. ``import bitsparse.jax.equinox`` needs Equinox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from bitsparse.jax import layers
from bitsparse.jax.graphs import Graph
from bitsparse.jax.quantizer import Reduce

__all__ = ["GATConv", "GCNConv", "GINConv", "SAGEConv"]


class GCNConv(eqx.Module):
    """Graph convolution, ``D^-1/2 (A + I) D^-1/2 x W + b`` (Kipf and Welling, ICLR 2017).

    Parameters
    ----------
    in_features, out_features : int
    add_self_loops : bool, optional
        Whether missing self loops are added; by default the value of `normalize`.
    normalize, use_bias : bool
    key : key of jax.random

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax.equinox import GCNConv
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> GCNConv(3, 2, key=jax.random.key(0))(jnp.ones((2, 3)), g).shape
    (2, 2)
    """

    kernel: Any
    bias: Any
    norm: Literal["gcn", "symmetric"] | None = eqx.field(static=True)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        use_bias: bool = True,
        key: Any,
    ) -> None:
        self.norm = layers.norm_of("GCNConv", normalize, add_self_loops)
        self.kernel, self.bias = layers.gcn_weights(key, in_features, out_features, use_bias)

    def __call__(self, x: Any, graph: Graph) -> Any:
        """Map features (nodes, in_features) to (nodes, out_features)."""
        return layers.gcn(graph, x, self.kernel, self.bias, self.norm)


class SAGEConv(eqx.Module):
    """GraphSAGE (Hamilton et al., NeurIPS 2017): ``reduce(neighbours) W + b + x R``.

    Parameters
    ----------
    in_features : int or tuple of int
        Columns of the features of sources and targets.
    out_features : int
    aggregation : {"mean", "sum", "max", "min"}
    root_weight, use_bias : bool
        Whether the target's own features are added, and whether a bias is added.
    key : key of jax.random

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax.equinox import SAGEConv
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> SAGEConv(3, 2, key=jax.random.key(0))(jnp.ones((2, 3)), g).shape
    (2, 2)
    """

    kernel: Any
    bias: Any
    root: Any
    aggregation: Reduce = eqx.field(static=True)

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        aggregation: Reduce = "mean",
        root_weight: bool = True,
        use_bias: bool = True,
        key: Any,
    ) -> None:
        self.aggregation = aggregation
        weights = layers.sage_weights(jax.random.split(key), in_features, out_features, root_weight, use_bias)
        self.kernel, self.bias, self.root = weights

    def __call__(self, x: Any, graph: Graph) -> Any:
        """Compute features of the targets from those of all nodes, or from a pair (sources, targets)."""
        bias, root = self.bias, self.root
        return layers.sage(graph, x, self.kernel, bias, root, self.aggregation)


class GINConv(eqx.Module):
    """Graph isomorphism network (Xu et al., ICLR 2019): ``network((1 + eps) x + sum of neighbours)``.

    Parameters
    ----------
    network : callable
        A function of the features of all nodes; wrap a module that takes a single node in ``jax.vmap``.
    eps : float
    train_eps : bool
        Whether `eps` is learnt.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax.equinox import GINConv
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> GINConv(lambda x: 2 * x)(jnp.ones((2, 3)), g)[0].tolist()
    [4.0, 4.0, 4.0]
    """

    network: Callable[[Any], Any]
    eps: Any

    def __init__(self, network: Callable[[Any], Any], eps: float = 0.0, train_eps: bool = False) -> None:
        self.network = network
        self.eps = jnp.asarray(float(eps)) if train_eps else float(eps)

    def __call__(self, x: Any, graph: Graph) -> Any:
        """Compute features of the targets from those of all nodes, or from a pair (sources, targets)."""
        return layers.gin(graph, x, self.network, self.eps)


class GATConv(eqx.Module):
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
    key : key of jax.random

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import bitsparse.jax as bsj
    >>> from bitsparse.jax.equinox import GATConv
    >>> g = bsj.graph(jnp.array([[0, 1], [1, 0]]))
    >>> GATConv(3, 2, heads=4, key=jax.random.key(0))(jnp.ones((2, 3)), g).shape
    (2, 8)
    """

    kernel: Any
    source: Any
    target: Any
    bias: Any
    settings: layers.Heads = eqx.field(static=True)

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
        key: Any,
    ) -> None:
        weights = layers.gat_weights(jax.random.split(key, 3), in_features, heads, out_features, concat, use_bias)
        self.kernel, self.source, self.target, self.bias = weights
        self.settings = layers.Heads(concat, negative_slope, dropout, add_self_loops)

    def __call__(self, x: Any, graph: Graph, *, key: Any = None) -> Any:
        """Compute features of the nodes; a key of jax.random decides which weights are dropped, and without one none are."""
        weights = (self.kernel, self.source, self.target, self.bias)
        return layers.gat(graph, x, weights, self.settings, key)

"""Making low-bit networks from networks in full precision: a sample of the graph gives grids, codes and corrections, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse.graph.adjacency import refuse_weights, square_sparse
from bitsparse.nn.checks import agree
from bitsparse.nn.features import Features, rows_of
from bitsparse.nn.full.network import Network
from bitsparse.nn.lowbit.network import LowBitNetwork
from bitsparse.nn.lowbit.walk import Walk
from bitsparse.ops import choose_bits

_Array = NDArray[np.float64]
MAX_BITS = 16


def quantize_network(
    network: Network,
    graph: Any,
    features: Any,
    bits: int | Sequence[int] | str = 8,
    *,
    sample: int = 8192,
    seed: int = 0,
) -> LowBitNetwork:
    """Quantise a trained network, guided only by its own outputs in full precision.

    One walk through the network computes each product on a sample of the graph, in full precision and in bits. Every grid has one step for
    each column, which becomes part of the weights that multiply its codes. Grids have the least squared error; with up to 4 bits the error
    is measured after the sums over neighbours and the activation that follow. With up to 4 bits, weights are also fitted again to the codes
    that they multiply, and their own codes are chosen together (:func:`~bitsparse.nn.lowbit.calibration.refine_codes`). A slope and a shift
    per column match each product to full precision (Nagel et al. 2019, section 4). With 1 and 2 bits the last layer is matched by its class
    probabilities instead of its logits (:mod:`bitsparse.nn.lowbit.classes`). Labels and masks are not used.

    Parameters
    ----------
    network : Network
    graph : scipy.sparse array (n, n) or GraphData
        The graph that the network will run on, or a similar one. Edge weights other than 1 are refused.
    features : array (n, features), SciPy sparse array or Features
        Features of the graph's nodes. Only the sampled rows of memory-mapped arrays are read. :class:`Features` without negative values
        keep a scale for each row if the first layer multiplies before it sums, as in a GCN; the network then takes only such features.
    bits : int, sequence of int, or "choose", default 8
        1..16, for all layers or for each: the bits of a layer's input, of its weights and of its intermediate results. ``"choose"`` takes
        for each layer the fewest bits in 2..8 that represent its full-precision output well enough (:func:`bitsparse.choose_bits`);
        :func:`tune_bits` measures accuracies instead.
    sample : int, default 8192
        The most nodes to calibrate on. The sample of a larger graph are neighbourhoods grown around random nodes, with the edges among
        them. For sums that are not divided (GIN), its degrees should be about those of the graph that the network will run on, because
        larger sums are clipped.
    seed : int, default 0
        The seed of the sample.

    Returns
    -------
    LowBitNetwork

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Graph, features and network do not fit together, the graph has edge weights, the features hold NaN, `bits` is out of
        range, or the network has something that low-bit networks do not have (:meth:`Network.unusual`).

    Notes
    -----
    If a self loop is stored, a low-bit GIN with ``eps=0`` counts a node's own features once, a :class:`Network` twice.

    Examples
    --------
    >>> from scipy import sparse
    >>> from bitsparse import nn
    >>> graph = sparse.csr_array(np.kron(np.eye(2), np.ones((4, 4))))
    >>> network = nn.Network("gin", [nn.Layer([nn.Dense([[1.0, -1.0], [-1.0, 1.0]])])])
    >>> nn.quantize_network(network, graph, np.kron(np.eye(2), np.ones((4, 1))), bits=4)
    <LowBitNetwork gin 2 -> 2, bits 4, 184 B>
    """
    function = "quantize_network"
    _check.instance(function, "network", network, Network, "an nn.Network", "see nn.load_state_dict")
    of_rows = features if isinstance(features, Features) else None
    graph, features = graph_and_features(function, graph, features)
    wanted = (graph.shape[0], network.features)
    agree(function, "features have shape", tuple(features.shape), "graph and network take", wanted)
    why = network.unusual()
    if why:
        raise ValueError(f"{function}: {why}, which low-bit networks do not have yet; run it in full precision")
    nodes = sample_nodes(graph, _check.integer(function, "sample", sample, 1), seed)
    values = _rows_of(features, nodes)
    _check.finite(function, "features", bool(np.isfinite(values).all()))
    near = graph.tocsr() if nodes is None else graph.tocsr()[nodes][:, nodes]
    of_layers, rounded = layer_bits(network, near, values, bits), None
    if of_rows is not None and network.multiplies_first(network.layers[0]):
        negative = of_rows.quantized(of_layers[0]).offset is not None
        rounded = None if negative else _rows_of(of_rows.rounded(of_layers[0]), nodes)
    return Walk(network, near, values, of_layers, rounded).run()


def _rows_of(features: Any, nodes: NDArray[np.int64] | None) -> _Array:
    """The features of some nodes, or of all (None), as a dense array."""
    rows = features if nodes is None else features[nodes]
    return np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype=np.float64)


def graph_and_features(function: str, graph: Any, features: Any) -> tuple[Any, Any]:
    """Convert a graph without weights to a SciPy sparse array, and features to an array or a SciPy sparse array.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        The graph is neither a sparse array nor a GraphData, is not square or has edge weights, or the features are not numbers.
    """
    adjacency = square_sparse(function, getattr(graph, "adjacency", graph), "the graph")
    refuse_weights(function, graph)
    return adjacency, rows_of(function, features)


def layer_bits(network: Network, graph: Any, features: Any, bits: int | Sequence[int] | str) -> list[int]:
    """The bits of each layer, as given, or chosen from its output in full precision."""
    function, depth = "quantize_network", len(network.layers)
    if isinstance(bits, str):
        _check.choice(function, "bits", bits, ("choose",))
        graph_sums = network.sums(graph)
        x, found = np.asarray(features, np.float32), []
        for layer in network.layers:
            x = np.asarray(network.run_layer(layer, graph_sums, x), np.float32)
            found.append(choose_bits(x) if x.size else 8)
        return found
    given = [bits] * depth if np.ndim(bits) == 0 else list(bits)  # type: ignore[arg-type]
    if len(given) != depth:
        raise ValueError(
            f"{function}: bits has {len(given)} numbers for {depth} layers; pass one number, or one for each layer"
        )
    return [_check.integer(function, "bits", one, 1, MAX_BITS) for one in given]


def sample_nodes(graph: Any, count: int, seed: int = 0) -> NDArray[np.int64] | None:
    """Ascending numbers of ``count`` nodes in neighbourhoods around random nodes; None if the graph has no more nodes than that.

    >>> from scipy import sparse
    >>> ring = sparse.csr_array(np.roll(np.eye(100), 1, axis=1))
    >>> sample_nodes(ring, 10).size, sample_nodes(ring, 100)
    (10, None)
    """
    n = graph.shape[0]
    if n <= count:
        return None
    csr = graph.tocsr()
    rng = np.random.default_rng(seed)
    taken = np.zeros(n, np.bool_)
    left = count
    while left:
        front = rng.choice(np.flatnonzero(~taken), min(left, max(1, count // 64)), replace=False)
        for _ in range(3):
            front = np.unique(front[~taken[front]])
            front = front if front.size <= left else np.sort(rng.choice(front, left, replace=False))
            taken[front] = True
            left -= front.size
            if not left or not front.size:
                break
            near = csr[front].indices
            front = near if near.size <= 8 * count else rng.choice(near, 8 * count, replace=False)
    return np.flatnonzero(taken)

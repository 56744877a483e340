"""Making a low-bit network from one in full precision: grids, weights and corrections from a sample of the graph, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, interop
from bitsparse.errors import ShapeError
from bitsparse.graph.adjacency import refuse_weights, square_sparse
from bitsparse.nn.features import Features
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
    """Quantise a trained network after its training, with nothing but its own full-precision outputs as a guide.

    The network is walked through once on a sample of the graph, product by product, in full precision and in bits side by
    side. Every grid has one step to a column, which the product that reads the codes takes into its weights. Grids have the
    least squared error, with up to 4 bits after the sums over neighbours and the activation behind them. With up to 4 bits
    weights are fitted again to the codes that they multiply and their own codes chosen together
    (:func:`~bitsparse.nn.lowbit.calibration.refine_codes`). A slope and a shift per column match each product to full precision
    (Nagel et al. 2019, section 4). With 1 and 2 bits a last layer is matched by its class probabilities instead of its logits
    (:mod:`bitsparse.nn.lowbit.classes`). Neither labels nor masks are looked at.

    Parameters
    ----------
    network : Network
    graph : scipy.sparse array (n, n) or GraphData
        The graph that it will run on, or one like it. Edge weights other than 1 are refused.
    features : array (n, features), SciPy sparse array or Features
        Of its nodes; memory-mapped arrays are read at the sampled rows only. :class:`Features` without negative values keep a scale for
        each row where the first layer multiplies before it sums, as a GCN's does; the network then reads such features only.
    bits : int, sequence of int, or "choose", default 8
        1..16, for all layers or for each: bits of its input, of its weights and of what it hands on inside. ``"choose"``
        takes for each layer the fewest bits in 2..8 that hold its full-precision output well enough
        (:func:`bitsparse.choose_bits`); :func:`tune_bits` measures instead.
    sample : int, default 8192
        Nodes to calibrate on: all, or neighbourhoods grown around random nodes, and the edges among them. Where sums are not
        divided (GIN) the sample should have about the degrees of what the network will run on: larger sums are clipped.
    seed : int, default 0
        Of the sample.

    Returns
    -------
    LowBitNetwork

    Raises
    ------
    ShapeError, DTypeError, ValueError
        Graph, features and network do not fit together, the graph has edge weights, the features hold NaN, `bits` is out of
        range, or the network has what low-bit networks have not (:meth:`Network.unusual`).

    Notes
    -----
    Of a directed graph, the right-hand factors of a low-bit GCN are made from the edges that leave a node, where :class:`Network` takes
    those that arrive, as PyTorch Geometric; of stored self loops a low-bit GIN with ``eps=0`` counts one in all, a Network one more.
    On symmetric graphs without self loops both are the same.

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
    if tuple(features.shape) != (graph.shape[0], network.features):
        raise ShapeError(
            f"{function}: features have shape {tuple(features.shape)}, but graph and network ask for {(graph.shape[0], network.features)}"
        )
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
    """Features of some nodes (None: of all) as a dense array."""
    rows = features if nodes is None else features[nodes]
    return np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype=np.float64)


def graph_and_features(function: str, graph: Any, features: Any) -> tuple[Any, Any]:
    """A graph without weights as a SciPy sparse array, and features whose rows can be taken: an array or a SciPy sparse array.

    Raises
    ------
    ShapeError, DTypeError, ValueError
        The graph is neither a sparse array nor a GraphData, not square, or has edge weights; the features are no numbers.
    """
    from scipy import sparse

    adjacency = square_sparse(function, getattr(graph, "adjacency", graph), "the graph")
    refuse_weights(function, graph)
    if isinstance(features, Features):
        features = features.csr
    if sparse.issparse(features):
        features = features.tocsr()
    elif not isinstance(features, np.ndarray):  # a memory-mapped array stays one
        features = interop.as_host(features, function, "features")
    _check.numeric(function, "features", features)
    return adjacency, features


def layer_bits(network: Network, graph: Any, features: Any, bits: int | Sequence[int] | str) -> list[int]:
    """Bits of each layer: as given, or chosen from its output in full precision."""
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
    """Neighbourhoods around random nodes, ``count`` nodes together, ascending; None if there are no more.

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

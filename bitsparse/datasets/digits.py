"""A real graph from data that comes with scikit-learn: nearest neighbours among its handwritten digits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bitsparse import _check
from bitsparse.datasets.graph_data import GraphData
from bitsparse.datasets.sources import graph_of_pairs


def digits(neighbors: int = 10, *, seed: int = 0) -> GraphData:
    """The k-nearest-neighbour graph of scikit-learn's digits: 1797 images of 8 x 8 pixels, ten classes.

    An edge joins two images if one is among the other's nearest neighbours by Euclidean distance. Features are the pixels, 0..16.

    Parameters
    ----------
    neighbors : int, default 10
    seed : int, default 0
        Seed of the split into 20 training nodes per class, 500 nodes for validation and 1000 for testing.

    Returns
    -------
    GraphData

    Raises
    ------
    ImportError
        scikit-learn is not installed.
    ValueError
        `neighbors` is not in 1..1796.

    Examples
    --------
    >>> from bitsparse.datasets import digits
    >>> graph = digits()
    >>> graph.num_nodes, graph.num_classes, int(graph.test_mask.sum())
    (1797, 10, 1000)
    """
    with _check.extra("digits", "sklearn", "scikit-learn", "data"):
        from sklearn.datasets import load_digits
        from sklearn.neighbors import kneighbors_graph
    pixels, labels = load_digits(return_X_y=True)
    if not 1 <= neighbors < len(pixels):
        raise ValueError(f"digits: neighbors must lie in 1..{len(pixels) - 1}, got {neighbors}")
    rows, cols = kneighbors_graph(pixels, neighbors, mode="connectivity").nonzero()
    graph = graph_of_pairs(rows, cols, len(pixels), "digits", mirrored=1)
    return replace(graph, x=pixels.astype(np.float32), labels=labels.astype(np.int32)).with_split(seed=seed)

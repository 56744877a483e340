"""Networks with seeded weights, for benchmarks and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bitsparse import _check
from bitsparse.nn.full.network import Network
from bitsparse.nn.layers import Dense, GraphKind, Layer, glorot
from bitsparse.ops import BatchNorm

__all__ = ["random_network"]


def random_network(
    kind: GraphKind, widths: Sequence[int], *, seed: int = 0, bias: bool = True, batch_norm: bool = False
) -> Network:
    """A network with seeded Glorot weights and relu between the layers, for benchmarks and tests.

    Parameters
    ----------
    kind : {"gcn", "sage", "gin"}
        A GIN has one product to a layer, as QGTC's.
    widths : sequence of int
        Features of the input, then of each layer's result: ``[in, 16, 16, classes]``.
    seed : int, default 0
    bias, batch_norm : bool
        Whether there are biases, and batch norm in front of each relu.

    Examples
    --------
    >>> from bitsparse import nn
    >>> nn.random_network("gcn", [128, 16, 16, 40])
    <Network gcn 128 -> 16 -> 16 -> 40>
    """
    rng = np.random.default_rng(_check.integer("random_network", "seed", seed, 0))
    layers = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        dense = Dense(glorot(rng, inputs, outputs), activation=None if last else "relu")
        if bias:
            dense = replace(dense, bias=rng.normal(scale=0.1, size=outputs).astype(np.float32))
        if batch_norm and not last:
            mean, shift = rng.normal(scale=0.1, size=(2, outputs))
            var, weight = rng.uniform(0.5, 1.5, (2, outputs))
            dense = replace(dense, batch_norm=BatchNorm(mean, var, weight, shift))
        layers.append(Layer((dense,), own=glorot(rng, inputs, outputs) if kind == "sage" else None))
    return Network(kind, layers)

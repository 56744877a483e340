"""Low-bit graph networks written out plainly in NumPy, as the reference of tests."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from bitsparse import nn
from bitsparse.backends.reference import scalar
from bitsparse.graph import Graph

KINDS = ("gcn", "sage", "gin")


def random_graph(n, rng, density=0.06):
    """A symmetric pattern without self-loops, in which some nodes have no edge."""
    a = (rng.random((n, n)) < density).astype(np.int8)
    a[rng.random(n) < 0.1] = 0
    np.fill_diagonal(a, 0)
    return sparse.csr_array(np.minimum(a, a.T))


def operand(graph, model, form="csr", device="cpu"):
    return Graph.from_csr(
        graph.indptr,
        graph.indices,
        normalisation=model.normalisation,
        self_loops=model.self_loops,
        form=form,
        device=device,
    )


def chained(sums, chain, rows, term=None):
    """The steps after a product, each rounded to float32; the result is codes if the chain asks for them."""
    f = np.float32
    v = sums.astype(f)
    if rows is not None:
        v = v * rows[:, None]
    v = v * chain.col_scale
    if term is not None:
        v = v + term[0][:, None] * term[1]
    v = v + chain.bias
    if chain.activation == "relu":
        v = np.where(v > 0, v, f(0))
    elif chain.activation == "leaky_relu":
        v = np.where(v >= 0, v, v * f(0.01))
    elif chain.activation == "tanh":
        v = scalar.tanh(v)
    assert v.dtype == f
    if chain.bits is None:
        return v
    step, low = (f(1), f(0)) if chain.grid is None else chain.grid
    top = 2**chain.bits - 1
    extent = (np.asarray(step, np.float64) * top).astype(f)
    return np.clip(np.rint(((v - low) / extent) * f(top)), 0, top).astype(np.int64)


def logits(model, graph, x):
    """The network's output, with its steps run on dense integers."""
    pattern = (graph.toarray() != 0).astype(np.int64)
    if model.self_loops:
        np.fill_diagonal(pattern, 1)
    degrees = pattern.sum(axis=1)
    with np.errstate(divide="ignore"):
        inverse = {"gcn": lambda d: 1 / np.sqrt(d), "mean": lambda d: 1 / d, "sum": lambda d: np.ones(d.shape)}
        factors = np.where(degrees > 0, inverse[model.normalisation](degrees.astype(np.float64)), 0).astype(np.float32)
    step, low = model.input_grid
    top = 2**model.input_bits - 1
    stop = low.astype(np.float64) + step.astype(np.float64) * top
    kind = np.float64 if model.input_bits > 24 else np.float32
    offset = low.astype(kind)
    codes = np.clip(np.rint(((x - offset) / (stop.astype(kind) - offset)) * kind(top)), 0, top).astype(np.int64)
    value = codes
    for each in model.steps:
        if hasattr(each, "weights"):
            rows = factors if each.scaled else None
            term = None if each.constant is None else (factors, each.constant)
            value = chained(value @ each.weights.toarray(np.int64), each.chain, rows, term)
        else:
            rows = None if model.normalisation == "sum" else factors
            term = None
            if each.offset is not None:
                both = degrees.astype(np.float64) * (1 if rows is None else rows.astype(np.float64))
                # As in the epilogue: the column's factor multiplies the offset, and each of the two results is rounded once.
                scaled = each.offset.astype(np.float64) * each.chain.col_scale.astype(np.float64)
                term = both.astype(np.float32), scaled.astype(np.float32)
            found = chained(pattern @ value, each.chain, rows, term)
            if each.own:
                pad = np.zeros((len(value), -each.columns % 128), np.int64)
                found = np.hstack((found, pad, value))
            value = found
    return value


def network(kind, widths, rng, activation="relu", batch_norm=False, eps=0.0, perceptron=False):
    """A network with random weights; with ``perceptron`` each layer (of a GIN) has two products."""
    made = nn.random_network(kind, widths, seed=int(rng.integers(1 << 30)), batch_norm=batch_norm)
    layers = []
    for i, layer in enumerate(made.layers):
        updates = [layer.updates[0]]
        first = updates[0]
        if activation != "relu" and first.activation:
            updates = [nn.Dense(first.weight, first.bias, first.batch_norm, activation)]
        if perceptron:
            wide = rng.normal(size=(first.weight.shape[0], 10)) / 3
            narrow = rng.normal(size=(10, first.weight.shape[1])) / 3
            updates = [nn.Dense(wide, None, None, "relu"), nn.Dense(narrow, first.bias, None, first.activation)]
        layers.append(nn.Layer(updates, layer.own, eps + 0.25 * i if eps else 0.0))
    return nn.Network(kind, layers)

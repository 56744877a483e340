"""Small binary networks, and their computation written out in NumPy and float64 for comparison."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

import bitsparse as bs
from bitsparse import nn


def random_graph(n: int, rng: np.random.Generator) -> sp.csr_array:
    """A symmetric graph with a hub, some nodes with one neighbour and some with none."""
    dense = rng.random((n, n)) < 3.0 / n
    dense[0, : n // 2] = True
    dense |= dense.T
    dense[-3:], dense[:, -3:] = False, False
    dense[-2, 1] = dense[1, -2] = True
    np.fill_diagonal(dense, False)
    return sp.csr_array(dense)


def linear(k: int, n: int, rng: np.random.Generator, bias: bool = True) -> nn.BinaryLinear:
    return nn.BinaryLinear.from_weights(rng.normal(size=(k, n)), rng.normal(size=n) if bias else None)


def gcn(sizes: list[int], rng: np.random.Generator, variants: object = "full") -> nn.BinaryGCN:
    norm = bs.BatchNorm(rng.normal(size=sizes[0]), rng.random(sizes[0]) + 0.5)
    layers = [linear(k, n, rng) for k, n in pairwise(sizes)]
    return nn.BinaryGCN(layers, variants, input_norm=norm)


# All messages have a bias: without one, sums of equal magnitudes may cancel to a zero, which float32 rounds to either sign.
def sage(sizes: list[int], rng: np.random.Generator, variants: object = "full") -> nn.BinarySAGE:
    pairs = [(linear(k, n, rng, bias=False), linear(k, n, rng)) for k, n in pairwise(sizes)]
    return nn.BinarySAGE(pairs, variants)


def saint(
    sizes: list[int], classes: int, rng: np.random.Generator, variants: object = "full", dense: bool = False
) -> nn.BinarySAINT:
    pairs = [(linear(k, n, rng, bias=False), linear(k, n, rng)) for k, n in pairwise(sizes)]
    width = sum(sizes[1:])
    head = (rng.normal(size=(width, classes)), rng.normal(size=classes)) if dense else linear(width, classes, rng)
    return nn.BinarySAINT(pairs, head, variants)


def signs(x: np.ndarray) -> np.ndarray:
    # Values that float32 may round to either sign count as zero here, and the sign of zero is +1; the tests avoid such values.
    return np.where(x >= -1e-9, 1.0, -1.0)


# A letter is the precision of an operand or result: "F" for full precision, "B" for signs.
def product(x: np.ndarray, letter: str, part: nn.BinaryLinear, norm: object = None) -> np.ndarray:
    if letter == "F" and norm == "rows":
        x = x - x.mean(axis=1, keepdims=True)
        x = x / (x.std(axis=1, ddof=1, keepdims=True) + 1e-4)
    alpha = np.abs(x).mean(axis=1, keepdims=True) if letter == "F" else 1.0
    weights = part.signs.toarray().astype(np.float64) * (1.0 if part.scale is None else part.scale)
    return alpha * (signs(x) @ weights) + (0.0 if part.bias is None else part.bias)


def as_letter(x: np.ndarray, letter: str) -> np.ndarray:
    return signs(x) if letter == "B" else x


def expected(model: Any, graph: sp.csr_array, x: np.ndarray, packed: bool = False) -> np.ndarray:
    """Logits of the model. They are the same for packed input, which keeps its magnitudes as a scale."""
    x = x.astype(np.float64)
    norm: Any = model.input_norm
    if not isinstance(norm, str | None):
        x = x * norm.scale.astype(np.float64) + norm.shift
    if isinstance(model, nn.BinaryGCN):
        return _gcn(model, graph, x)
    plain = graph.toarray().astype(np.float64)
    if isinstance(model, nn.BinarySAGE):
        plain /= np.maximum(plain.sum(axis=1, keepdims=True), 1)
    results = []
    for i, ((own, near), setting) in enumerate(zip(model.layers, model.settings, strict=True)):
        letter = "F" if i == 0 else setting.reads
        total = plain @ as_letter(product(x, letter, near, model.input_norm), setting.message)
        beside = product(x, letter, own, model.input_norm)
        if setting.aggregate == "B":
            total, beside = signs(total), signs(beside)
        x = as_letter(total + beside, setting.gives)
        results.append(x)
    if isinstance(model, nn.BinarySAGE):
        return x
    together = np.concatenate(results, axis=1)
    if isinstance(model.head, nn.BinaryLinear):
        return product(together, model.settings[-1].gives, model.head)
    return together @ model.head[0].astype(np.float64) + model.head[1]


def _gcn(model: nn.BinaryGCN, graph: sp.csr_array, x: np.ndarray) -> np.ndarray:
    pattern = graph.toarray().astype(np.float64) + np.eye(graph.shape[0])
    degree = 1 / np.sqrt(pattern.sum(axis=1))
    scaled = degree[:, None] * pattern * degree
    for i, (part, setting) in enumerate(zip(model.layers, model.settings, strict=True)):
        letter = "F" if i == 0 else setting.reads
        messages = as_letter(product(x, letter, part, model.input_norm), setting.message)
        x = as_letter((scaled if setting.scaled else pattern) @ messages, setting.gives)
    return x

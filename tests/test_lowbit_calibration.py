"""Calibration after training matches columns and chooses the codes of weights together; each of these must reduce the error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lowbit_networks import KINDS, network, operand, random_graph

from bitsparse import nn
from bitsparse.nn.lowbit import walk as lowbit_calibration
from bitsparse.nn.lowbit.calibration import grid_through, nearest_codes
from bitsparse.nn.lowbit.classes import grid_for_classes, log_softmax, match_classes
from bitsparse.nn.lowbit.walk import Walk

column_match, refine_codes = lowbit_calibration.column_match, lowbit_calibration.refine_codes


def setting(kind: str, seed: int = 0) -> tuple[Any, Any, np.ndarray]:
    """Return a graph, a network of three layers, and features."""
    rng = np.random.default_rng(seed)
    graph, full = random_graph(120, rng), network(kind, [24, 16, 16, 5], rng)
    return graph, full, rng.normal(size=(120, 24)).astype(np.float32)


def logits(kind: str, bits: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of a low-bit network and of the full-precision one, on the calibration graph."""
    graph, full, x = setting(kind, seed)
    model = nn.quantize_network(full, graph, x, bits)
    return np.asarray(model(operand(graph, model), model.quantize(x)), np.float64), full(graph, x).astype(np.float64)


def mean_error(kind: str, bits: int) -> float:
    errors = []
    for seed in range(4):
        found, exact = logits(kind, bits, seed)
        errors.append(np.linalg.norm(found - exact) / np.linalg.norm(exact - exact.mean(axis=0)))
    return float(np.mean(errors))


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """``replaced(name, function, which)`` lets `function` do the calls of a calibration step, or only the one numbered `which`."""

    def replace(name: str, function: Any, which: int | None = None) -> list[int]:
        calls: list[int] = []
        real = {"column_match": column_match, "refine_codes": refine_codes}[name]

        def step(*given: Any, **named: Any) -> Any:
            calls.append(len(calls))
            return (function if which in (None, calls[-1]) else real)(*given, **named)

        monkeypatch.setattr(lowbit_calibration, name, step)
        return calls

    return replace


def unmatched(reference: np.ndarray, measured: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return slopes of 1 and shifts of 0, which correct nothing."""
    return np.ones(reference.shape[1]), np.zeros(reference.shape[1])


def unrefined(inputs: Any, weights: Any, codes: np.ndarray, step: np.ndarray, *rest: Any, **named: Any) -> Any:
    """Return the codes unchanged."""
    return codes, step


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_have_no_bias_in_any_column(kind: str, bits: int) -> None:
    """The error left by matching each product to full precision with a line must have zero mean and correlate with no column."""
    found, exact = logits(kind, bits)
    spread = exact.std(axis=0)
    left = found - exact
    assert (np.abs(left.mean(axis=0)) < 1e-4 * spread).all()
    assert (np.abs((left * (found - found.mean(axis=0))).mean(axis=0)) < 1e-4 * spread**2).all()


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_no_class_is_preferred_in_very_few_bits(kind: str, bits: int) -> None:
    """The last layer is matched by class probabilities, so the divergence must have no slope, and no class may be larger on average."""
    found, exact = logits(kind, bits)
    left = np.exp(log_softmax(found)) - np.exp(log_softmax(exact))
    assert (np.abs(left.mean(axis=0)) < 1e-3).all()
    assert (np.abs((left * (found - found.mean(axis=0))).mean(axis=0)) < 1e-3 * found.std(axis=0)).all()


def divergence(found: np.ndarray, exact: np.ndarray) -> float:
    """Return the Kullback-Leibler divergence of the class probabilities, averaged over nodes."""
    p, q = log_softmax(exact), log_softmax(found)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def test_grids_of_logits_are_chosen_for_class_probabilities() -> None:
    bits = 2
    rng = np.random.default_rng(0)
    exact = 3 * rng.normal(size=(300, 5))
    values = exact + rng.normal(size=exact.shape)

    def diverges(grid: Any) -> float:
        received = grid[0] * nearest_codes(values, *grid, bits) + grid[1]
        slope, shift = match_classes(exact, received, *column_match(exact, received))
        return divergence(slope * received + shift, exact)

    chosen = diverges(grid_for_classes(values, bits, np.copy, exact))
    assert chosen < 0.95 * diverges(grid_through(values, bits, np.copy, np.exp(log_softmax(exact))))
    assert chosen < 0.95 * diverges(grid_through(values, bits, np.copy, exact))
    one = exact[:, :1]  # a single column is no choice of a class
    assert match_classes(one, one, np.full(1, 2.0), np.zeros(1)) == (2.0, 0.0)
    assert grid_for_classes(values[:, :1], bits, np.copy, one)[0].shape == (1,)


def test_logits_of_classes_told_apart_without_an_error_stay_in_their_range() -> None:
    """Logits that separate classes without an error must stay in range: growth always lowers the divergence, so only the limit ends it."""
    grown = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        exact = 100 * rng.normal(size=(40, 2))
        received = exact + 10 * rng.normal(size=exact.shape)
        start = column_match(exact, received)
        slope, shift = match_classes(exact, received, *start)
        logits = slope * received + shift
        assert divergence(logits, exact) <= divergence(start[0] * received + start[1], exact)
        grown.append(np.abs(logits).max() / np.abs(exact).max())
    assert max(grown) < 4.5


def test_columns_that_vary_by_rounding_alone_are_constant() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(50, 200))
    measured = 1000 + 1e-13 * rng.normal(size=reference.shape)
    assert (measured.std(axis=0) > 0).all()
    slope, shift = column_match(reference, measured)
    assert (slope == 1).all()
    np.testing.assert_allclose(shift, reference.mean(axis=0) - 1000)
    far = column_match(reference, -1e6 * reference)  # the slope with the least squared error would be useless
    np.testing.assert_allclose(far[0], 1e-6)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_grids_are_chosen_for_what_an_activation_lets_pass(bits: int) -> None:
    values = np.random.default_rng(0).normal(size=(300, 5)) - 0.5

    def error(grid: Any) -> Any:
        received = grid[0] * nearest_codes(values, *grid, bits) + grid[1]
        slope, shift = column_match(values, received)
        return ((relu(slope * received + shift) - relu(values)) ** 2).sum(axis=0)

    def relu(x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0)

    with_it, without = (error(grid_through(values, bits, np.copy, values, then=then)) for then in (relu, np.asarray))
    assert (with_it <= without).all() and with_it.sum() < 0.9 * without.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_are_not_matched_cost_accuracy(kind: str, replaced: Any) -> None:
    matched = mean_error(kind, 3)
    replaced("column_match", unmatched)
    assert mean_error(kind, 3) > 1.02 * matched


@pytest.mark.parametrize("kind", KINDS)
def test_every_product_and_every_sum_is_matched(kind: str, replaced: Any) -> None:
    """Every layer must have two corrections, one of the sums and one of the product, each of which changes the network."""
    graph, full, x = setting(kind)
    calls = replaced("column_match", column_match)
    model = nn.quantize_network(full, graph, x, 3)
    assert len(calls) == len(model.steps) == 2 * len(full.layers)
    for number in range(len(model.steps)):
        replaced("column_match", unmatched, number)
        assert nn.quantize_network(full, graph, x, 3).fingerprint() != model.fingerprint(), number


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_weights_are_chosen_together_for_the_product_that_they_are_in(bits: int) -> None:
    graph, full, x = setting("gcn")
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(24, 16))
    inputs = rng.integers(0, 2**bits, (100, 24)).astype(np.float64)  # too few rows to fit the weights again
    walk = Walk(full, graph, x.astype(np.float64), [bits] * 3)
    (together, scale), (alone, step) = (walk.weights(weight, bits, given, inputs @ weight) for given in (inputs, None))
    errors = [
        np.linalg.norm(inputs @ (codes * size - weight), axis=0) for codes, size in ((together, scale), (alone, step))
    ]
    assert (errors[0] < errors[1]).all() and errors[0].mean() < 0.9 * errors[1].mean()
    assert together.min() >= -(2 ** (bits - 1)) and together.max() < 2 ** (bits - 1)


@pytest.mark.parametrize(("bits", "refined"), [(1, 3), (2, 3), (4, 3), (5, 0), (8, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_few_bits_are_chosen_together(kind: str, bits: int, refined: int, replaced: Any) -> None:
    """Weights of every product with up to 4 bits must be refined, each changing the network; more bits have little to gain."""
    graph, full, x = setting(kind)
    calls = replaced("refine_codes", refine_codes)
    model = nn.quantize_network(full, graph, x, bits)
    assert len(calls) == refined
    changed = []
    for number in range(refined):
        replaced("refine_codes", unrefined, number)
        changed.append(nn.quantize_network(full, graph, x, bits).fingerprint() != model.fingerprint())
    # With one bit few codes change, and in a product with few different inputs none at all.
    assert all(changed) if bits > 1 else any(changed)

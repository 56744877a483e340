"""Calibrating the last layer of a network in few bits by its class probabilities instead of its logits.

The rounding error of a logit matters only near a border between classes. The measure is the Kullback-Leibler divergence of the class
probabilities in bits from those in full precision, averaged over nodes (the loss of distillation, Hinton et al. 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from bitsparse.nn.dense import activated
from bitsparse.nn.lowbit.calibration import Array, Grid, column_match, grid_through, nearest_codes, variants

#: The most steps of Newton's method, the most halvings of a step, and the gain below which the search ends.
_STEPS, _HALVINGS, _GAIN = 10, 6, 1e-7
#: The factor by which the largest logit may grow. Without a limit, logits grow for ever if the classes are separated without an error.
_GROWTH = 4
#: Passes over the columns.
_ROUNDS = 2


#: Logarithms of the class probabilities, row by row.
log_softmax = partial(activated, activation="log_softmax")


def match_classes(reference: Array, measured: Array, slope: Array, shift: Array) -> Grid:
    """Slope and shift per column for which the probabilities of ``slope * measured + shift`` diverge least from those of `reference`.

    It starts Newton's method from `slope` and `shift`; the problem is convex. Logits may grow to at most four times the largest logit of
    `reference` and of the start. A single column is returned as it is, because it offers no choice of a class.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    >>> slope, shift = match_classes(2 * x, x + np.array([0.0, 3.0]), np.ones(2), np.zeros(2))
    >>> slope.round(2), (shift - shift[0]).round(2)
    (array([2., 2.]), array([ 0., -6.]))
    """
    count, columns = measured.shape
    if not count or columns < 2:
        return slope, shift
    wanted = np.exp(log_softmax(reference))
    largest = _GROWTH * max(np.abs(reference).max(), np.abs(slope * measured + shift).max())

    def cross_entropy(slope: Array, shift: Array) -> float:
        logits = slope * measured + shift
        return np.inf if np.abs(logits).max() > largest else -float((wanted * log_softmax(logits)).sum()) / count

    at, least = np.arange(columns), cross_entropy(slope, shift)
    for _ in range(_STEPS):
        found = np.exp(log_softmax(slope * measured + shift))
        by_slope = found * measured
        gradient = np.concatenate([((found - wanted) * measured).sum(axis=0), (found - wanted).sum(axis=0)])
        # Second derivatives of the log-sum: the variances of the classes, once for each of the two factors of a logit.
        both = np.hstack([by_slope, found])
        hessian = -(both.T @ both)
        for i, j, values in ((0, 0, by_slope * measured), (0, 1, by_slope), (1, 0, by_slope), (1, 1, found)):
            hessian[i * columns + at, j * columns + at] += values.sum(axis=0)
        # A shift of all classes changes nothing, so lstsq takes the shortest of the equivalent steps.
        change = np.linalg.lstsq(hessian, gradient, rcond=1e-9)[0]
        for halvings in range(_HALVINGS):
            part = change / 2**halvings
            tried = slope - part[:columns], shift - part[columns:]
            entropy = cross_entropy(*tried)
            if entropy < least - _GAIN:
                break
        else:
            break
        (slope, shift), least = tried, entropy
    return slope, shift


def grid_for_classes(values: Array, bits: int, apply: Callable[[Array], Array], reference: Array) -> Grid:
    """Like :func:`~bitsparse.nn.lowbit.calibration.grid_through`, for the class probabilities of the logits `reference`.

    Each column in turn takes the grid with the least divergence, while the other columns stay as they are.
    """
    wanted = np.exp(log_softmax(reference))
    step, low = (part.copy() for part in grid_through(values, bits, apply, wanted))
    if not len(values) or values.shape[1] < 2:
        return step, low
    received = apply(step * nearest_codes(values, step, low, bits) + low)
    grids = [np.stack(parts) for parts in zip(*variants(step, low, values.std(axis=0), bits, False), strict=True)]
    for _ in range(_ROUNDS):
        slope, shift = match_classes(reference, received, *column_match(reference, received))
        logits = slope * received + shift
        for j in range(len(step)):
            steps, lows = (part[:, j] for part in grids)
            tried = apply(steps * nearest_codes(values[:, [j]], steps, lows, bits) + lows)
            slopes, shifts = column_match(logits[:, [j]], tried)
            # The present column comes first, so that it stays unless something is better.
            candidates = np.column_stack([logits[:, j], slopes * tried + shifts])
            others = np.logaddexp.reduce(np.delete(logits, j, axis=1), axis=1)[:, None]
            entropy = (np.logaddexp(others, candidates) - wanted[:, [j]] * candidates).sum(axis=0)
            best = int(entropy.argmin()) - 1
            if best >= 0:
                step[j], low[j], received[:, j] = steps[best], lows[best], tried[:, best]
                logits[:, j] = candidates[:, best + 1]
    return step, low

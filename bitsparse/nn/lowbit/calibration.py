"""Choosing grids, corrections and codes for a trained layer from its own outputs: post-training quantisation without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Grid = tuple[Array, Array]

#: Shares of a column's extremes from which the search for a grid starts.
_STARTS = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2)
_ITERATIONS = 20
#: Shares of the widest step tried for signed codes.
_SHARES = np.linspace(1.0, 0.25, 26)
#: Below this a step is as good as none (and no normal float32).
_TINY = 1e-30
#: A column whose values differ by less than this share of the largest is constant: the differences come from the rounding of sums.
_ROUNDING = 2.0**-40


def nearest_codes(values: Array, step: Array, low: Array, bits: int) -> Array:
    """Codes 0..2**bits-1 of a grid, one step and lower end per column.

    >>> nearest_codes(np.array([[-9.0], [0.4], [0.6], [9.0]]), np.array([1.0]), np.array([0.0]), 2).ravel()
    array([0., 0., 1., 3.])
    """
    return np.clip(np.rint((values - low) / step), 0, 2**bits - 1)


def uniform_grid(
    values: Array,
    bits: int,
    *,
    from_zero: bool = False,
    starts: Sequence[float] = _STARTS,
    iterations: int = _ITERATIONS,
) -> Grid:
    """Step and lower end, per column, of the uniform grid of ``2**bits`` levels with the least squared error.

    Alternates between nearest codes and the least-squares line through them (Lloyd's algorithm with evenly spaced levels), from
    several starts. ``from_zero`` fixes the lower end at 0.

    >>> step, low = uniform_grid(np.array([[1.0], [1.2], [4.8], [5.0]]), 1)
    >>> step.round(3), low.round(3)
    (array([3.8]), array([1.1]))
    """
    top, n = 2**bits - 1, values.shape[1]
    if not len(values):
        return np.ones(n), np.zeros(n)
    center = np.zeros(n) if from_zero else values.mean(axis=0)
    below = np.zeros(n) if from_zero else values.min(axis=0) - center
    above = values.max(axis=0) - center
    least, best_step, best_low = np.full(n, np.inf), np.ones(n), np.zeros(n)
    for share in starts:
        low = center + share * below
        step = _usable((center + share * above - low) / top)
        for _ in range(iterations):
            codes = nearest_codes(values, step, low, bits)
            error = ((values - step * codes - low) ** 2).sum(axis=0)
            better = error < least
            if not better.any():
                break
            least = np.where(better, error, least)
            best_step, best_low = np.where(better, step, best_step), np.where(better, low, best_low)
            step, low = _line(codes, values, step, from_zero)
    return best_step, best_low


def signed_grid(values: Array, bits: int) -> Array:
    """Step per column of the codes -2**(bits-1)..2**(bits-1)-1, of two bits and more, with the least squared error.

    >>> signed_grid(np.array([[-8.0], [7.0]]), 4)
    array([1.])
    """
    if not len(values):
        return np.ones(values.shape[1])
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    widest = np.maximum(values.max(axis=0) / highest, values.min(axis=0) / lowest)
    least, best = np.full(values.shape[1], np.inf), _usable(widest)
    for share in _SHARES:
        step = _usable(share * widest)
        error = ((values - step * np.clip(np.rint(values / step), lowest, highest)) ** 2).sum(axis=0)
        best, least = np.where(error < least, step, best), np.minimum(error, least)
    return best


def grid_through(
    values: Array,
    bits: int,
    apply: Callable[[Array], Array],
    reference: Array,
    *,
    from_zero: bool = False,
    then: Callable[[Array], Array] = np.asarray,
) -> Grid:
    """Like :func:`uniform_grid`, but with the least error of ``apply(values)`` against ``reference`` after a per-column line.

    With `then`, an activation for one, the error is that of ``then(apply(values))`` against ``then(reference)``. With few bits the best
    grid for the values is not the best one for the sum over neighbours that reads them: rounding errors average out in it, a misplaced
    threshold does not. Above 4 bits there is nothing to choose.
    """
    step, low = uniform_grid(values, bits, from_zero=from_zero)
    if bits > 4 or not len(values):
        return step, low
    least, best_step, best_low = np.full(step.size, np.inf), step, low
    wanted = then(reference)
    for new_step, new_low in variants(step, low, values.std(axis=0), bits, from_zero):
        result = apply(new_step * nearest_codes(values, new_step, new_low, bits) + new_low)
        slope, shift = column_match(reference, result)
        error = ((then(slope * result + shift) - wanted) ** 2).sum(axis=0)
        better = error < least
        least = np.where(better, error, least)
        best_step, best_low = np.where(better, new_step, best_step), np.where(better, new_low, best_low)
    return best_step, best_low


def variants(step: Array, low: Array, spread: Array, bits: int, from_zero: bool) -> Iterator[Grid]:
    """Grids around one: wider and narrower, moved up and down."""
    yield step, low
    if from_zero:
        for factor in np.linspace(0.4, 2.0, 33):
            yield step * factor, low
        return
    half = step * (2**bits - 1) / 2
    middle = low + half
    # One bit: a line follows, so only the threshold between the two levels matters.
    factors, moves = (
        (np.ones(1), np.linspace(-1.5, 1.5, 31))
        if bits == 1
        else (np.linspace(0.5, 1.6, 12), np.linspace(-0.6, 0.6, 7))
    )
    for factor in factors:
        for move in moves:
            yield step * factor, middle + move * spread - factor * half


def column_match(reference: Array, measured: Array) -> Grid:
    """Slope and shift per column with the least squared error of ``slope * measured + shift`` against ``reference``.

    This removes the bias that quantisation leaves (Nagel et al. 2019, section 4.2) and shrinks what is mostly noise. A slope that is not
    positive is replaced by the ratio of the spreads of both, which at least keeps a column within its range; the slope of a constant
    column is 1.

    >>> column_match(np.array([[1.0], [3.0]]), np.array([[0.0], [4.0]]))
    (array([0.5]), array([1.]))
    >>> column_match(np.array([[3.0], [1.0]]), np.array([[0.0], [4.0]]))
    (array([0.5]), array([1.]))
    """
    if not len(reference):
        return np.ones(reference.shape[1]), np.zeros(reference.shape[1])
    spread = measured.std(axis=0)
    varies = spread > _ROUNDING * np.abs(measured).max(axis=0)
    slope, _ = _line(measured, reference, reference.std(axis=0) / np.where(varies, spread, 1.0), False)
    slope = np.where(varies, slope, 1.0)
    return slope, reference.mean(axis=0) - slope * measured.mean(axis=0)


def _line(x: Array, y: Array, fallback: Array, from_zero: bool) -> Grid:
    """Least-squares line of y over x per column, with ``fallback`` where its slope is not positive."""
    mean_x, mean_y = (np.zeros(x.shape[1]), np.zeros(x.shape[1])) if from_zero else (x.mean(axis=0), y.mean(axis=0))
    centered = x - mean_x
    square = (centered**2).sum(axis=0)
    slope = (centered * (y - mean_y)).sum(axis=0) / np.where(square > 0, square, 1.0)
    slope = np.where((square > 0) & (slope > _TINY), slope, fallback)
    return slope, mean_y - slope * mean_x


def _usable(step: Array) -> Array:
    return np.where(step > _TINY, step, 1.0)


def refit(inputs: Array, targets: Array, prior: Array, ridge: float = 1e-3) -> Array:
    """Weights W for ``inputs @ W + shift ~ targets``, by least squares pulled towards ``prior``: weights for quantised inputs.

    >>> refit(np.array([[0.0], [1.0], [2.0]]), np.array([[1.0], [3.0], [5.0]]), np.array([[2.0]])).round(6)
    array([[2.]])
    """
    if not inputs.size:
        return prior
    x = inputs - inputs.mean(axis=0)
    gram = x.T @ x
    weight = np.diag(ridge * (np.diag(gram) + 1e-3 * np.trace(gram) / len(gram) + _TINY))
    return np.asarray(np.linalg.solve(gram + weight, x.T @ (targets - targets.mean(axis=0)) + weight @ prior))


def refine_codes(
    inputs: Array,
    weights: Array,
    codes: Array,
    step: Array,
    low: Array,
    bits: int,
    sweeps: int = 4,
    *,
    lowest: int = 0,
) -> Grid:
    """Codes and steps with a smaller error of ``inputs @ (step * codes + low)`` against ``inputs @ weights``.

    Coordinate descent: each input's codes in turn take the values that best make up for the rounding of all the others (the aim of
    AdaRound, Nagel et al. 2020, Eq. 21, without its relaxation); after a sweep the steps are fitted again.

    Parameters
    ----------
    inputs : ndarray (samples, k)
    weights, codes : ndarray (k, n)
    step, low : ndarray (n,)
    bits, sweeps : int
    lowest : int, default 0
        The smallest of the ``2**bits`` codes.

    Returns
    -------
    codes (k, n), step (n,)

    Examples
    --------
    Two equal inputs share a weight of 0.6 each: rounded one by one they make 2, together 1.

    >>> x, w = np.ones((1, 2)), np.full((2, 1), 0.6)
    >>> refine_codes(x, w, np.ones((2, 1)), np.ones(1), np.zeros(1), 1, sweeps=1)[0].ravel()
    array([0., 1.])
    """
    codes, step, top = codes.copy(), step.copy(), lowest + 2**bits - 1
    residual = inputs @ (weights - (step * codes + low))
    for _ in range(sweeps):
        changed = False
        for k in range(len(codes)):
            column = inputs[:, k]
            square = column @ column
            if square <= _TINY:
                continue
            change = np.clip(np.rint(codes[k] + (column @ residual) / (square * step)), lowest, top) - codes[k]
            if change.any():
                codes[k] += change
                residual -= np.outer(column, step * change)
                changed = True
        if not changed:
            break
        product = inputs @ codes
        new_step, _ = _line(product, residual + step * product, step, True)
        residual = residual + (step - new_step) * product
        step = new_step
    return codes, step

"""Products of tall matrices of float32 on matrix units against float64."""

from __future__ import annotations

import numpy as np
import pytest

from bitsparse.backends.cuda.matmul import floats

pytestmark = [pytest.mark.gpu, pytest.mark.hopper]


def matrix(rng, rows, columns, pitch):
    """A matrix whose rows lie `pitch` elements apart, with NaN between them."""
    import cupy

    whole = np.full((rows, pitch), np.nan, np.float32)
    whole[:, :columns] = rng.standard_normal((rows, columns))
    return cupy.asarray(whole)[:, :columns], whole[:, :columns]


def bound(x, w):
    """What the product of `x` and `w` may be away from the exact one."""
    return (2.0**-20 + x.shape[1] * 2.0**-24) * (abs(x.astype(np.float64)) @ abs(w.astype(np.float64)))


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "pitch", "out_pitch"),
    [
        (300, 100, 128, 100, 128),
        (129, 47, 128, 47, 128),
        (64, 128, 47, 128, 48),
        (1, 1, 1, 1, 1),
        (257, 33, 188, 36, 189),
        (40, 602, 16, 602, 16),
        (130, 602, 128, 604, 128),
        (3, 8, 20, 9, 21),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("behind", ["nothing", "bias", "result"])
def test_product(rows, depth, columns, pitch, out_pitch, turned, behind):
    import cupy

    rng = np.random.default_rng(rows + depth)
    x, host = matrix(rng, rows, depth, pitch)
    w = rng.standard_normal((depth, columns) if turned else (columns, depth)).astype(np.float32)
    weight, w = (cupy.asarray(w).T, w.T) if turned else (cupy.asarray(w), w)
    bias = rng.standard_normal(columns).astype(np.float32)
    out, before = matrix(rng, rows, columns, out_pitch)
    if behind != "result":
        out[...] = np.nan
    floats.product(x, weight, out, cupy.asarray(bias) if behind == "bias" else None, added=behind == "result")
    exact = host.astype(np.float64) @ w.T.astype(np.float64)
    plus = {"nothing": 0, "bias": bias, "result": before}[behind]
    assert (abs(out.get() - (exact + plus)) <= bound(host, w.T) + 2.0**-23 * abs(exact + plus)).all()
    if out_pitch > columns:  # nothing is written between the rows
        assert np.isnan(out.base.get()[:, columns:]).all()


@pytest.mark.parametrize(
    ("rows", "m", "n", "pitches"),
    [
        (1000, 128, 100, (128, 100)),
        (777, 47, 128, (47, 128)),
        (33, 16, 16, (20, 17)),
        (1, 1, 1, (1, 1)),
        (500, 188, 130, (188, 132)),
        (64, 5, 602, (8, 602)),
    ],
)
@pytest.mark.parametrize("summed", [False, True])
def test_product_over_rows(rows, m, n, pitches, summed):
    import cupy

    rng = np.random.default_rng(rows)
    a, one = matrix(rng, rows, m, pitches[0])
    b, other = matrix(rng, rows, n, pitches[1])
    out, sums = cupy.full((m, n), np.nan, "float32"), cupy.full(m, np.nan, "float32") if summed else None
    floats.product_over_rows(a, b, out, sums)
    exact = one.T.astype(np.float64) @ other.astype(np.float64)
    assert (abs(out.get() - exact) <= bound(one.T, other)).all()
    if summed:
        assert np.allclose(sums.get(), one.sum(0, dtype=np.float64), rtol=0, atol=2e-7 * abs(one).sum(0).max())
    again = cupy.empty_like(out)
    floats.product_over_rows(a, b, again, sums)
    assert (again == out).all()


def test_numbers_that_are_not_finite_come_out_as_in_float32():
    import cupy

    x = np.ones((200, 40), np.float32)
    w = np.full((24, 40), 1 + 2.0**-20, np.float32)
    x[3, 5], x[70, 0], x[150, 39] = np.inf, np.nan, -np.inf
    x[9, :2], w[7, 1], w[:, 0] = np.finfo(np.float32).max, -1, 1
    out = cupy.empty((200, 24), "float32")
    floats.product(cupy.asarray(x), cupy.asarray(w), out)
    with np.errstate(all="ignore"):
        exact = x @ w.T
    assert np.array_equal(np.isnan(out.get()), np.isnan(exact))
    assert np.array_equal(np.isinf(out.get()), np.isinf(exact))
    assert np.isfinite(out.get()[[0, 1, 2]]).all()
    made = cupy.empty((40, 24), "float32")
    b = np.ones((200, 24), np.float32)
    floats.product_over_rows(cupy.asarray(x), cupy.asarray(b), made)
    with np.errstate(all="ignore"):
        exact = x.T @ b
    assert np.array_equal(np.isnan(made.get()), np.isnan(exact))
    assert np.array_equal(np.isinf(made.get()), np.isinf(exact))


@pytest.mark.parametrize("shape", [(0, 4, 3), (5, 0, 3), (5, 4, 0)])
def test_empty(shape):
    import cupy

    rows, depth, columns = shape
    out = cupy.full((rows, columns), np.nan, "float32")
    floats.product(cupy.ones((rows, depth), "float32"), cupy.ones((columns, depth), "float32"), out)
    assert (out == 0).all()
    made = cupy.full((depth, columns), np.nan, "float32")
    floats.product_over_rows(cupy.ones((rows, depth), "float32"), cupy.ones((rows, columns), "float32"), made)
    assert (made == (rows if depth and columns else 0)).all()

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
    ("rows", "depths", "columns", "pitches", "out_pitch"),
    [
        (300, (100, 100), 128, (100, 100), 128),
        (129, (47, 33), 94, (48, 36), 96),
        (130, (128,), 94, (128,), 94),
        (140, (94,), 128, (96,), 128),
        (257, (5, 130), 188, (8, 133), 189),
        (70, (602, 1), 17, (602, 4), 20),
        (1, (1, 1), 1, (1, 1), 1),
    ],
)
@pytest.mark.parametrize("behind", ["nothing", "bias", "result"])
@pytest.mark.parametrize("how", ["scaled", "relu", "both"])
def test_product_with_more(rows, depths, columns, pitches, out_pitch, behind, how):
    import cupy

    rng = np.random.default_rng(rows)
    scaled, relu = how != "relu", how != "scaled"
    made = [matrix(rng, rows, depth, pitch) for depth, pitch in zip(depths, pitches, strict=True)]
    weights = [rng.standard_normal((columns, depth)).astype(np.float32) for depth in depths]
    given = [cupy.asarray(weights[0]), *(cupy.asarray(np.ascontiguousarray(one.T)).T for one in weights[1:])]
    scale = rng.standard_normal(rows).astype(np.float32)
    bias = rng.standard_normal(columns).astype(np.float32)
    out, before = matrix(rng, rows, columns, out_pitch)
    if behind != "result":
        out[...] = np.nan
    floats.product(
        made[0][0],
        given[0],
        out,
        cupy.asarray(bias) if behind == "bias" else None,
        added=behind == "result",
        scale=cupy.asarray(scale) if scaled else None,
        relu=relu,
        second=(made[1][0], given[1]) if len(made) > 1 else None,
    )
    times = scale.astype(np.float64)[:, None] if scaled else np.ones((rows, 1))
    x, w = np.hstack([one for _, one in made]), np.hstack(weights).T
    exact = times * (x.astype(np.float64) @ w.astype(np.float64))
    whole = exact + {"nothing": 0, "bias": bias, "result": before}[behind]
    may = abs(times) * bound(x, w) + 2.0**-23 * (abs(exact) + abs(whole))
    assert (abs(out.get() - (np.maximum(whole, 0) if relu else whole)) <= may).all()
    if out_pitch > columns:
        assert np.isnan(out.base.get()[:, columns:]).all()


def test_results_that_begin_at_an_odd_word():
    import cupy

    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((130, 20), (31, 20)))
    whole = cupy.zeros((130, 32), "float32")
    for _ in range(2):
        floats.product(cupy.asarray(x), cupy.asarray(w), whole[:, 1:], added=True)
    assert (whole[:, 0] == 0).all()
    assert np.allclose(whole.get()[:, 1:], 2 * (x.astype(np.float64) @ w.T.astype(np.float64)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("behind", ["nothing", "bias", "result"])
def test_more_around_numbers_that_are_not_finite(behind):
    import cupy

    rng = np.random.default_rng(7)
    x, other = (rng.standard_normal((200, depth)).astype(np.float32) for depth in (42, 30))
    w, more = (rng.standard_normal((20, depth)).astype(np.float32) for depth in (42, 30))
    scale, bias = (rng.standard_normal(count).astype(np.float32) for count in (200, 20))
    before = rng.standard_normal((200, 20)).astype(np.float32)
    x[3, 5], x[70, 0], other[150, 29], other[151, 0], w[4, 41], more[5, 0] = (
        np.inf,
        np.nan,
        -np.inf,
        np.nan,
        np.inf,
        -np.inf,
    )
    scale[[9, 10]], bias[[1, 2]], before[[17, 18], 3] = (np.inf, np.nan), (-np.inf, np.nan), (np.nan, np.inf)
    out = cupy.asarray(before) if behind == "result" else cupy.full((200, 20), np.nan, "float32")
    floats.product(
        cupy.asarray(x),
        cupy.asarray(w),
        out,
        cupy.asarray(bias) if behind == "bias" else None,
        added=behind == "result",
        scale=cupy.asarray(scale),
        relu=True,
        second=(cupy.asarray(other), cupy.asarray(more)),
    )
    with np.errstate(all="ignore"):
        sums = scale[:, None] * (x @ w.T + other @ more.T) + {"nothing": 0, "bias": bias, "result": before}[behind]
        exact = np.where(sums <= 0, 0, sums)
    assert np.array_equal(np.isnan(out.get()), np.isnan(exact))
    assert np.array_equal(np.isinf(out.get()), np.isinf(exact))
    fine = np.isfinite(exact)
    assert fine.mean() > 0.7
    assert np.allclose(out.get()[fine], exact[fine], rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize(
    ("rows", "m", "n", "pitches"),
    [
        (1000, 128, 100, (128, 128, 100)),
        (999, 128, 128, (128, 132, 128)),
        (777, 47, 128, (47, 48, 128)),
        (500, 64, 100, (64, 64, 100)),
        (260, 64, 64, (68, 65, 64)),
        (33, 16, 16, (20, 18, 17)),
        (1, 1, 1, (1, 1, 1)),
        (300, 188, 130, (188, 188, 132)),
    ],
)
@pytest.mark.parametrize("summed", [False, True])
def test_masked_product_over_rows(rows, m, n, pitches, summed):
    import cupy

    rng = np.random.default_rng(rows)
    a, one = matrix(rng, rows, m, pitches[0])
    mask, positive = matrix(rng, rows, m, pitches[1])
    b, other = matrix(rng, rows, n, pitches[2])
    positive[rng.random(positive.shape) < 0.1] = 0  # as after relu, and what it hides is not finite
    positive[0, 0] = np.nan
    hidden = positive <= 0
    one[hidden & (rng.random(one.shape) < 0.1)] = np.nan
    one[hidden & (rng.random(one.shape) < 0.1)] = np.inf
    a[...], mask[...] = cupy.asarray(one), cupy.asarray(positive)
    out, sums = cupy.full((m, n), np.nan, "float32"), cupy.full(m, np.nan, "float32") if summed else None
    floats.product_over_rows(a, b, out, sums, mask)
    one = np.where(hidden, np.float32(0), one)
    exact = one.T.astype(np.float64) @ other.astype(np.float64)
    assert (abs(out.get() - exact) <= bound(one.T, other)).all()
    if summed:
        assert np.allclose(sums.get(), one.sum(0, dtype=np.float64), rtol=0, atol=2e-7 * abs(one).sum(0).max())
    again = cupy.empty_like(out)
    floats.product_over_rows(a, b, again, sums, mask)
    assert (again == out).all()


def test_a_mask_and_numbers_that_are_not_finite():
    import cupy

    rng = np.random.default_rng(3)
    a, mask, b = (rng.standard_normal((200, columns)).astype(np.float32) for columns in (40, 40, 24))
    a[5, 3], mask[5, 3], a[6, 7], mask[6, 7], mask[7, 8] = np.inf, 1, np.nan, np.nan, np.nan
    a[8, 9], mask[8, 9], b[9, 2] = np.inf, -1, np.inf
    out, sums = cupy.empty((40, 24), "float32"), cupy.empty(40, "float32")
    floats.product_over_rows(cupy.asarray(a), cupy.asarray(b), out, sums, cupy.asarray(mask))
    with np.errstate(all="ignore"):
        a = np.where(mask <= 0, np.float32(0), a)
        exact, total = a.T @ b, a.sum(0)
    for made, expected in ((out.get(), exact), (sums.get(), total)):
        assert np.array_equal(np.isnan(made), np.isnan(expected))
        assert np.array_equal(np.isinf(made), np.isinf(expected))
        fine = np.isfinite(expected)
        assert np.allclose(made[fine], expected[fine], rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("depths", [(0, 3), (3, 0), (0, 0)])
def test_two_products_of_which_one_is_empty(depths):
    import cupy

    x, other = (cupy.full((5, depth), -1, "float32") for depth in depths)
    w, more = (cupy.ones((4, depth), "float32") for depth in depths)
    out = cupy.full((5, 4), np.nan, "float32")
    floats.product(x, w, out, cupy.asarray(np.array([-1, 0, 2, 4], np.float32)), second=(other, more), relu=True)
    expected = np.maximum(np.array([-1, 0, 2, 4]) - sum(depths), 0)
    assert (out.get() == expected).all()


def test_a_mask_without_columns_of_the_second_factor():
    import cupy

    out, sums = cupy.empty((3, 0), "float32"), cupy.empty(3, "float32")
    a, mask = cupy.full((5, 3), np.nan, "float32"), cupy.zeros((5, 3), "float32")
    a[:, 1:], mask[:, 1] = 2, 1
    floats.product_over_rows(a, cupy.empty((5, 0), "float32"), out, sums, mask)
    assert sums.get().tolist() == [0, 10, 0]

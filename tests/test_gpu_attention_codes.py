"""Attention over codes and its gradient on a GPU agree with float64 on the decoded values; results are written into poisoned arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import graphs
from test_gpu_bits import empty, to_device, to_host
from test_gpu_sddmm import scheduled

from bitsparse.backends.cuda.edges import attention as cuda
from bitsparse.backends.cuda.edges import attention_codes
from bitsparse.backends.params import Dropout, Pattern
from bitsparse.backends.reference.edges import attention as reference

pytestmark = pytest.mark.gpu

GRAPHS = graphs()
STEP = np.float32(0.03)


def codes_of(x: np.ndarray, heads: int) -> cuda.Codes:
    """Codes of integers (nodes, heads * width), with each head padded to 16 bytes."""
    nodes, columns = x.shape
    width = columns // heads
    words = np.zeros((nodes, heads, -(-width // 16) * 16), np.int8)
    words[..., :width] = x.reshape(nodes, heads, width)
    return cuda.Codes(to_device(words), to_device(np.full(1, STEP)), columns)


def check(
    A: sp.csr_array,
    heads: int,
    width: int,
    dropout: Dropout | None = None,
    slope: float = 0.2,
    spread: float = 1.0,
    wide: bool = False,
    **cut: int,
) -> list[np.ndarray]:
    """Check sums and gradients for scores with the standard deviation `spread`, and return the results."""
    rng = np.random.default_rng([heads, width])
    (rows, columns), whole = A.shape, heads * width
    x, gradient = (rng.integers(-127, 128, (n, whole)).astype(np.int8) for n in (columns, rows))
    source, target = (spread * rng.standard_normal((n, heads)).astype(np.float32) for n in (columns, rows))
    source, target = source.astype(np.float32), target.astype(np.float32)
    turned = sp.csr_array(A.T.tocsr())
    shapes = (rows, whole), (rows, heads), (rows, heads), (rows, whole)
    state = [empty(shape, np.dtype(np.float32)) for shape in shapes]
    there_source, there_target = to_device(source), to_device(target)
    how: dict[str, Any] = {"negative_slope": slope, "dropout": dropout}
    sums: dict[str, Any] = {"out": state[0], "lse": state[1], "state": (state[2], state[3])}
    cuda.attention(scheduled(A, wide), None, there_source, there_target, **how, **sums, codes=codes_of(x, heads), **cut)
    features, real = (to_device(part * STEP) for part in (x, gradient))
    given = features, there_source, there_target, real, tuple(state)
    got = cuda.attention_vjp(scheduled(turned, wide), *given, **how, codes=codes_of(gradient, heads), **cut)
    exact = [part.astype(np.float64) for part in (x * STEP, source, target)]
    want = [np.empty(shape) for shape in shapes]
    reference.attention(
        Pattern(A.indptr, A.indices, A.shape), *exact, **how, out=want[0], lse=want[1], state=(want[2], want[3])
    )
    there = Pattern(turned.indptr, turned.indices, turned.shape)
    slopes = reference.attention_vjp(there, *exact, (gradient * STEP).astype(np.float64), tuple(want), **how)
    found = [to_host(part) for part in (*state, *(got[name] for name in ("x", "source", "target")))]
    for host, right in zip(found, (*want, slopes["x"], slopes["source"], slopes["target"]), strict=True):
        finite = np.isfinite(right)
        assert np.array_equal(host[~finite], right[~finite])
        error = abs(host[finite] - right[finite]).max(initial=0)
        assert error <= 1e-5 * max(abs(right[finite]).max(initial=0), 1)
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    check(GRAPHS[name], 4, 32)
    check(GRAPHS[name], 1, 41, Dropout(0.4, 2**63 + 1))


@pytest.mark.parametrize(("heads", "width"), [(1, 17), (1, 64), (1, 100), (2, 16), (2, 60), (4, 3), (4, 30)])
def test_heads_and_widths(heads: int, width: int) -> None:
    assert attention_codes.tiles(heads, width) is not None
    check(GRAPHS["square"], heads, width)
    check(GRAPHS["hubs"], heads, width, Dropout(0.5, 3), longest=128, span=64)


@pytest.mark.parametrize(("heads", "width"), [(1, 5), (3, 5), (8, 8), (1, 200)])
def test_heads_without_tiles(heads: int, width: int) -> None:
    assert attention_codes.tiles(heads, width) is None
    check(GRAPHS["hubs"], heads, width, longest=128, span=64)


def test_slopes_scores_wide_indices_and_seeds_on_the_device() -> None:
    for slope in (0.0, 1.0, -0.5, 3.0):
        check(GRAPHS["square"], 2, 16, slope=slope)
    for spread in (0.0, 20.0):
        check(GRAPHS["hubs"], 4, 32, spread=spread)
    check(GRAPHS["hubs"], 4, 8, wide=True, dropout=Dropout(0.9, 5))
    check(GRAPHS["square"], 1, 41, wide=True)
    check(GRAPHS["square"], 4, 8, Dropout(1.0, 5))


def test_scores_that_are_no_numbers() -> None:
    """A NaN score must turn exactly the sums and gradients that it weights into NaN."""
    A, rng = GRAPHS["square"], np.random.default_rng(1)
    (rows, columns), heads, width = A.shape, 4, 8
    row = int(np.argmax(np.diff(A.indptr)))
    x, gradient = (rng.integers(-127, 128, (n, heads * width)).astype(np.int8) for n in (columns, rows))
    source, target = (rng.standard_normal((n, heads)).astype(np.float32) for n in (columns, rows))
    target[row] = np.nan
    shapes = (rows, heads * width), (rows, heads), (rows, heads), (rows, heads * width)
    state = [empty(shape, np.dtype(np.float32)) for shape in shapes]
    ends, sums = (
        (to_device(source), to_device(target)),
        {"out": state[0], "lse": state[1], "state": (state[2], state[3])},
    )
    cuda.attention(scheduled(A), None, *ends, negative_slope=0.2, **sums, codes=codes_of(x, heads))
    given = to_device(x * STEP), *ends, to_device(gradient * STEP), tuple(state)
    turned, codes = scheduled(sp.csr_array(A.T.tocsr())), codes_of(gradient, heads)
    got = cuda.attention_vjp(turned, *given, negative_slope=0.2, codes=codes)
    there = np.isin(np.arange(columns), A.indices[A.indptr[row] : A.indptr[row + 1]])
    for part, want in ((state[0], np.arange(rows) == row), (got["x"], there)):
        assert np.array_equal(np.isnan(to_host(part)), np.repeat(want[:, None], heads * width, axis=1))


def test_the_same_bits_every_time() -> None:
    for one, other in zip(*(check(GRAPHS["hubs"], 4, 32, longest=256, span=64) for _ in range(2)), strict=True):
        np.testing.assert_array_equal(one, other)

"""Graph attention and its gradients, dropout included, agree with autograd in float64, and store no array with a value per edge."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import dtype_of, graphs, pattern, same

import bitsparse as bs
from bitsparse.backends.host.edges import attention as compiled
from bitsparse.backends.params import Dropout, Pattern
from bitsparse.backends.reference.edges import attention as reference
from bitsparse.backends.reference.scalar import edges_kept
from bitsparse.backends.row_pieces import RowPieces
from bitsparse.ops.edges.attention_vjp import attention_vjp_of_transpose

GRAPHS = graphs()
SEED = 2**63 + 5


def operands(A: sp.csr_array, heads: int, width: int, dtype: Any = np.float64) -> list[np.ndarray]:
    """Features, source and target scores, and the gradient with respect to the result."""
    rng = np.random.default_rng([heads, width])
    rows, columns = A.shape
    shapes = (columns, heads, width), (columns, heads), (rows, heads), (rows, heads, width)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


# The factors by which dropout multiplies each edge and head: 0 or 1 / (1 - dropout).
def factors(A: sp.csr_array, heads: int, dropout: float) -> np.ndarray:
    drop, rows = Dropout(dropout, SEED), np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    if not dropout:
        return np.ones((A.nnz, heads))
    return edges_kept(rows, A.indices, heads, drop.seed, drop.threshold) * drop.scale


def autograd(A: sp.csr_array, parts: list[np.ndarray], slope: float, dropout: float) -> list[np.ndarray]:
    """The result and the gradients with respect to features and scores, computed by PyTorch edge by edge in float64."""
    torch = pytest.importorskip("torch")
    x, source, target, gradient = (torch.tensor(part.astype(np.float64)) for part in parts)
    for part in (x, source, target):
        part.requires_grad_()
    rows = torch.from_numpy(np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)))
    columns, shape = torch.from_numpy(A.indices.astype(np.int64)), (A.shape[0], x.shape[1])
    scores = torch.nn.functional.leaky_relu(source[columns] + target[rows], slope)
    most = torch.full(shape, -np.inf, dtype=torch.float64)
    most = most.scatter_reduce(0, rows[:, None].expand_as(scores), scores.detach(), "amax")
    powers = (scores - most[rows]).exp()
    weights = powers / torch.zeros(shape, dtype=torch.float64).index_add(0, rows, powers)[rows]
    weights = weights * torch.from_numpy(factors(A, shape[1], dropout))
    y = torch.zeros(gradient.shape, dtype=torch.float64).index_add(0, rows, weights[:, :, None] * x[columns])
    return [part.detach().numpy() for part in (y, *torch.autograd.grad(y, (x, source, target), gradient))]


def near(got: Any, want: np.ndarray, bound: float) -> None:
    assert got.shape == want.shape
    assert abs(got.astype(np.float64) - want).max(initial=0) <= bound * max(abs(want).max(initial=0), 1)


@pytest.mark.parametrize("slope", [0.2, 0.0, 1.0, -0.5])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", GRAPHS)
def test_against_autograd_in_float64(name: str, dropout: float, slope: float) -> None:
    A = GRAPHS[name]
    how = {"negative_slope": slope, "dropout": dropout, "seed": SEED if dropout else None}
    for heads, width in ((1, 1), (1, 33), (4, 32), (5, 7)):
        parts = operands(A, heads, width)
        y, state = bs.attention(A, *parts[:3], **how, return_state=True)
        want = autograd(A, parts, slope, dropout)
        got = bs.attention_vjp(A, *parts, **how, state=state)
        for one, other in zip((y, *got), want, strict=True):
            near(one, other, 1e-12)
        for one, again in zip(got, bs.attention_vjp(A, *parts, **how), strict=True):
            same(one, again)
        assert np.array_equal(bs.attention_vjp(A, *parts, **how, wrt="source"), got[1])
        only = bs.attention_vjp(A, *parts, **how, wrt=("target", "x"), state=state)
        assert np.array_equal(only[0], got[2])
        assert np.array_equal(only[1], got[0])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float16", 5e-3), ("bfloat16", 4e-2)])
def test_dtypes(dtype: str, bound: float, dropout: float) -> None:
    how = {"dropout": dropout, "seed": SEED}
    for name in ("square", "hubs", "tall", "wide"):
        A = GRAPHS[name]
        for heads, width in ((2, 9), (8, 16)):
            parts = operands(A, heads, width, dtype_of(dtype))
            y, state = bs.attention(A, *parts[:3], **how, return_state=True)
            same(y, bs.attention(A, *parts[:3], **how))
            got = bs.attention_vjp(A, *parts, **how, state=state)
            for one, other in zip((y, *got), autograd(A, parts, 0.2, dropout), strict=True):
                assert one.dtype == dtype_of(dtype)
                near(one, other, bound)


@pytest.mark.parametrize("name", GRAPHS)
def test_backends_agree_and_bits_do_not_depend_on_threads(name: str, host: Any) -> None:
    A = GRAPHS[name]
    turned = sp.csr_array(A.T.tocsr())
    for heads, drop in ((2, None), (6, Dropout(0.25, 3))):
        x, source, target, gradient = operands(A, heads, 70)
        x, gradient = (part.reshape(len(part), heads * 70) for part in (x, gradient))
        made = []
        for backend, threads, level in (
            (reference, 1, None),
            *((compiled, n, level) for n in (1, 3) for level in host.simd_levels()),
        ):
            host.set_num_threads(threads)
            host.set_simd(level)
            how = {"negative_slope": 0.2, "dropout": drop}
            lse, share, above = (np.full((A.shape[0], n), np.nan) for n in (heads, heads, heads * 70))
            sums = {"lse": lse, "state": (share, above)}
            y = backend.attention(Pattern(A.indptr, A.indices, A.shape), x, source, target, **how, **sums)
            ends = (Pattern(turned.indptr, turned.indices, turned.shape), x, source, target, gradient)
            found = backend.attention_vjp(*ends, (y, lse, share, above), **how)
            made.append([y, lse, share, above, *(found[part] for part in ("x", "source", "target"))])
        for one, other in zip(made[0], made[1], strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-11, atol=1e-12)
        for others in made[2:]:
            for one, other in zip(made[1], others, strict=True):
                same(other, one)


def test_dropout_keeps_the_same_edges_everywhere() -> None:
    A = pattern([40] * 500, 700)
    x, source, target, _ = operands(A, 6, 1)
    ones = np.ones_like(x)
    for dropout in (0.1, 0.5, 0.9):
        kept = factors(A, 6, dropout)
        share = (kept > 0).mean(axis=0)
        assert abs(share - (1 - dropout)).max() < 5 * np.sqrt(dropout * (1 - dropout) / A.nnz)
        assert abs(np.corrcoef(kept.T) - np.eye(6)).max() < 0.05
        flat = np.zeros_like(source), np.zeros_like(target)
        found = bs.attention(A, ones, *flat, dropout=dropout, seed=SEED)[:, :, 0]
        np.testing.assert_allclose(found, np.add.reduceat(kept, A.indptr[:-1]) / 40, rtol=1e-12)
    one = bs.attention(A, x, source, target, dropout=0.5, seed=np.array([9], np.int64))
    same(one, bs.attention(A, x, source, target, dropout=0.5, seed=9))
    assert not np.array_equal(one, bs.attention(A, x, source, target, dropout=0.5, seed=10))
    assert not bs.attention(A, x, source, target, dropout=1.0, seed=9).any()
    same(bs.attention(A, x, source, target, dropout=0.0, seed=9), bs.attention(A, x, source, target))


def test_nothing_of_the_edges_size_is_stored() -> None:
    A = bs.TCTiledCSR(pattern([300] * 400, 500), pattern=True)
    parts = operands(A, 16, 4, np.float32)
    how = {"dropout": 0.5, "seed": 1}
    state = bs.attention(A, *parts[:3], **how, return_state=True)[1]
    bs.attention_vjp(A, *parts, **how, state=state)
    tracemalloc.start()
    bs.attention(A, *parts[:3], **how, return_state=True)
    bs.attention_vjp(A, *parts, **how, state=state)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < A.nnz * 16 * 4 / 4


def test_a_state_has_what_edges_above_0_have() -> None:
    A = GRAPHS["hubs"]
    x, source, target, _ = operands(A, 3, 4)
    for dropout in (0.0, 0.5):
        how = {"dropout": dropout, "seed": 4}
        y, state = bs.attention(A, x, source, target, **how, return_state=True)
        assert state.result is y
        rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
        z = source[A.indices] + target[rows]
        weights = bs.edge_softmax(A, np.where(z > 0, z, 0.2 * z))
        np.testing.assert_allclose(state.lse, bs.attention(A, x, source, target, return_lse=True)[1], rtol=1e-13)
        np.testing.assert_allclose(
            state.share, bs.aggregate_edges(A, np.where(z > 0, weights, 0)), rtol=1e-12, atol=1e-300
        )
        if dropout:
            weights = weights * edges_kept(rows, A.indices, 3, 4, 1 << 31) * 2
        np.testing.assert_allclose(
            state.above, bs.spmm(A != 0, x, values=np.where(z > 0, weights, 0)), rtol=1e-11, atol=1e-14
        )
        flat = bs.attention(A, x[:, 0], source[:, 0], target[:, 0], **how, return_state=True)[1]
        assert [part.shape for part in flat] == [(A.shape[0], 4), (A.shape[0],), (A.shape[0],), (A.shape[0], 4)]
        same(flat.share, np.ascontiguousarray(state.share[:, 0]))


def test_no_columns_and_other_dtypes() -> None:
    A = GRAPHS["square"]
    x, source, target, gradient = operands(A, 2, 0, np.float32)
    y, state = bs.attention(A, x, source, target, return_state=True)
    assert state.above.shape == y.shape == gradient.shape
    assert np.isfinite(state.share).all()
    assert [part.shape for part in bs.attention_vjp(A, x, source, target, gradient, state=state)] == [
        x.shape,
        source.shape,
        target.shape,
    ]
    x, source, target, gradient = operands(A, 2, 6, np.float32)
    exact = autograd(A, [x, source, target, gradient], 0.2, 0.0)[1:]
    for mixed in ((x, source, target, gradient.astype(np.float64)), (x.astype(np.float64), source, target, gradient)):
        for got, want, given in zip(bs.attention_vjp(A, *mixed), exact, mixed, strict=False):
            assert got.dtype == given.dtype
            near(got, want, 1e-6)


def test_what_does_not_fit_is_refused() -> None:
    A = GRAPHS["square"]
    x, source, target, gradient = parts = operands(A, 2, 3)
    state = bs.attention(A, x, source, target, return_state=True)[1]
    with pytest.raises(bs.ShapeError, match="attention_vjp: gradient has shape"):
        bs.attention_vjp(A, x, source, target, gradient[:, :, :1])
    with pytest.raises(bs.ShapeError, match="attention_vjp: source has shape"):
        bs.attention_vjp(A, x, source[:, 0], target, gradient, state=state)
    with pytest.raises(bs.ShapeError, match=r"attention_vjp: state\.lse has shape"):
        bs.attention_vjp(A, *parts, state=state._replace(lse=state.lse[:, 0]))
    for function, given in ((bs.attention, parts[:3]), (bs.attention_vjp, parts)):
        name = function.__name__
        with pytest.raises(ValueError, match=rf"{name}: dropout=0.5 needs a seed"):
            function(A, *given, dropout=0.5)
        for rate in (-0.1, 1.5):
            with pytest.raises(ValueError, match=rf"{name}: dropout must lie between 0 and 1, got {rate}"):
                function(A, *given, dropout=rate, seed=1)
        with pytest.raises(ValueError, match=f"{name}: seed must be in"):
            function(A, *given, dropout=0.5, seed=-1)
        with pytest.raises(bs.ShapeError, match=rf"{name}: seed has shape \(2,\)"):
            function(A, *given, dropout=0.5, seed=np.array([1, 2]))
        with pytest.raises(bs.DTypeError, match=f"{name}: seed"):
            function(A, *given, dropout=0.5, seed=np.array([1.0]))


def test_features_and_sums_that_are_made_in_pieces_of_rows() -> None:
    """Features and sums in pieces of rows must give the same bits as whole arrays, also with rectangular patterns and several heads."""
    A = next(A for A in GRAPHS.values() if A.shape[0] != A.shape[1] and A.nnz)
    turned = bs.TCTiledCSR(sp.csr_array(A.T.tocsr()))
    x, source, target, gradient = operands(A, 2, 4, np.float32)
    state = bs.attention(A, x, source, target, return_state=True)[1]
    whole = attention_vjp_of_transpose(turned, x, source, target, gradient, state, 0.2, 0.0, None)

    def in_pieces(part: np.ndarray) -> RowPieces:
        flat = part.reshape(len(part), -1)
        pieces = [slice(start, min(start + 7, len(flat))) for start in range(0, len(flat), 7)]
        return RowPieces(flat.shape, pieces, lambda i: flat[pieces[i]].copy())  # type: ignore[arg-type]

    kept = state._replace(result=in_pieces(state.result), above=in_pieces(state.above))
    made = attention_vjp_of_transpose(turned, in_pieces(x), source, target, gradient, kept, 0.2, 0.0, None)
    for one, other in zip(whole, made, strict=True):
        assert one.shape == other.shape
        assert np.array_equal(one, other)

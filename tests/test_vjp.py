"""Gradients must agree with differences of the functions themselves in float64, and those of other dtypes with float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import dtype_of, graphs

import bitsparse as bs

GRAPHS = graphs()
SMALL = [name for name, graph in GRAPHS.items() if graph.nnz < 3000]
STEP = 1e-5


def differences(
    function: Callable[..., np.ndarray], at: tuple[np.ndarray, ...], gradient: np.ndarray
) -> list[np.ndarray]:
    """Return gradients of ``sum(gradient * function(*at))`` by central differences for some elements; all others are NaN."""
    rng = np.random.default_rng(0)
    made = []
    for number, array in enumerate(at):
        slopes = np.full(array.shape, np.nan)
        for flat in rng.permutation(array.size)[:12]:
            index = np.unravel_index(flat, array.shape)
            ends = []
            for step in (STEP, -STEP):
                moved = array.copy()
                moved[index] += step
                ends.append(function(*at[:number], moved, *at[number + 1 :]))
            slopes[index] = ((ends[0] - ends[1]) * gradient).sum() / (2 * STEP)
        made.append(slopes)
    return made


def agree(got: Any, slopes: np.ndarray) -> None:
    known = ~np.isnan(slopes)
    assert got.shape == slopes.shape
    np.testing.assert_allclose(
        got[known], slopes[known], rtol=1e-6, atol=1e-7 * max(1, abs(slopes[known]).max(initial=0))
    )


def away_from_zero(x: np.ndarray) -> np.ndarray:
    """Return numbers that every dtype can divide by."""
    return x + np.copysign(0.5, x)


def containers(A: sp.csr_array) -> list[Any]:
    rng = np.random.default_rng(5)
    scales = {"row_scale": rng.random(A.shape[0]) + 0.5, "col_scale": rng.random(A.shape[1]) + 0.5}
    order = np.concatenate(
        [np.arange(0), *(rng.permutation(np.arange(a, b)) for a, b in zip(A.indptr, A.indptr[1:], strict=False))]
    )
    order = order.astype(A.indptr.dtype)
    unsorted = sp.csr_array((A.data[order], A.indices[order], A.indptr), shape=A.shape)
    return [
        A,
        unsorted,
        A.tocsc(),
        bs.TCTiledCSR(A, **scales),
        bs.FRDC(A != 0, **scales),
        bs.TCTiledCSR(A, pattern=True),
    ]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("name", SMALL)
def test_sparse_products(name: str, reduce: Any) -> None:
    rng = np.random.default_rng(1)
    graph = GRAPHS[name].astype(np.float64)
    graph.data = rng.standard_normal(graph.nnz)
    for A in containers(graph):
        for inner, heads in (((), None), ((3,), None), ((2, 3), 2), ((2, 3), None)):
            x = rng.standard_normal((A.shape[1], *inner))
            values = rng.standard_normal((graph.nnz, heads) if heads else graph.nnz)
            gradient = rng.standard_normal((A.shape[0], *inner))
            got = bs.spmm_vjp(A, x, gradient, values=values, reduce=reduce, wrt=("x", "values"))
            want = differences(lambda x, v, A=A: bs.spmm(A, x, values=v, reduce=reduce), (x, values), gradient)
            for one, other in zip(got, want, strict=True):
                agree(one, other)
        x, gradient = rng.standard_normal((A.shape[1], 2)), rng.standard_normal((A.shape[0], 2))
        (want,) = differences(lambda x, A=A: bs.spmm(A, x, reduce=reduce), (x,), gradient)
        agree(bs.spmm_vjp(A, x, gradient, reduce=reduce), want)


def test_values_of_the_matrix_itself() -> None:
    A = GRAPHS["square"].astype(np.float64)
    rng = np.random.default_rng(2)
    x, gradient = rng.standard_normal((A.shape[1], 4)), rng.standard_normal((A.shape[0], 4))
    got = bs.spmm_vjp(A, x, gradient, wrt="values")
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    np.testing.assert_allclose(got, (gradient[rows] * x[A.indices]).sum(axis=1), rtol=1e-13)
    assert np.array_equal(bs.spmm_vjp(A != 0, x, gradient, wrt="values"), got)


@pytest.mark.parametrize("op", ["dot", "add", "sub", "mul", "div"])
@pytest.mark.parametrize("name", SMALL)
def test_products_per_edge(name: str, op: Any) -> None:
    rng = np.random.default_rng(3)
    for A in containers(GRAPHS[name]):
        for inner in ((), (3,), (2, 3)):
            x, y = (away_from_zero(rng.standard_normal((n, *inner))) for n in A.shape)
            gradient = rng.standard_normal(bs.sddmm(A, x, y, op=op).shape)
            want = differences(lambda x, y, A=A: bs.sddmm(A, x, y, op=op), (x, y), gradient)
            for one, other in zip(bs.sddmm_vjp(A, x, y, gradient, op=op), want, strict=True):
                agree(one, other)


@pytest.mark.parametrize("name", SMALL)
def test_softmax(name: str) -> None:
    rng = np.random.default_rng(4)
    for A in containers(GRAPHS[name]):
        for inner in ((), (3,)):
            scores, gradient = (rng.standard_normal((GRAPHS[name].nnz, *inner)) for _ in range(2))
            (want,) = differences(lambda s, A=A: bs.edge_softmax(A, s), (scores,), gradient)
            agree(bs.edge_softmax_vjp(A, bs.edge_softmax(A, scores), gradient), want)


@pytest.mark.parametrize("name", SMALL)
def test_attention(name: str) -> None:
    rng = np.random.default_rng(10)
    for A in containers(GRAPHS[name])[:3]:
        for inner in ((3,), (2, 3)):
            x, source = rng.standard_normal((A.shape[1], *inner)), rng.standard_normal((A.shape[1], *inner[:-1]))
            target, gradient = rng.standard_normal((A.shape[0], *inner[:-1])), rng.standard_normal((A.shape[0], *inner))
            want = differences(lambda *given, A=A: bs.attention(A, *given), (x, source, target), gradient)
            for one, other in zip(bs.attention_vjp(A, x, source, target, gradient), want, strict=True):
                agree(one, other)


@pytest.mark.parametrize("side", ["rows", "cols"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("name", SMALL)
def test_sums_over_edges(name: str, reduce: Any, side: Any) -> None:
    rng = np.random.default_rng(6)
    for A in containers(GRAPHS[name]):
        for inner in ((), (3,), (2, 2)):
            edges = rng.standard_normal((GRAPHS[name].nnz, *inner))
            gradient = rng.standard_normal((A.shape[side == "cols"], *inner))
            how = {"reduce": reduce, "side": side}
            (want,) = differences(lambda e, A=A, how=how: bs.aggregate_edges(A, e, **how), (edges,), gradient)
            agree(bs.aggregate_edges_vjp(A, edges, gradient, **how), want)


def test_ties_share_the_gradient() -> None:
    A = sp.csr_array(np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    x, gradient = np.array([2.0, 5.0, 5.0]), np.array([3.0, 7.0])
    assert bs.spmm_vjp(A, x, gradient, reduce="max").tolist() == [0, 1.5, 1.5]
    assert bs.spmm_vjp(A, x, gradient, reduce="min").tolist() == [3, 0, 0]
    assert bs.aggregate_edges_vjp(A, np.array([1.0, 4.0, 4.0]), gradient, reduce="max").tolist() == [0, 1.5, 1.5]


def test_columns_are_taken_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    A = GRAPHS["square"]
    x, gradient = rng.standard_normal((A.shape[1], 2, 7)), rng.standard_normal((A.shape[0], 2, 7))
    values = rng.standard_normal((A.nnz, 2))
    how = {"values": values, "reduce": "max", "wrt": ("x", "values")}
    whole = bs.spmm_vjp(A, x, gradient, **how)
    monkeypatch.setattr(importlib.import_module("bitsparse.ops.spmm.vjp"), "_PIECE_BYTES", A.nnz * 8 * 3)
    for one, other in zip(whole, bs.spmm_vjp(A, x, gradient, **how), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


CALLS: dict[str, Callable[..., Any]] = {
    "spmm": lambda A, x, y, v, dx, dv: bs.spmm_vjp(A, y, dx, values=v, wrt=("x", "values")),
    "mean": lambda A, x, y, v, dx, dv: bs.spmm_vjp(A, y, dx, values=v, wrt=("x", "values"), reduce="mean"),
    "max": lambda A, x, y, v, dx, dv: bs.spmm_vjp(A, y, dx, values=v, wrt=("x", "values"), reduce="max"),
    "dot": lambda A, x, y, v, dx, dv: bs.sddmm_vjp(A, x, y, dv),
    "sub": lambda A, x, y, v, dx, dv: bs.sddmm_vjp(A, x[:, 0], y[:, 0], dv, op="sub"),
    "div": lambda A, x, y, v, dx, dv: bs.sddmm_vjp(A, x[:, 0], y[:, 0], dv, op="div"),
    "gatv2": lambda A, x, y, v, dx, dv: bs.gatv2_scores_vjp(A, y, x, y[0], dv),
    "cosine": lambda A, x, y, v, dx, dv: (
        (bs.cosine_attention_vjp(A, x, dx, beta=2.0),) if A.shape[0] == A.shape[1] else ()
    ),
    "sampled": lambda A, x, y, v, dx, dv: bs.sampled_spmm_vjp(A, y, dx, 9, rescale=True, wrt=("x", "values")),
    "softmax": lambda A, x, y, v, dx, dv: (bs.edge_softmax_vjp(A, abs(v), dv),),
    "attention": lambda A, x, y, v, dx, dv: bs.attention_vjp(A, y, y[:, 0], x[:, 0], dx),
    "cols": lambda A, x, y, v, dx, dv: (bs.aggregate_edges_vjp(A, v, y[:, 0], side="cols", reduce="mean"),),
}


@pytest.mark.parametrize("graph", ["hubs", "square"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 3e-2)])
def test_dtypes_and_repetition(name: str, dtype: str, bound: float, graph: str) -> None:
    rng = np.random.default_rng(7)
    A = bs.TCTiledCSR(GRAPHS[graph], pattern=True)
    shapes = [(A.shape[0], 5), (A.shape[1], 5), (A.nnz,), (A.shape[0], 5), (A.nnz,)]
    arrays = [away_from_zero(rng.standard_normal(shape)).astype(dtype_of(dtype)) for shape in shapes]
    want = CALLS[name](A, *(array.astype(np.float64) for array in arrays))
    first = CALLS[name](A, *arrays)
    for _ in range(20):
        for got, again, exact in zip(first, CALLS[name](A, *arrays), want, strict=True):
            assert got.dtype == dtype_of(dtype)
            assert got.tobytes() == again.tobytes()
            assert abs(got.astype(np.float64) - exact).max() <= bound * abs(exact).max()


def test_arrays_that_are_not_contiguous() -> None:
    rng = np.random.default_rng(9)
    A = GRAPHS["square"]
    x, gradient = rng.standard_normal((6, A.shape[1])).T, rng.standard_normal((A.shape[0], 12))[:, ::2]
    got = bs.spmm_vjp(A, x, gradient)
    assert np.array_equal(got, bs.spmm_vjp(A, np.ascontiguousarray(x), np.ascontiguousarray(gradient)))


def test_what_does_not_fit_is_refused() -> None:
    A = sp.csr_array(np.array([[0.0, 2.0, 1.0], [1.0, 3.0, 0.0]]))
    x, gradient = np.ones((3, 2)), np.ones((2, 2))
    with pytest.raises(bs.ShapeError, match=r"spmm_vjp: gradient has shape \(3, 2\), but the product has \(2, 2\)"):
        bs.spmm_vjp(A, x, x)
    with pytest.raises(bs.ShapeError, match=r"spmm_vjp: x has shape \(2, 2\)"):
        bs.spmm_vjp(A, gradient, gradient)
    with pytest.raises(bs.ShapeError, match="spmm_vjp: values have shape"):
        bs.spmm_vjp(A, x, gradient, values=np.ones((4, 2)))
    with pytest.raises(ValueError, match="spmm_vjp: wrt"):
        bs.spmm_vjp(A, x, gradient, wrt="A")
    with pytest.raises(bs.DTypeError, match="spmm_vjp: wrt"):
        bs.spmm_vjp(A, x, gradient, wrt=())
    with pytest.raises(bs.DTypeError, match="spmm_vjp"):
        bs.spmm_vjp(A, x.astype(np.int32), gradient)
    with pytest.raises(bs.ShapeError, match="sddmm_vjp: gradient has shape"):
        bs.sddmm_vjp(A, gradient, x, np.ones(3))
    with pytest.raises(bs.ShapeError, match="edge_softmax_vjp: gradient has shape"):
        bs.edge_softmax_vjp(A, np.ones(4), np.ones(3))
    with pytest.raises(bs.ShapeError, match="aggregate_edges_vjp: gradient has shape"):
        bs.aggregate_edges_vjp(A, np.ones(4), np.ones(3))


def test_gradients_come_back_in_the_library_of_the_operand() -> None:
    torch = pytest.importorskip("torch")
    A = GRAPHS["square"]
    x, gradient = torch.ones((A.shape[1], 3)), torch.ones((A.shape[0], 3))
    dx, dvalues = bs.spmm_vjp(A, x, gradient, values=torch.ones(A.nnz), wrt=("x", "values"))
    assert isinstance(dx, torch.Tensor)
    assert isinstance(dvalues, torch.Tensor)

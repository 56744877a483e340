"""Gradients must agree with PyTorch's automatic differentiation of the same formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sparse_inputs import graphs

import bitsparse as bs

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

GRAPHS = {name: graph for name, graph in graphs().items() if name in ("no edges", "tall", "wide", "square", "hubs")}


def ends(graph: sp.csr_array) -> tuple[Any, Any]:
    """Return the row and the column of every edge."""
    rows = np.repeat(np.arange(graph.shape[0]), np.diff(graph.indptr))
    return torch.from_numpy(rows), torch.from_numpy(graph.indices.astype(np.int64))


def squared(graph: sp.csr_array) -> sp.csr_array:
    size = max(graph.shape)
    indptr = np.append(graph.indptr, np.full(size - graph.shape[0], graph.nnz, graph.indptr.dtype))
    return sp.csr_array((graph.data, graph.indices, indptr), shape=(size, size))


def softmax(scores: Any, rows: Any, count: int) -> Any:
    """Return the softmax over the edges of each row."""
    index = rows.reshape(-1, *(1,) * (scores.ndim - 1)).expand(scores.shape)
    most = torch.full((count, *scores.shape[1:]), -torch.inf, dtype=scores.dtype)
    powers = (scores - most.scatter_reduce(0, index, scores, "amax").detach()[rows]).exp()
    return powers / torch.zeros((count, *scores.shape[1:]), dtype=scores.dtype).index_add(0, rows, powers)[rows]


def check(got: tuple[Any, ...], made: Any, wrt: list[Any], gradient: np.ndarray) -> None:
    """Require that each gradient is within 1e-12 of its largest magnitude."""
    wants = torch.autograd.grad(made, wrt, torch.from_numpy(gradient), retain_graph=True)
    assert len(got) == len(wants)
    for one, want in zip(got, wants, strict=True):
        assert one.shape == want.shape
        assert one.dtype == np.float64
        assert abs(one - want.numpy()).max(initial=0) <= 1e-12 * max(1, abs(want.numpy()).max(initial=0))


@pytest.mark.parametrize("beta", [0.0, 1.0, -3.0, 50.0])
@pytest.mark.parametrize("name", GRAPHS)
def test_attention_by_cosines(name: str, beta: float) -> None:
    rng, graph = np.random.default_rng(0), squared(GRAPHS[name])
    rows, columns = ends(graph)
    values = rng.standard_normal((graph.shape[0], 5)) * 10.0 ** rng.integers(-2, 3, (graph.shape[0], 1))
    gradient = rng.standard_normal(values.shape)
    x, factor = torch.from_numpy(values).requires_grad_(), torch.tensor(beta, dtype=torch.float64, requires_grad=True)
    unit = x / x.norm(dim=1, keepdim=True)
    weights = softmax(factor * (unit[rows] * unit[columns]).sum(dim=1), rows, len(values))
    made = torch.zeros_like(x).index_add(0, rows, weights[:, None] * x[columns])
    np.testing.assert_allclose(
        bs.cosine_attention(graph, values, beta=beta), made.detach().numpy(), rtol=1e-11, atol=1e-12
    )
    got = bs.cosine_attention_vjp(graph, values, gradient, beta=beta, wrt=("x", "beta"))
    # The direction of a small row changes fast, so gradients are compared times the norms of their rows.
    want, want_beta = torch.autograd.grad(made, [x, factor], torch.from_numpy(gradient))
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    assert abs((got[0] - want.numpy()) * norms).max(initial=0) <= 1e-12 * abs(want.numpy() * norms).max(initial=1)
    assert abs(float(got[1]) - float(want_beta)) <= 1e-12 * max(1, abs(float(want_beta)))


def test_rows_of_zeros_have_no_direction() -> None:
    graph = squared(GRAPHS["square"])
    rng = np.random.default_rng(1)
    x, gradient = rng.standard_normal((2, graph.shape[0], 4))
    x[::7] = 0
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
    want = bs.spmm_vjp(graph, x, gradient, values=bs.edge_softmax(graph, 2.0 * bs.sddmm(graph, unit)))
    got = bs.cosine_attention_vjp(graph, x, gradient, beta=2.0)
    np.testing.assert_allclose(got[::7], want[::7], rtol=1e-13, atol=1e-13)
    nothing = np.empty((graph.shape[0], 0))
    dx, dbeta = bs.cosine_attention_vjp(graph, nothing, nothing, wrt=("x", "beta"))
    assert dx.shape == nothing.shape
    assert dbeta == 0


@pytest.mark.parametrize("inner", [(3,), (1, 4), (3, 5), (2, 20)])
@pytest.mark.parametrize("name", GRAPHS)
def test_scores_of_graph_attention_of_the_second_kind(name: str, inner: tuple[int, ...]) -> None:
    rng, graph = np.random.default_rng(2), GRAPHS[name]
    rows, columns = ends(graph)
    arrays = [rng.standard_normal(shape) for shape in ((graph.shape[1], *inner), (graph.shape[0], *inner), inner)]
    source, target, a = (torch.from_numpy(array).requires_grad_() for array in arrays)
    leaky = torch.nn.functional.leaky_relu(source[columns] + target[rows], 0.3)
    made = (leaky * a).sum(dim=-1)
    got = bs.gatv2_scores(graph, *arrays, negative_slope=0.3)
    np.testing.assert_allclose(got, made.detach().numpy(), rtol=1e-12, atol=1e-12)
    gradient = rng.standard_normal(got.shape)
    check(bs.gatv2_scores_vjp(graph, *arrays, gradient, negative_slope=0.3), made, [source, target, a], gradient)
    for name in ("source", "target", "a"):
        one = bs.gatv2_scores_vjp(graph, *arrays, gradient, negative_slope=0.3, wrt=name)
        every = bs.gatv2_scores_vjp(graph, *arrays, gradient, negative_slope=0.3)
        assert np.array_equal(one, every[("source", "target", "a").index(name)])


@pytest.mark.parametrize("op", ["dot", "add", "sub", "mul", "div"])
@pytest.mark.parametrize("name", GRAPHS)
def test_products_per_edge(name: str, op: Any) -> None:
    rng, graph = np.random.default_rng(3), GRAPHS[name]
    rows, columns = ends(graph)
    for inner in ((), (3,), (2, 3)):
        arrays = [rng.standard_normal((size, *inner)) for size in graph.shape]
        if op == "div":
            arrays[1] += np.where(arrays[1] > 0, 0.5, -0.5)
        x, y = (torch.from_numpy(array).requires_grad_() for array in arrays)
        made = getattr(torch, "mul" if op == "dot" else op)(x[rows], y[columns])
        made = made.sum(dim=-1) if op == "dot" and inner else made
        gradient = rng.standard_normal(made.shape)
        np.testing.assert_allclose(bs.sddmm(graph, *arrays, op=op), made.detach().numpy(), rtol=1e-13, atol=1e-13)
        check(bs.sddmm_vjp(graph, *arrays, gradient, op=op), made, [x, y], gradient)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("strategy", ["aes", "afs", "sfs", "uniform"])
@pytest.mark.parametrize("name", GRAPHS)
def test_sums_over_samples(name: str, strategy: Any, rescale: bool) -> None:
    rng, graph = np.random.default_rng(4), GRAPHS[name].astype(np.float64)
    graph.data = rng.standard_normal(graph.nnz)
    rows, columns = ends(graph)
    seed = {"seed": 5, "stream": 2} if strategy == "uniform" else {}
    arrays, gradient = rng.standard_normal((graph.shape[1], 3)), rng.standard_normal((graph.shape[0], 3))
    x, values = (torch.from_numpy(array).requires_grad_() for array in (arrays, graph.data))
    scales = {"row_scale": rng.random(graph.shape[0]) + 0.5, "col_scale": rng.random(graph.shape[1]) + 0.5}
    for width in (3, 60):
        drawn = bs.edge_sample(graph, width, strategy, **seed)
        times = torch.from_numpy(np.bincount(drawn.edges, minlength=graph.nnz).astype(np.float64))
        if rescale:
            times = times * torch.from_numpy(np.diff(graph.indptr) / np.maximum(np.diff(drawn.indptr), 1))[rows]
        for A in (graph, bs.TCTiledCSR(graph, **scales)):
            weights = values * times
            if A is not graph:
                one, other = (torch.from_numpy(np.float32(scale).astype(np.float64)) for scale in scales.values())
                weights = weights * one[rows] * other[columns]
            zeros = torch.zeros(gradient.shape, dtype=torch.float64)
            made = zeros.index_add(0, rows, weights[:, None] * x[columns])
            got = bs.sampled_spmm(A, arrays, width, strategy, rescale=rescale, **seed)
            np.testing.assert_allclose(got, made.detach().numpy(), rtol=1e-12, atol=1e-12)
            how = {"rescale": rescale, "wrt": ("x", "values"), **seed}
            check(bs.sampled_spmm_vjp(A, arrays, gradient, width, strategy, **how), made, [x, values], gradient)
            how["wrt"] = ("values", "x")
            check(bs.sampled_spmm_vjp(A, arrays, gradient, width, strategy, **how), made, [values, x], gradient)

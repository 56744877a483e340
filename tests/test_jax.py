"""bitsparse.jax: the functions under jit, grad, vmap, scan, remat and shard_map, against dense algebra in float64."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

import bitsparse as bs

pytestmark = pytest.mark.jax
jax = pytest.importorskip("jax")
jnp = jax.numpy
check_grads: Any = pytest.importorskip("jax.test_util").check_grads
bsj: Any = pytest.importorskip("bitsparse.jax")
layers: Any = pytest.importorskip("bitsparse.jax.layers")

Array = NDArray[Any]
NODES = 24


@pytest.fixture(autouse=True)
def _wide() -> Any:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def adjacency(seed: int = 0, symmetric: bool = False, shape: tuple[int, int] = (NODES, NODES)) -> Any:
    rng = np.random.default_rng(seed)
    A = sparse.random_array(shape, density=0.15, rng=rng, format="csr")
    if symmetric:
        A = sparse.csr_array(A + A.T)
    A = sparse.csr_array((A.toarray() != 0) * 1.0)
    A.sort_indices()
    return A


def normal(*shape: int, seed: int = 1, dtype: Any = np.float64) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def dense_of(A: Any, values: Any) -> Any:
    """Return the dense matrix as a differentiable function of other values."""
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    return jnp.zeros(A.shape).at[rows, A.indices].set(values)


def near(got: Any, wanted: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.asarray(wanted, np.float64), rtol=tolerance, atol=tolerance
    )


# ---- sums
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("as_argument", [False, True], ids=["closed over", "argument"])
def test_sums_and_gradients(symmetric: bool, as_argument: bool) -> None:
    A = adjacency(symmetric=symmetric)
    g, x, v = bsj.graph(A), normal(NODES, 5), normal(A.nnz)

    def loss(g: Any, x: Any, v: Any) -> Any:
        return (bsj.spmm(g, x, v) ** 3).sum() + (bsj.spmm(g, x) ** 2).sum()

    def wanted(x: Any, v: Any) -> Any:
        return ((dense_of(A, v) @ x) ** 3).sum() + ((A.toarray() @ x) ** 2).sum()

    run = jax.jit(jax.value_and_grad(loss, (1, 2)))
    closed = jax.jit(lambda x, v: jax.value_and_grad(loss, (1, 2))(g, x, v))
    got = run(g, x, v) if as_argument else closed(x, v)
    expected = jax.value_and_grad(wanted, (0, 1))(x, v)
    near(got[0], expected[0])
    near(got[1][0], expected[1][0])
    near(got[1][1], expected[1][1])


@pytest.mark.parametrize("norm", ["gcn", "symmetric"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("self_loops", [False, True])
def test_norms(norm: str, dtype: str, self_loops: bool) -> None:
    A = adjacency(symmetric=True)
    g, x = bsj.graph(A, self_loops=self_loops), normal(NODES, 5, dtype=dtype)
    dense = np.maximum(A.toarray(), np.eye(NODES)) if norm == "gcn" or self_loops else A.toarray()
    degrees = dense.sum(axis=1)
    scale = np.divide(1, np.sqrt(degrees), where=degrees > 0, out=np.zeros(NODES))
    matrix = jnp.asarray(scale[:, None] * dense * scale, dtype)
    tolerance = 1e-9 if dtype == "float64" else 2e-5
    got = jax.value_and_grad(lambda x: (bsj.spmm(g, x, norm=norm) ** 2).sum())(x)
    near(got[0], ((matrix @ x) ** 2).sum(), tolerance)
    near(got[1], 2 * matrix.T @ (matrix @ x), tolerance)
    near(bsj.spmm(g, x, jnp.ones(g.num_edges, dtype), norm=norm), matrix @ x, tolerance)


def test_a_norm_of_values_is_differentiated() -> None:
    A = adjacency(symmetric=True)
    g, x, v = bsj.graph(A), normal(NODES, 3), abs(normal(A.nnz)) + 0.1

    def wanted(v: Any) -> Any:
        matrix = dense_of(A, v) + jnp.diag(jnp.asarray(A.diagonal() == 0, float))
        scale = matrix.sum(axis=1) ** -0.5
        return (((scale[:, None] * matrix * scale) @ x) ** 2).sum()

    near(jax.jit(jax.grad(lambda v: (bsj.spmm(g, x, v, norm="gcn") ** 2).sum()))(v), jax.grad(wanted)(v))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("values", [None, "edges", "heads"])
def test_reductions_are_those_of_the_array_functions(reduce: str, values: str | None) -> None:
    A = adjacency(3, shape=(20, NODES))
    g, x = bsj.graph(A), normal(NODES, 2, 3)
    v = None if values is None else normal(A.nnz, *(2,) * (values == "heads"))
    plain = None if v is None else np.asarray(v)
    got = jax.jit(lambda x: bsj.spmm(g, x, v, reduce=reduce))(x)
    near(got, bs.spmm(A, np.asarray(x), values=plain, reduce=reduce))
    gradient = normal(20, 2, 3, seed=5)
    by_x = jax.vjp(lambda x: bsj.spmm(g, x, v, reduce=reduce), x)[1](gradient)[0]
    near(by_x, bs.spmm_vjp(A, np.asarray(x), np.asarray(gradient), values=plain, reduce=reduce))


def test_gradients_of_gradients() -> None:
    A = adjacency()
    g, x, v = bsj.graph(A), normal(NODES, 2), normal(A.nnz)
    check_grads(lambda x, v: bsj.spmm(g, x, v), (x, v), order=2, modes=["rev"])
    check_grads(lambda x, y: bsj.sddmm(g, x, y), (x, normal(NODES, 2, seed=4)), order=2, modes=["rev"])
    got = jax.jacrev(jax.grad(lambda v: (bsj.spmm(g, x, v) ** 3).sum()))(v)
    near(got, jax.hessian(lambda v: ((dense_of(A, v) @ x) ** 3).sum())(v))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(dtype: str) -> None:
    A = adjacency()
    g, x = bsj.graph(A), normal(NODES, 5, dtype=dtype)
    y, back = jax.vjp(jax.jit(lambda x: bsj.spmm(g, x)), x)
    assert y.dtype == x.dtype and back(y)[0].dtype == x.dtype
    near(y, A.toarray() @ np.asarray(x, np.float64), {"float16": 5e-3, "bfloat16": 4e-2}.get(dtype, 1e-5))
    assert bsj.spmm(g, x, jnp.ones(A.nnz, "float32")).dtype == jnp.promote_types(dtype, "float32")


# ---- other functions
def test_edges_and_attention_have_the_gradients_of_dense_ones() -> None:
    A = adjacency()
    g, mask = bsj.graph(A), jnp.asarray(A.toarray() != 0)
    x, s, t = normal(NODES, 2, 3), normal(NODES, 2, seed=2), normal(NODES, 2, seed=3)

    def dense(x: Any, s: Any, t: Any) -> Any:
        scores = jnp.where(mask[..., None], jax.nn.leaky_relu(t[:, None] + s[None], 0.2), -jnp.inf)
        top = jnp.where(jnp.isfinite(m := scores.max(axis=1, keepdims=True)), m, 0)
        weights = jnp.where(mask[..., None], jnp.exp(scores - top), 0)
        weights = weights / jnp.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        return jnp.einsum("ijh,jhd->ihd", weights, x)

    def steps(x: Any, s: Any, t: Any) -> Any:
        return bsj.spmm(g, x, bsj.edge_softmax(g, jax.nn.leaky_relu(bsj.sddmm(g, t, s, op="add"), 0.2)))

    for function in (steps, partial(bsj.attention, g)):
        got = jax.jit(jax.grad(lambda *a, f=function: (f(*a) ** 2).sum(), (0, 1, 2)))(x, s, t)
        for one, other in zip(got, jax.grad(lambda *a: (dense(*a) ** 2).sum(), (0, 1, 2))(x, s, t), strict=True):
            near(one, other)


def test_cosines() -> None:
    A = adjacency(symmetric=True)
    g, mask, x = bsj.graph(A), jnp.asarray(A.toarray() != 0), normal(NODES, 4)

    def dense(x: Any, beta: Any) -> Any:
        unit = x / jnp.linalg.norm(x, axis=1, keepdims=True)
        weights = jnp.where(mask, jnp.exp(beta * (unit @ unit.T)), 0)
        return (weights / jnp.maximum(weights.sum(axis=1, keepdims=True), 1e-300)) @ x

    got = jax.jit(jax.grad(lambda x, b: (bsj.cosine_attention(g, x, b) ** 2).sum(), (0, 1)))(x, 1.5)
    wanted = jax.grad(lambda x, b: (dense(x, b) ** 2).sum(), (0, 1))(x, 1.5)
    near(got[0], wanted[0])
    near(got[1], wanted[1])


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("side", ["rows", "cols"])
def test_edges_to_nodes(reduce: str, side: str) -> None:
    A = adjacency()
    g, e = bsj.graph(A), normal(A.nnz, 3)
    y, back = jax.vjp(jax.jit(lambda e: bsj.aggregate_edges(g, e, reduce=reduce, side=side)), e)
    near(y, bs.aggregate_edges(A, np.asarray(e), reduce=reduce, side=side))
    near(back(y)[0], bs.aggregate_edges_vjp(A, np.asarray(e), np.asarray(y), reduce=reduce, side=side))


def test_samples() -> None:
    A = adjacency()
    g, x, v = bsj.graph(A), normal(NODES, 3), normal(A.nnz)
    W = sparse.csr_array((np.asarray(v), A.indices, A.indptr), shape=A.shape)
    y, back = jax.vjp(jax.jit(lambda x, v: bsj.sampled_spmm(g, x, 2, values=v, rescale=True)), x, v)
    near(y, bs.sampled_spmm(W, np.asarray(x), 2, rescale=True))
    wanted = bs.sampled_spmm_vjp(W, np.asarray(x), np.asarray(y), 2, rescale=True, wrt=("x", "values"))
    for got, other in zip(back(y), wanted, strict=True):
        near(got, other)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_samples_of_a_weighted_graph_follow_the_features(dtype: str) -> None:
    A, x = adjacency(), normal(NODES, 3, dtype=dtype)
    A.data = np.random.default_rng(2).random(A.nnz)  # float64 weights
    g, how = bsj.graph(A), {"width": NODES, "strategy": "sfs"}
    y, back = jax.vjp(lambda x: bsj.sampled_spmm(g, x, **how), x)
    wide = jnp.asarray(x, jnp.float64)
    near = partial(
        np.testing.assert_allclose, rtol=1e-5 if dtype != "float16" else 1e-2, atol=1e-5 if dtype != "float16" else 1e-2
    )
    assert y.dtype == dtype
    near(y, A @ wide)
    near(back(x)[0], A.T @ wide)


def test_dropout_is_that_of_its_key() -> None:
    A = adjacency()
    g, x, s = bsj.graph(A), normal(NODES, 3), normal(NODES)
    run = jax.jit(lambda key: bsj.attention(g, x, s, s, dropout=0.5, key=key))
    one, again, other = (run(jax.random.key(n)) for n in (0, 0, 1))
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    check_grads(lambda x: bsj.attention(g, x, s, s, dropout=0.5, key=jax.random.key(0)), (x,), order=1, modes=["rev"])


# ---- transformations
def test_batches_are_what_loops_give() -> None:
    A = adjacency()
    g, x, v = bsj.graph(A), normal(3, NODES, 4), normal(3, A.nnz)
    s, t, e = normal(3, NODES, seed=7), normal(3, NODES, seed=8), normal(3, A.nnz, 2)
    cases: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = [
        (lambda x: bsj.spmm(g, x), (x,), (0,)),
        (lambda x, v: bsj.spmm(g, x, v), (x, v), (0, 0)),
        (lambda x, v: bsj.spmm(g, x, v), (x[0], v), (None, 0)),
        (lambda x, v: bsj.spmm(g, x, v), (x, v[0]), (0, None)),
        (lambda x: bsj.spmm(g, x, reduce="max"), (x,), (0,)),
        (lambda x, v: bsj.spmm(g, x, v, reduce="max"), (x, v), (0, 0)),
        (lambda x: bsj.spmm(g, x, norm="gcn"), (x,), (0,)),
        (lambda x: bsj.sddmm(g, x), (x,), (0,)),
        (lambda x, y: bsj.sddmm(g, x, y, op="mul"), (x, x[0]), (0, None)),
        (lambda e: bsj.edge_softmax(g, e), (e,), (0,)),
        (lambda e: bsj.aggregate_edges(g, e, reduce="mean"), (e,), (0,)),
        (lambda x, s, t: bsj.attention(g, x, s, t), (x, s, t), (0, 0, 0)),
        (lambda x, s, t: bsj.attention(g, x, s, t), (x[0], s, t[0]), (None, 0, None)),
        (lambda x: bsj.cosine_attention(g, x), (x,), (0,)),
        (lambda x: bsj.sampled_spmm(g, x, 2), (x,), (0,)),
    ]
    for function, arguments, axes in cases:

        def squared(*given: Any, f: Any = function) -> Any:
            return (f(*given) ** 2).sum()

        def each(f: Any, given: Any = arguments, along: Any = axes) -> Any:
            made = [f(*(a if axis is None else a[i] for a, axis in zip(given, along, strict=True))) for i in range(3)]
            return jax.tree.map(lambda *parts: jnp.stack(parts), *made)

        near(jax.jit(jax.vmap(function, axes))(*arguments), each(function))
        which = tuple(range(len(arguments)))
        got = jax.jit(jax.vmap(jax.grad(squared, which), axes))(*arguments)
        for one, other in zip(got, each(jax.grad(squared, which)), strict=True):
            near(one, other)


def test_batches_of_graphs_go_one_by_one() -> None:
    A, B = adjacency(), adjacency()
    A.data[:] = np.arange(A.nnz)
    B.data[:] = np.arange(A.nnz) ** 2
    graphs = jax.tree.map(lambda *parts: jnp.stack(parts), bsj.graph(A), bsj.graph(B))
    x = normal(NODES, 3)
    got = jax.jit(jax.vmap(bsj.spmm, (0, None)))(graphs, x)
    near(got, np.stack([A @ np.asarray(x), B @ np.asarray(x)]))


def test_scan_remat_and_conditions() -> None:
    A = adjacency()
    g, x, matrix = bsj.graph(A), normal(NODES, 3) / 8, jnp.asarray(A.toarray())

    def steps(sums: Any, x: Any) -> Any:
        layer = jax.checkpoint(lambda x: jnp.tanh(sums(x)))
        x, _ = jax.lax.scan(lambda x, _: (layer(x), None), x, None, length=3)
        return jax.lax.cond(x.sum() > -1e9, lambda x: (sums(x) ** 2).sum(), lambda x: x.sum(), x)

    wanted = jax.grad(partial(steps, lambda x: matrix @ x))(x)
    near(jax.jit(jax.grad(partial(steps, partial(bsj.spmm, g))))(x), wanted)
    near(jax.jit(jax.grad(lambda g, x: steps(partial(bsj.spmm, g), x), 1))(g, x), wanted)


def test_jitted_is_eager_to_the_bit() -> None:
    A = adjacency(symmetric=True)
    g, x, s = bsj.graph(A, self_loops=True), normal(NODES, 5, dtype="float32"), normal(NODES, dtype="float32")
    for function in (
        lambda g, x: bsj.spmm(g, x, norm="gcn"),
        lambda g, x: bsj.attention(g, x, s, s),
        lambda g, x: bsj.cosine_attention(g, x),
    ):
        eager = function(g, x)
        assert np.array_equal(eager, jax.jit(function)(g, x))
        assert np.array_equal(eager, jax.jit(partial(function, g))(x))


def test_shards_on_several_devices(tmp_path: Path) -> None:
    """Within shard_map, results must vary along the right axes of the mesh, and gradients of shared inputs must be summed."""
    code = """
from functools import partial
import numpy as np, jax, jax.numpy as jnp, bitsparse.jax as bsj
from bitsparse.jax import layers
from jax.sharding import NamedSharding, PartitionSpec as P
from scipy import sparse
rng = np.random.default_rng(0)
A = sparse.random_array((30, 30), density=0.2, rng=rng, format="csr", dtype=np.float32)
x, values = jnp.asarray(rng.normal(size=(30, 8)), jnp.float32), jnp.asarray(rng.normal(size=A.nnz), jnp.float32)
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
g, columns, over = bsj.graph(A), P(None, "d"), partial(jax.shard_map, mesh=mesh)
def near(found, wanted):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found, wanted)
def loss(x, g=g): return (bsj.spmm(g, x) ** 2).sum()
wanted = jax.grad(loss)(x)
by_columns = jax.jit(over(jax.grad(loss), in_specs=columns, out_specs=columns))
assert np.array_equal(by_columns(x), wanted)
traced = jax.jit(over(lambda g, x: jax.grad(loss)(x, g), in_specs=(P(), columns), out_specs=columns))
assert np.array_equal(traced(g, x), wanted)
both = jax.grad(lambda values, x: (bsj.spmm(g, x, values=values) ** 2).sum(), (0, 1))
near(jax.jit(over(both, in_specs=(P(), columns), out_specs=(P(), columns)))(values, x), both(values, x))
def steps(x): return jax.lax.scan(lambda x, _: (jnp.tanh(bsj.spmm(g, x)), None), x, None, length=2)[0]
near(jax.jit(over(steps, in_specs=columns, out_specs=columns))(x), steps(x))
try:
    over(partial(bsj.spmm, g), in_specs=columns, out_specs=P())(x)
except ValueError as error:
    assert "out_specs" in str(error)
else:
    raise AssertionError("a result that varies went for one that is the same everywhere")
weights = tuple(jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((8, 2, 3), (2, 3), (8, 4)))
def attends(w, x): return (layers.gat(g, x, (w[0], w[1], w[1], None)) ** 2).sum() + (layers.sage(g, x, w[2]) ** 2).sum()
inputs = jnp.stack([x, 2 * x])
for function in (attends, bsj.tango(attends, last="quantized"), lambda w, x: (bsj.quantized_matmul(x, w[2], 8) ** 2).sum()):
    gradient = jax.grad(function)
    sums = jax.jit(over(lambda w, x: gradient(w, x[0]), in_specs=(P(), P("d")), out_specs=P()))(weights, inputs)
    near(sums, jax.tree.map(jnp.add, *(gradient(weights, one) for one in inputs)))
parts = [bsj.graph(sparse.csr_array((a.data * s, a.indices, a.indptr), shape=a.shape)) for a, s in ((A, 1), (A, 3))]
stacked = jax.tree.map(lambda *p: jnp.stack(p), *parts)
def one(g, x): return bsj.spmm(jax.tree.map(lambda p: p[0], g), x)[None]
own = jax.jit(over(one, in_specs=(P("d"), P()), out_specs=P("d")))
for _ in range(2):
    y = own(jax.device_put(stacked, NamedSharding(mesh, P("d"))), x)
near(y[1], 3 * (A @ np.asarray(x)))
print("right")
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.stdout.strip() == "right", done.stderr


def test_a_process_may_end_before_its_results_are_there(tmp_path: Path) -> None:
    """A process must end although XLA's threads reach a call while Python ends: they would wait for Python, and XLA for them."""
    code = """
import jax, jax.numpy as jnp, numpy as np, bitsparse.jax as bsj
from scipy import sparse
g = bsj.graph(sparse.random_array((3000, 3000), density=0.02, rng=np.random.default_rng(0), format="csr", dtype=np.float32))
x = jnp.ones((3000, 64), jnp.float32)
run = jax.jit(lambda x: bsj.spmm(g, jnp.tanh(x @ x.T @ x))).lower(x).compile()
result = run(x)
print("asked for")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("asked for", 0), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_ends_while_its_parent_computes(tmp_path: Path) -> None:
    """A forked process must end at once: it has none of XLA's threads, and so nothing to wait for."""
    code = """
import os, signal, sys, threading, time, jax.numpy as jnp, numpy as np, bitsparse.jax as bsj
from bitsparse._ext import xla
from bitsparse.jax import calls, launches
entered, goes_on = threading.Event(), threading.Event()
def serve(*given):
    entered.set()
    goes_on.wait()
    calls._serve(*given)
xla.setup(serve, launches.holds)
g = bsj.graph(np.array([[0, 1], [1, 0]]))
thread = threading.Thread(target=lambda: bsj.spmm(g, jnp.ones((2, 3))).block_until_ready())
thread.start()
entered.wait()
child = os.fork()
if not child:
    sys.exit(0)
for _ in range(600):
    done, _ = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.05)
else:
    os.kill(child, signal.SIGKILL)
goes_on.set()
thread.join()
print("ended" if done else "hung")
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert done.stdout.strip() == "ended", done.stderr


def test_self_loops_are_added_once_wherever_a_layer_is_traced() -> None:
    """Self loops must become arrays, not constants of the function that was traced when they were first requested."""
    g, x = bsj.graph(adjacency()), normal(NODES, 3, dtype="float32")
    kernel, ends = normal(3, 2, 2, dtype="float32"), normal(2, 2, dtype="float32")

    def attended(x: Any) -> Any:
        return layers.gat(g, x, (kernel, ends, ends, None)).sum()

    jax.jit(jax.grad(bsj.tango(attended)))(x)
    assert g.with_self_loops().is_concrete and g.with_self_loops() is g.with_self_loops()
    near(jax.jit(jax.grad(attended))(x), jax.grad(attended)(x), 1e-5)


# ---- memory and compilation
def test_other_graphs_and_values_compile_nothing() -> None:
    x, traced = normal(NODES, 3), []

    @jax.jit
    def run(g: Any, x: Any) -> Any:
        traced.append(1)
        return bsj.spmm(g, x)

    A = adjacency(symmetric=True)
    order = np.random.default_rng(2).permutation(NODES)
    for B in (A, sparse.csr_array(A[order][:, order])):
        near(run(bsj.graph(B), x), B @ np.asarray(x))
        near(run(bsj.graph(B), 2 * x), B @ np.asarray(2 * x))
    assert len(traced) == 1


def test_memory_that_is_used_again_is_not_mistaken() -> None:
    """Graphs of one size must not be confused if one is placed where another was, nor if some are donated to the computation."""
    x = normal(NODES, 3)
    base = adjacency(symmetric=True)
    run = jax.jit(bsj.spmm)
    giving = jax.jit(lambda g, x: (bsj.spmm(g, x), jax.tree.map(lambda part: part + 0, g)), donate_argnums=0)
    rng = np.random.default_rng(0)
    for _ in range(60):
        order = rng.permutation(NODES)
        B = sparse.csr_array(base[order][:, order])
        near(run(bsj.graph(B), x), B @ np.asarray(x))
        y, kept = giving(bsj.graph(B), x)
        near(y, B @ np.asarray(x))
        near(run(kept, x), B @ np.asarray(x))


def turned_about(shift: int) -> Any:
    """Return a pattern that differs from the others of its kind only in its columns."""
    return sparse.csr_array((np.ones(NODES), (np.arange(NODES), (np.arange(NODES) + shift) % NODES)))


@pytest.mark.parametrize("how", ["deleted", "gone"])
def test_an_address_is_believed_while_its_array_lives(how: str) -> None:
    from bitsparse import interop
    from bitsparse.jax import memory

    first, second = (turned_about(shift) for shift in (1, 2))
    g, kind = bsj.graph(first), interop.ArraysAt((NODES,), np.dtype(np.int32))
    starts = interop.ArraysAt((NODES + 1,), np.dtype(np.int32))
    parts = [g.indptr, g.indices]
    addresses = tuple(part.unsafe_buffer_pointer() for part in parts)
    placed = memory.Placed((NODES, NODES), (starts, kind, None, None), (*addresses, 0, 0))

    def there(A: Any) -> Any:
        return lambda kind, _: (A.indptr if kind is starts else A.indices).astype(np.int32)

    jax.tree.leaves(g)  # makes the graph an input of a computation
    made = memory.pattern_at(placed, there(first), on_host=True)
    assert memory.pattern_at(placed, there(second), on_host=True) is made
    if how == "deleted":
        for part in parts:
            part.delete()
    else:
        del g, parts
        gc.collect()
        assert addresses[0] not in memory._OWNED
    for A in (second, first):  # a pattern is compared with the one seen last, columns included
        got = memory.pattern_at(placed, there(A), on_host=True)
        assert np.array_equal(got.indices, A.indices)
        assert memory.pattern_at(placed, there(A), on_host=True) is got


def test_columns_are_those_that_lie_there_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was prepared for columns that are gone is not used for others at their place, even if Python gives numbers of objects again."""
    from bitsparse import interop
    from bitsparse.jax import memory

    monkeypatch.setattr(memory, "id", lambda owner: owner is not None, raising=False)
    nodes = 4000  # large enough that memory is soon used again
    starts, made, places = jnp.arange(nodes + 1, dtype=jnp.int32), [], set()
    kinds = tuple(interop.ArraysAt(shape, np.dtype(np.int32)) for shape in ((nodes + 1,), (nodes,)))
    memory.watch(starts)
    for number in range(20):
        columns = jnp.full(nodes, number, jnp.int32)
        memory.watch(columns)
        addresses = starts.unsafe_buffer_pointer(), columns.unsafe_buffer_pointer()
        placed = memory.Placed((nodes, nodes), (*kinds, None, None), (*addresses, 0, 0))
        made.append(memory.pattern_at(placed, lambda kind, address: kind.on_host(address), on_host=True))
        places.add(addresses[1])
        del columns
    assert len(places) < len(set(map(id, made))) == 20


def test_nothing_grows_with_the_calls() -> None:
    from bitsparse.jax import memory, tasks

    A = adjacency()
    g, x = bsj.graph(A), normal(NODES, 3)
    step = jax.jit(jax.grad(lambda x, g: (bsj.spmm(g, x) ** 2).sum()))
    step(x, g)
    gc.collect()
    before = len(tasks._TASKS), len(memory._OWNED), len(jax.live_arrays())
    for _ in range(1000):
        x = step(x, g) * 1e-3
    for _ in range(20):
        step(x, bsj.graph(A))
    gc.collect()
    assert len(tasks._TASKS) == before[0]
    assert len(memory._OWNED) <= before[1] and len(jax.live_arrays()) <= before[2]


def test_a_graph_that_was_closed_over_is_not_part_of_what_is_compiled() -> None:
    g, x = bsj.graph(adjacency()), normal(NODES, 3)
    text = jax.jit(lambda x: bsj.spmm(g, x, norm="symmetric", reduce="sum")).lower(x.astype("float32")).as_text()
    assert f"tensor<{g.num_edges}xi32>" not in text


def test_a_graph_lives_as_long_as_what_closed_over_it() -> None:
    import weakref

    def make(seed: int) -> tuple[Any, Any, Any]:
        A = adjacency(seed)
        g = bsj.graph(A)
        run = jax.jit(lambda x: bsj.spmm(g, x))
        x = normal(NODES, 3)
        run(x)
        return run, A, weakref.ref(g._name.graph)

    def compiled_ahead(seed: int) -> Any:
        g = bsj.graph(adjacency(seed))
        return jax.jit(lambda x: bsj.spmm(g, x)).lower(normal(NODES, 3)).compile()

    ahead = compiled_ahead(12)
    gc.collect()
    near(ahead(normal(NODES, 3)), adjacency(12) @ np.asarray(normal(NODES, 3)))
    run, A, known = make(11)
    gc.collect()
    x = normal(NODES, 3, seed=9)
    near(run(x), A @ np.asarray(x))
    del run
    jax.clear_caches()
    gc.collect()
    assert known() is None
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="closed over is gone"
    ):  # JAX itself has dropped the function that this was compiled from
        jax.block_until_ready(ahead(x))


# ---- graphs
def test_graphs_of_every_kind() -> None:
    from jax.experimental import sparse as jax_sparse

    A = adjacency()
    A.data[:] = np.random.default_rng(0).normal(size=A.nnz)
    rows = np.repeat(np.arange(NODES), np.diff(A.indptr))
    edges, x = np.stack([A.indices, rows]), normal(NODES, 3)
    bcoo = jax_sparse.BCOO.fromdense(jnp.asarray(A.toarray()), nse=A.nnz + 5)
    for g in (
        bsj.graph(A),
        bsj.graph(bs.TCTiledCSR(A)),
        bsj.graph(A.tocoo()),
        bsj.graph(edges, weight=A.data, num_nodes=NODES),
        bsj.graph(jnp.asarray(edges), weight=jnp.asarray(A.data), num_nodes=NODES),
        bsj.graph(A.indptr, A.indices, weight=A.data),
        bsj.graph(bcoo),
        bsj.graph(jax_sparse.BCSR.from_bcoo(jax_sparse.bcoo_sum_duplicates(bcoo, nse=A.nnz))),
    ):
        near(bsj.spmm(g, x), A @ np.asarray(x))
    twice = bsj.graph(np.concatenate([edges, edges[:, :3]], axis=1), num_nodes=NODES)
    counts = sparse.csr_array((A != 0) * 1.0) + sparse.csr_array((np.ones(3), edges[::-1, :3]), shape=A.shape)
    near(bsj.spmm(twice, x), counts @ np.asarray(x))
    near(bsj.spmm(twice, x, reduce="mean"), (counts @ np.asarray(x)) / np.maximum(counts.sum(axis=1), 1)[:, None])
    looped = bsj.graph(A).with_self_loops()
    near(bsj.spmm(looped, jnp.eye(NODES)), np.maximum(A.toarray() != 0, np.eye(NODES)))
    bipartite = bsj.graph(np.array([[0, 3], [1, 0]]), num_nodes=(5, 2))
    near(bsj.spmm(bipartite, jnp.arange(5.0)), [3, 0])
    near(jax.grad(lambda x: bsj.spmm(bipartite, x)[0])(jnp.arange(5.0)), [0, 0, 0, 1, 0])


def test_empty_graphs() -> None:
    for shape in ((0, 0), (3, 0), (0, 3), (4, 4)):
        g = bsj.graph(sparse.csr_array(shape))
        got = jax.jit(jax.value_and_grad(lambda x, g=g: bsj.spmm(g, x).sum()))(jnp.ones((shape[1], 2)))
        assert got[0] == 0 and not got[1].any()
        assert bsj.sddmm(g, jnp.ones((shape[0], 2)), jnp.ones((shape[1], 2))).shape == (0,)
    assert bsj.spmm(bsj.graph(adjacency()), jnp.ones((NODES, 0))).shape == (NODES, 0)


# ---- errors
def test_wrong_arguments_fail_while_tracing() -> None:
    g = bsj.graph(adjacency())
    twice = bsj.graph(np.array([[0, 0], [1, 1]]))
    cases: list[tuple[Any, Any, str]] = [
        (lambda x: bsj.spmm(g, x[:3]), bs.ShapeError, "24 sources but x has shape \\(3, 2\\)"),
        (lambda x: bsj.spmm(g, x.astype(int)), bs.DTypeError, "spmm: x is int64"),
        (lambda x: bsj.spmm(g, x, x), bs.ShapeError, "one value per edge"),
        (lambda x: bsj.spmm(g, x, reduce="max", norm="gcn"), ValueError, "leave one of them out"),
        (lambda x: bsj.spmm(g, x, norm="mean"), ValueError, "norm must be one of"),
        (lambda x: bsj.spmm(adjacency(), x), bs.DTypeError, "graph is a csr_array"),
        (lambda x: bsj.sddmm(g, x, x[:, :1]), bs.ShapeError, "sddmm: x has shape"),
        (lambda x: bsj.attention(g, x, x, x), bs.ShapeError, "source has"),
        (lambda x: bsj.attention(g, x, x[:, 0], x[:, 0], dropout=0.5), ValueError, "needs a key"),
        (lambda x: bsj.attention(twice, x[:2], x[:2, 0], x[:2, 0]), ValueError, "repeated edges"),
        (lambda x: bsj.graph(x), bs.DTypeError, "graph: the edges are traced"),
        (
            lambda x: bsj.graph(np.zeros((2, 3), int), 5),
            bs.ShapeError,
            r"these have shapes \(2, 3\) and \(\);.*num_nodes=",
        ),
        (
            lambda x: bsj.quantized_spmm(g, x.astype("f4"), rounding="stochastic", seed=jax.random.key(0)),
            bs.DTypeError,
            "seed is key.*pass one integer",
        ),
        (lambda x: bsj.sampled_spmm(adjacency(), x, 4), bs.DTypeError, "graph is a csr_array"),
        (lambda x: bsj.sampled_spmm(g, x, 4, rescale="no"), bs.DTypeError, "rescale must be True or False"),
    ]
    for function, error, text in cases:
        with pytest.raises(error, match=text):
            jax.jit(function).lower(jnp.ones((NODES, 2)))


def test_layers_refuse_what_is_no_graph() -> None:
    edges, x, kernel = np.array([[0, 1], [1, 0]]), normal(2, 3), jnp.ones((3, 4))
    for name, call in (
        ("spmm", lambda: layers.gcn(edges, x, kernel)),
        ("sage", lambda: layers.sage(edges, x, kernel)),
        ("gin", lambda: layers.gin(edges, x, lambda h: h)),
        ("gat", lambda: layers.gat(edges, x, (jnp.ones((3, 2, 2)), jnp.ones((2, 2)), jnp.ones((2, 2)), None))),
    ):
        with pytest.raises(bs.DTypeError, match=f"{name}: graph is a ndarray; pass a Graph"):
            call()


def test_a_damaged_graph_is_an_error_and_no_crash() -> None:
    g = bsj.graph(adjacency())
    damaged = jax.tree.map(lambda part: part + 1000 if part is g.indices else part, g)
    with pytest.raises(jax.errors.JaxRuntimeError, match="from_arrays"):
        jax.block_until_ready(jax.jit(bsj.spmm)(damaged, jnp.ones((NODES, 2))))


def test_what_is_not_differentiated_says_so() -> None:
    g, x = bsj.graph(adjacency()), jnp.ones((NODES, 2))
    with pytest.raises(NotImplementedError, match="differentiate once"):
        jax.jacrev(jax.grad(lambda x: bsj.spmm(g, x, reduce="max").sum()))(x)


# ---- packed bits
@pytest.mark.parametrize("scheme", ["affine", "affine-pow2", "symmetric"])
@pytest.mark.parametrize("granularity", ["tensor", "row", "col"])
@pytest.mark.parametrize("layout", ["planes", "rows"])
def test_codes_are_those_of_the_library(scheme: str, granularity: str, layout: str) -> None:
    x = normal(7, 150, dtype="float32")
    for axis in (-1, -2):
        how = {"scheme": scheme, "granularity": granularity, "axis": axis, "layout": layout}
        got = jax.jit(lambda x, how=how: bsj.quantize(x, 4, **how))(x)
        wanted = bs.quantize(np.asarray(x), 4, **how)  # type: ignore[arg-type]
        assert np.array_equal(got.words, wanted.words) and got.settings._asdict() == wanted.settings()
        assert np.array_equal(jax.jit(bsj.dequantize)(got), wanted.dequantize())
        assert np.array_equal(got.array.toarray(), wanted.toarray())
        assert np.array_equal(bsj.BitTensor.of(wanted).words, wanted.words)


@pytest.mark.parametrize("layout", ["planes", "rows"])
def test_packed_integers_are_mapped_scanned_and_sliced(layout: str) -> None:
    a, b = (np.random.default_rng(3).integers(0, 4, shape) for shape in ((3, 5, 200), (200, 7)))
    one, other = bsj.pack_bits(a, 2, layout=layout), bsj.pack_bits(b, 2, axis=-2)
    product = partial(bsj.matmul, b=other)
    mapped = jax.vmap(lambda x: bsj.pack_bits(x, 2, layout=layout))(a)
    assert mapped.shape == mapped.array.shape == a.shape
    for made in (
        jax.vmap(product)(one),
        jax.vmap(product)(mapped),
        product(mapped),
        jax.lax.scan(lambda carried, x: (carried, product(x)), 0, one)[1],
        jnp.stack([product(jax.tree.map(lambda part, at=at: part[at], one)) for at in range(3)]),
    ):
        np.testing.assert_array_equal(made, a @ b)
    both = jax.tree.map(lambda *parts: jnp.stack(parts), one, one)
    assert both.shape == (2, 3, 5, 200)
    np.testing.assert_array_equal(both.array.toarray(), np.stack([a, a]))


def test_products_of_codes() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 8, (2, 5, 70)), rng.integers(-4, 4, (70, 6))
    run = jax.jit(lambda a, b: bsj.matmul(bsj.pack_bits(a, 3), bsj.pack_bits(b, 3, encoding="signed", axis=-2)))
    got = run(jnp.asarray(a), jnp.asarray(b))
    assert got.dtype == np.int32 and np.array_equal(got, a @ b)
    assert np.array_equal(jax.vmap(run, (0, None))(jnp.asarray(a), jnp.asarray(b)), a @ b)
    x, w, g = (
        normal(9, 40, dtype="float32"),
        normal(40, 6, seed=2, dtype="float32"),
        normal(9, 6, seed=3, dtype="float32"),
    )
    for how in ({}, {"rounding": "stochastic", "seed": 5}):
        y, back = jax.vjp(jax.jit(lambda x, w, how=how: bsj.quantized_matmul(x, w, 4, **how)), x, w)
        plain = [np.asarray(part) for part in (x, w, g)]
        assert np.array_equal(y, bs.quantized_matmul(*plain[:2], 4, **how))  # type: ignore[arg-type]
        wanted = bs.quantized_matmul_vjp(*plain, 4, stream=2, **how)  # type: ignore[arg-type]
        assert all(np.array_equal(one, other) for one, other in zip(back(g), wanted, strict=True))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("norm", [None, "gcn"])
def test_sums_of_codes(bits: int, norm: str | None) -> None:
    A = adjacency()
    A.setdiag(1)
    A = sparse.csr_array(A)
    g, x = bsj.graph(A), normal(NODES, 6, dtype="float32")
    S = bs.TCTiledCSR(A).with_values(None)
    if norm:
        scale = np.diff(A.indptr) ** -0.5
        S = S.with_scales(scale, scale)
    gradient, turned = normal(NODES, 6, seed=3, dtype="float32"), S.T
    for how in ({}, {"rounding": "stochastic", "seed": 7}):

        def run(x: Any, how: Any = how) -> Any:
            return bsj.quantized_spmm(g, x, bits, norm=norm, **how)

        y, back = jax.vjp(jax.jit(run), x)
        assert np.array_equal(y, bs.quantized_spmm(S, np.asarray(x), bits, **how))  # type: ignore[arg-type]
        wanted = bs.quantized_spmm(turned, np.asarray(gradient), bits, stream=1, **how)  # type: ignore[arg-type]
        assert np.array_equal(back(gradient)[0], wanted)
    traced = []

    @jax.jit
    def step(x: Any, seed: Any) -> Any:
        traced.append(1)
        return bsj.quantized_spmm(g, x, bits, rounding="stochastic", seed=seed)

    assert not np.array_equal(step(x, 1), step(x, 2)) and len(traced) == 1


def test_sums_of_bits() -> None:
    A = adjacency()
    g, x = bsj.graph(A), normal(NODES, 40, dtype="float32")
    signs, pattern = bs.pack_bits(np.asarray(x), encoding="bipolar"), bs.TCTiledCSR(A).with_values(None)
    for made, variant in ((signs, "BB"), (np.asarray(x), "FB")):
        given = bsj.BitTensor.of(made) if made is signs else x
        for run in (jax.jit(bsj.bspmm), lambda g, x: jax.jit(lambda x: bsj.bspmm(g, x))(x)):
            assert np.array_equal(run(g, given), bs.bspmm(pattern, made, f"{variant}F"))
        bits = jax.jit(lambda x: bsj.bspmm(g, x, binarise=True))(given)
        assert np.array_equal(bits.words, bs.bspmm(pattern, made, f"{variant}B").words)


def test_wrong_bits_fail_while_tracing() -> None:
    g, x = bsj.graph(adjacency()), jnp.ones((NODES, 2))
    q = bsj.quantize(x, 8)

    def batch(size: int) -> bsj.BitTensor:
        return bsj.pack_bits(jnp.ones((size, 4, 4), int))

    cases: list[tuple[Any, Any, str]] = [
        (lambda x: bsj.quantize(x, 99), ValueError, "bits"),
        (lambda x: bsj.quantize(x[0], 2), bs.ShapeError, "x"),
        (lambda x: bsj.quantize(x, 4, rounding="stochastic"), ValueError, "pass seed="),
        (lambda x: bsj.quantize(x, 4, seed=1), ValueError, "seed=1 has no effect with rounding='nearest'"),
        (lambda x: bsj.quantize(x, 4, rounding="stochastic", seed=x[0, 0]), bs.DTypeError, "seed must be an integer"),
        (lambda x: bsj.pack_bits(x, 2), bs.DTypeError, "floats are packed only at bits=1"),
        (lambda x: bsj.pack_bits(x * 1j), bs.DTypeError, "x has dtype complex128"),
        (lambda x: bsj.BitTensor.of(x), bs.DTypeError, "array must be a BitTensor"),
        (lambda x: bsj.matmul(q, q), bs.ShapeError, "matmul"),
        (lambda x: bsj.matmul(batch(2), batch(3)), bs.ShapeError, "batch dimensions \\(2,\\) and \\(3,\\)"),
        (lambda x: bsj.matmul(x, q), bs.DTypeError, "a is a"),
        (lambda x: bsj.quantized_matmul(x.astype("float32"), x.astype("float32")), bs.ShapeError, "pass \\(m, k\\)"),
        (lambda x: bsj.bspmm(g, q), bs.ShapeError, "one bit for each"),
        (lambda x: bsj.bspmm(adjacency(), q), bs.DTypeError, "graph is a csr_array"),
        (lambda x: bsj.bspmm(g, x, binarise="no"), bs.DTypeError, "binarise must be True or False"),
    ]
    for function, error, text in cases:
        with pytest.raises(error, match=text):
            jax.jit(function).lower(x)
    with pytest.raises(jax.errors.JaxRuntimeError, match="quantize"):
        jax.block_until_ready(jax.jit(lambda x: bsj.quantize(x * jnp.nan, 4).words)(x))


def test_options_may_be_integers_of_numpy() -> None:
    g, x, number = bsj.graph(adjacency()), normal(NODES, 3), np.int64
    drawn = bsj.quantize(x, number(8), rounding="stochastic", seed=number(5), axis=number(-2), stream=np.uint8(1))
    assert np.array_equal(drawn.words, bsj.quantize(x, 8, rounding="stochastic", seed=5, axis=-2, stream=1).words)
    assert np.array_equal(bsj.quantized_spmm(g, x.astype("f4"), number(8)), bsj.quantized_spmm(g, x.astype("f4"), 8))
    sampled = [bsj.sampled_spmm(g, x, kind(4), "uniform", seed=kind(3)) for kind in (number, int)]
    assert np.array_equal(*sampled)


def flags_of(address: int) -> list[str]:
    """Return the flags that Linux reports for the memory mapping at an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            start, end = (int(part, 16) for part in name.split("-"))
            inside = start <= address < end
        elif inside and name == "VmFlags:":
            return rest.split()
    raise AssertionError(f"nothing is mapped at {address:#x}")


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists() or not Path("/proc/self/smaps").exists(),
    reason="needs a kernel with large pages for ordinary memory",
)
@pytest.mark.parametrize(("nbytes", "large"), [(8 << 20, True), (4 << 20, False)])
def test_large_results_of_the_cpu_are_written_to_large_pages(nbytes: int, large: bool) -> None:
    from bitsparse import interop
    from bitsparse.jax import tasks

    memory = mmap.mmap(-1, 24 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + (8 << 20) + 64
    made = tasks.HOST.result(interop.ArraysAt((nbytes,), np.dtype(np.uint8)), address)
    assert (made.nbytes, made.ctypes.data) == (nbytes, address)
    assert ("hg" in flags_of(address + nbytes // 2)) is large
    assert "hg" not in flags_of(address - 64) and "hg" not in flags_of(address + nbytes + 4096)


@pytest.mark.parametrize("sizes", [(3, 5), (0, 3), (3, 0)])
def test_graphs_without_edges_have_batches_and_gradients(sizes: tuple[int, int]) -> None:
    g = bsj.graph(np.zeros((2, 0), int), num_nodes=sizes)
    x, values = jnp.ones((sizes[0], 2)), jnp.ones((4, 0))
    sums = jax.vmap(lambda v: bsj.spmm(g, x, v))
    near(sums(values), np.zeros((4, sizes[1], 2)))
    near(jax.jit(jax.grad(lambda v: sums(v).sum()))(values), np.zeros((4, 0)))
    by_both = jax.jit(jax.grad(lambda v, x: bsj.spmm(g, x, v).sum(), (0, 1)))(values[0], x)
    near(by_both[0], np.zeros(0))
    near(by_both[1], np.zeros(x.shape))
    near(jax.vmap(lambda v: bsj.edge_softmax(g, v))(values), values)
    near(jax.vmap(lambda y: bsj.sddmm(g, jnp.ones((sizes[1], 2)), y))(jnp.ones((4, *x.shape))), values)
    scores = jnp.ones((4, sizes[0]))
    near(jax.vmap(lambda s: bsj.attention(g, x, s, jnp.ones(sizes[1])))(scores), np.zeros((4, sizes[1], 2)))


def test_attention_of_no_nodes_has_columns_for_every_head() -> None:
    weights = jnp.ones((3, 4, 2)), jnp.ones((4, 2)), jnp.ones((4, 2)), None
    assert layers.gat(bsj.graph(np.zeros((2, 0), int), num_nodes=0), jnp.ones((0, 3)), weights).shape == (0, 8)

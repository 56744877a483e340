"""Gradients of graph networks in JAX, with :mod:`bitsparse.jax` and with JAX alone: part of suite ``training``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

import bitsparse.jax as bsj
from benchmarks.cases.graphs import graph
from benchmarks.peers import jax_gnn
from bitsparse import TCTiledCSR
from bitsparse.bench import Prepared, Protocol, Unavailable, time_interleaved
from bitsparse.jax import layers

__all__ = ["against_torch", "gradients", "host_time", "losses", "pattern"]

#: Columns of the features, columns between the layers, classes, heads of attention, and columns of each head.
FEATURES, HIDDEN, CLASSES, HEADS, WIDTH = 100, 128, 12, 4, 32
#: The largest difference of gradients, relative to their size.
TOLERANCE = 1e-3
#: Layers of the step whose host time is measured.
LAYERS = 10


def pattern(name: str) -> tuple[Any, str]:
    """A graph with loops as a csr_array, and its source."""
    data, source = graph(name)
    nodes = data.indptr.size - 1
    ones = np.ones(data.indices.size, np.float32)
    made = sparse.csr_array((ones, data.indices, data.indptr), shape=(nodes, nodes)) + sparse.eye_array(nodes)
    made.sort_indices()
    made.data = np.ones(made.nnz, np.float32)
    return made.tocsr(), source


def losses(network: str, adjacency: Any, peer: str) -> tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]:
    """Our loss and a peer's as functions of the same kinds of arguments, and the arguments: weights, features, both graphs."""
    nodes, rng = adjacency.shape[0], np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(nodes, FEATURES)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, CLASSES, nodes))
    between = HIDDEN if network == "gcn" else HEADS * WIDTH
    sizes = {"first": (FEATURES, between), "second": (between, CLASSES)}
    sizes |= {} if network == "gcn" else {"source": (HEADS, WIDTH), "target": (HEADS, WIDTH)}
    weights = {name: jnp.asarray(rng.normal(size=size) / size[0] ** 0.5, jnp.float32) for name, size in sizes.items()}

    def loss(sums: Callable[..., Any], attends: Callable[..., Any], weights: Any, x: Any, operand: Any) -> Any:
        h = x @ weights["first"]
        if network == "gcn":
            h = jax.nn.relu(sums(operand, h))
        else:
            h = h.reshape(nodes, HEADS, WIDTH)
            scores = ((h * weights[end]).sum(axis=2) for end in ("source", "target"))
            h = jax.nn.elu(attends(operand, h, *scores).reshape(nodes, -1))
        h = h @ weights["second"]
        scores = jax.nn.log_softmax(sums(operand, h) if network == "gcn" else h)
        return -jnp.take_along_axis(scores, labels[:, None], 1).mean()

    ours = partial(loss, partial(bsj.spmm, norm="gcn"), bsj.attention)
    theirs = partial(loss, jax_gnn.SUMS[peer], jax_gnn.attention)
    return ours, theirs, (weights, x, bsj.graph(adjacency, self_loops=True), jax_gnn.matrix(adjacency))


def gradients(case: str, network: str, name: str, peer: str, platform: str) -> Prepared:
    """Loss and gradients by all weights, ours against a peer's; both are jitted and take their graphs as arguments."""
    with on(platform):
        adjacency, source = pattern(name)
        ours, theirs, (weights, x, own, matrix) = losses(network, adjacency, peer)
        run, run_peer = (jax.jit(jax.value_and_grad(loss)) for loss in (ours, theirs))
        found, wanted = run(weights, x, own)[1], run_peer(weights, x, matrix)[1]
    apart = difference(case, found, wanted)
    params = {"graph": source, "network": network, "nodes": adjacency.shape[0], "entries": adjacency.nnz}
    params |= {"platform": platform, "gradient_difference": apart}

    def call(run: Callable[..., Any], operand: Any) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(run(weights, x, operand))

    return Prepared(call(run, own), call(run_peer, matrix), f"{jax_gnn.version()}, {peer}", params, 0)


def difference(case: str, found: Any, wanted: Any) -> float:
    """The largest difference of gradients, relative to their size; an AssertionError if it is too large."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    apart = max(float(jnp.linalg.norm(one - two) / jnp.linalg.norm(two)) for one, two in pairs)
    if not apart < TOLERANCE:
        raise AssertionError(f"{case}: gradients differ by {apart:.2g} of their size, not below {TOLERANCE}")
    return apart


def against_torch(case: str, name: str, platform: str, threads: int) -> Prepared:
    """Loss and gradients of a GCN by all weights, ours in JAX against ours in PyTorch, from equal weights in separate arrays."""
    import torch

    from benchmarks.cases import training, training_cpu, training_sides

    if platform == "cpu":
        torch.set_num_threads(threads)
        made, source = training_cpu.problem_of(name)
    else:
        made, source = training.problem_of(name), name
    peer = training_sides.ours_of("gcn", made, made.x, "fp32")
    with on(platform):
        step, arguments = as_in_torch(made, peer)
        found = step(*arguments)[1]
    peer.backward()
    wanted = [
        [jnp.from_dlpack(grad) for grad in (layer.lin.weight.grad.t().contiguous(), layer.bias.grad)]
        for layer in peer.network.layers
    ]
    apart = difference(case, found, wanted)
    params = {"graph": source, "network": "gcn", "nodes": made.nodes, "entries": made.indices.numel()}
    params |= {"platform": platform, "features": made.x.shape[1], "classes": made.classes, "gradient_difference": apart}

    def peer_step() -> None:
        peer.backward()
        if made.x.is_cuda:
            torch.cuda.synchronize()

    version = f"bitsparse.torch, torch {torch.__version__}"
    return Prepared(lambda: jax.block_until_ready(step(*arguments)), peer_step, version, params, 0)


def as_in_torch(made: Any, side: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The step of a PyTorch side as a jitted JAX function, and its arguments: weights and biases, features, labels and the graph."""
    weights = [
        [jnp.array(w.detach().cpu()) for w in (layer.lin.weight.t(), layer.bias)] for layer in side.network.layers
    ]
    x, labels = (jnp.array(np.from_dlpack(part.cpu())) for part in (made.x, made.labels))
    adjacency = TCTiledCSR.from_arrays(made.indptr, made.indices, (made.nodes, made.nodes))

    def loss(weights: Any, x: Any, labels: Any, operand: Any) -> Any:
        with jax.default_matmul_precision("float32"):  # like PyTorch; JAX's default on a GPU is TF32
            for i, (kernel, bias) in enumerate(weights):
                x = layers.gcn(operand, jax.nn.relu(x) if i else x, kernel, bias)
        scores = jnp.take_along_axis(jax.nn.log_softmax(x), jnp.maximum(labels, 0)[:, None], 1)[:, 0]
        return -(scores * (labels >= 0)).sum() / (labels >= 0).sum()

    return jax.jit(jax.value_and_grad(loss)), (weights, x, labels, bsj.graph(adjacency, self_loops=True))


def host_time(platform: str) -> Prepared:
    """The host's cost of one of ten layers in a jitted step, on a graph of 64 nodes: the difference to the step without sums."""
    with on(platform):
        adjacency = sparse.csr_array(np.eye(64, dtype=np.float32))
        own, x = bsj.graph(adjacency), jnp.ones((64, 16))

        def step(g: Any, x: Any, sums: Callable[..., Any]) -> Any:
            for _ in range(LAYERS):
                x = jnp.tanh(sums(g, x) + 1)
            return x

        run = jax.jit(partial(step, sums=bsj.spmm))
        bare = jax.jit(partial(step, sums=lambda _, x: x))
        jax.block_until_ready((run(own, x), bare(own, x)))
    params: dict[str, Any] = {"platform": platform, "layers": LAYERS}

    def measure(protocol: Protocol) -> tuple[float, None]:
        sides = [lambda: jax.block_until_ready(run(own, x)), lambda: jax.block_until_ready(bare(own, x))]
        ms, without = time_interleaved(sides, protocol)
        params.update(step_ms=ms, without_sums_ms=without)
        return (ms - without) / LAYERS, None

    return Prepared(lambda: run(own, x), None, None, params, 0, measure=measure)


def on(platform: str) -> Any:
    """A context with JAX's first device of a platform."""
    try:
        return jax.default_device(jax.devices(platform)[0])
    except RuntimeError:
        raise Unavailable(f"JAX finds no {platform} here") from None

"""bsj.tango: the codes of bst.Tango, unbiased gradients, the same bits from the same seed, and the parts that stay in floats."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.jax
jax = pytest.importorskip("jax")
jnp = jax.numpy
bsj: Any = pytest.importorskip("bitsparse.jax")

from bitsparse.jax import layers  # noqa: E402

NODES, INPUTS, CLASSES = 40, 12, 3
#: Widths of two layers: where a layer narrows, products are summed; where it widens, features are.
NARROW, WIDE = (INPUTS, 8, CLASSES), (INPUTS, 20, 24)


def edges_of(seed: int = 1) -> Any:
    edges = np.random.default_rng(seed).integers(0, NODES, (2, 160))
    both = np.concatenate([edges, edges[::-1], np.arange(NODES)[None].repeat(2, 0)], 1)
    return np.unique(both, axis=1)


def normal(*shape: int, seed: int = 2) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def weights_of(kind: str, widths: tuple[int, ...]) -> list[dict[str, Any]]:
    made = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        layer = {"kernel": normal(inputs, outputs, seed=10 + i), "bias": normal(outputs, seed=20 + i)}
        if kind == "sage":
            layer["root"] = normal(inputs, outputs, seed=30 + i)
        made.append(jax.tree.map(jnp.asarray, layer))
    return made


def network(kind: str, graph: Any) -> Any:
    """Return a network without any operation that frameworks round differently."""

    def of(weights: Any, x: Any) -> Any:
        for i, layer in enumerate(weights):
            x = layers.gcn(graph, x, **layer) if kind == "gcn" else layers.sage(graph, x, **layer)
            x = jnp.maximum(x, 0) if i + 1 < len(weights) else x
        return x

    return of


def of_torch(kind: str, widths: tuple[int, ...], config: dict[str, Any], x: Any, factors: Any, steps: int) -> Any:
    """Return results and gradients of several steps of the same network in PyTorch, with unchanged weights."""
    torch: Any = pytest.importorskip("torch")
    bst: Any = pytest.importorskip("bitsparse.torch")
    kinds = {"gcn": bst.GCNConv, "sage": bst.SAGEConv}

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(kinds[kind](*pair) for pair in pairwise(widths))

        def forward(self, x: Any, graph: Any) -> Any:
            for i, layer in enumerate(self.layers):
                x = layer(x, graph)
                x = x.relu() if i + 1 < len(self.layers) else x
            return x

    net = Net()
    names = {"gcn": ("bias", "lin.weight"), "sage": ("lin_l.bias", "lin_l.weight", "lin_r.weight")}[kind]
    given = weights_of(kind, widths)
    parameters = [[dict(layer.named_parameters())[name] for name in names] for layer in net.layers]
    with torch.no_grad():
        for layer, parts in zip(given, parameters, strict=True):
            for array, part in zip(layer.values(), parts, strict=True):
                part.copy_(torch.from_numpy(np.array(array).T.copy()))
    bst.quantize_(net, bst.Tango(**config))
    graph = bst.Graph(torch.from_numpy(edges_of()), NODES)
    made = []
    for _ in range(steps):
        net.zero_grad()
        y = net(torch.from_numpy(x), graph)
        (y * torch.from_numpy(factors)).sum().backward()
        gradients = [[part.grad.numpy().T.copy() for part in parts] for parts in parameters]
        made.append((y.detach().numpy().copy(), gradients))
    return made


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("widths", [NARROW, WIDE])
@pytest.mark.parametrize("kind", ["gcn", "sage"])
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_the_bits_are_those_of_pytorch(kind: str, widths: tuple[int, ...], bits: int, rounding: str) -> None:
    config: dict[str, Any] = {"bits": bits, "rounding": rounding, "seed": 7, "last": "quantized"}
    graph, x, factors = bsj.graph(edges_of(), num_nodes=NODES), normal(NODES, INPUTS), normal(NODES, widths[-1], seed=3)
    of = network(kind, graph)

    def loss(weights: Any, x: Any) -> Any:
        y = of(weights, x)
        return (y * factors).sum(), y

    changed = bsj.tango(loss, **config)
    step = jax.jit(lambda weights, number: jax.value_and_grad(changed, has_aux=True)(weights, x, step=number))
    weights = weights_of(kind, widths)
    for number, (result, gradients) in enumerate(of_torch(kind, widths, config, x, factors, steps=3)):
        (_, y), found = step(weights, number)
        np.testing.assert_array_equal(np.asarray(y), result)
        for layer, wanted in zip(found, gradients, strict=True):
            for name, got, want in zip(layer, layer.values(), wanted, strict=True):
                if name == "bias":  # a sum over nodes, which each framework adds in its own order
                    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-4)
                else:
                    np.testing.assert_array_equal(np.asarray(got), want)


# ---- as a transformation
GRAPH = bsj.graph(edges_of(), num_nodes=NODES)
X = jnp.asarray(normal(NODES, INPUTS))


def gat_weights(inputs: int, heads: int, width: int, seed: int) -> Any:
    shapes = (inputs, heads, width), (heads, width), (heads, width), (heads * width,)
    return tuple(jnp.asarray(normal(*shape, seed=seed + i)) for i, shape in enumerate(shapes))


def attending(weights: Any, x: Any) -> Any:
    h = jax.nn.elu(layers.gat(GRAPH, x, weights[0]))
    return (layers.gat(GRAPH, h, weights[1]) ** 2).mean()


def isomorphism(weights: Any, x: Any) -> Any:
    h = layers.gin(GRAPH, x, lambda y: layers.linear(jax.nn.relu(layers.linear(y, weights[0])), weights[1]))
    return (layers.linear(h, weights[2]) ** 2).mean()


NETWORKS: dict[str, tuple[Any, Any]] = {
    "gcn": (lambda w, x: (network("gcn", GRAPH)(w, x) ** 2).mean(), weights_of("gcn", NARROW)),
    "sage": (lambda w, x: (network("sage", GRAPH)(w, x) ** 2).mean(), weights_of("sage", WIDE)),
    "gat": (attending, [gat_weights(INPUTS, 2, 4, 1), gat_weights(8, 1, CLASSES, 5)]),
    "gin": (isomorphism, [jnp.asarray(normal(*shape)) for shape in ((INPUTS, 8), (8, 8), (8, CLASSES))]),
}


def flat(tree: Any) -> Any:
    return np.concatenate([np.ravel(part) for part in jax.tree.leaves(tree)])


@pytest.mark.parametrize("last", ["float32", "sums", "quantized"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", list(NETWORKS))
def test_gradients_are_right_on_average(kind: str, bits: int, last: str) -> None:
    loss, weights = NETWORKS[kind]
    step = jax.jit(jax.value_and_grad(bsj.tango(loss, bits, last=last, seed=3)))
    wanted = flat(jax.grad(loss)(weights, X))
    found = np.stack([flat(step(weights, X, step=number)[1]) for number in range(40)])
    one, mean = (np.linalg.norm(part - wanted) / np.linalg.norm(wanted) for part in (found[0], found.mean(axis=0)))
    assert 0 < mean < 0.75 * one + 0.02
    assert one < (0.1 if bits == 8 else 0.8)
    assert len(np.unique(found, axis=0)) == len(found)  # every step draws its own numbers


def test_same_seed_same_bits_however_it_is_called() -> None:
    loss, weights = NETWORKS["sage"]
    changed = bsj.tango(loss, 4, seed=5)
    eager = jax.value_and_grad(changed)(weights, X, step=2)
    for other in (
        jax.jit(jax.value_and_grad(changed))(weights, X, step=jnp.int32(2)),
        jax.value_and_grad(jax.jit(changed))(weights, X, step=2),
        jax.value_and_grad(bsj.tango(jax.jit(loss), 4, seed=5))(weights, X, step=2),
        jax.jit(lambda w, n: jax.lax.map(lambda i: jax.value_and_grad(changed)(w, X, step=i), n))(
            weights, jnp.array([1, 2])
        ),
    ):
        last = jax.tree.map(lambda part, like: part if part.shape == like.shape else part[1], other, eager)
        np.testing.assert_allclose(flat(last), flat(eager), rtol=1e-6, atol=1e-7)
    assert not np.array_equal(flat(jax.grad(bsj.tango(loss, 4, seed=6))(weights, X, step=2)), flat(eager[1]))


def test_what_was_traced_in_floats_is_quantised_all_the_same() -> None:
    inner = jax.jit(lambda w, x: layers.gcn(GRAPH, x, **w))
    weights = weights_of("gcn", NARROW)

    def loss(weights: Any, x: Any) -> Any:
        return (inner(weights[1], jnp.maximum(inner(weights[0], x), 0)) ** 2).mean()

    floats = loss(weights, X)
    plain = NETWORKS["gcn"][0]
    assert bsj.tango(loss)(weights, X) == bsj.tango(plain)(weights, X) != floats
    assert loss(weights, X) == floats


def test_layers_of_a_scan_draw_for_themselves() -> None:
    kernel = jnp.asarray(normal(INPUTS, INPUTS)) / INPUTS

    def scanned(kernel: Any, x: Any) -> Any:
        return (jax.lax.scan(lambda h, _: (layers.gcn(GRAPH, h, kernel), None), x, None, length=3)[0] ** 2).mean()

    def loop(kernel: Any, x: Any) -> Any:
        for _ in range(3):
            x = layers.gcn(GRAPH, x, kernel)
        return (x**2).mean()

    one, other = (jax.grad(bsj.tango(f, seed=1))(kernel, X) for f in (scanned, loop))
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_layers_of_frameworks() -> None:
    eqx, nnx = pytest.importorskip("equinox"), pytest.importorskip("flax.nnx")
    import bitsparse.jax.equinox as bsq
    import bitsparse.jax.flax as bsf

    keys = jax.random.split(jax.random.key(0), 2)
    model = [bsq.GCNConv(INPUTS, 8, key=keys[0]), bsq.GCNConv(8, CLASSES, key=keys[1])]

    def of(model: Any, x: Any) -> Any:
        return (model[1](jax.nn.relu(model[0](x, GRAPH)), GRAPH) ** 2).mean()

    value, gradients = eqx.filter_jit(eqx.filter_value_and_grad(bsj.tango(of)))(model, X, step=1)
    plain = [{"kernel": part.kernel, "bias": part.bias} for part in model]
    wanted = jax.jit(jax.value_and_grad(bsj.tango(NETWORKS["gcn"][0])))(plain, X, step=1)
    assert value == wanted[0]
    np.testing.assert_array_equal(gradients[0].kernel, wanted[1][0]["kernel"])
    static, parameters = nnx.split(bsf.GATConv(INPUTS, 4, 2, rngs=nnx.Rngs(0)))
    merged = bsj.tango(lambda p, x: (nnx.merge(static, p)(x, GRAPH) ** 2).mean(), last="quantized")
    found = jax.jit(jax.grad(merged))(parameters, X)
    assert all(np.isfinite(part).all() for part in jax.tree.leaves(found))


def test_what_does_not_depend_on_what_is_trained_is_rounded_to_nearest() -> None:
    kernel = jnp.asarray(normal(INPUTS, 24))
    wide = bsj.tango(lambda k, x: layers.gcn(GRAPH, x, k), 4, last="sums")  # sums of x alone, which is data
    assert jnp.array_equal(wide(kernel, X, step=0), wide(kernel, X, step=1))
    both = bsj.tango(lambda k, x: layers.gcn(GRAPH, x, k), 4, last="sums", argnums=(0, -1))
    assert not jnp.array_equal(both(kernel, X, step=0), both(kernel, X, step=1))


def test_weights_of_edges_and_other_layers() -> None:
    edges = edges_of()
    weighted = bsj.graph(edges, num_nodes=NODES, weight=normal(edges.shape[1]) ** 2, self_loops=True)
    kernel = jnp.asarray(normal(INPUTS, 8))
    for of in (
        lambda k, x: layers.gcn(weighted, x, k),
        lambda k, x: layers.sage(GRAPH, x, k, aggregation="max"),
        lambda k, x: layers.linear(x, k),
    ):
        floats, found = of(kernel, X), bsj.tango(of, rounding="nearest", last="quantized")(kernel, X)
        assert 0 < float(jnp.linalg.norm(found - floats) / jnp.linalg.norm(floats)) < 0.05


def test_errors_name_the_remedy() -> None:
    loss, weights = NETWORKS["gcn"]
    with pytest.raises(ValueError, match="tango: bits must be 8, 4 or 2, got 3"):
        bsj.tango(loss, 3)
    with pytest.raises(ValueError, match="tango: rounding must be"):
        bsj.tango(loss, rounding="floor")
    with pytest.raises(ValueError, match="tango: last must be"):
        bsj.tango(loss, last="none")
    with pytest.raises(ValueError, match=r"tango: argnums has 2, but the function was called with 2 arguments"):
        bsj.tango(loss, argnums=2)(weights, X)
    with pytest.raises(ValueError, match=r"tango: the function calls none of bitsparse\.jax\.layers"):
        bsj.tango(lambda w, x: (x @ w).sum())(jnp.ones((INPUTS, 2)), X)
    bare = bsj.graph(jnp.array([[0, 1], [1, 2]]), num_nodes=3)
    with pytest.raises(ValueError, match=r"tango: norm='gcn'.*self_loops=True"):
        bsj.tango(lambda k, x: layers.gcn(bare, x, k), last="quantized")(jnp.ones((2, 2)), jnp.ones((3, 2)))

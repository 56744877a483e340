"""Train a graph network in JAX with bitsparse's sums, as modules of Flax and of Equinox: python examples/train_jax.py cora.npz

Any file that `bitsparse inspect` reads will do if it has features, labels and a split; without a file, a small graph is generated. The
recipe is Kipf and Welling's (ICLR 2017, section 5): two layers of 16 columns, dropout 0.5, Adam with learning rate 0.01 and weight decay
0.0005 for 200 epochs; features are normalised by rows. `--layer gat` and `sage` use other layers, `--frameworks flax` trains with one
framework only, and `--bits 8` or 4 trains all layers but the last in integers of that many bits (TANGO, Chen et al., SC 2023).
"""

import argparse
import functools
import sys
import time

import numpy as np
from scipy import sparse

from bitsparse import datasets

HIDDEN, DROPOUT, RATE, DECAY = 16, 0.5, 0.01, 5e-4


def drop(x, key):
    """Apply dropout to features; without a key, return them unchanged."""
    import jax
    import jax.numpy as jnp

    return x if key is None else jnp.where(jax.random.bernoulli(key, DROPOUT, x.shape), x / (1 - DROPOUT), 0)


def keys_of(key):
    import jax

    return (None, None) if key is None else jax.random.split(key)


def flax_network(layer, inputs, classes, seed):
    """Make a Flax network; return its parameters and a function of parameters."""
    import jax
    from flax import nnx

    import bitsparse.jax.flax as bsf

    kind = {
        "gcn": bsf.GCNConv,
        "sage": bsf.SAGEConv,
        "gat": functools.partial(bsf.GATConv, heads=8, concat=False),
    }[layer]

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first, self.second = kind(inputs, HIDDEN, rngs=rngs), kind(HIDDEN, classes, rngs=rngs)

        def __call__(self, x, graph, key=None):
            one, other = keys_of(key)
            return self.second(drop(jax.nn.relu(self.first(drop(x, one), graph)), other), graph)

    static, parameters = nnx.split(Network(nnx.Rngs(seed)))
    return parameters, lambda parameters, *given: nnx.merge(static, parameters)(*given)


def equinox_network(layer, inputs, classes, seed):
    """Make an Equinox network; return its parameters and a function of parameters."""
    import equinox as eqx
    import jax

    import bitsparse.jax.equinox as bsq

    kind = {
        "gcn": bsq.GCNConv,
        "sage": bsq.SAGEConv,
        "gat": functools.partial(bsq.GATConv, heads=8, concat=False),
    }[layer]

    class Network(eqx.Module):
        first: eqx.Module
        second: eqx.Module

        def __init__(self, key):
            one, other = jax.random.split(key)
            self.first, self.second = kind(inputs, HIDDEN, key=one), kind(HIDDEN, classes, key=other)

        def __call__(self, x, graph, key=None):
            one, other = keys_of(key)
            return self.second(drop(jax.nn.relu(self.first(drop(x, one), graph)), other), graph)

    parameters, static = eqx.partition(Network(jax.random.key(seed)), eqx.is_array)
    return parameters, lambda parameters, *given: eqx.combine(parameters, static)(*given)


def train(apply, parameters, data, epochs, seed, bits=None):
    """Train; return the test accuracy, in per cent, of the epoch with the best validation accuracy."""
    import jax
    import jax.numpy as jnp

    import bitsparse.jax as bsj

    x, graph, labels, masks = data

    def loss(parameters, key):
        scores = jax.nn.log_softmax(apply(parameters, x, graph, key))
        right = jnp.take_along_axis(scores, labels[:, None], 1)[:, 0]
        return -jnp.where(masks[0], right, 0).sum() / masks[0].sum()

    def gradients(parameters, key, count):
        if bits is None:
            return jax.grad(loss)(parameters, key)
        return jax.grad(bsj.tango(loss, bits, seed=seed))(parameters, key, step=count)

    @jax.jit
    def step(parameters, moments, count, key):
        gradient = jax.tree.map(lambda g, w: g + DECAY * w, gradients(parameters, key, count), parameters)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
        second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g**2, moments[1], gradient)

        def moved(w, m, v):
            return w - RATE * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

        parameters = jax.tree.map(moved, parameters, first, second)
        right = apply(parameters, x, graph).argmax(axis=1) == labels
        return parameters, (first, second), [jnp.where(mask, right, 0).sum() / mask.sum() for mask in masks[1:]]

    moments, best = (jax.tree.map(jnp.zeros_like, parameters),) * 2, (-1.0, 0.0)
    for epoch in range(epochs):
        key = jax.random.fold_in(jax.random.key(seed), epoch)
        parameters, moments, shares = step(parameters, moments, epoch + 1.0, key)
        best = max(best, tuple(100 * float(share) for share in shares))
    return best[1]


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Train a graph network in JAX with bitsparse's sums.")
    parser.add_argument("graph", nargs="?", help="a graph with features, labels and a split")
    parser.add_argument("--layer", choices=("gcn", "sage", "gat"), default="gcn")
    parser.add_argument("--frameworks", nargs="+", choices=("flax", "equinox"), default=["flax", "equinox"])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--bits", type=int, choices=(8, 4, 2), help="train in integers of so many bits")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        import jax.numpy as jnp

        import bitsparse.jax as bsj
    except ImportError as error:
        sys.exit(f"{error}: this example needs JAX with Flax and Equinox (pip install 'bitsparse[jax]' flax equinox)")
    data = datasets.read(options.graph) if options.graph else datasets.communities()
    features = data.x.toarray() if sparse.issparse(data.x) else np.asarray(data.x)
    features = features / np.maximum(features.sum(axis=1, keepdims=True), 1e-12)
    x, labels = jnp.asarray(features, jnp.float32), jnp.asarray(np.maximum(data.targets, 0), jnp.int32)
    masks = [jnp.asarray(mask) for mask in (data.train_mask, data.val_mask, data.test_mask)]
    graph = bsj.graph(data.adjacency, self_loops=True)
    made = {"flax": flax_network, "equinox": equinox_network}
    accuracies = {}
    for name in options.frameworks:
        parameters, apply = made[name](options.layer, x.shape[1], data.num_classes, options.seed)
        start = time.perf_counter()
        given = (x, graph, labels, masks), options.epochs, options.seed, options.bits
        accuracies[name] = train(apply, parameters, *given)
        print(f"{name}: test accuracy {accuracies[name]:.1f} %, {time.perf_counter() - start:.1f} s")
    return accuracies


if __name__ == "__main__":
    main()

"""Sums over neighbours in JAX: features go in as JAX arrays and come out as JAX arrays, inside `jax.jit` and with gradients.

Run with `python examples/jax_spmm.py` (`pip install jax`). Outside of `jit` a JAX array is taken in place; inside, the
product is a callback on the host, and its gradient the product with the transpose.
"""

import sys

import numpy as np
from scipy import sparse

import bitsparse as bs


def main() -> float:
    try:
        import jax
        import jax.numpy as jnp
    except ImportError as error:
        sys.exit(f"{error}: this example needs JAX (pip install jax)")

    rng = np.random.default_rng(0)
    graph = sparse.random_array((500, 500), density=0.01, rng=rng, format="csr", dtype=np.float32)
    forward, backward = bs.TCTiledCSR(graph), bs.TCTiledCSR(graph.T.tocsr())
    x = jnp.asarray(rng.normal(size=(500, 32)).astype(np.float32))

    y = bs.spmm(forward, x)  # a JAX array in, a JAX array out
    assert isinstance(y, jax.Array)

    def callback(matrix, features):
        like = jax.ShapeDtypeStruct((matrix.shape[0], features.shape[1]), features.dtype)
        return jax.pure_callback(lambda z: bs.spmm(matrix, np.asarray(z)), like, features)

    @jax.custom_vjp
    def neighbours(features):
        return callback(forward, features)

    neighbours.defvjp(lambda z: (callback(forward, z), None), lambda _, g: (callback(backward, g),))

    @jax.jit
    def loss(weights):
        return jnp.mean(jnp.tanh(neighbours(x @ weights)) ** 2)

    weights = jnp.asarray(rng.normal(size=(32, 8)).astype(np.float32))
    start = float(loss(weights))
    for _ in range(30):
        weights = weights - 0.5 * jax.grad(loss)(weights)
    end = float(loss(weights))

    dense = jnp.asarray(graph.toarray())
    error = float(jnp.linalg.norm(jnp.asarray(y) - dense @ x) / jnp.linalg.norm(dense @ x))
    exact = jax.grad(lambda w: jnp.mean(jnp.tanh(dense @ (x @ w)) ** 2))(weights)
    apart = float(jnp.linalg.norm(jax.grad(loss)(weights) - exact) / jnp.linalg.norm(exact))
    print(f"relative error of the sums {error:.1e}, of the gradient {apart:.1e}; loss {start:.4f} -> {end:.4f}")
    assert end < start
    return max(error, apart)


if __name__ == "__main__":
    main()

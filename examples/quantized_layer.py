"""One quantised layer, step by step: pack a graph, quantise features and weights, multiply in integers, stay in bits for the next layer.

Run with `python examples/quantized_layer.py`; it needs neither a GPU nor a framework.
"""

import numpy as np
from scipy import sparse

import bitsparse as bs


def main() -> float:
    rng = np.random.default_rng(0)
    nodes, features, units = 2000, 300, 32
    graph = sparse.random_array((nodes, nodes), density=0.005, rng=rng, format="csr").astype(bool)
    x = rng.normal(size=(nodes, features)).astype(np.float32)
    w = rng.normal(size=(features, units)).astype(np.float32)

    adjacency = bs.BitTensor(graph)  # one bit per pair of nodes, built without a dense array
    qx = bs.quantize(x, 8, scheme="symmetric", granularity="row")
    qw = bs.quantize(w, 8, scheme="symmetric", granularity="col", axis=-2)

    # x @ w in integers; the epilogue applies the scales, requantises to 8 bits, and packs along the nodes for the next product
    step = bs.quantize(x @ w, 8, scheme="symmetric").scale
    update = bs.Epilogue(bits=8, scheme="symmetric", out_scale=step, axis=-2)
    messages = bs.matmul(qx, qw, epilogue=update)

    # the sum over neighbours: 1-bit adjacency times 8-bit messages, relu fused
    plan = bs.plan_matmul(adjacency, units, bits=8, encoding="signed", epilogue=bs.Epilogue(activation="relu"))
    out = plan(messages)

    exact = np.maximum(graph @ (x @ w), 0)
    error = float(np.linalg.norm(out - exact) / np.linalg.norm(exact))
    print(plan.explain())
    print(f"adjacency {adjacency}")
    print(f"relative error of the layer against float32: {error:.4f}")
    return error


if __name__ == "__main__":
    main()

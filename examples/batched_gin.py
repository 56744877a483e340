"""Many small graphs through a graph isomorphism network in batches, in 1 to 8 bits, against full precision.

Run with `python examples/batched_gin.py`; it needs neither a GPU nor a framework. Weights are random with a fixed seed: the example shows
how closely the low-bit network follows the one in full precision, and how few bytes it needs.
"""

import numpy as np
from scipy import sparse

from bitsparse import nn


def small_graphs(count: int, rng: np.random.Generator) -> tuple[sparse.csr_array, np.ndarray]:
    """Build rings with random chords as one block-diagonal adjacency; also return the number of each node's graph."""
    blocks = []
    for size in rng.integers(10, 40, count):
        ring = np.roll(np.eye(size), 1, axis=1) + (rng.random((size, size)) < 2 / size)
        blocks.append(sparse.csr_array(np.triu(ring + ring.T, 1) > 0, dtype=np.int8))
    graph = sparse.block_diag(blocks, format="csr")
    return graph + graph.T, np.repeat(np.arange(count), [block.shape[0] for block in blocks])


def main() -> dict[int, float]:
    rng = np.random.default_rng(0)
    graph, graph_of = small_graphs(50, rng)
    x = rng.normal(size=(graph.shape[0], 29)).astype(np.float32)
    network = nn.random_network("gin", [29, 64, 64, 2], batch_norm=True)  # QGTC's network: 3 layers, 64 columns
    exact = network(graph, x)

    errors = {}
    for bits in (8, 4, 1):
        model = nn.quantize_network(network, graph, x, bits)
        runner = nn.ClusterRunner(graph, model, labels=graph_of, parts_per_batch=20)
        logits = runner.run(x)
        whole = model(
            nn.Graph.from_csr(graph.indptr, graph.indices, normalisation="sum", self_loops=True),
            model.quantize(x),
        )
        assert np.array_equal(logits, whole)  # parts are whole graphs, so batches lose no edge: same bits
        error = np.linalg.norm(logits - exact) / np.linalg.norm(exact - exact.mean(axis=0))
        errors[bits] = float(error)
        saved = runner.report.float_bytes / runner.report.bytes_moved
        print(
            f"{bits} bits: relative error of the logits {error:.3f}, {saved:.1f} times fewer bytes to a device than float32"
        )
    return errors


if __name__ == "__main__":
    main()

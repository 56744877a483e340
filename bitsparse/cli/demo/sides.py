"""The implementations of one GCN over one graph that the demo times against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from bitsparse import interop, jit, nn
from bitsparse.backends import host
from bitsparse.bench.peers import finished, torch_csr


class Side(NamedTuple):
    """One implementation.

    ``call`` returns the logits, and ``bytes`` are the sizes of the arrays that it holds. ``threads`` is the number of threads that sum over
    neighbours, None on a GPU.
    """

    name: str
    bits: int
    threads: int | None
    call: Callable[[], Any]
    bytes: dict[str, int]


def vendor(graph: nn.Graph, x: Any, network: nn.Network, device: str) -> Side:
    """Float32 by SciPy or CuPy. The CSR values contain the factors; products come before sums, so that the summed rows are narrower."""
    matrix, layers = graph.matrix, [(part.weight, part.bias) for part in network.products("demo")]
    xp: Any = np
    if device != "cpu":
        xp = jit.require_cupy("demo")
        matrix = import_module("cupyx.scipy.sparse").csr_matrix(matrix)
        x, layers = xp.asarray(x), [(xp.asarray(weight), xp.asarray(bias)) for weight, bias in layers]

    def call() -> Any:
        h = x
        for i, (weight, bias) in enumerate(layers):
            h = matrix @ (h @ weight)
            h += bias
            if i + 1 < len(layers):
                xp.maximum(h, 0, out=h)
        return h

    name, threads = ("SciPy", 1) if device == "cpu" else ("CuPy", None)
    return Side(f"{name} float32", 32, threads, finished(call, device), _bytes_of_floats(matrix, x, network))


def geometric(graph: nn.Graph, x: Any, network: nn.Network, device: str) -> Side | None:
    """Float32 by PyTorch Geometric, None without it. The CSR values contain the factors, so GCNConv has normalize=False."""
    if find_spec("torch_geometric") is None or find_spec("torch") is None:
        return None
    torch, models = import_module("torch"), import_module("torch_geometric.nn.models")
    if device != "cpu" and not torch.cuda.is_available():
        return None
    if device == "cpu":
        torch.set_num_threads(host.get_num_threads())
    first, hidden, *_, classes = network.widths
    model = models.GCN(first, hidden, len(network.layers), classes, normalize=False).eval()
    model.load_state_dict({name: torch.from_numpy(part) for name, part in network.state_dict().items()})
    matrix = graph.matrix
    adjacency = torch_csr(matrix, device)
    model, features = model.to(device), torch.from_numpy(x).to(device)

    def call() -> Any:
        with torch.inference_mode():
            logits = model(features, adjacency)
        if device != "cpu":
            torch.cuda.synchronize()
        return logits

    threads = torch.get_num_threads() if device == "cpu" else None
    return Side("PyG float32", 32, threads, call, _bytes_of_floats(matrix, x, network))


def in_full(graph: nn.Graph, x: Any, network: nn.Network, device: str) -> Side:
    """Float32 by bitsparse."""
    there = graph.to_device(device)
    features = interop.move(x, there.device)
    held = _bytes_of_floats(graph.matrix, x, network)
    if device != "cpu":
        held["graph"] = int(there.packed("tiled").nbytes + there.row_scale.nbytes + there.col_scale.nbytes)
    call = finished(lambda: network(there, features), device)
    return Side("bitsparse float32", 32, _threads(device), call, held)


def in_bits(graph: nn.Graph, x: Any, network: nn.LowBitNetwork, device: str) -> Side:
    """Codes of few bits by bitsparse; `graph` is on the device."""
    bits = network.input_bits
    # Sums and products on a CPU read one byte per code.
    layout = "rows" if (bits, device) == (8, "cpu") else None
    codes = network.quantize(x, layout=layout).to_device(device)  # type: ignore[arg-type]
    plan = network.plan(graph, codes)
    held = {
        "graph": graph.nbytes,
        "features": codes.nbytes,
        "weights": network.nbytes,
        "activations": plan.nbytes + 4 * plan.shape[0] * plan.shape[1],
    }
    name = f"bitsparse {bits} bit" + ("" if bits == 1 else "s")
    return Side(name, bits, _threads(device), finished(plan, device), held)


def floats_alive(nodes: int, widths: Sequence[int]) -> int:
    """The most bytes that a float32 GCN holds at once beside its features: the input, the product and the sums of one layer.

    Examples
    --------
    >>> floats_alive(10, [128, 64, 16])
    5120
    """
    given = (0, *widths[1:-1])
    return 4 * nodes * max(before + 2 * after for before, after in zip(given, widths[1:], strict=True))


def _bytes_of_floats(matrix: Any, x: Any, network: nn.Network) -> dict[str, int]:
    return {
        "graph": int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes),
        "features": int(x.nbytes),
        "weights": network.nbytes,
        "activations": floats_alive(x.shape[0], network.widths),
    }


def _threads(device: str) -> int | None:
    return host.get_num_threads() if device == "cpu" else None

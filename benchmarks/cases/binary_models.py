"""Whole networks for suite ``binary`` and BitGNN's tables: ours and PyTorch Geometric's on one graph, their time and their memory.

Weights are random, because time and memory are compared, not accuracy (``examples/`` trains). Sizes and letters of the layers are those of
BitGNN's section 4: *full* aggregates floats, ``FBF+FBF``; *bin* aggregates bits where the paper does, ``FBB+BBB`` and then ``BBF+FBF``.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import bitsparse as bs
from benchmarks.cases.graphs import SIZES, file_of, stands_in
from benchmarks.cases.sparse_gpu import Timed
from benchmarks.gpu_timing import torch_graph, torch_module
from benchmarks.peers.pyg import model_call
from bitsparse import jit, nn
from bitsparse.bench import Unavailable
from bitsparse.datasets import SIZES as PUBLISHED
from bitsparse.datasets import read_npz, synthetic_csr

__all__ = ["GRAPHS", "OURS", "THEIRS", "Contender", "Network", "contender", "network"]

#: Features, hidden columns and classes (BitGNN's Table 2 and the captions of its Tables 4 and 5; Bi-GCN's hidden layer).
GRAPHS: dict[str, tuple[int, int, int]] = {
    "cora": (1_433, 64, 7),
    "pubmed": (500, 64, 3),
    "citeseer": (3_703, 64, 6),
    "flickr": (500, 256, 7),
    "reddit": (602, 128, 41),
}
#: Nodes and stored entries of graphs that are generated because their files are large.
MADE = {"flickr": (89_250, 899_756), "reddit": PUBLISHED["reddit"]}
#: The names of both sides in records; for the peer, with its way to sum.
THEIRS = {"fp32 (S)": "scatter", "fp32 (T)": "sparse"}
OURS = ("full", "bin")
#: The largest number of nodes at which results are compared with the CPU, and the share of nodes that must get the same class.
ON_CPU, SAME = 50_000, 0.99


class Network(NamedTuple):
    """A graph on the GPU with features, and the sizes of a network on it."""

    graph: str
    source: str
    indptr: Any
    indices: Any
    x: Any
    hidden: int
    classes: int

    def facts(self) -> dict[str, Any]:
        """Facts about the network for the record."""
        facts = {
            "graph": self.graph,
            "source": self.source,
            "nodes": self.indptr.size - 1,
            "entries": self.indices.size,
        }
        return facts | {"features": self.x.shape[1], "hidden": self.hidden, "classes": self.classes}


class Contender(NamedTuple):
    """One side: a captured call, the most bytes held during it, and facts for the record."""

    timed: Timed
    peak_bytes: int
    facts: dict[str, Any]


def network(name: str) -> Network:
    """A graph, from its file if there is one, else synthetic; with random features."""
    cupy = jit.require_cupy("suite binary")
    features, hidden, classes = GRAPHS[name]
    path = file_of(name) if name in SIZES else None
    if path is not None:
        data = read_npz(path)
        indptr, indices, source = cupy.asarray(data.indptr), cupy.asarray(data.indices), path.name
    else:
        sizes = (*MADE[name], "power_law") if name in MADE else SIZES[name]
        source = stands_in(name) if name in SIZES else f"synthetic {sizes[2]} graph of the size of {name}, seed 0"
        made: Any = (sizes[:2], sizes[2])
        indptr, indices = synthetic_csr(*made, device="cuda")
    x = cupy.random.default_rng(0).standard_normal((indptr.size - 1, features), dtype=np.float32)
    return Network(name, source, indptr, indices, x, hidden, classes)


def contender(model: str, version: str, net: Network, *, packed: bool = False) -> Contender:
    """A captured side of the comparison."""
    return theirs(model, version, net) if version in THEIRS else ours(model, version, net, packed=packed)


# ---- PyTorch Geometric
def theirs(model: str, version: str, net: Network) -> Contender:
    """A network of PyTorch Geometric in float32."""
    torch = torch_module()
    gc.collect()
    torch.cuda.empty_cache()
    small = torch.ones((8, 8), device="cuda")
    small = small @ small  # cuBLAS allocates its workspace, which must not count
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    indptr, indices = (torch.from_dlpack(array) for array in (net.indptr, net.indices))
    x = torch.from_dlpack(net.x).clone()
    call = model_call(model, THEIRS[version], indptr, indices, x, net.hidden, net.classes)
    result = call()  # normalises the adjacency, once
    torch.cuda.synchronize()
    del result
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - start
    del result
    timed = Timed(call, f"PyTorch Geometric {model} {version}", torch_graph)
    return Contender(timed, int(peak), {"peer_replayed": timed.replayed})


# ---- ours
class Peak:
    """The peak of bytes allocated from CuPy's pools, beyond those held before."""

    def __init__(self) -> None:
        self.live = self.most = 0


@contextmanager
def watched() -> Iterator[Peak]:
    """Count the bytes that CuPy's memory pools allocate and free."""
    cupy = jit.require_cupy("suite binary")
    peak = Peak()

    base: Any = cupy.cuda.MemoryHook

    class Hook(base):  # type: ignore[misc]
        name = "peak"

        def malloc_postprocess(self, **facts: Any) -> None:
            peak.live += facts["mem_size"]
            peak.most = max(peak.most, peak.live)

        def free_postprocess(self, **facts: Any) -> None:
            peak.live -= facts["mem_size"]

    with Hook():
        yield peak


def ours(model: str, version: str, net: Network, *, packed: bool) -> Contender:
    """A binary network with random weights."""
    cupy = jit.require_cupy("suite binary")
    made = binary_model(model, version, net)
    pool, nodes = cupy.cuda.MemoryPool(), net.indptr.size - 1
    case = f"{model} {version} on {net.graph}"
    with cupy.cuda.using_allocator(pool.malloc):
        graph = adjacency(net, loops=model == "gcn")
        x: Any = made.packed(net.x) if packed else net.x.copy()
        plan = made.plan(graph, x)
        out = cupy.empty((nodes, net.classes), np.float32)
        plan(x, out=out)
        if nodes <= ON_CPU:
            compare(case, made, graph, x, out)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.runtime.deviceSynchronize()
        gc.collect()
        held = pool.used_bytes()
        # While a graph is recorded, the plan enqueues its steps one by one, so that their allocations can be counted.
        with stream, watched() as peak:
            stream.begin_capture()
            plan(x, out=out)
            stream.end_capture()
    timed = Timed(partial(plan, x, out=out), case)
    facts = {
        "letters": [str(setting) for setting in plan.settings],
        "held_bytes": held,
        "planned_bytes": plan.peak_nbytes,
    }
    facts |= {"graph_bytes": int(graph.nbytes), "weight_bytes": int(made.nbytes)}
    return Contender(timed, int(held + peak.most), facts)


def binary_model(model: str, version: str, net: Network) -> Any:
    """Our model with random weights and biases."""
    kind = {"gcn": "BinaryGCN", "sage": "BinarySAGE", "saint": "BinarySAINT"}[model]
    networks: Any = nn
    if not hasattr(networks, kind):
        raise Unavailable(f"there is no bitsparse.nn.{kind}")
    rng = np.random.default_rng(0)

    def linear(inputs: int, outputs: int) -> Any:
        weights = rng.standard_normal((inputs, outputs), dtype=np.float32)
        return networks.BinaryLinear.from_weights(weights, rng.standard_normal(outputs, dtype=np.float32))

    sizes = ((int(net.x.shape[1]), net.hidden), (net.hidden, net.hidden if model == "saint" else net.classes))
    layers = [linear(*size) if model == "gcn" else (linear(*size), linear(*size)) for size in sizes]
    head = [linear(2 * net.hidden, net.classes)] if model == "saint" else []
    return getattr(networks, kind)(layers, *head, {"full": "full", "bin": "binary"}[version])


def adjacency(net: Network, *, loops: bool) -> Any:
    """The graph as FRDC, in blocks of bits; with loops it is ``D^-1/2 (A + I) D^-1/2``, with D as factors."""
    cupy = jit.require_cupy("suite binary")
    indptr, indices, nodes = net.indptr, net.indices, net.indptr.size - 1
    if not loops:
        return bs.FRDC.from_csr_arrays(indptr, indices, (nodes, nodes))
    rows = cupy.searchsorted(indptr[1:], cupy.arange(indices.size, dtype=indptr.dtype), side="right")
    own = cupy.arange(nodes, dtype=np.int64)
    keys = cupy.unique(cupy.concatenate([rows.astype(np.int64) * nodes + indices, own * nodes + own]))
    starts = cupy.searchsorted(keys, cupy.arange(nodes + 1, dtype=np.int64) * nodes)
    made = bs.FRDC.from_csr_arrays(starts.astype(indptr.dtype), (keys % nodes).astype(indices.dtype), (nodes, nodes))
    factors = 1 / cupy.sqrt(cupy.diff(starts).astype(np.float32))
    return made.with_scales(factors, factors)


def compare(case: str, model: Any, graph: Any, x: Any, out: Any) -> None:
    """Check that the CPU's logits give the same classes; sums near 0 may differ in sign there, which changes few nodes."""
    host = model.plan(graph.to_device("cpu"), there := x.get() if not hasattr(x, "words") else x.to_device("cpu"))(
        there
    )
    same = float((host.argmax(axis=1) == out.get().argmax(axis=1)).mean())
    if not same >= SAME:
        raise AssertionError(f"{case}: {same:.1%} of the nodes get the class that the CPU gives them")

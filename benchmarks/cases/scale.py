"""Cases of suite ``scale``: each rank of ``torchrun`` prepares its own part, and all ranks time one call together."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.ranks import alone_ms, communicator, device, prepared, space, together_ms
from benchmarks.gpu_timing import torch_module
from bitsparse import bspmm, distributed, interop, nn, pack_bits, plan_bspmm, plan_spmm, quantize
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.bench import Case, Prepared
from bitsparse.datasets import synthetic_csr
from bitsparse.ops.recorded import Recorded

#: Replaces the named sizes if there is no GPU, to check that the cases run.
SMALL = (20_000, 200_000)
WIDTH = 128
#: Classes of the networks.
CLASSES = 47
#: Nodes of a group of batches that a rank computes together, if the graph is large.
GROUP = 1 << 17


def size_of(name: str) -> Any:
    """A named size, or a small one on a CPU."""
    return SMALL if device() == "cpu" else name


# -- links ------------------------------------------------------------------------------------------------------------
def link(kind: str, size: int) -> Prepared:
    """An exchange in which each rank receives about `size` bytes; the rate is ``bytes / ours_ms``."""
    comm = communicator()
    # Whole groups of 16 bytes, like rows: unaligned parts could not be loaded as vectors.
    each = max(size // max(comm.size - 1, 1) // 16 * 16, 16)
    send, receive = space().ones((comm.size, each), np.uint8), space().empty((comm.size, each), np.uint8)
    if kind == "allgather":
        call: Callable[[], object] = partial(comm.all_gather, send[0], receive)
    else:
        counts = [1] * comm.size
        call = partial(comm.all_to_all_v, send, counts, receive, counts)
    return prepared(call, None, None, each * (comm.size - 1))


# -- calls as CUDA graphs, if the engine lets them be recorded ---------------------------------------------------------
def _repeated(plan: Any, x: Any, out: Any) -> Callable[[], object]:
    """``plan(x, out=out)`` in the form in which a user repeats it: recorded under NCCL."""
    return partial(plan, x, out=out) if communicator().engine != "nccl" else plan.recorded(x, out)


def _repeated_alone(plan: Any, x: Any, out: Any) -> Callable[[], object]:
    """The same for a plan of one device."""
    call = partial(plan, x, out=out)
    return call if device() == "cpu" else Recorded(call, held=call)


def _recorded(call: Callable[[], object]) -> Callable[[], object]:
    """A function that all ranks call together, as a CUDA graph."""
    return call if communicator().engine != "nccl" else Recorded(call, held=call)


def _repeated_torch(call: Callable[[], object]) -> Callable[[], object]:
    """A function that uses PyTorch, as a CUDA graph of PyTorch."""
    if communicator().engine != "nccl":
        return call
    torch = torch_module()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        call()
    return graph.replay


# -- sums -------------------------------------------------------------------------------------------------------------
def _facts(plan: Any) -> dict[str, Any]:
    """The choices of a plan, and the bytes that it receives."""
    return {"exchange": plan.exchange, "overlap": plan.overlap, "received": plan.received_bytes}


def _floats(rows: int, columns: int, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


def _bits(rows: int, seed: int) -> BitTensor:
    """Random signs, drawn as packed words: drawing floats for many nodes would take long."""
    words = np.random.default_rng(seed).integers(0, 1 << 32, (rows, 1, WIDTH // 32), np.uint32)
    return BitTensor.from_words(interop.move(words, device()), (rows, WIDTH), 1, encoding="bipolar")


def binary(size: str, scaling: Any) -> Prepared:
    """``plan_bspmm(a, 128, "BBB")`` against the same over one graph of this size on one device."""
    comm, wanted = communicator(), size_of(size)
    a = distributed.synthetic_shard(wanted, "power_law", comm, scaling=scaling, device=device())
    x = _bits(a.shape[0], comm.rank)
    plan = distributed.plan_bspmm(a, WIDTH, "BBB")
    out = plan(x)

    def one() -> Callable[[], object]:
        indptr, indices = synthetic_csr(wanted, "power_law", device=device())
        whole = TCTiledCSR.from_arrays(indptr, indices, (indptr.size - 1,) * 2)
        alone, features = plan_bspmm(whole, WIDTH, "BBB"), _bits(indptr.size - 1, 0)
        return _repeated_alone(alone, features, alone(features))

    if scaling == "strong":  # the words of one device
        mine = a.own_rows() if a.nodes <= 1 << 20 else None
        if mine is not None:
            wanted_words = bspmm(mine, a.part.gather(x), "BBB").words
            assert bool((wanted_words == out.words).all())
    facts = _facts(plan) | {"scaling": scaling}
    ours = _repeated(plan, x, out)
    return prepared(ours, partial(alone_ms, one), "one device, one graph", plan.received_bytes, **facts)


def eight_bits(size: str) -> Prepared:
    """``plan_spmm(a, 128, bits=8)`` against the same on one device."""
    comm, wanted = communicator(), size_of(size)
    a = distributed.synthetic_shard(wanted, "power_law", comm, device=device())

    def codes(rows: int, seed: int) -> BitTensor:
        words = np.random.default_rng(seed).integers(0, 1 << 32, (rows, WIDTH // 4), np.uint32)
        return BitTensor.from_words(interop.move(words, device()), (rows, WIDTH), 8, layout="rows")

    x = codes(a.shape[0], comm.rank)
    plan = distributed.plan_spmm(a, WIDTH, bits=8)
    out = plan(x)

    def one() -> Callable[[], object]:
        indptr, indices = synthetic_csr(wanted, "power_law", device=device())
        whole = TCTiledCSR.from_arrays(indptr, indices, (indptr.size - 1,) * 2)
        alone, features = plan_spmm(whole, WIDTH, bits=8), codes(indptr.size - 1, 0)
        return _repeated_alone(alone, features, alone(features))

    ours = _repeated(plan, x, out)
    return prepared(ours, partial(alone_ms, one), "one device", plan.received_bytes, **_facts(plan))


def overlapped(size: str, bits: int | None) -> Prepared:
    """A plan that sums rows with own neighbours only during the exchange or after it, as it chooses, against the other choice."""
    comm = communicator()
    a = distributed.synthetic_shard(size_of(size), "communities", comm, device=device())
    x = interop.move(_floats(a.shape[0], WIDTH, comm.rank), device())
    mine = x if bits is None else quantize(x, bits, layout="rows").with_affine()

    def plan(overlap: bool | None) -> tuple[Any, Callable[[], object]]:
        made = distributed.plan_spmm(a, WIDTH, bits=bits, exchange="halo", overlap=overlap)
        return made, _repeated(made, mine, made(mine))

    made, ours = plan(None)
    _, peer = plan(not made.overlap)
    rows, entries = a.outer()
    facts = {"outer_rows": rows / max(a.shape[0], 1), "outer_entries": entries / max(a.nnz, 1), "bits": bits or 32}
    name = "without overlap" if made.overlap else "with overlap"
    return prepared(ours, partial(together_ms, peer), name, made.received_bytes, overlap=made.overlap, **facts)


# -- networks ---------------------------------------------------------------------------------------------------------
@cache
def _graph(size: str) -> tuple[Any, Any]:
    """The whole pattern on the CPU, and this rank's part of it."""
    made = synthetic_csr(size_of(size), "communities", device=device())  # much faster on a GPU
    indptr, indices = (interop.move(array, "cpu") for array in made)
    pattern = TCTiledCSR.from_arrays(indptr, indices, (indptr.size - 1,) * 2)
    part = distributed.partition((indptr, indices), communicator())
    return pattern, distributed.shard(pattern, part, device=device())


def cluster(size: str) -> Prepared:
    """An epoch of ``ClusterRunner`` in 8 bits, with batches divided among the ranks, against all batches on one device."""
    comm = communicator()
    pattern, a = _graph(size)
    nodes, features = a.nodes, 100
    x = _floats(nodes, features, 0)
    low = nn.quantize_network(nn.random_network("gcn", [features, 64, 47]), pattern[:4096, :4096], x[:4096], 8)
    options: dict[str, Any] = {
        "labels": np.arange(nodes) // 1632,
        "device": device(),
        "group_nodes": min(GROUP, nodes // 8),
    }
    runner = nn.ClusterRunner(pattern, low, comm=comm, **options)
    packed, out = runner.pack(x), space().zeros((nodes, 47), np.float32)

    def one() -> Callable[[], object]:
        alone = nn.ClusterRunner(pattern, low, **options)
        return partial(alone.run_packed, alone.pack(x), space().zeros((nodes, 47), np.float32))

    return prepared(partial(runner.run_packed, packed, out), partial(alone_ms, one), "one device", out.nbytes)


def inference(size: str, bits: int) -> Prepared:
    """The sums of a GCN layer in few bits with their exchange, against float32: an all-gather of rows and PyTorch's CSR product."""
    torch, comm = torch_module(), communicator()
    _, a = _graph(size)
    graph = distributed.GraphShard(a, exchange="allgather")
    x = _floats(a.shape[0], WIDTH, comm.rank)
    mine = interop.move(x, device())
    if bits == 1:
        signs = pack_bits(mine, encoding="bipolar")
        plan = distributed.plan_bspmm(graph.shard.with_scales(), WIDTH, "BBB", exchange="allgather")
        ours = _repeated(plan, signs, plan(signs))
    else:
        codes = quantize(mine, bits, layout="rows").with_affine()
        plan = distributed.plan_spmm(graph.shard.with_scales(), WIDTH, bits=bits, exchange="allgather")
        ours = _repeated(plan, codes, plan(codes))
    matrix = graph.shard.with_scales().matrix("allgather")
    parts = [torch.as_tensor(interop.move(part, "cpu")).to(device()) for part in (matrix.indptr, matrix.indices)]
    sparse = torch.sparse_csr_tensor(*parts, torch.ones(matrix.nnz, device=device()), size=matrix.shape)
    block = torch.zeros((matrix.shape[1] // comm.size, WIDTH), device=device())
    block[: mine.shape[0]] = torch.as_tensor(mine)
    gathered = torch.empty((matrix.shape[1], WIDTH), device=device())

    def peer() -> object:
        if comm.size == 1:
            return sparse @ block
        torch.distributed.all_gather_into_tensor(gathered, block)
        return sparse @ gathered

    peer()
    brought = torch.as_tensor(graph.shard.exchange("allgather")(mine))
    assert comm.size == 1 or bool((gathered == brought).all())
    name = "PyTorch: all-gather of float32, CSR product"
    theirs = partial(together_ms, _repeated_torch(peer))
    return prepared(ours, theirs, name, plan.received_bytes, bits=bits, **_facts(plan))


def exchange(size: str) -> Prepared:
    """The exchanges of an epoch of :func:`training`, forward and backward, with rounding: in 8 bits against float32."""
    import bitsparse.torch as bst

    graph = distributed.GraphShard(_graph(size)[1])
    sides, received = [], []
    for bits in (8, None):
        sums, calls = bst.ShardedSum(graph, bits=bits), []
        for columns in (WIDTH, CLASSES):
            # The graph is undirected, so that both passes exchange alike.
            method, _ = graph.shard.choose("suite scale", "auto", columns if bits else 4 * columns)
            x = interop.move(_floats(graph.nodes, columns, communicator().rank), device())
            calls += [partial(sums.send, graph.shard.exchange(method), x, stream) for stream in (1, 2)]
        _each(calls)
        received.append(sums.exchanged_bytes)
        sides.append(_recorded(partial(_each, calls)))
    facts = {"received": received[0], "received_float32": received[1]}
    return prepared(sides[0], partial(together_ms, sides[1]), "float32 exchanged", received[0], **facts)


def _each(calls: Iterable[Callable[[], object]]) -> None:
    for call in calls:
        call()


def training(size: str) -> Prepared:
    """An epoch of full-graph training with features and gradients in 8 bits, against the same in float32."""
    torch = torch_module()
    import bitsparse.torch as bst

    comm = communicator()
    _, a = _graph(size)
    graph = distributed.GraphShard(a)
    x = torch.as_tensor(_floats(a.shape[0], 100, comm.rank)).to(device())
    labels = torch.randint(0, CLASSES, (a.shape[0],), generator=torch.Generator().manual_seed(comm.rank)).to(device())
    exchanged: list[Any] = []

    def epoch(bits: int | None) -> Callable[[], object]:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(100, WIDTH), torch.nn.Linear(WIDTH, CLASSES)]
        layers = [layer.to(device()) for layer in layers]
        sums = [bst.ShardedSum(graph, bits=bits) for _ in layers]
        exchanged.append(sums)

        def run() -> None:
            h = torch.relu(sums[0](layers[0](x)))
            loss = torch.nn.functional.cross_entropy(sums[1](layers[1](h)), labels, reduction="sum") / a.nodes
            loss.backward()
            for layer in layers:
                for parameter in layer.parameters():
                    gradient, family = interop.as_array(parameter.grad, "suite scale")
                    with interop.working_on(device(), family):
                        comm.all_reduce(gradient)
                    parameter.grad = None

        return run

    ours, peer = epoch(8), epoch(None)
    ours()
    peer()
    few, many = (sum(each.exchanged_bytes for each in sums) for sums in exchanged)
    facts = {"received": few, "received_float32": many}
    ours, peer = _repeated_torch(ours), _repeated_torch(peer)
    return prepared(ours, partial(together_ms, peer), "the same, float32 exchanged", few, **facts)


# -- out of core ------------------------------------------------------------------------------------------------------
def memory_map(bits: int) -> Prepared:
    """Quantising features from a memory map, against reading the file; it has ``SCALE_MAP_GB`` gigabytes, by default 0.1."""
    comm = communicator()
    gigabytes = float(os.environ.get("SCALE_MAP_GB", "0.1"))
    rows = max(1, int(gigabytes * 1e9 / (4 * WIDTH) / comm.size))
    folder = tempfile.TemporaryDirectory(prefix="bitsparse-scale-")
    path = Path(folder.name) / "x.npy"
    source = np.lib.format.open_memmap(path, "w+", np.float32, (rows, WIDTH))
    for start in range(0, rows, 1 << 20):
        source[start : start + (1 << 20)] = _floats(min(1 << 20, rows - start), WIDTH, start)
    source.flush()
    held = np.load(path, mmap_mode="r")

    memory = memoryview(bytearray(1 << 26))

    def read() -> None:
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(memory):
                pass

    ours = partial(distributed.quantize_streamed, held, bits, device=device())
    made = prepared(ours, partial(together_ms, read), "reading the file", source.nbytes, bits=bits, gigabytes=gigabytes)
    made.params["folder"] = "temporary"
    _kept.append(folder)
    return made


#: Temporary folders, kept until the program ends.
_kept: list[Any] = []


def cases() -> list[Case]:
    """All cases; they are the same on every rank."""
    made = [
        Case(f"scale-link-{kind}-{size >> 20}MB", partial(link, kind, size))
        for kind in ("allgather", "pairs")
        for size in (1 << 24, 1 << 27, *((1 << 30,) if device() != "cpu" else ()))
    ]
    made += [
        Case("scale-binary-papers-strong", partial(binary, "papers", "strong")),
        Case("scale-binary-papers-weak", partial(binary, "papers", "weak")),
        Case("scale-spmm-products-b8", partial(eight_bits, "products")),
        Case("scale-overlap-products-b8", partial(overlapped, "products", 8)),
        Case("scale-overlap-products-float32", partial(overlapped, "products", None)),
        Case("scale-cluster-products-b8", partial(cluster, "products")),
        Case("scale-exchange-products", partial(exchange, "products")),
        Case("scale-training-products", partial(training, "products")),
    ]
    made += [
        Case(f"scale-inference-{size}-b{bits}", partial(inference, size, bits))
        for size in ("reddit", "products")
        for bits in (8, 1)
    ]
    return [*made, *(Case(f"scale-memory-map-b{bits}", partial(memory_map, bits)) for bits in (8, 1))]

"""Suite ``training``: epochs of training of whole graph networks with ``bitsparse.torch``, on a GPU and on the CPU.

Where this suite differs from the protocol of ``run.py``:

- ``training-{network}-{precision}-{graph}`` is an epoch: forward, cross entropy on half of the nodes, backward, fused Adam; no dropout.
  gcn and sage (means) have two layers with 128 columns between them, gin three with 64 (sums with the node's own features, then one
  linear map), gat two, the first with 4 heads of 32 columns side by side, agnn four sums of 32 columns with weights by cosines between
  two linear maps. Weights, features and everything between are float32 or bfloat16; in 16 bits both sides have a multiple of 16 classes.
- ``training-{network}-{int8|int4}-{last}-{graph}`` is an epoch of a network that ``bst.quantize_`` has changed: sums of codes of 8 or 4
  bits, products of 8, the last layer in float32 or with its sums quantised as well, stochastic rounding; ``-own`` is the same against our
  own epoch in float32. A sample is four epochs, one behind another, on both sides. Gradients of one step differ from the peer's by the
  rounding, which the record tells.
- ``training-{network}-int8-kept{8|4}-{graph}-own`` is such an epoch that keeps what gradients need in so many bits as well
  (``bst.Tango(activations=)``); ``params.kept_bytes`` and ``params.peer_kept_bytes`` are what a forward pass keeps, without parameters and
  the data.
- Graphs are those of suite ``spmm``, without loops: cora, pubmed and artist, whose epochs are captured as one CUDA graph on both sides, and
  the synthetic ones of the sizes of reddit and ogbn-products, whose epochs are launched as they are. Features and labels are the data
  set's where it has them, else random.
- The peer is PyTorch alone with products of cuSPARSE, as quick as it goes without a new kernel (``peers/torch_gnn.py``). Both sides
  multiply first where that is narrower to sum. GIN's weights and learning rate are divided by the mean number of neighbours.
- Gradients of equal weights and the losses of five epochs are compared before anything is timed: ``params.gradient_difference`` is that of
  all weights over their size, ``params.worst_gradient_difference`` the largest of one weight, ``params.loss_difference`` the largest of
  the epochs.
- ``params.replayed`` and ``params.peer_replayed`` tell whose epochs are CUDA graphs.
- Times are taken by events, in turns; the median of 15 samples counts (fewer where six seconds do not suffice, at least 3).
- ``params.peak_bytes`` and ``params.peer_bytes`` are what a side holds at most in an epoch that is not captured, in PyTorch's memory and in
  CuPy's pool: matrices, weights, moments and activations, without features, labels and the graph that both are made of.
- ``params.without_edges_ms`` is our epoch on a graph without an edge: dense products, loss and optimiser, which both sides have. The peer's
  time over it is the ratio that no sum over edges could exceed.
- ``floor_ms`` is what the sums must read and write, there and back; ``estimate_ms`` fetching a row for every edge at the measured rate
  where rows are hardly used twice (``params.reuse`` below 1.25), else the same bytes at the measured rate. Dense products are in neither.
- ``training-cpu-gcn-{graph}-{peer}`` is such an epoch of gcn in float32 on the CPU, all sides with ``--threads`` threads and in turns as in
  suite ``host``. Peers: ``pyg``, PyTorch Geometric's layers, which keep their normalised weights; ``torch``, the peer above with products
  of MKL. ``training-cpu-accelerate-cora`` is an epoch of PyTorch Geometric's layers after ``accelerate`` against the same as they are.
  These have no bounds.
- ``jax-{network}-{graph}-{peer}`` is the loss and its gradients by all weights in JAX, without an optimiser, ours by ``bitsparse.jax``
  against JAX alone, both jitted with their graphs as arguments: gcn as above, gat with 4 heads of 32 columns and a linear map. Peers are
  products with a ``bcoo`` or ``bcsr`` matrix, or gathers and sums of ``segment``s; of BCSR JAX makes a dense matrix on a CPU, so that is
  measured on a GPU alone. ``jax-cpu-...`` is the same on the CPU, with as many threads as the process may use. ``jax-host-layer`` is what a
  sum costs in a jitted step of ten, on a graph of 64 nodes without edges to others, over the step without sums.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import partial
from typing import Any

from benchmarks import gpu_timing
from benchmarks.cases.products import SYNTHETIC
from bitsparse import jit
from bitsparse.bench import Case, Machine, Prepared, Unavailable
from bitsparse.errors import DeviceError

__all__ = ["cases", "machine"]

NETWORKS = ("gcn", "sage", "gin", "gat", "agnn")
PRECISIONS = ("fp32", "bf16")
#: Networks and precisions of quantised epochs, and what becomes of their last layers.
QUANTISED, INTEGERS, LAST = ("gcn", "sage", "gin", "gat"), ("int8", "int4"), ("float32", "sums")
#: Networks that keep what gradients need in few bits, and how many.
KEEPING, KEPT = ("gcn", "gat"), (8, 4)
#: Graphs whose epochs are captured; quantised ones always are.
CAPTURED = ("cora", "pubmed", "artist")
#: Graphs of epochs on the CPU, and their peers.
ON_CPU, PEERS = ("pubmed", "artist"), ("pyg", "torch")
#: How JAX alone sums.
JAX_PEERS = ("segment", "bcoo", "bcsr")


def machine(threads: int, commit: str | None) -> Machine:
    """Describe this machine, with its GPU if it has one."""
    try:
        return gpu_timing.machine(threads, commit)
    except DeviceError:
        return Machine.of_cpu(threads, commit)


def cases(threads: int) -> list[Case]:
    """All cases of the suite, by graph, so that problems are made once."""
    on_gpu = [
        Case(f"training-{network}-{precision}-{name}", partial(epoch, network, precision, name))
        for name in (*CAPTURED, *SYNTHETIC)
        for precision in PRECISIONS
        for network in NETWORKS
    ]
    on_gpu += [
        Case(
            f"training-{network}-{precision}-{last}-{name}{'-own' * own}",
            partial(epoch, network, precision, name, own, last),
        )
        for name in SYNTHETIC
        for precision in INTEGERS
        for network in QUANTISED
        for last in LAST
        for own in (False, True)
    ]
    on_gpu += [
        Case(
            f"training-{network}-int8-kept{bits}-{name}-own",
            partial(epoch, network, "int8", name, True, "float32", bits),
        )
        for name in SYNTHETIC
        if name.startswith("products")
        for network in KEEPING
        for bits in KEPT
    ]
    on_cpu = [
        Case(f"training-cpu-gcn-{name}-{peer}", partial(epoch_on_cpu, name, peer, threads))
        for name in ON_CPU
        for peer in PEERS
    ]
    for place, device in (("-cpu", "cpu"), ("", "cuda")):
        on_cpu.append(Case(f"training{place}-accelerate-cora", partial(accelerated, "cora", threads, device)))
    return [*on_cpu, *on_gpu, *in_jax()]


def in_jax() -> list[Case]:
    """Cases of networks in JAX."""
    found = []
    for place, platform in (("-cpu", "cpu"), ("", "gpu")):
        peers = [peer for peer in JAX_PEERS if platform == "gpu" or peer != "bcsr"]
        cells = [("gcn", name, peer) for name in ("artist", "COLLAB") for peer in peers]
        for network, name, peer in [*cells, ("gat", "artist", "segment")]:
            case = f"jax{place}-{network}-{name}-{peer}"
            found.append(Case(case, partial(of_jax, "gradients", case, network, name, peer, platform)))
        found.append(Case(f"jax{place}-host-layer", partial(of_jax, "host_time", platform)))
    return found


def of_jax(function: str, *arguments: Any) -> Prepared:
    """A case in JAX."""
    if importlib.util.find_spec("jax") is None:
        raise Unavailable("JAX is not installed; pip install 'bitsparse[jax]'")
    cases: Any = importlib.import_module("benchmarks.cases.training_jax")
    made: Prepared = getattr(cases, function)(*arguments)
    return made


def epoch(
    network: str, precision: str, name: str, own: bool = False, last: str = "float32", activations: int | None = None
) -> Prepared:
    """An epoch of ours against one of PyTorch's, or a quantised one against our own in float32."""
    jit.require_cupy("suite training")
    gpu_timing.torch_module()
    # Only now: names of cases are listed without PyTorch too.
    training: Any = importlib.import_module("benchmarks.cases.training")
    case, quantised = f"training-{network}-{precision}-{name}", precision in INTEGERS
    how = {"own": own, "last": last, "activations": activations} if quantised else {}
    made: Prepared = training.epoch(case, network, name, precision, captured=name in CAPTURED or quantised, **how)
    return made


def epoch_on_cpu(name: str, peer: str, threads: int) -> Prepared:
    """An epoch on the CPU of ours against one of a peer's."""
    gpu_timing.torch_module()
    training: Any = importlib.import_module("benchmarks.cases.training_cpu")
    made: Prepared = training.epoch(f"training-cpu-gcn-{name}-{peer}", name, peer, threads)
    return made


def accelerated(name: str, threads: int, device: str) -> Prepared:
    """An epoch of a network of PyTorch Geometric's, accelerated, against the same as it is."""
    gpu_timing.torch_module()
    if device != "cpu":
        jit.require_cupy("suite training")
    training: Any = importlib.import_module("benchmarks.cases.training_cpu")
    case = f"training{'-cpu' * (device == 'cpu')}-accelerate-{name}"
    made: Prepared = training.step(case, name, threads, device)
    return made

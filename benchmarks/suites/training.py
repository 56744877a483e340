"""Suite ``training``: epochs of training of whole graph networks with ``bitsparse.torch``, on a GPU and on the CPU.

Where this suite differs from the protocol of ``run.py``:

- ``training-{network}-{precision}-{graph}`` is an epoch: forward, cross entropy on half of the nodes, backward, fused Adam; no dropout.
  gcn and sage (means) have two layers with 128 columns between them. gin has three with 64 (sums with the node's own features, then one
  linear map). gat has two, the first with 4 concatenated heads of 32 columns. agnn has four sums of 32 columns with weights by cosines,
  between two linear maps. Weights, features and activations are float32 or bfloat16; in 16 bits both sides have a multiple of 16 classes.
- ``training-{gcn|sage}-fp32-panels-{graph}`` is such an epoch on a graph of reddit's size whose sums take panels, ``Graph(sums="panels")``.
- ``training-{network}-{int8|int4}-{last}-{graph}`` is an epoch of a network changed by ``bst.quantize_``: sums of 8-bit or 4-bit codes,
  products of 8-bit codes, stochastic rounding, and the last layer in float32 or with its sums quantised as well. ``-own`` is the same
  against our own epoch in float32. Gradients of one step differ from the peer's by the rounding; the record says by how much.
- ``training-{network}-int8-kept{8|4}-{graph}-own`` is such an epoch that also keeps what gradients need in 8 or 4 bits
  (``bst.Tango(activations=)``); ``params.kept_bytes`` and ``params.peer_kept_bytes`` are the bytes that a forward pass keeps, without
  parameters and the data.
- ``training-{bigcn|binary}-int8-{graph}-own`` is an epoch of a GCN on signs, ``bst.BinaryGCN`` with 128 columns between its layers, batch
  norm in front of the first signs and 0.4 of all signs dropped, after ``bst.quantize_`` with ``last="quantized"``: products of signs, and
  gradients that are products of 8-bit codes with signs. bigcn sums 8-bit codes over neighbours; binary counts signs in its first layer
  (``aggregation="binary"``), so that only the last layer's sums and those of gradients are of codes. The peer is the same network with
  sums and gradients in float32. No signs are dropped where gradients and losses are compared; where rounding turns the sign of a sum that
  all but vanishes, gradients differ by more than the rounding.
- Graphs are those of suite ``spmm``, without loops: cora, pubmed and artist, whose epochs are captured as one CUDA graph on both sides, and
  the synthetic ones of the sizes of reddit and ogbn-products, whose epochs are launched step by step. Features and labels are the data
  set's if it has them, else random.
- The peer is PyTorch alone with products of cuSPARSE, made as fast as possible without a new kernel (``peers/torch_gnn.py``). Both sides
  multiply by weights first if the sums then have fewer columns. GIN's weights and learning rate are divided by the mean number of
  neighbours.
- Gradients of equal weights and the losses of five epochs are compared before anything is timed: ``params.gradient_difference`` is the
  difference over all weights relative to the size of the gradients, ``params.worst_gradient_difference`` the largest of one weight, and
  ``params.loss_difference`` the largest of the epochs. In bf16, gradients are compared with the peer's in float32 from the same weights;
  ``params.peer_gradient_difference`` says how far its own are from those; records without it compare ours with its own in bf16.
- ``params.replayed`` and ``params.peer_replayed`` say whose epochs are CUDA graphs.
- Times are taken by events, in turns, of at least four epochs in a row; the median of 15 samples counts (fewer if 1.5 seconds do not
  suffice, at least 3).
- ``params.peak_bytes`` and ``params.peer_bytes`` are the most bytes that a side holds in an uncaptured epoch, in PyTorch's memory and in
  CuPy's pool: matrices, weights, moments and activations, without the features, labels and graph that both sides share.
- ``params.without_edges_ms`` is our epoch on a graph without edges: dense products, loss and optimiser, which both sides have. The peer's
  time divided by it is a ratio that no sum over edges could exceed.
- ``floor_ms`` is the time for the bytes that the sums must read and write in both passes. ``estimate_ms`` is the time to fetch a row for
  every edge at the measured rate if rows are hardly used twice (``params.reuse`` below 1.25), else that of the same bytes at the measured
  rate. Neither includes dense products.
- ``training-cpu-gcn-{graph}-{peer}`` is such an epoch of gcn in float32 on the CPU, all sides with ``--threads`` threads and in turns as in
  suite ``host``. Peers are ``pyg``, PyTorch Geometric's layers, which cache their normalised weights, and ``torch``, the peer above with
  products of MKL. ``training-cpu-accelerate-cora`` is an epoch of PyTorch Geometric's layers after ``accelerate`` against the same layers
  before. These cases have no bounds.
- ``jax-{network}-{graph}-{peer}`` is the loss and its gradients by all weights in JAX, without an optimiser: ``bitsparse.jax`` against JAX
  alone, both jitted with their graphs as arguments. gcn is as above; gat has 4 heads of 32 columns and a linear map. Peers are products
  with a ``bcoo`` or ``bcsr`` matrix, or gathers and sums of ``segment``s; on a CPU, JAX turns BCSR into a dense matrix, so it is measured
  on a GPU only. ``jax-cpu-...`` is the same on the CPU, with as many threads as the process may use. ``jax-host-layer`` is the cost of one
  of ten sums in a jitted step, on a graph of 64 nodes without edges to others: the difference to the step without sums.
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
#: Networks, precisions and treatment of the last layer in quantised epochs.
QUANTISED, INTEGERS, LAST = ("gcn", "sage", "gin", "gat"), ("int8", "int4"), ("float32", "sums")
#: Networks on signs: Bi-GCN's, and one with binary aggregation.
ON_SIGNS = ("bigcn", "binary")
#: Networks that keep what gradients need in few bits, and these numbers of bits.
KEEPING, KEPT = ("gcn", "gat"), (8, 4)
#: Networks whose float32 sums are also computed by panels.
SUMMED_BY_PANELS = ("gcn", "sage")
#: Graphs whose epochs are captured; quantised ones always are.
CAPTURED = ("cora", "pubmed", "artist")
#: Graphs of epochs on the CPU, and their peers.
ON_CPU, PEERS = ("pubmed", "artist"), ("pyg", "torch")
#: The ways in which JAX alone sums.
JAX_PEERS = ("segment", "bcoo", "bcsr")


def machine(threads: int, commit: str | None) -> Machine:
    """Describe this machine, with its GPU if it has one."""
    try:
        return gpu_timing.machine(threads, commit)
    except DeviceError:
        return Machine.of_cpu(threads, commit)


def cases(threads: int) -> list[Case]:
    """All cases of the suite, grouped by graph, so that problems are built once."""
    on_gpu = [
        Case(f"training-{network}-{precision}-{name}", partial(epoch, network, precision, name))
        for name in (*CAPTURED, *SYNTHETIC)
        for precision in PRECISIONS
        for network in NETWORKS
    ]
    on_gpu += [
        Case(f"training-{network}-fp32-panels-{name}", partial(epoch, network, "fp32", name, sums="panels"))
        for name in SYNTHETIC
        if name.startswith("reddit")
        for network in SUMMED_BY_PANELS
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
    on_gpu += [
        Case(f"training-{network}-int8-{name}-own", partial(epoch, network, "int8", name, True, "quantized"))
        for name in SYNTHETIC
        for network in ON_SIGNS
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
    network: str,
    precision: str,
    name: str,
    own: bool = False,
    last: str = "float32",
    activations: int | None = None,
    sums: str | None = None,
) -> Prepared:
    """An epoch of ours against one of PyTorch's, or a quantised one against our own in float32."""
    jit.require_cupy("suite training")
    gpu_timing.torch_module()
    # Imported only here, so that cases can be listed without PyTorch.
    training: Any = importlib.import_module("benchmarks.cases.training")
    case, quantised = f"training-{network}-{precision}-{name}", precision in INTEGERS
    how: dict[str, Any] = {"own": own, "last": last, "activations": activations} if quantised else {"sums": sums}
    made: Prepared = training.epoch(case, network, name, precision, captured=name in CAPTURED or quantised, **how)
    return made


def epoch_on_cpu(name: str, peer: str, threads: int) -> Prepared:
    """An epoch of ours on the CPU against one of a peer."""
    gpu_timing.torch_module()
    training: Any = importlib.import_module("benchmarks.cases.training_cpu")
    made: Prepared = training.epoch(f"training-cpu-gcn-{name}-{peer}", name, peer, threads)
    return made


def accelerated(name: str, threads: int, device: str) -> Prepared:
    """An epoch of an accelerated network of PyTorch Geometric against the same network before."""
    gpu_timing.torch_module()
    if device != "cpu":
        jit.require_cupy("suite training")
    training: Any = importlib.import_module("benchmarks.cases.training_cpu")
    case = f"training{'-cpu' * (device == 'cpu')}-accelerate-{name}"
    made: Prepared = training.step(case, name, threads, device)
    return made

"""``bitsparse demo``: a GCN in full precision and on few bits.

``bitsparse demo --json`` prints one object::

    {"graph": name, "device": "cpu" or "cuda", "results": [{"bits", "accuracy", "accuracy_std", "bytes", "ms"}, ...]}

with one result for full precision (``bits`` 32) and one for each setting; ``--adjacency`` adds ``"adjacency"``, the form that was used.
Accuracies are per cent of the test nodes, the mean and the (population) standard deviation over the seeds. ``bytes`` are those of
adjacency, features and weights as stored: CSR and float32 for full precision (features dense if the graph's are), otherwise BitTensors
(and the adjacency in the form that was used) with their scales. ``ms`` is the median time of one inference from these operands to float32
logits, on a GPU until it has finished. Training, calibration and the model in full precision always run on the CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from bitsparse import jit, nn
from bitsparse._progress import progress
from bitsparse.backends import host
from bitsparse.bench import Protocol, time_interleaved
from bitsparse.cli import common
from bitsparse.datasets import GraphData
from bitsparse.graph.operand import FORMS, Form, form_for

_BITS = (8, 4, 2, 1)
_EPOCHS = 200
#: At most fifty calls, one by one, while they fit in half a second.
_TIMING = Protocol(warmup=0, repetitions=50, seconds=0.5, sample_ms=0.0, pause=0.0)
_FORMS = {"csr": "as CSR", "dense": "as dense bits", "frdc": "as FRDC", "tiled": "as TCTiledCSR"}


DESCRIPTION = (
    "Train a two-layer GCN (2 x 16) in full precision, run the same model on low-bit integers, and "
    "compare test accuracy (per cent), bytes of adjacency, features and weights, and milliseconds of one inference."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    common.add_task_options(parser, "low-bit model runs")
    common.add_counts(parser, seeds=(1, "train N times, with seeds 0..N-1, and report mean and deviation"))
    numbers: dict[str, Any] = {"type": common.bit_count, "nargs": "+", "default": list(_BITS), "metavar": "B"}
    parser.add_argument("--bits", **numbers, help="settings beside full precision (default: 8 4 2 1)")
    parser.add_argument(
        "--adjacency",
        choices=FORMS,
        help="the 1-bit adjacency as CSR, dense bits, FRDC or TCTiledCSR (default: FRDC where dense bits are large or slower); "
        "the results are the same",
    )
    common.add_json(parser, " instead of a table")
    common.add_plot(parser, "also draw the adjacency's 8 x 128 tiles (default file: GRAPH-tiles.png)")


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    data = common.load_task(args)
    graph, features = nn.Graph(data.adjacency), nn.Features(data.x)
    form = form_of(args.adjacency, graph.nodes, graph.edges, args.device)
    accuracies: dict[int, list[float]] = {bits: [] for bits in (32, *args.bits)}
    costs: dict[int, tuple[int, float]] = {}  # they do not depend on the seed
    with progress(args.seeds * (_EPOCHS + len(accuracies)), "step") as advance:
        for seed in range(args.seeds):
            options: Any = {"seed": seed, "epochs": _EPOCHS, "progress": advance}
            model = nn.train(graph, features, data.targets, data.train_mask, **options)
            for bits, of_seeds in accuracies.items():
                nbytes, call = _prepared(model, data, graph, features, bits, form, args.device)
                of_seeds.append(common.accuracy(data, call(), data.test_mask))
                if bits not in costs:
                    costs[bits] = nbytes, time_interleaved([call], _TIMING)[0]
                advance()
    if args.plot is not None:
        common.save_spy(args, data.adjacency, data.name)
    results = [
        {
            "bits": bits,
            "accuracy": round(float(np.mean(of_seeds)), 4),
            "accuracy_std": round(float(np.std(of_seeds)), 4),
            "bytes": costs[bits][0],
            "ms": round(costs[bits][1], 4),
        }
        for bits, of_seeds in accuracies.items()
    ]
    asked = {} if args.adjacency is None else {"adjacency": form}
    facts = {"graph": data.name, "device": args.device, "results": results} | asked
    common.emit(args, facts, lambda: _table(data, args.seeds, args.device, form, results))


def form_of(asked: str | None, nodes: int, edges: int, device: str = "cpu") -> Form:
    """The form of the adjacency: what is asked for, else FRDC where dense bits are large or slower.

    Examples
    --------
    >>> form_of(None, 500_000, 10**6), form_of("auto", 100, 900), form_of("csr", 100, 900)
    ('frdc', 'dense', 'csr')
    """
    form = form_for(asked or "auto", nodes, edges, device)
    return "frdc" if form == "csr" != asked else form


def _prepared(
    model: nn.Network, data: GraphData, graph: nn.Graph, features: nn.Features, bits: int, form: Form, device: str
) -> tuple[int, Callable[[], Any]]:
    """The bytes of a model and its operands, and a call that runs it."""
    if bits == 32:
        csr = graph.matrix
        nbytes = csr.data.nbytes + csr.indices.nbytes + csr.indptr.nbytes + features.nbytes + model.nbytes
        return nbytes, lambda: model(graph, features)
    quantized = nn.quantize_network(model, data.adjacency, features, bits)
    operand, x = nn.Graph(data.adjacency, form=form, device=device), quantized.quantize(features).to_device(device)
    plan = quantized.plan(operand, x)
    return operand.nbytes + x.nbytes + quantized.nbytes, plan if device == "cpu" else _finished(plan)


def _finished(run: Callable[[], Any]) -> Callable[[], Any]:
    """``run``, and a wait until the GPU is done."""
    cupy = jit.require_cupy("demo")

    def both() -> Any:
        result = run()
        cupy.cuda.get_current_stream().synchronize()
        return result

    return both


def _table(data: GraphData, seeds: int, device: str, form: str, results: list[dict[str, float]]) -> str:
    full = results[0]
    threads = host.get_num_threads()
    lines = [
        common.headline(data),
        f"two-layer GCN, 16 hidden units, {_count(seeds, 'seed')}, {device}, {_count(threads, 'thread')}",
        "",
        f"{'bits':>4}  {'test accuracy %':>16}  {'MB':>9}  {'of 32 bits':>10}  {'ms':>9}",
    ]
    for row in results:
        accuracy = f"{row['accuracy']:.2f}" + (f" +- {row['accuracy_std']:.2f}" if seeds > 1 else "")
        size = f"{row['bytes'] / 1e6:>9.3f}  {row['bytes'] / full['bytes']:>10.2f}"
        lines.append(f"{row['bits']:>4}  {accuracy:>16}  {size}  {row['ms']:>9.3f}")
    where = "" if device == "cpu" else " on the CPU"
    lines += [
        "",
        f"32: float32{where}, adjacency in CSR. Fewer: features, weights and activations of that many bits, "
        f"1-bit adjacency {_FORMS[form]}.",
    ]
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")

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
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bitsparse import jit
from bitsparse._progress import progress
from bitsparse.backends import host
from bitsparse.cli import common
from bitsparse.nn.lowbit.quantized import ADJACENCIES, chosen_adjacency

if TYPE_CHECKING:
    from bitsparse.datasets import GraphData
    from bitsparse.nn import Features, Graph, Network

__all__ = ["DESCRIPTION", "HELP", "add_options", "run"]

_BITS = (8, 4, 2, 1)
_EPOCHS = 200
_FORMS = {"dense": "as dense bits", "frdc": "as FRDC", "tiled": "as TCTiledCSR"}


HELP = "a GCN in full precision and on 8, 4, 2 and 1 bits"
DESCRIPTION = (
    "Train a two-layer GCN (2 x 16) in full precision, run the same model on low-bit integers, and "
    "compare test accuracy (per cent), bytes of adjacency, features and weights, and milliseconds of one inference."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    common.add_task_options(parser, "low-bit model runs")
    parser.add_argument(
        "--seeds",
        type=common.positive,
        default=1,
        metavar="N",
        help="train N times, with seeds 0..N-1, and report mean and deviation",
    )
    parser.add_argument(
        "--bits",
        type=common.bit_count,
        nargs="+",
        default=list(_BITS),
        metavar="B",
        help="settings beside full precision (default: 8 4 2 1)",
    )
    parser.add_argument(
        "--adjacency",
        choices=ADJACENCIES,
        help="the 1-bit adjacency as dense bits, FRDC or TCTiledCSR (default: FRDC where dense bits are large or slower); "
        "the results are the same",
    )
    common.add_json(parser, " instead of a table")
    parser.add_argument(
        "--plot",
        nargs="?",
        const="",
        metavar="FILE",
        help="also draw the adjacency's 8 x 128 tiles (default file: GRAPH-tiles.png)",
    )


@dataclass
class _Setting:
    """What is measured at one number of bits, over the seeds."""

    bits: int
    accuracies: list[float]
    nbytes: int = 0
    ms: float = 0.0

    def record(self) -> dict[str, float]:
        """One element of ``results``; accuracies in per cent."""
        return {
            "bits": self.bits,
            "accuracy": round(float(np.mean(self.accuracies)), 4),
            "accuracy_std": round(float(np.std(self.accuracies)), 4),
            "bytes": self.nbytes,
            "ms": round(self.ms, 4),
        }


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    from bitsparse import nn

    common.need_gpu(args.device)
    if args.plot is not None:
        common.need("matplotlib", "--plot", "viz")
    data = common.load_task(args)
    graph, features = nn.Graph(data.adjacency), nn.Features(data.x)
    form = chosen_adjacency(args.adjacency or "auto", graph.nodes, graph.edges, args.device)
    settings = [_Setting(bits, []) for bits in (32, *dict.fromkeys(args.bits))]
    with progress(args.seeds * (_EPOCHS + len(settings)), "step") as advance:
        for seed in range(args.seeds):
            model = nn.train(
                graph, features, data.targets, data.train_mask, seed=seed, epochs=_EPOCHS, progress=advance
            )
            for setting in settings:
                _measure(setting, model, graph, features, data, form, args.device, first=seed == 0)
                advance()
    if args.plot is not None:
        common.save_spy(args, data.adjacency, data.name)
    results = [setting.record() for setting in settings]
    asked = {} if args.adjacency is None else {"adjacency": form}
    facts = {"graph": data.name, "device": args.device, "results": results} | asked
    common.emit(args, facts, lambda: _table(data, args.seeds, args.device, form, results))


def _measure(
    setting: _Setting,
    model: Network,
    graph: Graph,
    features: Features,
    data: GraphData,
    adjacency: str,
    device: str,
    *,
    first: bool,
) -> None:
    """Accuracy for one seed; bytes and time once, as they do not depend on it."""
    from bitsparse import nn

    run: Callable[[], Any]
    if setting.bits == 32:
        csr = graph.matrix
        adjacency_bytes = csr.data.nbytes + csr.indices.nbytes + csr.indptr.nbytes
        nbytes, run = adjacency_bytes + features.nbytes + model.nbytes, lambda: model(graph, features)
    else:
        quantized = nn.quantized_gcn(model, graph, features, setting.bits, adjacency=adjacency).to_device(device)
        nbytes, run = quantized.nbytes, quantized if device == "cpu" else _finished(quantized)
    logits = run()
    classes = np.asarray(logits.get() if hasattr(logits, "get") else logits).argmax(axis=1)
    setting.accuracies.append(100.0 * float((classes == data.targets)[data.test_mask].mean()))
    if first:
        setting.nbytes, setting.ms = nbytes, _median_ms(run)


def _finished(run: Callable[[], Any]) -> Callable[[], Any]:
    """``run``, and a wait until the GPU is done."""
    cupy = jit.require_cupy("demo")

    def both() -> Any:
        result = run()
        cupy.cuda.get_current_stream().synchronize()
        return result

    return both


def _median_ms(run: Callable[[], object], least: int = 5, most: int = 50, seconds: float = 0.5) -> float:
    """Median time of at least ``least`` calls, more while they fit in ``seconds``; the caller has warmed up."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < least or (len(times) < most and time.perf_counter() - begin < seconds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000.0 * float(np.median(times))


def _table(data: GraphData, seeds: int, device: str, form: str, results: list[dict[str, float]]) -> str:
    full = results[0]
    threads = host.get_num_threads()
    lines = [
        f"{data!r}".removeprefix("GraphData(").removesuffix(")"),
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

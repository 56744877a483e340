"""``bitsparse run``: runs a low-bit graph network over a whole graph or over batches of its parts.

``bitsparse run --json`` prints one object::

    {"graph", "device", "network", "bits", "nodes", "edges", "mode", "bytes_needed", "bytes_available", "accuracy", "whole_accuracy",
     "full_accuracy", "loss_by_bits", "loss_by_cutting", "seconds", "phases": {...}, "batches": {...} or null}

``mode`` is "whole" or "batches". Accuracies are in per cent of the test nodes, or of all labelled nodes without a split. ``accuracy`` is
that of this run's logits, ``whole_accuracy`` that of the same low-bit network over the whole graph, and ``full_accuracy`` that of full
precision over the whole graph on the CPU. ``loss_by_bits`` and ``loss_by_cutting`` are the differences between them, in points. All five
are null without labels, and those that need the whole graph are null if it does not fit into memory. ``phases`` are seconds, in the
order in which the phases began. They add up to ``seconds``, the time since the command began (on Linux since the process began, which
includes the start of Python). ``batches`` holds the fields of :class:`bitsparse.nn.ClusterReport`.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse import nn, viz
from bitsparse._files import replacing
from bitsparse._progress import progress
from bitsparse._text import size
from bitsparse.cli import common
from bitsparse.cli.memory import need_memory
from bitsparse.cli.run import whole
from bitsparse.cli.run.report import Report, page
from bitsparse.datasets import GraphData
from bitsparse.graph.operand import FORMS
from bitsparse.graph.parts import cached_partition, partition_apart

_KINDS = ("gcn", "sage", "gin")
_HIDDEN = {"gcn": 16, "sage": 64, "gin": 64}
_LAYERS = 3
#: Options that only networks with random weights read.
_RANDOM = ("layers", "hidden")
#: Default number of parts, and of parts in a batch.
_PARTS, _BATCH = 1500, 20


DESCRIPTION = (
    "Run a low-bit network over a graph: over the whole of it where half of the free memory is enough, else cut into parts, of which "
    "batches are packed and computed one after the other; on a GPU copies overlap with the work. Reports what bits and cutting cost "
    "in accuracy, each apart, and the time of each phase."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    common.add_task_options(parser, "network runs", needs="features", default="digits")
    parser.add_argument(
        "--model",
        default="gcn",
        metavar="KIND|FILE",
        help="gcn, sage or gin, or weights as nn.Network.save writes them (default: gcn, trained here if the graph has labels; the others "
        "have random weights). A file's network reads the features as they are, the others rows that are normalised to a sum of 1",
    )
    common.add_counts(
        parser,
        layers=(None, 1000, f"layers of random weights (default: {_LAYERS})"),
        hidden=(None, 1 << 16, "hidden units of them (default: 16 for gcn, else 64)"),
        parts=(
            None,
            common.MOST_ENTRIES,
            f"cut the graph into N parts (METIS) and run in batches (default: the whole graph where it fits, else {_PARTS})",
        ),
        batch=(None, common.MOST_ENTRIES, f"with --parts: parts in a batch (default: {_BATCH})"),
    )
    few: dict[str, Any] = {"type": common.bit_count, "default": 8, "metavar": "B"}
    parser.add_argument("--bits", **few, help="of features, weights and activations (default: 8)")
    parser.add_argument("--between", action="store_true", help="with --parts: keep the edges between parts of a batch")
    parser.add_argument("--form", choices=FORMS, default="auto", help="of the adjacency (default: auto)")
    parser.add_argument(
        "--seed", type=common.seed, default=0, metavar="N", help="of parts, training and weights (default: 0)"
    )
    parser.add_argument(
        "--out",
        type=common.new_file,
        metavar="FILE",
        help="write the logits, in node order, as .npy; the file appears when it is whole",
    )
    parser.add_argument(
        "--resume", action="store_true", help="with --parts and --out: go on where an interrupted run ended"
    )
    parser.add_argument("--no-cache", action="store_true", help="with --parts: do not keep the parts on disk")
    common.add_json(parser, " instead of text")
    parser.add_argument("--report", type=common.new_file, metavar="FILE", help="also write the report as .html or .png")


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    _refuse(args)
    watch = common.Announced(args)
    try:
        report = _report(args, watch)
        if args.report:
            watch.begin("drawing")
            _save(args, report, watch)
    finally:
        watch.end()
    report.phases = watch.phases()
    common.emit(args, report.record(), lambda: str(report))


def _refuse(args: argparse.Namespace) -> None:
    """Refuse impossible combinations of options before any work begins."""
    if args.report and Path(args.report).suffix not in (".html", ".png"):
        raise ValueError(f"--report {args.report} must end in .html or .png")
    if args.report and args.report.endswith(".png"):
        common.need("matplotlib", "--report", "viz")
    if args.resume and not args.out:
        raise ValueError("--resume goes with --out; name the file of the logits")
    if args.parts is None:
        batches = f"goes with --parts, which asks for batches; add --parts {_PARTS}, for example"
        common.refuse(args, ("resume", "between", "batch", "no_cache"), batches)
    common.need_gpu(args.device)


def _report(args: argparse.Namespace, watch: common.Announced) -> Report:
    """Do the run and return its report, still without the times of the phases."""
    watch.begin("reading")
    data = _load(args)
    # A network from a file takes the features as they are; the built-in kinds take rows that are normalised to a sum of 1.
    x = nn.Features(data.x).normalized if args.model in _KINDS else data.x
    network = _network(args, data, x, watch)
    watch.begin("quantising")
    model = nn.quantize_network(network, data.adjacency, x, args.bits, seed=args.seed)
    size_of_graph = data.num_nodes, data.num_edges
    memory = whole.Memory(whole.low_bit_bytes(*size_of_graph, model), whole.available(args.device))
    report = Report(data.name, args.device, model.name, args.bits, *size_of_graph, memory)
    if args.parts is None and memory.fits:
        watch.begin("computing")
        logits = whole.logits(model, data, x, args.form, args.device)
        if args.out:
            watch.begin("results")
            with replacing(args.out) as file:
                np.save(file, logits)
        report.accuracy = report.whole = _accuracy(data, logits)
    else:
        if args.parts is None:
            common.say(
                args, f"a whole graph may take {size(memory.needed)}, more than half of the memory; running in batches"
            )
        logits, report.batches = _in_batches(args, data, model, x, watch)
        report.accuracy = _accuracy(data, logits)
    if report.accuracy is not None:
        _compare(args, data, network, model, x, report, watch)
    return report


def _in_batches(
    args: argparse.Namespace, data: GraphData, model: nn.LowBitNetwork, x: Any, watch: common.Announced
) -> tuple[Any, nn.ClusterReport]:
    watch.begin("partitioning")
    parts = min(args.parts or _PARTS, max(data.num_nodes, 1))
    how: Any = {"seed": args.seed, "cache": not args.no_cache, "cut": partition_apart}
    labels, _ = cached_partition(data.adjacency, parts, **how)
    options = {key: getattr(args, key) for key in ("between", "form", "device")} | {"labels": labels, "watch": watch}
    watch.begin("packing")
    runner = nn.ClusterRunner(
        data.adjacency, model, parts_per_batch=args.batch or _BATCH, progress=lambda done, groups: advance(), **options
    )
    groups = len(runner.packets.groups)
    watch.begin("computing")
    with progress(groups, "group") as advance:
        logits = runner.run(x, args.out, resume=args.resume, timed=True)
    watch.begin("comparing")
    runner.report.tiles, runner.report.tiles_used = runner.tiles()
    return logits, runner.report


def _compare(
    args: argparse.Namespace,
    data: GraphData,
    network: nn.Network,
    model: nn.LowBitNetwork,
    x: Any,
    report: Report,
    watch: common.Announced,
) -> None:
    """Add the accuracies over the whole graph, in few bits and in full precision, as far as memory suffices."""
    watch.begin("comparing")
    if report.batches is not None:
        places = [args.device, *({"cpu"} - {args.device})]
        for place in places:  # the logits are the same on every device
            if whole.Memory(report.memory.needed, whole.available(place)).fits:
                report.whole = _accuracy(data, whole.logits(model, data, x, "auto", place))
                break
        else:
            common.say(args, "no memory to run the whole graph on bits as well; what the cutting costs stays unknown")
    needed = whole.float_bytes(data.num_nodes, data.num_edges, network)
    if whole.Memory(needed, whole.available("cpu")).fits:
        report.full = _accuracy(data, network(data.adjacency, x))
    else:
        common.say(
            args, f"full precision may take {size(needed)}, more than half of the memory; what bits cost stays unknown"
        )


def _save(args: argparse.Namespace, report: Report, watch: common.Announced) -> None:
    """Write the page or the picture, with the phases so far."""
    report.phases = {name: ns for name, ns in watch.phases().items() if ns}  # without the phase that has just begun
    if args.report.endswith(".png"):
        common.save_figure(args, viz.stages(report, name=report.graph), args.report)
    else:
        Path(args.report).write_text(page(report), encoding="utf-8")
        common.say(args, f"wrote {args.report}")


def _load(args: argparse.Namespace) -> GraphData:
    data = common.load_graph(args)
    if data.weights is not None:
        common.say(args, f"the edge weights of {data.name} are left out; networks on bits take each edge as one")
    common.need_part(data, common.FEATURES, data.x, "the network reads")
    if data.labels is not None and data.train_mask is None and data.num_classes > 1:
        data = data.with_split()
    return data


def _network(args: argparse.Namespace, data: GraphData, x: Any, watch: common.Announced) -> nn.Network:
    """The network, with weights that are read from a file, trained here, or random."""
    if args.model not in _KINDS:
        if not Path(args.model).is_file():
            raise ValueError(f"--model {args.model!r} is neither {', '.join(_KINDS)} nor a file; pass one of them")
        common.refuse(args, _RANDOM, f"goes with random weights, but --model {args.model} has its own; leave it out")
        return nn.load_network(args.model)
    classes = max(data.num_classes, 2) if data.labels is not None else 2
    if args.model == "gcn" and data.train_mask is not None:
        trained = (
            f"goes with random weights, but a gcn is trained on the labels of {data.name}; pass --model sage or gin"
        )
        common.refuse(args, _RANDOM, trained)
        watch.begin("training")
        return nn.train(nn.Graph(data.adjacency), nn.Features(data.x), data.targets, data.train_mask, seed=args.seed)
    common.say(args, f"the weights of the {args.model} are random (seed {args.seed})")
    hidden = args.hidden or _HIDDEN[args.model]
    layers = args.layers or _LAYERS
    widths = [x.shape[1], *[hidden] * (layers - 1), classes]
    weights = sum(before * after for before, after in pairwise(widths))
    need_memory(f"--layers {layers} --hidden {hidden}", 4 * weights)
    return nn.random_network(args.model, widths, seed=args.seed)


def _accuracy(data: GraphData, logits: Any) -> float | None:
    """The accuracy in per cent of the test nodes, or of all labelled nodes without a split; None if there are none."""
    mask = data.targets >= 0 if data.test_mask is None else data.test_mask
    return round(common.accuracy(data, logits, mask), 4) if mask.any() else None

"""``bitsparse run``: a low-bit graph network over a graph in batches of parts.

``bitsparse run --json`` prints one object: ``graph``, ``accuracy`` and ``full_accuracy`` (per cent of the test nodes, or of all
labelled ones without a split; null without labels), ``bits``, and all fields of :class:`bitsparse.nn.ClusterReport`. ``full_accuracy``
is that of the network in full precision over the whole graph, on the CPU.
"""

from __future__ import annotations

import argparse
import html
from pathlib import Path
from typing import Any

from bitsparse import nn, viz
from bitsparse._progress import progress
from bitsparse.cli import common
from bitsparse.datasets import GraphData
from bitsparse.graph.operand import FORMS

_KINDS = ("gcn", "sage", "gin")
_HIDDEN = {"gcn": 16, "sage": 64, "gin": 64}


DESCRIPTION = (
    "Cut a graph into parts, pack batches of them, and run a low-bit network over one batch after the other; on a GPU "
    "copies overlap with the work. Reports bytes moved, time of each stage, empty tiles and accuracy."
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
        layers=(3, "layers of random weights (default: 3)"),
        hidden=(None, "hidden units of them (default: 16 for gcn, else 64)"),
        parts=(1500, "parts of METIS (default: 1500, or as many as nodes)"),
        batch=(20, "parts in a batch (default: 20)"),
    )
    few: dict[str, Any] = {"type": common.bit_count, "default": 8, "metavar": "B"}
    parser.add_argument("--bits", **few, help="of features, weights and activations (default: 8)")
    parser.add_argument("--between", action="store_true", help="keep the edges between parts of a batch")
    parser.add_argument("--form", choices=FORMS, default="auto", help="of a batch's adjacency (default: auto)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of parts, training and weights (default: 0)")
    parser.add_argument(
        "--out", metavar="FILE", help="write the logits, in node order, as .npy; the file appears when it is whole"
    )
    parser.add_argument("--resume", action="store_true", help="with --out: go on where an interrupted run ended")
    parser.add_argument("--no-cache", action="store_true", help="do not keep the parts on disk")
    common.add_json(parser, " instead of text")
    parser.add_argument("--report", metavar="FILE", help="also write the report as .html or .png")


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    if args.report and Path(args.report).suffix not in (".html", ".png"):
        raise ValueError(f"--report {args.report} must end in .html or .png")
    if args.report and args.report.endswith(".png"):
        common.need("matplotlib", "--report", "viz")
    if args.resume and not args.out:
        raise ValueError("--resume goes with --out; name the file of the logits")
    common.need_gpu(args.device)
    data = _load(args)
    # What a network of the user's was trained on stands in his file; ours are trained on rows of equal sums.
    x = nn.Features(data.x).normalized if args.model in _KINDS else data.x
    network = _network(args, data, x)
    model = nn.quantize_network(network, data.adjacency, x, args.bits, seed=args.seed)
    options = {key: getattr(args, key) for key in ("parts", "between", "seed", "form", "device")}
    options |= {"parts_per_batch": args.batch, "cache": not args.no_cache}
    runner = nn.ClusterRunner(data.adjacency, model, progress=lambda done, groups: advance(), **options)
    with progress(len(runner.packets.groups), "group") as advance:
        logits = runner.run(x, args.out, resume=args.resume, timed=True)
    report = runner.report
    report.tiles, report.tiles_used = runner.tiles()
    found, full = _accuracy(data, logits), _accuracy(data, network(data.adjacency, x))
    record = {"graph": data.name, "bits": args.bits, "accuracy": found, "full_accuracy": full, **report.record()}
    if args.report and args.report.endswith(".png"):
        common.save_figure(args, viz.stages(report), Path(args.report))
    elif args.report:
        Path(args.report).write_text(page(record, report), encoding="utf-8")
        common.say(args, f"wrote {args.report}")
    text = str(report)
    if found is not None:
        text += f"\naccuracy {found:.2f} %, in full precision over the whole graph {full:.2f} %"
    common.emit(args, record, lambda: text)


def _load(args: argparse.Namespace) -> GraphData:
    data = common.load_graph(args)
    if data.weights is not None:
        common.say(args, f"the edge weights of {data.name} are left out; networks on bits take each edge as one")
    common.need_part(data, common.FEATURES, data.x, "the network reads")
    if data.labels is not None and data.train_mask is None and data.num_classes > 1:
        data = data.with_split()
    return data


def _network(args: argparse.Namespace, data: GraphData, x: Any) -> nn.Network:
    """Weights from a file, trained here, or random."""
    if args.model not in _KINDS:
        if not Path(args.model).is_file():
            raise ValueError(f"--model {args.model!r} is neither {', '.join(_KINDS)} nor a file; pass one of them")
        return nn.load_network(args.model)
    classes = max(data.num_classes, 2) if data.labels is not None else 2
    if args.model == "gcn" and data.train_mask is not None:
        return nn.train(nn.Graph(data.adjacency), nn.Features(data.x), data.targets, data.train_mask, seed=args.seed)
    common.say(args, f"the weights of the {args.model} are random (seed {args.seed})")
    hidden = [args.hidden or _HIDDEN[args.model]] * (args.layers - 1)
    return nn.random_network(args.model, [x.shape[1], *hidden, classes], seed=args.seed)


def _accuracy(data: GraphData, logits: Any) -> float | None:
    """Per cent of the test nodes, or of all labelled ones without a split."""
    mask = data.targets >= 0 if data.test_mask is None else data.test_mask
    return round(common.accuracy(data, logits, mask), 4) if mask.any() else None


def page(record: dict[str, Any], report: nn.ClusterReport) -> str:
    """The report as one HTML page that needs nothing else.

    Examples
    --------
    >>> from bitsparse import nn
    >>> "<h1>a &lt; b</h1>" in page({"graph": "a < b"}, nn.ClusterReport("cpu", "gcn"))
    True
    """
    stages = report.stages()
    longest = max((seconds for _, seconds in stages), default=0.0) or 1.0
    row = "<tr><th>{}</th><td>{}</td></tr>"
    bar = "<div style='width:{:.1f}%'></div></td><td>{:.3f} ms"
    bars = "".join(row.format(html.escape(name), bar.format(100 * s / longest, 1000 * s)) for name, s in stages)
    rows = "".join(row.format(html.escape(key), html.escape(str(value))) for key, value in record.items())
    style = "body{font:15px sans-serif;max-width:50em;margin:2em auto}th{text-align:left;padding-right:1em}"
    style += "div{background:#36c;height:1em}table.bars td:nth-child(2){width:60%}"
    return (
        f"<!doctype html><meta charset='utf-8'><title>bitsparse run</title><style>{style}</style>"
        f"<h1>{html.escape(str(record.get('graph', '')))}</h1><pre>{html.escape(str(report))}</pre>"
        f"<h2>Time of each stage</h2><table class='bars'>{bars}</table><h2>All figures</h2><table>{rows}</table>\n"
    )

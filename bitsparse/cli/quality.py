"""``bitsparse quality``: what sampled edges and features of few bits cost a trained network, and what they save.

``bitsparse quality --json`` prints one object::

    {"graph", "seeds", "hidden", "rescale", "results": [{"model", "device", "cells": [...], "rates": [...], "errors": {...},
     "chosen_bits", "least_width"}, ...]}

with one result for each model; see :class:`bitsparse.nn.Quality`. A cell is ``{"strategy", "width", "bits", "accuracy",
"accuracy_std", "loss", "ms", "speedup", "gathered"}``. Accuracies are in per cent of the test nodes (mean and population deviation over the
seeds), and ``loss`` is in points below full precision over all edges. ``ms`` is the time of the aggregations of both layers, ``speedup``
the time over all edges in float32 divided by it, and ``gathered`` the bytes of features that the aggregations read. The first cell is full
precision over all edges. A rate is ``{"strategy", "width", "kept", "distinct", "cdf"}``. Training runs on the CPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bitsparse import nn, viz
from bitsparse._progress import progress
from bitsparse.bench import format_table
from bitsparse.cli import common
from bitsparse.datasets import GraphData
from bitsparse.nn.sampled.quality import BITS, WIDTHS
from bitsparse.ops.sampling.sample import STRATEGIES

_MODELS = ("gcn", "sage")
_EPOCHS = 200


DESCRIPTION = (
    "Train a two-layer GCN and GraphSAGE, run them over edges sampled to several widths and on features of few bits, and "
    "compare test accuracy (per cent), the share of the edges that is kept, and milliseconds of the aggregations."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    common.add_task_options(parser, "sampled networks run")
    parser.add_argument("--model", nargs="+", choices=_MODELS, default=list(_MODELS), help="networks (default: both)")
    numbers: dict[str, Any] = {"type": common.positive, "nargs": "+", "default": list(WIDTHS), "metavar": "W"}
    parser.add_argument("--widths", **numbers, help="edges per node (default: 16 to 1024)")
    parser.add_argument(
        "--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES), help="ways to sample (default: all)"
    )
    parser.add_argument(
        "--bits", nargs="+", type=int, choices=(*BITS, 1), default=list(BITS), help="of features (default: 32 8 4 2)"
    )
    parser.add_argument("--rescale", action="store_true", help="multiply sums by the edges of a node over its samples")
    common.add_counts(
        parser,
        seeds=(1, 10_000, "train N times, with seeds 0..N-1"),
        hidden=(16, 1 << 16, "hidden units (default: 16)"),
        epochs=(_EPOCHS, common.MOST, f"default: {_EPOCHS}"),
    )
    common.add_json(parser, " instead of tables")
    common.add_plot(
        parser,
        "also draw accuracy, rates and speed (default: GRAPH-MODEL-quality.png; of two models each has its own file)",
    )


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    data = common.load_task(args)
    models = list(dict.fromkeys(args.model))
    results = []
    settings = (1 + len(set(args.widths)) * len(set(args.strategies))) * len({32, *args.bits})
    with progress(len(models) * (args.seeds * args.epochs + settings), "step") as advance:
        for kind in models:
            results.append(_measured(kind, data, args, advance))
            if args.plot is not None:
                _plot(args, results[-1], data.name, kind, only=len(models) == 1)
    asked = {"graph": data.name, "seeds": args.seeds, "hidden": args.hidden, "rescale": args.rescale}
    tables = "\n\n".join(_table(found, args) for found in results)
    about = f"{data!r}".removeprefix("GraphData(").removesuffix(")")
    facts = asked | {"results": [found.record() for found in results]}
    common.emit(args, facts, lambda: f"{about}\n{tables}")


def _measured(kind: str, data: GraphData, args: argparse.Namespace, advance: Any) -> nn.Quality:
    features = nn.Features(data.x)
    graph = nn.Graph(data.adjacency, "gcn" if kind == "gcn" else "mean")
    options: Any = {"hidden": args.hidden, "epochs": args.epochs, "progress": advance}
    models = [
        nn.train(graph, features, data.targets, data.train_mask, seed=seed, **options) for seed in range(args.seeds)
    ]
    asked = {key: getattr(args, key) for key in ("widths", "strategies", "bits", "rescale", "device")}
    return nn.sampling_quality(models, graph, features, data.targets, data.test_mask, **asked, progress=advance)


def _table(found: nn.Quality, args: argparse.Namespace) -> str:
    kept = {(rate.strategy, rate.width): f"{100 * rate.kept:.1f}" for rate in found.rates}
    rows = []
    for one in found.cells:
        accuracy = f"{one.accuracy:.2f}" + (f" +- {one.accuracy_std:.2f}" if args.seeds > 1 else "")
        times = ["-" if one.ms is None else f"{one.ms:.4f}", "-" if one.speedup is None else f"{one.speedup:.2f}x"]
        name, width = one.strategy or "all edges", "-" if one.width is None else str(one.width)
        share = kept.get((name, one.width or 0), "100.0")
        rows.append([name, width, str(one.bits), share, accuracy, f"{0.0 - round(one.loss, 2):+.2f}", *times])
    headings = ("edges", "W", "bits", "kept %", "accuracy %", "points", "ms", "speed")
    lines = [f"\n{found.model}, {args.hidden} hidden units, {found.device}", "", format_table(headings, rows), ""]
    errors = ", ".join(f"{bits}: {error:.3f}" for bits, error in found.errors.items())
    lines.append(f"quantisation error of the first layer's aggregate by bits: {errors}")
    chosen = "more than 8" if found.chosen_bits is None else str(found.chosen_bits)
    lines.append(f"choose_bits: {chosen} (error at most 0.3)")
    for strategy in args.strategies:
        least = found.least_width(strategy)
        where = "at no width measured" if least is None else f"from W = {least} on"
        lines.append(f"{strategy} costs less than 1 point {where}{', rescaled' if args.rescale else ''}")
    return "\n".join(lines)


def _plot(args: argparse.Namespace, found: nn.Quality, name: str, kind: str, *, only: bool) -> None:
    file = Path(args.plot or f"{name}-{kind}-quality.png")
    if args.plot and not only:
        file = file.with_name(f"{file.stem}-{kind}{file.suffix}")
    common.save_figure(args, viz.quality(found, name=name)[0], file)

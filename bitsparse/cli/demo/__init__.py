"""``bitsparse demo``: what few bits cost in accuracy on a small real graph, and what they save on a large one.

``bitsparse demo --json`` prints one object::

    {"device": "cpu" or "cuda", "threads": ours,
     "accuracy": {"graph", "nodes", "edges", "seeds", "results": [{"bits", "accuracy", "accuracy_std"}, ...]},
     "large": {"nodes", "edges", "widths", "results": [{"name", "bits", "threads", "ms", "speed",
               "bytes": {"graph", "features", "weights", "activations"}, "agreement"}, ...]}}

``--only`` leaves out one of the last two. The first result of each is float32, with ``bits`` 32.

``accuracy`` is that of a GCN with two layers and 16 hidden units, trained in float32 and quantised without labels. It is in per cent of the
test nodes: the mean and the (population) standard deviation over the seeds.

``large`` compares a GCN 128 -> 64 -> 16 over a synthetic graph (:func:`bitsparse.datasets.synthetic`, with edges counted in both
directions). All sides have the same weights. ``name`` says whose code runs: SciPy (CuPy on a GPU), PyTorch Geometric if it is installed,
and bitsparse in float32 and in few bits. ``ms`` is the median time of one inference until it has finished; the sides take turns. The graph
is normalised beforehand, and the features already have the form that the side keeps (float32 or codes). ``speed`` is the ``ms`` of the
first side over that of this side. ``threads`` is the number of threads that sum over neighbours, null on a GPU. ``bytes`` are counted: the
arrays of the graph with its factors, the features, the weights, and the intermediate arrays, logits included, that are alive at the same
time. ``agreement`` is the share of the nodes, in per cent, that get the same class as from the first side. Training and calibration use
8000 of the nodes and run on the CPU.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from bitsparse.backends import host
from bitsparse.cli import common
from bitsparse.cli.demo import large, report, small

_PARTS = ("accuracy", "large")
#: The options that only one of the parts reads.
_OPTIONS = {"accuracy": ("graph", "generate", "seeds"), "large": ("large", "adjacency")}
_SIZE = (400_000, 10_000_000)

DESCRIPTION = (
    "Train a GCN in float32 and run it on 8, 4, 2 and 1 bits: test accuracy on a small graph. Then time a GCN over a large synthetic "
    "graph in SciPy's, PyTorch Geometric's (where installed) and this library's float32 and on few bits, and count the bytes held."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    common.add_task_options(parser, "networks run")
    common.add_counts(
        parser,
        seeds=(None, 10_000, "train N times, with seeds 0..N-1; mean and deviation of the accuracy (default: 1)"),
    )
    bits: dict[str, Any] = {"type": common.bit_count, "nargs": "+", "metavar": "B"}
    parser.add_argument("--bits", **bits, help="settings beside float32 (default: 8 4 2 1, over the large graph 8 4 1)")
    parser.add_argument(
        "--large",
        type=size,
        metavar="N,E",
        help="nodes and edges, in both directions, of the large graph (default: {},{})".format(*_SIZE),
    )
    parser.add_argument("--only", choices=_PARTS, help="one of the two parts (default: both)")
    parser.add_argument(
        "--adjacency",
        choices=large.FORMS,
        help="the large graph's pattern for sums of codes: CSR, FRDC or TCTiledCSR; the results are the same (default: csr)",
    )
    common.add_json(parser, " instead of tables")
    common.add_plot(parser, "also draw both parts (default file: demo.png)", "--save")


def size(text: str) -> tuple[int, int]:
    """Parse ``NODES,EDGES`` from the command line.

    Examples
    --------
    >>> size("1000,8000")
    (1000, 8000)
    """
    nodes, comma, edges = text.partition(",")
    if not comma:
        raise argparse.ArgumentTypeError(f"must be nodes and edges with a comma between them, got {text!r}")
    return common.positive(nodes, common.MOST_ENTRIES), common.positive(edges, common.MOST_ENTRIES)


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    facts: dict[str, Any] = {"device": args.device, "threads": host.get_num_threads()}
    if args.only is not None:
        other = "accuracy" if args.only == "large" else "large"
        common.refuse(
            args, _OPTIONS[other], f"belongs to the part {other}, which --only {args.only} leaves out; drop one"
        )
    args.seeds, args.large = args.seeds or 1, args.large or _SIZE
    common.need_device_and_plot(args)
    for part in _PARTS if args.only is None else (args.only,):
        found = _found(args, part)
        if found is None:
            continue
        facts[part] = found
        if not args.json:  # printed at once, because the next part takes most of a minute
            print(("\n" if len(facts) > 3 else "") + report.table(facts, part), flush=True)
    if args.json:
        print(json.dumps(facts))
    if args.plot is not None:
        common.save_figure(args, report.picture(facts), args.plot or "demo.png")


def _found(args: argparse.Namespace, part: str) -> dict[str, Any] | None:
    """The results of a part; None for ``accuracy`` if the default graph cannot be loaded and the other part still runs."""
    if part == "large":
        return large.measured(args)
    try:
        return small.measured(args)
    except ImportError as error:
        if args.graph is not None or args.only is not None:
            raise
        common.say(args, f"{error}; accuracies are left out, unless --graph names a graph")
        return None

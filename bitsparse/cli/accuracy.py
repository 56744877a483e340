"""``bitsparse accuracy``: the accuracy tables of papers on training in few bits, for graphs from files, compared by paired seeds.

``bitsparse accuracy --table tango --graphs cora.npz --json`` prints one object: ``{"table", "epochs", "dropout", "runs": [...]}``.
Accuracies are in per cent of the test nodes. The fields of a run depend on the table:

- ``tango``, ``qgtc`` and ``links``: ``{"graph", "network", "precision", "seed", "accuracy", "last", "validated"}``. In ``qgtc``,
  ``2-bit-calibrated`` is a network that is quantised after training in float32, and ``2-bit`` one that is then trained further with its
  roundings. In ``links`` the accuracy is 100 times the area under the ROC curve of held-out edges against as many pairs without an edge.
  Runs of ``tango`` also have a ``curve``: the test accuracy every five epochs. The precisions int8, int8-all and int8-nearest give the
  curves of TANGO's Figure 7.
- ``bitgnn``: ``{"graph", "network", "aggregation", "seed", "accuracy"}``.
- ``aes``: ``{"graph", "network", "seed", "strategy", "width", "bits", "accuracy", "lost"}`` of a network that is trained in full precision
  and run over sampled edges, or over all edges if the strategy is null.

``--records FILE`` writes each run to the file as soon as it is done, one JSON object a line. Runs that the file already holds are not
repeated.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from bitsparse import datasets, nn
from bitsparse.bench import format_table
from bitsparse.cli import common
from bitsparse.ops.sampling.sample import STRATEGIES

DESCRIPTION = (
    "Train networks in float32 and in few bits from the same weights, with the same dropout, and compare test accuracies: "
    "mean and standard error over seeds, and of the paired differences. Needs PyTorch."
)
_TABLES = ("tango", "qgtc", "bitgnn", "aes", "links")
#: Sampled edges per node in AES-SpMM's Figures 5 and 6.
_WIDTHS = (16, 32, 64, 128)
#: Options that have no effect on a table.
_NOT_OF = {"aes": ("precisions",), "bitgnn": ("networks", "precisions", "dropout")}
#: Tables whose networks train on the CPU only.
_ON_CPU = ("qgtc", "aes")
_DROPOUT = 0.5
#: Default precisions of ``qgtc``, whose networks train with their roundings.
_AWARE = ("4-bit", "2-bit")
#: Published accuracies: with full aggregation from the paper of Bi-GCN, with binary aggregation from that of BitGNN.
_PUBLISHED = {
    "cora": {"full": "81.2 +- 0.8", "binary": "81.2 +- 1.0"},
    "citeseer": {"full": "68.8 +- 0.9", "binary": "68.7 +- 0.4"},
    "pubmed": {"full": "78.2 +- 1.0", "binary": "78.1 +- 1.1"},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--table",
        choices=_TABLES,
        required=True,
        help="whose accuracies: TANGO's, QGTC's, BitGNN's or AES-SpMM's; links: link prediction, TANGO's other task",
    )
    parser.add_argument(
        "--graphs",
        type=common.any_file,
        nargs="+",
        metavar="FILE",
        required=True,
        help="graphs with features and labels",
    )
    parser.add_argument(
        "--networks",
        nargs="+",
        metavar="NAME",
        help="of gcn sage gat (default: all; qgtc: gcn)",
    )
    parser.add_argument(
        "--precisions",
        nargs="+",
        metavar="NAME",
        help="beside float32; tango: int8 int4 by default, also int8-sums int4-sums int8-nearest int8-all; "
        "qgtc: 4-bit 2-bit by default, also 8-bit 3-bit 1-bit",
    )
    common.add_counts(
        parser,
        seeds=(1, 10_000, "seeds 0..N-1 (30 resolve differences below a point)"),
        epochs=(None, common.MOST, "default: 200; 1000 for bitgnn"),
    )
    parser.add_argument("--first-seed", type=common.seed, default=0, metavar="K", help="seeds K..K+N-1 (default: 0)")
    parser.add_argument("--dropout", type=float, help="of the features (default: 0.5; not of bitgnn)")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where networks of tango, links and bitgnn train (default: cpu)",
    )
    parser.add_argument(
        "--records", type=common.new_file, metavar="FILE", help="write runs there, and go on from those that it holds"
    )
    common.add_json(parser, " instead of a table")


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    _refuse(args)
    training: Any = importlib.import_module("bitsparse.torch.accuracy")
    epochs = args.epochs or (1000 if args.table == "bitgnn" else 200)
    asked = {"table": args.table, "epochs": epochs, "dropout": args.dropout}
    made: Any = {"tango": _tango, "qgtc": _qgtc, "bitgnn": _bitgnn, "aes": _aes, "links": _links}[args.table]
    records = _Records(args.records, asked)
    runs = [one for key, work in made(args, epochs, training) for one in records.of(key, work)]
    common.emit(
        args,
        asked | {"runs": runs},
        lambda: {"bitgnn": _bitgnn_table, "aes": _aes_table}.get(args.table, _tango_table)(runs, training),
    )


def _refuse(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect and values that have no meaning, then fill in the defaults."""
    common.refuse(args, _NOT_OF.get(args.table, ()), f"has no effect on --table {args.table}; leave it out")
    if args.dropout is not None and not 0 <= args.dropout < 1:
        raise ValueError(f"--dropout must be at least 0 and below 1, got {args.dropout}")
    args.dropout = _DROPOUT if args.dropout is None else args.dropout
    if args.device == "cuda" and args.table in _ON_CPU:
        raise ValueError(f"--table {args.table} trains on the CPU; leave --device cuda out")
    common.need_gpu(args.device)


class _Records:
    """The runs of the ``--records`` file, to which new ones are appended."""

    def __init__(self, name: str | None, asked: dict[str, Any]) -> None:
        self._path, self._asked = None if name is None else Path(name), asked
        text = ""
        if self._path is not None:
            with self._path.open(
                "a+", encoding="utf-8"
            ) as file:  # fails before the work begins if the file is not writable
                file.seek(0)
                text = file.read()
        self._found = [json.loads(line) for line in text.splitlines() if line]

    def of(self, key: dict[str, Any], run: Callable[[], Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The results of a run: from the file if it holds them, else by running `run` and writing them to the file."""
        wanted = self._asked | key
        found = _having(self._found, **wanted)
        if not found:
            found = [key | one for one in run()]
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(self._asked | one) + "\n" for one in found)
        return found


def _having(runs: list[dict[str, Any]], **facts: Any) -> list[dict[str, Any]]:
    """The runs whose fields have all of these values."""
    return [one for one in runs if all(one.get(name) == value for name, value in facts.items())]


def _seeds(args: argparse.Namespace) -> range:
    return range(args.first_seed, args.first_seed + args.seeds)


#: Pairs of the fields that identify a run and the function that computes it.
_Runs = Iterator[tuple[dict[str, Any], Callable[[], list[dict[str, Any]]]]]


def _graphs(args: argparse.Namespace) -> Iterator[Any]:
    for file in args.graphs:
        data = datasets.read(file)
        if data.x is None or data.labels is None:
            raise ValueError(f"{file} has no features or no labels; pass a graph with both")
        yield data


def _links(args: argparse.Namespace, epochs: int, training: Any) -> _Runs:
    links: Any = importlib.import_module("bitsparse.torch.link_accuracy")
    return _tango(args, epochs, training, links.trained_links)


def _tango(args: argparse.Namespace, epochs: int, training: Any, trained: Any = None) -> _Runs:
    networks = _known(args.networks or list(training.NETWORKS), training.NETWORKS)
    precisions = _known(["float32", *(args.precisions or ["int8", "int4"])], training.PRECISIONS)
    for data in _graphs(args):
        task = training.task_of(data, args.device)
        for seed, network, precision in product(_seeds(args), networks, dict.fromkeys(precisions)):
            key = {"graph": data.name, "network": network, "precision": precision, "seed": seed}
            how = network, precision, seed, epochs, (args.dropout, 0.5)
            yield key, partial(_facts, partial(trained or training.trained, task, *how))


def _qgtc(args: argparse.Namespace, epochs: int, training: Any) -> _Runs:
    networks = _known(args.networks or ["gcn"], ["gcn", "sage"])
    precisions = _known(args.precisions or _AWARE, training.AWARE)
    bits = [training.AWARE[one] for one in dict.fromkeys(precisions)]
    for data in _graphs(args):
        task = training.task_of(data)
        for seed, network in product(_seeds(args), networks):
            key = {"graph": data.name, "network": network, "seed": seed, "bits": bits}
            run = partial(training.aware, task, data, network, bits, seed, epochs, (args.dropout, 0.5))
            yield key, partial(_by_precision, run)


def _by_precision(run: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"precision": precision} | _fact(result) for precision, result in run().items()]


def _facts(run: Callable[[], Any]) -> list[dict[str, Any]]:
    return [_fact(run())]


def _fact(result: Any) -> dict[str, Any]:
    facts = {"accuracy": result.best, "last": result.last, "validated": result.validated}
    return facts | ({"curve": list(result.curve)} if result.curve else {})


def _known(asked: Sequence[str], known: Iterable[str]) -> Sequence[str]:
    """The names asked for; an unknown one is refused."""
    for each in asked:
        if each not in known:
            raise ValueError(f"{each!r} is none of {', '.join(known)}")
    return asked


def _bitgnn(args: argparse.Namespace, epochs: int, training: Any) -> _Runs:
    for data in _graphs(args):
        task = training.task_of(data, args.device, normalised=False)
        for seed in _seeds(args):
            key = {"graph": data.name, "network": "bi-gcn", "seed": seed}
            yield key, partial(_by_aggregation, partial(training.binary, task, data, seed, epochs))


def _by_aggregation(run: Callable[[], dict[str, float]]) -> list[dict[str, Any]]:
    return [{"aggregation": way, "accuracy": accuracy} for way, accuracy in run().items()]


def _aes(args: argparse.Namespace, epochs: int, training: Any) -> _Runs:
    networks = _known(args.networks or ["gcn", "sage"], ["gcn", "sage"])
    for data in _graphs(args):
        features, task = nn.Features(data.x), training.task_of(data)
        train, test = (part.numpy() for part in (task.train, task.test))
        for network in networks:
            graph = nn.Graph(data.adjacency, "gcn" if network == "gcn" else "mean")
            for seed in _seeds(args):
                key = {"graph": data.name, "network": network, "seed": seed}
                how = {"epochs": epochs, "dropout": args.dropout, "seed": seed}
                yield key, partial(_sampled, graph, features, data.targets, (train, test), how)


def _sampled(graph: Any, features: Any, labels: Any, masks: tuple[Any, Any], how: Any) -> list[dict[str, Any]]:
    """The accuracy of a network for each way to sample its edges and each number of bits of its features."""
    model = nn.train(graph, features, labels, masks[0], **how)
    ways: Any = {"widths": _WIDTHS, "strategies": STRATEGIES, "bits": (32, 8), "seed": how["seed"], "timed": False}
    cells = nn.sampling_quality(model, graph, features, labels, masks[1], **ways).cells
    names = ("strategy", "width", "bits", "accuracy")
    return [{name: getattr(cell, name) for name in names} | {"lost": cell.loss} for cell in cells]


def _aes_table(runs: list[dict[str, Any]], training: Any) -> str:
    rows = []
    strategies = list(dict.fromkeys(one["strategy"] for one in runs if one["strategy"] is not None))
    for graph, network, width, bits in dict.fromkeys(
        (one["graph"], one["network"], one["width"], one["bits"]) for one in runs if one["width"] is not None
    ):
        of = _having(runs, graph=graph, network=network)
        full = [one["accuracy"] for one in _having(of, strategy=None, bits=32)]
        row = [graph, network, str(width), str(bits), _shown(*training.mean_and_error(full))]
        for strategy in strategies:
            lost = [-one["lost"] for one in _having(of, strategy=strategy, width=width, bits=bits)]
            mean, error = training.mean_and_error(lost)
            row.append(_shown(mean, error, "+"))
        rows.append(row)
    return format_table(("graph", "network", "W", "bits", "all edges", *strategies), rows)


def _shown(mean: float, error: float, sign: str = "") -> str:
    return f"{mean:{sign}.2f}" + ("" if math.isnan(error) else f" +- {error:.2f}")


def _tango_table(runs: list[dict[str, Any]], training: Any) -> str:
    by = {(one["graph"], one["network"], one["precision"], one["seed"]): one["accuracy"] for one in runs}
    cells = list(dict.fromkeys((one["graph"], one["network"]) for one in runs))
    precisions = list(dict.fromkeys(one["precision"] for one in runs))
    seeds = sorted({one["seed"] for one in runs})
    rows: list[list[str]] = []
    lost: dict[str, list[float]] = {precision: [] for precision in precisions[1:]}
    for graph, network in cells:
        of = {p: [by[graph, network, p, seed] for seed in seeds] for p in precisions}
        row = [graph, network, _shown(*training.mean_and_error(of["float32"]))]
        for precision in precisions[1:]:
            differences = [low - full for low, full in zip(of[precision], of["float32"], strict=True)]
            mean, error = training.mean_and_error(differences)
            lost[precision].append(-mean)
            row.append(f"{_shown(*training.mean_and_error(of[precision]))} ({_shown(mean, error, '+')})")
        rows.append(row)
    lines = [
        format_table(("graph", "network", *precisions), rows),
        "",
        f"{len(seeds)} paired seed{'s' * (len(seeds) > 1)}",
    ]
    for precision, losses in lost.items():
        lines.append(
            f"{precision}: {sum(losses) / len(losses):.2f} points lost on average, {max(losses):.2f} in the worst cell"
        )
    return "\n".join(lines)


def _bitgnn_table(runs: list[dict[str, Any]], training: Any) -> str:
    rows = []
    for graph, way in dict.fromkeys((one["graph"], one["aggregation"]) for one in runs):
        values = [one["accuracy"] for one in _having(runs, graph=graph, aggregation=way)]
        published = _PUBLISHED.get(graph, {}).get(way, "-")
        rows.append([graph, way, str(len(values)), _shown(*training.mean_and_error(values)), published])
    return format_table(("graph", "aggregation", "seeds", "accuracy", "published"), rows)

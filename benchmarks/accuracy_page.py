"""Make the page of accuracies from records: python3 benchmarks/accuracy_page.py [FOLDER] > docs/accuracy.md

Needs only Python. ``accuracy.py`` and ``accuracy_bits.py`` write the records; ``tests/test_bench_accuracy.py`` compares the page with them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "accuracy.md"
#: Up to this difference, in per cent of the test nodes, two sides count as equal whatever the standard error is.
POINTS = 0.5
PAIRED = ("graph", "network", "pairs", "PyTorch Geometric", "ours", "difference", "standard error", "verdict")
_HEAD = """# Accuracy

Per cent of the test nodes that are right, on the public splits of three citation graphs unless it says otherwise. Made by
`python3 benchmarks/accuracy_page.py` of the records under `benchmarks/results/`; do not edit it here.
"""
_PAIRED = """## Networks trained with our layers

`python3 benchmarks/accuracy.py --data FOLDER --records FILE`: pairs of a network of PyTorch Geometric's layers and one of
`bitsparse.torch`, from the same initial weights, with the same dropout; the recipes stand in that file. The two sides add the same numbers
in different orders. Training lets the last bits grow: in GCN and GraphSAGE to nothing that one sees, in a GIN with batch norm to
another network of the same quality. GAT drops different edges on the two sides. "Equal" means that the mean difference is at most half a
point, or within two standard errors of zero. Ten seeds; of GAT on cora thirty, because its first ten differed by 0.60 +- 0.26 points.
"""
_DEMO = """## A trained GCN in few bits

`bitsparse demo --only accuracy --graph cora.npz --seeds 10` and its like: a GCN 2 x 16 is trained in full precision, then run in few bits,
calibrated without labels; means over the seeds and their standard deviation. digits is the graph that needs no file.
"""
_NETWORKS = """## Eight networks in few bits

`python examples/train_quantized.py --data FOLDER --bits 8 4 2 --seeds 10`: trained with PyTorch for 200 epochs on row-normalised
features, the state of the best validation accuracy; means over the seeds and, in brackets, the largest loss of a seed.
"""
_TRAINED = """## Trained on in few bits

`bitsparse accuracy --table qgtc --graphs cora.npz --first-seed 10 --seeds 10` and its like: a GCN or GraphSAGE 2 x 16 is trained in
float32, quantised by `nn.quantize_network` ("calibrated"), and trained on from there with its roundings by `bst.LowBitModule` ("trained"),
to predict the classes that the network in float32 predicts of **all nodes but those to test**. The state with the most validation nodes
right is exported, that at first among them. Points of the test nodes against float32 on the same seed, means and standard errors of the
pairs.

**The recipe was chosen with the seeds before these**: one of about twenty (targets soft, sharpened or hard; with or without the nodes to
test; rates and steps), by accuracies of test nodes with 2 bits on seeds 0 to 9 of cora and citeseer. None of the seeds here was looked at
before the recipe stood. The nodes to test are the same ones, though, and a choice among networks of other weights may still favour them:
that "trained" beats float32 on citeseer is to be read with this in mind.
"""
_INTEGERS = """## Trained in integers

`bitsparse accuracy --table tango --graphs cora.npz --networks gcn --seeds 30 --dropout 0` and its like: GCN and GraphSAGE of 2 x 16
columns and GAT of 8 heads of 8 are trained in float32 and, from the same weights and with the same dropout between the layers, by
`bst.quantize_`: sums and products of integers in both directions, stochastically rounded, the last layer in float32. The epoch of 200 with
the most validation nodes right counts. Points of the test nodes against float32 on the same seed, means and standard errors of the pairs.
amazon_computers and coauthor_cs have no public split: 20 nodes of a class train and 30 validate, drawn once. On amazon_computers 200 epochs
are too few for the GCN: its accuracy still rises at the end, in float32 as in integers.
"""
_BINARY = """## Networks on signs

`bitsparse accuracy --table bitgnn --graphs cora.npz --seeds 10` and its like: Bi-GCN with 64 columns trained by `bst.BinaryGCN` for 1000
epochs and run on bits; means over the seeds and their standard deviation, with full and with binary aggregation. The paper of Bi-GCN (Wang
et al., CVPR 2021) has 81.2 +- 0.8 on cora, 68.8 +- 0.9 on citeseer and 78.2 +- 1.0 on pubmed.
"""
_LINKS = """## Links

`bitsparse accuracy --table links --graphs cora.npz --networks gcn --seeds 10` and its like: 85 % of the edges train a GCN of 16 columns, in
float32 and in integers, whose dot products tell edges from pairs of nodes without one. 100 times the area under the ROC curve of 10 % of
the edges, and the change by the precision on the same seed.
"""
_SAMPLED = """## Over sampled edges

`bitsparse accuracy --table aes --graphs cora.npz --seeds 10` and its like: a trained network, run over at most W edges a node that are
sampled by AES-SpMM's strategies ("aes", "afs", "sfs") or uniformly, rescaled. Points of the test nodes against all edges on the same seed,
features in float32 (with 8 bits in brackets): the mean of the seeds.
"""
#: Headings of precisions by their names.
_PRECISIONS = {
    "int8": "8 bits",
    "int4": "4 bits, a scale to a node",
    "int8-sums": "8 bits, last sums too",
    "int4-sums": "4 bits, last sums too",
    "int8-nearest": "8 bits, to nearest",
    "int8-all": "8 bits, all of it",
}
_TITLES = {"gcn": "GCN", "sage": "GraphSAGE", "gin": "GIN", "gat": "GAT"}
_Records = Iterable[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    print(page(Path(given[0]) if given else RESULTS), end="")
    return 0


def page(folder: Path) -> str:
    """The text of the page from the records in a folder, ``MACHINE/SUITE.jsonl``."""
    parts = [_HEAD]
    for path in sorted(folder.glob("*/accuracy.jsonl")):
        records = _read(path)
        parts.append(f"{_PAIRED}\n{_origin(path, records)}\n\n{_table(PAIRED, paired(records), 3)}")
    for path, records in _all(folder, "bits"):
        demo = [one["params"] for one in records if one["case"].startswith("demo-")]
        networks = [one["params"] for one in records if not one["case"].startswith("demo-")]
        widths = [f"{each['bits']} bit{'s' * (each['bits'] > 1)}" for each in demo[0]["results"]]
        parts.append(f"{_DEMO}\n{_origin(path, records)}\n\n{_table(('graph', *widths), _demo(demo), 1)}")
        headings = ("graph", "network", *(f"{bits} bits" for bits in networks[0]["accuracies"][0]))
        parts.append(f"{_NETWORKS}\n{_table(headings, _networks(networks), 2)}")
    for path, records in _all(folder, "trained"):
        notes = dict.fromkeys(one["params"]["note"] for one in records if "note" in one["params"])
        trained = _differences(_runs(records))
        parts.append("\n\n".join([_TRAINED + "\n" + _origin(path, records), *notes, trained]))
    integers = [
        f"{_origin(path, records)}\n\n{_differences(_runs(records))}" for path, records in _all(folder, "integers")
    ]
    parts += ["\n".join([_INTEGERS, *integers])] if integers else []
    for path, records in _all(folder, "links"):
        parts.append(f"{_LINKS}\n{_origin(path, records)}\n\n{_differences(_runs(records))}")
    for path, records in _all(folder, "sampled"):
        parts.append(f"{_SAMPLED}\n{_origin(path, records)}\n\n{_sampled(_runs(records))}")
    for path, records in _all(folder, "binary"):
        table = _table(("graph", "runs", "full aggregation", "binary aggregation"), _binary(_runs(records)), 2)
        parts.append(f"{_BINARY}\n{_origin(path, records)}\n\n{table}")
    return "\n".join(parts)


def _all(folder: Path, suite: str) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Yield the records of a suite of accuracies, by machine."""
    for path in sorted(folder.glob(f"*/accuracy-{suite}.jsonl")):
        yield path, _read(path)


def paired(records: _Records) -> Iterator[tuple[str, ...]]:
    """Yield a row for each graph and network: means in per cent, their spread, and the mean difference with its standard error."""
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for params in (record["params"] for record in records):
        pairs.setdefault((params["graph"], params["model"]), []).append((params["theirs"], params["ours"]))
    for (graph, model), both in pairs.items():
        differences = [ours - theirs for theirs, ours in both]
        difference = fmean(differences)
        error = stdev(differences) / math.sqrt(len(both)) if len(both) > 1 else math.nan
        equal = abs(difference) <= max(POINTS, 2 * error)
        sides = [[each[side] for each in both] for side in range(2)]
        cells = [f"{fmean(side):.2f} +- {stdev(side) if len(both) > 1 else 0.0:.2f}" for side in sides]
        verdict = "equal" if equal else "differ"
        yield graph, model, str(len(both)), *cells, f"{difference:+.2f}", f"{error:.2f}", verdict


def _demo(runs: _Records) -> Iterator[tuple[str, ...]]:
    for run in runs:
        yield run["graph"], *(f"{one['accuracy']:.2f} +- {one['accuracy_std']:.2f}" for one in run["results"])


def _networks(runs: _Records) -> Iterator[tuple[str, ...]]:
    for run in runs:
        kind, _, size = run["network"].partition("-")
        seeds = run["accuracies"]
        cells = []
        for bits in seeds[0]:
            lost = max(seed["32"] - seed[bits] for seed in seeds)
            mean = f"{fmean(seed[bits] for seed in seeds):.1f}"
            cells.append(mean if bits == "32" else f"{mean} ({lost:.1f})")
        yield run["graph"], f"{_TITLES[kind]} {size.replace('x', ' x ')}", *cells


def _runs(records: _Records) -> list[dict[str, Any]]:
    return [run for one in records for run in one["params"]["runs"]]


def _binary(runs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        found.setdefault((run["graph"], run["aggregation"]), []).append(run["accuracy"])
    for graph in dict.fromkeys(run["graph"] for run in runs):
        both = [found[graph, way] for way in ("full", "binary")]
        yield graph, str(len(both[0])), *(f"{fmean(each):.2f} +- {stdev(each):.2f}" for each in both)


def _sampled(runs: Sequence[dict[str, Any]]) -> str:
    kinds = "graph", "network", "strategy", "width", "bits"
    found = {tuple(run[part] for part in (*kinds, "seed")): run["accuracy"] for run in runs}
    seeds = sorted({run["seed"] for run in runs})
    strategies = list(dict.fromkeys(run["strategy"] for run in runs if run["strategy"] is not None))
    rows = []
    for cell in dict.fromkeys((run["graph"], run["network"]) for run in runs):
        full = {seed: found[*cell, None, None, 32, seed] for seed in seeds}
        for width in sorted({run["width"] for run in runs if run["width"] is not None}):
            lost = [
                [fmean(found[*cell, strategy, width, bits, seed] - full[seed] for seed in seeds) for bits in (32, 8)]
                for strategy in strategies
            ]
            heads = cell[0], _TITLES[cell[1]], str(width), str(len(seeds)), f"{fmean(full.values()):.2f}"
            rows.append((*heads, *(f"{one:+.2f} ({low:+.2f})" for one, low in lost)))
    return _table(("graph", "network", "W", "runs", "all edges", *strategies), rows, 2)


def _differences(runs: Sequence[dict[str, Any]]) -> str:
    """A table of the differences between each precision and float32 on the same seed, with a row for each graph and network."""
    precisions = [each for each in dict.fromkeys(run["precision"] for run in runs) if each != "float32"]
    found = {(run["graph"], run["network"], run["seed"], run["precision"]): run["accuracy"] for run in runs}
    rows = []
    for graph, network in dict.fromkeys((run["graph"], run["network"]) for run in runs):
        full = {
            seed: right for (*cell, seed, each), right in found.items() if (*cell, each) == (graph, network, "float32")
        }
        cells = [f"{fmean(full.values()):.2f}"]
        for each in precisions:
            lost = [found[graph, network, seed, each] - right for seed, right in full.items()]
            cells.append(f"{fmean(lost):+.2f} +- {stdev(lost) / math.sqrt(len(lost)):.2f}")
        rows.append((graph, _TITLES[network], str(len(full)), *cells))
    names = [
        _PRECISIONS.get(each)
        or each.removesuffix("-calibrated").replace("-bit", " bits,")
        + (" calibrated" if "-calibrated" in each else " trained")
        for each in precisions
    ]
    return _table(("graph", "network", "pairs", "float32", *names), rows, 2)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _origin(path: Path, records: Sequence[dict[str, Any]]) -> str:
    first = records[0]
    versions = first["versions"]
    machine = ", ".join(
        [
            first["gpu"] or first["device"].removeprefix("cpu: "),
            f"PyTorch {versions['torch']}",
            f"{first['threads']} thread",
        ]
    )
    return f"[Records](../benchmarks/results/{path.parent.name}/{path.name}): {machine}, commit `{first['commit']}`."


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    lines = (headings, ["---"] * texts + ["---:"] * (len(headings) - texts), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())

"""The parts of ``papers/aes/program.py`` that run on any machine: sampling rates and accuracies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.cases.graphs import graph
from bitsparse import backends, bench, jit, nn
from bitsparse.datasets import GraphData, synthetic_csr
from bitsparse.errors import DeviceError

__all__ = ["LABELLED", "PAPERS", "SEEDS", "WIDTHS", "figure_5", "figure_6", "rate_of_degrees"]

WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
STRATEGIES = ("aes", "afs", "sfs", "uniform")
BITS = (32, 8, 4, 2)
#: Files with labels and features; those without masks are split at random, with 20 training nodes per class.
LABELLED = ("cora", "citeseer", "pubmed", "amazon_computers", "coauthor_cs")
#: The number of seeds of the networks, and of the splits of files without masks.
SEEDS = 3
#: The paper's graphs by our names, and the file or synthetic size used. The paper counts undirected edges except for proteins and cora.
PAPERS: dict[str, tuple[int, int] | str] = {
    "cora": "file",
    "pubmed": "file",
    "arxiv": "arxiv",
    "proteins39": (132_534, 39_561_252),
    "reddit": "reddit",
    "products": "products",
}
#: Synthetic graphs with more edges are only made on a GPU.
_MOST = 50_000_000
_Record = dict[str, Any]


def record(part: str, case: str, params: _Record, commit: str | None) -> _Record:
    """A record that has no time."""
    facts = {"part": part} | params
    return bench.Record.counted("aes", f"{part}-{case}", facts, bench.Machine.of_cpu(1, commit)).flat()


# ---- Figure 5
def figure_5(name: str, commit: str | None) -> Iterator[_Record]:
    """Sampling rates of a graph's nodes for every width, from its degrees."""
    degrees, source = degrees_of(name)
    for strategy in ("aes", "sfs"):
        for width in WIDTHS:
            kept, cdf = rate_of_degrees(degrees, width, strategy)
            params = {"graph": name, "source": source, "strategy": strategy, "width": width, "kept": kept, "cdf": cdf}
            params |= {"nodes": int(degrees.size), "entries": int(degrees.sum()), "most": int(degrees.max(initial=0))}
            yield record("figure-5", f"{name}-{strategy}-W{width}", params, commit)


def degrees_of(name: str) -> tuple[Any, str]:
    """The number of entries of each row, and the source of the graph."""
    made = PAPERS.get(name, "file")
    if made == "file":
        data, source = graph(name)
        return np.diff(data.indptr).astype(np.int64), source
    from bitsparse.datasets import SIZES

    size: Any = SIZES[made] if isinstance(made, str) else made
    source = f"synthetic communities graph of {size[0]} nodes and {size[1]} entries, seed 0"
    try:
        jit.capability()
        device = "cuda"
    except (DeviceError, ImportError) as reason:
        if size[1] > _MOST:
            raise bench.Unavailable(f"{size[1]} edges are made on a GPU only ({reason})") from reason
        device = "cpu"
    indptr, _ = synthetic_csr(size, "communities", device=device)
    rows = indptr[1:] - indptr[:-1]
    return (rows if device == "cpu" else rows.get()).astype(np.int64), source


def rate_of_degrees(degrees: Any, width: int, strategy: str) -> tuple[float, list[float]]:
    """The share of edges that are sampled, counting repeats, and the shares of nodes that keep at most 0, 5, ..., 100 per cent of theirs.

    The number of a row's samples depends only on its length, so one row of each length is sampled.
    """
    lengths, times = np.unique(degrees[degrees > 0], return_counts=True)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    starts, _ = backends.family("cpu", "sampling.sample").sample_edges(
        indptr, width=width, strategy=strategy, seed=0, stream=0
    )
    samples = np.diff(starts)
    steps = -(-samples * 20 // lengths)
    spread = np.bincount(steps, weights=times, minlength=21).cumsum()
    kept = float((samples * times).sum() / max(1, (lengths * times).sum()))
    return kept, [round(float(share), 4) for share in spread / max(1.0, float(spread[-1]))]


# ---- Figure 6
def figure_6(name: str, kind: str, commit: str | None) -> Iterator[_Record]:
    """Accuracies of one kind of network on one graph, with sums as the paper forms them and rescaled."""
    data, source = graph(name)
    if data.labels is None or data.x is None:
        raise bench.Unavailable(f"{name}.npz is not there ({source}), and a stand-in has no labels")
    for rescale, found in (
        (r, quality(data, kind, rescale=r, seeds=SEEDS, widths=WIDTHS, strategies=STRATEGIES, bits=BITS))
        for r in (False, True)
    ):
        facts = found.record()
        params = {"graph": name, "source": source, "model": kind, "hidden": 16, "seeds": SEEDS, "rescale": rescale}
        params |= {"split": "public" if data.train_mask is not None else "random"}
        params |= {key: facts[key] for key in ("errors", "chosen_bits")}
        params |= {"cells": [[one[key] for key in CELL] for one in facts["cells"]], "fields": list(CELL)}
        made = record("figure-6", f"{kind}-{name}{'-rescaled' if rescale else ''}", params, commit)
        yield json.loads(json.dumps(made))


#: The fields that are kept of a cell.
CELL = ("strategy", "width", "bits", "accuracy", "accuracy_std", "loss")


def quality(data: GraphData, kind: str, *, rescale: bool, seeds: int, **options: Any) -> nn.Quality:
    """The mean report of networks of several seeds, each on its own split if the graph has none."""
    features, made = nn.Features(data.x), []
    for seed in range(seeds):
        split = data if data.train_mask is not None else data.with_split(seed=seed)
        made.append((split, *trained(split, kind, features, seed)))
    reports = [
        nn.sampling_quality(
            model,
            propagation,
            features,
            split.targets,
            split.test_mask,
            rescale=rescale,
            timed=False,
            **options,
        )
        for split, propagation, model in made
    ]
    return pooled(reports)


_kept: dict[tuple[Any, ...], Any] = {}


def trained(data: GraphData, kind: str, features: nn.Features, seed: int) -> tuple[Any, Any]:
    """A graph and a network trained on it; those of the last graph are cached."""
    key = (data.name, kind, seed)
    if key not in _kept:
        if any(one[0] != data.name for one in _kept):
            _kept.clear()
        propagation = nn.Graph(data.adjacency, "gcn" if kind == "gcn" else "mean")
        _kept[key] = propagation, nn.train(propagation, features, data.targets, data.train_mask, seed=seed)
    found: tuple[Any, Any] = _kept[key]
    return found


def pooled(reports: list[nn.Quality]) -> nn.Quality:
    """Combine several reports, of one network each, into one."""
    cells = []
    for group in zip(*(one.cells for one in reports), strict=True):
        accuracies = [one.accuracy for one in group]
        loss = float(np.mean([one.loss for one in group]))
        cells.append(
            group[0]._replace(accuracy=float(np.mean(accuracies)), accuracy_std=float(np.std(accuracies)), loss=loss)
        )
    first = reports[0]
    errors = {bits: float(np.mean([one.errors[bits] for one in reports])) for bits in first.errors}
    chosen = [one.chosen_bits for one in reports]
    most = None if None in chosen else max(bits for bits in chosen if bits is not None)
    return nn.Quality(first.model, first.device, tuple(cells), first.rates, errors, most)

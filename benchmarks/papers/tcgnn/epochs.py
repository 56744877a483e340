"""Measure epochs of training for ``papers/tcgnn/program.py``: TC-GNN's Figures 6a and 6b, and Figure 8 (translation against epochs).

An epoch is forward, cross entropy on half of the nodes, backward and fused Adam, without dropout. Features and labels are random, as in the
authors' own program, with the columns and classes of their Table 4. GCN has two layers with 16 columns between them. AGNN has four sums of
32 columns, weighted by cosines, between two linear layers, like the networks that the authors compare with. TF32 is allowed for all
products of every side.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

import bitsparse as bs
from benchmarks.cases.sparse_gpu import cell_of, matrix_of
from benchmarks.cases.training import free, in_turns, recorded, warm, without_edges
from benchmarks.cases.training_sides import Network, Problem, Side, compare, named, ours_of, peer_of, problem, widths_of
from benchmarks.gpu_timing import machine, wall_ms
from benchmarks.papers.tcgnn.parts import HIDDEN, both, record
from benchmarks.papers.tcgnn.tiles import GRAPHS
from benchmarks.peers import pyg, pyg_layers, torch_gnn
from bitsparse.bench import Record, Unavailable

__all__ = ["NETWORKS", "measurements"]

#: Numbers of columns between the layers of the paper's networks.
NETWORKS = {"gcn": [HIDDEN], "agnn": [32] * 5}
#: The number of epochs that the paper's Figure 8 compares the translation with, and the number of samples of a translation.
EPOCHS, TRANSLATIONS = 200, 9
#: Milliseconds for all samples of a cell; and the longest epoch that is captured: launching kernels one by one takes only 1 to 10 ms.
ALL_MS, CAPTURED_MS = 1500.0, 50.0
RATE = 0.01
_Sides = dict[str, Side]


def measurements(part: str, commit: str | None, repetitions: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield a name and a measurement for each line of a part, both networks of a graph one after the other."""
    for name in GRAPHS:
        if part == "figure-8":
            yield f"{part}-{name}", partial(translation, part, name, commit, repetitions)
            continue
        for network in NETWORKS:
            case = f"{part}-{network}-{name}"
            yield case, partial(epoch, part, case, network, name, commit, repetitions)


@contextmanager
def tf32_allowed() -> Iterator[None]:
    """Allow TF32 for float32 products on a GPU, both PyTorch's and ours."""
    setting = torch.backends.cuda.matmul
    before, setting.allow_tf32 = setting.allow_tf32, True
    try:
        yield
    finally:
        setting.allow_tf32 = before


# ---- sides
_held: dict[str, Problem] = {}


def problem_of(name: str) -> Problem:
    """Return the problem on a graph of the paper; it is kept until another one is asked for."""
    if name not in _held:
        _held.clear()
        free()
        matrix, data = matrix_of(name), GRAPHS[name]
        arrays = torch.from_dlpack(matrix.indptr), torch.from_dlpack(matrix.indices)
        _held[name] = problem(arrays, (data.columns, data.classes))
        warm(torch.float32)
    return _held[name]


def our_side(network: str, made: Problem) -> Side:
    """Return our side, with seeded weights."""
    return ours_of(network, made, made.x, "tf32", hidden=NETWORKS[network])


def torch_side(network: str, made: Problem, weights: dict[str, Tensor]) -> Side:
    """Return the side in plain PyTorch, with our weights."""
    return peer_of(network, made, made.x, "tf32", weights, hidden=NETWORKS[network])


def geometric_side(path: str, network: str, made: Problem, weights: dict[str, Tensor]) -> Side:
    """Return PyTorch Geometric's side, with a sparse tensor or a list of edges, and with our weights."""
    widths, _ = widths_of(network, made, "tf32", NETWORKS[network])
    net = Network(network, pyg_layers.layers(network, widths)).to(made.x.device)
    net.load_state_dict(weights)
    return Side(net, pyg_layers.operand(network, made.indptr, made.indices, path), made, made.x, RATE)


#: The peers of each figure by name, and the function that gives the peer's name for the records.
PEERS: dict[str, tuple[dict[str, Callable[..., Side]], Callable[[], str]]] = {
    "figure-6a": ({"torch": torch_side}, torch_gnn.version),
    "figure-6b": ({path: partial(geometric_side, path) for path in pyg.PATHS}, pyg.version),
}


def compared(
    case: str, ours: Side, peers: dict[str, Callable[[dict[str, Tensor]], Side]]
) -> tuple[_Sides, dict[str, Any]]:
    """Return the peers, checked to agree with ours in gradients and losses, and their differences; leave out peers that cannot run."""
    weights = {name: part.detach().clone() for name, part in named(ours).items()}
    facts: dict[str, Any] = {}
    found: _Sides = {}
    for who, make in peers.items():
        try:
            peer = make(weights)
            facts[who] = compare(f"{case}, {who}", "tf32", ours, peer)
            found[who] = peer
        except RuntimeError as error:
            print(f"{case}: not {who}, {error}".splitlines()[0], file=sys.stderr)
        for side in (ours, *found.values()):
            even(side, weights)
    return found, facts


def even(side: Side, weights: dict[str, Tensor]) -> None:
    """Reset a side: restore the weights, and drop the gradients and Adam's moments."""
    side.optimizer.zero_grad(set_to_none=True)
    side.optimizer.state.clear()
    with torch.no_grad():
        for name, part in named(side).items():
            part.copy_(weights[name])


def timed(case: str, sides: _Sides, repetitions: int) -> dict[str, float]:
    """Measure the milliseconds of each side's epoch, launched directly and, if it is short and can be captured, as one CUDA graph."""
    launches: dict[str, Callable[[], object]] = {}
    for who, side in sides.items():
        launches[who] = side.step
        if in_turns([side.step], 1)[0] <= CAPTURED_MS:
            graph = recorded(f"{case}, {who}", side.step)
            if graph != side.step:
                launches[f"{who}, captured"] = graph
        free()
    return dict(zip(launches, in_turns(list(launches.values()), repetitions, ALL_MS), strict=True))


def best_of(times: dict[str, float], *names: str) -> tuple[str, float]:
    """Return the fastest variant of the sides with these names, and its time."""
    return min(((way, ms) for way, ms in times.items() if way.partition(",")[0] in names), key=lambda pair: pair[1])


# ---- cells
def epoch(part: str, case: str, network: str, name: str, commit: str | None, repetitions: int) -> dict[str, Any]:
    """Measure one bar of Figure 6a or 6b."""
    makers, version = PEERS[part]
    peer_name, made = version(), problem_of(name)
    with tf32_allowed():
        ours = our_side(network, made)
        peers, facts = compared(case, ours, {who: partial(make, network, made) for who, make in makers.items()})
        if not peers:
            raise Unavailable(f"{peer_name} does not run")
        rest = {"without edges": our_side(network, without_edges(made))}
        times = timed(case, {"ours": ours, **peers, **rest}, repetitions)
    way, peer_ms = best_of(times, *peers)
    params: dict[str, Any] = {"part": part, "network": network, "kind": GRAPHS[name].kind, "precision": "tf32"}
    params |= matrix_of(name).facts() | {"entries": made.indices.numel()}
    params |= {"features": made.x.shape[1], "classes": made.classes, "peer_way": way, "ways_ms": times}
    params |= {"differences": {who: one["gradient_difference"] for who, one in facts.items()}}
    params |= {"without_edges_ms": best_of(times, "without edges")[1]}
    moved = sum(array.nbytes for array in (made.indptr, made.indices, made.x))
    ours_ms = best_of(times, "ours")[1]
    return Record("tcgnn", case, params, ours_ms, peer_name, peer_ms, int(moved), machine(1, commit)).flat()


def translation(part: str, name: str, commit: str | None, repetitions: int) -> dict[str, Any]:
    """Compare the translation with the training of GCN: with whole epochs, and with only their four aggregations."""
    case = f"{part}-{name}"
    cell = cell_of(name, HIDDEN)
    matrix = cell.matrix

    def build() -> Any:
        made = bs.TCTiledCSR.from_csr_arrays(matrix.indptr, matrix.indices, matrix.shape)
        return made.cols_indptr  # the first access runs the translation

    found = both(case, cell, repetitions) | {"translate_ms": wall_ms(build, min(repetitions, TRANSLATIONS))}
    with tf32_allowed():
        ours = our_side("gcn", problem_of(name))
        found["epoch_ms"] = best_of(timed(case, {"ours": ours}, repetitions), "ours")[1]
    aggregations, training = 4 * min(found["fp32_ms"], found["tf32_ms"]), found["epoch_ms"]
    for share, ms in (("share", aggregations), ("training_share", training)):
        found[share] = found["translate_ms"] / (found["translate_ms"] + EPOCHS * ms)
    return record(part, case, cell, found | {"epochs": EPOCHS, "kind": GRAPHS[name].kind}, commit)

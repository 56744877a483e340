"""``bitsparse bench``: times kernels of this library against those of SciPy, NumPy, CuPy and PyTorch that are installed.

``bitsparse bench --json`` prints one object::

    {"device", "machine", "threads", "versions", "graph", "nodes", "entries",
     "results": [{"suite", "case", "ours_ms", "peers": {name: ms}, "best_peer", "ratio"}, ...]}

Times are median milliseconds; the sides take turns within one run. ``ratio`` is the time of the quickest peer over ours: it is above 1 if
ours is faster, and null if a case has no peer. Results are compared before anything is timed, and must agree. Peers compute in float32 over
all edges of the same graph. SciPy has one thread; the other peers have as many threads as this library.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from bitsparse import _check, datasets, interop
from bitsparse._progress import progress
from bitsparse.arrays import BitTensor, TCTiledCSR
from bitsparse.backends import host
from bitsparse.bench import Machine, Protocol, format_table, time_interleaved
from bitsparse.bench.peers import finished, torch_csr
from bitsparse.cli import common
from bitsparse.cli.memory import need_memory
from bitsparse.errors import KernelError
from bitsparse.ops import bspmm, matmul, pack_bits, plan_sampled_spmm, sddmm, spmm

DESCRIPTION = (
    "Time sums over a graph's edges, dot products on edges and low-bit products against the other libraries that are installed. "
    "Needs no checkout: every figure is measured here and now."
)
SUITES = ("spmm", "bspmm", "sddmm", "sampled", "matmul")
_NODES, _ENTRIES = 100_000, 2_000_000
_COLUMNS, _BITS = (16, 128), (8, 4, 1)
_SIZE, _WIDTH = 2048, 16
#: The suites that read an option, for options that not all suites read.
_SUITES_OF = {
    **dict.fromkeys(("graph", "nodes", "entries", "columns"), ("spmm", "bspmm", "sddmm", "sampled")),
    "bits": ("spmm", "matmul"),
    "size": ("matmul",),
    "width": ("sampled",),
}
_PROTOCOL = Protocol(warmup=1, repetitions=9, seconds=2.0)
_Call = Callable[[], Any]


class _Case(NamedTuple):
    """One comparison: our call, the peers' calls by name, and the largest relative difference of results; None skips that check."""

    suite: str
    name: str
    ours: _Call
    peers: Mapping[str, _Call]
    within: float | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES), help="what to time (default: all)")
    parser.add_argument(
        "--graph",
        type=common.any_file,
        metavar="FILE",
        help=f"in any form that `bitsparse inspect` reads (default: synthetic, {_NODES} nodes and {_ENTRIES} entries)",
    )
    numbers: dict[str, Any] = {"type": common.positive, "nargs": "+", "metavar": "N"}
    parser.add_argument("--columns", **numbers, help=f"of the features (default: {_said(_COLUMNS)})")
    bits: dict[str, Any] = {"type": common.bit_count, "nargs": "+", "metavar": "B"}
    parser.add_argument("--bits", **bits, help=f"of integers (default: {_said(_BITS)})")
    common.add_counts(
        parser,
        nodes=(None, common.MOST_ENTRIES, f"of the synthetic graph (default: {_NODES})"),
        entries=(None, common.MOST_ENTRIES, f"of the synthetic graph, an even number (default: {_ENTRIES})"),
        size=(None, 1 << 16, f"rows and columns of the matrices of suite matmul (default: {_SIZE})"),
        width=(None, common.MOST, f"edges a row of suite sampled (default: {_WIDTH})"),
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    common.add_json(parser, " instead of a table")


def run(args: argparse.Namespace) -> None:
    """Serve the command."""
    _refuse(args)
    common.need_gpu(args.device)
    _need_memory(args)
    watch = common.Announced(args)
    try:
        watch.begin("making the graph")
        graph = datasets.read(args.graph) if args.graph else datasets.synthetic((args.nodes, args.entries))
        a = TCTiledCSR(graph.adjacency, pattern=True).to_device(args.device)
        watch.begin("making the operands")
        cases = [case for suite in args.suite for case in _MAKERS[suite](args, graph.adjacency.astype(np.float32), a)]
    finally:
        watch.end()
    results = []
    with progress(len(cases), "case") as advance:
        for case in cases:
            results.append(_timed(case, args.device))
            advance()
    machine = Machine.of_cpu(host.get_num_threads(), None)
    facts = {"device": args.device, "machine": machine.device, "threads": machine.threads, "versions": machine.versions}
    facts |= {"graph": graph.name, "nodes": graph.num_nodes, "entries": graph.num_edges, "results": results}
    common.emit(args, facts, lambda: _table(facts, results))


def _said(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))


def _refuse(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect, then fill in the defaults of those that were left out."""
    if args.graph:
        common.refuse(args, ("nodes", "entries"), "is of the synthetic graph, not of --graph; leave one of them out")
    for option, suites in _SUITES_OF.items():
        if not set(suites) & set(args.suite):
            common.refuse(args, (option,), f"goes with suite {' or '.join(suites)}; add one of them to --suite")
    defaults = {
        "nodes": _NODES,
        "entries": _ENTRIES,
        "columns": _COLUMNS,
        "bits": _BITS,
        "size": _SIZE,
        "width": _WIDTH,
    }
    for option, default in defaults.items():
        if getattr(args, option) is None:
            setattr(args, option, default)


def _need_memory(args: argparse.Namespace) -> None:
    """Refuse sizes whose matrices do not fit into memory: each number takes a float32 and the uint16 code that it is made from."""
    if not args.graph:
        columns = max(args.columns) if set(args.suite) != {"matmul"} else 0
        sizes = f"--nodes {args.nodes} --entries {args.entries} --columns {columns}"
        need_memory(sizes, 8 * args.entries + 6 * args.nodes * columns)
    if "matmul" in args.suite:
        need_memory(f"--size {args.size}", 6 * args.size**2)


# -- cases ------------------------------------------------------------------------------------------------------------
def _spmm(args: argparse.Namespace, matrix: Any, a: TCTiledCSR) -> Iterator[_Case]:
    for columns in args.columns:
        # Integers, so that sums are exact and all libraries must agree.
        codes = {bits: _codes((a.shape[1], columns), bits) for bits in args.bits}
        x = _codes((a.shape[1], columns), 3).astype(np.float32)
        dense = interop.move(x, args.device)
        yield _Case("spmm", f"float32, {columns} columns", partial(spmm, a, dense), _products(args, matrix, x), 1e-5)
        for bits, each in codes.items():
            layout: Any = "rows" if bits in _check.ROW_LAYOUT_BITS else "planes"
            packed = BitTensor(each, bits, layout=layout).to_device(args.device)
            peers = _products(args, matrix, each.astype(np.float32))
            yield _Case("spmm", f"{bits}-bit integers, {columns} columns", partial(spmm, a, packed), peers, 1e-5)


def _bspmm(args: argparse.Namespace, matrix: Any, a: TCTiledCSR) -> Iterator[_Case]:
    for columns in args.columns:
        x = _codes((a.shape[1], columns), 8).astype(np.float32) - 127.5
        signs = pack_bits(x, encoding="bipolar").to_device(args.device)
        name = f"one bit in and out, {columns} columns"
        yield _Case("bspmm", name, partial(bspmm, a, signs, "BBB"), _products(args, matrix, np.sign(x)))


def _sddmm(args: argparse.Namespace, matrix: Any, a: TCTiledCSR) -> Iterator[_Case]:
    ends = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), matrix.indices
    rows, cols = (interop.move(part, args.device) for part in ends)
    for columns in args.columns:
        x = interop.move(_codes((a.shape[0], columns), 3).astype(np.float32), args.device)
        peers = {("NumPy" if args.device == "cpu" else "CuPy") + " gather, sum": partial(_gathered, rows, cols, x)}
        yield _Case("sddmm", f"float32, {columns} columns", partial(sddmm, a, x), peers if a.nnz else {}, 1e-5)


def _gathered(rows: Any, cols: Any, x: Any) -> Any:
    """The dot product of the two end rows of each edge, 65 536 edges at a time."""
    parts = (slice(start, start + (1 << 16)) for start in range(0, int(rows.size), 1 << 16))
    return interop.namespace(x).concatenate([(x[rows[part]] * x[cols[part]]).sum(axis=1) for part in parts])


def _sampled(args: argparse.Namespace, matrix: Any, a: TCTiledCSR) -> Iterator[_Case]:
    for columns in args.columns:
        x = _codes((a.shape[1], columns), 3).astype(np.float32)
        plan = plan_sampled_spmm(a, columns, width=args.width)
        name = f"{args.width} edges a row, {columns} columns"
        yield _Case("sampled", name, partial(plan, interop.move(x, args.device)), _products(args, matrix, x))


def _matmul(args: argparse.Namespace, _: Any, __: TCTiledCSR) -> Iterator[_Case]:
    n = args.size
    for bits in args.bits:
        left, right = (_codes((n, n), min(bits, 12), seed) for seed in (1, 2))
        packed = BitTensor(left, bits).to_device(args.device), BitTensor(right, bits, axis=-2).to_device(args.device)
        floats = [interop.move(part.astype(np.float32), args.device) for part in (left, right)]
        peers: dict[str, _Call] = {
            "NumPy float32" if args.device == "cpu" else "CuPy float32": partial(np.matmul, *floats)
        }
        if find_spec("torch") and bits <= 7:
            torch: Any = import_module("torch")
            bytes_of = [torch.from_numpy(part.astype(np.int8)).to(args.device) for part in (left, right)]
            peers["PyTorch int8"] = partial(torch._int_mm, *bytes_of)
        exact = n * (2.0**bits - 1) ** 2 < 1 << 24
        yield _Case("matmul", f"{bits} x {bits} bits, {n}^3", partial(matmul, *packed), peers, 0.0 if exact else 1e-4)


_MAKERS: dict[str, Callable[[argparse.Namespace, Any, TCTiledCSR], Iterator[_Case]]] = {
    "spmm": _spmm,
    "bspmm": _bspmm,
    "sddmm": _sddmm,
    "sampled": _sampled,
    "matmul": _matmul,
}


def _products(args: argparse.Namespace, matrix: Any, x: Any) -> dict[str, _Call]:
    """Calls of all installed libraries that compute the sums over all edges in float32."""
    peers: dict[str, _Call] = {}
    if args.device == "cpu":
        peers["SciPy"] = lambda: matrix @ x
    else:
        there = import_module("cupyx.scipy.sparse").csr_matrix(matrix)
        dense = interop.move(x, args.device)
        peers["CuPy (cuSPARSE)"] = lambda: there @ dense
    if find_spec("torch"):
        torch: Any = import_module("torch")
        torch.set_num_threads(host.get_num_threads())
        csr = torch_csr(matrix, args.device)
        other = torch.from_numpy(x).to(args.device)
        peers["PyTorch"] = lambda: csr @ other
    return peers


# -- timing -----------------------------------------------------------------------------------------------------------
def _timed(case: _Case, device: str) -> dict[str, Any]:
    """The times of a case, measured after checking that all results agree."""
    calls = [case.ours, *case.peers.values()]
    if case.within is not None:
        ours = _host(case.ours())
        for name, peer in case.peers.items():
            theirs = _host(peer())
            error = np.abs(ours - theirs).max(initial=0) / max(np.abs(theirs).max(initial=0), 1)
            if not error <= case.within:
                raise KernelError(
                    f"bench: {case.suite}, {case.name}: ours and {name} are {error:.2g} apart; please report it"
                )
    times = time_interleaved([finished(call, device) for call in calls], _PROTOCOL)
    peers = {name: round(ms, 4) for name, ms in zip(case.peers, times[1:], strict=True)}
    best = min(peers, key=peers.__getitem__, default=None)
    ratio = None if best is None else round(peers[best] / times[0], 3)
    about = {"suite": case.suite, "case": case.name, "ours_ms": round(times[0], 4)}
    return about | {"peers": peers, "best_peer": best, "ratio": ratio}


def _host(result: Any) -> Any:
    """A result as a NumPy array of float64."""
    return interop.as_host(result, "bench").astype(np.float64)


def _codes(shape: tuple[int, int], bits: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 1 << bits, shape, np.uint16)


def _table(facts: dict[str, Any], results: list[dict[str, Any]]) -> str:
    threads = facts["threads"]
    head = f"{facts['graph']}: {facts['nodes']} nodes, {facts['entries']} edges; {facts['machine']}, {threads} thread"
    rows = [[one["suite"], one["case"], f"{one['ours_ms']:.3f}", *_beside(one)] for one in results]
    table = format_table(["suite", "case", "ours ms", "peer ms", "ratio", "quickest peer"], rows)
    note = "ratio: peer's time over ours. Peers compute in float32, unless their name says otherwise."
    return f"{head}{'' if threads == 1 else 's'}\n\n{table}\n\n{note}"


def _beside(result: dict[str, Any]) -> list[str]:
    """The table cells that describe the quickest peer."""
    best = result["best_peer"]
    return ["-"] * 3 if best is None else [f"{result['peers'][best]:.3f}", f"{result['ratio']:.2f}", best]

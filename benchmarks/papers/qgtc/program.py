"""Reproduce QGTC's tables (PPoPP'22: Table 3, Figures 7 to 10) on the same axes: ours, the peer's, the paper's.

    python3 benchmarks/paper.py qgtc [--only table-3 figure-9 ...] [--records FILE] [--out FILE] [--repetitions N]

Table 3 and Figures 7c, 9 and 10 are measured on this machine's GPU. The others run only when named: Figures 7a and 7b come from the records
of suite ``cluster`` (``results/h200/cluster.jsonl``), and Figure 8 counts tiles of graphs on the CPU (minutes, for METIS).
``papers/qgtc/plot.py`` draws 7a, 7b and 8. After each part, its records, one JSON object per line, replace the old ones in ``--records``,
and ``--out`` (by default docs/qgtc-tables.md) is written again from all of them.

All products are N x N x D: a 1-bit adjacency by features of a few bits, random and without zero tiles. Ours is a prepared product of the
CUDA backend, with the kernel that the library chooses, into a preallocated int32 result. The peer is ``torch._int_mm`` of the same integers
as int8 (for 16 bits, of their two digits, added up by one more pass); both results are compared before either is timed. Both sides replay
CUDA graphs of 20 calls in turns, with operands in the L2 if they fit; a time is the median of 15 replays. ``tflops`` counts 2 N N D
operations, whatever the number of bits, as the paper does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.papers.program import BENCHMARKS, Record, run
from benchmarks.papers.qgtc import parts, tables

EPOCHS = BENCHMARKS / "results" / "h200" / "cluster.jsonl"
MEASURED = ["table-3", "figure-7c", "figure-9", "figure-10"]
PARTS = [*MEASURED, "figure-7a", "figure-7b", "figure-8"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    return run("QGTC", PARTS, measurements, line_of, tables.document, arguments, MEASURED)


def measurements(
    part: str, commit: str | None, repetitions: int
) -> Iterator[tuple[str, Callable[[], Iterable[Record]]]]:
    """Yield each part as one measurement, which yields its records one by one."""
    if part == "figure-8":
        yield part, lambda: parts.figure_8(commit)
    elif part in ("figure-7a", "figure-7b"):
        yield part, lambda: parts.figure_7(part, EPOCHS)
    else:
        yield part, lambda: parts.measured(part, commit, repetitions)


def line_of(record: Record) -> str:
    """One line for the terminal."""
    params = record["params"]
    if "tiles" in params:
        return f"{record['case']:<32} {params['processed']} of {params['tiles']} tiles processed"
    if "kept_edges" in params:
        return f"{record['case']:<32} {record['ours_ms']:9.2f} ms, {record['peer_ms']:9.2f} ms, {record['ratio']:.2f}x"
    return (
        f"{record['case']:<32} {1e3 * record['ours_ms']:9.2f} us {params['tflops']:9.1f} TFLOPs, "
        f"int8 {1e3 * record['peer_ms']:9.2f} us, {record['ratio']:.2f}x, {params['kernel']}"
    )

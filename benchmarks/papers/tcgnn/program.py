"""TC-GNN's figures again (ATC'23: Figures 7 and 8, Tables 5 and 6), on the same axes: ours, cuSPARSE's, the paper's.

    python3 benchmarks/paper.py tcgnn [--only figure-7 table-5 ...] [--records FILE] [--out FILE] [--repetitions N]

Figure 7 counts tiles on the CPU; the others are measured on the GPU at hand. After each part its records, one JSON object a line, take the
place of the old ones in ``--records``, and ``--out`` (by default docs/tcgnn-tables.md) is written anew from all of them.

Graphs are the files of ``cases/graphs.py``; where there is none, a seeded synthetic one of the same size stands in, and the table says so.
Products are prepared ones without weights, in float32 and in TF32, compared with float64 results and replayed from CUDA graphs in turns
with the fastest right product of cuSPARSE (see ``suites/spmm.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from benchmarks.papers.program import Record, run
from benchmarks.papers.tcgnn import parts, tables, tiles

PARTS = ("figure-7", "figure-8", "table-5", "table-6")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    return run("TC-GNN", PARTS, measurements, tables.line_of, tables.document, arguments)


def measurements(part: str, commit: str | None, repetitions: int) -> Iterator[tuple[str, Callable[[], list[Record]]]]:
    """A name and a measurement of one record for each line of a part."""
    module = tiles if part == "figure-7" else parts
    for name, measure in module.measurements(part, commit, repetitions):
        yield name, partial(_alone, measure)


def _alone(measure: Callable[[], Record]) -> list[Record]:
    return [measure()]

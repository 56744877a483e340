"""BitGNN's tables again (ICS'23: Tables 3, 4 and 5), on the same axes: ours, PyTorch Geometric's, the paper's.

    python3 benchmarks/paper.py bitgnn [--only table-3 table-4 ...] [--records FILE] [--out FILE] [--repetitions N]

All is measured on the GPU at hand. After each part its records, one JSON object a line, take the place of the old ones in ``--records``,
and ``--out`` (by default docs/bitgnn-tables.md) is written anew from all of them.

Networks have random weights: times and memory are compared, not accuracy. cora, citeseer and pubmed are the graphs' files (a seeded
synthetic stand-in where one is missing, and the table says so) with random features; Flickr and Reddit are synthetic power-law graphs of
their sizes. Both sides are inference of the whole graph at once, captured as a CUDA graph and replayed in turns (see ``suites/binary.py``);
memory is the most bytes that the pool of the framework hands out at once, with the features: float32 there, packed bits in ours, as there.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.bitgnn import parts, tables
from benchmarks.papers.program import run

PARTS = ["table-3", "table-4", "table-5"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    return run("BitGNN", PARTS, parts.measurements, tables.line_of, tables.document, arguments)

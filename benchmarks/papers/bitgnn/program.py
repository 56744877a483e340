"""Reproduce BitGNN's tables (ICS'23: Tables 3, 4 and 5) on the same axes: ours, PyTorch Geometric's, the paper's.

    python3 benchmarks/paper.py bitgnn [--only table-3 table-4 ...] [--records FILE] [--out FILE] [--repetitions N]

All parts are measured on this machine's GPU. After each part, its records, one JSON object per line, replace the old ones in
``--records``, and ``--out`` (by default docs/bitgnn-tables.md) is written again from all of them.

Networks have random weights, because times and memory are compared, not accuracy. cora, citeseer and pubmed are the graphs' files with
random features (if a file is missing, a seeded synthetic graph stands in, and the table says so); Flickr and Reddit are synthetic power-law
graphs of their sizes. Both sides run inference of the whole graph at once, captured as a CUDA graph and replayed in turns (see
``suites/binary.py``). Memory is the peak of the framework's pool, including the features: float32 for the peer, packed bits for ours, as
in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.bitgnn import parts, tables
from benchmarks.papers.program import run

PARTS = ["table-3", "table-4", "table-5"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    return run("BitGNN", PARTS, parts.measurements, tables.line_of, tables.document, arguments)

"""Reproduce TANGO's figures (SC'23: Figures 10 to 16, Table 2) on the same axes: ours, cuBLAS, cuSPARSE, PyTorch, the paper's.

    python3 benchmarks/paper.py tango [--only figure-11 figure-15 ...] [--records FILE] [--out FILE] [--repetitions N]

All parts are measured on this machine's GPU. After each part, its records, one JSON object per line, replace the old ones in ``--records``,
and ``--out`` (by default docs/tango-tables.md) is written again from all of them.

pubmed is the real graph, from its file; the others are synthetic graphs of the kind ``communities`` with the paper's sizes (both directions
of every edge, no self loops). The paper compares with the kernels of DGL, which are not measured here. Instead, sums of edges are compared
with PyTorch's ``index_add_``; products with several heads with one cuSPARSE product per head, as in the paper; and sampled products with
what PyTorch users write (two gathers and a sum) and with our own float32 kernel. Both sides replay CUDA graphs in turns. Results are
compared with float64 or with each other before they are timed. Figure 12 is computed from Figure 11's times by counting operations and
bytes: no profiler runs here, so there are no instruction counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.program import run
from benchmarks.papers.tango import parts, tables

PARTS = ["figure-10", "figure-11", "figure-13a", "figure-13b", "figure-14", "figure-15", "figure-16"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts, and write the records and tables."""
    return run("TANGO", PARTS, parts.measurements, tables.line_of, tables.document, arguments)

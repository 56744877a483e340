"""TANGO's figures again (SC'23: Figures 10 to 16, Table 2), on the same axes: ours, cuBLAS's, cuSPARSE's and PyTorch's, the paper's.

    python3 benchmarks/paper.py tango [--only figure-11 figure-15 ...] [--records FILE] [--out FILE] [--repetitions N]

All is measured on the GPU at hand. After each part its records, one JSON object a line, take the place of the old ones in ``--records``,
and ``--out`` (by default docs/tango-tables.md) is written anew from all of them.

pubmed is the graph's file; the others are synthetic ones of the papers' sizes (both directions of every edge, no self loops), of the kind
``communities``. The paper's opponents are the kernels of DGL, which is not compared with here: sums of edges meet PyTorch's ``index_add_``,
products with several heads a product of cuSPARSE for each (which is the paper's own way), sampled products what PyTorch users write
(two gathers and a sum) and our own float32 kernel. Both sides replay CUDA graphs in turns, results are compared with float64 or with
each other before they are timed. Figure 12 is read off Figure 11's times by counting operations and bytes: no profiler runs here, so that
there are no instruction counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.program import run
from benchmarks.papers.tango import parts, tables

PARTS = ["figure-10", "figure-11", "figure-13a", "figure-13b", "figure-14", "figure-15", "figure-16"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    return run("TANGO", PARTS, parts.measurements, tables.line_of, tables.document, arguments)

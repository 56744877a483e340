"""Reproduce AES-SpMM's figures (Song et al., 2025: Figures 5, 6 and 7, Table 3) on the same axes, next to the paper's numbers.

    python3 benchmarks/paper.py aes [--only figure-5 table-3 ...] [--records FILE] [--out FILE] [--repetitions N]

- ``figure-5`` and ``figure-6`` contain no times and run on any machine, but only when named: sampling rates from the degrees (without a
  GPU, not of the two largest graphs), and accuracies of a GCN and a GraphSAGE that are trained here, on the CPU (half an hour).
- ``figure-7`` and ``table-3`` are measured on this machine's GPU.

After each part, its records, one JSON object per line, replace the old ones in ``--records``, and ``--out`` (by default
docs/aes-tables.md) is written again from all of them.

cora, citeseer, pubmed, amazon_computers and coauthor_cs are real graphs (files of ``cases/graphs.py``). The paper's other graphs have no
public files here. Synthetic graphs of their sizes and of kind ``communities``, marked *, stand in for them (proteins with the 39 561 252
entries that the paper counts); they have no labels and so no accuracies. Figure 7 is a product ``D^-1/2 A D^-1/2 X`` of 64 columns, as in
suite ``sampled``: a stored sample, replayed in turns with the fastest correct product of cuSPARSE. Table 3 is the share that copying the
features from page-locked memory has in the time of copying plus one inference of a two-layer GCN of 64 hidden units (dense products by
cuBLAS).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from benchmarks.papers.aes import gpu, parts, tables
from benchmarks.papers.program import Record, run

PARTS = ["figure-5", "figure-6", "figure-7", "table-3"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    return run("AES", PARTS, measurements, tables.line_of, tables.document, arguments, PARTS[2:])


def measurements(
    part: str, commit: str | None, repetitions: int
) -> Iterator[tuple[str, Callable[[], Iterable[Record]]]]:
    """Yield a name and a measurement for each graph of a part."""
    if part == "figure-5":
        for name in dict.fromkeys((*parts.PAPERS, *parts.LABELLED)):
            yield f"{part}-{name}", partial(parts.figure_5, name, commit)
    elif part == "figure-6":
        for name in parts.LABELLED:
            for kind in ("gcn", "sage"):
                yield f"{part}-{kind}-{name}", partial(parts.figure_6, name, kind, commit)
    else:
        for name in parts.PAPERS:
            yield f"{part}-{name}", partial(gpu.measured, part, name, commit, repetitions)

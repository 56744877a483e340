"""Reproduce TC-GNN's tables and figures (ATC'23) on the same axes: ours, PyTorch, PyTorch Geometric, cuSPARSE, the paper's.

    python3 benchmarks/paper.py tcgnn [--only figure-6a table-5 ...] [--records FILE] [--out FILE] [--repetitions N]

Figure 7 counts tiles on the CPU; all other parts are measured on this machine's GPU: Tables 1, 5 and 6, Figures 6 (a, b, c), 8, 9 and 10.
After each part, its records, one JSON object per line, replace the old ones in ``--records``. ``--out`` (by default docs/tcgnn-tables.md)
is written again from all of them, and from those of other machines if ``--records`` is a file of ``results``.

Graphs are the files of ``cases/graphs.py``; where there is none, a seeded synthetic graph of the same size is used, and the table says so.
Products are prepared and have no weights. They run in float32 and in TF32, are compared with float64 results, and are replayed from CUDA
graphs in turns with the fastest correct product of cuSPARSE (see ``suites/spmm.py``). Epochs (``papers/tcgnn/epochs.py``) train whole
networks: before anything is timed, both sides must get the same gradients and losses from equal weights. The fastest variant of each side
counts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.papers.program import Record, run
from benchmarks.papers.tcgnn import tables

#: The module that measures each part; only that one is imported, so that counting tiles needs no GPU.
PARTS = {
    "table-1": "parts",
    "table-1-counters": "counters",
    "figure-6a": "epochs",
    "figure-6b": "epochs",
    "figure-6c": "parts",
    "figure-7": "tiles",
    "figure-8": "epochs",
    "figure-9": "parts",
    "table-5": "parts",
    "table-6": "parts",
    "figure-10": "parts",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts, and write the records and tables."""
    return run("TC-GNN", list(PARTS), measurements, tables.line_of, tables.document, arguments)


def measurements(part: str, commit: str | None, repetitions: int) -> Iterator[tuple[str, Callable[[], list[Record]]]]:
    """Yield a name and a measurement of one record for each line of a part."""
    module: Any = importlib.import_module(f"benchmarks.papers.tcgnn.{PARTS[part]}")
    for name, measure in module.measurements(part, commit, repetitions):
        yield name, partial(_alone, measure)


def _alone(measure: Callable[[], Record]) -> list[Record]:
    return [measure()]

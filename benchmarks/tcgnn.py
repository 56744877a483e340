"""TC-GNN's figures again (ATC'23: Figures 7 and 8, Tables 5 and 6), on the same axes: ours, cuSPARSE's, the paper's.

    python3 benchmarks/tcgnn.py [--only figure-7 table-5 ...] [--records FILE] [--out FILE] [--repetitions N]

Figure 7 counts tiles on the CPU; the others are measured on the GPU at hand. After each part its records, one JSON object a line, take the
place of the old ones in ``--records``, and ``--out`` (by default docs/tcgnn-tables.md) is written anew from all of them.

Graphs are the files of ``graphs.py``; where there is none, a seeded synthetic one of the same size stands in, and the table says so.
Products are prepared ones without weights, in float32 and in TF32, compared with float64 results and replayed from CUDA graphs in turns
with the fastest right product of cuSPARSE (see ``suite_spmm.py``).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PARTS = ("figure-7", "figure-8", "table-5", "table-6")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write records and tables."""
    # The folder of a script is not always searched (PYTHONSAFEPATH), so what lies beside it is imported late.
    sys.path[:] = [*sys.path, *({str(HERE)} - set(sys.path))]
    driver, tables = (importlib.import_module(name) for name in ("paper_tables", "tcgnn_tables"))
    status: int = driver.run("TC-GNN", PARTS, measurements, tables.line_of, tables.document, arguments)
    return status


def measurements(
    part: str, commit: str | None, repetitions: int
) -> Iterator[tuple[str, Callable[[], list[dict[str, Any]]]]]:
    """A name and a measurement of one record for each line of a part."""
    module: Any = importlib.import_module("tcgnn_tiles" if part == "figure-7" else "tcgnn_parts")
    for name, measure in module.measurements(part, commit, repetitions):
        yield name, partial(_alone, measure)


def _alone(measure: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    return [measure()]


if __name__ == "__main__":
    sys.exit(main())

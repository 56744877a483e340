"""Write docs/tile-statistics.md: statistics of translation, FRDC and batching on real graphs.

``python benchmarks/tile_statistics.py [--out FILE] [GRAPH ...]``; counts do not depend on the machine. ``cases/graphs.py`` finds the files
of graphs; a missing one is left out and named on stderr.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse.cli.convert import Loaded
from bitsparse.cli.inspect import statistics
from bitsparse.graph import batch, partition, zero_tile_share

GRAPHS = ("cora", "citeseer", "pubmed", "artist", "PROTEINS_full", "DD", "COLLAB")
PARTS_PER_BATCH = 20
NODES_PER_PART, MOST_PARTS = 32, 1500
TEXT = """# Tiles of real graphs

What `bitsparse inspect` counts on public graphs; made by `python benchmarks/tile_statistics.py`.

- **Tiles** of 16 x 8 are those of SpMM, of 16 x 16 those of SDDMM (TC-GNN Fig. 7): how many hold an entry where the columns stand, how
  many are left once the columns of each window of 16 rows are condensed, and the share saved. TC-GNN reports 67 % on average.
- **Fill** is the mean share of a 16 x 8 tile that holds entries, before and after.
- **FRDC** blocks are 4 x 4; the format pays where one holds many entries.
- **Bytes** are those of the whole container as a pattern, in units of CSR without values (int32); TCTiledCSR with its index of windows,
  the CSR array included.
- **Zero 8 x 128 tiles**: the share that a 1-bit product skips, of the whole adjacency and of block-diagonal batches of {per_batch} parts
  (QGTC Fig. 8). Parts are those of METIS with seed 0, of about {per_part} nodes, at most {most}; for sets of graphs (PROTEINS_full, DD,
  COLLAB) they are the graphs.

"""
HEADINGS = (
    ("graph", "nodes", "entries", "16 x 8 tiles", "condensed", "saved", "16 x 16 tiles", "condensed", "saved", "fill", "fill condensed"),
    ("graph", "entries per FRDC block", "FRDC bytes", "TCTiledCSR bytes", "zero tiles", "parts", "zero in batches", "between parts"),
)  # fmt: skip
CLOSING = """
Sets of many small dense graphs (PROTEINS_full, COLLAB) have little to condense, as the paper says: neighbours stand side by side already.
There FRDC gains, as a block holds many bits. On scattered graphs (artist, pubmed) a block holds hardly more than one entry and FRDC takes
more than CSR, but condensing saves most tiles.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Count tiles and write the page."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/tile-statistics.md.")
    parser.add_argument("graphs", nargs="*", default=GRAPHS, metavar="GRAPH", help=f"default: {' '.join(GRAPHS)}")
    default = Path(__file__).resolve().parents[1] / "docs" / "tile-statistics.md"
    parser.add_argument("--out", type=Path, default=default, metavar="FILE")
    options = parser.parse_args(arguments)
    # Only after bitsparse is imported: this folder holds the sources of bitsparse too, but not its compiled part.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    graph: Any = importlib.import_module("benchmarks.cases.graphs").graph
    tables: tuple[list[list[str]], list[list[str]]] = ([], [])
    for name in options.graphs:
        data, source = graph(name)
        if source.startswith("synthetic"):
            print(f"{name}: no file, left out", file=sys.stderr)
            continue
        print(name, file=sys.stderr)
        facts = statistics(Loaded(name, "npz", data.adjacency, data))
        for table, row in zip(tables, rows(facts, *batches(data, source)), strict=True):
            table.append(row)
    text = TEXT.format(per_batch=PARTS_PER_BATCH, per_part=NODES_PER_PART, most=MOST_PARTS)
    options.out.write_text(text + "\n".join(map(markdown, HEADINGS, tables)) + CLOSING, encoding="utf-8")
    return 0


def batches(data: Any, source: str) -> tuple[int, float, float]:
    """The number of parts, the share of zero tiles in batches of them, and the share of entries between parts."""
    labels = graph_numbers(data, source)
    if labels is None:
        parts = min(MOST_PARTS, -(-data.num_nodes // NODES_PER_PART))
        labels = partition(data.adjacency, parts, seed=0)
    made = list_of_shares(data.adjacency, labels)
    return int(np.unique(labels).size), *made


def list_of_shares(adjacency: Any, labels: Any) -> tuple[float, float]:
    """The shares of zero tiles and of dropped entries, counted batch by batch."""
    dropped = 0

    def counted() -> Any:
        nonlocal dropped
        for one in batch(adjacency, labels, parts_per_batch=PARTS_PER_BATCH):
            dropped += one.dropped
            yield one

    share = zero_tile_share(counted())
    return share, dropped / max(adjacency.nnz, 1)


def graph_numbers(data: Any, source: str) -> Any:
    """For a set of graphs, the number of each node's graph, from the file; None for a single graph."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    with np.load(Path(os.environ.get("BITSPARSE_DATA") or beside) / source, allow_pickle=False) as file:
        return file.get("graph_indicator")


def rows(facts: dict[str, Any], parts: int, zero: float, dropped: float) -> tuple[list[str], list[str]]:
    """One row of each table."""
    spmm, sddmm, product = facts["tiles"]
    csr = facts["bytes"]["csr"]
    first = [facts["name"], f"{facts['shape'][0]:,}", f"{facts['entries']:,}"]
    for tile in (spmm, sddmm):
        first += [f"{tile['before']:,}", f"{tile['after']:,}", f"{tile['reduction']:.1%}"]
    first += [f"{spmm['fill_before']:.1%}", f"{spmm['fill_after']:.1%}"]
    second = [
        facts["name"],
        f"{facts['frdc']['entries_per_tile']:.2f}",
        f"{facts['bytes']['frdc'] / csr:.2f}",
        f"{facts['bytes']['tiled'] / csr:.2f}",
        f"{1 - product['before'] / product['total']:.2%}",
        f"{parts:,}",
        f"{zero:.1%}",
        f"{dropped:.1%}",
    ]
    return first, second


def markdown(headings: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Format a table with right-aligned numbers."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

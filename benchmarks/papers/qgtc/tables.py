"""The document that ``papers/qgtc/program.py`` makes from its records, with the numbers of QGTC's authors next to ours.

Table 3 is printed in the paper. Figures 7c and 9 are plots there; for some of their points we show the expected numbers that are printed in
the instructions of the authors' artifact (github.com/YukeWang96/QGTC_PPoPP22, docs/index.md). All are from an RTX 3090.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.papers.tables import Columns, Record, Rows, lines, of_params, table, taken_on
from benchmarks.papers.tables import document as document_of

__all__ = ["document"]

#: (N, D): CUTLASS int4, QGTC at 1, 2, 3 and 4 bits, in TFLOPs.
PAPER_TABLE_3 = {
    (2048, 32): (10.36, 32.65, 19.99, 14.40, 11.30),
    (4096, 32): (12.28, 81.41, 46.23, 32.27, 24.75),
    (8192, 32): (12.67, 94.58, 50.82, 35.22, 26.31),
    (2048, 64): (21.40, 63.94, 39.41, 29.83, 22.15),
    (4096, 64): (24.66, 89.18, 51.21, 35.17, 25.38),
    (8192, 64): (24.70, 104.66, 55.16, 40.77, 31.07),
}
#: (N, D): cuBLASgemmEX int8, QGTC at 2 and 4 bits.
ARTIFACT_7C = {
    (1024, 16): (0.55, 3.934, 2.488),
    (2048, 16): (2.58, 10.086, 6.561),
    (4096, 16): (3.60, 20.764, 12.409),
    (1024, 32): (3.89, 7.864, 4.456),
    (2048, 32): (5.49, 19.762, 12.807),
    (4096, 32): (6.49, 20.951, 13.929),
    (1024, 64): (4.38, 15.429, 10.683),
    (2048, 64): (6.30, 25.055, 12.328),
    (4096, 64): (6.65, 26.818, 14.196),
}
#: N: QGTC at 1 bit, D = 16, 32, ..., 1024.
ARTIFACT_9 = {
    1024: (5.831, 11.717, 23.158, 28.417, 32.089, 41.743, 37.954),
    2048: (16.323, 32.027, 37.444, 40.646, 44.151, 49.687, 52.970),
    4096: (34.425, 40.175, 46.759, 52.517, 59.508, 64.172, 66.490),
}
#: The milliseconds of a Cluster GCN epoch in the artifact's instructions, which do not say for which side and number of bits.
ARTIFACT_7A = {"artist": 263.646, "blogcatalog": 209.495, "ppi": 189.016, "arxiv": 208.616}
#: QGTC's mean speedup over DGL, as the paper states it.
PAPER_7 = {"figure-7a": 2.6, "figure-7b": 2.8}
HEAD = """# QGTC's tables, again

Made by `python3 benchmarks/paper.py qgtc` from its records; the protocol stands there. Products are N x N x D of a 1-bit adjacency and
features of some bits; TFLOPs count 2 N N D operations whatever the number of bits, as in the paper (Wang, Feng, Ding: QGTC, PPoPP'22).
"int8" is cuBLASLt through `torch._int_mm` on the same integers. The authors' numbers are from an RTX 3090, so what compares is the ratio
to int8 on each side, not the hardware. Sizes without a record are left out or shown as "-".
"""
#: Written by hand from the records in results/h200: check it again when these change.
SHORT = """
**In short**

- **Reproduced.** Products of 1 to 4 bits are quicker than int8 at every size of Table 3, those of 2 to 7 bits at every size of Figure
  7c, and fewer bits are quicker than more, but that 3 bits are often slower than 4. Most 8 x 128 tiles of batches are empty: at most
  53 % are processed (Figure 8).
- **Only in part.** Non-zero tile reuse gains up to 1.5x at N = 1024 and 16 bits, and next to nothing at N = 8192 (Figure 10). The
  ratios of Figures 7a and 7b are far above the paper's, but the peer is another one, and launches of small batches are most of its
  time: on products, where they are not, they are 2x to 4x.
- **Stand-ins.** ppi, blogcatalog, arxiv and products are seeded synthetic graphs of those sizes; artist, PROTEINS_full and DD are the
  graphs themselves. The networks have random weights: nothing here says anything about accuracy.
"""


def document(records: Iterable[Record]) -> str:
    """Write all parts that have records."""
    sections: dict[str, tuple[str, Callable[[Rows], str]]] = {
        "table-3": ("Table 3: 1 to 4 bits, TFLOPs", table_3),
        "figure-7a": ("Figure 7a: Cluster GCN, 3 x 16", figure_7),
        "figure-7b": ("Figure 7b: batched GIN, 3 x 64", figure_7),
        "figure-7c": ("Figure 7c: 2 to 7 bits against int8, TFLOPs", figure_7c),
        "figure-8": ("Figure 8: zero-tile jumping", figure_8),
        "figure-9": ("Figure 9: 1 bit, TFLOPs by size", figure_9),
        "figure-10": ("Figure 10: non-zero tile reuse", figure_10),
    }
    return document_of(HEAD, sections, records, SHORT)


def table_3(rows: Rows) -> str:
    """Compare our rates with the paper's, for 1 to 4 bits."""
    headings = ["N", "D", "int4, paper", "int8, here"]
    headings += [f"{count(bits)}, {whose}" for bits in (1, 2, 3, 4) for whose in ("paper", "ours")]
    body = []
    for size, group in by_size(rows).items():
        paper = PAPER_TABLE_3[size]
        cells = [f"{paper[0]:.2f}", tflops(group[0], "peer_tflops")]
        for record in group:
            bits = record["params"]["bits"]
            cells += [f"{paper[bits]:.2f}", f"**{tflops(record)}**"]
        body.append([*map(str, size), *cells])
    return beside_int8(rows) + table(headings, body)


def figure_7c(rows: Rows) -> str:
    """Show our rates by number of bits, and the artifact's numbers."""
    widths = sorted({record["params"]["bits"] for record in rows})
    headings = ["N", "D", "int8, here", *(f"{bits} bits" for bits in widths), "ratio to int8"]
    headings += ["int8, authors", "2 bits, authors", "4 bits, authors"]
    body = []
    for size, group in by_size(rows).items():
        ratios = [record["ratio"] for record in group]
        authors = [f"{value:.2f}" for value in ARTIFACT_7C[size]]
        cells = [tflops(group[0], "peer_tflops"), *map(tflops, group), f"{max(ratios):.2f} - {min(ratios):.2f}"]
        body.append([*map(str, size), *cells, *authors])
    return beside_int8(rows) + table(headings, body)


def figure_7(rows: Rows) -> str:
    """Show the epoch times by number of bits."""
    part = rows[0]["params"]["part"]
    widths = sorted({record["params"]["bits"] for record in rows})
    headings = ["graph", "nodes", "edges inside parts", "PyTorch Geometric, ms", *(count(bits) for bits in widths)]
    headings += ["ratio", f"bytes moved, {count(widths[0])}", f"{count(widths[-1])}"]
    groups: dict[str, dict[int, dict[str, Any]]] = {}
    for record in rows:
        groups.setdefault(record["params"]["graph"], {})[record["params"]["bits"]] = record
    body = []
    for name, group in groups.items():
        first = next(iter(group.values()))
        p = first["params"]
        ratios = [record["ratio"] for record in group.values()]
        cells = [f"{group[bits]['ours_ms']:.2f}" if bits in group else "-" for bits in widths]
        peers = [record["peer_ms"] for record in group.values()]
        label = f"{name} *" if p["source"].startswith("synthetic") else name
        cells = [f"{p['nodes']:,}", f"{p['kept_edges']:,}", f"{min(peers):.2f}", *cells]
        cells += [f"{max(ratios):.1f}x - {min(ratios):.1f}x"]
        for bits in (widths[0], widths[-1]):
            moved = group[bits]["params"] if bits in group else None
            cells.append(f"{moved['plain_bytes'] / moved['moved']:.1f}x fewer" if moved else "-")
        body.append([label, *cells])
    everything = [record["ratio"] for record in rows]
    mean = math.exp(sum(map(math.log, everything)) / len(everything))
    text = (
        "Milliseconds of an epoch: 1500 METIS parts, 20 a batch, copied from pinned memory batch by batch, all layers, logits in\n"
        "the nodes' order; see `benchmarks/suites/cluster.py`. The peer is PyTorch Geometric in float32 on the same batches, overlapping\n"
        "copies and computation too (the paper's is DGL); bytes are compared with int64 edges and float32 features. Graphs marked * are\n"
        f"synthetic, of that size. Geometric mean of all cells: {mean:.1f}x; the paper's mean over DGL, RTX 3090: {PAPER_7[part]}x.\n"
    )
    if part == "figure-7a":
        printed = ", ".join(f"{name} {ms:.0f}" for name, ms in ARTIFACT_7A.items())
        text += f"The instructions of the authors' artifact print these milliseconds as expected, for whichever side: {printed}.\n"
    where = f"{rows[0]['gpu']}, {rows[0]['driver']}, {rows[0]['peer'].rpartition(',')[0]}"
    return f"{where}.\n\n{text}\n{table(headings, body, left=1)}"


def figure_8(rows: Rows) -> str:
    """Show the share of the batches' tiles that is processed."""
    text = (
        "8 x 128 tiles of block-diagonal batches of 20 parts, METIS with 1500 parts as in the paper: how many of them a product with\n"
        "zero-tile jumping processes. Tiles without an edge either touch no part's block, or lie where a block is empty. The paper's bars\n"
        "are not printed as numbers; PROTEINS_full and artist are graphs of its own; the synthetic ones have the sizes of others.\n\n"
        "![Share of tiles processed](qgtc-figures.png)\n\n"
        "Drawn by `benchmarks/papers/qgtc/plot.py` from these records: the share of tiles that is processed, counted on a CPU.\n\n"
    )
    return text + lines(rows, TILES, left=1)


def figure_9(rows: Rows) -> str:
    """Show our rates and int8's by N and D."""
    widths = sorted({record["params"]["d"] for record in rows})
    by_n: dict[int, dict[int, dict[str, Any]]] = {}
    for record in rows:
        by_n.setdefault(record["params"]["n"], {})[record["params"]["d"]] = record
    headings = ["N", *(f"D = {d}" for d in widths)]

    def rates(name: str) -> str:
        lines = (
            [str(n), *(tflops(group[d], name) if d in group else "-" for d in widths)] for n, group in by_n.items()
        )
        return table(headings, lines)

    parts = [
        rates("tflops"),
        "int8:\n\n" + rates("peer_tflops"),
        "The authors' artifact:\n\n"
        + table(headings, [[str(n), *(f"{value:.1f}" for value in values)] for n, values in ARTIFACT_9.items()]),
    ]
    return beside_int8(rows) + "\n".join(parts)


def figure_10(rows: Rows) -> str:
    """Compare the rates with and without reuse of tiles."""
    headings = (
        "bits of X",
        "N",
        "without reuse",
        "with reuse",
        "gain",
        "chosen by the library",
        "int8",
        "ratio to int8",
    )
    groups: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    for record in rows:
        p = record["params"]
        groups.setdefault((p["bits"], p["n"]), {})[p["variant"]] = record
    body = []
    for size, variants in groups.items():
        if len(variants) < 3:
            continue  # the run ended early
        without, with_reuse, chosen = (variants[name] for name in ("no-reuse", "reuse", ""))
        cells = [tflops(without), tflops(with_reuse), f"{without['ours_ms'] / with_reuse['ours_ms']:.2f}x"]
        cells += [f"{tflops(chosen)} ({chosen['params']['kernel']})", tflops(chosen, "peer_tflops")]
        body.append([*map(str, size), *cells, f"{chosen['ratio']:.2f}x"])
    text = (
        "TFLOPs at D = 1024. With reuse, planes of X lie side by side, so that a tile of A in shared memory is multiplied by up to four\n"
        "of them; without, each plane is a pass of its own over A. Both are the planes kernel, with the best tiling of either kind.\n\n"
    )
    return beside_int8(rows) + text + table(headings, body)


# ---- pieces
def beside_int8(rows: Rows) -> str:
    """Say on which machine the numbers were measured, and against which peer."""
    return taken_on(rows, "Ours and int8", rows[0]["peer"].partition(" _")[0])


def share_of_tiles(count: Callable[[dict[str, Any]], int]) -> Callable[[Record], str]:
    """Return a column: a count of tiles as a share of all tiles."""
    return lambda record: f"{count(record['params']) / record['params']['tiles']:.1%}"


TILES: Columns = (
    ("graph", lambda record: record["params"]["source" if is_synthetic(record) else "graph"]),
    *((name, of_params(name, "{:,}")) for name in ("nodes", "entries", "parts", "tiles", "processed")),
    ("share", share_of_tiles(lambda p: p["processed"])),
    ("zero: no part there", share_of_tiles(lambda p: p["zero_between"])),
    ("zero: no edge there", share_of_tiles(lambda p: p["tiles"] - p["zero_between"] - p["processed"])),
)


def is_synthetic(record: Record) -> bool:
    """Whether a synthetic graph was used in place of the real one."""
    return str(record["params"]["source"]).startswith("synthetic")


def by_size(rows: Rows) -> dict[tuple[int, int], Rows]:
    """Group the records by (N, D), in their order."""
    found: dict[tuple[int, int], Rows] = {}
    for record in rows:
        found.setdefault((record["params"]["n"], record["params"]["d"]), []).append(record)
    return found


def tflops(record: dict[str, Any], name: str = "tflops") -> str:
    """Format a rate with about three digits."""
    value = record["params"][name]
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def count(bits: int) -> str:
    """Write a number of bits: ``1 bit``, ``2 bits``."""
    return f"{bits} bit" if bits == 1 else f"{bits} bits"

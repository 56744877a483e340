"""The document that ``papers/tcgnn/program.py`` makes from its records, with the numbers of TC-GNN's authors next to ours.

Tables 1, 5 and 6 are printed in the paper; the figures are plots, and the text gives their averages. All are from an RTX 3090.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.papers.tables import (
    Columns,
    Record,
    Rows,
    lines,
    mean_ratio,
    ms,
    name_of,
    of_params,
    ratio,
    taken_on,
    times,
)
from benchmarks.papers.tables import document as document_of

__all__ = ["document", "line_of"]

#: Percentages in DGL: the aggregation's share of the time of a GCN layer, its cache hit rate, and its occupancy.
PAPER_TABLE_1 = {"cora": (88.56, 37.22, 15.06), "citeseer": (86.52, 38.18, 15.19), "pubmed": (94.39, 37.22, 16.24)}
#: TC-GNN's average speedup over the peer, per epoch, by network.
PAPER_FIGURE_6 = {
    "figure-6a": {
        "gcn": "2.23x on graphs of type I, 1.38x on II, 1.59x on III",
        "agnn": "1.93x on graphs of type I, 1.70x on II, 1.51x on III",
    },
    "figure-6b": {"gcn": "1.76x", "agnn": "2.82x"},
}
#: The numbers of warps in the paper's Figure 9.
WARPS_OF_A_BLOCK = (1, 2, 4, 8, 16, 32)
PAPER_FIGURE_6C = "1.76x"
#: Milliseconds of tSparse, Triton and TC-GNN.
PAPER_TABLE_5 = {
    "amazon0505": (18.60, 31.64, 4.09),
    "artist": (9.15, 12.86, 3.06),
    "com-amazon": (13.84, 15.50, 3.26),
    "soc-BlogCatalog": (9.74, 14.38, 3.59),
    "amazon0601": (11.93, 21.78, 3.41),
}
#: By number of dense blocks in a window: GFLOPs of cuSPARSE's blocked product and of TC-GNN.
PAPER_TABLE_6 = {
    1: (773.86, 12_686.02),
    2: (1_597.83, 11_010.75),
    4: (3_348.75, 18_164.08),
    8: (6_528.10, 25_883.10),
    16: (12_955.40, 23_865.99),
    32: (26_061.70, 16_629.28),
}
PAPER_FIGURE_7, PAPER_FIGURE_8 = 0.6747, 0.0443
HEAD = """# TC-GNN's tables, again

Made by `python3 benchmarks/paper.py tcgnn` from its records; the protocol stands there and in `suites/spmm.py`. Products are without
weights. The authors' numbers (Wang, Feng, Wang, Huang, Ding: TC-GNN, USENIX ATC 2023) are from an RTX 3090, so what compares is the order
of the libraries on each side, not the hardware. Graphs marked * are seeded synthetic ones of the size of the graph named, not the graph
itself: counts of tiles and reuse depend on it. What has no record is left out.
"""
#: Written by hand from the records of these parts in results: check it again when these change.
SHORT_OF = ("figure-6a", "figure-6b", "figure-6c", "figure-7", "figure-8", "figure-9", "table-1", "table-5", "table-6")
SHORT = """
**In short**

- **Reproduced.** Condensing columns saves most tiles of scattered graphs, and little where neighbours stand side by side already
  (PROTEINS_full, Figure 7). Products are quicker than cuSPARSE's in every row of Table 5, by 1.25x to 4.15x. Whole epochs are quicker than
  PyTorch Geometric's, GCN 3.6x and AGNN 14x on average (the paper: 1.76x and 2.82x), and than PyTorch's alone with cuSPARSE, 1.6x and 4.2x
  (Figures 6a and 6b). Aggregation is most of a first layer (Table 1).
- **Not reproduced.** That tensor cores make the difference on such graphs: in Table 5 our products with and without permission to use
  them take the same time within 3 %, as the kernel without tensor cores is chosen for both. They matter where windows are dense, from
  8 blocks a window on (Table 6). cuSPARSE's blocked product is no opponent on these graphs (Figure 6c: 8 to 240 times as long,
  where its matrix fits at all); on dense blocks (Table 6) it takes 1.07 to 1.73 times as long as ours. More warps in a block do not help
  our kernel on tensor cores, whose warps share nothing (Figure 9).
- **Not run here.** DGL, tSparse and Triton: their columns are the paper's. What its Table 6 counts as an operation is not known.
- **Stand-ins.** Eight of the fourteen graphs, marked *. They are scattered, which raises the mean of Figure 7.
"""


def line_of(record: Record) -> str:
    """Return one line for the terminal."""
    params = record["params"]
    part = params["part"]
    if part == "figure-7":
        return f"{record['case']:<28} {params['spmm']['reduction']:.1%} and {params['sddmm']['reduction']:.1%} of tiles saved"
    if part == "table-1-counters":
        return f"{record['case']:<40} {params['hits']:.1f}% of sectors hit, {params['occupancy']:.1f}% occupied, {params['kernel'][:60]}"
    if part in PAPER_FIGURE_6:
        found = f"ours {record['ours_ms']:.4f} ms, {params['peer_way']} {record['peer_ms']:.4f} ms, {ratio(record)}"
        return f"{record['case']:<36} {found}, without edges {params['without_edges_ms']:.4f} ms"
    found = f"fp32 {params['fp32_ms']:.4f} ms, tf32 {params['tf32_ms']:.4f} ms, cuSPARSE {ms('vendor_ms')(record)} ms"
    if part == "figure-9":
        found += "".join(f", {count} warps {params[f'warps_{count}_ms']:.4f} ms" for count in WARPS_OF_A_BLOCK)
    more = {"blocked_ms": "in blocks", "update_ms": "update", "translate_ms": "translation", "epoch_ms": "an epoch"}
    return f"{record['case']:<28} {found}" + "".join(
        f", {what} {params[name]:.4f} ms" for name, what in more.items() if name in params
    )


# ---- columns
def tiles(use: str, name: str, form: str) -> Callable[[Record], str]:
    """Return a column: a count of tiles."""
    return lambda record: form.format(record["params"][use][name])


def printed(figures: Mapping[Any, tuple[float, ...]], key: str, index: int, form: str) -> Callable[[Record], str]:
    """Return a column of one of the paper's tables."""
    return lambda record: form.format(figures[record["params"][key]][index])


def microseconds(name: str) -> Callable[[Record], str]:
    """Return a column: a time from the record or from its parameters."""
    return lambda record: f"{1e3 * record.get(name, record['params'].get(name)):.1f}"


SAVED: Columns = (
    ("graph", name_of),
    ("type", of_params("kind")),
    ("nodes", of_params("nodes", "{:,}")),
    ("entries", of_params("entries", "{:,}")),
    *(
        (heading, tiles(use, name, form))
        for use, size in (("spmm", "16 x 8"), ("sddmm", "16 x 16"))
        for heading, name, form in (
            (f"{size} tiles", "before", "{:,}"),
            ("condensed", "after", "{:,}"),
            ("saved", "reduction", "{:.1%}"),
        )
    ),
)
TRANSLATION: Columns = (
    ("graph", name_of),
    ("entries", of_params("entries", "{:,}")),
    ("translation, ms", of_params("translate_ms", "{:.3f}")),
    ("one aggregation, ms", ms("ours_ms")),
    ("an epoch, ms", ms("epoch_ms")),
    ("share of 200 epochs", of_params("training_share", "{:.2%}")),
    ("of their aggregations", of_params("share", "{:.2%}")),
)
LAYER: Columns = (
    ("graph", name_of),
    ("columns that are summed", of_params("D")),
    ("product with weights, ms", ms("update_ms")),
    ("ours, ms", ms("ours_ms")),
    ("share", of_params("ours_share", "{:.0%}")),
    ("cuSPARSE, ms", ms("vendor_ms")),
    ("share", of_params("vendor_share", "{:.0%}")),
    ("share, paper", printed(PAPER_TABLE_1, "graph", 0, "{:.0f}%")),
)
COUNTERS: Columns = (
    ("graph", name_of),
    ("columns", of_params("D")),
    ("who", of_params("side")),
    ("hits in the first cache", of_params("hits", "{:.1f}%")),
    ("occupancy", of_params("occupancy", "{:.1f}%")),
    ("hits, paper", printed(PAPER_TABLE_1, "graph", 1, "{:.1f}%")),
    ("occupancy, paper", printed(PAPER_TABLE_1, "graph", 2, "{:.1f}%")),
)
EPOCHS: Columns = (
    ("graph", name_of),
    ("type", of_params("kind")),
    ("features", of_params("features")),
    ("classes", of_params("classes")),
    ("ours, ms", ms("ours_ms")),
    ("peer, ms", ms("peer_ms")),
    ("ratio", ratio),
    ("the peer's way", of_params("peer_way")),
    ("without edges, ms", ms("without_edges_ms")),
)
IN_BLOCKS: Columns = (
    ("graph", name_of),
    ("type", of_params("kind")),
    ("blocks a row", of_params("blocks_of_a_row", "{:,}")),
    ("edges in blocks", of_params("blocked_share", "{:.3%}")),
    ("in our tiles", of_params("tiles_share", "{:.2%}")),
    ("bSpMM, ms", ms("blocked_ms")),
    ("ours, ms", ms("ours_ms")),
    ("of bSpMM", times("blocked_ms")),
    ("cuSPARSE CSR, ms", ms("vendor_ms")),
    ("why not", of_params("blocked_missing")),
)
WARPS: Columns = (
    ("graph", name_of),
    ("edges of a window", of_params("edges_of_a_window", "{:.0f}")),
    ("warps, paper's rule", lambda record: str(max(1, int(record["params"]["edges_of_a_window"] // 32)))),
    *((f"{count}, us", microseconds(f"warps_{count}_ms")) for count in WARPS_OF_A_BLOCK),
    ("chosen kernel, us", microseconds("ours_ms")),
    ("its name", of_params("tf32_kernel")),
)
RATES: Columns = (
    ("graph", name_of),
    ("D", of_params("D")),
    ("ours fp32", of_params("fp32_gflops", "{:,.0f}")),
    ("ours tf32", of_params("tf32_gflops", "{:,.0f}")),
    ("cuSPARSE", of_params("vendor_gflops", "{:,.0f}")),
    ("ratio", ratio),
)
LIBRARIES: Columns = (
    ("graph", name_of),
    ("D", of_params("D")),
    ("ours fp32, ms", ms("fp32_ms")),
    ("ours tf32, ms", of_params("tf32_ms", "**{:.4f}**")),
    ("cuSPARSE, ms", ms("vendor_ms")),
    ("ratio", ratio),
    *(
        (f"{library}, paper", printed(PAPER_TABLE_5, "graph", i, "{:.2f}"))
        for i, library in enumerate(("tSparse", "Triton", "TC-GNN"))
    ),
)
BLOCKS: Columns = (
    ("DB/W", of_params("blocks")),
    ("sparsity", of_params("sparsity", "{:.2%}")),
    ("ours fp32", of_params("fp32_gflops", "{:,.0f}")),
    ("ours tf32", of_params("tf32_gflops", "{:,.0f}")),
    ("cuSPARSE CSR", of_params("vendor_gflops", "{:,.0f}")),
    ("bSpMM", of_params("blocked_gflops", "{:,.0f}")),
    ("ours tf32, us", lambda record: f"{1e3 * record['params']['tf32_ms']:.2f}"),
    *(
        (f"{library}, paper", printed(PAPER_TABLE_6, "blocks", i, "{:,.0f}"))
        for i, library in enumerate(("bSpMM", "TC-GNN"))
    ),
)


# ---- sections
def figure_7(rows: Rows) -> str:
    """Show the share of tiles that is saved."""
    saved = [float(row["params"][use]["reduction"]) for row in rows for use in ("spmm", "sddmm")]
    mean = sum(saved) / len(saved)
    text = f"Mean of both columns: {mean:.1%} saved; the paper's mean over its graphs is {PAPER_FIGURE_7:.1%}.\n\n"
    return text + lines(rows, SAVED, 2)


def figure_6(part: str, peer: str) -> Callable[[Rows], str]:
    """Return a function that writes the epoch times of both networks."""

    def text(rows: Rows) -> str:
        found = taken_on(rows, f"Ours and {rows[0]['peer']}") + peer
        for network, what in (("gcn", "GCN, 2 layers, 16 columns"), ("agnn", "AGNN, 4 layers, 32 columns")):
            some = [row for row in rows if row["params"]["network"] == network]
            if not some:
                continue
            means = [mean_ratio(row for row in some if row["params"]["kind"] == kind) for kind in ("I", "II", "III")]
            found += (
                f"\n**{what}.** Geometric mean of the ratios: {mean_ratio(some)}; by type {', '.join(means)}. The paper's average:\n"
                f"{PAPER_FIGURE_6[part][network]}.\n\n"
            )
            found += lines(some, EPOCHS, 2)
        return found

    return text


def section(text: str, columns: Columns, left: int = 1) -> Callable[[Rows], str]:
    """Return a function that writes a section with one table of times."""
    return lambda rows: taken_on(rows, "Ours and cuSPARSE") + text + lines(rows, columns, left)


SECTIONS: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "table-1": (
        "Table 1: what a layer of GCN spends its time on",
        section(
            "One layer with 16 columns: the features are summed first, as wide as the data set has them, or their product with the\n"
            "weights is (TF32 allowed), whichever comes first in a framework. The share is the sum's of both. The paper profiles DGL.\n\n",
            LAYER,
        ),
    ),
    "table-1-counters": (
        "Table 1, counters: caches and occupancy of the sums",
        section("Of the longest kernel of each sum, as `ncu` counts them; the paper's are DGL's.\n\n", COUNTERS, 3),
    ),
    "figure-6a": (
        "Figure 6a: epochs of training, against products of cuSPARSE",
        figure_6(
            "figure-6a",
            "The paper's opponent is DGL, whose products are cuSPARSE's; it does not run with the PyTorch of today. In its place stands\n"
            "PyTorch alone with the same products, as quick as it goes without a new kernel (`peers/torch_gnn.py`). Each side counts by\n"
            "its quickest way, launched as it is or captured as a CUDA graph. The last column is our epoch on a graph without an edge:\n"
            "dense layers, loss and optimiser.\n",
        ),
    ),
    "figure-6b": (
        "Figure 6b: epochs of training, against PyTorch Geometric",
        figure_6(
            "figure-6b",
            "Its own layers, over a sparse tensor of PyTorch (sparse) or over a list of edges (scatter), whichever is quicker; GCN with\n"
            "`cached=True`, AGNN on a graph that has its loops already.\n",
        ),
    ),
    "figure-6c": (
        "Figure 6c: aggregation, against cuSPARSE's product in blocks",
        section(
            "16 columns; blocks of 32 x 32 in Blocked-ELL with float32 ones, which cuSPARSE multiplies in TF32. Every row of blocks has\n"
            "as many as the longest one. How many of the numbers that are multiplied are edges is shown for both; the paper's average of\n"
            f"the times is {PAPER_FIGURE_6C}.\n\n",
            IN_BLOCKS,
            2,
        ),
    ),
    "figure-7": ("Figure 7: tiles saved by condensing columns (SpMM 16 x 8, SDDMM 16 x 16)", figure_7),
    "figure-8": (
        "Figure 8: the cost of translation",
        section(
            "Translation on the GPU, checks of its input included, against 200 epochs of training GCN with two layers of 16 columns, TF32\n"
            "allowed: dense layers, loss and optimiser are counted. The last column sets it against their four aggregations alone.\n"
            f"The paper's mean is {PAPER_FIGURE_8:.1%} of a whole training.\n\n",
            TRANSLATION,
        ),
    ),
    "figure-9": (
        "Figure 9: warps of a block",
        section(
            "The paper's figure is of epochs of its kernels, in which the warps of a block share a window and what they load. In ours on\n"
            "tensor cores every warp takes pieces of windows by itself, so that a block is nothing but as many warps: one aggregation of\n"
            "16 columns, TF32, by the warps of a block, of which the library has 4; beside them the kernel that it chooses. The paper's\n"
            "rule is the edges of a window over 32.\n\n",
            WARPS,
        ),
    ),
    "table-5": (
        "Table 5: against tSparse and Triton",
        section(
            "The paper does not say at which D its times were taken: shown are that of the data set (its Table 4) and 16, its hidden\n"
            "layer. The ratio is cuSPARSE's time over the faster of ours.\n\n",
            LIBRARIES,
        ),
    ),
    "table-6": (
        "Table 6: dense blocks a window",
        section(
            "4096 x 4096 with dense blocks of 16 x 16 in every window of rows, D = 16; GFLOPs. Ours count 2 nnz D operations. What "
            "the paper\n"
            "counts is not said: by 2 nnz D its first line would take 0.2 us on the whole card, less than starting a kernel does.\n\n",
            BLOCKS,
            0,
        ),
    ),
    "figure-10": (
        "Figure 10: throughput by the number of columns",
        section(
            "Products without weights, in GFLOPs of 2 nnz D operations; the ratio is cuSPARSE's time over the faster of ours.\n\n",
            RATES,
        ),
    ),
}


def document(records: Iterable[Record]) -> str:
    """Write all parts that have records."""
    return document_of(HEAD, SECTIONS, records, SHORT, SHORT_OF)

"""The document that ``papers/tango/program.py`` makes from its records, with the numbers of TANGO's authors next to ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.papers.tables import Columns, Record, Rows, lines, ms, name_of, of_params, ratio, taken_on, times
from benchmarks.papers.tables import document as document_of

__all__ = ["document", "line_of"]

HEAD = """# TANGO's figures, again

Made by `python3 benchmarks/paper.py tango` from its records; the protocol stands there. The paper (Chen, Zheng, Ding, Huan, Ji, Liu: TANGO,
SC 2023) measured V100S GPUs (an A100 for float16 and INT4) against cuBLAS and DGL, and prints averages in its text; its opponents are not
ours everywhere, so what compares is the direction. Graphs marked * are seeded synthetic ones of the sizes of the graphs named.
"""
#: Written by hand from the records in results/h200: check it again when these change.
SHORT = """
**In short**

- **Reproduced, in direction.** Cached codes save time (Figure 10). Products with quantisation on the way are 2.4x to 6.0x as quick as
  cuBLAS in float32 (Figure 11). Sums of edges beat a scattered sum (Figure 13a), products of several heads beat one product for each
  head (13b, 14), and products of codes on edges beat those of float32 (15, 16).
- **Not reproduced.** The gain over float16: the paper has 1.9x and 1.8x on an A100, here float16 is two to four times as quick.
  Against TF32 such products pay only at D = 512, and not on pubmed. Features of 8 bits make products of several heads slower than
  float32 features do, in every row of Figures 13b and 14. With more heads the gain does not shrink (Figure 14).
- **Elsewhere.** Training in few bits, the paper's main result: its accuracies are on the page of accuracies, its epochs in the guide to
  few bits, several GPUs (Figure 9) in the guide to these. DGL is no opponent here.
- **Stand-ins.** dblp, amazon, arxiv and products; pubmed is the graph itself.
"""
#: Table 2: gigabytes per second of the incidence product and of DGL, for 16 features.
PAPER_TABLE_2 = {
    "arxiv": (344.06, 41.26),
    "products": (491.72, 244.22),
    "pubmed": (353.38, 131.89),
    "dblp": (331.57, 297.67),
    "amazon": (342.93, 105.88),
}


def line_of(record: Record) -> str:
    """Return one line for the terminal."""
    return f"{record['case']:<40} {record['ours_ms']:.4f} ms, {record['ratio']:.2f}x of {record['peer']}"


def bytes_a_second(name: str) -> Callable[[Record], str]:
    """Return a column: gigabytes per second, from the time with this name."""
    return lambda record: f"{record['bytes'] / 1e6 / record.get(name, record['params'].get(name)):.0f}"


def tera_operations(name: str) -> Callable[[Record], str]:
    """Return a column: tera-operations per second, from the time with this name."""
    return lambda record: f"{record['params']['flops'] / record['params'][name] / 1e9:.1f}"


def printed(index: int) -> Callable[[Record], str]:
    """Return a column of the paper's Table 2, which is for 16 features."""

    def cell(record: Record) -> str:
        there = PAPER_TABLE_2.get(record["params"]["graph"]) if record["params"]["D"] == 16 else None
        return "-" if there is None else f"{there[index]:.0f}"

    return cell


WHAT: Columns = (("graph", name_of), ("D", of_params("D")))
CACHED: Columns = (
    *WHAT,
    ("quantised anew, ms", ms("peer_ms")),
    ("out of the cache, ms", ms("ours_ms")),
    ("speed", ratio),
)
DENSE: Columns = (
    *WHAT,
    ("found, ms", ms("ours_ms")),
    ("given, ms", ms("given_ms")),
    ("float32, ms", ms("fp32_ms")),
    ("TF32, ms", ms("tf32_ms")),
    ("float16, ms", ms("fp16_ms")),
    ("of float32", times("fp32_ms")),
    ("of TF32", times("tf32_ms")),
    ("of float16", times("fp16_ms")),
)
RATES: Columns = (
    *WHAT,
    ("Tops, ours", tera_operations("given_ms")),
    ("cuBLAS", tera_operations("fp32_ms")),
    ("GB/s, ours", bytes_a_second("given_ms")),
    ("cuBLAS", bytes_a_second("fp32_ms")),
    ("ratio", times("fp32_ms", "given_ms")),
)
SUMS: Columns = (
    *WHAT,
    ("ours, ms", ms("ours_ms")),
    ("index_add, ms", ms("peer_ms")),
    ("speed", ratio),
    ("GB/s, ours", bytes_a_second("ours_ms")),
    ("index_add", bytes_a_second("peer_ms")),
    ("paper, incidence", printed(0)),
    ("paper, DGL", printed(1)),
)
HEADS: Columns = (
    ("graph", name_of),
    ("heads x D", lambda record: f"{record['params']['heads']} x {record['params']['D']}"),
    ("ours, ms", ms("ours_ms")),
    ("8-bit features, ms", ms("int8_ms")),
    ("cuSPARSE, ms", ms("peer_ms")),
    ("speed", ratio),
)
SAMPLED: Columns = (
    ("graph", name_of),
    ("operation", of_params("op")),
    ("codes, ms", ms("ours_ms")),
    ("our float32, ms", ms("peer_ms")),
    ("speed", ratio),
    ("PyTorch, ms", ms("torch_ms")),
    ("speed", times("torch_ms")),
)


# ---- sections
def section(text: str, columns: Columns, left: int = 1) -> Callable[[Rows], str]:
    """Return a function that writes a section with one table."""
    return lambda rows: taken_on(rows) + text + lines(rows, columns, left)


SEVERAL_HEADS = section(
    "A weight per edge and head: one call of `spmm` against a product of cuSPARSE for each head, which is how the paper replaces DGL's "
    "kernel (2.1x, 1.9x, 2.0x and 1.8x of it for 2 x 128, 4 x 128, 2 x 256 and 4 x 256; 1.6x below 6 heads of one column, less with "
    "more, as launches add up).\n\n",
    HEADS,
)


def figure_16(rows: Rows) -> str:
    """Write the sampled and the dense products of 4 bits."""
    text = (
        "The paper: sampled products of INT4 3.3x (add) and 1.8x (dot) of DGL in full precision; dense ones, INT8 and INT4 against cuBLAS "
        "on an A100, 5.4x and 6.2x at D = 256, 8.1x and 10.1x at 512. An H200 has no matrix unit for 4 bits: they are stored in 4 and "
        "multiplied as 8.\n\n"
    )
    edges = [row for row in rows if "op" in row["params"]]
    nodes = [row for row in rows if "op" not in row["params"]]
    tables = [lines(some, columns, left) for some, columns, left in ((edges, SAMPLED, 2), (nodes, DENSE, 1)) if some]
    return taken_on(rows) + text + "\n".join(tables)


SECTIONS: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "figure-10": (
        "Figure 10: products of cached codes",
        section(
            "One call of `quantized_matmul` with and without a `QuantCache`. The paper: 1.7x on average at D = 128, 1.6x at 256.\n\n",
            CACHED,
        ),
    ),
    "figure-11": (
        "Figure 11: products with quantisation on the way",
        section(
            "Nodes x D by D x D, 8 bits, float32 in and out; *found*: the scale of the left operand is found first, as in the paper. The "
            "paper, INT8 against cuBLAS: 2.2x (D = 256) and 2.5x (512) of float32 on average, on an A100 1.9x and 1.8x of float16.\n\n",
            DENSE,
        ),
    ),
    "figure-12": (
        "Figure 12: rates of these products",
        section(
            "Tera-operations and gigabytes a second, of ours with the scale given and of cuBLAS in float32, with the operations and bytes "
            "of the float32 product for both, so that one ratio holds for both. The paper, by a profiler: 2.1x the operations and 2.2x the "
            "bytes (it writes the codes out), 31 % of the instructions.\n\n",
            RATES,
        ),
    ),
    "figure-13a": (
        "Figure 13a and Table 2: sums of edges",
        section(
            "`aggregate_edges`, which is the product with the incidence matrix, against PyTorch's scattered sum. The paper, against DGL: "
            "2.1x on average, 5.5x on arxiv.\n\n",
            SUMS,
        ),
    ),
    "figure-13b": ("Figure 13b: products of several heads", SEVERAL_HEADS),
    "figure-14": ("Figure 14: many heads of one column", SEVERAL_HEADS),
    "figure-15": (
        "Figure 15: sampled products of 8 bits",
        section("Node features of 4 x 64. The paper, against DGL: 1.9x (add) and 1.6x (dot).\n\n", SAMPLED, 2),
    ),
    "figure-16": ("Figure 16: 4 bits", figure_16),
}


def document(records: Iterable[Record]) -> str:
    """Write all sections that have records; Figure 12 is computed from the records of Figure 11."""
    rows = list(records)
    again = [
        row | {"params": row["params"] | {"part": "figure-12"}} for row in rows if row["params"]["part"] == "figure-11"
    ]
    return document_of(HEAD, SECTIONS, [*rows, *again], SHORT)

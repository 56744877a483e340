"""The document that ``papers/tango/program.py`` makes of its records, with what TANGO's authors print beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.papers.tables import by_part, table

__all__ = ["document", "line_of"]

_Rows = list[dict[str, Any]]
TITLES = {
    "figure-10": "Figure 10: products of cached codes",
    "figure-11": "Figure 11: products with quantisation on the way",
    "figure-12": "Figure 12: rates of these products",
    "figure-13a": "Figure 13a and Table 2: sums of edges",
    "figure-13b": "Figure 13b: products of several heads",
    "figure-14": "Figure 14: many heads of one column",
    "figure-15": "Figure 15: sampled products of 8 bits",
    "figure-16": "Figure 16: 4 bits",
}
HEAD = """# TANGO's figures, again

Made by `python3 benchmarks/paper.py tango` from its records; the protocol stands there. The paper (Chen, Zheng, Ding, Huan, Ji, Liu: TANGO,
SC 2023) measured V100S GPUs (an A100 for float16 and INT4) against cuBLAS and DGL, and prints averages in its text; its opponents are not
ours everywhere, so what compares is the direction. Graphs marked * are seeded synthetic ones of the sizes of the graphs named.
"""
#: Table 2: gigabytes a second of the incidence product and of DGL, 16 features.
PAPER_TABLE_2 = {
    "arxiv": (344.06, 41.26),
    "products": (491.72, 244.22),
    "pubmed": (353.38, 131.89),
    "dblp": (331.57, 297.67),
    "amazon": (342.93, 105.88),
}


def document(records: Iterable[dict[str, Any]]) -> str:
    """All the sections that have records."""
    rows = by_part(records)
    if "figure-11" in rows:
        rows["figure-12"] = rows["figure-11"]
    makers: dict[str, Callable[[_Rows], str]] = {
        "figure-10": figure_10,
        "figure-11": figure_11,
        "figure-12": figure_12,
        "figure-13a": figure_13a,
        "figure-13b": several_heads,
        "figure-14": several_heads,
        "figure-15": figure_15,
        "figure-16": figure_16,
    }
    parts = [f"## {TITLES[part]}\n\n{makers[part](rows[part])}" for part in TITLES if part in rows]
    return "\n".join([HEAD, *parts])


def line_of(record: dict[str, Any]) -> str:
    """One line for the terminal."""
    return f"{record['case']:<40} {record['ours_ms']:.4f} ms, {record['ratio']:.2f}x of {record['peer']}"


# ---- sections
def figure_10(rows: _Rows) -> str:
    """Ours, with and without the cache."""
    body = [[*head_of(row), ms(row["peer_ms"]), ms(row["ours_ms"]), times(row["ratio"])] for row in rows]
    text = "One call of `quantized_matmul` with and without a `QuantCache`. The paper: 1.7x on average at D = 128, 1.6x at 256.\n\n"
    return measured(rows) + text + table(["graph", "D", "quantised anew, ms", "out of the cache, ms", "speed"], body, 1)


def figure_11(rows: _Rows) -> str:
    """Ours against three products of cuBLAS."""
    text = (
        "Nodes x D by D x D, 8 bits, float32 in and out; *found*: the scale of the left operand is found first, as in the paper. The "
        "paper, INT8 against cuBLAS: 2.2x (D = 256) and 2.5x (512) of float32 on average, on an A100 1.9x and 1.8x of float16.\n\n"
    )
    return measured(rows) + text + dense_table(rows)


def dense_table(rows: _Rows) -> str:
    """Times of a quantised product and of cuBLAS's."""
    body = []
    for row in rows:
        p = row["params"]
        peers = [p["fp32_ms"], p["tf32_ms"], p["fp16_ms"]]
        cells = [ms(row["ours_ms"]), ms(p["given_ms"]), *map(ms, peers)]
        body.append([*head_of(row), *cells, *(times(peer / row["ours_ms"]) for peer in peers)])
    head = ["graph", "D", "found, ms", "given, ms", "float32, ms", "TF32, ms", "float16, ms"]
    return table([*head, "of float32", "of TF32", "of float16"], body, 1)


def figure_12(rows: _Rows) -> str:
    """Operations and bytes a second."""
    body = []
    for row in rows:
        p = row["params"]
        cells = [f"{p['flops'] / one / 1e9:.1f}" for one in (p["given_ms"], p["fp32_ms"])]
        cells += [f"{row['bytes'] / one / 1e6:.0f}" for one in (p["given_ms"], p["fp32_ms"])]
        body.append([*head_of(row), *cells, times(p["fp32_ms"] / p["given_ms"])])
    text = (
        "Tera-operations and gigabytes a second, of ours with the scale given and of cuBLAS in float32, with the operations and bytes of "
        "the float32 product for both, so that one ratio holds for both. The paper, by a profiler: 2.1x the operations and 2.2x the bytes "
        "(it writes the codes out), 31 % of the instructions.\n\n"
    )
    head = ["graph", "D", "Tops, ours", "cuBLAS", "GB/s, ours", "cuBLAS", "ratio"]
    return measured(rows) + text + table(head, body, 1)


def figure_13a(rows: _Rows) -> str:
    """Sums of edges, and bytes a second."""
    body = []
    for row in rows:
        p = row["params"]
        there = PAPER_TABLE_2.get(p["graph"]) if p["D"] == 16 else None
        paper = ["-", "-"] if there is None else [f"{one:.0f}" for one in there]
        rate = row["bytes"] / 1e6
        cells = [ms(row["ours_ms"]), ms(row["peer_ms"]), times(row["ratio"])]
        cells += [f"{rate / row['ours_ms']:.0f}", f"{rate / row['peer_ms']:.0f}"]
        body.append([*head_of(row), *cells, *paper])
    text = (
        "`aggregate_edges`, which is the product with the incidence matrix, against PyTorch's scattered sum. The paper, against DGL: 2.1x "
        "on average, 5.5x on arxiv.\n\n"
    )
    head = [
        "graph",
        "D",
        "ours, ms",
        "index_add, ms",
        "speed",
        "GB/s, ours",
        "index_add",
        "paper, incidence",
        "paper, DGL",
    ]
    return measured(rows) + text + table(head, body, 1)


def several_heads(rows: _Rows) -> str:
    """One product of all heads against one for each."""
    body = []
    for row in rows:
        p = row["params"]
        narrow = p.get("int8_ms")
        cells = [ms(row["ours_ms"]), "-" if narrow is None else ms(narrow), ms(row["peer_ms"]), times(row["ratio"])]
        body.append([name_of(p), f"{p['heads']} x {p['D']}", *cells])
    text = (
        "A weight per edge and head: one call of `spmm` against a product of cuSPARSE for each head, which is how the paper replaces DGL's "
        "kernel (2.1x, 1.9x, 2.0x and 1.8x of it for 2 x 128, 4 x 128, 2 x 256 and 4 x 256; 1.6x below 6 heads of one column, less with "
        "more, as launches add up).\n\n"
    )
    head = ["graph", "heads x D", "ours, ms", "8-bit features, ms", "cuSPARSE, ms", "speed"]
    return measured(rows) + text + table(head, body, 1)


def figure_15(rows: _Rows) -> str:
    """Sampled products of 8 bits."""
    text = "Node features of 4 x 64. The paper, against DGL: 1.9x (add) and 1.6x (dot).\n\n"
    return measured(rows) + text + sampled_table(rows)


def sampled_table(rows: _Rows) -> str:
    """Times of a sampled product of codes, of our float32 one and of PyTorch's gathers."""
    body = []
    for row in rows:
        p = row["params"]
        torch_ms = p["torch_ms"]
        cells = [ms(row["ours_ms"]), ms(row["peer_ms"]), times(row["ratio"])]
        cells += ["-", "-"] if torch_ms is None else [ms(torch_ms), times(torch_ms / row["ours_ms"])]
        body.append([name_of(p), p["op"], *cells])
    return table(["graph", "operation", "codes, ms", "our float32, ms", "speed", "PyTorch, ms", "speed"], body, 2)


def figure_16(rows: _Rows) -> str:
    """Sampled and dense products of 4 bits."""
    edges = [row for row in rows if "op" in row["params"]]
    nodes = [row for row in rows if "op" not in row["params"]]
    text = (
        "The paper: sampled products of INT4 3.3x (add) and 1.8x (dot) of DGL in full precision; dense ones, INT8 and INT4 against cuBLAS "
        "on an A100, 5.4x and 6.2x at D = 256, 8.1x and 10.1x at 512. An H200 has no matrix unit for 4 bits: they are stored in 4 and "
        "multiplied as 8.\n\n"
    )
    tables = [*([sampled_table(edges)] if edges else []), *([dense_table(nodes)] if nodes else [])]
    return measured(rows) + text + "\n".join(tables)


# ---- pieces
def measured(rows: _Rows) -> str:
    """Where the times were taken."""
    first = rows[0]
    return f"Measured: {first['gpu']}, {first['driver']}.\n\n"


def head_of(row: dict[str, Any]) -> Sequence[str]:
    """Graph and width."""
    return name_of(row["params"]), str(row["params"]["D"])


def name_of(params: dict[str, Any]) -> str:
    """The graph's name, with a mark for a stand-in."""
    return str(params["graph"]) + ("" if params["source"].endswith(".npz") else " *")


def ms(value: float) -> str:
    """Milliseconds."""
    return f"{value:.4f}"


def times(value: float) -> str:
    """A ratio."""
    return f"{value:.2f}x"

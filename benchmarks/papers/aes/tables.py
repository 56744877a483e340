"""The document that ``papers/aes/program.py`` makes from its records, with the numbers of AES-SpMM's authors next to ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean, geometric_mean

from benchmarks.papers.tables import Record, Rows, by_part, name_of, table, taken_on
from benchmarks.papers.tables import document as document_of

__all__ = ["PAPER_TABLE_3", "document", "line_of"]

WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
#: Share of loading in per cent (Table 3, GCN), RTX 4090: float32 features with AFS, INT8 features with AES.
PAPER_TABLE_3: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "arxiv": (
        (55.39, 54.00, 53.88, 54.02, 53.37, 53.39, 52.88),
        (33.64, 32.24, 32.30, 32.84, 31.69, 31.67, 31.80),
    ),
    "pubmed": (
        (76.86, 77.19, 76.19, 76.53, 76.41, 76.50, 77.07),
        (55.28, 54.73, 54.11, 55.67, 55.56, 55.72, 54.77),
    ),
    "cora": (
        (61.00, 63.64, 64.71, 62.83, 63.83, 62.05, 63.59),
        (36.36, 34.48, 38.39, 36.28, 36.61, 36.94, 36.13),
    ),
    "reddit": (
        (90.54, 88.50, 86.83, 84.10, 80.68, 74.68, 70.78),
        (76.25, 72.73, 69.34, 64.47, 58.37, 50.59, 44.73),
    ),
    "proteins39": ((6.49, 6.73, 5.72, 4.71, 3.33, 2.57, 2.06), (3.00, 2.75, 2.71, 2.49, 2.00, 1.40, 1.08)),
}
MODELS = {"gcn": "GCN", "sage": "GraphSAGE"}
HEAD = """# AES-SpMM's figures, again

Made by `python3 benchmarks/paper.py aes` from its records; the protocol stands there. The paper (Song, Wang, Luo, Wu, Tang: AES-SpMM, 2025)
prints its figures without numbers; what its text says of them is quoted. Graphs marked * are seeded synthetic ones of the sizes of the
graphs named, not the graphs themselves. W is the width of the sample, edges of a node at most.

![Figures 5 and 6](aes-figures.png)

Figures 5 and 6, drawn by `benchmarks/papers/aes/plot.py`: sampling rates; accuracies with rescaled sums, dotted without rescaling.
"""


def document(records: Iterable[Record]) -> str:
    """Write all sections that have records."""
    sections = {
        "figure-5": ("Figure 5: sampling rates", figure_5),
        "figure-6": ("Figure 6: accuracy", figure_6),
        "figure-7": ("Figure 7: speed of the sampled product", figure_7),
        "table-3": ("Table 3: share of loading the features", table_3),
    }
    rows = list(records)
    whole = sections.keys() <= by_part(rows).keys()
    return document_of(HEAD, sections, rows, in_short(by_part(rows)) if whole else "")


def in_short(rows: Mapping[str, Rows]) -> str:
    """A summary of what reproduces and what does not; apart from the numbers, it was written by hand from the records in results/h200."""
    plain, rescaled = (losses(rows["figure-6"], rescale) for rescale in (False, True))
    speeds = ", ".join(f"{speed(rows['figure-7'], other):.2f}x that of {other.upper()}" for other in ("afs", "sfs"))
    return f"""
**In short**

- **Reproduced.** Sums over sampled edges are quicker than cuSPARSE over all of them at every width; against this library's own sum
  over all edges the gain is smaller ([all cells](distributions.md)). Cora, citeseer, pubmed and coauthor_cs lose at most 0.7 points at
  any width. Features of 8 bits cost hardly any accuracy, and copying them takes a quarter to half of the time.
- **Not reproduced: AES as the best strategy.** Points of accuracy lost on average over all networks, graphs and widths, with sums as
  the paper forms them: {plain}. With rescaled sums: {rescaled}. Its speed, in the geometric mean of Figure 7: {speeds}. AES is the
  default of `edge_sample` because it is the paper's; `strategy=` takes the others.
- **Features of 8 bits do not make the product quicker.** It is slower than that of float32 features in every row of Figure 7. What is
  gained is the copy.
- **Not measured.** Accuracies on the large graphs, where the paper sees AES ahead of SFS by most: the stand-ins have no labels that
  mean anything.
- **Stand-ins.** arxiv, proteins39, reddit and products.
"""


def losses(rows: Rows, rescale: bool) -> str:
    """The mean loss of each strategy in float32, in points."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["params"]["rescale"] == rescale:
            for strategy, _, bits, _, _, loss in row["params"]["cells"]:
                if strategy is not None and bits == 32:
                    found.setdefault(strategy, []).append(loss)
    return ", ".join(
        f"{name.upper() if name != 'uniform' else name} {round(fmean(some), 2) + 0.0:.2f}"
        for name, some in found.items()
    )


def speed(rows: Rows, other: str) -> float:
    """The geometric mean of another strategy's time divided by that of AES, with float32 features."""
    times = {
        (p["graph"], p["width"], p["strategy"]): row["ours_ms"] for row in rows if (p := row["params"])["bits"] is None
    }
    pairs = [(ms, times[graph, width, other]) for (graph, width, name), ms in times.items() if name == "aes"]
    return geometric_mean(theirs / ours for ours, theirs in pairs)


def line_of(record: Record) -> str:
    """One line for the terminal."""
    p = record["params"]
    if p["part"] == "figure-5":
        return f"{record['case']:<36} {100 * p['kept']:.1f} % kept"
    if p["part"] == "figure-6":
        full, *rest = p["cells"]
        named = [one for one in rest if one[:3] == ["aes", 32, 32]]
        return f"{record['case']:<40} {full[3]:.2f} %, aes of width 32 loses {named[0][5]:.2f} points"
    if p["part"] == "figure-7":
        return f"{record['case']:<36} {record['ours_ms']:.4f} ms, {record['ratio']:.2f}x"
    return f"{record['case']:<36} load {record['ours_ms']:.4f} ms, {100 * p['share']:.1f} % of the whole"


# ---- sections
def figure_5(rows: Rows) -> str:
    """The share of edges that are kept, and of nodes that keep all of theirs."""
    chosen = [row for row in rows if row["params"]["strategy"] == "aes"]
    text = (
        "Sampled edges over all edges by AES, in per cent, repeats counted; in brackets the share of the nodes with edges that keep all of "
        "theirs. The records hold the whole distributions. The paper: above 80 % already at W = 16 for cora, pubmed and arxiv, below 10 % "
        "at W = 16 or 32 for the large ones. Its arxiv is the graph itself with undirected edges, half as many as the stand-in has.\n\n"
    )
    body = []
    for graph in dict.fromkeys(row["params"]["graph"] for row in chosen):
        some = [row for row in chosen if row["params"]["graph"] == graph]
        of = {row["params"]["width"]: row["params"] for row in some}
        first = some[0]["params"]
        cells = [f"{100 * of[w]['kept']:.1f} ({100 * (1 - of[w]['cdf'][19]):.0f})" for w in WIDTHS]
        body.append([name_of(some[0]), f"{first['nodes']:,}", f"{first['entries'] / first['nodes']:.1f}", *cells])
    return text + table(["graph", "nodes", "mean degree", *(f"W = {w}" for w in WIDTHS)], body, 1)


def figure_6(rows: Rows) -> str:
    """Accuracies, points lost by width and by bits, and the widths that are safe to use."""
    first = rows[0]["params"]
    text = (
        f"Two-layer networks of 16 hidden units, trained in full precision over all edges, {first['seeds']} seeds; cora, citeseer and "
        "pubmed on their public split, the others on as many random ones of 20 training nodes a class. Points of test accuracy against "
        "the same networks over all edges in float32 (means over the seeds). *Rescaled*: sums are multiplied by a node's edges over its "
        "samples, so that a mean stays a mean; the paper leaves that out. 8, 4 and 2 bits: input features and messages of both layers.\n\n"
    )
    sections = []
    for rescale in (False, True):
        body = []
        for row in rows:
            p = row["params"]
            if p["rescale"] != rescale:
                continue
            cells = {(s, w, b): loss for s, w, b, _, _, loss in p["cells"]}
            full = p["cells"][0]
            body += [
                [
                    p["graph"],
                    MODELS[p["model"]],
                    f"{full[3]:.2f} +- {full[4]:.2f}",
                    *(points(cells[("aes", w, 32)]) for w in WIDTHS[:6]),
                    points(cells[("sfs", 32, 32)]),
                    points(cells[("uniform", 32, 32)]),
                    *(points(cells[("aes", 32, b)]) for b in (8, 4, 2)),
                ]
            ]
        head = ["graph", "model", "all edges, %", *(f"W = {w}" for w in WIDTHS[:6])]
        head += ["SFS, W = 32", "uniform, W = 32", *(f"W = 32, {b} bits" for b in (8, 4, 2))]
        if body:
            title = "Sums rescaled" if rescale else "Sums as the paper forms them"
            title += f" (AES unless another strategy is named). {safe_width(rows, rescale)}"
            sections.append(f"{title}\n\n{table(head, body, 2)}")
    return text + "\n".join(sections) + "\n" + chosen_bits(rows) + paper_6()


def safe_width(rows: Rows, rescale: bool) -> str:
    """The width from which every network of every graph keeps its accuracy, and the loss from narrow features there."""
    tables = [
        {(s, w, b): loss for s, w, b, _, _, loss in row["params"]["cells"]}
        for row in rows
        if row["params"]["rescale"] == rescale
    ]
    found: int | None = None
    for width in reversed(WIDTHS):
        if max(cells[("aes", width, 32)] for cells in tables) >= 1:
            break
        found = width
    if found is None:
        return "No width measured keeps every loss below 1 point."
    worst = max(cells[("aes", found, 32)] for cells in tables)
    more = {b: max(cells[("aes", found, b)] - cells[("aes", found, 32)] for cells in tables) for b in (8, 4, 2)}
    said = ", ".join(f"{b} bits {max(loss, 0.0):.2f}" for b, loss in more.items())
    return (
        f"All losses are below 1 point **from W = {found} on**; there the largest is {worst:.2f}, and narrow features cost at most, in "
        f"points on top: {said}."
    )


def chosen_bits(rows: Rows) -> str:
    """The choice of TANGO's rule for the same networks."""
    body = []
    for row in rows:
        p = row["params"]
        if not p["rescale"]:
            errors = [f"{p['errors'][str(bits)]:.3f}" for bits in (2, 4, 6, 8)]
            chosen = "more than 8" if p["chosen_bits"] is None else str(p["chosen_bits"])
            body.append([p["graph"], MODELS[p["model"]], *errors, chosen])
    text = (
        "`choose_bits` (TANGO section 3.1) looks at what the first layer aggregates, symmetric with one scale, and takes the fewest bits "
        "with an error of at most 0.3; the networks above have a range for each column and lose little with fewer. Errors by bits:\n\n"
    )
    return text + table(["graph", "model", "2", "4", "6", "8", "`choose_bits`"], body, 2) + "\n"


def paper_6() -> str:
    """The paper's statements about Figure 6."""
    return (
        "The paper: on small graphs no loss to speak of at any W; on large ones less than 1 point at W = 128, where SFS loses 2.5 to 3.4 "
        "even at 1024; INT8 features cost 0.02 (GCN) and 0.04 points (GraphSAGE) on average, 0.3 at most.\n"
    )


def points(loss: float) -> str:
    """A loss as a signed change; lost accuracy is negative."""
    return f"{0.0 - round(loss, 2):+.2f}"


def figure_7(rows: Rows) -> str:
    """Speed over cuSPARSE's product of all edges."""
    body = []
    for graph in dict.fromkeys(row["params"]["graph"] for row in rows):
        for what in dict.fromkeys((r["params"]["strategy"], r["params"]["bits"]) for r in rows):
            of = {
                r["params"]["width"]: r
                for r in rows
                if r["params"]["graph"] == graph and (r["params"]["strategy"], r["params"]["bits"]) == what
            }
            if of:
                first = next(iter(of.values()))
                bits = "float32" if what[1] is None else f"{what[1]} bits"
                cells = [f"{of[w]['ratio']:.2f}x" if w in of else "-" for w in WIDTHS]
                body.append([name_of(first), what[0].upper(), bits, f"{first['peer_ms']:.4f}", *cells])
    text = (
        "cuSPARSE's time over ours, 64 columns. The paper, against cuSPARSE on an RTX 4090: 1.72x (GCN) and 1.82x (GraphSAGE) on average "
        "on the small graphs; 25.87x at most, on proteins with GraphSAGE, where AFS has 15.06x.\n\n"
    )
    head = ["graph", "edges", "features", "cuSPARSE, ms", *(f"W = {w}" for w in WIDTHS)]
    return taken_on(rows) + text + table(head, body, 3)


def table_3(rows: Rows) -> str:
    """Shares of loading, next to the paper's."""
    body = []
    for graph in dict.fromkeys(row["params"]["graph"] for row in rows):
        of = {(r["params"]["width"], r["params"]["bits"]): r for r in rows if r["params"]["graph"] == graph}
        paper = PAPER_TABLE_3.get(graph)
        for at, width in enumerate(WIDTHS):
            wide, narrow = of.get((width, None)), of.get((width, 8))
            if wide is None or narrow is None:
                continue
            cells = [name_of(wide), str(width), f"{wide['ours_ms']:.4f}", f"{narrow['ours_ms']:.4f}"]
            cells += [f"{100 * (1 - narrow['ours_ms'] / wide['ours_ms']):.1f}"]
            for one, index in ((wide, 0), (narrow, 1)):
                cells.append(f"{100 * one['params']['share']:.1f}")
                cells.append("-" if paper is None else f"{paper[index][at]:.1f}")
            body.append(cells)
    text = (
        "Copying the features from page-locked memory, and its share in copying plus one inference, in per cent: float32 features (AFS), "
        "8-bit ones (AES). The paper's copies of INT8 take 50.91 to 70.51 % less time.\n\n"
    )
    head = [
        "graph",
        "W",
        "load float32, ms",
        "8 bits, ms",
        "less, %",
        "share float32",
        "paper",
        "share 8 bits",
        "paper",
    ]
    return taken_on(rows) + text + table(head, body, 1)

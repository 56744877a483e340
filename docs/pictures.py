"""Pictures of the guide, drawn of real arrays when the documentation is built."""

from __future__ import annotations

import io
from typing import Any

import matplotlib
import numpy as np
from IPython.display import SVG
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import bitsparse as bs

matplotlib.rcParams["svg.hashsalt"] = "bitsparse"  # the same file at every build
COLORS = ("#2a6f97", "#e07a5f", "#81b29a", "#b56576", "#6d597a", "#e9c46a")


def shown(figure: Figure) -> SVG:
    """A figure as a page shows it."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return SVG(text.getvalue())


def axes_of(count: int, width: float, height: float) -> tuple[Figure, Any]:
    """Empty axes side by side."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, count)
    for ax in np.atleast_1d(axes):
        ax.set(xticks=[], yticks=[], aspect="equal")
        ax.spines[:].set_visible(False)
    return figure, axes


def cells(ax: Axes, values: Any, colors: Any = None, left: float = 0.0) -> None:
    """A grid of cells with a text in each; cells without a colour stay white."""
    rows, cols = np.shape(values)
    for row in range(rows):
        for col in range(cols):
            color = "white" if colors is None or colors[row][col] is None else colors[row][col]
            ax.add_patch(Rectangle((left + col, row), 1, 1, facecolor=color, edgecolor="0.7", linewidth=0.6))
            dark = color not in ("white", COLORS[5])
            ink = "white" if dark else "0.2"
            ax.text(left + col + 0.5, row + 0.5, str(values[row][col]), ha="center", va="center", fontsize=8, color=ink)
    ax.set(xlim=(-0.1, left + cols + 0.1), ylim=(rows + 0.1, -0.1))


def planes(x: bs.BitTensor) -> SVG:
    """The integers of a small array and its bit planes."""
    integers = x.toarray()
    count = x.bits
    figure, axes = axes_of(count + 1, 2.2 * (count + 1), 2.2)
    cells(axes[0], integers)
    axes[0].set_title("integers", fontsize=9)
    for plane in range(count):
        bits = (np.asarray(integers, np.int64) >> plane) & 1
        cells(axes[plane + 1], bits, [[COLORS[0] if bit else None for bit in row] for row in bits])
        axes[plane + 1].set_title(f"plane {plane}, weighs {2**plane}", fontsize=9)
    return shown(figure)


def windows(a: bs.TCTiledCSR) -> SVG:
    """The entries of a sparse array, a colour a window, and the same with the columns of each window condensed."""
    m, n = a.shape
    before, after = np.full((m, n), "", object), np.full((m, n), "", object)
    ink_before, ink_after = np.full((m, n), None, object), np.full((m, n), None, object)
    for row in range(m):
        color = COLORS[row // a.window % len(COLORS)]
        for edge in range(a.indptr[row], a.indptr[row + 1]):
            before[row, a.indices[edge]], ink_before[row, a.indices[edge]] = a.indices[edge], color
            after[row, a.edge_col[edge]], ink_after[row, a.edge_col[edge]] = a.indices[edge], color
    figure, (left, right) = axes_of(2, 9.0, 9.0 * m / (2 * n) + 0.5)
    cells(left, before, ink_before)
    cells(right, after, ink_after)
    left.set_title("entries, with their columns", fontsize=9)
    right.set_title("columns of each window moved together", fontsize=9)
    return shown(figure)


def blocks(a: bs.FRDC) -> SVG:
    """The entries of an array of bits and the 4 x 4 blocks that are stored."""
    m, n = a.shape
    dense = a.toarray().astype(int)
    colors = [[COLORS[0] if bit else None for bit in row] for row in dense]
    figure, ax = axes_of(1, 4.6, 4.6 * m / n + 0.4)
    cells(ax, dense, colors)
    for block_row in range(len(a.indptr) - 1):
        for at in range(a.indptr[block_row], a.indptr[block_row + 1]):
            corner = (4 * a.indices[at], 4 * block_row)
            ax.add_patch(Rectangle(corner, 4, 4, fill=False, edgecolor=COLORS[1], linewidth=2.0))
    ax.set(xlim=(-0.2, n + 0.2), ylim=(m + 0.2, -0.2))
    ax.set_title(f"{len(a.tiles)} blocks stored of {-(-m // 4) * -(-n // 4)}", fontsize=9)
    return shown(figure)


def samples(edges: int, width: int) -> SVG:
    """Which edges of one long row each strategy takes."""
    row = bs.TCTiledCSR(np.ones((1, edges), bool))
    strategies = ("aes", "afs", "sfs", "uniform")
    figure, ax = axes_of(1, 9.0, 2.0)
    for at, strategy in enumerate(strategies):
        seed = 0 if strategy == "uniform" else None
        taken = set(bs.edge_sample(row, width, strategy, seed=seed).edges.tolist())
        for edge in range(edges):
            color = COLORS[at] if edge in taken else "0.93"
            ax.add_patch(Rectangle((edge, 2 * at), 1, 1.4, facecolor=color, edgecolor="white", linewidth=0.4))
        ax.text(-1, 2 * at + 0.7, strategy, ha="right", va="center", fontsize=9)
    ax.set(xlim=(-7, edges), ylim=(2 * len(strategies), 0), aspect="auto")
    ax.set_title(f"{width} of the {edges} edges of one row", fontsize=9)
    return shown(figure)

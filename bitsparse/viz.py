"""Pictures of bit arrays and sparse arrays, through the ``[viz]`` extra."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse._text import duration, size
from bitsparse.arrays import BitTensor
from bitsparse.backends.params import TILE_COLS, TILE_ROWS
from bitsparse.errors import ShapeError
from bitsparse.graph.adjacency import pattern_of, tiles_with_entries

__all__ = ["pareto", "quality", "spy", "stages", "tile_fill"]

#: Number of words counted in one step, which bounds the memory.
_CHUNK_WORDS = 1 << 22
#: Most cells along a side of a picture: if an array has more tiles, each cell stands for several.
_CELLS = 512
#: Letters of a title per inch.
_LETTERS = 13
#: Line styles for features of 8, 4, 2 and 1 bits.
_DASHES = ("--", "-.", ":", (0, (5, 1)))


def tile_fill(x: BitTensor) -> NDArray[np.float64]:
    """Share of set elements in each 8 x 128 tile, the unit in which a product skips zeros (QGTC section 4.3).

    Parameters
    ----------
    x : BitTensor (m, k)
        Multi-bit elements count as set if any of their bits is.

    Returns
    -------
    ndarray (ceil(m / 8), ceil(k / 128)) of float64
        Between 0 and 1; for tiles at the edges, the share of the elements inside the array.

    Raises
    ------
    DTypeError, ShapeError
        `x` is not a BitTensor of two dimensions.

    Examples
    --------
    >>> from bitsparse import viz
    >>> viz.tile_fill(bs.pack_bits(np.eye(16, 256, dtype=int)))
    array([[0.0078125, 0.       ],
           [0.0078125, 0.       ]])
    """
    _check.instance("tile_fill", "x", x, BitTensor, "a BitTensor", "make one with pack_bits")
    if x.ndim != 2:
        raise ShapeError(f"tile_fill: x has shape {x.shape}, but a picture needs two dimensions; pick one of the batch")
    left = x.repack(axis=-1, layout="planes")
    rows, cols = left.shape
    shape = (-(-rows // TILE_ROWS), -(-cols // TILE_COLS))
    counts = np.zeros(shape, np.int64)
    step = TILE_ROWS * max(1, _CHUNK_WORDS // max(1, TILE_ROWS * left.words[0].size if rows else 1))
    for start in range(0, rows, step):
        words = np.bitwise_or.reduce(left.words[start : start + step], axis=1)
        per_row = np.bitwise_count(words).reshape(len(words), shape[1], -1).sum(axis=2, dtype=np.int64)
        edges = np.arange(0, len(words), TILE_ROWS)
        counts[start // TILE_ROWS : start // TILE_ROWS + edges.size] = np.add.reduceat(per_row, edges, axis=0)
    heights = np.minimum(TILE_ROWS, rows - TILE_ROWS * np.arange(shape[0]))
    widths = np.minimum(TILE_COLS, cols - TILE_COLS * np.arange(shape[1]))
    return np.asarray(counts / np.outer(heights, widths))


class _SetTiles(NamedTuple):
    """The non-empty tiles: their rows and columns in the grid of all tiles, and how full each is."""

    down: NDArray[np.int64]
    across: NDArray[np.int64]
    fill: NDArray[np.float64]
    grid: tuple[int, int]

    def picture(self, most: int) -> tuple[NDArray[np.float64], int, int]:
        """Mean fill of each cell of a picture with at most `most` cells a side, and how many tiles a cell covers down and across."""
        step, wide = (max(1, -(-count // most)) for count in self.grid)
        cells = (-(-self.grid[0] // step), -(-self.grid[1] // wide))
        cell = self.down // step * cells[1] + self.across // wide
        sums, filled = (np.bincount(cell, weights, minlength=cells[0] * cells[1]) for weights in (self.fill, None))
        return (sums / np.maximum(filled, 1)).reshape(cells), step, wide


def _tiles_of_bits(x: BitTensor) -> _SetTiles:
    fill = tile_fill(x)
    down, across = np.nonzero(fill)
    return _SetTiles(down, across, fill[down, across], (fill.shape[0], fill.shape[1]))


def _tiles_of_entries(x: Any) -> _SetTiles:
    """Count entries per tile from the CSR pattern; memory is in proportion to the entries, whatever the shape."""
    pattern = pattern_of("spy", x)
    rows, cols = pattern.shape
    grid, numbers, counts = tiles_with_entries(pattern.indptr, pattern.indices, pattern.shape)
    down, across = np.divmod(numbers, max(grid[1], 1))
    height = np.minimum(TILE_ROWS, rows - TILE_ROWS * down)
    width = np.minimum(TILE_COLS, cols - TILE_COLS * across)
    return _SetTiles(down, across, counts / (height * width), grid)


def spy(x: Any, ax: Any = None, *, name: str = "") -> Any:
    """Draw the 8 x 128 tiles of a matrix, shaded by their fill; empty tiles, which products skip, stay white.

    Parameters
    ----------
    x : BitTensor (m, k), or TCTiledCSR, FRDC, :mod:`scipy.sparse` array or graph (m, k)
        Every stored entry of a sparse array counts, and nothing is made dense. Beyond 512 tiles along a side, a cell of the picture covers
        several tiles and shows the mean fill of the non-empty ones.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on a new figure (``ax.figure``), which no window shows.
    name : str, optional
        Name of the graph, put before the title; by default the name of a :class:`~bitsparse.datasets.GraphData`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.
    DTypeError, ShapeError
        As for :func:`tile_fill`; or `x` has no elements.

    Examples
    --------
    >>> from bitsparse import viz
    >>> ax = viz.spy(bs.pack_bits(np.eye(64, dtype=int)))
    >>> ax.get_title()
    '64 x 64, 8 of 8 tiles set, mean fill 1.56 %'
    """
    shape = getattr(x, "shape", None) or (getattr(x, "num_nodes", 0),) * 2
    sparse = not isinstance(x, BitTensor) and (hasattr(x, "indptr") or hasattr(x, "tocsr"))
    if 0 in shape:
        raise ShapeError(f"spy: x has shape {shape}, so there is nothing to draw; pass an array with rows and columns")
    tiles = _tiles_of_entries(x) if sparse else _tiles_of_bits(x)
    fill, step, wide = tiles.picture(_CELLS if sparse else max(tiles.grid))
    ax = _axes("spy", ax)
    from matplotlib.colors import LogNorm

    rows, cols = shape
    mean = float(tiles.fill.mean()) if tiles.fill.size else 0.0
    least = 1.0 / (TILE_ROWS * TILE_COLS)
    image = ax.imshow(
        np.ma.masked_array(fill, mask=fill == 0),
        norm=LogNorm(vmin=least, vmax=max(float(fill.max(initial=least)), 2 * least)),
        extent=(0, fill.shape[1] * wide * TILE_COLS, fill.shape[0] * step * TILE_ROWS, 0),
        cmap="viridis_r",
        interpolation="nearest",
        aspect="equal" if cols and 0.2 < rows / cols < 5 else "auto",
    )
    text = f"{rows} x {cols}, {tiles.fill.size} of {math.prod(tiles.grid)} tiles set, mean fill {100 * mean:.2f} %"
    _title(ax, name or str(getattr(x, "name", "")), text)
    ax.set(xlabel="column", ylabel="row")
    ax.figure.colorbar(image, ax=ax, label=f"fill of a {TILE_ROWS} x {TILE_COLS} tile", shrink=0.8)
    return ax


def _axes(function: str, ax: Any) -> Any:
    """The caller's axes, or the axes of a new figure."""
    with _check.extra(function, "matplotlib", "matplotlib", "viz"):
        from matplotlib.figure import Figure
    return Figure(figsize=(6.4, 5.6), layout="constrained").subplots() if ax is None else ax


def _title(ax: Any, name: str, text: str) -> None:
    """Set a title that begins with the graph's name and wraps at the width of its axes."""
    title = f"{name}: {text}" if name else text
    width = ax.figure.get_size_inches()[0] * ax.get_position().width
    ax.set_title("\n".join(textwrap.wrap(title, max(20, int(_LETTERS * width)))), fontsize="medium")


def pareto(tuned: Any, ax: Any = None, *, name: str = "") -> Any:
    """Draw what :func:`bitsparse.tune` measured: time against accuracy, circle areas in proportion to bytes, a line along the quickest.

    Parameters
    ----------
    tuned : Tuned
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on a new figure (``ax.figure``), which no window shows.
    name : str, optional
        Name of the graph, put before the title.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from bitsparse import nn, viz
    >>> one, two = nn.Candidate((), 0.81, 0.2, 900), nn.Candidate((), 0.80, 0.1, 500)
    >>> tuned = SimpleNamespace(candidates=[one, two], pareto=[one, two], reference=one, best=two, device="cpu")
    >>> viz.pareto(tuned).get_title()
    '2 choices on cpu, 2 in the Pareto set'
    """
    ax = _axes("pareto", ax)
    most = max(each.nbytes for each in tuned.candidates)
    others = [each for each in tuned.candidates if each not in tuned.pareto]
    for chosen, color, label in ((others, "0.7", "beaten"), (tuned.pareto, "C0", "Pareto set")):
        if chosen:
            areas = [20 + 380 * each.nbytes / most for each in chosen]
            ax.scatter(*_places(chosen), s=areas, color=color, alpha=0.6, label=label)
    line: list[Any] = []  # the quickest at each accuracy; the other ones in the set take fewer bytes
    for each in sorted(tuned.pareto, key=lambda each: (each.milliseconds, -each.accuracy)):
        if not line or each.accuracy > line[-1].accuracy:
            line.append(each)
    ax.plot(*_places(line), color="C0", linewidth=0.8)
    names = ", ".join(map(str, tuned.best.settings))
    chosen_label = "\n".join(textwrap.wrap(f"chosen: {names}" if names else "chosen", 48))
    for each, marker, label in ((tuned.reference, "+", "as given"), (tuned.best, "x", chosen_label)):
        ax.plot(*_places([each]), marker, color="C3", markersize=10, label=label)
    _title(ax, name, f"{len(tuned.candidates)} choices on {tuned.device}, {len(tuned.pareto)} in the Pareto set")
    ax.set(xscale="log", xlabel=f"milliseconds (area: bytes, up to {size(most)})", ylabel="accuracy in per cent")
    _plain_ticks(ax, [each.milliseconds for each in tuned.candidates])
    # Outside the axes, where the legend hides no circle.
    ax.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, markerscale=0.5)
    return ax


def _plain_ticks(ax: Any, values: Sequence[float]) -> None:
    """Label a logarithmic axis with plain numbers, few enough not to overlap."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    wide = max(values) > 4 * min(values)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(5))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")


def _places(chosen: Sequence[Any]) -> tuple[list[float], list[float]]:
    return [each.milliseconds for each in chosen], [100 * each.accuracy for each in chosen]


def quality(measured: Any, axes: Any = None, *, name: str = "") -> Any:
    """Draw what :func:`bitsparse.nn.sampling_quality` measured: accuracy by width, sampling rates of the nodes, speed by width.

    Each strategy in float32 is a solid line; fewer bits of the first strategy are dashed lines. The sampling rates drawn are those of the
    first strategy. The dotted line is full precision over all edges.

    Parameters
    ----------
    measured : Quality
    axes : sequence of three matplotlib.axes.Axes, optional
        Where to draw; by default on a new figure (``axes[0].figure``), which no window shows.
    name : str, optional
        Name of the graph, put before the titles.

    Returns
    -------
    array of three matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.

    Examples
    --------
    >>> from bitsparse import nn, viz
    >>> whole = nn.QualityCell(None, None, 32, 81.0, 0.0, 0.0, 1.0, 1.0, 900)
    >>> cells = whole, nn.QualityCell("aes", 16, 32, 80.5, 0.0, 0.5, 0.4, 2.5, 300)
    >>> rate = nn.SamplingRate("aes", 16, 0.3, 0.3, (0.0,) * 20 + (1.0,))
    >>> axes = viz.quality(nn.Quality("GCN", "cpu", cells, (rate,), {8: 0.01}, 4))
    >>> [ax.get_title() for ax in axes]
    ['GCN, all edges: 81.00 %', 'sampling rate, aes', 'speed on cpu']
    """
    first = _axes("quality", None if axes is None else axes[0])
    if axes is None:
        figure = first.figure
        figure.clear()
        figure.set_size_inches(15.0, 4.6)
        axes = figure.subplots(1, 3)
    strategies = list(dict.fromkeys(one.strategy for one in measured.rates))
    narrow = sorted({one.bits for one in measured.cells if one.bits < 32}, reverse=True)
    lines: list[tuple[str, int, str, Any]] = [(each, 32, f"C{i}", "-") for i, each in enumerate(strategies)]
    for bits, style in zip(narrow, _DASHES, strict=False):
        lines += [(each, bits, "C0", style) for each in strategies[:1]]
    for strategy, bits, color, style in lines:
        chosen = [one for one in measured.cells if (one.strategy, one.bits) == (strategy, bits)]
        label = f"{strategy}, {'float32' if bits == 32 else f'{bits} bits'}"
        widths = [one.width for one in chosen]
        axes[0].plot(widths, [one.accuracy for one in chosen], style, color=color, marker=".", label=label)
        if all(one.speedup is not None for one in chosen):
            axes[2].plot(widths, [one.speedup for one in chosen], style, color=color, marker=".", label=label)
    for i, rate in enumerate(one for one in measured.rates if one.strategy == strategies[0]):
        steps = np.linspace(0, 100, len(rate.cdf))
        label = f"W = {rate.width}, {100 * rate.kept:.0f} % kept"
        axes[1].step(steps, rate.cdf, where="post", color=f"C{i}", label=label)
    axes[0].axhline(measured.full.accuracy, color="0.5", linestyle=":")
    axes[2].axhline(1.0, color="0.5", linestyle=":")
    _title(axes[0], name, f"{measured.model}, all edges: {measured.full.accuracy:.2f} %")
    _title(axes[1], name, f"sampling rate, {strategies[0]}" if strategies else "sampling rate")
    _title(axes[2], name, f"speed on {measured.device}")
    axes[0].set(xlabel="width", ylabel="accuracy in per cent")
    axes[1].set(xlabel="sampling rate of a node, per cent", ylabel="share of the nodes")
    axes[2].set(xlabel="width", ylabel="time over all edges in float32 / time")
    for ax in axes:
        if ax is not axes[1]:
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize="small")
    return axes


def stages(report: Any, ax: Any = None, *, name: str = "") -> Any:
    """Draw how much time each stage of a run over batches took.

    Parameters
    ----------
    report : ClusterReport
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on a new figure (``ax.figure``), which no window shows.
    name : str, optional
        Name of the graph, put before the title.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.

    Examples
    --------
    >>> from bitsparse import nn, viz
    >>> viz.stages(nn.ClusterReport("cpu", "gcn-4-2-b8", nodes=7, bytes_moved=5000, pack_seconds=0.5), name="g").get_title()
    'g: gcn-4-2-b8 on cpu, 7 nodes, 5 kB moved'
    """
    ax = _axes("stages", ax)
    names, seconds = zip(*report.stages(), strict=True)
    bars(ax, names, seconds, [duration(each) for each in seconds])
    ax.set_xlabel("seconds")
    _title(ax, name, report.title)
    return ax


def bars(ax: Any, names: Sequence[str], values: Sequence[float], said: Sequence[str], color: Any = "C0") -> None:
    """Draw a bar for each name, the first on top, with its text from `said` at its end."""
    places = range(len(names))
    ax.bar_label(ax.barh(places, values, color=color), said, padding=3)
    ax.set_yticks(places, names)
    ax.invert_yaxis()
    ax.margins(x=0.15)

"""The results of the demo as tables and as a picture."""

from __future__ import annotations

from typing import Any

from bitsparse import viz
from bitsparse.bench import format_table


def table(facts: dict[str, Any], part: str) -> str:
    """The table of ``accuracy`` or ``large``."""
    if part == "accuracy":
        return _accuracy_table(facts["accuracy"])
    return _large_table(facts["large"], facts["device"], facts["threads"])


def _accuracy_table(found: dict[str, Any]) -> str:
    seeds = found["seeds"]
    rows = []
    for one in found["results"]:
        spread = f" +- {one['accuracy_std']:.2f}" if seeds > 1 else ""
        rows.append([str(one["bits"]), f"{one['accuracy']:.2f}{spread}"])
    about = f"two-layer GCN, 16 hidden units, {seeds} seed{'' if seeds == 1 else 's'}, quantised without labels"
    graph = f"{found['graph']}: {found['nodes']} nodes, {found['edges']} edges"
    return f"{graph}\n{about}\n\n" + format_table(["bits", "test accuracy %"], rows)


def _large_table(found: dict[str, Any], device: str, threads: int) -> str:
    full = total(found["results"][0])
    headings = [
        "",
        "threads",
        "ms",
        "speed",
        "graph MB",
        "features",
        "activations",
        "all",
        "of float32",
        "same class %",
    ]
    rows = []
    for one in found["results"]:
        held = one["bytes"]
        megabytes = [f"{held[name] / 1e6:.1f}" for name in ("graph", "features", "activations")]
        workers = "-" if one["threads"] is None else str(one["threads"])
        last = [f"{total(one) / 1e6:.1f}", f"{total(one) / full:.2f}", f"{one['agreement']:.2f}"]
        rows.append([one["name"], workers, f"{one['ms']:.1f}", f"{one['speed']:.2f}", *megabytes, *last])
    widths = " -> ".join(map(str, found["widths"]))
    lines = [
        f"synthetic: {found['nodes']} nodes, {found['edges']} edges",
        f"GCN {widths}, the same weights on every side, {device}; median ms of one inference, features and graph ready",
        "",
        format_table(headings, rows),
    ]
    if device == "cpu":
        lines += ["", "SciPy sums on one thread; its products run on as many as NumPy's BLAS takes."]
    return "\n".join(lines)


def total(one: dict[str, Any]) -> int:
    """All bytes that a side holds.

    Examples
    --------
    >>> total({"bytes": {"graph": 3, "features": 4}})
    7
    """
    return sum(one["bytes"].values())


def picture(facts: dict[str, Any]) -> Any:
    """Draw accuracy by bits and bars of time and memory on one figure, and return its leftmost axes."""
    from matplotlib.figure import Figure

    count = ("accuracy" in facts) + 2 * ("large" in facts)
    axes = list(Figure(figsize=(5.2 * count, 4.2), layout="constrained").subplots(1, count, squeeze=False)[0])
    left = axes[0]
    if "accuracy" in facts:
        _draw_accuracy(axes.pop(0), facts["accuracy"])
    if "large" in facts:
        _draw_large(axes, facts["large"], facts["device"])
    return left


def _draw_accuracy(ax: Any, found: dict[str, Any]) -> None:
    results = found["results"]
    values, spread = [one["accuracy"] for one in results], [one["accuracy_std"] for one in results]
    ax.errorbar(range(len(results)), values, yerr=spread, marker="o", capsize=3)
    for i, value in enumerate(values):
        ax.annotate(f"{value:.1f}", (i, value), xytext=(0, 7), textcoords="offset points", ha="center")
    ax.set_xticks(range(len(results)), [str(one["bits"]) for one in results])
    ax.set_ylim(min(80.0, 0.9 * min(values)), 101.0)
    ax.set(title=f"{found['graph']}: accuracy", xlabel="bits", ylabel="per cent of the test nodes")


def _draw_large(axes: list[Any], found: dict[str, Any], device: str) -> None:
    results = found["results"]
    names = [one["name"] for one in results]
    colours = ["C0" if name.startswith("bitsparse") else "0.6" for name in names]
    for ax, values, title, unit in (
        (axes[0], [one["ms"] for one in results], f"one inference on {device}", "milliseconds"),
        (axes[1], [total(one) / 1e6 for one in results], "memory", "megabytes"),
    ):
        said = [f"{value:.0f}" if value >= 10 else f"{value:.2f}" for value in values]
        viz.bars(ax, names, values, said, colours)
        ax.set(title=f"{found['nodes']:,} nodes: {title}", xlabel=unit)

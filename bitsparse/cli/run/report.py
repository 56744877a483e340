"""The report of a run: as one JSON object, as text, as a page, and as data for a picture of its phases."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any

from bitsparse import nn
from bitsparse._text import duration, size
from bitsparse.bench import format_table
from bitsparse.cli.run.whole import Memory


@dataclass
class Report:
    """All figures of one run. Accuracies are in per cent of the compared nodes, None if not computed.

    ``full`` is the accuracy in full precision over the whole graph, ``whole`` that in few bits over the whole graph, and ``accuracy`` that
    of the logits of the run. So the cost of the bits (from ``full`` to ``whole``) is separate from that of cutting the graph (from
    ``whole`` to ``accuracy``).
    """

    graph: str
    device: str
    network: str
    bits: int
    nodes: int
    edges: int
    memory: Memory
    batches: nn.ClusterReport | None = None
    accuracy: float | None = None
    whole: float | None = None
    full: float | None = None
    #: Nanoseconds of each phase; their sum is the time of the command.
    phases: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Seconds from the start of the command to the report."""
        return sum(self.phases.values()) / 1e9

    @property
    def title(self) -> str:
        """A title for a picture: the network, the device, the mode and the total time."""
        how = "the whole graph" if self.batches is None else f"{self.batches.batches} batches"
        return f"{self.network} on {self.device}, {how}, {duration(self.total)}"

    def stages(self) -> list[tuple[str, float]]:
        """The seconds of each phase.

        Examples
        --------
        >>> Report("g", "cpu", "gcn", 8, 3, 4, Memory(1, 2), phases={"reading": 1_500_000_000}).stages()
        [('reading', 1.5)]
        """
        return [(name, ns / 1e9) for name, ns in self.phases.items()]

    def record(self) -> dict[str, Any]:
        """Everything as one JSON object."""
        about = {name: getattr(self, name) for name in ("graph", "device", "network", "bits", "nodes", "edges")}
        return about | {
            "mode": "whole" if self.batches is None else "batches",
            "bytes_needed": self.memory.needed,
            "bytes_available": self.memory.available,
            "accuracy": self.accuracy,
            "whole_accuracy": self.whole,
            "full_accuracy": self.full,
            "loss_by_bits": _less(self.full, self.whole),
            "loss_by_cutting": _less(self.whole, self.accuracy),
            "seconds": self.total,
            "phases": dict(self.stages()),
            "batches": None if self.batches is None else self.batches.record(),
        }

    def __str__(self) -> str:
        lines = [self._headline()]
        if self.batches is not None:
            lines += ["", str(self.batches)]
        if self.accuracy is not None:
            lines += ["", format_table(("", "accuracy %", "points"), self._accuracies())]
        total = self.total or 1.0
        rows = [[name, duration(seconds), f"{100 * seconds / total:.0f}"] for name, seconds in self.stages()]
        lines += ["", format_table(("phase", "time", "%"), [*rows, ["in all", duration(self.total), "100"]])]
        return "\n".join(lines)

    def _headline(self) -> str:
        need, there = size(self.memory.needed), self.memory.available
        room = f"at most {need} to work in, {'an unknown amount' if there is None else size(there)} available"
        how = "the whole graph" if self.batches is None else "batches, whose edges alone count"
        return f"{self.graph}: {self.nodes} nodes, {self.edges} edges; {self.network} on {self.device}, {how} ({room})"

    def _accuracies(self) -> list[list[str]]:
        """One row for each network that ran, with its points relative to the row above."""
        bits = f"{self.bits} bit{'' if self.bits == 1 else 's'}"
        accuracies = [("full precision, whole graph", self.full), (f"{bits}, whole graph", self.whole)]
        if self.batches is not None:
            accuracies.append((f"{bits}, batches", self.accuracy))
        rows, before = [], None
        for name, value in accuracies:
            loss = _less(before, value)
            points = "-" if loss is None else f"{0.0 - loss:+.2f}"
            rows.append([name, "not computed" if value is None else f"{value:.2f}", points])
            before = value
        return rows


def _less(before: float | None, after: float | None) -> float | None:
    """The points lost, None if an accuracy is unknown."""
    return None if before is None or after is None else round(before - after, 4)


_STYLE = (
    "body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}pre{overflow-x:auto}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.2em 1em .2em 0}"
    "th{white-space:nowrap;font-weight:normal}td{overflow-wrap:anywhere}"
    "td.bar{width:70%}td.bar div{background:#36c;height:1em}td.time{white-space:nowrap;text-align:right}"
)


def page(report: Report) -> str:
    """The report as one self-contained HTML page.

    Examples
    --------
    >>> "<h1>a &lt; b</h1>" in page(Report("a < b", "cpu", "gcn", 8, 3, 4, Memory(1, 2)))
    True
    """
    longest = max((seconds for _, seconds in report.stages()), default=0.0) or 1.0
    bar = "<tr><th>{}</th><td class='bar'><div style='width:{:.1f}%'></div></td><td class='time'>{}</td></tr>"
    bars = "".join(bar.format(html.escape(name), 100 * s / longest, duration(s)) for name, s in report.stages())
    record = report.record()
    record |= {"phases": None, **{f"batches: {key}": value for key, value in (record.pop("batches") or {}).items()}}
    row = "<tr><th>{}</th><td>{}</td></tr>"
    rows = "".join(
        row.format(html.escape(key), html.escape(_rounded(key, value)))
        for key, value in record.items()
        if value is not None
    )
    name = html.escape(report.graph)
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{name}: bitsparse run</title><style>{_STYLE}</style>"
        f"<h1>{name}</h1><pre>{html.escape(str(report))}</pre>"
        f"<h2>Time of each phase</h2><table>{bars}</table><h2>All figures</h2><table>{rows}</table></html>\n"
    )


def _rounded(key: str, value: Any) -> str:
    """A figure as text for readers, with the unit that its name implies.

    Examples
    --------
    >>> _rounded("bytes_needed", 119_136), _rounded("batches: compute_ms", 11.96553), _rounded("nodes", 12_345)
    ('119 kB', '12 ms', '12 345')
    """
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    if isinstance(value, str):
        return value
    if "bytes" in key:
        return size(value)
    if key.endswith("_ms"):
        return duration(value / 1000)
    if key.endswith("seconds"):
        return duration(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}".replace(",", " ")

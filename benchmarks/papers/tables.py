"""Shared parts of the documents of the five papers: sections per table or figure, tables with one line per record, and cells.

A table is a list of columns, each a heading and a function that makes a cell from a record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

__all__ = [
    "Columns",
    "Record",
    "Rows",
    "by_part",
    "document",
    "lines",
    "mean_ratio",
    "ms",
    "name_of",
    "of_params",
    "ratio",
    "table",
    "taken_on",
    "times",
]

Record = dict[str, Any]
Rows = list[Record]
Columns = Sequence[tuple[str, Callable[[Record], str]]]


def document(
    head: str,
    sections: Mapping[str, tuple[str, Callable[[Rows], str]]],
    records: Iterable[Record],
    short: str = "",
    of: Collection[str] | None = None,
) -> str:
    """Join all sections that have records; `short`, the summary, is included if the parts in `of` (by default all) have records."""
    rows = by_part(records)
    begin = head + short if set(sections if of is None else of) <= rows.keys() else head
    return "\n".join(
        [begin, *(f"## {title}\n\n{text(rows[part])}" for part, (title, text) in sections.items() if part in rows)]
    )


def by_part(records: Iterable[Record]) -> dict[str, Rows]:
    """Group records by table or figure."""
    found: dict[str, Rows] = {}
    for record in records:
        found.setdefault(record["params"]["part"], []).append(record)
    return found


def taken_on(rows: Rows, what: str = "Measured", *more: str) -> str:
    """A sentence that says on which machine the numbers were measured."""
    return f"{what}: {', '.join((rows[0]['gpu'], rows[0]['driver'], *more))}.\n\n"


# ---- tables
def lines(rows: Rows, columns: Columns, left: int = 0) -> str:
    """A table with one line per record."""
    return table([heading for heading, _ in columns], ([cell(row) for _, cell in columns] for row in rows), left)


def table(headings: Sequence[str], body: Iterable[Sequence[str]], left: int = 0) -> str:
    """A table, right-aligned except for the first ``left`` columns."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, rule, *body)) + "\n"


# ---- cells
def name_of(record: Record) -> str:
    """The graph's name, with a mark for a stand-in."""
    params = record["params"]
    return str(params["graph"]) + ("" if params["source"].endswith(".npz") else " *")


def of_params(name: str, form: str = "{}") -> Callable[[Record], str]:
    """A cell with a formatted parameter, or a dash if it is missing."""

    def cell(record: Record) -> str:
        value = record["params"].get(name)
        return "-" if value is None else form.format(value)

    return cell


def ms(name: str) -> Callable[[Record], str]:
    """A cell with milliseconds from a field of the record, or else from a parameter; a dash if both are missing."""

    def cell(record: Record) -> str:
        value = record.get(name, record["params"].get(name))
        return "-" if value is None else f"{value:.4f}"

    return cell


def ratio(record: Record) -> str:
    """The peer's time divided by ours."""
    return "-" if record["ratio"] is None else f"{record['ratio']:.2f}x"


def mean_ratio(rows: Iterable[Record]) -> str:
    """The geometric mean of all ratios."""
    found = [row["ratio"] for row in rows if row["ratio"] is not None]
    return f"{geometric_mean(found):.2f}x" if found else "-"


def times(over: str, below: str = "ours_ms") -> Callable[[Record], str]:
    """A cell with the quotient of two times, which are found as by :func:`ms`."""

    def cell(record: Record) -> str:
        top, bottom = (record.get(name, record["params"].get(name)) for name in (over, below))
        return "-" if top is None or bottom is None else f"{top / bottom:.2f}x"

    return cell

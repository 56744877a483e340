"""Tables in Markdown, and records by the table or figure that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["by_part", "table"]

_Rows = list[dict[str, Any]]


def by_part(records: Iterable[dict[str, Any]]) -> dict[str, _Rows]:
    """The records of each table or figure."""
    found: dict[str, _Rows] = {}
    for record in records:
        found.setdefault(record["params"]["part"], []).append(record)
    return found


def table(headings: Sequence[str], body: Iterable[Sequence[str]], left: int = 0) -> str:
    """A table, flush right but for the first ``left`` columns."""
    rule = ["---"] * left + ["---:"] * (len(headings) - left)
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, rule, *body)) + "\n"

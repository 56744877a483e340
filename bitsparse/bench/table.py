"""Plain-text tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bitsparse.bench.records import Record

HEADINGS = ("case", "ours ms", "peer ms", "ratio", "floor ms", "estimate ms", "peer")


def format_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out rows as a text table; columns whose cells are all numbers (or ``-``) are aligned right.

    Examples
    --------
    >>> print(format_table(["case", "ms"], [["pack", "9.50"], ["quantize", "12.00"]]))
    case         ms
    --------  -----
    pack       9.50
    quantize  12.00
    """
    table = [list(row) for row in rows]
    columns = [[str(row[i]) for row in table] for i in range(len(headings))]
    widths = [max(map(len, [heading, *column])) for heading, column in zip(headings, columns, strict=True)]
    right = [bool(column) and all(_is_number(cell) for cell in column) for column in columns]

    def line(cells: Sequence[str]) -> str:
        laid = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(laid).rstrip()

    return "\n".join([line(headings), line(["-" * width for width in widths]), *map(line, table)])


def record_row(record: Record) -> list[str]:
    """The cells of one benchmark record under :data:`HEADINGS`."""
    return [
        record.case,
        _milliseconds(record.ours_ms),
        _milliseconds(record.peer_ms),
        "-" if record.ratio is None else f"{record.ratio:.2f}",
        _milliseconds(record.floor_ms),
        _milliseconds(record.estimate_ms),
        record.peer or "-",
    ]


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell == "-"
    return True

"""Copies of named tuples with some fields changed (``copy.replace``, which needs Python 3.13), and their fields as dictionaries."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

Record = TypeVar("Record", bound=NamedTuple)


def replace(record: Record, **fields: Any) -> Record:
    """A copy of `record` in which the given fields have new values.

    Examples
    --------
    >>> class Size(NamedTuple):
    ...     rows: int
    ...     cols: int
    >>> replace(Size(2, 3), cols=4)
    Size(rows=2, cols=4)
    """
    return record._replace(**fields)


def as_dict(record: NamedTuple) -> dict[str, Any]:
    """The fields of `record` as a dictionary."""
    return record._asdict()

"""Named tuples with other fields, as ``copy.replace`` gives from Python 3.13 on, and as dictionaries."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

Record = TypeVar("Record", bound=NamedTuple)


def replace(record: Record, **fields: Any) -> Record:
    """`record` with other values in some fields.

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
    """The fields of `record` by name."""
    return record._asdict()

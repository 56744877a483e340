"""Graphs from text: Matrix Market files and edge lists."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse._check import shown
from bitsparse.datasets.graph_data import GraphData
from bitsparse.datasets.sources import csr_of_pairs, existing_file, graph_of_pairs, naming, node_limit, plain_bytes
from bitsparse.datasets.words import Words, blocks, floats, integers, table, words
from bitsparse.errors import ShapeError

__all__ = ["read_edges", "read_mtx"]

#: Bytes of an entry of a Matrix Market file, at least: two numbers, a blank and the end of the line; one number in a dense file.
_LEAST_BYTES = {"coordinate": 4, "array": 2}
_FIELDS = ("pattern", "real", "double", "integer", "unsigned-integer")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")
_BLANKS = table(b" \t")
#: Of edge lists: what stands between columns, and the quotes around them.
_BETWEEN = table(b" \t\v\f,;\"'")


class _Announced(NamedTuple):
    """The head of a Matrix Market file, and where its body begins."""

    form: str
    field: str
    symmetry: str
    size: int
    entries: int
    at: int
    line: int


def read_mtx(path: str | os.PathLike[str], *, weights: bool = False) -> GraphData:
    r"""Read a square Matrix Market file (``.mtx``, also gzipped) as a graph.

    Every stored position is an edge; a symmetric file gives both directions.

    Parameters
    ----------
    path : path
    weights : bool, default False
        Keep the values as ``GraphData.weights``; a ``pattern`` file has none.

    Returns
    -------
    GraphData
        Named after the file.

    Raises
    ------
    FileNotFoundError, OSError
        The file cannot be read.
    FileFormatError, ShapeError
        It is not a Matrix Market file, is truncated, announces more than it holds, or is not square.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bitsparse.datasets import read_mtx
    >>> text = "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n2 1\n3 2\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "path.mtx")
    ...     _ = file.write_text(text)
    ...     read_mtx(file)
    GraphData(path: 3 nodes, 4 edges)
    """
    function = "read_mtx"
    file = existing_file(function, path)
    content = plain_bytes(function, file)
    with naming(function, file):
        content = _lines(content)
        head = _announced(content)
        parsed = _parsed_pairs(content, head, weights) if head.form == "coordinate" else _parsed_dense(content, head)
        rows, cols, values = _mirrored(*parsed, head.symmetry)
        indptr, indices, kept = csr_of_pairs(rows, cols, head.size, values if weights else None)
        return GraphData(indptr=indptr, indices=indices, weights=kept, name=_stem(file))


def _lines(content: bytes) -> bytes:
    """Lines that end in a newline, however they end in the file."""
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in content else content


def _announced(content: bytes) -> _Announced:
    """What the head says; sizes are compared with the bytes there are."""
    stream = io.BytesIO(content)
    words = stream.readline(1024).decode("latin-1").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[2] not in _LEAST_BYTES:
        raise ValueError("the first line is not a Matrix Market header; it begins '%%MatrixMarket matrix coordinate'")
    form, field, symmetry = words[2:]
    if field == "complex" or symmetry == "hermitian":
        raise ValueError("the values are complex, but a graph's weights are real; write it as pattern or real")
    if field not in _FIELDS or symmetry not in _SYMMETRIES or (form == "array" and field == "pattern"):
        raise ValueError(f"its header names {shown(' '.join(words[2:]))}, which is no form of Matrix Market")
    line, number = b"%", 0
    while line and (line.startswith(b"%") or not line.strip(b" \t\n")):
        line, number = stream.readline(), number + 1
    sizes = re.findall(rb"[^ \t\n]+", line)  # by the blanks that separate entries, and no others
    needed = 3 if form == "coordinate" else 2
    if len(sizes) != needed or not all(size.isdigit() and len(size) < 19 for size in sizes):
        shown_line = line[:60].decode("latin-1").strip()
        raise ValueError(f"the size line holds {_check.shown(shown_line)}, but {needed} whole numbers are needed")
    rows, cols = int(sizes[0]), int(sizes[1])
    if rows != cols:
        raise ShapeError(f"the matrix has shape {(rows, cols)}, but a graph has as many rows as columns")
    lower = {"general": rows * rows, "symmetric": rows * (rows + 1) // 2, "skew-symmetric": rows * (rows - 1) // 2}
    entries = int(sizes[2]) if needed == 3 else lower[symmetry]
    left = len(content) - stream.tell()
    if entries * _LEAST_BYTES[form] > left + 1:
        raise ValueError(f"{entries} entries are announced, but only {left} bytes follow; it is truncated or damaged")
    node_limit(rows, entries, "the number of rows or columns")
    return _Announced(form, field, symmetry, rows, entries, stream.tell(), number + 1)


def _columns(content: bytes, head: _Announced, count: int) -> Iterator[tuple[slice, list[Words]]]:
    """The columns of a body of `count` numbers a line, block by block, and the entries that each block holds."""
    have = 0
    for block, line in blocks(content, head.at, head.line):
        block_words = words(block, _BLANKS, line)
        here = np.diff(block_words.line_starts())
        wrong = (here != 0) & (here != count)
        if wrong.any():
            i = int(wrong.argmax())
            raise ValueError(f"it cannot be parsed (line {line + i + 1} holds {here[i]} numbers, not {count})")
        entries = block_words.starts.size // count
        have += entries
        if have > head.entries:
            break
        yield slice(have - entries, have), [block_words.at(slice(i, None, count)) for i in range(count)]
    if have != head.entries:
        raise ValueError(
            f"it cannot be parsed ({head.entries} entries are announced, but {'more' if have > head.entries else have} "
            "are there); it may be truncated"
        )


_Pairs = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]


def _parsed_pairs(content: bytes, head: _Announced, weights: bool) -> _Pairs:
    ends = np.empty((2, head.entries), np.int32 if head.size < 1 << 31 else np.int64)
    count = 2 if head.field == "pattern" else 3
    values = _values(head) if weights and count == 3 else None
    for part, columns in _columns(content, head, count):
        for i in range(2):
            number, bad = integers(columns[i])
            columns[i].refuse(
                bad | (number < 1) | (number > head.size), f"a row or column from 1 to {head.size}: it cannot be parsed"
            )
            ends[i, part] = number - 1
        if count == 3:
            _read_values(columns[2], head, None if values is None else values[part])
    return ends[0], ends[1], values


def _parsed_dense(content: bytes, head: _Announced) -> _Pairs:
    """Column after column, the lower triangle alone unless the matrix is general; zeros are no edges."""
    values = _values(head)
    for part, columns in _columns(content, head, 1):
        _read_values(columns[0], head, values[part])
    cols, rows = np.divmod(np.arange(head.size * head.size), max(head.size, 1))
    if head.symmetry != "general":
        kept = rows > cols if head.symmetry == "skew-symmetric" else rows >= cols
        rows, cols = rows[kept], cols[kept]
    edges = values != 0
    return rows[edges], cols[edges], values[edges]


def _values(head: _Announced) -> NDArray[Any]:
    return np.empty(head.entries, np.int64 if "integer" in head.field else np.float64)


def _read_values(block_words: Words, head: _Announced, into: NDArray[Any] | None) -> None:
    if "integer" in head.field:
        number: NDArray[Any]
        number, bad = integers(block_words)
        block_words.refuse(bad, "a whole number of at most 18 digits: it cannot be parsed")
    else:
        number, bad = floats(block_words)
        block_words.refuse(bad, "a number: it cannot be parsed")
    if into is not None:
        into[...] = number


def _mirrored(rows: NDArray[Any], cols: NDArray[Any], values: NDArray[Any] | None, symmetry: str) -> _Pairs:
    """Both directions of a symmetric matrix."""
    if symmetry == "general":
        return rows, cols, values
    other = rows != cols
    both = np.concatenate([rows, cols[other]]), np.concatenate([cols, rows[other]])
    sign = -1 if symmetry == "skew-symmetric" else 1
    return (*both, None if values is None else np.concatenate([values, sign * values[other]]))


def read_edges(
    path: str | os.PathLike[str],
    *,
    base: int = 0,
    weights: bool = False,
    symmetric: bool = False,
    nodes: int | None = None,
) -> GraphData:
    r"""Read a text file with one edge a line: source, target and perhaps a weight.

    Columns are separated by blanks, tabs, commas or semicolons, and may be quoted. Lines that begin with ``#``, ``%`` or ``//`` are
    comments, and one line of column names, neither of the first two a number, is passed over. Nodes are whole numbers, which may be
    written ``1.0``. The file may be gzipped, and begin with a byte order mark of UTF-8.

    Parameters
    ----------
    path : path
    base : {0, 1}
        The number of the first node.
    weights : bool, default False
        Keep the third column as ``GraphData.weights`` (repeated edges add theirs); otherwise whatever follows the target is ignored.
    symmetric : bool, default False
        Add the other direction of every edge.
    nodes : int, optional
        By default one more than the largest number.

    Returns
    -------
    GraphData
        Named after the file; repeated edges are merged.

    Raises
    ------
    FileNotFoundError, OSError
        The file cannot be read.
    FileFormatError, ShapeError
        A line is not an edge, a number is out of range, or there is no edge at all.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bitsparse.datasets import read_edges
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "triangle.txt")
    ...     _ = file.write_text("# from to weight\n1 2 0.5\n2 3 0.25\n3 1 1\n")
    ...     triangle = read_edges(file, base=1, weights=True)
    >>> triangle, triangle.weights
    (GraphData(triangle: 3 nodes, 3 edges), array([0.5 , 0.25, 1.  ]))
    """
    function = "read_edges"
    if base not in (0, 1) or isinstance(base, bool):
        raise ValueError(f"{function}: base must be 0 or 1, got {shown(base)}")
    if nodes is not None:
        nodes = _check.integer(function, "nodes", nodes, 0)
    file = existing_file(function, path)
    content = plain_bytes(function, file)
    with naming(function, file):
        ends, values = _edges(content, weights)
        return graph_of_pairs(
            ends[:, 0] - base, ends[:, 1] - base, nodes, _stem(file), weights=values, symmetric=symmetric
        )


def _edges(content: bytes, weights: bool) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    if b"\0" in content[:4096]:
        raise ValueError("it is not text; convert it to one edge a line")
    parts: list[NDArray[np.int64]] = []
    values: list[NDArray[np.float64]] = []
    named = False
    for block, line in blocks(_lines(content.removeprefix(b"\xef\xbb\xbf"))):
        _check_text(block)
        block_words = words(block, _BETWEEN, line)
        at, counts = _edge_lines(block_words)
        if at.size and not parts and not named and not _has_numbers(block_words, at[0], counts[0]):
            named, at, counts = True, at[1:], counts[1:]
        if not at.size:
            continue
        if weights and not parts and counts[0] == 2:
            raise ValueError("its lines have two columns, so there are no weights to keep; drop weights=True")
        parts.append(np.stack([_nodes(_column(block_words, at, counts, i)) for i in range(2)], axis=1))
        if weights:
            third = _column(block_words, at, counts, 2)
            number, bad = floats(third)
            third.refuse(bad, "a weight")
            values.append(number)
    if not parts:
        raise ValueError("it holds no edge; there must be at least one line with two numbers")
    ends = np.concatenate(parts)
    if int(ends.min()) < 0:
        raise ValueError(f"a node has number {int(ends.min())}; nodes are whole numbers from 0 or 1")
    return ends, np.concatenate(values) if weights else None


def _check_text(block: NDArray[np.uint8]) -> None:
    try:
        str(block.data, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text ({error.reason})") from None


def _edge_lines(block_words: Words) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Which words begin a line that is no comment, and how many the line holds."""
    before = block_words.line_starts()
    counts = np.diff(before)
    at, counts = before[:-1][counts > 0], counts[counts > 0]
    starts, longer = block_words.starts[at], block_words.ends[at] - block_words.starts[at] > 1
    first, second = block_words.block[starts], block_words.block[starts + longer]
    slashes = (first == ord("/")) & (second == ord("/")) & longer
    edges = ~(slashes | (first == ord("#")) | (first == ord("%")))
    return at[edges], counts[edges]


def _column(block_words: Words, at: NDArray[np.intp], counts: NDArray[np.intp], column: int) -> Words:
    """The words of one column of the lines that begin with the words `at`."""
    short = counts <= column
    if short.any():
        i = int(short.argmax())
        held = int(counts[i])
        raise ValueError(
            f"line {block_words.line(int(at[i]))} holds {held} word{'s' * (held > 1)}, but {column + 1} are needed"
        )
    return block_words.at(at + column)


def _has_numbers(block_words: Words, at: int, count: int) -> bool:
    """Whether one of the first two words of a line is a number, so that they are not names."""
    return not floats(block_words.at(slice(at, at + min(count, 2))))[1].all()


def _nodes(block_words: Words) -> NDArray[np.int64]:
    """Whole numbers; ``1.0`` is one."""
    number, bad = integers(block_words)
    if bad.any():
        value, none = floats(block_words.at(bad))
        whole = ~none & (np.abs(value) < 2.0**53) & (np.floor(value) == value)
        block_words.at(bad).refuse(~whole, "a node's number")
        number[bad] = value.astype(np.int64)
    return number


def _stem(file: Path) -> str:
    name = file.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name

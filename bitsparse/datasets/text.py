"""Readers of graphs from text: Matrix Market files and edge lists. NumPy parses the numbers; if it fails, errors here name the word."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check
from bitsparse._check import shown
from bitsparse.datasets.graph_data import GraphData
from bitsparse.datasets.sources import existing_file, graph_of_pairs, naming, node_limit, plain_bytes
from bitsparse.errors import ShapeError

#: Least bytes of an entry of a Matrix Market file: two numbers, a blank and the end of the line; or one number with its end of line in a
#: dense file.
_LEAST_BYTES = {"coordinate": 4, "array": 2}
_FIELDS = ("pattern", "real", "double", "integer", "unsigned-integer")
#: Factor for the mirrored copy of an entry; 0 means that there is none.
_MIRRORED = {"general": 0, "symmetric": 1, "skew-symmetric": -1}
#: Control characters that NumPy would take for blanks become question marks, which no number contains.
_CONTROLS = b"\x1c\x1d\x1e\x1f"
_BLANKS = bytes.maketrans(b"\t\v\f" + _CONTROLS, b" ??" + b"????")
#: For edge lists: separators between columns, and quotes around them, become blanks.
_BETWEEN = bytes.maketrans(b"\t\v\f,;\"'" + _CONTROLS, b" " * 7 + b"????")
#: How the edge lists begin that ``bitsparse convert`` writes: a comment which tells how many nodes there are, as some may have no edge.
EDGES_HEADER = "{nodes} nodes, source target"
_COUNTED = re.compile(EDGES_HEADER.format(nodes="# ([0-9]{1,18})").encode())


# -- columns of numbers -----------------------------------------------------------------------------------------------
class _Column(NamedTuple):
    """The dtype of a column, the name of its numbers in messages, and a test whether a word is such a number."""

    dtype: str
    what: str
    holds: Callable[[bytes], bool]


def _is_number(word: bytes) -> bool:
    with suppress(ValueError):
        float(word)
        return b"_" not in word  # Python allows it between digits
    return False


def _is_whole(word: bytes) -> bool:
    return re.fullmatch(rb"[+-]?[0-9]{1,18}", word) is not None


def _is_node(word: bytes) -> bool:
    return _is_number(word) and float(word).is_integer() and abs(float(word)) < 2.0**53


_WEIGHT = _Column("f8", "a weight", _is_number)
_NODE = _Column("i8", "a node's number", _is_node)
_REAL = _Column("f8", "a number: it cannot be parsed", _is_number)
_WHOLE = _Column("i8", "a whole number of at most 18 digits: it cannot be parsed", _is_whole)


def _columns(body: bytes, line: int, columns: Sequence[_Column], *, loose: bool = False) -> list[NDArray[Any]]:
    """The columns of numbers in a text whose first line has the number `line` in its file; blank lines are skipped.

    With `loose`, lines may have more columns than these, and whole numbers may be written as ``1.0``.
    """
    fields = [(str(i), column.dtype) for i, column in enumerate(columns)]
    if not body or body.isspace():
        return [np.empty(0, dtype) for _, dtype in fields]
    used = range(len(columns)) if loose else None
    for dtype in (fields, [(name, "f8") for name, _ in fields])[: 1 + loose]:
        with suppress(ValueError, DeprecationWarning), warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # older NumPy only warns of 1.5 as an integer
            table = np.loadtxt(io.BytesIO(body), dtype, comments=None, usecols=used, ndmin=1, encoding="utf-8")
            return [table[name] for name, _ in fields]
    raise _first_fault(body, line, columns, loose)


def _first_fault(body: bytes, line: int, columns: Sequence[_Column], loose: bool) -> ValueError:
    """The error for the first word that is not a valid number of its column, or the first line with too few or too many words."""
    for number, text in enumerate(body.split(b"\n"), line):
        words = text.split()
        if 0 < len(words) < len(columns) or (len(words) > len(columns) and not loose):
            held = f"{len(words)} word{'s' * (len(words) > 1)}"
            return ValueError(f"line {number} holds {held}, but {len(columns)} are needed: it cannot be parsed")
        for word, column in zip(words, columns, strict=False):
            if not column.holds(word):
                return ValueError(f"line {number}: {shown(word.decode('utf-8', 'replace'))} is not {column.what}")
    return ValueError("it cannot be parsed")


# -- Matrix Market ----------------------------------------------------------------------------------------------------
class _Announced(NamedTuple):
    """The header of a Matrix Market file, and the position and line where its body begins."""

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
    _check.flag(function, "weights", weights)
    file = existing_file(function, path)
    content = plain_bytes(function, file)
    with naming(function, file):
        content = _lines(content)
        head = _announced(content)
        rows, cols, values = _entries(content, head)
        kept = values if weights else None
        return graph_of_pairs(rows, cols, head.size, _stem(file), weights=kept, mirrored=_MIRRORED[head.symmetry])


def _lines(content: bytes) -> bytes:
    """The content with all line ends replaced by newlines."""
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in content else content


def _announced(content: bytes) -> _Announced:
    """Parse the header, and compare the sizes that it announces with the bytes that follow."""
    stream = io.BytesIO(content)
    words = stream.readline(1024).decode("latin-1").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[2] not in _LEAST_BYTES:
        raise ValueError("the first line is not a Matrix Market header; it begins '%%MatrixMarket matrix coordinate'")
    form, field, symmetry = words[2:]
    if field == "complex" or symmetry == "hermitian":
        raise ValueError("the values are complex, but a graph's weights are real; write it as pattern or real")
    if field not in _FIELDS or symmetry not in _MIRRORED or (form == "array" and field == "pattern"):
        raise ValueError(f"its header names {shown(' '.join(words[2:]))}, which is no form of Matrix Market")
    line, number = b"%", 0
    while line and (line.startswith(b"%") or not line.strip(b" \t\n")):
        line, number = stream.readline(), number + 1
    sizes = re.findall(rb"[^ \t\n]+", line)  # split at the same blanks as entries, and no others
    needed = 3 if form == "coordinate" else 2
    if len(sizes) != needed or not all(size.isdigit() and len(size) < 19 for size in sizes):
        shown_line = line[:60].decode("latin-1").strip()
        raise ValueError(f"the size line holds {shown(shown_line)}, but {needed} whole numbers are needed")
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


def _entries(content: bytes, head: _Announced) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Rows, columns and values of the entries in the file, before they are mirrored."""

    def is_place(word: bytes) -> bool:
        return _is_whole(word) and 1 <= int(word) <= head.size

    value = _WHOLE if "integer" in head.field else _REAL
    place = _Column("i8", f"a row or column from 1 to {head.size}: it cannot be parsed", is_place)
    columns = [place] * (2 * (head.form == "coordinate")) + [value] * (head.field != "pattern")
    body = content[head.at :].translate(_BLANKS)
    numbers = _columns(body, head.line + 1, columns)
    have = numbers[0].size
    if have != head.entries:
        raise ValueError(
            f"it cannot be parsed ({head.entries} entries are announced, but {'more' if have > head.entries else have} are "
            "there); it may be truncated"
        )
    if head.form == "array":
        return _of_dense(numbers[0], head)
    for ends in numbers[:2]:
        if ends.size and not 1 <= int(ends.min()) <= int(ends.max()) <= head.size:
            raise _first_fault(body, head.line + 1, columns, False)
    return numbers[0] - 1, numbers[1] - 1, numbers[2] if len(numbers) == 3 else None


def _of_dense(values: NDArray[Any], head: _Announced) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The entries of a dense file, which lists columns in turn (only the lower triangle unless it is general); zeros are no edges."""
    cols, rows = np.divmod(np.arange(head.size * head.size), max(head.size, 1))
    if head.symmetry != "general":
        kept = rows > cols if head.symmetry == "skew-symmetric" else rows >= cols
        rows, cols = rows[kept], cols[kept]
    edges = values != 0
    return rows[edges], cols[edges], values[edges]


# -- edge lists -------------------------------------------------------------------------------------------------------
def read_edges(
    path: str | os.PathLike[str],
    *,
    base: int = 0,
    weights: bool = False,
    symmetric: bool = False,
    nodes: int | None = None,
) -> GraphData:
    r"""Read a text file with one edge per line: source, target and perhaps a weight.

    Columns are separated by blanks, tabs, commas or semicolons, and may be quoted. Lines that begin with ``#``, ``%`` or ``//`` are
    comments. A first line of column names is skipped if neither of the first two is a number. Nodes are whole numbers, which may be
    written as ``1.0``. The file may be gzipped, and may begin with a UTF-8 byte order mark.

    Parameters
    ----------
    path : path
    base : {0, 1}
        The number of the first node.
    weights : bool, default False
        Keep the third column as ``GraphData.weights``, summed over repeated edges; otherwise everything after the target is ignored.
    symmetric : bool, default False
        Add the reverse of every edge.
    nodes : int, optional
        Number of nodes; by default what the first line says in a file of ``bitsparse convert``, else one more than the largest node number.

    Returns
    -------
    GraphData
        Named after the file; repeated edges are merged.

    Raises
    ------
    FileNotFoundError, OSError
        The file cannot be read.
    FileFormatError, ShapeError
        A line is not an edge, a number is out of range, or there is no edge and no number of nodes.

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
    _check.flag(function, "weights", weights)
    _check.flag(function, "symmetric", symmetric)
    if base not in (0, 1) or isinstance(base, bool):
        raise ValueError(f"{function}: base must be 0 or 1, got {shown(base)}")
    if nodes is not None:
        nodes = _check.integer(function, "nodes", nodes, 0)
    file = existing_file(function, path)
    content = plain_bytes(function, file)
    with naming(function, file):
        counted = _COUNTED.match(content)
        (source, target), values = _edges(content, weights, may_be_empty=counted is not None)
        if nodes is None and counted is not None:
            nodes = int(counted[1])
        return graph_of_pairs(source - base, target - base, nodes, _stem(file), weights=values, mirrored=int(symmetric))


def _edges(
    content: bytes, weights: bool, *, may_be_empty: bool
) -> tuple[list[NDArray[np.int64]], NDArray[np.float64] | None]:
    if b"\0" in content[:4096]:
        raise ValueError("it is not text; convert it to one edge a line")
    try:
        _ = content.isascii() or str(content, "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text ({error.reason})") from None
    body = _lines(content.removeprefix(b"\xef\xbb\xbf")).translate(_BETWEEN)
    if any(mark in body for mark in (b"#", b"%", b"//")):
        body = re.sub(rb"(?m)^ *(#|%|//).*", b"", body)
    line, first = 1, _first_line(body)
    if first is not None and not any(map(_is_number, first[0].split()[:2])):  # names of the columns
        line, body = 1 + body.count(b"\n", 0, first.end()), body[first.end() :]
        first = _first_line(body)
    if first is None and may_be_empty:
        return [np.empty(0, np.int64)] * 2, np.empty(0) if weights else None
    if first is None:
        raise ValueError("it holds no edge; there must be at least one line with two numbers")
    if weights and len(first[0].split()) == 2:
        raise ValueError("its lines have two columns, so there are no weights to keep; drop weights=True")
    columns = [_NODE, _NODE, _WEIGHT][: 2 + weights]
    numbers = _columns(body, line, columns, loose=True)
    ends = numbers[:2]
    if any(end.dtype.kind == "f" and not ((abs(end) < 2.0**53) & (np.floor(end) == end)).all() for end in ends):
        raise _first_fault(body, line, columns, True)
    low = min(int(end.min()) for end in ends)
    if low < 0:
        raise ValueError(f"a node has number {low}; nodes are whole numbers from 0 or 1")
    return [end.astype(np.int64, copy=False) for end in ends], numbers[2] if weights else None


def _first_line(body: bytes) -> re.Match[bytes] | None:
    """The first line that is not blank."""
    return re.search(rb"[^ \n][^\n]*", body)


def _stem(file: Path) -> str:
    name = file.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name

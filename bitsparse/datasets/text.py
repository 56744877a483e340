"""Graphs from text: Matrix Market files and edge lists."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse.datasets.graph_data import GraphData
from bitsparse.datasets.sources import csr_of_pairs, existing_file, graph_of_pairs, node_limit, plain_bytes
from bitsparse.errors import ShapeError

__all__ = ["read_edges", "read_mtx"]

_COMMENTS = ("#", "%", "//")
#: An entry of a Matrix Market file takes at least this many bytes: two numbers and what separates them; one in a dense file.
_LEAST_BYTES = {"coordinate": 3, "array": 1}


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
    ValueError, ShapeError
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
    try:
        kind = _check_announced(content)
        matrix = _parsed(content)
        if matrix.shape[0] != matrix.shape[1]:
            raise ShapeError(f"the matrix has shape {matrix.shape}, but a graph has as many rows as columns")
        if matrix.data.dtype.kind == "c":
            raise ValueError("the values are complex, but a graph's weights are real; write it as pattern or real")
        values = matrix.data if weights and kind != "pattern" else None
        rows, cols = matrix.coords
        indptr, indices, kept = csr_of_pairs(rows, cols, matrix.shape[0], values)
        return GraphData(indptr=indptr, indices=indices, weights=kept, name=_stem(file))
    except ShapeError as error:
        raise ShapeError(f"{function}: {file}: {error}") from None
    except (ValueError, OverflowError, MemoryError) as error:
        raise ValueError(f"{function}: {file}: {error}") from None


def _check_announced(content: bytes) -> str:
    """The field of the header (pattern, real ...); sizes are compared with the bytes there are."""
    stream = io.BytesIO(content)
    words = stream.readline(1024).decode("latin-1").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"] or words[2] not in _LEAST_BYTES:
        raise ValueError("the first line is not a Matrix Market header; it begins '%%MatrixMarket matrix coordinate'")
    line = b"%"
    while line and (line.startswith(b"%") or not line.strip()):
        line = stream.readline()
    sizes = line.split()
    needed = 3 if words[2] == "coordinate" else 2
    if len(sizes) != needed or not all(size.isdigit() and len(size) < 19 for size in sizes):
        shown = line[:60].decode("latin-1").strip()
        raise ValueError(f"the size line holds {shown!r}, but {needed} whole numbers are needed")
    rows, cols = int(sizes[0]), int(sizes[1])
    entries = int(sizes[2]) if needed == 3 else rows * cols
    share = 1 if words[4] == "general" else 2  # a symmetric dense file leaves one triangle out
    left = len(content) - stream.tell()
    if entries * _LEAST_BYTES[words[2]] > share * (left + 1) + 2 * max(rows, cols) * (needed == 2):
        raise ValueError(f"{entries} entries are announced, but only {left} bytes follow; it is truncated or damaged")
    node_limit(max(rows, cols), entries, "the number of rows or columns")
    return words[3]


def _parsed(content: bytes) -> Any:
    from scipy import sparse
    from scipy.io import mmread

    try:
        made = mmread(io.BytesIO(content))
    except (ValueError, OverflowError, TypeError, EOFError) as error:
        raise ValueError(f"it cannot be parsed ({error}); it may be truncated") from None
    return sparse.coo_array(made)


def read_edges(
    path: str | os.PathLike[str],
    *,
    base: int = 0,
    weights: bool = False,
    symmetric: bool = False,
    nodes: int | None = None,
) -> GraphData:
    r"""Read a text file with one edge a line: source, target and perhaps a weight.

    Columns are separated by blanks, tabs, commas or semicolons. Lines that begin with ``#``, ``%`` or ``//`` are comments, and one line of
    column names is passed over. The file may be gzipped.

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
    ValueError, ShapeError
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
        raise ValueError(f"{function}: base must be 0 or 1, got {base!r}")
    if nodes is not None and nodes < 0:
        raise ValueError(f"{function}: nodes must be at least 0, got {nodes}")
    file = existing_file(function, path)
    content = plain_bytes(function, file)
    try:
        ends, values = _columns(content, weights)
        return graph_of_pairs(
            ends[:, 0] - base, ends[:, 1] - base, nodes, _stem(file), weights=values, symmetric=symmetric
        )
    except ShapeError as error:
        raise ShapeError(f"{function}: {file}: {error}") from None
    except (ValueError, OverflowError, MemoryError) as error:
        raise ValueError(f"{function}: {file}: {error}") from None


def _columns(content: bytes, weights: bool) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    if b"\0" in content[:4096]:
        raise ValueError("it is not text; convert it to one edge a line")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text ({error.reason} at byte {error.start})") from None
    text = text.translate({ord(","): " ", ord(";"): " "})
    skipped, first = _first_line(text)
    if first is None:
        raise ValueError("it holds no edge; there must be at least one line with two numbers")
    options: dict[str, Any] = {"comments": _COMMENTS, "skiprows": skipped, "ndmin": 2}
    ends = np.loadtxt(io.StringIO(text), dtype=np.int64, usecols=(0, 1), **options)
    if int(ends.min()) < 0:
        raise ValueError(f"a node has number {int(ends.min())}; nodes are whole numbers from 0 or 1")
    if not weights:
        return ends, None
    if len(first) < 3:
        raise ValueError("its lines have two columns, so there are no weights to keep; drop weights=True")
    values = np.loadtxt(io.StringIO(text), dtype=np.float64, usecols=2, **options | {"ndmin": 1})
    return ends, values


def _first_line(text: str) -> tuple[int, list[str] | None]:
    """Lines to pass over, and the words of the first edge; None if there is none."""
    named = False
    for number, line in enumerate(io.StringIO(text)):
        words = line.split()
        if not words or line.lstrip().startswith(_COMMENTS):
            continue
        if words[0].lstrip("+-").isdigit() or named:
            return number, words
        named = True  # names of columns
    return 0, None


def _stem(file: Path) -> str:
    name = file.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name

"""Helpers of the readers: opening files, limiting the sizes that files announce, and CSR patterns from pairs of nodes."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse._archive import most_bytes, unpacks_to
from bitsparse._check import brief, shown
from bitsparse.datasets.graph_data import GraphData
from bitsparse.errors import DTypeError, FileFormatError, ShapeError

#: Nodes that a file may announce without having any entry for them, and how many more each of its entries allows.
_FREE_NODES = 1 << 24
_NODES_PER_ENTRY = 16
_CHUNK = 1 << 20


def existing_file(function: str, path: str | os.PathLike[str]) -> Path:
    """The path, after checking that it names an existing file."""
    file = Path(path)
    if "\0" in str(file):
        raise ValueError(f"{function}: the path {shown(str(file))} holds a zero byte; check it")
    if file.is_dir():
        raise IsADirectoryError(f"{function}: {str(file)!r} is a folder; name one file in it")
    if not file.exists():
        raise FileNotFoundError(f"{function}: there is no file {str(file)!r}; check the path")
    return file


@contextmanager
def naming(function: str, where: object) -> Iterator[None]:
    """Turn any error about the content of a file into one that names the function and the file."""
    try:
        yield
    except (ShapeError, DTypeError) as error:
        raise type(error)(f"{function}: {where}: {error}") from None
    except ValueError as error:
        raise FileFormatError(f"{function}: {where}: {brief(error)}") from None
    except MemoryError:
        raise FileFormatError(
            f"{function}: {where}: its arrays do not fit in memory; use a machine with more, or a smaller graph"
        ) from None


def plain_bytes(function: str, file: Path, limit: int | None = None) -> bytes:
    """The first `limit` bytes of a file, or all of them, decompressed if it begins like a gzip file.

    Memory grows with the bytes that are really read, never with a size in a header, and not beyond the limit of :func:`most_bytes`.
    """
    try:
        with file.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            room = most_bytes(raw.seek(0, os.SEEK_END))
            raw.seek(0)
            if not zipped:
                return raw.read() if limit is None else raw.read(limit)
            stream = gzip.GzipFile(fileobj=raw)
            if limit is not None:
                return stream.read(limit)
            parts, most = [], room
            while part := stream.read(_CHUNK):
                parts.append(part)
                room -= len(part)
                if room < 0:
                    raise FileFormatError(f"{function}: {file}: {unpacks_to(most)}")
            return b"".join(parts)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileFormatError(f"{function}: {file} is a damaged gzip file ({error}); copy it again") from None
    except MemoryError:
        raise FileFormatError(f"{function}: {file} does not fit in memory; use a machine with more") from None


def node_limit(nodes: int, entries: int, what: str) -> None:
    """Refuse a number of nodes that is far larger than the number of entries justifies, since a few bytes can announce any number."""
    most = _FREE_NODES + _NODES_PER_ENTRY * entries
    if not 0 <= nodes <= most:
        raise ValueError(
            f"{what} is {nodes}, but with {entries} entries at most {most} are believed; number the nodes without gaps"
        )


def csr_of_pairs(
    rows: NDArray[Any], cols: NDArray[Any], nodes: int, weights: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Sorted CSR arrays of a list of pairs; repeated pairs are merged and their weights added."""
    from scipy import sparse

    values = np.ones(rows.size, np.bool_) if weights is None else weights
    matrix = sparse.coo_array((values, (rows, cols)), shape=(nodes, nodes)).tocsr()
    matrix.sort_indices()
    dtype = np.int64 if max(nodes, matrix.nnz) >= 1 << 31 else np.int32
    indptr, indices = (part.astype(dtype, copy=False) for part in (matrix.indptr, matrix.indices))
    return indptr, indices, None if weights is None else matrix.data


def graph_of_pairs(
    rows: NDArray[Any],
    cols: NDArray[Any],
    nodes: int | None,
    name: str,
    *,
    weights: NDArray[Any] | None = None,
    mirrored: int = 0,
) -> GraphData:
    """A graph from the source and target of every edge, after checking them against the number of nodes.

    Unless `mirrored` is 0, the reverse of every edge is added, with its weight multiplied by `mirrored`.
    """
    if rows.size != cols.size:
        raise ShapeError(f"there are {rows.size} sources but {cols.size} targets; each edge needs both")
    low = min(int(rows.min()), int(cols.min())) if rows.size else 0
    high = max(int(rows.max()), int(cols.max())) if rows.size else -1
    if low < 0:
        raise ValueError(f"a node has number {low}, but nodes count from 0; pass base=1 only if the file counts from 1")
    count = high + 1 if nodes is None else nodes
    node_limit(count, rows.size, "the number of nodes")
    if high >= count:
        raise ValueError(f"a node has number {high}, but there are {count} nodes, 0..{count - 1}")
    if mirrored:
        loops = rows == cols
        rows, cols = np.concatenate([rows, cols[~loops]]), np.concatenate([cols, rows[~loops]])
        weights = None if weights is None else np.concatenate([weights, mirrored * weights[~loops]])
    indptr, indices, kept = csr_of_pairs(rows, cols, count, weights)
    return GraphData(indptr=indptr, indices=indices, weights=kept, name=name)

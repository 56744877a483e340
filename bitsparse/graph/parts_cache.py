"""Partitions kept on disk, known by the graph they were made of: METIS takes minutes where reading takes milliseconds."""

from __future__ import annotations

import hashlib
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitsparse import jit
from bitsparse._archive import npy
from bitsparse._files import keep, open_plain
from bitsparse.arrays.sparse_forms import Pattern
from bitsparse.errors import FileFormatError
from bitsparse.graph.adjacency import square_pattern
from bitsparse.graph.partition import partition

__all__ = ["cached_partition", "graph_hash"]

#: Bytes in front of the numbers of a ``.npy`` file, at most.
_LONGEST_HEADER = 1 << 14


def graph_hash(graph: Any, function: str = "graph_hash") -> str:
    """A name for a pattern: equal patterns have equal names, whatever holds them.

    Examples
    --------
    >>> graph_hash(np.eye(3)) == graph_hash((np.ones(3), (np.arange(3), np.arange(3))))
    True
    """
    return _hash(square_pattern(function, graph))


def _hash(pattern: Pattern) -> str:
    digest = hashlib.blake2b(str(pattern.shape).encode(), digest_size=16)
    wide = np.int64 if max(pattern.shape[0], pattern.indices.size) >= 2**31 else np.int32
    for part in (pattern.indptr, pattern.indices):
        data: Any = np.ascontiguousarray(part, dtype=wide)
        digest.update(data)
    return digest.hexdigest()


def cached_partition(
    graph: Any, parts: int, *, seed: int = 0, folder: str | Path | None = None
) -> tuple[NDArray[np.int32], bool]:
    """:func:`bitsparse.graph.partition`, kept on disk.

    Parameters
    ----------
    graph, parts, seed
        As there.
    folder : path, optional
        By default ``parts`` in the cache folder (``BITSPARSE_CACHE_DIR``).

    Returns
    -------
    labels : ndarray of int32, shape (n,)
    found : bool
        Whether they were there. A file that cannot be read, or holds something else, is made anew.
    """
    pattern = square_pattern("partition", graph)
    nodes = pattern.shape[0]
    name = f"{_hash(pattern)}-{parts}-{seed}-{_metis()}.npy"
    path = (Path(folder) if folder is not None else jit.cache_dir() / "parts") / name
    labels = _load(path, nodes, parts)
    if labels is not None:
        return labels, True
    labels = partition(graph, parts, seed=seed)
    keep(path, partial(np.save, arr=labels))
    return labels, False


def _load(path: Path, nodes: int, parts: int) -> NDArray[np.int32] | None:
    """Labels of an earlier run, or None; a file of another size than such labels take is not even read."""
    try:
        with open_plain(path) as stream:
            content = stream.read(4 * nodes + _LONGEST_HEADER)
            labels = npy("the partition", content)
    except (OSError, FileFormatError):
        return None
    if labels.shape != (nodes,) or labels.dtype != np.int32:
        return None
    return labels if not nodes or 0 <= int(labels.min()) <= int(labels.max()) < parts else None


def _metis() -> str:
    try:
        return f"pymetis{version('pymetis')}"
    except PackageNotFoundError:
        return "pymetis"

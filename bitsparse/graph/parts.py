"""Partitions by METIS, cached on disk for each graph because METIS takes minutes; and numbering of nodes part after part."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitsparse import _check, jit
from bitsparse._archive import npy
from bitsparse._files import keep, open_plain
from bitsparse.arrays.indices import index_array
from bitsparse.errors import FileFormatError, ShapeError
from bitsparse.graph.adjacency import scipy_pattern, square_pattern

#: Most bytes of the header of a ``.npy`` file.
_LONGEST_HEADER = 1 << 14
#: METIS cuts a graph with fewer edges than this within half a second.
_SOON_EDGES = 100_000
_CHILD = "from bitsparse.graph.parts import _answer; _answer()"


def partition(
    graph: Any,
    parts: int,
    *,
    seed: int = 0,
    recursive: bool | None = None,
    balance: Literal["nodes", "edges"] = "nodes",
) -> NDArray[np.int32]:
    """Split the nodes into parts of about equal size with few edges between them (METIS, as in QGTC section 4.1 and Cluster-GCN).

    Parameters
    ----------
    graph : sparse array of shape (n, n), tuple, TCTiledCSR, FRDC, BitTensor
        Directions, values and self loops do not matter: METIS gets the symmetric pattern without loops.
    parts : int
        Number of parts, 1..n. Some may stay empty when it is close to n.
    seed : int, default 0
        Seed of METIS; the same seed gives the same parts.
    recursive : bool, optional
        Recursive bisection instead of k-way partitioning; by default for up to 8 parts.
    balance : {"nodes", "edges"}
        What is about equal in all parts: the number of nodes, or that number plus the stored entries of their rows.

    Returns
    -------
    ndarray of int32, shape (n,)
        The part of each node.

    Raises
    ------
    ImportError
        pymetis is not installed; some systems have no wheel of it.

    Examples
    --------
    >>> from bitsparse import graph
    >>> a = np.kron(np.eye(2, dtype=int), np.ones((4, 4), dtype=int))
    >>> labels = graph.partition(a, 2)
    >>> len(set(labels[:4])), len(set(labels[4:])), bool(labels[0] != labels[4])
    (1, 1, True)
    """
    pattern = square_pattern("partition", graph)
    nodes = pattern.shape[0]
    parts = _check.integer("partition", "parts", parts, 1, max(nodes, 1))
    seed = _check.integer("partition", "seed", seed, 0, 2**31 - 1)
    _check.choice("partition", "balance", balance, ("nodes", "edges"))
    if recursive is not None:
        _check.flag("partition", "recursive", recursive)
    csr = scipy_pattern("partition", pattern)
    both = (csr + csr.T).tocoo()
    off_diagonal = both.row != both.col
    if parts == 1 or not off_diagonal.any():  # METIS cannot cut a graph without edges
        return (np.arange(nodes, dtype=np.int64) * parts // max(nodes, 1)).astype(np.int32)
    with _check.needed(
        "partition", "pymetis", "pip install pymetis (without a wheel for this system it is compiled, in C++)"
    ):
        from pymetis import CSRAdjacency, Options, part_graph, zero_copy_dtype
    from scipy import sparse

    data, rows, cols = (part[off_diagonal] for part in (both.data, both.row, both.col))
    plain = sparse.coo_array((data, (rows, cols)), shape=pattern.shape).tocsr()
    dtype = zero_copy_dtype()
    adjacency = CSRAdjacency(plain.indptr.astype(dtype, copy=False), plain.indices.astype(dtype, copy=False))
    weights = (np.diff(csr.indptr) + 1).astype(dtype) if balance == "edges" else None
    cut = part_graph(parts, adjacency, vweights=weights, recursive=recursive, options=Options(seed=seed))
    return np.asarray(cut.vertex_part, dtype=np.int32)


# -- in a process of its own ------------------------------------------------------------------------------------------
def partition_apart(graph: Any, parts: int, *, seed: int = 0) -> NDArray[np.int32]:
    """:func:`bitsparse.graph.partition` in a process of its own, unless the graph is so small that METIS takes almost no time.

    METIS holds the interpreter's lock (GIL) while it works, perhaps for minutes, so that no interrupt, timer or other thread of its process
    can run. The separate process is outside the terminal's process group, and is killed when this call is interrupted.

    Parameters
    ----------
    graph, parts, seed
        As for that function.

    Raises
    ------
    OSError
        The process ended without an answer, for example because the system has no memory left.
    """
    pattern = square_pattern("partition", graph)
    if pattern.indices.size < _SOON_EDGES:
        return partition(pattern, parts, seed=seed)
    _check.integer("partition", "parts", parts, 1, max(pattern.shape[0], 1))
    given = io.BytesIO()
    np.savez(given, indptr=pattern.indptr, indices=pattern.indices, asked=[parts, seed])
    # The child finds modules where this process does, and nowhere else (-P).
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", _CHILD]
    ended = subprocess.run(
        command, input=given.getbuffer(), capture_output=True, env=environment, start_new_session=True, check=False
    )
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise OSError(f"partition: the process of METIS ended with status {ended.returncode}: {said[-1]}")
    return npy("the partition", ended.stdout)


def _answer() -> None:
    """Run in the separate process: read a graph from stdin and write the part of each node to stdout."""
    from scipy import sparse

    with np.load(io.BytesIO(sys.stdin.buffer.read())) as given:
        indptr, indices, (parts, seed) = given["indptr"], given["indices"], given["asked"].tolist()
    matrix = sparse.csr_array((np.ones(indices.size, np.int8), indices, indptr), shape=(indptr.size - 1,) * 2)
    labels = io.BytesIO()
    np.save(labels, partition(matrix, parts, seed=seed))
    sys.stdout.buffer.write(labels.getbuffer())


# -- cached on disk ---------------------------------------------------------------------------------------------------
def graph_hash(graph: Any) -> str:
    """A name for a pattern: equal patterns have equal names, whatever type of array holds them.

    Examples
    --------
    >>> graph_hash(np.eye(3)) == graph_hash((np.ones(3), (np.arange(3), np.arange(3))))
    True
    """
    pattern = square_pattern("graph_hash", graph)
    digest = hashlib.blake2b(str(pattern.shape).encode(), digest_size=16)
    wide = np.int64 if max(pattern.shape[0], pattern.indices.size) >= 2**31 else np.int32
    for part in (pattern.indptr, pattern.indices):
        data: Any = np.ascontiguousarray(part, dtype=wide)
        digest.update(data)
    return digest.hexdigest()


def cached_partition(
    graph: Any,
    parts: int,
    *,
    seed: int = 0,
    cache: bool | str | Path = True,
    cut: Callable[..., NDArray[np.int32]] | None = None,
) -> tuple[NDArray[np.int32], bool]:
    """:func:`bitsparse.graph.partition` with a cache on disk.

    Parameters
    ----------
    graph, parts, seed
        As for that function.
    cache : bool or path, default True
        Where to store the labels: ``parts`` in the cache folder (``BITSPARSE_CACHE_DIR``), another folder, or with False nowhere.
    cut : callable, optional
        The function that computes the labels, such as :func:`partition_apart`; by default :func:`bitsparse.graph.partition`.

    Returns
    -------
    labels : ndarray of int32, shape (n,)
    found : bool
        Whether the labels were in the cache. A file that cannot be read or holds something else is written anew.
    """
    make = partial(cut or partition, graph, parts, seed=seed)
    if cache is False:
        return make(), False
    pattern = square_pattern("partition", graph)
    nodes = pattern.shape[0]
    name = f"{graph_hash(pattern)}-{parts}-{seed}-{_metis()}.npy"
    path = (jit.cache_dir() / "parts" if cache is True else Path(cache)) / name
    labels = _load(path, nodes, parts)
    if labels is not None:
        return labels, True
    labels = make()
    keep(path, partial(np.save, arr=labels))
    return labels, False


def _load(path: Path, nodes: int, parts: int) -> NDArray[np.int32] | None:
    """Labels of an earlier run, or None if the file is missing or holds anything else; a large file is not read to its end."""
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
    with suppress(PackageNotFoundError):
        return f"pymetis{version('pymetis')}"
    return "pymetis"


# -- numbering --------------------------------------------------------------------------------------------------------
class Numbered(NamedTuple):
    """The old number of each new one, the new number of each old one, and where each part starts (and the last ends) in new numbers."""

    order: NDArray[Any]
    place: NDArray[Any]
    bounds: NDArray[np.int64]


def numbered_by_part(function: str, nodes: int, labels: Any) -> Numbered:
    """Renumber fewer than 2**31 nodes part after part, in their old order within each part; empty parts are left out.

    Examples
    --------
    >>> numbered_by_part("f", 3, [7, 2, 7])
    Numbered(order=array([1, 0, 2], dtype=int32), place=array([1, 0, 2], dtype=int32), bounds=array([0, 1, 3]))
    """
    part = index_array(function, "labels", labels)
    if part.size != nodes:
        raise ShapeError(f"{function}: there are {part.size} labels for {nodes} nodes; pass one part for each")
    if part.size and int(part.min()) < 0:
        raise ValueError(f"{function}: labels reach {int(part.min())}, but parts count from 0")
    order = np.argsort(part, kind="stable").astype(np.int32)
    place = np.empty(nodes, np.int32)
    place[order] = np.arange(nodes, dtype=np.int32)
    sizes = np.unique(part, return_counts=True)[1]  # labels may be huge, so no array may be as long as the largest one
    return Numbered(order, place, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

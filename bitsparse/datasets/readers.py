"""A reader of npz files, and one that recognises the format of any file.

Nothing is unpickled, and sizes that a file announces are checked before memory is allocated.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from bitsparse import _check
from bitsparse._archive import Archive, opened
from bitsparse.arrays.npz import holds_saved, saved_in
from bitsparse.datasets.graph_data import MASKS, GraphData, check_csr, check_numbers
from bitsparse.datasets.planetoid import names_of, read_planetoid
from bitsparse.datasets.sources import existing_file, graph_of_pairs, naming, plain_bytes
from bitsparse.datasets.text import read_edges, read_mtx
from bitsparse.errors import FileFormatError, ShapeError

_FEATURES = ("x_indptr", "x_indices", "x_data", "x_shape")


def read_npz(path: str | os.PathLike[str]) -> GraphData:
    """Read a graph from a ``.npz`` file.

    ========================================  =========================================================================
    array                                     content
    ========================================  =========================================================================
    ``indptr``, ``indices``                   adjacency pattern in CSR form, integers (needed; all others are optional)
    ``num_nodes``                             scalar, must agree with ``indptr``
    ``x_indptr, x_indices, x_data, x_shape``  node features in CSR form, or else
    ``features``                              node features as one dense array
    ``labels``                                one integer per node, -1 for none
    ``train_mask, val_mask, test_mask``       one bool per node, all three or none
    ``weights``                               one number per entry of ``indices``
    ========================================  =========================================================================

    The format of TC-GNN and QGTC is read as well: ``src_li, dst_li`` (source and target of every edge) and ``num_nodes``; repeated edges
    are merged. So is a square array written by :func:`bitsparse.save_npz`: its stored entries are the edges, and its values are the
    weights, unless all are 1.

    Parameters
    ----------
    path : path

    Returns
    -------
    GraphData
        Named after the file.

    Raises
    ------
    FileNotFoundError, OSError
        The file cannot be read.
    FileFormatError, ShapeError, DTypeError
        The file is not an npz file, is damaged, holds pickled objects, holds arrays that are not a graph, or unpacks to more than 64 MiB
        plus 256 times its own size (set ``BITSPARSE_MAX_BYTES`` to allow this); the message names the file and the array.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bitsparse.datasets import read_npz
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "pair.npz")
    ...     np.savez(file, indptr=[0, 1, 2], indices=[1, 0])
    ...     read_npz(file)
    GraphData(pair: 2 nodes, 2 edges)
    """
    file = existing_file("read_npz", path)
    with naming("read_npz", file), opened("read_npz", file) as archive:
        return _graph(archive, file.stem)


def recognise(path: str | os.PathLike[str]) -> str:
    """The format of a file, told by its name and first bytes: ``"planetoid"``, ``"npz"``, ``"mtx"`` or ``"edges"``.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bitsparse.datasets.readers import recognise
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "edges.txt")
    ...     _ = file.write_text("0 1")
    ...     recognise(file)
    'edges'
    """
    file = Path(path)
    if names_of(file):
        return "planetoid"
    first = plain_bytes("read", existing_file("read", file), 64)
    if first.startswith(b"PK") or file.suffix == ".npz":
        return "npz"
    if first.lower().startswith(b"%%matrixmarket") or file.name.removesuffix(".gz").endswith(".mtx"):
        return "mtx"
    if b"\0" in first:
        raise FileFormatError(
            f"read: {file} is of no form that is known; npz, Matrix Market, Planetoid's raw files and text edge lists are"
        )
    return "edges"


def read(path: str | os.PathLike[str], *, weights: bool = False, base: int = 0, symmetric: bool = False) -> GraphData:
    r"""Read a graph from a file of any known format, which is told by its name and first bytes.

    Parameters
    ----------
    path : path
        A file for :func:`read_npz`, :func:`read_mtx`, :func:`read_planetoid` or :func:`read_edges`.
    weights : bool, default False
        Keep edge weights of text files; those of npz files are always kept.
    base, symmetric
        Options for edge lists; see :func:`read_edges`.

    Returns
    -------
    GraphData

    Raises
    ------
    FileNotFoundError, OSError
        The file cannot be read.
    ValueError, ShapeError, DTypeError
        The file has no known format, is damaged, or is not a graph.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from bitsparse.datasets import read
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "star.txt")
    ...     _ = file.write_text("0 1\n0 2\n")
    ...     read(file, symmetric=True)
    GraphData(star: 3 nodes, 4 edges)
    """
    _check.flag("read", "weights", weights)
    _check.flag("read", "symmetric", symmetric)
    form = recognise(path)
    if form == "edges":
        return read_edges(path, base=base, weights=weights, symmetric=symmetric)
    if base or symmetric:
        raise ValueError(f"read: base and symmetric belong to edge lists, but {Path(path).name} is of the form {form}")
    if form == "mtx":
        return read_mtx(path, weights=weights)
    return read_planetoid(path) if form == "planetoid" else read_npz(path)


def _node_count(archive: Archive) -> int | None:
    nodes = archive.find("num_nodes")
    if nodes is not None and (nodes.size != 1 or nodes.dtype.kind not in "iu"):
        raise ShapeError(f"num_nodes must be one integer, got shape {nodes.shape} of {nodes.dtype}")
    return None if nodes is None else int(nodes.item())


def _pairs(archive: Archive, name: str) -> GraphData:
    """The graph in an archive in the format of TC-GNN."""
    source, target, nodes = archive["src_li"], archive.find("dst_li"), _node_count(archive)
    if target is None or nodes is None:
        raise ValueError("src_li is there, but dst_li or num_nodes is missing; that form needs all three")
    check_numbers("", "src_li", source)
    check_numbers("", "dst_li", target)
    return graph_of_pairs(source, target, nodes, name)


def _graph(archive: Archive, name: str) -> GraphData:
    if holds_saved(archive):
        return _of_saved(saved_in("read_npz", archive), name)
    if "src_li" in archive and "indptr" not in archive:
        return _pairs(archive, name)
    missing = [key for key in ("indptr", "indices") if key not in archive]
    if missing:
        raise ValueError(
            f"{', '.join(missing)} missing; a graph needs indptr and indices, the CSR form of its adjacency"
        )
    indptr, nodes = archive["indptr"], _node_count(archive)
    if nodes is not None and nodes != indptr.size - 1:
        raise ShapeError(f"num_nodes is {nodes}, but indptr has {indptr.size} entries, not one more; mend one")
    parts = {key: archive.find(key) for key in ("labels", "weights", *MASKS)}
    return GraphData(indptr=indptr, indices=archive["indices"], x=_features(archive), name=name, **parts)


def _of_saved(array: Any, name: str) -> GraphData:
    """A graph from an array of this library; its values are weights unless all are 1."""
    matrix = array.tocsr()
    if matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(
            f"the array has shape {matrix.shape}, but a graph has as many rows as columns; read it with load_npz"
        )
    values = matrix.data.view(np.uint8) if matrix.data.dtype == np.bool_ else matrix.data
    return GraphData(
        indptr=matrix.indptr, indices=matrix.indices, weights=None if (values == 1).all() else values, name=name
    )


def _features(archive: Archive) -> Any:
    """The features in an archive: sparse, dense, or None."""
    missing = [key for key in _FEATURES if key not in archive]
    if len(missing) == len(_FEATURES):
        return archive.find("features")
    if missing:
        raise ValueError(f"{', '.join(missing)} missing; sparse features need all of {', '.join(_FEATURES)}")
    indptr, indices, data, shape = (archive[key] for key in _FEATURES)
    check_numbers("", "x_data", data, "biuf", "real numbers")
    check_numbers("", "x_shape", shape)
    if shape.size != 2 or int(shape.min()) < 0:
        raise ShapeError(f"x_shape is {shape.tolist()}, but two sizes are needed, nodes and features")
    rows, cols = (int(size) for size in shape)
    check_csr("", "x_", indptr, indices, (rows, cols), data)
    from scipy import sparse

    return sparse.csr_array((data, indices, indptr), shape=(rows, cols))

"""Graph files of every form, for ``inspect`` and ``convert``."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from bitsparse.arrays import FRDC, BitTensor, TCTiledCSR, load_npz, save_npz

if TYPE_CHECKING:
    from bitsparse.datasets import GraphData

__all__ = ["FORMS", "Loaded", "form_of", "load", "save"]

#: Forms that can be written, and what they are.
FORMS = {
    "npz": "CSR pattern, features, labels and masks (.npz)",
    "tcgnn": "src_li, dst_li and num_nodes, as TC-GNN and QGTC read them (.tcgnn.npz)",
    "mtx": "Matrix Market (.mtx)",
    "edges": "one edge a line (.txt, .tsv, .csv, .edges, .el)",
    "frdc": "FRDC (.frdc.npz)",
    "tiled": "TCTiledCSR (.tiled.npz)",
    "bits": "dense bits, a BitTensor (.bits.npz)",
}
_TEXT = (".txt", ".tsv", ".csv", ".edges", ".el")


@dataclass(frozen=True)
class Loaded:
    """A matrix from a file, and the graph's other parts where the file has them."""

    name: str
    form: str
    matrix: Any
    graph: GraphData | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, cols = self.matrix.shape
        return int(rows), int(cols)


def load(path: str, *, weights: bool = False, base: int = 0, symmetric: bool = False) -> Loaded:
    """Any file that :func:`bitsparse.datasets.read` or :func:`bitsparse.load_npz` reads."""
    from bitsparse import datasets

    if _is_container(path):
        matrix = load_npz(path)
        if len(matrix.shape) != 2:
            raise ValueError(f"{path} holds an array of shape {matrix.shape}, but a graph has two dimensions")
        forms = {FRDC: "FRDC", TCTiledCSR: "TCTiledCSR", BitTensor: "BitTensor"}
        return Loaded(Path(path).name.partition(".")[0], forms[type(matrix)], matrix)
    graph = datasets.read(path, weights=weights, base=base, symmetric=symmetric)
    matrix = graph.weighted if weights else graph.adjacency
    return Loaded(graph.name, datasets.recognise(path), matrix, graph)


def _is_container(path: str) -> bool:
    if not Path(path).is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "header.npy" in archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False


def form_of(path: str) -> str:
    """The form that a file's name means."""
    name = Path(path).name.lower()
    for form in ("frdc", "tiled", "bits", "tcgnn"):
        if name.endswith(f".{form}.npz"):
            return form
    if name.endswith(".npz"):
        return "npz"
    if name.endswith(".mtx"):
        return "mtx"
    if name.endswith(_TEXT):
        return "edges"
    raise ValueError(
        f"{path!r} does not tell its form; name it .npz, .mtx or .txt, or pass --to {{{', '.join(FORMS)}}}"
    )


def save(loaded: Loaded, stream: IO[bytes], form: str, *, pattern: bool = False) -> None:
    """Write the matrix (and, as npz, the graph's other parts) in another form."""
    if form in ("frdc", "tiled", "bits"):
        _save_container(loaded.matrix, stream, form, pattern)
        return
    matrix = loaded.matrix if loaded.graph is not None else loaded.matrix.tocsr()
    if form == "mtx":
        from scipy.io import mmwrite

        kind = "pattern" if _is_pattern(matrix, pattern) else None
        mmwrite(stream, matrix.astype(np.int8) if kind else matrix, field=kind, symmetry="general")
        return
    if form == "edges":
        coo = matrix.tocoo()
        ends = np.stack(coo.coords, axis=1)
        if _is_pattern(matrix, pattern):
            np.savetxt(stream, ends, fmt="%d", header=f"{coo.shape[0]} nodes, source target")
        else:
            columns = np.rec.fromarrays([ends[:, 0], ends[:, 1], coo.data.astype(np.float64)])
            np.savetxt(stream, columns, fmt=("%d", "%d", "%.17g"), header=f"{coo.shape[0]} nodes, source target weight")
        return
    np.savez_compressed(stream, **_arrays(loaded, matrix, form, pattern))


def _is_pattern(matrix: Any, pattern: bool) -> bool:
    return pattern or matrix.dtype.kind == "b" or bool((matrix.data == 1).all())


def _save_container(matrix: Any, stream: IO[bytes], form: str, pattern: bool) -> None:
    array: Any
    if form == "frdc":
        array = FRDC(matrix, pattern=pattern)
    elif form == "tiled":
        array = TCTiledCSR(matrix, pattern=pattern)
    else:
        array = FRDC(matrix, pattern=pattern).with_scales().to_bit_tensor()
    save_npz(stream, array)


def _arrays(loaded: Loaded, matrix: Any, form: str, pattern: bool) -> dict[str, Any]:
    from bitsparse.datasets import GraphData

    graph = loaded.graph
    if graph is None:
        if loaded.shape[0] != loaded.shape[1]:
            raise ValueError(f"a graph has as many rows as columns, but the matrix has shape {loaded.shape}")
        weights = None if _is_pattern(matrix, pattern) else matrix.data
        graph = GraphData(indptr=matrix.indptr, indices=matrix.indices, weights=weights, name=loaded.name)
    if form == "tcgnn":
        source = np.repeat(np.arange(graph.num_nodes, dtype=graph.indices.dtype), np.diff(graph.indptr))
        return {"src_li": source, "dst_li": graph.indices, "num_nodes": np.int64(graph.num_nodes)}
    arrays: dict[str, Any] = {
        "indptr": graph.indptr,
        "indices": graph.indices,
        "num_nodes": np.int64(graph.num_nodes),
        "weights": None if pattern else graph.weights,
        "labels": graph.labels,
        "train_mask": graph.train_mask,
        "val_mask": graph.val_mask,
        "test_mask": graph.test_mask,
    }
    if isinstance(graph.x, np.ndarray):
        arrays["features"] = graph.x
    elif graph.x is not None:
        x = graph.x.tocsr()
        arrays |= {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.data, "x_shape": np.array(x.shape)}
    return {key: value for key, value in arrays.items() if value is not None}
